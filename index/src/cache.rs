//! [`GlobalCache`]: the public interface of the cache.

mod reading;

use crate::collect::{Budget, Shared, Supervisor};
use crate::export::BackendClaims;
use crate::replicas::Claims;
use crate::replicas::election;
use crate::replicas::follower::LogFollower;
use crate::replicas::interests::SharedInterests;
use crate::replicas::keeper::LeaseKeeper;
use crate::replicas::states::SharedStates;
use crate::writer::Writer;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_members::{ApiResources, Fleet};
use crowsnest_search::authorization::rbac_resources;
use crowsnest_search::{CacheParts, Searcher, SearcherParts};
use crowsnest_store::CollectionStates;
use crowsnest_store::ReplicaView;
use crowsnest_store::codec::Codec;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::postgres::{self, PostgresStore};
use crowsnest_store::sqlite::SqliteStore;
use crowsnest_store::tail::{Follower, Tail, Topic};
use crowsnest_store::{CacheId, CacheOptions, CollectionKey, CollectionState, Error, Seq, StoreOptions};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Interests, Namespaces};
use crowsnest_store::{Store, StoreSize};
use k8s_openapi::api::core::v1::Namespace;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// The cache of the objects of all clusters, with its search. Cheap to clone.
#[derive(Clone)]
pub struct GlobalCache {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    searcher: Searcher,
    /// See [`GlobalCache::id`].
    pub id: CacheId,
    /// See [`GlobalCache::store_identity`].
    store_identity: String,
    /// Keep the RBAC objects collected, which authorization always needs.
    _rbac_interests: Vec<InterestGuard>,
    pub health: watch::Sender<Health>,
    /// Claims of this process's exporters.
    pub backend_claims: Arc<BackendClaims>,
    /// See [`GlobalCache::replicas`].
    replicas: watch::Sender<BTreeSet<String>>,
    tasks: Tasks,
    /// Handles of all workers, including those that ended, by name.
    workers: Mutex<BTreeMap<&'static str, AbortHandle>>,
}

impl Drop for Inner {
    /// Stops all tasks and the text index's thread even if [`GlobalCache::stop`] was not called.
    fn drop(&mut self) {
        self.tasks.stop_token().cancel();
    }
}

/// A store that was opened for a cache.
pub(crate) struct OpenedStore {
    pub store: Arc<dyn Store>,
    /// The store with its concrete type if replicas share it; None for a single process.
    pub replicated: Option<Arc<PostgresStore>>,
    pub codec: Arc<Codec>,
}

/// Reasons of current failures, by the name of the worker or of what it depends on; empty if the cache is healthy.
pub(crate) type Health = BTreeMap<&'static str, String>;

fn describe_failure((name, reason): (&&str, &String)) -> String {
    format!("cache component {name:?} failed: {reason}")
}

impl GlobalCache {
    /// Opens the store, starts the workers and starts collecting. Does not wait for the first lists;
    /// [`CollectionState::complete`] states whether a collection has one.
    pub async fn open(fleet: Fleet, options: CacheOptions) -> Result<Self, Error> {
        Self::open_with(fleet, options, Interests::default()).await
    }

