//! Throttles the text index's writer in favour of searches and ingest: the text index may lag slightly, the cache
//! must not. Used only by the threads of the [`TextFollower`](super::writer::TextFollower).

use crowsnest_store::Seq;
use std::time::{Duration, Instant};

/// Maximum duration of one pause.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Duration of a pause as a multiple of the work before it.
const PAUSE_RATIO: u32 = 6;
/// Minimum duration of work that is followed by a pause.
const MIN_WORK: Duration = Duration::from_millis(10);

/// Lowers the priority of this thread and of those it starts, which build and merge segments.
#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "thread priorities are specific to Linux"))]
pub(super) fn lower_priority(nice: i32) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, "cannot lower the priority of the text index's threads");
    }
}

/// Number of changes per second above which the cache is being filled.
const FILL_RATE: f64 = 1_000.0;

/// Measures the work of a thread and computes the pause after it. Without pauses, a thread of low priority still delays
/// others: Linux lets it run for some milliseconds before a thread that has woken up gets its core. These delays add up
/// in requests that consist of many short steps.
pub(super) struct WorkTimer {
    started_at: Instant,
    latest_at_start: Seq,
    cpu_times_at_start: Option<CpuTimes>,
}

impl WorkTimer {
    /// Starts measuring the work of the calling thread. `latest` is the last change in the store.
    pub fn start(latest: Seq) -> Self {
        Self { started_at: Instant::now(), latest_at_start: latest, cpu_times_at_start: CpuTimes::read() }
    }

    /// Duration of the pause after the work since the start; zero if it was not delayed by other threads, or if the cache is
    /// not being filled. `latest` is now the last change in the store.
    pub fn pause_duration(&self, latest: Seq) -> Duration {
        let (Some(before), Some(now)) = (&self.cpu_times_at_start, CpuTimes::read()) else { return Duration::ZERO };
        let changes = latest.0.saturating_sub(self.latest_at_start.0);
        pause_duration(self.started_at.elapsed(), now.since(before), changes)
    }
}

/// Scheduler statistics of a thread from Linux.
struct CpuTimes {
    /// Time running on a core.
    running: Duration,
    /// Time waiting for a core while runnable.
    runnable: Duration,
}

impl CpuTimes {
    /// Reads the statistics of the calling thread; `None` if they are not available.
    fn read() -> Option<Self> {
        let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let mut times = statistics.split(' ').map(|nanos| nanos.parse().ok().map(Duration::from_nanos));
        Some(CpuTimes { running: times.next()??, runnable: times.next()?? })
    }

    /// The times that have passed since `before`.
    fn since(&self, before: &Self) -> Self {
        let CpuTimes { running, runnable } = before;
        CpuTimes { running: self.running.saturating_sub(*running), runnable: self.runnable.saturating_sub(*runnable) }
    }
}

/// [`PAUSE_RATIO`] times the duration of the work if its thread waited longer for a core than it ran, which shows that
/// other threads need the CPU, while many objects changed; otherwise zero. Without changes, the other threads are mostly
/// those that build and merge segments. The thread also sleeps while another one builds the segment, so both times may be
/// much shorter than `elapsed`.
fn pause_duration(elapsed: Duration, cpu_times: CpuTimes, changes: u64) -> Duration {
    let is_filled = changes as f64 > elapsed.as_secs_f64() * FILL_RATE;
    match is_filled && elapsed >= MIN_WORK && cpu_times.runnable > cpu_times.running {
        true => (elapsed * PAUSE_RATIO).min(MAX_PAUSE),
        false => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_waited_for_a_core_is_followed_by_a_pause() {
        let millis = Duration::from_millis;
        for (elapsed, running, runnable, changes, expected) in [
            (0, 0, 0, 1, 0),
            (9, 1, 8, 10, 0),
            (100, 60, 0, 101, 0),
            (100, 40, 40, 101, 0),
            (100, 10, 11, 101, 500),
            (100, 10, 11, 100, 0),
            (70, 0, 70, 71, 420),
            (10, 1, 6, 11, 60),
            (900, 80, 800, 901, 500),
            (900, 80, 800, 0, 0),
        ] {
            let cpu_times = CpuTimes { running: millis(running), runnable: millis(runnable) };
            assert_eq!(
                pause_duration(millis(elapsed), cpu_times, changes),
                millis(expected),
                "{elapsed} ms, of which {running} running and {runnable} runnable, with {changes} changes"
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_counts_the_cpu_time_of_a_thread() {
        let before = CpuTimes::read().expect("scheduler statistics");
        let mut sum = 0_u64;
        while CpuTimes::read().expect("scheduler statistics").since(&before).running.is_zero() {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
