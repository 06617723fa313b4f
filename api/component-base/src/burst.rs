//! Burst detection: a leaky counter. Time is an argument.

use std::time::{Duration, Instant};

/// Limits of a [`BurstDetector`].
#[derive(Debug, Clone, Copy)]
pub struct BurstLimits {
    /// Occurrences per second that are never a burst.
    pub rate: f64,
    /// Number of occurrences above that rate at which a burst begins. It ends at half of them.
    pub begin: f64,
}

impl BurstLimits {
    /// Maximum level, so that a long burst ends as fast as a short one.
    fn max(self) -> f64 {
        self.begin * 2.0
    }
}

/// Detects that something occurs more frequently than a rate.
#[derive(Debug)]
pub struct BurstDetector {
    limits: BurstLimits,
    level: f64,
    at: Option<Instant>,
    /// Begin of the current burst.
    began: Option<Instant>,
}

impl BurstDetector {
    pub fn new(limits: BurstLimits) -> Self {
        BurstDetector { limits, level: 0.0, at: None, began: None }
    }

    /// Counts one occurrence.
    pub fn observe(&mut self, now: Instant) {
        self.leak(now);
        self.level = (self.level + 1.0).min(self.limits.max());
        if self.level >= self.limits.begin {
            self.began = self.began.or(Some(now));
        }
    }

    /// True during a burst.
    pub fn is_burst(&mut self, now: Instant) -> bool {
        self.began(now).is_some()
    }

    /// Time at which the current burst began. `None` if there is no burst.
    pub fn began(&mut self, now: Instant) -> Option<Instant> {
        self.leak(now);
        self.began
    }

    /// Time until the burst ends if nothing more occurs. `None` if there is no burst.
    pub fn ends_in(&mut self, now: Instant) -> Option<Duration> {
        let above = self.is_burst(now).then_some(self.level - self.limits.begin / 2.0)?;
        Some(Duration::from_secs_f64(above.max(0.0) / self.limits.rate))
    }

    fn leak(&mut self, now: Instant) {
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = self.at.max(Some(now));
        self.level = (self.level - since.as_secs_f64() * self.limits.rate).max(0.0);
        self.began = self.began.filter(|_| self.level > self.limits.begin / 2.0);
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
    #[case::long_bursts_end_as_fast(1_000, 2_900, true)]
    #[case::long_bursts_end(1_000, 3_000, false)]
    fn a_burst_begins_and_ends(#[case] occurrences: usize, #[case] later: u64, #[case] expected: bool) {
        let start = Instant::now();
        let mut detector = BurstDetector::new(BurstLimits { rate: 10.0, begin: 20.0 });
        (0..occurrences).for_each(|_| detector.observe(start));
        let now = start + Duration::from_millis(later);
        assert_eq!(detector.is_burst(now), expected);
        assert_eq!(detector.ends_in(now).is_some(), expected);
    }

    #[test]
    fn the_next_burst_begins_later() {
        let start = Instant::now();
        let mut detector = BurstDetector::new(BurstLimits { rate: 10.0, begin: 20.0 });
        for seconds in [0, 1, 10] {
            let now = start + Duration::from_secs(seconds);
            (0..30).for_each(|_| detector.observe(now));
            let began = if seconds < 10 { start } else { now };
            assert_eq!(detector.began(now), Some(began));
        }
    }

    #[test]
    fn the_permitted_rate_is_no_burst() {
        let start = Instant::now();
        let mut detector = BurstDetector::new(BurstLimits { rate: 10.0, begin: 20.0 });
        for nth in 0..1_000 {
            detector.observe(start + Duration::from_millis(100) * nth);
        }
        assert!(!detector.is_burst(start + Duration::from_secs(100)));
    }
}
