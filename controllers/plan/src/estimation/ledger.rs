//! Ledger of reservations: capacity that was assigned to bindings and is not used yet, so that a burst of decisions
//! does not assign the same capacity twice.
//!
//! A decision immediately reserves the pods that its clusters did not have before ([`Ledger::promise`]). After the
//! write succeeded ([`Ledger::written`]), a reservation lasts until the pods run: all of them once the cluster
//! reports Healthy, otherwise as many as it reports ready. It also ends with its binding, with its target cluster,
//! and after [`LIFE`]. If the write failed ([`Ledger::failed`]), the previous reservations are restored.

use crowsnest_apimachinery::unstructured;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{
    AggregatedStatusItem, Component, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth, TargetCluster,
};

use super::accurate::{Assumed, component};
use super::free_capacity::{CapacityFacts, FreeCapacity};
use super::request::PodSet;
use super::summary::Summary;
use crate::gates::Gates;
use crate::scheduling::ClusterFacts;

/// A monotonic time, as the duration since a fixed start.
pub type Moment = Duration;

/// A reservation expires after this time.
pub const LIFE: Duration = Duration::from_secs(300);

/// Reservation: pods of one binding that do not run in one cluster yet.
#[derive(Debug, PartialEq)]
pub struct Promise {
    /// Namespace of the pods.
    pub namespace: String,
    parts: Arc<[PodSet]>,
    pods: Vec<i32>,
}

impl Promise {
    /// Reservation of another scheduler, for pods that it assigned.
    pub fn assumed(namespace: &str, components: &[Component]) -> Self {
        let parts: Arc<[PodSet]> = components.iter().map(PodSet::of_component).collect();
        let pods = components.iter().map(|component| component.replicas).collect();
        Promise { namespace: namespace.to_owned(), parts, pods }
    }

    /// The reserved parts with the number of pods of each.
    pub fn parts(&self) -> impl Iterator<Item = (&PodSet, i32)> {
        self.parts.iter().zip(self.pods.iter().copied()).filter(|(_, pods)| *pods > 0)
    }

    fn total(&self) -> i64 {
        self.pods.iter().copied().map(i64::from).sum()
    }
}

/// Assignment of a binding to one cluster, by part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    assigned: Vec<i32>,
    /// Number of pods that the cluster reported.
    shown: Vec<i32>,
    /// True if the cluster was not healthy since the decision. Only then does a Healthy report mean that all pods
    /// run.
    waited: bool,
}

impl Share {
    fn is_shown(&self) -> bool {
        self.assigned.iter().zip(&self.shown).all(|(assigned, shown)| shown >= assigned)
    }

    fn missing(&self) -> Vec<i32> {
        self.assigned.iter().zip(&self.shown).map(|(assigned, shown)| (assigned - shown).max(0)).collect()
    }
}

/// Assignments of one decision.
#[derive(Debug, Clone)]
struct Decision {
    namespace: String,
    parts: Arc<[PodSet]>,
    shares: BTreeMap<String, Share>,
    /// Generation of the binding with this decision. Status of older generations is ignored.
    generation: i64,
    until: Moment,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    /// The last decision that was written.
    kept: Option<Decision>,
    /// A decision whose write is in progress. It takes precedence until the write fails.
    writing: Option<Decision>,
    /// Number of the reservation in each cluster's account.
    counted: BTreeMap<String, u64>,
}

/// Reservations in a cluster, in order, and its free capacity less these.
#[derive(Debug, Clone, Default)]
struct Account {
    promises: BTreeMap<u64, Arc<Promise>>,
    made: Option<Made>,
}

#[derive(Debug, Clone)]
struct Made {
    facts: Arc<ClusterFacts>,
    known: CapacityFacts,
    summary: Option<Arc<Summary>>,
    /// With the number of the last reservation in it (0 for none). `None` after a reservation was released.
    room: Option<(Arc<FreeCapacity>, u64)>,
}

