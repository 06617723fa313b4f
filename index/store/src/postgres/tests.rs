//! Tests of behaviour that is specific to this backend: the change log, concurrent writers, claims, formats.

use super::resume_tail;
use super::{LogPage, PostgresStore, migrations};
use crate::ReplicaInterest;
use crate::codec::Codec;
use crate::fixtures::{cluster, draft, resource_of};
use crate::history;
use crate::postgres_server::Database;
use crate::reading::ScanRange;
use crate::record::{Change, CollectionKey, Seq};
use crate::{Batch, KeyRangeEnd, LabelQuery, Progress, RecordWrite, Scan, Store, VersionFilter};
use crate::{Clusters, Namespaces};
use crate::{Epoch, Error, HistoryRetention, PostgresOptions};
use crowsnest_apimachinery::names::ClusterName;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

async fn open(database: &Database, replica: &str) -> PostgresStore {
    PostgresStore::open(&PostgresOptions::new(database.url()), replica, Arc::default()).await.unwrap()
}

fn pods(cluster_name: &str) -> CollectionKey {
    CollectionKey::new(cluster(cluster_name), resource_of(&json!({})))
}

fn pod(name: &str, uid: &str, version: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "x", "name": name, "uid": uid,
        "resourceVersion": version, "labels": {"version": version}}, "spec": {"containers": [{"name": "c"}]}})
}

fn put(codec: &Codec, object: &Value) -> RecordWrite {
    let draft = draft(object);
    let packed = codec.pack("/Pod", &draft.body).unwrap().0;
    RecordWrite::Put(Box::new(draft), packed)
}

fn batch(cluster_name: &str, writes: Vec<RecordWrite>) -> Batch {
    let progress = Progress { kind: Some(("Pod".to_owned(), true)), ..Progress::default() };
    Batch { collection: pods(cluster_name), epoch: Epoch::UNSHARED, writes, progress }
}

/// All properties of changes that a reader can observe.
fn format_changes(changes: &[Change]) -> Vec<String> {
    let text = |change: &Change| {
        let Change { seq, kind, object, previous } = change;
        format!("{seq} {kind:?} {:?} {:?} {previous:?}", object.record, object.body)
    };
    changes.iter().map(text).collect()
}

async fn follow(store: &PostgresStore, mut since: Seq, limit: u64) -> Vec<Change> {
    let mut all = Vec::new();
    loop {
        match store.changes(since, limit).await.unwrap() {
            LogPage::Changes(changes) if changes.is_empty() => return all,
            LogPage::Changes(changes) => {
                since = changes[changes.len() - 1].seq;
                all.extend(changes);
            }
            LogPage::Pruned(latest) => panic!("pruned up to {latest} after {since}"),
        }
    }
}

/// The changes after `since` in the tail of a starting replica; None if some are missing.
async fn tail_after_start(database: &Database, since: u64, max_changes: usize) -> Option<Vec<u64>> {
    let tail = Arc::new(resume_tail(&open(database, "new").await, max_changes, 1 << 20).await.unwrap());
    let changes = tail.follow(Seq(since)).ready_now().ok()?;
    Some(changes.iter().map(|change| change.seq.0).collect())
}

#[tokio::test]
async fn the_tail_of_a_starting_replica_has_earlier_changes() {
    let Some(database) = Database::create().await else { return };
    let store = open(&database, "one").await;
    let codec = &store.catalog.codec;
    let store_version = async |version: u64| {
        let write = put(codec, &pod("a", "1", &version.to_string()));
        assert_eq!(store.apply(&[batch("member1", vec![write])], 1000).await.unwrap().len(), 1);
    };
    assert_eq!(tail_after_start(&database, 0, 100).await, Some(vec![]));
    for version in 1..=6 {
        store_version(version).await;
    }
    assert_eq!(tail_after_start(&database, 0, 100).await, Some(vec![1, 2, 3, 4, 5, 6]));
    // Limited by the size of the tail.
    assert_eq!(tail_after_start(&database, 4, 2).await, Some(vec![5, 6]));
    assert_eq!(tail_after_start(&database, 3, 2).await, None);
    // Nothing before a gap.
    store.prune(&HistoryRetention::default(), i64::MAX, Seq(u64::MAX)).await.unwrap();
    for version in 7..=8 {
        store_version(version).await;
    }
    assert_eq!(tail_after_start(&database, 6, 100).await, Some(vec![7, 8]));
    assert_eq!(tail_after_start(&database, 2, 100).await, None);
}

