//! Circuit breaker for a member. While a member does not respond, only occasional trial requests are sent; other
//! requests fail immediately with the reason.
//!
//! Pure: time is an argument. Each breaker is kept with the member's connection ([`crate::transport`]) and resets
//! with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of consecutive failures that opens the breaker.
const FAILURES: u32 = 3;
/// Shortest and longest time between trial requests. It doubles with each failed one.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(30);

/// State of a member's breaker.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Number of failures since the last response.
    failures: u32,
    open: Option<Open>,
    /// Time of the last response.
    last_response: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    why: Arc<str>,
    /// Time from which one trial request is admitted.
    until: Instant,
    wait: Duration,
}

/// A request rejected by an open breaker.
#[derive(Debug, PartialEq, Eq)]
pub struct Rejection {
    pub why: Arc<str>,
    pub retry_after: Duration,
}

impl Breaker {
    /// Admits or rejects a request.
    pub fn admit(&mut self, now: Instant) -> Result<(), Rejection> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if now < open.until {
            return Err(Rejection { why: Arc::clone(&open.why), retry_after: open.until - now });
        }
        open.until = now + open.wait;
        Ok(())
    }

    /// Records a response of any status.
    pub fn record_response(&mut self, now: Instant) {
        *self = Self { failures: 0, open: None, last_response: Some(now) };
    }

    /// Records a request that could not be sent.
    pub fn record_failure(&mut self, now: Instant, why: &str) {
        self.failures += 1;
        if self.failures >= FAILURES || self.open.is_some() {
            self.trip(now, why);
        }
    }

    /// Records a request sent at `began` that timed out. Ignored if the member has responded since then.
    pub fn record_timeout(&mut self, now: Instant, began: Instant, why: &str) {
        if self.last_response.is_none_or(|at| at < began) {
            self.trip(now, why);
        }
    }

    fn trip(&mut self, now: Instant, why: &str) {
        let wait = self.open.as_ref().map_or(MIN_WAIT, |open| MAX_WAIT.min(2 * open.wait));
        self.open = Some(Open { why: why.into(), until: now + wait, wait });
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
    #[case::other_requests_are_answered("aaSa")]
    fn the_backoff_grows_while_a_member_does_not_respond(#[case] story: &str) {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for (half, what) in (0_u32..).zip(story.chars()) {
            let now = start + half * Duration::from_millis(500);
            let admitted = breaker.admit(now);
            assert_eq!(admitted.is_ok(), what != 'r', "{story} at {half}: {admitted:?}");
            match what {
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
        breaker.record_timeout(now, now, "no answer");
        let retry_after = MIN_WAIT / 2;
        assert_eq!(
            breaker.admit(now + MIN_WAIT - retry_after),
            Err(Rejection { why: "no answer".into(), retry_after })
        );
        for _ in 0..10 {
            breaker.record_timeout(now, now, "no answer");
        }
        assert_eq!(breaker.admit(now), Err(Rejection { why: "no answer".into(), retry_after: MAX_WAIT }));
    }
}
