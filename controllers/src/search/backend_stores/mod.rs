//! Backend stores of ResourceRegistries: runs an export for each backend that registries refer to, reports its
//! state in their conditions, and removes the documents from backends that no registry refers to.
//!
//! Only the active process exports. Exports are recorded in the cache's database, so registries need no finalizer:
//! after a registry is deleted its backend is cleaned up from these records, for up to [`CLEANUP_TIMEOUT`].

mod conditions;
pub(super) mod credentials;
mod desired;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::search::ResourceRegistry;
use crowsnest_component_base::metrics::Series;
use crowsnest_index::GlobalCache;
use crowsnest_index::export::{
    Export, ExportCheckpoint, ExportOptions, ExportProgress, ExportState, Exporter, Selection,
};
use crowsnest_search::opensearch::client::Credentials;
use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::conditions::{ExportStatus, conditions};
use self::credentials::ClientSetupError;
use self::desired::{DesiredExport, desired_exports};
use crate::Error;
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crate::search::activity::{ActiveWork, run_while_active};
use crate::search::digest_name;
use crate::search::resource_registry::Registrations;
use crowsnest_admission::backend_store::Destination;

/// Interval between updates of progress and conditions.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between reads of the Secrets.
const SECRET_READ_INTERVAL: Duration = Duration::from_secs(30);
/// Time after which the cleanup of a backend is given up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Inputs of the exports.
pub struct BackendStores {
    pub cache: GlobalCache,
    pub registrations: watch::Receiver<Option<Arc<Registrations>>>,
    /// Allows backends with addresses of this host.
    pub allow_local_addresses: bool,
    pub metrics: BackendStoreMetrics,
}

/// Metrics of all exports. Cheap to clone.
#[derive(Clone, Default)]
pub struct BackendStoreMetrics(Arc<Mutex<MetricValues>>);

#[derive(Default)]
struct MetricValues {
    /// Progress of exports by registry.
    progress: BTreeMap<String, ExportProgress>,
    /// Number of backends to clean up.
    cleanups: usize,
}

/// A running export.
struct RunningExport {
    exporter: Arc<Exporter>,
    selection: watch::Sender<Arc<Selection>>,
    credentials: Credentials,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

/// Exports of the active process.
struct ActiveExports<'b> {
    stores: &'b BackendStores,
    objects: DynamicClient,
    registry: Resource,
    /// Exports by name of the backend.
    running: BTreeMap<String, RunningExport>,
    /// Reasons why backends have no client, by name of the backend.
    setup_errors: BTreeMap<String, ClientSetupError>,
    /// Registries whose conditions could not be written. They are written again when Secrets are read again.
    failed_registries: BTreeSet<String>,
    next_secret_read: Instant,
}

impl BackendStores {
    /// Runs exports while this process is active (the last item of `activity`), until `stop`.
    pub async fn run(self, activity: impl Stream<Item = bool> + Send, stop: CancellationToken) {
        run_while_active(activity, stop, || ActiveExports::new(&self)).await;
    }
}

impl ActiveWork for ActiveExports<'_> {
    /// Runs until the registries are no longer read.
    async fn run(&mut self) {
        let mut registrations = self.stores.registrations.clone();
        loop {
            let current = registrations.borrow_and_update().clone();
            if let Some(current) = current {
                let exports: BTreeMap<String, (Destination, DesiredExport)> = desired_exports(&current)
                    .into_iter()
                    .map(|(destination, export)| (backend_name(&destination), (destination, export)))
                    .collect();
                if let Err(error) = self.update_exports(&exports).await {
                    tracing::warn!(%error, "cannot update the exports of ResourceRegistries");
                }
                self.write_conditions(&current, &exports).await;
            }
            tokio::select! {
                changed = registrations.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(UPDATE_INTERVAL) => {}
            }
        }
    }

    /// Stops all exports.
    async fn shut_down(self) {
        for running in self.running.into_values() {
            running.stop().await;
        }
        self.stores.metrics.clear();
    }
}

impl<'b> ActiveExports<'b> {
    fn new(stores: &'b BackendStores) -> Self {
        Self {
            stores,
            objects: DynamicClient::new(stores.cache.fleet().control_plane()),
            registry: Resource::of::<ResourceRegistry>(),
            running: BTreeMap::new(),
            setup_errors: BTreeMap::new(),
            failed_registries: BTreeSet::new(),
            next_secret_read: Instant::now(),
        }
    }

