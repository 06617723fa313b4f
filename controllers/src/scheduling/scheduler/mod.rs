//! Scheduler: assigns clusters to bindings. This module decides; `results` writes the decisions.
//!
//! Scheduling a workload and reserving the capacity that it uses are one step, so that no two workloads are assigned
//! the same capacity. A binding that does not fit awaits more capacity in the queue.

mod results;
mod simulation;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, label};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use self::results::ScheduledBinding;
pub(crate) use self::simulation::SimulatedScheduling;
use crate::Error;
use crate::cache::Change;
use crate::cache::capacity::Capacity;
use crate::estimator::client_pool;
use crate::metrics::scheduling::IncomingEvent;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::watch::Request;
use crate::runtime::workqueue::{Outcome, Priority};
use crate::runtime::write_priority::DeferredWrites;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crate::shared::templates::template_of;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::accurate::{CombinedEstimator, EstimatorResponses};
use crowsnest_plan::estimation::free_capacity::EstimateCache;
use crowsnest_plan::estimation::ledger::Ledger;
use crowsnest_plan::scheduling::{self, Binding, ClusterFacts, NoopObserver, Peer, Plan, Report, SchedulingContext};

/// Assigns clusters and replicas to bindings.
pub struct Scheduler {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
    bindings: Trigger<BindingKey>,
    clusters: RwLock<Arc<Vec<Arc<ClusterFacts>>>>,
    /// Reserved capacity. Locked while a workload is scheduled.
    ledger: Mutex<Ledger>,
    estimates: EstimateCache,
    /// Time at which the clock of the ledger started.
    started_at: Instant,
    /// Bindings with affinity groups must see each other's results, so they are scheduled and written one at a time.
    group_lock: tokio::sync::Mutex<()>,
    /// Bindings whose first success status is deferred while the control plane is under write load.
    deferred: DeferredWrites<BindingKey>,
}

