//! Graph sink controller: runs a sink for each GraphSink and reports its state in the status.
//!
//! Sinks run in the process that is the leader. The claim in the graph locks out a former leader that still writes.
//! Deleting a GraphSink stops its sink and does not change the graph.

mod desired;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::sink::GraphSink;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_component_base::metrics::Series;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_graph::{GraphSink as Sink, IndexVisibility, SinkProgress, SinkSource};
use crowsnest_index::Index;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::desired::{DesiredSink, SinkResolver, SinkSetupError};
use self::status::{SinkStatus, next_status, status_patch};
use crate::runtime::dynamic_client::{Objects, Resource, Target};

/// Interval at which sinks and conditions are updated.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which the Secrets are read again.
const SECRET_READ_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum interval between status updates in which only counters changed.
const COUNTER_WRITE_INTERVAL: Duration = Duration::from_secs(30);

/// Graph sink controller.
pub struct GraphSinks {
    pub index: Index,
    /// Allows databases with addresses of this host.
    pub allow_local_addresses: bool,
    /// Receives the progress of the running sinks.
    pub metrics: GraphSinkMetrics,
}

/// Metrics of all sinks. Cheap to clone.
#[derive(Clone, Default)]
pub struct GraphSinkMetrics(Arc<Mutex<BTreeMap<NamespacedName, SinkProgress>>>);

/// A running sink.
struct RunningSink {
    sink: Arc<Sink>,
    desired: DesiredSink,
    tasks: Tasks,
}

/// Sinks of the active process.
struct ActiveSinks<'s> {
    sinks: &'s GraphSinks,
    objects: Objects,
    resource: Resource,
    /// Existing GraphSinks.
    known: BTreeMap<NamespacedName, GraphSink>,
    /// GraphSinks of a list that is not complete yet.
    relisted: BTreeMap<NamespacedName, GraphSink>,
    running: BTreeMap<NamespacedName, RunningSink>,
    setup_errors: BTreeMap<NamespacedName, SinkSetupError>,
    /// Generations of the specs that were last applied.
    applied_generations: BTreeMap<NamespacedName, Option<i64>>,
    next_secret_read: Instant,
    next_counter_write: Instant,
}

impl GraphSinks {
    /// Runs the sinks while the last value of `activity` is true, until `stop` is cancelled.
    pub async fn run(self, activity: impl Stream<Item = bool> + Send, stop: CancellationToken) {
        let mut activity = std::pin::pin!(activity);
        let mut is_active = false;
        loop {
            let mut active_sinks = is_active.then(|| ActiveSinks::new(&self));
            // The next different value of `activity`, or None at its end.
            let next = async {
                loop {
                    match activity.next().await {
                        Some(next) if next == is_active => {}
                        other => return other,
                    }
                }
            };
            let next = tokio::select! {
                () = stop.cancelled() => None,
                next = next => next,
                () = async {
                    match &mut active_sinks {
                        Some(active_sinks) => active_sinks.run().await,
                        None => std::future::pending().await,
                    }
                } => None,
            };
            if let Some(active_sinks) = active_sinks {
                active_sinks.shut_down().await;
            }
            self.metrics.0.lock().clear();
            match next {
                Some(next) => is_active = next,
                None => return,
            }
        }
    }
}

impl<'s> ActiveSinks<'s> {
    fn new(sinks: &'s GraphSinks) -> Self {
        Self {
            sinks,
            objects: Objects::new(sinks.index.fleet().control_plane()),
            resource: Resource::of::<GraphSink>(),
            known: BTreeMap::new(),
            relisted: BTreeMap::new(),
            running: BTreeMap::new(),
            setup_errors: BTreeMap::new(),
            applied_generations: BTreeMap::new(),
            next_secret_read: Instant::now(),
            next_counter_write: Instant::now(),
        }
    }

