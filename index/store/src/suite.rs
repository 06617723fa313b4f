//! Tests that every backend must pass.

mod scans;
mod versions;

use super::codec::Codec;
use super::postgres::PostgresStore;
use super::sqlite::SqliteStore;
use super::{Batch, CompressedBody, LabelQuery, Position, Progress, RecordWrite, ReplayedChange, Scan, Store};
use crate::fixtures::{cluster, draft, resource_of};
use crate::postgres_server::Database;
use crate::record::{ChangeKind, CollectionKey, RecordKey, Seq};
use crate::{CacheOptions, Epoch, Error, HistoryRetention, PostgresOptions, StoreOptions};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Backend on which a test runs; every test runs on each.
#[derive(Debug, Clone, Copy)]
enum BackendKind {
    Sqlite,
    Postgres,
}

enum Location {
    Sqlite(tempfile::TempDir),
    Postgres(Database),
}

struct Backend {
    store: Arc<dyn Store>,
    codec: Arc<Codec>,
    location: Location,
}

impl Backend {
    /// None if the backend's server is not installed.
    async fn open(kind: BackendKind) -> Option<Self> {
        let location = match kind {
            BackendKind::Sqlite => Location::Sqlite(tempfile::tempdir().unwrap()),
            BackendKind::Postgres => Location::Postgres(Database::create().await?),
        };
        Some(Self::open_at(location, &[]).await.unwrap())
    }

    async fn open_at(location: Location, labels: &[&str]) -> Result<Self, Error> {
        let labels: Vec<String> = labels.iter().map(|key| (*key).to_owned()).collect();
        let codec = Arc::new(Codec::default());
        let store: Arc<dyn Store> = match &location {
            Location::Sqlite(directory) => {
                let options = CacheOptions { indexed_labels: labels, ..CacheOptions::new(directory.path()) };
                Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await?)
            }
            Location::Postgres(database) => {
                let options = PostgresOptions::new(database.url());
                let mut store = PostgresStore::open(&options, "suite", Arc::clone(&codec)).await?;
                store.index_labels(&labels).await?;
                Arc::new(store)
            }
        };
        Ok(Self { store, codec, location })
    }

    async fn reopen(self) -> Self {
        self.reopen_with(&[]).await
    }

    async fn reopen_with(self, labels: &[&str]) -> Self {
        drop(self.store);
        Self::open_at(self.location, labels).await.unwrap()
    }

    fn put(&self, object: &Value) -> RecordWrite {
        let draft = draft(object);
        let packed: CompressedBody = self.codec.pack("/Pod", &draft.body).unwrap().0;
        RecordWrite::Put(Box::new(draft), packed)
    }

    fn delete(namespace: &str, name: &str, version: &str) -> RecordWrite {
        RecordWrite::Delete { namespace: namespace.into(), name: name.into(), resource_version: version.into() }
    }

    async fn apply(&self, writes: Vec<RecordWrite>, version: &str) -> Vec<(u64, ChangeKind, String)> {
        let progress = Progress {
            resource_version: Some(version.to_owned()),
            kind: Some(("Pod".to_owned(), true)),
            ..Progress::default()
        };
        let batch = Batch { collection: pods(), epoch: Epoch::UNSHARED, writes, progress };
        let changes = self.store.apply(&[batch], 1000).await.unwrap();
        changes.into_iter().map(|c| (c.seq.0, c.kind, c.object.record.key.name.to_string())).collect()
    }

    async fn names(
        &self,
        namespaces: Option<&[&str]>,
        limit: usize,
        is_selected: &dyn Fn(&str) -> bool,
    ) -> Vec<String> {
        let selected: BTreeSet<String> =
            ["a", "b", "c", "d", "e"].iter().filter(|n| is_selected(n)).map(|n| (*n).to_owned()).collect();
        let mut scan = Scan {
            collection: pods(),
            namespaces: namespaces.map(|all| all.iter().map(|n| (*n).to_owned()).collect()),
            after: None,
            labels: None,
        };
        let mut names = Vec::new();
        loop {
            let keep = |record: &crate::Record| Ok(selected.contains(&*record.key.name));
            let (records, next) = self.store.records(&scan, &keep, limit).await.unwrap();
            assert!(records.len() <= limit);
            names.extend(records.iter().map(|r| format!("{}/{}", r.key.namespace, r.key.name)));
            match next {
                None => return names,
                next => scan.after = next,
            }
        }
    }
}