impl Scheduler {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let key = BindingKey::from_object(change.object());
        let Some(new) = change.current() else {
            self.update_ledger(|ledger| ledger.forget(&key));
            return Requests::none();
        };
        self.update_reservation(&key, new);
        if !change.is_generation_or_labels_changed() {
            return Requests::none();
        }
        self.record_incoming(if change.old.is_none() {
            IncomingEvent::BindingAdd
        } else {
            IncomingEvent::BindingUpdate
        });
        Requests::with_priority(key, self.priority(new))
    }

    /// Enqueues unschedulable bindings, since there may be more capacity.
    fn requeue_unschedulable(&self) {
        self.bindings.requeue_awaiting();
    }

    /// Changes reservations. `change` returns true if it released capacity; unschedulable bindings are then enqueued.
    fn update_ledger(&self, change: impl FnOnce(&mut Ledger) -> bool) {
        let is_released = change(&mut self.ledger.lock());
        if is_released {
            self.requeue_unschedulable();
        }
    }

    /// Updates the reservation of a binding from its spec and status. The reservation of a binding that is being
    /// deleted is released.
    fn update_reservation(&self, key: &BindingKey, binding: &Value) {
        if !self.ledger.lock().has_reservations(key) {
            return;
        }
        if unstructured::is_terminating(binding) {
            return self.update_ledger(|ledger| ledger.forget(key));
        }
        match decode::<ResourceBinding>(binding) {
            Ok(typed) => self.update_ledger(|ledger| {
                ledger.observe_status(key, unstructured::generation(binding), &typed.spec, &typed.status)
            }),
            Err(error) => tracing::warn!(?key, %error, "cannot decode a binding"),
        }
    }

    fn record_incoming(&self, event: IncomingEvent) {
        self.context.metrics.scheduling.record_incoming(event);
    }

    /// Priority of a binding in the queue.
    fn priority(&self, binding: &Value) -> Priority {
        self.effective_priority(unstructured::integer(binding, &["spec", "schedulePriority", "priority"]))
    }

    fn effective_priority(&self, requested: Option<i64>) -> Priority {
        let requested = requested.filter(|_| self.context.config.gates.priority_based_scheduling);
        requested.and_then(|requested| requested.try_into().ok()).unwrap_or_default()
    }

    async fn on_cluster(&self, change: &Change) -> Result<Requests<BindingKey>, Error> {
        let name = unstructured::name(change.object());
        let new = match change.current().map(decode::<Cluster>) {
            Some(Ok(cluster)) => Some(Arc::new(ClusterFacts::new(cluster))),
            Some(Err(error)) => {
                tracing::warn!(name, %error, "cannot decode a Cluster");
                return Ok(Requests::none());
            }
            None => None,
        };
        // Decisions are based on this list, so the previous state is taken from it.
        let old = self.replace_cluster(name, new.clone());
        if new.is_none() {
            self.ledger.lock().remove_cluster(name);
        }
        let Some(new) = new else { return Ok(Requests::none()) };
        if old.as_ref().is_none_or(|old| new.may_fit_more_bindings(old)) {
            self.requeue_unschedulable();
        }
        let mut requests = Vec::new();
        if let Some(old) = &old
            && new.newly_serves_any(old)
        {
            requests = self.bindings_of_newly_served_kinds(old, &new).await?;
        }
        if change.is_generation_or_labels_changed() && !change.initial {
            let versions: Vec<&Cluster> = old.iter().chain([&new]).map(|facts| &facts.cluster).collect();
            let affected = self.context.placements.bindings_affected_by(&versions).into_iter();
            requests.extend(
                affected
                    .map(|(key, priority)| self.request_after_cluster_change(key, self.effective_priority(priority))),
            );
        }
        Ok(requests.into_iter().collect())
    }

    /// Adds, replaces or removes a cluster. Returns its previous facts.
    fn replace_cluster(&self, name: &str, new: Option<Arc<ClusterFacts>>) -> Option<Arc<ClusterFacts>> {
        let mut clusters = self.clusters.write();
        let clusters = Arc::make_mut(&mut clusters);
        match (clusters.binary_search_by(|facts| facts.name().cmp(name)), new) {
            (Ok(index), Some(new)) => Some(std::mem::replace(&mut clusters[index], new)),
            (Ok(index), None) => Some(clusters.remove(index)),
            (Err(index), Some(new)) => {
                clusters.insert(index, new);
                None
            }
            (Err(_), None) => None,
        }
    }

    /// Bindings with a template of a kind that the cluster did not serve before, so that the cluster was filtered out.
    async fn bindings_of_newly_served_kinds(
        &self,
        old: &ClusterFacts,
        new: &ClusterFacts,
    ) -> Result<Vec<Request<BindingKey>>, Error> {
        let request_if_served = |binding: &Value| {
            let reference = unstructured::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
            let is_served = new.newly_serves(old, unstructured::api_version(reference), unstructured::kind(reference));
            let key = || BindingKey::from(unstructured::key(binding));
            is_served.then(|| self.request_after_cluster_change(key(), self.priority(binding)))
        };
        let mut requests = Vec::new();
        for resource in self.context.kinds.bindings() {
            requests.extend(self.context.filter_map(resource, None, request_if_served).await?);
        }
        Ok(requests)
    }

    fn request_after_cluster_change(&self, key: BindingKey, priority: Priority) -> Request<BindingKey> {
        self.record_incoming(IncomingEvent::ClusterChanged);
        Request { key, priority: Some(priority), after: Duration::ZERO }
    }

    /// Returns true if this scheduler is responsible: the scheduler name matches, scheduling is not suspended, and
    /// the binding belongs to a policy or is labelled as managed.
    pub(crate) fn is_responsible_for(&self, binding: &Value, spec: &ResourceBindingSpec) -> bool {
        let name = if spec.scheduler_name.is_empty() { "default-scheduler" } else { &spec.scheduler_name };
        let suspended = spec.suspension.as_ref().and_then(|suspension| suspension.scheduling).unwrap_or_default();
        let by_policy = [
            label::PROPAGATION_POLICY_PERMANENT_ID,
            label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
            label::BINDING_MANAGED_BY,
        ];
        name == self.context.config.scheduler_name
            && !suspended
            && by_policy.iter().any(|key| unstructured::label(binding, key).is_some())
    }
}

