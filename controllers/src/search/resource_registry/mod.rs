//! Resource registry controller: collects the resources that ResourceRegistries select from their clusters.
//!
//! Reads registries from the control plane and served resources from the cache, and writes only interests.

mod resource_selection;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crowsnest_api::search::ResourceRegistry;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::GlobalCache;
use crowsnest_members::{ApiResources, Fleet};
use crowsnest_store::interest::{Interest, InterestGuard, Interests};
use futures::StreamExt;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::resource_selection::{Member, find_unresolved_kinds, select_resources};
pub use self::resource_selection::{RegisteredResource, RegistrationKey, UnresolvedKind};

type RegisteredInterests = BTreeMap<RegistrationKey, (Interest, InterestGuard)>;

/// State of reading the registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryProgress {
    /// True once all registries have been read and the interests in their resources are declared. Before that, the
    /// registered resources are unknown.
    pub declared: bool,
    pub health: Result<(), String>,
}

impl Default for RegistryProgress {
    fn default() -> Self {
        Self { declared: false, health: Err("ResourceRegistries have not been read yet".to_owned()) }
    }
}

/// The registries as last read, with their resources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registrations {
    pub registries: BTreeMap<String, ResourceRegistry>,
    pub resources: BTreeMap<RegistrationKey, RegisteredResource>,
    /// Selected kinds that no cluster is known to serve.
    pub unresolved: BTreeSet<UnresolvedKind>,
}

/// Channels on which the results are published.
pub struct Publishers {
    pub progress: watch::Sender<RegistryProgress>,
    /// `None` until all registries have been read and the kinds that the control plane serves are known.
    pub registrations: watch::Sender<Option<Arc<Registrations>>>,
}

/// Watches registries, members and served resources until `stop`.
pub async fn run(fleet: Fleet, cache: GlobalCache, publishers: Publishers, stop: CancellationToken) {
    let Publishers { progress, registrations } = publishers;
    let registries: Api<ResourceRegistry> = Api::all(fleet.control_plane());
    let mut events = std::pin::pin!(watcher(registries, watcher::Config::default()).default_backoff());
    let mut members = fleet.changes();
    let mut served = cache.served_version();
    let mut registry_cache = RegistryCache::default();
    let mut current_interests = RegisteredInterests::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => match event {
                None => return,
                Some(Err(error)) => {
                    tracing::debug!(%error, "the watch of ResourceRegistries failed");
                    registry_cache.record_failure(&error);
                }
                Some(Ok(event)) => registry_cache.apply_event(event),
            },
            change = members.next() => if change.is_none() { return },
            changed = served.changed() => if changed.is_err() { return },
        }
        let control_plane = cache.served_resources(&ClusterName::control_plane());
        if registry_cache.listed {
            let members = fleet.members();
            let members: Vec<(_, Option<Arc<ApiResources>>)> =
                members.iter().map(|member| (member.cluster(), cache.served_resources(member.name()))).collect();
            let members: Vec<Member<'_>> =
                members.iter().map(|(cluster, served)| Member { cluster, served: served.as_deref() }).collect();
            let resources = select_resources(&registry_cache.registries, &members, control_plane.as_deref());
            let interests = resources.iter().map(|(key, registered)| (key.clone(), registered.interest.clone()));
            current_interests = replace_interests(current_interests, interests.collect(), cache.interests());
            if control_plane.is_some() {
                let unresolved = find_unresolved_kinds(&registry_cache.registries, &members, control_plane.as_deref());
                let registries = registry_cache.registries.clone();
                let next = Some(Arc::new(Registrations { registries, resources, unresolved }));
                registrations.send_if_modified(|registrations| {
                    let changed = *registrations != next;
                    *registrations = next;
                    changed
                });
            }
        }
        let next = registry_cache.progress(control_plane.is_some());
        progress.send_if_modified(|progress| {
            // Once declared, it stays declared: deleting a registry removes its interests.
            let next = RegistryProgress { declared: progress.declared || next.declared, ..next };
            std::mem::replace(progress, next.clone()) != next
        });
    }
}

/// State of the watch of the registries.
#[derive(Default)]
struct RegistryCache {
    registries: BTreeMap<String, ResourceRegistry>,
    /// Registries received so far from a list in progress.
    relisted: Option<BTreeMap<String, ResourceRegistry>>,
    listed: bool,
    /// Error of the last list.
    list_error: Option<String>,
}

