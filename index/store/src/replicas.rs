//! Types for replicas that share a database: leases, claims on clusters, and interests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Clusters, Namespaces};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use tokio::time::Instant;

/// Time after its last heartbeat at which a replica counts as dead.
pub const LEASE_DURATION: Duration = Duration::from_secs(5);

/// Number of a claim on a cluster, incremented by each claim. Writes under an older epoch are rejected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Epoch of a process with its own store, whose writes need no claim.
    pub const UNSHARED: Self = Self(0);
}

/// Replicas and claims as read with a heartbeat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplicaView {
    pub live: BTreeSet<String>,
    /// Holder and epoch of every cluster that was ever claimed.
    pub claims: BTreeMap<ClusterName, (Option<String>, Epoch)>,
    /// Clusters with stored data.
    pub stored: BTreeSet<ClusterName>,
    /// Time at which the query was sent; later changes may be missing.
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

/// Interest that a replica publishes to the others: clusters, resource and namespaces.
pub type ReplicaInterest = (Clusters, Gvr, Namespaces);
