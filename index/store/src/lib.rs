//! Persistent store of the cache: records, their previous versions and collection positions, updated together in
//! one transaction.
//!
//! One writer task per process writes it; lists, the text index and other readers read it. The backends [`sqlite`] and
//! [`postgres`] implement the [`Store`] trait and pass the same tests (`suite`). They share the decision which rows a
//! batch changes (`decide`), the row format (`rows`), and the decoding of rows (`catalog`, `reading`).

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
mod label_bits;
mod labels;
pub mod metrics;
mod migration;
mod notes;
pub mod options;
pub mod postgres;
#[cfg(test)]
#[path = "../../tests/support/postgres.rs"]
mod postgres_server;
mod query_batcher;
mod reading;
pub mod record;
pub mod replicas;
mod rows;
pub mod sqlite;
mod states;
mod stored_object;
#[cfg(test)]
mod suite;
pub mod tail;

pub use check_report::CheckReport;
pub use error::{Error, Gone};
pub use interest::{Clusters, Interest, InterestGuard, InterestReason, Interests, Namespaces};
pub use options::{
    CacheOptions, DatabaseUrl, HistoryRetention, MemberTimeouts, OpenSearchOptions, PostgresOptions, StoreOptions,
};
pub use record::metadata_in;
pub use record::{
    CacheId, Change, ChangeKind, CollectionKey, CollectionState, Object, Owner, Record, RecordKey, Seq, Version,
};
pub use replicas::{Epoch, LEASE_DURATION, ReplicaInterest, ReplicaView};
pub use states::CollectionStates;
pub use stored_object::{StoredBody, StoredObject};
pub use tail::{Follower, Topic};

use crate::ingest::Draft;
use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::selector::Selector;
use std::collections::BTreeSet;
use std::time::Duration;

/// Delay between attempts to reach an unavailable database.
pub const OUTAGE_RETRY: Duration = Duration::from_secs(1);

/// A body compressed with zstd.
#[derive(Debug, Clone)]
pub struct CompressedBody {
    /// Id of the dictionary; 0: none.
    pub dictionary: u32,
    pub bytes: Vec<u8>,
}

/// A write to one object of a collection.
#[derive(Debug, Clone)]
pub enum RecordWrite {
    Put(Box<Draft>, CompressedBody),
    Delete { namespace: String, name: String, resource_version: String },
}

impl RecordWrite {
    pub fn key(&self) -> (&str, &str) {
        match self {
            Self::Put(draft, _) => (&draft.namespace, &draft.name),
            Self::Delete { namespace, name, .. } => (namespace, name),
        }
    }
}

/// Changes of a collection's state that are stored together with the writes; `None` keeps the stored value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    pub resource_version: Option<String>,
    /// True after a complete list. The writes have to include the deletions of objects that are missing from it.
    pub complete: bool,
    /// Kind of the objects, and true if it is namespaced.
    pub kind: Option<(String, bool)>,
    /// Collected namespaces, encoded as the collector's scope. A new scope makes the collection incomplete.
    pub scope: Option<String>,
}

/// A new position of a collection that is stored without changes to its records.
#[derive(Debug, Clone)]
pub struct Position {
    pub collection: CollectionKey,
    pub epoch: Epoch,
    pub version: String,
    /// Unix milliseconds.
    pub last_contact_ms: i64,
}

/// Changes of one collection that are applied together.
#[derive(Debug, Clone)]
pub struct Batch {
    pub collection: CollectionKey,
    /// Epoch of this replica's claim on the cluster. A shared store rejects the batch with [`Error::Fenced`] if another
    /// replica has claimed the cluster since.
    pub epoch: Epoch,
    pub writes: Vec<RecordWrite>,
    pub progress: Progress,
}

/// A scan of a collection's records in key order.
#[derive(Debug, Clone)]
pub struct Scan {
    pub collection: CollectionKey,
    /// None: all of them.
    pub namespaces: Option<BTreeSet<String>>,
    /// Start after this (namespace, name).
    pub after: Option<(String, String)>,
    /// Label selector by which the database prefilters the records. It may let others pass, so `keep` has to apply it
    /// too.
    pub labels: Option<Selector>,
}

/// The end of a range of keys in a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRangeEnd<'a> {
    /// The last key: namespace and name.
    Key(&'a str, &'a str),
    /// The last namespace.
    Namespace(&'a str),
}

/// Selects old versions for [`Store::superseded_since`].
#[derive(Debug, Clone, Copy)]
pub struct SupersededScan<'a> {
    /// Only versions that were current after this change.
    pub seq: Seq,
    pub collection: &'a CollectionKey,
    /// Namespace and name after which the range begins; None: the first version.
    pub after: Option<&'a (String, String)>,
    /// End of the range; None: the last version.
    pub until: Option<KeyRangeEnd<'a>>,
    /// Maximum number of versions.
    pub limit: usize,
}

