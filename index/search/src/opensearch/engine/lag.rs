//! How long the oldest change that searches cannot find has waited.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A moment is kept if the one before it is this part of the lag away: an hour takes some hundred moments, a week a thousand.
const PART: u32 = 128;

/// Moments at which there was a newer change, oldest first, each with the newest change until the next moment. The lag is never
/// too low, and too high by a part of its greatest value at most.
#[derive(Debug, Default)]
pub(super) struct LagClock {
    moments: VecDeque<(Instant, u64)>,
}

impl LagClock {
    /// Notes the newest change, and what searches find of the changes. Returns the lag.
    pub fn tick(&mut self, now: Instant, latest: u64, searchable: u64) -> Duration {
        let step = self.moments.front().map(|(since, _)| now.saturating_duration_since(*since) / PART);
        match self.moments.back_mut() {
            Some((_, seen)) if *seen >= latest => {}
            Some((at, seen)) if step.is_some_and(|step| now.saturating_duration_since(*at) < step) => *seen = latest,
            _ => self.moments.push_back((now, latest)),
        }
        while self.moments.front().is_some_and(|(_, seen)| *seen <= searchable) {
            self.moments.pop_front();
        }
        self.moments.front().map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(*since))
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
    fn the_oldest_change_that_is_not_found_counts() {
        let lags = ticks(&[(0, 5, 5), (1, 5, 5), (2, 7, 5), (5, 9, 5), (9, 9, 7), (10, 9, 9), (11, 9, 9)]);
        assert_eq!(lags, [0, 0, 0, 3, 4, 0, 0]);
    }

    #[test]
    fn a_day_away_takes_bounded_memory() {
        const DAY: u64 = 86_400;
        let (start, mut clock) = (Instant::now(), LagClock::default());
        for second in 0..DAY {
            let lag = clock.tick(start + Duration::from_secs(second), 100 * (second + 1), 0);
            assert_eq!(lag, Duration::from_secs(second));
        }
        assert!(clock.moments.len() < 1_200, "{}", clock.moments.len());
        // Caught up to the first half.
        let lag = clock.tick(start + Duration::from_secs(DAY), 100 * (DAY + 1), 50 * DAY).as_secs();
        assert!((DAY / 2..DAY / 2 + 2 * DAY / u64::from(PART)).contains(&lag), "{lag}");
    }
}
