//! State and counters of a sink.

use crate::error::SinkFailure;

/// State and counters of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SinkProgress {
    pub state: SinkState,
    /// True if the database has responded since the last failure.
    pub is_connected: bool,
    /// Seq up to which all changes are in the graph. 0 before the first load.
    pub position: u64,
    /// Seq of the newest change of the store.
    pub latest: u64,
    /// Time at which the graph last had all changes, in Unix milliseconds. None before the first time.
    pub caught_up_ms: Option<i64>,
    /// Time of the oldest change that may be missing in the graph, or an earlier time, in Unix milliseconds. None if there is no
    /// such change or its time is unknown.
    pub oldest_pending_ms: Option<i64>,
    pub counters: SinkCounters,
    /// Clusters in which permissions are unknown: their nodes are not changed.
    pub undecided_clusters: Vec<String>,
}

/// Counters of a sink, which begin at 0 with the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SinkCounters {
    /// Node rows sent.
    pub nodes_written: u64,
    /// Nodes whose edges were replaced.
    pub nodes_relinked: u64,
    /// Nodes removed because their object was deleted or may no longer be written.
    pub nodes_removed: u64,
    /// Nodes removed by sweeps.
    pub nodes_swept: u64,
    /// Objects that could not be decoded and were skipped.
    pub objects_skipped: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Complete loads of the graph.
    pub loads: u64,
    /// Sessions that ended with an error.
    pub failures: u64,
}

/// Current activity of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SinkState {
    #[default]
    Connecting,
    /// Writes all objects of the store.
    Loading,
    /// The load is complete; changes are written as they happen.
    Following,
    /// The last session failed; the sink tries again.
    Waiting { failure: SinkFailure, message: String },
}

impl SinkProgress {
    /// Number of changes of the store that may be missing in the graph.
    pub fn lag(&self) -> u64 {
        self.latest.saturating_sub(self.position)
    }

    /// Age in seconds of the oldest change that may be missing in the graph, at a time in Unix milliseconds. 0 if the graph
    /// has all changes, None if the age is unknown.
    pub fn lag_seconds(&self, now_ms: i64) -> Option<u64> {
        if self.lag() == 0 {
            return Some(0);
        }
        let milliseconds = now_ms.saturating_sub(self.oldest_pending_ms?);
        Some(u64::try_from(milliseconds).unwrap_or_default() / 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::no_lag(7, None, Some(0))]
    #[case::pending(5, Some(1_500), Some(3))]
    #[case::unknown(5, None, None)]
    #[case::clock_set_back(5, Some(9_000), Some(0))]
    fn lag_is_the_age_of_the_oldest_pending_change(
        #[case] position: u64,
        #[case] oldest_pending_ms: Option<i64>,
        #[case] expected: Option<u64>,
    ) {
        let progress = SinkProgress { position, latest: 7, oldest_pending_ms, ..SinkProgress::default() };
        assert_eq!(progress.lag_seconds(5_000), expected);
    }
}
