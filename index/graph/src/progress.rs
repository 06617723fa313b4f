//! State and counters of a sink.

use crate::error::SinkFailure;

/// State and counters of a sink. Counters begin at 0 with the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SinkProgress {
    pub state: SinkState,
    /// True if the database has responded since the last failure.
    pub is_connected: bool,
    /// Seq up to which all changes are in the graph. 0 before the first load.
    pub position: u64,
    /// Seq of the newest change of the store.
    pub latest: u64,
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
    /// Clusters in which permissions are unknown: their nodes are not changed.
    pub undecided_clusters: Vec<String>,
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
    /// Number of changes of the store that the graph may lack.
    pub fn lag(&self) -> u64 {
        self.latest.saturating_sub(self.position)
    }
}
