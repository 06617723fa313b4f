//! Copies the bytes of a session in both directions until both sides are done. The session's task owns the buffers.
//!
//! A read from a TLS connection returns one or two records. Writing each of them costs a system call and wakes the
//! receiver, so all bytes that can be read without waiting are collected into one write.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Buffer size of one direction: four TLS records, which is also rustls' send buffer limit.
const BUFFER_BYTES: usize = 64 * 1024;

/// Number of bytes copied in each direction.
#[derive(Debug, Default)]
pub struct ByteCounts {
    pub sent: AtomicU64,
    pub received: AtomicU64,
}

/// Copies bytes between `client` and `member` in both directions. When a side ends, the other is shut down for
/// writing and its remaining bytes are still copied. An error ends both directions.
pub async fn relay<A, B>(mut client: A, mut member: B, counts: &ByteCounts) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut outgoing, mut incoming) = (Direction::default(), Direction::default());
    poll_fn(|cx| {
        let outgoing = outgoing.poll(cx, &mut client, &mut member, &counts.sent)?;
        let incoming = incoming.poll(cx, &mut member, &mut client, &counts.received)?;
        if outgoing.is_ready() && incoming.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction. Uses no memory while idle, because most sessions are idle most of the time.
#[derive(Default)]
struct Direction {
    buffer: Vec<u8>,
    /// Range of `buffer` that is not written yet.
    from: usize,
    to: usize,
    /// True if the reader is at its end.
    has_ended: bool,
    /// Read error; returned after everything before it is written.
    read_error: Option<io::Error>,
    needs_flush: bool,
    /// True if the end of the reader has been passed on to the writer.
    is_done: bool,
}

impl Direction {
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        count: &AtomicU64,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while !self.is_done {
            let is_waiting = self.fill_buffer(cx, reader, count).is_pending();
            if self.from < self.to {
                let written = ready!(Pin::new(&mut *writer).poll_write(cx, &self.buffer[self.from..self.to]))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.from += written;
                self.needs_flush = true;
            } else if self.has_ended {
                ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                self.is_done = true;
            } else if self.needs_flush {
                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                self.needs_flush = false;
            } else if let Some(error) = self.read_error.take() {
                return Poll::Ready(Err(error));
            } else if is_waiting {
                self.buffer = Vec::new();
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads until the buffer is full, no more bytes are available (pending), or the end.
    fn fill_buffer<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        count: &AtomicU64,
    ) -> Poll<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        while !self.has_ended && self.read_error.is_none() && self.to < BUFFER_BYTES {
            if self.buffer.is_empty() {
                self.buffer.resize(BUFFER_BYTES, 0);
            }
            let mut read = ReadBuf::new(&mut self.buffer[self.to..]);
            if let Err(error) = ready!(Pin::new(&mut *reader).poll_read(cx, &mut read)) {
                self.read_error = Some(error);
                break;
            }
            let length = read.filled().len();
            count.fetch_add(length as u64, Ordering::Relaxed);
            self.to += length;
            self.has_ended = length == 0;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Writes `pieces`, shuts down writing, and reads to the end.
    async fn exchange(side: tokio::io::DuplexStream, pieces: Vec<Vec<u8>>) -> Vec<u8> {
        let (mut read, mut write) = tokio::io::split(side);
        let writing = async {
            for piece in pieces {
                write.write_all(&piece).await.unwrap();
            }
            write.shutdown().await.unwrap();
        };
        let mut output = Vec::new();
        let (_, result) = tokio::join!(writing, read.read_to_end(&mut output));
        result.unwrap();
        output
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// All bytes and the end arrive on the other side in order, for any sizes of the pieces.
        #[test]
        fn both_directions_are_copied_completely(
            client_bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..60),
            member_bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..60),
            pipe_bytes in 1_usize..200_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (sent, received) = (client_bytes.concat(), member_bytes.concat());
            runtime.block_on(async {
                let ((client, client_end), (member_end, member)) = (duplex(pipe_bytes), duplex(pipe_bytes));
                let counts = ByteCounts::default();
                let (received_by_client, received_by_member, result) =
                    tokio::join!(exchange(client, client_bytes), exchange(member, member_bytes), relay(client_end, member_end, &counts));
                result.unwrap();
                assert_eq!(received_by_member, sent);
                assert_eq!(received_by_client, received);
                assert_eq!(counts.sent.into_inner(), sent.len() as u64);
                assert_eq!(counts.received.into_inner(), received.len() as u64);
            });
        }
    }

    #[tokio::test]
    async fn bytes_are_written_at_once_and_an_idle_direction_has_no_buffer() {
        let (mut client, mut client_end) = duplex(BUFFER_BYTES);
        let (mut member_end, mut member) = duplex(BUFFER_BYTES);
        let (mut direction, count) = (Direction::default(), AtomicU64::default());
        for piece in [vec![1; 10_000], vec![2; 20_000]] {
            client.write_all(&piece).await.unwrap();
        }
        let is_waiting =
            poll_fn(|cx| Poll::Ready(direction.poll(cx, &mut client_end, &mut member_end, &count).is_pending())).await;
        assert!(is_waiting);
        let mut output = vec![0; 64 * 1024];
        assert_eq!(member.read(&mut output).await.unwrap(), 30_000);
        assert_eq!(direction.buffer.capacity(), 0);
    }

    /// A reader that fails.
    struct FailingReader;

    impl AsyncRead for FailingReader {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    #[tokio::test]
    async fn bytes_before_an_error_are_delivered() {
        let (_client, client_end) = duplex(64);
        let (member_end, mut member) = duplex(64);
        let (_, client_end) = tokio::io::split(client_end);
        let failing = tokio::io::join((&b"last words"[..]).chain(FailingReader), client_end);
        let error = relay(failing, member_end, &ByteCounts::default()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let mut output = String::new();
        member.read_to_string(&mut output).await.unwrap();
        assert_eq!(output, "last words");
    }

    #[tokio::test]
    async fn an_error_of_one_side_ends_both() {
        let (client, client_end) = duplex(64);
        let (member_end, member) = duplex(64);
        drop(member);
        let counts = ByteCounts::default();
        let mut client = client;
        client.write_all(b"this is lost").await.unwrap();
        let error = relay(client_end, member_end, &counts).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
