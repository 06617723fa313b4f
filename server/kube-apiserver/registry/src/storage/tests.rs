//! Behaviour of a store for its readers, writers and watchers.

use std::pin::pin;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use rstest::rstest;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::index::Index;
use super::journal::Entry;
use super::*;
use crate::error::Error;

fn body(name: &str, n: u64) -> Body {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": n.to_string()}});
    Body::encode(&object).unwrap()
}

fn write(name: &str, precondition: Precondition, body: Option<Body>) -> Write {
    Write { table: ResourceKey::new("", "configmaps"), key: ObjectKey::new("ns", name), precondition, body }
}

fn names(listing: &Listing) -> Vec<&str> {
    listing.records.iter().map(|r| r.key.name()).collect()
}

/// Limits with which an idle store advances soon after a list.
fn short_expiry_interval() -> HistoryLimits {
    HistoryLimits { expiry_interval: Duration::from_millis(1), ..HistoryLimits::default() }
}

/// Lists the first of several objects.
fn list_first_page(store: &Store) {
    let page = ListRange { limit: 1, ..ListRange::ALL };
    let listing = store.list(&ResourceKey::new("", "configmaps"), "", page).unwrap();
    assert!(listing.remaining > 0);
}

async fn open_in_memory() -> Store {
    Store::open(Box::new(MemoryJournal), HistoryLimits::default()).await.unwrap()
}

#[tokio::test]
async fn writes_are_compared_and_ordered() {
    let store = open_in_memory().await;
    let first = store.write(write("a", Precondition::Absent, Some(body("a", 1)))).await.unwrap();
    assert!(matches!(
        store.write(write("a", Precondition::Absent, Some(body("a", 2)))).await,
        Err(Error::AlreadyExists)
    ));
    let second = store.write(write("a", Precondition::Revision(first), Some(body("a", 2)))).await.unwrap();
    assert!(second > first);
    let stale = store.write(write("a", Precondition::Revision(first), None)).await;
    assert!(matches!(stale, Err(Error::Conflict { current }) if current == second));
    store.write(write("a", Precondition::Revision(second), None)).await.unwrap();
    assert!(matches!(store.write(write("a", Precondition::Revision(second), None)).await, Err(Error::NotFound)));
}

#[tokio::test]
async fn lists_see_older_revisions_until_compaction() {
    let store = open_in_memory().await;
    let table = ResourceKey::new("", "configmaps");
    let mut revisions = Vec::new();
    for name in ["a", "b", "c"] {
        revisions.push(store.write(write(name, Precondition::Absent, Some(body(name, 0)))).await.unwrap());
    }
    store.write(write("a", Precondition::Revision(revisions[0]), None)).await.unwrap();
    assert_eq!(names(&store.list(&table, "ns", ListRange { limit: 10, ..ListRange::ALL }).unwrap()), ["b", "c"]);
    assert_eq!(
        names(&store.list(&table, "ns", ListRange { at: Some(revisions[1]), limit: 10, ..ListRange::ALL }).unwrap()),
        ["a", "b"]
    );
    let page = store
        .list(&table, "", ListRange { at: Some(revisions[2]), after: Some(&ObjectKey::new("ns", "a")), limit: 1 })
        .unwrap();
    assert_eq!((names(&page), page.remaining), (vec!["b"], 1));
    store.compact(revisions[2]);
    assert!(matches!(
        store.list(&table, "ns", ListRange { at: Some(revisions[1]), limit: 10, ..ListRange::ALL }),
        Err(Error::Expired { .. })
    ));
    assert!(matches!(store.watch(&table, revisions[1]), Err(Error::Expired { .. })));
}

