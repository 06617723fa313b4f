use serde::Serialize;

/// Findings shown; the rest is counted.
const SHOWN: usize = 20;

/// Findings of a check of a cache.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    pub records: u64,
    pub versions: u64,
    /// Documents of the text index.
    pub documents: u64,
    /// Changes the text index has still to take in.
    pub behind: u64,
    /// What is wrong, the first of it.
    pub problems: Vec<String>,
    /// How much more is wrong.
    pub more: u64,
}

impl CheckReport {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    pub fn problem(&mut self, text: String) {
        if self.problems.len() < SHOWN { self.problems.push(text) } else { self.more += 1 }
    }
}
