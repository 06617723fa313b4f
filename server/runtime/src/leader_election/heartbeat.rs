//! Heartbeat of the controllers' runtime. Leader election has a runtime of its own, which would renew the Leases of a
//! process whose controllers no longer run.

use std::time::Duration;

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
    /// Time of the caller's clock.
    spawned_at: Duration,
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
    /// for tasks, so that a busy runtime does not delay a renewal. `now` is the time of a clock that does not go back.
    pub fn check(&mut self, now: Duration) -> Result<(), HeartbeatTimeout> {
        if let Some(beat) = &mut self.last
            && beat.completion.try_recv().is_err()
        {
            let waited = now.saturating_sub(beat.spawned_at);
            return if waited < self.limit { Ok(()) } else { Err(HeartbeatTimeout(waited)) };
        }
        let (sender, completion) = oneshot::channel();
        // The result of the send is ignored: it fails only if the heartbeat was dropped, and then nothing reads it.
        self.controllers.spawn(async move { sender.send(()) });
        self.last = Some(Beat { spawned_at: now, completion });
        Ok(())
    }

    /// Waits until the runtime runs a new task, or has shut down.
    pub fn wait_for_task(&self) -> impl Future<Output = ()> + Send + use<> {
        let task = self.controllers.spawn(async {});
        async move { drop(task.await) }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::leader_election::fixtures::{block_worker, run_spawned_tasks, single_worker};

    const START: Duration = Duration::from_secs(60);
    const LIMIT: Duration = Duration::from_millis(100);
    const ALMOST: Duration = Duration::from_millis(99);

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
        let mut heartbeat = Heartbeat::new(runtime.handle().clone(), LIMIT);
        let release = block_worker(&runtime);
        assert_eq!(heartbeat.check(START), Ok(()));
        assert_eq!(heartbeat.check(START + elapsed), expected);
        drop(release);
        run_spawned_tasks(&runtime);
        assert_eq!(heartbeat.check(START + 4 * LIMIT), Ok(()));
    }

    /// Each task is delayed by almost the limit, and the delays together exceed it.
    #[test]
    fn a_busy_runtime_passes_all_checks() {
        let runtime = single_worker();
        let mut heartbeat = Heartbeat::new(runtime.handle().clone(), LIMIT);
        let mut now = START;
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
        let mut heartbeat = Heartbeat::new(runtime.handle().clone(), LIMIT);
        runtime.shutdown_background();
        assert_eq!(heartbeat.check(START), Ok(()));
        let error = heartbeat.check(START + LIMIT).expect_err("no heartbeat");
        assert_eq!(error.to_string(), "the runtime of the controllers has not run a task for 100.0ms");
    }
}
