//! The [`Searcher`]: entry point for searches and authorization, opened once with the cache.

use crate::authorization::{RbacRules, ReviewCache, RulesFollower};
use crate::engine::{self, Engine, EngineContext, EngineHandle};
use crate::execute::permits::SearchPermits;
use crate::paths::MAX_DEPENDENCY_SEARCHES;
use crate::plan::KindsByName;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_members::Fleet;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::tail::Tail;
use crowsnest_store::{CacheOptions, CollectionStates, Error, Seq, Store};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;

/// Executes searches and authorizes reads. Cheap to clone.
#[derive(Clone)]
pub struct Searcher {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub cache: CacheParts,
    pub engine: Arc<dyn Engine>,
    pub permits: Arc<SearchPermits>,
    pub dependency_permits: Arc<SearchPermits>,
    pub rbac_rules: Arc<RbacRules>,
    pub reviews: ReviewCache,
    /// Time since which the store is filled, Unix milliseconds.
    pub filled_since_ms: i64,
    /// Time for which earlier versions are kept.
    pub history_retention: Duration,
    /// References that users add to those of well-known kinds.
    pub references: Arc<[CustomRule]>,
    pub now_ms: fn() -> i64,
    tasks: Tasks,
}

/// Results of API discovery that searches use.
pub trait Discovery: Send + Sync {
    /// Kinds that any cluster serves, by their names.
    fn kinds(&self) -> Arc<KindsByName>;

    /// True if this process collects the cluster but has not discovered its resources yet.
    fn is_undiscovered(&self, cluster: &ClusterName) -> bool;
}

/// Parts of the cache that a [`Searcher`] reads.
pub struct CacheParts {
    pub fleet: Fleet,
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    pub states: Arc<CollectionStates>,
    pub metrics: Arc<Metrics>,
    pub discovery: Arc<dyn Discovery>,
}

/// Inputs of [`Searcher::open`].
pub struct SearcherParts<'o> {
    pub options: &'o CacheOptions,
    /// Identity of the store: a text index of another store is rebuilt.
    pub identity: &'o str,
    /// Time since which the store is filled, Unix milliseconds.
    pub filled_since_ms: i64,
    pub cache: CacheParts,
    /// The newest change that is durable in the text index; written by the engine.
    pub committed: Arc<AtomicU64>,
    /// True while this process writes to an index that several processes share.
    pub elected: watch::Receiver<bool>,
    /// Tasks of the cache, including searches that outlive a request.
    pub tasks: Tasks,
}

/// A task that runs as long as the cache, with its name.
pub type Worker = (&'static str, BoxFuture<'static, Result<(), Error>>);

impl Searcher {
    /// Opens the engine that the options name. The workers follow the store; the caller runs them until the cache stops.
    pub async fn open(parts: SearcherParts<'_>) -> Result<(Self, [Worker; 2]), Error> {
        let SearcherParts { options, cache, tasks, .. } = parts;
        let stop = tasks.stop_token();
        let backend = engine::backend(&options.index_backend)?;
        let (rbac_rules, permits) = (Arc::new(RbacRules::new(Arc::clone(&cache.metrics))), SearchPermits::for_cores());
        let context = EngineContext {
            options,
            identity: parts.identity,
            store: Arc::clone(&cache.store),
            tail: Arc::clone(&cache.tail),
            states: Arc::clone(&cache.states),
            rbac_rules: Arc::clone(&rbac_rules),
            metrics: Arc::clone(&cache.metrics),
            permits: Arc::clone(&permits),
            committed: parts.committed,
            elected: parts.elected,
            stop: stop.clone(),
        };
        let EngineHandle { engine, worker } = (backend.open)(context).await?;
        let follower = RulesFollower {
            rbac_rules: Arc::clone(&rbac_rules),
            store: Arc::clone(&cache.store),
            tail: Arc::clone(&cache.tail),
            states: Arc::clone(&cache.states),
            tolerates_outages: options.store.tolerates_outages(),
        };
        let workers: [Worker; 2] = [("text index", worker), ("authorization", Box::pin(follower.run(stop.clone())))];
        let inner = Inner {
            cache,
            engine,
            permits,
            dependency_permits: SearchPermits::new(MAX_DEPENDENCY_SEARCHES),
            rbac_rules,
            reviews: ReviewCache::default(),
            filled_since_ms: parts.filled_since_ms,
            history_retention: options.history.max_age,
            references: options.references.as_slice().into(),
            now_ms: options.clock,
            tasks,
        };
        Ok((Self { inner: Arc::new(inner) }, workers))
    }

    /// The text engine.
    pub fn engine(&self) -> &dyn Engine {
        self.inner.engine.as_ref()
    }

    /// The newest change a search can find.
    pub fn searchable(&self) -> watch::Receiver<Seq> {
        self.inner.engine.searchable()
    }

    /// Number of changes that a search cannot find yet.
    pub fn lag(&self) -> u64 {
        self.latest().0.saturating_sub(self.inner.engine.searchable().borrow().0)
    }

    /// Starts to fill a new text index; the current one is used meanwhile. Fails with [`Error::RebuildNotSupported`] for an
    /// in-process engine.
    pub async fn rebuild_text_index(&self) -> Result<(), Error> {
        self.inner.engine.rebuild().await
    }

    /// Notified when RBAC rules of any cluster change.
    pub fn rule_changes(&self) -> watch::Receiver<u64> {
        self.inner.rbac_rules.rule_changes()
    }

    /// The newest change whose RBAC rules are applied.
    pub fn applied_seq(&self) -> watch::Receiver<Seq> {
        self.inner.rbac_rules.applied_seq()
    }

    /// The newest change in the tail.
    pub(crate) fn latest(&self) -> Seq {
        self.inner.cache.tail.latest()
    }

    /// Starts a task of one search. It ends with the cache at the latest. A panic of the task does not make the cache
    /// unready.
    pub(crate) fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.inner.tasks.stop_token().clone();
        self.inner.tasks.spawn(name, async move {
            stop.run_until_cancelled(task).await;
        });
    }
}
