//! Writes batches to the graph, each in one transaction.

use crate::batch::{Batch, selects_row};
use crate::bolt::{Parameters, Transaction};
use crate::cypher;
use crate::dialect::Dialect;
use crate::error::{SinkError, WRITE};
use crate::generation::{Claim, format_rule_digests};
use crate::model::{Label, NodeRow, ServedKinds, collection_node_key, pods_resource};
use crate::visibility::RuleDigests;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::export::ChangeSource;
use crowsnest_store::{CollectionKey, Scan};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Records of Pods read at once.
const PODS_PER_READ: usize = 1_000;
/// Maximum number of rows of a statement. One object can state any number of edges.
const MAX_STATEMENT_ROWS: usize = 1_000;

/// Position of the sink after a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    /// See [`crate::generation::GraphState::seq`].
    pub seq: u64,
    /// True if all objects have been written in this generation.
    pub is_complete: bool,
}

/// Counts of nodes that one transaction changed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct WriteCounts {
    pub written: u64,
    pub relinked: u64,
    pub removed: u64,
}

/// Writes to a graph under a claim, in one generation.
pub(crate) struct Writer<'w> {
    pub claim: Claim<'w>,
    pub source: &'w ChangeSource,
    pub kinds: &'w ServedKinds,
    pub dialect: Dialect,
    pub generation: u64,
    /// Current time in Unix milliseconds.
    pub now_ms: i64,
    /// Clusters in which permissions were unknown in this generation.
    pub undecided_clusters: &'w BTreeSet<ClusterName>,
    /// See [`crate::generation::GraphState::rule_digests`].
    pub rule_digests: Option<&'w RuleDigests>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PutRow {
    key: String,
    is_new: bool,
    has_other_edges: bool,
    earlier_uid: Option<String>,
}

#[derive(Deserialize)]
struct KeyRow {
    key: String,
}

/// Nodes whose edges are written.
#[derive(Debug, Default)]
struct RelinkedNodes {
    keys: BTreeSet<String>,
    /// Subset of `keys` that may already have edges: all except new nodes.
    previously_linked: BTreeSet<String>,
}