#[test]
fn the_first_object_of_each_other_version_is_found() {
    let mut index = Index::new(0, HistoryLimits::default());
    let table = ResourceKey::new("example.com", "cars");
    let key = |name: &str| ObjectKey::new("ns", name);
    let car = |name: &str, version: &str| {
        let object = json!({"apiVersion": format!("example.com/{version}"), "kind": "Car", "metadata": {"name": name}});
        Body::encode(&object).unwrap()
    };
    for name in ["b", "d"] {
        index.load(table.clone(), key(name), 0, car(name, "v1"));
    }
    let steps = [
        ("d", Some("v1"), [&["b"][..], &[]]),
        ("c", Some("v2"), [&["b"], &["c"]]),
        ("a", Some("v2"), [&["b"], &["a"]]),
        ("b", Some("v2"), [&["d"], &["a"]]),
        ("a", None, [&["d"], &["b"]]),
        ("b", Some("v1"), [&["b"], &["c"]]),
        ("c", Some("v1"), [&["b"], &[]]),
        ("b", Some("v3"), [&["b", "c"], &["b"]]),
        ("c", None, [&["b", "d"], &["b"]]),
        ("d", None, [&["b"], &["b"]]),
        ("b", None, [&[], &[]]),
    ];
    for (revision, (name, version, expected)) in (1..).zip(steps) {
        index.apply(&table, &key(name), revision, version.map(|version| car(name, version)), Instant::now());
        // First objects that are not stored in v2, and in v1.
        let found = ["example.com/v2", "example.com/v1"].map(|version| index.first_of_other_versions(&table, version));
        let names = found.each_ref().map(|records| records.iter().map(|record| record.key.name()).collect::<Vec<_>>());
        assert_eq!(names, expected, "{name} {version:?}");
    }
}

#[test]
fn large_histories_expire_without_new_changes() {
    let mut index = Index::new(0, HistoryLimits::default());
    let [large, small] = ["configmaps", "secrets"].map(|resource| ResourceKey::new("", resource));
    let (key, start) = (ObjectKey::new("ns", "a"), Instant::now());
    for revision in 1..=40_u64 {
        // Text that hardly compresses.
        let word = |nth: u64| format!("{:016x}", (revision << 32 | nth).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let text: String = (1..4_096).map(word).collect();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"t": text}});
        index.apply(&large, &key, revision, Some(Body::encode(&object).unwrap()), start);
    }
    index.apply(&small, &key, 41, Some(body("a", 1)), start);
    let count = |index: &Index, table, since| index.changes(table, since, 100).map(|changes| changes.len()).ok();
    index.expire_history(start);
    assert_eq!((count(&index, &large, 0), count(&index, &small, 40)), (Some(40), Some(1)));
    index.expire_history(start + HistoryLimits::default().max_age + Duration::from_secs(1));
    // Watchers that have received the last change continue.
    assert_eq!((count(&index, &large, 39), count(&index, &large, 40)), (None, Some(0)));
    assert_eq!(count(&index, &small, 40), Some(1));
}

/// Also of a table that has not changed since: clients rely on the 410 to continue at a newer revision.
#[test]
fn lists_at_old_revisions_expire() {
    let mut index = Index::new(0, HistoryLimits::default());
    let [listed, other] = ["configmaps", "secrets"].map(|resource| ResourceKey::new("", resource));
    let (key, start, max_age) = (ObjectKey::new("ns", "a"), Instant::now(), HistoryLimits::default().max_age);
    index.apply(&listed, &key, 1, Some(body("a", 1)), start);
    index.expire_history(start);
    index.apply(&other, &key, 2, Some(body("a", 1)), start + max_age / 2);
    index.expire_history(start + max_age / 2);
    let is_listed = |index: &Index, at| index.list(&listed, "", ListRange { at, ..ListRange::ALL }).is_ok();
    assert!(is_listed(&index, Some(1)));
    index.apply(&other, &key, 3, Some(body("a", 2)), start + max_age * 2);
    index.expire_history(start + max_age * 2);
    assert_eq!([Some(1), Some(2), Some(3), None].map(|at| is_listed(&index, at)), [false, true, true, true]);
    assert_eq!(index.changes(&listed, 1, 10).map(|changes| changes.len()).ok(), Some(0));
}

