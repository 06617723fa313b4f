//! The scheduler's loop: bindings get their clusters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition, event, label};
use crowsnest_api::names::ClusterName;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, ResourceHealth, TargetCluster};
use futures::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::capacity::Capacity;
use super::context::{Context, decode, now};
use super::events::Severity;
use super::objects::Resource;
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crate::plan::conditions;
use crate::plan::estimation::capacity::FreeNode;
use crate::plan::estimation::resources::Resources;
use crate::plan::estimation::{Assumed, Estimator};
use crate::plan::object;
use crate::plan::scheduling::{
    self, Binding, ClusterFacts, Peer, Plan, Report, ScheduleError, Trigger, affected_by_cluster,
};

/// A binding; the namespace is empty for a ClusterResourceBinding.
pub type BindingKey = (String, String);

/// Replicas a cluster was promised and whose pods are not running yet.
struct Promise {
    assumed: Assumed,
    until: Instant,
}

/// A promise nobody kept is forgotten after this.
const PROMISE_LIFE: Duration = Duration::from_secs(300);

pub struct Scheduling {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
    pub bindings: Queue<BindingKey>,
    clusters: RwLock<Arc<Vec<Arc<ClusterFacts>>>>,
    promises: Mutex<HashMap<(BindingKey, String), Promise>>,
    /// Bindings with affinity groups must see each other's results, so they are decided and written one at a time.
    /// All others are independent; what they promise is noted at once.
    grouped: tokio::sync::Mutex<()>,
}

impl Scheduling {
    pub fn new(context: Arc<Context>, capacity: Arc<Capacity>) -> Arc<Self> {
        Arc::new(Scheduling {
            context,
            capacity,
            bindings: Queue::new("scheduling"),
            clusters: RwLock::default(),
            promises: Mutex::default(),
            grouped: tokio::sync::Mutex::new(()),
        })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        if *gvr == kinds.cluster.gvr {
            self.on_cluster(change).await?;
        } else if *gvr == kinds.resource_binding.gvr || *gvr == kinds.cluster_resource_binding.gvr {
            let key = change.key();
            let Some(new) = change.current() else {
                self.promises.lock().retain(|(binding, _), _| *binding != key);
                return Ok(());
            };
            self.settle_promises(&key, new);
            if change.is_marked() {
                self.bindings.add(key);
            }
        }
        Ok(())
    }

    /// Clusters or bindings are only these.
    pub fn told_again(&self, resource: &Resource, keys: &HashSet<BindingKey>) {
        let kinds = &self.context.kinds;
        let has = |namespace: &str, name: &str| keys.contains(&(namespace.to_owned(), name.to_owned()));
        if *resource == kinds.cluster {
            let mut clusters = self.clusters.write();
            *clusters = Arc::new(clusters.iter().filter(|facts| has("", facts.name())).cloned().collect());
        } else if *resource == kinds.resource_binding || *resource == kinds.cluster_resource_binding {
            let stays = |key: &BindingKey| key.0.is_empty() == resource.namespaced || keys.contains(key);
            self.promises.lock().retain(|(binding, _), _| stays(binding));
        }
    }

    /// A promise is kept once the cluster reports the object healthy; its pods are counted from then on.
    fn settle_promises(&self, key: &BindingKey, binding: &Value) {
        if !self.context.config.gates.scheduling_overcommit_protection {
            return;
        }
        let items = object::at(binding, &["status", "aggregatedStatus"]).and_then(Value::as_array);
        let healthy: Vec<&str> = items
            .into_iter()
            .flatten()
            .filter(|item| object::text(item, &["health"]) == ResourceHealth::Healthy.as_str())
            .map(|item| object::text(item, &["clusterName"]))
            .collect();
        self.promises.lock().retain(|(of, cluster), _| of != key || !healthy.contains(&cluster.as_str()));
    }

