//! The state of a sink in its graph: who writes, in which generation, and up to which change.

use crate::bolt::{Bolt, Parameters, Transaction};
use crate::cypher;
use crate::dialect::Dialect;
use crate::error::SinkError;
use crate::visibility::RuleDigests;
use crate::writer::collection_position_key;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_store::CollectionKey;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Error context of statements that claim the graph or prepare it for writes.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GraphState {
    /// Name of the store ([`crate::SinkSource::store_name`]).
    pub store: String,
    /// Digest of [`crate::SinkConfig::selection`].
    pub selection: String,
    pub generation: u64,
    /// Seq up to which all changes are in the graph. While the load is not complete: seq up to which it has written objects.
    pub seq: u64,
    /// All objects were written in this generation.
    pub is_complete: bool,
    /// Clusters in which permissions were unknown in this generation: some of their objects were not written.
    pub undecided_clusters: BTreeSet<ClusterName>,
    /// Digests of the RBAC rules under which this generation was written; None if the rules changed in the meantime.
    pub rule_digests: Option<RuleDigests>,
    /// Time at which the load of this generation began, in Unix milliseconds; None if it is unknown.
    pub loaded_at_ms: Option<i64>,
}

impl GraphState {
    /// Time since the load began, at most `limit`. 0 if it is unknown or in the future, because a clock was set.
    pub fn load_age(&self, now_ms: i64, limit: Duration) -> Duration {
        let age = self.loaded_at_ms.map_or(0, |loaded_at| now_ms.saturating_sub(loaded_at));
        Duration::from_millis(u64::try_from(age).unwrap_or_default()).min(limit)
    }
}

/// A graph of which this process is the writer.
pub(crate) struct ClaimedGraph {
    /// None for a new graph.
    pub state: Option<GraphState>,
    /// Newest generation of the graph.
    pub last_generation: u64,
    /// Collections with nodes, and the last generation in which they were swept.
    pub collections: Vec<(CollectionKey, Option<u64>)>,
    pub dialect: Dialect,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SinkRow {
    name: String,
    store: Option<String>,
    selection: Option<String>,
    generation: Option<u64>,
    seq: Option<u64>,
    complete: Option<bool>,
    undecided: Option<Vec<String>>,
    rules: Option<Vec<String>>,
    loaded_at: Option<i64>,
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
            rule_digests: self.rules.and_then(|rules| parse_rule_digests(&rules)),
            loaded_at_ms: self.loaded_at,
        })
    }
}

/// Name of the other sink to which the graph belongs: one that has begun a generation. A claim alone does not count, because
/// its process may have ended before it wrote anything.
fn find_other_owner<'s>(name: &str, sinks: &'s [SinkRow]) -> Option<&'s str> {
    let has_written = |sink: &&SinkRow| sink.name != name && sink.generation.is_some();
    sinks.iter().filter(has_written).map(|sink| sink.name.as_str()).min()
}

