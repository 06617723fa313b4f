//! Graph sink controller: runs a sink for each GraphSink and reports its state in the status.
//!
//! Sinks run in the process that is the leader. The claim in the graph locks out a former leader that still writes.
//! Deleting a GraphSink stops its sink and does not change the graph.

mod desired;
mod metrics;
mod schedule;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::sink::GraphSink;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_component_base::tasks::Tasks;
use crowsnest_graph::{CacheVisibility, GraphSink as Sink, SinkSource, SinkState};
use crowsnest_index::GlobalCache;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::desired::{DesiredSink, SinkResolver, SinkSetupError, UsedAddress};
use self::metrics::SinkSample;
use self::schedule::{CheckSchedule, SpecRevision};
use self::status::{SinkStatus, next_status, status_patch};
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crate::search::activity::{ActiveWork, run_while_active};
use crate::search::digest_name;

pub use self::metrics::GraphSinkMetrics;

/// Interval at which sinks and conditions are updated.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of status updates without a change of the conditions: counters and `lastCheckedAt`.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);

/// Graph sink controller.
pub struct GraphSinks {
    pub cache: GlobalCache,
    /// Allows databases with addresses of this host.
    pub allow_local_addresses: bool,
    /// Receives the progress of the running sinks.
    pub metrics: GraphSinkMetrics,
}

/// A running sink.
struct RunningSink {
    sink: Arc<Sink>,
    desired: DesiredSink,
    /// Spec from which `desired` was resolved.
    revision: SpecRevision,
    tasks: Tasks,
    /// Number of transactions at the last update.
    transactions: u64,
    /// Unix time of the last transaction, in seconds.
    last_write: Option<u64>,
}

/// Result of the check of a GraphSink.
struct FinishedCheck {
    name: NamespacedName,
    /// Spec that was checked.
    revision: SpecRevision,
    result: Result<DesiredSink, SinkSetupError>,
}

/// Sinks of the active process.
struct ActiveSinks<'s> {
    sinks: &'s GraphSinks,
    objects: DynamicClient,
    resolver: SinkResolver,
    resource: Resource,
    /// Existing GraphSinks.
    current_sinks: BTreeMap<NamespacedName, GraphSink>,
    /// GraphSinks of a list that is not complete yet.
    relisted: BTreeMap<NamespacedName, GraphSink>,
    running: BTreeMap<NamespacedName, RunningSink>,
    setup_errors: BTreeMap<NamespacedName, SinkSetupError>,
    schedule: CheckSchedule,
    checks: FuturesUnordered<BoxFuture<'static, FinishedCheck>>,
    next_heartbeat: Instant,
}

impl GraphSinks {
    /// Runs the sinks while the last value of `activity` is true, until `stop` is cancelled.
    pub async fn run(self, activity: impl Stream<Item = bool> + Send, stop: CancellationToken) {
        run_while_active(activity, stop, || ActiveSinks::new(&self)).await;
    }
}

impl ActiveWork for ActiveSinks<'_> {
    /// Runs until the watch of GraphSinks ends.
    async fn run(&mut self) {
        let api: Api<GraphSink> = Api::all(self.sinks.cache.fleet().control_plane());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut tick = tokio::time::interval(UPDATE_INTERVAL);
        loop {
            let is_tick = tokio::select! {
                event = events.next() => {
                    match event {
                        None => return,
                        // The CustomResourceDefinition may not be installed yet.
                        Some(Err(error)) => tracing::debug!(%error, "cannot watch GraphSinks"),
                        Some(Ok(event)) => self.apply_event(event),
                    }
                    false
                }
                Some(check) = self.checks.next() => {
                    self.apply_check(check).await;
                    false
                }
                _ = tick.tick() => true,
            };
            self.update_sinks().await;
            // Each write causes a watch event: writing after events would process all sinks once per sink.
            if is_tick {
                self.write_statuses().await;
            }
        }
    }

    async fn shut_down(self) {
        for running in self.running.into_values() {
            running.tasks.stop().await;
        }
        self.sinks.metrics.replace(BTreeMap::new());
    }
}

impl<'s> ActiveSinks<'s> {
    fn new(sinks: &'s GraphSinks) -> Self {
        let objects = DynamicClient::new(sinks.cache.fleet().control_plane());
        let resolver = SinkResolver {
            objects: objects.clone(),
            allow_local_addresses: sinks.allow_local_addresses,
            rules: Arc::from(sinks.cache.options().references.as_slice()),
        };
        Self {
            sinks,
            objects,
            resolver,
            resource: Resource::of::<GraphSink>(),
            current_sinks: BTreeMap::new(),
            relisted: BTreeMap::new(),
            running: BTreeMap::new(),
            setup_errors: BTreeMap::new(),
            schedule: CheckSchedule::default(),
            checks: FuturesUnordered::new(),
            next_heartbeat: Instant::now(),
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
            watcher::Event::InitDone => self.current_sinks = std::mem::take(&mut self.relisted),
            watcher::Event::Apply(sink) => drop(self.current_sinks.insert(name(&sink), sink)),
            watcher::Event::Delete(sink) => drop(self.current_sinks.remove(&name(&sink))),
        }
    }

