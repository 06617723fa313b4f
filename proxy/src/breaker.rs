//! Circuit breaker for a member. While a member does not respond, only occasional trial requests are sent; other
//! requests fail immediately with the reason of the failure.
//!
//! Has no side effects: time is an argument. Each breaker is kept with the member's connection ([`crate::transport`])
//! and resets with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of consecutive failures that opens the breaker.
const FAILURE_THRESHOLD: u32 = 3;
/// Minimum and maximum interval of trial requests. It doubles with each failed one.
const MIN_TRIAL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_TRIAL_INTERVAL: Duration = Duration::from_secs(30);

/// State of a member's breaker.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Number of failures since the last response.
    failures: u32,
    open_state: Option<OpenState>,
    /// Time of the last response.
    last_response: Option<Instant>,
}

#[derive(Debug)]
struct OpenState {
    reason: Arc<str>,
    /// Time from which the next trial request is admitted.
    next_trial: Instant,
    trial_interval: Duration,
}

/// A request rejected by an open breaker.
#[derive(Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Arc<str>,
    pub retry_after: Duration,
}

impl Breaker {
    /// Admits or rejects a request.
    pub fn admit(&mut self, now: Instant) -> Result<(), Rejection> {
        let Some(open_state) = &mut self.open_state else { return Ok(()) };
        if now < open_state.next_trial {
            return Err(Rejection { reason: Arc::clone(&open_state.reason), retry_after: open_state.next_trial - now });
        }
        open_state.next_trial = now + open_state.trial_interval;
        Ok(())
    }

    /// Records a response of any status.
    pub fn record_response(&mut self, now: Instant) {
        *self = Self { failures: 0, open_state: None, last_response: Some(now) };
    }

    /// Records a request that could not be sent.
    pub fn record_failure(&mut self, now: Instant, reason: &str) {
        self.failures += 1;
        if self.failures >= FAILURE_THRESHOLD || self.open_state.is_some() {
            self.trip(now, reason);
        }
    }

    /// Records a request sent at `started_at` that timed out. Ignored if the member has responded since then.
    pub fn record_timeout(&mut self, now: Instant, started_at: Instant, reason: &str) {
        if self.last_response.is_none_or(|at| at < started_at) {
            self.trip(now, reason);
        }
    }

    fn trip(&mut self, now: Instant, reason: &str) {
        let trial_interval = self
            .open_state
            .as_ref()
            .map_or(MIN_TRIAL_INTERVAL, |open_state| MAX_TRIAL_INTERVAL.min(2 * open_state.trial_interval));
        self.open_state = Some(OpenState { reason: reason.into(), next_trial: now + trial_interval, trial_interval });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One event per half second: a request is admitted and answered (a), fails (f) or times out (s), or is
    /// rejected (r).
    #[rstest::rstest]
    #[case::healthy("aaaa")]
    #[case::occasional_failures("ffaffaf")]
    #[case::three_in_a_row("fffrfrrrf")]
    #[case::closed_by_one_response("fffraffa")]
    #[case::timeouts("srsrrra")]
    #[case::timeout_after_another_request_was_answered("aaSa")]
    fn the_backoff_grows_while_a_member_does_not_respond(#[case] events: &str) {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for (half_second, event) in (0_u32..).zip(events.chars()) {
            let now = start + half_second * Duration::from_millis(500);
            let admitted = breaker.admit(now);
            assert_eq!(admitted.is_ok(), event != 'r', "{events} at {half_second}: {admitted:?}");
            match event {
                'a' => breaker.record_response(now),
                'f' => breaker.record_failure(now, "refused"),
                's' => breaker.record_timeout(now, now, "silent"),
                // Sent before another request that was answered.
                'S' => breaker.record_timeout(now, start, "silent"),
                _ => {}
            }
        }
    }

    #[test]
    fn rejections_have_the_reason_and_the_remaining_time() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.record_timeout(now, now, "no response");
        let retry_after = MIN_TRIAL_INTERVAL / 2;
        assert_eq!(
            breaker.admit(now + MIN_TRIAL_INTERVAL - retry_after),
            Err(Rejection { reason: "no response".into(), retry_after })
        );
        for _ in 0..10 {
            breaker.record_timeout(now, now, "no response");
        }
        assert_eq!(
            breaker.admit(now),
            Err(Rejection { reason: "no response".into(), retry_after: MAX_TRIAL_INTERVAL })
        );
    }
}