fn pods() -> CollectionKey {
    CollectionKey::new(cluster("member1"), resource_of(&json!({})))
}

fn pod(namespace: &str, name: &str, uid: &str, version: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": namespace, "name": name, "uid": uid,
        "resourceVersion": version, "labels": {"app": name}}, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}})
}

fn key(namespace: &str, name: &str) -> RecordKey {
    RecordKey { collection: pods(), namespace: namespace.into(), name: name.into() }
}

#[rstest]
#[tokio::test]
async fn notes_are_kept_until_they_are_removed(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    for (name, note) in [("a", "1"), ("b", "2"), ("a", "3")] {
        backend.store.put_note(&key("x", name), Some(note)).await.unwrap();
    }
    backend.store.put_note(&key("x", "b"), None).await.unwrap();
    let backend = backend.reopen().await;
    assert_eq!(backend.store.notes().await.unwrap(), [(key("x", "a"), "3".to_owned())]);
    backend.store.delete_notes(&cluster("member2")).await.unwrap();
    assert_eq!(backend.store.notes().await.unwrap().len(), 1);
    backend.store.delete_notes(&cluster("member1")).await.unwrap();
    assert!(backend.store.notes().await.unwrap().is_empty());
}

#[rstest]
#[tokio::test]
async fn facts_are_stored_by_name(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    for (name, value) in [("export/a", "1"), ("export/b", "2"), ("export/a", "3"), ("exported", "4")] {
        backend.store.put_fact(name, Some(value)).await.unwrap();
    }
    backend.store.put_fact("export/b", None).await.unwrap();
    let backend = backend.reopen().await;
    assert_eq!(backend.store.facts("export/").await.unwrap(), [("export/a".to_owned(), "3".to_owned())]);
}

#[rstest]
#[tokio::test]
async fn changes_are_returned_once_and_stored(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    let first =
        backend.apply(vec![backend.put(&pod("x", "a", "1", "10")), backend.put(&pod("x", "b", "2", "11"))], "11").await;
    assert_eq!(first, [(1, ChangeKind::Added, "a".into()), (2, ChangeKind::Added, "b".into())]);
    // Writing an unchanged object is not a change.
    assert!(backend.apply(vec![backend.put(&pod("x", "a", "1", "10"))], "12").await.is_empty());
    let writes = vec![
        backend.put(&pod("x", "a", "1", "13")),
        Backend::delete("x", "b", "14"),
        backend.put(&pod("x", "b", "3", "15")),
        Backend::delete("x", "absent", "16"),
        // Another uid: the old object is deleted.
        backend.put(&pod("x", "a", "9", "17")),
    ];
    let applied = backend.apply(writes, "17").await;
    use ChangeKind::{Added, Deleted, Modified};
    let expected = [(3, Modified, "a"), (4, Deleted, "b"), (5, Added, "b"), (6, Deleted, "a"), (7, Added, "a")];
    assert_eq!(applied, expected.map(|(seq, kind, name)| (seq, kind, name.to_owned())));

    let before = backend.store.get(&key("x", "a")).await.unwrap().unwrap();
    let backend = backend.reopen().await;
    let after = backend.store.get(&key("x", "a")).await.unwrap().unwrap();
    assert_eq!((&before.record, &before.body), (&after.record, &after.body));
    assert_eq!(after.record.resource_version, "17");
    assert_eq!(backend.store.latest().await.unwrap(), Seq(7));
    let collections = backend.store.collections().await.unwrap();
    assert_eq!((collections[0].state.resource_version.as_str(), &*collections[0].state.kind), ("17", "Pod"));
    assert_eq!(backend.store.keys(&pods()).await.unwrap().len(), 2);
    assert!(backend.store.get(&key("x", "absent")).await.unwrap().is_none());
}

