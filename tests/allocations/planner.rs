//! The planner: bindings, scheduling, overrides, Works, and the aggregation of their status.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::modeling::default_models;
use crowsnest_api::policy::{OverrideSpec, PropagationSpec};
use crowsnest_api::work::{ReplicaRequirements, ResourceBindingSpec, ResourceBindingStatus, TargetCluster, Work};
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::capacity::{FormattedAllocatable, NodeFacts, PodFacts, free_nodes, resource_summary};
use crowsnest_plan::estimation::free_capacity::{CapacityFacts, EstimateCache, FreeCapacity};
use crowsnest_plan::estimation::ledger::Ledger;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::overriding::{self, OverridePolicy};
use crowsnest_plan::propagation::Policy;
use crowsnest_plan::propagation::binding::{self, BindingInput, BindingPlan, NewBinding, ReplicaFacts};
use crowsnest_plan::scheduling::{self, Binding, ClusterFacts, NoopObserver, Plan, Plugins, SchedulingContext};
use crowsnest_plan::status;
use crowsnest_plan::work::construct::{self, BindingIdentity, DesiredWork, WorkPlan};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::fixtures::{DEPLOYMENT, member_name, pods, yaml};
use super::hot_path::HotPath;

const CLUSTER: &str = include_str!("data/cluster.yaml");
const NODE: &str = include_str!("data/node.yaml");
const POLICY: &str = include_str!("data/policy.yaml");
const REQUIREMENTS: &str = include_str!("data/requirements.yaml");
const OVERRIDES: &str = include_str!("data/overrides.yaml");
const WORK_STATUS: &str = include_str!("data/work-status.yaml");

const REGIONS: u32 = 5;
/// Nodes of each cluster.
const NODES: u32 = 10;
/// Works of the binding whose status is aggregated.
const WORKS: u32 = 10;
const REPLICAS: i32 = 40;
const BINDING_ID: &str = "7c1d0b6e-52f4-4c8f-9f43-0e3d5a1f2b01";
const WORK_ID: &str = "7c1d0b6e-52f4-4c8f-9f43-0e3d5a1f2b02";

pub fn hot_paths() -> Result<Vec<HotPath>> {
    Ok(vec![
        scheduling("planner/scheduling-10-clusters", 10)?,
        scheduling("planner/scheduling-100-clusters", 100)?,
        overriding()?,
        binding()?,
        work()?,
        status_aggregation()?,
    ])
}

/// The Deployment with its policy, and the requirements that the resource interpreter reads.
struct Template {
    object: Value,
    policy: Value,
    policy_spec: PropagationSpec,
    requirements: ReplicaRequirements,
}

impl Template {
    fn read() -> Result<Self> {
        let policy: Value = yaml(POLICY)?;
        let policy_spec = serde_json::from_value(policy["spec"].clone())?;
        Ok(Self { object: yaml(DEPLOYMENT)?, policy, policy_spec, requirements: yaml(REQUIREMENTS)? })
    }

    fn replica_facts(&self, replicas: i32) -> ReplicaFacts {
        ReplicaFacts { replicas, requirements: Some(self.requirements.clone()), components: Vec::new() }
    }

    fn plan(&self, replica_facts: ReplicaFacts, existing: Option<&Value>) -> BindingPlan {
        let policy = Policy::new(&self.policy, &self.policy_spec);
        let input = BindingInput {
            template: &self.object,
            policy: &policy,
            replica_facts,
            priority: None,
            gates: Gates::default(),
            template_changed: true,
            new: NewBinding { name: "checkout-deployment", permanent_id: BINDING_ID },
        };
        binding::plan(&input, existing)
    }

    fn binding(&self) -> Result<Value> {
        match self.plan(self.replica_facts(REPLICAS), None) {
            BindingPlan::Create(binding) => Ok(binding),
            other => bail!("the binding is not created: {other:?}"),
        }
    }
}

fn spec_of(binding: &Value) -> Result<ResourceBindingSpec> {
    Ok(serde_json::from_value(binding["spec"].clone())?)
}

/// Member clusters of equal capacity in several regions.
struct Fleet {
    clusters: Vec<Arc<ClusterFacts>>,
    free_capacities: Vec<Arc<FreeCapacity>>,
}

impl Fleet {
    fn new(size: u32) -> Result<Self> {
        let template: Value = yaml(NODE)?;
        let node = |number: u32| {
            let mut node = template.clone();
            node["metadata"]["name"] = json!(format!("node-{number}"));
            node
        };
        let nodes: Vec<Value> = (0..NODES).map(node).collect();
        let facts: Vec<NodeFacts> = nodes.iter().map(NodeFacts::from_json).collect();
        let pods: Vec<PodFacts> = pods()?.iter().map(PodFacts::from_json).collect();
        let allocatable: Vec<FormattedAllocatable> = nodes.iter().map(FormattedAllocatable::from_node).collect();
        let free = free_nodes(&facts, &pods);
        let models = default_models();
        let summary = resource_summary(allocatable.iter(), pods.iter(), free.iter().map(|node| &node.free), &models);
        let capacity = CapacityFacts { nodes: Some(Arc::new(free.into())), quotas: None };
        let mut ledger = Ledger::new(Gates::default());
        let mut fleet = Self { clusters: Vec::new(), free_capacities: Vec::new() };
        for number in 0..size {
            let mut cluster = cluster(number)?;
            cluster.spec.resource_models.clone_from(&models);
            cluster.status.resource_summary = Some(summary.clone());
            let facts = Arc::new(ClusterFacts::new(cluster));
            fleet.free_capacities.push(ledger.free_capacity(&facts, &capacity, &BindingKey::default()));
            fleet.clusters.push(facts);
        }
        Ok(fleet)
    }
}

