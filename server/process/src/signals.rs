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

    /// Runs `serving` until it returns. On a signal, cancels `stop` and waits until it has drained; a second signal
    /// aborts the drain.
    pub async fn run_until_signal(
        mut self,
        stop: &CancellationToken,
        serving: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            served = serving.as_mut() => return served,
            () = self.wait() => stop.cancel(),
        }
        tokio::select! {
            served = serving => served,
            () = self.wait() => bail!("stopped before the drain was complete"),
        }
    }
}
