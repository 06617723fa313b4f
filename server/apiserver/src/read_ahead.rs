//! Buffer between a socket and TLS: reads larger chunks than rustls requests, and releases the buffer while a
//! connection is idle.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffer::{BUFFER_SIZE, Buffer};

/// Wraps a socket below TLS to read in larger chunks.
pub fn read_ahead<S: AsyncRead + Unpin>(stream: S) -> ReadAhead<S> {
    ReadAhead { stream, chunk: None }
}

/// A socket with a read-ahead buffer.
#[derive(Debug)]
pub struct ReadAhead<S> {
    stream: S,
    /// Bytes read and not yet consumed. Empty while the connection waits for its peer.
    chunk: Option<Buffer>,
}

/// Moves as many bytes as fit into `out`; returns the buffer if it has more.
fn move_bytes(mut buffer: Buffer, out: &mut ReadBuf<'_>) -> Option<Buffer> {
    let count = buffer.filled().len().min(out.remaining());
    out.put_slice(&buffer.filled()[..count]);
    buffer.consume(count);
    (!buffer.filled().is_empty()).then_some(buffer)
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(chunk) = self.chunk.take() {
            self.chunk = move_bytes(chunk, out);
            return Poll::Ready(Ok(()));
        }
        if out.remaining() >= BUFFER_SIZE {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        // rustls alone reads 4 KiB at a time.
        let mut buffer = Buffer::new();
        let mut read = ReadBuf::new(buffer.space());
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut read);
        let count = read.filled().len();
        if count == 0 {
            return polled;
        }
        ready!(polled)?;
        buffer.fill(count);
        self.chunk = move_bytes(buffer, out);
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
    #[case::one_chunk(BUFFER_SIZE, 4096)]
    #[case::several_buffers(3 * BUFFER_SIZE + 1, 4096)]
    #[case::reads_larger_than_the_buffer(2 * BUFFER_SIZE, 2 * BUFFER_SIZE)]
    #[tokio::test]
    async fn all_bytes_arrive_and_idle_connections_hold_no_buffer(#[case] length: usize, #[case] step: usize) {
        let (mut client, server) = tokio::io::duplex(4 * BUFFER_SIZE);
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