    /// Runs until the watch of GraphSinks ends.
    async fn run(&mut self) {
        let api: Api<GraphSink> = Api::all(self.sinks.index.fleet().control_plane());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut tick = tokio::time::interval(UPDATE_INTERVAL);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    None => return,
                    // The CustomResourceDefinition may not be installed yet.
                    Some(Err(error)) => tracing::debug!(%error, "cannot watch GraphSinks"),
                    Some(Ok(event)) => self.apply_event(event),
                },
                _ = tick.tick() => {}
            }
            self.update_sinks().await;
            self.write_statuses().await;
        }
    }

    fn apply_event(&mut self, event: watcher::Event<GraphSink>) {
        let name = |sink: &GraphSink| {
            let metadata = &sink.metadata;
            NamespacedName::new(
                metadata.namespace.clone().unwrap_or_default(),
                metadata.name.clone().unwrap_or_default(),
            )
        };
        match event {
            watcher::Event::Init => self.relisted.clear(),
            watcher::Event::InitApply(sink) => drop(self.relisted.insert(name(&sink), sink)),
            watcher::Event::InitDone => self.known = std::mem::take(&mut self.relisted),
            watcher::Event::Apply(sink) => drop(self.known.insert(name(&sink), sink)),
            watcher::Event::Delete(sink) => drop(self.known.remove(&name(&sink))),
        }
    }

    /// Starts, restarts and stops sinks.
    async fn update_sinks(&mut self) {
        let is_deleted = |name: &&NamespacedName| !self.known.contains_key(*name);
        let deleted: Vec<NamespacedName> = self.running.keys().filter(is_deleted).cloned().collect();
        for name in deleted {
            self.stop(&name).await;
        }
        self.setup_errors.retain(|name, _| self.known.contains_key(name));
        self.applied_generations.retain(|name, _| self.known.contains_key(name));
        let is_secret_read_due = self.next_secret_read <= Instant::now();
        if is_secret_read_due {
            self.next_secret_read = Instant::now() + SECRET_READ_INTERVAL;
        }
        let is_due = |(name, sink): &(&NamespacedName, &GraphSink)| {
            is_secret_read_due || self.applied_generations.get(*name) != Some(&sink.metadata.generation)
        };
        let due: Vec<(NamespacedName, GraphSink)> =
            self.known.iter().filter(is_due).map(|(name, sink)| (name.clone(), sink.clone())).collect();
        for (name, sink) in due {
            self.start_or_update(&name, &sink).await;
            self.applied_generations.insert(name, sink.metadata.generation);
        }
    }

    async fn start_or_update(&mut self, name: &NamespacedName, sink: &GraphSink) {
        let resolver = SinkResolver { objects: &self.objects, allow_local_addresses: self.sinks.allow_local_addresses };
        match resolver.resolve(name, &sink.spec).await {
            Ok(desired) => {
                self.setup_errors.remove(name);
                if self.running.get(name).is_none_or(|running| running.desired != desired) {
                    self.stop(name).await;
                    self.running.insert(name.clone(), RunningSink::start(&self.sinks.index, desired));
                }
            }
            // The control plane does not respond at present: a running sink continues.
            Err(error) if error.is_temporary() && self.running.contains_key(name) => {
                tracing::warn!(%error, sink = %name, "cannot read the credentials of a GraphSink; it continues with the previous ones");
            }
            Err(error) => {
                self.stop(name).await;
                self.setup_errors.insert(name.clone(), error);
            }
        }
    }

    async fn stop(&mut self, name: &NamespacedName) {
        if let Some(running) = self.running.remove(name) {
            running.tasks.stop().await;
        }
    }

    async fn shut_down(self) {
        for running in self.running.into_values() {
            running.tasks.stop().await;
        }
    }

    /// Writes statuses that changed.
    async fn write_statuses(&mut self) {
        let now = Time(Timestamp::now());
        let with_counters = self.next_counter_write <= Instant::now();
        if with_counters {
            self.next_counter_write = Instant::now() + COUNTER_WRITE_INTERVAL;
        }
        let mut progress_by_sink = BTreeMap::new();
        for (name, sink) in &self.known {
            let sink_status = match (self.running.get(name), self.setup_errors.get(name)) {
                (Some(running), _) => SinkStatus::Running(Box::new(running.sink.progress())),
                (None, Some(error)) => SinkStatus::Unusable { reason: error.reason(), message: error.to_string() },
                (None, None) => continue,
            };
            if let SinkStatus::Running(progress) = &sink_status {
                progress_by_sink.insert(name.clone(), SinkProgress::clone(progress));
            }
            let Some(status) = next_status(sink, &sink_status, with_counters, &now) else { continue };
            let target = Target::new(&self.resource, &name.namespace, &name.name).status();
            match self.objects.merge(target, &status_patch(&status)).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => tracing::warn!(%error, sink = %name, "cannot write the status of a GraphSink"),
            }
        }
        *self.sinks.metrics.0.lock() = progress_by_sink;
    }
}

