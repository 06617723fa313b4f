//! REST mapper: the resource of a kind, per cluster. Runs discovery for an unknown kind, at most once per interval,
//! and also takes the resources that the cache has discovered. Clusters are queried independently, so that one that
//! does not respond does not delay others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::discovery::{DiscoveryState, rediscover};
use crowsnest_members::{ApiResources, Fleet};
use parking_lot::RwLock;
use tokio::time::{Instant, timeout};

use crate::Error;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::keyed_mutex::KeyedMutex;

/// Minimum interval between two discoveries of a cluster for unknown kinds.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of discovery in a member.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);

struct Entry {
    resources: Arc<ApiResources>,
    /// Result of the last discovery.
    discovered: Option<DiscoveryState>,
    refreshed_at: Instant,
    /// Resources last taken from the cache. `resources` may be from a later discovery.
    from_cache: Option<Arc<ApiResources>>,
}

/// The served resources of all clusters.
pub struct RestMapper {
    fleet: Fleet,
    entries: RwLock<HashMap<ClusterName, Entry>>,
    discovery_locks: KeyedMutex,
}

impl RestMapper {
    pub fn new(fleet: Fleet) -> Self {
        RestMapper { fleet, entries: RwLock::default(), discovery_locks: KeyedMutex::default() }
    }

    /// The resource of a kind, if it is known without discovery.
    pub fn find_cached(&self, cluster: &ClusterName, api_version: &str, kind: &str) -> Option<Resource> {
        let entries = self.entries.read();
        let resources = &entries.get(cluster)?.resources.resources;
        let found =
            resources.iter().find(|resource| resource.kind == kind && resource.gvr.api_version() == api_version)?;
        Some(Resource { gvr: found.gvr.clone(), kind: found.kind.clone(), namespaced: found.namespaced })
    }

    /// The resource of a kind. Runs discovery if it is not known.
    pub async fn find(&self, cluster: &ClusterName, api_version: &str, kind: &str) -> Result<Resource, Error> {
        if let Some(resource) = self.find_cached(cluster, api_version, kind) {
            return Ok(resource);
        }
        let _guard = self.discovery_locks.lock(cluster.as_str()).await;
        if let Some(resource) = self.find_cached(cluster, api_version, kind) {
            return Ok(resource);
        }
        let is_fresh =
            self.entries.read().get(cluster).is_some_and(|entry| entry.refreshed_at.elapsed() < RETRY_INTERVAL);
        if !is_fresh {
            self.refresh(cluster).await?;
        }
        self.find_cached(cluster, api_version, kind).ok_or_else(|| Error::UnknownKind {
            cluster: cluster.clone(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
    }

    /// Runs discovery in a cluster.
    pub async fn refresh(&self, cluster: &ClusterName) -> Result<Arc<ApiResources>, Error> {
        let client = self.fleet.client(cluster)?;
        let before = self.entries.read().get(cluster).and_then(|entry| entry.discovered.clone());
        let discovered = match timeout(DISCOVERY_TIMEOUT, rediscover(&client, before.as_ref())).await {
            Ok(discovered) => discovered?,
            Err(_) => {
                let seconds = DISCOVERY_TIMEOUT.as_secs();
                return Err(Error::DiscoveryTimeout { cluster: cluster.clone(), seconds });
            }
        };
        let resources = Arc::clone(&discovered.resources);
        let mut entries = self.entries.write();
        let from_cache = entries.remove(cluster).and_then(|entry| entry.from_cache);
        let entry = Entry {
            resources: Arc::clone(&resources),
            discovered: Some(discovered),
            refreshed_at: Instant::now(),
            from_cache,
        };
        entries.insert(cluster.clone(), entry);
        Ok(resources)
    }

    /// Replaces the resources of a cluster with those that the cache has discovered, unless they were taken before.
    pub fn update_from_cache(&self, cluster: &ClusterName, served: &Arc<ApiResources>) {
        let mut entries = self.entries.write();
        let is_unchanged =
            |entry: &Entry| entry.from_cache.as_ref().is_some_and(|from_cache| Arc::ptr_eq(from_cache, served));
        if !entries.get(cluster).is_some_and(is_unchanged) {
            let discovered = entries.remove(cluster).and_then(|entry| entry.discovered);
            let (resources, from_cache) = (Arc::clone(served), Some(Arc::clone(served)));
            entries.insert(cluster.clone(), Entry { resources, discovered, refreshed_at: Instant::now(), from_cache });
        }
    }

    pub fn forget(&self, cluster: &ClusterName) {
        self.entries.write().remove(cluster);
    }
}