    async fn on_cluster(&self, change: &Change) -> Result<(), Error> {
        let name = object::name(change.object());
        let new = match change.current().map(decode::<Cluster>) {
            Some(Ok(cluster)) => Some(Arc::new(ClusterFacts::new(cluster))),
            Some(Err(error)) => {
                tracing::warn!(name, %error, "cluster cannot be read");
                return Ok(());
            }
            None => None,
        };
        // What it was is what was decided by, so this is where it is read from.
        let old = {
            let mut clusters = self.clusters.write();
            let mut known: BTreeMap<String, Arc<ClusterFacts>> =
                clusters.iter().map(|facts| (facts.name().to_owned(), Arc::clone(facts))).collect();
            let old = match &new {
                Some(facts) => known.insert(name.to_owned(), Arc::clone(facts)),
                None => known.remove(name),
            };
            *clusters = Arc::new(known.into_values().collect());
            old
        };
        let Some(new) = new else { return Ok(()) };
        if let Some(old) = &old
            && new.gained_any(old)
        {
            self.ask_gained(old, &new).await?;
        }
        if change.is_marked() && !change.initial {
            let versions: Vec<&Cluster> = old.iter().chain([&new]).map(|facts| &facts.cluster).collect();
            self.ask_affected(&versions).await?;
        }
        Ok(())
    }

    /// A cluster that now serves a kind may take bindings of that kind it was refused before.
    async fn ask_gained(&self, old: &ClusterFacts, new: &ClusterFacts) -> Result<(), Error> {
        self.ask_those(|binding| {
            let reference = object::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
            new.gained(old, object::api_version(reference), object::kind(reference))
        })
        .await
    }

    async fn ask_affected(&self, versions: &[&Cluster]) -> Result<(), Error> {
        self.ask_those(|binding| {
            let Ok(typed) = decode::<ResourceBinding>(binding) else { return false };
            let view = view(binding, &typed);
            versions.iter().any(|cluster| affected_by_cluster(&view, cluster))
        })
        .await
    }