    /// Starts, updates and stops exports.
    async fn update_exports(&mut self, exports: &BTreeMap<String, (Destination, DesiredExport)>) -> Result<(), Error> {
        for (_, finished) in self.running.extract_if(.., |_, running| running.task.is_finished()) {
            finished.stop().await;
        }
        let recorded_exports = self.update_abandoned(exports).await?;
        let is_secret_read_due = self.next_secret_read <= Instant::now();
        if is_secret_read_due {
            self.next_secret_read = Instant::now() + SECRET_READ_INTERVAL;
            self.failed_registries.clear();
        }
        self.setup_errors.retain(|name, _| exports.contains_key(name));
        for (name, (destination, export)) in exports {
            match self.running.get(name) {
                // There is nothing to export and nothing to clean up.
                None if export.selection.is_empty() && !recorded_exports.contains(name) => {}
                Some(running) if !is_secret_read_due => running.set_selection(&export.selection),
                None if !is_secret_read_due && self.setup_errors.contains_key(name) => {}
                _ => self.start_or_update(name, destination, &export.selection).await,
            }
        }
        if is_secret_read_due { self.clean_up(exports).await } else { Ok(()) }
    }

    /// Stops exports to backends that no registry refers to, and records when they ended. Resumes those that a registry
    /// refers to again. Returns the names of all recorded backends.
    async fn update_abandoned(
        &mut self,
        exports: &BTreeMap<String, (Destination, DesiredExport)>,
    ) -> Result<BTreeSet<String>, Error> {
        let now = Timestamp::now().as_millisecond();
        let recorded_exports = self.stores.cache.export_checkpoints().await?;
        let names = recorded_exports.keys().cloned().collect();
        for (name, checkpoint) in recorded_exports {
            let (is_referenced, is_abandoned) = (exports.contains_key(&name), checkpoint.abandoned_at.is_some());
            if is_referenced != is_abandoned {
                continue;
            }
            // The cleanup of a backend must stop before its export starts, and vice versa.
            self.stop(&name).await;
            let since = (!is_referenced).then_some(now);
            if let Err(error) = self.stores.cache.abandon_export(&name, since).await {
                tracing::warn!(error = error.chain(), "cannot record that the export to a backend has ended");
            }
        }
        let unreferenced = |name: &&String| !exports.contains_key(*name);
        let unreferenced: Vec<String> = self.running.keys().filter(unreferenced).cloned().collect();
        for name in unreferenced {
            // An export with an empty selection is the cleanup of an abandoned backend, and continues.
            if !self.running.get(&name).is_some_and(|running| running.selection.borrow().is_empty()) {
                self.stop(&name).await;
            }
        }
        Ok(names)
    }

    /// Starts an export, or restarts it after a change of its credentials.
    async fn start_or_update(&mut self, name: &str, destination: &Destination, selection: &Selection) {
        let result = credentials::read_credentials(&self.objects, destination).await;
        let client = match result {
            Ok(credentials) => {
                if let Some(running) = self.running.get(name).filter(|running| running.credentials == credentials) {
                    running.set_selection(selection);
                    self.setup_errors.remove(name);
                    return;
                }
                let allow_local = self.stores.allow_local_addresses;
                credentials::create_client(destination, credentials.clone(), allow_local)
                    .await
                    .map(|client| (credentials, client))
            }
            Err(error) => Err(error),
        };
        match client {
            Ok((credentials, client)) => {
                self.stop(name).await;
                self.setup_errors.remove(name);
                let (sender, receiver) = watch::channel(Arc::new(selection.clone()));
                let export = Export {
                    name: name.to_owned(),
                    destination: destination_json(destination),
                    client,
                    selection: receiver,
                    options: ExportOptions::default(),
                };
                let running = RunningExport::start(self.stores.cache.exporter(export), sender, credentials);
                self.running.insert(name.to_owned(), running);
            }
            Err(error) => {
                // A running export continues with its current credentials.
                if !self.running.contains_key(name) {
                    self.setup_errors.insert(name.to_owned(), error);
                } else {
                    tracing::warn!(%error, "cannot read the new credentials of a backend store; the previous ones are still used");
                }
            }
        }
    }

