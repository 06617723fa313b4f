//! The durable half of the cache: records, what they were before, and positions, changed together in one transaction (invariant I3).
//!
//! Written by the one writer task; read by lists, the text index and whoever asks. One trait and one behaviour suite for
//! both backends, [`sqlite`] and [`postgres`]; what they share besides is here: which rows a batch changes (`decide`), how
//! a record lies in a row (`rows`), how rows become objects again (`catalog`, `reading`).

mod catalog;
mod check_report;
pub mod codec;
mod decide;
pub mod error;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod format;
mod history;
pub mod ingest;
pub mod interest;
mod labels;
pub mod metrics;
mod migration;
mod notes;
pub mod options;
pub mod postgres;
#[cfg(test)]
#[path = "../../tests/support/postgres.rs"]
mod postgres_server;
mod reading;
pub mod record;
pub mod replicas;
mod rows;
pub mod sqlite;
mod states;
#[cfg(test)]
mod suite;
pub mod tail;
mod together;

pub use check_report::CheckReport;
pub use error::{Error, Gone};
pub use interest::{Clusters, Interest, InterestGuard, Interests, Namespaces, Why};
pub use options::{DatabaseUrl, History, IndexOptions, OpenSearchOptions, Patience, PostgresOptions, StoreOptions};
pub use record::metadata_in;
pub use record::{
    CacheId, Change, CollectionKey, CollectionState, Happened, Object, Owner, Record, RecordKey, Seq, Version,
};
pub use replicas::{Epoch, LEASE, View, Wish};
pub use states::States;
pub use tail::{Follower, Topic};

use crate::ingest::Draft;
use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::selector::Selector;
use std::collections::BTreeSet;
use std::time::Duration;

/// Between two questions to a database that is away.
pub const OUTAGE_RETRY: Duration = Duration::from_secs(1);

/// A body packed for the disk.
#[derive(Debug, Clone)]
pub struct Packed {
    /// 0: packed without a dictionary.
    pub dictionary: u32,
    pub bytes: Vec<u8>,
}

/// One thing that happened in a collection.
#[derive(Debug, Clone)]
pub enum Step {
    Put(Box<Draft>, Packed),
    Delete { namespace: String, name: String, resource_version: String },
}

impl Step {
    pub fn key(&self) -> (&str, &str) {
        match self {
            Self::Put(draft, _) => (&draft.namespace, &draft.name),
            Self::Delete { namespace, name, .. } => (namespace, name),
        }
    }
}

/// How far the member was followed once the steps are in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    pub resource_version: Option<String>,
    /// A list ended: what was not in it is deleted by the steps.
    pub complete: bool,
    /// Kind and whether it is namespaced, when known.
    pub kind: Option<(String, bool)>,
    /// Namespaces asked for, as the collector's scope is written. A new scope makes the collection incomplete.
    pub scope: Option<String>,
}

/// A position that moved although nothing changed.
#[derive(Debug, Clone)]
pub struct Position {
    pub collection: CollectionKey,
    pub epoch: Epoch,
    pub version: String,
    /// Unix milliseconds.
    pub heard_at: i64,
}

/// Changes of one collection, applied together.
#[derive(Debug, Clone)]
pub struct Batch {
    pub collection: CollectionKey,
    /// The claim it is written under: a store that replicas share refuses it once that has moved.
    pub epoch: Epoch,
    pub steps: Vec<Step>,
    pub progress: Progress,
}

/// Which records, in key order.
#[derive(Debug, Clone)]
pub struct Scan {
    pub collection: CollectionKey,
    /// None: all of them.
    pub namespaces: Option<BTreeSet<String>>,
    /// Start after this (namespace, name).
    pub after: Option<(String, String)>,
    /// Labels the records must have, as far as the database can tell: `keep` tells exactly.
    pub labels: Option<Selector>,
}

