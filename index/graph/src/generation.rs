//! The state of a sink in its graph: who writes, in which generation, and up to which change.

use crate::bolt::{Bolt, Transaction};
use crate::cypher;
use crate::error::SinkError;
use crate::writer::collection_position_key;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_store::CollectionKey;
use serde::Deserialize;
use serde_json::json;

/// Context of errors.
const PREPARE: &str = "cannot prepare the graph database";

/// The right to write to a graph.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'c> {
    pub bolt: &'c Bolt,
    /// Name of the sink.
    pub name: &'c str,
    /// Random name of this process's session.
    pub token: &'c str,
}

/// State of a sink as stored in the graph.
#[derive(Debug, Clone)]
pub(crate) struct GraphState {
    /// Name of the store ([`crate::SinkSource::store_name`]).
    pub store: String,
    /// Digest of [`crate::SinkConfig::selection`].
    pub selection: String,
    pub generation: u64,
    pub seq: u64,
    /// All objects were written in this generation.
    pub is_complete: bool,
}

/// A graph of which this process is the writer.
pub(crate) struct ClaimedGraph {
    /// None for a new graph.
    pub state: Option<GraphState>,
    /// Newest generation of the graph.
    pub last_generation: u64,
    /// Collections with nodes, and the last generation in which they were swept.
    pub collections: Vec<(CollectionKey, Option<u64>)>,
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
struct CollectionRow {
    cluster: String,
    api_group: String,
    version: String,
    resource: String,
    kind: Option<String>,
    generation: Option<u64>,
}

impl CollectionRow {
    fn collection_key(&self) -> Option<CollectionKey> {
        let cluster = match self.cluster.as_str() {
            name if name == ClusterName::control_plane().as_str() => ClusterName::control_plane(),
            name => ClusterName::parse(name).ok()?,
        };
        Some(CollectionKey::new(cluster, Gvr::new(&self.api_group, &self.version, &self.resource)))
    }
}

impl Claim<'_> {
    /// Creates constraints and indexes, and makes this process the writer. Fails if another sink writes to the graph.
    pub async fn acquire(&self) -> Result<ClaimedGraph, SinkError> {
        for text in cypher::SCHEMA {
            let mut transaction = self.bolt.begin().await?;
            transaction.run(PREPARE, text, Vec::new()).await?;
            transaction.commit().await?;
        }
        let mut transaction = self.bolt.begin().await?;
        let parameters = vec![("name", json!(self.name)), ("writer", json!(self.token))];
        let sinks: Vec<SinkRow> = transaction.query(PREPARE, cypher::READ_SINKS, Vec::new()).await?;
        if let Some(other) = sinks.iter().find(|sink| sink.name != self.name) {
            return Err(SinkError::DuplicateSink(other.name.clone()));
        }
        transaction.run(PREPARE, cypher::CLAIM_SINK, parameters).await?;
        let rows: Vec<CollectionRow> =
            transaction.query(PREPARE, cypher::READ_COLLECTION_POSITIONS, Vec::new()).await?;
        // Read again: another process may have written before the claim.
        let sinks: Vec<SinkRow> = transaction.query(PREPARE, cypher::READ_SINKS, Vec::new()).await?;
        transaction.commit().await?;
        let state = sinks.into_iter().find(|sink| sink.name == self.name).and_then(|sink| {
            let (store, selection) = (sink.store?, sink.selection?);
            let (generation, seq) = (sink.generation?, sink.seq?);
            Some(GraphState { store, selection, generation, seq, is_complete: sink.complete.unwrap_or(false) })
        });
        let generations = rows.iter().filter_map(|row| row.generation);
        let last_generation = generations.chain(state.as_ref().map(|state| state.generation)).max().unwrap_or(0);
        let collections = rows.iter().filter_map(|row| Some((row.collection_key()?, row.generation))).collect();
        Ok(ClaimedGraph { state, last_generation, collections })
    }

    /// Starts a generation. Nodes of earlier generations count as older than all changes of this one.
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

    /// Reads the kind of a collection's objects from the graph.
    pub async fn read_kind(&self, key: &CollectionKey) -> Result<Option<String>, SinkError> {
        let mut transaction = self.begin().await?;
        let rows: Vec<CollectionRow> =
            transaction.query(PREPARE, cypher::READ_COLLECTION_POSITIONS, Vec::new()).await?;
        transaction.commit().await?;
        Ok(rows.into_iter().find(|row| row.collection_key().as_ref() == Some(key)).and_then(|row| row.kind))
    }

    /// Deletes the position of a collection.
    pub async fn delete_position(&self, key: &CollectionKey) -> Result<(), SinkError> {
        let mut transaction = self.begin().await?;
        transaction
            .run(PREPARE, cypher::DELETE_COLLECTION_POSITION, vec![("key", json!(collection_position_key(key)))])
            .await?;
        transaction.commit().await
    }

    /// Begins a transaction and locks the sink for it. Fails if another process has become the writer.
    pub async fn begin(&self) -> Result<Transaction, SinkError> {
        let mut transaction = self.bolt.begin().await?;
        let parameters = vec![("name", json!(self.name)), ("writer", json!(self.token))];
        let rows: Vec<LockRow> = transaction.query(PREPARE, cypher::LOCK_SINK, parameters).await?;
        if rows.iter().any(|row| row.locked > 0) { Ok(transaction) } else { Err(SinkError::Fenced) }
    }
}

#[derive(Deserialize)]
struct LockRow {
    locked: i64,
}
