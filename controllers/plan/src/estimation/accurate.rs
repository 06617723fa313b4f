//! Results of Karmada's scheduler estimators. The scheduler queries them before it decides and takes the smaller of
//! their result and its own. An estimator that did not respond sets no limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crowsnest_api::work::{Component, ComponentReplicaRequirements, ReplicaRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;

use super::request::{Amount, PodSet};
use crate::scheduling::{ClusterFacts, Estimate};

/// Results by cluster. `None` for an estimator that was queried and returned no result.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EstimatorResponses(BTreeMap<String, Option<i32>>);

impl EstimatorResponses {
    /// Records the response of a cluster's estimator. A negative number, which Karmada's estimators return if they
    /// cannot estimate, counts as no result.
    pub fn insert(&mut self, cluster: String, response: Option<i32>) {
        self.0.insert(cluster, response.filter(|count| *count >= 0));
    }

    pub fn get(&self, cluster: &str) -> Option<i32> {
        self.0.get(cluster).copied().flatten()
    }

    fn contains(&self, cluster: &str) -> bool {
        self.0.contains_key(cluster)
    }
}

/// Crowsnest's native estimator, combined with the results of scheduler estimators.
pub struct CombinedEstimator<'a> {
    native: &'a dyn Estimate,
    clusters: &'a [Arc<ClusterFacts>],
    responses: &'a EstimatorResponses,
    /// Indexes of clusters that were estimated although their scheduler estimator has not been queried.
    unqueried: Mutex<BTreeSet<usize>>,
}

impl<'a> CombinedEstimator<'a> {
    pub fn new(native: &'a dyn Estimate, clusters: &'a [Arc<ClusterFacts>], responses: &'a EstimatorResponses) -> Self {
        CombinedEstimator { native, clusters, responses, unqueried: Mutex::default() }
    }

    /// Clusters whose scheduler estimators must be queried before the decision is repeated.
    pub fn unqueried_clusters(self) -> Vec<String> {
        let name = |index: &usize| self.clusters.get(*index).map(|facts| facts.name().to_owned());
        self.unqueried.lock().iter().filter_map(name).collect()
    }

    fn take_smaller(&self, cluster_indexes: &[usize], native: Vec<Option<i32>>) -> Vec<Option<i32>> {
        let smaller = |(index, native): (&usize, Option<i32>)| {
            let name = self.clusters.get(*index)?.name();
            if !self.responses.contains(name) {
                self.unqueried.lock().insert(*index);
            }
            match (native, self.responses.get(name)) {
                (Some(native), Some(response)) => Some(native.min(response)),
                (native, response) => native.or(response),
            }
        };
        cluster_indexes.iter().zip(native).map(smaller).collect()
    }
}

impl Estimate for CombinedEstimator<'_> {
    fn replicas(&self, cluster_indexes: &[usize], requirements: Option<&ReplicaRequirements>) -> Vec<Option<i32>> {
        self.take_smaller(cluster_indexes, self.native.replicas(cluster_indexes, requirements))
    }

    fn component_sets(&self, cluster_indexes: &[usize], components: &[Component], namespace: &str) -> Vec<Option<i32>> {
        self.take_smaller(cluster_indexes, self.native.component_sets(cluster_indexes, components, namespace))
    }
}

/// A workload that is assigned to a cluster and does not run there yet, in the form in which estimators receive it.
#[derive(Debug, Clone, PartialEq)]
pub struct AssumedWorkload {
    pub namespace: String,
    pub components: Vec<Component>,
}

/// A component of identical pods.
pub(super) fn to_component(pod_set: &PodSet, pods: i32) -> Component {
    let amount = |amount: &Amount| {
        let text = if amount.name == "cpu" { format!("{}m", amount.units) } else { amount.units.to_string() };
        (amount.name.clone(), Quantity(text))
    };
    Component {
        name: pod_set.name.clone(),
        replicas: pods,
        replica_requirements: Some(ComponentReplicaRequirements {
            node_claim: pod_set.claim.clone(),
            resource_request: pod_set.template_requests.iter().map(amount).collect(),
            priority_class_name: pod_set.priority_class.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    struct FixedEstimate(Option<i32>);

    impl Estimate for FixedEstimate {
        fn replicas(&self, cluster_indexes: &[usize], _requirements: Option<&ReplicaRequirements>) -> Vec<Option<i32>> {
            vec![self.0; cluster_indexes.len()]
        }

        fn component_sets(
            &self,
            cluster_indexes: &[usize],
            _components: &[Component],
            _namespace: &str,
        ) -> Vec<Option<i32>> {
            vec![self.0; cluster_indexes.len()]
        }
    }

    fn facts(name: &str) -> Arc<ClusterFacts> {
        let cluster = json!({"metadata": {"name": name}, "spec": {}, "status": {}});
        Arc::new(ClusterFacts::new(serde_json::from_value(cluster).expect("a cluster")))
    }

    #[rstest]
    #[case::estimator_result_is_smaller(Some(5), Some(Some(3)), Some(3), &[])]
    #[case::native_estimate_is_smaller(Some(3), Some(Some(5)), Some(3), &[])]
    #[case::nothing_fits(Some(3), Some(Some(0)), Some(0), &[])]
    #[case::only_estimator_result(None, Some(Some(5)), Some(5), &[])]
    #[case::estimator_did_not_respond(Some(5), Some(None), Some(5), &[])]
    #[case::estimator_cannot_estimate(Some(5), Some(Some(-1)), Some(5), &[])]
    #[case::estimator_not_queried(Some(5), None, Some(5), &["m2"])]
    fn smaller_estimate_wins(
        #[case] native: Option<i32>,
        #[case] response: Option<Option<i32>>,
        #[case] expected: Option<i32>,
        #[case] unqueried: &[&str],
    ) {
        let (native, clusters) = (FixedEstimate(native), [facts("m1"), facts("m2")]);
        let mut responses = EstimatorResponses::default();
        if let Some(response) = response {
            responses.insert("m2".to_owned(), response);
        }
        let estimator = CombinedEstimator::new(&native, &clusters, &responses);
        assert_eq!(estimator.replicas(&[1], None), [expected]);
        assert_eq!(estimator.component_sets(&[1], &[], "ns"), [expected]);
        assert_eq!(estimator.unqueried_clusters(), unqueried);
    }
}