/// What the store remembers of a collection besides its state.
#[derive(Debug, Clone)]
pub struct StoredCollection {
    pub key: CollectionKey,
    pub state: CollectionState,
    pub scope: String,
}

/// A change as the text index catches up with it.
#[derive(Debug, Clone)]
pub enum Replayed {
    Put(Object),
    Deleted { id: u64, seq: Seq },
}

impl Replayed {
    pub fn seq(&self) -> Seq {
        match self {
            Self::Put(object) => object.record.seq,
            Self::Deleted { seq, .. } => *seq,
        }
    }
}

/// Which old versions.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Ended before this change.
    pub before: Seq,
    /// Ended at this moment or later, Unix milliseconds.
    pub from: i64,
    /// Began before this moment.
    pub until: i64,
    /// Only what was deleted.
    pub deleted: bool,
}

impl Span {
    /// Everything that was deleted and is kept.
    pub const DELETED: Self = Self { before: Seq(u64::MAX), from: i64::MIN, until: i64::MAX, deleted: true };
}

/// Old versions that need not be read: of collections of which nothing is wanted, and of others what is not in certain
/// namespaces. Made by [`Store::narrowing`]; a collection it does not know is not left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Narrowing {
    nothing: Vec<i64>,
    limited: Vec<i64>,
    namespaces: Vec<String>,
}

impl Narrowing {
    /// Everything is to be read.
    pub const NONE: Self = Self { nothing: Vec::new(), limited: Vec::new(), namespaces: Vec::new() };

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// The namespaces of a collection that are wanted; None: all.
pub type Wanted<'w> = dyn FnMut(&CollectionKey) -> Option<BTreeSet<String>> + 'w;

/// How much is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreSize {
    pub records: u64,
    /// What records were before, and how much of it is deletions.
    pub versions: u64,
    pub deletions: u64,
    pub version_bytes: u64,
    /// Of all that is on the disk.
    pub bytes: u64,
    /// Of them, what nothing lies in.
    pub free_bytes: u64,
}

/// Which records a reader wants.
pub type Keep<'k> = dyn for<'r> Fn(&'r Record) -> Result<bool, Error> + Sync + 'k;

/// Whether objects are read with their manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manifests {
    Read,
    /// They are empty.
    Left,
}

