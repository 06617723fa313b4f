//! What bounds the cache (invariant I5): sizes are configuration, never a function of the fleet.

use crate::ingest::Keep;
use crowsnest_component_base::retry::Backoff;
use std::path::PathBuf;
use std::time::Duration;

/// Where records are kept.
#[derive(Debug, Clone, Default)]
pub enum StoreOptions {
    /// A file in the data directory: one process.
    #[default]
    Sqlite,
    /// A database that replicas share.
    Postgres(PostgresOptions),
}

impl StoreOptions {
    /// A database that is away comes back, and its replicas go on; a process alone with its file has no way back.
    pub fn outlives_outages(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }
}

/// How to reach Postgres.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub url: DatabaseUrl,
    /// Connections for reading; a few more are used for writing, listening and the lease.
    pub connections: u32,
    /// Name of this replica, unique among those that run: by default the host's name and a random part.
    pub replica: Option<String>,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: DatabaseUrl(url.into()), connections: 8, replica: None }
    }
}

/// `postgres://user:password@host/database`; never printed.
#[derive(Clone)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DatabaseUrl(…)")
    }
}

/// Search engine outside of this process, for the backend "opensearch".
#[derive(Debug, Clone)]
pub struct OpenSearchOptions {
    /// Base URLs of the nodes of one OpenSearch or Elasticsearch cluster.
    pub urls: Vec<String>,
    /// PEM file of the trusted authorities, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Folder with the keys of a Secret: `username` and `password`, `api-key`, `token`, `tls.crt` and `tls.key`, `ca.crt`.
    pub credentials_dir: Option<PathBuf>,
    /// Name of the alias that is searched, and prefix of the indices' names.
    pub index_prefix: String,
    /// Shards of the index. Another number needs another index, which is built beside the old one.
    pub shards: u32,
    /// Copies of each shard; None: one if there are several nodes.
    pub replicas: Option<u32>,
}

impl Default for OpenSearchOptions {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            ca_file: None,
            credentials_dir: None,
            index_prefix: "crowsnest".to_owned(),
            shards: 1,
            replicas: None,
        }
    }
}

/// Configuration of the cache.
#[derive(Debug, Clone)]
pub struct IndexOptions {
    /// Holds the database, where that is a file, and the text index. Deleting it loses nothing: it refills.
    pub data_dir: PathBuf,
    pub store: StoreOptions,
    /// Unix milliseconds; another one only where a test lets it go wrong.
    pub clock: fn() -> i64,
    /// Declare an interest in everything each member lists, so that search finds it.
    pub collect_everything: bool,
    /// The same for the control plane.
    pub collect_control_plane: bool,
    /// `resource` or `resource.group` never collected for search alone.
    pub excluded: Vec<String>,
    /// Another wish than the last time fills a cache of one process anew.
    pub keep: Keep,
    /// Labels objects are looked up by without a scan: keys, with a `*` at either end for anything.
    pub chosen_labels: Vec<String>,
    /// Bodies kept for recent changes, in bytes.
    pub tail_bytes: usize,
    /// Recent changes kept, in number.
    pub tail_changes: usize,
    /// Objects asked for in one page of a list, at most: fewer where they are large.
    pub page_size: u32,
    /// Lists in flight at once over all members.
    pub concurrent_lists: usize,
    pub concurrent_lists_per_cluster: usize,
    /// Bytes of objects between the wire and the store, over all members; a single larger object passes alone.
    pub bytes_in_flight: usize,
    pub bytes_in_flight_per_cluster: usize,
    /// Largest single object or watch event taken.
    pub max_object_bytes: usize,
    /// Engine of text search, by its name: "tantivy" or "opensearch".
    pub index_backend: String,
    pub opensearch: OpenSearchOptions,
    /// Memory of the text index's writer; tantivy wants at least 15 MB.
    pub text_heap_bytes: usize,
    /// Of what searches found in segments of the text index, for when they are asked again.
    pub text_remembered_bytes: u64,
    /// Longest time between a change and its text-index commit.
    pub text_commit_interval: Duration,
    pub text_commit_changes: usize,
    /// SQLite's page cache of each connection, in KiB.
    pub sqlite_cache_kib: u32,
    pub sqlite_readers: u32,
    pub history: History,
    pub patience: Patience,
}

/// How long members are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For the beginning of an answer.
    pub answer: Duration,
    /// For all of a page of a list.
    pub page: Duration,
    /// A server that streams an initial list makes no longer pauses.
    pub pause: Duration,
    /// A streamed initial list brings an object not seen before at least so often.
    pub progress: Duration,
    /// A list in progress lets others go first after this time.
    pub turn: Duration,
    /// What a watch lasts at least; at most twice as long, so that they do not all end at once.
    pub watch: Duration,
    /// A watch that told something older than before is followed no longer than this, then all is listed again.
    pub doubt: Duration,
    /// Delays after failures.
    pub backoff: Backoff,
    /// Longest pause a member can ask for with `Retry-After`.
    pub retry_after: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(60),
            page: Duration::from_secs(30),
            pause: Duration::from_secs(15),
            progress: Duration::from_secs(60),
            turn: Duration::from_secs(10),
            watch: Duration::from_secs(300),
            doubt: Duration::from_secs(60),
            backoff: Backoff::new(Duration::from_millis(250), Duration::from_secs(30)),
            retry_after: Duration::from_secs(120),
        }
    }
}

/// How much is kept of what objects were before. Deleted objects stay findable as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Longest time after a version ended.
    pub kept_for: Duration,
    /// Versions of one object; its deletions come on top.
    pub per_object: u32,
    /// Of all versions together, packed: the oldest go first.
    pub max_bytes: u64,
    /// Of the whole store: where it is larger, old versions go before their time.
    pub max_store_bytes: Option<u64>,
}

impl Default for History {
    fn default() -> Self {
        Self { kept_for: Duration::from_secs(24 * 3600), per_object: 10, max_bytes: 512 << 20, max_store_bytes: None }
    }
}

impl IndexOptions {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let excluded = ["leases.coordination.k8s.io", "events.events.k8s.io", "componentstatuses"];
        Self {
            data_dir: data_dir.into(),
            store: StoreOptions::default(),
            clock: now_ms,
            collect_everything: true,
            collect_control_plane: true,
            excluded: excluded.map(str::to_owned).to_vec(),
            keep: Keep::default(),
            chosen_labels: Vec::new(),
            tail_bytes: 16 << 20,
            tail_changes: 20_000,
            page_size: 500,
            concurrent_lists: 8,
            concurrent_lists_per_cluster: 3,
            bytes_in_flight: 32 << 20,
            bytes_in_flight_per_cluster: 8 << 20,
            max_object_bytes: 8 << 20,
            index_backend: "tantivy".to_owned(),
            opensearch: OpenSearchOptions::default(),
            text_heap_bytes: 15_000_000,
            text_remembered_bytes: 64 << 20,
            text_commit_interval: Duration::from_millis(500),
            text_commit_changes: 5_000,
            sqlite_cache_kib: 4096,
            sqlite_readers: 4,
            history: History::default(),
            patience: Patience::default(),
        }
    }
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
