//! Exponential backoff between attempts.

use std::time::Duration;

/// Exponential backoff: the pause doubles with each failure, up to the longest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    pub first: Duration,
    pub longest: Duration,
}

impl Pauses {
    /// The pause after `failures` earlier ones in a row. `jitter` is between 0 and 1 and
    /// selects a value from the upper half of the pause.
    pub fn after(&self, failures: u32, jitter: f64) -> Duration {
        let whole =
            self.first.saturating_mul(1_u32.checked_shl(failures.min(31)).unwrap_or(u32::MAX)).min(self.longest);
        whole.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, 1.0, 100)]
    #[case(0, 0.0, 50)]
    #[case(1, 1.0, 200)]
    #[case(3, 0.5, 600)]
    #[case(10, 1.0, 5000)]
    #[case(u32::MAX, 7.0, 5000)]
    fn pauses_grow_to_the_longest(#[case] failures: u32, #[case] jitter: f64, #[case] milliseconds: u64) {
        let pauses = Pauses { first: Duration::from_millis(100), longest: Duration::from_secs(5) };
        assert_eq!(pauses.after(failures, jitter), Duration::from_millis(milliseconds));
    }
}
