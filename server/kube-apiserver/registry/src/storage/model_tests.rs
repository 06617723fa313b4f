//! Property tests: a store behaves like a map that keeps all its versions, and after truncation of its log it
//! recovers one of these versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::json;

use super::journal::Entry;
use super::*;
use crate::error::{Error, Result};

const NAMESPACES: [&str; 2] = ["one", "two"];

/// The objects of a table at some revision, each with its revision and payload.
pub(super) type State = BTreeMap<ObjectKey, (Revision, u64)>;

/// Expected contents of the store: all its states by revision.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) states: BTreeMap<Revision, State>,
    /// Revision, kind and key of each change.
    pub(super) changes: Vec<(Revision, ChangeKind, ObjectKey)>,
    pub(super) compacted: Revision,
}

impl Model {
    pub(super) fn new(revision: Revision) -> Self {
        Self { states: BTreeMap::from([(revision, State::new())]), ..Self::default() }
    }

    pub(super) fn revision(&self) -> Revision {
        *self.states.keys().next_back().unwrap()
    }

    pub(super) fn current(&self) -> &State {
        &self.states[&self.revision()]
    }

    /// Applies a write; returns its revision or the error.
    pub(super) fn write(
        &mut self,
        key: &ObjectKey,
        precondition: Precondition,
        payload: Option<u64>,
    ) -> std::result::Result<Revision, String> {
        let mut next = self.current().clone();
        match (precondition, next.get(key)) {
            (Precondition::Absent, Some(_)) => return Err(Error::AlreadyExists.to_string()),
            (Precondition::Revision(_), None) => return Err(Error::NotFound.to_string()),
            (Precondition::Revision(expected), Some((current, _))) if expected != *current => {
                return Err(Error::Conflict { current: *current }.to_string());
            }
            _ => {}
        }
        let revision = self.revision() + 1;
        let kind = match (next.contains_key(key), payload) {
            (_, None) => ChangeKind::Deleted,
            (true, _) => ChangeKind::Modified,
            (false, _) => ChangeKind::Added,
        };
        match payload {
            Some(payload) => drop(next.insert(key.clone(), (revision, payload))),
            None => drop(next.remove(key)),
        }
        self.states.insert(revision, next);
        self.changes.push((revision, kind, key.clone()));
        Ok(revision)
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Create {
        object: usize,
        payload: u64,
    },
    /// Based on the current revision, or on the one before.
    Update {
        object: usize,
        payload: u64,
        stale: bool,
    },
    Delete {
        object: usize,
        stale: bool,
    },
    /// Several creates in one group, some of them of the same object.
    CreateGroup {
        objects: Vec<usize>,
    },
    /// Compaction of a fraction of the history.
    Compact {
        percent: u64,
    },
    /// A paged list at a past revision.
    List {
        percent: u64,
        namespace: usize,
        page: usize,
    },
    /// A watch from a past revision.
    Watch {
        percent: u64,
    },
    /// A crash and restart of the process.
    Crash,
}

fn operation() -> impl Strategy<Value = Operation> {
    let object = 0..6_usize;
    prop_oneof![
        4 => (object.clone(), any::<u64>()).prop_map(|(object, payload)| Operation::Create { object, payload }),
        4 => (object.clone(), any::<u64>(), prop::bool::weighted(0.2))
            .prop_map(|(object, payload, stale)| Operation::Update { object, payload, stale }),
        3 => (object.clone(), prop::bool::weighted(0.2)).prop_map(|(object, stale)| Operation::Delete { object, stale }),
        1 => prop::collection::vec(object, 1..6).prop_map(|objects| Operation::CreateGroup { objects }),
        1 => (0..=100_u64).prop_map(|percent| Operation::Compact { percent }),
        2 => (0..=100_u64, 0..3_usize, 1..4_usize)
            .prop_map(|(percent, namespace, page)| Operation::List { percent, namespace, page }),
        2 => (0..=100_u64).prop_map(|percent| Operation::Watch { percent }),
        1 => Just(Operation::Crash),
    ]
}

pub(super) fn table() -> ResourceKey {
    ResourceKey::new("", "configmaps")
}

pub(super) fn key(object: usize) -> ObjectKey {
    ObjectKey::new(NAMESPACES[object % 2], &format!("o{}", object / 2))
}

pub(super) fn body(payload: u64) -> Body {
    // Some are large enough to be compressed.
    let filler = "x".repeat((payload % 5) as usize * 700);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"n": payload.to_string(), "filler": filler},
    });
    Body::encode(&object).unwrap()
}

fn payload(record: &Record) -> u64 {
    record.body.decode(record.revision).unwrap()["data"]["n"].as_str().unwrap().parse().unwrap()
}

/// A revision between the compacted one and the current one.
fn revision_at(model: &Model, percent: u64) -> Revision {
    let oldest = *model.states.keys().next().unwrap();
    oldest + (model.revision() - oldest) * percent / 100
}