/// Inputs of a scheduling decision.
struct DecisionInput<'a> {
    key: &'a BindingKey,
    /// Reservations of bindings other than `key` count. Without a ledger, free capacity is not estimated.
    ledger: Option<&'a mut Ledger>,
    peers: &'a [Peer],
    /// Responses of the clusters' estimators.
    responses: Option<&'a EstimatorResponses>,
}

impl Controller for Scheduler {
    type Key = BindingKey;
    const NAME: &'static str = "scheduler-queue";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        let context = setup.context();
        context.metrics.register_pending(setup.queue::<Self>());
        Scheduler {
            ledger: Mutex::new(Ledger::new(context.config.gates)),
            context,
            capacity: Capacity::shared(setup),
            bindings: setup.trigger::<Self>(),
            clusters: RwLock::default(),
            estimates: EstimateCache::default(),
            started_at: Instant::now(),
            group_lock: tokio::sync::Mutex::new(()),
            deferred: DeferredWrites::default(),
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::clusters(kinds).find(|scheduler, change| scheduler.on_cluster(change).boxed()),
            Source::bindings(kinds).map(Self::on_binding),
        ]
    }

    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        self.context.binding_keys().await
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if !cluster.is_control_plane() {
            return;
        }
        if *resource == self.context.kinds.cluster {
            let exists = |name: &str| keys.contains(&NamespacedName::cluster_scoped(name));
            let (staying, deleted): (Vec<_>, Vec<_>) = {
                let clusters = self.clusters.read();
                clusters.iter().cloned().partition(|facts| exists(facts.name()))
            };
            *self.clusters.write() = Arc::new(staying);
            deleted.iter().for_each(|facts| self.ledger.lock().remove_cluster(facts.name()));
        } else if self.context.kinds.is_binding(resource) {
            let stays = |key: &BindingKey| {
                key.is_cluster_scoped() == resource.namespaced || keys.contains(key.as_namespaced_name())
            };
            self.update_ledger(|ledger| ledger.retain(stays));
        }
    }

    fn workers(config: &Config) -> usize {
        config.workers.scheduling
    }

    fn has_deferred_writes(&self) -> bool {
        !self.deferred.is_empty()
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let result = self.schedule(key).await;
        if needs_retry(&result) {
            self.record_incoming(IncomingEvent::ScheduleAttemptFailure);
        }
        result
    }
}

impl Scheduler {
    async fn schedule(&self, key: BindingKey) -> Result<Outcome, Error> {
        let deferral = self.deferred.begin(&key);
        let resource = self.context.kinds.binding(key.scope());
        let Some(binding) = self.context.get_full(resource, &key.namespace, &key.name).await? else {
            return Ok(Outcome::Done);
        };
        let typed: ResourceBinding = decode(&binding)?;
        if unstructured::is_terminating(&binding)
            || !self.is_responsible_for(&binding, &typed.spec)
            || typed.spec.placement.is_none()
        {
            return Ok(Outcome::Done);
        }
        let _group_guard = match typed.spec.workload_affinity_groups {
            Some(_) => Some(self.group_lock.lock().await),
            None => None,
        };
        let peers = self.find_peers(&key, &typed.spec).await?;
        let started_at = Instant::now();
        let planner_input = planner_binding(&binding, &typed);
        let responses = self.query_estimators(&key, &planner_input, &peers, scheduling::plan).await;
        let has_template = !typed.spec.is_workload() || template_of(&self.context, &binding).await?.is_some();
        let (plan, report) = self.decide(&key, &planner_input, &peers, responses.as_ref(), has_template);
        let scheduled = ScheduledBinding { resource, binding: &binding, typed: &typed, report: &report };
        let result = self.apply_plan(plan, scheduled, key, deferral).await;
        if let Some(trigger) = report.trigger {
            self.context.metrics.scheduling.record_attempt(trigger, started_at.elapsed(), !needs_retry(&result));
        }
        result
    }

