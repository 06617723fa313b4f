//! The graph database, started by `.ci/graph` once for all tests of this process.

use crowsnest_graph::{Bolt, BoltTarget};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time limit of each wait of a test.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Port and directory of the database; None if it is not built.
static RUNNING: OnceLock<Option<(u16, tempfile::TempDir)>> = OnceLock::new();

/// A running database.
pub struct Database {
    port: u16,
}

#[derive(Deserialize)]
struct KeyRow {
    key: String,
}

fn script() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.ci/graph"))
}

fn start(port: u16, directory: &std::path::Path) {
    let mut start = script();
    start.args(["start", &port.to_string()]).arg(directory);
    start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
    assert!(start.status().unwrap().success(), "the graph database did not start");
}

impl Database {
    /// Starts the database if necessary and deletes its contents. `None` if it is not built, which is an error on CI.
    pub async fn start_empty() -> Option<Self> {
        let running = RUNNING.get_or_init(|| {
            if !script().arg("has").status().is_ok_and(|status| status.success()) {
                assert!(
                    std::env::var("CI").as_deref() != Ok("true"),
                    "the graph database is not built: run .ci/graph build"
                );
                eprintln!("skipped: the graph database is not built (.ci/graph build)");
                return None;
            }
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let directory = tempfile::tempdir().unwrap();
            start(port, directory.path());
            Some((port, directory))
        });
        let database = Self { port: running.as_ref()?.0 };
        // Edges first: detaching a node with many edges keeps all of them in the heap of the database.
        for text in [
            "MATCH ()-[r]->() CALL (r) { DELETE r } IN TRANSACTIONS OF 5000 ROWS",
            "MATCH (n) CALL (n) { DELETE n } IN TRANSACTIONS OF 5000 ROWS",
        ] {
            database.run_auto_commit(text).await;
        }
        Some(database)
    }

    /// A database that another process has started.
    pub fn from_port(port: u16) -> Self {
        Self { port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn target(&self) -> BoltTarget {
        BoltTarget {
            address: format!("bolt://127.0.0.1:{}", self.port),
            username: String::new(),
            password: String::new(),
            database: String::new(),
            ca_certificates: None,
        }
    }

    /// Kills the database as a power cut would.
    pub fn kill(&self) {
        let directory = RUNNING.get().unwrap().as_ref().unwrap().1.path();
        let pid = std::fs::read_to_string(directory.join("pid")).unwrap();
        assert!(Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success());
        // The port is free once the process has ended.
        let start = Instant::now();
        while Command::new("kill").args(["-0", pid.trim()]).output().unwrap().status.success() {
            assert!(start.elapsed() < WAIT_TIMEOUT, "the database was not killed");
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Starts the database again with the same files.
    pub fn start(&self) {
        start(self.port, RUNNING.get().unwrap().as_ref().unwrap().1.path());
    }

    /// Runs a statement that begins its own transactions.
    pub async fn run_auto_commit(&self, text: &str) {
        let graph = neo4rs::Graph::new(self.target().address, "", "").unwrap();
        graph.run(neo4rs::query(text)).await.unwrap();
    }

    pub async fn query<T: DeserializeOwned>(&self, text: &str) -> Vec<T> {
        let bolt = Bolt::new(&self.target()).unwrap();
        let mut transaction = bolt.begin().await.unwrap();
        transaction.query("cannot read", text, Vec::new()).await.unwrap()
    }

    /// Runs a query and returns its column `key`.
    pub async fn query_keys(&self, text: &str) -> Vec<String> {
        self.query::<KeyRow>(text).await.into_iter().map(|row| row.key).collect()
    }

    /// Polls until a condition holds.
    pub async fn wait_until(&self, description: &str, condition: impl AsyncFn() -> bool) {
        let start = Instant::now();
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        while !condition().await {
            assert!(start.elapsed() < WAIT_TIMEOUT, "timed out waiting for {description}");
            poll.tick().await;
        }
    }
}
