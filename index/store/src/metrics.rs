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

    fn series(&self, name: &'static str, help: &'static str) -> Series {
        Series::without_labels(name, help, true, self.get())
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

    fn series(&self, name: &'static str, help: &'static str) -> Series {
        Series::without_labels(name, help, false, self.get())
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

    fn series(&self, name: &'static str, help: &'static str) -> Series {
        Series::without_labels(name, help, false, self.get())
    }
}

/// Declares [`Metrics`]. A row is the help text, the field with its type, and the name of the metric.
macro_rules! metrics {
    ($( $(#[doc = $help:literal])+ $field:ident: $kind:ident = $name:literal, )+) => {
        /// All metrics of the cache.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $( $(#[doc = $help])+ pub $field: $kind, )+
        }

        impl Metrics {
            /// All counters and gauges.
            pub fn series(&self) -> Vec<Series> {
                // The text of a doc comment begins with a space.
                vec![$( self.$field.series($name, concat!($($help),+).trim_start()) ),+]
            }
        }
    };
}

metrics! {
    /// Objects received from members.
    objects_received: Counter = "crowsnest_cache_objects_received_total",
    /// Bytes of received objects.
    bytes_received: Counter = "crowsnest_cache_bytes_received_total",
    /// Received objects that do not belong to the requested resource.
    objects_refused: Counter = "crowsnest_cache_objects_refused_total",
    /// Events ignored because they were older than the stored object.
    objects_outdated: Counter = "crowsnest_cache_objects_outdated_total",
    /// Changes stored.
    changes: Counter = "crowsnest_cache_changes_total",
    /// Transactions of the store.
    transactions: Counter = "crowsnest_cache_transactions_total",
    /// Duration of transactions.
    transaction_microseconds: Counter = "crowsnest_cache_transaction_microseconds_total",
    /// Lists requested from members.
    lists: Counter = "crowsnest_cache_lists_total",
    /// Watches opened.
    watches: Counter = "crowsnest_cache_watches_total",
    /// Lists and watches that failed.
    watch_failures: Counter = "crowsnest_cache_watch_failures_total",
    /// Collectors running.
    collectors: Gauge = "crowsnest_cache_collectors",
    /// Bytes of objects between the network and the store.
    bytes_in_flight: PeakGauge = "crowsnest_cache_bytes_in_flight",
    /// Commits of the text index.
    text_commits: Counter = "crowsnest_text_commits_total",
    /// Duration of commits of the text index.
    text_commit_microseconds: Counter = "crowsnest_text_commit_microseconds_total",
    /// Documents written to the text index.
    text_documents: Counter = "crowsnest_text_documents_total",
    // Fewer segments are faster to search.
    /// Segments of the text index.
    text_segments: Gauge = "crowsnest_text_segments",
    /// Changes that are not in the text index yet.
    text_lag: Gauge = "crowsnest_text_lag_changes",
    // 0 for an in-process engine.
    /// Age of the oldest change that is not in the search engine yet, in seconds.
    text_lag_seconds: Gauge = "crowsnest_text_lag_seconds",
    /// Documents sent to a search engine again.
    text_retries: Counter = "crowsnest_text_retries_total",
    /// Documents rejected by a search engine.
    text_refused: Counter = "crowsnest_text_refused_total",
    /// Indices built beside the active index of a search engine.
    text_rebuilds: Counter = "crowsnest_text_rebuilds_total",
    /// Bulk requests to a search engine.
    text_bulks: Counter = "crowsnest_text_bulks_total",
    /// Duration of bulk requests to a search engine.
    text_bulk_microseconds: Counter = "crowsnest_text_bulk_microseconds_total",
    /// Search requests to a search engine.
    text_queries: Counter = "crowsnest_text_queries_total",
    /// Duration of search requests to a search engine.
    text_query_microseconds: Counter = "crowsnest_text_query_microseconds_total",
    /// Completed searches.
    searches: Counter = "crowsnest_searches_total",
    /// Duration of searches.
    search_microseconds: Counter = "crowsnest_search_microseconds_total",
    /// Access reviews sent to clusters whose RBAC objects are not cached.
    access_reviews: Counter = "crowsnest_access_reviews_total",
    /// Authorization decisions per cluster, resource, namespace and caller; cached decisions do not count.
    verdicts: Counter = "crowsnest_access_verdicts_total",
}
