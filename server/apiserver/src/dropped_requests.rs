//! Delay after which clients retry when the limit of concurrent requests is reached: it grows while requests are
//! dropped, as `dropped_requests_tracker.go` of k8s.io/apiserver computes it.

use std::collections::VecDeque;
use std::time::Instant;

use crowsnest_apimachinery::status::{ApiError, Details};
use parking_lot::Mutex;

/// Maximum of `Retry-After` in seconds.
const MAX_RETRY_AFTER: u32 = 32;

/// History of the requests that one limit has dropped.
#[derive(Debug)]
pub struct DroppedRequests {
    started_at: Instant,
    history: Mutex<History>,
}

#[derive(Debug)]
struct History {
    /// The current second.
    current: DroppedInSecond,
    /// Earlier seconds with dropped requests, at most [`MAX_RETRY_AFTER`] before the last of them; oldest first.
    earlier: VecDeque<DroppedInSecond>,
    /// Current `Retry-After` in seconds.
    retry_after: u32,
    /// Second of the last increase.
    increased_at: Option<u64>,
}

/// Number of requests that were dropped within a second. Seconds are counted from [`DroppedRequests::started_at`].
#[derive(Debug, Clone, Copy)]
struct DroppedInSecond {
    second: u64,
    requests: u64,
}

impl Default for DroppedRequests {
    fn default() -> Self {
        let current = DroppedInSecond { second: 0, requests: 0 };
        let history = History { current, earlier: VecDeque::new(), retry_after: 1, increased_at: None };
        Self { started_at: Instant::now(), history: Mutex::new(history) }
    }
}

impl DroppedRequests {
    /// Records a request that is dropped now; returns its error 429 with `Retry-After`.
    pub fn reject(&self, now: Instant) -> ApiError {
        let second = now.saturating_duration_since(self.started_at).as_secs();
        let retry_after = self.history.lock().record(second);
        ApiError::too_many_requests()
            .with_details(Details { retry_after_seconds: Some(retry_after), ..Details::default() })
    }
}

impl History {
    /// Records a dropped request; returns `Retry-After` in seconds, which changes only when a new second begins.
    fn record(&mut self, second: u64) -> u32 {
        if second <= self.current.second {
            self.current.requests += 1;
            return self.retry_after;
        }
        let last = std::mem::replace(&mut self.current, DroppedInSecond { second, requests: 1 });
        self.earlier.push_back(last);
        let is_outdated = |oldest: &DroppedInSecond| last.second - oldest.second > u64::from(MAX_RETRY_AFTER);
        while self.earlier.front().is_some_and(is_outdated) {
            self.earlier.pop_front();
        }
        self.adjust(second);
        self.retry_after
    }

    /// Adjusts `Retry-After` to the number of requests dropped in the last `Retry-After` seconds: doubles it if there
    /// were at least three a second, but at most once in that time; reduces it by a second if there was less than one a
    /// second.
    fn adjust(&mut self, second: u64) {
        let period = u64::from(self.retry_after);
        let recent = self.earlier.iter().filter(|dropped| second - dropped.second <= period);
        let requests: u64 = recent.map(|dropped| dropped.requests).sum();
        let may_increase = self.increased_at.is_none_or(|increased_at| second - increased_at >= period);
        if may_increase && requests >= 3 * period {
            self.retry_after = (self.retry_after * 2).min(MAX_RETRY_AFTER);
            self.increased_at = Some(second);
        } else if requests < period && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rstest::rstest;

    /// Requests dropped in each of some seconds, and `Retry-After` of the last of them.
    type Drops<'a> = &'a [(u64, usize, u32)];

    #[rstest]
    #[case::one_a_second(&[(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)])]
    #[case::first_second(&[(0, 100, 1)])]
    #[case::overload(&[(0, 3, 1), (1, 9, 2), (2, 9, 2), (3, 9, 4), (4, 9, 4), (7, 9, 8), (15, 90, 8), (16, 90, 16)])]
    #[case::one_spike_is_one_increase(&[(5, 100, 1), (6, 1, 2), (7, 1, 2), (8, 1, 2)])]
    #[case::recovery(&[(0, 3, 1), (1, 12, 2), (2, 1, 2), (3, 1, 4), (10, 1, 3), (20, 1, 2), (30, 1, 1), (40, 1, 1)])]
    #[case::maximum(&[(0, 200, 1), (1, 200, 2), (3, 200, 4), (4, 200, 4), (7, 200, 8), (15, 200, 16), (16, 200, 16),
        (32, 200, 32), (64, 200, 32), (65, 200, 32)])]
    fn retry_after_follows_the_number_of_dropped_requests(#[case] drops: Drops<'_>) {
        let dropped = DroppedRequests::default();
        for (second, requests, expected) in drops {
            let now = dropped.started_at + Duration::from_secs(*second);
            let errors: Vec<_> = (0..*requests).map(|_| dropped.reject(now)).collect();
            assert!(errors.iter().all(|error| error.code == 429));
            let last = errors.last().and_then(|error| error.details.as_ref()?.retry_after_seconds);
            assert_eq!(last, Some(*expected), "second {second}");
        }
    }

    #[test]
    fn the_history_is_bounded() {
        let dropped = DroppedRequests::default();
        for second in 0..10_000 {
            dropped.reject(dropped.started_at + Duration::from_secs(second));
        }
        assert!(dropped.history.lock().earlier.len() <= MAX_RETRY_AFTER as usize + 1);
    }
}