    /// Stops sinks that were deleted or have failed, and starts the checks that are due.
    async fn update_sinks(&mut self) {
        let is_deleted = |name: &&NamespacedName| !self.current_sinks.contains_key(*name);
        let deleted: Vec<NamespacedName> = self.running.keys().filter(is_deleted).cloned().collect();
        for name in deleted {
            self.stop(&name).await;
        }
        self.setup_errors.retain(|name, _| self.current_sinks.contains_key(name));
        self.stop_failed().await;
        for name in self.schedule.start_due(&self.current_sinks, Instant::now()) {
            let Some(sink) = self.current_sinks.get(&name) else { continue };
            let (resolver, revision, spec) = (self.resolver.clone(), SpecRevision::of(sink), sink.spec.clone());
            let used_address = self.running.get(&name).and_then(RunningSink::used_address);
            let check = async move {
                let result = resolver.resolve(&name, &spec, used_address).await;
                FinishedCheck { name, revision, result }
            };
            self.checks.push(check.boxed());
        }
    }

    /// Stops sinks whose task has ended unexpectedly. They are started again by their next check.
    async fn stop_failed(&mut self) {
        let failure = |(name, running): (&NamespacedName, &RunningSink)| {
            let message = running.tasks.failures().into_iter().next()?;
            Some((name.clone(), running.revision.clone(), message))
        };
        let failed: Vec<(NamespacedName, SpecRevision, String)> = self.running.iter().filter_map(failure).collect();
        for (name, revision, message) in failed {
            self.stop(&name).await;
            self.schedule.postpone(&name, revision, Instant::now());
            self.setup_errors.insert(name, SinkSetupError::Stopped(message));
        }
    }

    /// Starts, restarts or stops a sink according to the result of its check.
    async fn apply_check(&mut self, check: FinishedCheck) {
        let FinishedCheck { name, revision, result } = check;
        let current = self.current_sinks.get(&name).map(SpecRevision::of);
        if !self.schedule.finish(&name, &revision, current.as_ref(), Instant::now()) {
            return;
        }
        let has_same_spec = self.running.get(&name).is_some_and(|running| running.revision == revision);
        match result {
            Ok(desired) => {
                self.setup_errors.remove(&name);
                match self.running.get_mut(&name) {
                    Some(running) if running.desired == desired => running.revision = revision,
                    _ => {
                        self.stop(&name).await;
                        self.running.insert(name, RunningSink::start(&self.sinks.cache, desired, revision));
                    }
                }
            }
            // The control plane or a name server does not respond at present: a sink with this spec continues.
            Err(error) if error.is_temporary() && has_same_spec => {
                tracing::warn!(%error, sink = %name, "cannot check a GraphSink; it continues with its previous configuration");
            }
            Err(error) => {
                self.stop(&name).await;
                self.setup_errors.insert(name, error);
            }
        }
    }

    async fn stop(&mut self, name: &NamespacedName) {
        if let Some(running) = self.running.remove(name) {
            running.tasks.stop().await;
        }
    }

    /// Writes statuses that changed, and all statuses at the heartbeat interval.
    async fn write_statuses(&mut self) {
        let now = Time(Timestamp::now());
        let is_heartbeat = self.next_heartbeat <= Instant::now();
        if is_heartbeat {
            self.next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
        }
        let mut samples = BTreeMap::new();
        for (name, sink) in &mut self.current_sinks {
            let sink_status = match (self.running.get_mut(name), self.setup_errors.get(name)) {
                (Some(running), _) => {
                    let sample = running.sample(&now);
                    let status = SinkStatus::Running(Box::new(sample.progress.clone()));
                    samples.insert(name.clone(), sample);
                    status
                }
                (None, Some(error)) => SinkStatus::Unusable { reason: error.reason(), message: error.to_string() },
                (None, None) => continue,
            };
            let Some(status) = next_status(sink, &sink_status, is_heartbeat, &now) else { continue };
            let target = Target::new(&self.resource, &name.namespace, &name.name).status();
            match self.objects.merge(target, &status_patch(&status)).await {
                Ok(_) => sink.status = status,
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => tracing::warn!(%error, sink = %name, "cannot write the status of a GraphSink"),
            }
        }
        self.sinks.metrics.replace(samples);
    }
}

impl RunningSink {
    fn start(cache: &GlobalCache, desired: DesiredSink, revision: SpecRevision) -> Self {
        let source = SinkSource {
            changes: cache.change_source(),
            states: cache.collection_states(),
            // Cluster aliases are derived from the identity, so readers of a graph must not learn it.
            store_name: digest_name(cache.store_identity()),
            now_ms: cache.options().clock,
            rules: cache.options().references.clone(),
        };
        let visibility = CacheVisibility::new(cache.clone(), desired.caller.clone(), desired.query.clone());
        let sink = Arc::new(Sink::new(desired.config.clone(), source, Arc::new(visibility)));
        let tasks = Tasks::default();
        let (running, stop) = (Arc::clone(&sink), tasks.stop_token().clone());
        tasks.spawn_until_stop("graph sink", async move { running.run(stop).await });
        Self { sink, desired, revision, tasks, transactions: 0, last_write: None }
    }

    /// IP address of the connection, if it was chosen by the controller.
    fn used_address(&self) -> Option<UsedAddress> {
        let progress = self.sink.progress();
        let depends_on_address =
            matches!(&progress.state, SinkState::Waiting { failure, .. } if failure.depends_on_address());
        let has_failed = depends_on_address && !progress.is_connected;
        self.desired.ip_address.map(|ip_address| UsedAddress { ip_address, has_failed })
    }

    /// Current state for the metrics.
    fn sample(&mut self, now: &Time) -> SinkSample {
        let progress = self.sink.progress();
        if progress.counters.transactions != self.transactions {
            self.transactions = progress.counters.transactions;
            self.last_write = u64::try_from(now.0.as_second()).ok();
        }
        let lag_seconds = progress.lag_seconds(now.0.as_millisecond());
        SinkSample { progress, lag_seconds, last_write: self.last_write }
    }
}

impl Drop for RunningSink {
    fn drop(&mut self) {
        self.tasks.stop_token().cancel();
    }
}