/// Without writes, the listed revision would remain the current one, and its continue tokens would never expire.
#[test]
fn continue_tokens_of_an_idle_server_expire() {
    let mut index = Index::new(0, HistoryLimits::default());
    let table = ResourceKey::new("", "configmaps");
    let (start, max_age) = (Instant::now(), HistoryLimits::default().max_age);
    for (revision, name) in [(1, "a"), (2, "b")] {
        index.apply(&table, &ObjectKey::new("ns", name), revision, Some(body(name, 1)), start);
    }
    let list = |index: &Index, at, limit| index.list(&table, "", ListRange { at, limit, ..ListRange::ALL }).is_ok();
    assert!(list(&index, None, 2));
    assert_eq!(index.next_idle_revision(), None, "a complete list has no token");
    assert!(list(&index, None, 1));
    assert_eq!(index.next_idle_revision(), Some(3));
    index.advance(3);
    assert_eq!((index.revision(), index.next_idle_revision()), (3, None));
    index.expire_history(start);
    assert!(list(&index, Some(2), 1));
    assert_eq!(index.next_idle_revision(), None, "the listed revision is older than the current one");
    index.expire_history(start + max_age * 2);
    assert_eq!([Some(2), Some(3), None].map(|at| list(&index, at, 1)), [false, true, true]);
    assert_eq!(index.changes(&table, 2, 10).map(|changes| changes.len()).ok(), Some(0), "watches continue");
}

#[tokio::test]
async fn an_idle_store_advances_after_a_list_with_further_pages() {
    let store = Store::open(Box::new(MemoryJournal), short_expiry_interval()).await.unwrap();
    for name in ["a", "b"] {
        store.write(write(name, Precondition::Absent, Some(body(name, 1)))).await.unwrap();
    }
    let revision = store.revision();
    list_first_page(&store);
    timeout(Duration::from_secs(60), store.wait_for_revision(revision + 1)).await.unwrap();
    let last = store.write(write("c", Precondition::Absent, Some(body("c", 1)))).await.unwrap();
    assert_eq!(last, revision + 2);
}

#[tokio::test]
async fn refused_writes_do_not_defer_the_expiry_of_continue_tokens() {
    let store = Store::open(Box::new(MemoryJournal), short_expiry_interval()).await.unwrap();
    for name in ["a", "b"] {
        store.write(write(name, Precondition::Absent, Some(body(name, 1)))).await.unwrap();
    }
    let revision = store.revision();
    list_first_page(&store);
    let refuse_writes = async {
        while let Err(error) = store.write(write("a", Precondition::Absent, Some(body("a", 2)))).await {
            assert!(matches!(error, Error::AlreadyExists), "{error}");
        }
    };
    let advance = async {
        tokio::select! {
            () = store.wait_for_revision(revision + 1) => {}
            () = refuse_writes => panic!("an existing object was created"),
        }
    };
    timeout(Duration::from_secs(60), advance).await.unwrap();
}

/// Journal that fails a number of commits without writes.
struct FailingIdleJournal {
    failures: usize,
    failed: Arc<Semaphore>,
}

#[async_trait]
impl Journal for FailingIdleJournal {
    async fn load(&mut self) -> crate::error::Result<Snapshot> {
        MemoryJournal.load().await
    }

    async fn commit(&mut self, entries: &[Entry], _revision: Revision) -> crate::error::Result<()> {
        if self.failures == 0 || !entries.is_empty() {
            return Ok(());
        }
        self.failures -= 1;
        self.failed.add_permits(1);
        Err(Error::WritesDisabled("the disk is full".into()))
    }

    async fn close(self: Box<Self>) -> crate::error::Result<()> {
        Ok(())
    }
}