pub(super) fn read_state(store: &Store, at: Option<Revision>) -> Result<State> {
    let listing = store.list(&table(), "", ListRange { at, ..ListRange::ALL })?;
    Ok(listing.records.iter().map(|record| (record.key.clone(), (record.revision, payload(record)))).collect())
}

async fn write(store: &Store, model: &mut Model, object: usize, precondition: Precondition, payload: Option<u64>) {
    let key = key(object);
    let expected_result = model.write(&key, precondition, payload);
    let write = Write { table: table(), key, precondition, body: payload.map(body) };
    let result = store.write(write).await.map_err(|error| error.to_string());
    assert_eq!(result, expected_result);
}

/// The revision that a write expects.
fn expected_revision(model: &Model, object: usize, stale: bool) -> Precondition {
    let current = model.current().get(&key(object)).map_or(7, |(revision, _)| *revision);
    Precondition::Revision(if stale { current - 1 } else { current })
}

async fn create_group(store: &Store, model: &mut Model, objects: &[usize]) {
    let writes = objects.iter().map(|object| Write {
        table: table(),
        key: key(*object),
        precondition: Precondition::Absent,
        body: Some(body(*object as u64)),
    });
    let result = store.write_all(writes.collect()).await.unwrap();
    for (object, result) in objects.iter().zip(result) {
        let expected_result = model.write(&key(*object), Precondition::Absent, Some(*object as u64));
        assert_eq!(result.map_err(|error| error.to_string()), expected_result);
    }
}

fn list(store: &Store, model: &Model, percent: u64, namespace: usize, page: usize) {
    let at = revision_at(model, percent);
    let namespace = NAMESPACES.get(namespace).copied().unwrap_or_default();
    let is_compacted = at < model.compacted;
    let (mut seen, mut after) = (State::new(), None);
    loop {
        let listing =
            match store.list(&table(), namespace, ListRange { at: Some(at), after: after.as_ref(), limit: page }) {
                Err(Error::Expired { .. }) if is_compacted => return,
                listing => listing.unwrap(),
            };
        seen.extend(listing.records.iter().map(|record| (record.key.clone(), (record.revision, payload(record)))));
        after = listing.records.last().map(|record| record.key.clone());
        if listing.remaining == 0 {
            break;
        }
    }
    let expected_result =
        model.states[&at].iter().filter(|(key, _)| namespace.is_empty() || key.namespace() == namespace);
    assert_eq!(seen, expected_result.map(|(key, state)| (key.clone(), *state)).collect(), "at {at}");
}

async fn watch(store: &Store, model: &Model, percent: u64) {
    let since = revision_at(model, percent);
    let mut watcher = match store.watch(&table(), since) {
        Err(Error::Expired { .. }) if since < model.compacted => return,
        watcher => watcher.unwrap(),
    };
    let expected_result: Vec<_> = model.changes.iter().filter(|(revision, ..)| *revision > since).cloned().collect();
    let mut seen = Vec::new();
    while seen.len() < expected_result.len() {
        let changes = watcher.next().await.unwrap();
        seen.extend(changes.iter().map(|change| (change.revision, change.kind, change.key.clone())));
    }
    assert_eq!(seen, expected_result);
    assert_eq!(watcher.position(), model.revision());
}

async fn run(operations: Vec<Operation>, directory: &Path) -> (Store, Model) {
    let open_journal = || async { SqliteJournal::open(directory, Durability::Process).await };
    let mut store = Store::open(Box::new(open_journal().await.unwrap()), HistoryLimits::default()).await.unwrap();
    let mut model = Model::new(store.revision());
    for operation in operations {
        match operation {
            Operation::Create { object, payload } => {
                write(&store, &mut model, object, Precondition::Absent, Some(payload)).await;
            }
            Operation::Update { object, payload, stale } => {
                let precondition = expected_revision(&model, object, stale);
                write(&store, &mut model, object, precondition, Some(payload)).await;
            }
            Operation::Delete { object, stale } => {
                let precondition = expected_revision(&model, object, stale);
                write(&store, &mut model, object, precondition, None).await;
            }
            Operation::CreateGroup { objects } => create_group(&store, &mut model, &objects).await,
            Operation::Compact { percent } => {
                let at = revision_at(&model, percent);
                store.compact(at);
                model.compacted = model.compacted.max(at);
            }
            Operation::List { percent, namespace, page } => list(&store, &model, percent, namespace, page),
            Operation::Watch { percent } => watch(&store, &model, percent).await,
            Operation::Crash => {
                store.close().await.unwrap();
                store = Store::open(Box::new(open_journal().await.unwrap()), HistoryLimits::default()).await.unwrap();
                // History is kept in memory only.
                let now = model.current().clone();
                let revision = model.revision();
                model = Model { states: BTreeMap::from([(revision, now)]), changes: Vec::new(), compacted: revision };
            }
        }
        assert_eq!(store.revision(), model.revision());
        assert_eq!(read_state(&store, None).unwrap(), *model.current());
    }
    (store, model)
}

