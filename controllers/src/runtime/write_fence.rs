//! Write fence: the time until which this process may write as the leader. The holder of the leader election Lease
//! sets it; it is checked before each write.
//!
//! A fence ends by the clocks of this process before another process can acquire the Lease. Of the monotonic and the
//! wall clock, the one that advanced more is used, since the monotonic clock stops while a machine is suspended.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

/// A point in time on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub mono: Instant,
    pub wall: SystemTime,
}

impl Now {
    pub fn read() -> Self {
        Now { mono: Instant::now(), wall: SystemTime::now() }
    }

    /// Time until `later`, or zero once either clock has reached it.
    fn until(&self, later: &Until) -> Duration {
        let mono = later.mono.saturating_duration_since(self.mono);
        let wall = later.wall.map_or(mono, |wall| wall.duration_since(self.wall).unwrap_or_default());
        mono.min(wall)
    }
}

/// The end of a fence on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Until {
    mono: Instant,
    /// `None` if the clock cannot represent the time.
    wall: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No other process writes.
    Alone,
    /// Another process writes; this one only reads.
    Watching,
    Until(Until),
    Closed,
}

/// Write fence. Clones are cheap and share the state.
#[derive(Debug, Clone)]
pub struct Fence(Arc<watch::Sender<State>>);

impl Default for Fence {
    /// A fence without leader election, which never closes.
    fn default() -> Self {
        Fence(Arc::new(watch::Sender::new(State::Alone)))
    }
}

impl Fence {
    /// A fence that rejects writes until it is extended.
    pub fn closed() -> Self {
        Fence(Arc::new(watch::Sender::new(State::Watching)))
    }

    /// Allows writes for a duration after `from`, the time before the request for the Lease was sent.
    pub fn extend(&self, from: Now, lasts: Duration) {
        let until = Until { mono: from.mono + lasts, wall: from.wall.checked_add(lasts) };
        self.0.send_replace(State::Until(until));
    }

    /// Rejects writes from now on.
    pub fn close(&self) {
        self.0.send_replace(State::Closed);
    }

    /// Remaining time for writes, or `None` if there is no limit.
    pub fn left(&self, now: Now) -> Option<Duration> {
        match *self.0.borrow() {
            State::Alone => None,
            State::Until(until) => Some(now.until(&until)),
            State::Watching | State::Closed => Some(Duration::ZERO),
        }
    }

    pub fn is_open(&self, now: Now) -> bool {
        self.left(now) != Some(Duration::ZERO)
    }

    /// Returns true if the fence can end, which is so for leaders.
    pub fn ends(&self) -> bool {
        matches!(*self.0.borrow(), State::Until(_) | State::Closed)
    }

    /// Returns true if the fence has ended. A former leader must stop reading as well as writing.
    pub fn is_over(&self, now: Now) -> bool {
        self.ends() && !self.is_open(now)
    }

    /// Waits until the fence has ended.
    pub async fn ended(&self) {
        let mut changes = self.0.subscribe();
        loop {
            changes.borrow_and_update();
            let now = Now::read();
            if self.is_over(now) {
                return;
            }
            let wait = if self.ends() { self.left(now) } else { None };
            // The sender lives as long as `self`.
            tokio::select! {
                () = tokio::time::sleep(wait.unwrap_or(MAX_WAIT).min(MAX_WAIT)) => {}
                _ = changes.changed() => {}
            }
        }
    }
}

/// Maximum time between checks of the clocks.
const MAX_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const SECOND: Duration = Duration::from_secs(1);

    #[rstest]
    #[case::at_once(0, 0, 10)]
    #[case::later(4, 4, 6)]
    #[case::over(10, 10, 0)]
    #[case::the_machine_slept(1, 30, 0)]
    #[case::somebody_set_the_clock_back(10, 2, 0)]
    #[case::somebody_set_the_clock_back_early(3, 0, 7)]
    fn the_clock_that_advanced_more_counts(#[case] mono: u32, #[case] wall: u32, #[case] left: u64) {
        let fence = Fence::closed();
        let from = Now::read();
        fence.extend(from, 10 * SECOND);
        let now = Now { mono: from.mono + mono * SECOND, wall: from.wall + wall * SECOND };
        assert_eq!(fence.left(now), Some(Duration::from_secs(left)));
        assert_eq!(fence.is_open(now), left > 0);
    }

    #[tokio::test]
    async fn the_end_wakes_waiting_tasks() {
        let fence = Fence::default();
        assert!(fence.is_open(Now::read()));
        let waiting = fence.clone();
        let waiting = tokio::spawn(async move { waiting.ended().await });
        fence.close();
        waiting.await.unwrap();
        assert!(!fence.is_open(Now::read()));
    }

    #[test]
    fn a_closed_fence_allows_reads() {
        let fence = Fence::closed();
        let now = Now::read();
        assert!(!fence.is_open(now) && !fence.is_over(now));
        fence.extend(now, SECOND);
        assert!(fence.is_open(now) && !fence.is_over(now));
        fence.close();
        assert!(!fence.is_open(now) && fence.is_over(now));
    }
}