#[rstest]
#[case::retry(2, false)]
#[case::write_at_the_same_revision(usize::MAX, true)]
#[tokio::test]
async fn a_failed_idle_commit_does_not_disable_writes(#[case] failures: usize, #[case] writes: bool) {
    let failed = Arc::new(Semaphore::new(0));
    let journal = FailingIdleJournal { failures, failed: failed.clone() };
    let store = Store::open(Box::new(journal), short_expiry_interval()).await.unwrap();
    for name in ["a", "b"] {
        store.write(write(name, Precondition::Absent, Some(body(name, 1)))).await.unwrap();
    }
    let revision = store.revision();
    list_first_page(&store);
    timeout(Duration::from_secs(60), failed.acquire_many(2)).await.unwrap().unwrap().forget();
    assert_eq!(store.failure(), None);
    if writes {
        let next = store.write(write("c", Precondition::Absent, Some(body("c", 1)))).await.unwrap();
        assert_eq!(next, revision + 1);
    }
    timeout(Duration::from_secs(60), store.wait_for_revision(revision + 1)).await.unwrap();
}

#[tokio::test]
async fn watchers_get_each_change_once_and_in_order() {
    let store = open_in_memory().await;
    let table = ResourceKey::new("", "configmaps");
    let start = store.revision();
    let first = store.write(write("a", Precondition::Absent, Some(body("a", 1)))).await.unwrap();
    let mut watcher = store.watch(&table, start).unwrap();
    assert_eq!(watcher.next().await.unwrap()[0].kind, ChangeKind::Added);
    let second = store.write(write("a", Precondition::Revision(first), Some(body("a", 2)))).await.unwrap();
    let third = store.write(write("a", Precondition::Revision(second), None)).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(watcher.next().await.unwrap().iter().map(|c| (c.kind, c.revision)));
    }
    assert_eq!(seen, [(ChangeKind::Modified, second), (ChangeKind::Deleted, third)]);
    assert_eq!(watcher.position(), third);
}

#[rstest]
#[case::few(49, 0)]
#[case::some(50, 1)]
#[case::many(200, 4)]
#[case::at_the_limit(3_000, 50)]
fn many_watchers_are_woken_at_intervals(#[case] count: usize, #[case] milliseconds: u64) {
    let (table, key, start) = (ResourceKey::new("", "configmaps"), ObjectKey::new("ns", "a"), Instant::now());
    let mut index = Index::new(0, HistoryLimits::default());
    let mut watchers: Vec<_> = (0..count).map(|_| index.subscribe(&table)).collect();
    index.apply(&table, &key, 1, Some(body("a", 1)), start);
    assert_eq!(index.wake(&table, start), None, "the first wake-up is not deferred");
    assert!(watchers.iter_mut().all(|watcher| *watcher.borrow_and_update() == 1));
    index.apply(&table, &key, 2, Some(body("a", 2)), start);
    let due = start + Duration::from_millis(milliseconds);
    let is_deferred = milliseconds > 0;
    assert_eq!(index.wake(&table, start), is_deferred.then_some(due));
    assert!(watchers.iter().all(|watcher| watcher.has_changed().unwrap() != is_deferred));
    assert_eq!(index.wake(&table, due), None);
    assert!(watchers.iter_mut().all(|watcher| *watcher.borrow_and_update() == 2));
}

#[tokio::test]
async fn many_watchers_get_all_of_many_changes() {
    let store = open_in_memory().await;
    let table = ResourceKey::new("", "configmaps");
    let mut watchers: Vec<Watcher> = (0..200).map(|_| store.watch(&table, store.revision()).unwrap()).collect();
    let mut revisions = Vec::new();
    for name in (0..20).map(|nth| format!("map-{nth}")) {
        revisions.push(store.write(write(&name, Precondition::Absent, Some(body(&name, 1)))).await.unwrap());
    }
    for watcher in &mut watchers {
        let mut seen = Vec::new();
        while seen.last() != revisions.last() {
            seen.extend(watcher.next().await.unwrap().iter().map(|change| change.revision));
        }
        assert_eq!(seen, revisions);
    }
    // The wake-up for the last changes is not lost if the watchers have to wait for it.
    let last = store.write(write("last", Precondition::Absent, Some(body("last", 1)))).await.unwrap();
    for watcher in &mut watchers {
        assert_eq!(watcher.next().await.unwrap()[0].revision, last);
    }
}

