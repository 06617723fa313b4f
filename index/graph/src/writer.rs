//! Writes batches to the graph, each in one transaction.

use crate::batch::{Batch, select_row};
use crate::bolt::{Parameters, Transaction};
use crate::cypher;
use crate::error::SinkError;
use crate::generation::Claim;
use crate::model::{Label, NodeRow, ServedKinds, key_in, pods};
use crowsnest_index::export::ChangeSource;
use crowsnest_store::{CollectionKey, Scan};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const WRITE: &str = "cannot write to the graph database";
/// Records of Pods read at once.
const PODS_PER_READ: usize = 1_000;

/// Position of the sink after a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub seq: u64,
    /// All objects have been written in this generation.
    pub complete: bool,
}

/// Counts of a transaction.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Written {
    pub nodes: u64,
    pub linked: u64,
    pub removed: u64,
}

/// The right to write to a graph.
pub(crate) struct Writer<'w> {
    pub claim: Claim<'w>,
    pub source: &'w ChangeSource,
    pub kinds: &'w ServedKinds,
    pub generation: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PutRow {
    key: String,
    is_new: bool,
    relink: bool,
    earlier: Option<String>,
}

#[derive(Deserialize)]
struct KeyRow {
    key: String,
}

/// Nodes whose edges are written.
#[derive(Debug, Default)]
struct Relinked {
    keys: BTreeSet<String>,
    /// Those of them that may have earlier edges: all but new nodes.
    linked_before: BTreeSet<String>,
}

