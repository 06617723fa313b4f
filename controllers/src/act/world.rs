//! What the loops read: the control plane's objects and, in members, those of resources that Works carry.
//!
//! One collector per (cluster, resource) lists and watches; its objects are shared by every loop. A change calls the
//! registered handlers, which only put keys into queues. What a loop has written is put in at once ([`World::observe`]),
//! so that its next look never decides on what it knows to be old. Written by the collectors and the loops' own
//! writes; read by the loops.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_fleet::Fleet;
use futures::TryStreamExt;
use http::Request;
use kube::core::WatchEvent;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::objects::Resource;
use crate::Error;
use crate::plan::object;

/// One object came, changed or went.
pub struct Change {
    pub cluster: ClusterName,
    pub resource: Arc<Resource>,
    pub old: Option<Arc<Value>>,
    pub new: Option<Arc<Value>>,
    /// Part of the first list, so nothing need have happened to it just now.
    pub initial: bool,
}

impl Change {
    /// The object as it is, or as it last was.
    pub fn object(&self) -> &Value {
        static NOTHING: Value = Value::Null;
        self.new.as_deref().or(self.old.as_deref()).unwrap_or(&NOTHING)
    }
}

type Handler = Box<dyn Fn(&Change) + Send + Sync>;

#[derive(Default)]
struct Contents {
    objects: BTreeMap<(String, String), Arc<Value>>,
    /// Objects by the labels that hold a permanent id.
    by_id: HashMap<(String, String), BTreeSet<(String, String)>>,
}

const ID_LABEL: &str = "/permanent-id";

impl Contents {
    fn ids(object: &Value) -> Vec<(String, String)> {
        let labels = object::at(object, &["metadata", "labels"]).and_then(Value::as_object);
        let ids = labels.into_iter().flatten().filter(|(key, _)| {
            key.ends_with(ID_LABEL) || key.starts_with(crowsnest_api::constants::label::DEPENDED_BY_PREFIX)
        });
        ids.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    fn put(&mut self, key: (String, String), new: Option<Arc<Value>>) -> Option<Arc<Value>> {
        let old = match &new {
            Some(new) => self.objects.insert(key.clone(), Arc::clone(new)),
            None => self.objects.remove(&key),
        };
        for id in old.iter().flat_map(|old| Contents::ids(old)) {
            if let Some(keys) = self.by_id.get_mut(&id) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.by_id.remove(&id);
                }
            }
        }
        for id in new.iter().flat_map(|new| Contents::ids(new)) {
            self.by_id.entry(id).or_default().insert(key.clone());
        }
        old
    }
}

struct Collection {
    resource: Arc<Resource>,
    contents: RwLock<Contents>,
    /// Held while a change is put in and its handlers run, so that changes are told in order.
    telling: Mutex<()>,
    synced: watch::Sender<bool>,
    /// The newest version seen; an answer to our own write that is older must not bring a deleted object back.
    latest: AtomicU64,
    stop: CancellationToken,
}

type Collections = HashMap<(ClusterName, Gvr), Arc<Collection>>;

struct Inner {
    fleet: Fleet,
    collections: RwLock<Collections>,
    handlers: RwLock<Vec<Handler>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The objects of all clusters that somebody asked for. Cheap to clone.
#[derive(Clone)]
pub struct World {
    inner: Arc<Inner>,
}

fn version(object: &Value) -> u64 {
    object::resource_version(object).parse().unwrap_or_default()
}

fn key_of(object: &Value) -> (String, String) {
    (object::namespace(object).to_owned(), object::name(object).to_owned())
}

impl World {
    pub fn new(fleet: Fleet, stop: CancellationToken) -> Self {
        let inner = Inner {
            fleet,
            collections: RwLock::default(),
            handlers: RwLock::default(),
            tasks: TaskTracker::new(),
            stop,
        };
        World { inner: Arc::new(inner) }
    }

    /// Calls `handler` for every change from now on. Handlers must be quick and must not read the changed collection.
    pub fn on_change(&self, handler: impl Fn(&Change) + Send + Sync + 'static) {
        self.inner.handlers.write().push(Box::new(handler));
    }

    /// Starts collecting a resource of a cluster, if nobody did yet.
    pub fn collect(&self, cluster: &ClusterName, resource: &Resource) {
        let key = (cluster.clone(), resource.gvr.clone());
        if self.inner.collections.read().contains_key(&key) {
            return;
        }
        let mut collections = self.inner.collections.write();
        if collections.contains_key(&key) || self.inner.stop.is_cancelled() {
            return;
        }
        let collection = Arc::new(Collection {
            resource: Arc::new(resource.clone()),
            contents: RwLock::default(),
            telling: Mutex::new(()),
            synced: watch::Sender::new(false),
            latest: AtomicU64::new(0),
            stop: self.inner.stop.child_token(),
        });
        collections.insert(key, Arc::clone(&collection));
        let world = self.clone();
        let cluster = cluster.clone();
        self.inner.tasks.spawn(async move { world.run(cluster, collection).await });
    }

