//! Waits of the writer's thread, which end when the follower stops or its runtime shuts down.

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Blocks a thread on futures of a runtime.
pub(super) struct Waiter {
    runtime: Handle,
    stop: CancellationToken,
}

impl Waiter {
    /// A waiter that stops with `stop`, and when the guard is dropped. A task of `runtime` must hold the guard: the shutdown of
    /// the runtime drops its tasks first and then its timers, which panic from then on.
    pub fn new(runtime: Handle, stop: &CancellationToken) -> (Self, DropGuard) {
        let stop = stop.child_token();
        let guard = stop.clone().drop_guard();
        (Self { runtime, stop }, guard)
    }

    /// Runtime of the futures.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Waits for `future`. `None` if it was stopped before.
    pub fn wait<F: Future>(&self, future: F) -> Option<F::Output> {
        self.runtime.block_on(async {
            tokio::select! {
                // Stopped waits must not poll timers.
                biased;
                () = self.stop.cancelled() => None,
                output = future => Some(output),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rstest::rstest;
    use tokio::runtime::Builder;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum End {
        Stop,
        Shutdown,
    }

    #[rstest]
    #[case::stop(End::Stop)]
    #[case::shutdown_of_the_runtime(End::Shutdown)]
    fn waits_end_without_a_panic(#[case] end: End) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let stop = CancellationToken::new();
        let (waiter, guard) = Waiter::new(runtime.handle().clone(), &stop);
        runtime.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let before = waiter.wait(async { sender.send(()) });
            let during = waiter.wait(async { tokio::time::sleep(Duration::from_secs(3600)).await });
            let after = waiter.wait(async { tokio::time::sleep(Duration::ZERO).await });
            (before.is_some(), during, after)
        });
        receiver.recv().unwrap();
        match end {
            End::Stop => stop.cancel(),
            End::Shutdown => drop(runtime),
        }
        assert_eq!(thread.join().expect("no panic"), (true, None, None));
    }
}
