//! What every backend must do, whatever it is made of.

use super::codec::Codec;
use super::postgres::PostgresStore;
use super::sqlite::SqliteStore;
use super::{Batch, Narrowing, Packed, Progress, Replayed, Scan, Span, Step, Store};
use crate::fixtures::{cluster, draft, resource_of};
use crate::postgres_server::Database;
use crate::record::{CollectionKey, Happened, RecordKey, Seq};
use crate::{Epoch, Error, History, IndexOptions, PostgresOptions, Version};
use crowsnest_api::selector::Selector;
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Every case runs on each of them.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Sqlite,
    Postgres,
}

enum Home {
    Sqlite(tempfile::TempDir),
    Postgres(Database),
}

struct Backend {
    store: Arc<dyn Store>,
    codec: Arc<Codec>,
    home: Home,
}

impl Backend {
    /// None where the backend's server is not installed.
    async fn of(kind: Kind) -> Option<Self> {
        let home = match kind {
            Kind::Sqlite => Home::Sqlite(tempfile::tempdir().unwrap()),
            Kind::Postgres => Home::Postgres(Database::fresh().await?),
        };
        Some(Self::at(home, &[]).await.unwrap())
    }

    async fn at(home: Home, labels: &[&str]) -> Result<Self, Error> {
        let labels: Vec<String> = labels.iter().map(|key| (*key).to_owned()).collect();
        let codec = Arc::new(Codec::default());
        let store: Arc<dyn Store> = match &home {
            Home::Sqlite(directory) => {
                let options = IndexOptions { chosen_labels: labels, ..IndexOptions::new(directory.path()) };
                Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await?)
            }
            Home::Postgres(database) => {
                let options = PostgresOptions::new(database.url());
                let mut store = PostgresStore::open(&options, "suite", Arc::clone(&codec)).await?;
                store.choose_labels(&labels).await?;
                Arc::new(store)
            }
        };
        Ok(Self { store, codec, home })
    }

    async fn reopened(self) -> Self {
        self.reopened_with(&[]).await
    }

    async fn reopened_with(self, labels: &[&str]) -> Self {
        drop(self.store);
        Self::at(self.home, labels).await.unwrap()
    }

    fn put(&self, object: &Value) -> Step {
        let draft = draft(object);
        let packed: Packed = self.codec.pack("/Pod", &draft.body).unwrap().0;
        Step::Put(Box::new(draft), packed)
    }

    fn delete(namespace: &str, name: &str, version: &str) -> Step {
        Step::Delete { namespace: namespace.into(), name: name.into(), resource_version: version.into() }
    }

    async fn apply(&self, steps: Vec<Step>, version: &str) -> Vec<(u64, Happened, String)> {
        let progress = Progress {
            resource_version: Some(version.to_owned()),
            kind: Some(("Pod".to_owned(), true)),
            ..Progress::default()
        };
        let batch = Batch { collection: pods(), epoch: Epoch::ALONE, steps, progress };
        let changes = self.store.apply(&[batch], 1000).await.unwrap();
        changes.into_iter().map(|c| (c.seq.0, c.happened, c.object.record.key.name.to_string())).collect()
    }

    async fn names(&self, namespaces: Option<&[&str]>, limit: usize, want: &dyn Fn(&str) -> bool) -> Vec<String> {
        let want: BTreeSet<String> =
            ["a", "b", "c", "d", "e"].iter().filter(|n| want(n)).map(|n| (*n).to_owned()).collect();
        let mut scan = Scan {
            collection: pods(),
            namespaces: namespaces.map(|all| all.iter().map(|n| (*n).to_owned()).collect()),
            after: None,
            labels: None,
        };
        let mut names = Vec::new();
        loop {
            let keep = |record: &crate::Record| Ok(want.contains(&*record.key.name));
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
async fn changes_are_told_once_and_survive(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let first =
        backend.apply(vec![backend.put(&pod("x", "a", "1", "10")), backend.put(&pod("x", "b", "2", "11"))], "11").await;
    assert_eq!(first, [(1, Happened::Added, "a".into()), (2, Happened::Added, "b".into())]);
    // What is already there is no change, however often it is sent.
    assert!(backend.apply(vec![backend.put(&pod("x", "a", "1", "10"))], "12").await.is_empty());
    let steps = vec![
        backend.put(&pod("x", "a", "1", "13")),
        Backend::delete("x", "b", "14"),
        backend.put(&pod("x", "b", "3", "15")),
        Backend::delete("x", "nobody", "16"),
        // Another uid: the old object is gone.
        backend.put(&pod("x", "a", "9", "17")),
    ];
    let happened = backend.apply(steps, "17").await;
    use Happened::{Added, Deleted, Modified};
    let expected = [(3, Modified, "a"), (4, Deleted, "b"), (5, Added, "b"), (6, Deleted, "a"), (7, Added, "a")];
    assert_eq!(happened, expected.map(|(seq, happened, name)| (seq, happened, name.to_owned())));

    let before = backend.store.get(&key("x", "a")).await.unwrap().unwrap();
    let backend = backend.reopened().await;
    let after = backend.store.get(&key("x", "a")).await.unwrap().unwrap();
    assert_eq!((&before.record, &before.body), (&after.record, &after.body));
    assert_eq!(after.record.resource_version, "17");
    assert_eq!(backend.store.latest().await.unwrap(), Seq(7));
    let collections = backend.store.collections().await.unwrap();
    assert_eq!((collections[0].state.resource_version.as_str(), &*collections[0].state.kind), ("17", "Pod"));
    assert_eq!(backend.store.keys(&pods()).await.unwrap().len(), 2);
    assert!(backend.store.get(&key("x", "nobody")).await.unwrap().is_none());
}

#[rstest]
#[tokio::test]
async fn lists_go_in_key_order_and_resume(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let mut steps = Vec::new();
    for (namespace, name) in [("y", "a"), ("x", "c"), ("x", "a"), ("z", "e"), ("x", "b"), ("y", "d")] {
        steps.push(backend.put(&pod(namespace, name, &format!("{namespace}{name}"), "1")));
    }
    backend.apply(steps, "1").await;
    for limit in [1, 2, 3, 100] {
        let all = backend.names(None, limit, &|_| true).await;
        assert_eq!(all, ["x/a", "x/b", "x/c", "y/a", "y/d", "z/e"], "limit {limit}");
        assert_eq!(backend.names(Some(&["x", "z", "nowhere"]), limit, &|_| true).await, ["x/a", "x/b", "x/c", "z/e"]);
        assert_eq!(backend.names(None, limit, &|name| name == "a" || name == "e").await, ["x/a", "y/a", "z/e"]);
        assert!(backend.names(None, limit, &|_| false).await.is_empty());
    }
}

#[rstest]
#[tokio::test]
async fn a_scan_for_labels_finds_all_that_have_them(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let labels = [
        ("a", json!({"app": "web", "a.io/x_y": "v_1", "tier": "front"})),
        ("b", json!({"app": "web-2", "a.io/xXy": "vX1", "tier": "front"})),
        ("c", json!({"app": "db", "z": "app"})),
        ("d", json!({})),
    ];
    let labelled = |(name, labels): &(&str, Value)| {
        let mut pod = pod("x", name, name, "1");
        pod["metadata"]["labels"] = labels.clone();
        backend.put(&pod)
    };
    backend.apply(labels.iter().map(labelled).collect(), "1").await;
    for (selector, expected) in [
        ("app=web", "a"),
        ("app", "abc"),
        ("!app", "d"),
        ("app!=web", "bcd"),
        ("app in (web,db)", "ac"),
        ("app in (web)", "a"),
        ("app notin (web)", "bcd"),
        ("tier=front,app=web-2", "b"),
        ("tier,app,app=web", "a"),
        ("a.io/x_y=v_1", "a"),
        ("app=db,app=web", ""),
        ("", "abcd"),
    ] {
        let wanted = Selector::parse(selector).unwrap();
        let scan = Scan { collection: pods(), namespaces: None, after: None, labels: Some(wanted.clone()) };
        let found = backend.store.records(&scan, &|record| Ok(wanted.matches(&record.labels)), 100).await.unwrap();
        let names: String = found.0.iter().map(|record| &*record.key.name).collect();
        assert_eq!((names.as_str(), found.1), (expected, None), "{selector}");
    }
}

#[rstest]
#[tokio::test]
async fn objects_are_found_by_chosen_labels(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let labelled = |name: &str, uid: &str, version: &str, labels: Value| {
        let mut pod = pod("x", name, uid, version);
        pod["metadata"]["labels"] = labels;
        pod
    };
    let Some(backend) = Backend::of(kind).await else { return };
    let backend = backend.reopened_with(&["*/id", "of-*", "exact"]).await;
    let steps = [
        labelled("c", "1", "1", json!({"a.io/id": "7", "of-x": "", "app": "c"})),
        labelled("a", "2", "1", json!({"a.io/id": "7", "exact": "1"})),
        labelled("b", "3", "1", json!({"b.io/id": "7", "of-y": "1"})),
        labelled("d", "4", "1", json!({"a.io/id": "8"})),
    ];
    backend.apply(steps.iter().map(|pod| backend.put(pod)).collect(), "1").await;
    async fn found(backend: &Backend, label: &str, value: Option<&str>) -> String {
        let found = backend.store.labelled(&pods(), label, value).await.unwrap();
        found.iter().map(|record| &*record.key.name).collect()
    }
    assert_eq!(found(&backend, "a.io/id", Some("7")).await, "ac");
    assert_eq!(found(&backend, "a.io/id", None).await, "acd");
    assert_eq!(found(&backend, "b.io/id", Some("7")).await, "b");
    assert_eq!(found(&backend, "of-x", Some("")).await, "c");
    assert_eq!(found(&backend, "exact", Some("1")).await, "a");
    assert_eq!(found(&backend, "a.io/id", Some("9")).await, "");
    let refused = backend.store.labelled(&pods(), "app", Some("c")).await.unwrap_err();
    assert_eq!(refused.to_string(), "objects are not indexed by their label app");

    // Labels move, objects go and come back as others.
    let steps = vec![
        backend.put(&labelled("a", "2", "2", json!({"a.io/id": "8"}))),
        Backend::delete("x", "c", "3"),
        backend.put(&labelled("b", "9", "4", json!({"a.io/id": "7"}))),
    ];
    backend.apply(steps, "4").await;
    assert_eq!(found(&backend, "a.io/id", Some("7")).await, "b");
    assert_eq!(found(&backend, "a.io/id", Some("8")).await, "ad");
    assert_eq!(found(&backend, "b.io/id", None).await, "");

    // Another choice is made good for what is already there.
    let backend = backend.reopened_with(&["*/id", "app"]).await;
    assert_eq!(found(&backend, "a.io/id", Some("8")).await, "ad");
    assert!(backend.store.labelled(&pods(), "exact", None).await.is_err());
    backend.store.drop_collection(&pods(), Epoch::ALONE, 100, 5).await.unwrap();
    assert_eq!(found(&backend, "a.io/id", None).await, "");
}

#[rstest]
#[tokio::test]
async fn a_follower_that_was_away_is_told_what_it_missed(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let steps = (0..10).map(|n| backend.put(&pod("x", &format!("p{n}"), &format!("u{n}"), "1"))).collect();
    backend.apply(steps, "1").await;
    backend.apply(vec![Backend::delete("x", "p3", "2"), backend.put(&pod("x", "p4", "u4", "3"))], "3").await;
    for limit in [1, 2, 3, 50] {
        let (mut seen, mut gone, mut since) = (BTreeSet::new(), Vec::new(), Seq(0));
        loop {
            let replayed = backend.store.replay(since, limit).await.unwrap();
            let Some(last) = replayed.last() else { break };
            since = last.seq();
            for change in replayed {
                match change {
                    Replayed::Put(object) => drop(seen.insert(object.record.key.name.to_string())),
                    Replayed::Deleted { id, .. } => gone.push(id),
                }
            }
        }
        assert_eq!((seen.len(), gone.as_slice(), since), (9, [4].as_slice(), Seq(12)), "limit {limit}");
    }
    // The deletion and what p4 was; only the former is missed by who was away.
    let later = 1000 + History::default().kept_for.as_millis() as i64 + 1;
    assert_eq!(backend.store.prune(&History::default(), later, Seq(u64::MAX)).await.unwrap(), 2);
    assert_eq!(backend.store.pruned().await.unwrap(), Seq(11));
}

#[rstest]
#[tokio::test]
async fn objects_are_told_as_they_were_after_a_change(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let steps = ["a", "b", "c"].map(|name| backend.put(&pod("x", name, name, "1")));
    backend.apply(steps.into(), "1").await;
    let steps = vec![
        backend.put(&pod("x", "a", "a", "2")),
        Backend::delete("x", "b", "3"),
        backend.put(&pod("x", "a", "a", "4")),
        backend.put(&pod("x", "d", "d", "5")),
    ];
    backend.apply(steps, "5").await;
    // a began with 1, b with 2, c with 3; the steps are 4 to 7.
    for (seq, expected) in [(3, "a 1, b 1"), (4, "a 2, b 1"), (5, "a 2"), (6, ""), (0, "")] {
        let mut told = backend.store.as_of(Seq(seq), &[1, 2, 3, 7, 99]).await.unwrap();
        told.sort_by_key(|version| version.object.record.id);
        let told = told.iter().map(|version| {
            let record = &version.object.record;
            format!("{} {}", record.key.name, record.resource_version)
        });
        assert_eq!(told.collect::<Vec<_>>().join(", "), expected, "after {seq}");
    }
    assert!(backend.store.as_of(Seq(3), &[2]).await.unwrap().iter().all(|version| version.object.record.id == 2));
}

/// (resourceVersion, resourceVersion in the body, seq, end, deleted), newest first.
async fn versions(backend: &Backend, name: &str) -> Vec<(String, String, u64, u64, bool)> {
    let versions = backend.store.versions(&key("x", name), 100).await.unwrap();
    let told = versions.iter().map(|version| {
        let body: Value = serde_json::from_slice(&version.object.body).unwrap();
        let inside = body["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let record = &version.object.record;
        assert_eq!((&*record.key.name, &*record.kind, version.ended_at), (name, "Pod", 1000));
        (record.resource_version.clone(), inside, record.seq.0, version.ended.0, version.deleted)
    });
    told.collect()
}

#[rstest]
#[tokio::test]
async fn what_objects_were_is_kept(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "1", "1")), backend.put(&pod("x", "b", "2", "1"))], "1").await;
    // Twice in one transaction, deleted, and another under the same name.
    let steps = vec![
        backend.put(&pod("x", "a", "1", "2")),
        backend.put(&pod("x", "a", "1", "3")),
        Backend::delete("x", "a", "4"),
        backend.put(&pod("x", "a", "9", "5")),
    ];
    backend.apply(steps, "5").await;
    let told = |version: &str, seq, ended, deleted| (version.to_owned(), version.to_owned(), seq, ended, deleted);
    let expected = [told("3", 4, 5, true), told("2", 3, 4, false), told("1", 1, 3, false)];
    let backend = backend.reopened().await;
    assert_eq!(versions(&backend, "a").await, expected);
    assert!(versions(&backend, "b").await.is_empty() && versions(&backend, "nobody").await.is_empty());
    assert_eq!(backend.store.versions(&key("x", "a"), 1).await.unwrap().len(), 1);

    // A dropped collection leaves all it had, also after a restart.
    while !backend.store.drop_collection(&pods(), Epoch::ALONE, 100, 1000).await.unwrap().is_empty() {}
    let backend = backend.reopened().await;
    assert!(backend.store.collections().await.unwrap().is_empty());
    let deletions = backend.store.past(&Span::DELETED, &Narrowing::NONE, 10).await.unwrap();
    let told: Vec<_> = deletions.iter().map(|d| (&*d.object.record.key.name, d.ended.0)).collect();
    assert!(matches!(told.as_slice(), [(_, 8), (_, 7), ("a", 5)]), "{told:?}");
    let next = backend.store.past(&Span { before: Seq(7), ..Span::DELETED }, &Narrowing::NONE, 10).await.unwrap();
    assert_eq!((next.len(), next[0].ended), (1, Seq(5)));
    let seqs = |versions: Vec<Version>| versions.iter().map(|version| version.ended.0).collect::<Vec<_>>();
    let all = Span { deleted: false, ..Span::DELETED };
    let whole = backend.store.past(&all, &Narrowing::NONE, 10).await.unwrap();
    assert_eq!(seqs(whole), [8, 7, 5, 4, 3]);
    for (from, until, expected) in [(1000, 1001, 5), (1001, i64::MAX, 0), (i64::MIN, 1000, 0)] {
        assert_eq!(
            backend.store.past(&Span { from, until, ..all }, &Narrowing::NONE, 10).await.unwrap().len(),
            expected
        );
    }
    let mut some = seqs(backend.store.ended(&[Seq(5), Seq(3), Seq(99)]).await.unwrap());
    some.sort_unstable();
    assert_eq!(some, [3, 5]);
    // And the same collection comes back with its history.
    backend.apply(vec![backend.put(&pod("x", "a", "10", "7"))], "7").await;
    assert_eq!(versions(&backend, "a").await.len(), 4);
    let size = backend.store.size().await.unwrap();
    assert_eq!((size.records, size.versions, size.deletions), (1, 5, 3));
    assert!(size.version_bytes > 0 && size.bytes > size.version_bytes, "{size:?}");
}

