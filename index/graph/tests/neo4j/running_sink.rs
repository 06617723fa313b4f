//! A running sink whose permissions are set by the test.

use crate::cache::Cache;
use crate::database::{Database, WAIT_TIMEOUT};
use crate::graph::{expected_contents, read_contents};
use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::retry::Backoff;
use crowsnest_graph::{
    GraphSink, RuleDigests, SinkConfig, SinkError, SinkOptions, SinkProgress, SinkState, Visibility, VisibilityDecision,
};
use crowsnest_store::fixtures::cluster;
use crowsnest_store::{BodyMode, Object, Store};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Access of a sink to the objects of the cache, and its batch size.
#[derive(Debug, Clone)]
pub struct Access {
    pub hidden_kinds: Vec<&'static str>,
    pub undecided_clusters: Vec<&'static str>,
    pub clusters: Vec<&'static str>,
    /// Maximum number of rows of a transaction.
    pub batch_size: usize,
    /// Decisions about objects that were changed after this seq fail.
    pub decidable_until: Option<u64>,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            hidden_kinds: Vec::new(),
            undecided_clusters: Vec::new(),
            clusters: vec!["m1", "m2"],
            batch_size: 1_000,
            decidable_until: None,
        }
    }
}

impl Access {
    pub fn allows(&self, object: &Object) -> bool {
        let is_hidden = self.hidden_kinds.contains(&&*object.record.kind);
        !is_hidden && !self.undecided_clusters.contains(&object.record.key.cluster().as_str())
    }
}

struct AccessVisibility {
    store: Arc<dyn Store>,
    access: Mutex<Access>,
    /// Number of rule changes.
    version: watch::Sender<u64>,
    /// Version at the last reset.
    version_at_reset: Mutex<u64>,
}

#[async_trait]
impl Visibility for AccessVisibility {
    async fn decide(&self, ids: BTreeSet<u64>, as_of: u64) -> Result<VisibilityDecision, SinkError> {
        let decidable_until = self.access.lock().decidable_until;
        if !ids.is_empty() && decidable_until.is_some_and(|seq| as_of > seq) {
            return Err(SinkError::Cache(crowsnest_store::Error::Incomplete));
        }
        let ids: Vec<u64> = ids.into_iter().collect();
        let objects = self.store.by_ids(&ids, BodyMode::Skip).await?;
        let access = self.access.lock();
        let visible_ids =
            objects.iter().filter(|object| access.allows(object)).map(|object| object.record.id).collect();
        Ok(VisibilityDecision {
            visible_ids,
            undecided_clusters: access.undecided_clusters.iter().map(|name| cluster(name)).collect(),
        })
    }

    fn rule_changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    async fn has_changed(&self) -> bool {
        *self.version_at_reset.lock() != *self.version.borrow()
    }

    async fn rule_digests(&self, _as_of: u64) -> Result<RuleDigests, SinkError> {
        let access = self.access.lock();
        let mut digests = RuleDigests::new();
        for name in access.clusters.iter().filter(|name| !access.undecided_clusters.contains(name)) {
            digests.insert(cluster(name), access.hidden_kinds.join(","));
        }
        Ok(digests)
    }

    fn reset(&self) {
        *self.version_at_reset.lock() = *self.version.borrow();
    }

    fn clusters(&self) -> BTreeSet<ClusterName> {
        self.access.lock().clusters.iter().map(|name| cluster(name)).collect()
    }
}

pub struct RunningSink {
    sink: Arc<GraphSink>,
    visibility: Arc<AccessVisibility>,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

fn config(database: &Database) -> SinkConfig {
    SinkConfig {
        name: "test".to_owned(),
        target: database.target(),
        selection: String::new(),
        is_stable: true,
        options: SinkOptions {
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_millis(500)),
            check_interval: Duration::from_secs(1),
            min_reload_interval: Duration::from_millis(100),
            ..SinkOptions::default()
        },
    }
}

impl RunningSink {
    pub fn start(cache: &Cache, database: &Database, access: Access) -> Self {
        Self::start_as(cache, database, access, |_| {})
    }

    pub fn start_as(cache: &Cache, database: &Database, access: Access, change: impl FnOnce(&mut SinkConfig)) -> Self {
        let mut config = config(database);
        config.options.batch_size = access.batch_size;
        change(&mut config);
        let visibility = Arc::new(AccessVisibility {
            store: Arc::clone(&cache.store) as _,
            access: Mutex::new(access),
            version: watch::Sender::default(),
            version_at_reset: Mutex::default(),
        });
        let source = cache.source();
        let sink = Arc::new(GraphSink::new(config, source, Arc::clone(&visibility) as _));
        let stop = CancellationToken::new();
        let (running, cancelled) = (Arc::clone(&sink), stop.clone());
        let task = tokio::spawn(async move { running.run(cancelled).await });
        Self { sink, visibility, task, stop }
    }

    pub fn progress(&self) -> SinkProgress {
        self.sink.progress()
    }

    pub fn set_access(&self, access: Access) {
        *self.visibility.access.lock() = access;
        self.visibility.version.send_modify(|version| *version += 1);
    }

    /// Lets all decisions succeed. The permissions do not change.
    pub fn allow_all_decisions(&self) {
        self.set_decidable_until(None);
    }

    /// Sets [`Access::decidable_until`].
    pub fn set_decidable_until(&self, seq: Option<u64>) {
        self.visibility.access.lock().decidable_until = seq;
    }

    /// Waits until two more sessions failed, so that the second one began after the call.
    pub async fn wait_for_failures(&self) {
        let expected = self.progress().counters.failures + 2;
        self.wait_until("two errors", |progress| progress.counters.failures >= expected).await;
    }

    pub async fn wait_until(&self, description: &str, condition: impl Fn(&SinkProgress) -> bool) {
        let mut progress = self.sink.watch();
        let result = tokio::time::timeout(WAIT_TIMEOUT, progress.wait_for(condition)).await;
        assert!(result.is_ok(), "timed out waiting for {description}: {:?}", self.progress());
    }

    /// Waits until the graph has exactly the objects of the cache that may be written.
    pub async fn wait_until_equal(&self, cache: &Cache, database: &Database) {
        let start = Instant::now();
        let access = self.visibility.access.lock().clone();
        let expected = expected_contents(cache, &access).await;
        loop {
            let is_settled = |progress: &SinkProgress| {
                progress.state == SinkState::Following && progress.position >= cache.latest().0
            };
            self.wait_until("the last change", is_settled).await;
            let actual = read_contents(database).await;
            if actual == expected {
                return;
            }
            if start.elapsed() > WAIT_TIMEOUT {
                let missing: Vec<_> = expected.difference(&actual).take(10).collect();
                let unexpected: Vec<_> = actual.difference(&expected).take(10).collect();
                panic!("missing: {missing:#?}\nnot expected: {unexpected:#?}\n{:?}", self.progress());
            }
            // A reload or a sweep may be under way.
            let mut progress = self.sink.watch();
            progress.mark_unchanged();
            drop(tokio::time::timeout(Duration::from_millis(200), progress.changed()).await);
        }
    }

    /// Runs a sink until the graph has exactly the objects of the cache that may be written.
    pub async fn run_until_equal(cache: &Cache, database: &Database, access: Access) {
        let sink = Self::start(cache, database, access);
        sink.wait_until_equal(cache, database).await;
        sink.stop().await;
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}
