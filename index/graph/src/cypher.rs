//! Texts of the Cypher statements. Has no side effects.
//!
//! Written for Neo4j 5 and Memgraph, with nothing that needs a plugin. Statements that differ are in [`crate::dialect`]. A
//! label or an edge type cannot be a parameter: it is from [`Label`], which has letters and digits only, or from
//! [`EdgeType`].

use crate::model::{CLEARED_PROPERTIES, Label};
use crowsnest_query::path::EdgeType;

/// First statement of a claim: locks the graph until the end of the transaction, so that claims and all other transactions
/// of sinks run one after another. The value changes each time, because Memgraph can be configured to ignore the write of an
/// equal value; it rejects the later one of two concurrent writes instead of locking.
pub const LOCK_GRAPH: &str =
    "MERGE (l:CrowsnestLock {id: 'sinks'}) SET l.transactions = coalesce(l.transactions, 0) + 1";

/// All sinks that write to the database.
pub const READ_SINKS: &str = "MATCH (s:CrowsnestSink) RETURN s.name AS name, s.store AS store, s.selection AS selection, \
    s.generation AS generation, s.seq AS seq, s.complete AS complete, s.undecided AS undecided, s.rules AS rules, \
    s.loadedAt AS loadedAt";

/// Positions of all collections.
pub const READ_COLLECTION_POSITIONS: &str = "MATCH (s:CrowsnestSync) RETURN s.cluster AS cluster, s.apiGroup AS apiGroup, s.version AS version, \
    s.resource AS resource, s.kind AS kind, s.generation AS generation";

/// Makes this process the writer of the sink.
pub const CLAIM_SINK: &str = "MERGE (s:CrowsnestSink {name: $name}) SET s.writer = $writer";

/// Deletes the claims of other sinks under which nothing was written.
pub const DELETE_UNUSED_CLAIMS: &str =
    "MATCH (s:CrowsnestSink) WHERE s.name <> $name AND s.generation IS NULL DELETE s";

/// First statement of each transaction of a writer: locks the graph until the end of the transaction, then reads the
/// sink's writer. `isWriter` is false if another process has become the writer. `other` is the name of another sink
/// that has written to the database. No row: another sink has taken over the claim, or the database was replaced.
pub const LOCK_SINK: &str = "MATCH (l:CrowsnestLock {id: 'sinks'}) SET l.transactions = coalesce(l.transactions, 0) + 1 \
    WITH l MATCH (s:CrowsnestSink {name: $name}) \
    OPTIONAL MATCH (o:CrowsnestSink) WHERE o.name <> $name AND o.generation IS NOT NULL \
    WITH s, min(o.name) AS other RETURN s.writer = $writer AS isWriter, other";

/// Starts a generation; `$now` is the current time in Unix milliseconds.
pub const BEGIN_GENERATION: &str = "MATCH (s:CrowsnestSink {name: $name}) SET s.generation = $generation, \
    s.store = $store, s.selection = $selection, s.complete = false, s.seq = 0, \
    s.undecided = [], s.rules = null, s.loadedAt = $now";

/// Sets the position of the sink, the clusters in which permissions were unknown in this generation, the digests of the
/// RBAC rules under which it was written, and the time in Unix milliseconds.
pub const SET_SINK_POSITION: &str = "MATCH (s:CrowsnestSink {name: $name}) SET s.seq = $seq, s.complete = $complete, \
    s.undecided = $undecided, s.rules = $rules, s.writtenAt = $now";

/// Sets the positions of collections.
pub const SET_COLLECTION_POSITIONS: &str = "UNWIND $rows AS row MERGE (s:CrowsnestSync {key: row.key}) \
    SET s.cluster = row.cluster, s.apiGroup = row.apiGroup, s.version = row.version, s.resource = row.resource, \
    s.kind = coalesce(row.kind, s.kind), s.seq = row.seq";

/// Records that a collection has nodes of this generation only.
pub const MARK_SWEPT: &str = "UNWIND $rows AS row MERGE (s:CrowsnestSync {key: row.key}) \
    SET s.cluster = row.cluster, s.apiGroup = row.apiGroup, s.version = row.version, s.resource = row.resource, \
    s.kind = coalesce(row.kind, s.kind), s.generation = $generation";

