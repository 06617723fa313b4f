//! Streams and flow control of one connection.
//!
//! [`Connection::new`] returns the connection, which yields the streams opened by the peer, and a [`Driver`], the
//! future that reads from the socket. The owner of the connection polls both; no task is spawned. Data is buffered
//! in a bounded queue per stream: when the reader of a stream falls behind, the driver stops reading from the socket
//! until it catches up.
//!
//! Flow control: window updates are always sent. The window of the peer is observed only after its first
//! WINDOW_UPDATE or initial window setting, because the SPDY library of kubectl and the kubelet neither sends nor
//! observes window updates: waiting for them would block every transfer at 64 KiB.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use super::frame::{FrameReader, INITIAL_WINDOW_SIZE};
use super::{Compressor, Frame, Headers, RstStatus, SpdyError};
use crate::stream::{Sink, Source};

/// Initial window of streams and of the connection, as specified.
const DEFAULT_WINDOW_BYTES: i64 = 64 << 10;
/// Maximum number of chunks (of up to 32 KiB) buffered for a stream's reader.
const MAX_BUFFERED_CHUNKS: usize = 16;
/// Maximum number of open streams per peer. Port-forward opens two per forwarded connection.
const MAX_STREAMS: usize = 1024;
/// Maximum number of opened streams that wait to be accepted.
const MAX_UNACCEPTED_STREAMS: usize = 64;
/// Number of consumed bytes after which a window update is sent.
const WINDOW_UPDATE_BYTES: u32 = 32 << 10;
/// Maximum payload of a sent data frame.
const MAX_DATA_BYTES: usize = 32 << 10;

/// The accepting side of a connection.
pub struct Connection {
    accept: mpsc::Receiver<Stream>,
    shared: Arc<Shared>,
}

/// Reads from the socket until the peer closes the connection.
pub struct Driver<T> {
    reader: FrameReader<ReadHalf<T>>,
    opened: mpsc::Sender<Stream>,
    shared: Arc<Shared>,
    last_stream: u32,
}

struct Shared {
    writer: tokio::sync::Mutex<Writer>,
    streams: Mutex<HashMap<u32, OpenStream>>,
    window: Window,
    /// True once the peer has used flow control.
    uses_flow_control: AtomicBool,
    initial_window: AtomicI64,
}

struct Writer {
    io: Box<dyn AsyncWrite + Send + Unpin>,
    compressor: Compressor,
}

/// An open stream: neither reset nor finished by both sides.
struct OpenStream {
    /// `None` once the peer has finished.
    inbound: Option<mpsc::Sender<Bytes>>,
    window: Arc<Window>,
    /// True once this side has finished.
    finished: bool,
}

/// The send window: number of bytes that may be sent.
struct Window {
    credit: AtomicI64,
    credit_added: Notify,
    closed: AtomicBool,
}

impl Window {
    fn new(credit: i64) -> Self {
        Self { credit: AtomicI64::new(credit), credit_added: Notify::new(), closed: AtomicBool::new(false) }
    }

    fn grow(&self, delta: i64) {
        self.credit.fetch_add(delta, Ordering::AcqRel);
        self.credit_added.notify_waiters();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.credit_added.notify_waiters();
    }

    /// Waits until the window is open. Returns false if the stream was reset.
    async fn wait_until_open(&self) -> bool {
        loop {
            let credit_added = self.credit_added.notified();
            tokio::pin!(credit_added);
            credit_added.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return false;
            }
            if self.credit.load(Ordering::Acquire) > 0 {
                return true;
            }
            credit_added.await;
        }
    }
}

/// A stream opened by the peer, for which SYN_REPLY was already sent.
pub struct Stream {
    pub id: u32,
    pub headers: Headers,
    receiver: Receiver,
    sender: Sender,
}

impl Stream {
    /// Returns the first value of a header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.first().map(String::as_str)
    }

    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }
}

/// The receiving half of a stream.
pub struct Receiver {
    id: u32,
    data: mpsc::Receiver<Bytes>,
    consumed: u32,
    shared: Arc<Shared>,
}

/// The sending half of a stream.
#[derive(Clone)]
pub struct Sender {
    id: u32,
    window: Arc<Window>,
    shared: Arc<Shared>,
}

