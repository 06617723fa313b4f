//! The supervisor: starts the tasks of all controllers after the initial sync with the control plane, and reports
//! when one stops.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::dispatcher::Dispatcher;
use super::registered_controller::Task;
use crate::cache::{EventHandler, Informer};
use crate::runtime::context::Context;
use crate::runtime::manager::UnhealthyReason;

/// Timeout of the initial list of a template resource, so that one that cannot be listed does not block the
/// propagation of others.
const TEMPLATE_LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Tasks that do not belong to a controller.
pub(crate) struct BackgroundTasks {
    pub informer: Informer,
    pub event_recorder: Task,
    pub journal: Task,
    /// Stops the journal, after all other tasks.
    pub close_journal: CancellationToken,
}

/// Runs all tasks until `stop`. `health` becomes `Ok` after the initial sync with the control plane, and an error if
/// a task stops unexpectedly.
pub(crate) async fn supervise(
    dispatcher: Arc<Dispatcher>,
    context: Arc<Context>,
    health: watch::Sender<Result<(), UnhealthyReason>>,
    stop: CancellationToken,
    background: BackgroundTasks,
) {
    let mut tasks: JoinSet<Result<(), String>> = JoinSet::new();
    let handler: Arc<dyn EventHandler> = Arc::<Dispatcher>::clone(&dispatcher);
    tasks.spawn(background.informer.run(handler, stop.clone()));
    tasks.spawn(background.event_recorder);
    tasks.spawn(background.journal);
    // Stops immediately with `stop`: from then on no changes are dispatched, and the next leader in this process
    // waits for this task.
    let sync = sync_control_plane(&dispatcher, &context);
    stop.run_until_cancelled(wait_and_report(sync, &mut tasks, &health, &stop)).await;
    dispatcher.prepare().await;
    dispatcher.tasks(&stop).into_iter().for_each(|task| drop(tasks.spawn(task)));
    tasks.spawn(Arc::clone(&dispatcher.discoverer).run(stop.clone()));
    tasks.spawn(Arc::clone(&dispatcher).run_resyncs(stop.clone()));
    if !stop.is_cancelled() {
        health.send_if_modified(set_healthy);
    }
    loop {
        let result = tokio::select! {
            result = tasks.join_next() => result,
            // The journal stops last, since it writes the entries of the others.
            () = stop.cancelled(), if tasks.len() == 1 => {
                background.close_journal.cancel();
                tasks.join_next().await
            }
        };
        let Some(result) = result else { return };
        report(result, &health, &stop);
    }
}

/// Waits for `sync`, and reports tasks that stop meanwhile, since `sync` may depend on them and never finish.
async fn wait_and_report(
    sync: impl Future<Output = ()>,
    tasks: &mut JoinSet<Result<(), String>>,
    health: &watch::Sender<Result<(), UnhealthyReason>>,
    stop: &CancellationToken,
) {
    let mut sync = pin!(sync);
    loop {
        tokio::select! {
            () = &mut sync => return,
            Some(result) = tasks.join_next() => report(result, health, stop),
        }
    }
}

/// Sets `health` to an error, unless the task was stopped.
fn report(
    result: Result<Result<(), String>, JoinError>,
    health: &watch::Sender<Result<(), UnhealthyReason>>,
    stop: &CancellationToken,
) {
    let reason = match result {
        Ok(Ok(())) if stop.is_cancelled() => return,
        Ok(Ok(())) => "a task stopped unexpectedly".to_owned(),
        Ok(Err(reason)) => reason,
        Err(error) => format!("a task panicked: {error}"),
    };
    tracing::error!(reason, "a controller task stopped unexpectedly");
    drop(health.send_replace(Err(UnhealthyReason::Broken(reason))));
}

/// Sets `health` to `Ok`, unless a task has stopped. Returns true if `health` was set.
fn set_healthy(health: &mut Result<(), UnhealthyReason>) -> bool {
    let is_broken = matches!(health, Err(UnhealthyReason::Broken(_)));
    if !is_broken {
        *health = Ok(());
    }
    !is_broken
}

/// Returns an error if the task ends before `stop`.
pub(crate) fn expect_stop(
    task: impl Future<Output = ()> + Send + 'static,
    name: &'static str,
    stop: CancellationToken,
) -> Task {
    async move {
        task.await;
        if stop.is_cancelled() { Ok(()) } else { Err(format!("{name} stopped unexpectedly")) }
    }
    .boxed()
}

/// Starts collecting the resources that controllers watch, and waits for their initial lists, so that no controller
/// acts on incomplete state.
async fn sync_control_plane(dispatcher: &Dispatcher, context: &Context) {
    let (control_plane, cache) = (&context.control_plane, &context.cache);
    let needed = dispatcher.resources();
    needed.iter().for_each(|resource| cache.collect(control_plane, resource));
    dispatcher.discoverer.wait_for_discovery().await;
    for resource in &needed {
        while !cache.wait_until_synced(control_plane, &resource.gvr, Duration::from_secs(1)).await {}
    }
    for resource in cache.resources(control_plane) {
        if !cache.wait_until_synced(control_plane, &resource.gvr, TEMPLATE_LIST_TIMEOUT).await {
            tracing::warn!(resource = %resource.gvr, "the resource has not been listed yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_during_the_initial_sync_is_reported() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("on purpose") });
        let stop = CancellationToken::new();
        let (health, mut reported) = watch::channel(Err(UnhealthyReason::Starting));
        // The sync waits for the task.
        let sync = std::future::pending();
        tokio::select! {
            () = wait_and_report(sync, &mut tasks, &health, &stop) => panic!("the sync cannot finish"),
            broken = reported.wait_for(|health| matches!(health, Err(UnhealthyReason::Broken(_)))) => drop(broken.unwrap()),
        }
        assert!(!health.send_if_modified(set_healthy), "the failure is not overwritten");
        assert!(
            matches!(&*health.borrow(), Err(UnhealthyReason::Broken(reason)) if reason.starts_with("a task panicked"))
        );
    }
}
