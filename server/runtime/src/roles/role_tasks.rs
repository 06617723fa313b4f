//! Tasks of the roles in addition to the controllers, and the order in which they stop.

use crowsnest_component_base::tasks::Tasks;
use tokio_util::sync::CancellationToken;

/// Stage of the shutdown of the roles in which a task stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopStage {
    /// First: tasks that write to other systems. Their input comes from the controllers and the tasks of the next stage,
    /// so they stop before those.
    Writers,
    /// After the writers and the controllers, before the cache and the connections to the members.
    Readers,
}

/// A task with its own stop token.
struct RoleTask {
    stage: StopStage,
    tasks: Tasks,
}

/// All tasks, in the order in which those of a stage stop.
#[derive(Default)]
pub(super) struct RoleTasks(Vec<RoleTask>);

impl RoleTasks {
    /// Runs a task until its stage is stopped. If it ends before, it is reported as failed.
    pub fn spawn<F>(&mut self, name: &'static str, stage: StopStage, run: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = Tasks::default();
        tasks.spawn_until_stop(name, run(tasks.stop_token().clone()));
        self.0.push(RoleTask { stage, tasks });
    }

    /// Messages about tasks that ended prematurely.
    pub fn failures(&self) -> Vec<String> {
        self.0.iter().flat_map(|task| task.tasks.failures()).collect()
    }

    /// Stops the tasks of a stage one after another, and waits for each.
    pub async fn stop(&self, stage: StopStage) {
        for task in self.0.iter().filter(|task| task.stage == stage) {
            task.tasks.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use rstest::rstest;

    use super::StopStage::{Readers, Writers};
    use super::*;

    #[rstest]
    #[case::order_of_a_stage(&[("a", Readers), ("b", Readers)], &["controllers", "a", "b"])]
    #[case::writers_first(&[("a", Readers), ("b", Writers)], &["b", "controllers", "a"])]
    #[case::all_roles(
        &[("registries", Readers), ("backend stores", Writers), ("graph sinks", Writers), ("agent notifications", Readers)],
        &["backend stores", "graph sinks", "controllers", "registries", "agent notifications"]
    )]
    #[tokio::test]
    async fn tasks_stop_one_after_another(#[case] table: &[(&'static str, StopStage)], #[case] expected: &[&str]) {
        let stopped: Arc<Mutex<Vec<&str>>> = Arc::default();
        let mut tasks = RoleTasks::default();
        for (position, (name, stage)) in table.iter().copied().enumerate() {
            let stopped = Arc::clone(&stopped);
            // If all tasks were stopped at the same time, the last one would end first.
            let yields = 10 * (table.len() - position);
            tasks.spawn(name, stage, move |stop| async move {
                stop.cancelled().await;
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
                stopped.lock().push(name);
            });
        }
        tasks.stop(Writers).await;
        stopped.lock().push("controllers");
        tasks.stop(Readers).await;
        assert_eq!(*stopped.lock(), expected);
        assert_eq!(tasks.failures(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_task_that_ends_by_itself_is_reported_once() {
        let mut tasks = RoleTasks::default();
        tasks.spawn("registries", Readers, |stop| async move { stop.cancelled().await });
        tasks.spawn("graph sinks", Writers, |_| std::future::ready(()));
        assert_eq!(tasks.0[1].tasks.wait_for_failure().await, "graph sinks: the task stopped unexpectedly");
        for stage in [Writers, Readers] {
            tasks.stop(stage).await;
            assert_eq!(tasks.failures(), ["graph sinks: the task stopped unexpectedly"]);
        }
    }
}
