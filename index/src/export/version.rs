//! External versions of exported documents; pure functions.
//!
//! Indices of Karmada's layout have fixed names, so they outlive stores: sequence numbers of a new store start over,
//! and documents of Karmada's own writer count their updates from 1. A version therefore has an epoch in its high bits,
//! above the sequence number. Each comparison of a backend with the store allocates a new epoch, so its writes
//! supersede all earlier ones, including the tombstones of documents that were deleted because no selection included
//! them.

use serde::{Deserialize, Serialize};

/// Number of bits of the sequence number: 2^38 changes last for 8 years at 1,000 changes per second.
const SEQ_BITS: u32 = 38;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;
/// 2020-01-01T00:00:00Z in Unix minutes, when epochs begin; they fit in 25 bits until 2083.
const FIRST_MINUTE: i64 = 26_297_280;
const LAST_EPOCH: u64 = (1 << (63 - SEQ_BITS)) - 1;

/// A version as it is sent to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentVersion {
    pub epoch: u64,
    pub seq: u64,
}

impl DocumentVersion {
    pub fn new(epoch: u64, seq: u64) -> Self {
        Self { epoch: epoch.min(LAST_EPOCH), seq: seq.min(SEQ_MASK) }
    }

    pub fn number(self) -> u64 {
        self.epoch << SEQ_BITS | self.seq
    }

    /// None for a version of another writer, which has no epoch.
    pub fn parse(number: u64) -> Option<Self> {
        let version = Self { epoch: number >> SEQ_BITS, seq: number & SEQ_MASK };
        (version.epoch > 0).then_some(version)
    }
}

/// Epochs that a store has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// Documents of earlier epochs were written from another store.
    pub first: u64,
    pub last: u64,
}

impl Epochs {
    /// The next epoch of a store: the current minute, but greater than all earlier epochs and than `outdated_epoch`,
    /// the greatest one found in a backend.
    pub fn next(before: Option<Self>, now_ms: i64, outdated_epoch: u64) -> Self {
        let minute = u64::try_from(now_ms.div_euclid(60_000) - FIRST_MINUTE).unwrap_or(0).max(1);
        let last = minute.max(before.map_or(0, |before| before.last + 1)).max(outdated_epoch + 1);
        Self { first: before.map_or(last, |before| before.first), last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(DocumentVersion { epoch: 3_500_000, seq: 42 })]
    #[case(DocumentVersion { epoch: LAST_EPOCH, seq: SEQ_MASK })]
    fn versions_are_read_back(#[case] version: DocumentVersion) {
        assert!(version.number() <= i64::MAX as u64);
        assert_eq!(DocumentVersion::parse(version.number()), Some(version));
    }

    #[test]
    fn a_later_epoch_wins_over_any_sequence_number() {
        assert!(DocumentVersion::new(8, 1).number() > DocumentVersion::new(7, 1 << 37).number());
        assert_eq!(DocumentVersion::parse(70_000), None, "a version that counts updates is of another writer");
    }

    #[rstest]
    #[case::first(None, 0, Epochs { first: 10, last: 10 })]
    #[case::again_in_the_same_minute(Some(Epochs { first: 10, last: 10 }), 0, Epochs { first: 10, last: 11 })]
    #[case::later(Some(Epochs { first: 2, last: 3 }), 0, Epochs { first: 2, last: 10 })]
    #[case::behind_the_backend(None, 500, Epochs { first: 501, last: 501 })]
    fn epochs_grow(#[case] before: Option<Epochs>, #[case] outdated_epoch: u64, #[case] expected: Epochs) {
        assert_eq!(Epochs::next(before, (FIRST_MINUTE + 10) * 60_000 + 5, outdated_epoch), expected);
    }
}
