//! Texts of statements. Pure.
//!
//! Written for Neo4j 5, with nothing that needs a plugin. A label or a type of edges cannot be a parameter: it comes from
//! [`Label`], which has letters and digits only, or from [`EdgeType`].

use crate::model::{LOST_PROPERTIES, Label};
use crowsnest_query::path::EdgeType;

/// Constraints and indexes. Each is a transaction of its own; existing ones are kept.
pub const SCHEMA: &[&str] = &[
    "CREATE CONSTRAINT crowsnest_resource_key IF NOT EXISTS FOR (n:Resource) REQUIRE n.key IS UNIQUE",
    "CREATE CONSTRAINT crowsnest_sync_key IF NOT EXISTS FOR (n:CrowsnestSync) REQUIRE n.key IS UNIQUE",
    "CREATE CONSTRAINT crowsnest_sink_name IF NOT EXISTS FOR (n:CrowsnestSink) REQUIRE n.name IS UNIQUE",
    "CREATE INDEX crowsnest_resource_kind IF NOT EXISTS FOR (n:Resource) ON (n.cluster, n.kind)",
    "CREATE INDEX crowsnest_resource_name IF NOT EXISTS FOR (n:Resource) ON (n.name)",
    "CREATE INDEX crowsnest_resource_uid IF NOT EXISTS FOR (n:Resource) ON (n.uid)",
];

/// All sinks that write to the database.
pub const SINKS: &str = "MATCH (s:CrowsnestSink) RETURN s.name AS name, s.store AS store, s.selection AS selection, \
    s.generation AS generation, s.seq AS seq, s.complete AS complete";

/// Positions of all collections.
pub const SYNCS: &str = "MATCH (s:CrowsnestSync) RETURN s.cluster AS cluster, s.apiGroup AS apiGroup, s.version AS version, \
    s.resource AS resource, s.kind AS kind, s.generation AS generation";

/// Makes this process the writer.
pub const CLAIM: &str = "MERGE (s:CrowsnestSink {name: $name}) SET s.writer = $writer";

/// Begins each transaction: finds nothing if another process has become the writer, and locks others out until the end. The
/// writer is read after the lock is held.
pub const HOLD: &str = "MATCH (s:CrowsnestSink {name: $name}) SET s.locked = true WITH s WHERE s.writer = $writer \
    RETURN count(s) AS held";

/// Starts a generation.
pub const BEGIN_GENERATION: &str = "MATCH (s:CrowsnestSink {name: $name}) SET s.generation = $generation, \
    s.store = $store, s.selection = $selection, s.complete = false, s.seq = 0";

/// Moves the position of the sink.
pub const ADVANCE: &str =
    "MATCH (s:CrowsnestSink {name: $name}) SET s.seq = $seq, s.complete = $complete, s.writtenAt = timestamp()";

/// Moves the positions of collections.
pub const SYNC_COLLECTIONS: &str = "UNWIND $rows AS row MERGE (s:CrowsnestSync {key: row.key}) \
    SET s.cluster = row.cluster, s.apiGroup = row.apiGroup, s.version = row.version, s.resource = row.resource, \
    s.kind = coalesce(row.kind, s.kind), s.seq = row.seq";

/// Records that a collection has nodes of this generation only.
pub const SWEPT: &str = "UNWIND $rows AS row MERGE (s:CrowsnestSync {key: row.key}) \
    SET s.cluster = row.cluster, s.apiGroup = row.apiGroup, s.version = row.version, s.resource = row.resource, \
    s.kind = coalesce(row.kind, s.kind), s.generation = $generation";

/// Deletes the position of a collection.
pub const FORGET_COLLECTION: &str = "MATCH (s:CrowsnestSync {key: $key}) DELETE s";

/// Nodes of a collection that were not written in this generation.
pub const STALE: &str = "MATCH (n:Resource {cluster: $cluster, kind: $kind}) \
    WHERE n.apiGroup = $group AND n.exists = true AND n.generation < $generation \
    RETURN n.key AS key, n.seq AS seq ORDER BY key LIMIT $limit";

/// Deletes the edges that nodes state; returns missing nodes at their other ends, which may have lost the last edge.
pub const UNLINK: &str = "UNWIND $keys AS key MATCH (n:Resource {key: key})-[e]-(o:Resource) WHERE e.by = key \
    DELETE e WITH DISTINCT o WHERE o.exists = false RETURN o.key AS key";