/// Sizes in SQLite's log: its header, then frames of one page each.
const LOG_HEADER_BYTES: u64 = 32;
const FRAME_BYTES: u64 = 4096 + 24;

/// Copies a data directory with a truncated log, as after a power failure.
fn copy_truncated(from: &Path, to: &Path, length: u64) {
    let name = |end: &str| format!("objects.db{end}");
    std::fs::copy(from.join(name("")), to.join(name(""))).unwrap();
    std::fs::copy(from.join(name("-wal")), to.join(name("-wal"))).unwrap();
    std::fs::OpenOptions::new().write(true).open(to.join(name("-wal"))).unwrap().set_len(length).unwrap();
}

/// A journal that fails after a number of commits, either before or after it stores the entries.
struct FailingJournal {
    stored: Arc<Mutex<Vec<Entry>>>,
    commits: usize,
    fails_after_storing: bool,
}

#[async_trait]
impl Journal for FailingJournal {
    async fn load(&mut self) -> Result<Snapshot> {
        Ok(Snapshot { revision: 1, objects: Vec::new() })
    }

    async fn commit(&mut self, entries: &[Entry], _: Revision) -> Result<()> {
        let fails = self.commits == 0;
        self.commits = self.commits.saturating_sub(1);
        if !fails || self.fails_after_storing {
            self.stored.lock().extend_from_slice(entries);
        }
        if fails { Err(Error::WritesDisabled("the disk is full".into())) } else { Ok(()) }
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn store_behaves_like_a_versioned_map(operations in prop::collection::vec(operation(), 1..60)) {
        let directory = tempfile::tempdir().unwrap();
        block_on(async {
            let (store, _) = run(operations, directory.path()).await;
            store.close().await.unwrap();
        });
    }

    #[test]
    fn truncated_logs_recover_a_past_state(
        operations in prop::collection::vec(operation().prop_filter("the truncation of the log is the only crash", |o| !matches!(o, Operation::Crash)), 1..24),
        torn in prop::collection::vec(0..FRAME_BYTES, 4),
    ) {
        let directory = tempfile::tempdir().unwrap();
        block_on(async {
            let (store, model) = run(operations, directory.path()).await;
            let full_length = std::fs::metadata(directory.path().join("objects.db-wal")).unwrap().len();
            let frames = full_length.saturating_sub(LOG_HEADER_BYTES) / FRAME_BYTES;
            let boundaries = (0..=frames).map(|frame| LOG_HEADER_BYTES + frame * FRAME_BYTES);
            let torn = torn.iter().enumerate().map(|(at, bytes)| LOG_HEADER_BYTES + (at as u64 * frames / 4) * FRAME_BYTES + bytes);
            let mut last = 0;
            for length in boundaries.chain(torn.filter(|length| *length < full_length)).chain([0, full_length]) {
                let truncated = tempfile::tempdir().unwrap();
                copy_truncated(directory.path(), truncated.path(), length);
                let journal = SqliteJournal::open(truncated.path(), Durability::Process).await.unwrap();
                let recovered = Store::open(Box::new(journal), HistoryLimits::default()).await.unwrap();
                last = recovered.revision();
                // A store has a revision even before its first write, so the model contains every revision that can be recovered.
                let expected_result = model.states.get(&last).unwrap_or_else(|| panic!("revision {last} never existed"));
                assert_eq!(&read_state(&recovered, None).unwrap(), expected_result, "{length} bytes of {full_length}");
                recovered.close().await.unwrap();
            }
            assert_eq!(last, model.revision(), "the complete log contains all acknowledged writes");
            store.close().await.unwrap();
        });
    }

    #[test]
    fn failed_writes_are_never_visible(writes in 1..12_usize, commits in 0..8_usize, after in any::<bool>()) {
        block_on(async {
            let stored = Arc::new(Mutex::new(Vec::new()));
            let journal = FailingJournal { stored: stored.clone(), commits, fails_after_storing: after };
            let store = Store::open(Box::new(journal), HistoryLimits::default()).await.unwrap();
            let mut acknowledged = 0;
            for object in 0..writes {
                let key = ObjectKey::new("one", &format!("w{object}"));
                let write = Write { table: table(), key: key.clone(), precondition: Precondition::Absent, body: Some(body(1)) };
                match store.write(write).await {
                    Ok(_) => acknowledged += 1,
                    Err(error) => {
                        assert!(matches!(error, Error::WritesDisabled(_)), "{error}");
                        assert!(store.get(&table(), &key).is_none());
                        assert!(store.failure().is_some());
                    }
                }
            }
            assert_eq!(acknowledged, writes.min(commits));
            assert_eq!(read_state(&store, None).unwrap().len(), acknowledged);
            // One more write may be on the disk without having been acknowledged.
            let on_disk = stored.lock().len();
            assert!((acknowledged..=acknowledged + 1).contains(&on_disk), "{on_disk}");
        });
    }
}
