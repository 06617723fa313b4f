//! Exports from a real store to real engines: run `.ci/engines test`.
//!
//! Each scenario ends with engine and store equal: the same documents, created by [`super::document`], under the same uids.

use super::document::encode_document;
use super::progress::{ExportProgress, ExportState};
use super::source::Source;
use super::state::CheckpointStore;
use super::{BackendClaims, ExportOptions, Exporter, Selection};
use crate::export::document::{alias_of, index_name};
use crowsnest_component_base::retry::Backoff;
use crowsnest_search::opensearch::client::{Address, Client, ClientOptions, ProxyChoice};
use crowsnest_search::opensearch::node::Node;
use crowsnest_store::CollectionStates;
use crowsnest_store::codec::Codec;
use crowsnest_store::fixtures::{cluster, draft, resource_of, stored};
use crowsnest_store::sqlite::SqliteStore;
use crowsnest_store::tail::Tail;
use crowsnest_store::{Batch, Progress, RecordWrite, Store};
use crowsnest_store::{CacheOptions, CollectionKey, Epoch, HistoryRetention, Seq};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum wait for an expected state.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A store with its tail, as a cache has them.
struct Cache {
    store: Arc<SqliteStore>,
    codec: Arc<Codec>,
    tail: Arc<Tail>,
    states: Arc<CollectionStates>,
    backend_claims: Arc<BackendClaims>,
    /// Objects by cluster and uid.
    objects: BTreeMap<(String, String), Value>,
    has_secret_values: bool,
    _data_dir: tempfile::TempDir,
}

struct RunningExport {
    exporter: Arc<Exporter>,
    selection: watch::Sender<Arc<Selection>>,
    task: JoinHandle<()>,
    stop: CancellationToken,
    _guard: DropGuard,
}

fn key(name: &str, object: &Value) -> CollectionKey {
    CollectionKey::new(cluster(name), resource_of(object))
}

fn pod(namespace: &str, name: &str, uid: &str, version: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name, "uid": uid,
        "resourceVersion": version.to_string(), "creationTimestamp": "2026-08-01T10:00:00Z",
        "labels": {"app": "web", "app.kubernetes.io/name": name}}, "spec": {"nodeName": format!("n{version}")}})
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "a", "name": name, "uid": format!("secret-{name}"),
        "resourceVersion": "1", "annotations": {"team": "a",
            "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"password\":\"aHVudGVyMg==\"}}"}},
        "data": {"password": "aHVudGVyMg=="}})
}

/// Pods of clusters, and Secrets of the first one.
fn selection(clusters: &[&str]) -> Selection {
    let mut selection = Selection::default();
    for name in clusters {
        selection.add(key(name, &json!({})), "Pod", None);
        selection.add(key(name, &secret("s")), "Secret", None);
    }
    selection
}

impl Cache {
    async fn new() -> Self {
        // Fails if another test has installed the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let home = tempfile::tempdir().unwrap();
        let codec = Arc::new(Codec::default());
        let store = SqliteStore::open(&CacheOptions::new(home.path()), Arc::clone(&codec)).await.unwrap();
        Self {
            store: Arc::new(store),
            codec,
            tail: Arc::new(Tail::new(Seq(0), 100, 1 << 20)),
            states: Arc::default(),
            backend_claims: Arc::default(),
            objects: BTreeMap::new(),
            has_secret_values: false,
            _data_dir: home,
        }
    }

    async fn apply(&self, collection_key: CollectionKey, kind: &str, writes: Vec<RecordWrite>) {
        let progress = Progress {
            resource_version: Some("1".to_owned()),
            complete: true,
            kind: Some((kind.to_owned(), true)),
            ..Progress::default()
        };
        self.states.update(&collection_key, |state| state.complete = true);
        let batch = Batch { collection: collection_key, epoch: Epoch::UNSHARED, writes, progress };
        let changes = self.store.apply(&[batch], 1000).await.unwrap();
        assert!(self.tail.publish(changes));
    }

    async fn put(&mut self, name: &str, objects: &[Value]) {
        for object in objects {
            let kind = object["kind"].as_str().unwrap();
            let draft = draft(object);
            let packed = self.codec.pack("/Pod", &draft.body).unwrap().0;
            self.apply(key(name, object), kind, vec![RecordWrite::Put(Box::new(draft), packed)]).await;
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            self.objects.insert((name.to_owned(), uid), object.clone());
        }
    }

    async fn put_pods(&mut self, name: &str, numbers: std::ops::Range<u64>, version: u64) {
        let pods: Vec<Value> = numbers.map(|n| pod("a", &format!("p{n}"), &format!("{name}-{n}"), version)).collect();
        self.put(name, &pods).await;
    }