    /// Cleans up backends that no registry refers to, once all others have connected, since one of them may be the
    /// same backend.
    async fn clean_up(&mut self, exports: &BTreeMap<String, (Destination, DesiredExport)>) -> Result<(), Error> {
        let is_past_connecting = |name: &String| {
            let progress = self.running.get(name).map(|running| running.exporter.progress());
            let is_unused = self.setup_errors.contains_key(name) || exports[name].1.selection.is_empty();
            progress.map_or(is_unused, |progress| {
                progress.comparisons > 0 || !matches!(progress.state, ExportState::Connecting)
            })
        };
        let all_past_connecting = exports.keys().all(is_past_connecting);
        let recorded_exports = self.stores.cache.export_checkpoints().await?;
        let abandoned = recorded_exports.into_iter().filter(|(_, export)| export.abandoned_at.is_some());
        let abandoned: BTreeMap<String, ExportCheckpoint> = abandoned.collect();
        self.stores.metrics.0.lock().cleanups = abandoned.len();
        for (name, export) in abandoned {
            let is_expired = is_cleanup_expired(export.abandoned_at, Timestamp::now().as_millisecond());
            let destination = serde_json::from_str::<Destination>(&export.destination).ok();
            let Some(destination) = destination.filter(|_| !is_expired) else {
                tracing::warn!(
                    destination = export.destination,
                    "giving up the cleanup of a backend: documents may remain in it"
                );
                self.stop(&name).await;
                self.stores.cache.forget_export(&name).await?;
                continue;
            };
            // A registry that cannot be exported yet may refer to the same backend with other Secrets.
            let is_shared = exports.values().any(|(live, _)| live.shares_address(&destination));
            if all_past_connecting && !is_shared && !self.running.contains_key(&name) {
                self.start_or_update(&name, &destination, &Selection::default()).await;
            }
        }
        Ok(())
    }

    async fn stop(&mut self, name: &str) {
        if let Some(running) = self.running.remove(name) {
            running.stop().await;
        }
    }

    /// Writes the conditions of registries that changed.
    async fn write_conditions(
        &mut self,
        registrations: &Registrations,
        exports: &BTreeMap<String, (Destination, DesiredExport)>,
    ) {
        let now = Time(Timestamp::now());
        let mut progress_by_registry = BTreeMap::new();
        for (name, registry) in &registrations.registries {
            let status = self.export_status(registry, exports);
            if let Some(ExportStatus::Running(progress)) = &status {
                progress_by_registry.insert(name.clone(), ExportProgress::clone(progress));
            }
            let (before, generation) = (&registry.status.conditions, registry.metadata.generation);
            if registry.metadata.deletion_timestamp.is_some() || self.failed_registries.contains(name) {
                continue;
            }
            let Some(next) = conditions(before, status.as_ref(), generation, &now) else { continue };
            let patch = json!({"metadata": {"resourceVersion": registry.metadata.resource_version},
                "status": {"conditions": next}});
            let target = Target::new(&self.registry, "", name).status();
            match self.objects.merge(target, &patch).await {
                Ok(_) => {}
                // The registry has changed. Its conditions are written after it has been read again.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(%error, registry = name, "cannot write the conditions of a ResourceRegistry");
                    self.failed_registries.insert(name.clone());
                }
            }
        }
        self.stores.metrics.0.lock().progress = progress_by_registry;
    }

    /// State of a registry's export. `None` if the registry has no backend store.
    fn export_status(
        &self,
        registry: &ResourceRegistry,
        exports: &BTreeMap<String, (Destination, DesiredExport)>,
    ) -> Option<ExportStatus> {
        let destination = match Destination::from_registry(registry) {
            Ok(destination) => destination?,
            Err(error) => {
                return Some(ExportStatus::Unusable { reason: "InvalidReference", message: error.to_string() });
            }
        };
        let name = backend_name(&destination);
        let (_, export) = exports.get(&name)?;
        match (self.running.get(&name), self.setup_errors.get(&name)) {
            (Some(running), _) => Some(ExportStatus::Running(Box::new(running.exporter.progress()))),
            (None, Some(error)) => Some(ExportStatus::Unusable { reason: error.reason(), message: error.to_string() }),
            (None, None) => {
                let state = if export.selection.is_empty() { ExportState::Cleaned } else { ExportState::Connecting };
                Some(ExportStatus::Running(Box::new(ExportProgress { state, ..ExportProgress::default() })))
            }
        }
    }
}

