//! Tests of the SQLite backend that the suite of all backends does not have.

use super::SqliteStore;
use crate::check_report::CheckReport;
use crate::codec::Codec;
use crate::fixtures::{cluster, draft, resource_of};
use crate::history;
use crate::record::{CollectionKey, Seq};
use crate::{Batch, CacheOptions, Epoch, KeyRangeEnd, Progress, RecordWrite, Store};
use rstest::rstest;
use serde_json::json;
use sqlx::{AssertSqlSafe, Row};
use std::sync::Arc;
use tempfile::TempDir;

pub(super) fn pods() -> CollectionKey {
    CollectionKey::new(cluster("member1"), resource_of(&json!({})))
}

/// A batch with a pod of this name, which has the label `app=web`.
fn batch(codec: &Codec, name: &str) -> Batch {
    let pod = draft(&json!({"kind": "Pod", "metadata": {"name": name, "uid": name, "labels": {"app": "web"}}}));
    let packed = codec.pack("/Pod", &pod.body).unwrap().0;
    let writes = vec![RecordWrite::Put(Box::new(pod), packed)];
    let progress = Progress { kind: Some(("Pod".to_owned(), true)), ..Progress::default() };
    Batch { collection: pods(), epoch: Epoch::UNSHARED, writes, progress }
}

/// A store with the pod `a`, see [`batch`].
pub(super) async fn open_with_pod() -> (TempDir, SqliteStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&CacheOptions::new(directory.path()), Arc::default()).await.unwrap();
    store.apply(&[batch(&store.catalog.codec, "a")], 1000).await.unwrap();
    (directory, store)
}

#[tokio::test]
async fn a_seq_that_was_not_committed_is_not_reported() {
    let (_directory, store) = open_with_pod().await;
    let latest = store.latest().await.unwrap();
    assert_eq!(latest, Seq(1));
    store.writer.lock().await.connection.lock_handle().await.unwrap().set_commit_hook(|| false);
    assert!(store.apply(&[batch(&store.catalog.codec, "b")], 1000).await.is_err());
    assert_eq!(store.latest().await.unwrap(), latest);
}

/// A page of a list must not read the history of the whole collection.
#[rstest]
#[case::of_a_page(
    Some(KeyRangeEnd::Key("x", "p9")),
    "versions_by_key (collection=? AND (namespace,name)>(?,?) AND (namespace,name)<(?,?))"
)]
#[case::of_the_rest_of_a_namespace(Some(KeyRangeEnd::Namespace("x")), "INTEGER PRIMARY KEY (rowid>?)")]
#[case::of_the_rest(None, "INTEGER PRIMARY KEY (rowid>?)")]
#[tokio::test]
async fn superseded_versions_are_found_by_an_index(#[case] until: Option<KeyRangeEnd<'_>>, #[case] expected: &str) {
    let (_directory, store) = open_with_pod().await;
    let sql = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", history::superseded_since(until)));
    let rows = sqlx::raw_sql(sql).fetch_all(&store.readers).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
    assert!(plan[0].contains(expected), "{plan:?}");
}

/// Columns of a record except for its id and its seq.
const REST: &str = "collection, namespace, name, uid, resource_version, generation, changed_at, labels, header, \
    dictionary, body, label_bits";

#[rstest]
#[case::sound("SELECT 1", None)]
#[case::all_bits("UPDATE records SET label_bits = -1", None)]
#[case::no_bits("UPDATE records SET label_bits = 0", Some("records 1: its label bits"))]
#[case::repeated_key(
    "INSERT INTO records (id, seq, REST) SELECT id + 1, seq + 1, REST FROM records",
    Some("database: keys with several records: 1")
)]
#[tokio::test]
async fn records_that_scans_would_omit_or_repeat_are_problems(#[case] sql: &str, #[case] expected: Option<&str>) {
    let (_directory, store) = open_with_pod().await;
    let sql = AssertSqlSafe(sql.replace("REST", REST));
    sqlx::query(sql).execute(&mut store.writer.lock().await.connection).await.unwrap();
    let mut report = CheckReport::default();
    store.check(&mut report).await.unwrap();
    match expected {
        None => assert!(report.is_sound(), "{report:?}"),
        Some(expected) => assert!(report.problems.len() == 1 && report.problems[0].starts_with(expected), "{report:?}"),
    }
}
