//! Backend stores of ResourceRegistries: runs an export for each search engine that registries refer to, reports its
//! state in their conditions, and removes the documents from engines that no registry refers to.
//!
//! Only the active process exports. Exports are recorded in the cache's database, so registries need no finalizer:
//! after a registry is deleted its engine is cleaned up from these records, for up to [`CLEAN_WITHIN`].

mod conditions;
mod credentials;
mod desired;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::search::ResourceRegistry;
use crowsnest_component_base::metrics::Series;
use crowsnest_index::Index;
use crowsnest_index::export::{
    Export, ExportCheckpoint, ExportOptions, ExportProgress, ExportState, Exporter, Selection,
};
use crowsnest_search::opensearch::client::Credentials;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::conditions::{ExportStatus, conditions};
use self::credentials::Unusable;
use self::desired::{Desired, desired};
use crate::Error;
use crate::runtime::dynamic_client::{Objects, Resource, Target};
use crate::search::resource_registry::Registrations;
use crowsnest_admission::backend_store::Destination;

/// Interval between updates of progress and conditions.
const TICK: Duration = Duration::from_secs(2);
/// Interval between reads of the Secrets.
const SECRETS_EVERY: Duration = Duration::from_secs(30);
/// Time after which the cleanup of an engine is given up.
const CLEAN_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Inputs of the exports.
pub struct BackendStores {
    pub index: Index,
    pub registrations: watch::Receiver<Option<Arc<Registrations>>>,
    /// Allows engines with addresses of this host.
    pub local_addresses: bool,
    pub counters: Counters,
}

/// Metrics of all exports. Cheap to clone.
#[derive(Clone, Default)]
pub struct Counters(Arc<Mutex<Shown>>);

#[derive(Default)]
struct Shown {
    /// By registry.
    progress: BTreeMap<String, ExportProgress>,
    /// Number of engines to clean up.
    cleanups: usize,
}

/// A running export.
struct Running {
    exporter: Arc<Exporter>,
    selection: watch::Sender<Arc<Selection>>,
    credentials: Credentials,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

/// Exports of the active process.
struct Acting<'b> {
    stores: &'b BackendStores,
    objects: Objects,
    registry: Resource,
    /// By name of the engine.
    running: BTreeMap<String, Running>,
    /// Engines without a client, by name.
    unusable: BTreeMap<String, Unusable>,
    /// Registries whose conditions could not be written. They are written again when Secrets are read again.
    unwritten: BTreeSet<String>,
    secrets_at: Instant,
}

impl BackendStores {
    /// Runs exports while this process is active (`acts`), until `stop`.
    pub async fn run(self, acts: impl Stream<Item = bool> + Send, stop: CancellationToken) {
        let mut acts = std::pin::pin!(acts);
        let mut is_acting = false;
        loop {
            let mut acting = is_acting.then(|| Acting::new(&self));
            // The next change of whether this process is active, or the end.
            let next = async {
                loop {
                    match acts.next().await {
                        Some(next) if next == is_acting => {}
                        other => return other,
                    }
                }
            };
            let next = tokio::select! {
                () = stop.cancelled() => None,
                next = next => next,
                () = async {
                    match &mut acting {
                        Some(acting) => acting.work().await,
                        None => std::future::pending().await,
                    }
                } => None,
            };
            if let Some(acting) = acting {
                acting.end().await;
            }
            self.counters.clear();
            match next {
                Some(next) => is_acting = next,
                None => return,
            }
        }
    }
}

impl<'b> Acting<'b> {
    fn new(stores: &'b BackendStores) -> Self {
        Self {
            stores,
            objects: Objects::new(stores.index.fleet().control_plane()),
            registry: Resource::of::<ResourceRegistry>(),
            running: BTreeMap::new(),
            unusable: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            secrets_at: Instant::now(),
        }
    }