impl RunningExport {
    fn start(exporter: Exporter, selection: watch::Sender<Arc<Selection>>, credentials: Credentials) -> Self {
        let (exporter, stop) = (Arc::new(exporter), CancellationToken::new());
        let (running, until) = (Arc::clone(&exporter), stop.clone());
        let task = tokio::spawn(async move { running.run(until).await });
        Self { exporter, selection, credentials, task, stop }
    }

    /// Replaces the selection of a running export.
    fn set_selection(&self, selection: &Selection) {
        self.selection.send_if_modified(|current| {
            let is_changed = **current != *selection;
            if is_changed {
                *current = Arc::new(selection.clone());
            }
            is_changed
        });
    }

    async fn stop(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "an export to a backend store panicked");
        }
    }
}

impl Drop for RunningExport {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl BackendStoreMetrics {
    fn clear(&self) {
        *self.0.lock() = MetricValues::default();
    }

    /// All metrics. Registries that share a backend have equal values.
    pub fn series(&self) -> Vec<Series> {
        let values = self.0.lock();
        type Value = fn(&ExportProgress) -> u64;
        let metrics: [(&'static str, &'static str, bool, Value); 6] = [
            (
                "crowsnest_backend_store_connected",
                "Whether the backend of a ResourceRegistry is reachable (1) or not (0).",
                false,
                |p| u64::from(p.is_connected),
            ),
            (
                "crowsnest_backend_store_lag_changes",
                "Number of changes that are not yet written to the backend.",
                false,
                ExportProgress::lag,
            ),
            ("crowsnest_backend_store_written_total", "Documents written.", true, |p| p.written),
            ("crowsnest_backend_store_deleted_total", "Documents deleted.", true, |p| p.deleted),
            (
                "crowsnest_backend_store_refused_total",
                "Number of times that the backend rejected a document.",
                true,
                |p| p.refused,
            ),
            ("crowsnest_backend_store_retried_total", "Number of documents that were sent again.", true, |p| p.retried),
        ];
        let mut series: Vec<Series> = Vec::new();
        for (name, help, is_counter, value) in metrics {
            let of_registry = |(registry, progress): (&String, &ExportProgress)| Series {
                name,
                help,
                is_counter,
                labels: vec![("registry", registry.clone())],
                value: value(progress),
            };
            series.extend(values.progress.iter().map(of_registry));
        }
        if values.cleanups > 0 {
            let help = "Backends that no ResourceRegistry refers to, from which documents must still be deleted.";
            let (name, labels) = ("crowsnest_backend_store_cleanups", Vec::new());
            series.push(Series { name, help, is_counter: false, labels, value: values.cleanups as u64 });
        }
        series
    }
}

/// Returns true if the cleanup of a backend whose export ended at `abandoned_at` (Unix milliseconds) is given up.
fn is_cleanup_expired(abandoned_at: Option<i64>, now: i64) -> bool {
    let since = now.saturating_sub(abandoned_at.unwrap_or(now));
    u64::try_from(since).is_ok_and(|since| Duration::from_millis(since) > CLEANUP_TIMEOUT)
}

/// Name of a backend in the database.
fn backend_name(destination: &Destination) -> String {
    digest_name(&destination_json(destination))
}

fn destination_json(destination: &Destination) -> String {
    // Serializing strings cannot fail.
    serde_json::to_string(destination).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DAY: i64 = 24 * 3600 * 1000;

    #[rstest]
    #[case::in_use(None, false)]
    #[case::just_now(Some(10 * DAY), false)]
    #[case::for_a_day(Some(9 * DAY), false)]
    #[case::for_longer(Some(9 * DAY - 1), true)]
    #[case::by_a_clock_ahead(Some(11 * DAY), false)]
    fn cleanups_are_given_up(#[case] abandoned_at: Option<i64>, #[case] expected: bool) {
        assert_eq!(is_cleanup_expired(abandoned_at, 10 * DAY), expected);
    }
}
