//! Buffer between a socket and TLS: reads larger chunks than rustls requests, and releases the buffer while a
//! connection is idle.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes per read from a socket: four TLS records. rustls alone reads 4 KiB at a time.
const READ_SIZE: usize = 64 * 1024;
/// Buffers that each thread keeps for reuse.
const MAX_SPARE_BUFFERS: usize = 4;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Wraps a socket below TLS to read in larger chunks.
pub fn read_ahead<S: AsyncRead + Unpin>(stream: S) -> ReadAhead<S> {
    ReadAhead { stream, chunk: None }
}

/// A socket with a read-ahead buffer.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    /// Bytes read and not yet consumed. Empty while the connection waits for its peer.
    chunk: Option<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Chunk {
    /// Copies as many bytes as fit into `out`; returns what remains, if anything.
    fn copy_to(mut self, out: &mut ReadBuf<'_>) -> Option<Self> {
        let end = self.to.min(self.from + out.remaining());
        out.put_slice(&self.bytes[self.from..end]);
        self.from = end;
        if self.from < self.to {
            return Some(self);
        }
        recycle(self.bytes);
        None
    }
}

fn take_spare() -> Box<[u8]> {
    let spare = SPARE_BUFFERS.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    spare.unwrap_or_else(|| vec![0; READ_SIZE].into_boxed_slice())
}

fn recycle(bytes: Box<[u8]>) {
    // The thread-local storage has been destroyed if the thread is ending; the buffer is freed then.
    let _ = SPARE_BUFFERS.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(bytes);
        }
    });
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(chunk) = self.chunk.take() {
            self.chunk = chunk.copy_to(out);
            return Poll::Ready(Ok(()));
        }
        if out.remaining() >= READ_SIZE {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        let mut bytes = take_spare();
        let mut read = ReadBuf::new(&mut bytes);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut read);
        let to = read.filled().len();
        if to == 0 {
            recycle(bytes);
            return polled;
        }
        ready!(polled)?;
        self.chunk = Chunk { bytes, from: 0, to }.copy_to(out);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use rstest::rstest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[rstest]
    #[case::a_few_bytes(10, 4096)]
    #[case::one_chunk(READ_SIZE, 4096)]
    #[case::several_buffers(3 * READ_SIZE + 1, 4096)]
    #[case::reads_larger_than_the_buffer(2 * READ_SIZE, 2 * READ_SIZE)]
    #[tokio::test]
    async fn all_bytes_arrive_and_idle_connections_hold_no_buffer(#[case] length: usize, #[case] step: usize) {
        let (mut client, server) = tokio::io::duplex(4 * READ_SIZE);
        let mut server = read_ahead(server);
        let sent: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        client.write_all(&sent).await.unwrap();
        let (mut received, mut part) = (Vec::new(), vec![0; step]);
        while received.len() < length {
            let n = server.read(&mut part).await.unwrap();
            received.extend_from_slice(&part[..n]);
        }
        assert!(received == sent);
        assert!(server.read(&mut part).now_or_never().is_none(), "no bytes are left");
        assert!(server.chunk.is_none());
        drop(client);
        assert_eq!(server.read(&mut part).await.unwrap(), 0);
    }
}
