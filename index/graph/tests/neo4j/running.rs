//! A sink that runs in this process.

use crate::cache::Cache;
use crate::database::{Database, PATIENCE};
use crate::graph::{actual, expected};
use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::retry::Backoff;
use crowsnest_graph::{GraphSink, SinkConfig, SinkError, SinkOptions, SinkProgress, SinkState, Visibility, Visible};
use crowsnest_store::fixtures::cluster;
use crowsnest_store::{BodyMode, Object, Store};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a sink may write.
#[derive(Debug, Clone)]
pub struct Rules {
    pub hidden_kinds: Vec<&'static str>,
    pub undecided: Vec<&'static str>,
    pub clusters: Vec<&'static str>,
    pub batch: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self { hidden_kinds: Vec::new(), undecided: Vec::new(), clusters: vec!["m1", "m2"], batch: 1_000 }
    }
}

impl Rules {
    pub fn allows(&self, object: &Object) -> bool {
        let is_hidden = self.hidden_kinds.contains(&&*object.record.kind);
        !is_hidden && !self.undecided.contains(&object.record.key.cluster().as_str())
    }
}

struct ByRules {
    store: Arc<dyn Store>,
    rules: Mutex<Rules>,
    number: watch::Sender<u64>,
    decided: Mutex<u64>,
}

#[async_trait]
impl Visibility for ByRules {
    async fn visible(&self, ids: BTreeSet<u64>, _as_of: u64) -> Result<Visible, SinkError> {
        let ids: Vec<u64> = ids.into_iter().collect();
        let objects = self.store.by_ids(&ids, BodyMode::Skip).await?;
        let rules = self.rules.lock();
        let ids = objects.iter().filter(|object| rules.allows(object)).map(|object| object.record.id).collect();
        Ok(Visible { ids, undecided: rules.undecided.iter().map(|name| cluster(name)).collect() })
    }

    fn rules(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }

    async fn has_changed(&self) -> bool {
        *self.decided.lock() != *self.number.borrow()
    }

    fn restart(&self) {
        *self.decided.lock() = *self.number.borrow();
    }

    fn clusters(&self) -> BTreeSet<ClusterName> {
        self.rules.lock().clusters.iter().map(|name| cluster(name)).collect()
    }
}

pub struct Running {
    sink: Arc<GraphSink>,
    visibility: Arc<ByRules>,
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

impl Running {
    pub fn start(cache: &Cache, database: &Database, rules: Rules) -> Self {
        Self::start_as(cache, database, rules, |_| {})
    }

    pub fn start_as(cache: &Cache, database: &Database, rules: Rules, change: impl FnOnce(&mut SinkConfig)) -> Self {
        let mut config = config(database);
        config.options.batch = rules.batch;
        change(&mut config);
        let visibility = Arc::new(ByRules {
            store: Arc::clone(&cache.store) as _,
            rules: Mutex::new(rules),
            number: watch::Sender::default(),
            decided: Mutex::default(),
        });
        let source = cache.source();
        let sink = Arc::new(GraphSink::new(config, source, Arc::clone(&visibility) as _));
        let stop = CancellationToken::new();
        let (running, until) = (Arc::clone(&sink), stop.clone());
        let task = tokio::spawn(async move { running.run(until).await });
        Self { sink, visibility, task, stop }
    }

    pub fn progress(&self) -> SinkProgress {
        self.sink.progress()
    }

    pub fn set_rules(&self, rules: Rules) {
        *self.visibility.rules.lock() = rules;
        self.visibility.number.send_modify(|number| *number += 1);
    }

    pub async fn until(&self, what: &str, condition: impl Fn(&SinkProgress) -> bool) {
        let mut progress = self.sink.watch();
        let waited = tokio::time::timeout(PATIENCE, progress.wait_for(condition)).await;
        assert!(waited.is_ok(), "timed out waiting for {what}: {:?}", self.progress());
    }

    /// Waits until the graph has what may be written of the cache, and nothing else.
    pub async fn until_equal(&self, cache: &Cache, database: &Database) {
        let began = Instant::now();
        let rules = self.visibility.rules.lock().clone();
        let expected = expected(cache, &rules).await;
        loop {
            let is_settled = |progress: &SinkProgress| {
                progress.state == SinkState::Following && progress.position >= cache.latest().0
            };
            self.until("the last change", is_settled).await;
            let actual = actual(database).await;
            if actual == expected {
                return;
            }
            if began.elapsed() > PATIENCE {
                let missing: Vec<_> = expected.difference(&actual).take(10).collect();
                let more: Vec<_> = actual.difference(&expected).take(10).collect();
                panic!("missing: {missing:#?}\nnot expected: {more:#?}\n{:?}", self.progress());
            }
            // A reload or a sweep may be under way.
            let mut progress = self.sink.watch();
            progress.mark_unchanged();
            drop(tokio::time::timeout(Duration::from_millis(200), progress.changed()).await);
        }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}
