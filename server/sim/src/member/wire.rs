//! Simulated network between a member and its clients: transmits, holds or breaks. Owned by [`super::faults`]; all
//! connections of a member's listener pass through it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// State of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    #[default]
    Carries,
    /// Data is held in both directions and connections stay open; held data is delivered later.
    Holds,
    /// Connections fail on the next use.
    Breaks,
}

/// Network state shared by all connections of a listener.
#[derive(Debug, Default)]
pub struct Wiring(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    wire: Wire,
    /// Connections that wait for held data.
    waiting: Vec<Waker>,
}

impl Wiring {
    pub fn set(&self, wire: Wire) {
        let waiting = {
            let mut state = self.0.lock();
            state.wire = wire;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub fn get(&self) -> Wire {
        self.0.lock().wire
    }

    /// Wraps a socket.
    pub fn around<S>(self: &Arc<Self>, stream: S) -> Wired<S> {
        Wired { stream, wiring: Arc::clone(self) }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        match state.wire {
            Wire::Carries => Poll::Ready(Ok(())),
            Wire::Breaks => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Wire::Holds => {
                let waker = context.waker();
                if !state.waiting.iter().any(|known| known.will_wake(waker)) {
                    state.waiting.push(waker.clone());
                }
                Poll::Pending
            }
        }
    }
}

/// A socket behind the simulated network.
#[derive(Debug)]
pub struct Wired<S> {
    stream: S,
    wiring: Arc<Wiring>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Wired<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.wiring.poll(context))?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wired<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.wiring.poll(context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.wiring.poll(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.wiring.poll(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.wiring.poll(context))?;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn held_data_is_delivered_and_broken_connections_fail() {
        let wiring = Arc::new(Wiring::default());
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = wiring.around(near);
        far.write_all(b"one").await.unwrap();
        let mut read = [0; 3];
        near.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"one");

        wiring.set(Wire::Holds);
        far.write_all(b"two").await.unwrap();
        let reading = tokio::spawn(async move {
            let mut read = [0; 3];
            near.read_exact(&mut read).await.map(|_| (near, read))
        });
        while wiring.0.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(!reading.is_finished());
        wiring.set(Wire::Carries);
        let (mut near, read) = reading.await.unwrap().unwrap();
        assert_eq!(&read, b"two");

        wiring.set(Wire::Breaks);
        let error = near.write_all(b"three").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