/// Selects records for [`Store::records_with_label`].
#[derive(Debug, Clone, Copy)]
pub struct LabelQuery<'a> {
    pub collection: &'a CollectionKey,
    pub label: &'a str,
    /// None: any value.
    pub value: Option<&'a str>,
}

/// A page of a scan, and the (namespace, name) to continue from; None at the end.
pub type ScanPage<T> = (Vec<T>, Option<(String, String)>);

/// A collection as stored, with its state.
#[derive(Debug, Clone)]
pub struct StoredCollection {
    pub key: CollectionKey,
    pub state: CollectionState,
    /// See [`Progress::scope`].
    pub scope: String,
}

/// A change that [`Store::replay`] returns to the text index and other readers.
#[derive(Debug, Clone)]
pub enum ReplayedChange {
    Put(Object),
    Deleted { id: u64, seq: Seq },
}

impl ReplayedChange {
    pub fn seq(&self) -> Seq {
        match self {
            Self::Put(object) => object.record.seq,
            Self::Deleted { seq, .. } => *seq,
        }
    }
}

/// Filter for old versions by the period in which they were current.
#[derive(Debug, Clone, Copy)]
pub struct VersionFilter {
    /// Only versions that ended before this change.
    pub before: Seq,
    /// Only versions that ended at this time or later, Unix milliseconds.
    pub from: i64,
    /// Only versions that began before this time, Unix milliseconds.
    pub until: i64,
    /// Only versions that ended by deletion.
    pub only_deleted: bool,
}

impl VersionFilter {
    /// The last versions of all deleted objects.
    pub const DELETED: Self = Self { before: Seq(u64::MAX), from: i64::MIN, until: i64::MAX, only_deleted: true };
}

/// Old versions that a query skips: those of entire collections, and those outside of some namespaces in other
/// collections. Created by [`Store::exclusions`]; collections that are created later are not excluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionExclusions {
    /// Collections that are excluded entirely.
    excluded: Vec<i64>,
    /// Collections that are limited to `namespaces`.
    limited: Vec<i64>,
    namespaces: Vec<String>,
}

impl VersionExclusions {
    /// Excludes nothing.
    pub const NONE: Self = Self { excluded: Vec::new(), limited: Vec::new(), namespaces: Vec::new() };

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// Function that returns the namespaces of a collection that a reader needs; None: all.
pub type NamespaceFilter<'w> = dyn FnMut(&CollectionKey) -> Option<BTreeSet<String>> + 'w;

/// Size of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreSize {
    pub records: u64,
    /// Old versions.
    pub versions: u64,
    /// Old versions that ended by deletion.
    pub deletions: u64,
    /// Total bytes of old versions.
    pub version_bytes: u64,
    /// Total bytes on disk.
    pub bytes: u64,
    /// Unused bytes of the total.
    pub free_bytes: u64,
}

/// Predicate that returns true for the records that a reader wants.
pub type RecordFilter<'k> = dyn for<'r> Fn(&'r Record) -> Result<bool, Error> + Sync + 'k;

/// Selects whether objects are read with their bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyMode {
    Read,
    /// Bodies are left empty.
    Skip,
}