    /// Opens the cache with initial interests. The cache deletes stored collections without an interest, so
    /// interests in its existing contents must be passed here.
    pub async fn open_with(fleet: Fleet, mut options: CacheOptions, interests: Interests) -> Result<Self, Error> {
        let codec = Arc::new(Codec::default());
        match options.store.clone() {
            StoreOptions::Sqlite => {
                crate::ingest_rules::apply(&options)?;
                let store = Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await?);
                let opened = OpenedStore { store, replicated: None, codec };
                Self::with_store(fleet, options, interests, opened, true).await
            }
            StoreOptions::Postgres(postgres) => {
                if options.history.max_store_bytes.take().is_some() {
                    tracing::warn!("the size limit does not apply to a Postgres database");
                }
                let replica = postgres.replica.clone().unwrap_or_else(|| replica_name(rand::random()));
                let mut store = PostgresStore::open(&postgres, &replica, Arc::clone(&codec)).await?;
                store.check_control_plane(&control_plane_id(&fleet).await?).await?;
                store.index_labels(&options.indexed_labels).await?;
                let store = Arc::new(store);
                let opened = OpenedStore { store: Arc::clone(&store) as _, replicated: Some(store), codec };
                Self::with_store(fleet, options, interests, opened, true).await
            }
        }
    }

    pub(crate) async fn with_store(
        fleet: Fleet,
        options: CacheOptions,
        interests: Interests,
        OpenedStore { store, replicated, codec }: OpenedStore,
        collect: bool,
    ) -> Result<Self, Error> {
        let (changes, bytes) = (options.tail_changes, options.tail_bytes);
        let tail = Arc::new(match &replicated {
            Some(log) => postgres::resume_tail(log, changes, bytes).await?,
            None => Tail::new(store.latest().await?, changes, bytes),
        });
        let states = Arc::new(CollectionStates::default());
        let mut stored_scopes = HashMap::new();
        for stored in store.collections().await? {
            stored_scopes.insert(stored.key.clone(), stored.scope);
            // The records are available, but the collection is not followed yet.
            let is_resuming = collect && replicated.is_none();
            let stale_reason = is_resuming.then(|| "it was stored by a previous run and is being resumed".to_owned());
            states.update(&stored.key, |state| {
                *state = CollectionState { stale_reason: stale_reason.or(stored.state.stale_reason), ..stored.state }
            });
        }
        let metrics = Arc::new(Metrics::default());
        let claims = Arc::new(if replicated.is_some() { Claims::none() } else { Claims::everything() });
        let tasks = Tasks::default();
        let stop = tasks.stop_token().clone();
        let indexed_seq = Arc::new(AtomicU64::default());
        let writer = Writer {
            store: Arc::clone(&store),
            tail: Arc::clone(&tail),
            states: Arc::clone(&states),
            claims: Arc::clone(&claims),
            metrics: Arc::clone(&metrics),
            history: options.history,
            indexed_seq: Arc::clone(&indexed_seq),
            now_ms: options.clock,
        };
        let (writer_handle, writer_worker) = writer.prepare(stop.clone());
        let budget = Budget::new(options.bytes_in_flight, options.bytes_in_flight_per_cluster, Arc::clone(&metrics));
        let shared = Arc::new(Shared {
            budget,
            lists: Arc::new(Semaphore::new(options.concurrent_lists.max(1))),
            fleet,
            store,
            codec,
            writer: writer_handle,
            tail,
            states,
            claims,
            metrics,
            now_ms: options.clock,
            options,
            interests,
            lists_per_cluster: Mutex::default(),
            clusters_without_watch_list: Mutex::default(),
            served: RwLock::default(),
            served_version: watch::Sender::new(0),
            kinds: RwLock::default(),
            declared_clusters: Mutex::default(),
        });
        let health = watch::Sender::new(Health::new());
        let filled_since_ms = shared.store.created_at((shared.now_ms)()).await?;
        let store_identity = shared.store.identity().await?;
        let (elected_sender, elected) = watch::channel(replicated.is_none());
        let parts = SearcherParts {
            options: &shared.options,
            identity: &store_identity,
            filled_since_ms,
            cache: CacheParts {
                fleet: shared.fleet.clone(),
                store: Arc::clone(&shared.store),
                tail: Arc::clone(&shared.tail),
                states: Arc::clone(&shared.states),
                metrics: Arc::clone(&shared.metrics),
                discovery: Arc::clone(&shared) as _,
            },
            committed: indexed_seq,
            elected,
            tasks: tasks.clone(),
        };
        let (searcher, workers) = Searcher::open(parts).await?;
        let inner = Arc::new(Inner {
            shared: Arc::clone(&shared),
            searcher,
            id: CacheId::from_identity(&store_identity),
            store_identity,
            _rbac_interests: declare_rbac_interests(&shared.interests),
            health,
            backend_claims: Arc::default(),
            replicas: watch::Sender::default(),
            tasks,
            workers: Mutex::default(),
        });
        let cache = Self { inner };
        cache.spawn_worker("store writer", writer_worker);
        for (name, worker) in workers {
            cache.spawn_worker(name, worker);
        }
        if let Some(postgres) = replicated {
            cache.spawn_replica_workers(&shared, postgres, collect, elected_sender, &stop);
        }
        if collect {
            cache.spawn_worker("collectors", Supervisor::new(shared, stored_scopes).run(stop));
        }
        Ok(cache)
    }

    /// Starts the workers that only replicas sharing a store have.
    fn spawn_replica_workers(
        &self,
        shared: &Arc<Shared>,
        store: Arc<PostgresStore>,
        collect: bool,
        elected_sender: watch::Sender<bool>,
        stop: &CancellationToken,
    ) {
        let (view, view_receiver) = watch::channel(ReplicaView::default());
        let (commit_notify, claims) = (Arc::new(Notify::new()), Arc::clone(&shared.claims));
        let (tail, states) = (Arc::clone(&shared.tail), Arc::clone(&shared.states));
        let health = self.inner.health.clone();
        let follower = LogFollower {
            store: Arc::clone(&store),
            tail,
            claims: Arc::clone(&claims),
            commit_notify: Arc::clone(&commit_notify),
            health: health.clone(),
        };
        self.spawn_worker("log follower", follower.run(stop.clone()));
        let states = SharedStates::new(Arc::clone(&store), states, Arc::clone(&claims), view_receiver, commit_notify);
        self.spawn_worker("shared states", states.run(stop.clone()));
        let interests = SharedInterests { store: Arc::clone(&store), interests: shared.interests.clone() };
        self.spawn_worker("shared interests", interests.run(stop.clone()));
        if collect {
            let shared = Arc::clone(shared);
            let live = self.inner.replicas.clone();
            self.spawn_worker(
                "election",
                election::run(store.replica().to_owned(), live.subscribe(), elected_sender, stop.clone()),
            );
            self.spawn_worker("lease", LeaseKeeper { store, shared, claims, health, view, live }.run(stop.clone()));
        }
    }

    /// Starts a worker. If it ends before the cache is stopped, the cache becomes unready.
    pub(crate) fn spawn_worker(
        &self,
        name: &'static str,
        worker: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let (health, stop) = (self.inner.health.clone(), self.inner.tasks.stop_token().clone());
        let task = self.inner.tasks.tracker().spawn(worker);
        self.inner.workers.lock().insert(name, task.abort_handle());
        self.inner.tasks.tracker().spawn(async move {
            let reason = match task.await {
                Ok(Ok(()) | Err(Error::Stopped)) if stop.is_cancelled() => return,
                Ok(Ok(())) => "it ended without an error".to_owned(),
                Ok(Err(error)) => error.chain(),
                Err(error) => error.to_string(),
            };
            tracing::error!(worker = name, reason, "a worker of the cache ended unexpectedly");
            health.send_modify(|health| drop(health.insert(name, reason)));
        });
    }

    /// Aborts a worker, for tests. False if there is no worker of this name.
    #[doc(hidden)]
    pub fn abort_worker(&self, worker: &str) -> bool {
        let handle = self.inner.workers.lock().get(worker).cloned();
        handle.inspect(AbortHandle::abort).is_some()
    }

    /// Workers that ended unexpectedly, with their reasons. They run again only after a restart of the cache.
    pub fn failed_workers(&self) -> Vec<String> {
        // Failures under other names may recover; a worker that ended does not.
        let workers = self.inner.workers.lock();
        self.inner
            .health
            .borrow()
            .iter()
            .filter(|(name, _)| workers.contains_key(*name))
            .map(describe_failure)
            .collect()
    }

    /// Checks readiness. Fails with the reasons if the cache has failures or the fleet does not follow the control
    /// plane.
    pub fn check_ready(&self) -> Result<(), String> {
        // Reports all failures, because one of them may be the cause of another.
        let failing: Vec<String> = self.inner.health.borrow().iter().map(describe_failure).collect();
        if !failing.is_empty() {
            return Err(failing.join("; "));
        }
        self.inner.shared.fleet.ready()
    }

    /// Search and authorization.
    pub fn searcher(&self) -> &Searcher {
        &self.inner.searcher
    }

    pub fn fleet(&self) -> &Fleet {
        &self.inner.shared.fleet
    }

    pub fn metrics(&self) -> &Metrics {
        &self.inner.shared.metrics
    }

    pub fn options(&self) -> &CacheOptions {
        &self.inner.shared.options
    }

    /// Interests of readers. A resource is collected while the guard of an interest in it exists.
    pub fn interests(&self) -> &Interests {
        &self.inner.shared.interests
    }

    pub async fn size(&self) -> Result<StoreSize, Error> {
        self.inner.shared.store.size().await
    }

    /// Seq of the newest published change. To miss no change, read it before a list and follow from it.
    pub fn seq(&self) -> Seq {
        self.inner.shared.tail.latest()
    }

    /// Follows all changes after `since`, of all clusters and resources, in order. A reader gets
    /// [`crowsnest_store::Gone`] and has to list again if the tail no longer contains its next change.
    pub fn follow(&self, since: Seq) -> Follower {
        self.inner.shared.tail.follow(since)
    }

    /// Follows the changes of a topic after `since`. The follower is woken only for changes of the topic, so thousands
    /// of followers are cheap.
    pub fn follow_topic(&self, since: Seq, topic: Topic) -> Follower {
        self.inner.shared.tail.follow_topic(since, topic)
    }

    /// The state of a collection; None if it is not collected.
    pub fn state(&self, key: &CollectionKey) -> Option<CollectionState> {
        self.inner.shared.states.get(key)
    }

    pub fn states(&self) -> Vec<(CollectionKey, CollectionState)> {
        self.inner.shared.states.all()
    }

    /// Calls `visit` for the state of each of a cluster's collections.
    pub fn for_each_state(&self, cluster: &ClusterName, visit: impl FnMut(&CollectionState)) {
        self.inner.shared.states.for_each_in_cluster(cluster, visit);
    }

    /// Id of the cache for responses: the beginning of the store's identity. [`Seq`]s of caches with different ids are
    /// not comparable.
    pub fn id(&self) -> &CacheId {
        &self.inner.id
    }

    /// Unique id of the store, to which its sequence numbers belong. Keep it secret: [`GlobalCache::alias`] is derived from
    /// it.
    pub fn store_identity(&self) -> &str {
        &self.inner.store_identity
    }

    /// Alias for a cluster whose name must not be revealed. Replicas of the same build that share a store use the same
    /// alias. No cluster can have an alias as its name.
    pub fn alias(&self, cluster: &ClusterName) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.inner.store_identity, cluster.as_str()).hash(&mut hasher);
        format!("~{:016x}", hasher.finish())
    }

    /// Counter that is incremented when the completeness, stale reason or kind of a collection changes, or a collection is
    /// removed.
    pub fn states_version(&self) -> watch::Receiver<u64> {
        self.inner.shared.states.version()
    }

    /// Live replicas that share the store, including this one. Empty if a single process uses the store, or if this
    /// process does not collect.
    pub fn replicas(&self) -> watch::Receiver<BTreeSet<String>> {
        self.inner.replicas.subscribe()
    }

    /// Waits until a complete list of a collection is stored. Waits forever if there is no interest in the collection.
    pub async fn wait_until_complete(&self, key: &CollectionKey) {
        let mut version = self.states_version();
        loop {
            version.borrow_and_update();
            if self.state(key).is_some_and(|state| state.complete) {
                return;
            }
            if version.changed().await.is_err() {
                return;
            }
        }
    }

    /// Resources that a cluster serves, as last discovered.
    pub fn served_resources(&self, cluster: &ClusterName) -> Option<Arc<ApiResources>> {
        self.inner.shared.served.read().get(cluster).cloned()
    }

    /// Counter that increments when the resources that any cluster serves change.
    pub fn served_version(&self) -> watch::Receiver<u64> {
        self.inner.shared.served_version.subscribe()
    }

    /// Stops all workers and waits for them.
    pub async fn stop(&self) {
        self.inner.tasks.stop().await;
        if let Err(error) = self.inner.shared.store.close().await {
            tracing::warn!(error = error.chain(), "cannot close the cache's database");
        }
    }
}

/// Interests in the RBAC objects of every cluster.
fn declare_rbac_interests(interests: &Interests) -> Vec<InterestGuard> {
    let all_clusters = [Clusters::All, Clusters::one(ClusterName::control_plane())];
    let rbac_interests = all_clusters.into_iter().flat_map(|clusters| {
        rbac_resources().into_iter().map(move |resource| {
            let (namespaces, reason) = (Namespaces::All, InterestReason::Authorization);
            Interest { clusters: clusters.clone(), resource, namespaces, reason }
        })
    });
    interests.declare_all(rbac_interests)
}

/// Id of a control plane: the uid of its namespace kube-system, or empty without one.
async fn control_plane_id(fleet: &Fleet) -> Result<String, Error> {
    let namespaces: kube::Api<Namespace> = kube::Api::all(fleet.control_plane());
    let found = namespaces.get_opt("kube-system").await;
    let found = found.map_err(|e| crowsnest_members::Error::kube("cannot read namespace kube-system", e))?;
    Ok(found.and_then(|namespace| namespace.metadata.uid).unwrap_or_default())
}

/// The host name with a random suffix, short enough for an application name of Postgres.
fn replica_name(random: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii).take(40).collect();
    format!("{host}-{random:08x}")
}
