//! Reads bytes of a connection up to an expected end. It parses only what is needed to find the end of an HTTP head, a
//! body and a chunk: a library would correct the table's requests and hide the received bytes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum number of bytes that are read ahead.
const MAX_BYTES: usize = 4 << 20;

/// Any connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection, and the bytes that have been received but not returned yet.
pub struct Wire {
    io: Box<dyn Io>,
    ahead: Vec<u8>,
}

/// Method of finding the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(usize),
    Chunked,
}

impl Wire {
    pub fn new(io: impl Io + 'static) -> Self {
        Self { io: Box::new(io), ahead: Vec::new() }
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.io.write_all(bytes).await?;
        Ok(self.io.flush().await?)
    }

    /// Reads once; returns false at the end of the connection.
    async fn fill(&mut self) -> Result<bool> {
        let mut buffer = [0; 16 << 10];
        let read = self.io.read(&mut buffer).await?;
        self.ahead.extend_from_slice(&buffer[..read]);
        ensure!(self.ahead.len() <= MAX_BYTES, "more than {MAX_BYTES} bytes");
        Ok(read > 0)
    }

    /// The bytes up to and including `end`; `None` if the connection ends before the first byte.
    pub async fn read_until(&mut self, end: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut from = 0;
        loop {
            if let Some(at) = find(&self.ahead[from..], end) {
                let rest = self.ahead.split_off(from + at + end.len());
                return Ok(Some(std::mem::replace(&mut self.ahead, rest)));
            }
            from = self.ahead.len().saturating_sub(end.len());
            if !self.fill().await? {
                ensure!(self.ahead.is_empty(), "the connection ended within {:?}", lossy(&self.ahead));
                return Ok(None);
            }
        }
    }

    /// Reads a number of bytes; fails if the connection ends earlier.
    pub async fn read_exactly(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.ahead.len() < count {
            ensure!(self.fill().await?, "the connection ended {} bytes early", count - self.ahead.len());
        }
        let rest = self.ahead.split_off(count);
        Ok(std::mem::replace(&mut self.ahead, rest))
    }

    /// Reads a raw body, including chunk sizes and trailers. If reading fails, `body` contains the bytes read so
    /// far.
    pub async fn read_body(&mut self, framing: Framing, body: &mut Vec<u8>) -> Result<()> {
        match framing {
            Framing::None => {}
            Framing::Length(length) => body.extend(self.read_exactly(length).await?),
            Framing::Chunked => loop {
                let line = self.read_until(b"\r\n").await?.context("the body ends before a chunk")?;
                body.extend_from_slice(&line);
                let size = lossy(&line).trim().split(';').next().map(|size| usize::from_str_radix(size, 16));
                let Some(Ok(size)) = size else { bail!("{:?} is not the size of a chunk", lossy(&line)) };
                if size > 0 {
                    body.extend(self.read_exactly(size + 2).await?);
                    continue;
                }
                // Trailers, up to an empty line.
                loop {
                    let line = self.read_until(b"\r\n").await?.context("the body ends within the trailers")?;
                    body.extend_from_slice(&line);
                    if line == b"\r\n" {
                        return Ok(());
                    }
                }
            },
        }
        Ok(())
    }

    /// The bytes received within a time limit, or until the end of the connection.
    pub async fn read_rest(&mut self, timeout: Duration) -> Vec<u8> {
        // An error ends the connection like a regular close.
        let reading = async { while self.fill().await.unwrap_or(false) {} };
        tokio::time::timeout(timeout, reading).await.ok();
        std::mem::take(&mut self.ahead)
    }

    /// The connection and the bytes read ahead.
    pub fn into_parts(self) -> (Box<dyn Io>, Vec<u8>) {
        (self.io, self.ahead)
    }
}

/// Header lines of a head, without the first one.
pub fn header_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.next();
    lines.filter(|line| !line.is_empty())
}

/// Lower-case name and value of a header line.
pub fn header(line: &[u8]) -> (String, String) {
    let text = lossy(line);
    let (name, value) = text.split_once(':').unwrap_or((&text, ""));
    (name.to_ascii_lowercase(), value.trim().to_owned())
}

/// All values of a header.
pub fn values(head: &[u8], name: &str) -> Vec<String> {
    header_lines(head).map(header).filter(|(known, _)| known == name).map(|(_, value)| value).collect()
}

/// Framing of the body after a head, as a strict recipient determines it.
pub fn framing(head: &[u8]) -> Result<Framing> {
    let (codings, lengths) = (values(head, "transfer-encoding"), values(head, "content-length"));
    match (codings.as_slice(), lengths.as_slice()) {
        ([], []) => Ok(Framing::None),
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        ([], [length]) => Ok(Framing::Length(length.parse().with_context(|| format!("Content-Length: {length}"))?)),
        _ => bail!("ambiguous framing: Transfer-Encoding {codings:?}, Content-Length {lengths:?}"),
    }
}

pub fn find(all: &[u8], part: &[u8]) -> Option<usize> {
    memchr::memmem::find(all, part)
}

pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
