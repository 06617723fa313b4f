//! Counters of the cache, read by whoever exposes metrics. Plain atomics, so that nothing here waits.

use std::sync::atomic::{AtomicU64, Ordering};

use crowsnest_component_base::metrics::Series;

/// A number that only grows.
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

/// A number that goes up and down.
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

/// A sum of what is held at the moment.
#[derive(Debug, Default)]
pub struct Level {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Level {
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

    /// The most there has been.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// Everything the cache counts.
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
    /// Of objects between the wire and the store.
    pub bytes_in_flight: Level,
    pub text_commits: Counter,
    pub text_commit_microseconds: Counter,
    pub text_documents: Counter,
    /// Parts of the text index; fewer answer faster.
    pub text_segments: Gauge,
    /// Changes the text index has still to take in.
    pub text_lag: Gauge,
    /// Time that the oldest of them has waited, in seconds; 0 for an engine in this process.
    pub text_lag_seconds: Gauge,
    /// Documents sent again to an engine outside of this process.
    pub text_retries: Counter,
    /// Documents that it refused.
    pub text_refused: Counter,
    /// Indices built beside the one that answered.
    pub text_rebuilds: Counter,
    /// Rounds of bulk requests.
    pub text_bulks: Counter,
    pub text_bulk_microseconds: Counter,
    /// Requests of searches to an engine outside of this process, and the time until they were answered.
    pub text_queries: Counter,
    pub text_query_microseconds: Counter,
    pub searches: Counter,
    pub search_microseconds: Counter,
    pub access_reviews: Counter,
    /// Of a cluster, resource and namespace to one caller.
    pub verdicts: Counter,
}

impl Metrics {
    /// Each counter and gauge.
    pub fn series(&self) -> Vec<Series> {
        let count = |name, help, counter: &Counter| Series::plain(name, help, true, counter.get());
        let gauge = |name, help, gauge: &Gauge| Series::plain(name, help, false, gauge.get());
        let level = |name, help, level: &Level| Series::plain(name, help, false, level.get());
        vec![
            count("crowsnest_cache_objects_received_total", "Objects members sent.", &self.objects_received),
            count("crowsnest_cache_bytes_received_total", "Bytes of those objects.", &self.bytes_received),
            count(
                "crowsnest_cache_objects_refused_total",
                "Objects that were not what was asked for.",
                &self.objects_refused,
            ),
            count(
                "crowsnest_cache_objects_outdated_total",
                "Events that were older than what is stored, and left out.",
                &self.objects_outdated,
            ),
            count("crowsnest_cache_changes_total", "Changes stored.", &self.changes),
            count("crowsnest_cache_transactions_total", "Transactions of the store.", &self.transactions),
            count("crowsnest_cache_transaction_microseconds_total", "Time they took.", &self.transaction_microseconds),
            count("crowsnest_cache_lists_total", "Lists taken from members.", &self.lists),
            count("crowsnest_cache_watches_total", "Watches opened.", &self.watches),
            count("crowsnest_cache_watch_failures_total", "Lists and watches that failed.", &self.watch_failures),
            gauge("crowsnest_cache_collectors", "Collectors running.", &self.collectors),
            level(
                "crowsnest_cache_bytes_in_flight",
                "Bytes of objects between the wire and the store.",
                &self.bytes_in_flight,
            ),
            count("crowsnest_text_commits_total", "Commits of the text index.", &self.text_commits),
            count("crowsnest_text_commit_microseconds_total", "Time they took.", &self.text_commit_microseconds),
            count("crowsnest_text_documents_total", "Documents written to the text index.", &self.text_documents),
            gauge("crowsnest_text_segments", "Parts of the text index.", &self.text_segments),
            gauge("crowsnest_text_lag_changes", "Changes the text index has still to take in.", &self.text_lag),
            gauge(
                "crowsnest_text_lag_seconds",
                "Time that the oldest change has waited for a search engine, in seconds.",
                &self.text_lag_seconds,
            ),
            count(
                "crowsnest_text_retries_total",
                "Documents that were sent to a search engine again.",
                &self.text_retries,
            ),
            count("crowsnest_text_refused_total", "Documents that a search engine refused.", &self.text_refused),
            count(
                "crowsnest_text_rebuilds_total",
                "Indices of a search engine that were built beside the one that answered.",
                &self.text_rebuilds,
            ),
            count("crowsnest_text_bulks_total", "Rounds of bulk requests to a search engine.", &self.text_bulks),
            count("crowsnest_text_bulk_microseconds_total", "Time they took.", &self.text_bulk_microseconds),
            count("crowsnest_text_queries_total", "Requests of searches to a search engine.", &self.text_queries),
            count(
                "crowsnest_text_query_microseconds_total",
                "Time until they were answered.",
                &self.text_query_microseconds,
            ),
            count("crowsnest_searches_total", "Searches answered.", &self.searches),
            count("crowsnest_search_microseconds_total", "Time they took.", &self.search_microseconds),
            count(
                "crowsnest_access_reviews_total",
                "Access reviews asked of clusters whose rules are not in the cache.",
                &self.access_reviews,
            ),
            count(
                "crowsnest_access_verdicts_total",
                "Verdicts of who may read what in a cluster, resource and namespace; those that are remembered are not made again.",
                &self.verdicts,
            ),
        ]
    }
}