impl RegistryCache {
    fn apply_event(&mut self, event: watcher::Event<ResourceRegistry>) {
        let name = |registry: &ResourceRegistry| registry.metadata.name.clone().unwrap_or_default();
        match event {
            watcher::Event::Init => self.relisted = Some(BTreeMap::new()),
            watcher::Event::InitApply(registry) => {
                self.relisted.get_or_insert_default().insert(name(&registry), registry);
            }
            watcher::Event::InitDone => {
                self.registries = self.relisted.take().unwrap_or_default();
                (self.listed, self.list_error) = (true, None);
            }
            watcher::Event::Apply(registry) => {
                self.registries.insert(name(&registry), registry);
            }
            watcher::Event::Delete(registry) => {
                self.registries.remove(&name(&registry));
            }
        }
    }

    /// Records the failure of an initial list. Other failures are not reported, since the watcher retries.
    fn record_failure(&mut self, error: &watcher::Error) {
        if matches!(error, watcher::Error::InitialListFailed(_)) {
            self.list_error = Some(format!("cannot list ResourceRegistries: {error}"));
        }
    }

    /// State of reading the registries. They count as declared only after discovery of the control plane, because kinds
    /// are resolved with its result.
    fn progress(&self, has_discovered_kinds: bool) -> RegistryProgress {
        let health = match &self.list_error {
            Some(list_error) => Err(list_error.clone()),
            None if !self.listed => RegistryProgress::default().health,
            None if !has_discovered_kinds => Err("discovery of the control plane has not finished yet".to_owned()),
            None => Ok(()),
        };
        RegistryProgress { declared: self.listed && has_discovered_kinds, health }
    }
}

/// Declares the desired interests. New interests are declared before the replaced ones are dropped, so that readers
/// never find a resource unregistered in between.
fn replace_interests(
    mut current: RegisteredInterests,
    desired: BTreeMap<RegistrationKey, Interest>,
    interests: &Interests,
) -> RegisteredInterests {
    let mut replaced = Vec::new();
    let next = desired.into_iter().map(|(key, interest)| match current.remove(&key) {
        Some(same) if same.0 == interest => (key, same),
        other => {
            replaced.extend(other);
            (key, (interest.clone(), interests.declare(interest)))
        }
    });
    let next = next.collect();
    drop((replaced, current));
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use crowsnest_store::interest::{Clusters, InterestReason, Namespaces};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn interest_in(cluster: &str) -> BTreeMap<RegistrationKey, Interest> {
        let resource = Gvr::new("", "v1", "configmaps");
        let interest = Interest {
            clusters: Clusters::Names(BTreeSet::from([ClusterName::parse(cluster).unwrap()])),
            resource: resource.clone(),
            namespaces: Namespaces::All,
            reason: InterestReason::ResourceRegistry("r".to_owned()),
        };
        BTreeMap::from([(("r".to_owned(), resource), interest)])
    }

    #[test]
    fn resources_stay_registered_while_their_clusters_change() {
        let interests = Interests::default();
        let mut current = replace_interests(RegisteredInterests::new(), interest_in("m0"), &interests);
        let (reader, done) = (interests.clone(), Arc::new(AtomicBool::new(false)));
        let until = Arc::clone(&done);
        let reading = std::thread::spawn(move || {
            let mut is_registered = true;
            while !until.load(Ordering::Relaxed) {
                is_registered &= !reader.all().is_empty();
            }
            is_registered
        });
        for n in 1..2000 {
            current = replace_interests(current, interest_in(&format!("m{n}")), &interests);
            assert_eq!(interests.all().len(), 1);
        }
        done.store(true, Ordering::Relaxed);
        assert!(reading.join().unwrap(), "nothing was registered at some point");
        let before = *interests.version().borrow();
        current = replace_interests(current, interest_in("m1999"), &interests);
        assert_eq!(*interests.version().borrow(), before, "nothing changed");
        drop(replace_interests(current, BTreeMap::new(), &interests));
        assert!(interests.all().is_empty());
    }

    #[test]
    fn nothing_is_declared_before_registries_are_listed() {
        let mut cache = RegistryCache::default();
        assert_eq!(cache.progress(true), RegistryProgress::default());
        cache.apply_event(watcher::Event::Init);
        assert!(!cache.progress(true).declared);
        cache.apply_event(watcher::Event::InitDone);
        assert!(!cache.progress(false).declared);
        assert_eq!(cache.progress(true), RegistryProgress { declared: true, health: Ok(()) });
    }
}