/// Deletes the position of a collection.
pub const DELETE_COLLECTION_POSITION: &str = "MATCH (s:CrowsnestSync {key: $key}) DELETE s";

/// Nodes of a collection that were not written in this generation.
pub const READ_STALE_NODES: &str = "MATCH (n:Resource {cluster: $cluster, kind: $kind}) \
    WHERE n.apiGroup = $group AND n.exists = true AND n.generation < $generation \
    RETURN n.key AS key, n.seq AS seq ORDER BY key LIMIT $limit";

/// Deletes the edges that nodes state, except those of selectors; returns missing nodes at their other ends, which may have
/// lost the last edge.
pub const DELETE_STATED_EDGES: &str = "UNWIND $keys AS key MATCH (n:Resource {key: key})-[e]-(o:Resource) WHERE e.by = key \
    AND type(e) <> 'SELECTS' DELETE e WITH DISTINCT o WHERE o.exists = false RETURN o.key AS key";

/// Deletes the edges of selectors to Pods.
pub const DELETE_SELECTS_EDGES: &str =
    "UNWIND $keys AS key MATCH (:Resource)-[e:SELECTS]->(:Resource {key: key}) DELETE e";

/// Marks the edges of selecting objects until [`PUT_SELECTS_EDGES`] adds them again or [`DELETE_STALE_SELECTS_EDGES`] deletes
/// them, in the same transaction.
pub const MARK_SELECTS_EDGES: &str =
    "UNWIND $keys AS key MATCH (:Resource {key: key})-[e:SELECTS]->(:Resource) SET e.stale = true";

/// Deletes the marked edges of selecting objects. Clears the digests of their Pods' edges (`links`), so that the next
/// write of the Pods replaces the edges, see [`PUT_SELECTS_EDGES`].
pub const DELETE_STALE_SELECTS_EDGES: &str = "UNWIND $keys AS key MATCH (:Resource {key: key})-[e:SELECTS]->(p:Resource) WHERE e.stale = true \
    SET p.links = '' DELETE e";

/// Deletes edges of other nodes that refer to an earlier object of the same name by its uid.
pub const DELETE_EDGES_TO_EARLIER_UID: &str =
    "UNWIND $rows AS row MATCH (n:Resource {key: row.key})-[e]-() WHERE e.uid = row.uid AND e.by <> row.key DELETE e";

/// Adds edges from selecting objects to Pods, where both exist. `row.seq` is the change of the Pod whose labels were
/// matched. If the graph has the Pod at another change, the digest of its edges (`links`) is cleared, so that the next
/// write of the Pod replaces its edges even if it changes no label: the labels that it writes may differ from those
/// that were matched.
pub const PUT_SELECTS_EDGES: &str = "UNWIND $rows AS row MATCH (a:Resource {key: row.from}) WHERE a.exists = true \
    MATCH (b:Resource {key: row.to}) WHERE b.exists = true \
    MERGE (a)-[e:SELECTS {by: row.from}]->(b) SET e.via = row.via, e.stale = null \
    WITH b, row WHERE b.seq <> row.seq SET b.links = ''";

/// Reads which of the nodes to be removed exist and are not newer than the removal.
pub const READ_REMOVABLE_NODES: &str = "UNWIND $rows AS row MATCH (n:Resource {key: row.key}) WHERE n.exists = true \
    AND (n.generation < $generation OR (n.generation = $generation AND n.seq <= row.seq)) RETURN row.key AS key";

/// Writes nodes, except those that the graph has in a newer state; the property `links` is the digest of a node's edges
/// ([`crate::model::NodeRow::edges_digest`]). Returns the written ones: whether they are new,
/// whether their edges differ, and their previous uid if it was another one. A new node was absent or missing: it
/// states no edges yet and no selector selects it.
pub fn put_nodes(label: Option<&Label>) -> String {
    format!(
        "UNWIND $rows AS row MERGE (n:Resource {{key: row.key}}) \
         WITH n, row, n.uid AS uid, n.links AS links \
         WHERE coalesce(n.generation, -1) < $generation OR (n.generation = $generation AND coalesce(n.seq, -1) < row.seq) \
         SET n += row.properties, n.exists = true, n.generation = $generation, n.seq = row.seq, n.links = row.links{} \
         RETURN row.key AS key, links IS NULL AS isNew, coalesce(links, '') <> row.links AS hasOtherEdges, \
         CASE WHEN uid <> row.properties.uid THEN uid ELSE null END AS earlierUid",
        label.map(|label| format!(", n:{}", quote(label))).unwrap_or_default(),
    )
}