    /// Stops collecting a cluster that left, and forgets its objects.
    pub fn forget(&self, cluster: &ClusterName) {
        self.inner.collections.write().retain(|(of, _), collection| {
            let keep = of != cluster;
            if !keep {
                collection.stop.cancel();
            }
            keep
        });
    }

    /// Stops collecting one resource that is not served any more.
    pub fn forget_resource(&self, cluster: &ClusterName, gvr: &Gvr) {
        if let Some(collection) = self.inner.collections.write().remove(&(cluster.clone(), gvr.clone())) {
            collection.stop.cancel();
        }
    }

    fn collection(&self, cluster: &ClusterName, gvr: &Gvr) -> Option<Arc<Collection>> {
        self.inner.collections.read().get(&(cluster.clone(), gvr.clone())).cloned()
    }

    /// Whether the first list of a resource is in.
    pub fn is_synced(&self, cluster: &ClusterName, gvr: &Gvr) -> bool {
        self.collection(cluster, gvr).is_some_and(|collection| *collection.synced.borrow())
    }

    /// Waits for the first list, at most so long; whether it came.
    pub async fn wait_synced(&self, cluster: &ClusterName, gvr: &Gvr, longest: Duration) -> bool {
        let Some(collection) = self.collection(cluster, gvr) else { return false };
        let mut synced = collection.synced.subscribe();
        let waited = tokio::time::timeout(longest, synced.wait_for(|synced| *synced)).await;
        matches!(waited, Ok(Ok(_)))
    }

