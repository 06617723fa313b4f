//! The thread of leader election: tasks that occupy all workers of the process must not delay a renewal.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::context::TokioContext;

const NAME: &str = "leader-election";

/// A tokio runtime with one thread. Dropping it ends its tasks.
pub struct ElectionThread {
    handle: Handle,
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
}

impl ElectionThread {
    /// Starts the thread. Fails if the system refuses one.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(NAME).enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Wraps `future` so that the tasks it spawns run on this thread, such as those of a client that it creates.
    pub fn wrap<F: Future>(&self, future: F) -> TokioContext<F> {
        TokioContext::new(future, self.handle.clone())
    }
}

impl Drop for ElectionThread {
    fn drop(&mut self) {
        // Dropping the runtime would block, which async tasks must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