    async fn delete_pods(&mut self, name: &str, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.objects.remove(&(name.to_owned(), format!("{name}-{number}"))).unwrap();
            let write = RecordWrite::Delete {
                namespace: "a".into(),
                name: format!("p{number}"),
                resource_version: String::new(),
            };
            self.apply(key(name, &json!({})), "Pod", vec![write]).await;
        }
    }

    async fn export(&self, node: &Node, selected: Selection) -> RunningExport {
        let mut options = ClientOptions::new(Address::parse_all([node.url().as_str()]).unwrap());
        options.proxy = ProxyChoice::Direct;
        let (sender, receiver) = watch::channel(Arc::new(selected));
        let store: Arc<dyn Store> = Arc::clone(&self.store) as _;
        let exporter = Arc::new(Exporter {
            name: "engine".to_owned(),
            destination: "{}".to_owned(),
            client: Client::new(options).await.unwrap(),
            source: Source {
                store: Arc::clone(&store),
                tail: Arc::clone(&self.tail),
                has_secret_values: self.has_secret_values,
            },
            states: Arc::clone(&self.states),
            checkpoints: CheckpointStore { store, epoch_lock: Arc::default(), now_ms: || 1_790_000_000_000 },
            backend_claims: Arc::clone(&self.backend_claims),
            selection: receiver,
            options: ExportOptions {
                backoff: Backoff::new(Duration::from_millis(10), Duration::from_millis(200)),
                check_interval: Duration::from_millis(200),
                save_interval: Duration::from_millis(1),
                // Several pages and several parts.
                page_size: 7,
                max_compared_uids: 9,
                ..ExportOptions::default()
            },
            progress: watch::Sender::default(),
            dead_letters: Exporter::new_dead_letters(),
        });
        let stop = CancellationToken::new();
        let (running, until) = (Arc::clone(&exporter), stop.clone());
        let task = tokio::spawn(async move { running.run(until).await });
        RunningExport { exporter, selection: sender, task, _guard: stop.clone().drop_guard(), stop }
    }

    /// Documents of selected objects, by uid.
    fn expected_documents(&self, selected: &Selection) -> BTreeMap<String, Value> {
        let chosen = |((name, uid), object): (&(String, String), &Value)| {
            let namespace = object["metadata"]["namespace"].as_str().unwrap();
            selected.index_of(&key(name, object), namespace)?;
            let document = encode_document(&stored(name, 1, object)).unwrap();
            Some((uid.clone(), serde_json::from_slice(&document).unwrap()))
        };
        self.objects.iter().filter_map(chosen).collect()
    }

    /// Waits until everything is exported, then compares the engine with the store.
    async fn assert_equal(&self, node: &Node, running: &RunningExport) {
        running.wait_until_caught_up().await;
        let selected = running.selection.borrow().clone();
        assert_eq!(read_documents(node), self.expected_documents(&selected), "{:?}", running.exporter.progress());
    }
}

impl RunningExport {
    async fn wait_until(&self, state: &str, mut condition: impl FnMut(&ExportProgress) -> bool) -> ExportProgress {
        let mut watch = self.exporter.watch();
        let reached = tokio::time::timeout(TIMEOUT, watch.wait_for(|progress| condition(progress))).await;
        let reached = reached.ok().map(|progress| progress.unwrap().clone());
        reached.unwrap_or_else(|| panic!("not {state} after {TIMEOUT:?}: {:?}", self.exporter.progress()))
    }

    async fn wait_until_caught_up(&self) -> ExportProgress {
        let latest = self.exporter.progress().latest;
        let is_caught_up =
            |progress: &ExportProgress| progress.state == ExportState::Following && progress.position >= latest;
        self.wait_until("caught up", is_caught_up).await
    }

    /// Selects other objects and waits until they have been compared.
    async fn select(&self, selected: Selection) {
        let before = self.exporter.progress().comparisons;
        self.selection.send_replace(Arc::new(selected));
        self.wait_until("compared", |progress| {
            progress.comparisons > before && progress.state == ExportState::Following
        })
        .await;
    }

    async fn stop(self) -> ExportProgress {
        self.stop.cancel();
        self.task.await.unwrap();
        self.exporter.progress()
    }
}