#[tokio::test]
async fn followers_receive_the_same_changes_as_the_writer() {
    let Some(database) = Database::create().await else { return };
    let (one, two) = (open(&database, "one").await, open(&database, "two").await);
    let codec = &one.catalog.codec;
    let delete = |name: &str, version: &str| RecordWrite::Delete {
        namespace: "x".into(),
        name: name.into(),
        resource_version: version.into(),
    };
    let batches = [
        batch("member1", vec![put(codec, &pod("a", "1", "1")), put(codec, &pod("b", "2", "2"))]),
        batch("member2", vec![put(codec, &pod("a", "3", "3"))]),
        // Several changes of one object in one transaction, a new object with an old name, a deletion without a
        // version.
        batch("member1", vec![put(codec, &pod("a", "1", "4")), put(codec, &pod("a", "1", "5")), delete("b", "6")]),
        batch("member1", vec![put(codec, &pod("b", "9", "7")), put(codec, &pod("a", "8", "8")), delete("a", "")]),
    ];
    let mut written = one.apply(&batches[..2], 1000).await.unwrap();
    written.extend(one.apply(&batches[2..], 2000).await.unwrap());
    written.extend(one.drop_collection(&pods("member2"), Epoch::UNSHARED, 10, 3000).await.unwrap());
    assert!(one.drop_collection(&pods("member2"), Epoch::UNSHARED, 10, 3000).await.unwrap().is_empty());
    assert_eq!(written.len(), 11);
    for limit in [1, 2, 3, 100] {
        assert_eq!(format_changes(&follow(&two, Seq(0), limit).await), format_changes(&written), "limit {limit}");
    }
    assert_eq!(format_changes(&follow(&two, Seq(4), 100).await), format_changes(&written[4..]));
    // A starting replica reads collections and kinds from the database.
    let three = open(&database, "three").await;
    assert_eq!(format_changes(&follow(&three, Seq(0), 100).await), format_changes(&written));

    // Pruned changes are reported.
    one.prune(&HistoryRetention::default(), i64::MAX, Seq(u64::MAX)).await.unwrap();
    assert!(matches!(two.changes(Seq(3), 100).await.unwrap(), LogPage::Pruned(Seq(11))));
    assert!(follow(&two, Seq(11), 100).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_are_serialized() {
    let Some(database) = Database::create().await else { return };
    // Replicas that start together wait for each other's migration.
    let stores = futures::future::join_all(["one", "two", "three"].map(|replica| open(&database, replica))).await;
    let stores: Vec<Arc<PostgresStore>> = stores.into_iter().map(Arc::new).collect();
    const ROUNDS: usize = 30;
    let writers = stores.iter().enumerate().map(|(nth, store)| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let object = pod("shared", "1", &format!("{nth}.{round}"));
                let replica_pod = pod(&format!("own{nth}"), &format!("u{nth}"), &round.to_string());
                let codec = &store.catalog.codec;
                let writes = vec![put(codec, &object), put(codec, &replica_pod)];
                store.apply(&[batch("member1", writes)], 1000).await.unwrap();
            }
        })
    });
    let writers = futures::future::join_all(writers);
    let reader = Arc::clone(&stores[0]);
    let following = tokio::spawn(async move {
        let mut all: Vec<Change> = Vec::new();
        while all.len() < 3 * 2 * ROUNDS {
            let since = all.last().map_or(Seq(0), |change| change.seq);
            all.extend(follow(&reader, since, 7).await);
        }
        all
    });
    for done in writers.await {
        done.unwrap();
    }
    let all = tokio::time::timeout(Duration::from_secs(60), following).await.unwrap().unwrap();
    assert!(all.iter().enumerate().all(|(nth, change)| change.seq.0 == nth as u64 + 1));
    // Each change of an object follows the previous one.
    for name in ["shared", "own0", "own1", "own2"] {
        let changes: Vec<&Change> = all.iter().filter(|change| &*change.object.record.key.name == name).collect();
        for pair in changes.windows(2) {
            assert_eq!(pair[1].previous.as_deref(), Some(&*pair[0].object.record));
        }
    }
}

