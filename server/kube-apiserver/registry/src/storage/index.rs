//! In-memory index of all objects and their recent history: an ordered table and a change log per resource. Does no
//! I/O; `store` guards it with a lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::storage::event_cache::ChangeCache;
use crate::storage::{Body, ObjectKey, ResourceKey, Revision};

/// History that each table retains for watches and paged lists. Compaction starts when any limit is exceeded.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLimits {
    pub max_changes: usize,
    pub max_bytes: usize,
    pub max_age: Duration,
    /// Interval at which history expires, with or without new changes.
    pub expiry_interval: Duration,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            max_changes: 50_000,
            max_bytes: 24 << 20,
            max_age: Duration::from_secs(300),
            expiry_interval: Duration::from_secs(30),
        }
    }
}

/// Size of a history in bytes up to which it does not expire until its table changes.
const MAX_IDLE_HISTORY_BYTES: usize = 1 << 20;
/// Minimum time between wake-ups of a table's watchers, per watcher: about the time in which one sends its changes.
const WAKE_INTERVAL_PER_WATCHER: Duration = Duration::from_micros(20);
/// Wake-ups with a shorter interval are not deferred, because timers are not more precise.
const MIN_WAKE_INTERVAL: Duration = Duration::from_millis(1);
/// Upper limit of the minimum time between wake-ups, for any number of watchers.
pub const MAX_WAKE_INTERVAL: Duration = Duration::from_millis(50);
/// Number of newest changes that are scanned linearly before a binary search.
const LINEAR_SCAN_CHANGES: usize = 8;

/// An object at the revision that wrote it.
#[derive(Debug, Clone)]
pub struct Record {
    pub key: ObjectKey,
    pub revision: Revision,
    pub body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// A committed write. For `Deleted`, the body is the last state and the revision that of the delete.
#[derive(Debug)]
pub struct Change {
    pub kind: ChangeKind,
    pub key: ObjectKey,
    pub revision: Revision,
    pub body: Body,
    /// The previous state; `None` for `Added`.
    pub previous: Option<(Revision, Body)>,
    committed_at: Instant,
    pub cache: ChangeCache,
}

impl Change {
    fn size(&self) -> usize {
        self.body.size() + self.previous.as_ref().map_or(0, |(_, b)| b.size()) + self.key.as_str().len() + 160
    }
}

/// Range of a listing.
#[derive(Debug, Clone, Copy)]
pub struct ListRange<'k> {
    /// An older revision; `None` means the current one.
    pub at: Option<Revision>,
    /// Only objects after this key.
    pub after: Option<&'k ObjectKey>,
    pub limit: usize,
}

impl ListRange<'_> {
    /// All current objects.
    pub const ALL: Self = Self { at: None, after: None, limit: usize::MAX };
}

/// Part of a table at one revision.
#[derive(Debug)]
pub struct Listing {
    pub records: Vec<Record>,
    pub revision: Revision,
    /// Number of objects beyond `limit`.
    pub remaining: usize,
}

/// A version in which objects of a table are stored.
#[derive(Debug)]
struct StoredVersion {
    api_version: Box<str>,
    /// Key of the first of these objects.
    first: ObjectKey,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<ObjectKey, Record>,
    /// The versions of all objects, kept so that requests do not scan the table for them.
    versions: Vec<StoredVersion>,
    changes: VecDeque<Arc<Change>>,
    /// Size of the changes in bytes.
    bytes: usize,
    /// Revisions below this one can no longer be watched or listed.
    oldest: Revision,
    /// Revision of the last change of this table.
    last_change: Revision,
    progress: watch::Sender<Revision>,
    /// Time of the last wake-up of the watchers.
    woken_at: Option<Instant>,
}

impl Table {
    fn new(oldest: Revision) -> Self {
        Self {
            objects: BTreeMap::new(),
            versions: Vec::new(),
            changes: VecDeque::new(),
            bytes: 0,
            oldest,
            last_change: 0,
            progress: watch::Sender::new(0),
            woken_at: None,
        }
    }

