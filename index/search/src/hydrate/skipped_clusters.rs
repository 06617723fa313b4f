//! Properties of clusters for planning, and clusters with missing or outdated results.

use crate::Searcher;
use crate::authorization::CallerPermissions;
use crate::plan::ClusterProperties;
use crowsnest_apimachinery::names::ClusterName;
use serde::Serialize;
use std::collections::BTreeMap;

/// A cluster whose objects are missing from a response or outdated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedCluster {
    pub cluster: ClusterName,
    pub reason: String,
    /// Number of resources whose objects are missing or outdated; 0 if it is unknown.
    pub resources: usize,
    /// True if some of its objects are missing. False if they are outdated, with the age `age_seconds`.
    #[serde(rename = "missing")]
    pub has_missing_objects: bool,
    /// Seconds since the last contact with the cluster; None: never.
    pub age_seconds: Option<i64>,
}

/// Summary of the states of a cluster's collections.
#[derive(Default)]
struct CollectionSummary {
    resources: usize,
    /// Number of collections that are not current.
    outdated: usize,
    /// True if a collection has never been listed completely.
    has_incomplete_collection: bool,
    stale_reason: Option<String>,
    /// Oldest time of a last contact among the collections that are not current, in Unix milliseconds.
    last_contact_ms: Option<i64>,
}

fn summarize_collections(searcher: &Searcher) -> BTreeMap<ClusterName, CollectionSummary> {
    let mut clusters: BTreeMap<ClusterName, CollectionSummary> = BTreeMap::new();
    searcher.inner.cache.states.for_each(|key, state| {
        if !clusters.contains_key(&key.cluster) {
            clusters.insert(key.cluster.clone(), CollectionSummary::default());
        }
        let Some(summary) = clusters.get_mut(&key.cluster) else { return };
        summary.resources += 1;
        if state.is_fresh() {
            return;
        }
        summary.outdated += 1;
        summary.has_incomplete_collection |= !state.complete;
        if summary.stale_reason.is_none() {
            summary.stale_reason.clone_from(&state.stale_reason);
        }
        let last_contact_ms = Some(state.last_contact_ms).filter(|at| *at > 0);
        summary.last_contact_ms = summary.last_contact_ms.into_iter().chain(last_contact_ms).min();
    });
    clusters
}

/// Properties of the control plane and of the clusters that a caller may see. Queries must not reveal other clusters.
pub(crate) fn cluster_properties(searcher: &Searcher, permissions: &CallerPermissions) -> Vec<ClusterProperties> {
    let summaries = summarize_collections(searcher);
    let stale = |name: &ClusterName| summaries.get(name).is_none_or(|summary| summary.outdated > 0);
    let control_plane = ClusterName::control_plane();
    let mut clusters = vec![ClusterProperties {
        name: control_plane.to_string(),
        stale: stale(&control_plane),
        ..ClusterProperties::default()
    }];
    for member in searcher.inner.cache.fleet.members().iter().filter(|member| permissions.may_see(member.name())) {
        let spec = member.spec();
        let zone = (!spec.zone.is_empty()).then(|| spec.zone.clone());
        clusters.push(ClusterProperties {
            name: member.name().to_string(),
            region: spec.region.clone(),
            zones: spec.zones.iter().cloned().chain(zone).collect(),
            provider: spec.provider.clone(),
            labels: member.labels().cloned().unwrap_or_default(),
            stale: stale(member.name()),
        });
    }
    clusters
}

/// One entry for each cluster that the caller may see and whose results are incomplete.
pub(crate) fn list_skipped(searcher: &Searcher, permissions: &CallerPermissions) -> Vec<SkippedCluster> {
    let summaries = summarize_collections(searcher);
    let now = (searcher.inner.now_ms)();
    let mut skipped = Vec::new();
    let members = searcher.inner.cache.fleet.members();
    // The control plane's objects are searched as well if they are collected.
    let control_plane = ClusterName::control_plane();
    let collected_control_plane = summaries.contains_key(&control_plane).then_some(&control_plane);
    for name in members
        .iter()
        .map(|member| member.name())
        .chain(collected_control_plane)
        .filter(|name| permissions.may_see(name))
    {
        let Some(summary) = summaries.get(name) else {
            let reason = match members.iter().find(|member| member.name() == name).map(|member| member.connection()) {
                Some(Err(error)) => error.to_string(),
                _ => "none of its objects has been read yet".to_owned(),
            };
            skipped.push(SkippedCluster {
                cluster: name.clone(),
                reason,
                resources: 0,
                has_missing_objects: true,
                age_seconds: None,
            });
            continue;
        };
        if let Some(missing_reason) = permissions.missing_reason(name) {
            skipped.push(SkippedCluster {
                cluster: name.clone(),
                reason: format!("its RBAC objects are not in the cache, and {missing_reason}"),
                resources: summary.resources,
                has_missing_objects: true,
                age_seconds: None,
            });
        } else if summary.outdated > 0 {
            let stale_reason = summary.stale_reason.clone();
            skipped.push(SkippedCluster {
                cluster: name.clone(),
                reason: stale_reason.unwrap_or_else(|| "its first list is in progress".to_owned()),
                resources: summary.outdated,
                has_missing_objects: summary.has_incomplete_collection,
                age_seconds: summary.last_contact_ms.map(|at| (now - at) / 1000),
            });
        } else if searcher.inner.cache.discovery.is_undiscovered(name) {
            // RBAC objects are collected before the other resources are discovered.
            skipped.push(SkippedCluster {
                cluster: name.clone(),
                reason: "its resources are being discovered".to_owned(),
                resources: 0,
                has_missing_objects: true,
                age_seconds: None,
            });
        }
    }
    skipped
}
