//! Saved state of exports in the store: the position in each engine, and the epochs used. If it is lost with the
//! store, each engine is compared again.

use super::error::ExportError;
use super::version::Epochs;
use crowsnest_store::Error;
use crowsnest_store::Store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

const PREFIX: &str = "export/";
const ENGINE: &str = "export/engine/";
const EPOCHS: &str = "export/epochs";

/// Saved state of an export, for restarts and later leaders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportCheckpoint {
    /// The engine's address in the configuration, with which it can be reached after the selection has been
    /// removed.
    pub destination: String,
    /// `cluster_uuid` of the engine that was written to.
    pub engine: String,
    /// Digest of the selection that the position is of.
    pub(super) selection: String,
    /// Epoch of the writes.
    pub(super) epoch: u64,
    /// All changes up to here are in the engine.
    pub(super) position: u64,
    /// Names and uuids of the indices.
    pub(super) indices: BTreeMap<String, String>,
    /// Time since which nothing is selected for the engine, Unix milliseconds.
    #[serde(default)]
    pub abandoned_at: Option<i64>,
}

/// Reads and writes the checkpoints of exports.
#[derive(Clone)]
pub(super) struct Memory {
    pub store: Arc<dyn Store>,
    /// One epoch is taken at a time.
    pub taking: Arc<tokio::sync::Mutex<()>>,
    pub now_ms: fn() -> i64,
}

impl Memory {
    /// All checkpoints, by the name of the engine.
    pub async fn all(&self) -> Result<BTreeMap<String, ExportCheckpoint>, Error> {
        let facts = self.store.facts(ENGINE).await?;
        let read = |(name, text): (String, String)| {
            // State of a later version is ignored: the engine is compared again.
            let checkpoint = serde_json::from_str(&text).ok()?;
            Some((name.strip_prefix(ENGINE)?.to_owned(), checkpoint))
        };
        Ok(facts.into_iter().filter_map(read).collect())
    }

    pub async fn of(&self, name: &str) -> Result<Option<ExportCheckpoint>, Error> {
        Ok(self.all().await?.remove(name))
    }

    pub async fn keep(&self, name: &str, checkpoint: &ExportCheckpoint) -> Result<(), ExportError> {
        let text = serde_json::to_string(checkpoint).map_err(ExportError::State)?;
        Ok(self.store.keep_fact(&format!("{ENGINE}{name}"), Some(&text)).await?)
    }

    pub async fn forget(&self, name: &str) -> Result<(), Error> {
        self.store.keep_fact(&format!("{ENGINE}{name}"), None).await
    }

    /// Takes a new epoch above all used here, and above `seen` in an engine.
    pub async fn next_epoch(&self, seen: u64) -> Result<Epochs, ExportError> {
        let _taking = self.taking.lock().await;
        let before = self.epochs().await?;
        let next = Epochs::next(before, (self.now_ms)(), seen);
        let text = serde_json::to_string(&next).map_err(ExportError::State)?;
        self.store.keep_fact(EPOCHS, Some(&text)).await?;
        Ok(next)
    }

    async fn epochs(&self) -> Result<Option<Epochs>, Error> {
        let facts = self.store.facts(PREFIX).await?;
        let text = facts.into_iter().find(|(name, _)| name == EPOCHS).map(|(_, text)| text);
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }
}
