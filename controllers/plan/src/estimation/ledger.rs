//! Ledger of reservations: capacity that was assigned to bindings and is not used yet, so that a burst of decisions
//! does not assign the same capacity twice.
//!
//! A decision immediately reserves the pods that its clusters did not have before ([`Ledger::reserve`]). After the
//! write succeeded ([`Ledger::confirm_write`]), a reservation lasts until the pods run: all of them once the cluster
//! reports Healthy, otherwise as many as it reports ready. It also ends with its binding, with its target cluster, and
//! after [`RESERVATION_LIFETIME`]. If the write failed ([`Ledger::discard_write`]), the previous reservations are
//! restored.

use crowsnest_apimachinery::unstructured;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{
    AggregatedStatusItem, Component, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth, TargetCluster,
};

use super::accurate::{AssumedWorkload, to_component};
use super::free_capacity::{CapacityFacts, FreeCapacity};
use super::request::PodSet;
use super::summary::Summary;
use crate::gates::Gates;
use crate::scheduling::ClusterFacts;

/// Monotonic time since a fixed start.
pub type MonotonicTime = Duration;

/// Time after the decision at which a reservation expires.
pub const RESERVATION_LIFETIME: Duration = Duration::from_secs(300);

/// Reservation: pods of one binding that do not run in one cluster yet.
#[derive(Debug, PartialEq)]
pub struct Reservation {
    /// Namespace of the pods.
    pub namespace: String,
    pod_sets: Arc<[PodSet]>,
    /// Number of reserved pods of each pod set.
    pods: Vec<i32>,
}

impl Reservation {
    /// Reservation of another scheduler, for pods that it assigned.
    pub fn from_components(namespace: &str, components: &[Component]) -> Self {
        let pod_sets: Arc<[PodSet]> = components.iter().map(PodSet::from_component).collect();
        let pods = components.iter().map(|component| component.replicas).collect();
        Reservation { namespace: namespace.to_owned(), pod_sets, pods }
    }

    /// The reserved pod sets with the number of pods of each.
    pub fn pod_sets(&self) -> impl Iterator<Item = (&PodSet, i32)> {
        self.pod_sets.iter().zip(self.pods.iter().copied()).filter(|(_, pods)| *pods > 0)
    }

    fn total(&self) -> i64 {
        self.pods.iter().copied().map(i64::from).sum()
    }
}

/// Assignment of a binding to one cluster, by pod set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Assignment {
    /// Number of pods of each pod set.
    assigned: Vec<i32>,
    /// Number of pods of each pod set that the cluster reported.
    reported: Vec<i32>,
    /// True if the workload was not Healthy in the cluster at some time since the decision. Only then does a report of
    /// Healthy mean that all pods run, because an earlier report can precede the decision.
    was_unhealthy: bool,
}

impl Assignment {
    /// True if the cluster reported all assigned pods.
    fn is_complete(&self) -> bool {
        self.assigned.iter().zip(&self.reported).all(|(assigned, reported)| reported >= assigned)
    }

    /// Number of assigned pods of each pod set that the cluster did not report.
    fn missing(&self) -> Vec<i32> {
        self.assigned.iter().zip(&self.reported).map(|(assigned, reported)| (assigned - reported).max(0)).collect()
    }
}

/// Assignments of one decision.
#[derive(Debug, Clone)]
struct Decision {
    namespace: String,
    pod_sets: Arc<[PodSet]>,
    assignments: BTreeMap<String, Assignment>,
    /// Generation of the binding with this decision. Status of older generations is ignored.
    generation: i64,
    /// Time at which the reservations expire.
    until: MonotonicTime,
}

/// Decisions about one binding.
#[derive(Debug, Clone, Default)]
struct Entry {
    /// The last decision that was written.
    written: Option<Decision>,
    /// A decision whose write is in progress. It takes precedence until the write fails.
    pending: Option<Decision>,
    /// Number of the reservation in the account of each cluster.
    reservation_numbers: BTreeMap<String, u64>,
}

/// Reservations in a cluster in the order of their numbers, and its cached free capacity.
#[derive(Debug, Clone, Default)]
struct Account {
    reservations: BTreeMap<u64, Arc<Reservation>>,
    cached: Option<CachedCapacity>,
}

/// Free capacity of a cluster, and the facts from which it was calculated.
#[derive(Debug, Clone)]
struct CachedCapacity {
    facts: Arc<ClusterFacts>,
    capacity_facts: CapacityFacts,
    summary: Option<Arc<Summary>>,
    /// The free capacity, and the number of the last reservation that is subtracted from it (0 for none). `None` after
    /// one of these reservations was released.
    free: Option<(Arc<FreeCapacity>, u64)>,
}

