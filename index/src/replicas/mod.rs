//! Replicas: several processes that share one Postgres database, in which each cluster is collected by exactly one of them.
//!
//! ```text
//!   keeper ── heartbeats, claims ──▶ replicas, claims ──▶ Claims ──▶ supervisor: collectors of the claimed clusters
//!   writer ── changes, checked against the claim ──▶ records + versions ── NOTIFY ──▶ follower ──▶ tail, text index
//!   interests ── shared by all replicas, served by the collecting one
//!   states ── own errors, others' positions ◀──▶ collections
//! ```
//!
//! - **Assignment** of clusters is a pure function of the live replicas ([`plan`]): rendezvous hashing, so that a replica that
//!   joins or leaves moves only its own share. A claim has an epoch that grows with every claim and is checked in each write
//!   transaction: a replica that lost a claim while it was suspended or disconnected can no longer write.
//! - **Time.** Other replicas take a cluster over once its lease ([`crowsnest_store::LEASE_DURATION`]) has expired by the
//!   database's clock. A replica that gets no response stops before that by its own clock ([`STOP_AFTER`]).
//! - **An external index** is written by one of the replicas ([`election`]).
//! - **Readers** of every replica follow the complete change log into their own tail and text index.
//!
//! A single process with its SQLite file has [`Claims::everything`] and none of these tasks.

pub(crate) mod election;
pub(crate) mod follower;
pub(crate) mod interests;
pub(crate) mod keeper;
pub(crate) mod plan;
pub(crate) mod states;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::{CollectionKey, Epoch, Error};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Time without a response after which a replica stops collecting. The rest of the lease covers responses in transit.
pub(crate) const STOP_AFTER: Duration = Duration::from_secs(3);
const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// A claim of this replica.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    pub epoch: Epoch,
    /// Scopes of the cluster's stored collections.
    pub scopes: HashMap<CollectionKey, String>,
}

/// The clusters that this process may collect.
#[derive(Debug, Clone)]
enum LocalClaims {
    Everything,
    Some(Arc<BTreeMap<ClusterName, Claim>>),
}

/// The claims of this process. Updated by the keeper, and by the writer when it fails; read by the supervisor and the writer.
#[derive(Debug)]
pub(crate) struct Claims {
    local: watch::Sender<LocalClaims>,
    /// Notified when the writer could not publish its changes because earlier ones of another replica are missing.
    pub missing_changes: Notify,
    /// Locked while claims and positions of clusters are updated together, so that a state of another replica read before
    /// cannot overwrite them.
    update_lock: Mutex<()>,
}

impl Claims {
    pub fn everything() -> Self {
        Self::new(LocalClaims::Everything)
    }

    /// Claims of a replica that has not claimed a cluster yet.
    pub fn none() -> Self {
        Self::new(LocalClaims::Some(Arc::default()))
    }

    fn new(local: LocalClaims) -> Self {
        Self { local: watch::Sender::new(local), missing_changes: Notify::new(), update_lock: Mutex::new(()) }
    }

    /// Epoch under which this process may collect a cluster; None: it must not.
    pub fn epoch_of(&self, cluster: &ClusterName) -> Option<Epoch> {
        match &*self.local.borrow() {
            LocalClaims::Everything => Some(Epoch::UNSHARED),
            LocalClaims::Some(claims) => claims.get(cluster).map(|claim| claim.epoch),
        }
    }

    pub fn has(&self, cluster: &ClusterName, epoch: Epoch) -> bool {
        self.epoch_of(cluster) == Some(epoch)
    }

    /// The claims of this process; empty for a single process, which has none.
    pub fn all(&self) -> Arc<BTreeMap<ClusterName, Claim>> {
        match &*self.local.borrow() {
            LocalClaims::Everything => Arc::default(),
            LocalClaims::Some(claims) => Arc::clone(claims),
        }
    }

    /// Notified when claims change.
    pub fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.local.subscribe()
    }

    fn add(&self, taken: BTreeMap<ClusterName, Claim>) {
        self.change(|claims| claims.extend(taken));
    }

    fn remove<'c>(&self, clusters: impl IntoIterator<Item = &'c ClusterName>) {
        let clusters: BTreeSet<&ClusterName> = clusters.into_iter().collect();
        if !clusters.is_empty() {
            self.change(|claims| claims.retain(|cluster, _| !clusters.contains(cluster)));
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<ClusterName, Claim>)) {
        self.local.send_modify(|local| {
            if let LocalClaims::Some(claims) = local {
                change(Arc::make_mut(claims));
            }
        });
    }

    /// Gives up all claims after a failed write with unknown outcome. Claiming them again reads the stored positions. A
    /// single process cannot recover in this way; the error is returned.
    pub fn give_up(&self, error: Error) -> Result<(), Error> {
        if matches!(&*self.local.borrow(), LocalClaims::Everything) {
            return Err(error);
        }
        if !self.all().is_empty() {
            tracing::warn!(error = error.chain(), "giving up all clusters until they can be claimed again");
            self.change(BTreeMap::clear);
        }
        Ok(())
    }
}
