//! Owned tasks: each has a name, ends when its owner stops, and is reported if it ends before. Tasks are not
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
    /// Runs a task that ends with its owner. An earlier end is a death.
    pub fn keep(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(what, Ends::WithOwner, task);
    }

    /// Runs a task that may return before its owner stops. A panic is a death.
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

    /// The tasks that ended prematurely, as problems of a process.
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
        Obey,
    }

    #[rstest]
    #[case(Ends::WithOwner, Does::Return, &["the listener: the task stopped unexpectedly"])]
    #[case(Ends::WithOwner, Does::Panic, &["the listener: the task stopped unexpectedly"])]
    #[case(Ends::WithOwner, Does::Obey, &[])]
    #[case(Ends::Returning, Does::Return, &[])]
    #[case(Ends::Returning, Does::Panic, &["the listener: the task stopped unexpectedly"])]
    #[case(Ends::Returning, Does::Obey, &[])]
    #[tokio::test]
    async fn tasks_that_end_too_early_are_dead(#[case] ends: Ends, #[case] does: Does, #[case] expected: &[&str]) {
        let tasks = Tasks::default();
        let stop = tasks.stopping().clone();
        let task = async move {
            match does {
                Does::Return => {}
                Does::Panic => panic!("on purpose"),
                Does::Obey => stop.cancelled().await,
            }
        };
        tasks.spawn("the listener", ends, task);
        // A session's end is no death.
        tasks.passing().spawn(async {});
        if !matches!(does, Does::Obey) {
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