#[tokio::test]
async fn dictionaries_of_other_replicas_are_loaded() {
    let Some(database) = Database::create().await else { return };
    let (one, two) = (open(&database, "one").await, open(&database, "two").await);
    let sample = |n: usize| pod(&format!("web-{n}"), &format!("u{n}"), "1").to_string();
    let training = (0..1000).find_map(|n| one.catalog.codec.pack("/Pod", sample(n).as_bytes()).unwrap().1).unwrap();
    one.save_dictionary("/Pod", &training.train().unwrap(), 1000).await.unwrap();
    let write = put(&one.catalog.codec, &pod("a", "1", "1"));
    assert!(matches!(&write, RecordWrite::Put(_, packed) if packed.dictionary != 0));
    one.apply(&[batch("member1", vec![write])], 1000).await.unwrap();
    let key = crate::RecordKey { collection: pods("member1"), namespace: "x".into(), name: "a".into() };
    let object = two.get(&key).await.unwrap().unwrap();
    assert_eq!(object.body, one.get(&key).await.unwrap().unwrap().body);
}

#[tokio::test]
async fn a_moved_claim_rejects_writes() {
    let Some(database) = Database::create().await else { return };
    let (one, two) = (open(&database, "one").await, open(&database, "two").await);
    let member = BTreeSet::from([cluster("member1")]);
    let epoch_of = |claims: &BTreeMap<ClusterName, Epoch>| claims.get(&cluster("member1")).copied();
    let write = async |store: &PostgresStore, epoch: Epoch, version: &str| {
        let writes = vec![put(&store.catalog.codec, &pod("a", "1", version))];
        store.apply(&[Batch { epoch, ..batch("member1", writes) }], 1000).await
    };
    one.renew_lease(true).await.unwrap();
    let first = epoch_of(&one.claim_clusters(&member, &BTreeSet::new()).await.unwrap()).unwrap();
    assert_eq!(write(&one, first, "1").await.unwrap().len(), 1);
    // Claims of live replicas cannot be taken.
    assert_eq!(two.renew_lease(true).await.unwrap().claims[&cluster("member1")], (Some("one".to_owned()), first));
    assert_eq!(two.claim_clusters(&member, &BTreeSet::new()).await.unwrap(), BTreeMap::new());
    assert!(matches!(write(&two, first, "2").await, Err(Error::Fenced)));
    // The lease expires.
    let mut connection = database.connect().await;
    let expire = "UPDATE crowsnest_cache.replicas SET heartbeat = heartbeat - interval '1 min' WHERE id = 'one'";
    sqlx::raw_sql(expire).execute(&mut connection).await.unwrap();
    assert_eq!(two.renew_lease(true).await.unwrap().live, BTreeSet::from(["two".to_owned()]));
    let second = epoch_of(&two.claim_clusters(&member, &BTreeSet::from(["one".to_owned()])).await.unwrap()).unwrap();
    assert!(second > first);
    // The session of replica "one" was terminated. With a new connection, its claim is still lost.
    assert!(write(&one, first, "3").await.is_err());
    assert!(matches!(write(&one, first, "3").await, Err(Error::Fenced)));
    let dropped = one.drop_collection(&pods("member1"), first, 10, 1000).await;
    assert!(matches!(dropped, Err(Error::Fenced)));
    assert_eq!(write(&two, second, "4").await.unwrap().len(), 1);
    one.write_stale_reasons(&[(pods("member1"), first, Some("stale".to_owned()))]).await.unwrap();
    assert_eq!(two.collections().await.unwrap()[0].state.stale_reason, None);
    two.write_stale_reasons(&[(pods("member1"), second, Some("cut off".to_owned()))]).await.unwrap();
    let (found, now) = one.collections_since(None).await.unwrap();
    assert_eq!(found[0].1.state.stale_reason.as_deref(), Some("cut off"));
    assert_eq!(one.collections_since(Some(&now)).await.unwrap().0.len(), 1, "touched within the overlap");
    // If the holder claims the cluster again, writes under the old epoch are rejected.
    let third = epoch_of(&two.claim_clusters(&member, &BTreeSet::new()).await.unwrap()).unwrap();
    assert!(matches!(write(&two, second, "5").await, Err(Error::Fenced)));
    two.release_claims(&BTreeMap::from([(cluster("member1"), third)])).await.unwrap();
    assert!(one.claim_clusters(&member, &BTreeSet::new()).await.is_err(), "this connection was terminated as well");
    assert_eq!(epoch_of(&one.claim_clusters(&member, &BTreeSet::new()).await.unwrap()), Some(Epoch(third.0 + 1)));
    one.end_lease().await.unwrap();
    assert_eq!(two.renew_lease(true).await.unwrap().claims[&cluster("member1")], (None, Epoch(third.0 + 1)));
}

