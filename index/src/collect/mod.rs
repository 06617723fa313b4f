//! Collectors: one list and watch per cluster and resource, shared by all readers.
//!
//! The supervisor starts and stops collectors with interests and members. A member that is slow, unreachable or
//! inconsistent affects only its own records: they are kept, and the state of the collection contains the reason.

mod budget;
mod collector;
mod discovery;
mod discovery_expectations;
mod feed;
mod list;
mod list_permit;
mod pages;
mod stream;
mod supervisor;
pub mod versions;
mod watch;

pub(crate) use budget::{Budget, Share};
pub(crate) use supervisor::Supervisor;

use crate::replicas::Claims;
use crate::writer::WriterHandle;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::{ApiResource, ApiResources, Fleet};
use crowsnest_search::Discovery;
use crowsnest_search::plan::{GroupKind, KindsByName};
use crowsnest_store::CollectionStates;
use crowsnest_store::Store;
use crowsnest_store::codec::Codec;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::tail::Tail;
use crowsnest_store::{CacheOptions, CollectionKey};
use crowsnest_store::{Interests, Namespaces};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// State shared by all collectors.
pub(crate) struct Shared {
    pub fleet: Fleet,
    pub store: Arc<dyn Store>,
    pub codec: Arc<Codec>,
    pub writer: WriterHandle,
    pub tail: Arc<Tail>,
    pub states: Arc<CollectionStates>,
    /// Clusters that this process collects.
    pub claims: Arc<Claims>,
    pub metrics: Arc<Metrics>,
    pub options: CacheOptions,
    pub interests: Interests,
    pub now_ms: fn() -> i64,
    /// Limits the bytes in flight.
    pub budget: Budget,
    /// Limits concurrent lists.
    pub lists: Arc<Semaphore>,
    pub lists_per_cluster: Mutex<HashMap<ClusterName, Arc<Semaphore>>>,
    /// Clusters that do not support streamed initial lists.
    pub clusters_without_watch_list: Mutex<BTreeSet<ClusterName>>,
    /// Resources that each cluster serves, as last discovered.
    pub served: RwLock<BTreeMap<ClusterName, Arc<ApiResources>>>,
    /// Incremented when `served` changes.
    pub served_version: tokio::sync::watch::Sender<u64>,
    /// Names of the kinds of all clusters that can be cached, for queries.
    pub kinds: RwLock<Arc<KindsByName>>,
    /// Clusters whose interests are all declared, so that collections without interests may be dropped.
    pub declared_clusters: Mutex<BTreeSet<ClusterName>>,
}

impl Shared {
    pub fn cluster_lists(&self, cluster: &ClusterName) -> Arc<Semaphore> {
        let mut per_cluster = self.lists_per_cluster.lock();
        let permits = self.options.concurrent_lists_per_cluster.max(1);
        Arc::clone(per_cluster.entry(cluster.clone()).or_insert_with(|| Arc::new(Semaphore::new(permits))))
    }

    /// Records the discovered resources of a cluster, and the names of their kinds. Returns the recorded resources: the
    /// earlier ones if they are equal.
    pub fn publish_served(&self, cluster: &ClusterName, found: Arc<ApiResources>) -> Arc<ApiResources> {
        let mut served = self.served.write();
        if let Some(before) = served.get(cluster).filter(|before| Arc::ptr_eq(before, &found) || **before == found) {
            return Arc::clone(before);
        }
        served.insert(cluster.clone(), Arc::clone(&found));
        *self.kinds.write() = Arc::new(kinds_by_name(served.values().flat_map(|served| &served.resources)));
        drop(served);
        self.served_version.send_modify(|version| *version += 1);
        found
    }

    /// Kind and scope of a collection's objects, if discovered.
    pub fn kind_of(&self, key: &CollectionKey) -> Option<(String, bool)> {
        let served = self.served.read().get(&key.cluster).cloned()?;
        served.get(&key.resource).map(|resource| (resource.kind.clone(), resource.namespaced))
    }
}

/// Names of the kinds that can be cached. Others, such as those of metrics, share names with them but have no objects in the
/// cache.
fn kinds_by_name<'r>(resources: impl Iterator<Item = &'r ApiResource>) -> KindsByName {
    let mut kinds = KindsByName::new();
    for resource in resources.filter(|resource| resource.is_listable()) {
        let kind = GroupKind { group: resource.gvr.group.to_string(), kind: resource.kind.to_lowercase() };
        let names = [resource.gvr.resource.to_lowercase(), resource.singular.to_lowercase(), kind.kind.clone()];
        let short = resource.short_names.iter().map(|name| name.to_lowercase());
        for name in names.into_iter().chain(short).filter(|name| !name.is_empty()) {
            kinds.entry(name).or_default().insert(kind.clone());
        }
    }
    kinds
}

impl Discovery for Shared {
    fn kinds(&self) -> Arc<KindsByName> {
        Arc::clone(&self.kinds.read())
    }

    fn is_undiscovered(&self, cluster: &ClusterName) -> bool {
        self.claims.epoch_of(cluster).is_some() && !self.served.read().contains_key(cluster)
    }
}

/// The namespaces whose objects a collector requests and stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope(pub Namespaces);

impl Scope {
    /// The namespace in the path of requests, for a single one. For several, the entire resource is requested and
    /// filtered.
    pub fn path_namespace(&self) -> Option<&str> {
        match &self.0 {
            Namespaces::Names(names) if names.len() == 1 => names.iter().next().map(String::as_str),
            _ => None,
        }
    }

    /// Encoding in the store: empty for all namespaces.
    pub fn text(&self) -> String {
        match &self.0 {
            Namespaces::All => String::new(),
            Namespaces::Names(names) => names.iter().cloned().collect::<Vec<_>>().join(","),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use rstest::rstest;

    fn resource(group: &str, resource: &str, kind: &str, verbs: &[&str]) -> ApiResource {
        ApiResource {
            gvr: Gvr::new(group, "v1", resource),
            kind: kind.to_owned(),
            singular: String::new(),
            short_names: vec![format!("{resource}-short")],
            categories: Vec::new(),
            namespaced: true,
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            subresources: BTreeSet::new(),
            preferred: true,
        }
    }

    #[rstest]
    #[case::not_watchable("pods", &["pod"])]
    #[case::short_name("pods-short", &["pod"])]
    #[case::kind("podmetrics", &[])]
    #[case::two_groups("event", &["event", "event.events.k8s.io"])]
    #[case::not_listable("tokenreview", &[])]
    fn only_kinds_that_can_be_cached_have_names(#[case] name: &str, #[case] expected: &[&str]) {
        let all = ["get", "list", "watch"];
        let resources = [
            resource("", "pods", "Pod", &all),
            resource("metrics.k8s.io", "pods", "PodMetrics", &["get", "list"]),
            resource("", "events", "Event", &all),
            resource("events.k8s.io", "events", "Event", &all),
            resource("authentication.k8s.io", "tokenreviews", "TokenReview", &["create"]),
        ];
        let kinds = kinds_by_name(resources.iter());
        let found: Vec<String> = kinds.get(name).into_iter().flatten().map(GroupKind::qualified_name).collect();
        assert_eq!(found, expected);
    }
}
