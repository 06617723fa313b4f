//! Simulated network between a member and its clients, which can stall or break. All connections of a member's listener
//! use it. Controlled by [`super::faults`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// State of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkState {
    /// Data is delivered.
    #[default]
    Up,
    /// Data is delayed in both directions and delivered later; connections stay open.
    Stalled,
    /// Connections fail on the next use.
    Broken,
}

/// Network of a listener, shared by all its connections.
#[derive(Debug, Default)]
pub struct Network(Mutex<NetworkInner>);

#[derive(Debug, Default)]
struct NetworkInner {
    state: NetworkState,
    /// Wakers of the connections that wait while the network is stalled.
    wakers: Vec<Waker>,
}

impl Network {
    pub fn set(&self, state: NetworkState) {
        let wakers = {
            let mut inner = self.0.lock();
            inner.state = state;
            std::mem::take(&mut inner.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub fn get(&self) -> NetworkState {
        self.0.lock().state
    }

    /// Wraps a connection, so that the state of the network applies to it.
    pub fn wrap<S>(self: &Arc<Self>, stream: S) -> NetworkStream<S> {
        NetworkStream { stream, network: Arc::clone(self) }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        match inner.state {
            NetworkState::Up => Poll::Ready(Ok(())),
            NetworkState::Broken => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            NetworkState::Stalled => {
                let waker = context.waker();
                if !inner.wakers.iter().any(|stored_waker| stored_waker.will_wake(waker)) {
                    inner.wakers.push(waker.clone());
                }
                Poll::Pending
            }
        }
    }
}

/// A connection over the simulated network.
#[derive(Debug)]
pub struct NetworkStream<S> {
    stream: S,
    network: Arc<Network>,
}

impl<S: AsyncRead + Unpin> AsyncRead for NetworkStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.network.poll(context))?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NetworkStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.network.poll(context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.network.poll(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.network.poll(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.network.poll(context))?;
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
    async fn data_is_delivered_after_a_stall_and_broken_connections_fail() {
        let network = Arc::new(Network::default());
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = network.wrap(near);
        far.write_all(b"one").await.unwrap();
        let mut read = [0; 3];
        near.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"one");

        network.set(NetworkState::Stalled);
        far.write_all(b"two").await.unwrap();
        let reading = tokio::spawn(async move {
            let mut read = [0; 3];
            near.read_exact(&mut read).await.map(|_| (near, read))
        });
        while network.0.lock().wakers.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(!reading.is_finished());
        network.set(NetworkState::Up);
        let (mut near, read) = reading.await.unwrap().unwrap();
        assert_eq!(&read, b"two");

        network.set(NetworkState::Broken);
        let error = near.write_all(b"three").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
