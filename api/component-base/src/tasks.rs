//! Owned tasks: each has a name and ends when its owner stops. A task that ends earlier is reported as failed; it is
//! not restarted.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of one owner. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop_token: CancellationToken,
    /// Names of the tasks that ended prematurely.
    failed: Arc<watch::Sender<Vec<&'static str>>>,
}

/// How long a task must run. A panic is always a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// Until its owner stops: a return before that is a failure.
    UntilStop,
    /// Until it returns.
    UntilReturn,
}

impl Tasks {
    /// Runs a task that must run until its owner stops. If it returns or panics before, it is reported as failed.
    pub fn spawn_until_stop(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_guarded(name, Lifetime::UntilStop, task);
    }

    /// Runs a task that may return before its owner stops. If it panics, it is reported as failed.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_guarded(name, Lifetime::UntilReturn, task);
    }

    fn spawn_guarded(&self, name: &'static str, lifetime: Lifetime, task: impl Future<Output = ()> + Send + 'static) {
        let mut guard = TaskGuard { name, lifetime, has_returned: false, tasks: self.clone() };
        self.tracker.spawn(async move {
            task.await;
            guard.has_returned = true;
            drop(guard);
        });
    }

    /// Tracker for tasks that may end at any time, such as sessions. Their ends are not reported, but [`Tasks::stop`]
    /// waits for them.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Cancelled when the owner stops; every task must then end.
    pub fn stop_token(&self) -> &CancellationToken {
        &self.stop_token
    }

    /// Ends all tasks and waits for them.
    pub async fn stop(&self) {
        self.stop_token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Messages about the tasks that ended prematurely, for health checks.
    pub fn failures(&self) -> Vec<String> {
        self.failed.borrow().iter().map(|name| failure_message(name)).collect()
    }

    /// Waits until a task has ended prematurely, and returns a message about it. Otherwise never completes.
    pub async fn wait_for_failure(&self) -> String {
        let mut failed = self.failed.subscribe();
        let first = failed.wait_for(|names| !names.is_empty()).await.ok().and_then(|names| names.first().copied());
        match first {
            Some(name) => failure_message(name),
            // Not reached: the channel is open as long as `self` owns its sender.
            None => std::future::pending().await,
        }
    }
}

fn failure_message(name: &str) -> String {
    format!("{name}: the task stopped unexpectedly")
}

/// Reports a failed task when it is dropped: when the task returns, when it panics, and when its runtime ends.
struct TaskGuard {
    name: &'static str,
    lifetime: Lifetime,
    has_returned: bool,
    tasks: Tasks,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let has_failed = std::thread::panicking() || self.has_returned && self.lifetime == Lifetime::UntilStop;
        if has_failed && !self.tasks.stop_token.is_cancelled() {
            tracing::error!(task = self.name, "a task stopped unexpectedly");
            self.tasks.failed.send_modify(|names| names.push(self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[derive(Debug, Clone, Copy)]
    enum Behaviour {
        Return,
        Panic,
        UntilStopped,
    }

    #[rstest]
    #[case(Lifetime::UntilStop, Behaviour::Return, &["the listener: the task stopped unexpectedly"])]
    #[case(Lifetime::UntilStop, Behaviour::Panic, &["the listener: the task stopped unexpectedly"])]
    #[case(Lifetime::UntilStop, Behaviour::UntilStopped, &[])]
    #[case(Lifetime::UntilReturn, Behaviour::Return, &[])]
    #[case(Lifetime::UntilReturn, Behaviour::Panic, &["the listener: the task stopped unexpectedly"])]
    #[case(Lifetime::UntilReturn, Behaviour::UntilStopped, &[])]
    #[tokio::test]
    async fn tasks_that_end_before_their_owner_are_reported(
        #[case] lifetime: Lifetime,
        #[case] behaviour: Behaviour,
        #[case] expected: &[&str],
    ) {
        let tasks = Tasks::default();
        let stop = tasks.stop_token().clone();
        let task = async move {
            match behaviour {
                Behaviour::Return => {}
                Behaviour::Panic => panic!("on purpose"),
                Behaviour::UntilStopped => stop.cancelled().await,
            }
        };
        tasks.spawn_guarded("the listener", lifetime, task);
        // Tracked tasks may end at any time.
        tasks.tracker().spawn(async {});
        if !matches!(behaviour, Behaviour::UntilStopped) {
            tasks.tracker.close();
            tasks.tracker.wait().await;
        }
        assert_eq!(tasks.failures(), expected);
        if let Some(first) = expected.first() {
            assert_eq!(tasks.wait_for_failure().await, *first);
        }
        tasks.stop().await;
        assert_eq!(tasks.failures(), expected);
    }
}
