//! Crash tests: a store recovers from any number of crashes, each of which cuts the writes to the disk at an
//! arbitrary point.
//!
//! The writes of an operation are derived from its changes to the files: the log is written first, from its start,
//! then the main file into which its pages are checkpointed. A clean stop only checkpoints. A crash of the process
//! leaves a prefix of these changes; a power failure leaves arbitrary sectors of unflushed data. The recovered store
//! must contain all acknowledged writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;

use super::model_tests::{Model, body, key, read_state, table};
use super::*;
use crate::error::{Error, Result};

/// Retained changes: few, so that history is compacted often.
const RETAINED_CHANGES: usize = 6;
/// Log pages per checkpoint: few, so that checkpoints are frequent.
const CHECKPOINT_PAGES: u32 = 6;
/// Expected revision in updates and deletions of absent objects, which fail with any revision.
const ABSENT_REVISION: Revision = 7;
const SECTOR_BYTES: usize = 512;
/// Size of the log header, which is flushed before the following data when it changes.
const LOG_HEADER_BYTES: usize = 32;

#[derive(Debug, Clone)]
enum Operation {
    /// Creates, updates and deletes in one group: number of the object, edit, and true if the edit is based on an
    /// outdated state of the object.
    Write(Vec<(usize, Edit, bool)>),
    /// Compaction of the history up to a revision.
    Compact(Index),
    /// A clean stop.
    Stop,
    Nothing,
}

#[derive(Debug, Clone)]
enum Edit {
    Create(u64),
    Update(u64),
    Delete,
}

/// Part of an operation's changes that survives a crash.
#[derive(Debug, Clone)]
enum Survivor {
    /// Process crash: a prefix of the changes in write order.
    Prefix(Index),
    /// Power failure: arbitrary sectors of unflushed data. The index selects the number of completed flushes.
    Sectors(Index, u64),
}

#[derive(Debug, Clone)]
enum Step {
    Do(Operation),
    Crash(Operation, Survivor),
    Watch(Index),
}

fn operation() -> impl Strategy<Value = Operation> {
    let edit = prop_oneof![
        3 => any::<u64>().prop_map(Edit::Create),
        3 => any::<u64>().prop_map(Edit::Update),
        2 => Just(Edit::Delete),
    ];
    let write = (0..6_usize, edit, prop::bool::weighted(0.2));
    prop_oneof![
        12 => prop::collection::vec(write, 1..5).prop_map(Operation::Write),
        1 => any::<Index>().prop_map(Operation::Compact),
        2 => Just(Operation::Stop),
        1 => Just(Operation::Nothing),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let survivor = prop_oneof![
        any::<Index>().prop_map(Survivor::Prefix),
        (any::<Index>(), any::<u64>()).prop_map(|(index, seed)| Survivor::Sectors(index, seed)),
    ];
    prop_oneof![
        4 => operation().prop_map(Step::Do),
        3 => (operation(), survivor).prop_map(|(operation, survivor)| Step::Crash(operation, survivor)),
        2 => any::<Index>().prop_map(Step::Watch),
    ]
}

/// Contents of the files in a data directory.
#[derive(Debug, Clone, Default, PartialEq)]
struct Files {
    main: Vec<u8>,
    log: Vec<u8>,
}

impl Files {
    fn paths(directory: &Path) -> [PathBuf; 2] {
        ["objects.db", "objects.db-wal"].map(|name| directory.join(name))
    }

    fn read(directory: &Path) -> Self {
        // A clean stop removes the log.
        let [main, log] = Self::paths(directory).map(|path| std::fs::read(path).unwrap_or_default());
        Self { main, log }
    }

    fn write(&self, directory: &Path) {
        let [main, log] = Self::paths(directory);
        std::fs::write(main, &self.main).unwrap();
        if !self.log.is_empty() {
            std::fs::write(log, &self.log).unwrap();
        }
    }
}

/// Contents of a file after the first `count` bytes of `after` have been written over `before`.
fn overwrite_prefix(before: &[u8], after: &[u8], count: usize) -> Vec<u8> {
    let mut out = after[..count].to_vec();
    out.extend(before.get(count..).unwrap_or_default());
    out
}

/// Contents of a file after all bytes of `after` before `from`, and random sectors of the others, have been written
/// over `before`.
fn overwrite_sectors(before: &[u8], after: &[u8], from: usize, mut seed: u64) -> Vec<u8> {
    let mut out = overwrite_prefix(before, after, from.min(after.len()));
    for (at, sector) in after.chunks(SECTOR_BYTES).enumerate() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let start = at * SECTOR_BYTES;
        if seed >> 63 == 0 || start + sector.len() <= from {
            continue;
        }
        let changed_from = start.max(from);
        out.resize(out.len().max(start + sector.len()), 0);
        out[changed_from..start + sector.len()].copy_from_slice(&sector[changed_from - start..]);
    }
    out
}

