//! Scheduler: assigns clusters to bindings. This module decides; `results` writes the decisions.
//!
//! Scheduling a workload and reserving the capacity that it uses are one step, so that no two workloads are assigned
//! the same capacity. A binding that does not fit is parked in the queue until there may be more capacity.

mod results;
mod what_if;

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, label};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use futures::{FutureExt, TryStreamExt};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use self::results::At;
pub(crate) use self::what_if::SimulatedScheduling;
use crate::Error;
use crate::cache::Change;
use crate::cache::capacity::Capacity;
use crate::estimator::client_pool;
use crate::metrics::scheduling::Incoming;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::watch::Request;
use crate::runtime::workqueue::{Outcome, Priority};
use crate::runtime::write_priority::DeferredWrites;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch};
use crate::shared::templates::template_of;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::accurate::{Accurate, EstimatorResponses};
use crowsnest_plan::estimation::free_capacity::EstimateCache;
use crowsnest_plan::estimation::ledger::Ledger;
use crowsnest_plan::scheduling::{self, Binding, ClusterFacts, Peer, Plan, Report, Unobserved, World};

pub struct Scheduler {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
    bindings: Trigger<BindingKey>,
    clusters: RwLock<Arc<Vec<Arc<ClusterFacts>>>>,
    /// Reserved capacity. Locked while a workload is scheduled.
    ledger: Mutex<Ledger>,
    estimates: EstimateCache,
    /// Origin of the times in the ledger.
    began: Instant,
    /// Bindings with affinity groups must see each other's results, so they are scheduled and written one at a time.
    grouped: tokio::sync::Mutex<()>,
    /// Bindings whose first success status is deferred while the control plane is under write load.
    deferred: DeferredWrites<BindingKey>,
}