#[tokio::test]
async fn interests_are_shared_between_replicas() {
    let Some(database) = Database::create().await else { return };
    let (one, two) = (open(&database, "one").await, open(&database, "two").await);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let everywhere: ReplicaInterest = (Clusters::All, pods("x").resource, Namespaces::All);
    let narrow: ReplicaInterest = (
        Clusters::Names(BTreeSet::from([cluster("member1"), cluster("member2")])),
        pods("x").resource,
        Namespaces::Names(names(&["a", "b"])),
    );
    one.publish_interests(&BTreeSet::from([everywhere.clone(), narrow.clone()])).await.unwrap();
    assert!(two.read_interests().await.unwrap().is_empty(), "replica one has never renewed its lease");
    one.renew_lease(true).await.unwrap();
    let from_one = |interest: &ReplicaInterest| ("one".to_owned(), interest.clone());
    assert_eq!(two.read_interests().await.unwrap(), BTreeSet::from([from_one(&everywhere), from_one(&narrow)]));
    assert!(one.read_interests().await.unwrap().is_empty());
    one.publish_interests(&BTreeSet::from([narrow.clone()])).await.unwrap();
    assert_eq!(two.read_interests().await.unwrap(), BTreeSet::from([from_one(&narrow)]));
    // A replica that leaves counts as dead immediately, but its interests stay valid for a while.
    one.end_lease().await.unwrap();
    assert!(two.renew_lease(true).await.unwrap().live.contains("two"));
    assert!(!two.renew_lease(true).await.unwrap().live.contains("one"));
    assert_eq!(two.read_interests().await.unwrap(), BTreeSet::from([from_one(&narrow)]));
}

/// An open transaction would block all writers until the server terminates it.
#[tokio::test]
async fn a_started_replica_has_no_open_transaction() {
    let Some(database) = Database::create().await else { return };
    let labels = ["app".to_owned()];
    let mut stores = Vec::new();
    for replica in ["one", "two"] {
        let mut store = open(&database, replica).await;
        store.index_labels(&labels).await.unwrap();
        stores.push(store);
    }
    let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in %'";
    let count: i64 = sqlx::query(count).fetch_one(&mut database.connect().await).await.unwrap().get(0);
    assert_eq!(count, 0, "of {} replicas", stores.len());
}

/// Sessions of a dead replica are terminated; those of a replica with the same name in another database are not.
#[tokio::test]
async fn sessions_of_a_dead_replica_are_terminated_in_its_database_only() {
    let (Some(database), Some(elsewhere)) = (Database::create().await, Database::create().await) else { return };
    let (taker, dead, namesake) =
        (open(&database, "one").await, open(&database, "two").await, open(&elsewhere, "two").await);
    let connections = async |database: &Database| -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1";
        let query = sqlx::query(sql).bind(super::application_name("two"));
        query.fetch_one(&mut database.connect().await).await.unwrap().get(0)
    };
    let (of_dead, of_namesake) = (connections(&database).await, connections(&elsewhere).await);
    assert!(of_dead > 0 && of_namesake > 0, "{of_dead} {of_namesake}");
    let claimed =
        taker.claim_clusters(&BTreeSet::from([cluster("m1")]), &BTreeSet::from(["two".to_owned()])).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(connections(&elsewhere).await, of_namesake);
    tokio::time::timeout(Duration::from_secs(30), async { while connections(&database).await > 0 {} }).await.unwrap();
    drop((dead, namesake));
}

