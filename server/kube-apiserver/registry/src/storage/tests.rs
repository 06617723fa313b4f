//! Behaviour of a store for its readers, writers and watchers.

use std::time::{Duration, Instant};

use serde_json::json;

use super::index::Index;
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
fn the_first_object_of_each_other_version_is_known() {
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

#[tokio::test]
async fn sqlite_persists_writes_and_is_locked() {
    let directory = tempfile::tempdir().unwrap();
    let open = || async { SqliteJournal::open(directory.path(), Durability::Process).await };
    let store = Store::open(Box::new(open().await.unwrap()), HistoryLimits::default()).await.unwrap();
    let revision = store.write(write("a", Precondition::Absent, Some(body("a", 7)))).await.unwrap();
    assert!(matches!(open().await, Err(Error::Locked { .. })));
    store.close().await.unwrap();
    let store = Store::open(Box::new(open().await.unwrap()), HistoryLimits::default()).await.unwrap();
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
