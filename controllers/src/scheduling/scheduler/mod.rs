//! Scheduler: assigns clusters to bindings. Decisions are made here, `results` writes them.
//!
//! The decision about a workload and the reservation of the capacity that it uses are one step, so that no two workloads get the
//! same capacity. A binding that does not fit is parked in the queue until there may be more capacity.

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
pub(crate) use self::what_if::Imagined;
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
use crowsnest_plan::estimation::accurate::{Accurate, Answers};
use crowsnest_plan::estimation::ledger::Ledger;
use crowsnest_plan::estimation::room::Remembered;
use crowsnest_plan::scheduling::{self, Binding, ClusterFacts, Peer, Plan, Report, Unobserved, World};

pub struct Scheduler {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
    bindings: Trigger<BindingKey>,
    clusters: RwLock<Arc<Vec<Arc<ClusterFacts>>>>,
    /// Reserved capacity. Locked while a workload is decided.
    ledger: Mutex<Ledger>,
    remembered: Remembered,
    /// Start of the ledger's time.
    began: Instant,
    /// Bindings with affinity groups must see each other's results, so they are decided and written one at a time.
    grouped: tokio::sync::Mutex<()>,
    /// Bindings whose first success is deferred while the control plane is under write load.
    deferred: DeferredWrites<BindingKey>,
}

impl Scheduler {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let key = BindingKey::of(change.object());
        let Some(new) = change.current() else {
            self.given_back(|ledger| ledger.forget(&key));
            return Requests::none();
        };
        self.hear(&key, new);
        if !change.is_marked() {
            return Requests::none();
        }
        self.incoming(if change.old.is_none() { Incoming::BindingAdd } else { Incoming::BindingUpdate });
        Requests::with_priority(key, self.priority(new))
    }

    /// Enqueues parked bindings, since there may be more capacity.
    fn room_grew(&self) {
        self.bindings.unpark();
    }

    /// Changes reservations; when capacity is released, parked bindings are enqueued.
    fn given_back(&self, change: impl FnOnce(&mut Ledger) -> bool) {
        let freed = change(&mut self.ledger.lock());
        if freed {
            self.room_grew();
        }
    }

    /// Updates the reservation of a binding from its spec and status. A binding that is being deleted needs none.
    fn hear(&self, key: &BindingKey, binding: &Value) {
        if !self.ledger.lock().has(key) {
            return;
        }
        if unstructured::is_terminating(binding) {
            return self.given_back(|ledger| ledger.forget(key));
        }
        match decode::<ResourceBinding>(binding) {
            Ok(typed) => self
                .given_back(|ledger| ledger.told(key, unstructured::generation(binding), &typed.spec, &typed.status)),
            Err(error) => tracing::warn!(?key, %error, "binding cannot be read"),
        }
    }

    fn incoming(&self, why: Incoming) {
        self.context.metrics.attempts.came(why);
    }

    /// Priority in the queue.
    fn priority(&self, binding: &Value) -> Priority {
        self.in_turn(unstructured::integer(binding, &["spec", "schedulePriority", "priority"]))
    }

    fn in_turn(&self, given: Option<i64>) -> Priority {
        let given = given.filter(|_| self.context.config.gates.priority_based_scheduling);
        given.and_then(|given| given.try_into().ok()).unwrap_or_default()
    }

    async fn on_cluster(&self, change: &Change) -> Result<Requests<BindingKey>, Error> {
        let name = unstructured::name(change.object());
        let new = match change.current().map(decode::<Cluster>) {
            Some(Ok(cluster)) => Some(Arc::new(ClusterFacts::new(cluster))),
            Some(Err(error)) => {
                tracing::warn!(name, %error, "cluster cannot be read");
                return Ok(Requests::none());
            }
            None => None,
        };
        // Decisions were made by what is in the list, so the state before the change is read from there.
        let old = self.replace_cluster(name, new.clone());
        if new.is_none() {
            self.ledger.lock().leave(name);
        }
        let Some(new) = new else { return Ok(Requests::none()) };
        if old.as_ref().is_none_or(|old| new.may_take_more(old)) {
            self.room_grew();
        }
        let mut requests = Vec::new();
        if let Some(old) = &old
            && new.gained_any(old)
        {
            requests = self.gained(old, &new).await?;
        }
        if change.is_marked() && !change.initial {
            let versions: Vec<&Cluster> = old.iter().chain([&new]).map(|facts| &facts.cluster).collect();
            let affected = self.context.placements.affected(&versions).into_iter();
            requests.extend(affected.map(|(key, priority)| self.because_of_cluster(key, self.in_turn(priority))));
        }
        Ok(requests.into_iter().collect())
    }

    /// Adds, replaces or removes a cluster; the previous facts.
    fn replace_cluster(&self, name: &str, new: Option<Arc<ClusterFacts>>) -> Option<Arc<ClusterFacts>> {
        let mut clusters = self.clusters.write();
        let clusters = Arc::make_mut(&mut clusters);
        match (clusters.binary_search_by(|facts| facts.name().cmp(name)), new) {
            (Ok(place), Some(new)) => Some(std::mem::replace(&mut clusters[place], new)),
            (Ok(place), None) => Some(clusters.remove(place)),
            (Err(place), Some(new)) => {
                clusters.insert(place, new);
                None
            }
            (Err(_), None) => None,
        }
    }

    /// Bindings of kinds that a cluster did not serve before: it was filtered out for them.
    async fn gained(&self, old: &ClusterFacts, new: &ClusterFacts) -> Result<Vec<Request<BindingKey>>, Error> {
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

    /// Whether this scheduler is responsible: its name, not suspended, and created by a policy or labelled as managed.
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

/// Part of the fleet's state that a scheduling question is answered with.
struct Question<'a> {
    key: &'a BindingKey,
    /// Promises to bindings other than `key` count. Without a ledger no estimate of room is made.
    ledger: Option<&'a mut Ledger>,
    peers: &'a [Peer],
    /// Answers of the clusters' estimators.
    answers: Option<&'a Answers>,
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
            remembered: Remembered::default(),
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
        let ended = self.look(key).await;
        if is_in_vain(&ended) {
            self.incoming(Incoming::ScheduleAttemptFailure);
        }
        ended
    }
}

