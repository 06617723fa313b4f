//! Detection of bursts: a leaky bucket counts occurrences. The current time is an argument.

use std::time::{Duration, Instant};

/// Limits of a [`BurstDetector`].
#[derive(Debug, Clone, Copy)]
pub struct BurstLimits {
    /// Rate below which occurrences are never a burst.
    pub rate_per_second: f64,
    /// Number of occurrences above that rate at which a burst begins. It ends at half of this number.
    pub begin_threshold: f64,
}

impl BurstLimits {
    /// Maximum level. It limits the time from the last occurrence of a long burst to the end of the burst.
    fn max_level(self) -> f64 {
        self.begin_threshold * 2.0
    }
}

/// Detects that an event occurs more often than the configured rate for some time. It needs a lock to be shared by
/// threads.
#[derive(Debug)]
pub struct BurstDetector {
    limits: BurstLimits,
    /// Occurrences above the rate, at `updated_at`.
    level: f64,
    updated_at: Option<Instant>,
    /// Start of the current burst.
    started_at: Option<Instant>,
}

impl BurstDetector {
    pub fn new(limits: BurstLimits) -> Self {
        BurstDetector { limits, level: 0.0, updated_at: None, started_at: None }
    }

    /// Counts one occurrence.
    pub fn observe(&mut self, now: Instant) {
        self.leak(now);
        self.level = (self.level + 1.0).min(self.limits.max_level());
        if self.level >= self.limits.begin_threshold {
            self.started_at = self.started_at.or(Some(now));
        }
    }

    /// True during a burst.
    pub fn is_burst(&mut self, now: Instant) -> bool {
        self.started_at(now).is_some()
    }

    /// Time at which the current burst began. `None` if there is no burst.
    pub fn started_at(&mut self, now: Instant) -> Option<Instant> {
        self.leak(now);
        self.started_at
    }

    /// Time until the burst ends if nothing more occurs. `None` if there is no burst.
    pub fn time_to_end(&mut self, now: Instant) -> Option<Duration> {
        let excess = self.is_burst(now).then_some(self.level - self.limits.begin_threshold / 2.0)?;
        Some(Duration::from_secs_f64(excess.max(0.0) / self.limits.rate_per_second))
    }

    /// Lowers the level according to the time since the last update, and ends the burst at half of the threshold.
    fn leak(&mut self, now: Instant) {
        let elapsed = self.updated_at.map_or(Duration::ZERO, |updated_at| now.saturating_duration_since(updated_at));
        self.updated_at = self.updated_at.max(Some(now));
        self.level = (self.level - elapsed.as_secs_f64() * self.limits.rate_per_second).max(0.0);
        self.started_at = self.started_at.filter(|_| self.level > self.limits.begin_threshold / 2.0);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::within_the_limit(19, 0, false)]
    #[case::at_the_limit(20, 0, true)]
    #[case::ends_at_half(20, 1000, false)]
    #[case::lasts_until_half(20, 900, true)]
    #[case::level_is_capped_and_still_high(1_000, 2_900, true)]
    #[case::level_is_capped_and_ends_at_half(1_000, 3_000, false)]
    fn a_burst_begins_at_the_threshold_and_ends_at_half(
        #[case] occurrences: usize,
        #[case] later_ms: u64,
        #[case] expected: bool,
    ) {
        let start = Instant::now();
        let mut detector = BurstDetector::new(BurstLimits { rate_per_second: 10.0, begin_threshold: 20.0 });
        (0..occurrences).for_each(|_| detector.observe(start));
        let now = start + Duration::from_millis(later_ms);
        assert_eq!(detector.is_burst(now), expected);
        assert_eq!(detector.time_to_end(now).is_some(), expected);
    }

    #[test]
    fn a_burst_keeps_its_start_until_it_ends() {
        let start = Instant::now();
        let mut detector = BurstDetector::new(BurstLimits { rate_per_second: 10.0, begin_threshold: 20.0 });
        for seconds in [0, 1, 10] {
            let now = start + Duration::from_secs(seconds);
            (0..30).for_each(|_| detector.observe(now));
            let expected = if seconds < 10 { start } else { now };
            assert_eq!(detector.started_at(now), Some(expected));
        }
    }

    #[test]
    fn occurrences_at_the_rate_are_not_a_burst() {
        let start = Instant::now();
        let mut detector = BurstDetector::new(BurstLimits { rate_per_second: 10.0, begin_threshold: 20.0 });
        for nth in 0..1_000 {
            detector.observe(start + Duration::from_millis(100) * nth);
        }
        assert!(!detector.is_burst(start + Duration::from_secs(100)));
    }
}