/// While replicas of two releases run, each finds the objects that the other writes.
#[tokio::test]
async fn replicas_may_index_different_labels() {
    let Some(database) = Database::create().await else { return };
    let mut stores = Vec::new();
    async fn write(store: &PostgresStore, name: &str) {
        let mut object = pod(name, name, "1");
        object["metadata"]["labels"] = json!({"app": "x", "tier": "y"});
        store.apply(&[batch("m", vec![put(&store.catalog.codec, &object)])], 1000).await.unwrap();
    }
    for (replica, label) in [("one", "app"), ("two", "tier")] {
        let mut store = open(&database, replica).await;
        write(&store, &format!("before-{replica}")).await;
        store.index_labels(&[label.to_owned()]).await.unwrap();
        stores.push((store, label));
    }
    for ((store, _), name) in stores.iter().zip(["of-one", "of-two"]) {
        write(store, name).await;
    }
    let (namespace, name) = ("x".to_owned(), "before-two".to_owned());
    let deletion = RecordWrite::Delete { namespace, name, resource_version: "2".to_owned() };
    stores[0].0.apply(&[batch("m", vec![deletion])], 1000).await.unwrap();
    for (store, label) in &stores {
        let query = LabelQuery { collection: &pods("m"), label, value: None };
        let found = store.records_with_label(&query).await.unwrap();
        let found: Vec<&str> = found.iter().map(|record| &*record.key.name).collect();
        assert_eq!(found, ["before-one", "of-one", "of-two"], "by {label}");
    }
}

#[tokio::test]
async fn migrations_run_up_and_down_and_foreign_tables_are_rejected() {
    let Some(database) = Database::create().await else { return };
    drop(open(&database, "one").await);
    let mut connection = database.connect().await;
    sqlx::raw_sql("SET search_path = crowsnest_cache").execute(&mut connection).await.unwrap();
    migrations::migrate(&mut connection, "test", 0).await.unwrap();
    let tables = "SELECT string_agg(relname, ',') FROM pg_class WHERE relnamespace = 'crowsnest_cache'::regnamespace \
        AND relkind = 'r'";
    let tables: String = sqlx::query(tables).fetch_one(&mut connection).await.unwrap().get(0);
    assert_eq!(tables, "format");
    migrations::migrate(&mut connection, "test", migrations::NEWEST).await.unwrap();
    let foreign = "DROP SCHEMA crowsnest_cache CASCADE; CREATE SCHEMA crowsnest_cache; CREATE TABLE accounts ()";
    sqlx::raw_sql(foreign).execute(&mut connection).await.unwrap();
    let refused = PostgresStore::open(&PostgresOptions::new(database.url()), "one", Arc::default()).await;
    let Err(Error::StoreFormat(text)) = refused else { panic!("{refused:?}") };
    assert!(
        text.contains("contains tables that do not belong to the cache (accounts)") && !text.contains('\n'),
        "{text}"
    );
}

#[tokio::test]
async fn migration_and_deletion_are_rejected_while_a_replica_runs() {
    let Some(database) = Database::create().await else { return };
    let store = open(&database, "one").await;
    store.renew_lease(true).await.unwrap();
    let options = crate::StoreOptions::Postgres(PostgresOptions::new(database.url()));
    let unused_folder = std::path::Path::new("/unused");
    let (migrated, discarded) =
        tokio::join!(crate::format::migrate(&options, unused_folder, 1), crate::format::discard(&options, None));
    for refused in [migrated.map(drop), discarded.map(drop)] {
        let Err(Error::InUse { database: name, replicas }) = refused else { panic!("{refused:?}") };
        assert!(replicas == "one" && !name.contains("postgres://"), "{replicas} {name}");
    }
    // A connected replica without a lease may still be writing.
    store.end_lease().await.unwrap();
    let connected = crate::format::migrate(&options, unused_folder, 1).await;
    assert!(matches!(connected, Err(Error::InUse { .. })), "{connected:?}");
    drop(store);
    assert_eq!(crate::format::migrate(&options, unused_folder, 1).await.unwrap(), Some(migrations::NEWEST));
}

#[tokio::test]
async fn the_database_of_another_control_plane_is_rejected() {
    let Some(database) = Database::create().await else { return };
    let store = open(&database, "one").await;
    for _ in 0..2 {
        store.check_control_plane("uid-1").await.unwrap();
        store.check_control_plane("").await.unwrap();
    }
    let Err(Error::StoreFormat(text)) = store.check_control_plane("uid-2").await else {
        panic!("the other control plane was accepted")
    };
    assert!(text.contains("caches the fleet of another control plane (uid-1, this one is uid-2)"), "{text}");
}