#[rstest]
#[tokio::test]
async fn objects_are_found_by_indexed_labels(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let labelled = |name: &str, uid: &str, version: &str, labels: Value| {
        let mut pod = pod("x", name, uid, version);
        pod["metadata"]["labels"] = labels;
        pod
    };
    let Some(backend) = Backend::open(kind).await else { return };
    let backend = backend.reopen_with(&["*/id", "of-*", "exact"]).await;
    let writes = [
        labelled("c", "1", "1", json!({"a.io/id": "7", "of-x": "", "app": "c"})),
        labelled("a", "2", "1", json!({"a.io/id": "7", "exact": "1"})),
        labelled("b", "3", "1", json!({"b.io/id": "7", "of-y": "1"})),
        labelled("d", "4", "1", json!({"a.io/id": "8"})),
    ];
    backend.apply(writes.iter().map(|pod| backend.put(pod)).collect(), "1").await;
    async fn names_with_label(backend: &Backend, label: &str, value: Option<&str>) -> String {
        let query = LabelQuery { collection: &pods(), label, value };
        let found = backend.store.records_with_label(&query).await.unwrap();
        found.iter().map(|record| &*record.key.name).collect()
    }
    assert_eq!(names_with_label(&backend, "a.io/id", Some("7")).await, "ac");
    assert_eq!(names_with_label(&backend, "a.io/id", None).await, "acd");
    assert_eq!(names_with_label(&backend, "b.io/id", Some("7")).await, "b");
    assert_eq!(names_with_label(&backend, "of-x", Some("")).await, "c");
    assert_eq!(names_with_label(&backend, "exact", Some("1")).await, "a");
    assert_eq!(names_with_label(&backend, "a.io/id", Some("9")).await, "");
    let query = LabelQuery { collection: &pods(), label: "app", value: Some("c") };
    let refused = backend.store.records_with_label(&query).await.unwrap_err();
    assert_eq!(refused.to_string(), "label app is not indexed");

    // Labels change, and objects are deleted and recreated.
    let writes = vec![
        backend.put(&labelled("a", "2", "2", json!({"a.io/id": "8"}))),
        Backend::delete("x", "c", "3"),
        backend.put(&labelled("b", "9", "4", json!({"a.io/id": "7"}))),
    ];
    backend.apply(writes, "4").await;
    assert_eq!(names_with_label(&backend, "a.io/id", Some("7")).await, "b");
    assert_eq!(names_with_label(&backend, "a.io/id", Some("8")).await, "ad");
    assert_eq!(names_with_label(&backend, "b.io/id", None).await, "");

    // If other labels are configured, existing objects are indexed by them.
    let backend = backend.reopen_with(&["*/id", "app"]).await;
    assert_eq!(names_with_label(&backend, "a.io/id", Some("8")).await, "ad");
    let query = LabelQuery { collection: &pods(), label: "exact", value: None };
    assert!(backend.store.records_with_label(&query).await.is_err());
    backend.store.drop_collection(&pods(), Epoch::UNSHARED, 100, 5).await.unwrap();
    assert_eq!(names_with_label(&backend, "a.io/id", None).await, "");
}