impl Writer<'_> {
    /// Writes a batch and moves the position with it.
    pub async fn write(&self, batch: &Batch, position: Position) -> Result<Written, SinkError> {
        let mut transaction = self.claim.begin().await?;
        let mut orphans = BTreeSet::new();
        let removed = self.remove(&mut transaction, &batch.removed(), &mut orphans).await?;
        let relinked = self.put_nodes(&mut transaction, batch).await?;
        self.unlink(&mut transaction, &relinked.linked_before, &mut orphans).await?;
        self.link(&mut transaction, batch, &relinked.keys).await?;
        self.finish(&mut transaction, &orphans).await?;
        let rows = batch.collections.iter().map(|(key, seq)| sync_row(key, self.kinds, Some(*seq)));
        self.run_rows(&mut transaction, cypher::SYNC_COLLECTIONS, rows.collect()).await?;
        self.advance(&mut transaction, position).await?;
        transaction.commit().await?;
        Ok(Written { nodes: batch.puts.len() as u64, linked: relinked.keys.len() as u64, removed })
    }

    pub async fn advance(&self, transaction: &mut Transaction, position: Position) -> Result<(), SinkError> {
        let Position { seq, complete } = position;
        let parameters = vec![("name", json!(self.claim.name)), ("seq", json!(seq)), ("complete", json!(complete))];
        transaction.run(WRITE, cypher::ADVANCE, parameters).await
    }

    /// Removes up to `limit` nodes of an earlier generation. Returns their number.
    pub async fn sweep(&self, key: &CollectionKey, kind: &str, limit: usize) -> Result<u64, SinkError> {
        let mut transaction = self.claim.begin().await?;
        let parameters = vec![
            ("cluster", json!(key.cluster.as_str())),
            ("kind", json!(kind)),
            ("group", json!(key.resource.group)),
            ("generation", json!(self.generation)),
            ("limit", json!(limit)),
        ];
        let stale: Vec<Value> = transaction.rows(WRITE, cypher::STALE, parameters).await?;
        if stale.is_empty() {
            let rows = vec![sync_row(key, self.kinds, None)];
            self.run_rows(&mut transaction, cypher::SWEPT, rows).await?;
            transaction.commit().await?;
            return Ok(0);
        }
        let label = Label::from_kind(kind);
        let mut orphans = BTreeSet::new();
        let removed = self.remove(&mut transaction, &BTreeMap::from([(label.as_ref(), stale)]), &mut orphans).await?;
        self.finish(&mut transaction, &orphans).await?;
        transaction.commit().await?;
        Ok(removed)
    }

    /// Runs a statement for rows, if there are any.
    async fn run_rows(&self, transaction: &mut Transaction, text: &str, rows: Vec<Value>) -> Result<(), SinkError> {
        if rows.is_empty() {
            return Ok(());
        }
        transaction.run(WRITE, text, self.rows(rows)).await
    }

    fn rows(&self, rows: Vec<Value>) -> Parameters {
        vec![("rows", Value::Array(rows)), ("generation", json!(self.generation))]
    }

    /// Writes nodes. Returns those whose edges differ.
    async fn put_nodes(&self, transaction: &mut Transaction, batch: &Batch) -> Result<Relinked, SinkError> {
        let mut relinked = Relinked::default();
        let mut earlier = Vec::new();
        for (label, rows) in batch.nodes() {
            let text = cypher::put_nodes(label);
            for row in transaction.rows::<PutRow>(WRITE, &text, self.rows(rows)).await? {
                if let Some(uid) = row.earlier {
                    earlier.push(json!({"key": row.key, "uid": uid}));
                }
                if !row.relink {
                    continue;
                }
                if !row.is_new {
                    relinked.linked_before.insert(row.key.clone());
                }
                relinked.keys.insert(row.key);
            }
        }
        self.run_rows(transaction, cypher::DROP_EARLIER, earlier).await?;
        Ok(relinked)
    }

    /// Deletes the edges that nodes state, and those of selectors to them.
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
        let lonely = transaction.rows::<KeyRow>(WRITE, cypher::UNLINK, parameters()).await?;
        orphans.extend(lonely.into_iter().map(|row| row.key));
        transaction.run(WRITE, cypher::UNSELECT, parameters()).await
    }

    /// Adds the edges of nodes.
    async fn link(
        &self,
        transaction: &mut Transaction,
        batch: &Batch,
        keys: &BTreeSet<String>,
    ) -> Result<(), SinkError> {
        for ((edge, forward), rows) in batch.edges(keys) {
            self.run_rows(transaction, &cypher::put_edges(edge, forward), rows).await?;
        }
        let mut selects = batch.selected(keys);
        for row in batch.puts.iter().filter(|row| keys.contains(&row.key)) {
            selects.extend(self.selected_pods(row).await?);
        }
        self.run_rows(transaction, cypher::SELECT, selects).await
    }

    /// Rows of the edges from a selecting object to the Pods of its namespace in the cache.
    async fn selected_pods(&self, row: &NodeRow) -> Result<Vec<Value>, SinkError> {
        let Some((selector, via)) = &row.selects else { return Ok(Vec::new()) };
        let namespace = row.properties["namespace"].as_str().unwrap_or_default();
        let collection = CollectionKey::new(row.collection.cluster.clone(), pods());
        let mut scan = Scan {
            collection,
            namespaces: Some(BTreeSet::from([namespace.to_owned()])),
            after: None,
            labels: Some(selector.clone()),
        };
        let mut rows = Vec::new();
        loop {
            let keep = |record: &crowsnest_store::Record| Ok(selector.matches(&record.labels));
            let (records, next) = self.source.store.records(&scan, &keep, PODS_PER_READ).await?;
            let pod = |record: crowsnest_store::Record| {
                let key = key_in(&record.key.collection, &record.kind, &record.key.namespace, &record.key.name);
                select_row(&row.key, &key, via)
            };
            rows.extend(records.into_iter().map(pod));
            match next {
                None => return Ok(rows),
                next => scan.after = next,
            }
        }
    }

    /// Removes objects. Returns their number.
    async fn remove(
        &self,
        transaction: &mut Transaction,
        removed: &BTreeMap<Option<&Label>, Vec<Value>>,
        orphans: &mut BTreeSet<String>,
    ) -> Result<u64, SinkError> {
        let mut count = 0;
        for (label, rows) in removed {
            let found = transaction.rows::<KeyRow>(WRITE, cypher::REMOVABLE, self.rows(rows.clone())).await?;
            let keys: BTreeSet<String> = found.into_iter().map(|row| row.key).collect();
            if keys.is_empty() {
                continue;
            }
            self.unlink(transaction, &keys, orphans).await?;
            let is_found = |row: &&Value| row["key"].as_str().is_some_and(|key| keys.contains(key));
            let lost = rows.iter().filter(is_found).cloned().collect();
            self.run_rows(transaction, &cypher::lose_nodes(*label), lost).await?;
            count += keys.len() as u64;
            orphans.extend(keys);
        }
        Ok(count)
    }

    /// Deletes missing nodes that have lost their last edge.
    async fn finish(&self, transaction: &mut Transaction, orphans: &BTreeSet<String>) -> Result<(), SinkError> {
        if orphans.is_empty() {
            return Ok(());
        }
        transaction.run(WRITE, cypher::DELETE_ORPHANS, vec![("keys", json!(orphans))]).await
    }
}

/// Key of the position of a collection.
pub(crate) fn sync_key(key: &CollectionKey) -> String {
    [key.cluster.as_str(), &key.resource.group, &key.resource.resource].join("/")
}

fn sync_row(key: &CollectionKey, kinds: &ServedKinds, seq: Option<u64>) -> Value {
    json!({"key": sync_key(key), "cluster": key.cluster.as_str(), "apiGroup": key.resource.group,
        "version": key.resource.version, "resource": key.resource.resource, "kind": kinds.kind(key), "seq": seq})
}
