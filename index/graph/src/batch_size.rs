//! Adapts the size of transactions to the database. Has no side effects.

/// Number of full transactions after which the size is doubled. A database that cannot write the double size fails once in
/// as many transactions.
const TRANSACTIONS_BEFORE_GROWTH: u32 = 16;

/// Maximum number of objects of a transaction. It is halved after a transaction that needed too much time or memory, and
/// doubled after a number of full ones, up to the configured size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchSize {
    current: usize,
    configured: usize,
    /// Full transactions since the last change of the size.
    full_transactions: u32,
}

impl BatchSize {
    /// Begins with the configured size, at least 1.
    pub fn new(configured: usize) -> Self {
        let configured = configured.max(1);
        Self { current: configured, configured, full_transactions: 0 }
    }

    pub fn get(self) -> usize {
        self.current
    }

    pub fn shrink(&mut self) {
        self.current = (self.current / 2).max(1);
        self.full_transactions = 0;
    }

    /// Counts a committed transaction. One with fewer objects than the current size does not show that the database can
    /// write more.
    pub fn record_success(&mut self, objects: usize) {
        if objects < self.current || self.current == self.configured {
            return;
        }
        self.full_transactions += 1;
        if self.full_transactions == TRANSACTIONS_BEFORE_GROWTH {
            self.current = self.current.saturating_mul(2).min(self.configured);
            self.full_transactions = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A size after failures, and then transactions of these numbers of objects.
    fn size_after(configured: usize, failures: usize, transactions: &[usize]) -> usize {
        let mut size = BatchSize::new(configured);
        (0..failures).for_each(|_| size.shrink());
        transactions.iter().for_each(|objects| size.record_success(*objects));
        size.get()
    }

    #[rstest]
    #[case::not_configured(0, 0, &[], 1)]
    #[case::configured(5, 0, &[5; 32], 5)]
    #[case::one_failure(5, 1, &[], 2)]
    #[case::at_least_one_object(5, 4, &[], 1)]
    #[case::too_few_transactions(1_000, 1, &[500; 15], 500)]
    #[case::doubled(1_000, 2, &[250; 16], 500)]
    #[case::counted_again_after_growth(1_000, 2, &[500; 31], 500)]
    #[case::doubled_twice(1_000, 2, &[500; 32], 1_000)]
    #[case::up_to_the_configured_size(5, 1, &[5; 32], 5)]
    #[case::transactions_that_are_not_full(1_000, 1, &[499; 64], 500)]
    fn the_size_follows_failures_and_full_transactions(
        #[case] configured: usize,
        #[case] failures: usize,
        #[case] transactions: &[usize],
        #[case] expected: usize,
    ) {
        assert_eq!(size_after(configured, failures, transactions), expected);
    }

    #[test]
    fn a_failure_restarts_the_count() {
        let mut size = BatchSize::new(1_000);
        size.shrink();
        (0..15).for_each(|_| size.record_success(500));
        size.shrink();
        size.record_success(250);
        assert_eq!(size.get(), 250);
    }
}
