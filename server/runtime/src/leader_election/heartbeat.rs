//! Heartbeat of the controllers' runtime. Leader election has a runtime of its own, which would renew the Leases of a
//! process whose controllers no longer run.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Checks that the runtime of the controllers runs tasks.
pub struct Heartbeat {
    controllers: Handle,
    /// Time within which the runtime must run a task.
    limit: Duration,
    /// The last beat. `None` before the first check.
    last: Option<Beat>,
}

/// An empty task of the runtime.
struct Beat {
    spawned_at: Instant,
    /// Receives a value when the task runs. Closed without one if the runtime has shut down.
    completion: oneshot::Receiver<()>,
}

/// The runtime did not run a task within the limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime of the controllers has not run a task for {0:.1?}")]
pub struct HeartbeatTimeout(Duration);

impl Heartbeat {
    /// A heartbeat of the runtime `controllers`, which must run each task within `limit`.
    pub fn new(controllers: Handle, limit: Duration) -> Self {
        Self { controllers, limit, last: None }
    }

    /// Spawns a task if the last one has run. Fails if the last one has waited for the limit or longer. Does not wait
    /// for tasks, so that a busy runtime does not delay a renewal.
    pub fn check(&mut self, now: Instant) -> Result<(), HeartbeatTimeout> {
        if let Some(beat) = &mut self.last
            && beat.completion.try_recv().is_err()
        {
            let waited = now.saturating_duration_since(beat.spawned_at);
            return if waited < self.limit { Ok(()) } else { Err(HeartbeatTimeout(waited)) };
        }
        let (sender, completion) = oneshot::channel();
        // The result of the send is ignored: it fails only if the heartbeat was dropped, and then nothing reads it.
        self.controllers.spawn(async move { sender.send(()) });
        self.last = Some(Beat { spawned_at: now, completion });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rstest::rstest;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);
    const ALMOST: Duration = Duration::from_millis(99);

    fn single_worker() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    /// Blocks the worker until the returned sender is dropped.
    fn block_worker(runtime: &Runtime) -> mpsc::Sender<()> {
        let (blocked, is_blocked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        runtime.spawn(async move {
            blocked.send(()).unwrap();
            // Ends with an error when the sender is dropped.
            released.recv()
        });
        is_blocked.recv().unwrap();
        release
    }

    /// Waits until the worker has run all tasks that were spawned before.
    fn run_spawned_tasks(runtime: &Runtime) {
        runtime.block_on(runtime.spawn(async {})).unwrap();
    }

    #[rstest]
    #[case::no_time(Duration::ZERO, Ok(()))]
    #[case::within_the_limit(ALMOST, Ok(()))]
    #[case::at_the_limit(LIMIT, Err(HeartbeatTimeout(LIMIT)))]
    #[case::after_the_limit(3 * LIMIT, Err(HeartbeatTimeout(3 * LIMIT)))]
    fn a_blocked_runtime_fails_the_check_until_it_runs(
        #[case] elapsed: Duration,
        #[case] expected: Result<(), HeartbeatTimeout>,
    ) {
        let runtime = single_worker();
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(runtime.handle().clone(), LIMIT);
        let release = block_worker(&runtime);
        assert_eq!(heartbeat.check(start), Ok(()));
        assert_eq!(heartbeat.check(start + elapsed), expected);
        drop(release);
        run_spawned_tasks(&runtime);
        assert_eq!(heartbeat.check(start + 4 * LIMIT), Ok(()));
    }

    /// Each task is delayed by almost the limit, and the delays together exceed it.
    #[test]
    fn a_busy_runtime_passes_all_checks() {
        let runtime = single_worker();
        let mut heartbeat = Heartbeat::new(runtime.handle().clone(), LIMIT);
        let mut now = Instant::now();
        for _ in 0..5 {
            let release = block_worker(&runtime);
            assert_eq!(heartbeat.check(now), Ok(()));
            now += ALMOST;
            assert_eq!(heartbeat.check(now), Ok(()));
            drop(release);
            run_spawned_tasks(&runtime);
        }
    }

    #[test]
    fn a_runtime_that_has_shut_down_fails_the_check() {
        let runtime = single_worker();
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(runtime.handle().clone(), LIMIT);
        runtime.shutdown_background();
        assert_eq!(heartbeat.check(start), Ok(()));
        let error = heartbeat.check(start + LIMIT).expect_err("no heartbeat");
        assert_eq!(error.to_string(), "the runtime of the controllers has not run a task for 100.0ms");
    }
}
