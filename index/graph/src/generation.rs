//! The state of a sink in its graph: who writes, in which generation, and up to which change.

use crate::bolt::{Bolt, Transaction};
use crate::cypher;
use crate::error::SinkError;
use crate::visibility::RuleDigests;
use crate::writer::collection_position_key;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_store::CollectionKey;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;

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
    /// Clusters in which permissions were unknown in this generation: some of their objects were not written.
    pub undecided_clusters: BTreeSet<ClusterName>,
    /// Digests of the rules under which this generation was written; None if the rules changed in the meantime.
    pub rules: Option<RuleDigests>,
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
    undecided: Option<Vec<String>>,
    rules: Option<Vec<String>>,
}

impl SinkRow {
    /// The state of the sink; None before its first generation.
    fn graph_state(self) -> Option<GraphState> {
        let undecided = self.undecided.unwrap_or_default();
        Some(GraphState {
            store: self.store?,
            selection: self.selection?,
            generation: self.generation?,
            seq: self.seq?,
            is_complete: self.complete.unwrap_or(false),
            undecided_clusters: undecided.iter().filter_map(|name| ClusterName::parse(name).ok()).collect(),
            rules: self.rules.and_then(|rules| parse_rule_digests(&rules)),
        })
    }
}

/// Rules as stored in the graph: `CLUSTER DIGEST`.
pub(crate) fn format_rule_digests(rules: &RuleDigests) -> Vec<String> {
    rules.iter().map(|(cluster, digest)| format!("{cluster} {digest}")).collect()
}

/// Parses the result of [`format_rule_digests`]; None if it is invalid.
fn parse_rule_digests(rules: &[String]) -> Option<RuleDigests> {
    let parse = |rule: &String| {
        let (cluster, digest) = rule.split_once(' ')?;
        Some((ClusterName::parse(cluster).ok()?, digest.to_owned()))
    };
    rules.iter().map(parse).collect()
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
        let cluster = ClusterName::parse(&self.cluster).ok()?;
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
        self.check_only_sink(&sinks)?;
        transaction.run(PREPARE, cypher::CLAIM_SINK, parameters).await?;
        let rows: Vec<CollectionRow> =
            transaction.query(PREPARE, cypher::READ_COLLECTION_POSITIONS, Vec::new()).await?;
        // Read again: another process may have written before the claim.
        let sinks: Vec<SinkRow> = transaction.query(PREPARE, cypher::READ_SINKS, Vec::new()).await?;
        self.check_only_sink(&sinks)?;
        transaction.commit().await?;
        self.confirm().await?;
        let state = sinks.into_iter().find(|sink| sink.name == self.name).and_then(SinkRow::graph_state);
        let generations = rows.iter().filter_map(|row| row.generation);
        let last_generation = generations.chain(state.as_ref().map(|state| state.generation)).max().unwrap_or(0);
        let collections = rows.iter().filter_map(|row| Some((row.collection_key()?, row.generation))).collect();
        Ok(ClaimedGraph { state, last_generation, collections })
    }

    /// Fails if another sink writes to the graph.
    fn check_only_sink(&self, sinks: &[SinkRow]) -> Result<(), SinkError> {
        match sinks.iter().find(|sink| sink.name != self.name) {
            Some(other) => Err(SinkError::DuplicateSink(other.name.clone())),
            None => Ok(()),
        }
    }

    /// Checks the claim after its commit, because two sinks that make their claims at the same time do not see each other.
    /// The sink with the first name keeps its claim and writes once the others have given up theirs.
    async fn confirm(&self) -> Result<(), SinkError> {
        match self.begin().await {
            Ok(transaction) => transaction.commit().await,
            Err(SinkError::DuplicateSink(other)) if self.name < other.as_str() => Err(SinkError::DuplicateSink(other)),
            Err(error @ SinkError::DuplicateSink(_)) => {
                let mut transaction = self.bolt.begin().await?;
                let parameters = vec![("name", json!(self.name)), ("writer", json!(self.token))];
                transaction.run(PREPARE, cypher::RELEASE_SINK, parameters).await?;
                transaction.commit().await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
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

    /// Begins a transaction and locks the sink for it. Fails if another process has become the writer, or if another sink
    /// writes to the graph.
    pub async fn begin(&self) -> Result<Transaction, SinkError> {
        let mut transaction = self.bolt.begin().await?;
        let parameters = vec![("name", json!(self.name)), ("writer", json!(self.token))];
        let rows: Vec<LockRow> = transaction.query(PREPARE, cypher::LOCK_SINK, parameters).await?;
        let row = rows.into_iter().next().ok_or(SinkError::Fenced)?;
        match row.other {
            Some(other) => Err(SinkError::DuplicateSink(other)),
            None if row.is_writer == Some(true) => Ok(transaction),
            None => Err(SinkError::Fenced),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LockRow {
    is_writer: Option<bool>,
    other: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn sink_row() -> SinkRow {
        SinkRow {
            name: "team/graph".to_owned(),
            store: Some("store".to_owned()),
            selection: Some("selection".to_owned()),
            generation: Some(2),
            seq: Some(7),
            complete: Some(true),
            undecided: None,
            rules: None,
        }
    }

    #[test]
    fn the_state_of_a_sink_has_its_undecided_clusters_and_rules() {
        let m1 = ClusterName::parse("m1").unwrap();
        let rules = RuleDigests::from([(m1.clone(), "0f".to_owned()), (ClusterName::control_plane(), "1a".to_owned())]);
        let undecided = vec![ClusterName::control_plane().to_string(), "m1".to_owned()];
        let row = SinkRow { undecided: Some(undecided), rules: Some(format_rule_digests(&rules)), ..sink_row() };
        let state = row.graph_state().unwrap();
        assert_eq!(state.undecided_clusters, BTreeSet::from([m1, ClusterName::control_plane()]));
        assert_eq!(state.rules, Some(rules));
    }

    #[rstest]
    #[case::none(None)]
    #[case::no_digest(Some(vec!["m1".to_owned()]))]
    #[case::invalid_cluster(Some(vec!["M_1 0f".to_owned()]))]
    fn unknown_rules_are_none(#[case] rules: Option<Vec<String>>) {
        assert_eq!(SinkRow { rules, ..sink_row() }.graph_state().unwrap().rules, None);
    }

    #[test]
    fn a_sink_without_a_generation_has_no_state() {
        assert!(SinkRow { generation: None, ..sink_row() }.graph_state().is_none());
    }
}
