//! Counters of the cache, read by whoever exposes metrics. Plain atomics, so that nothing here waits.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// Everything the cache counts.
#[derive(Debug, Default)]
pub struct Metrics {
    pub objects_received: Counter,
    pub bytes_received: Counter,
    pub objects_refused: Counter,
    pub changes: Counter,
    pub transactions: Counter,
    pub transaction_microseconds: Counter,
    pub lists: Counter,
    pub watches: Counter,
    pub watch_failures: Counter,
    pub collectors: Gauge,
    pub text_commits: Counter,
    pub text_commit_microseconds: Counter,
    pub text_documents: Counter,
    /// Changes the text index has still to take in.
    pub text_lag: Gauge,
    pub searches: Counter,
    pub search_microseconds: Counter,
}

impl Metrics {
    /// (name, help, value) of each, for an exposition format.
    pub fn read(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![
            ("crowsnest_cache_objects_received_total", "Objects members sent.", self.objects_received.get()),
            ("crowsnest_cache_bytes_received_total", "Bytes of those objects.", self.bytes_received.get()),
            (
                "crowsnest_cache_objects_refused_total",
                "Objects that were not what was asked for.",
                self.objects_refused.get(),
            ),
            ("crowsnest_cache_changes_total", "Changes stored.", self.changes.get()),
            ("crowsnest_cache_transactions_total", "Transactions of the store.", self.transactions.get()),
            ("crowsnest_cache_transaction_microseconds_total", "Time they took.", self.transaction_microseconds.get()),
            ("crowsnest_cache_lists_total", "Lists taken from members.", self.lists.get()),
            ("crowsnest_cache_watches_total", "Watches opened.", self.watches.get()),
            ("crowsnest_cache_watch_failures_total", "Lists and watches that failed.", self.watch_failures.get()),
            ("crowsnest_cache_collectors", "Collectors running.", self.collectors.get()),
            ("crowsnest_text_commits_total", "Commits of the text index.", self.text_commits.get()),
            ("crowsnest_text_commit_microseconds_total", "Time they took.", self.text_commit_microseconds.get()),
            ("crowsnest_text_documents_total", "Documents written to the text index.", self.text_documents.get()),
            ("crowsnest_text_lag_changes", "Changes the text index has still to take in.", self.text_lag.get()),
            ("crowsnest_searches_total", "Searches answered.", self.searches.get()),
            ("crowsnest_search_microseconds_total", "Time they took.", self.search_microseconds.get()),
        ]
    }
}
