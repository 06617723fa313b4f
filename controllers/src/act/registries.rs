//! ResourceRegistries as interests: what a registry names is collected from its clusters for as long as it exists.
//!
//! Reads registries through the control plane and members' discovery through the cache; writes nothing but interests.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_api::search::ResourceRegistry;
use crowsnest_fleet::Fleet;
use crowsnest_fleet::interest::{Clusters, Interest, InterestGuard, Namespaces, Why};
use crowsnest_index::Index;
use futures::StreamExt;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio_util::sync::CancellationToken;

use crate::plan::selector::cluster_matches;

type Held = BTreeMap<(String, Gvr), (Interest, InterestGuard)>;

/// Follows registries, members and what members serve until stopped.
pub async fn run(fleet: Fleet, index: Index, stop: CancellationToken) {
    let registries: Api<ResourceRegistry> = Api::all(fleet.control_plane());
    let mut events = std::pin::pin!(watcher(registries, watcher::Config::default()).default_backoff());
    let mut members = fleet.changes();
    let mut served = index.states_version();
    let mut known: BTreeMap<String, ResourceRegistry> = BTreeMap::new();
    let mut relisted: Option<BTreeMap<String, ResourceRegistry>> = None;
    let mut held = Held::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => match event {
                None => return,
                Some(Err(error)) => tracing::debug!(%error, "watching ResourceRegistries"),
                Some(Ok(event)) => follow(event, &mut known, &mut relisted),
            },
            change = members.next() => if change.is_none() { return },
            changed = served.changed() => if changed.is_err() { return },
        }
        let wanted = wanted(&known, &fleet, &index);
        held.retain(|key, (interest, _)| wanted.get(key) == Some(interest));
        for (key, interest) in wanted {
            held.entry(key).or_insert_with(|| (interest.clone(), fleet.interests().declare(interest)));
        }
    }
}

fn follow(
    event: watcher::Event<ResourceRegistry>,
    known: &mut BTreeMap<String, ResourceRegistry>,
    relisted: &mut Option<BTreeMap<String, ResourceRegistry>>,
) {
    let name = |registry: &ResourceRegistry| registry.metadata.name.clone().unwrap_or_default();
    match event {
        watcher::Event::Init => *relisted = Some(BTreeMap::new()),
        watcher::Event::InitApply(registry) => {
            relisted.get_or_insert_default().insert(name(&registry), registry);
        }
        watcher::Event::InitDone => *known = relisted.take().unwrap_or_default(),
        watcher::Event::Apply(registry) => {
            known.insert(name(&registry), registry);
        }
        watcher::Event::Delete(registry) => {
            known.remove(&name(&registry));
        }
    }
}

/// One interest per registry and resource. A kind that no chosen member serves (yet) wants nothing.
fn wanted(
    registries: &BTreeMap<String, ResourceRegistry>,
    fleet: &Fleet,
    index: &Index,
) -> BTreeMap<(String, Gvr), Interest> {
    let mut wanted: BTreeMap<(String, Gvr), Interest> = BTreeMap::new();
    for (name, registry) in registries {
        let affinity = &registry.spec.target_cluster;
        let chosen: BTreeSet<ClusterName> = fleet
            .members()
            .iter()
            .filter(|member| cluster_matches(member.cluster(), affinity))
            .map(|member| member.name().clone())
            .collect();
        for selector in &registry.spec.resource_selectors {
            let Some(gvr) = resource(&chosen, index, &selector.api_version, &selector.kind) else { continue };
            let namespaces = match selector.namespace.as_str() {
                "" => Namespaces::All,
                one => Namespaces::Names(BTreeSet::from([one.to_owned()])),
            };
            let entry = wanted.entry((name.clone(), gvr.clone())).or_insert_with(|| Interest {
                clusters: Clusters::Names(chosen.clone()),
                resource: gvr,
                namespaces: namespaces.clone(),
                why: Why::ResourceRegistry(name.clone()),
            });
            let before = std::mem::replace(&mut entry.namespaces, Namespaces::All);
            entry.namespaces = before.union(&namespaces);
        }
    }
    wanted
}

fn resource(clusters: &BTreeSet<ClusterName>, index: &Index, api_version: &str, kind: &str) -> Option<Gvr> {
    clusters.iter().filter_map(|cluster| index.served(cluster)).find_map(|served| {
        let found = served.resources.iter().find(|r| r.kind == kind && r.gvr.api_version() == api_version);
        found.map(|r| r.gvr.clone())
    })
}
