//! Search lag: the age of the oldest change that searches do not find yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Samples are kept at a distance of at least the lag divided by this, so that an hour of lag takes a few hundred samples and a
/// week about a thousand.
const LAG_RESOLUTION: u32 = 128;

/// Samples of the newest change, oldest first: the time at which it was first seen, and the newest seq until the next sample.
/// The lag is never underestimated, and overestimated by at most its greatest value divided by [`LAG_RESOLUTION`].
#[derive(Debug, Default)]
pub(super) struct LagClock {
    samples: VecDeque<(Instant, u64)>,
}

impl LagClock {
    /// Records the newest seq and the newest searchable seq. Returns the lag.
    pub fn tick(&mut self, now: Instant, latest: u64, searchable: u64) -> Duration {
        let step = self.samples.front().map(|(since, _)| now.saturating_duration_since(*since) / LAG_RESOLUTION);
        match self.samples.back_mut() {
            Some((_, seq)) if *seq >= latest => {}
            Some((at, seq)) if step.is_some_and(|step| now.saturating_duration_since(*at) < step) => *seq = latest,
            _ => self.samples.push_back((now, latest)),
        }
        while self.samples.front().is_some_and(|(_, seq)| *seq <= searchable) {
            self.samples.pop_front();
        }
        self.samples.front().map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(ticks: &[(u64, u64, u64)]) -> Vec<u64> {
        let (start, mut clock) = (Instant::now(), LagClock::default());
        let at = |second: u64| start + Duration::from_secs(second);
        ticks.iter().map(|(second, latest, found)| clock.tick(at(*second), *latest, *found).as_secs()).collect()
    }

    #[test]
    fn lag_is_the_age_of_the_oldest_change_not_found() {
        let lags = ticks(&[(0, 5, 5), (1, 5, 5), (2, 7, 5), (5, 9, 5), (9, 9, 7), (10, 9, 9), (11, 9, 9)]);
        assert_eq!(lags, [0, 0, 0, 3, 4, 0, 0]);
    }

    #[test]
    fn memory_is_bounded_during_a_long_lag() {
        const DAY: u64 = 86_400;
        let (start, mut clock) = (Instant::now(), LagClock::default());
        for second in 0..DAY {
            let lag = clock.tick(start + Duration::from_secs(second), 100 * (second + 1), 0);
            assert_eq!(lag, Duration::from_secs(second));
        }
        assert!(clock.samples.len() < 1_200, "{}", clock.samples.len());
        // Caught up to the first half.
        let lag = clock.tick(start + Duration::from_secs(DAY), 100 * (DAY + 1), 50 * DAY).as_secs();
        assert!((DAY / 2..DAY / 2 + 2 * DAY / u64::from(LAG_RESOLUTION)).contains(&lag), "{lag}");
    }
}