#[rstest]
#[case::everything(&[], &[], "a/x a/y a/z b/x b/y b/z")]
#[case::nothing_of_one(&[("b", "")], &[], "a/x a/y a/z")]
#[case::some_namespaces_of_one(&[("a", "x nowhere")], &[], "a/x b/x b/y b/z")]
#[case::of_both(&[("a", "x"), ("b", "x")], &[], "a/x b/x")]
#[case::of_one_nothing_of_the_other(&[("a", "x z"), ("b", "")], &[], "a/x a/z")]
#[case::page_by_page(&[("a", "x z")], &[1, 2], "a/x a/z b/x b/y b/z")]
#[tokio::test]
async fn old_versions_are_narrowed(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[case] wanted: &[(&str, &str)],
    #[case] limits: &[usize],
    #[case] expected: &str,
) {
    let Some(backend) = Backend::of(kind).await else { return };
    for cluster_name in ["a", "b"] {
        let steps = ["x", "y", "z"].into_iter().flat_map(|namespace| {
            [backend.put(&pod(namespace, "p", namespace, "1")), Backend::delete(namespace, "p", "2")]
        });
        let collection = CollectionKey::new(cluster(cluster_name), resource_of(&json!({})));
        let progress = Progress { kind: Some(("Pod".to_owned(), true)), ..Progress::default() };
        let batch = Batch { collection, epoch: Epoch::ALONE, steps: steps.collect(), progress };
        assert_eq!(backend.store.apply(&[batch], 1000).await.unwrap().len(), 6);
    }
    let narrowing = backend.store.narrowing(&mut |key| {
        let of = wanted.iter().find(|(name, _)| *name == key.cluster.as_str());
        of.map(|(_, namespaces)| namespaces.split_whitespace().map(str::to_owned).collect())
    });
    for limit in limits.iter().chain(&[100]) {
        let (mut found, mut span) = (BTreeSet::new(), Span::DELETED);
        loop {
            let versions = backend.store.past(&span, &narrowing, *limit).await.unwrap();
            assert!(versions.len() <= *limit);
            let Some(last) = versions.last() else { break };
            span.before = last.ended;
            for version in &versions {
                let key = &version.object.record.key;
                assert!(found.insert(format!("{}/{}", key.cluster(), key.namespace)), "told twice");
            }
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), expected, "limit {limit}");
    }
}

