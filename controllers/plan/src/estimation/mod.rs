//! Estimates of how many more replicas fit into a cluster. Sources are its nodes and pods, if cached, and the
//! resource summary and models in the Cluster's status, less reservations for other bindings; the smaller estimate
//! counts. ResourceQuotas of the member limit it further.
//!
//! A decision evaluates one [`request::EstimateRequest`] for every cluster. [`ledger::Ledger`] keeps a
//! [`free_capacity::FreeCapacity`] per cluster, which stays the same until something changes there, so that
//! [`free_capacity::EstimateCache`] can cache results. [`accurate`] adds the results of scheduler estimators;
//! [`estimator`] is the decision of Crowsnest's own scheduler estimator.

pub mod accurate;
pub mod bounds;
pub mod capacity;
pub mod estimator;
pub mod free_capacity;
pub mod ledger;
pub mod nodes;
pub mod quotas;
pub mod request;
pub mod resources;
pub mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crowsnest_api::work::{Component, ReplicaRequirements};

use self::free_capacity::{EstimateCache, FreeCapacity};
use self::request::EstimateRequest;
use super::scheduling::Estimate;

/// The estimator for one snapshot of the clusters.
#[derive(Debug, Clone)]
pub struct Estimator<'a> {
    /// Free capacity per cluster, in the order of the clusters. Empty for bindings without replicas.
    pub free_capacities: Vec<Arc<FreeCapacity>>,
    pub cache: &'a EstimateCache,
}

impl Estimate for Estimator<'_> {
    fn replicas(&self, cluster_indexes: &[usize], requirements: Option<&ReplicaRequirements>) -> Vec<Option<i32>> {
        let namespace = requirements.map_or("", |requirements| &requirements.namespace);
        self.estimate(cluster_indexes, EstimateRequest::for_replicas(requirements), namespace)
    }

    fn component_sets(&self, cluster_indexes: &[usize], components: &[Component], namespace: &str) -> Vec<Option<i32>> {
        self.estimate(cluster_indexes, EstimateRequest::for_component_sets(components), namespace)
    }
}

impl Estimator<'_> {
    fn estimate(&self, cluster_indexes: &[usize], request: EstimateRequest, namespace: &str) -> Vec<Option<i32>> {
        let (request, counts) = self.cache.estimate(request, &self.free_capacities, cluster_indexes);
        let apply_quota = |(index, count): (&usize, i64)| {
            let capacity = self.free_capacities.get(*index)?;
            let allowed = capacity.quota_limit(&request, namespace).unwrap_or(i64::MAX);
            Some(i32::try_from(count.min(allowed)).unwrap_or(i32::MAX))
        };
        cluster_indexes.iter().zip(counts).map(apply_quota).collect()
    }
}
