//! What of each cluster's room has been given away and does not show there yet, so that a burst of decisions does not
//! give the same room to several.
//!
//! A decision promises its clusters the pods they did not have before ([`Ledger::promise`]), in the same breath in which
//! it is made. Once it is written ([`Ledger::written`]) the promise lasts until the pods show: a cluster that becomes
//! Healthy has them all, one that tells how many are ready has those. It ends with its binding, with its target, and
//! after [`LIFE`]. A decision that could not be written ([`Ledger::failed`]) leaves the promises as they were before.

use crowsnest_apimachinery::unstructured;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{
    AggregatedStatusItem, Component, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth, TargetCluster,
};

use super::accurate::{Assumed, component};
use super::ask::Part;
use super::room::{Known, Room};
use super::summary::Summary;
use crate::gates::Gates;
use crate::scheduling::ClusterFacts;

/// A moment, told as the time since some other.
pub type Moment = Duration;

/// A promise nobody kept is forgotten after this.
pub const LIFE: Duration = Duration::from_secs(300);

/// Pods of one binding that one cluster does not show yet.
#[derive(Debug, PartialEq)]
pub struct Promise {
    /// The namespace of the pods.
    pub namespace: String,
    parts: Arc<[Part]>,
    pods: Vec<i32>,
}

impl Promise {
    /// Pods that somebody else promised.
    pub fn assumed(namespace: &str, components: &[Component]) -> Self {
        let parts: Arc<[Part]> = components.iter().map(Part::of_component).collect();
        let pods = components.iter().map(|component| component.replicas).collect();
        Promise { namespace: namespace.to_owned(), parts, pods }
    }

    /// What pods ask for, and how many of them.
    pub fn parts(&self) -> impl Iterator<Item = (&Part, i32)> {
        self.parts.iter().zip(self.pods.iter().copied()).filter(|(_, pods)| *pods > 0)
    }

    fn total(&self) -> i64 {
        self.pods.iter().copied().map(i64::from).sum()
    }
}

/// A binding's share of one cluster, by part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    assigned: Vec<i32>,
    /// How many of them the cluster shows.
    shown: Vec<i32>,
    /// The cluster was seen not to be done since; only then it is news that it is.
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

/// What one decision of a binding promised.
#[derive(Debug, Clone)]
struct Decision {
    namespace: String,
    parts: Arc<[Part]>,
    shares: BTreeMap<String, Share>,
    /// The generation it was written as. What is told of older ones says nothing about it.
    generation: i64,
    until: Moment,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    /// What has been written.
    kept: Option<Decision>,
    /// What is being written. It counts until that has failed.
    writing: Option<Decision>,
    /// Where promises of this binding count, under which number.
    counted: BTreeMap<String, u64>,
}

/// A cluster's promises, in the order they were made, and its room with them.
#[derive(Debug, Clone, Default)]
struct Account {
    promises: BTreeMap<u64, Arc<Promise>>,
    made: Option<Made>,
}

#[derive(Debug, Clone)]
struct Made {
    facts: Arc<ClusterFacts>,
    known: Known,
    summary: Option<Arc<Summary>>,
    /// With the number of the last promise in it, 0 for none; `None` once one of them was given back.
    room: Option<(Arc<Room>, u64)>,
}

/// All promises, and the rooms they leave. A copy is for questions about what would be; both number their rooms on their
/// own, so answers that are remembered for one are nothing to the other.
#[derive(Debug, Clone)]
pub struct Ledger {
    gates: Gates,
    entries: HashMap<BindingKey, Entry>,
    clusters: HashMap<String, Account>,
    lapsing: BTreeSet<(Moment, BindingKey)>,
    /// Numbers promises and rooms.
    number: u64,
}

impl Ledger {
    pub fn new(gates: Gates) -> Self {
        Ledger { gates, entries: HashMap::new(), clusters: HashMap::new(), lapsing: BTreeSet::new(), number: 0 }
    }

