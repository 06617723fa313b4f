//! Report of `crowsnest cache check`.

use serde::Serialize;

/// Maximum number of problems listed; the others are counted.
const MAX_PROBLEMS: usize = 20;

/// Result of checking a cache.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    pub records: u64,
    pub versions: u64,
    /// Documents of the text index.
    pub documents: u64,
    /// Changes that are not in the text index yet.
    pub behind: u64,
    /// The first problems found.
    pub problems: Vec<String>,
    /// Number of problems that are not listed.
    pub more: u64,
}

impl CheckReport {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    pub fn add_problem(&mut self, text: String) {
        if self.problems.len() < MAX_PROBLEMS { self.problems.push(text) } else { self.more += 1 }
    }
}
