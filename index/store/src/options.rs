//! Configuration of the cache. Limits are absolute and do not depend on the size of the fleet.

use crate::ingest::IngestOptions;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_component_base::retry::Backoff;
use std::path::PathBuf;
use std::time::Duration;

/// Storage backend of the records.
#[derive(Debug, Clone, Default)]
pub enum StoreOptions {
    /// A file in the data directory, for a single process.
    #[default]
    Sqlite,
    /// A database shared by replicas.
    Postgres(PostgresOptions),
}

impl StoreOptions {
    /// True if a process continues to run while its database is unavailable: for a database server, but not for a file.
    pub fn tolerates_outages(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }
}

/// Connection to Postgres.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub url: DatabaseUrl,
    /// Maximum number of read connections. Writes, claims, heartbeats and notifications use one more each.
    pub connections: u32,
    /// Name of this replica, unique among running ones. Default: the host name with a random suffix.
    pub replica: Option<String>,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: DatabaseUrl(url.into()), connections: 8, replica: None }
    }
}

/// `postgres://user:password@host/database`; redacted in output.
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

/// External search engine, for the backend "opensearch".
#[derive(Debug, Clone)]
pub struct OpenSearchOptions {
    /// Base URLs of the nodes of one OpenSearch or Elasticsearch cluster.
    pub urls: Vec<String>,
    /// PEM file of the trusted CAs; None: the system's.
    pub ca_file: Option<PathBuf>,
    /// Directory with the keys of a Secret: `username` and `password`, `api-key`, `token`, `tls.crt` and `tls.key`,
    /// `ca.crt`.
    pub credentials_dir: Option<PathBuf>,
    /// Alias that is searched, and prefix of the index names.
    pub index_prefix: String,
    /// Number of primary shards. A change builds a new index beside the active one.
    pub shards: u32,
    /// Replicas of each shard; None: one if there are several nodes.
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
pub struct CacheOptions {
    /// Directory of the database file, if there is one, and of the text index. It may be deleted; the cache is
    /// filled again.
    pub data_dir: PathBuf,
    pub store: StoreOptions,
    /// Clock in Unix milliseconds; replaced in tests.
    pub clock: fn() -> i64,
    /// Collect every listable resource of each member, for search.
    pub collect_everything: bool,
    /// Collect every listable resource of the control plane, for search.
    pub collect_control_plane: bool,
    /// `resource` or `resource.group` that is not collected for search.
    pub excluded: Vec<String>,
    /// Parts of bodies to keep and values to withhold. A change empties and refills a cache that is not shared.
    pub ingest: IngestOptions,
    /// References of custom resources, for paths between objects.
    pub references: Vec<CustomRule>,
    /// Keys of indexed labels; `*` at either end is a wildcard.
    pub indexed_labels: Vec<String>,
    /// Maximum bytes of bodies in the tail, the newest changes in memory.
    pub tail_bytes: usize,
    /// Maximum number of changes in the tail.
    pub tail_changes: usize,
    /// Maximum number of objects per page of a list; fewer if objects are large.
    pub page_size: u32,
    /// Maximum number of concurrent lists for all members.
    pub concurrent_lists: usize,
    pub concurrent_lists_per_cluster: usize,
    /// Maximum bytes of objects between the network and the store for all members. A single larger object is
    /// admitted alone.
    pub bytes_in_flight: usize,
    pub bytes_in_flight_per_cluster: usize,
    /// Maximum size in bytes of a single object or watch event.
    pub max_object_bytes: usize,
    /// Name of the search engine: "tantivy" or "opensearch".
    pub index_backend: String,
    pub opensearch: OpenSearchOptions,
    /// Memory of the text index's writer in bytes; tantivy requires at least 15 MB. While the index is far behind, it is written
    /// by several threads with more memory.
    pub text_heap_bytes: usize,
    /// Size in bytes of the text index's filter cache: the matching documents of a filter in each segment.
    pub text_filter_cache_bytes: u64,
    /// Maximum time between a change and its commit in the text index.
    pub text_commit_interval: Duration,
    /// Number of changes after which the text index commits earlier.
    pub text_commit_changes: usize,
    /// SQLite's page cache per connection, in KiB.
    pub sqlite_cache_kib: u32,
    pub sqlite_readers: u32,
    pub history: HistoryRetention,
    pub timeouts: MemberTimeouts,
}

/// Timeouts and backoff for members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberTimeouts {
    /// Maximum time until the response head arrives.
    pub response: Duration,
    /// Maximum time until a page of a list is complete.
    pub page: Duration,
    /// Maximum idle time of a streamed initial list.
    pub stream_idle: Duration,
    /// Maximum time without a new object in a streamed initial list.
    pub stream_progress: Duration,
    /// Maximum time that a list uses its permit before it yields to others.
    pub list_permit: Duration,
    /// Minimum duration of a watch. The actual duration is up to twice as long, so that watches do not end at the
    /// same time.
    pub watch: Duration,
    /// Maximum remaining duration of a watch that sent an object with an older resourceVersion; then the resource is
    /// listed again.
    pub suspect_watch: Duration,
    /// Backoff after failures.
    pub backoff: Backoff,
    /// Upper limit for `Retry-After`.
    pub retry_after: Duration,
}

impl Default for MemberTimeouts {
    fn default() -> Self {
        Self {
            response: Duration::from_secs(60),
            page: Duration::from_secs(30),
            stream_idle: Duration::from_secs(15),
            stream_progress: Duration::from_secs(60),
            list_permit: Duration::from_secs(10),
            watch: Duration::from_secs(300),
            suspect_watch: Duration::from_secs(60),
            backoff: Backoff::new(Duration::from_millis(250), Duration::from_secs(30)),
            retry_after: Duration::from_secs(120),
        }
    }
}

/// Retention of previous versions and of deleted objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryRetention {
    /// Time after its end at which a version is deleted.
    pub max_age: Duration,
    /// Maximum number of versions per object, in addition to deletions.
    pub max_versions: u32,
    /// Maximum size of all versions in bytes, compressed; the oldest are deleted first.
    pub max_bytes: u64,
    /// Maximum size of the store in bytes; above it, old versions are deleted early.
    pub max_store_bytes: Option<u64>,
}

impl Default for HistoryRetention {
    fn default() -> Self {
        Self { max_age: Duration::from_secs(24 * 3600), max_versions: 10, max_bytes: 512 << 20, max_store_bytes: None }
    }
}

impl CacheOptions {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let excluded = ["leases.coordination.k8s.io", "events.events.k8s.io", "componentstatuses"];
        Self {
            data_dir: data_dir.into(),
            store: StoreOptions::default(),
            clock: now_ms,
            collect_everything: true,
            collect_control_plane: true,
            excluded: excluded.map(str::to_owned).to_vec(),
            ingest: IngestOptions::default(),
            references: Vec::new(),
            indexed_labels: Vec::new(),
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
            text_filter_cache_bytes: 64 << 20,
            text_commit_interval: Duration::from_millis(500),
            text_commit_changes: 5_000,
            sqlite_cache_kib: 4096,
            sqlite_readers: 4,
            history: HistoryRetention::default(),
            timeouts: MemberTimeouts::default(),
        }
    }
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
