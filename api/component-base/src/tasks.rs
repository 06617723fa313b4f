//! Owned tasks: each has a name and ends when its owner stops. A task that ends earlier is reported as dead; it is not
//! restarted.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of one owner. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
    /// Names of the tasks that ended prematurely.
    dead: Arc<watch::Sender<Vec<&'static str>>>,
}

/// When a task may end before its owner stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Never.
    WithOwner,
    /// By returning, but not by a panic.
    Returning,
}

impl Tasks {
    /// Runs a task that must run until its owner stops. If it returns or panics before, it is reported as dead.
    pub fn keep(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(what, Ends::WithOwner, task);
    }

    /// Runs a task that may return before its owner stops. If it panics, it is reported as dead.
    pub fn run(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(what, Ends::Returning, task);
    }

    fn spawn(&self, what: &'static str, ends: Ends, task: impl Future<Output = ()> + Send + 'static) {
        let mut end = End { what, ends, has_returned: false, of: self.clone() };
        self.tracker.spawn(async move {
            task.await;
            end.has_returned = true;
            drop(end);
        });
    }

    /// Tracks tasks with their own lifetime, such as sessions. Their ends are not reported.
    pub fn passing(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Cancelled when the owner stops; every task must then end.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Ends all tasks and waits for them.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Names of the tasks that ended prematurely.
    pub fn dead(&self) -> Vec<&'static str> {
        self.dead.borrow().clone()
    }

    /// Messages about the tasks that ended prematurely, for health checks.
    pub fn deaths(&self) -> Vec<String> {
        self.dead.borrow().iter().map(|what| death(what)).collect()
    }

    /// Waits until a task has ended prematurely, and returns a message about it. Otherwise never completes.
    pub async fn death(&self) -> String {
        let mut dead = self.dead.subscribe();
        let first = dead.wait_for(|dead| !dead.is_empty()).await.ok().and_then(|dead| dead.first().copied());
        match first {
            Some(what) => death(what),
            // Not reached: the channel is open as long as `self` holds its sender.
            None => std::future::pending().await,
        }
    }
}

fn death(what: &str) -> String {
    format!("{what}: the task stopped unexpectedly")
}

/// Dropped when the task returns, when it panics, and when its runtime ends.
struct End {
    what: &'static str,
    ends: Ends,
    has_returned: bool,
    of: Tasks,
}

impl Drop for End {
    fn drop(&mut self) {
        let has_died = std::thread::panicking() || self.has_returned && self.ends == Ends::WithOwner;
        if has_died && !self.of.stopping.is_cancelled() {
            tracing::error!(what = self.what, "a task stopped unexpectedly");
            self.of.dead.send_modify(|dead| dead.push(self.what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[derive(Debug, Clone, Copy)]
    enum Does {
        Return,
        Panic,
        UntilStopped,
    }

    #[rstest]
    #[case(Ends::WithOwner, Does::Return, &["the listener: the task stopped unexpectedly"])]
    #[case(Ends::WithOwner, Does::Panic, &["the listener: the task stopped unexpectedly"])]
    #[case(Ends::WithOwner, Does::UntilStopped, &[])]
    #[case(Ends::Returning, Does::Return, &[])]
    #[case(Ends::Returning, Does::Panic, &["the listener: the task stopped unexpectedly"])]
    #[case(Ends::Returning, Does::UntilStopped, &[])]
    #[tokio::test]
    async fn tasks_that_end_before_their_owner_are_reported(
        #[case] ends: Ends,
        #[case] does: Does,
        #[case] expected: &[&str],
    ) {
        let tasks = Tasks::default();
        let stop = tasks.stopping().clone();
        let task = async move {
            match does {
                Does::Return => {}
                Does::Panic => panic!("on purpose"),
                Does::UntilStopped => stop.cancelled().await,
            }
        };
        tasks.spawn("the listener", ends, task);
        // Tracked tasks may end at any time.
        tasks.passing().spawn(async {});
        if !matches!(does, Does::UntilStopped) {
            tasks.tracker.close();
            tasks.tracker.wait().await;
        }
        assert_eq!(tasks.deaths(), expected);
        if let Some(first) = expected.first() {
            assert_eq!(tasks.death().await, *first);
        }
        tasks.stop().await;
        assert_eq!(tasks.deaths(), expected);
    }
}
