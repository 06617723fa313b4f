//! `crowsnest bench plan`: scheduling decisions per second of the planner alone over a large fleet, without a control
//! plane.

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::modeling::default_models;
use crowsnest_api::work::{ResourceBindingSpec, ResourceBindingStatus};
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::capacity::{FormattedAllocatable, NodeFacts, PodFacts, free_nodes, resource_summary};
use crowsnest_plan::estimation::free_capacity::{CapacityFacts, EstimateCache, FreeCapacity};
use crowsnest_plan::estimation::ledger::Ledger;
use crowsnest_plan::estimation::resources::Resources;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::scheduling::{self, Binding, ClusterFacts, NoopObserver, Plan, Plugins, SchedulingContext};
use serde_json::{Value, json};

#[derive(Debug, Clone, Args)]
pub(super) struct PlanArgs {
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=5000))]
    clusters: u32,
    /// Nodes per cluster
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=5000))]
    nodes: u32,
    /// Bindings per kind of placement; half of them are scheduled already
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    bindings: u32,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of threads [default: the number of cores]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

/// Kinds of placements, as named in the output.
const KINDS: [&str; 6] =
    ["duplicated", "static-weights", "dynamic-weights", "aggregated", "spread-by-region", "component-sets"];
/// Distinct resource requests per kind.
const DISTINCT_REQUESTS: u32 = 24;
const REGIONS: u32 = 5;
/// Number of sequential decisions with reserved capacity.
const RESERVED_DECISIONS: usize = 1_000;

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let fleet = Fleet::new(args.clusters, args.nodes)?;
    let mut ledger = Ledger::new(fleet.gates);
    let free_capacities = fleet.free_capacities(&mut ledger, &BindingKey::default());
    let estimate_cache = EstimateCache::default();
    let planner = Planner { fleet: &fleet, estimate: Estimator { free_capacities, cache: &estimate_cache } };
    let mut all_cases = Vec::new();
    let mut kinds = Vec::new();
    for kind in KINDS {
        let cases = binding_cases(&planner, kind, args.bindings)?;
        kinds.push((kind, all_cases.len()..all_cases.len() + cases.len()));
        all_cases.extend(cases);
    }
    // Alternate the kinds.
    let cases_per_kind = all_cases.len() / KINDS.len();
    let mixed: Vec<&BindingCase> =
        (0..all_cases.len()).map(|nth| &all_cases[nth % KINDS.len() * cases_per_kind + nth / KINDS.len()]).collect();

    let period = Duration::from_secs(u64::from(args.seconds));
    let mut out = std::io::stdout().lock();
    writeln!(out, "plan/threads {threads}")?;
    writeln!(out, "plan/decisions {:.0} decisions/s", planner.measure_rate(&mixed, threads, period)?)?;
    for (kind, range) in kinds {
        let cases: Vec<&BindingCase> = all_cases[range].iter().collect();
        writeln!(out, "plan/{kind} {:.0} decisions/s", planner.measure_rate(&cases, threads, period)?)?;
    }
    writeln!(out, "plan/new-requests {:.0} decisions/s", measure_new_requests(&planner, period)?)?;
    writeln!(out, "plan/promised {:.0} decisions/s", measure_reservations(&fleet, &mut ledger, &mixed)?)?;
    Ok(())
}

/// The clusters and their capacity.
struct Fleet {
    gates: Gates,
    clusters: Vec<Arc<ClusterFacts>>,
    capacities: Vec<CapacityFacts>,
}

impl Fleet {
    fn new(clusters: u32, nodes: u32) -> anyhow::Result<Self> {
        let mut fleet = Fleet { gates: Gates::all(), clusters: Vec::new(), capacities: Vec::new() };
        for number in 0..clusters {
            let (cluster, capacity) = cluster(number, nodes)?;
            fleet.clusters.push(Arc::new(ClusterFacts::new(cluster)));
            fleet.capacities.push(capacity);
        }
        Ok(fleet)
    }

