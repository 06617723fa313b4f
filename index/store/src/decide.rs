//! Decides which rows a batch changes, from the current rows. Free of I/O and shared by all backends.
//!
//! The writes of a batch are split into runs with distinct keys. For each run, the backend reads the current rows of the
//! keys, gets the decision, and executes it: deletions first, then puts.

use super::{CompressedBody, RecordWrite, rows};
use crate::ingest::Draft;
use crate::record::{Change, ChangeKind, CollectionKey, Object, Record, RecordKey, Seq};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

/// Source of the sequence numbers of a transaction, and its time.
pub(super) struct Sequence {
    /// The newest number assigned.
    pub seq: u64,
    /// Unix milliseconds.
    pub now_ms: i64,
}

impl Sequence {
    fn next(&mut self) -> Seq {
        self.seq += 1;
        Seq(self.seq)
    }
}

/// The collection that a write changes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub id: i64,
    pub key: CollectionKey,
    pub kind: Arc<str>,
}

/// A record to write: a new one, or one that replaces the record with the same id.
pub(super) struct Put<'s> {
    pub collection: i64,
    pub id: u64,
    pub seq: Seq,
    pub draft: &'s Draft,
    pub packed: &'s CompressedBody,
    pub previous: Option<Arc<Record>>,
}

/// A record to delete; its last state is kept as a version.
pub(super) struct Deletion<'s> {
    pub collection: i64,
    pub seq: Seq,
    /// resourceVersion of the deletion, if the member sent one.
    pub version: Option<&'s str>,
    pub old: Arc<Record>,
    /// Index into [`BatchDecision::changes`].
    change: usize,
}

/// A record whose current state becomes an old version.
pub(super) struct VersionEnd<'s> {
    /// Id of the record.
    pub id: i64,
    /// Seq of the change that ends the version.
    pub ended: i64,
    /// resourceVersion of its deletion, if the member sent one.
    pub version: Option<&'s str>,
    pub deleted: bool,
}

/// Rows to change for a run, and the resulting changes.
#[derive(Default)]
pub(super) struct BatchDecision<'s> {
    pub puts: Vec<Put<'s>>,
    pub deletions: Vec<Deletion<'s>>,
    changes: Vec<Change>,
}

impl<'s> BatchDecision<'s> {
    /// Adds a write. Each key must occur only once per run.
    pub fn add_write(
        &mut self,
        target: &Target,
        write: &'s RecordWrite,
        previous: Option<Record>,
        sequence: &mut Sequence,
    ) {
        match write {
            RecordWrite::Put(draft, packed) => {
                let is_unchanged =
                    |old: &Record| old.uid == draft.uid && old.resource_version == draft.resource_version;
                if previous.as_ref().is_some_and(is_unchanged) {
                    return;
                }
                // Another uid is a new object with the same name; the old object is deleted first.
                let previous = match previous {
                    Some(old) if old.uid != draft.uid => {
                        self.delete(target.id, old, None, sequence);
                        None
                    }
                    other => other.map(Arc::new),
                };
                let seq = sequence.next();
                let id = previous.as_ref().map_or(seq.0, |old| old.id);
                let key = RecordKey {
                    collection: target.key.clone(),
                    namespace: draft.namespace.as_str().into(),
                    name: draft.name.as_str().into(),
                };
                let record = rows::record_from_draft(draft, key, Arc::clone(&target.kind), id, seq, sequence.now_ms);
                self.changes.push(Change {
                    seq,
                    kind: if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added },
                    object: Object { record: Arc::new(record), body: draft.body.clone() },
                    previous: previous.clone(),
                });
                self.puts.push(Put { collection: target.id, id, seq, draft, packed, previous });
            }
            RecordWrite::Delete { resource_version, .. } => {
                if let Some(old) = previous {
                    let version = Some(resource_version.as_str()).filter(|version| !version.is_empty());
                    self.delete(target.id, old, version, sequence);
                }
            }
        }
    }

    pub fn delete(&mut self, collection: i64, old: Record, version: Option<&'s str>, sequence: &mut Sequence) {
        let (old, seq) = (Arc::new(old), sequence.next());
        self.deletions.push(Deletion { collection, seq, version, old: Arc::clone(&old), change: self.changes.len() });
        // The body is added when the row is deleted: see `add_bodies`.
        self.changes.push(deletion_change(old, seq, version, sequence.now_ms, Bytes::new()));
    }

    /// Versions to save before their records are deleted or overwritten.
    pub fn version_ends(&self) -> impl Iterator<Item = VersionEnd<'s>> {
        let deleted = self.deletions.iter().map(|deletion| {
            let Deletion { seq, version, old, .. } = deletion;
            VersionEnd { id: old.id as i64, ended: seq.0 as i64, version: *version, deleted: true }
        });
        let changed = self.puts.iter().filter(|put| put.previous.is_some());
        deleted.chain(changed.map(|put| VersionEnd {
            id: put.id as i64,
            ended: put.seq.0 as i64,
            version: None,
            deleted: false,
        }))
    }

    /// Adds the bodies of deleted records, given by the seq of their deletion. Returns false if one is missing.
    pub fn add_bodies(&mut self, mut bodies: HashMap<i64, Bytes>) -> bool {
        self.deletions.iter().all(|deletion| {
            let found = bodies.remove(&(deletion.seq.0 as i64)).zip(self.changes.get_mut(deletion.change));
            found.is_some_and(|(body, change)| {
                change.object.body = body;
                true
            })
        })
    }

    /// The changes for readers, in order of seq.
    pub fn into_changes(self) -> Vec<Change> {
        self.changes
    }
}

/// The deletion of a record, as sent to readers.
pub(super) fn deletion_change(old: Arc<Record>, seq: Seq, version: Option<&str>, now_ms: i64, body: Bytes) -> Change {
    let mut record = (*old).clone();
    record.seq = seq;
    record.changed_at = now_ms;
    if let Some(version) = version {
        record.resource_version = version.to_owned();
    }
    Change { seq, kind: ChangeKind::Deleted, object: Object { record: Arc::new(record), body }, previous: Some(old) }
}

/// Splits items into consecutive runs with distinct keys.
pub(super) fn runs<T, K: Eq + Hash>(items: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<Vec<T>> {
    let mut runs: Vec<Vec<T>> = Vec::new();
    let mut seen = HashSet::new();
    for item in items {
        let key = key(&item);
        if runs.is_empty() || seen.contains(&key) {
            runs.push(Vec::new());
            seen.clear();
        }
        seen.insert(key);
        if let Some(run) = runs.last_mut() {
            run.push(item);
        }
    }
    runs
}
