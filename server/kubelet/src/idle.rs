//! How long a client of a session may stay silent, by a kubelet's measures. `upgrade` puts [`Idle`] around each
//! connection it switches; `remotecommand` and `portforward` wait for streams as long as [`Limits`] say.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A client has this long to open the streams that belong together.
    pub stream_creation: Duration,
    /// After so long without a byte either way a session ends: `streamingConnectionIdleTimeout`.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stream_creation: Duration::from_secs(30), idle: Duration::from_secs(4 * 60 * 60) }
    }
}

/// A connection whose reader fails once nothing was read or written for a while.
pub struct Idle<T> {
    io: T,
    limit: Duration,
    ends: Pin<Box<Sleep>>,
}

impl<T> Idle<T> {
    pub fn new(io: T, limit: Duration) -> Self {
        Self { io, limit, ends: Box::pin(tokio::time::sleep(limit)) }
    }

    fn heard(&mut self) {
        self.ends.as_mut().reset(Instant::now() + self.limit);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Idle<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        if read.is_ready() {
            self.heard();
            return read;
        }
        ready!(self.ends.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nobody said anything for too long")))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Idle<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if written.is_ready() {
            self.heard();
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
