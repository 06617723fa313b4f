//! Old versions, on every backend.

use super::*;
use crate::Version;
use crate::{KeyRangeEnd, SupersededScan, VersionExclusions, VersionFilter};
use std::time::Duration;

#[rstest]
#[tokio::test]
async fn previous_states_are_found_by_seq(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    let writes = ["a", "b", "c"].map(|name| backend.put(&pod("x", name, name, "1")));
    backend.apply(writes.into(), "1").await;
    let writes = vec![
        backend.put(&pod("x", "a", "a", "2")),
        Backend::delete("x", "b", "3"),
        backend.put(&pod("x", "a", "a", "4")),
        backend.put(&pod("x", "d", "d", "5")),
    ];
    backend.apply(writes, "5").await;
    // The first versions of a, b and c began with seq 1, 2 and 3; the writes have seq 4 to 7.
    for (seq, expected) in [(3, "a 1, b 1"), (4, "a 2, b 1"), (5, "a 2"), (6, ""), (0, "")] {
        let mut found = backend.store.as_of(Seq(seq), &[1, 2, 3, 7, 99]).await.unwrap();
        found.sort_by_key(|version| version.object.record.id);
        let described = found.iter().map(|version| {
            let record = &version.object.record;
            format!("{} {}", record.key.name, record.resource_version)
        });
        assert_eq!(described.collect::<Vec<_>>().join(", "), expected, "after {seq}");
    }
    assert!(backend.store.as_of(Seq(3), &[2]).await.unwrap().iter().all(|version| version.object.record.id == 2));
    let at = |name: &str| Some(("x".to_owned(), name.to_owned()));
    for (seq, after, until, limit, expected) in [
        (3, None, None, 9, "a 1, b 1"),
        (3, None, None, 1, "a 1"),
        (3, at("a"), None, 9, "b 1"),
        (3, None, at("a"), 9, "a 1"),
        (3, at("a"), at("c"), 9, "b 1"),
        (3, at("b"), at("d"), 9, ""),
        (5, None, None, 9, "a 2"),
        (5, None, at("d"), 9, "a 2"),
        (7, None, None, 9, ""),
    ] {
        let pods = key("x", "any").collection;
        let end = until.as_ref().map(|(namespace, name)| KeyRangeEnd::Key(namespace, name));
        let scan = SupersededScan { seq: Seq(seq), collection: &pods, after: after.as_ref(), until: end, limit };
        let superseded = backend.store.superseded_since(&scan).await.unwrap();
        let superseded = superseded.iter().map(|version| {
            let record = &version.object.record;
            format!("{} {}", record.key.name, record.resource_version)
        });
        assert_eq!(superseded.collect::<Vec<_>>().join(", "), expected, "after {seq}, {after:?}..{until:?}");
    }
}

#[rstest]
#[case::everything("", None, "x/a y/a y/b z/a")]
#[case::up_to_a_namespace("", Some(KeyRangeEnd::Namespace("y")), "x/a y/a y/b")]
#[case::of_a_namespace("y", Some(KeyRangeEnd::Namespace("y")), "y/a y/b")]
#[case::of_a_missing_namespace("xx", Some(KeyRangeEnd::Namespace("xx")), "")]
#[case::up_to_a_key("y", Some(KeyRangeEnd::Key("y", "a")), "y/a")]
#[tokio::test]
async fn superseded_versions_are_those_of_the_range(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
    #[case] first_namespace: &str,
    #[case] until: Option<KeyRangeEnd<'_>>,
    #[case] expected: &str,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let keys = [("x", "a"), ("y", "a"), ("y", "b"), ("z", "a")];
    for version in ["1", "2"] {
        let puts =
            keys.map(|(namespace, name)| backend.put(&pod(namespace, name, &format!("{namespace}-{name}"), version)));
        backend.apply(puts.into(), version).await;
    }
    // The first versions began with seq 1 to 4 and ended with seq 5 to 8.
    let after = (first_namespace.to_owned(), String::new());
    let scan = SupersededScan { seq: Seq(4), collection: &pods(), after: Some(&after), until, limit: 9 };
    let found = backend.store.superseded_since(&scan).await.unwrap();
    let keys: Vec<String> = found
        .iter()
        .map(|version| format!("{}/{}", version.object.record.key.namespace, version.object.record.key.name))
        .collect();
    assert_eq!(keys.join(" "), expected);
}

