//! Statements that differ between the databases. Has no side effects.
//!
//! The statements for Memgraph follow its documentation: a uniqueness constraint creates no index, names of constraints and indexes
//! are not stored, a `CREATE` of an existing one succeeds, and none of them may be part of an explicit transaction.

/// Variant of Cypher that a database supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Neo4j,
    Memgraph,
}

/// Statements of a dialect.
#[derive(Debug)]
pub struct Statements {
    /// Constraints and indexes; existing ones are kept. Each statement runs in a transaction of its own.
    pub schema: &'static [&'static str],
    /// Deletes missing nodes that nothing refers to.
    pub delete_orphans: &'static str,
}

const NEO4J: Statements = Statements {
    schema: &[
        "CREATE CONSTRAINT crowsnest_resource_key IF NOT EXISTS FOR (n:Resource) REQUIRE n.key IS UNIQUE",
        "CREATE CONSTRAINT crowsnest_sync_key IF NOT EXISTS FOR (n:CrowsnestSync) REQUIRE n.key IS UNIQUE",
        "CREATE CONSTRAINT crowsnest_sink_name IF NOT EXISTS FOR (n:CrowsnestSink) REQUIRE n.name IS UNIQUE",
        "CREATE CONSTRAINT crowsnest_lock_id IF NOT EXISTS FOR (n:CrowsnestLock) REQUIRE n.id IS UNIQUE",
        "CREATE INDEX crowsnest_resource_kind IF NOT EXISTS FOR (n:Resource) ON (n.cluster, n.kind)",
        "CREATE INDEX crowsnest_resource_name IF NOT EXISTS FOR (n:Resource) ON (n.name)",
        "CREATE INDEX crowsnest_resource_uid IF NOT EXISTS FOR (n:Resource) ON (n.uid)",
    ],
    delete_orphans: "UNWIND $keys AS key MATCH (o:Resource {key: key}) \
        WHERE o.exists = false AND NOT EXISTS { (o)--() } DELETE o",
};

/// Labels that are scanned without a property have an index of their own, because a scan would otherwise read all nodes.
const MEMGRAPH: Statements = Statements {
    schema: &[
        "CREATE CONSTRAINT ON (n:Resource) ASSERT n.key IS UNIQUE",
        "CREATE CONSTRAINT ON (n:CrowsnestSync) ASSERT n.key IS UNIQUE",
        "CREATE CONSTRAINT ON (n:CrowsnestSink) ASSERT n.name IS UNIQUE",
        "CREATE CONSTRAINT ON (n:CrowsnestLock) ASSERT n.id IS UNIQUE",
        "CREATE INDEX ON :Resource(key)",
        "CREATE INDEX ON :CrowsnestSync(key)",
        "CREATE INDEX ON :CrowsnestSink(name)",
        "CREATE INDEX ON :CrowsnestLock(id)",
        "CREATE INDEX ON :CrowsnestSync",
        "CREATE INDEX ON :CrowsnestSink",
        "CREATE INDEX ON :Resource(cluster)",
        "CREATE INDEX ON :Resource(kind)",
        "CREATE INDEX ON :Resource(name)",
        "CREATE INDEX ON :Resource(uid)",
    ],
    delete_orphans: "UNWIND $keys AS key MATCH (o:Resource {key: key}) \
        WHERE o.exists = false AND NOT exists((o)--()) DELETE o",
};

impl Dialect {
    pub fn statements(self) -> &'static Statements {
        match self {
            Self::Neo4j => &NEO4J,
            Self::Memgraph => &MEMGRAPH,
        }
    }

    /// Dialect of the database that reports a failure with this code; None if the code does not identify one. The library
    /// does not return the agent string of a server.
    pub fn from_failure_code(code: &str) -> Option<Self> {
        match code.split('.').next() {
            Some("Neo") => Some(Self::Neo4j),
            Some("Memgraph") => Some(Self::Memgraph),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Labels and properties that identify a node.
    const UNIQUE: [(&str, &str); 4] =
        [("Resource", "key"), ("CrowsnestSync", "key"), ("CrowsnestSink", "name"), ("CrowsnestLock", "id")];

    #[rstest]
    #[case("Neo.ClientError.Statement.SyntaxError", Some(Dialect::Neo4j))]
    #[case("Memgraph.ClientError.MemgraphError.MemgraphError", Some(Dialect::Memgraph))]
    #[case("Memgraph.TransientError.MemgraphError.MemgraphError", Some(Dialect::Memgraph))]
    #[case("Memgraphs.ClientError", None)]
    #[case("", None)]
    fn failure_codes_name_the_database(#[case] code: &str, #[case] expected: Option<Dialect>) {
        assert_eq!(Dialect::from_failure_code(code), expected);
    }

    #[test]
    fn neo4j_keeps_existing_constraints_and_indexes() {
        let schema = Dialect::Neo4j.statements().schema;
        for (label, property) in UNIQUE {
            let expected = format!(" IF NOT EXISTS FOR (n:{label}) REQUIRE n.{property} IS UNIQUE");
            assert_eq!(schema.iter().filter(|text| text.ends_with(&expected)).count(), 1, "{expected}");
        }
        assert!(schema.iter().all(|text| text.contains(" IF NOT EXISTS FOR ")));
    }

    #[test]
    fn memgraph_has_an_index_besides_each_constraint() {
        let statements = Dialect::Memgraph.statements();
        for (label, property) in UNIQUE {
            let constraint = format!("CREATE CONSTRAINT ON (n:{label}) ASSERT n.{property} IS UNIQUE");
            let index = format!("CREATE INDEX ON :{label}({property})");
            assert!(statements.schema.contains(&constraint.as_str()), "{constraint}");
            assert!(statements.schema.contains(&index.as_str()), "{index}");
        }
        // Composite indexes and subqueries need a recent version.
        let mut texts = statements.schema.iter().chain([&statements.delete_orphans]);
        assert!(texts.all(|text| !text.contains("IF NOT EXISTS") && !text.contains("EXISTS {")));
        assert!(statements.schema.iter().all(|text| !text.starts_with("CREATE INDEX") || !text.contains(',')));
    }
}