    /// Runs until the registries are no longer read.
    async fn work(&mut self) {
        let mut registrations = self.stores.registrations.clone();
        loop {
            let known = registrations.borrow_and_update().clone();
            if let Some(known) = known {
                let exports: BTreeMap<String, (Destination, Desired)> = desired(&known)
                    .into_iter()
                    .map(|(destination, export)| (name_of(&destination), (destination, export)))
                    .collect();
                if let Err(error) = self.arrange(&exports).await {
                    tracing::warn!(%error, "cannot update the exports of ResourceRegistries");
                }
                self.report(&known, &exports).await;
            }
            tokio::select! {
                changed = registrations.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// Starts, updates and stops exports.
    async fn arrange(&mut self, exports: &BTreeMap<String, (Destination, Desired)>) -> Result<(), Error> {
        for (_, ended) in self.running.extract_if(.., |_, running| running.task.is_finished()) {
            ended.end().await;
        }
        let known_exports = self.settle(exports).await?;
        let read_again = self.secrets_at <= Instant::now();
        if read_again {
            self.secrets_at = Instant::now() + SECRETS_EVERY;
            self.unwritten.clear();
        }
        self.unusable.retain(|name, _| exports.contains_key(name));
        for (name, (destination, export)) in exports {
            match self.running.get(name) {
                // There is nothing to export and nothing to clean up.
                None if export.selection.is_empty() && !known_exports.contains(name) => {}
                Some(running) if !read_again => running.select(&export.selection),
                None if !read_again && self.unusable.contains_key(name) => {}
                _ => self.ensure(name, destination, &export.selection).await,
            }
        }
        if read_again { self.clean(exports).await } else { Ok(()) }
    }

    /// Stops exports to engines that no registry refers to, and records since when. Resumes those that a registry
    /// refers to again. Returns the names of all recorded engines.
    async fn settle(&mut self, exports: &BTreeMap<String, (Destination, Desired)>) -> Result<BTreeSet<String>, Error> {
        let now = Timestamp::now().as_millisecond();
        let known_exports = self.stores.index.export_checkpoints().await?;
        let names = known_exports.keys().cloned().collect();
        for (name, known) in known_exports {
            let (is_wanted, is_abandoned) = (exports.contains_key(&name), known.abandoned_at.is_some());
            if is_wanted != is_abandoned {
                continue;
            }
            // The cleanup of an engine must stop before its export starts, and vice versa.
            self.stop(&name).await;
            let since = (!is_wanted).then_some(now);
            if let Err(error) = self.stores.index.abandon_export(&name, since).await {
                tracing::warn!(error = error.chain(), "cannot record that the export to an engine has ended");
            }
        }
        let unnamed = |name: &&String| !exports.contains_key(*name);
        let unnamed: Vec<String> = self.running.keys().filter(unnamed).cloned().collect();
        for name in unnamed {
            // Cleanups are recorded as abandoned exports.
            if !self.running.get(&name).is_some_and(|running| running.selection.borrow().is_empty()) {
                self.stop(&name).await;
            }
        }
        Ok(names)
    }

    /// Starts an export, or restarts it after a change of its credentials.
    async fn ensure(&mut self, name: &str, destination: &Destination, selection: &Selection) {
        let read = credentials::read(&self.objects, destination).await;
        let usable = match read {
            Ok(credentials) => {
                if let Some(running) = self.running.get(name).filter(|running| running.credentials == credentials) {
                    running.select(selection);
                    self.unusable.remove(name);
                    return;
                }
                let local = self.stores.local_addresses;
                credentials::client(destination, credentials.clone(), local).await.map(|client| (credentials, client))
            }
            Err(error) => Err(error),
        };
        match usable {
            Ok((credentials, client)) => {
                self.stop(name).await;
                self.unusable.remove(name);
                let (sender, receiver) = watch::channel(Arc::new(selection.clone()));
                let export = Export {
                    name: name.to_owned(),
                    destination: text_of(destination),
                    client,
                    selection: receiver,
                    options: ExportOptions::default(),
                };
                let running = Running::start(self.stores.index.exporter(export), sender, credentials);
                self.running.insert(name.to_owned(), running);
            }
            Err(error) => {
                // A running export continues with its current credentials.
                if !self.running.contains_key(name) {
                    self.unusable.insert(name.to_owned(), error);
                } else {
                    tracing::warn!(%error, "cannot read the new credentials of a backend store; the previous ones are still used");
                }
            }
        }
    }

    /// Cleans up engines that no registry refers to, once all others have connected, since one of them may be the
    /// same engine.
    async fn clean(&mut self, exports: &BTreeMap<String, (Destination, Desired)>) -> Result<(), Error> {
        let has_settled = |name: &String| {
            let progress = self.running.get(name).map(|running| running.exporter.progress());
            let is_unused = self.unusable.contains_key(name) || exports[name].1.selection.is_empty();
            progress.map_or(is_unused, |progress| {
                progress.comparisons > 0 || !matches!(progress.state, ExportState::Connecting)
            })
        };
        let all_settled = exports.keys().all(has_settled);
        let known_exports = self.stores.index.export_checkpoints().await?;
        let abandoned = known_exports.into_iter().filter(|(_, known)| known.abandoned_at.is_some());
        let abandoned: BTreeMap<String, ExportCheckpoint> = abandoned.collect();
        self.stores.counters.0.lock().cleanups = abandoned.len();
        for (name, known) in abandoned {
            let is_late = is_given_up(known.abandoned_at, Timestamp::now().as_millisecond());
            let destination = serde_json::from_str::<Destination>(&known.destination).ok();
            let Some(destination) = destination.filter(|_| !is_late) else {
                tracing::warn!(
                    destination = known.destination,
                    "giving up the cleanup of a search engine: documents may remain in it"
                );
                self.stop(&name).await;
                self.stores.index.forget_export(&name).await?;
                continue;
            };
            // A registry that cannot be exported yet may refer to the same engine with other Secrets.
            let is_named = exports.values().any(|(live, _)| live.shares_address(&destination));
            if all_settled && !is_named && !self.running.contains_key(&name) {
                self.ensure(&name, &destination, &Selection::default()).await;
            }
        }
        Ok(())
    }

    async fn stop(&mut self, name: &str) {
        if let Some(running) = self.running.remove(name) {
            running.end().await;
        }
    }

    async fn end(self) {
        for running in self.running.into_values() {
            running.end().await;
        }
    }

    /// Writes the conditions of registries that changed.
    async fn report(&mut self, known: &Registrations, exports: &BTreeMap<String, (Destination, Desired)>) {
        let now = Time(Timestamp::now());
        let mut shown = BTreeMap::new();
        for (name, registry) in &known.registries {
            let standing = self.standing(registry, exports);
            if let Some(ExportStatus::Exporting(progress)) = &standing {
                shown.insert(name.clone(), ExportProgress::clone(progress));
            }
            let (before, generation) = (&registry.status.conditions, registry.metadata.generation);
            if registry.metadata.deletion_timestamp.is_some() || self.unwritten.contains(name) {
                continue;
            }
            let Some(next) = conditions(before, standing.as_ref(), generation, &now) else { continue };
            let patch = json!({"metadata": {"resourceVersion": registry.metadata.resource_version},
                "status": {"conditions": next}});
            let target = Target::new(&self.registry, "", name).status();
            match self.objects.merge(target, &patch).await {
                Ok(_) => {}
                // The registry has changed. Its conditions are written after it has been read again.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(%error, registry = name, "cannot write the conditions of a ResourceRegistry");
                    self.unwritten.insert(name.clone());
                }
            }
        }
        self.stores.counters.0.lock().progress = shown;
    }

    fn standing(
        &self,
        registry: &ResourceRegistry,
        exports: &BTreeMap<String, (Destination, Desired)>,
    ) -> Option<ExportStatus> {
        let destination = match Destination::of(registry) {
            Ok(destination) => destination?,
            Err(error) => {
                return Some(ExportStatus::Unusable { reason: "InvalidReference", message: error.to_string() });
            }
        };
        let name = name_of(&destination);
        let (_, export) = exports.get(&name)?;
        match (self.running.get(&name), self.unusable.get(&name)) {
            (Some(running), _) => Some(ExportStatus::Exporting(Box::new(running.exporter.progress()))),
            (None, Some(error)) => Some(ExportStatus::Unusable { reason: error.reason(), message: error.to_string() }),
            (None, None) => {
                let state = if export.selection.is_empty() { ExportState::Cleaned } else { ExportState::Connecting };
                Some(ExportStatus::Exporting(Box::new(ExportProgress { state, ..ExportProgress::default() })))
            }
        }
    }
}

impl Running {
    fn start(exporter: Exporter, selection: watch::Sender<Arc<Selection>>, credentials: Credentials) -> Self {
        let (exporter, stop) = (Arc::new(exporter), CancellationToken::new());
        let (running, until) = (Arc::clone(&exporter), stop.clone());
        let task = tokio::spawn(async move { running.run(until).await });
        Self { exporter, selection, credentials, task, stop }
    }

    fn select(&self, selection: &Selection) {
        self.selection.send_if_modified(|known| {
            let is_other = **known != *selection;
            if is_other {
                *known = Arc::new(selection.clone());
            }
            is_other
        });
    }

    async fn end(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "an export to a backend store panicked");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Counters {
    fn clear(&self) {
        *self.0.lock() = Shown::default();
    }

    /// All metrics. Registries that share an engine have equal values.
    pub fn series(&self) -> Vec<Series> {
        let shown = self.0.lock();
        type Value = fn(&ExportProgress) -> u64;
        let metrics: [(&'static str, &'static str, bool, Value); 6] = [
            (
                "crowsnest_backend_store_connected",
                "Whether the engine of a ResourceRegistry is reachable (1) or not (0).",
                false,
                |p| u64::from(p.connected),
            ),
            (
                "crowsnest_backend_store_lag_changes",
                "Number of changes that are not yet written to the engine.",
                false,
                ExportProgress::lag,
            ),
            ("crowsnest_backend_store_written_total", "Documents written.", true, |p| p.written),
            ("crowsnest_backend_store_deleted_total", "Documents deleted.", true, |p| p.deleted),
            (
                "crowsnest_backend_store_refused_total",
                "Number of times that the engine rejected a document.",
                true,
                |p| p.refused,
            ),
            ("crowsnest_backend_store_retried_total", "Number of documents that were sent again.", true, |p| p.retried),
        ];
        let mut all: Vec<Series> = Vec::new();
        for (name, help, counts, value) in metrics {
            let of_registry = |(registry, progress): (&String, &ExportProgress)| Series {
                name,
                help,
                counts,
                labels: vec![("registry", registry.clone())],
                value: value(progress),
            };
            all.extend(shown.progress.iter().map(of_registry));
        }
        if shown.cleanups > 0 {
            let help = "Engines that no ResourceRegistry refers to, from which documents must still be deleted.";
            let (name, labels) = ("crowsnest_backend_store_cleanups", Vec::new());
            all.push(Series { name, help, counts: false, labels, value: shown.cleanups as u64 });
        }
        all
    }
}

/// Returns true if the cleanup of an engine whose export ended at `abandoned_at` (Unix milliseconds) is given up.
fn is_given_up(abandoned_at: Option<i64>, now: i64) -> bool {
    let since = now.saturating_sub(abandoned_at.unwrap_or(now));
    u64::try_from(since).is_ok_and(|since| Duration::from_millis(since) > CLEAN_WITHIN)
}

/// Name of an engine in the database.
fn name_of(destination: &Destination) -> String {
    let digest = Sha256::digest(text_of(destination).as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn text_of(destination: &Destination) -> String {
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
        assert_eq!(is_given_up(abandoned_at, 10 * DAY), expected);
    }
}