impl Connection {
    pub fn new<T>(io: T) -> Result<(Self, Driver<T>), SpdyError>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (read, write): (ReadHalf<T>, WriteHalf<T>) = tokio::io::split(io);
        let writer = Writer { io: Box::new(write), compressor: Compressor::new()? };
        let shared = Arc::new(Shared {
            writer: tokio::sync::Mutex::new(writer),
            streams: Mutex::default(),
            window: Window::new(DEFAULT_WINDOW_BYTES),
            uses_flow_control: AtomicBool::new(false),
            initial_window: AtomicI64::new(DEFAULT_WINDOW_BYTES),
        });
        let (opened, accept) = mpsc::channel(MAX_UNACCEPTED_STREAMS);
        let driver = Driver { reader: FrameReader::new(read), opened, shared: shared.clone(), last_stream: 0 };
        Ok((Self { accept, shared }, driver))
    }

    /// Returns the next stream opened by the peer, `None` once the connection is closed.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.accept.recv().await
    }

    /// Sends GOAWAY and closes the sending half of the connection.
    pub async fn close(&self) -> Result<(), SpdyError> {
        let last_good = self.shared.streams.lock().keys().copied().max().unwrap_or(0);
        self.shared.write(&Frame::GoAway { last_good, status: 0 }).await?;
        Ok(self.shared.writer.lock().await.io.shutdown().await?)
    }
}

impl Shared {
    async fn write(&self, frame: &Frame) -> Result<(), SpdyError> {
        let mut writer = self.writer.lock().await;
        let bytes = frame.encode(&mut writer.compressor)?;
        writer.io.write_all(&bytes).await?;
        Ok(writer.io.flush().await?)
    }

    fn reset(&self, stream: u32) {
        if let Some(open) = self.streams.lock().remove(&stream) {
            open.window.close();
        }
    }

    /// Records that one side has finished. The stream is removed when both have.
    fn finish(&self, stream: u32, is_ours: bool) {
        let mut streams = self.streams.lock();
        let Some(open) = streams.get_mut(&stream) else { return };
        if is_ours {
            open.finished = true;
        } else {
            open.inbound = None;
        }
        if open.finished && open.inbound.is_none() {
            streams.remove(&stream);
        }
    }