/// All documents of Karmada's indices, by id.
fn read_documents(node: &Node) -> BTreeMap<String, Value> {
    node.request("POST", "/kubernetes-*/_refresh", "");
    let response = node.request("POST", "/kubernetes-*/_search?size=10000", r#"{"query":{"match_all":{}}}"#);
    let hits = response["hits"]["hits"].as_array().unwrap().iter();
    hits.map(|hit| (hit["_id"].as_str().unwrap().to_owned(), hit["_source"].clone())).collect()
}

fn aliases(node: &Node) -> BTreeSet<String> {
    let (status, found) = node.send("GET", "/_alias/kubernetes-*-crowsnest", "");
    if status == 404 { BTreeSet::new() } else { found.as_object().unwrap().keys().cloned().collect() }
}

#[rstest]
#[case::opensearch_2("opensearch-2")]
#[case::opensearch_3("opensearch-3")]
#[case::elasticsearch_7("elasticsearch-7")]
#[case::elasticsearch_8("elasticsearch-8")]
#[case::elasticsearch_9("elasticsearch-9")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts search engines: run .ci/engines test"]
async fn engines_follow_the_store(#[case] engine: &str) {
    let Some(node) = Node::start(engine) else { return };
    documents_follow_the_store(&node).await;
    wipe(&node);
    selections_change(&node).await;
    wipe(&node);
    a_lost_store_is_replaced(&node).await;
    wipe(&node);
    a_lost_index_is_filled_again(&node).await;
    wipe(&node);
    refused_and_lost_documents(&node).await;
}

fn wipe(node: &Node) {
    for index in [index_name("Pod"), index_name("Secret")] {
        node.request("DELETE", &format!("/{index}?ignore_unavailable=true"), "");
    }
}

async fn documents_follow_the_store(node: &Node) {
    let mut cache = Cache::new().await;
    cache.has_secret_values = true;
    cache.put_pods("m1", 0..25, 1).await;
    cache.put("m1", &[secret("s")]).await;
    cache.put_pods("m2", 0..3, 1).await;
    let running = cache.export(node, selection(&["m1"])).await;
    cache.assert_equal(node, &running).await;
    let text = format!("{:?}", read_documents(node));
    assert!(text.contains("secret-s") && !text.contains("aHVudGVyMg") && !text.contains("password"), "{text}");
    let mapping = node.request("GET", "/kubernetes-pod/_mapping", "");
    let properties = &mapping["kubernetes-pod"]["mappings"]["properties"];
    assert_eq!(
        properties.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["apiVersion", "kind", "metadata", "spec", "status"]
    );
    assert_eq!(properties["spec"], json!({"type": "object", "enabled": false}));

    cache.put_pods("m1", 3..9, 2).await;
    cache.delete_pods("m1", 0..2).await;
    cache.assert_equal(node, &running).await;
    let stopped = running.stop().await;
    assert_eq!((stopped.comparisons, stopped.refused), (2, 0), "each index is compared once: {stopped:?}");

    // Objects are deleted and changed while nothing is exported: more than the tail contains.
    cache.delete_pods("m1", 5..8).await;
    cache.put_pods("m1", 30..150, 1).await;
    let running = cache.export(node, selection(&["m1"])).await;
    cache.assert_equal(node, &running).await;
    let stopped = running.stop().await;
    assert_eq!(
        (stopped.comparisons, stopped.written, stopped.deleted),
        (0, 120, 3),
        "the position is known: {stopped:?}"
    );
}

async fn selections_change(node: &Node) {
    let mut cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put_pods(name, 0..12, 1).await;
    }
    let running = cache.export(node, selection(&["m1", "m2"])).await;
    cache.assert_equal(node, &running).await;
    // Documents as Karmada writes them: one left behind in a selected cluster, one of another cluster, one without a
    // cluster.
    let foreign = |name: &str| json!({"metadata": {"annotations": {"resource.karmada.io/cached-from-cluster": name}}});
    for (id, body) in [("left", foreign("m1")), ("other", foreign("elsewhere")), ("none", json!({}))] {
        node.request("PUT", &format!("/kubernetes-pod/_doc/{id}"), &body.to_string());
    }
    running.select(selection(&["m1"])).await;
    let found = read_documents(node);
    let mut expected = cache.expected_documents(&selection(&["m1"]));
    expected.extend([("other".to_owned(), foreign("elsewhere")), ("none".to_owned(), json!({}))]);
    assert_eq!(found, expected);
    for id in ["other", "none"] {
        node.request("DELETE", &format!("/kubernetes-pod/_doc/{id}"), "");
    }
    // Nothing changed in the store, and the tombstones are young.
    running.select(selection(&["m1", "m2"])).await;
    cache.assert_equal(node, &running).await;
    // Only one namespace, and one kind less.
    let mut narrow = Selection::default();
    narrow.add(key("m1", &json!({})), "Pod", Some(BTreeSet::from(["b".to_owned()])));
    cache.put("m1", &[pod("b", "q", "m1-q", 1)]).await;
    running.select(narrow).await;
    cache.assert_equal(node, &running).await;
    assert_eq!(aliases(node), BTreeSet::from(["kubernetes-pod".to_owned()]));
    // Nothing is selected.
    running.selection.send_replace(Arc::default());
    running.wait_until("cleaned", |progress| progress.state == ExportState::Cleaned).await;
    running.task.await.unwrap();
    assert_eq!((read_documents(node), aliases(node)), (BTreeMap::new(), BTreeSet::new()));
    assert!(cache.store.facts("export/engine/").await.unwrap().is_empty());
}

