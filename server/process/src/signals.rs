//! Signals that stop a process.

use anyhow::bail;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// SIGINT and SIGTERM.
pub struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// Registers handlers for both signals.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs `task` until it returns. On a signal, cancels `stop` and waits until it has drained; a second signal
    /// aborts the drain.
    pub async fn run_until_signal(
        mut self,
        stop: &CancellationToken,
        task: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut task = std::pin::pin!(task);
        tokio::select! {
            result = task.as_mut() => return result,
            () = self.wait() => stop.cancel(),
        }
        tokio::select! {
            result = task => result,
            () = self.wait() => bail!("stopped before the drain was complete"),
        }
    }
}
