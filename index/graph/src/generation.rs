//! The state of a sink in its graph: who writes, in which generation, and up to which change.

use crate::bolt::{Bolt, Transaction};
use crate::cypher;
use crate::error::SinkError;
use crate::writer::sync_key;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_store::CollectionKey;
use serde::Deserialize;
use serde_json::json;

const PREPARE: &str = "cannot prepare the graph database";

/// The right to write to a graph.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'c> {
    pub bolt: &'c Bolt,
    /// Name of the sink.
    pub name: &'c str,
    /// Random name of this writer.
    pub token: &'c str,
}

/// State of a sink as the graph has it.
#[derive(Debug, Clone)]
pub(crate) struct GraphState {
    pub store: String,
    pub selection: String,
    pub generation: u64,
    pub seq: u64,
    pub complete: bool,
}

/// A graph of which this process is the writer.
pub(crate) struct Claimed {
    /// None for a new graph.
    pub state: Option<GraphState>,
    /// Newest generation of the graph.
    pub last_generation: u64,
    /// Collections with nodes, and the generation in which they were swept.
    pub syncs: Vec<(CollectionKey, Option<u64>)>,
}

#[derive(Deserialize)]
struct SinkRow {
    name: String,
    store: Option<String>,
    selection: Option<String>,
    generation: Option<u64>,
    seq: Option<u64>,
    complete: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SyncRow {
    cluster: String,
    api_group: String,
    version: String,
    resource: String,
    kind: Option<String>,
    generation: Option<u64>,
}

impl SyncRow {
    fn key(&self) -> Option<CollectionKey> {
        let cluster = match self.cluster.as_str() {
            own if own == ClusterName::control_plane().as_str() => ClusterName::control_plane(),
            name => ClusterName::parse(name).ok()?,
        };
        Some(CollectionKey::new(cluster, Gvr::new(&self.api_group, &self.version, &self.resource)))
    }
}

impl Claim<'_> {
    /// Creates constraints and indexes, and makes this process the writer. Fails if another sink writes to the graph.
    pub async fn take(&self) -> Result<Claimed, SinkError> {
        for text in cypher::SCHEMA {
            let mut transaction = self.bolt.begin().await?;
            transaction.run(PREPARE, text, Vec::new()).await?;
            transaction.commit().await?;
        }
        let mut transaction = self.bolt.begin().await?;
        let parameters = vec![("name", json!(self.name)), ("writer", json!(self.token))];
        let sinks: Vec<SinkRow> = transaction.rows(PREPARE, cypher::SINKS, Vec::new()).await?;
        if let Some(other) = sinks.iter().find(|sink| sink.name != self.name) {
            return Err(SinkError::DuplicateSink(other.name.clone()));
        }
        transaction.run(PREPARE, cypher::CLAIM, parameters).await?;
        let rows: Vec<SyncRow> = transaction.rows(PREPARE, cypher::SYNCS, Vec::new()).await?;
        // Read again: another process may have written until the claim.
        let sinks: Vec<SinkRow> = transaction.rows(PREPARE, cypher::SINKS, Vec::new()).await?;
        transaction.commit().await?;
        let state = sinks.into_iter().find(|sink| sink.name == self.name).and_then(|sink| {
            let (store, selection) = (sink.store?, sink.selection?);
            let (generation, seq) = (sink.generation?, sink.seq?);
            Some(GraphState { store, selection, generation, seq, complete: sink.complete.unwrap_or(false) })
        });
        let generations = rows.iter().filter_map(|row| row.generation);
        let last_generation = generations.chain(state.as_ref().map(|state| state.generation)).max().unwrap_or(0);
        let syncs = rows.iter().filter_map(|row| Some((row.key()?, row.generation))).collect();
        Ok(Claimed { state, last_generation, syncs })
    }

    /// Starts a generation: rows of earlier ones are older than any of it.
    pub async fn begin_generation(&self, generation: u64, store: &str, selection: &str) -> Result<(), SinkError> {
        let mut transaction = self.begin().await?;
        let parameters = vec![
            ("name", json!(self.name)),
            ("generation", json!(generation)),
            ("store", json!(store)),
            ("selection", json!(selection)),
        ];
        transaction.run(PREPARE, cypher::BEGIN_GENERATION, parameters).await?;
        transaction.commit().await
    }

    /// Kind of the objects of a collection, as the graph has it.
    pub async fn kind_of(&self, key: &CollectionKey) -> Result<Option<String>, SinkError> {
        let mut transaction = self.begin().await?;
        let rows: Vec<SyncRow> = transaction.rows(PREPARE, cypher::SYNCS, Vec::new()).await?;
        transaction.commit().await?;
        Ok(rows.into_iter().find(|row| row.key().as_ref() == Some(key)).and_then(|row| row.kind))
    }

    /// Deletes the position of a collection.
    pub async fn forget(&self, key: &CollectionKey) -> Result<(), SinkError> {
        let mut transaction = self.begin().await?;
        transaction.run(PREPARE, cypher::FORGET_COLLECTION, vec![("key", json!(sync_key(key)))]).await?;
        transaction.commit().await
    }

    /// Begins a transaction that no other writer can enter. Fails if another process has taken over.
    pub async fn begin(&self) -> Result<Transaction, SinkError> {
        let mut transaction = self.bolt.begin().await?;
        let parameters = vec![("name", json!(self.name)), ("writer", json!(self.token))];
        let held: Vec<HeldRow> = transaction.rows(PREPARE, cypher::HOLD, parameters).await?;
        if held.iter().any(|row| row.held > 0) { Ok(transaction) } else { Err(SinkError::Fenced) }
    }
}

#[derive(Deserialize)]
struct HeldRow {
    held: i64,
}