/// (resourceVersion, resourceVersion in the body, seq, end, deleted), newest first.
async fn versions(backend: &Backend, name: &str) -> Vec<(String, String, u64, u64, bool)> {
    let versions = backend.store.versions(&key("x", name), 100).await.unwrap();
    let described = versions.iter().map(|version| {
        let body: Value = serde_json::from_slice(&version.object.body).unwrap();
        let body_version = body["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let record = &version.object.record;
        assert_eq!((&*record.key.name, &*record.kind, version.ended_at), (name, "Pod", 1000));
        (record.resource_version.clone(), body_version, record.seq.0, version.ended.0, version.deleted)
    });
    described.collect()
}

#[rstest]
#[tokio::test]
async fn previous_versions_are_kept(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "1", "1")), backend.put(&pod("x", "b", "2", "1"))], "1").await;
    // Changed twice in one transaction, deleted, and recreated with the same name.
    let writes = vec![
        backend.put(&pod("x", "a", "1", "2")),
        backend.put(&pod("x", "a", "1", "3")),
        Backend::delete("x", "a", "4"),
        backend.put(&pod("x", "a", "9", "5")),
    ];
    backend.apply(writes, "5").await;
    let version = |version: &str, seq, ended, deleted| (version.to_owned(), version.to_owned(), seq, ended, deleted);
    let expected = [version("3", 4, 5, true), version("2", 3, 4, false), version("1", 1, 3, false)];
    let backend = backend.reopen().await;
    assert_eq!(versions(&backend, "a").await, expected);
    assert!(versions(&backend, "b").await.is_empty() && versions(&backend, "missing").await.is_empty());
    assert_eq!(backend.store.versions(&key("x", "a"), 1).await.unwrap().len(), 1);

    // The versions of a dropped collection are kept, even after a restart.
    while !backend.store.drop_collection(&pods(), Epoch::UNSHARED, 100, 1000).await.unwrap().is_empty() {}
    let backend = backend.reopen().await;
    assert!(backend.store.collections().await.unwrap().is_empty());
    let deletions = backend.store.versions_in(&VersionFilter::DELETED, &VersionExclusions::NONE, 10).await.unwrap();
    let states: Vec<_> = deletions.iter().map(|d| (&*d.object.record.key.name, d.ended.0)).collect();
    assert!(matches!(states.as_slice(), [(_, 8), (_, 7), ("a", 5)]), "{states:?}");
    let next = backend
        .store
        .versions_in(&VersionFilter { before: Seq(7), ..VersionFilter::DELETED }, &VersionExclusions::NONE, 10)
        .await
        .unwrap();
    assert_eq!((next.len(), next[0].ended), (1, Seq(5)));
    let seqs = |versions: Vec<Version>| versions.iter().map(|version| version.ended.0).collect::<Vec<_>>();
    let all = VersionFilter { only_deleted: false, ..VersionFilter::DELETED };
    let unfiltered = backend.store.versions_in(&all, &VersionExclusions::NONE, 10).await.unwrap();
    assert_eq!(seqs(unfiltered), [8, 7, 5, 4, 3]);
    for (from, until, expected) in [(1000, 1001, 5), (1001, i64::MAX, 0), (i64::MIN, 1000, 0)] {
        assert_eq!(
            backend
                .store
                .versions_in(&VersionFilter { from, until, ..all }, &VersionExclusions::NONE, 10)
                .await
                .unwrap()
                .len(),
            expected
        );
    }
    let mut some = seqs(backend.store.versions_ended_by(&[Seq(5), Seq(3), Seq(99)]).await.unwrap());
    some.sort_unstable();
    assert_eq!(some, [3, 5]);
    // A recreated collection has its earlier history.
    backend.apply(vec![backend.put(&pod("x", "a", "10", "7"))], "7").await;
    assert_eq!(versions(&backend, "a").await.len(), 4);
    let size = backend.store.size().await.unwrap();
    assert_eq!((size.records, size.versions, size.deletions), (1, 5, 3));
    assert!(size.version_bytes > 0 && size.bytes > size.version_bytes, "{size:?}");
}

