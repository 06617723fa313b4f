//! A writer that follows a source and sends its changes to an engine through the proxy.

use super::node::{Node, install_cryptography};
use super::proxy::Proxy;
use super::source::MemorySource;
use crowsnest_component_base::retry::Backoff;
use crowsnest_search::opensearch::bulk::BulkLimits;
use crowsnest_search::opensearch::client::{Address, Client, ClientOptions, ProxyChoice};
use crowsnest_search::opensearch::writer::{BatchBounds, Progress, State, Writer, WriterOptions};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Time limit of each wait.
const TIMEOUT: Duration = Duration::from_secs(120);

static ALIASES: AtomicU32 = AtomicU32::new(0);

pub struct TestEnv {
    pub node: Arc<Node>,
    pub proxy: Proxy,
    pub source: MemorySource,
    pub alias: String,
    pub template: Value,
}

/// A running writer; it is stopped when dropped.
pub struct Running {
    pub writer: Arc<Writer<MemorySource>>,
    task: JoinHandle<()>,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl TestEnv {
    pub async fn on(node: Arc<Node>) -> Self {
        let proxy = Proxy::start(node.address()).await;
        let alias = format!("fleet{}", ALIASES.fetch_add(1, Ordering::Relaxed));
        let template = json!({
            "settings": {"number_of_replicas": 0},
            "mappings": {"dynamic": false, "properties": {"number": {"type": "long"}}},
        });
        Self { node, proxy, source: MemorySource::new(), alias, template }
    }

    /// A test environment on the shared node of an engine.
    pub async fn shared(engine: &'static str) -> Option<Self> {
        Some(Self::on(Node::shared(engine).await?).await)
    }

    /// Options with short delays and small requests.
    pub fn options(&self) -> WriterOptions {
        let mut options = WriterOptions::new(&self.alias, self.template.clone());
        options.limits = BulkLimits { bytes: 64 << 10, items: 100 };
        options.batch = BatchBounds { changes: 250, bytes: 1 << 20 };
        options.backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));
        options.check_interval = Duration::from_millis(200);
        options.dead_letters = 10;
        options
    }

    pub async fn start_writer(&self) -> Running {
        self.start_writer_with(self.options()).await
    }

    pub async fn start_writer_with(&self, options: WriterOptions) -> Running {
        let client = Client::new(client_options(&[&self.proxy.url()])).await.unwrap();
        let writer = Arc::new(Writer::new(Arc::new(client), self.source.clone(), options));
        let stop = CancellationToken::new();
        let (running, until) = (Arc::clone(&writer), stop.clone());
        let task = tokio::spawn(async move { running.run(until).await });
        Running { writer, task, _guard: stop.clone().drop_guard(), stop }
    }

    /// Writes records `PREFIX0` and so on.
    pub fn put(&self, prefix: &str, count: u64) {
        for number in 0..count {
            self.source.set(&format!("{prefix}{number}"), Some(json!({ "number": number, "text": prefix })));
        }
    }

    /// Waits until the writer has caught up, then compares the engine with the source.
    pub async fn assert_equal(&self, running: &Running) {
        running.wait_until_caught_up().await;
        let (engine, source) = (self.node.documents(&self.alias).await, self.source.documents());
        if engine != source {
            let missing: Vec<_> = source.iter().filter(|(id, document)| engine.get(*id) != Some(document)).collect();
            let extra: Vec<_> = engine.keys().filter(|id| !source.contains_key(*id)).collect();
            panic!("missing or different: {missing:?}, too many: {extra:?}, {:?}", running.writer.progress());
        }
    }
}

impl Running {
    /// Waits until the progress meets a condition.
    pub async fn wait_until(&self, description: &str, mut condition: impl FnMut(&Progress) -> bool) -> Progress {
        let mut watch = self.writer.watch();
        let reached = tokio::time::timeout(TIMEOUT, watch.wait_for(|progress| condition(progress))).await;
        let reached = reached.ok().map(|progress| progress.unwrap().clone());
        reached.unwrap_or_else(|| panic!("not {description} after {TIMEOUT:?}: {:?}", self.writer.progress()))
    }

    pub async fn wait_until_caught_up(&self) -> Progress {
        let latest = self.writer.progress().latest;
        self.wait_until("caught up", |progress| progress.state == State::Following && progress.position >= latest).await
    }

    /// Waits until the writer has read that another one has caught up.
    pub async fn wait_until_standby(&self) -> Progress {
        let latest = self.writer.progress().latest;
        self.wait_until("standing by", |progress| progress.state == State::Standby && progress.position >= latest).await
    }

    /// Waits until the writer waits for a reason that contains a text.
    pub async fn wait_until_waiting(&self, text: &str) -> Progress {
        let waits = |progress: &Progress| matches!(&progress.state, State::Waiting { reason } if reason.contains(text));
        self.wait_until(&format!("waiting for {text:?}"), waits).await
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

pub fn client_options(urls: &[&str]) -> ClientOptions {
    install_cryptography();
    let mut options = ClientOptions::new(Address::parse_all(urls.iter().copied()).unwrap());
    options.proxy = ProxyChoice::Direct;
    options.request_timeout = Duration::from_secs(5);
    options.max_response_bytes = 4 << 20;
    options
}
