//! What a search must say about the clusters: their facts for planning, and which of them the answer misses.

use crate::Searcher;
use crate::authorization::CallerRights;
use crate::plan::ClusterFacts;
use crowsnest_apimachinery::names::ClusterName;
use serde::Serialize;
use std::collections::BTreeMap;

/// A cluster whose objects an answer misses or shows as they were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub cluster: ClusterName,
    pub reason: String,
    /// Resources concerned.
    pub resources: usize,
    /// Some of its objects were never read; false: they are shown, as old as `age_seconds` says.
    pub missing: bool,
    /// Since the cluster was last heard of; None when never.
    pub age_seconds: Option<i64>,
}

/// How the collections of a cluster are followed.
#[derive(Default)]
struct Followed {
    resources: usize,
    /// Of those, not fresh.
    behind: usize,
    /// Of these, never read to the end.
    missing: bool,
    trouble: Option<String>,
    /// Of those that are not fresh, the oldest.
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
        let heard = Some(state.heard_at).filter(|at| *at > 0);
        followed.heard_at = followed.heard_at.into_iter().chain(heard).min();
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
    for member in searcher.inner.fleet.members().iter().filter(|member| rights.knows_of(member.name())) {
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
    // The control plane's objects are searched too, where they are collected.
    let control_plane = ClusterName::control_plane();
    let own = followed.contains_key(&control_plane).then_some(&control_plane);
    for name in members.iter().map(|member| member.name()).chain(own).filter(|name| rights.knows_of(name)) {
        let Some(followed) = followed.get(name) else {
            let reason = match members.iter().find(|member| member.name() == name).map(|member| member.connection()) {
                Some(Err(error)) => error.to_string(),
                _ => "nothing of it has been read yet".to_owned(),
            };
            skipped.push(Skipped { cluster: name.clone(), reason, resources: 0, missing: true, age_seconds: None });
            continue;
        };
        if let Some(missing) = rights.missing(name) {
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: format!("its access rules are not in the cache, and {missing}"),
                resources: followed.resources,
                missing: true,
                age_seconds: None,
            });
        } else if followed.behind > 0 {
            let trouble = followed.trouble.clone();
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: trouble.unwrap_or_else(|| "its first list is being read".to_owned()),
                resources: followed.behind,
                missing: followed.missing,
                age_seconds: followed.heard_at.map(|at| (now - at) / 1000),
            });
        } else if searcher.inner.discovery.is_unexplored(name) {
            // Its rules are followed by themselves, before anybody knows what else it has.
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: "what it serves is being found out".to_owned(),
                resources: 0,
                missing: true,
                age_seconds: None,
            });
        }
    }
    skipped
}
