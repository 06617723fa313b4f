//! Metrics of the cache, kept in atomics.

use std::sync::atomic::{AtomicU64, Ordering};

use crowsnest_component_base::metrics::Series;

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A value that can go up and down.
#[derive(Debug, Default)]
pub struct Gauge(Counter);

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.set(value);
    }

    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A gauge that also records its maximum.
#[derive(Debug, Default)]
pub struct PeakGauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl PeakGauge {
    pub fn add(&self, amount: u64) {
        let now = self.now.fetch_add(amount, Ordering::Relaxed) + amount;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub fn subtract(&self, amount: u64) {
        self.now.fetch_sub(amount, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The maximum so far.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// All metrics of the cache.
#[derive(Debug, Default)]
pub struct Metrics {
    pub objects_received: Counter,
    pub bytes_received: Counter,
    pub objects_refused: Counter,
    pub objects_outdated: Counter,
    pub changes: Counter,
    pub transactions: Counter,
    pub transaction_microseconds: Counter,
    pub lists: Counter,
    pub watches: Counter,
    pub watch_failures: Counter,
    pub collectors: Gauge,
    /// Bytes of objects between the network and the store.
    pub bytes_in_flight: PeakGauge,
    pub text_commits: Counter,
    pub text_commit_microseconds: Counter,
    pub text_documents: Counter,
    /// Number of segments of the text index; fewer are faster to search.
    pub text_segments: Gauge,
    /// Changes that are not in the text index yet.
    pub text_lag: Gauge,
    /// Age of the oldest change that is not in the text index yet, in seconds; 0 for an in-process engine.
    pub text_lag_seconds: Gauge,
    /// Documents sent again to an external engine.
    pub text_retries: Counter,
    /// Documents that an external engine rejected.
    pub text_refused: Counter,
    /// Indices that were built beside the active one of an external engine.
    pub text_rebuilds: Counter,
    /// Bulk requests to an external engine.
    pub text_bulks: Counter,
    pub text_bulk_microseconds: Counter,
    /// Search requests to an external engine, and their total duration.
    pub text_queries: Counter,
    pub text_query_microseconds: Counter,
    pub searches: Counter,
    pub search_microseconds: Counter,
    pub access_reviews: Counter,
    /// Authorization decisions per cluster, resource, namespace and caller.
    pub verdicts: Counter,
}

impl Metrics {
    /// All counters and gauges.
    pub fn series(&self) -> Vec<Series> {
        let count = |name, help, counter: &Counter| Series::without_labels(name, help, true, counter.get());
        let gauge = |name, help, gauge: &Gauge| Series::without_labels(name, help, false, gauge.get());
        let level = |name, help, level: &PeakGauge| Series::without_labels(name, help, false, level.get());
        vec![
            count("crowsnest_cache_objects_received_total", "Objects received from members.", &self.objects_received),
            count("crowsnest_cache_bytes_received_total", "Bytes of received objects.", &self.bytes_received),
            count(
                "crowsnest_cache_objects_refused_total",
                "Received objects that do not belong to the requested resource.",
                &self.objects_refused,
            ),
            count(
                "crowsnest_cache_objects_outdated_total",
                "Events ignored because they were older than the stored object.",
                &self.objects_outdated,
            ),
            count("crowsnest_cache_changes_total", "Changes stored.", &self.changes),
            count("crowsnest_cache_transactions_total", "Transactions of the store.", &self.transactions),
            count(
                "crowsnest_cache_transaction_microseconds_total",
                "Duration of transactions.",
                &self.transaction_microseconds,
            ),
            count("crowsnest_cache_lists_total", "Lists taken from members.", &self.lists),
            count("crowsnest_cache_watches_total", "Watches opened.", &self.watches),
            count("crowsnest_cache_watch_failures_total", "Lists and watches that failed.", &self.watch_failures),
            gauge("crowsnest_cache_collectors", "Collectors running.", &self.collectors),
            level(
                "crowsnest_cache_bytes_in_flight",
                "Bytes of objects between the network and the store.",
                &self.bytes_in_flight,
            ),
            count("crowsnest_text_commits_total", "Commits of the text index.", &self.text_commits),
            count(
                "crowsnest_text_commit_microseconds_total",
                "Duration of commits of the text index.",
                &self.text_commit_microseconds,
            ),
            count("crowsnest_text_documents_total", "Documents written to the text index.", &self.text_documents),
            gauge("crowsnest_text_segments", "Segments of the text index.", &self.text_segments),
            gauge("crowsnest_text_lag_changes", "Changes that are not in the text index yet.", &self.text_lag),
            gauge(
                "crowsnest_text_lag_seconds",
                "Age of the oldest change that is not in the search engine yet, in seconds.",
                &self.text_lag_seconds,
            ),
            count("crowsnest_text_retries_total", "Documents sent to a search engine again.", &self.text_retries),
            count("crowsnest_text_refused_total", "Documents rejected by a search engine.", &self.text_refused),
            count(
                "crowsnest_text_rebuilds_total",
                "Indices built beside the active index of a search engine.",
                &self.text_rebuilds,
            ),
            count("crowsnest_text_bulks_total", "Bulk requests to a search engine.", &self.text_bulks),
            count(
                "crowsnest_text_bulk_microseconds_total",
                "Duration of bulk requests to a search engine.",
                &self.text_bulk_microseconds,
            ),
            count("crowsnest_text_queries_total", "Search requests to a search engine.", &self.text_queries),
            count(
                "crowsnest_text_query_microseconds_total",
                "Duration of search requests to a search engine.",
                &self.text_query_microseconds,
            ),
            count("crowsnest_searches_total", "Searches answered.", &self.searches),
            count("crowsnest_search_microseconds_total", "Duration of searches.", &self.search_microseconds),
            count(
                "crowsnest_access_reviews_total",
                "Access reviews sent to clusters whose RBAC objects are not cached.",
                &self.access_reviews,
            ),
            count(
                "crowsnest_access_verdicts_total",
                "Authorization decisions per cluster, resource, namespace and caller; cached decisions do not count.",
                &self.verdicts,
            ),
        ]
    }
}
