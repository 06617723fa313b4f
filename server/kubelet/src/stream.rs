//! Byte streams of the kubelet: input and output of processes, independent of the transport.
//!
//! [`Source`] and [`Sink`] are implemented by SPDY streams, WebSocket channels, pipes between commands, and files.
//! The shell, logs and port-forward use only these traits.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::mpsc;

/// Capacity of a pipe, in chunks.
pub const PIPE_CAPACITY_CHUNKS: usize = 16;

/// A source of bytes. `None` is the end of the stream.
#[async_trait]
pub trait Source: Send {
    async fn recv(&mut self) -> Option<Bytes>;
}

/// A destination of bytes. An error means that the reader has disconnected.
#[async_trait]
pub trait Sink: Send + Sync {
    async fn send(&self, data: Bytes) -> io::Result<()>;

    /// Signals the end of the stream to the reader.
    async fn finish(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A shared writer: child processes inherit the file descriptors of their parent.
pub type Output = Arc<dyn Sink>;

#[async_trait]
impl Source for mpsc::Receiver<Bytes> {
    async fn recv(&mut self) -> Option<Bytes> {
        mpsc::Receiver::recv(self).await
    }
}

#[async_trait]
impl Sink for mpsc::Sender<Bytes> {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        mpsc::Sender::send(self, data).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A [`Sink`] that discards everything, like `/dev/null`.
pub struct DiscardingSink;

#[async_trait]
impl Sink for DiscardingSink {
    async fn send(&self, _data: Bytes) -> io::Result<()> {
        Ok(())
    }
}

/// Collects output up to a limit, for command substitution and tests.
#[derive(Default)]
pub struct CollectingSink {
    bytes: parking_lot::Mutex<BytesMut>,
}

/// Maximum output of a command substitution, in bytes.
const MAX_COLLECTED_BYTES: usize = 1 << 20;

impl CollectingSink {
    pub fn take(&self) -> Bytes {
        self.bytes.lock().split().freeze()
    }
}

#[async_trait]
impl Sink for CollectingSink {
    async fn send(&self, data: Bytes) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        if bytes.len() + data.len() > MAX_COLLECTED_BYTES {
            return Err(io::Error::other("output too large"));
        }
        bytes.extend_from_slice(&data);
        Ok(())
    }
}

/// Creates a pipe between two commands.
pub fn pipe() -> (Output, Input) {
    let (sender, receiver) = mpsc::channel(PIPE_CAPACITY_CHUNKS);
    (Arc::new(sender), Input::new(receiver))
}

/// A buffered [`Source`] that can be read by line, by length or to its end.
pub struct Input {
    source: Option<Box<dyn Source>>,
    pending: BytesMut,
}

impl Input {
    pub fn new(source: impl Source + 'static) -> Self {
        Self { source: Some(Box::new(source)), pending: BytesMut::new() }
    }

    pub fn empty() -> Self {
        Self { source: None, pending: BytesMut::new() }
    }

    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self { source: None, pending: BytesMut::from(bytes) }
    }

    /// Appends the next chunk to `pending`. Returns false at the end.
    async fn fill(&mut self) -> bool {
        let Some(source) = &mut self.source else { return false };
        match source.recv().await {
            Some(chunk) => {
                self.pending.extend_from_slice(&chunk);
                true
            }
            None => {
                self.source = None;
                false
            }
        }
    }

    /// Reads the next available bytes. Returns `None` at the end.
    pub async fn read_chunk(&mut self) -> Option<Bytes> {
        while self.pending.is_empty() {
            if !self.fill().await {
                return None;
            }
        }
        Some(self.pending.split().freeze())
    }

    /// Reads one line with its newline, which the last line may lack. Lines longer than `MAX_LINE_BYTES` are split.
    pub async fn read_line(&mut self) -> Option<Bytes> {
        const MAX_LINE_BYTES: usize = 1 << 20;
        let mut searched = 0;
        loop {
            if let Some(at) = self.pending[searched..].iter().position(|b| *b == b'\n') {
                return Some(self.pending.split_to(searched + at + 1).freeze());
            }
            searched = self.pending.len();
            if searched >= MAX_LINE_BYTES || !self.fill().await {
                return (!self.pending.is_empty()).then(|| self.pending.split().freeze());
            }
        }
    }

    /// Reads exactly `amount` bytes. Returns `None` if the input ends earlier.
    pub async fn read_exact(&mut self, amount: usize) -> Option<Bytes> {
        while self.pending.len() < amount {
            if !self.fill().await {
                return None;
            }
        }
        Some(self.pending.split_to(amount).freeze())
    }

    /// Skips `amount` bytes. Returns false if the input ends earlier.
    pub async fn skip(&mut self, mut amount: u64) -> bool {
        loop {
            let available = self.pending.len().min(usize::try_from(amount).unwrap_or(usize::MAX));
            self.pending.advance(available);
            amount -= available as u64;
            if amount == 0 {
                return true;
            }
            if !self.fill().await {
                return false;
            }
        }
    }
}