/// Positions of the bytes that differ, in ascending order.
fn changed_positions(before: &[u8], after: &[u8]) -> Vec<usize> {
    (0..after.len()).filter(|at| before.get(*at) != Some(&after[*at])).collect()
}

/// Changes that an operation makes to the files. A crash can interrupt them at any position.
struct FileChanges<'a> {
    before: &'a Files,
    after: &'a Files,
    log: Vec<usize>,
    main: Vec<usize>,
    /// The complete log while the main file is written; a stop removes it last.
    complete_log: &'a [u8],
}

impl<'a> FileChanges<'a> {
    fn new(before: &'a Files, after: &'a Files, is_stop: bool) -> Self {
        let log = if is_stop { Vec::new() } else { changed_positions(&before.log, &after.log) };
        let complete_log = if is_stop { &before.log } else { &after.log };
        Self { before, after, log, main: changed_positions(&before.main, &after.main), complete_log }
    }

    /// Number of positions at which a crash can interrupt the changes.
    fn len(&self) -> usize {
        self.log.len() + self.main.len() + 2
    }

    /// Files after a crash of the process.
    fn after_process_crash(&self, count: usize) -> Files {
        let main = || self.before.main.clone();
        if let Some(at) = self.log.get(count) {
            return Files { main: main(), log: overwrite_prefix(&self.before.log, &self.after.log, *at) };
        }
        let count = count - self.log.len();
        let log = self.complete_log.to_vec();
        match self.main.get(count) {
            Some(at) => Files { main: overwrite_prefix(&self.before.main, &self.after.main, *at), log },
            None if count == self.main.len() => Files { main: self.after.main.clone(), log },
            None => self.after.clone(),
        }
    }

    /// Files after a power failure that follows this number of flushes.
    fn after_power_failure(&self, flushes: usize, seed: u64) -> Files {
        let (before, after) = (self.before, self.after);
        let is_log_restarted = before.log.get(..LOG_HEADER_BYTES) != after.log.get(..LOG_HEADER_BYTES);
        match flushes {
            0 if !self.log.is_empty() && is_log_restarted => {
                Files { main: before.main.clone(), log: overwrite_prefix(&before.log, &after.log, LOG_HEADER_BYTES) }
            }
            0 | 1 if !self.log.is_empty() => Files {
                main: before.main.clone(),
                log: overwrite_sectors(&before.log, &after.log, LOG_HEADER_BYTES, seed),
            },
            _ => Files { main: overwrite_sectors(&before.main, &after.main, 0, seed), log: self.complete_log.to_vec() },
        }
    }

    fn surviving_files(&self, survivor: &Survivor) -> Files {
        match survivor {
            Survivor::Prefix(index) => self.after_process_crash(index.index(self.len())),
            Survivor::Sectors(index, seed) => self.after_power_failure(index.index(3), *seed),
        }
    }
}

/// A store, its model, and the revisions that clients have received.
struct Run {
    directory: TempDir,
    store: Store,
    model: Model,
    /// Highest revision that any client has received.
    acknowledged: Revision,
}

async fn open(directory: &Path) -> Store {
    // Durability for power failures: only flushed data survives the simulated ones.
    let journal =
        SqliteJournal::open_with_checkpoint_pages(directory, Durability::Power, CHECKPOINT_PAGES).await.unwrap();
    Store::open(Box::new(journal), HistoryLimits { max_changes: RETAINED_CHANGES, ..HistoryLimits::default() })
        .await
        .unwrap()
}

/// The model after a restart: the history is kept in memory only, so it is empty.
fn restart_model(model: &Model) -> Model {
    let (revision, now) = (model.revision(), model.current().clone());
    Model { states: BTreeMap::from([(revision, now)]), changes: Vec::new(), compacted: revision }
}

