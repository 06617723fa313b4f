//! Replicas in the shared database: live replicas, the holders of clusters, and declared interests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Clusters, Namespaces};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use tokio::time::Instant;

/// Time after its last heartbeat at which a replica counts as dead.
pub const LEASE_DURATION: Duration = Duration::from_secs(5);

/// Incremented with each claim on a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Epoch of a process with its own store, which needs no check.
    pub const UNSHARED: Self = Self(0);
}

/// Replicas and claims at a heartbeat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplicaView {
    pub live: BTreeSet<String>,
    /// Holder and epoch of every cluster that was ever claimed.
    pub claims: BTreeMap<ClusterName, (Option<String>, Epoch)>,
    /// Clusters with stored data.
    pub stored: BTreeSet<ClusterName>,
    /// Start of the query; later changes may be missing.
    pub requested_at: Option<Instant>,
}

impl ReplicaView {
    /// True if a live replica collects the cluster.
    pub fn is_collected(&self, cluster: &ClusterName) -> bool {
        self.claims
            .get(cluster)
            .and_then(|(holder, _)| holder.as_ref())
            .is_some_and(|holder| self.live.contains(holder))
    }
}

/// Interest of a replica: clusters, resource and namespaces.
pub type ReplicaInterest = (Clusters, Gvr, Namespaces);
