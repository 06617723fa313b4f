//! State of members from the collectors of the cache.

use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::CollectionKey;
use crowsnest_members::ApiResources;
use tokio::sync::watch;

use super::Cache;
use crowsnest_plan::health::Watches;

impl Cache {
    /// APIs that a cluster serves. `None` unless the cache collects the cluster's CustomResourceDefinitions, which notify
    /// it of changes.
    pub fn served_apis(&self, cluster: &ClusterName) -> Option<Arc<ApiResources>> {
        let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let state = self.inner.global_cache.state(&CollectionKey::new(cluster.clone(), definitions));
        state.filter(|state| state.is_fresh()).and_then(|_| self.inner.global_cache.served_resources(cluster))
    }

    /// Version of the served APIs of all clusters.
    pub fn served_version(&self) -> watch::Receiver<u64> {
        self.inner.global_cache.served_version()
    }

    /// State of all watches of a cluster.
    pub fn watches(&self, cluster: &ClusterName) -> Watches {
        let mut watches = Watches::default();
        self.inner.global_cache.for_each_state(cluster, |state| {
            watches.total += 1;
            watches.last_event_at = watches.last_event_at.max(state.last_contact_ms);
            if let Some(reason) = &state.stale_reason {
                watches.interrupted += 1;
                if watches.error.is_empty() {
                    watches.error.clone_from(reason);
                }
            }
        });
        watches
    }
}
