//! A cache (store, tail and collection states), and the objects of a small cluster.

use crowsnest_apimachinery::references::CustomRule;
use crowsnest_graph::SinkSource;
use crowsnest_index::export::ChangeSource;
use crowsnest_store::codec::Codec;
use crowsnest_store::fixtures::{cluster, draft, resource_of, stored_with_options};
use crowsnest_store::ingest::IngestOptions;
use crowsnest_store::sqlite::SqliteStore;
use crowsnest_store::tail::Tail;
use crowsnest_store::{
    Batch, CacheOptions, CollectionKey, CollectionState, CollectionStates, Epoch, HistoryRetention, Object, Progress,
    RecordWrite, Seq, Store,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub struct Cache {
    pub store: Arc<SqliteStore>,
    codec: Arc<Codec>,
    tail: Arc<Tail>,
    pub states: Arc<CollectionStates>,
    store_name: String,
    /// The store keeps values of Secrets.
    pub keeps_secret_values: bool,
    /// References that the configuration adds.
    pub rules: Vec<CustomRule>,
    /// Clock of sinks, in Unix milliseconds.
    pub now_ms: fn() -> i64,
    _directory: Option<tempfile::TempDir>,
}

fn key(name: &str, object: &Value) -> CollectionKey {
    CollectionKey::new(cluster(name), resource_of(object))
}

impl Cache {
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cache = Self::open(directory.path().to_owned()).await;
        Self { _directory: Some(directory), ..cache }
    }

    pub async fn open(directory: PathBuf) -> Self {
        // Fails if another test has installed it already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let codec = Arc::new(Codec::default());
        let store = Arc::new(SqliteStore::open(&CacheOptions::new(&directory), Arc::clone(&codec)).await.unwrap());
        let tail = Arc::new(Tail::new(store.latest().await.unwrap(), 100, 1 << 20));
        let store_name = store.identity().await.unwrap();
        Self {
            store,
            codec,
            tail,
            states: Arc::default(),
            store_name,
            keeps_secret_values: false,
            rules: Vec::new(),
            now_ms: || 1_790_000_000_000,
            _directory: None,
        }
    }

    pub async fn close(self) {
        self.store.close().await.unwrap();
    }

    pub fn source(&self) -> SinkSource {
        let changes = ChangeSource {
            store: Arc::clone(&self.store) as _,
            tail: Arc::clone(&self.tail),
            has_secret_values: self.keeps_secret_values,
        };
        SinkSource {
            changes,
            states: Arc::clone(&self.states),
            store_name: self.store_name.clone(),
            now_ms: self.now_ms,
            rules: self.rules.clone(),
        }
    }

    /// Marks all collections of the store as completely listed.
    pub async fn complete_all(&self) {
        for stored in self.store.collections().await.unwrap() {
            self.states.update(&stored.key, |state| *state = CollectionState { complete: true, ..stored.state });
        }
    }

    async fn apply(&self, collection: CollectionKey, sample: &Value, writes: Vec<RecordWrite>, complete: bool) {
        let kind = (sample["kind"].as_str().unwrap().to_owned(), sample["metadata"]["namespace"].is_string());
        let resource_version = Some("1".to_owned());
        let progress = Progress { resource_version, complete, kind: Some(kind), ..Progress::default() };
        self.states.apply_progress(&collection, &progress, 1_000);
        let batch =
            Batch { collection: collection.clone(), epoch: Epoch::UNSHARED, writes, progress: progress.clone() };
        let changes = self.store.apply(&[batch], 1_000).await.unwrap();
        assert!(self.tail.publish(changes));
        // The state follows the records, as in the collector.
        self.states.apply_progress(&collection, &progress, 1_001);
    }

    async fn put_as(&self, name: &str, objects: &[Value], complete: bool) {
        let mut collections: BTreeMap<CollectionKey, Vec<&Value>> = BTreeMap::new();
        for object in objects {
            collections.entry(key(name, object)).or_default().push(object);
        }
        for (collection, objects) in collections {
            for chunk in objects.chunks(1_000) {
                let write = |object: &&Value| {
                    let mut draft = draft(object);
                    if self.keeps_secret_values {
                        let options = IngestOptions { secret_values: true, ..IngestOptions::default() };
                        draft.body = stored_with_options(name, 1, object, &options).body;
                    }
                    // Marks an object whose body cannot be decoded.
                    if object["broken"] == json!(true) {
                        draft.body = b"{".as_slice().into();
                    }
                    let packed = self.codec.pack("/any", &draft.body).unwrap().0;
                    RecordWrite::Put(Box::new(draft), packed)
                };
                self.apply(collection.clone(), chunk[0], chunk.iter().map(write).collect(), complete).await;
            }
        }
    }

    /// Writes objects of collections that have been listed completely.
    pub async fn put(&self, name: &str, objects: &[Value]) {
        self.put_as(name, objects, true).await;
    }

    /// Writes objects of collections that have not been listed completely.
    pub async fn put_incomplete(&self, name: &str, objects: &[Value]) {
        self.put_as(name, objects, false).await;
    }

    pub async fn delete(&self, name: &str, objects: &[Value]) {
        for object in objects {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            let (namespace, object_name) = (text("namespace"), text("name"));
            let write = RecordWrite::Delete { namespace, name: object_name, resource_version: String::new() };
            self.apply(key(name, object), object, vec![write], true).await;
        }
    }

    /// Deletes all records of deletions.
    pub async fn prune(&self) {
        let retention = HistoryRetention { max_age: Duration::ZERO, ..HistoryRetention::default() };
        self.store.prune(&retention, i64::MAX, self.latest()).await.unwrap();
    }

    /// All objects of the store.
    pub async fn objects(&self) -> Vec<Object> {
        let (mut objects, mut after) = (Vec::new(), 0);
        let source = self.source().changes;
        while let (page, Some(next)) = source.objects_after(after, 1_000).await.unwrap() {
            objects.extend(page);
            after = next;
        }
        objects
    }

    pub fn latest(&self) -> Seq {
        self.tail.latest()
    }
}

