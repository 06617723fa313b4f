//! Delays between attempts: exponential backoff and jitter.
//!
//! This module reads no clock and generates no random numbers, so its delays can be tested exactly. `backon`, which
//! kube-rs uses, offers only iterators with their own jitter; work queues need the delay for a number of failures.

use std::time::Duration;

/// Exponential backoff: the delay doubles with each consecutive failure, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

impl Backoff {
    /// Delays start at `initial` and do not exceed `max`.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max }
    }

    /// Delay after a number of consecutive failures. 0 is treated as 1.
    pub fn delay(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// Delays of an operation that is repeated until it succeeds.
    pub fn delays(self) -> Delays {
        Delays { backoff: self, failures: 0 }
    }
}

/// Delays of one operation, counted from its last success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delays {
    backoff: Backoff,
    failures: u32,
}

impl Delays {
    /// Delay after one more failure.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures)
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Multiplies a delay by a factor between `range.0` and `range.1`, so that many clients do not retry at the same
/// moment. `random` is between 0 and 1 and chooses the factor.
pub fn jitter(delay: Duration, range: (f64, f64), random: f64) -> Duration {
    delay.mul_f64(range.0 + (range.1 - range.0) * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(30));

    #[rstest]
    #[case(0, 10)]
    #[case(1, 10)]
    #[case(2, 20)]
    #[case(12, 20_480)]
    #[case(13, 30_000)]
    #[case(u32::MAX, 30_000)]
    fn delays_double_up_to_the_maximum(#[case] failures: u32, #[case] milliseconds: u64) {
        assert_eq!(BACKOFF.delay(failures), Duration::from_millis(milliseconds));
    }

    #[test]
    fn delays_restart_after_a_success() {
        let mut delays = BACKOFF.delays();
        assert_eq!([delays.next_delay(), delays.next_delay()], [10, 20].map(Duration::from_millis));
        delays.reset();
        assert_eq!(delays.next_delay(), Duration::from_millis(10));
    }

    #[rstest]
    #[case((0.5, 1.5), 0.0, 500)]
    #[case((0.5, 1.5), 0.75, 1250)]
    #[case((1.0, 0.5), 1.0, 500)]
    #[case((1.0, 0.5), 7.0, 500)]
    #[case((1.0, 0.5), -1.0, 1000)]
    fn jitter_stays_in_its_range(#[case] range: (f64, f64), #[case] random: f64, #[case] milliseconds: u64) {
        assert_eq!(jitter(Duration::from_secs(1), range, random), Duration::from_millis(milliseconds));
    }
}