fn cluster(number: u32) -> Result<Cluster> {
    let mut cluster: Value = yaml(CLUSTER)?;
    cluster["metadata"]["name"] = json!(member_name(number));
    cluster["spec"]["region"] = json!(format!("region-{}", number % REGIONS));
    Ok(serde_json::from_value(cluster)?)
}

/// The first scheduling of a binding, with cached estimates.
fn scheduling(name: &'static str, clusters: u32) -> Result<HotPath> {
    let Fleet { clusters, free_capacities } = Fleet::new(clusters)?;
    let spec = spec_of(&Template::read()?.binding()?)?;
    let (status, cache) = (ResourceBindingStatus::default(), EstimateCache::default());
    Ok(HotPath::with_input(
        name,
        move || Ok(free_capacities.clone()),
        move |free_capacities: Vec<Arc<FreeCapacity>>| {
            let estimator = Estimator { free_capacities, cache: &cache };
            let context = SchedulingContext {
                clusters: &clusters,
                estimate: &estimator,
                peers: &[],
                gates: Gates::default(),
                plugins: Plugins::default(),
                propagate_empty_workloads: false,
                observer: &NoopObserver,
            };
            let binding = Binding { generation: 1, applied_placement: None, spec: &spec, status: &status };
            match scheduling::plan(&context, &binding).0 {
                Plan::Schedule { clusters, .. } => Ok(clusters),
                other => bail!("the binding is not scheduled: {other:?}"),
            }
        },
    ))
}

fn overriding() -> Result<HotPath> {
    let (template, spec, cluster) = (Template::read()?, yaml::<OverrideSpec>(OVERRIDES)?, cluster(0)?);
    Ok(HotPath::with_input(
        "planner/overriding",
        move || Ok(template.object.clone()),
        move |mut manifest: Value| {
            let policies = [OverridePolicy { name: "europe", spec: &spec }];
            let report = overriding::apply(&mut manifest, &cluster, &policies, &[])?;
            ensure!(!report.cluster.is_empty(), "no rule was applied");
            Ok((manifest, report))
        },
    ))
}

/// The update of a binding after its template was scaled.
fn binding() -> Result<HotPath> {
    let template = Arc::new(Template::read()?);
    let existing = template.binding()?;
    let scaled_template = Arc::clone(&template);
    Ok(HotPath::with_input(
        "planner/binding",
        move || Ok(scaled_template.replica_facts(REPLICAS + 1)),
        move |replica_facts: ReplicaFacts| match template.plan(replica_facts, Some(&existing)) {
            BindingPlan::Update(binding) => Ok(binding),
            other => bail!("the binding is not updated: {other:?}"),
        },
    ))
}

fn desired_work(spec: &ResourceBindingSpec, binding: &Value, cluster: &str, manifest: Value) -> DesiredWork {
    let overrides = overriding::AppliedOverrides::default();
    let identity = BindingIdentity::from_binding(binding);
    construct::work_for_binding(spec, identity, cluster, manifest, &overrides, false, false)
}

/// The Work as created in the control plane.
fn created_work(desired: &DesiredWork) -> Result<Value> {
    match desired.plan(None, WORK_ID) {
        WorkPlan::Create(work) => Ok(work),
        other => bail!("the Work is not created: {other:?}"),
    }
}

/// A reconcile of a Work that needs no write.
fn work() -> Result<HotPath> {
    let template = Template::read()?;
    let binding = template.binding()?;
    let spec = spec_of(&binding)?;
    let cluster = member_name(0);
    let existing = created_work(&desired_work(&spec, &binding, &cluster, template.object.clone()))?;
    Ok(HotPath::with_input(
        "planner/work",
        move || Ok(template.object.clone()),
        move |manifest: Value| {
            let desired = desired_work(&spec, &binding, &cluster, manifest);
            let plan = desired.plan(Some(&existing), WORK_ID);
            ensure!(plan == WorkPlan::Keep, "the Work is not kept: {plan:?}");
            Ok(desired)
        },
    ))
}

fn status_aggregation() -> Result<HotPath> {
    let template = Template::read()?;
    let binding = template.binding()?;
    let mut spec = spec_of(&binding)?;
    let work_status: Value = yaml(WORK_STATUS)?;
    let mut works: Vec<(String, Work)> = Vec::new();
    for cluster in (0..WORKS).map(member_name) {
        let mut work = created_work(&desired_work(&spec, &binding, &cluster, template.object.clone()))?;
        work["status"] = work_status.clone();
        works.push((cluster, serde_json::from_value(work)?));
    }
    let target = |(name, _): &(String, Work)| TargetCluster { name: name.clone(), ..TargetCluster::default() };
    spec.clusters = works.iter().map(target).collect();
    Ok(HotPath::new("planner/status-aggregation", move || {
        let by_cluster: Vec<(&str, &Work)> = works.iter().map(|(cluster, work)| (cluster.as_str(), work)).collect();
        let items =
            status::aggregate(&by_cluster, &spec.resource).context("a Work contains an object of another binding")?;
        let condition = status::fully_applied_condition(&spec, &items, Timestamp::UNIX_EPOCH);
        ensure!(condition.status == "True", "{}", condition.message);
        Ok((items, condition))
    }))
}
