//! Scans of a collection: pages, label selectors, records with and without bodies.

use super::{Backend, BackendKind, key, pod, pods};
use crate::{Error, Record, Scan, StoredObject};
use crowsnest_apimachinery::selector::Selector;
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;

impl Backend {
    /// The bodies of objects.
    fn texts(&self, objects: Vec<StoredObject>) -> Vec<String> {
        let text = |object: StoredObject| object.unpack(&self.codec).unwrap().text().to_owned();
        objects.into_iter().map(text).collect()
    }

    /// The bodies of the pods in namespace `x` with these names of one character, read one by one.
    async fn texts_of(&self, names: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for name in names.chars() {
            let object = self.store.get(&key("x", &name.to_string())).await.unwrap().unwrap();
            texts.push(object.text().to_owned());
        }
        texts
    }
}

#[rstest]
#[tokio::test]
async fn scans_are_in_key_order_and_resume(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    let mut writes = Vec::new();
    for (namespace, name) in [("y", "a"), ("x", "c"), ("x", "a"), ("z", "e"), ("x", "b"), ("y", "d")] {
        writes.push(backend.put(&pod(namespace, name, &format!("{namespace}{name}"), "1")));
    }
    backend.apply(writes, "1").await;
    for limit in [1, 2, 3, 100] {
        let all = backend.names(None, limit, &|_| true).await;
        assert_eq!(all, ["x/a", "x/b", "x/c", "y/a", "y/d", "z/e"], "limit {limit}");
        assert_eq!(backend.names(Some(&["x", "z", "missing"]), limit, &|_| true).await, ["x/a", "x/b", "x/c", "z/e"]);
        assert_eq!(backend.names(None, limit, &|name| name == "a" || name == "e").await, ["x/a", "y/a", "z/e"]);
        assert!(backend.names(None, limit, &|_| false).await.is_empty());
    }
}

#[rstest]
#[tokio::test]
async fn a_scan_with_a_label_selector_finds_all_matches(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let labels = [
        ("a", json!({"app": "web", "a.io/x_y": "v_1", "tier": "front"})),
        ("b", json!({"app": "web-2", "a.io/xXy": "vX1", "tier": "front"})),
        ("c", json!({"app": "db", "z": "app"})),
        ("d", json!({})),
        ("e", json!({"app": "", "tier": "Front"})),
    ];
    let labelled = |(name, labels): &(&str, Value)| {
        let mut pod = pod("x", name, name, "1");
        pod["metadata"]["labels"] = labels.clone();
        backend.put(&pod)
    };
    backend.apply(labels.iter().map(labelled).collect(), "1").await;
    for (selector, expected) in [
        ("app=web", "a"),
        ("app", "abce"),
        ("!app", "d"),
        ("app!=web", "bcde"),
        ("app in (web,db)", "ac"),
        ("app in (web)", "a"),
        ("app notin (web)", "bcde"),
        ("tier=front,app=web-2", "b"),
        ("tier,app,app=web", "a"),
        ("a.io/x_y=v_1", "a"),
        ("app=db,app=web", ""),
        ("app=", "e"),
        ("app in (,db)", "ce"),
        ("app notin (,web)", "bcd"),
        ("app,app!=", "abc"),
        ("tier=front", "ab"),
        ("tier=Front", "e"),
        ("missing=", ""),
        ("", "abcde"),
    ] {
        let selector = Selector::parse(selector).unwrap();
        let scan = Scan { collection: pods(), namespaces: None, after: None, labels: Some(selector.clone()) };
        let found = backend.store.records(&scan, &|record| Ok(selector.matches(&record.labels)), 100).await.unwrap();
        let names: String = found.0.iter().map(|record| &*record.key.name).collect();
        assert_eq!((names.as_str(), found.1), (expected, None), "{selector}");
        let (objects, next) =
            backend.store.objects(&scan, &|record| Ok(selector.matches(&record.labels)), 100).await.unwrap();
        assert_eq!((backend.texts(objects), next), (backend.texts_of(expected).await, None), "{selector}");
    }
}