    fn grow(&self, stream: u32, delta: i64) {
        self.uses_flow_control.store(true, Ordering::Release);
        if stream == 0 {
            self.window.grow(delta);
        } else if let Some(open) = self.streams.lock().get(&stream) {
            open.window.grow(delta);
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Driver<T> {
    /// Reads until the peer closes the connection or violates the protocol.
    pub async fn run(mut self) -> Result<(), SpdyError> {
        let result = self.handle_frames().await;
        // Readers see the end of their stream, and writers fail.
        for (_, open) in self.shared.streams.lock().drain() {
            open.window.close();
        }
        self.shared.window.close();
        result
    }

    async fn handle_frames(&mut self) -> Result<(), SpdyError> {
        while let Some(frame) = self.reader.next().await? {
            match frame {
                Frame::SynStream { stream, headers, fin, .. } => self.handle_syn_stream(stream, headers, fin).await?,
                Frame::Data { stream, data, fin } => self.handle_data(stream, data, fin).await?,
                Frame::RstStream { stream, .. } => self.shared.reset(stream),
                // Pings of the client are odd. Even IDs answer pings of the server, which sends none.
                Frame::Ping(id) if id % 2 == 1 => self.shared.write(&Frame::Ping(id)).await?,
                Frame::WindowUpdate { stream, delta } => self.shared.grow(stream, i64::from(delta)),
                Frame::Settings(settings) => self.handle_settings(&settings),
                Frame::Headers { stream, fin: true, .. } => self.shared.finish(stream, false),
                // The peer opens no new streams; existing streams continue.
                Frame::GoAway { .. } => {}
                Frame::Headers { .. } | Frame::Ping(_) | Frame::SynReply { .. } | Frame::Unknown => {}
            }
        }
        Ok(())
    }

    async fn handle_syn_stream(&mut self, stream: u32, headers: Headers, fin: bool) -> Result<(), SpdyError> {
        if stream.is_multiple_of(2) || stream <= self.last_stream {
            return Err(SpdyError::Protocol("stream IDs of a client must be odd and increasing"));
        }
        self.last_stream = stream;
        let is_full = self.shared.streams.lock().len() >= MAX_STREAMS;
        if is_full {
            return self.shared.write(&Frame::RstStream { stream, status: RstStatus::REFUSED_STREAM }).await;
        }
        let (inbound, data) = mpsc::channel(MAX_BUFFERED_CHUNKS);
        let window = Arc::new(Window::new(self.shared.initial_window.load(Ordering::Acquire)));
        let open = OpenStream { inbound: (!fin).then_some(inbound), window: window.clone(), finished: false };
        self.shared.streams.lock().insert(stream, open);
        self.shared.write(&Frame::SynReply { stream, headers: Headers::new(), fin: false }).await?;
        let receiver = Receiver { id: stream, data, consumed: 0, shared: self.shared.clone() };
        let sender = Sender { id: stream, window, shared: self.shared.clone() };
        if self.opened.send(Stream { id: stream, headers, receiver, sender }).await.is_err() {
            // The accepting side was dropped because the connection is closing.
            self.shared.reset(stream);
            self.shared.write(&Frame::RstStream { stream, status: RstStatus::REFUSED_STREAM }).await?;
        }
        Ok(())
    }

    async fn handle_data(&mut self, stream: u32, data: Bytes, fin: bool) -> Result<(), SpdyError> {
        let inbound = self.shared.streams.lock().get(&stream).and_then(|open| open.inbound.clone());
        if let Some(inbound) = inbound {
            let length = data.len() as u32;
            // If the stream's reader was dropped, its data is discarded and credited to the connection.
            if !data.is_empty() && inbound.send(data).await.is_err() {
                self.shared.write(&Frame::WindowUpdate { stream: 0, delta: length }).await?;
            }
        }
        if fin {
            self.shared.finish(stream, false);
        }
        Ok(())
    }

    fn handle_settings(&self, settings: &[(u32, u32)]) {
        for (_, value) in settings.iter().filter(|(id, _)| *id == INITIAL_WINDOW_SIZE) {
            let new = i64::from(*value);
            let old = self.shared.initial_window.swap(new, Ordering::AcqRel);
            self.shared.uses_flow_control.store(true, Ordering::Release);
            for open in self.shared.streams.lock().values() {
                open.window.grow(new - old);
            }
        }
    }
}

#[async_trait]
impl Source for Receiver {
    async fn recv(&mut self) -> Option<Bytes> {
        let data = self.data.recv().await?;
        self.consumed += data.len() as u32;
        if self.consumed >= WINDOW_UPDATE_BYTES {
            let delta = std::mem::take(&mut self.consumed);
            for stream in [0, self.id] {
                if let Err(error) = self.shared.write(&Frame::WindowUpdate { stream, delta }).await {
                    // The received data is valid; the driver reports the connection error.
                    tracing::debug!(%error, "cannot send window update");
                }
            }
        }
        Some(data)
    }
}

#[async_trait]
impl Sink for Sender {
    async fn send(&self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            let mut length = data.len().min(MAX_DATA_BYTES);
            if self.window.closed.load(Ordering::Acquire) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if self.shared.uses_flow_control.load(Ordering::Acquire) {
                if !(self.window.wait_until_open().await && self.shared.window.wait_until_open().await) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                let credit = self
                    .window
                    .credit
                    .load(Ordering::Acquire)
                    .min(self.shared.window.credit.load(Ordering::Acquire))
                    .max(1);
                length = length.min(usize::try_from(credit).unwrap_or(length));
            }
            self.window.credit.fetch_sub(length as i64, Ordering::AcqRel);
            self.shared.window.credit.fetch_sub(length as i64, Ordering::AcqRel);
            let chunk = data.split_to(length);
            self.shared
                .write(&Frame::Data { stream: self.id, data: chunk, fin: false })
                .await
                .map_err(io::Error::other)?;
        }
        Ok(())
    }

    async fn finish(&self) -> io::Result<()> {
        let is_open = self.shared.streams.lock().get(&self.id).is_some_and(|open| !open.finished);
        if !is_open {
            return Ok(());
        }
        self.shared.finish(self.id, true);
        self.shared
            .write(&Frame::Data { stream: self.id, data: Bytes::new(), fin: true })
            .await
            .map_err(io::Error::other)
    }
}

impl Sender {
    /// Resets the stream, which closes both directions.
    pub async fn reset(&self, status: RstStatus) -> Result<(), SpdyError> {
        self.shared.reset(self.id);
        self.shared.write(&Frame::RstStream { stream: self.id, status }).await
    }
}
