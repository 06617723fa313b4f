//! Progress of an export, as reported in conditions and metrics.

use super::error::ExportFailure;
use crowsnest_search::opensearch::writer::DeadLetter;

/// State and counters of an export. Counters begin at 0 with the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportProgress {
    pub state: ExportState,
    /// True if the backend has responded since the last connection failure.
    pub is_connected: bool,
    /// Name and version of the backend; empty until it has responded.
    pub backend: String,
    /// All changes up to here are in the backend. 0 before the first comparison.
    pub position: u64,
    /// Newest change of the store.
    pub latest: u64,
    /// Documents written.
    pub written: u64,
    /// Documents deleted.
    pub deleted: u64,
    /// Documents that were not written because the backend had the same or a newer version.
    pub superseded: u64,
    /// Documents sent again.
    pub retried: u64,
    /// Number of times that the backend rejected a document.
    pub refused: u64,
    /// Indices compared with the store.
    pub comparisons: u64,
    /// The last documents that the backend rejected.
    pub dead_letters: Vec<DeadLetter>,
}

/// Current activity of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ExportState {
    #[default]
    Connecting,
    /// Documents of an index are compared with the store.
    Comparing {
        index: String,
    },
    Following,
    /// The backend cannot be written to at present; the export retries.
    Waiting {
        failure: ExportFailure,
        reason: String,
    },
    /// No resource is selected, and the backend contains no documents of Crowsnest.
    Cleaned,
}

impl ExportProgress {
    /// Number of changes of the store that may be missing in the backend.
    pub fn lag(&self) -> u64 {
        self.latest.saturating_sub(self.position)
    }
}
