//! Cache of the controllers: objects of the control plane, and of resources in members that Works contain.
//!
//! It reads the global cache, which has one collector per (cluster, resource), and registers the controllers'
//! interests there. In addition it caches recently decoded objects and, until the collector delivers them, this
//! process' own writes ([`Cache::observe`]), so that no reconciliation uses state that this process knows to be
//! outdated. A single task ([`Informer`]) follows the global cache and dispatches its changes.

pub mod applied_state;
mod cached_object;
pub mod capacity;
mod decoded;
pub mod derived_caches;
pub mod hash_suffixed_bindings;
mod informer;
mod members;
mod pending_writes;
pub mod placements;
mod reads;
pub mod typed;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crowsnest_apimachinery::names::{ClusterName, Gvr, NamespacedName};
use crowsnest_apimachinery::unstructured;
use crowsnest_index::{CollectionKey, GlobalCache, RecordKey, Seq};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Namespaces};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

pub use self::cached_object::{CachedObject, Change, Header, PreviousObject};
use self::decoded::DecodedObjects;
pub use self::informer::{EventHandler, Informer};
use self::pending_writes::{CollectionProgress, PendingWrites, Version};

use crate::Error;
use crate::runtime::dynamic_client::Resource;

/// Number of objects decoded at once while listing.
const PAGE_SIZE: usize = 250;
/// Maximum time, since a collection was requested, for which a read waits for its first list. Reading objects
/// individually would take longer.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of own writes waiting to be dispatched. Others are dispatched when the collector delivers them.
const OWN_WRITE_QUEUE_CAPACITY: usize = 4096;

/// Labels that are indexed for lookups, for [`crowsnest_index::CacheOptions::indexed_labels`].
pub fn indexed_labels() -> Vec<String> {
    use crowsnest_api::constants::label;
    vec![
        "*/permanent-id".to_owned(),
        format!("{}*", label::DEPENDED_BY_PREFIX),
        label::FEDERATED_RESOURCE_QUOTA_NAME.to_owned(),
        label::ENDPOINT_SLICE_NAME.to_owned(),
        label::MULTI_CLUSTER_SERVICE_NAME.to_owned(),
    ]
}

/// A collected resource of a cluster.
struct Collection {
    key: CollectionKey,
    resource: Arc<Resource>,
    /// True once all objects have been dispatched, so that the state of event handlers is complete.
    dispatched: watch::Sender<bool>,
    /// True once the informer has started to dispatch the objects. Until then, changes are not dispatched.
    dispatching: AtomicBool,
    /// Seq of the newest change that the dispatch of all objects includes. Later changes are dispatched one by one.
    covered_seq: AtomicU64,
    requested_at: Instant,
    _interest: InterestGuard,
}

type Collections = HashMap<CollectionKey, Arc<Collection>>;

/// A write of this process to be dispatched.
struct OwnWrite {
    collection: CollectionKey,
    key: NamespacedName,
    version: Version,
}

struct Inner {
    global_cache: GlobalCache,
    collections: RwLock<Collections>,
    /// Notified when a collection is added.
    collection_added: Notify,
    decoded: DecodedObjects,
    pending_writes: Mutex<PendingWrites>,
    own_writes: mpsc::Sender<OwnWrite>,
    /// Number of own writes that have not been dispatched.
    undispatched: watch::Sender<usize>,
    /// Seq of the last dispatched change.
    dispatched_seq: watch::Sender<Seq>,
    objects_read: AtomicU64,
}

/// Collected objects of all clusters. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

fn collection_progress(
    global_cache: &GlobalCache,
    dispatched: &watch::Sender<Seq>,
    collection: &CollectionKey,
) -> CollectionProgress {
    let position =
        global_cache.state(collection).map(|state| Version::parse(&state.resource_version)).unwrap_or_default();
    CollectionProgress { position, latest: global_cache.seq(), dispatched: *dispatched.borrow() }
}

impl Cache {
    /// Creates the cache and its informer. `max_bytes` limits the decoded objects and, separately, the own writes.
    pub fn new(global_cache: GlobalCache, max_bytes: usize) -> (Self, Informer) {
        let (own_writes, own_write_receiver) = mpsc::channel(OWN_WRITE_QUEUE_CAPACITY);
        let inner = Inner {
            dispatched_seq: watch::Sender::new(global_cache.seq()),
            global_cache,
            collections: RwLock::default(),
            collection_added: Notify::new(),
            decoded: DecodedObjects::new(max_bytes),
            pending_writes: Mutex::new(PendingWrites::new(max_bytes)),
            own_writes,
            undispatched: watch::Sender::new(0),
            objects_read: AtomicU64::new(0),
        };
        let cache = Cache { inner: Arc::new(inner) };
        (cache.clone(), Informer::new(cache, own_write_receiver))
    }