    fn free_capacities(&self, ledger: &mut Ledger, key: &BindingKey) -> Vec<Arc<FreeCapacity>> {
        self.clusters
            .iter()
            .zip(&self.capacities)
            .map(|(facts, capacity)| ledger.free_capacity(facts, capacity, key))
            .collect()
    }
}

/// A cluster whose nodes are about a third full.
fn cluster(number: u32, nodes: u32) -> anyhow::Result<(Cluster, CapacityFacts)> {
    let node_objects: Vec<Value> = (0..nodes).map(|nth| node(number, nth)).collect();
    let facts: Vec<NodeFacts> = node_objects.iter().map(NodeFacts::from_json).collect();
    let pods: Vec<PodFacts> = facts.iter().enumerate().flat_map(|(nth, node)| pods(node, nth)).collect();
    let allocatable: Vec<FormattedAllocatable> = node_objects.iter().map(FormattedAllocatable::from_node).collect();
    let models = default_models();
    let free = free_nodes(&facts, &pods);
    let summary = resource_summary(allocatable.iter(), pods.iter(), free.iter().map(|node| &node.free), &models);
    let api_resources = |group: &str, kinds: &[&str]| {
        let resources: Vec<Value> =
            kinds.iter().map(|kind| json!({"name": format!("{}s", kind.to_lowercase()), "kind": kind})).collect();
        json!({"groupVersion": group, "resources": resources})
    };
    let mut cluster: Cluster = serde_json::from_value(json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {
            "name": format!("member-{number:04}"),
            "labels": {"tier": if number.is_multiple_of(2) { "gold" } else { "silver" }, "env": "prod"},
        },
        "spec": {
            "syncMode": "Push", "provider": "alpha", "region": format!("region-{}", number % REGIONS),
            "zones": [format!("zone-{}", number % 15)],
        },
        "status": {"apiEnablements": [
            api_resources("apps/v1", &["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"]),
            api_resources("batch/v1", &["Job", "CronJob"]),
            api_resources("flink.apache.org/v1beta1", &["FlinkDeployment"]),
            api_resources("networking.k8s.io/v1", &["Ingress", "NetworkPolicy"]),
            api_resources("v1", &["ConfigMap", "Pod", "Secret", "Service", "ServiceAccount"]),
        ]},
    }))?;
    cluster.spec.resource_models = models;
    cluster.status.resource_summary = Some(summary);
    let nodes = Arc::new(free.into());
    Ok((cluster, CapacityFacts { nodes: Some(nodes), quotas: None }))
}