    /// Stores an object; returns the one that it replaces.
    fn insert(&mut self, record: Record) -> Option<Record> {
        let (key, body) = (record.key.clone(), record.body.clone());
        match self.versions.iter_mut().find(|version| *version.api_version == *body.api_version()) {
            Some(version) if version.first <= key => {}
            Some(version) => version.first = key.clone(),
            None => {
                self.versions.push(StoredVersion { api_version: body.api_version().into(), first: key.clone() });
            }
        }
        let replaced = self.objects.insert(key, record);
        if let Some(replaced) = replaced.as_ref().filter(|replaced| replaced.body.api_version() != body.api_version()) {
            self.update_first(replaced);
        }
        replaced
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Record> {
        let removed = self.objects.remove(key)?;
        self.update_first(&removed);
        Some(removed)
    }

    /// Finds the first object of a version again if this record was it. Usually the next object has the same version.
    fn update_first(&mut self, removed: &Record) {
        let api_version = removed.body.api_version();
        let is_first = |version: &StoredVersion| *version.api_version == *api_version && version.first == removed.key;
        let Some(at) = self.versions.iter().position(is_first) else { return };
        let mut later = self.objects.range::<ObjectKey, _>((Bound::Excluded(&removed.key), Bound::Unbounded));
        match later.find(|(_, record)| record.body.api_version() == api_version) {
            Some((key, _)) => self.versions[at].first = key.clone(),
            None => {
                self.versions.swap_remove(at);
            }
        }
    }

    fn compact(&mut self, limits: &HistoryLimits, now: Instant) {
        while let Some(first) = self.changes.front()
            && (self.changes.len() > limits.max_changes
                || self.bytes > limits.max_bytes
                || now.saturating_duration_since(first.committed_at) > limits.max_age)
        {
            self.oldest = first.revision;
            self.bytes -= first.size();
            self.changes.pop_front();
        }
    }

    /// Minimum time between wake-ups of the watchers.
    fn wake_interval(&self) -> Duration {
        let watchers = u32::try_from(self.progress.receiver_count()).unwrap_or(u32::MAX);
        let interval = WAKE_INTERVAL_PER_WATCHER.saturating_mul(watchers).min(MAX_WAKE_INTERVAL);
        if interval < MIN_WAKE_INTERVAL { Duration::ZERO } else { interval }
    }

    fn range(&self, namespace: &str, after: Option<&ObjectKey>) -> impl Iterator<Item = &Record> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let start = match after {
            Some(key) => Bound::Excluded(key.as_str().to_owned()),
            None => Bound::Included(prefix.clone()),
        };
        self.objects
            .range::<str, _>((start.as_ref().map(String::as_str), Bound::Unbounded))
            .take_while(move |(key, _)| key.as_str().starts_with(&prefix))
            .map(|(_, record)| record)
    }
}

/// All tables and the current revision.
#[derive(Debug)]
pub struct Index {
    tables: HashMap<ResourceKey, Table>,
    revision: Revision,
    /// The revision at which the index was loaded; older ones cannot be watched.
    floor: Revision,
    limits: HistoryLimits,
    /// Times of [`Index::expire_history`] within the last `max_age`, with the revision at that time, oldest first.
    recent_revisions: VecDeque<(Instant, Revision)>,
    /// Lists at older revisions have expired, also of tables that have not changed since: in kube-apiserver, etcd's
    /// compaction ends them.
    snapshot_floor: Revision,
    /// Newest revision at which a list had further pages; 0 if there was none. If it is the current one, the continue
    /// token of that list expires only if the revision advances.
    ///
    /// Lists raise it while they hold the lock of the index for reading, so it is atomic and never reset. `Relaxed` is
    /// sufficient: no other memory depends on it, and [`Index::next_idle_revision`] is called again if it misses a
    /// concurrent list.
    paged_revision: AtomicU64,
}

impl Index {
    pub fn new(revision: Revision, limits: HistoryLimits) -> Self {
        Self {
            tables: HashMap::new(),
            revision,
            floor: revision,
            limits,
            recent_revisions: VecDeque::new(),
            snapshot_floor: 0,
            paged_revision: AtomicU64::new(0),
        }
    }

