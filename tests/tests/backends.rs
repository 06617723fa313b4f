//! `crowsnest up` with a search engine outside of the process: it answers searches, and answers report its absence.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, in_ci, until};
use serde_json::Value;

/// A node of `.ci/engines`; it is stopped when dropped.
struct Node {
    port: u16,
    home: tempfile::TempDir,
}

fn engines() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.ci/engines"))
}

impl Node {
    /// None where the engine is not built, which fails on CI.
    fn start(name: &str) -> Result<Option<Self>> {
        if !engines().args(["has", name]).status()?.success() {
            ensure!(!in_ci(), "{name} is not built: run .ci/engines build {name}");
            writeln!(std::io::stderr(), "skipped: {name} is not built (.ci/engines build {name})")?;
            return Ok(None);
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let node = Self { port, home: tempfile::tempdir()? };
        node.run(name)?;
        Ok(Some(node))
    }

    fn run(&self, name: &str) -> Result<()> {
        let mut start = engines();
        start.args(["start", name, &self.port.to_string()]).arg(self.home.path());
        start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
        ensure!(start.status()?.success(), "{name} did not start");
        Ok(())
    }

    fn stop(home: &Path) -> Result<()> {
        ensure!(engines().arg("stop").arg(home).status()?.success(), "the node did not stop");
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(Self::stop(self.home.path()));
    }
}

fn finds_nodes(fleet: &Fleet) -> Result<()> {
    until("the nodes to be found", || {
        let said = fleet.crowsnest(&["search", "kind:node", "-o", "name"])?;
        Ok(said.code == Some(0) && said.out.contains("member1/nodes/"))
    })
}

/// Answer of the search engine.
fn ask(url: &str, options: &[&str]) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["--noproxy", "*", "--silent", "--fail", "-H", "Content-Type: application/json"]);
    let answer = curl.args(options).arg(url).output()?;
    ensure!(answer.status.success(), "{url}: {answer:?}");
    Ok(serde_json::from_slice(&answer.stdout)?)
}

/// What `crowsnest index verify` finds after a document was deleted behind the server's back.
fn the_index_is_verified_and_rebuilt(fleet: &Fleet, url: &str) -> Result<()> {
    let equal = || {
        let said = fleet.crowsnest(&["index", "verify", "--samples", "100"])?;
        Ok(said.code == Some(0) && said.out.ends_with("equal\n"))
    };
    until("index and cache to be equal", equal)?;
    let status = fleet.crowsnest(&["index", "status"])?;
    ensure!(status.out.contains("opensearch: ") && status.out.contains("index crowsnest-000001"), "{status:?}");

    let node = ask(&format!("{url}/crowsnest/_search"), &["-d", r#"{"query": {"term": {"w.kind": "node"}}}"#])?;
    let id = node["hits"]["hits"][0]["_id"].as_str().context("a node in the index")?;
    ask(&format!("{url}/crowsnest/_doc/{id}?refresh=true"), &["-X", "DELETE"])?;
    let said = fleet.crowsnest(&["index", "verify", "--samples", "100"])?;
    ensure!(said.code == Some(1) && said.out.contains("differs: member1 Node: "), "{said:?}");

    let said = fleet.crowsnest(&["index", "rebuild", "--wait"])?;
    ensure!(said.code == Some(0) && said.out.contains("index crowsnest-000002"), "{said:?}");
    until("the new index to be equal", equal)
}

#[test]
#[ignore = "starts search engines: run .ci/engines test"]
fn a_fleet_is_searched_in_opensearch() -> Result<()> {
    let Some(node) = Node::start("opensearch-2")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let url = format!("http://127.0.0.1:{}", node.port);
    let backend = ["--members", "1", "--index-backend", "opensearch", "--opensearch-url", &url];
    let fleet = Fleet::start(&dir.path().join("data"), &backend)?;
    finds_nodes(&fleet)?;
    ensure!(!dir.path().join("data/cache/text").exists(), "the text index is not used");
    the_index_is_verified_and_rebuilt(&fleet, &url)?;

    Node::stop(node.home.path())?;
    let said = fleet.crowsnest(&["search", "kind:node", "-o", "name"])?;
    ensure!(said.out.is_empty() && said.err.contains("the search engine does not answer"), "{said:?}");
    // Lists do not need the engine.
    let said = fleet.crowsnest(&["get", "nodes"])?;
    ensure!(said.code == Some(0) && said.out.contains("member1"), "{said:?}");

    node.run("opensearch-2")?;
    finds_nodes(&fleet)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
