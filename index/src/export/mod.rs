//! Exports objects to backends in Karmada's own layout, for dashboards made for Karmada (`spec.backendStore` of a
//! ResourceRegistry). Searches do not use these indices.
//!
//! [`document`] creates Karmada's documents and index names, [`selection`] selects the objects for a backend,
//! [`version`] orders writes of several stores and writers, [`compare`] decides what to do with documents found in a backend:
//! all of these are pure. An [`Exporter`] keeps the indices of one backend in sync with the selected objects. Requests
//! are those of [`crowsnest_search::opensearch`]: its client, its bulk requests and its sender.
//!
//! An exporter follows the changes of the store, including deletions, from a position saved in the store. Without a
//! position, or if the selection, the backend or an index has changed, each index is compared with the store by the
//! uid and version of each document, so that only differences are written. Documents
//! of Crowsnest need no extra field: they are recognized by the alias of their index and the epoch in their version.

mod compare;
mod comparison;
pub mod document;
mod error;
mod exporter;
mod indices;
mod progress;
mod scan;
mod selection;
mod source;
mod state;
mod version;

pub use error::{ExportError, ExportFailure, classify_client_error};
pub use exporter::Exporter;
pub use progress::{ExportProgress, ExportState};
pub use selection::Selection;
pub use source::{ChangePage, ObjectChange, Source as ChangeSource};
pub use state::ExportCheckpoint;

use crate::GlobalCache;
use crowsnest_component_base::retry::Backoff;
use crowsnest_search::opensearch::bulk::BulkLimits;
use crowsnest_search::opensearch::client::Client;
use crowsnest_store::{CollectionStates, Error};
use parking_lot::Mutex;
use source::Source;
use state::CheckpointStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Settings of an exporter.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    pub limits: BulkLimits,
    /// Maximum number of bulk requests at the same time.
    pub max_concurrent_requests: usize,
    pub backoff: Backoff,
    /// Interval of checking the backend and its indices.
    pub check_interval: Duration,
    /// Interval of saving the position.
    pub save_interval: Duration,
    /// Number of documents per page of a comparison.
    pub page_size: usize,
    /// Maximum number of uids kept in memory during a comparison.
    pub max_compared_uids: usize,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            limits: BulkLimits { bytes: 5 << 20, items: 500 },
            max_concurrent_requests: 2,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            check_interval: Duration::from_secs(30),
            save_interval: Duration::from_secs(5),
            page_size: 1000,
            max_compared_uids: 250_000,
        }
    }
}

/// Claims of this process's exporters on backends, by `cluster_uuid`. A backend has one exporter, because an exporter
/// deletes the documents that it does not select.
#[derive(Debug, Default)]
pub(crate) struct BackendClaims {
    claimed: Mutex<BTreeMap<String, Claim>>,
    /// See [`CheckpointStore`].
    pub(crate) epoch_lock: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Claim {
    name: String,
    /// True if objects are selected for the backend.
    has_selection: bool,
}

impl BackendClaims {
    /// Claims a backend for an exporter. Returns false if nothing is selected here and another exporter writes to the
    /// backend.
    async fn claim(
        &self,
        checkpoints: &CheckpointStore,
        name: &str,
        backend: &str,
        has_selection: bool,
    ) -> Result<bool, ExportError> {
        let others = checkpoints.all().await?;
        let others = others.into_iter().filter(|(owner, checkpoint)| owner != name && checkpoint.backend == backend);
        let (abandoned, live): (Vec<_>, Vec<_>) = others.partition(|(_, checkpoint)| checkpoint.abandoned_at.is_some());
        if let Some((_, checkpoint)) = live.first() {
            return if has_selection {
                Err(ExportError::DuplicateBackend(checkpoint.destination.clone()))
            } else {
                Ok(false)
            };
        }
        {
            let mut claimed = self.claimed.lock();
            if let Some(conflicting) = claimed.get(backend).filter(|claim| claim.name != name && claim.has_selection) {
                return if has_selection {
                    Err(ExportError::DuplicateBackend(conflicting.name.clone()))
                } else {
                    Ok(false)
                };
            }
            claimed.retain(|_, claim| claim.name != name);
            claimed.insert(backend.to_owned(), Claim { name: name.to_owned(), has_selection });
        }
        if has_selection {
            // The aliases in the backend identify the indices to clean up.
            for (abandoned_name, _) in abandoned {
                checkpoints.delete(&abandoned_name).await?;
            }
        }
        Ok(true)
    }

    fn release(&self, name: &str) {
        self.claimed.lock().retain(|_, claim| claim.name != name);
    }
}

/// Parameters of an export.
#[derive(Debug)]
pub struct Export {
    /// Name of the backend in the saved checkpoints.
    pub name: String,
    /// See [`ExportCheckpoint::destination`].
    pub destination: String,
    pub client: Client,
    pub selection: watch::Receiver<Arc<Selection>>,
    pub options: ExportOptions,
}

impl GlobalCache {
    /// Creates an exporter; the caller runs it.
    pub fn exporter(&self, export: Export) -> Exporter {
        let Export { name, destination, client, selection, options } = export;
        Exporter {
            name,
            destination,
            client,
            source: self.change_source(),
            states: self.collection_states(),
            checkpoints: self.checkpoints(),
            backend_claims: Arc::clone(&self.inner.backend_claims),
            selection,
            options,
            progress: watch::Sender::default(),
            dead_letters: Exporter::new_dead_letters(),
        }
    }

    /// Changes of the store, for followers that write them elsewhere.
    pub fn change_source(&self) -> ChangeSource {
        let shared = &self.inner.shared;
        Source {
            store: Arc::clone(&shared.store),
            tail: Arc::clone(&shared.tail),
            has_secret_values: shared.options.ingest.secret_values,
        }
    }

    /// States of all collections.
    pub fn collection_states(&self) -> Arc<CollectionStates> {
        Arc::clone(&self.inner.shared.states)
    }

    /// Checkpoints of all exports, by the name of the backend.
    pub async fn export_checkpoints(&self) -> Result<BTreeMap<String, ExportCheckpoint>, Error> {
        self.checkpoints().all().await
    }

    /// Saves the time (Unix milliseconds) since which nothing is selected for a backend, or None if something is
    /// selected again.
    pub async fn abandon_export(&self, name: &str, since_ms: Option<i64>) -> Result<(), ExportError> {
        let checkpoints = self.checkpoints();
        let Some(checkpoint) = checkpoints.get(name).await? else { return Ok(()) };
        checkpoints.save(name, &ExportCheckpoint { abandoned_at: since_ms, ..checkpoint }).await
    }

    /// Deletes the saved state of an export, so that its backend is no longer cleaned up.
    pub async fn forget_export(&self, name: &str) -> Result<(), Error> {
        self.checkpoints().delete(name).await
    }

    fn checkpoints(&self) -> CheckpointStore {
        let shared = &self.inner.shared;
        CheckpointStore {
            store: Arc::clone(&shared.store),
            epoch_lock: Arc::clone(&self.inner.backend_claims.epoch_lock),
            now_ms: shared.now_ms,
        }
    }
}

#[cfg(test)]
mod tests;