    /// Starts collecting a resource of a cluster.
    pub fn collect(&self, cluster: &ClusterName, resource: &Resource) {
        let key = CollectionKey::new(cluster.clone(), resource.gvr.clone());
        if self.is_requested(&key) {
            return;
        }
        let mut collections = self.inner.collections.write();
        if collections.contains_key(&key) {
            return;
        }
        let interest = self.inner.global_cache.interests().declare(Interest {
            clusters: Clusters::one(cluster.clone()),
            resource: resource.gvr.clone(),
            namespaces: Namespaces::All,
            reason: InterestReason::Controller("propagation"),
        });
        let collection = Collection {
            key: key.clone(),
            resource: Arc::new(resource.clone()),
            dispatched: watch::Sender::new(false),
            dispatching: AtomicBool::new(false),
            covered_seq: AtomicU64::new(0),
            requested_at: Instant::now(),
            _interest: interest,
        };
        collections.insert(key, Arc::new(collection));
        drop(collections);
        self.inner.collection_added.notify_one();
    }

    /// Stops collecting all resources of a cluster.
    pub fn forget(&self, cluster: &ClusterName) {
        self.remove_collections(|key| key.cluster == *cluster);
    }

    /// Stops collecting a resource, because it is not served.
    pub fn forget_resource(&self, cluster: &ClusterName, gvr: &Gvr) {
        self.remove_collections(|key| key.cluster == *cluster && key.resource == *gvr);
    }

    fn remove_collections(&self, is_removed: impl Fn(&CollectionKey) -> bool) {
        let mut collections = self.inner.collections.write();
        let keys: Vec<CollectionKey> = collections.keys().filter(|key| is_removed(key)).cloned().collect();
        keys.iter().for_each(|key| drop(collections.remove(key)));
        drop(collections);
        let mut pending_writes = self.inner.pending_writes.lock();
        keys.iter().for_each(|key| pending_writes.forget(key));
        drop(pending_writes);
        self.inner.decoded.remove_matching(|key| is_removed(&key.collection));
    }

    fn collection(&self, key: &CollectionKey) -> Option<Arc<Collection>> {
        self.inner.collections.read().get(key).cloned()
    }

    fn is_requested(&self, key: &CollectionKey) -> bool {
        self.inner.collections.read().contains_key(key)
    }

    fn find_collection(&self, cluster: &ClusterName, gvr: &Gvr) -> Option<Arc<Collection>> {
        self.collection(&CollectionKey::new(cluster.clone(), gvr.clone()))
    }

    /// Number of objects read so far, with or without their bodies.
    pub fn objects_read(&self) -> u64 {
        self.inner.objects_read.load(Ordering::Relaxed)
    }

    fn count_reads(&self, objects: usize) {
        self.inner.objects_read.fetch_add(objects as u64, Ordering::Relaxed);
    }

    /// True if a resource is collected, synced or not.
    pub fn is_collected(&self, cluster: &ClusterName, gvr: &Gvr) -> bool {
        self.find_collection(cluster, gvr).is_some()
    }

    /// True if a resource has been listed and dispatched.
    pub fn is_synced(&self, cluster: &ClusterName, gvr: &Gvr) -> bool {
        self.find_collection(cluster, gvr).is_some_and(|collection| *collection.dispatched.borrow())
    }

    /// Waits until a resource is synced, at most for `timeout`. Returns true if it is.
    pub async fn wait_until_synced(&self, cluster: &ClusterName, gvr: &Gvr, timeout: Duration) -> bool {
        let Some(collection) = self.find_collection(cluster, gvr) else { return false };
        let mut dispatched = collection.dispatched.subscribe();
        let result = tokio::time::timeout(timeout, dispatched.wait_for(|dispatched| *dispatched)).await;
        matches!(result, Ok(Ok(_)))
    }

    /// A collected resource of a cluster.
    pub fn resource(&self, cluster: &ClusterName, gvr: &Gvr) -> Option<Arc<Resource>> {
        self.find_collection(cluster, gvr).map(|collection| Arc::clone(&collection.resource))
    }

