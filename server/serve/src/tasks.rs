//! The tasks that answering requests needs, by name: listeners, and what keeps certificates and trust as they are told. None of them
//! comes back by itself; one that ends while nobody stops it is dead, and is told of by the probes.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
    dead: Arc<Mutex<Vec<&'static str>>>,
}

impl Tasks {
    /// Runs what is there as long as the process serves.
    pub(super) fn keep<F>(&self, what: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let end = End { what, of: self.clone() };
        self.tracker.spawn(async move {
            let _end = end;
            task.await;
        });
    }

    /// For what comes and goes, as sessions do.
    pub(super) fn passing(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Ends them all; what heeds it ends by itself.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    pub(super) async fn stop(&self) {
        self.stopping.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Those that have ended too early.
    pub(super) fn deaths(&self) -> Vec<String> {
        self.dead.lock().iter().map(|what| format!("{what}: the task has died")).collect()
    }
}

/// Dropped when the task returns, and when it panics.
struct End {
    what: &'static str,
    of: Tasks,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.of.stopping.is_cancelled() {
            tracing::error!(what = self.what, "a task has died");
            self.of.dead.lock().push(self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[derive(Debug, Clone, Copy)]
    enum Ends {
        Returns,
        Panics,
        Obeys,
    }

    #[rstest]
    #[case(Ends::Returns, &["the listener: the task has died"])]
    #[case(Ends::Panics, &["the listener: the task has died"])]
    #[case(Ends::Obeys, &[])]
    #[tokio::test]
    async fn who_ends_too_early_is_dead(#[case] ends: Ends, #[case] expected: &[&str]) {
        let tasks = Tasks::default();
        let stop = tasks.stopping().clone();
        tasks.keep("the listener", async move {
            match ends {
                Ends::Returns => {}
                Ends::Panics => panic!("on purpose"),
                Ends::Obeys => stop.cancelled().await,
            }
        });
        // A session's end is nobody's death.
        tasks.passing().spawn(async {});
        if !matches!(ends, Ends::Obeys) {
            tasks.tracker.close();
            tasks.tracker.wait().await;
        }
        assert_eq!(tasks.deaths(), expected);
        tasks.stop().await;
        assert_eq!(tasks.deaths(), expected);
    }
}