/// Watchers that were just woken for the first change of the table.
async fn woken_watchers(store: &Store, table: &ResourceKey, count: usize) -> Vec<Watcher> {
    let mut watchers: Vec<Watcher> = (0..count).map(|_| store.watch(table, store.revision()).unwrap()).collect();
    let first = store.write(write("first", Precondition::Absent, Some(body("first", 1)))).await.unwrap();
    for watcher in &mut watchers {
        assert_eq!(watcher.next().await.unwrap()[0].revision, first);
    }
    watchers
}

/// Journal whose commits each take a permit.
struct GatedJournal(Arc<Semaphore>);

#[async_trait]
impl Journal for GatedJournal {
    async fn load(&mut self) -> crate::error::Result<Snapshot> {
        MemoryJournal.load().await
    }

    async fn commit(&mut self, _entries: &[Entry], _revision: Revision) -> crate::error::Result<()> {
        self.0.acquire().await.unwrap().forget();
        Ok(())
    }

    async fn close(self: Box<Self>) -> crate::error::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn many_watchers_do_not_wait_for_the_next_commit() {
    let (table, permits) = (ResourceKey::new("", "configmaps"), Arc::new(Semaphore::new(2)));
    let store = Store::open(Box::new(GatedJournal(permits.clone())), HistoryLimits::default()).await.unwrap();
    let mut watchers = woken_watchers(&store, &table, 3_000).await;
    let second = store.write(write("second", Precondition::Absent, Some(body("second", 1)))).await.unwrap();
    let mut third = pin!(store.write(write("third", Precondition::Absent, Some(body("third", 1)))));
    assert!(third.as_mut().now_or_never().is_none(), "the commit waits for a permit");
    for watcher in &mut watchers {
        let changes = timeout(Duration::from_secs(60), watcher.next()).await.expect("the watcher is woken");
        assert_eq!(changes.unwrap()[0].revision, second);
    }
    permits.add_permits(1);
    third.await.unwrap();
}

#[tokio::test]
async fn many_watchers_do_not_wait_for_an_idle_commit() {
    let (table, permits) = (ResourceKey::new("", "configmaps"), Arc::new(Semaphore::new(2)));
    let store = Store::open(Box::new(GatedJournal(permits.clone())), short_expiry_interval()).await.unwrap();
    let mut watchers = woken_watchers(&store, &table, 3_000).await;
    let second = store.write(write("second", Precondition::Absent, Some(body("second", 1)))).await.unwrap();
    list_first_page(&store);
    for watcher in &mut watchers {
        let changes = timeout(Duration::from_secs(60), watcher.next()).await.expect("the watcher is woken");
        assert_eq!(changes.unwrap()[0].revision, second);
    }
    assert_eq!(store.revision(), second, "the idle commit waits for a permit");
    permits.add_permits(1);
    timeout(Duration::from_secs(60), store.wait_for_revision(second + 1)).await.unwrap();
}

#[tokio::test]
async fn closing_wakes_all_watchers() {
    let (store, table) = (open_in_memory().await, ResourceKey::new("", "configmaps"));
    let mut watchers = woken_watchers(&store, &table, 1_000).await;
    let second = store.write(write("second", Precondition::Absent, Some(body("second", 1)))).await.unwrap();
    // The interval of more watchers is longer than the one for which the wake-up was deferred.
    let more: Vec<Watcher> = (0..2_000).map(|_| store.watch(&table, second).unwrap()).collect();
    store.close().await.unwrap();
    for watcher in &mut watchers {
        let changes = watcher.next().now_or_never().expect("the watcher is woken");
        assert_eq!(changes.unwrap()[0].revision, second);
    }
    drop(more);
}

#[tokio::test]
async fn batches_of_many_groups_leave_the_data_of_other_changes() {
    let (store, table) = (open_in_memory().await, ResourceKey::new("", "configmaps"));
    let since = store.revision();
    for name in ["a", "b"] {
        store.write(write(name, Precondition::Absent, Some(body(name, 1)))).await.unwrap();
    }
    let changes = store.watch(&table, since).unwrap().next().await.unwrap();
    let [first, last] = &changes[..] else { panic!("{changes:?}") };
    let line = || {
        let key = LineKey { event: "ADDED", representation: "v1 json".into(), first: false };
        first.cache.line(key, None)
    };
    line().set(Bytes::from_static(b"line")).unwrap();
    let cache = EventCache::default();
    cache.retain(first, 4);
    for group in 0..10_000 {
        let batch = last.cache.batch(BatchKey { first: first.revision, group });
        assert!(batch.set(Bytes::new()).is_ok(), "each group has its own batch");
        cache.retain(last, 100);
    }
    assert!(line().initialized());
    cache.retain(last, 8 << 20);
    assert!(!line().initialized(), "the data of the oldest change is dropped above the limit");
}

#[tokio::test]
async fn sqlite_persists_writes_and_is_locked() {
    let directory = tempfile::tempdir().unwrap();
    let open_journal = || async { SqliteJournal::open(directory.path(), Durability::Process).await };
    let store = Store::open(Box::new(open_journal().await.unwrap()), HistoryLimits::default()).await.unwrap();
    let revision = store.write(write("a", Precondition::Absent, Some(body("a", 7)))).await.unwrap();
    assert!(matches!(open_journal().await, Err(Error::Locked { .. })));
    store.close().await.unwrap();
    let store = Store::open(Box::new(open_journal().await.unwrap()), HistoryLimits::default()).await.unwrap();
    assert_eq!(store.revision(), revision);
    let record = store.get(&ResourceKey::new("", "configmaps"), &ObjectKey::new("ns", "a")).unwrap();
    let object = record.body.decode(record.revision).unwrap();
    assert_eq!(object["data"]["n"], "7");
    assert_eq!(object["metadata"]["resourceVersion"], revision.to_string());
    store.close().await.unwrap();
}

#[tokio::test]
async fn newer_data_is_refused() {
    use sqlx::{Connection, Executor};
    let directory = tempfile::tempdir().unwrap();
    drop(SqliteJournal::open(directory.path(), Durability::Process).await.unwrap());
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(directory.path().join("objects.db"));
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    connection.execute("PRAGMA user_version = 99").await.unwrap();
    connection.close().await.unwrap();
    let error = SqliteJournal::open(directory.path(), Durability::Process).await.unwrap_err();
    assert!(matches!(error, Error::NewerData { found: 99, .. }), "{error}");
}

#[tokio::test]
async fn write_all_returns_a_result_per_write() {
    let store = open_in_memory().await;
    let writes = ["a", "b", "a"].map(|name| write(name, Precondition::Absent, Some(body(name, 1)))).into();
    let outcomes = store.write_all(writes).await.unwrap();
    assert!(matches!(outcomes.as_slice(), [Ok(first), Ok(second), Err(Error::AlreadyExists)] if first < second));
    let table = ResourceKey::new("", "configmaps");
    assert_eq!(names(&store.list(&table, "ns", ListRange { limit: 10, ..ListRange::ALL }).unwrap()), ["a", "b"]);
}

#[test]
fn bodies_from_text_and_from_objects_are_equal() {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}, "spec": {}});
    let text = br#"{"metadata":{"name":"a","namespace":"ns"},"spec":{}}"#;
    assert!(Body::from_text(text, "v1", "ConfigMap").unwrap().is_same_object(&Body::encode(&object).unwrap()));
    assert!(Body::from_text(br#"{"spec":{},"metadata":{"name":"a"}}"#, "v1", "ConfigMap").is_err());
}