    pub fn load(&mut self, table: ResourceKey, key: ObjectKey, revision: Revision, body: Body) {
        let table = self.tables.entry(table).or_insert_with(|| Table::new(self.floor));
        table.last_change = table.last_change.max(revision);
        table.insert(Record { key, revision, body });
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Revision of the newest change of a table; caches compare it.
    pub fn last_change(&self, table: &ResourceKey) -> Revision {
        self.tables.get(table).map_or(0, |t| t.last_change)
    }

    pub fn get(&self, table: &ResourceKey, key: &ObjectKey) -> Option<&Record> {
        self.tables.get(table)?.objects.get(key)
    }

    pub fn count(&self, table: &ResourceKey) -> usize {
        self.tables.get(table).map_or(0, |t| t.objects.len())
    }

    /// The first object of a table in each version in which objects are stored, except `api_version`.
    pub fn first_of_other_versions(&self, table: &ResourceKey, api_version: &str) -> Vec<Record> {
        let Some(table) = self.tables.get(table) else { return Vec::new() };
        let others = table.versions.iter().filter(|version| *version.api_version != *api_version);
        let mut first: Vec<Record> = others.filter_map(|version| table.objects.get(&version.first).cloned()).collect();
        first.sort_by(|left, right| left.key.cmp(&right.key));
        first
    }

    /// Tables that have changed after `since`.
    pub fn changed_tables(&self, since: Revision) -> Vec<ResourceKey> {
        self.tables.iter().filter(|(_, table)| table.last_change > since).map(|(key, _)| key.clone()).collect()
    }

    pub fn tables(&self) -> impl Iterator<Item = (&ResourceKey, usize)> {
        self.tables.iter().map(|(key, table)| (key, table.objects.len()))
    }

    /// Applies a committed write. `body` is `None` for the delete of an existing object.
    pub fn apply(
        &mut self,
        table: &ResourceKey,
        key: &ObjectKey,
        revision: Revision,
        body: Option<Body>,
        now: Instant,
    ) {
        let floor = self.floor;
        let table = self.tables.entry(table.clone()).or_insert_with(|| Table::new(floor));
        let previous = match &body {
            Some(body) => table.insert(Record { key: key.clone(), revision, body: body.clone() }),
            None => table.remove(key),
        }
        .map(|record| (record.revision, record.body));
        self.revision = revision;
        table.last_change = revision;
        let (kind, body) = match (body, &previous) {
            (Some(body), None) => (ChangeKind::Added, body),
            (Some(body), Some(_)) => (ChangeKind::Modified, body),
            (None, Some((_, last))) => (ChangeKind::Deleted, last.clone()),
            (None, None) => return,
        };
        let change = Change {
            kind,
            key: key.clone(),
            revision,
            body,
            previous,
            committed_at: now,
            cache: ChangeCache::default(),
        };
        table.bytes += change.size();
        table.changes.push_back(Arc::new(change));
        table.compact(&self.limits, now);
    }

    /// Expires lists at revisions older than the maximum age. Drops history beyond the limits from tables that no
    /// longer change, if it is large: after a burst it would use memory until their next change. Called once in
    /// [`HistoryLimits::expiry_interval`].
    pub fn expire_history(&mut self, now: Instant) {
        self.recent_revisions.push_back((now, self.revision));
        while let Some((at, revision)) = self.recent_revisions.front()
            && now.saturating_duration_since(*at) > self.limits.max_age
        {
            self.snapshot_floor = *revision;
            self.recent_revisions.pop_front();
        }
        for table in self.tables.values_mut().filter(|table| table.bytes > MAX_IDLE_HISTORY_BYTES) {
            table.compact(&self.limits, now);
        }
    }

    /// Next revision of a server without writes. The server must advance to it, so that continue tokens of the current
    /// revision expire; `None` if there are no such tokens. In kube-apiserver, each compaction writes to etcd and so
    /// advances the revision.
    pub fn next_idle_revision(&self) -> Option<Revision> {
        (self.paged_revision.load(Ordering::Relaxed) == self.revision).then_some(self.revision + 1)
    }

    /// Sets a newer revision, at which no object has changed.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = revision;
    }