#[rstest]
#[case::too_old(History { kept_for: Duration::ZERO, ..KEPT }, 0, 0)]
#[case::too_many(History { per_object: 2, ..KEPT }, 2, 1)]
#[case::too_large(History { max_bytes: 0, ..KEPT }, 0, 0)]
#[case::none_of_it(KEPT, 9, 1)]
#[tokio::test]
async fn old_versions_go(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[case] history: History,
    #[case] of_a: usize,
    #[case] of_b: usize,
) {
    let Some(backend) = Backend::of(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "b", "2", "1")), Backend::delete("x", "b", "2")], "2").await;
    let steps = (1..=10).map(|version| backend.put(&pod("x", "a", "1", &version.to_string()))).collect();
    backend.apply(steps, "10").await;
    // Late enough that no follower needs them any more.
    let now = 1000 + 3600 * 1000;
    // But not before the text index has seen them.
    assert_eq!(backend.store.prune(&history, now, Seq(0)).await.unwrap(), 0);
    backend.store.prune(&history, now, Seq(u64::MAX)).await.unwrap();
    assert_eq!((versions(&backend, "a").await.len(), versions(&backend, "b").await.len()), (of_a, of_b));
    // What is there stays, and pruning again changes nothing.
    assert_eq!(backend.store.prune(&history, now, Seq(u64::MAX)).await.unwrap(), 0);
    assert_eq!(backend.store.get(&key("x", "a")).await.unwrap().unwrap().record.resource_version, "10");
    let newest = versions(&backend, "a").await;
    assert!(newest.first().is_none_or(|version| version.0 == "9"), "{newest:?}");
    // A whole new version is kept as before.
    backend.apply(vec![backend.put(&pod("x", "a", "1", "11"))], "11").await;
    assert_eq!(versions(&backend, "a").await.len(), of_a + 1);
}

