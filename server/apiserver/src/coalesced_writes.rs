//! Buffer between HTTP/2 and TLS: the frames that a connection sends at once share TLS records and writes to the
//! socket.
//!
//! `h2` flushes after each DATA frame that it does not copy, and again when no frame is left. With many watches on a
//! connection, each frame would otherwise be a TLS record, a system call and a wake-up of the client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffer::{BUFFER_SIZE, Buffer};

/// Wraps a stream that `h2` writes to.
pub fn coalesce_writes<S>(stream: S) -> CoalescedWrites<S> {
    CoalescedWrites { stream, pending: None, has_written_frame: false }
}

/// A stream that collects frames until `h2` has no more.
#[derive(Debug)]
pub struct CoalescedWrites<S> {
    stream: S,
    /// Bytes that were not passed to the stream.
    pending: Option<Buffer>,
    /// True if the last call wrote a frame in several parts. `h2` flushes twice after such a frame if it is the last
    /// one, so the first flush can be deferred.
    has_written_frame: bool,
}

impl<S: AsyncWrite + Unpin> CoalescedWrites<S> {
    /// Passes the collected bytes to the stream.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(pending) = &mut self.pending {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, pending.filled()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            pending.consume(count);
            if pending.filled().is_empty() {
                self.pending = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedWrites<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > this.pending.as_ref().map_or(BUFFER_SIZE, Buffer::space_bytes) {
            ready!(this.poll_drain(cx))?;
        }
        let is_frame = parts.iter().filter(|part| !part.is_empty()).count() > 1;
        this.has_written_frame = is_frame && length <= BUFFER_SIZE;
        if this.pending.is_none() && !this.has_written_frame {
            return Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        }
        let pending = this.pending.get_or_insert_with(Buffer::new);
        parts.iter().for_each(|part| pending.append(part));
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.has_written_frame) {
            // Each poll of a connection ends with a flush, so that the bytes are sent even if none follows now.
            cx.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedWrites<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, out)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::{Body, to_bytes};
    use futures::FutureExt;
    use futures::future::join_all;
    use hyper::body::Incoming;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rstest::rstest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// A stream that counts its writes.
    struct CountingStream {
        stream: DuplexStream,
        writes: Arc<AtomicUsize>,
    }

    impl AsyncWrite for CountingStream {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.stream).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(cx)
        }
    }

    impl AsyncRead for CountingStream {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(cx, out)
        }
    }

    /// A wrapped stream, its other end, and the number of writes to it.
    fn connect(capacity: usize) -> (CoalescedWrites<CountingStream>, DuplexStream, Arc<AtomicUsize>) {
        let (ours, theirs) = tokio::io::duplex(capacity);
        let writes = Arc::new(AtomicUsize::new(0));
        (coalesce_writes(CountingStream { stream: ours, writes: writes.clone() }), theirs, writes)
    }

    /// Writes a frame as `h2` does: in two parts, followed by a flush.
    async fn write_frame(stream: &mut CoalescedWrites<CountingStream>, payload: &[u8]) {
        let parts = [IoSlice::new(b"head"), IoSlice::new(payload)];
        let count = poll_fn(|cx| Pin::new(&mut *stream).poll_write_vectored(cx, &parts)).await.unwrap();
        assert_eq!(count, 4 + payload.len());
        stream.flush().await.unwrap();
    }

    #[tokio::test]
    async fn frames_are_written_at_the_flush_that_follows_the_last() {
        let (mut stream, mut other, writes) = connect(BUFFER_SIZE);
        for payload in ["one", "two", "three"] {
            write_frame(&mut stream, payload.as_bytes()).await;
        }
        assert_eq!(writes.load(Ordering::Relaxed), 0);
        stream.flush().await.unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 1);
        assert!(stream.pending.is_none(), "the buffer is released");
        let mut received = [0; 23];
        other.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"headoneheadtwoheadthree");
    }

    #[tokio::test]
    async fn other_writes_are_not_delayed_and_keep_their_order() {
        let (mut stream, mut other, writes) = connect(BUFFER_SIZE);
        stream.write_all(b"settings").await.unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 1);
        write_frame(&mut stream, b"data").await;
        stream.write_all(b"ping").await.unwrap();
        stream.flush().await.unwrap();
        let mut received = [0; 20];
        other.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"settingsheaddataping");
        write_frame(&mut stream, b"last").await;
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        other.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"headlast");
    }

    #[rstest]
    #[case::several_frames_per_buffer(16 * 1024, 20)]
    #[case::one_frame_per_buffer(BUFFER_SIZE - 4, 3)]
    #[case::frames_larger_than_the_buffer(BUFFER_SIZE, 3)]
    #[tokio::test]
    async fn a_slow_reader_receives_all_frames(#[case] length: usize, #[case] frames: usize) {
        let (mut stream, mut other, _) = connect(1000);
        let payload: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let mut received = Vec::new();
        let writing = async {
            for _ in 0..frames {
                let mut frame = b"head".to_vec();
                frame.extend_from_slice(&payload);
                let mut sent = 0;
                while sent < frame.len() {
                    let (head, rest) = frame[sent..].split_at(1);
                    let parts = [IoSlice::new(head), IoSlice::new(rest)];
                    sent += poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &parts)).await.unwrap();
                }
                stream.flush().await.unwrap();
            }
            stream.shutdown().await.unwrap();
        };
        let reading = async { other.read_to_end(&mut received).await.unwrap() };
        tokio::join!(writing, reading);
        let expected = [b"head".as_slice(), &payload].concat().repeat(frames);
        assert!(received == expected);
    }

    #[tokio::test]
    async fn a_deferred_flush_wakes_the_writer() {
        let (mut stream, mut other, _) = connect(BUFFER_SIZE);
        let mut flushes = 0;
        let parts = [IoSlice::new(b"he"), IoSlice::new(b"ad")];
        // Writes once, then flushes whenever it is polled.
        let writing = poll_fn(|cx| {
            if flushes == 0 {
                assert!(Pin::new(&mut stream).poll_write_vectored(cx, &parts).is_ready());
            }
            flushes += 1;
            assert!(Pin::new(&mut stream).poll_flush(cx).is_ready());
            Poll::<()>::Pending
        });
        let mut received = [0; 4];
        tokio::select! {
            biased;
            read = other.read_exact(&mut received) => assert_eq!(read.unwrap(), 4),
            () = writing => {}
        }
        assert_eq!((&received, flushes), (b"head", 2));
        assert!(other.read_u8().now_or_never().is_none());
    }

    #[tokio::test]
    async fn responses_on_one_connection_share_writes() {
        const REQUESTS: usize = 50;
        const BODY_BYTES: usize = 2000;
        let (stream, other, writes) = connect(BUFFER_SIZE);
        let service = hyper::service::service_fn(|request: http::Request<Incoming>| async move {
            let body = request.uri().path().repeat(BODY_BYTES / 2);
            Ok::<_, Infallible>(http::Response::new(Body::from(body)))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let server_task = tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        let (client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(other)).await.unwrap();
        let client_task = tokio::spawn(connection);
        let requests = (0..REQUESTS).map(|nth| {
            let mut client = client.clone();
            async move {
                let path = format!("/{}", nth % 10);
                let request = http::Request::get(format!("http://localhost{path}")).body(Body::empty()).unwrap();
                let response = client.send_request(request).await.unwrap();
                let body = to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
                assert_eq!(body, path.repeat(BODY_BYTES / 2));
            }
        });
        join_all(requests).await;
        assert!(writes.load(Ordering::Relaxed) < REQUESTS, "{writes:?} writes");
        client_task.abort();
        server_task.abort();
    }
}