fn metadata(cluster_name: &str, name: &str, version: u64) -> Value {
    json!({"namespace": "shop", "name": name, "uid": format!("{cluster_name}-{name}"), "resourceVersion": version.to_string(),
        "labels": {"app": "web"}})
}

pub fn pod(cluster_name: &str, name: &str, status: &str, version: u64) -> Value {
    let mut metadata = metadata(cluster_name, name, version);
    metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": format!("{cluster_name}-rs"), "controller": true}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": status},
        "spec": {"nodeName": "n1", "serviceAccountName": "web", "containers": [{"name": "c", "image": "web:1"}],
            "volumes": [{"name": "v", "secret": {"secretName": "db"}}]}})
}

pub fn pods(cluster_name: &str, numbers: Range<u64>) -> Vec<Value> {
    numbers.map(|number| pod(cluster_name, &format!("p{number}"), "Running", 1)).collect()
}

pub fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": format!("node-{name}"), "resourceVersion": "1"}})
}

pub fn service(cluster_name: &str, name: &str, version: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(cluster_name, name, version), "spec": {"selector": {"app": "web"}}})
}

pub fn secret(cluster_name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(cluster_name, "db", 1), "data": {"password": "aHVudGVyMg=="}})
}

pub fn deployment(cluster_name: &str, version: u64) -> Value {
    let mut metadata = metadata(cluster_name, "web", version);
    metadata["uid"] = json!(format!("{cluster_name}-deployment"));
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": {}}}})
}

pub fn replica_set(cluster_name: &str, version: u64) -> Value {
    let mut metadata = metadata(cluster_name, "web", version);
    metadata["uid"] = json!(format!("{cluster_name}-rs"));
    metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": format!("{cluster_name}-deployment")}]);
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": {}})
}

/// A Deployment with its ReplicaSet, Service, Secret, nodes and `count` Pods.
pub fn workload(cluster_name: &str, count: u64) -> Vec<Value> {
    let others = [
        node("n1"),
        node("n2"),
        secret(cluster_name),
        deployment(cluster_name, 1),
        replica_set(cluster_name, 1),
        service(cluster_name, "web", 1),
    ];
    // Some Pods are written before the objects that they refer to, some afterwards.
    let mut objects = pods(cluster_name, 0..count / 2);
    objects.extend(others);
    objects.extend(pods(cluster_name, count / 2..count));
    objects
}