/// A `LIKE` pattern with all of these labels would be longer than SQLite allows.
#[rstest]
#[tokio::test]
async fn a_scan_with_many_required_labels_finds_all_matches(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let keys: Vec<String> = (0..500).map(|nth| format!("k{nth}{}z", "_".repeat(50))).collect();
    let put = |name: &str, keys: &[String]| {
        let mut pod = pod("x", name, name, "1");
        pod["metadata"]["labels"] = keys.iter().map(|key| (key.clone(), "v")).collect();
        backend.put(&pod)
    };
    backend.apply(vec![put("a", &keys), put("b", &keys[1..]), put("c", &keys[..499])], "1").await;
    let selector = Selector::parse(&format!("{}=v", keys.join("=v,"))).unwrap();
    let scan = Scan { collection: pods(), namespaces: None, after: None, labels: Some(selector.clone()) };
    let keep = |record: &Record| Ok(selector.matches(&record.labels));
    let (records, next) = backend.store.records(&scan, &keep, 100).await.unwrap();
    let names: Vec<&str> = records.iter().map(|record| &*record.key.name).collect();
    assert_eq!((names, next), (vec!["a"], None));
}

#[rstest]
#[tokio::test]
async fn a_scan_for_nothing_reads_no_record(#[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind) {
    let Some(backend) = Backend::open(kind).await else { return };
    backend.apply(vec![backend.put(&pod("x", "a", "a", "1"))], "1").await;
    let scan = Scan { collection: pods(), namespaces: None, after: None, labels: Some(Selector::nothing()) };
    let keep = |record: &Record| -> Result<bool, Error> { panic!("read {record:?}") };
    assert_eq!(backend.store.records(&scan, &keep, 10).await.unwrap(), (Vec::new(), None));
    let (objects, next) = backend.store.objects(&scan, &keep, 10).await.unwrap();
    assert_eq!((objects.len(), next), (0, None));
}

#[rstest]
#[case::everything("", true)]
#[case::value("app=web,tier in (front)", true)]
#[case::existence("app", true)]
#[case::several_values("app in (web,db)", false)]
#[case::other_value("app!=web", false)]
#[case::no_value("app notin (web)", false)]
#[case::absence("!app", false)]
#[case::partly("app=web,!tier", false)]
fn scans_are_prefiltered_by_some_selectors(#[case] selector: &str, #[case] expected: bool) {
    let labels = Some(Selector::parse(selector).unwrap());
    assert_eq!(Scan { collection: pods(), namespaces: None, after: None, labels }.is_prefiltered(), expected);
}

#[rstest]
#[tokio::test]
async fn pages_of_objects_are_those_of_records(
    #[values(BackendKind::Sqlite, BackendKind::Postgres)] kind: BackendKind,
    #[values(1, 2, 3, 100)] limit: usize,
) {
    let Some(backend) = Backend::open(kind).await else { return };
    let keys = [("y", "a"), ("x", "c"), ("x", "a"), ("z", "e"), ("x", "b"), ("y", "d")];
    let put = |(namespace, name): (&str, &str)| backend.put(&pod(namespace, name, &format!("{namespace}{name}"), "1"));
    backend.apply(keys.into_iter().map(put).collect(), "1").await;
    let namespaces = |all: &[&str]| Some(all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>());
    for namespaces in [None, namespaces(&["x", "z", "missing"])] {
        let mut scan = Scan { collection: pods(), namespaces, after: None, labels: None };
        let keep = |record: &Record| Ok(&*record.key.name != "b");
        loop {
            let (records, after_records) = backend.store.records(&scan, &keep, limit).await.unwrap();
            let (objects, next) = backend.store.objects(&scan, &keep, limit).await.unwrap();
            let object_records: Vec<Record> = objects.iter().map(|object| Record::clone(&object.record)).collect();
            assert_eq!((object_records, &next), (records.clone(), &after_records));
            let bodies = backend.store.bodies(records).await.unwrap();
            let bodies: Vec<String> = bodies.iter().map(|object| object.text().to_owned()).collect();
            assert_eq!(backend.texts(objects), bodies);
            match next {
                None => break,
                next => scan.after = next,
            }
        }
    }
}