impl Writer<'_> {
    /// Writes a batch and the position that it reaches, in one transaction.
    pub async fn write(&self, batch: &Batch, position: Position) -> Result<WriteCounts, SinkError> {
        let mut transaction = self.claim.begin().await?;
        let mut orphans = BTreeSet::new();
        let removed = self.remove(&mut transaction, &batch.removal_rows(), &mut orphans).await?;
        let relinked = self.put_nodes(&mut transaction, batch).await?;
        self.unlink(&mut transaction, &relinked.previously_linked, &mut orphans).await?;
        let selecting = batch.selecting_keys(&relinked.previously_linked);
        self.run_keys(&mut transaction, cypher::MARK_SELECTS_EDGES, &selecting).await?;
        self.link(&mut transaction, batch, &relinked.keys).await?;
        self.run_keys(&mut transaction, cypher::DELETE_STALE_SELECTS_EDGES, &selecting).await?;
        self.delete_orphans(&mut transaction, &orphans).await?;
        let rows = batch.collections.iter().map(|(key, seq)| collection_position_row(key, self.kinds, Some(*seq)));
        self.run_rows(&mut transaction, cypher::SET_COLLECTION_POSITIONS, rows.collect()).await?;
        self.set_position(&mut transaction, position).await?;
        transaction.commit().await?;
        Ok(WriteCounts { written: batch.puts.len() as u64, relinked: relinked.keys.len() as u64, removed })
    }

    /// Sets the position of the sink.
    pub async fn set_position(&self, transaction: &mut Transaction, position: Position) -> Result<(), SinkError> {
        let Position { seq, is_complete } = position;
        let undecided: Vec<&str> = self.undecided_clusters.iter().map(ClusterName::as_str).collect();
        let parameters = vec![
            ("name", json!(self.claim.name)),
            ("seq", json!(seq)),
            ("complete", json!(is_complete)),
            ("undecided", json!(undecided)),
            ("rules", json!(self.rule_digests.map(format_rule_digests))),
            ("now", json!(self.now_ms)),
        ];
        transaction.run(WRITE, cypher::SET_SINK_POSITION, parameters).await
    }

    /// Removes up to `limit` nodes of a collection from earlier generations and returns their number. If there are
    /// none, records the collection as swept and returns 0.
    pub async fn sweep(&self, key: &CollectionKey, kind: &str, limit: usize) -> Result<u64, SinkError> {
        let mut transaction = self.claim.begin().await?;
        let parameters = vec![
            ("cluster", json!(key.cluster.as_str())),
            ("kind", json!(kind)),
            ("group", json!(key.resource.group)),
            ("generation", json!(self.generation)),
            ("limit", json!(limit)),
        ];
        let stale: Vec<Value> = transaction.query(WRITE, cypher::READ_STALE_NODES, parameters).await?;
        if stale.is_empty() {
            let rows = vec![collection_position_row(key, self.kinds, None)];
            self.run_rows(&mut transaction, cypher::MARK_SWEPT, rows).await?;
            transaction.commit().await?;
            return Ok(0);
        }
        let label = Label::from_kind(kind);
        let mut orphans = BTreeSet::new();
        let removed = self.remove(&mut transaction, &BTreeMap::from([(label.as_ref(), stale)]), &mut orphans).await?;
        self.delete_orphans(&mut transaction, &orphans).await?;
        transaction.commit().await?;
        Ok(removed)
    }

    /// Runs a statement for all rows, in chunks of [`MAX_STATEMENT_ROWS`].
    async fn run_rows(&self, transaction: &mut Transaction, text: &str, rows: Vec<Value>) -> Result<(), SinkError> {
        let mut rows = rows.into_iter();
        loop {
            let chunk: Vec<Value> = rows.by_ref().take(MAX_STATEMENT_ROWS).collect();
            if chunk.is_empty() {
                return Ok(());
            }
            transaction.run(WRITE, text, self.parameters_for(chunk)).await?;
        }
    }

    /// Runs a statement for the nodes with these keys, if there are any.
    async fn run_keys(
        &self,
        transaction: &mut Transaction,
        text: &str,
        keys: &BTreeSet<String>,
    ) -> Result<(), SinkError> {
        match keys.is_empty() {
            true => Ok(()),
            false => transaction.run(WRITE, text, vec![("keys", json!(keys))]).await,
        }
    }

    fn parameters_for(&self, rows: Vec<Value>) -> Parameters {
        vec![("rows", Value::Array(rows)), ("generation", json!(self.generation))]
    }

    /// Writes nodes and returns those whose edges differ.
    async fn put_nodes(&self, transaction: &mut Transaction, batch: &Batch) -> Result<RelinkedNodes, SinkError> {
        let mut relinked = RelinkedNodes::default();
        let mut earlier_uids = Vec::new();
        for (label, rows) in batch.node_rows() {
            let text = cypher::put_nodes(label);
            for row in transaction.query::<PutRow>(WRITE, &text, self.parameters_for(rows)).await? {
                if let Some(uid) = row.earlier_uid {
                    earlier_uids.push(json!({"key": row.key, "uid": uid}));
                }
                if !row.has_other_edges {
                    continue;
                }
                if !row.is_new {
                    relinked.previously_linked.insert(row.key.clone());
                }
                relinked.keys.insert(row.key);
            }
        }
        self.run_rows(transaction, cypher::DELETE_EDGES_TO_EARLIER_UID, earlier_uids).await?;
        Ok(relinked)
    }

    /// Deletes the edges that nodes state, except SELECTS edges, and the SELECTS edges to them. Adds missing nodes at their
    /// other ends to `orphans`.
    async fn unlink(
        &self,
        transaction: &mut Transaction,
        keys: &BTreeSet<String>,
        orphans: &mut BTreeSet<String>,
    ) -> Result<(), SinkError> {
        if keys.is_empty() {
            return Ok(());
        }
        let parameters = || vec![("keys", json!(keys))];
        let unreferenced = transaction.query::<KeyRow>(WRITE, cypher::DELETE_STATED_EDGES, parameters()).await?;
        orphans.extend(unreferenced.into_iter().map(|row| row.key));
        transaction.run(WRITE, cypher::DELETE_SELECTS_EDGES, parameters()).await
    }

    /// Adds the edges of nodes.
    async fn link(
        &self,
        transaction: &mut Transaction,
        batch: &Batch,
        keys: &BTreeSet<String>,
    ) -> Result<(), SinkError> {
        for ((edge_type, is_forward), rows) in batch.edge_rows(keys) {
            self.run_rows(transaction, &cypher::put_edges(edge_type, is_forward), rows).await?;
        }
        let mut selects_rows = batch.selects_rows(keys);
        for row in batch.puts.iter().filter(|row| keys.contains(&row.key)) {
            self.link_selected_pods(transaction, row, &mut selects_rows).await?;
        }
        self.run_rows(transaction, cypher::PUT_SELECTS_EDGES, selects_rows).await
    }

    /// Adds the edges from a selecting object to the Pods of its namespace in the cache. Rows are collected in
    /// `selects_rows` until there are enough for a statement.
    async fn link_selected_pods(
        &self,
        transaction: &mut Transaction,
        row: &NodeRow,
        selects_rows: &mut Vec<Value>,
    ) -> Result<(), SinkError> {
        let Some((selector, via)) = &row.selects else { return Ok(()) };
        let namespace = row.properties["namespace"].as_str().unwrap_or_default();
        let collection = CollectionKey::new(row.collection.cluster.clone(), pods_resource());
        let mut scan = Scan {
            collection,
            namespaces: Some(BTreeSet::from([namespace.to_owned()])),
            after: None,
            labels: Some(selector.clone()),
        };
        loop {
            let is_selected = |record: &crowsnest_store::Record| Ok(selector.matches(&record.labels));
            let (records, next) = self.source.store.records(&scan, &is_selected, PODS_PER_READ).await?;
            let row_for_pod = |record: crowsnest_store::Record| {
                let key =
                    collection_node_key(&record.key.collection, &record.kind, &record.key.namespace, &record.key.name);
                selects_row(&row.key, &key, record.seq.0, via)
            };
            selects_rows.extend(records.into_iter().map(row_for_pod));
            if selects_rows.len() >= MAX_STATEMENT_ROWS {
                self.run_rows(transaction, cypher::PUT_SELECTS_EDGES, std::mem::take(selects_rows)).await?;
            }
            match next {
                None => return Ok(()),
                next => scan.after = next,
            }
        }
    }

    /// Removes the nodes of these rows, unless they are newer, and returns their number. Adds them to `orphans`, which
    /// may be deleted if no edge is left.
    async fn remove(
        &self,
        transaction: &mut Transaction,
        rows_by_label: &BTreeMap<Option<&Label>, Vec<Value>>,
        orphans: &mut BTreeSet<String>,
    ) -> Result<u64, SinkError> {
        let mut count = 0;
        for (label, rows) in rows_by_label {
            let removable = transaction
                .query::<KeyRow>(WRITE, cypher::READ_REMOVABLE_NODES, self.parameters_for(rows.clone()))
                .await?;
            let keys: BTreeSet<String> = removable.into_iter().map(|row| row.key).collect();
            if keys.is_empty() {
                continue;
            }
            self.unlink(transaction, &keys, orphans).await?;
            if label.is_some_and(Label::is_selecting) {
                self.run_keys(transaction, cypher::MARK_SELECTS_EDGES, &keys).await?;
                self.run_keys(transaction, cypher::DELETE_STALE_SELECTS_EDGES, &keys).await?;
            }
            let is_removable = |row: &&Value| row["key"].as_str().is_some_and(|key| keys.contains(key));
            let missing = rows.iter().filter(is_removable).cloned().collect();
            self.run_rows(transaction, &cypher::mark_nodes_missing(*label), missing).await?;
            count += keys.len() as u64;
            orphans.extend(keys);
        }
        Ok(count)
    }

    /// Deletes the nodes in `orphans` that are missing and have no edge left.
    async fn delete_orphans(&self, transaction: &mut Transaction, orphans: &BTreeSet<String>) -> Result<(), SinkError> {
        let orphans: Vec<&String> = orphans.iter().collect();
        for keys in orphans.chunks(MAX_STATEMENT_ROWS) {
            transaction.run(WRITE, self.dialect.statements().delete_orphans, vec![("keys", json!(keys))]).await?;
        }
        Ok(())
    }
}

/// Key of the position of a collection.
pub(crate) fn collection_position_key(key: &CollectionKey) -> String {
    [key.cluster.as_str(), &key.resource.group, &key.resource.resource].join("/")
}

fn collection_position_row(key: &CollectionKey, kinds: &ServedKinds, seq: Option<u64>) -> Value {
    json!({"key": collection_position_key(key), "cluster": key.cluster.as_str(), "apiGroup": key.resource.group,
        "version": key.resource.version, "resource": key.resource.resource, "kind": kinds.kind(key), "seq": seq})
}