/// A storage backend.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Applies the batches in one transaction and returns the effective changes, in order of seq. Writing an object
    /// with an unchanged uid and resourceVersion is not a change.
    async fn apply(&self, batches: &[Batch], now_ms: i64) -> Result<Vec<Change>, Error>;

    /// Stores positions in one transaction. Positions of collections that do not exist or were dropped are ignored.
    async fn advance(&self, positions: &[Position]) -> Result<(), Error>;

    /// Deletes up to `limit` records of a collection and returns the deletions; removes the collection once it is
    /// empty.
    async fn drop_collection(
        &self,
        key: &CollectionKey,
        epoch: Epoch,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error>;

    async fn get(&self, key: &RecordKey) -> Result<Option<Object>, Error>;

    /// Up to `limit` records after `scan.after` that `keep` accepts, without bodies, and the position to continue
    /// from; None at the end. A call reads a limited number of rows, so it may return few or no records before the
    /// end.
    async fn records(&self, scan: &Scan, keep: &RecordFilter<'_>, limit: usize) -> Result<ScanPage<Record>, Error>;

    /// Like [`Self::records`], with the bodies. They are read together with the records, even with those that `keep`
    /// rejects, so it suits scans of which most records are accepted, see [`Scan::is_prefiltered`].
    async fn objects(
        &self,
        scan: &Scan,
        keep: &RecordFilter<'_>,
        limit: usize,
    ) -> Result<ScanPage<StoredObject>, Error>;

    /// Records of a collection that have a label, in key order, read from an index. Fails if the label is not one of
    /// [`crate::CacheOptions::indexed_labels`].
    async fn records_with_label(&self, query: &LabelQuery<'_>) -> Result<Vec<Record>, Error>;

    /// Reads the bodies of records; records deleted in the meantime are omitted.
    async fn bodies(&self, records: Vec<Record>) -> Result<Vec<Object>, Error>;

    /// Objects by id, unordered; missing ones are omitted.
    async fn by_ids(&self, ids: &[u64], body_mode: BodyMode) -> Result<Vec<Object>, Error>;

    /// Changes after `since` in order of seq. Of several changes of an object, only the last is returned.
    async fn replay(&self, since: Seq, limit: usize) -> Result<Vec<ReplayedChange>, Error>;

    /// Keys of all objects of a collection, in order. Read from the index alone.
    async fn keys(&self, key: &CollectionKey) -> Result<Vec<NamespacedName>, Error>;

    async fn collections(&self) -> Result<Vec<StoredCollection>, Error>;

    /// The newest seq assigned.
    async fn latest(&self) -> Result<Seq, Error>;

    /// Unique id of this database. A text index belongs to exactly one database.
    async fn identity(&self) -> Result<String, Error>;

    /// Time from which on the store has states of objects, Unix milliseconds. The first call stores it: the time of the
    /// oldest record, or `now_ms` if there are no records.
    async fn created_at(&self, now_ms: i64) -> Result<i64, Error>;

    /// Saves a new dictionary for a kind and uses it for compression from now on.
    async fn save_dictionary(&self, kind: &str, dictionary: &[u8], now_ms: i64) -> Result<(), Error>;

    /// Deletes old versions beyond the retention limits and frees disk space. Versions that ended after `indexed_seq`
    /// are kept, because the text index has not processed their ends yet. Returns the number of deleted versions.
    async fn prune(&self, history: &HistoryRetention, now_ms: i64, indexed_seq: Seq) -> Result<u64, Error>;

    /// Old versions of the objects with this key, newest first, including deleted objects.
    async fn versions(&self, key: &RecordKey, limit: usize) -> Result<Vec<Version>, Error>;

    /// Exclusions for the needed namespaces of each collection. If there are too many namespaces for a query, only
    /// collections without needed namespaces are excluded.
    fn exclusions(&self, namespaces_of: &mut NamespaceFilter<'_>) -> VersionExclusions;

    /// Old versions that existed in a period, latest end first.
    async fn versions_in(
        &self,
        filter: &VersionFilter,
        exclusions: &VersionExclusions,
        limit: usize,
    ) -> Result<Vec<Version>, Error>;

    /// Old versions that were ended by these changes, unordered; missing ones are omitted.
    async fn versions_ended_by(&self, changes: &[Seq]) -> Result<Vec<Version>, Error>;

    /// The versions that were current after change `seq` and have ended since, of the objects with these ids,
    /// unordered. Objects that are unchanged since `seq`, and pruned versions, are omitted.
    async fn as_of(&self, seq: Seq, ids: &[u64]) -> Result<Vec<Version>, Error>;

    /// The versions in a collection that were current after a change and have ended since, in key order. Pruned versions
    /// are omitted.
    async fn superseded_since(&self, scan: &SupersededScan<'_>) -> Result<Vec<Version>, Error>;

    /// Seq up to which deletions may have been pruned and are no longer replayed. A reader whose position is before it
    /// has to read all records again.
    async fn pruned_until(&self) -> Result<Seq, Error>;

    /// All notes about objects, unordered. A note is kept after its object is deleted, until it is deleted itself.
    async fn notes(&self) -> Result<Vec<(RecordKey, String)>, Error>;

    /// Stores the note about an object; `None` deletes it.
    async fn put_note(&self, key: &RecordKey, note: Option<&str>) -> Result<(), Error>;

    /// Deletes the notes about a cluster's objects.
    async fn delete_notes(&self, cluster: &ClusterName) -> Result<(), Error>;

    /// Facts whose names begin with `prefix`. A fact is a named value about the store or one of its readers.
    async fn facts(&self, prefix: &str) -> Result<Vec<(String, String)>, Error>;

    /// Stores a fact; `None` deletes it.
    async fn put_fact(&self, name: &str, value: Option<&str>) -> Result<(), Error>;

    async fn size(&self) -> Result<StoreSize, Error>;

    /// Closes the store and checkpoints the database file, if there is one. It must not be used afterwards.
    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Number of records of each collection that is not empty.
    async fn counts(&self) -> Result<Vec<(CollectionKey, u64)>, Error>;
}
