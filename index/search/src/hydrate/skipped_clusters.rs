//! Facts about clusters for planning, and clusters with missing or outdated results.

use crate::Searcher;
use crate::authorization::CallerRights;
use crate::plan::ClusterFacts;
use crowsnest_apimachinery::names::ClusterName;
use serde::Serialize;
use std::collections::BTreeMap;

/// A cluster whose objects are missing from an answer or outdated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub cluster: ClusterName,
    pub reason: String,
    /// Number of affected resources.
    pub resources: usize,
    /// True if some of its objects were never read; false: they are shown with the age `age_seconds`.
    pub missing: bool,
    /// Seconds since the last contact with the cluster; None: never.
    pub age_seconds: Option<i64>,
}

/// State of a cluster's collections.
#[derive(Default)]
struct Followed {
    resources: usize,
    /// Number of collections that are not current.
    behind: usize,
    /// Some of them have never been listed completely.
    missing: bool,
    trouble: Option<String>,
    /// Oldest last contact of the collections that are not current.
    heard_at: Option<i64>,
}

fn followed(searcher: &Searcher) -> BTreeMap<ClusterName, Followed> {
    let mut clusters: BTreeMap<ClusterName, Followed> = BTreeMap::new();
    searcher.inner.states.each(|key, state| {
        if !clusters.contains_key(&key.cluster) {
            clusters.insert(key.cluster.clone(), Followed::default());
        }
        let Some(followed) = clusters.get_mut(&key.cluster) else { return };
        followed.resources += 1;
        if state.is_fresh() {
            return;
        }
        followed.behind += 1;
        followed.missing |= !state.complete;
        if followed.trouble.is_none() {
            followed.trouble.clone_from(&state.trouble);
        }
        let heard_at = Some(state.heard_at).filter(|at| *at > 0);
        followed.heard_at = followed.heard_at.into_iter().chain(heard_at).min();
    });
    clusters
}

/// Facts about the clusters that a caller may see. Queries must not reveal other clusters.
pub(crate) fn facts(searcher: &Searcher, rights: &CallerRights) -> Vec<ClusterFacts> {
    let followed = followed(searcher);
    let stale = |name: &ClusterName| followed.get(name).is_none_or(|followed| followed.behind > 0);
    let control_plane = ClusterName::control_plane();
    let mut facts =
        vec![ClusterFacts { name: control_plane.to_string(), stale: stale(&control_plane), ..ClusterFacts::default() }];
    for member in searcher.inner.fleet.members().iter().filter(|member| rights.may_see(member.name())) {
        let spec = member.spec();
        let zone = (!spec.zone.is_empty()).then(|| spec.zone.clone());
        facts.push(ClusterFacts {
            name: member.name().to_string(),
            region: spec.region.clone(),
            zones: spec.zones.iter().cloned().chain(zone).collect(),
            provider: spec.provider.clone(),
            labels: member.labels().cloned().unwrap_or_default(),
            stale: stale(member.name()),
        });
    }
    facts
}

/// One entry for each cluster that the caller may see and whose results are incomplete.
pub(crate) fn skipped(searcher: &Searcher, rights: &CallerRights) -> Vec<Skipped> {
    let followed = followed(searcher);
    let now = (searcher.inner.now_ms)();
    let mut skipped = Vec::new();
    let members = searcher.inner.fleet.members();
    // The control plane's objects are searched as well if they are collected.
    let control_plane = ClusterName::control_plane();
    let own = followed.contains_key(&control_plane).then_some(&control_plane);
    for name in members.iter().map(|member| member.name()).chain(own).filter(|name| rights.may_see(name)) {
        let Some(followed) = followed.get(name) else {
            let reason = match members.iter().find(|member| member.name() == name).map(|member| member.connection()) {
                Some(Err(error)) => error.to_string(),
                _ => "none of its objects has been read yet".to_owned(),
            };
            skipped.push(Skipped { cluster: name.clone(), reason, resources: 0, missing: true, age_seconds: None });
            continue;
        };
        if let Some(missing) = rights.missing(name) {
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: format!("its RBAC objects are not in the cache, and {missing}"),
                resources: followed.resources,
                missing: true,
                age_seconds: None,
            });
        } else if followed.behind > 0 {
            let trouble = followed.trouble.clone();
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: trouble.unwrap_or_else(|| "its first list is in progress".to_owned()),
                resources: followed.behind,
                missing: followed.missing,
                age_seconds: followed.heard_at.map(|at| (now - at) / 1000),
            });
        } else if searcher.inner.discovery.is_unexplored(name) {
            // RBAC objects are collected before the other resources are discovered.
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: "its resources are being discovered".to_owned(),
                resources: 0,
                missing: true,
                age_seconds: None,
            });
        }
    }
    skipped
}
