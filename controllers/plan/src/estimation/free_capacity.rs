//! Free capacity of a cluster at one moment: its status and nodes, less reservations.

use std::collections::HashMap;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::ledger::Reservation;
use super::nodes::Nodes;
use super::quotas::Quotas;
use super::request::{EstimateKind, EstimateRequest, PodSet};
use super::resources::Resources;
use super::summary::{ReservationTotal, Summary};

/// Facts about a cluster, without reservations. `is_same` compares them by pointer.
#[derive(Debug, Clone, Default)]
pub struct CapacityFacts {
    /// Nodes less the requests of their pods. `None` until nodes and pods have been listed.
    pub nodes: Option<Arc<Nodes>>,
    /// ResourceQuotas. `None` if they are not considered.
    pub quotas: Option<Arc<Quotas>>,
}

impl CapacityFacts {
    pub(super) fn is_same(&self, other: &CapacityFacts) -> bool {
        fn is_same_arc<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            a.map(Arc::as_ptr) == b.map(Arc::as_ptr)
        }
        is_same_arc(self.nodes.as_ref(), other.nodes.as_ref())
            && is_same_arc(self.quotas.as_ref(), other.quotas.as_ref())
    }

    fn has_quotas(&self, namespace: &str) -> bool {
        self.quotas.as_ref().is_some_and(|quotas| quotas.namespaces.contains_key(namespace))
    }
}

/// Free capacity of a cluster. Values with the same id are equal, except for id 0, which is never cached.
#[derive(Debug, Clone, Default)]
pub struct FreeCapacity {
    id: u64,
    summary: Option<Arc<Summary>>,
    capacity_facts: CapacityFacts,
    /// Reservations in namespaces with quotas.
    reservations: Vec<Arc<Reservation>>,
    /// Nodes less reservations. `None` without reservations or without facts of nodes.
    nodes: Option<Nodes>,
    /// Nodes of the resource models, less reservations.
    models: Option<Nodes>,
    reserved: ReservationTotal,
}

impl FreeCapacity {
    pub(super) fn new(id: u64, summary: Option<Arc<Summary>>, capacity_facts: CapacityFacts) -> Self {
        FreeCapacity { id, summary, capacity_facts, ..FreeCapacity::default() }
    }

    /// Subtracts reservations. Identical pods are placed together, in the order of their first occurrence, so that
    /// the cost depends on the number of distinct pod shapes.
    pub(super) fn subtract_reservations<'p>(
        mut self,
        id: u64,
        reservations: impl Iterator<Item = &'p Arc<Reservation>>,
    ) -> Self {
        self.id = id;
        let mut pod_sets: Vec<(&PodSet, i64)> = Vec::new();
        let mut indexes: HashMap<&Resources, Vec<usize>> = HashMap::new();
        for reservation in reservations {
            for (pod_set, pods) in reservation.pod_sets() {
                let indexes = indexes.entry(&pod_set.request).or_default();
                match indexes.iter().find(|index| pod_sets[**index].0.claim == pod_set.claim) {
                    Some(index) => pod_sets[*index].1 += i64::from(pods),
                    None => {
                        indexes.push(pod_sets.len());
                        pod_sets.push((pod_set, i64::from(pods)));
                    }
                }
            }
            if self.capacity_facts.has_quotas(&reservation.namespace) {
                self.reservations.push(Arc::clone(reservation));
            }
        }
        if pod_sets.is_empty() {
            return self;
        }
        let all_nodes = self.capacity_facts.nodes.as_deref();
        let modelled = self.summary.as_deref().and_then(|summary| summary.models.as_ref());
        self.nodes = self.nodes.take().or_else(|| all_nodes.cloned());
        self.models = self.models.take().or_else(|| modelled.cloned());
        for (pod_set, pods) in pod_sets {
            self.nodes.as_mut().into_iter().for_each(|nodes| nodes.place_pods(pod_set, pods));
            self.models.as_mut().into_iter().for_each(|nodes| nodes.place_pods(pod_set, pods));
            self.reserved.add(pod_set, pods);
        }
        self
    }

    /// Free capacity if there were no reservations.
    pub fn without_reservations(&self) -> Self {
        FreeCapacity::new(0, self.summary.clone(), self.capacity_facts.clone())
    }

    /// Free capacity if there were no quotas.
    pub fn without_quotas(&self) -> Self {
        FreeCapacity {
            id: 0,
            capacity_facts: CapacityFacts { quotas: None, ..self.capacity_facts.clone() },
            ..self.clone()
        }
    }

    /// Free capacity according to the Cluster's status alone, without nodes.
    pub fn without_nodes(&self) -> Self {
        FreeCapacity {
            id: 0,
            capacity_facts: CapacityFacts { nodes: None, ..self.capacity_facts.clone() },
            nodes: None,
            ..self.clone()
        }
    }

    /// True if the status has counts per resource model.
    pub fn has_models(&self) -> bool {
        self.summary.as_ref().is_some_and(|summary| summary.models.is_some())
    }

    fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref().or(self.capacity_facts.nodes.as_deref())
    }

    /// Number of replicas or sets that fit: the smaller of the numbers by status and by nodes, without quotas.
    pub fn estimate(&self, request: &EstimateRequest) -> i64 {
        let models = self.models.as_ref().or_else(|| self.summary.as_ref()?.models.as_ref());
        let from_summary =
            self.summary.as_ref().map_or(0, |summary| summary.count_fits(request, &self.reserved, models));
        match self.nodes() {
            None => from_summary,
            Some(nodes) if request.kind == EstimateKind::Sets => nodes.sets(&request.pod_sets, from_summary),
            Some(nodes) => {
                request.pod_sets.iter().map(|pod_set| nodes.replicas(pod_set)).sum::<i64>().min(from_summary)
            }
        }
    }

    /// Number of replicas or sets that the quotas of a namespace allow. `None` if they set no limit.
    pub fn quota_limit(&self, request: &EstimateRequest, namespace: &str) -> Option<i64> {
        let reservations = self.reservations.iter().map(AsRef::as_ref);
        self.capacity_facts.quotas.as_ref()?.limit(request, namespace, reservations)
    }
}