    /// Wakes the watchers of a table. Returns the time of the next attempt instead if they were woken less than their
    /// interval ago: changes until then are sent together, which takes less time than sending each of them.
    pub fn wake(&mut self, table: &ResourceKey, now: Instant) -> Option<Instant> {
        let table = self.tables.get_mut(table)?;
        let due = table.woken_at.map(|at| at + table.wake_interval()).filter(|due| *due > now);
        if due.is_none() {
            table.woken_at = Some(now);
            table.progress.send_replace(self.revision);
        }
        due
    }

    pub fn subscribe(&mut self, table: &ResourceKey) -> watch::Receiver<Revision> {
        let floor = self.floor;
        self.tables.entry(table.clone()).or_insert_with(|| Table::new(floor)).progress.subscribe()
    }

    /// Up to `limit` changes after `since`, oldest first.
    pub fn changes(&self, table: &ResourceKey, since: Revision, limit: usize) -> Result<Vec<Arc<Change>>> {
        let Some(table) = self.tables.get(table) else {
            return self.check_retained(self.floor, since).map(|()| Vec::new());
        };
        self.check_retained(table.oldest, since)?;
        // Most watchers need only the last few changes.
        let recent = table.changes.iter().rev().take(LINEAR_SCAN_CHANGES).position(|c| c.revision <= since);
        let from = match recent {
            Some(newer) => table.changes.len() - newer,
            None => table.changes.partition_point(|c| c.revision <= since),
        };
        Ok(table.changes.iter().skip(from).take(limit).cloned().collect())
    }

    fn check_retained(&self, oldest: Revision, requested: Revision) -> Result<()> {
        if requested < oldest { Err(Error::Expired { requested, oldest }) } else { Ok(()) }
    }

    /// A page of the objects of one namespace (of all namespaces if empty).
    pub fn list(&self, table: &ResourceKey, namespace: &str, range: ListRange<'_>) -> Result<Listing> {
        let ListRange { at, after, limit } = range;
        let revision = at.unwrap_or(self.revision);
        self.check_retained(self.snapshot_floor, revision)?;
        let Some(stored) = self.tables.get(table) else {
            self.check_retained(self.floor, revision)?;
            return Ok(Listing { records: Vec::new(), revision, remaining: 0 });
        };
        if revision >= stored.last_change {
            let mut objects = stored.range(namespace, after);
            let records: Vec<Record> = objects.by_ref().take(limit).cloned().collect();
            let remaining = objects.count();
            if remaining > 0 {
                self.paged_revision.fetch_max(revision, Ordering::Relaxed);
            }
            return Ok(Listing { records, revision, remaining });
        }
        self.check_retained(stored.oldest, revision)?;
        let mut past_objects: BTreeMap<ObjectKey, Record> =
            stored.range(namespace, after).map(|r| (r.key.clone(), r.clone())).collect();
        for change in stored.changes.iter().rev().take_while(|c| c.revision > revision) {
            let in_namespace = namespace.is_empty() || change.key.namespace() == namespace;
            if !in_namespace || after.is_some_and(|a| &change.key <= a) {
                continue;
            }
            match &change.previous {
                Some((revision, body)) => {
                    let record = Record { key: change.key.clone(), revision: *revision, body: body.clone() };
                    past_objects.insert(change.key.clone(), record);
                }
                None => {
                    past_objects.remove(&change.key);
                }
            }
        }
        let remaining = past_objects.len().saturating_sub(limit);
        Ok(Listing { records: past_objects.into_values().take(limit).collect(), revision, remaining })
    }

    /// Drops history up to and including `revision`.
    pub fn compact(&mut self, revision: Revision) {
        self.floor = self.floor.max(revision);
        for table in self.tables.values_mut() {
            while let Some(first) = table.changes.front()
                && first.revision <= revision
            {
                table.bytes -= first.size();
                table.changes.pop_front();
            }
            table.oldest = table.oldest.max(revision);
        }
    }
}
