//! Changes of the store as an export needs them: with the uids of deleted objects, and without values of Secrets.

use super::error::ExportError;
use crowsnest_store::ingest::without_secret_values;
use crowsnest_store::record::{Change, ChangeKind, Object, RecordKey};
use crowsnest_store::tail::Tail;
use crowsnest_store::{Error, ReplayedChange, Seq, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// Changes read from the store at once.
const MAX_REPLAYED_CHANGES: usize = 200;

/// A change of an object.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    pub seq: u64,
    pub key: RecordKey,
    pub kind: Arc<str>,
    pub uid: String,
    /// None: deleted.
    pub object: Option<Object>,
}

/// Consecutive changes.
#[derive(Debug, Default)]
pub struct ChangePage {
    pub changes: Vec<ObjectChange>,
    /// All changes up to here are in `changes` or precede them. If it equals the requested position, there are no more changes.
    pub position: u64,
}

/// Store and tail of a cache.
#[derive(Clone)]
pub struct Source {
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    /// The store keeps values of Secrets.
    pub has_secret_values: bool,
}

impl Source {
    /// Sequence number of the newest change.
    pub fn latest(&self) -> u64 {
        self.tail.latest().0
    }

    /// Changes after a position: from memory if it still contains them, otherwise from the store.
    pub async fn changes_after(&self, position: u64) -> Result<ChangePage, ExportError> {
        let mut follower = self.tail.follow(Seq(position));
        match follower.ready_now() {
            Ok(changes) => {
                let changes = changes.iter().map(|change| object_change(change)).collect();
                Ok(ChangePage { changes, position: follower.since().0.max(position) })
            }
            Err(_) => self.replay(position).await,
        }
    }

    async fn replay(&self, position: u64) -> Result<ChangePage, ExportError> {
        // Read before the replay, in which changes that are announced later may be missing.
        let announced = self.latest();
        let replayed = self.store.replay(Seq(position), MAX_REPLAYED_CHANGES).await?;
        let deleted: Vec<Seq> = replayed
            .iter()
            .filter_map(|change| match change {
                ReplayedChange::Deleted { seq, .. } => Some(*seq),
                ReplayedChange::Put(_) => None,
            })
            .collect();
        let versions = self.store.versions_ended_by(&deleted).await?;
        // Checked after the replay, so that pruning in the meantime is detected.
        self.check_replayable(position).await?;
        let mut versions: HashMap<Seq, Object> =
            versions.into_iter().map(|version| (version.ended, version.object)).collect();
        let mut page = ChangePage { position, ..ChangePage::default() };
        if replayed.is_empty() {
            page.position = position.max(announced);
        }
        for change in replayed {
            page.position = change.seq().0;
            page.changes.push(match change {
                ReplayedChange::Put(object) => ObjectChange {
                    seq: object.record.seq.0,
                    key: object.record.key.clone(),
                    kind: Arc::clone(&object.record.kind),
                    uid: object.record.uid.clone(),
                    object: Some(object),
                },
                ReplayedChange::Deleted { seq, .. } => {
                    let record = versions.remove(&seq).ok_or(ExportError::Pruned)?.record;
                    let kind = Arc::clone(&record.kind);
                    ObjectChange { seq: seq.0, key: record.key.clone(), kind, uid: record.uid.clone(), object: None }
                }
            });
        }
        Ok(page)
    }

    /// Objects that were changed last after the position, in order of seq, regardless of deletions; and the position to
    /// continue from, None at the end.
    pub async fn objects_after(&self, position: u64, limit: usize) -> Result<(Vec<Object>, Option<u64>), ExportError> {
        let replayed = self.store.replay(Seq(position), limit).await?;
        let next = replayed.last().map(|change| change.seq().0);
        let object = |change| match change {
            ReplayedChange::Put(object) => Some(object),
            ReplayedChange::Deleted { .. } => None,
        };
        Ok((replayed.into_iter().filter_map(object).collect(), next))
    }

    /// Fails if deletions after the position are no longer kept.
    pub async fn check_replayable(&self, position: u64) -> Result<(), ExportError> {
        if self.store.pruned_until().await?.0 > position { Err(ExportError::Pruned) } else { Ok(()) }
    }

    /// Returns when there may be changes after the position.
    pub async fn wait_for_changes(&self, after: u64) {
        self.tail.follow(Seq(after)).wait().await;
    }

    /// The object without values of Secrets, even if the store keeps them.
    pub fn redact(&self, object: Object) -> Result<Object, Error> {
        if !self.has_secret_values {
            return Ok(object);
        }
        Ok(without_secret_values(&object)?.into_owned())
    }
}

fn object_change(change: &Change) -> ObjectChange {
    let record = &change.object.record;
    ObjectChange {
        seq: change.seq.0,
        key: record.key.clone(),
        kind: Arc::clone(&record.kind),
        uid: record.uid.clone(),
        object: (change.kind != ChangeKind::Deleted).then(|| change.object.clone()),
    }
}
