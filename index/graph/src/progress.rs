//! State and counters of a sink.

use crate::error::SinkFailure;

/// State and counters of a sink. Counters begin at 0 with the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SinkProgress {
    pub state: SinkState,
    /// The database has answered since the sink last waited for it.
    pub connected: bool,
    /// All changes up to here are in the graph. 0 before the first load.
    pub position: u64,
    /// Newest change of the store.
    pub latest: u64,
    /// Rows of nodes sent.
    pub written: u64,
    /// Nodes of which the edges were replaced.
    pub linked: u64,
    /// Nodes whose object ended.
    pub removed: u64,
    /// Nodes removed by a sweep.
    pub swept: u64,
    /// Objects that could not be read.
    pub refused: u64,
    /// Transactions committed.
    pub transactions: u64,
    /// Complete loads of the graph.
    pub loads: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Clusters in which permissions are unknown: their nodes are kept as they are.
    pub undecided: Vec<String>,
}

/// Current activity of a sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SinkState {
    #[default]
    Connecting,
    /// All objects are written.
    Loading,
    Following,
    /// The database cannot be written to now; the sink tries again.
    Waiting {
        failure: SinkFailure,
        message: String,
    },
}

impl SinkProgress {
    /// Number of changes of the store that the graph may lack.
    pub fn lag(&self) -> u64 {
        self.latest.saturating_sub(self.position)
    }
}
