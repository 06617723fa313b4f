//! State and counters of a writer.

use crate::opensearch::client::ErrorResponse;
use std::collections::VecDeque;

/// Position and counters of a writer. Counters begin at 0 with the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    pub state: State,
    /// Name of the index behind the alias that is written to.
    pub index: String,
    /// Sequence number up to which the engine has acknowledged all changes and the position is saved in the index.
    /// During a rebuild, the position of the new index.
    pub position: u64,
    /// Newest sequence number of the source.
    pub latest: u64,
    /// Documents written or deleted.
    pub written: u64,
    /// Documents that were not written because the engine had the same or a newer version.
    pub superseded: u64,
    /// Documents sent again.
    pub retried: u64,
    /// Documents that the engine refused.
    pub dead_letters: u64,
    /// Indices built beside the one that serves searches.
    pub rebuilds: u64,
    /// Rounds of bulk requests, and the time they took together.
    pub rounds: u64,
    pub round_microseconds: u64,
}

/// Current activity of a writer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    #[default]
    Connecting,
    Following,
    /// A new index is filled while the old one, if there is one, serves searches.
    Rebuilding,
    /// Another process writes; the position is the one that it committed.
    Standby,
    /// The engine or the index cannot be written to now; the writer tries again.
    Waiting {
        reason: String,
    },
}

impl Progress {
    /// Number of sequence numbers that the index is behind.
    pub fn lag(&self) -> u64 {
        self.latest.saturating_sub(self.position)
    }
}

/// A document that the engine refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: String,
    pub seq: u64,
    pub reason: String,
}

/// The last dead letters, one for each document.
#[derive(Debug)]
pub struct DeadLetters {
    letters: VecDeque<DeadLetter>,
    limit: usize,
}

impl DeadLetters {
    pub fn new(limit: usize) -> Self {
        Self { letters: VecDeque::new(), limit: limit.max(1) }
    }

    pub fn add(&mut self, letter: DeadLetter) {
        self.remove(&letter.id);
        if self.letters.len() == self.limit {
            self.letters.pop_front();
        }
        self.letters.push_back(letter);
    }

    /// Removes the dead letter of a document of which the engine has accepted a newer state.
    pub fn remove(&mut self, id: &str) {
        self.letters.retain(|letter| letter.id != id);
    }

    pub fn list(&self) -> Vec<DeadLetter> {
        self.letters.iter().cloned().collect()
    }
}

impl DeadLetter {
    pub fn new(id: String, seq: u64, error_response: &ErrorResponse) -> Self {
        Self { id, seq, reason: error_response.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_letters_are_kept_one_for_each_document() {
        let letter = |id: &str, seq| DeadLetter { id: id.to_owned(), seq, reason: String::new() };
        let mut letters = DeadLetters::new(2);
        for (id, seq) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            letters.add(letter(id, seq));
        }
        assert_eq!(letters.list(), [letter("a", 3), letter("c", 4)]);
        letters.remove("a");
        assert_eq!(letters.list(), [letter("c", 4)]);
    }
}