impl RunningSink {
    fn start(index: &Index, desired: DesiredSink) -> Self {
        let source = SinkSource {
            changes: index.change_source(),
            states: index.collection_states(),
            store_name: store_digest(index.store_identity()),
            rules: index.options().references.clone(),
        };
        let visibility = IndexVisibility::new(index.clone(), desired.caller.clone(), desired.query.clone());
        let sink = Arc::new(Sink::new(desired.config.clone(), source, Arc::new(visibility)));
        let tasks = Tasks::default();
        let (running, stop) = (Arc::clone(&sink), tasks.stop_token().clone());
        tasks.spawn_until_stop("graph sink", async move { running.run(stop).await });
        Self { sink, desired, tasks }
    }
}

impl Drop for RunningSink {
    fn drop(&mut self) {
        self.tasks.stop_token().cancel();
    }
}

/// Name of a store in graphs, a digest of its identity. Cluster aliases are derived from the identity, so readers of a
/// graph must not learn it.
fn store_digest(identity: &str) -> String {
    Sha256::digest(identity.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl GraphSinkMetrics {
    /// Current values of all metrics.
    pub fn series(&self) -> Vec<Series> {
        type Value = fn(&SinkProgress) -> u64;
        const METRICS: [(&str, &str, bool, Value); 7] = [
            (
                "crowsnest_graph_sink_connected",
                "Whether the database of a GraphSink is reachable (1) or not (0).",
                false,
                |p| u64::from(p.is_connected),
            ),
            (
                "crowsnest_graph_sink_lag_changes",
                "Number of changes that are not yet written to the graph.",
                false,
                SinkProgress::lag,
            ),
            ("crowsnest_graph_sink_nodes_written_total", "Nodes written.", true, |p| p.nodes_written),
            ("crowsnest_graph_sink_nodes_relinked_total", "Nodes whose edges were replaced.", true, |p| {
                p.nodes_relinked
            }),
            ("crowsnest_graph_sink_nodes_removed_total", "Nodes removed, by changes and by sweeps.", true, |p| {
                p.nodes_removed + p.nodes_swept
            }),
            ("crowsnest_graph_sink_loads_total", "Complete loads of the graph.", true, |p| p.loads),
            ("crowsnest_graph_sink_failures_total", "Failed attempts to write.", true, |p| p.failures),
        ];
        let progress_by_sink = self.0.lock();
        let series_of_metric = |(name, help, is_counter, value): (&'static str, &'static str, bool, Value)| {
            progress_by_sink.iter().map(move |(sink, progress)| Series {
                name,
                help,
                is_counter,
                labels: vec![("namespace", sink.namespace.clone()), ("sink", sink.name.clone())],
                value: value(progress),
            })
        };
        METRICS.into_iter().flat_map(series_of_metric).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_store_does_not_contain_its_identity() {
        let identity = "0f8e2c1d9b7a4655";
        let digest = store_digest(identity);
        assert_eq!((digest.len(), digest.as_str()), (32, store_digest(identity).as_str()));
        assert!(!digest.contains(&identity[..8]) && digest != store_digest("another"));
    }

    #[test]
    fn each_sink_has_its_own_series() {
        let metrics = GraphSinkMetrics::default();
        assert!(metrics.series().is_empty());
        let progress =
            SinkProgress { position: 3, latest: 10, nodes_removed: 1, nodes_swept: 2, ..SinkProgress::default() };
        metrics.0.lock().insert(NamespacedName::new("team", "graph"), progress);
        let series = metrics.series();
        let value = |name: &str| series.iter().find(|series| series.name == name).unwrap().value;
        assert_eq!(value("crowsnest_graph_sink_lag_changes"), 7);
        assert_eq!(value("crowsnest_graph_sink_nodes_removed_total"), 3);
        assert_eq!(series[0].labels, [("namespace", "team".to_owned()), ("sink", "graph".to_owned())]);
    }
}