    /// Schedules a binding, and reserves the assigned capacity in the same step. A binding without a template
    /// (`has_template` is false) runs no pods, so nothing is reserved for it.
    fn decide(
        &self,
        key: &BindingKey,
        binding: &Binding<'_>,
        peers: &[Peer],
        responses: Option<&EstimatorResponses>,
        has_template: bool,
    ) -> (Plan, Report) {
        let now = self.started_at.elapsed();
        // A decision that reserves nothing needs no lock.
        let mut ledger = binding.spec.is_workload().then(|| self.ledger.lock());
        if ledger.as_mut().is_some_and(|ledger| ledger.expire(now)) {
            self.requeue_unschedulable();
        }
        let stopwatch = self.context.metrics.scheduling.stopwatch();
        let plan = |scheduling_context: &SchedulingContext<'_>, _: &Estimator<'_>| {
            scheduling::plan(&SchedulingContext { observer: &stopwatch, ..*scheduling_context }, binding)
        };
        let (decided, _) = self.evaluate(DecisionInput { key, ledger: ledger.as_deref_mut(), peers, responses }, plan);
        if let (Some(ledger), Plan::Schedule { clusters, .. }, true) = (&mut ledger, &decided.0, has_template) {
            ledger.reserve(key, binding.spec, binding.status, clusters, now);
        }
        decided
    }

    /// Responses of the estimators of all clusters that the decision considers. `None` if no estimators are used. The
    /// decision is repeated until it queries no further cluster.
    pub(crate) async fn query_estimators(
        &self,
        key: &BindingKey,
        binding: &Binding<'_>,
        peers: &[Peer],
        decide: fn(&SchedulingContext<'_>, &Binding<'_>) -> (Plan, Report),
    ) -> Option<EstimatorResponses> {
        let estimators = self.context.config.estimators.as_ref().filter(|_| binding.spec.is_workload())?;
        let gates = self.context.config.gates;
        let placement = binding.spec.placement.as_ref();
        let counts_sets =
            placement.is_some_and(|placement| scheduling::is_placed_as_set(gates, binding.spec, placement));
        let mut responses = EstimatorResponses::default();
        loop {
            let unqueried: Vec<client_pool::ClusterWorkloads> = {
                let mut ledger = self.ledger.lock();
                let decide =
                    |scheduling_context: &SchedulingContext<'_>, _: &Estimator<'_>| decide(scheduling_context, binding);
                let input = DecisionInput { key, ledger: Some(&mut ledger), peers, responses: Some(&responses) };
                let (_, unqueried) = self.evaluate(input, decide);
                let with_reservations = |cluster: String| {
                    let assumed = ledger.assumed_workloads(&cluster, key);
                    (cluster, assumed)
                };
                unqueried.into_iter().map(with_reservations).collect()
            };
            if unqueried.is_empty() {
                return Some(responses);
            }
            for (cluster, replicas) in
                client_pool::available_replicas(&self.context, estimators, binding.spec, counts_sets, unqueried).await
            {
                responses.insert(cluster, replicas);
            }
        }
    }