fn node(cluster: u32, nth: u32) -> Value {
    let (cpu, memory) = [("8", "32Gi"), ("16", "64Gi"), ("32", "128Gi"), ("64", "256Gi")][(nth % 4) as usize];
    let taints =
        if nth % 25 == 24 { json!([{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]) } else { json!([]) };
    json!({
        "metadata": {
            "name": format!("member-{cluster:04}-node-{nth:04}"),
            "labels": {
                "kubernetes.io/os": "linux", "kubernetes.io/arch": if nth % 10 == 9 { "arm64" } else { "amd64" },
                "kubernetes.io/hostname": format!("member-{cluster:04}-node-{nth:04}"),
                "node.kubernetes.io/instance-type": format!("m{cpu}"),
                "topology.kubernetes.io/zone": format!("zone-{}", nth % 3),
            },
        },
        "spec": {"taints": taints},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "200Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Pods of a node; nodes have different load.
fn pods(node: &NodeFacts, nth: usize) -> Vec<PodFacts> {
    let count = i64::try_from(nth % 20).unwrap_or_default() + 10;
    let share = |amount: i64| amount / 3 / count;
    let request = Resources {
        milli_cpu: share(node.allocatable.milli_cpu),
        memory: share(node.allocatable.memory),
        pods: 1,
        ..Resources::default()
    };
    let pod = PodFacts { node: node.name.clone(), is_finished: false, request };
    vec![pod; usize::try_from(count).unwrap_or_default()]
}

/// A binding to schedule.
struct BindingCase {
    applied_placement: Option<String>,
    spec: ResourceBindingSpec,
    status: ResourceBindingStatus,
}

fn placement(kind: &str, nth: u32) -> Value {
    let gold = json!({"labelSelector": {"matchLabels": {"tier": "gold"}}});
    let divided = |preference: &str, weights: Value| {
        json!({
            "replicaSchedulingType": "Divided", "replicaDivisionPreference": preference, "weightPreference": weights,
        })
    };
    let region = |nth: u32| format!("region-{}", nth % REGIONS);
    match kind {
        "duplicated" => json!({"clusterAffinity": gold, "replicaScheduling": {"replicaSchedulingType": "Duplicated"}}),
        "static-weights" => {
            let rule = |weight: u32, nth: u32| {
                let region = json!({"key": "region", "operator": "In", "values": [region(nth)]});
                json!({"targetCluster": {"fieldSelector": {"matchExpressions": [region]}}, "weight": weight})
            };
            let weights = json!({"staticWeightList": [rule(1, nth), rule(2, nth + 1), rule(5, nth + 2)]});
            json!({"replicaScheduling": divided("Weighted", weights)})
        }
        "aggregated" => json!({"clusterAffinity": gold, "replicaScheduling": divided("Aggregated", Value::Null)}),
        "spread-by-region" => json!({
            "spreadConstraints": [
                {"spreadByField": "region", "minGroups": 2, "maxGroups": 3},
                {"spreadByField": "cluster", "minGroups": 4, "maxGroups": 12},
            ],
            "replicaScheduling": divided("Weighted", json!({"dynamicWeight": "AvailableReplicas"})),
        }),
        "component-sets" => json!({
            "spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}],
        }),
        _ => json!({"replicaScheduling": divided("Weighted", json!({"dynamicWeight": "AvailableReplicas"}))}),
    }
}

fn requirements(nth: u32) -> Value {
    let size = nth % DISTINCT_REQUESTS;
    let selector = if size.is_multiple_of(3) { json!({"kubernetes.io/arch": "amd64"}) } else { json!({}) };
    let tolerations =
        if size.is_multiple_of(8) { json!([{"key": "dedicated", "operator": "Exists"}]) } else { json!([]) };
    json!({
        "nodeClaim": {"nodeSelector": selector, "tolerations": tolerations},
        "resourceRequest": {"cpu": format!("{}m", 100 + 50 * size), "memory": format!("{}Mi", 128 + 64 * (size % 6))},
    })
}

fn spec(kind: &str, nth: u32) -> anyhow::Result<ResourceBindingSpec> {
    let resource = |api_version: &str, kind: &str| {
        json!({
            "apiVersion": api_version, "kind": kind, "namespace": format!("team-{}", nth % 50),
            "name": format!("app-{nth}"), "uid": format!("uid-{nth}"),
        })
    };
    let mut spec = json!({"placement": placement(kind, nth)});
    if kind == "component-sets" {
        spec["resource"] = resource("flink.apache.org/v1beta1", "FlinkDeployment");
        let component = |name: &str, replicas: u32, nth: u32| {
            let mut component = json!({"name": name, "replicas": replicas});
            component["replicaRequirements"] = requirements(nth);
            component
        };
        spec["components"] = json!([
            component("jobmanager", 1, nth),
            component("taskmanager", 2 + nth % 4, nth % DISTINCT_REQUESTS + 5)
        ]);
    } else {
        spec["resource"] = resource("apps/v1", "Deployment");
        spec["replicas"] = json!(1 + nth % 40);
        spec["replicaRequirements"] = requirements(nth);
    }
    serde_json::from_value(spec).context("cannot build the spec of a binding")
}

/// Bindings of a kind. Every second one is scheduled and then scaled up by one replica.
fn binding_cases(planner: &Planner<'_>, kind: &str, bindings: u32) -> anyhow::Result<Vec<BindingCase>> {
    let case = |nth| {
        let mut case =
            BindingCase { applied_placement: None, spec: spec(kind, nth)?, status: ResourceBindingStatus::default() };
        if nth % 2 == 1 {
            let Plan::Schedule { clusters, .. } = planner.decide(&case) else {
                bail!("no cluster fits the {kind} binding {nth}");
            };
            case.applied_placement = Some(serde_json::to_string(&case.spec.placement)?);
            case.spec.clusters = clusters;
            case.spec.replicas += i32::from(case.spec.components.is_empty());
        }
        Ok(case)
    };
    (0..bindings).map(case).collect()
}

/// The planner with its input.
struct Planner<'a> {
    fleet: &'a Fleet,
    estimate: Estimator<'a>,
}

impl Planner<'_> {
    fn decide(&self, case: &BindingCase) -> Plan {
        let context = SchedulingContext {
            clusters: &self.fleet.clusters,
            estimate: &self.estimate,
            peers: &[],
            gates: self.fleet.gates,
            plugins: Plugins::default(),
            propagate_empty_workloads: false,
            observer: &NoopObserver,
        };
        let binding = Binding {
            generation: 1,
            applied_placement: case.applied_placement.as_deref(),
            spec: &case.spec,
            status: &case.status,
        };
        scheduling::plan(&context, &binding).0
    }

    /// Measures the decisions per second of several threads.
    fn measure_rate(&self, cases: &[&BindingCase], threads: NonZeroUsize, period: Duration) -> anyhow::Result<f64> {
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        let decide = || {
            let (mut decided, mut scheduled) = (0_usize, 0_usize);
            while start.elapsed() < period {
                let case = cases[next.fetch_add(1, Ordering::Relaxed) % cases.len()];
                decided += 1;
                scheduled += usize::from(matches!(self.decide(case), Plan::Schedule { .. }));
            }
            (decided, scheduled)
        };
        let counts: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads.get()).map(|_| scope.spawn(decide)).collect();
            handles.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let duration = start.elapsed();
        let mut decided = 0;
        for count in counts {
            let Ok((thread_decided, scheduled)) = count else { bail!("a thread panicked") };
            ensure!(
                thread_decided == scheduled,
                "{} of {thread_decided} decisions did not schedule",
                thread_decided - scheduled
            );
            decided += thread_decided;
        }
        Ok(decided as f64 / duration.as_secs_f64())
    }
}

/// Decisions per second for resource requests without cached estimates, in one thread.
fn measure_new_requests(planner: &Planner<'_>, period: Duration) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut decided = 0_u32;
    let mut decision_time = Duration::ZERO;
    while start.elapsed() < period {
        let mut case = BindingCase {
            applied_placement: None,
            spec: spec("dynamic-weights", 1)?,
            status: ResourceBindingStatus::default(),
        };
        let requirements = case.spec.replica_requirements.as_mut().context("no requirements")?;
        requirements
            .resource_request
            .insert("memory".to_owned(), serde_json::from_value(json!(format!("{}Ki", 200_000 + decided)))?);
        let decision_start = Instant::now();
        ensure!(matches!(planner.decide(&case), Plan::Schedule { .. }), "no cluster fits a new request");
        decision_time += decision_start.elapsed();
        decided += 1;
    }
    Ok(f64::from(decided) / decision_time.as_secs_f64())
}

/// Decisions per second if each reserves its capacity before the next one, without cached estimates.
fn measure_reservations(fleet: &Fleet, ledger: &mut Ledger, cases: &[&BindingCase]) -> anyhow::Result<f64> {
    let estimate_cache = EstimateCache::default();
    let start = Instant::now();
    for nth in 0..RESERVED_DECISIONS {
        let (case, key) = (cases[nth % cases.len()], BindingKey::new("", format!("binding-{nth}")));
        let planner = Planner {
            fleet,
            estimate: Estimator { free_capacities: fleet.free_capacities(ledger, &key), cache: &estimate_cache },
        };
        // The fleet fills up; a decision without a fitting cluster counts as well.
        let Plan::Schedule { clusters, .. } = planner.decide(case) else { continue };
        ledger.reserve(&key, &case.spec, &case.status, &clusters, start.elapsed());
        ledger.confirm_write(&key, 1);
    }
    Ok(RESERVED_DECISIONS as f64 / start.elapsed().as_secs_f64())
}