impl Scheduler {
    async fn look(&self, key: BindingKey) -> Result<Outcome, Error> {
        let waited = self.deferred.begin(&key);
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
        let answers = self.asked(&key, &subject, &peers, scheduling::plan).await;
        let is_backed = !typed.spec.is_workload() || template_of(&self.context, &binding).await?.is_some();
        let (plan, report) = self.decide(&key, &subject, &peers, answers.as_ref(), is_backed);
        let at = At { resource, binding: &binding, typed: &typed, report: &report };
        let ended = self.carry_out(plan, at, key, waited).await;
        if let Some(trigger) = report.trigger {
            self.context.metrics.attempts.tried(trigger, began.elapsed(), !is_in_vain(&ended));
        }
        ended
    }

    /// Decides about a binding, and promises its clusters what it gives away in the same step. A binding without a template
    /// (`is_backed` is false) runs nothing, so it is promised nothing that others could use.
    fn decide(
        &self,
        key: &BindingKey,
        binding: &Binding<'_>,
        peers: &[Peer],
        answers: Option<&Answers>,
        is_backed: bool,
    ) -> (Plan, Report) {
        let now = self.began.elapsed();
        // A decision that reserves nothing needs no lock.
        let mut ledger = binding.spec.is_workload().then(|| self.ledger.lock());
        if ledger.as_mut().is_some_and(|ledger| ledger.lapse(now)) {
            self.room_grew();
        }
        let stopwatch = self.context.metrics.attempts.stopwatch();
        let plan =
            |world: &World<'_>, _: &Estimator<'_>| scheduling::plan(&World { observer: &stopwatch, ..*world }, binding);
        let (decided, _) = self.in_rooms(Question { key, ledger: ledger.as_deref_mut(), peers, answers }, plan);
        if let (Some(ledger), Plan::Schedule { clusters, .. }, true) = (&mut ledger, &decided.0, is_backed) {
            ledger.promise(key, binding.spec, binding.status, clusters, now);
        }
        decided
    }

    /// What the estimators of the clusters say that a decision looks at; `None` where none are asked at all. The decision
    /// tells by itself which those are: it is made until it looks at no other.
    pub(crate) async fn asked(
        &self,
        key: &BindingKey,
        binding: &Binding<'_>,
        peers: &[Peer],
        decide: fn(&World<'_>, &Binding<'_>) -> (Plan, Report),
    ) -> Option<Answers> {
        let estimators = self.context.config.estimators.as_ref().filter(|_| binding.spec.is_workload())?;
        let gates = self.context.config.gates;
        let placement = binding.spec.placement.as_ref();
        let sets = placement.is_some_and(|placement| scheduling::is_placed_as_set(gates, binding.spec, placement));
        let mut answers = Answers::default();
        loop {
            let unasked: Vec<client_pool::Cluster> = {
                let mut ledger = self.ledger.lock();
                let look = |world: &World<'_>, _: &Estimator<'_>| decide(world, binding);
                let question = Question { key, ledger: Some(&mut ledger), peers, answers: Some(&answers) };
                let (_, unasked) = self.in_rooms(question, look);
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

    /// Asks about the fleet as it is now, with what is promised to bindings other than `key`; nothing is promised.
    pub(crate) fn in_present<T>(
        &self,
        key: &BindingKey,
        peers: &[Peer],
        answers: Option<&Answers>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let mut ledger = self.ledger.lock();
        self.in_rooms(Question { key, ledger: Some(&mut ledger), peers, answers }, ask).0
    }

    /// Evaluates `ask` for the fleet as it is now. Also returns the clusters whose estimators have not answered yet.
    fn in_rooms<T>(
        &self,
        question: Question<'_>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> (T, Vec<String>) {
        let clusters = Arc::clone(&self.clusters.read());
        self.in_rooms_of((&clusters, &self.remembered), question, ask)
    }

    /// Evaluates `ask` for some clusters. `remembered` belongs to the rooms of the question's ledger.
    fn in_rooms_of<T>(
        &self,
        (clusters, remembered): (&[Arc<ClusterFacts>], &Remembered),
        Question { key, ledger, peers, answers }: Question<'_>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> (T, Vec<String>) {
        let rooms = ledger.map(|ledger| {
            let known = self.capacity.known(clusters.iter().map(|facts| facts.name()));
            clusters.iter().zip(&known).map(|(facts, known)| ledger.room(facts, known, key)).collect()
        });
        let estimate = Estimator { rooms: rooms.unwrap_or_default(), remembered };
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
        let told = ask(&world, &estimate);
        (told, accurate.map(Accurate::unasked).unwrap_or_default())
    }

    pub(crate) async fn peers(&self, key: &BindingKey, spec: &ResourceBindingSpec) -> Result<Vec<Peer>, Error> {
        self.peers_beside(key, spec, &BTreeMap::new()).await
    }

    /// Other bindings of the namespace with affinity groups; some of them are as `otherwise` has them.
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

/// Whether the scheduler has to retry. That no cluster fits is a result.
fn is_in_vain(ended: &Result<Outcome, Error>) -> bool {
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
