//! Write fence: the time until which this process may write as the leader. The holder of the leader election Lease
//! sets it; it is checked before each write.
//!
//! A fence ends by the clocks of this process before another process can acquire the Lease. Of the monotonic and the
//! wall clock, the one that advanced more is used, since the monotonic clock stops while a machine is suspended.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

/// A reading of the monotonic and the wall clock at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    pub mono: Instant,
    pub wall: SystemTime,
}

impl ClockReading {
    pub fn now() -> Self {
        ClockReading { mono: Instant::now(), wall: SystemTime::now() }
    }

    /// Time until the deadline, or zero once either clock has reached it.
    fn time_until(&self, deadline: &Deadline) -> Duration {
        let mono = deadline.mono.saturating_duration_since(self.mono);
        let wall = deadline.wall.map_or(mono, |wall| wall.duration_since(self.wall).unwrap_or_default());
        mono.min(wall)
    }
}

/// The end of a fence on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Deadline {
    mono: Instant,
    /// `None` if the clock cannot represent the time.
    wall: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is no leader election, so no other process writes.
    Unlimited,
    /// Another process is the leader; this one only reads.
    Standby,
    /// This process is the leader, and may write until the deadline.
    OpenUntil(Deadline),
    /// This process is no longer the leader.
    Closed,
}

/// Write fence. Clones are cheap and share the state.
#[derive(Debug, Clone)]
pub struct Fence(Arc<watch::Sender<State>>);

impl Default for Fence {
    /// A fence without leader election, which never closes.
    fn default() -> Self {
        Fence(Arc::new(watch::Sender::new(State::Unlimited)))
    }
}

impl Fence {
    /// A fence that rejects writes until it is extended.
    pub fn closed() -> Self {
        Fence(Arc::new(watch::Sender::new(State::Standby)))
    }

    /// Allows writes for a duration after `from`, the time before the request for the Lease was sent.
    pub fn extend(&self, from: ClockReading, duration: Duration) {
        let deadline = Deadline { mono: from.mono + duration, wall: from.wall.checked_add(duration) };
        self.0.send_replace(State::OpenUntil(deadline));
    }

    /// Rejects writes from now on.
    pub fn close(&self) {
        self.0.send_replace(State::Closed);
    }

    /// Remaining time for writes, or `None` if there is no limit.
    pub fn remaining(&self, now: ClockReading) -> Option<Duration> {
        match *self.0.borrow() {
            State::Unlimited => None,
            State::OpenUntil(deadline) => Some(now.time_until(&deadline)),
            State::Standby | State::Closed => Some(Duration::ZERO),
        }
    }

    pub fn is_open(&self, now: ClockReading) -> bool {
        self.remaining(now) != Some(Duration::ZERO)
    }

    /// Returns true if the fence can end: this process is or was the leader.
    pub fn can_end(&self) -> bool {
        matches!(*self.0.borrow(), State::OpenUntil(_) | State::Closed)
    }

    /// Returns true if the fence has ended. A former leader must stop reading as well as writing.
    pub fn has_ended(&self, now: ClockReading) -> bool {
        self.can_end() && !self.is_open(now)
    }

    /// Waits until the fence has ended.
    pub async fn wait_for_end(&self) {
        let mut changes = self.0.subscribe();
        loop {
            changes.borrow_and_update();
            let now = ClockReading::now();
            if self.has_ended(now) {
                return;
            }
            let wait = if self.can_end() { self.remaining(now) } else { None };
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
    #[case::immediately(0, 0, 10)]
    #[case::later(4, 4, 6)]
    #[case::ended(10, 10, 0)]
    #[case::machine_suspended(1, 30, 0)]
    #[case::wall_clock_set_back(10, 2, 0)]
    #[case::wall_clock_set_back_before_the_start(3, 0, 7)]
    fn the_clock_that_advanced_more_takes_effect(#[case] mono: u32, #[case] wall: u32, #[case] remaining: u64) {
        let fence = Fence::closed();
        let from = ClockReading::now();
        fence.extend(from, 10 * SECOND);
        let now = ClockReading { mono: from.mono + mono * SECOND, wall: from.wall + wall * SECOND };
        assert_eq!(fence.remaining(now), Some(Duration::from_secs(remaining)));
        assert_eq!(fence.is_open(now), remaining > 0);
    }

    #[tokio::test]
    async fn the_end_of_the_fence_wakes_waiting_tasks() {
        let fence = Fence::default();
        assert!(fence.is_open(ClockReading::now()));
        let waiting = fence.clone();
        let waiting = tokio::spawn(async move { waiting.wait_for_end().await });
        fence.close();
        waiting.await.unwrap();
        assert!(!fence.is_open(ClockReading::now()));
    }

    #[test]
    fn a_fence_that_was_never_open_allows_reads() {
        let fence = Fence::closed();
        let now = ClockReading::now();
        assert!(!fence.is_open(now) && !fence.has_ended(now));
        fence.extend(now, SECOND);
        assert!(fence.is_open(now) && !fence.has_ended(now));
        fence.close();
        assert!(!fence.is_open(now) && fence.has_ended(now));
    }
}