/// Maximum number of cached results, 16 bytes each.
const MAX_CACHED_RESULTS: usize = 1 << 20;

/// Id of the [`FreeCapacity`] and result, by index of the cluster.
type CachedEstimates = Vec<(u64, i64)>;

/// Cache of estimates. While the free capacity of a cluster keeps its id, a cached estimate costs one comparison.
#[derive(Debug)]
pub struct EstimateCache {
    estimates: Mutex<LruCache<Arc<EstimateRequest>, Arc<CachedEstimates>>>,
}

impl Default for EstimateCache {
    fn default() -> Self {
        EstimateCache { estimates: Mutex::new(LruCache::unbounded()) }
    }
}

impl EstimateCache {
    /// Estimates for the free capacities at these indexes, together with the shared request.
    pub(super) fn estimate(
        &self,
        request: EstimateRequest,
        free_capacities: &[Arc<FreeCapacity>],
        cluster_indexes: &[usize],
    ) -> (Arc<EstimateRequest>, Vec<i64>) {
        let cached = self
            .estimates
            .lock()
            .get_key_value(&request)
            .map(|(request, estimates)| (Arc::clone(request), Arc::clone(estimates)));
        let (request, estimates) = cached.unwrap_or_else(|| (Arc::new(request), Arc::default()));
        let mut updated: Option<CachedEstimates> = None;
        let mut estimate = |index: &usize| {
            let capacity = free_capacities.get(*index)?;
            let cached = estimates.get(*index).filter(|(id, _)| *id == capacity.id && capacity.id != 0);
            Some(cached.map_or_else(
                || {
                    let number = capacity.estimate(&request);
                    let updated = updated.get_or_insert_with(|| estimates.as_ref().clone());
                    updated.resize(updated.len().max(free_capacities.len()), (0, 0));
                    updated[*index] = (capacity.id, number);
                    number
                },
                |(_, number)| *number,
            ))
        };
        let counts = cluster_indexes.iter().map(|index| estimate(index).unwrap_or_default()).collect();
        if let Some(updated) = updated {
            let mut cache = self.estimates.lock();
            cache.put(Arc::clone(&request), Arc::new(updated));
            while cache.len() > (MAX_CACHED_RESULTS / free_capacities.len().max(1)).max(1) {
                cache.pop_lru();
            }
        }
        (request, counts)
    }
}
