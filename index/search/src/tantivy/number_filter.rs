//! Filters of the numbers that a segment has in a column, in memory.
//!
//! A search for objects by id or key looks its numbers up in each segment, but most occur in only one of them. A lookup in a
//! dictionary of terms decompresses a block of some hundred terms; the filter avoids those without effect.

use roaring::RoaringBitmap;

/// Bits of a hash in addition to those that number the values: one in 2^7 absent numbers passes.
const EXTRA_BITS: u32 = 7;
/// Multiplier of Fibonacci hashing: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A set of numbers that may contain others. It needs two to four bytes per number.
#[derive(Debug)]
pub struct NumberFilter {
    hashes: RoaringBitmap,
    /// Number of bits of each hash, 1 to 32.
    bits: u32,
}

impl NumberFilter {
    pub fn new(numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let bits = (numbers.len().max(1).ilog2() + 1 + EXTRA_BITS).min(u32::BITS);
        let mut hashes: Vec<u32> = numbers.map(|number| hash(number, bits)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Self { hashes: hashes.into_iter().collect(), bits }
    }

    /// False if the number is certainly not in the set.
    pub fn may_contain(&self, number: u64) -> bool {
        self.hashes.contains(hash(number, self.bits))
    }
}

/// The highest bits of the product; at most 32.
fn hash(number: u64, bits: u32) -> u32 {
    (number.wrapping_mul(MULTIPLIER) >> (u64::BITS - bits)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    proptest! {
        #[test]
        fn contained_numbers_pass(numbers in prop::collection::vec(any::<u64>(), 0..200)) {
            let filter = NumberFilter::new(numbers.iter().copied());
            prop_assert!(numbers.iter().all(|number| filter.may_contain(*number)));
        }
    }

    #[rstest]
    #[case::sequence(1)]
    #[case::aligned(1 << 32)]
    #[case::scattered(0x0123_4567_89AB_CDEF)]
    fn few_other_numbers_pass(#[case] distance: u64) {
        let multiples = |range: std::ops::Range<u64>| range.map(move |nth| nth.wrapping_mul(distance));
        let numbers: Vec<u64> = multiples(0..10_000).collect();
        let filter = NumberFilter::new(numbers.into_iter());
        let passed = multiples(10_000..20_000).filter(|number| filter.may_contain(*number)).count();
        assert!(passed < 200, "{passed} of 10,000");
    }

    #[test]
    fn an_empty_set_rejects_all() {
        let filter = NumberFilter::new(std::iter::empty());
        assert!(!filter.may_contain(0) && !filter.may_contain(u64::MAX));
    }
}
