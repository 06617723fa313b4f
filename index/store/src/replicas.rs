//! Replicas as the shared database knows them: who is alive, who holds which cluster, and which interests they declare.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Clusters, Namespaces};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use tokio::time::Instant;

/// Time after its last heartbeat at which a replica counts as dead.
pub const LEASE: Duration = Duration::from_secs(5);

/// Counts the claims on a cluster; grows with each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Of a process alone with its store: nobody else could write, so there is nothing to check.
    pub const ALONE: Self = Self(0);
}

/// State of all replicas and claims at a heartbeat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    pub live: BTreeSet<String>,
    /// Holder and epoch of every cluster that was ever claimed.
    pub claims: BTreeMap<ClusterName, (Option<String>, Epoch)>,
    /// Clusters of which something is stored.
    pub stored: BTreeSet<ClusterName>,
    /// When it was asked for: it may lack what happened since.
    pub asked: Option<Instant>,
}

impl View {
    /// Whether a living replica collects the cluster.
    pub fn is_led(&self, cluster: &ClusterName) -> bool {
        self.claims
            .get(cluster)
            .and_then(|(holder, _)| holder.as_ref())
            .is_some_and(|holder| self.live.contains(holder))
    }
}

/// Interest of a replica: clusters, resource and namespaces.
pub type Wish = (Clusters, Gvr, Namespaces);