    /// Evaluates `decide` for the current state of the clusters and the reservations of bindings other than `key`.
    /// Reserves nothing.
    pub(crate) fn evaluate_current<T>(
        &self,
        key: &BindingKey,
        peers: &[Peer],
        responses: Option<&EstimatorResponses>,
        decide: impl FnOnce(&SchedulingContext<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let mut ledger = self.ledger.lock();
        self.evaluate(DecisionInput { key, ledger: Some(&mut ledger), peers, responses }, decide).0
    }

    /// Evaluates `decide` for the current state of the clusters. Also returns the clusters whose estimators must be
    /// queried.
    fn evaluate<T>(
        &self,
        input: DecisionInput<'_>,
        decide: impl FnOnce(&SchedulingContext<'_>, &Estimator<'_>) -> T,
    ) -> (T, Vec<String>) {
        let clusters = Arc::clone(&self.clusters.read());
        self.evaluate_with_clusters((&clusters, &self.estimates), input, decide)
    }

    /// Evaluates `decide` for some clusters. `estimates` caches estimates for the ledger of the input.
    fn evaluate_with_clusters<T>(
        &self,
        (clusters, estimates): (&[Arc<ClusterFacts>], &EstimateCache),
        DecisionInput { key, ledger, peers, responses }: DecisionInput<'_>,
        decide: impl FnOnce(&SchedulingContext<'_>, &Estimator<'_>) -> T,
    ) -> (T, Vec<String>) {
        let free_capacities = ledger.map(|ledger| {
            let capacities = self.capacity.facts_of_clusters(clusters.iter().map(|facts| facts.name()));
            clusters
                .iter()
                .zip(&capacities)
                .map(|(facts, capacities)| ledger.free_capacity(facts, capacities, key))
                .collect()
        });
        let estimate = Estimator { free_capacities: free_capacities.unwrap_or_default(), cache: estimates };
        let accurate = responses.map(|responses| CombinedEstimator::new(&estimate, clusters, responses));
        let scheduling_context = SchedulingContext {
            clusters,
            estimate: accurate.as_ref().map_or(&estimate as &dyn scheduling::Estimate, |accurate| accurate),
            peers,
            gates: self.context.config.gates,
            plugins: self.context.config.plugins,
            propagate_empty_workloads: self.context.config.propagate_empty_workloads,
            observer: &NoopObserver,
        };
        let result = decide(&scheduling_context, &estimate);
        (result, accurate.map(CombinedEstimator::unqueried_clusters).unwrap_or_default())
    }

    pub(crate) async fn find_peers(&self, key: &BindingKey, spec: &ResourceBindingSpec) -> Result<Vec<Peer>, Error> {
        self.find_peers_assuming(key, spec, &BTreeMap::new()).await
    }

    /// Other bindings of the namespace with affinity groups. Specs in `assumed_specs` replace the stored ones.
    async fn find_peers_assuming(
        &self,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
        assumed_specs: &BTreeMap<BindingKey, ResourceBindingSpec>,
    ) -> Result<Vec<Peer>, Error> {
        if !self.context.config.gates.workload_affinity || spec.workload_affinity_groups.is_none() {
            return Ok(Vec::new());
        }
        let others = assumed_specs.iter().filter(|(other, _)| *other != key && other.namespace == key.namespace);
        let mut peers: Vec<Peer> = others.filter_map(|(_, spec)| peer_of(spec)).collect();
        let stored_peer = |binding: &Value| {
            let other = BindingKey::new(&*key.namespace, unstructured::name(binding));
            if other == *key || assumed_specs.contains_key(&other) {
                return None;
            }
            peer_of(&decode::<ResourceBinding>(binding).ok()?.spec)
        };
        let resource = &self.context.kinds.resource_binding;
        peers.extend(self.context.filter_map(resource, Some(&key.namespace), stored_peer).await?);
        Ok(peers)
    }
}

fn peer_of(spec: &ResourceBindingSpec) -> Option<Peer> {
    let groups = spec.workload_affinity_groups.as_ref()?;
    Some(Peer {
        affinity_group: groups.affinity_group.clone(),
        anti_affinity_group: groups.anti_affinity_group.clone(),
        clusters: spec.clusters.iter().map(|target| target.name.clone()).collect(),
    })
}

/// Returns true if the binding must be scheduled again: after an error, or because clusters lack capacity. A binding
/// for which no cluster passes the filters need not.
fn needs_retry(result: &Result<Outcome, Error>) -> bool {
    matches!(result, Ok(Outcome::Requeue | Outcome::AwaitChange) | Err(_))
}

pub(crate) fn planner_binding<'a>(binding: &'a Value, typed: &'a ResourceBinding) -> Binding<'a> {
    Binding {
        generation: unstructured::generation(binding),
        applied_placement: unstructured::annotation(binding, annotation::APPLIED_PLACEMENT),
        spec: &typed.spec,
        status: &typed.status,
    }
}
