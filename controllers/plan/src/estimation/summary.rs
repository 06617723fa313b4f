//! Free capacity according to a Cluster's status, parsed once per change of the Cluster.

use std::collections::BTreeMap;

use crowsnest_api::cluster::{Cluster, ResourceSummary};
use crowsnest_api::policy::ResourceList;
use crowsnest_apimachinery::quantity::Quantity;

use super::nodes::Nodes;
use super::request::{EstimateKind, EstimateRequest, PodSet, scaled_value, to_units};
use super::resources::Resources;

/// Free resources of the whole cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    pods: i64,
    /// By resource name, for resources that are allocatable.
    free: BTreeMap<String, Free>,
    /// Nodes by resource models. `None` if the cluster has no counts per model.
    pub models: Option<Nodes>,
}

/// Free amount of one resource, in the two units of [`Amount`](super::request::Amount).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Free {
    units: i64,
    scaled: i64,
}

/// Sum of the reservations in a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReservationTotal {
    pub pods: i64,
    units: Resources,
    scaled: BTreeMap<String, i64>,
}

impl ReservationTotal {
    pub fn add(&mut self, pod_set: &PodSet, pods: i64) {
        self.pods = self.pods.saturating_add(pods);
        self.units.add_times(&pod_set.request, pods);
        for amount in &pod_set.template_requests {
            let sum = self.scaled.entry(amount.name.clone()).or_default();
            *sum = sum.saturating_add(amount.scaled.saturating_mul(pods));
        }
    }
}

impl Summary {
    /// Reads the status. `None` without a resource summary. With `uses_models`, resource models are considered.
    pub fn from_cluster(cluster: &Cluster, uses_models: bool) -> Option<Self> {
        let summary = cluster.status.resource_summary.as_ref()?;
        let models = &cluster.spec.resource_models;
        let counts = &summary.allocatable_modelings;
        let uses_models = uses_models && !counts.is_empty() && !models.is_empty();
        let free = |name: &String| {
            let quantity = free(summary, name)?;
            Some((name.clone(), Free { units: to_units(name, &quantity), scaled: scaled_value(&quantity) }))
        };
        Some(Summary {
            pods: free_pods(summary),
            free: summary.allocatable.keys().filter_map(free).collect(),
            models: uses_models.then(|| Nodes::from_models(models, counts)),
        })
    }

    /// Number of replicas or sets that fit in addition to the reservations. `models` are the nodes of the resource models
    /// less reservations.
    pub fn count_fits(&self, request: &EstimateRequest, reserved: &ReservationTotal, models: Option<&Nodes>) -> i64 {
        let pods = self.pods - reserved.pods;
        if pods <= 0 {
            return 0;
        }
        match (request.kind, models) {
            (EstimateKind::Pods, _) => pods,
            (EstimateKind::Replicas, Some(nodes)) => {
                request.pod_sets.iter().map(|pod_set| nodes.replicas(pod_set)).sum::<i64>().min(pods)
            }
            (EstimateKind::Replicas, None) => {
                request.pod_sets.iter().map(|pod_set| self.replicas(pod_set, reserved)).sum::<i64>().min(pods)
            }
            (EstimateKind::Sets, models) => {
                let sets = self.sets(&request.pod_sets, reserved, pods);
                models.map_or(sets, |nodes| nodes.sets(&request.pod_sets, sets))
            }
        }
    }

    /// Free resources divided by the request. A resource that the cluster does not list leaves no capacity.
    fn replicas(&self, pod_set: &PodSet, reserved: &ReservationTotal) -> i64 {
        let bound = |amount: &super::request::Amount| match self.free.get(&amount.name) {
            Some(free) => (free.units - reserved.units.get(&amount.name)).max(0) / amount.units,
            None => 0,
        };
        pod_set.template_requests.iter().filter(|amount| amount.units > 0).map(bound).min().unwrap_or(i64::MAX)
    }

    /// Number of sets by pods and by each resource. Zero if a requested resource is exhausted.
    fn sets(&self, pod_sets: &[PodSet], reserved: &ReservationTotal, pods: i64) -> i64 {
        let per_set: i64 = pod_sets.iter().map(|pod_set| i64::from(pod_set.replicas)).sum();
        if per_set <= 0 {
            return pods;
        }
        let mut requested: BTreeMap<&str, i64> = BTreeMap::new();
        for pod_set in pod_sets {
            for amount in &pod_set.template_requests {
                *requested.entry(&amount.name).or_default() +=
                    amount.scaled.saturating_mul(i64::from(pod_set.replicas));
            }
        }
        let bound = |(name, requested): (&str, i64)| {
            let free = self.free.get(name).map_or(0, |free| free.scaled);
            (free - reserved.scaled.get(name).copied().unwrap_or_default()).max(0) / requested
        };
        let bounds = requested.into_iter().filter(|(_, requested)| *requested > 0).map(bound);
        bounds.fold(pods / per_set, i64::min)
    }
}

fn amount(list: &ResourceList, name: &str) -> Option<Quantity> {
    list.get(name).and_then(|quantity| Quantity::parse(&quantity.0).ok())
}

fn free_pods(summary: &ResourceSummary) -> i64 {
    let pods = |list: &ResourceList| amount(list, "pods").map_or(0, |quantity| quantity.value());
    (pods(&summary.allocatable) - pods(&summary.allocated) - pods(&summary.allocating)).max(0)
}

fn free(summary: &ResourceSummary, name: &str) -> Option<Quantity> {
    let mut free = amount(&summary.allocatable, name)?;
    for used in [&summary.allocated, &summary.allocating] {
        if let Some(used) = amount(used, name) {
            free -= used;
        }
    }
    Some(free)
}
