//! Nodes of the engines, started by `.ci/engines`. Tests on the same engine share a node; it ends with the last of them.

use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock, Weak};
use tokio::sync::Mutex;

static RUNNING: LazyLock<Mutex<HashMap<&'static str, Weak<Node>>>> = LazyLock::new(Mutex::default);

/// A running node; stopped when dropped.
pub struct Node {
    engine: &'static str,
    port: u16,
    settings: &'static [&'static str],
    directory: tempfile::TempDir,
    http: reqwest::Client,
}

/// A document with its version.
pub type Documents = BTreeMap<String, (u64, Value)>;

impl Node {
    /// The shared node of an engine. None where the engine is not built.
    pub async fn shared(engine: &'static str) -> Option<Arc<Self>> {
        let mut running = RUNNING.lock().await;
        if let Some(node) = running.get(engine).and_then(Weak::upgrade) {
            return Some(node);
        }
        let node = Arc::new(Self::start(engine, &[]).await?);
        running.insert(engine, Arc::downgrade(&node));
        Some(node)
    }

    /// A node for one test with further settings. None where the engine is not built.
    pub async fn start(engine: &'static str, settings: &'static [&'static str]) -> Option<Self> {
        if !Command::new(script()).args(["has", engine]).status().unwrap().success() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{engine} is not built: run .ci/engines build");
            eprintln!("skipped: {engine} is not built (.ci/engines build {engine})");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        install_cryptography();
        // Tests share the node, but each has a runtime of its own, with which its connections end.
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
        let node = Self { engine, port, settings, directory: tempfile::tempdir().unwrap(), http };
        node.run().await;
        Some(node)
    }

    async fn run(&self) {
        let mut command = tokio::process::Command::new(script());
        command.arg("start").arg(self.engine).arg(self.port.to_string()).arg(self.directory.path()).args(self.settings);
        command.env("CROWSNEST_ENGINE_OWNER", std::process::id().to_string());
        let started = command.output().await.unwrap();
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The process id; None if the process never started.
    fn process(&self) -> Option<String> {
        Some(std::fs::read_to_string(self.directory.path().join("pid")).ok()?.trim().to_owned())
    }

    /// Kills the process of the node without a shutdown.
    pub fn kill(&self) {
        assert!(Command::new("kill").args(["-KILL", &self.process().unwrap()]).status().unwrap().success());
    }

    /// Starts the node again with its data.
    pub async fn restart(&self) {
        while tokio::net::TcpStream::connect(self.address()).await.is_ok() {
            tokio::task::yield_now().await;
        }
        self.run().await;
    }

    /// Sends a request to the engine and returns its response, which must be a success.
    pub async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let url = format!("http://{}{path}", self.address());
        let mut request = self.http.request(method.parse().unwrap(), url);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let body = response.text().await.unwrap();
        assert!(status.is_success(), "{method} {path}: {status} {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// All documents behind an alias but those of the writer.
    pub async fn documents(&self, alias: &str) -> Documents {
        self.request("POST", &format!("/{alias}/_refresh"), None).await;
        let path = format!("/{alias}/_search?size=10000&version=true");
        let response = self.request("POST", &path, None).await;
        let hits = response["hits"]["hits"].as_array().unwrap();
        assert!(hits.len() < 10_000);
        let mut documents = Documents::new();
        for hit in hits {
            let id = hit["_id"].as_str().unwrap().to_owned();
            if !id.starts_with("crowsnest-") {
                documents.insert(id, (hit["_version"].as_u64().unwrap(), hit["_source"].clone()));
            }
        }
        documents
    }

    /// Names of the indices behind an alias.
    pub async fn indices_behind(&self, alias: &str) -> Vec<String> {
        let response = self.request("GET", &format!("/_alias/{alias}"), None).await;
        response.as_object().unwrap().keys().cloned().collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let Some(process) = self.process() else { return };
        let stopped = Command::new("kill").args(["-KILL", &process]).status();
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("the node of {} was not running", self.engine);
        }
    }
}

/// Installs the provider of cryptography, as `main` does.
pub fn install_cryptography() {
    // Another test may have done so.
    drop(rustls::crypto::ring::default_provider().install_default());
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.ci/engines")
}
