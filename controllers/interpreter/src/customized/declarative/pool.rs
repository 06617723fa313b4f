//! A bounded pool of threads for scripts, which never run on threads of the async runtime.
//!
//! A caller gets a result or an error in time even if a script exceeds its budget. The thread stays occupied until the
//! script ends, which its budget ensures.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{DEADLINE_EXCEEDED, SCRIPT_TIMEOUT, ScriptError};

/// Maximum time that a script waits for a thread.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Additional wait after the script's time limit, because a single instruction can take long.
const GRACE: Duration = Duration::from_secs(2);
/// Range of the number of threads, regardless of the number of processors.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// Permits for script threads, shared by all scripts of the process.
static THREAD_PERMITS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(threads())));

fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(*THREADS.start(), *THREADS.end())
}

/// Concurrency limit for the scripts of one customization. Clones share the limit.
#[derive(Debug, Clone)]
pub struct ScriptPermits(Arc<Semaphore>);

impl Default for ScriptPermits {
    /// Half of all threads, so that one customization cannot block the others.
    fn default() -> Self {
        Self(Arc::new(Semaphore::new((threads() / 2).max(1))))
    }
}

/// Runs a script on a separate thread.
pub async fn run<T: Send + 'static>(
    customization_permits: &ScriptPermits,
    script: impl FnOnce() -> Result<T, ScriptError> + Send + 'static,
) -> Result<T, ScriptError> {
    if Handle::try_current().is_err() {
        return script();
    }
    let permits = tokio::time::timeout(MAX_WAIT, acquire(customization_permits)).await;
    let permits = permits.map_err(|_| ScriptError::NoThread(MAX_WAIT))?;
    let running = tokio::task::spawn_blocking(move || {
        let _permits = permits;
        script()
    });
    match tokio::time::timeout(SCRIPT_TIMEOUT + GRACE, running).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ScriptError::Panicked),
        Err(_) => Err(ScriptError::Lua(DEADLINE_EXCEEDED.to_owned())),
    }
}

/// Acquires a permit of the customization, then one of the process. Neither semaphore is ever closed.
async fn acquire(customization_permits: &ScriptPermits) -> [Option<OwnedSemaphorePermit>; 2] {
    let customization_permit = Arc::clone(&customization_permits.0).acquire_owned().await.ok();
    let process_permit = Arc::clone(&THREAD_PERMITS).acquire_owned().await.ok();
    [customization_permit, process_permit]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

    /// The runtime has a single thread; a script on it would block the sender.
    #[tokio::test]
    async fn script_does_not_block_the_runtime() {
        let (sender, receiver) = mpsc::channel();
        let script = move || receiver.recv_timeout(SCRIPT_TIMEOUT).map_err(|_| ScriptError::Panicked);
        let customization_permits = ScriptPermits::default();
        let (result, sent) = tokio::join!(run(&customization_permits, script), async { sender.send(()) });
        assert!(result.is_ok() && sent.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn customization_is_limited_to_its_permits() {
        let limit = (threads() / 2).max(1);
        let (customization_permits, running, max_running) =
            (ScriptPermits::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Scripts end in groups of the size of the limit.
        let barrier = Arc::new(Barrier::new(limit));
        let script = || {
            let (running, max_running, barrier) =
                (Arc::clone(&running), Arc::clone(&max_running), Arc::clone(&barrier));
            move || {
                max_running.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                barrier.wait();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let all: Vec<_> = (0..10 * limit).map(|_| run(&customization_permits, script())).collect();
        futures::future::join_all(all).await.into_iter().for_each(|ended| ended.expect("a result"));
        assert_eq!(max_running.load(Ordering::SeqCst), limit);
    }

    #[tokio::test]
    async fn panic_in_a_script_is_an_error() {
        let result = run(&ScriptPermits::default(), || -> Result<(), ScriptError> { panic!("on purpose") }).await;
        assert!(matches!(result, Err(ScriptError::Panicked)));
    }
}
