//! A store with its tail and states, as a cache has them, and the objects of a small cluster.

use crowsnest_graph::SinkSource;
use crowsnest_index::export::ChangeSource;
use crowsnest_store::codec::Codec;
use crowsnest_store::fixtures::{cluster, draft, resource_of};
use crowsnest_store::sqlite::SqliteStore;
use crowsnest_store::tail::Tail;
use crowsnest_store::{
    Batch, CollectionKey, CollectionState, Epoch, IndexOptions, Object, Progress, Seq, States, Step, Store,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

pub struct Cache {
    pub store: Arc<SqliteStore>,
    codec: Arc<Codec>,
    tail: Arc<Tail>,
    pub states: Arc<States>,
    identity: String,
    _home: Option<tempfile::TempDir>,
}

fn key(name: &str, object: &Value) -> CollectionKey {
    CollectionKey::new(cluster(name), resource_of(object))
}

impl Cache {
    pub async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let cache = Self::open(home.path().to_owned()).await;
        Self { _home: Some(home), ..cache }
    }

    pub async fn open(home: PathBuf) -> Self {
        // Another test may have done so.
        drop(rustls::crypto::ring::default_provider().install_default());
        let codec = Arc::new(Codec::default());
        let store = Arc::new(SqliteStore::open(&IndexOptions::new(&home), Arc::clone(&codec)).await.unwrap());
        let tail = Arc::new(Tail::new(store.latest().await.unwrap(), 100, 1 << 20));
        let identity = store.identity().await.unwrap();
        Self { store, codec, tail, states: Arc::default(), identity, _home: None }
    }

    pub async fn close(self) {
        self.store.close().await.unwrap();
    }

    pub fn source(&self) -> SinkSource {
        let changes = ChangeSource {
            store: Arc::clone(&self.store) as _,
            tail: Arc::clone(&self.tail),
            has_secret_values: false,
        };
        SinkSource { changes, states: Arc::clone(&self.states), identity: self.identity.clone(), rules: Vec::new() }
    }

    /// All collections of the store have been listed.
    pub async fn complete_all(&self) {
        for stored in self.store.collections().await.unwrap() {
            self.states.update(&stored.key, |state| *state = CollectionState { complete: true, ..stored.state });
        }
    }

    async fn apply(&self, of: CollectionKey, sample: &Value, steps: Vec<Step>, complete: bool) {
        let kind = (sample["kind"].as_str().unwrap().to_owned(), sample["metadata"]["namespace"].is_string());
        let resource_version = Some("1".to_owned());
        let progress = Progress { resource_version, complete, kind: Some(kind), ..Progress::default() };
        self.states.apply_progress(&of, &progress, 1_000);
        let batch = Batch { collection: of.clone(), epoch: Epoch::UNSHARED, steps, progress: progress.clone() };
        let changes = self.store.apply(&[batch], 1_000).await.unwrap();
        assert!(self.tail.publish(changes));
        // As the writer of the cache: the state follows the records.
        self.states.apply_progress(&of, &progress, 1_001);
    }

    async fn put_as(&self, name: &str, objects: &[Value], complete: bool) {
        let mut collections: BTreeMap<CollectionKey, Vec<&Value>> = BTreeMap::new();
        for object in objects {
            collections.entry(key(name, object)).or_default().push(object);
        }
        for (of, objects) in collections {
            for some in objects.chunks(1_000) {
                let step = |object: &&Value| {
                    let draft = draft(object);
                    let packed = self.codec.pack("/any", &draft.body).unwrap().0;
                    Step::Put(Box::new(draft), packed)
                };
                self.apply(of.clone(), some[0], some.iter().map(step).collect(), complete).await;
            }
        }
    }

    /// Writes objects of collections that have been listed completely.
    pub async fn put(&self, name: &str, objects: &[Value]) {
        self.put_as(name, objects, true).await;
    }

    /// Writes objects of collections of which the list has not ended.
    pub async fn put_incomplete(&self, name: &str, objects: &[Value]) {
        self.put_as(name, objects, false).await;
    }

    pub async fn delete(&self, name: &str, objects: &[Value]) {
        for object in objects {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            let (namespace, of) = (text("namespace"), text("name"));
            let step = Step::Delete { namespace, name: of, resource_version: String::new() };
            self.apply(key(name, object), object, vec![step], true).await;
        }
    }

    /// All objects.
    pub async fn objects(&self) -> Vec<Object> {
        let (mut objects, mut after) = (Vec::new(), 0);
        let source = self.source().changes;
        while let (some, Some(next)) = source.objects_after(after, 1_000).await.unwrap() {
            objects.extend(some);
            after = next;
        }
        objects
    }

    pub fn latest(&self) -> Seq {
        self.tail.latest()
    }
}

fn metadata(of: &str, name: &str, version: u64) -> Value {
    json!({"namespace": "shop", "name": name, "uid": format!("{of}-{name}"), "resourceVersion": version.to_string(),
        "labels": {"app": "web"}})
}

pub fn pod(of: &str, name: &str, status: &str, version: u64) -> Value {
    let mut metadata = metadata(of, name, version);
    metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": format!("{of}-rs"), "controller": true}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": status},
        "spec": {"nodeName": "n1", "serviceAccountName": "web", "containers": [{"name": "c", "image": "web:1"}],
            "volumes": [{"name": "v", "secret": {"secretName": "db"}}]}})
}

pub fn pods(of: &str, numbers: Range<u64>) -> Vec<Value> {
    numbers.map(|number| pod(of, &format!("p{number}"), "Running", 1)).collect()
}

pub fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": format!("node-{name}"), "resourceVersion": "1"}})
}

pub fn service(of: &str, name: &str, version: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(of, name, version), "spec": {"selector": {"app": "web"}}})
}

pub fn secret(of: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(of, "db", 1), "data": {"password": "aHVudGVyMg=="}})
}

pub fn deployment(of: &str, version: u64) -> Value {
    let mut metadata = metadata(of, "web", version);
    metadata["uid"] = json!(format!("{of}-deployment"));
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": {}}}})
}

pub fn replica_set(of: &str, version: u64) -> Value {
    let mut metadata = metadata(of, "web", version);
    metadata["uid"] = json!(format!("{of}-rs"));
    metadata["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": format!("{of}-deployment")}]);
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": {}})
}

/// A workload with its Pods, and what they use.
pub fn world(of: &str, count: u64) -> Vec<Value> {
    let rest = [node("n1"), node("n2"), secret(of), deployment(of, 1), replica_set(of, 1), service(of, "web", 1)];
    // Pods are before what they belong to, and after it.
    let mut objects = pods(of, 0..count / 2);
    objects.extend(rest);
    objects.extend(pods(of, count / 2..count));
    objects
}