#[tokio::test]
async fn no_query_reads_whole_tables() {
    let Some(database) = Database::create().await else { return };
    let store = open(&database, "one").await;
    let writes = (0..300).map(|n| put(&store.catalog.codec, &pod(&format!("p{n}"), &format!("u{n}"), "1"))).collect();
    store.apply(&[batch("member1", writes)], 1000).await.unwrap();
    let mut connection = store.writer.lock().await;
    let connection: &mut PgConnection = connection.as_mut().unwrap();
    let everywhere = Scan { collection: pods("member1"), namespaces: None, after: None, labels: None };
    let narrow = Scan { namespaces: Some(BTreeSet::from(["x".to_owned()])), ..everywhere.clone() };
    let scans =
        [&everywhere, &narrow].map(|scan| ScanRange::new(scan, 1, 10).unwrap().sql(super::COLUMNS, super::HAS_LABELS));
    let (of_key, deletions) = (history::versions_of_key(), history::filtered_versions(&VersionFilter::DELETED, ""));
    let [versions, without_excluded] = ["", super::NOT_EXCLUDED].map(|condition| {
        history::filtered_versions(&VersionFilter { only_deleted: false, ..VersionFilter::DELETED }, condition)
    });
    let (as_of, superseded) =
        (history::as_of("= ANY($2)"), history::superseded_since(Some(KeyRangeEnd::Key("x", "p9"))));
    let queries = [
        (scans[0].as_str(), "(1, 'x', 'p1', 10)", "records_by_key"),
        (scans[1].as_str(), "(1, 'x', 'p1', 10)", "records_by_key"),
        ("SELECT id FROM records WHERE seq > $1 ORDER BY seq LIMIT $2", "(7, 10)", "records_by_seq"),
        ("SELECT body FROM records WHERE id = ANY($1)", "(ARRAY[1, 2]::bigint[])", "records_pkey"),
        // By an index on `ended`.
        ("SELECT id FROM versions WHERE ended > $1 AND ended <= $2", "(7, 10)", "using versions_"),
        (of_key.as_str(), "(1, 'x', 'p1', 10)", "versions_by_key"),
        (deletions.as_str(), "(9223372036854775807, 0, 9223372036854775807, 10)", "versions_deleted"),
        (versions.as_str(), "(9223372036854775807, 0, 9223372036854775807, 10)", "using versions_"),
        (
            without_excluded.as_str(),
            "(9223372036854775807, 0, 9223372036854775807, 10, ARRAY[2]::bigint[], ARRAY[1]::bigint[], ARRAY['x'])",
            "using versions_",
        ),
        (as_of.as_str(), "(7, ARRAY[1, 2]::bigint[])", "using versions_"),
        (superseded.as_str(), "(7, 1, 'x', 'p1', 10, 'x', 'p9')", "versions_by_key"),
        ("SELECT id FROM versions WHERE seq > $1 AND seq <= $2", "(7, 10)", "versions_by_seq"),
    ];
    // Checks whether an index can provide the order; for the few rows here, the planner would prefer sorting.
    sqlx::raw_sql("SET enable_sort = off; SET enable_bitmapscan = off").execute(&mut *connection).await.unwrap();
    for (nth, (sql, arguments, index)) in queries.iter().enumerate() {
        let prepare = format!("PREPARE q{nth} AS {sql}");
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
        let explain = AssertSqlSafe(format!("EXPLAIN EXECUTE q{nth}{arguments}"));
        let rows = sqlx::raw_sql(explain).fetch_all(&mut *connection).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(plan.contains(index) && !plan.contains("Seq Scan") && !plan.contains("Sort"), "{sql}\n{plan}");
    }
}

#[test]
fn the_password_is_never_shown() {
    let options = PostgresOptions::new("postgres://ann:hunter2@db/cache");
    assert!(!format!("{options:?}").contains("hunter2"));
}

#[tokio::test]
async fn an_unreachable_database_is_named_without_its_password() {
    let options = PostgresOptions::new("postgres://ann:hunter2@127.0.0.1:1/cache");
    let refused = PostgresStore::open(&options, "one", Arc::default()).await.unwrap_err().chain();
    assert!(refused.contains("cache at 127.0.0.1:1 cannot be opened") && !refused.contains("hunter2"), "{refused}");
    let broken = PostgresOptions::new("mysql:hunter2");
    let refused = PostgresStore::open(&broken, "one", Arc::default()).await.unwrap_err().chain();
    assert_eq!(refused, "the URL of the cache's database must begin with postgres://");
}