/// All reservations, and the free capacity per cluster. A clone is used to simulate scheduling. The original and the
/// clone number their free capacities independently, so estimates that were cached for one are not valid for the other.
#[derive(Debug, Clone)]
pub struct Ledger {
    gates: Gates,
    entries: HashMap<BindingKey, Entry>,
    clusters: HashMap<String, Account>,
    /// Expirations of decisions, including those of replaced ones.
    expirations: BTreeSet<(MonotonicTime, BindingKey)>,
    /// Last number of a reservation or free capacity.
    last_number: u64,
}

impl Ledger {
    pub fn new(gates: Gates) -> Self {
        Ledger {
            gates,
            entries: HashMap::new(),
            clusters: HashMap::new(),
            expirations: BTreeSet::new(),
            last_number: 0,
        }
    }

    /// True if the binding has reservations.
    pub fn has_reservations(&self, key: &BindingKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Reserves the capacity of a decision before it is written. Replicas that the clusters had before count as
    /// running, unless they were reserved and never reported.
    pub fn reserve(
        &mut self,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
        targets: &[TargetCluster],
        now: MonotonicTime,
    ) {
        if !self.gates.scheduling_overcommit_protection || !spec.is_workload() {
            return;
        }
        let pod_sets: Arc<[PodSet]> = PodSet::from_workload(spec).into();
        let before = self.entries.get(key).and_then(|entry| entry.written.as_ref());
        let mut assignments = BTreeMap::new();
        for target in targets {
            let assigned: Vec<i32> = pod_sets.iter().map(|pod_set| assigned_pods(spec, pod_set, target)).collect();
            let current = spec.clusters.iter().find(|current| current.name == target.name);
            let previous = before.and_then(|before| Some((before, before.assignments.get(&target.name)?)));
            let reported = pod_sets.iter().zip(&assigned).map(|(pod_set, assigned)| {
                let reported = match previous {
                    Some((before, assignment)) => before.reported_pods(assignment, pod_set),
                    None => current.map_or(0, |current| assigned_pods(spec, pod_set, current)),
                };
                reported.min(*assigned)
            });
            let assignment = Assignment {
                reported: reported.collect(),
                assigned,
                was_unhealthy: !is_healthy(status_item(status, &target.name)),
            };
            if !assignment.is_complete() {
                assignments.insert(target.name.clone(), assignment);
            }
        }
        let has_grown = assignments.iter().any(|(name, assignment)| {
            let old = before.and_then(|before| before.assignments.get(name));
            old.is_none_or(|old| old.missing() != assignment.missing())
        });
        let until = before.filter(|_| !has_grown).map_or(now + RESERVATION_LIFETIME, |before| before.until);
        let namespace = spec.resource.namespace.clone();
        let entry = self.entries.entry(key.clone()).or_default();
        entry.pending = Some(Decision { namespace, pod_sets, assignments, generation: 0, until });
        self.update_accounts(key);
    }

    /// Confirms that the decision was written with this generation.
    pub fn confirm_write(&mut self, key: &BindingKey, generation: i64) {
        // The binding can have been deleted in the meantime.
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(pending) = entry.pending.take() {
            entry.written = Some(Decision { generation, ..pending });
        }
        self.update_accounts(key);
    }

    /// Discards a decision whose write failed, and restores the previous reservations. Returns true if that released
    /// capacity.
    pub fn discard_write(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.pending = None;
        self.update_accounts(key)
    }

    /// Updates reservations from a binding's spec and status. A status of an older generation than the decision is
    /// ignored. Returns true if that released capacity.
    pub fn observe_status(
        &mut self,
        key: &BindingKey,
        generation: i64,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
    ) -> bool {
        let Some(written) = self.entries.get_mut(key).and_then(|entry| entry.written.as_mut()) else { return false };
        if generation < written.generation {
            return false;
        }
        let pod_sets = Arc::clone(&written.pod_sets);
        written.assignments.retain(|name, assignment| {
            let Some(target) = spec.clusters.iter().find(|target| target.name == *name) else { return false };
            for (pod_set, assigned) in pod_sets.iter().zip(&mut assignment.assigned) {
                *assigned = assigned_pods(spec, pod_set, target).min(*assigned);
            }
            assignment.update(status_item(status, name));
            !assignment.is_complete()
        });
        self.update_accounts(key)
    }

    /// Removes the reservations of a binding that is deleted or no longer scheduled. Returns true if that released
    /// capacity.
    pub fn forget(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        (entry.written, entry.pending) = (None, None);
        self.update_accounts(key)
    }

    /// Removes the reservations of all bindings that do not satisfy the predicate. Returns true if that released
    /// capacity.
    pub fn retain(&mut self, is_kept: impl Fn(&BindingKey) -> bool) -> bool {
        let removed: Vec<BindingKey> = self.entries.keys().filter(|key| !is_kept(key)).cloned().collect();
        removed.iter().filter(|key| self.forget(key)).count() > 0
    }

    /// Removes expired reservations. Returns true if that released capacity.
    pub fn expire(&mut self, now: MonotonicTime) -> bool {
        let mut freed = false;
        while let Some((until, key)) = self.expirations.first().cloned()
            && until <= now
        {
            self.expirations.pop_first();
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            // A write in progress has its own, later expiry.
            entry.written = entry.written.take().filter(|written| written.until > now);
            entry.pending = entry.pending.take().filter(|pending| pending.until > now);
            freed |= self.update_accounts(&key);
        }
        freed
    }

    /// Drops the cached capacity of a cluster. Its reservations end with the targets of their bindings.
    pub fn remove_cluster(&mut self, cluster: &str) {
        if let Some(account) = self.clusters.get_mut(cluster) {
            account.cached = None;
            if account.reservations.is_empty() {
                self.clusters.remove(cluster);
            }
        }
    }

    /// Updates the clusters' accounts from a binding's entry. Returns true if any of them has less reserved now.
    fn update_accounts(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let decision = entry.pending.as_ref().or(entry.written.as_ref());
        let mut reservation_numbers = std::mem::take(&mut entry.reservation_numbers);
        let mut freed = false;
        if let Some(Decision { namespace, pod_sets, assignments, .. }) = decision {
            for (cluster, assignment) in assignments {
                let reservation = Reservation {
                    namespace: namespace.clone(),
                    pod_sets: Arc::clone(pod_sets),
                    pods: assignment.missing(),
                };
                let account = self.clusters.entry(cluster.clone()).or_default();
                let number = match reservation_numbers.remove(cluster) {
                    Some(number) if account.reservations.get(&number).is_some_and(|old| **old == reservation) => number,
                    old => {
                        let old = old.and_then(|number| account.remove(number));
                        freed |= old.is_some_and(|old| old.total() > reservation.total());
                        self.last_number += 1;
                        account.reservations.insert(self.last_number, Arc::new(reservation));
                        self.last_number
                    }
                };
                entry.reservation_numbers.insert(cluster.clone(), number);
            }
        }
        for (cluster, number) in reservation_numbers {
            freed = true;
            let Some(account) = self.clusters.get_mut(&cluster) else { continue };
            account.remove(number);
            if account.reservations.is_empty() && account.cached.is_none() {
                self.clusters.remove(&cluster);
            }
        }
        let decisions = [&entry.written, &entry.pending].into_iter().flatten();
        let reserving = decisions.filter(|decision| !decision.assignments.is_empty());
        self.expirations.extend(reserving.map(|decision| (decision.until, key.clone())));
        let is_empty =
            |decision: &Option<Decision>| decision.as_ref().is_none_or(|decision| decision.assignments.is_empty());
        if entry.pending.is_none() && is_empty(&entry.written) {
            self.entries.remove(key);
        }
        freed
    }

    /// Free capacity of a cluster for the binding `key`, whose own reservations are not subtracted.
    pub fn free_capacity(
        &mut self,
        facts: &Arc<ClusterFacts>,
        capacity_facts: &CapacityFacts,
        key: &BindingKey,
    ) -> Arc<FreeCapacity> {
        let excluded_number =
            self.entries.get(key).and_then(|entry| entry.reservation_numbers.get(facts.name())).copied();
        let account = match self.clusters.get_mut(facts.name()) {
            Some(account) => account,
            None => self.clusters.entry(facts.name().to_owned()).or_default(),
        };
        let cached = match account.cached.take().filter(|cached| Arc::ptr_eq(&cached.facts, facts)) {
            Some(cached) if cached.capacity_facts.is_same(capacity_facts) => cached,
            Some(cached) => CachedCapacity { capacity_facts: capacity_facts.clone(), free: None, ..cached },
            None => {
                let summary = Summary::from_cluster(&facts.cluster, self.gates.customized_cluster_resource_modeling);
                CachedCapacity {
                    facts: Arc::clone(facts),
                    capacity_facts: capacity_facts.clone(),
                    summary: summary.map(Arc::new),
                    free: None,
                }
            }
        };
        let cached = account.cached.insert(cached);
        if let Some(excluded_number) = excluded_number {
            let others = account.reservations.iter().filter(|(number, _)| **number != excluded_number);
            return Arc::new(
                cached.without_reservations(0).subtract_reservations(0, others.map(|(_, reservation)| reservation)),
            );
        }
        let (mut free, mut last) = cached.free.take().unwrap_or_else(|| {
            self.last_number += 1;
            (Arc::new(cached.without_reservations(self.last_number)), 0)
        });
        if let Some((newest, _)) = account.reservations.range(last + 1..).next_back() {
            self.last_number += 1;
            let new = account.reservations.range(last + 1..).map(|(_, reservation)| reservation);
            free = Arc::new(Arc::unwrap_or_clone(free).subtract_reservations(self.last_number, new));
            last = *newest;
        }
        cached.free = Some((Arc::clone(&free), last));
        free
    }

    /// Workloads reserved in a cluster for bindings other than `key`.
    pub fn assumed_workloads(&self, cluster: &str, key: &BindingKey) -> Vec<AssumedWorkload> {
        let excluded_number = self.entries.get(key).and_then(|entry| entry.reservation_numbers.get(cluster)).copied();
        let reservations = self.clusters.get(cluster).into_iter().flat_map(|account| &account.reservations);
        let others = reservations.filter(|(number, _)| Some(**number) != excluded_number);
        let to_assumed_workload = |(_, reservation): (&u64, &Arc<Reservation>)| AssumedWorkload {
            namespace: reservation.namespace.clone(),
            components: reservation.pod_sets().map(|(pod_set, pods)| to_component(pod_set, pods)).collect(),
        };
        others.map(to_assumed_workload).collect()
    }

    /// Number of pods reserved in a cluster.
    pub fn reserved_pods(&self, cluster: &str) -> i64 {
        let reservations = self.clusters.get(cluster).into_iter().flat_map(|account| account.reservations.values());
        reservations.map(|reservation| reservation.total()).sum()
    }
}

impl Account {
    fn remove(&mut self, number: u64) -> Option<Arc<Reservation>> {
        let removed = self.reservations.remove(&number)?;
        if let Some(cached) = &mut self.cached {
            // Reservations cannot be returned to the nodes one by one, so the free capacity is rebuilt.
            cached.free = cached.free.take().filter(|(_, last)| *last < number);
        }
        Some(removed)
    }
}

impl CachedCapacity {
    fn without_reservations(&self, id: u64) -> FreeCapacity {
        FreeCapacity::new(id, self.summary.clone(), self.capacity_facts.clone())
    }
}

impl Decision {
    /// Reported pods of a pod set. Components are identified by name.
    fn reported_pods(&self, assignment: &Assignment, pod_set: &PodSet) -> i32 {
        let index = self.pod_sets.iter().position(|candidate| candidate.name == pod_set.name);
        index.and_then(|index| assignment.reported.get(index)).copied().unwrap_or_default()
    }
}

impl Assignment {
    /// Updates the reported pods from the cluster's status.
    fn update(&mut self, status_item: Option<&AggregatedStatusItem>) {
        if let (Some(ready_pods), [assigned], [reported]) =
            (ready_pods(status_item), &self.assigned[..], &mut self.reported[..])
        {
            *reported = ready_pods.min(*assigned).max(*reported);
        }
        match is_healthy(status_item) {
            true if self.was_unhealthy => self.reported.clone_from(&self.assigned),
            true => {}
            false => self.was_unhealthy = true,
        }
    }
}

fn status_item<'s>(status: &'s ResourceBindingStatus, cluster: &str) -> Option<&'s AggregatedStatusItem> {
    status.aggregated_status.iter().find(|status_item| status_item.cluster_name == cluster)
}

fn is_healthy(status_item: Option<&AggregatedStatusItem>) -> bool {
    status_item.is_some_and(|status_item| status_item.health == Some(ResourceHealth::Healthy))
}

/// Ready pods, if the status reports them.
fn ready_pods(status_item: Option<&AggregatedStatusItem>) -> Option<i32> {
    let ready_pods = unstructured::integer(&status_item?.status.as_ref()?.0, &["readyReplicas"])?;
    i32::try_from(ready_pods).ok()
}

/// Number of pods of a pod set that a target is assigned.
fn assigned_pods(spec: &ResourceBindingSpec, pod_set: &PodSet, target: &TargetCluster) -> i32 {
    match spec.components.as_slice() {
        [] => target.replicas,
        [_] if target.replicas > 0 => target.replicas,
        _ => {
            // Without recorded components, the template's replicas apply.
            let recorded = target.components.iter().find(|component| component.name == pod_set.name);
            recorded.map_or(pod_set.replicas, |component| component.replicas)
        }
    }
}