/// Digests of RBAC rules as stored in the graph: `CLUSTER DIGEST`.
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
    /// Creates constraints and indexes, and makes this process the writer. Fails if another sink has written to the graph.
    /// The first sink that begins a generation keeps the graph: claims of other sinks that have written nothing end, so that
    /// they cannot block the graph if their process has ended.
    pub async fn acquire(&self) -> Result<ClaimedGraph, SinkError> {
        let dialect = self.create_schema().await?;
        let mut transaction = self.bolt.begin().await?;
        transaction.run(PREPARE, cypher::LOCK_GRAPH, Vec::new()).await?;
        transaction.run(PREPARE, cypher::CLAIM_SINK, self.parameters()).await?;
        let sinks: Vec<SinkRow> = transaction.query(PREPARE, cypher::READ_SINKS, Vec::new()).await?;
        if let Some(owner) = find_other_owner(self.name, &sinks) {
            // The transaction is rolled back, with the claim.
            return Err(SinkError::DuplicateSink(owner.to_owned()));
        }
        transaction.run(PREPARE, cypher::DELETE_UNUSED_CLAIMS, vec![("name", json!(self.name))]).await?;
        let rows: Vec<CollectionRow> =
            transaction.query(PREPARE, cypher::READ_COLLECTION_POSITIONS, Vec::new()).await?;
        transaction.commit().await?;
        let state = sinks.into_iter().find(|sink| sink.name == self.name).and_then(SinkRow::graph_state);
        let generations = rows.iter().filter_map(|row| row.generation);
        let last_generation = generations.chain(state.as_ref().map(|state| state.generation)).max().unwrap_or(0);
        let collections = rows.iter().filter_map(|row| Some((row.collection_key()?, row.generation))).collect();
        Ok(ClaimedGraph { state, last_generation, collections, dialect })
    }

    /// Creates constraints and indexes, and returns the dialect of the database. Memgraph rejects the statements for Neo4j
    /// with a code that names it.
    async fn create_schema(&self) -> Result<Dialect, SinkError> {
        let dialect = match self.create_schema_of(Dialect::Neo4j).await {
            Ok(()) => return Ok(Dialect::Neo4j),
            Err(error) => match error.dialect() {
                Some(dialect @ Dialect::Memgraph) => dialect,
                Some(Dialect::Neo4j) | None => return Err(error),
            },
        };
        self.create_schema_of(dialect).await?;
        Ok(dialect)
    }

    async fn create_schema_of(&self, dialect: Dialect) -> Result<(), SinkError> {
        for text in dialect.statements().schema {
            self.bolt.run_auto_commit(PREPARE, text).await?;
        }
        Ok(())
    }

    fn parameters(&self) -> Parameters {
        vec![("name", json!(self.name)), ("writer", json!(self.token))]
    }

    /// Starts a generation; `now_ms` is the current time in Unix milliseconds. Nodes of earlier generations count as
    /// older than all changes of this one.
    pub async fn begin_generation(
        &self,
        generation: u64,
        store: &str,
        selection: &str,
        now_ms: i64,
    ) -> Result<(), SinkError> {
        let mut transaction = self.begin().await?;
        let parameters = vec![
            ("name", json!(self.name)),
            ("generation", json!(generation)),
            ("store", json!(store)),
            ("selection", json!(selection)),
            ("now", json!(now_ms)),
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

    /// Begins a transaction and locks the graph for it. Fails if another process or sink has become the writer, or if
    /// another sink has written to the graph.
    pub async fn begin(&self) -> Result<Transaction, SinkError> {
        let mut transaction = self.bolt.begin().await?;
        let rows: Vec<LockRow> = transaction.query(PREPARE, cypher::LOCK_SINK, self.parameters()).await?;
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
            loaded_at: Some(60_000),
        }
    }

    fn claim(name: &str) -> SinkRow {
        let unset = SinkRow { store: None, selection: None, seq: None, complete: None, loaded_at: None, ..sink_row() };
        SinkRow { name: name.to_owned(), generation: None, ..unset }
    }

    fn owner(name: &str) -> SinkRow {
        SinkRow { name: name.to_owned(), ..sink_row() }
    }

    #[rstest]
    #[case::no_sink(vec![], None)]
    #[case::claimed(vec![claim("own")], None)]
    #[case::written(vec![owner("own")], None)]
    #[case::claim_of_an_ended_process(vec![claim("other"), claim("own")], None)]
    #[case::claim_after_the_first_generation(vec![owner("own"), claim("other")], None)]
    #[case::of_another_sink(vec![owner("other"), claim("own")], Some("other"))]
    #[case::of_two_sinks(vec![owner("own"), owner("zebra"), owner("other")], Some("other"))]
    fn a_graph_belongs_to_the_sink_that_has_begun_a_generation(
        #[case] sinks: Vec<SinkRow>,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(find_other_owner("own", &sinks), expected);
    }

    /// Each of two sinks reads the graph before it claims it.
    #[rstest]
    #[case::both_claimed(claim("a"), claim("b"), [true, true])]
    #[case::first_has_begun(owner("a"), claim("b"), [true, false])]
    #[case::second_has_begun(claim("a"), owner("b"), [false, true])]
    fn a_sink_that_has_begun_a_generation_excludes_others(
        #[case] a: SinkRow,
        #[case] b: SinkRow,
        #[case] expected: [bool; 2],
    ) {
        let sinks = [a, b];
        assert_eq!(["a", "b"].map(|name| find_other_owner(name, &sinks).is_none()), expected);
    }

    #[rstest]
    #[case::one_minute(Some(60_000), 120_000, 60)]
    #[case::longer_than_the_interval(Some(0), 7_200_000, 3_600)]
    #[case::clock_set_back(Some(120_000), 60_000, 0)]
    #[case::unknown(None, 120_000, 0)]
    fn the_age_of_a_load_survives_its_process(
        #[case] loaded_at: Option<i64>,
        #[case] now_ms: i64,
        #[case] expected_secs: u64,
    ) {
        let state = SinkRow { loaded_at, ..sink_row() }.graph_state().unwrap();
        assert_eq!(state.load_age(now_ms, Duration::from_secs(3_600)), Duration::from_secs(expected_secs));
    }

    #[test]
    fn the_state_of_a_sink_has_its_undecided_clusters_and_rules() {
        let m1 = ClusterName::parse("m1").unwrap();
        let rules = RuleDigests::from([(m1.clone(), "0f".to_owned()), (ClusterName::control_plane(), "1a".to_owned())]);
        let undecided = vec![ClusterName::control_plane().to_string(), "m1".to_owned()];
        let row = SinkRow { undecided: Some(undecided), rules: Some(format_rule_digests(&rules)), ..sink_row() };
        let state = row.graph_state().unwrap();
        assert_eq!(state.undecided_clusters, BTreeSet::from([m1, ClusterName::control_plane()]));
        assert_eq!(state.rule_digests, Some(rules));
    }

    #[rstest]
    #[case::none(None)]
    #[case::no_digest(Some(vec!["m1".to_owned()]))]
    #[case::invalid_cluster(Some(vec!["M_1 0f".to_owned()]))]
    fn unknown_rules_are_none(#[case] rules: Option<Vec<String>>) {
        assert_eq!(SinkRow { rules, ..sink_row() }.graph_state().unwrap().rule_digests, None);
    }

    #[test]
    fn a_sink_without_a_generation_has_no_state() {
        assert!(SinkRow { generation: None, ..sink_row() }.graph_state().is_none());
    }
}
