//! Timeouts of streaming sessions, with the kubelet's defaults. `upgrade` wraps each switched connection in
//! [`IdleTimeout`]; `remotecommand` and `portforward` use [`StreamTimeouts`] while they wait for streams.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Timeouts of exec, attach and port-forward sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamTimeouts {
    /// Time within which a client must open all streams of a session or forwarded connection (default 30 s).
    pub stream_creation: Duration,
    /// Time without traffic in either direction after which a session ends (default 4 h):
    /// `streamingConnectionIdleTimeout`.
    pub idle: Duration,
}

impl Default for StreamTimeouts {
    fn default() -> Self {
        Self { stream_creation: Duration::from_secs(30), idle: Duration::from_secs(4 * 60 * 60) }
    }
}

/// A connection whose reads fail with [`io::ErrorKind::TimedOut`] after a period without reads and writes.
pub struct IdleTimeout<T> {
    io: T,
    limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<T> IdleTimeout<T> {
    pub fn new(io: T, limit: Duration) -> Self {
        Self { io, limit, timer: Box::pin(tokio::time::sleep(limit)) }
    }

    fn reset_timer(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.limit);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for IdleTimeout<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        if read.is_ready() {
            self.reset_timer();
            return read;
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "connection idle for too long")))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for IdleTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if written.is_ready() {
            self.reset_timer();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
