//! A source of changes in memory.

use super::node::Documents;
use async_trait::async_trait;
use bytes::Bytes;
use crowsnest_search::opensearch::bulk::DocumentChange;
use crowsnest_search::opensearch::writer::{BatchBounds, ChangeBatch, ChangeSource, IndexPosition, SourceError};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// The last state of each record by the sequence number of its change. Clones share it.
#[derive(Clone, Debug)]
pub struct MemorySource {
    log: Arc<Mutex<Log>>,
    latest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Log {
    identity: u32,
    changes: BTreeMap<u64, (String, Option<Value>)>,
    seq_by_id: HashMap<String, u64>,
    /// Deletions up to this sequence number were pruned.
    pruned: u64,
    /// Largest number of changes that were read at once.
    max_read: usize,
}

impl MemorySource {
    pub fn new() -> Self {
        Self { log: Arc::default(), latest: watch::Sender::new(0) }
    }

    /// Writes a record, or deletes it if `document` is `None`.
    pub fn set(&self, id: &str, document: Option<Value>) {
        let mut log = self.log.lock().unwrap();
        let seq = *self.latest.borrow() + 1;
        if let Some(old) = log.seq_by_id.insert(id.to_owned(), seq) {
            log.changes.remove(&old);
        }
        log.changes.insert(seq, (id.to_owned(), document));
        drop(log);
        self.latest.send_replace(seq);
    }

    /// Prunes all deletions.
    pub fn prune(&self) {
        let mut log = self.log.lock().unwrap();
        log.changes.retain(|_, (_, document)| document.is_some());
        log.pruned = *self.latest.borrow();
    }

    /// Starts again with sequence number 1, like a new store with the same records.
    pub fn restart(&self) {
        let mut log = self.log.lock().unwrap();
        let existing: Vec<_> = std::mem::take(&mut log.changes).into_values().filter(|(_, d)| d.is_some()).collect();
        *log = Log { identity: log.identity + 1, ..Log::default() };
        drop(log);
        self.latest.send_replace(0);
        for (id, document) in existing {
            self.set(&id, document);
        }
    }

    /// The existing records with their versions, as an engine should hold them.
    pub fn documents(&self) -> Documents {
        let log = self.log.lock().unwrap();
        let existing = log.changes.iter().filter_map(|(seq, (id, document))| Some((id, *seq, document.as_ref()?)));
        existing.map(|(id, seq, document)| (id.clone(), (seq, document.clone()))).collect()
    }

    pub fn max_read(&self) -> usize {
        self.log.lock().unwrap().max_read
    }
}

#[async_trait]
impl ChangeSource for MemorySource {
    fn identity(&self) -> String {
        format!("memory-{}", self.log.lock().unwrap().identity)
    }

    fn latest(&self) -> u64 {
        *self.latest.borrow()
    }

    async fn changes(&self, since: IndexPosition, bounds: BatchBounds) -> Result<ChangeBatch, SourceError> {
        let mut log = self.log.lock().unwrap();
        if log.pruned > since.position.max(since.empty_at) {
            return Err(SourceError::Pruned);
        }
        let next = log.changes.range(since.position + 1..).take(bounds.changes);
        let change = |(seq, (id, document)): (&u64, &(String, Option<Value>))| DocumentChange {
            seq: *seq,
            id: id.clone(),
            document: document.as_ref().map(|document| Bytes::from(document.to_string())),
        };
        let changes: Vec<_> = next.map(change).collect();
        log.max_read = log.max_read.max(changes.len());
        let position = if changes.len() < bounds.changes {
            *self.latest.borrow()
        } else {
            changes.last().map_or(since.position, |change| change.seq)
        };
        Ok(ChangeBatch { changes, position })
    }

    async fn wait_for_changes(&self, after: u64) {
        // The sender is held by this source.
        let _ = self.latest.subscribe().wait_for(|latest| *latest > after).await;
    }
}