#[rstest]
#[case::everything(&[], &[], "a/x a/y a/z b/x b/y b/z")]
#[case::excluded_collection(&[("b", "")], &[], "a/x a/y a/z")]
#[case::limited_collection(&[("a", "x missing")], &[], "a/x b/x b/y b/z")]
#[case::two_limited_collections(&[("a", "x"), ("b", "x")], &[], "a/x b/x")]
#[case::limited_and_excluded(&[("a", "x z"), ("b", "")], &[], "a/x a/z")]
#[case::page_by_page(&[("a", "x z")], &[1, 2], "a/x a/z b/x b/y b/z")]
#[tokio::test]
async fn old_versions_are_excluded(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
    #[case] namespaces_by_cluster: &[(&str, &str)],
    #[case] limits: &[usize],
    #[case] expected: &str,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    for cluster_name in ["a", "b"] {
        let writes = ["x", "y", "z"].into_iter().flat_map(|namespace| {
            [backend.put(&pod(namespace, "p", namespace, "1")), Backend::delete(namespace, "p", "2")]
        });
        let collection = CollectionKey::new(cluster(cluster_name), resource_of(&json!({})));
        let progress = Progress { kind: Some(("Pod".to_owned(), true)), ..Progress::default() };
        let batch = Batch { collection, epoch: Epoch::UNSHARED, writes: writes.collect(), progress };
        assert_eq!(backend.store.apply(&[batch], 1000).await.unwrap().len(), 6);
    }
    let exclusions = backend.store.exclusions(&mut |key| {
        let entry = namespaces_by_cluster.iter().find(|(name, _)| *name == key.cluster.as_str());
        entry.map(|(_, namespaces)| namespaces.split_whitespace().map(str::to_owned).collect())
    });
    for limit in limits.iter().chain(&[100]) {
        let (mut found, mut filter) = (BTreeSet::new(), VersionFilter::DELETED);
        loop {
            let versions = backend.store.versions_in(&filter, &exclusions, *limit).await.unwrap();
            assert!(versions.len() <= *limit);
            let Some(last) = versions.last() else { break };
            filter.before = last.ended;
            for version in &versions {
                let key = &version.object.record.key;
                assert!(found.insert(format!("{}/{}", key.cluster(), key.namespace)), "returned twice");
            }
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), expected, "limit {limit}");
    }
}

#[rstest]
#[case::too_old(HistoryRetention { max_age: Duration::ZERO, ..UNLIMITED }, 0, 0)]
#[case::too_many(HistoryRetention { max_versions: 2, ..UNLIMITED }, 2, 1)]
#[case::too_large(HistoryRetention { max_bytes: 0, ..UNLIMITED }, 0, 0)]
#[case::within_the_limits(UNLIMITED, 9, 1)]
#[tokio::test]
async fn old_versions_are_pruned(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
    #[case] history: HistoryRetention,
    #[case] versions_of_a: usize,
    #[case] versions_of_b: usize,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "b", "2", "1")), Backend::delete("x", "b", "2")], "2").await;
    let writes = (1..=10).map(|version| backend.put(&pod("x", "a", "1", &version.to_string()))).collect();
    backend.apply(writes, "10").await;
    // Late enough that no follower needs the versions.
    let now = 1000 + 3600 * 1000;
    // Versions that the text index has not processed are kept.
    assert_eq!(backend.store.prune(&history, now, Seq(0)).await.unwrap(), 0);
    backend.store.prune(&history, now, Seq(u64::MAX)).await.unwrap();
    assert_eq!(
        (versions(&backend, "a").await.len(), versions(&backend, "b").await.len()),
        (versions_of_a, versions_of_b)
    );
    // Current objects are kept, and pruning again changes nothing.
    assert_eq!(backend.store.prune(&history, now, Seq(u64::MAX)).await.unwrap(), 0);
    assert_eq!(backend.store.get(&key("x", "a")).await.unwrap().unwrap().record.resource_version, "10");
    let newest = versions(&backend, "a").await;
    assert!(newest.first().is_none_or(|version| version.0 == "9"), "{newest:?}");
    // Later versions are kept as before.
    backend.apply(vec![backend.put(&pod("x", "a", "1", "11"))], "11").await;
    assert_eq!(versions(&backend, "a").await.len(), versions_of_a + 1);
}

#[rstest]
#[tokio::test]
async fn changes_of_the_status_do_not_displace_those_of_the_spec(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let writes = (1..=12).map(|version| {
        let mut object = pod("x", "a", "1", &version.to_string());
        object["metadata"]["generation"] = json!(version.min(3));
        backend.put(&object)
    });
    backend.apply(writes.collect(), "12").await;
    let history = HistoryRetention { max_versions: 2, ..UNLIMITED };
    backend.store.prune(&history, 1000 + 3600 * 1000, Seq(u64::MAX)).await.unwrap();
    let remaining: Vec<_> = versions(&backend, "a").await.into_iter().map(|version| version.0).collect();
    // The newest two, and the last of the two newest generations.
    assert_eq!(remaining, ["11", "10", "2"]);
}

const UNLIMITED: HistoryRetention = HistoryRetention {
    max_age: Duration::from_secs(24 * 3600),
    max_versions: 100,
    max_bytes: u64::MAX,
    max_store_bytes: None,
};