impl Run {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path()).await;
        let (model, acknowledged) = (Model::new(store.revision()), store.revision());
        Self { directory, store, model, acknowledged }
    }

    /// Runs an operation on store and model; returns true if the store was closed.
    async fn execute(&mut self, operation: &Operation) -> bool {
        match operation {
            Operation::Write(parts) => self.write(parts).await,
            Operation::Compact(index) => {
                let at = self.some_revision(index);
                self.store.compact(at);
                self.model.compacted = self.model.compacted.max(at);
            }
            Operation::Nothing => {}
            Operation::Stop => {
                self.store.close().await.unwrap();
                return true;
            }
        }
        false
    }

    async fn write(&mut self, parts: &[(usize, Edit, bool)]) {
        let mut expected = Vec::new();
        let mut writes = Vec::new();
        for (object, edit, is_outdated) in parts {
            let current = self.model.current().get(&key(*object)).map_or(ABSENT_REVISION, |(revision, _)| *revision);
            let based_on = Precondition::Revision(if *is_outdated { current - 1 } else { current });
            let (precondition, payload) = match edit {
                Edit::Create(payload) => (Precondition::Absent, Some(*payload)),
                Edit::Update(payload) => (based_on, Some(*payload)),
                Edit::Delete => (based_on, None),
            };
            expected.push(self.model.write(&key(*object), precondition, payload));
            writes.push(Write { table: table(), key: key(*object), precondition, body: payload.map(body) });
        }
        let results = self.store.write_all(writes).await.unwrap();
        let results: Vec<_> = results.into_iter().map(|result| result.map_err(|error| error.to_string())).collect();
        assert_eq!(results, expected);
    }

    fn some_revision(&self, index: &Index) -> Revision {
        let oldest = *self.model.states.keys().next().unwrap();
        oldest + index.index((self.model.revision() - oldest + 1) as usize) as Revision
    }

    fn assert_matches_model(&self) {
        assert_eq!(self.store.revision(), self.model.revision());
        assert_eq!(read_state(&self.store, None).unwrap(), *self.model.current());
        assert!(self.store.failure().is_none());
    }

    /// Crashes during an operation and recovers. The model takes over the recovered state, which must be the state
    /// before or after the operation, and the latter if all writes were acknowledged.
    async fn crash(&mut self, operation: &Operation, survivor: &Survivor) {
        let (files_before, model_before) = (Files::read(self.directory.path()), self.model.clone());
        let is_stop = self.execute(operation).await;
        let files_after = Files::read(self.directory.path());
        let files = FileChanges::new(&files_before, &files_after, is_stop).surviving_files(survivor);
        let directory = tempfile::tempdir().unwrap();
        files.write(directory.path());
        let store = open(directory.path()).await;
        let recovered = store.revision();
        let is_complete = files == files_after;
        let model = if recovered == self.model.revision() { self.model.clone() } else { model_before };
        assert!(
            !is_complete || recovered == self.model.revision(),
            "revision {recovered} was recovered, although all writes of the operation had reached the files"
        );
        assert!(
            recovered >= self.acknowledged,
            "recovered revision {recovered} is older than the acknowledged revision {}",
            self.acknowledged
        );
        self.store.close().await.unwrap();
        (self.directory, self.store, self.model) = (directory, store, restart_model(&model));
        self.assert_matches_model();
        // Watches from revisions before this start are either up to date or expired.
        let watcher = self.store.watch(&table(), self.acknowledged);
        assert_eq!(matches!(watcher, Err(Error::Expired { .. })), self.acknowledged < recovered);
        self.acknowledged = recovered;
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Do(operation) => {
                if self.execute(operation).await {
                    self.store = open(self.directory.path()).await;
                    self.model = restart_model(&self.model);
                }
                self.acknowledged = self.model.revision();
            }
            Step::Crash(operation, survivor) => self.crash(operation, survivor).await,
            Step::Watch(index) => self.watch(index).await.unwrap(),
        }
        self.assert_matches_model();
    }

    /// Watches from a revision: delivers all later changes once and in order, or expires if they have been
    /// compacted.
    async fn watch(&self, index: &Index) -> Result<()> {
        let since = self.some_revision(index);
        let expected: Vec<_> = self.model.changes.iter().filter(|(revision, ..)| *revision > since).cloned().collect();
        let is_compacted = since < self.model.compacted || expected.len() > RETAINED_CHANGES;
        let mut watcher = match self.store.watch(&table(), since) {
            Err(Error::Expired { .. }) if is_compacted => return Ok(()),
            watcher => watcher?,
        };
        assert!(!is_compacted, "revision {since} has been compacted, but the watch did not expire");
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            seen.extend(watcher.next().await?.iter().map(|change| (change.revision, change.kind, change.key.clone())));
        }
        assert_eq!(seen, expected);
        Ok(())
    }
}

/// Runs a future on a single thread, so that all writes of an operation are queued before the writer task runs and are
/// committed as one group in one transaction.
fn block_on_one_thread<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn store_recovers_from_crashes(steps in prop::collection::vec(step(), 1..40)) {
        block_on_one_thread(async {
            let mut run = Run::new().await;
            for step in &steps {
                run.step(step).await;
            }
            run.store.close().await.unwrap();
        });
    }
}
