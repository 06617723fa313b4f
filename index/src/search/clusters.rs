//! What a search must say about the clusters: their facts for planning, and which of them the answer misses.

use super::plan::ClusterFacts;
use crate::rights::CallerRights;
use crate::{CollectionKey, CollectionState, Index};
use crowsnest_api::names::ClusterName;
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

fn by_cluster(index: &Index) -> BTreeMap<ClusterName, Vec<(CollectionKey, CollectionState)>> {
    let mut clusters: BTreeMap<ClusterName, Vec<_>> = BTreeMap::new();
    for (key, state) in index.states() {
        clusters.entry(key.cluster.clone()).or_default().push((key, state));
    }
    clusters
}

pub(super) fn facts(index: &Index) -> Vec<ClusterFacts> {
    let states = by_cluster(index);
    let stale = |name: &ClusterName| states.get(name).is_none_or(|all| all.iter().any(|(_, state)| !state.is_fresh()));
    let control_plane = ClusterName::control_plane();
    let mut facts =
        vec![ClusterFacts { name: control_plane.to_string(), stale: stale(&control_plane), ..ClusterFacts::default() }];
    for member in index.fleet().members() {
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

/// One line for each cluster that an answer misses something of.
pub(super) fn skipped(index: &Index, rights: &CallerRights) -> Vec<Skipped> {
    let states = by_cluster(index);
    let now = (index.options().clock)();
    let mut skipped = Vec::new();
    let members = index.fleet().members();
    // The control plane's objects are searched too, where they are collected.
    let control_plane = ClusterName::control_plane();
    let own = states.contains_key(&control_plane).then_some(&control_plane);
    for name in members.iter().map(|member| member.name()).chain(own) {
        let Some(all) = states.get(name) else {
            let reason = match members.iter().find(|member| member.name() == name).map(|member| member.connection()) {
                Some(Err(error)) => error.to_string(),
                _ => "nothing of it has been read yet".to_owned(),
            };
            skipped.push(Skipped { cluster: name.clone(), reason, resources: 0, missing: true, age_seconds: None });
            continue;
        };
        let behind: Vec<_> = all.iter().filter(|(_, state)| !state.is_fresh()).collect();
        let reason = behind.iter().find_map(|(_, state)| state.trouble.clone());
        let heard = behind.iter().map(|(_, state)| state.heard_at).filter(|at| *at > 0).min();
        if let Some(missing) = rights.missing(name) {
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: format!("its access rules are not in the cache, and {missing}"),
                resources: all.len(),
                missing: true,
                age_seconds: None,
            });
        } else if !behind.is_empty() {
            skipped.push(Skipped {
                cluster: name.clone(),
                reason: reason.unwrap_or_else(|| "its first list is being read".to_owned()),
                resources: behind.len(),
                missing: behind.iter().any(|(_, state)| !state.complete),
                age_seconds: heard.map(|at| (now - at) / 1000),
            });
        }
    }
    skipped
}