    async fn ask_those(&self, which: impl Fn(&Value) -> bool) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            let mut bindings = pin!(self.context.stream(resource, None));
            while let Some(binding) = bindings.try_next().await? {
                let binding = binding.view();
                if which(binding) {
                    self.bindings.add((object::namespace(binding).to_owned(), object::name(binding).to_owned()));
                }
            }
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            self.context.keys(resource).await?.into_iter().for_each(|key| self.bindings.add(key));
        }
        Ok(())
    }

    /// Ours to schedule: our name, not suspended, and made by a policy or handed to us by a label.
    pub(super) fn is_ours(&self, binding: &Value, spec: &ResourceBindingSpec) -> bool {
        let name = if spec.scheduler_name.is_empty() { "default-scheduler" } else { &spec.scheduler_name };
        let suspended = spec.suspension.as_ref().and_then(|suspension| suspension.scheduling).unwrap_or_default();
        let by_policy = [
            label::PROPAGATION_POLICY_PERMANENT_ID,
            label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
            label::BINDING_MANAGED_BY,
        ];
        name == self.context.config.scheduler_name
            && !suspended
            && by_policy.iter().any(|key| object::label(binding, key).is_some())
    }

    pub async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let resource = self.context.kinds.binding(&key.0);
        let Some(binding) = self.context.get(resource, &key.0, &key.1).await? else { return Ok(Outcome::Done) };
        let typed: ResourceBinding = decode(&binding)?;
        if object::is_terminating(&binding) || !self.is_ours(&binding, &typed.spec) || typed.spec.placement.is_none() {
            return Ok(Outcome::Done);
        }
        let _one_at_a_time = match typed.spec.workload_affinity_groups {
            Some(_) => Some(self.grouped.lock().await),
            None => None,
        };
        let peers = self.peers(&key, &typed.spec).await?;
        let (plan, report) = self.decide(&key, &view(&binding, &typed), &peers);
        let trigger = report.trigger;
        match plan {
            // The result was written, and whoever wrote it came no further.
            Plan::Keep if is_untold(&typed) => {
                let clusters = &typed.spec.clusters;
                let result = Scheduled { clusters, affinity: None, changed: false, trigger: None };
                self.write_success(resource, &binding, &typed, result).await?;
                Ok(Outcome::Done)
            }
            Plan::Keep => {
                self.observe_generation(resource, &binding, &typed).await?;
                Ok(Outcome::Done)
            }
            Plan::Schedule { clusters, affinity } => {
                self.promise(&key, &typed.spec, &clusters);
                let written = self.write_result(resource, &binding, &typed.spec, &clusters).await;
                let (binding, changed) = match written {
                    Ok(written) => written,
                    Err(error) => {
                        self.promises.lock().retain(|(of, _), _| *of != key);
                        return self.refused(resource, &binding, &typed, error).await;
                    }
                };
                let result = Scheduled { clusters: &clusters, affinity, changed, trigger };
                self.write_success(resource, &binding, &typed, result).await?;
                Ok(Outcome::Done)
            }
            Plan::Clear { error } => {
                let (binding, _) = self.write_result(resource, &binding, &typed.spec, &[]).await?;
                self.write_failure(resource, &binding, &typed, &error).await?;
                Ok(Outcome::Done)
            }
            Plan::Fail { error } => {
                self.write_failure(resource, &binding, &typed, &error).await?;
                Ok(Outcome::Again(Duration::from_secs(5)))
            }
        }
    }

    fn decide(&self, key: &BindingKey, binding: &Binding<'_>, peers: &[Peer]) -> (Plan, Report) {
        self.in_present(key, peers, |world, _| scheduling::plan(world, binding))
    }

    /// Asks about the fleet as it is now, with what is promised to bindings other than `key`.
    pub(super) fn in_present<T>(
        &self,
        key: &BindingKey,
        peers: &[Peer],
        ask: impl FnOnce(&scheduling::World<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let clusters = Arc::clone(&self.clusters.read());
        let free: Vec<(&str, Arc<Vec<FreeNode>>)> = clusters
            .iter()
            .filter_map(|facts| {
                let name = ClusterName::parse(facts.name()).ok()?;
                Some((facts.name(), self.capacity.free(&name)?))
            })
            .collect();
        let estimate = Estimator {
            gates: self.context.config.gates,
            nodes: free.iter().map(|(name, nodes)| (*name, nodes.as_slice())).collect(),
            assumed: self.assumed(key, &clusters),
        };
        let world = scheduling::World {
            clusters: &clusters,
            estimate: &estimate,
            peers,
            gates: self.context.config.gates,
            propagate_empty_workloads: self.context.config.propagate_empty_workloads,
        };
        ask(&world, &estimate)
    }

    pub(super) async fn peers(&self, key: &BindingKey, spec: &ResourceBindingSpec) -> Result<Vec<Peer>, Error> {
        let mut peers = Vec::new();
        if !self.context.config.gates.workload_affinity || spec.workload_affinity_groups.is_none() {
            return Ok(peers);
        }
        let mut bindings = pin!(self.context.stream(&self.context.kinds.resource_binding, Some(&key.0)));
        while let Some(binding) = bindings.try_next().await? {
            let other = object::name(binding.view()) != key.1;
            if other
                && let Ok(binding) = decode::<ResourceBinding>(binding.view())
                && let Some(groups) = binding.spec.workload_affinity_groups
            {
                peers.push(Peer {
                    affinity_group: groups.affinity_group,
                    anti_affinity_group: groups.anti_affinity_group,
                    clusters: binding.spec.clusters.into_iter().map(|target| target.name).collect(),
                });
            }
        }
        Ok(peers)
    }

    fn assumed<'a>(&self, key: &BindingKey, clusters: &'a [Arc<ClusterFacts>]) -> BTreeMap<&'a str, Vec<Assumed>> {
        let mut promises = self.promises.lock();
        let now = Instant::now();
        promises.retain(|_, promise| promise.until > now);
        let mut assumed: BTreeMap<&'a str, Vec<Assumed>> = BTreeMap::new();
        for ((binding, cluster), promise) in promises.iter() {
            let facts = clusters.iter().find(|facts| facts.name() == cluster).filter(|_| binding != key);
            if let Some(facts) = facts {
                assumed.entry(facts.name()).or_default().push(promise.assumed.clone());
            }
        }
        assumed
    }

    /// Remembers what was given away until it shows in the members.
    fn promise(&self, key: &BindingKey, spec: &ResourceBindingSpec, clusters: &[TargetCluster]) {
        if !self.context.config.gates.scheduling_overcommit_protection || !spec.is_workload() {
            return;
        }
        let requirements = spec.replica_requirements.as_ref();
        let mut request = requirements.map(|needs| Resources::of_list(&needs.resource_request)).unwrap_or_default();
        request.pods = 1;
        let claim = requirements.and_then(|needs| needs.node_claim.clone());
        let mut promises = self.promises.lock();
        for target in clusters {
            let had = spec.clusters.iter().find(|old| old.name == target.name).map_or(0, |old| old.replicas);
            let replicas = target.replicas - had;
            if replicas > 0 {
                let assumed = Assumed { claim: claim.clone(), request: request.clone(), replicas };
                let promise = Promise { assumed, until: Instant::now() + PROMISE_LIFE };
                promises.insert((key.clone(), target.name.clone()), promise);
            }
        }
        promises.retain(|(of, cluster), _| of != key || clusters.iter().any(|target| target.name == *cluster));
    }

    /// Writes clusters and the placement they were made for, in one patch; whether anything changed.
    async fn write_result(
        &self,
        resource: &Resource,
        binding: &Arc<Value>,
        spec: &ResourceBindingSpec,
        clusters: &[TargetCluster],
    ) -> Result<(Arc<Value>, bool), Error> {
        let placement = serde_json::to_string(&spec.placement)
            .map_err(|source| Error::Decode { what: "placement".to_owned(), source })?;
        let applied = object::annotation(binding, annotation::APPLIED_PLACEMENT);
        if applied == Some(placement.as_str()) && spec.clusters == clusters {
            return Ok((Arc::clone(binding), false));
        }
        let clusters = if clusters.is_empty() { Value::Null } else { json!(clusters) };
        let patch = json!({
            "metadata": {"annotations": {annotation::APPLIED_PLACEMENT: placement}},
            "spec": {"clusters": clusters},
        });
        self.context.merge(resource, binding, patch).await.map(|written| (Arc::new(written), true))
    }

    async fn write_success(
        &self,
        resource: &Resource,
        binding: &Value,
        typed: &ResourceBinding,
        result: Scheduled<'_>,
    ) -> Result<(), Error> {
        let mut status = typed.status.clone();
        let message = "Binding has been scheduled successfully.";
        let new = conditions::condition(condition::SCHEDULED, true, condition::SCHEDULED_SUCCESS, message, now());
        let mut changed = conditions::set(&mut status.conditions, new) || result.changed;
        changed |= result.trigger == Some(Trigger::RescheduleRequested);
        if let Some(affinity) = result.affinity.filter(|name| *name != status.scheduler_observed_affinity_name) {
            status.scheduler_observed_affinity_name = affinity;
            changed = true;
        }
        changed |= status.scheduler_observed_generation != object::generation(binding);
        if !changed {
            return Ok(());
        }
        status.scheduler_observed_generation = object::generation(binding);
        status.last_scheduled_time = Some(Time(now()));
        let patch = json!({"status": {
            "conditions": status.conditions,
            "schedulerObservedGeneration": status.scheduler_observed_generation,
            "schedulerObservingAffinityName": status.scheduler_observed_affinity_name,
            "lastScheduledTime": status.last_scheduled_time,
        }});
        self.context.merge_status(resource, binding, without_empty(patch)).await?;
        if result.changed {
            let targets: Vec<String> =
                result.clusters.iter().map(|target| format!("{}:{}", target.name, target.replicas)).collect();
            let message = format!("{message} Result: {{{}}}", targets.join(", "));
            self.note(binding, &typed.spec, Severity::Normal, event::SCHEDULE_BINDING_SUCCEED, message);
        }
        Ok(())
    }

    async fn write_failure(
        &self,
        resource: &Resource,
        binding: &Value,
        typed: &ResourceBinding,
        error: &ScheduleError,
    ) -> Result<(), Error> {
        self.write_condition(resource, binding, typed, error.reason(), &error.to_string()).await
    }

    async fn write_condition(
        &self,
        resource: &Resource,
        binding: &Value,
        typed: &ResourceBinding,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        let mut conditions = typed.status.conditions.clone();
        let new = conditions::condition(condition::SCHEDULED, false, reason, message, now());
        if conditions::set(&mut conditions, new) {
            self.context.merge_status(resource, binding, json!({"status": {"conditions": conditions}})).await?;
            self.note(binding, &typed.spec, Severity::Warning, event::SCHEDULE_BINDING_FAILED, message.to_owned());
        }
        Ok(())
    }

    /// The control plane refused the result: over quota is shown as such, anything else is retried.
    async fn refused(
        &self,
        resource: &Resource,
        binding: &Value,
        typed: &ResourceBinding,
        error: Error,
    ) -> Result<Outcome, Error> {
        if error.code() != Some(403) {
            return Err(error);
        }
        let quota = error.reason() == condition::SCHEDULED_QUOTA_EXCEEDED;
        let reason = if quota { condition::SCHEDULED_QUOTA_EXCEEDED } else { condition::SCHEDULED_SCHEDULER_ERROR };
        self.write_condition(resource, binding, typed, reason, &error.message()).await?;
        Ok(Outcome::Again(Duration::from_secs(5)))
    }

    /// Nothing to schedule; the generation has been seen.
    async fn observe_generation(
        &self,
        resource: &Resource,
        binding: &Value,
        typed: &ResourceBinding,
    ) -> Result<(), Error> {
        let generation = object::generation(binding);
        if typed.status.scheduler_observed_generation == generation {
            return Ok(());
        }
        let patch = json!({"status": {"schedulerObservedGeneration": generation}});
        self.context.merge_status(resource, binding, patch).await.map(|_| ())
    }

    /// An event on the binding and one on its template.
    fn note(
        &self,
        binding: &Value,
        spec: &ResourceBindingSpec,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        let template = json!({
            "apiVersion": spec.resource.api_version, "kind": spec.resource.kind,
            "metadata": {
                "namespace": spec.resource.namespace, "name": spec.resource.name, "uid": spec.resource.uid,
            },
        });
        self.context.events.note(binding, severity, reason, message.clone());
        self.context.events.note(&template, severity, reason, message);
    }
}

struct Scheduled<'a> {
    clusters: &'a [TargetCluster],
    affinity: Option<String>,
    changed: bool,
    trigger: Option<Trigger>,
}

/// A result that stands and is not told as one.
fn is_untold(binding: &ResourceBinding) -> bool {
    !binding.spec.clusters.is_empty() && !conditions::is_true(&binding.status.conditions, condition::SCHEDULED)
}

fn without_empty(mut patch: Value) -> Value {
    if object::text(&patch, &["status", "schedulerObservingAffinityName"]).is_empty() {
        object::remove(&mut patch, &["status", "schedulerObservingAffinityName"]);
    }
    patch
}

pub(super) fn view<'a>(binding: &'a Value, typed: &'a ResourceBinding) -> Binding<'a> {
    Binding {
        generation: object::generation(binding),
        applied_placement: object::annotation(binding, annotation::APPLIED_PLACEMENT),
        spec: &typed.spec,
        status: &typed.status,
    }
}
