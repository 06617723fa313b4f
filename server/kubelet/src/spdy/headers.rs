//! Name/value header blocks, compressed by zlib with the SPDY/3 dictionary. Each direction has one compression
//! context.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::SpdyError;

/// Headers of a stream: lower-case names with their values.
pub type Headers = BTreeMap<String, Vec<String>>;

/// Maximum decompressed size of a header block. Kubernetes' streams need a few hundred bytes.
const MAX_BLOCK_BYTES: usize = 64 << 10;

/// Dictionary words that are preceded by a 32-bit length.
const DICTIONARY_WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// The rest of the dictionary, without lengths.
const DICTIONARY_TAIL: &str = concat!(
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505",
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized",
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable",
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT",
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,",
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.",
);

fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1423);
    for word in DICTIONARY_WORDS {
        bytes.put_u32(word.len() as u32);
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes.extend_from_slice(DICTIONARY_TAIL.as_bytes());
    bytes
}

/// Compresses the header blocks of one direction. Its state spans all blocks.
pub struct Compressor(Compress);

impl Compressor {
    pub fn new() -> Result<Self, SpdyError> {
        let mut zlib = Compress::new(Compression::default(), true);
        zlib.set_dictionary(&dictionary())?;
        Ok(Self(zlib))
    }

    /// Encodes and compresses a header block.
    pub fn compress(&mut self, headers: &Headers) -> Result<Vec<u8>, SpdyError> {
        let mut plain = Vec::new();
        plain.put_u32(headers.len() as u32);
        for (name, values) in headers {
            let value = values.join("\0");
            plain.put_u32(name.len() as u32);
            plain.extend_from_slice(name.as_bytes());
            plain.put_u32(value.len() as u32);
            plain.extend_from_slice(value.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() + 64);
        let start = self.0.total_in();
        loop {
            let done = (self.0.total_in() - start) as usize;
            self.0.compress_vec(&plain[done..], &mut block, FlushCompress::Sync)?;
            // The flush is complete if the output buffer is not full.
            if block.len() < block.capacity() {
                return Ok(block);
            }
            block.reserve(block.capacity());
        }
    }
}

/// Decompresses the header blocks of one direction.
pub struct Decompressor(Decompress);

impl Default for Decompressor {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Decompressor {
    /// Decompresses and parses a header block.
    pub fn decompress(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        let plain = self.inflate(block)?;
        parse_headers(&plain).ok_or(SpdyError::Protocol("malformed header block"))
    }

    fn inflate(&mut self, block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut plain = Vec::with_capacity(1024);
        let start = self.0.total_in();
        loop {
            let done = (self.0.total_in() - start) as usize;
            let has_room = match self.0.decompress_vec(&block[done..], &mut plain, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => return Ok(plain),
                Ok(Status::Ok | Status::BufError) => plain.len() < plain.capacity(),
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&dictionary())?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if has_room && (self.0.total_in() - start) as usize == block.len() {
                return Ok(plain);
            }
            if plain.len() >= MAX_BLOCK_BYTES || has_room {
                return Err(SpdyError::Protocol("header block too large or cut short"));
            }
            plain.reserve(plain.capacity());
        }
    }
}

fn parse_headers(mut plain: &[u8]) -> Option<Headers> {
    let mut headers = Headers::new();
    for _ in 0..plain.try_get_u32().ok()? {
        let name = read_string(&mut plain)?.to_ascii_lowercase();
        let values = read_string(&mut plain)?.split('\0').map(str::to_owned).collect();
        headers.insert(name, values);
    }
    Some(headers)
}

/// Reads a string that is preceded by its length.
fn read_string(plain: &mut &[u8]) -> Option<String> {
    let length = plain.try_get_u32().ok()? as usize;
    let bytes = plain.get(..length)?;
    let text = std::str::from_utf8(bytes).ok()?.to_owned();
    plain.advance(length);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &[&str])]) -> Headers {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), v.iter().map(|v| (*v).to_owned()).collect())).collect()
    }

    #[test]
    fn dictionary_has_the_published_checksum() {
        let mut zlib = Compress::new(Compression::default(), true);
        assert_eq!(zlib.set_dictionary(&dictionary()).unwrap(), 0xe3c6_a7c2);
    }

    #[test]
    fn consecutive_blocks_round_trip() {
        let big = "x".repeat(30_000);
        let blocks = [
            headers(&[("streamtype", &["error"]), ("port", &["80"]), ("requestid", &["0"])]),
            headers(&[]),
            headers(&[("a", &["one", "two"])]),
            headers(&[("big", &[&big])]),
        ];
        let (mut compressor, mut decompressor) = (Compressor::new().unwrap(), Decompressor::default());
        for block in &blocks {
            assert_eq!(&decompressor.decompress(&compressor.compress(block).unwrap()).unwrap(), block);
        }
    }

    #[test]
    fn oversized_and_invalid_blocks_are_rejected() {
        let bomb = headers(&[("big", &["x".repeat(MAX_BLOCK_BYTES * 4).as_str()])]);
        let block = Compressor::new().unwrap().compress(&bomb).unwrap();
        assert!(Decompressor::default().decompress(&block).is_err());
        assert!(Decompressor::default().decompress(b"nonsense").is_err());
    }
}
