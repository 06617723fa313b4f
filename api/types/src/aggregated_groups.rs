//! API groups of Crowsnest's aggregated API server, as registered in the control plane.

/// An API group, with the values of its APIServices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiGroup {
    pub name: &'static str,
    /// Versions with their `versionPriority`; the preferred one is the first.
    pub versions: &'static [(&'static str, i32)],
    /// Value of `groupPriorityMinimum`.
    pub priority: i32,
    /// True for the groups of the metrics adapter, which can be disabled and which others may serve instead.
    pub is_metrics: bool,
    /// False if discovery may list no resources, because all of them depend on the members.
    pub has_resources: bool,
}

impl ApiGroup {
    /// A group with version `v1alpha1`.
    pub const fn new(name: &'static str) -> Self {
        Self { name, versions: &[("v1alpha1", 10)], priority: 2000, is_metrics: false, has_resources: true }
    }
}

pub const CLUSTER: ApiGroup = ApiGroup::new("cluster.karmada.io");
pub const SEARCH: ApiGroup = ApiGroup::new("search.karmada.io");
pub const CROWSNEST_SEARCH: ApiGroup = ApiGroup::new("search.crowsnest.io");
pub const CROWSNEST_PROPAGATION: ApiGroup = ApiGroup::new("propagation.crowsnest.io");
pub const CROWSNEST_ACCESS: ApiGroup = ApiGroup::new("access.crowsnest.io");
/// Priorities as Karmada registers its metrics adapter.
pub const METRICS: ApiGroup =
    ApiGroup { versions: &[("v1beta1", 10)], is_metrics: true, ..ApiGroup::new("metrics.k8s.io") };
/// Priorities as Karmada registers its metrics adapter.
pub const CUSTOM_METRICS: ApiGroup = ApiGroup {
    versions: &[("v1beta2", 200), ("v1beta1", 100)],
    priority: 100,
    is_metrics: true,
    has_resources: false,
    ..ApiGroup::new("custom.metrics.k8s.io")
};

/// All aggregated groups, or without those of the metrics adapter if `metrics` is false.
pub fn aggregated_groups(metrics: bool) -> impl Iterator<Item = &'static ApiGroup> {
    const GROUPS: [&ApiGroup; 7] =
        [&CLUSTER, &SEARCH, &CROWSNEST_SEARCH, &CROWSNEST_PROPAGATION, &CROWSNEST_ACCESS, &METRICS, &CUSTOM_METRICS];
    GROUPS.into_iter().filter(move |group| metrics || !group.is_metrics)
}