async fn a_lost_store_is_replaced(node: &Node) {
    let mut before = Cache::new().await;
    before.put_pods("m1", 0..10, 1).await;
    before.put_pods("m1", 0..10, 2).await;
    before.put_pods("m2", 0..10, 1).await;
    before.put_pods("m3", 0..10, 1).await;
    let running = before.export(node, selection(&["m1", "m2", "m3"])).await;
    before.assert_equal(node, &running).await;
    running.stop().await;

    // Sequence numbers start over; m2 has not been read yet, m3 is not selected any more.
    let mut after = Cache::new().await;
    after.put_pods("m1", 2..12, 3).await;
    after.put("m1", &[secret("s")]).await;
    let running = after.export(node, selection(&["m1", "m2"])).await;
    running.wait_until_caught_up().await;
    let mut expected = after.expected_documents(&selection(&["m1", "m2"]));
    expected.extend(before.expected_documents(&selection(&["m2"])));
    assert_eq!(read_documents(node), expected, "documents of a cluster that has not been read stay");
    let comparisons = running.exporter.progress().comparisons;
    after.put_pods("m2", 4..6, 2).await;
    after.put("m2", &[secret("t")]).await;
    running.wait_until("compared", |progress| progress.comparisons >= comparisons + 2).await;
    after.assert_equal(node, &running).await;
}

async fn a_lost_index_is_filled_again(node: &Node) {
    let mut cache = Cache::new().await;
    cache.put_pods("m1", 0..10, 1).await;
    cache.put("m1", &[secret("s")]).await;
    let running = cache.export(node, selection(&["m1"])).await;
    cache.assert_equal(node, &running).await;
    let comparisons = running.exporter.progress().comparisons;
    node.request("DELETE", "/kubernetes-pod", "");
    cache.delete_pods("m1", 0..1).await;
    running.wait_until("compared", |progress| progress.comparisons > comparisons).await;
    cache.assert_equal(node, &running).await;
    let mapping = node.request("GET", "/kubernetes-pod/_mapping", "");
    assert_eq!(mapping["kubernetes-pod"]["mappings"]["properties"]["spec"]["enabled"], false);
    let (status, _) = node.send("GET", &format!("/{}/_settings", alias_of("kubernetes-pod")), "");
    assert_eq!(status, 200);
}

async fn refused_and_lost_documents(node: &Node) {
    // An index of another mapping refuses a document; others are written, and deletions that the store has pruned are detected.
    node.request("PUT", "/kubernetes-pod", r#"{"mappings":{"properties":{"metadata":{"properties":{"labels":{"properties":{"app":{"properties":{"x":{"type":"long"}}}}}}}}}}"#);
    let mut cache = Cache::new().await;
    cache.put_pods("m1", 0..2, 1).await;
    let plain =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "plain", "uid": "plain"}});
    cache.put("m1", &[plain]).await;
    let mut pods = Selection::default();
    pods.add(key("m1", &json!({})), "Pod", None);
    let running = cache.export(node, pods.clone()).await;
    let progress = running.wait_until("refused", |progress| progress.dead_letters.len() == 2).await;
    assert!(progress.dead_letters[0].reason.contains("parsing"), "{progress:?}");
    running.wait_until_caught_up().await;
    assert_eq!(read_documents(node).into_keys().collect::<Vec<_>>(), ["plain"]);
    running.stop().await;
    cache.objects.retain(|(_, uid), _| uid != "plain");
    let write = RecordWrite::Delete { namespace: "a".into(), name: "plain".into(), resource_version: String::new() };
    cache.apply(key("m1", &json!({})), "Pod", vec![write]).await;
    let history = HistoryRetention { max_age: Duration::ZERO, ..HistoryRetention::default() };
    cache.store.prune(&history, i64::MAX, Seq(u64::MAX >> 1)).await.unwrap();
    // The contents of the tail are lost with the process.
    cache.tail = Arc::new(Tail::new(cache.tail.latest(), 100, 1 << 20));
    let running = cache.export(node, pods).await;
    running.wait_until_caught_up().await;
    let stopped = running.stop().await;
    assert_eq!((stopped.comparisons, stopped.deleted), (1, 1), "{stopped:?}");
    assert!(read_documents(node).is_empty());
}