    pub fn get(&self, cluster: &ClusterName, gvr: &Gvr, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let collection = self.collection(cluster, gvr)?;
        let contents = collection.contents.read();
        contents.objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects of a resource, or those of one namespace, by namespace and name.
    pub fn list(&self, cluster: &ClusterName, gvr: &Gvr, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let Some(collection) = self.collection(cluster, gvr) else { return Vec::new() };
        let contents = collection.contents.read();
        match namespace {
            None => contents.objects.values().cloned().collect(),
            Some(namespace) => contents
                .objects
                .range((namespace.to_owned(), String::new())..)
                .take_while(|((of, _), _)| of == namespace)
                .map(|(_, object)| Arc::clone(object))
                .collect(),
        }
    }

    /// Objects that carry a permanent id under a label.
    pub fn with_id(&self, cluster: &ClusterName, gvr: &Gvr, label: &str, id: &str) -> Vec<Arc<Value>> {
        let Some(collection) = self.collection(cluster, gvr) else { return Vec::new() };
        let contents = collection.contents.read();
        let keys = contents.by_id.get(&(label.to_owned(), id.to_owned()));
        keys.into_iter().flatten().filter_map(|key| contents.objects.get(key).cloned()).collect()
    }

    /// The resources collected of a cluster.
    pub fn resources(&self, cluster: &ClusterName) -> Vec<Arc<Resource>> {
        let collections = self.inner.collections.read();
        let of_cluster = collections.iter().filter(|((of, _), _)| of == cluster);
        of_cluster.map(|(_, collection)| Arc::clone(&collection.resource)).collect()
    }

    /// Puts in what the API server answered to a write of ours.
    pub fn observe(&self, cluster: &ClusterName, gvr: &Gvr, object: Value) {
        let Some(collection) = self.collection(cluster, gvr) else { return };
        if *collection.synced.borrow() && !object::name(&object).is_empty() {
            self.put(cluster, &collection, object, false, true);
        }
    }

    /// Puts a version in unless the same or a newer one is there.
    fn put(&self, cluster: &ClusterName, collection: &Collection, object: Value, initial: bool, ours: bool) {
        let _told_in_order = collection.telling.lock();
        let key = key_of(&object);
        let new_version = version(&object);
        let known = collection.contents.read().objects.get(&key).map(|known| version(known));
        let stale = match known {
            Some(known) => known >= new_version && known != 0,
            None => ours && new_version <= collection.latest.load(Ordering::Acquire),
        };
        if stale {
            return;
        }
        if !ours {
            collection.latest.fetch_max(new_version, Ordering::AcqRel);
        }
        let new = Arc::new(object);
        let old = collection.contents.write().put(key, Some(Arc::clone(&new)));
        self.tell(cluster, collection, old, Some(new), initial);
    }

    fn drop_object(&self, cluster: &ClusterName, collection: &Collection, key: (String, String), version: u64) {
        let _told_in_order = collection.telling.lock();
        collection.latest.fetch_max(version, Ordering::AcqRel);
        let old = collection.contents.write().put(key, None);
        if old.is_some() {
            self.tell(cluster, collection, old, None, false);
        }
    }

    fn tell(
        &self,
        cluster: &ClusterName,
        collection: &Collection,
        old: Option<Arc<Value>>,
        new: Option<Arc<Value>>,
        initial: bool,
    ) {
        let change = Change { cluster: cluster.clone(), resource: Arc::clone(&collection.resource), old, new, initial };
        for handler in self.inner.handlers.read().iter() {
            handler(&change);
        }
    }

    async fn run(&self, cluster: ClusterName, collection: Arc<Collection>) {
        let mut failures: u32 = 0;
        loop {
            let followed = tokio::select! {
                () = collection.stop.cancelled() => return,
                followed = self.list_and_watch(&cluster, &collection) => followed,
            };
            match followed {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(%cluster, resource = %collection.resource.gvr, %error, "collecting failed");
                }
            }
            let delay = Duration::from_millis(100).saturating_mul(1 << failures.min(7));
            tokio::select! {
                () = collection.stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Lists, then follows the watch until it ends.
    async fn list_and_watch(&self, cluster: &ClusterName, collection: &Collection) -> Result<(), Error> {
        let client = self.inner.fleet.client(cluster)?;
        let path = collection.resource.gvr.path(None);
        let from = self.list_all(cluster, collection, &client, &path).await?;
        collection.synced.send_replace(true);
        let uri = format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion={from}");
        let what = format!("watch {path}");
        let request = Request::get(uri)
            .header("Accept", "application/json")
            .body(Vec::new())
            .map_err(|error| Error::request(what.clone(), kube::Error::HttpError(error)))?;
        let events = client.request_events::<Value>(request).await;
        let events = events.map_err(|error| Error::request(what.clone(), error))?;
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.try_next().await.map_err(|error| Error::request(what.clone(), error))? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.put(cluster, collection, object, false, false);
                }
                WatchEvent::Deleted(object) => {
                    self.drop_object(cluster, collection, key_of(&object), version(&object));
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => return Err(Error::request(what, kube::Error::Api(status))),
            }
        }
        Ok(())
    }

    /// Pages through the list; objects that are not in it any more are dropped. Answers the version to watch from.
    async fn list_all(
        &self,
        cluster: &ClusterName,
        collection: &Collection,
        client: &kube::Client,
        path: &str,
    ) -> Result<String, Error> {
        let initial = !*collection.synced.borrow();
        let mut seen = BTreeSet::new();
        let mut next = String::new();
        loop {
            let mut uri = format!("{path}?limit=500");
            if !next.is_empty() {
                let token = percent_encode(&next);
                uri.push_str(&format!("&continue={token}"));
            }
            let what = format!("list {path}");
            let request = Request::get(uri)
                .header("Accept", "application/json")
                .body(Vec::new())
                .map_err(|error| Error::request(what.clone(), kube::Error::HttpError(error)))?;
            let mut page: Value = client.request(request).await.map_err(|error| Error::request(what, error))?;
            let api_version = collection.resource.gvr.api_version();
            let items = page.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
            for mut item in items {
                object::set(&mut item, &["apiVersion"], Value::String(api_version.clone()));
                object::set(&mut item, &["kind"], Value::String(collection.resource.kind.clone()));
                seen.insert(key_of(&item));
                self.put(cluster, collection, item, initial, false);
            }
            next = object::text(&page, &["metadata", "continue"]).to_owned();
            if next.is_empty() {
                let from = object::resource_version(&page).to_owned();
                let known: Vec<(String, String)> = collection.contents.read().objects.keys().cloned().collect();
                let listed_at = from.parse().unwrap_or_default();
                for key in known.into_iter().filter(|key| !seen.contains(key)) {
                    self.drop_unlisted(cluster, collection, key, listed_at);
                }
                return Ok(from);
            }
        }
    }

    /// Drops an object the list doesn't have, unless our own write put it in after the list was made.
    fn drop_unlisted(&self, cluster: &ClusterName, collection: &Collection, key: (String, String), listed_at: u64) {
        let newer = collection.contents.read().objects.get(&key).is_some_and(|known| version(known) > listed_at);
        if !newer {
            self.drop_object(cluster, collection, key, listed_at);
        }
    }

    /// Ends every collector.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