/// Turns nodes into missing nodes, which keep their key, names and uid.
pub fn mark_nodes_missing(label: Option<&Label>) -> String {
    let cleared: Vec<String> = CLEARED_PROPERTIES.iter().map(|property| format!("n.{property} = null")).collect();
    format!(
        "UNWIND $rows AS row MATCH (n:Resource {{key: row.key}}) \
         SET n.exists = false, n.generation = $generation, n.seq = row.seq, {}{}",
        cleared.join(", "),
        label.map(|label| format!(" REMOVE n:{}", quote(label))).unwrap_or_default(),
    )
}

/// Adds edges of a type, and missing nodes at their other ends. Forward edges begin at the node that states them
/// (`row.own`).
pub fn put_edges(edge_type: EdgeType, is_forward: bool) -> String {
    let (from, to) = if is_forward { ("a", "b") } else { ("b", "a") };
    format!(
        "UNWIND $rows AS row MATCH (a:Resource {{key: row.own}}) MERGE (b:Resource {{key: row.other}}) \
         ON CREATE SET b += row.properties, b.exists = false \
         MERGE ({from})-[e:{} {{by: row.own}}]->({to}) SET e.via = row.via, e.uid = row.uid",
        edge_type.name(),
    )
}

fn quote(label: &Label) -> String {
    format!("`{}`", label.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_contain_no_text_from_outside_except_labels() {
        let label = Label::from_kind("Pod").unwrap();
        assert!(put_nodes(Some(&label)).contains(", n:`Pod` RETURN"));
        assert!(mark_nodes_missing(Some(&label)).ends_with(" REMOVE n:`Pod`"));
        assert!(!put_nodes(None).contains('`') && !mark_nodes_missing(None).contains('`'));
    }

    /// Memgraph does not have these.
    #[test]
    fn statements_contain_nothing_that_only_neo4j_has() {
        let label = Label::from_kind("Pod").unwrap();
        let texts = [
            LOCK_GRAPH.to_owned(),
            READ_SINKS.to_owned(),
            READ_COLLECTION_POSITIONS.to_owned(),
            CLAIM_SINK.to_owned(),
            DELETE_UNUSED_CLAIMS.to_owned(),
            LOCK_SINK.to_owned(),
            BEGIN_GENERATION.to_owned(),
            SET_SINK_POSITION.to_owned(),
            SET_COLLECTION_POSITIONS.to_owned(),
            MARK_SWEPT.to_owned(),
            DELETE_COLLECTION_POSITION.to_owned(),
            READ_STALE_NODES.to_owned(),
            DELETE_STATED_EDGES.to_owned(),
            DELETE_SELECTS_EDGES.to_owned(),
            MARK_SELECTS_EDGES.to_owned(),
            DELETE_STALE_SELECTS_EDGES.to_owned(),
            DELETE_EDGES_TO_EARLIER_UID.to_owned(),
            PUT_SELECTS_EDGES.to_owned(),
            READ_REMOVABLE_NODES.to_owned(),
            put_nodes(Some(&label)),
            mark_nodes_missing(Some(&label)),
            put_edges(EdgeType::Uses, true),
        ];
        for text in texts {
            for part in ["IF NOT EXISTS", "EXISTS {", "CALL", "COUNT {", "SHOW", "timestamp()", "elementId("] {
                assert!(!text.contains(part), "{part} in {text}");
            }
        }
    }

    #[test]
    fn edges_have_the_direction_of_their_type() {
        assert!(put_edges(EdgeType::Uses, true).contains("MERGE (a)-[e:USES {by: row.own}]->(b)"));
        assert!(put_edges(EdgeType::Owns, false).contains("MERGE (b)-[e:OWNS {by: row.own}]->(a)"));
    }
}
