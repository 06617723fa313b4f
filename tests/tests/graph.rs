//! `crowsnest up` with a GraphSink: the page docs/GRAPH.md on a real Neo4j.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_graph::{Bolt, BoltTarget};
use crowsnest_tests::{Fleet, fenced_blocks, find_kubectl, in_ci, wait_for};
use serde_json::Value;

const DOCUMENTATION: &str = include_str!("../../docs/GRAPH.md");
/// Address of the database on the page; replaced by that of the started database.
const ADDRESS: &str = "127.0.0.1:7687";

/// The database of `.ci/graph`; it is stopped when dropped.
struct Database {
    port: u16,
    folder: tempfile::TempDir,
}

fn script() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.ci/graph"))
}

impl Database {
    /// `None` if the database is not built outside CI.
    fn start() -> Result<Option<Self>> {
        if !script().arg("has").status()?.success() {
            ensure!(!in_ci(), "the graph database is not built: run .ci/graph build");
            writeln!(std::io::stderr(), "skipped: the graph database is not built (.ci/graph build)")?;
            return Ok(None);
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let database = Self { port, folder: tempfile::tempdir()? };
        let mut start = script();
        start.args(["start", &port.to_string()]).arg(database.folder.path());
        start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
        ensure!(start.status()?.success(), "the graph database did not start");
        Ok(Some(database))
    }

    /// Values and items of lists, of all properties of nodes and relationships, that contain one of these texts.
    async fn find_values(&self, parts: &[&str]) -> Result<Vec<BTreeMap<String, Value>>> {
        let conditions: Vec<String> = parts.iter().map(|part| format!("value CONTAINS '{part}'")).collect();
        let text = "CALL () { MATCH (n) RETURN properties(n) AS owned UNION ALL MATCH ()-[e]->() RETURN properties(e) AS owned } \
            UNWIND keys(owned) AS key UNWIND [] + owned[key] AS item WITH key, toStringOrNull(item) AS value";
        self.query(&format!("{text} WHERE {} RETURN DISTINCT key, value", conditions.join(" OR "))).await
    }

    /// Runs a Cypher statement; returns its rows.
    async fn query(&self, text: &str) -> Result<Vec<BTreeMap<String, Value>>> {
        let bolt = Bolt::new(&BoltTarget {
            address: format!("bolt://127.0.0.1:{}", self.port),
            username: String::new(),
            password: String::new(),
            database: String::new(),
            ca_certificates: None,
        })?;
        Ok(bolt.begin().await?.query("cannot read", text, Vec::new()).await?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(script().arg("stop").arg(self.folder.path()).status());
    }
}

/// Formats rows as on the page; `columns` is the page's header line.
fn format_table(columns: &str, rows: &[BTreeMap<String, Value>]) -> String {
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names: Vec<&str> = columns.split(" | ").collect();
    let row = |row: &BTreeMap<String, Value>| {
        names.iter().map(|name| row.get(*name).map(cell).unwrap_or_default()).collect::<Vec<_>>().join(" | ")
    };
    std::iter::once(columns.to_owned()).chain(rows.iter().map(row)).collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "starts a graph database: run .ci/graph test"]
fn documented_questions_have_the_documented_answers() -> Result<()> {
    let Some(kubectl) = find_kubectl("")? else { return Ok(()) };
    let Some(database) = Database::start()? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let address = format!("127.0.0.1:{}", database.port);
    let manifests = fenced_blocks(DOCUMENTATION, "yaml");
    ensure!(manifests.len() == 3, "the page has {} manifests", manifests.len());
    for manifest in &manifests {
        ensure!(
            manifest.contains("kind: GraphSink") == manifest.contains(ADDRESS),
            "not a sink of {ADDRESS}: {manifest}"
        );
        fleet.kubectl_ok(&kubectl, "cp", &["apply", "-f", "-"], &manifest.replace(ADDRESS, &address))?;
    }
    let get = ["get", "graphsinks", "-n", "shop", "--no-headers"];
    fleet.kubectl_until(&kubectl, "cp", &get, |out| {
        out.split_whitespace().filter(|word| *word == "True").count() == 2
    })?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (_, questions) = DOCUMENTATION.split_once("## Ten questions").context("no questions")?;
    let (questions, _) = questions.split_once("## Behaviour").context("no end of the questions")?;
    let questions: Vec<&str> = questions.split("\n### ").skip(1).collect();
    ensure!(questions.len() == 10, "the page has {} questions", questions.len());
    for question in questions {
        let (statements, answers) = (fenced_blocks(question, "cypher"), fenced_blocks(question, ""));
        let (statement, expected) = (statements.first().context("no Cypher")?, answers.first().context("no answer")?);
        let columns = expected.lines().next().context("no columns")?;
        let mut table = String::new();
        wait_for("the documented answer", || {
            table = format_table(columns, &runtime.block_on(database.query(statement))?);
            Ok(table == *expected)
        })
        .with_context(|| format!("{question}\nresult:\n{table}"))?;
    }
    // The statement finds texts in values and list items of nodes and relationships, but no value of a Secret.
    let present = [("name", "report-settings"), ("labels", "app=web"), ("via", "secretKeyRef"), ("by", "shop/web")];
    for (key, part) in present {
        let found = runtime.block_on(database.find_values(&[part]))?;
        ensure!(found.iter().any(|row| row["key"] == key), "no {part:?} in {key}: {found:?}");
    }
    let found = runtime.block_on(database.find_values(&["correct-horse", "Y29ycmVjdC1ob3JzZ"]))?;
    ensure!(found.is_empty(), "{found:?}");
    // Without the permission to list Pods, the sink removes them from the graph.
    fleet.kubectl_ok(&kubectl, "cp", &["delete", "clusterrolebinding", "graph-reader"], "")?;
    let pods = "MATCH (n:Pod) RETURN n.key AS key";
    wait_for("the Pods to leave the graph", || Ok(runtime.block_on(database.query(pods))?.is_empty()))?;
    Ok(())
}
