//! How the text index lets others come first. Answers do, and what comes in from members: the text index may be a little late, the
//! cache may not. Used by the follower's threads alone.

use std::time::{Duration, Instant};

/// Longest rest at once.
const LONGEST: Duration = Duration::from_millis(250);
/// Work that is too short to tell from.
const SHORTEST: Duration = Duration::from_millis(10);

/// Gives this thread, and those it starts, which build segments and merge them, a lower priority.
#[cfg_attr(
    not(target_os = "linux"),
    expect(unused_variables, reason = "only Linux's threads have a priority of their own")
)]
pub(super) fn stand_back(nice: i32) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, "the text index's threads keep their priority");
    }
}

/// Work of a thread that others wait for. However nice, a thread that runs keeps a core for some milliseconds from whoever wakes
/// up meanwhile, and where many short steps wait for each other that is most of the time: so it rests.
pub(super) struct Work {
    began: Instant,
    counted: Option<Counted>,
}

impl Work {
    /// Of this thread.
    pub fn begin() -> Self {
        Work { began: Instant::now(), counted: Counted::read() }
    }

    /// How long to rest after it.
    pub fn rest(&self) -> Duration {
        match (&self.counted, Counted::read()) {
            (Some(before), Some(now)) => rest(self.began.elapsed(), now.since(before)),
            _ => Duration::ZERO,
        }
    }
}

/// A thread's time, as Linux counts it.
struct Counted {
    /// It had a core.
    ran: Duration,
    /// It could have run and had none.
    waited: Duration,
}

impl Counted {
    fn read() -> Option<Self> {
        let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let mut times = counted.split(' ').map(|nanos| nanos.parse().ok().map(Duration::from_nanos));
        Some(Counted { ran: times.next()??, waited: times.next()?? })
    }

    fn since(&self, before: &Self) -> Self {
        let Counted { ran, waited } = before;
        Counted { ran: self.ran.saturating_sub(*ran), waited: self.waited.saturating_sub(*waited) }
    }
}

/// Twice as long as the work took, where it waited longer for a core than it had one: then it is not the index' own threads alone
/// that want more than there is. Most of the work is a wait for the thread that builds the segment.
fn rest(took: Duration, of_it: Counted) -> Duration {
    match took >= SHORTEST && of_it.waited > of_it.ran {
        true => (took * 2).min(LONGEST),
        false => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_cores_rests() {
        let millis = Duration::from_millis;
        for (took, ran, waited, expected) in [
            (0, 0, 0, 0),
            (9, 1, 8, 0),
            (100, 60, 0, 0),
            (100, 40, 40, 0),
            (100, 10, 11, 200),
            (100, 0, 100, 200),
            (10, 1, 6, 20),
            (900, 80, 800, 250),
        ] {
            let of_it = Counted { ran: millis(ran), waited: millis(waited) };
            assert_eq!(rest(millis(took), of_it), millis(expected), "{took} ms, ran {ran}, waited {waited}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_threads_time_is_counted() {
        let before = Counted::read().expect("Linux counts");
        let mut sum = 0_u64;
        while Counted::read().expect("Linux counts").since(&before).ran.is_zero() {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
