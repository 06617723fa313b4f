//! State of exports in the store: the position of each backend, and the epochs. If the store is lost, the backends are
//! compared again.

use super::error::ExportError;
use super::version::Epochs;
use crowsnest_store::Error;
use crowsnest_store::Store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

const PREFIX: &str = "export/";
const CHECKPOINT_PREFIX: &str = "export/engine/";
const EPOCHS: &str = "export/epochs";

/// Saved state of an export, for restarts and later leaders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportCheckpoint {
    /// Address of the backend in the configuration, by which it can be reached after the selection was removed.
    pub destination: String,
    /// `cluster_uuid` of the backend that was written to.
    #[serde(rename = "engine")]
    pub backend: String,
    /// Digest of the selection to which the position applies.
    pub(super) selection: String,
    /// Epoch of the writes.
    pub(super) epoch: u64,
    /// Seq up to which the backend has all changes.
    pub(super) position: u64,
    /// UUIDs of the indices by name.
    pub(super) indices: BTreeMap<String, String>,
    /// Time since which no objects are selected for the backend, Unix milliseconds.
    #[serde(default)]
    pub abandoned_at: Option<i64>,
}

/// Reads and writes the checkpoints of exports.
#[derive(Clone)]
pub(super) struct CheckpointStore {
    pub store: Arc<dyn Store>,
    /// Held while an epoch is allocated.
    pub epoch_lock: Arc<tokio::sync::Mutex<()>>,
    pub now_ms: fn() -> i64,
}

impl CheckpointStore {
    /// All checkpoints, by the name of the backend.
    pub async fn all(&self) -> Result<BTreeMap<String, ExportCheckpoint>, Error> {
        let facts = self.store.facts(CHECKPOINT_PREFIX).await?;
        let read = |(name, text): (String, String)| {
            // A checkpoint of a newer version is ignored, so the backend is compared again.
            let checkpoint = serde_json::from_str(&text).ok()?;
            Some((name.strip_prefix(CHECKPOINT_PREFIX)?.to_owned(), checkpoint))
        };
        Ok(facts.into_iter().filter_map(read).collect())
    }

    pub async fn get(&self, name: &str) -> Result<Option<ExportCheckpoint>, Error> {
        Ok(self.all().await?.remove(name))
    }

    pub async fn save(&self, name: &str, checkpoint: &ExportCheckpoint) -> Result<(), ExportError> {
        let text = serde_json::to_string(checkpoint).map_err(ExportError::State)?;
        Ok(self.store.put_fact(&format!("{CHECKPOINT_PREFIX}{name}"), Some(&text)).await?)
    }

    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        self.store.put_fact(&format!("{CHECKPOINT_PREFIX}{name}"), None).await
    }

    /// Allocates an epoch that is greater than all earlier ones, and than `outdated_epoch`, the greatest one found in
    /// a backend.
    pub async fn next_epoch(&self, outdated_epoch: u64) -> Result<Epochs, ExportError> {
        let _guard = self.epoch_lock.lock().await;
        let before = self.epochs().await?;
        let next = Epochs::next(before, (self.now_ms)(), outdated_epoch);
        let text = serde_json::to_string(&next).map_err(ExportError::State)?;
        self.store.put_fact(EPOCHS, Some(&text)).await?;
        Ok(next)
    }

    async fn epochs(&self) -> Result<Option<Epochs>, Error> {
        let facts = self.store.facts(PREFIX).await?;
        let text = facts.into_iter().find(|(name, _)| name == EPOCHS).map(|(_, text)| text);
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }
}
