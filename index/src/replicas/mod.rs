//! Replicas: several processes with one Postgres, of which each cluster is collected by exactly one.
//!
//! ```text
//!   keeper ── beats, claims ──▶ replicas, claims ──▶ Claims ──▶ supervisor: collectors of what is held
//!   writer ── changes, checked against the claim ──▶ records + versions ── NOTIFY ──▶ follower ──▶ tail, text index
//!   interests ── what one wants, whoever collects it does
//!   states ── own troubles, others' positions ◀──▶ collections
//! ```
//!
//! - **Who collects what** is a pure plan over who is alive ([`plan`]): rendezvous hashing, so a replica that comes or goes
//!   moves only its own share. A claim carries an epoch that grows with every claim and is checked in each writing
//!   transaction: whoever lost a claim while it was stopped or cut off writes nothing more.
//! - **Time.** Others take a cluster over once the lease has run out by the database's clock ([`LEASE`]). A replica that
//!   gets no answer stops by its own clock before that ([`STOP_AFTER`]).
//! - **An index outside of the processes** is written by one of them ([`election`]).
//! - **Readers** of every replica follow the whole log into their own tail and text index, whoever wrote it.
//!
//! A process alone with its SQLite file has [`Claims::everything`] and none of these tasks.

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

/// Without an answer for so long a replica stops collecting. The rest of the lease is for an answer under way.
pub(crate) const STOP_AFTER: Duration = Duration::from_secs(3);
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// A claim this replica holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claim {
    pub epoch: Epoch,
    /// Scopes of what is stored of the cluster already.
    pub scopes: HashMap<CollectionKey, String>,
}

/// What this process collects now.
#[derive(Debug, Clone)]
enum Held {
    Everything,
    Some(Arc<BTreeMap<ClusterName, Claim>>),
}

/// Written by the keeper, and by the writer when it fails; read by the supervisor and the writer.
#[derive(Debug)]
pub(crate) struct Claims {
    held: watch::Sender<Held>,
    /// The writer has told changes that do not follow the tail's last: somebody else's come first.
    pub behind: Notify,
    /// Held while the positions of clusters are set together with whose they are: what was read of another replica before must not
    /// come in between.
    taking: Mutex<()>,
}

impl Claims {
    pub fn everything() -> Self {
        Self::holding(Held::Everything)
    }

    /// For a replica that has claimed nothing yet.
    pub fn none() -> Self {
        Self::holding(Held::Some(Arc::default()))
    }

    fn holding(held: Held) -> Self {
        Self { held: watch::Sender::new(held), behind: Notify::new(), taking: Mutex::new(()) }
    }

    /// Under which epoch this process may collect a cluster; None: it may not.
    pub fn epoch_of(&self, cluster: &ClusterName) -> Option<Epoch> {
        match &*self.held.borrow() {
            Held::Everything => Some(Epoch::ALONE),
            Held::Some(claims) => claims.get(cluster).map(|claim| claim.epoch),
        }
    }

    pub fn holds(&self, cluster: &ClusterName, epoch: Epoch) -> bool {
        self.epoch_of(cluster) == Some(epoch)
    }

    /// The claims held; none where there is nothing to claim.
    pub fn all(&self) -> Arc<BTreeMap<ClusterName, Claim>> {
        match &*self.held.borrow() {
            Held::Everything => Arc::default(),
            Held::Some(claims) => Arc::clone(claims),
        }
    }

    /// Wakes whenever claims come or go.
    pub fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.held.subscribe()
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
        self.held.send_modify(|held| {
            if let Held::Some(claims) = held {
                change(Arc::make_mut(claims));
            }
        });
    }

    /// Nobody knows what was written: collect nothing until claimed again, which reads the positions anew. A process
    /// alone has no such way back, and the error is final (invariant I6).
    pub fn give_up(&self, error: Error) -> Result<(), Error> {
        if matches!(&*self.held.borrow(), Held::Everything) {
            return Err(error);
        }
        if !self.all().is_empty() {
            tracing::warn!(error = error.chain(), "this replica gives up its clusters until it can claim them again");
            self.change(BTreeMap::clear);
        }
        Ok(())
    }
}
