//! Throttles the text index's writer in favour of searches and ingest: the text index may lag slightly, the cache
//! must not. Used only by the threads of the follower.

use std::time::{Duration, Instant};

/// Maximum delay at once.
const MAX_DELAY: Duration = Duration::from_millis(250);
/// Work shorter than this is not measured.
const MIN_MEASURED: Duration = Duration::from_millis(10);

/// Lowers the priority of this thread and of those it starts, which build and merge segments.
#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "thread priorities are specific to Linux"))]
pub(super) fn lower_priority(nice: i32) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, "cannot lower the priority of the text index's threads");
    }
}

/// Measures work of a thread. Even with low priority, a running thread occupies a core for some milliseconds before
/// others that wake up, which adds up when many short steps wait for each other. Therefore it pauses after the
/// work.
pub(super) struct Work {
    began: Instant,
    counted: Option<CpuTimes>,
}

impl Work {
    /// Starts measuring this thread.
    pub fn begin() -> Self {
        Work { began: Instant::now(), counted: CpuTimes::read() }
    }

    /// Duration of the pause after the work.
    pub fn pause_duration(&self) -> Duration {
        match (&self.counted, CpuTimes::read()) {
            (Some(before), Some(now)) => pause_duration(self.began.elapsed(), now.since(before)),
            _ => Duration::ZERO,
        }
    }
}

/// CPU time of a thread, as counted by Linux.
struct CpuTimes {
    /// Time running on a core.
    ran: Duration,
    /// Time runnable without a core.
    waited: Duration,
}

impl CpuTimes {
    fn read() -> Option<Self> {
        let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let mut times = counted.split(' ').map(|nanos| nanos.parse().ok().map(Duration::from_nanos));
        Some(CpuTimes { ran: times.next()??, waited: times.next()?? })
    }

    fn since(&self, before: &Self) -> Self {
        let CpuTimes { ran, waited } = before;
        CpuTimes { ran: self.ran.saturating_sub(*ran), waited: self.waited.saturating_sub(*waited) }
    }
}

/// Twice the duration of the work if it waited longer for a core than it ran: then more threads than those of the index
/// compete for the CPU. Most of the work is waiting for the thread that builds the segment.
fn pause_duration(took: Duration, cpu_times: CpuTimes) -> Duration {
    match took >= MIN_MEASURED && cpu_times.waited > cpu_times.ran {
        true => (took * 2).min(MAX_DELAY),
        false => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_wait_for_cores_pause() {
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
            let cpu_times = CpuTimes { ran: millis(ran), waited: millis(waited) };
            assert_eq!(
                pause_duration(millis(took), cpu_times),
                millis(expected),
                "{took} ms, ran {ran}, waited {waited}"
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_cpu_time_of_a_thread_is_read() {
        let before = CpuTimes::read().expect("Linux counts");
        let mut sum = 0_u64;
        while CpuTimes::read().expect("Linux counts").since(&before).ran.is_zero() {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
