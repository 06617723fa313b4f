//! Whether a member is asked at all: one that does not answer is asked now and then, and whoever else wants something of it
//! hears at once why not.
//!
//! Pure: time is an argument. Each member's is kept beside its connection ([`crate::transport`]) and starts over with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many requests in a row that could not be sent are enough.
const FAILURES: u32 = 3;
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// What is known of a member's answers.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Since the last answer.
    failures: u32,
    open: Option<Open>,
    /// When it answered last.
    answered: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    why: Arc<str>,
    /// Then one request is let through to see.
    until: Instant,
    wait: Duration,
}

/// A request that is not sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub why: Arc<str>,
    pub again_in: Duration,
}

impl Breaker {
    /// Lets a request through, or not.
    pub fn admit(&mut self, now: Instant) -> Result<(), Refused> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if now < open.until {
            return Err(Refused { why: Arc::clone(&open.why), again_in: open.until - now });
        }
        open.until = now + open.wait;
        Ok(())
    }

    /// Whatever it answered, it answered.
    pub fn answered(&mut self, now: Instant) {
        *self = Self { failures: 0, open: None, answered: Some(now) };
    }

    /// A request could not be sent.
    pub fn failed(&mut self, now: Instant, why: &str) {
        self.failures += 1;
        if self.failures >= FAILURES || self.open.is_some() {
            self.shut(now, why);
        }
    }

    /// A request that was sent at `began` was not answered in time. Others may have been: then it was about that one.
    pub fn silent(&mut self, now: Instant, began: Instant, why: &str) {
        if self.answered.is_none_or(|answered| answered < began) {
            self.shut(now, why);
        }
    }

    fn shut(&mut self, now: Instant, why: &str) {
        let wait = self.open.as_ref().map_or(SHORTEST, |open| LONGEST.min(2 * open.wait));
        self.open = Some(Open { why: why.into(), until: now + wait, wait });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens, half a second each: a request is let through and answered (a), fails (f) or stays silent (s), or is
    /// refused (r).
    #[rstest::rstest]
    #[case::in_good_health("aaaa")]
    #[case::now_and_then("ffaffaf")]
    #[case::three_in_a_row("fffrfrrrf")]
    #[case::one_answer_is_enough("fffraffa")]
    #[case::silence("srsrrra")]
    #[case::others_are_answered("aaSa")]
    fn members_are_asked_less_the_longer_they_are_silent(#[case] story: &str) {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for (half, what) in (0_u32..).zip(story.chars()) {
            let now = start + half * Duration::from_millis(500);
            let admitted = breaker.admit(now);
            assert_eq!(admitted.is_ok(), what != 'r', "{story} at {half}: {admitted:?}");
            match what {
                'a' => breaker.answered(now),
                'f' => breaker.failed(now, "refused"),
                's' => breaker.silent(now, now, "silent"),
                // It was sent before another one that was answered.
                'S' => breaker.silent(now, start, "silent"),
                _ => {}
            }
        }
    }

    #[test]
    fn who_is_refused_hears_why_and_for_how_long() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.silent(now, now, "no answer");
        let again_in = SHORTEST / 2;
        assert_eq!(breaker.admit(now + SHORTEST - again_in), Err(Refused { why: "no answer".into(), again_in }));
        for _ in 0..10 {
            breaker.silent(now, now, "no answer");
        }
        assert_eq!(breaker.admit(now), Err(Refused { why: "no answer".into(), again_in: LONGEST }));
    }
}