const KEPT: History =
    History { kept_for: Duration::from_secs(24 * 3600), per_object: 100, max_bytes: u64::MAX, max_store_bytes: None };

#[rstest]
#[tokio::test]
async fn a_dropped_collection_leaves_as_deletions(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let steps = (0..5).map(|n| backend.put(&pod("x", &format!("p{n}"), &format!("u{n}"), "1"))).collect();
    backend.apply(steps, "1").await;
    let first = backend.store.drop_collection(&pods(), Epoch::ALONE, 3, 2000).await.unwrap();
    assert!(first.iter().all(|change| change.happened == Happened::Deleted) && first.len() == 3);
    assert!(!backend.store.collections().await.unwrap()[0].state.complete);
    assert_eq!(backend.store.drop_collection(&pods(), Epoch::ALONE, 3, 2000).await.unwrap().len(), 2);
    assert!(backend.store.drop_collection(&pods(), Epoch::ALONE, 3, 2000).await.unwrap().is_empty());
    assert!(backend.store.collections().await.unwrap().is_empty());
    // And it can come back.
    assert_eq!(backend.apply(vec![backend.put(&pod("x", "p0", "u0", "1"))], "9").await.len(), 1);
}

#[rstest]
#[tokio::test]
async fn a_newer_database_is_refused_in_one_line(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    let (home, store) = (backend.home, backend.store);
    drop(store);
    use sqlx::Connection;
    match &home {
        Home::Sqlite(directory) => {
            let path = directory.path().join("cache.sqlite");
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
            let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
            sqlx::raw_sql("PRAGMA user_version = 999").execute(&mut connection).await.unwrap();
        }
        Home::Postgres(database) => {
            let mut connection = database.connect().await;
            sqlx::raw_sql("UPDATE crowsnest_cache.format SET version = 999").execute(&mut connection).await.unwrap();
        }
    }
    let refused = Backend::at(home, &[]).await.err();
    let text = refused.as_ref().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("written by a newer version (format 999") && !text.contains('\n'), "{text}");
    assert!(matches!(refused, Some(Error::StoreFormat(_))));
}

#[rstest]
#[tokio::test]
async fn it_knows_since_when_it_is_filled(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let Some(backend) = Backend::of(kind).await else { return };
    assert_eq!(backend.store.began(500).await.unwrap(), 500);
    let backend = backend.reopened().await;
    assert_eq!(backend.store.began(900).await.unwrap(), 500);
    // One that was filled before anybody asked.
    let Some(backend) = Backend::of(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "1", "1"))], "1").await;
    assert_eq!(backend.store.began(99_000).await.unwrap(), 1000);
}
