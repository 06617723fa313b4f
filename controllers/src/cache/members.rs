//! State of members from the collectors of the cache.

use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::CollectionKey;
use crowsnest_members::ApiResources;
use tokio::sync::watch;

use super::Cache;
use crowsnest_plan::health::Watches;

impl Cache {
    /// APIs that a cluster serves, if the cache is notified of their changes, that is if it collects the cluster's
    /// CustomResourceDefinitions.
    pub fn served(&self, cluster: &ClusterName) -> Option<Arc<ApiResources>> {
        let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let state = self.inner.index.state(&CollectionKey::new(cluster.clone(), definitions));
        state.filter(|state| state.is_fresh()).and_then(|_| self.inner.index.served(cluster))
    }

    /// Version of the served APIs of all clusters.
    pub fn served_version(&self) -> watch::Receiver<u64> {
        self.inner.index.served_version()
    }

    /// State of all watches of a cluster.
    pub fn watches(&self, cluster: &ClusterName) -> Watches {
        let mut watches = Watches::default();
        self.inner.index.states_of(cluster, |state| {
            watches.all += 1;
            watches.heard_at = watches.heard_at.max(state.heard_at);
            if let Some(trouble) = &state.trouble {
                watches.interrupted += 1;
                if watches.why.is_empty() {
                    watches.why.clone_from(trouble);
                }
            }
        });
        watches
    }
}