#[rstest]
#[tokio::test]
async fn a_replay_returns_the_missed_changes(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    let writes = (0..10).map(|n| backend.put(&pod("x", &format!("p{n}"), &format!("u{n}"), "1"))).collect();
    backend.apply(writes, "1").await;
    backend.apply(vec![Backend::delete("x", "p3", "2"), backend.put(&pod("x", "p4", "u4", "3"))], "3").await;
    for limit in [1, 2, 3, 50] {
        let (mut seen, mut deletions, mut since) = (BTreeSet::new(), Vec::new(), Seq(0));
        loop {
            let replayed = backend.store.replay(since, limit).await.unwrap();
            let Some(last) = replayed.last() else { break };
            since = last.seq();
            for change in replayed {
                match change {
                    ReplayedChange::Put(object) => drop(seen.insert(object.record.key.name.to_string())),
                    ReplayedChange::Deleted { id, .. } => deletions.push(id),
                }
            }
        }
        assert_eq!((seen.len(), deletions.as_slice(), since), (9, [4].as_slice(), Seq(12)), "limit {limit}");
    }
    // The deletion of p3 and the old version of p4 are pruned; a reader can miss only the deletion.
    let later = 1000 + HistoryRetention::default().max_age.as_millis() as i64 + 1;
    assert_eq!(backend.store.prune(&HistoryRetention::default(), later, Seq(u64::MAX)).await.unwrap(), 2);
    assert_eq!(backend.store.pruned_until().await.unwrap(), Seq(11));
}

#[rstest]
#[tokio::test]
async fn dropping_a_collection_returns_deletions(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let writes = (0..5).map(|n| backend.put(&pod("x", &format!("p{n}"), &format!("u{n}"), "1"))).collect();
    backend.apply(writes, "1").await;
    let first = backend.store.drop_collection(&pods(), Epoch::UNSHARED, 3, 2000).await.unwrap();
    assert!(first.iter().all(|change| change.kind == ChangeKind::Deleted) && first.len() == 3);
    assert!(!backend.store.collections().await.unwrap()[0].state.complete);
    assert_eq!(backend.store.drop_collection(&pods(), Epoch::UNSHARED, 3, 2000).await.unwrap().len(), 2);
    assert!(backend.store.drop_collection(&pods(), Epoch::UNSHARED, 3, 2000).await.unwrap().is_empty());
    assert!(backend.store.collections().await.unwrap().is_empty());
    // The collection can be created again.
    assert_eq!(backend.apply(vec![backend.put(&pod("x", "p0", "u0", "1"))], "9").await.len(), 1);
}

#[rstest]
#[tokio::test]
async fn positions_advance_without_changes(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "u1", "1"))], "1").await;
    let collections = async |backend: &Backend| -> Vec<(String, String, i64)> {
        let stored = backend.store.collections().await.unwrap();
        let summary = |stored: super::StoredCollection| {
            (stored.key.resource.resource.to_string(), stored.state.resource_version, stored.state.last_contact_ms)
        };
        stored.into_iter().map(summary).collect()
    };
    let unknown = CollectionKey::new(cluster("member1"), crowsnest_apimachinery::names::Gvr::new("", "v1", "nodes"));
    let at = |collection, version: &str| Position {
        collection,
        epoch: Epoch::UNSHARED,
        version: version.to_owned(),
        last_contact_ms: 2000,
    };
    let latest = backend.store.latest().await.unwrap();
    backend.store.advance(&[at(unknown, "7"), at(pods(), "8")]).await.unwrap();
    assert_eq!(backend.store.latest().await.unwrap(), latest);
    let backend = backend.reopen().await;
    assert_eq!(collections(&backend).await, [("pods".to_owned(), "8".to_owned(), 2000)]);
    // The collection is no longer collected; a position does not restore it.
    while !backend.store.drop_collection(&pods(), Epoch::UNSHARED, 10, 3000).await.unwrap().is_empty() {}
    backend.store.advance(&[at(pods(), "9")]).await.unwrap();
    assert!(collections(&backend).await.is_empty());
}

