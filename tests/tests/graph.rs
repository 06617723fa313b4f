//! `crowsnest up` with a GraphSink: the page docs/GRAPH.md on a real Neo4j.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_graph::{Bolt, BoltTarget};
use crowsnest_tests::{Fleet, in_ci, kubectl, until};
use serde_json::Value;

const PAGE: &str = include_str!("../../docs/GRAPH.md");
/// Address of the database on the page.
const ADDRESS: &str = "127.0.0.1:7687";

/// The database of `.ci/graph`; it is stopped when dropped.
struct Database {
    port: u16,
    home: tempfile::TempDir,
}

fn script() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.ci/graph"))
}

impl Database {
    /// `None` if it is not built, which is a failure in CI.
    fn start() -> Result<Option<Self>> {
        if !script().arg("has").status()?.success() {
            ensure!(!in_ci(), "the graph database is not built: run .ci/graph build");
            writeln!(std::io::stderr(), "skipped: the graph database is not built (.ci/graph build)")?;
            return Ok(None);
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let database = Self { port, home: tempfile::tempdir()? };
        let mut start = script();
        start.args(["start", &port.to_string()]).arg(database.home.path());
        start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
        ensure!(start.status()?.success(), "the graph database did not start");
        Ok(Some(database))
    }

    /// Rows of a statement.
    async fn rows(&self, text: &str) -> Result<Vec<BTreeMap<String, Value>>> {
        let bolt = Bolt::new(&BoltTarget {
            address: format!("bolt://127.0.0.1:{}", self.port),
            username: String::new(),
            password: String::new(),
            database: String::new(),
            authority: None,
        })?;
        Ok(bolt.begin().await?.rows("cannot read", text, Vec::new()).await?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(script().arg("stop").arg(self.home.path()).status());
    }
}

/// Fenced blocks of the page in a language; empty: those without one.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(of) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if of == language {
            found.push(block.join("\n"));
        }
    }
    found
}

/// The answer as the page shows it, with these columns.
fn table(columns: &str, rows: &[BTreeMap<String, Value>]) -> String {
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names: Vec<&str> = columns.split(" | ").collect();
    let row = |row: &BTreeMap<String, Value>| {
        names.iter().map(|name| row.get(*name).map(cell).unwrap_or_default()).collect::<Vec<_>>().join(" | ")
    };
    std::iter::once(columns.to_owned()).chain(rows.iter().map(row)).collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "starts a graph database: run .ci/graph test"]
fn the_questions_of_the_page_have_its_answers() -> Result<()> {
    let Some(kubectl) = kubectl("")? else { return Ok(()) };
    let Some(database) = Database::start()? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let address = format!("127.0.0.1:{}", database.port);
    let manifests = blocks(PAGE, "yaml");
    ensure!(manifests.len() == 3, "{}", manifests.len());
    for manifest in &manifests {
        ensure!(manifest.contains("kind: GraphSink") == manifest.contains(ADDRESS));
        fleet.kubectl_ok(&kubectl, "cp", &["apply", "-f", "-"], &manifest.replace(ADDRESS, &address))?;
    }
    let get = ["get", "graphsinks", "-n", "shop", "--no-headers"];
    fleet.kubectl_until(&kubectl, "cp", &get, |out| {
        out.split_whitespace().filter(|word| *word == "True").count() == 2
    })?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (_, questions) = PAGE.split_once("## Ten questions").context("no questions")?;
    let (questions, _) = questions.split_once("## Behaviour").context("no end of the questions")?;
    let questions: Vec<&str> = questions.split("\n### ").skip(1).collect();
    ensure!(questions.len() == 10, "{}", questions.len());
    for question in questions {
        let (statements, answers) = (blocks(question, "cypher"), blocks(question, ""));
        let (statement, expected) = (statements.first().context("no Cypher")?, answers.first().context("no answer")?);
        let columns = expected.lines().next().context("no columns")?;
        let mut found = String::new();
        until(question, || {
            found = table(columns, &runtime.block_on(database.rows(statement))?);
            Ok(found == *expected)
        })
        .with_context(|| format!("{question}\nanswer:\n{found}"))?;
    }
    // Values of Secrets are nowhere.
    let values = "MATCH (n) UNWIND keys(n) AS key WITH toStringOrNull(n[key]) AS value WHERE value CONTAINS 'correct-horse' \
        OR value CONTAINS 'Y29ycmVjdC1ob3JzZ' RETURN value";
    let found = runtime.block_on(database.rows(values))?;
    ensure!(found.is_empty(), "{found:?}");
    // Permissions that are withdrawn are withdrawn from the graph.
    fleet.kubectl_ok(&kubectl, "cp", &["delete", "clusterrolebinding", "graph-reader"], "")?;
    let pods = "MATCH (n:Pod) RETURN n.key AS key";
    until("the Pods to leave the graph", || Ok(runtime.block_on(database.rows(pods))?.is_empty()))?;
    Ok(())
}
