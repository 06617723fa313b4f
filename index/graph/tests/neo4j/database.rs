//! The graph database, started by `.ci/graph` once for all tests of this process.

use crowsnest_graph::{Bolt, BoltTarget};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time for anything to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

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

fn start(port: u16, home: &std::path::Path) {
    let mut start = script();
    start.args(["start", &port.to_string()]).arg(home);
    start.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
    assert!(start.status().unwrap().success(), "the graph database did not start");
}

impl Database {
    /// The database without contents; `None` if it is not built, which is an error on CI.
    pub async fn empty() -> Option<Self> {
        let running = RUNNING.get_or_init(|| {
            if !script().arg("has").status().is_ok_and(|status| status.success()) {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "it is not built: run .ci/graph build");
                eprintln!("skipped: the graph database is not built (.ci/graph build)");
                return None;
            }
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let home = tempfile::tempdir().unwrap();
            start(port, home.path());
            Some((port, home))
        });
        let database = Self { port: running.as_ref()?.0 };
        let text = "MATCH (n) CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 5000 ROWS";
        database.run_alone(text).await;
        Some(database)
    }

    pub fn running_at(port: u16) -> Self {
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
            authority: None,
        }
    }

    /// Kills the database as a power cut would.
    pub fn kill(&self) {
        let home = RUNNING.get().unwrap().as_ref().unwrap().1.path();
        let process = std::fs::read_to_string(home.join("pid")).unwrap();
        assert!(Command::new("kill").args(["-KILL", process.trim()]).status().unwrap().success());
        // The port is free once the process has ended.
        let began = Instant::now();
        while Command::new("kill").args(["-0", process.trim()]).output().unwrap().status.success() {
            assert!(began.elapsed() < PATIENCE, "the database was not killed");
            std::thread::park_timeout(POLL);
        }
    }

    /// Starts it over the same files.
    pub fn start(&self) {
        start(self.port, RUNNING.get().unwrap().as_ref().unwrap().1.path());
    }

    /// Runs a statement outside of transactions.
    async fn run_alone(&self, text: &str) {
        let graph = neo4rs::Graph::new(self.target().address, "", "").unwrap();
        graph.run(neo4rs::query(text)).await.unwrap();
    }

    pub async fn rows<T: DeserializeOwned>(&self, text: &str) -> Vec<T> {
        let bolt = Bolt::new(&self.target()).unwrap();
        let mut transaction = bolt.begin().await.unwrap();
        transaction.rows("cannot read", text, Vec::new()).await.unwrap()
    }

    /// The column `key` of a statement.
    pub async fn keys(&self, text: &str) -> Vec<String> {
        self.rows::<KeyRow>(text).await.into_iter().map(|row| row.key).collect()
    }

    /// Polls until a condition holds.
    pub async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let began = Instant::now();
        let mut poll = tokio::time::interval(POLL);
        while !condition().await {
            assert!(began.elapsed() < PATIENCE, "timed out waiting for {what}");
            poll.tick().await;
        }
    }
}