/// Changes the format as a newer version would. The database must not be open.
async fn upgrade_format(location: &Location, shared_with: usize) {
    use sqlx::Connection;
    let added = "ALTER TABLE records ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'; CREATE TABLE moods (name TEXT)";
    match location {
        Location::Sqlite(directory) => {
            let path = directory.path().join("cache.sqlite");
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
            let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
            let sql = format!("{added}; PRAGMA user_version = 999; UPDATE format SET shared_with = {shared_with}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        }
        Location::Postgres(database) => {
            let mut connection = database.connect().await;
            let sql = format!(
                "SET search_path = crowsnest_cache; {added}; UPDATE format SET version = 999, shared_with = {shared_with}"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        }
    }
}

/// Store options for this location.
fn options(location: &Location) -> (StoreOptions, &std::path::Path) {
    match location {
        Location::Sqlite(directory) => (StoreOptions::Sqlite, directory.path()),
        Location::Postgres(database) => {
            (StoreOptions::Postgres(PostgresOptions::new(database.url())), std::path::Path::new("/unused"))
        }
    }
}

#[rstest]
#[tokio::test]
async fn migrating_down_and_up_keeps_all_records(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "1", "1"))], "1").await;
    let (location, store) = (backend.location, backend.store);
    drop(store);
    {
        let (store, path) = options(&location);
        let newest = crate::format::newest_format(&store);
        for (to, from) in [(newest - 1, newest), (newest, newest - 1), (newest, newest)] {
            assert_eq!(crate::format::migrate(&store, path, to).await.unwrap(), Some(from), "to {to}");
        }
        for to in [0, newest + 1] {
            let refused = crate::format::migrate(&store, path, to).await.unwrap_err().to_string();
            assert!(refused.contains(&format!("supports the formats 1 to {newest}, not {to}")), "{refused}");
        }
    }
    let backend = Backend::open_at(location, &[]).await.unwrap();
    assert_eq!(backend.names(None, 9, &|_| true).await, ["x/a"]);
    let labels = Some(crowsnest_apimachinery::selector::Selector::parse("app=a").unwrap());
    let labelled = Scan { collection: pods(), namespaces: None, after: None, labels };
    assert_eq!(backend.store.records(&labelled, &|_| Ok(true), 9).await.unwrap().0.len(), 1);
    let location = backend.location;
    drop(backend.store);
    let (store, path) = options(&location);
    assert!(crate::format::discard(&store, Some(path)).await.unwrap());
    assert!(!crate::format::discard(&store, Some(path)).await.unwrap());
    assert_eq!(crate::format::migrate(&store, path, 1).await.unwrap(), None);
}

#[rstest]
#[tokio::test]
async fn a_compatible_newer_database_is_used(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "1", "1"))], "1").await;
    let (location, store) = (backend.location, backend.store);
    drop(store);
    let newest = crate::format::newest_format(&options(&location).0);
    upgrade_format(&location, newest).await;
    let (store, path) = options(&location);
    let refused = crate::format::migrate(&store, path, newest).await.unwrap_err().to_string();
    assert!(refused.contains("(format 999, ") && refused.contains("only that version can migrate it"), "{refused}");
    let backend = Backend::open_at(location, &[]).await.unwrap();
    backend.apply(vec![backend.put(&pod("x", "b", "2", "2"))], "2").await;
    // The format remains that of the newer version.
    let backend = backend.reopen().await;
    assert_eq!(backend.names(None, 9, &|_| true).await, ["x/a", "x/b"]);
}

#[rstest]
#[tokio::test]
async fn an_incompatible_newer_database_is_rejected_with_one_line(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let (location, store) = (backend.location, backend.store);
    drop(store);
    upgrade_format(&location, 999).await;
    let refused = Backend::open_at(location, &[]).await.err();
    let text = refused.as_ref().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("written by a newer version (format 999") && !text.contains('\n'), "{text}");
    assert!(text.contains("`crowsnest cache migrate --to "), "{text}");
    assert!(matches!(refused, Some(Error::StoreFormat(_))));
}

#[rstest]
#[tokio::test]
async fn the_time_of_the_first_contents_is_kept(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    assert_eq!(backend.store.created_at(500).await.unwrap(), 500);
    let backend = backend.reopen().await;
    assert_eq!(backend.store.created_at(900).await.unwrap(), 500);
    // A store that was filled before the first call.
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "1", "1"))], "1").await;
    assert_eq!(backend.store.created_at(99_000).await.unwrap(), 1000);
}