/// Deletes the edges of selectors to Pods.
pub const UNSELECT: &str = "UNWIND $keys AS key MATCH (:Resource)-[e:SELECTS]->(:Resource {key: key}) DELETE e";

/// Deletes edges that mean an earlier object of the same name.
pub const DROP_EARLIER: &str =
    "UNWIND $rows AS row MATCH (n:Resource {key: row.key})-[e]-() WHERE e.uid = row.uid AND e.by <> row.key DELETE e";

/// Adds edges from selecting objects to Pods, where both exist.
pub const SELECT: &str = "UNWIND $rows AS row MATCH (a:Resource {key: row.from}) WHERE a.exists = true \
    MATCH (b:Resource {key: row.to}) WHERE b.exists = true \
    MERGE (a)-[e:SELECTS {by: row.from}]->(b) SET e.via = row.via";

/// Deletes missing nodes that nothing refers to.
pub const DELETE_ORPHANS: &str = "UNWIND $keys AS key MATCH (o:Resource {key: key}) \
    WHERE o.exists = false AND NOT EXISTS { (o)--() } DELETE o";

/// Of nodes to be removed, those that exist and are not newer.
pub const REMOVABLE: &str = "UNWIND $rows AS row MATCH (n:Resource {key: row.key}) WHERE n.exists = true \
    AND (n.generation < $generation OR (n.generation = $generation AND n.seq <= row.seq)) RETURN row.key AS key";

/// Writes nodes, unless they are newer; returns those written, whether their edges differ and whether they are new, and their
/// earlier uid if it was another one. A new node states no edges yet and is not selected: it was absent, or missing.
pub fn put_nodes(label: Option<&Label>) -> String {
    format!(
        "UNWIND $rows AS row MERGE (n:Resource {{key: row.key}}) \
         WITH n, row, n.uid AS uid, n.links AS links \
         WHERE coalesce(n.generation, -1) < $generation OR (n.generation = $generation AND coalesce(n.seq, -1) < row.seq) \
         SET n += row.properties, n.exists = true, n.generation = $generation, n.seq = row.seq, n.links = row.links{} \
         RETURN row.key AS key, links IS NULL AS isNew, coalesce(links, '') <> row.links AS relink, \
         CASE WHEN uid <> row.properties.uid THEN uid ELSE null END AS earlier",
        label.map(|label| format!(", n:{}", quoted(label))).unwrap_or_default(),
    )
}

/// Makes nodes missing: they keep their key, names and uid.
pub fn lose_nodes(label: Option<&Label>) -> String {
    let lost: Vec<String> = LOST_PROPERTIES.iter().map(|property| format!("n.{property} = null")).collect();
    format!(
        "UNWIND $rows AS row MATCH (n:Resource {{key: row.key}}) \
         SET n.exists = false, n.generation = $generation, n.seq = row.seq, {}{}",
        lost.join(", "),
        label.map(|label| format!(" REMOVE n:{}", quoted(label))).unwrap_or_default(),
    )
}

/// Adds edges of a type, and missing nodes at their other ends.
pub fn put_edges(edge: EdgeType, forward: bool) -> String {
    let (from, to) = if forward { ("a", "b") } else { ("b", "a") };
    format!(
        "UNWIND $rows AS row MATCH (a:Resource {{key: row.own}}) MERGE (b:Resource {{key: row.other}}) \
         ON CREATE SET b += row.properties, b.exists = false \
         MERGE ({from})-[e:{} {{by: row.own}}]->({to}) SET e.via = row.via, e.uid = row.uid",
        edge.name(),
    )
}

fn quoted(label: &Label) -> String {
    format!("`{}`", label.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_only_text_from_outside() {
        let label = Label::from_kind("Pod").unwrap();
        assert!(put_nodes(Some(&label)).contains(", n:`Pod` RETURN"));
        assert!(lose_nodes(Some(&label)).ends_with(" REMOVE n:`Pod`"));
        assert!(!put_nodes(None).contains('`') && !lose_nodes(None).contains('`'));
    }

    #[test]
    fn edges_have_the_direction_of_their_type() {
        assert!(put_edges(EdgeType::Uses, true).contains("MERGE (a)-[e:USES {by: row.own}]->(b)"));
        assert!(put_edges(EdgeType::Owns, false).contains("MERGE (b)-[e:OWNS {by: row.own}]->(a)"));
    }
}