impl Scheduler {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let key = BindingKey::of(change.object());
        let Some(new) = change.current() else {
            self.given_back(|ledger| ledger.forget(&key));
            return Requests::none();
        };
        self.update_reservation(&key, new);
        if !change.is_marked() {
            return Requests::none();
        }
        self.incoming(if change.old.is_none() { Incoming::BindingAdd } else { Incoming::BindingUpdate });
        Requests::with_priority(key, self.priority(new))
    }

    /// Enqueues parked bindings, since there may be more capacity.
    fn unpark_bindings(&self) {
        self.bindings.unpark();
    }

    /// Changes reservations. If capacity is released, parked bindings are enqueued.
    fn given_back(&self, change: impl FnOnce(&mut Ledger) -> bool) {
        let freed = change(&mut self.ledger.lock());
        if freed {
            self.unpark_bindings();
        }
    }

    /// Updates the reservation of a binding from its spec and status. The reservation of a binding that is being
    /// deleted is released.
    fn update_reservation(&self, key: &BindingKey, binding: &Value) {
        if !self.ledger.lock().has(key) {
            return;
        }
        if unstructured::is_terminating(binding) {
            return self.given_back(|ledger| ledger.forget(key));
        }
        match decode::<ResourceBinding>(binding) {
            Ok(typed) => self.given_back(|ledger| {
                ledger.observe_status(key, unstructured::generation(binding), &typed.spec, &typed.status)
            }),
            Err(error) => tracing::warn!(?key, %error, "cannot decode a binding"),
        }
    }

    fn incoming(&self, why: Incoming) {
        self.context.metrics.attempts.record_incoming(why);
    }

    /// Priority of a binding in the queue.
    fn priority(&self, binding: &Value) -> Priority {
        self.effective_priority(unstructured::integer(binding, &["spec", "schedulePriority", "priority"]))
    }

    fn effective_priority(&self, given: Option<i64>) -> Priority {
        let given = given.filter(|_| self.context.config.gates.priority_based_scheduling);
        given.and_then(|given| given.try_into().ok()).unwrap_or_default()
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
            self.ledger.lock().leave(name);
        }
        let Some(new) = new else { return Ok(Requests::none()) };
        if old.as_ref().is_none_or(|old| new.may_take_more(old)) {
            self.unpark_bindings();
        }
        let mut requests = Vec::new();
        if let Some(old) = &old
            && new.gained_any(old)
        {
            requests = self.bindings_of_new_apis(old, &new).await?;
        }
        if change.is_marked() && !change.initial {
            let versions: Vec<&Cluster> = old.iter().chain([&new]).map(|facts| &facts.cluster).collect();
            let affected = self.context.placements.affected(&versions).into_iter();
            requests.extend(
                affected.map(|(key, priority)| self.because_of_cluster(key, self.effective_priority(priority))),
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

    /// Bindings whose kind the cluster did not serve before, so that it was filtered out.
    async fn bindings_of_new_apis(
        &self,
        old: &ClusterFacts,
        new: &ClusterFacts,
    ) -> Result<Vec<Request<BindingKey>>, Error> {
        let kinds = &self.context.kinds;
        let mut requests = Vec::new();
        for resource in kinds.bindings() {
            let mut bindings = pin!(self.context.stream(resource, None));
            while let Some(binding) = bindings.try_next().await? {
                let binding = binding.view();
                let reference = unstructured::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
                if new.gained(old, unstructured::api_version(reference), unstructured::kind(reference)) {
                    let key = unstructured::key(binding);
                    requests.push(self.because_of_cluster(key.into(), self.priority(binding)));
                }
            }
        }
        Ok(requests)
    }

    fn because_of_cluster(&self, key: BindingKey, priority: Priority) -> Request<BindingKey> {
        self.incoming(Incoming::ClusterChanged);
        Request { key, priority: Some(priority), after: Duration::ZERO }
    }

    /// Returns true if this scheduler is responsible: the scheduler name matches, scheduling is not suspended, and
    /// the binding belongs to a policy or is labelled as managed.
    pub(crate) fn is_ours(&self, binding: &Value, spec: &ResourceBindingSpec) -> bool {
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
struct Question<'a> {
    key: &'a BindingKey,
    /// Reservations of bindings other than `key` count. Without a ledger, free capacity is not estimated.
    ledger: Option<&'a mut Ledger>,
    peers: &'a [Peer],
    /// Responses of the clusters' estimators.
    answers: Option<&'a EstimatorResponses>,
}

impl Controller for Scheduler {
    type Key = BindingKey;
    const NAME: &'static str = "scheduler-queue";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        let context = Arc::clone(&setup.context);
        context.metrics.count_pending(setup.queue::<Self>());
        Scheduler {
            ledger: Mutex::new(Ledger::new(context.config.gates)),
            context,
            capacity: Capacity::shared(setup),
            bindings: setup.trigger::<Self>(),
            clusters: RwLock::default(),
            estimates: EstimateCache::default(),
            began: Instant::now(),
            grouped: tokio::sync::Mutex::new(()),
            deferred: DeferredWrites::default(),
        }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let kinds = &self.context.kinds;
        vec![
            Source::of([&kinds.cluster]).find(|scheduler, change| scheduler.on_cluster(change).boxed()),
            Source::of(kinds.bindings()).map(Self::on_binding),
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
            deleted.iter().for_each(|facts| self.ledger.lock().leave(facts.name()));
        } else if self.context.kinds.is_of_bindings(resource) {
            let stays = |key: &BindingKey| {
                key.is_cluster_scoped() == resource.namespaced || keys.contains(key.as_namespaced_name())
            };
            self.given_back(|ledger| ledger.retain(stays));
        }
    }

    fn workers(config: &Config) -> usize {
        config.workers.scheduling
    }

    fn has_deferred_writes(&self) -> bool {
        !self.deferred.is_empty()
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let ended = self.schedule(key).await;
        if needs_retry(&ended) {
            self.incoming(Incoming::ScheduleAttemptFailure);
        }
        ended
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
            || !self.is_ours(&binding, &typed.spec)
            || typed.spec.placement.is_none()
        {
            return Ok(Outcome::Done);
        }
        let _one_at_a_time = match typed.spec.workload_affinity_groups {
            Some(_) => Some(self.grouped.lock().await),
            None => None,
        };
        let peers = self.peers(&key, &typed.spec).await?;
        let began = Instant::now();
        let subject = view(&binding, &typed);
        let answers = self.query_estimators(&key, &subject, &peers, scheduling::plan).await;
        let is_backed = !typed.spec.is_workload() || template_of(&self.context, &binding).await?.is_some();
        let (plan, report) = self.decide(&key, &subject, &peers, answers.as_ref(), is_backed);
        let at = At { resource, binding: &binding, typed: &typed, report: &report };
        let ended = self.carry_out(plan, at, key, deferral).await;
        if let Some(trigger) = report.trigger {
            self.context.metrics.attempts.record_attempt(trigger, began.elapsed(), !needs_retry(&ended));
        }
        ended
    }

    /// Schedules a binding, and reserves the assigned capacity in the same step. A binding without a template
    /// (`is_backed` is false) runs no pods, so nothing is reserved for it.
    fn decide(
        &self,
        key: &BindingKey,
        binding: &Binding<'_>,
        peers: &[Peer],
        answers: Option<&EstimatorResponses>,
        is_backed: bool,
    ) -> (Plan, Report) {
        let now = self.began.elapsed();
        // A decision that reserves nothing needs no lock.
        let mut ledger = binding.spec.is_workload().then(|| self.ledger.lock());
        if ledger.as_mut().is_some_and(|ledger| ledger.lapse(now)) {
            self.unpark_bindings();
        }
        let stopwatch = self.context.metrics.attempts.stopwatch();
        let plan =
            |world: &World<'_>, _: &Estimator<'_>| scheduling::plan(&World { observer: &stopwatch, ..*world }, binding);
        let (decided, _) = self.evaluate(Question { key, ledger: ledger.as_deref_mut(), peers, answers }, plan);
        if let (Some(ledger), Plan::Schedule { clusters, .. }, true) = (&mut ledger, &decided.0, is_backed) {
            ledger.promise(key, binding.spec, binding.status, clusters, now);
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
        decide: fn(&World<'_>, &Binding<'_>) -> (Plan, Report),
    ) -> Option<EstimatorResponses> {
        let estimators = self.context.config.estimators.as_ref().filter(|_| binding.spec.is_workload())?;
        let gates = self.context.config.gates;
        let placement = binding.spec.placement.as_ref();
        let sets = placement.is_some_and(|placement| scheduling::is_placed_as_set(gates, binding.spec, placement));
        let mut answers = EstimatorResponses::default();
        loop {
            let unasked: Vec<client_pool::Cluster> = {
                let mut ledger = self.ledger.lock();
                let decide = |world: &World<'_>, _: &Estimator<'_>| decide(world, binding);
                let question = Question { key, ledger: Some(&mut ledger), peers, answers: Some(&answers) };
                let (_, unasked) = self.evaluate(question, decide);
                let with_promises = |cluster: String| {
                    let assumed = ledger.assumed(&cluster, key);
                    (cluster, assumed)
                };
                unasked.into_iter().map(with_promises).collect()
            };
            if unasked.is_empty() {
                return Some(answers);
            }
            for (cluster, answer) in client_pool::room(&self.context, estimators, binding.spec, sets, unasked).await {
                answers.note(cluster, answer);
            }
        }
    }

    /// Evaluates `ask` for the current state of the clusters and the reservations of bindings other than `key`.
    /// Reserves nothing.
    pub(crate) fn in_present<T>(
        &self,
        key: &BindingKey,
        peers: &[Peer],
        answers: Option<&EstimatorResponses>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let mut ledger = self.ledger.lock();
        self.evaluate(Question { key, ledger: Some(&mut ledger), peers, answers }, ask).0
    }

    /// Evaluates `ask` for the current state of the clusters. Also returns the clusters whose estimators must be
    /// queried.
    fn evaluate<T>(
        &self,
        question: Question<'_>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> (T, Vec<String>) {
        let clusters = Arc::clone(&self.clusters.read());
        self.in_rooms_of((&clusters, &self.estimates), question, ask)
    }

    /// Evaluates `ask` for some clusters. `estimates` caches estimates for the ledger of the question.
    fn in_rooms_of<T>(
        &self,
        (clusters, estimates): (&[Arc<ClusterFacts>], &EstimateCache),
        Question { key, ledger, peers, answers }: Question<'_>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> (T, Vec<String>) {
        let rooms = ledger.map(|ledger| {
            let known = self.capacity.known(clusters.iter().map(|facts| facts.name()));
            clusters.iter().zip(&known).map(|(facts, known)| ledger.room(facts, known, key)).collect()
        });
        let estimate = Estimator { rooms: rooms.unwrap_or_default(), cache: estimates };
        let accurate = answers.map(|answers| Accurate::new(&estimate, clusters, answers));
        let world = World {
            clusters,
            estimate: accurate.as_ref().map_or(&estimate as &dyn scheduling::Estimate, |accurate| accurate),
            peers,
            gates: self.context.config.gates,
            plugins: self.context.config.plugins,
            propagate_empty_workloads: self.context.config.propagate_empty_workloads,
            observer: &Unobserved,
        };
        let result = ask(&world, &estimate);
        (result, accurate.map(Accurate::unasked).unwrap_or_default())
    }

    pub(crate) async fn peers(&self, key: &BindingKey, spec: &ResourceBindingSpec) -> Result<Vec<Peer>, Error> {
        self.peers_beside(key, spec, &BTreeMap::new()).await
    }

    /// Other bindings of the namespace with affinity groups. Specs in `otherwise` replace the stored ones.
    async fn peers_beside(
        &self,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
        otherwise: &BTreeMap<BindingKey, ResourceBindingSpec>,
    ) -> Result<Vec<Peer>, Error> {
        if !self.context.config.gates.workload_affinity || spec.workload_affinity_groups.is_none() {
            return Ok(Vec::new());
        }
        let others = otherwise.iter().filter(|(other, _)| *other != key && other.namespace == key.namespace);
        let mut peers: Vec<Peer> = others.filter_map(|(_, spec)| peer(spec)).collect();
        let mut bindings = pin!(self.context.stream(&self.context.kinds.resource_binding, Some(&key.namespace)));
        while let Some(binding) = bindings.try_next().await? {
            let other = BindingKey::new(&*key.namespace, unstructured::name(binding.view()));
            if other != *key
                && !otherwise.contains_key(&other)
                && let Ok(binding) = decode::<ResourceBinding>(binding.view())
            {
                peers.extend(peer(&binding.spec));
            }
        }
        Ok(peers)
    }
}

fn peer(spec: &ResourceBindingSpec) -> Option<Peer> {
    let groups = spec.workload_affinity_groups.as_ref()?;
    Some(Peer {
        affinity_group: groups.affinity_group.clone(),
        anti_affinity_group: groups.anti_affinity_group.clone(),
        clusters: spec.clusters.iter().map(|target| target.name.clone()).collect(),
    })
}

/// Returns true if the scheduler has to retry. A binding that fits no cluster is not retried.
fn needs_retry(ended: &Result<Outcome, Error>) -> bool {
    matches!(ended, Ok(Outcome::Later | Outcome::Parked) | Err(_))
}

pub(crate) fn view<'a>(binding: &'a Value, typed: &'a ResourceBinding) -> Binding<'a> {
    Binding {
        generation: unstructured::generation(binding),
        applied_placement: unstructured::annotation(binding, annotation::APPLIED_PLACEMENT),
        spec: &typed.spec,
        status: &typed.status,
    }
}
