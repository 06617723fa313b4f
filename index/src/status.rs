//! Status of the cache: read by the status API, the metrics and `crowsnest cache status`.

use crate::GlobalCache;
use crowsnest_component_base::metrics::Series;
use crowsnest_search::engine::WriterStatus;
use crowsnest_store::StoreSize;
use crowsnest_store::{CollectionKey, CollectionState, Error, Seq};
use serde::Serialize;
use std::collections::BTreeMap;

/// Snapshot of the cache's status.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheStatus {
    /// Seq of the newest change.
    pub seq: Seq,
    /// Name of the search backend.
    pub backend: String,
    /// Seq of the newest change that search can find.
    pub searchable: Seq,
    /// Number of changes that search cannot find yet.
    pub lag: u64,
    /// Reason why changes cannot currently be written to the text index.
    #[serde(rename = "indexTrouble", skip_serializing_if = "Option::is_none")]
    pub index_error: Option<String>,
    /// Status of the writer to an external engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_writer: Option<WriterStatus>,
    /// Disk usage of the index in that engine, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_bytes: Option<u64>,
    /// Reason why the cache is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub store: StoreSize,
    /// Number of batches queued for the store's writer.
    pub queued: usize,
    /// Ordered by cluster and resource.
    pub collections: Vec<CollectionStatus>,
}

/// Status of one resource of one cluster.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CollectionStatus {
    pub cluster: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub kind: String,
    pub records: u64,
    /// A complete list was stored.
    pub complete: bool,
    pub resource_version: String,
    /// Unix milliseconds of the last contact with the member for this resource; 0: never.
    #[serde(rename = "heardAt")]
    pub last_contact_ms: i64,
    /// Reason why it is not followed.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub stale_reason: Option<String>,
}

impl CollectionStatus {
    fn new(key: CollectionKey, state: CollectionState, records: u64) -> Self {
        let CollectionKey { cluster, resource } = key;
        Self {
            cluster: cluster.to_string(),
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            resource: resource.resource.to_string(),
            kind: state.kind.to_string(),
            records,
            complete: state.complete,
            resource_version: state.resource_version,
            last_contact_ms: state.last_contact_ms,
            stale_reason: state.stale_reason,
        }
    }

    fn labels(&self) -> Vec<(&'static str, String)> {
        let label = |text: &String| text.clone();
        vec![
            ("cluster", label(&self.cluster)),
            ("group", label(&self.group)),
            ("version", label(&self.version)),
            ("resource", label(&self.resource)),
        ]
    }
}

impl GlobalCache {
    /// The current status of the cache. It counts the records of every collection, which takes some hundred
    /// milliseconds for millions of records.
    pub async fn status(&self) -> Result<CacheStatus, Error> {
        let store = &self.inner.shared.store;
        let (size, counts) = (store.size().await?, store.counts().await?);
        let counts: BTreeMap<CollectionKey, u64> = counts.into_iter().collect();
        let collections = self.states().into_iter().map(|(key, state)| {
            let records = counts.get(&key).copied().unwrap_or_default();
            CollectionStatus::new(key, state, records)
        });
        Ok(CacheStatus {
            seq: self.seq(),
            backend: self.options().index_backend.clone(),
            searchable: *self.searcher().searchable().borrow(),
            lag: self.searcher().lag(),
            index_error: self.searcher().engine().write_failure(),
            index_writer: self.searcher().engine().writer(),
            index_bytes: self.searcher().engine().size(),
            problem: self.check_ready().err(),
            store: size,
            queued: self.inner.shared.writer.queue_length(),
            collections: collections.collect(),
        })
    }

    /// Current values of all metrics of the cache.
    pub async fn series(&self, now_ms: i64) -> Result<Vec<Series>, Error> {
        let status = self.status().await?;
        let mut all = self.metrics().series();
        let plain = |name, help, value| Series { name, help, is_counter: false, labels: Vec::new(), value };
        let store = &status.store;
        all.extend([
            plain("crowsnest_cache_seq", "Sequence number of the newest change.", status.seq.0),
            plain(
                "crowsnest_text_seq",
                "Sequence number of the newest change that text search can find.",
                status.searchable.0,
            ),
            plain("crowsnest_cache_ready", "1 if all workers are running.", status.problem.is_none().into()),
            plain("crowsnest_cache_versions", "Old versions kept.", store.versions),
            plain("crowsnest_cache_deletions", "Deleted objects kept.", store.deletions),
            plain("crowsnest_cache_version_bytes", "Bytes of old versions, compressed.", store.version_bytes),
            plain("crowsnest_cache_store_bytes", "Bytes of the database.", store.bytes),
            plain("crowsnest_cache_writer_queue", "Batches queued for the writer.", status.queued as u64),
        ]);
        all.extend(status.index_bytes.map(|bytes| {
            plain("crowsnest_text_index_bytes", "Bytes of the index on the disks of the search engine.", bytes)
        }));
        for (name, help, value) in COLLECTION_SERIES {
            let series_of = |collection: &CollectionStatus| Series {
                name,
                help,
                is_counter: false,
                labels: collection.labels(),
                value: value(collection, now_ms),
            };
            all.extend(status.collections.iter().map(series_of));
        }
        Ok(all)
    }
}

/// Value of a metric of a collection.
type Measure = fn(&CollectionStatus, i64) -> u64;

const COLLECTION_SERIES: [(&str, &str, Measure); 4] = [
    ("crowsnest_cache_records", "Objects cached.", |collection, _| collection.records),
    ("crowsnest_cache_complete", "1 if a complete list was stored.", |collection, _| collection.complete.into()),
    ("crowsnest_cache_followed", "1 while the member is followed.", |collection, _| {
        collection.stale_reason.is_none().into()
    }),
    ("crowsnest_cache_silent_seconds", "Time since the last contact with the member.", |collection, now_ms| {
        (now_ms.saturating_sub(collection.last_contact_ms).max(0) / 1000) as u64
    }),
];
