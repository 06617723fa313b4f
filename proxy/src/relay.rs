//! Copies the bytes of a session in both directions until both sides are done. The session's task owns the buffers.
//!
//! A read from a TLS connection returns one or two records. Writing each of them costs a system call and wakes the
//! receiver, so everything that can be read without waiting is gathered into one write.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Buffer size of one direction: four TLS records, which is also rustls' send buffer limit.
const GATHERED: usize = 64 * 1024;

/// Number of bytes copied in each direction.
#[derive(Debug, Default)]
pub struct Moved {
    pub sent: AtomicU64,
    pub received: AtomicU64,
}

/// Copies bytes between `ours` and `theirs` in both directions. When a side ends, the other is shut down for
/// writing and its remaining bytes are still copied. An error ends both directions.
pub async fn relay<A, B>(mut ours: A, mut theirs: B, moved: &Moved) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut there, mut back) = (OneWay::default(), OneWay::default());
    poll_fn(|cx| {
        let there = there.poll(cx, &mut ours, &mut theirs, &moved.sent)?;
        let back = back.poll(cx, &mut theirs, &mut ours, &moved.received)?;
        if there.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction. Holds no memory while idle, because most sessions are idle most of the time.
#[derive(Default)]
struct OneWay {
    buffer: Vec<u8>,
    /// Range of `buffer` that is not written yet.
    from: usize,
    to: usize,
    ended: bool,
    /// Read error; returned after everything before it is written.
    failed: Option<io::Error>,
    flush: bool,
    done: bool,
}

impl OneWay {
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        moved: &AtomicU64,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while !self.done {
            let waits = self.gather(cx, reader, moved).is_pending();
            if self.from < self.to {
                let written = ready!(Pin::new(&mut *writer).poll_write(cx, &self.buffer[self.from..self.to]))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.from += written;
                self.flush = true;
            } else if self.ended {
                ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                self.done = true;
            } else if self.flush {
                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                self.flush = false;
            } else if let Some(error) = self.failed.take() {
                return Poll::Ready(Err(error));
            } else if waits {
                self.buffer = Vec::new();
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads until the buffer is full, no more bytes are available (pending), or the end.
    fn gather<R: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, reader: &mut R, moved: &AtomicU64) -> Poll<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        while !self.ended && self.failed.is_none() && self.to < GATHERED {
            if self.buffer.is_empty() {
                self.buffer.resize(GATHERED, 0);
            }
            let mut read = ReadBuf::new(&mut self.buffer[self.to..]);
            if let Err(error) = ready!(Pin::new(&mut *reader).poll_read(cx, &mut read)) {
                self.failed = Some(error);
                break;
            }
            let count = read.filled().len();
            moved.fetch_add(count as u64, Ordering::Relaxed);
            self.to += count;
            self.ended = count == 0;
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
    async fn talk(side: tokio::io::DuplexStream, pieces: Vec<Vec<u8>>) -> Vec<u8> {
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
            ours in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..60),
            theirs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..60),
            room in 1_usize..200_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (sent, received) = (ours.concat(), theirs.concat());
            runtime.block_on(async {
                let ((client, our_end), (their_end, member)) = (duplex(room), duplex(room));
                let moved = Moved::default();
                let (heard_by_us, heard_by_them, ended) =
                    tokio::join!(talk(client, ours), talk(member, theirs), relay(our_end, their_end, &moved));
                ended.unwrap();
                assert_eq!(heard_by_them, sent);
                assert_eq!(heard_by_us, received);
                assert_eq!(moved.sent.into_inner(), sent.len() as u64);
                assert_eq!(moved.received.into_inner(), received.len() as u64);
            });
        }
    }

    #[tokio::test]
    async fn bytes_are_written_at_once_and_an_idle_direction_holds_no_buffer() {
        let (mut client, mut our_end) = duplex(GATHERED);
        let (mut their_end, mut member) = duplex(GATHERED);
        let (mut way, moved) = (OneWay::default(), AtomicU64::default());
        for piece in [vec![1; 10_000], vec![2; 20_000]] {
            client.write_all(&piece).await.unwrap();
        }
        let waits = poll_fn(|cx| Poll::Ready(way.poll(cx, &mut our_end, &mut their_end, &moved).is_pending())).await;
        assert!(waits);
        let mut output = vec![0; 64 * 1024];
        assert_eq!(member.read(&mut output).await.unwrap(), 30_000);
        assert_eq!(way.buffer.capacity(), 0);
    }

    /// A reader that fails.
    struct Cut;

    impl AsyncRead for Cut {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
        }
    }

    #[tokio::test]
    async fn bytes_before_an_error_are_delivered() {
        let (_client, our_end) = duplex(64);
        let (their_end, mut member) = duplex(64);
        let (_, our_end) = tokio::io::split(our_end);
        let cut = tokio::io::join((&b"last words"[..]).chain(Cut), our_end);
        let error = relay(cut, their_end, &Moved::default()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let mut output = String::new();
        member.read_to_string(&mut output).await.unwrap();
        assert_eq!(output, "last words");
    }

    #[tokio::test]
    async fn an_error_of_one_side_ends_both() {
        let (client, our_end) = duplex(64);
        let (their_end, member) = duplex(64);
        drop(member);
        let moved = Moved::default();
        let mut client = client;
        client.write_all(b"this is lost").await.unwrap();
        let error = relay(our_end, their_end, &moved).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