    /// Whether anything is promised to a binding.
    pub fn has(&self, key: &BindingKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Notes what a decision gives a binding, before it is written. Replicas that its clusters had before count as
    /// shown, unless they were promised and have not been.
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
        let parts: Arc<[Part]> = Part::of_workload(spec).into();
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

    /// The decision was written, as this generation.
    pub fn written(&mut self, key: &BindingKey, generation: i64) {
        // Nothing is there if the binding went meanwhile.
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(written) = entry.writing.take() {
            entry.kept = Some(Decision { generation, ..written });
        }
        self.count(key);
    }

    /// The decision could not be written: what was promised before still is. Whether that is less.
    pub fn failed(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.writing = None;
        self.count(key)
    }

    /// What a binding tells of itself. Whether it gave room back.
    pub fn told(
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

    /// The binding goes, or has no result any more. Whether it gave room back.
    pub fn forget(&mut self, key: &BindingKey) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        (entry.kept, entry.writing) = (None, None);
        self.count(key)
    }

    /// Forgets all bindings but some.
    pub fn retain(&mut self, stays: impl Fn(&BindingKey) -> bool) -> bool {
        let gone: Vec<BindingKey> = self.entries.keys().filter(|key| !stays(key)).cloned().collect();
        gone.iter().filter(|key| self.forget(key)).count() > 0
    }

    /// Forgets promises that are too old. Whether there were any.
    pub fn lapse(&mut self, now: Moment) -> bool {
        let mut freed = false;
        while let Some((until, key)) = self.lapsing.first().cloned()
            && until <= now
        {
            self.lapsing.pop_first();
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            // What is being written just now is younger, and is looked at by its own time.
            entry.kept = entry.kept.take().filter(|kept| kept.until > now);
            entry.writing = entry.writing.take().filter(|writing| writing.until > now);
            freed |= self.count(&key);
        }
        freed
    }

    /// Forgets a cluster's room. What is promised there goes with the bindings' targets.
    pub fn leave(&mut self, cluster: &str) {
        if let Some(account) = self.clusters.get_mut(cluster) {
            account.made = None;
            if account.promises.is_empty() {
                self.clusters.remove(cluster);
            }
        }
    }

    /// Brings the clusters' accounts up to what a binding's entry says. Whether one of them has less promised now.
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

    /// The room of a cluster, for a binding: its own promises are not in its way.
    pub fn room(&mut self, facts: &Arc<ClusterFacts>, known: &Known, key: &BindingKey) -> Arc<Room> {
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

    /// What is promised in a cluster to bindings other than `key`.
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

    /// Pods promised in a cluster.
    pub fn promised(&self, cluster: &str) -> i64 {
        let promises = self.clusters.get(cluster).into_iter().flat_map(|account| account.promises.values());
        promises.map(|promise| promise.total()).sum()
    }
}

impl Account {
    fn remove(&mut self, number: u64) -> Option<Arc<Promise>> {
        let removed = self.promises.remove(&number)?;
        if let Some(made) = &mut self.made {
            // What is on the nodes cannot be taken off them again.
            made.room = made.room.take().filter(|(_, last)| *last < number);
        }
        Some(removed)
    }
}

impl Made {
    fn whole(&self, id: u64) -> Room {
        Room::new(id, self.summary.clone(), self.known.clone())
    }
}

impl Decision {
    /// How many pods of a part a share shows; components are the same by name.
    fn shown(&self, share: &Share, part: &Part) -> i32 {
        let place = self.parts.iter().position(|own| own.name == part.name);
        place.and_then(|place| share.shown.get(place)).copied().unwrap_or_default()
    }
}

impl Share {
    /// Learns from what the cluster tells.
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

/// How many pods are ready, where a status tells.
fn ready(item: Option<&AggregatedStatusItem>) -> Option<i32> {
    let ready = unstructured::integer(&item?.status.as_ref()?.0, &["readyReplicas"])?;
    i32::try_from(ready).ok()
}

/// How many pods of a part a target means.
fn pods(spec: &ResourceBindingSpec, part: &Part, target: &TargetCluster) -> i32 {
    match spec.components.as_slice() {
        [] => target.replicas,
        [_] if target.replicas > 0 => target.replicas,
        _ => {
            // What was not recorded is as the template has it.
            let recorded = target.components.iter().find(|component| component.name == part.name);
            recorded.map_or(part.replicas, |component| component.replicas)
        }
    }
}