/// All reservations, and the free capacity per cluster. A clone serves what-if questions; both number their free capacities
/// independently, so cached results of one are not valid for the other.
#[derive(Debug, Clone)]
pub struct Ledger {
    gates: Gates,
    entries: HashMap<BindingKey, Entry>,
    clusters: HashMap<String, Account>,
    lapsing: BTreeSet<(Moment, BindingKey)>,
    /// Last number of a reservation or free capacity.
    number: u64,
}

impl Ledger {
    pub fn new(gates: Gates) -> Self {
        Ledger { gates, entries: HashMap::new(), clusters: HashMap::new(), lapsing: BTreeSet::new(), number: 0 }
    }

    /// True if the binding has reservations.
    pub fn has(&self, key: &BindingKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Reserves the capacity of a decision before it is written. Replicas that the clusters had before count as
    /// running, unless they were reserved and never reported.
    pub fn promise(
        &mut self,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
        targets: &[TargetCluster],
        now: Moment,
    ) {
        if !self.gates.scheduling_overcommit_protection || !spec.is_workload() {
            return;
        }
        let parts: Arc<[PodSet]> = PodSet::of_workload(spec).into();
        let before = self.entries.get(key).and_then(|entry| entry.kept.as_ref());
        let mut shares = BTreeMap::new();
        for target in targets {
            let assigned: Vec<i32> = parts.iter().map(|part| pods(spec, part, target)).collect();
            let held = spec.clusters.iter().find(|held| held.name == target.name);
            let known = before.and_then(|before| Some((before, before.shares.get(&target.name)?)));
            let shown = parts.iter().zip(&assigned).map(|(part, assigned)| {
                let shown = match known {
                    Some((before, share)) => before.shown(share, part),
                    None => held.map_or(0, |held| pods(spec, part, held)),
                };
                shown.min(*assigned)
            });
            let share = Share { shown: shown.collect(), assigned, waited: !is_healthy(item(status, &target.name)) };
            if !share.is_shown() {
                shares.insert(target.name.clone(), share);
            }
        }
        let grew = shares.iter().any(|(name, share)| {
            before.and_then(|before| before.shares.get(name)).is_none_or(|old| old.missing() != share.missing())
        });
        let until = before.filter(|_| !grew).map_or(now + LIFE, |before| before.until);
        let namespace = spec.resource.namespace.clone();
        let entry = self.entries.entry(key.clone()).or_default();
        entry.writing = Some(Decision { namespace, parts, shares, generation: 0, until });
        self.count(key);
    }

    /// Confirms that the decision was written with this generation.
    pub fn written(&mut self, key: &BindingKey, generation: i64) {
        // The binding can have been deleted in the meantime.
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(written) = entry.writing.take() {
            entry.kept = Some(Decision { generation, ..written });
        }
        self.count(key);
    }

    /// The write failed: restores the previous reservations. Returns true if that released capacity.
    pub fn failed(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.writing = None;
        self.count(key)
    }

    /// Updates reservations from a binding's status. Returns true if that released capacity.
    pub fn observe_status(
        &mut self,
        key: &BindingKey,
        generation: i64,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
    ) -> bool {
        let Some(kept) = self.entries.get_mut(key).and_then(|entry| entry.kept.as_mut()) else { return false };
        if generation < kept.generation {
            return false;
        }
        let parts = Arc::clone(&kept.parts);
        kept.shares.retain(|name, share| {
            let Some(target) = spec.clusters.iter().find(|target| target.name == *name) else { return false };
            for (part, assigned) in parts.iter().zip(&mut share.assigned) {
                *assigned = pods(spec, part, target).min(*assigned);
            }
            share.look(item(status, name));
            !share.is_shown()
        });
        self.count(key)
    }

    /// Removes the reservations of a binding that is deleted or no longer scheduled. Returns true if that released
    /// capacity.
    pub fn forget(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        (entry.kept, entry.writing) = (None, None);
        self.count(key)
    }

    /// Removes the reservations of all bindings that do not satisfy the predicate. Returns true if that released
    /// capacity.
    pub fn retain(&mut self, stays: impl Fn(&BindingKey) -> bool) -> bool {
        let gone: Vec<BindingKey> = self.entries.keys().filter(|key| !stays(key)).cloned().collect();
        gone.iter().filter(|key| self.forget(key)).count() > 0
    }

    /// Removes expired reservations. Returns true if that released capacity.
    pub fn lapse(&mut self, now: Moment) -> bool {
        let mut freed = false;
        while let Some((until, key)) = self.lapsing.first().cloned()
            && until <= now
        {
            self.lapsing.pop_first();
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            // A write in progress has its own, later expiry.
            entry.kept = entry.kept.take().filter(|kept| kept.until > now);
            entry.writing = entry.writing.take().filter(|writing| writing.until > now);
            freed |= self.count(&key);
        }
        freed
    }

    /// Drops the cached capacity of a cluster. Its reservations end with the targets of their bindings.
    pub fn leave(&mut self, cluster: &str) {
        if let Some(account) = self.clusters.get_mut(cluster) {
            account.made = None;
            if account.promises.is_empty() {
                self.clusters.remove(cluster);
            }
        }
    }

    /// Updates the clusters' accounts from a binding's entry. Returns true if any of them has less reserved now.
    fn count(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let decision = entry.writing.as_ref().or(entry.kept.as_ref());
        let mut counted = std::mem::take(&mut entry.counted);
        let mut freed = false;
        if let Some(Decision { namespace, parts, shares, .. }) = decision {
            for (cluster, share) in shares {
                let promise = Promise { namespace: namespace.clone(), parts: Arc::clone(parts), pods: share.missing() };
                let account = self.clusters.entry(cluster.clone()).or_default();
                let number = match counted.remove(cluster) {
                    Some(number) if account.promises.get(&number).is_some_and(|old| **old == promise) => number,
                    old => {
                        let old = old.and_then(|number| account.remove(number));
                        freed |= old.is_some_and(|old| old.total() > promise.total());
                        self.number += 1;
                        account.promises.insert(self.number, Arc::new(promise));
                        self.number
                    }
                };
                entry.counted.insert(cluster.clone(), number);
            }
        }
        for (cluster, number) in counted {
            freed = true;
            let Some(account) = self.clusters.get_mut(&cluster) else { continue };
            account.remove(number);
            if account.promises.is_empty() && account.made.is_none() {
                self.clusters.remove(&cluster);
            }
        }
        let decisions = [&entry.kept, &entry.writing].into_iter().flatten();
        let lasting = decisions.filter(|decision| !decision.shares.is_empty());
        self.lapsing.extend(lasting.map(|decision| (decision.until, key.clone())));
        let done = |decision: &Option<Decision>| decision.as_ref().is_none_or(|decision| decision.shares.is_empty());
        if entry.writing.is_none() && done(&entry.kept) {
            self.entries.remove(key);
        }
        freed
    }

    /// Free capacity of a cluster for a binding. Its own reservations are not subtracted.
    pub fn room(&mut self, facts: &Arc<ClusterFacts>, known: &CapacityFacts, key: &BindingKey) -> Arc<FreeCapacity> {
        let own = self.entries.get(key).and_then(|entry| entry.counted.get(facts.name())).copied();
        let account = match self.clusters.get_mut(facts.name()) {
            Some(account) => account,
            None => self.clusters.entry(facts.name().to_owned()).or_default(),
        };
        let made = match account.made.take().filter(|made| Arc::ptr_eq(&made.facts, facts)) {
            Some(made) if made.known.is(known) => made,
            Some(made) => Made { known: known.clone(), room: None, ..made },
            None => {
                let summary = Summary::of(&facts.cluster, self.gates.customized_cluster_resource_modeling);
                Made { facts: Arc::clone(facts), known: known.clone(), summary: summary.map(Arc::new), room: None }
            }
        };
        let made = account.made.insert(made);
        if let Some(own) = own {
            let others = account.promises.iter().filter(|(number, _)| **number != own);
            return Arc::new(made.whole(0).less(0, others.map(|(_, promise)| promise)));
        }
        let (mut room, mut last) = made.room.take().unwrap_or_else(|| {
            self.number += 1;
            (Arc::new(made.whole(self.number)), 0)
        });
        if let Some((newest, _)) = account.promises.range(last + 1..).next_back() {
            self.number += 1;
            let news = account.promises.range(last + 1..).map(|(_, promise)| promise);
            room = Arc::new(Arc::unwrap_or_clone(room).less(self.number, news));
            last = *newest;
        }
        made.room = Some((Arc::clone(&room), last));
        room
    }

    /// Workloads reserved in a cluster for bindings other than `key`.
    pub fn assumed(&self, cluster: &str, key: &BindingKey) -> Vec<Assumed> {
        let own = self.entries.get(key).and_then(|entry| entry.counted.get(cluster)).copied();
        let promises = self.clusters.get(cluster).into_iter().flat_map(|account| &account.promises);
        let others = promises.filter(|(number, _)| Some(**number) != own);
        let assumed = |(_, promise): (&u64, &Arc<Promise>)| Assumed {
            namespace: promise.namespace.clone(),
            components: promise.parts().map(|(part, pods)| component(part, pods)).collect(),
        };
        others.map(assumed).collect()
    }

    /// Number of pods reserved in a cluster.
    pub fn promised(&self, cluster: &str) -> i64 {
        let promises = self.clusters.get(cluster).into_iter().flat_map(|account| account.promises.values());
        promises.map(|promise| promise.total()).sum()
    }
}

impl Account {
    fn remove(&mut self, number: u64) -> Option<Arc<Promise>> {
        let removed = self.promises.remove(&number)?;
        if let Some(made) = &mut self.made {
            // Reservations cannot be taken off the nodes one by one, so the free capacity is rebuilt.
            made.room = made.room.take().filter(|(_, last)| *last < number);
        }
        Some(removed)
    }
}

impl Made {
    fn whole(&self, id: u64) -> FreeCapacity {
        FreeCapacity::new(id, self.summary.clone(), self.known.clone())
    }
}

impl Decision {
    /// Reported pods of a part. Components are identified by name.
    fn shown(&self, share: &Share, part: &PodSet) -> i32 {
        let index = self.parts.iter().position(|own| own.name == part.name);
        index.and_then(|index| share.shown.get(index)).copied().unwrap_or_default()
    }
}

impl Share {
    /// Updates the reported pods from the cluster's status.
    fn look(&mut self, item: Option<&AggregatedStatusItem>) {
        if let (Some(ready), [assigned], [shown]) = (ready(item), &self.assigned[..], &mut self.shown[..]) {
            *shown = ready.min(*assigned).max(*shown);
        }
        match is_healthy(item) {
            true if self.waited => self.shown.clone_from(&self.assigned),
            true => {}
            false => self.waited = true,
        }
    }
}

fn item<'s>(status: &'s ResourceBindingStatus, cluster: &str) -> Option<&'s AggregatedStatusItem> {
    status.aggregated_status.iter().find(|item| item.cluster_name == cluster)
}

fn is_healthy(item: Option<&AggregatedStatusItem>) -> bool {
    item.is_some_and(|item| item.health == Some(ResourceHealth::Healthy))
}

/// Ready pods, if the status reports them.
fn ready(item: Option<&AggregatedStatusItem>) -> Option<i32> {
    let ready = unstructured::integer(&item?.status.as_ref()?.0, &["readyReplicas"])?;
    i32::try_from(ready).ok()
}

/// Number of pods of a part that a target is assigned.
fn pods(spec: &ResourceBindingSpec, part: &PodSet, target: &TargetCluster) -> i32 {
    match spec.components.as_slice() {
        [] => target.replicas,
        [_] if target.replicas > 0 => target.replicas,
        _ => {
            // Without recorded components, the template's replicas apply.
            let recorded = target.components.iter().find(|component| component.name == part.name);
            recorded.map_or(part.replicas, |component| component.replicas)
        }
    }
}
