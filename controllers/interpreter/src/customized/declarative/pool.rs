//! A bounded pool of threads for scripts, which never run on threads of the async runtime.
//!
//! A caller gets a result in time even if a script exceeds its budget. The thread stays occupied until the script
//! ends, which its budget ensures.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{LONGEST_RUN, ScriptError, TOO_LATE};

/// Maximum time that a script waits for a thread.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Additional wait after the script's time limit, because a single instruction can take long.
const GRACE: Duration = Duration::from_secs(2);
/// Range of the number of threads, regardless of the number of processors.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// Shared by all scripts of the process.
static THREADS_LEFT: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(threads())));

fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(*THREADS.start(), *THREADS.end())
}

/// Concurrency limit for the scripts of one customization. Clones share the limit.
#[derive(Debug, Clone)]
pub struct Share(Arc<Semaphore>);

impl Default for Share {
    /// Half of all threads, so that one customization cannot block the others.
    fn default() -> Self {
        Self(Arc::new(Semaphore::new((threads() / 2).max(1))))
    }
}

/// Runs a script on a separate thread.
pub async fn run<T: Send + 'static>(
    share: &Share,
    script: impl FnOnce() -> Result<T, ScriptError> + Send + 'static,
) -> Result<T, ScriptError> {
    if Handle::try_current().is_err() {
        return script();
    }
    let permits = tokio::time::timeout(LONGEST_WAIT, acquire(share)).await;
    let permits = permits.map_err(|_| ScriptError::Busy(LONGEST_WAIT))?;
    let running = tokio::task::spawn_blocking(move || {
        let _permits = permits;
        script()
    });
    match tokio::time::timeout(LONGEST_RUN + GRACE, running).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(ScriptError::Died),
        Err(_) => Err(ScriptError::Lua(TOO_LATE.to_owned())),
    }
}

/// Acquires a permit of the share, then one of the process. Neither semaphore is ever closed.
async fn acquire(share: &Share) -> [Option<OwnedSemaphorePermit>; 2] {
    let own = Arc::clone(&share.0).acquire_owned().await.ok();
    let all = Arc::clone(&THREADS_LEFT).acquire_owned().await.ok();
    [own, all]
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
        let script = move || receiver.recv_timeout(LONGEST_RUN).map_err(|_| ScriptError::Died);
        let share = Share::default();
        let (ended, sent) = tokio::join!(run(&share, script), async { sender.send(()) });
        assert!(ended.is_ok() && sent.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn customization_is_limited_to_its_share() {
        let limit = (threads() / 2).max(1);
        let (share, running, most) = (Share::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Scripts end in groups of the size of the limit.
        let together = Arc::new(Barrier::new(limit));
        let script = || {
            let (running, most, together) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&together));
            move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                together.wait();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let all: Vec<_> = (0..10 * limit).map(|_| run(&share, script())).collect();
        futures::future::join_all(all).await.into_iter().for_each(|ended| ended.expect("an answer"));
        assert_eq!(most.load(Ordering::SeqCst), limit);
    }

    #[tokio::test]
    async fn panic_in_a_script_is_an_error() {
        let died = run(&Share::default(), || -> Result<(), ScriptError> { panic!("as it were") }).await;
        assert!(matches!(died, Err(ScriptError::Died)));
    }
}