/// A backend.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Applies the batches in one transaction and returns what really changed, in order of seq. An object whose uid and
    /// resourceVersion are already there is no change.
    async fn apply(&self, batches: &[Batch], now_ms: i64) -> Result<Vec<Change>, Error>;

    /// Stores positions, in one transaction. A collection that is not collected has none.
    async fn advance(&self, positions: &[Position]) -> Result<(), Error>;

    /// Deletes up to `limit` records of a collection, as changes; forgets the collection once it is empty.
    async fn drop_collection(
        &self,
        key: &CollectionKey,
        epoch: Epoch,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error>;

    async fn get(&self, key: &RecordKey) -> Result<Option<Object>, Error>;

    /// Up to `limit` records after `scan.after` that `keep` accepts, without bodies, and where the scan stopped: None
    /// at its end. A call takes a bounded number of records from the database, so it may return few or none and still not
    /// be at the end.
    async fn records(
        &self,
        scan: &Scan,
        keep: &Keep<'_>,
        limit: usize,
    ) -> Result<(Vec<Record>, Option<(String, String)>), Error>;

    /// Records of a collection that have a label, in key order, found without a scan. Only labels chosen in
    /// [`crate::IndexOptions::chosen_labels`] can be asked for. None: whatever its value.
    async fn labelled(&self, key: &CollectionKey, label: &str, value: Option<&str>) -> Result<Vec<Record>, Error>;

    /// Adds the bodies; records deleted meanwhile are left out.
    async fn bodies(&self, records: Vec<Record>) -> Result<Vec<Object>, Error>;

    /// By id, in no particular order; missing ones are left out.
    async fn by_ids(&self, ids: &[u64], manifests: Manifests) -> Result<Vec<Object>, Error>;

    /// Changes after `since` in order of seq; several changes of one object appear as its last.
    async fn replay(&self, since: Seq, limit: usize) -> Result<Vec<Replayed>, Error>;

    /// Keys of all objects of a collection, in order. Read from the index alone.
    async fn keys(&self, key: &CollectionKey) -> Result<Vec<NamespacedName>, Error>;

    async fn collections(&self) -> Result<Vec<StoredCollection>, Error>;

    /// The newest seq ever given.
    async fn latest(&self) -> Result<Seq, Error>;

    /// Names this database; the text index belongs to exactly one.
    async fn identity(&self) -> Result<String, Error>;

    /// Since when it holds something, Unix milliseconds: what was there before is not known to it. The first one to ask
    /// says what time it is, unless it holds something already.
    async fn began(&self, now_ms: i64) -> Result<i64, Error>;

    /// Keeps a newly trained dictionary of a kind and packs with it from now on.
    async fn save_dictionary(&self, kind: &str, dictionary: &[u8], now_ms: i64) -> Result<(), Error>;

    /// Drops old versions that are too old or too many, none that ended after `seen`, and gives free space back. Returns
    /// how many went.
    async fn prune(&self, history: &History, now_ms: i64, seen: Seq) -> Result<u64, Error>;

    /// What the objects of a key were before, newest first; those deleted under that name are among them.
    async fn versions(&self, key: &RecordKey, limit: usize) -> Result<Vec<Version>, Error>;

    /// What need not be read of old versions where so much of each collection is wanted. No more namespaces than a query can
    /// take well; with more of them it is only left out what nothing is wanted of.
    fn narrowing(&self, wanted: &mut Wanted<'_>) -> Narrowing;

    /// Old versions that were there in a span of time, the newest end first.
    async fn past(&self, span: &Span, narrowing: &Narrowing, limit: usize) -> Result<Vec<Version>, Error>;

    /// Old versions by the changes that ended them, in no particular order; missing ones are left out.
    async fn ended(&self, ended: &[Seq]) -> Result<Vec<Version>, Error>;

    /// What objects were after a change, of those that have changed or gone since: by id, in no particular order; what is not
    /// kept any more is left out.
    async fn as_of(&self, seq: Seq, ids: &[u64]) -> Result<Vec<Version>, Error>;

    /// State after a change of those objects of a collection that have changed or been deleted since, in key order from behind `after`,
    /// at most `limit`. Pruned versions are missing.
    async fn lost_since(
        &self,
        seq: Seq,
        collection: &CollectionKey,
        after: Option<&(String, String)>,
        limit: usize,
    ) -> Result<Vec<Version>, Error>;

    /// Deletions up to here are no longer replayed: whoever stopped before it starts over.
    async fn pruned(&self) -> Result<Seq, Error>;

    /// Everything noted about objects, in no particular order. A note outlives its object until it is taken back.
    async fn notes(&self) -> Result<Vec<(RecordKey, String)>, Error>;

    /// Notes something about an object in place of what was noted before; `None` takes it back.
    async fn note(&self, key: &RecordKey, note: Option<&str>) -> Result<(), Error>;

    /// Takes back what is noted about a cluster's objects.
    async fn drop_notes(&self, cluster: &ClusterName) -> Result<(), Error>;

    /// What the store knows of itself and of its readers, by names that begin with `prefix`.
    async fn facts(&self, prefix: &str) -> Result<Vec<(String, String)>, Error>;

    /// Keeps a fact in place of the one before; `None` forgets it.
    async fn keep_fact(&self, name: &str, value: Option<&str>) -> Result<(), Error>;

    async fn size(&self) -> Result<StoreSize, Error>;

    /// Leaves everything in the database's own file, where that is a file. Nothing is read or written afterwards.
    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Records of each collection that has some.
    async fn counts(&self) -> Result<Vec<(CollectionKey, u64)>, Error>;
}