    /// Waits for the first list of a resource that was requested recently.
    pub async fn wait_for_first_list(&self, cluster: &ClusterName, gvr: &Gvr) {
        let Some(collection) = self.find_collection(cluster, gvr) else { return };
        let (mut dispatched, until) = (collection.dispatched.subscribe(), collection.requested_at + FIRST_LIST_TIMEOUT);
        if tokio::time::timeout_at(until, dispatched.wait_for(|dispatched| *dispatched)).await.is_err() {
            tracing::debug!(%cluster, resource = %gvr, "the resource has not been listed yet");
        }
    }

    /// Collected resources of a cluster.
    pub fn resources(&self, cluster: &ClusterName) -> Vec<Arc<Resource>> {
        let collections = self.inner.collections.read();
        let matching = collections.values().filter(|collection| collection.key.cluster == *cluster);
        matching.map(|collection| Arc::clone(&collection.resource)).collect()
    }

    /// Persisted notes about members' objects, see [`GlobalCache::note`]. Used by the execution controller only.
    pub async fn notes(&self) -> Result<Vec<(RecordKey, String)>, Error> {
        Ok(self.inner.global_cache.notes().await?)
    }

    /// Persists a note about an object for as long as the cache's files exist; `None` removes it. Notes about objects
    /// with withheld values are not persisted.
    pub async fn put_note(&self, key: &RecordKey, note: Option<&str>) -> Result<(), Error> {
        let gvr = key.resource();
        let is_secret = gvr.group.is_empty() && &*gvr.resource == "secrets";
        let is_withheld = is_secret
            || self.inner.global_cache.options().ingest.withheld.iter().any(|withheld| withheld.applies_to(gvr));
        if note.is_none() || !is_withheld {
            self.inner.global_cache.put_note(key, note).await?;
        }
        Ok(())
    }

    pub async fn delete_notes(&self, cluster: &ClusterName) -> Result<(), Error> {
        Ok(self.inner.global_cache.delete_notes(cluster).await?)
    }

    /// Adds an API server's response to a write of this process, or to a read of an object whose version in the cache
    /// may be older.
    pub fn observe(&self, cluster: &ClusterName, gvr: &Gvr, mut object: Value) {
        let collection = CollectionKey::new(cluster.clone(), gvr.clone());
        if unstructured::name(&object).is_empty() || !self.is_requested(&collection) {
            return;
        }
        // The cache does not contain managed fields either.
        unstructured::remove(&mut object, &["metadata", "managedFields"]);
        let version = Version::parse(unstructured::resource_version(&object));
        let (key, bytes) = (unstructured::key(&object), decoded::size_of_value(&object));
        let record = RecordKey::new(cluster.clone(), gvr.clone(), &key.namespace, &key.name);
        let progress = collection_progress(&self.inner.global_cache, &self.inner.dispatched_seq, &collection);
        // If a reader has already cached the new object, the previous one is unknown.
        let before = || self.inner.decoded.peek(&record).filter(|before| version_of(before) < version);
        let written = (CachedObject::from_response(object), version, bytes);
        if !self.inner.pending_writes.lock().add(&collection, key.clone(), written, progress, before, Instant::now()) {
            return;
        }
        self.inner.undispatched.send_modify(|undispatched| *undispatched += 1);
        if self.inner.own_writes.try_send(OwnWrite { collection, key, version }).is_err() {
            self.inner.undispatched.send_modify(|undispatched| *undispatched -= 1);
            tracing::debug!("a write of this process is dispatched when its collector delivers it");
        }
    }

    /// True once all changes of the cache and all listed collections have been dispatched.
    pub fn is_dispatched(&self) -> bool {
        let is_dispatched = |collection: &Arc<Collection>| {
            *collection.dispatched.borrow()
                || !self.inner.global_cache.state(&collection.key).is_some_and(|state| state.is_fresh())
        };
        *self.inner.dispatched_seq.borrow() >= self.inner.global_cache.seq()
            && self.inner.collections.read().values().all(is_dispatched)
    }

    /// The last dispatched change of the cache. Also notified after a collection was dispatched.
    pub fn last_dispatched(&self) -> watch::Receiver<Seq> {
        self.inner.dispatched_seq.subscribe()
    }

    /// Number of own writes that have not been dispatched yet.
    pub fn undispatched_writes(&self) -> watch::Receiver<usize> {
        self.inner.undispatched.subscribe()
    }
}

/// Namespace and name of a record.
fn namespaced_name(key: &RecordKey) -> NamespacedName {
    NamespacedName::new(&*key.namespace, &*key.name)
}

fn version_of(object: &CachedObject) -> Version {
    Version::parse(unstructured::resource_version(object.view()))
}
