//! Encoding and decoding of SPDY/3 frames.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Compressor, Decompressor, Headers, SpdyError};

const VERSION: u16 = 3;
/// `FLAG_FIN`: closes the sender's half of the stream.
pub const FLAG_FIN: u8 = 1;
/// `SETTINGS_INITIAL_WINDOW_SIZE`.
pub const INITIAL_WINDOW_SIZE: u32 = 7;
/// Maximum size of a control frame. Data frames may be longer and are read in chunks.
const MAX_CONTROL_BYTES: usize = 64 << 10;
/// Maximum chunk of a received data frame.
const MAX_CHUNK_BYTES: usize = 32 << 10;

/// Status codes of RST_STREAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RstStatus(pub u32);

impl RstStatus {
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const REFUSED_STREAM: Self = Self(3);
    pub const CANCEL: Self = Self(5);
}

/// A frame. Long data frames are read as several.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        stream: u32,
        headers: Headers,
        fin: bool,
        unidirectional: bool,
    },
    SynReply {
        stream: u32,
        headers: Headers,
        fin: bool,
    },
    RstStream {
        stream: u32,
        status: RstStatus,
    },
    Settings(Vec<(u32, u32)>),
    Ping(u32),
    GoAway {
        last_good: u32,
        status: u32,
    },
    Headers {
        stream: u32,
        headers: Headers,
        fin: bool,
    },
    WindowUpdate {
        stream: u32,
        delta: u32,
    },
    Data {
        stream: u32,
        data: Bytes,
        fin: bool,
    },
    /// A control frame of a type that SPDY/3.1 does not define, to be ignored.
    Unknown,
}

/// Reads the frames of one direction.
pub struct FrameReader<R> {
    io: R,
    decompressor: Decompressor,
    /// Remainder of a data frame: stream, number of bytes, FIN.
    rest: Option<(u32, usize, bool)>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(io: R) -> Self {
        Self { io, decompressor: Decompressor::default(), rest: None }
    }

    /// Reads the next frame. Returns `None` if the peer closed the connection between frames. Not cancel safe.
    pub async fn next(&mut self) -> Result<Option<Frame>, SpdyError> {
        if let Some((stream, remaining, fin)) = self.rest.take() {
            return self.read_chunk(stream, remaining, fin).await.map(Some);
        }
        let mut head = [0u8; 8];
        if self.io.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        self.io.read_exact(&mut head[1..]).await?;
        let mut fields = &head[..];
        let first = fields.get_u32();
        let second = fields.get_u32();
        let (flags, length) = ((second >> 24) as u8, (second & 0x00ff_ffff) as usize);
        if first & 0x8000_0000 == 0 {
            return self.read_chunk(first, length, flags & FLAG_FIN != 0).await.map(Some);
        }
        if (first >> 16) as u16 & 0x7fff != VERSION {
            return Err(SpdyError::Protocol("unsupported version"));
        }
        if length > MAX_CONTROL_BYTES {
            return Err(SpdyError::Protocol("control frame too large"));
        }
        let mut body = vec![0u8; length];
        self.io.read_exact(&mut body).await?;
        self.parse_control(first as u16, flags, &body).map(Some)
    }

    /// Reads the next chunk of a data frame with `remaining` bytes.
    async fn read_chunk(&mut self, stream: u32, remaining: usize, fin: bool) -> Result<Frame, SpdyError> {
        let length = remaining.min(MAX_CHUNK_BYTES);
        let mut data = BytesMut::zeroed(length);
        self.io.read_exact(&mut data).await?;
        if length < remaining {
            self.rest = Some((stream, remaining - length, fin));
        }
        Ok(Frame::Data { stream, data: data.freeze(), fin: fin && length == remaining })
    }

    fn parse_control(&mut self, kind: u16, flags: u8, body: &[u8]) -> Result<Frame, SpdyError> {
        let truncated = |_| SpdyError::Protocol("control frame cut short");
        let mut body = body;
        let fin = flags & FLAG_FIN != 0;
        Ok(match kind {
            1 => {
                let stream = body.try_get_u32().map_err(truncated)? & 0x7fff_ffff;
                // Associated stream, priority and credential slot are ignored.
                body.try_get_u32().and_then(|_| body.try_get_u16()).map_err(truncated)?;
                let headers = self.decompressor.decompress(body)?;
                Frame::SynStream { stream, headers, fin, unidirectional: flags & 2 != 0 }
            }
            2 | 8 => {
                let stream = body.try_get_u32().map_err(truncated)? & 0x7fff_ffff;
                let headers = self.decompressor.decompress(body)?;
                if kind == 2 {
                    Frame::SynReply { stream, headers, fin }
                } else {
                    Frame::Headers { stream, headers, fin }
                }
            }
            3 => Frame::RstStream {
                stream: body.try_get_u32().map_err(truncated)? & 0x7fff_ffff,
                status: RstStatus(body.try_get_u32().map_err(truncated)?),
            },
            4 => {
                let count = body.try_get_u32().map_err(truncated)?;
                let mut settings = Vec::new();
                for _ in 0..count {
                    let id = body.try_get_u32().map_err(truncated)? & 0x00ff_ffff;
                    settings.push((id, body.try_get_u32().map_err(truncated)?));
                }
                Frame::Settings(settings)
            }
            6 => Frame::Ping(body.try_get_u32().map_err(truncated)?),
            7 => Frame::GoAway {
                last_good: body.try_get_u32().map_err(truncated)? & 0x7fff_ffff,
                status: body.try_get_u32().map_err(truncated)?,
            },
            9 => Frame::WindowUpdate {
                stream: body.try_get_u32().map_err(truncated)? & 0x7fff_ffff,
                delta: body.try_get_u32().map_err(truncated)? & 0x7fff_ffff,
            },
            _ => Frame::Unknown,
        })
    }
}

impl Frame {
    /// Encodes the frame. `compressor` belongs to the connection and must be used in the order in which frames are
    /// sent.
    pub fn encode(&self, compressor: &mut Compressor) -> Result<BytesMut, SpdyError> {
        let mut out = BytesMut::new();
        match self {
            Frame::Data { stream, data, fin } => {
                out.put_u32(*stream);
                out.put_u32(u32::from(u8::from(*fin) * FLAG_FIN) << 24 | data.len() as u32);
                out.extend_from_slice(data);
            }
            Frame::SynStream { stream, headers, fin, unidirectional } => {
                let mut body = Vec::new();
                body.put_u32(*stream);
                body.put_u32(0);
                body.put_u16(0);
                body.extend(compressor.compress(headers)?);
                encode_control(&mut out, 1, u8::from(*fin) | u8::from(*unidirectional) << 1, &body);
            }
            Frame::SynReply { stream, headers, fin } => {
                let mut body = stream.to_be_bytes().to_vec();
                body.extend(compressor.compress(headers)?);
                encode_control(&mut out, 2, u8::from(*fin), &body);
            }
            Frame::Headers { stream, headers, fin } => {
                let mut body = stream.to_be_bytes().to_vec();
                body.extend(compressor.compress(headers)?);
                encode_control(&mut out, 8, u8::from(*fin), &body);
            }
            Frame::RstStream { stream, status } => encode_pair(&mut out, 3, *stream, status.0),
            Frame::GoAway { last_good, status } => encode_pair(&mut out, 7, *last_good, *status),
            Frame::WindowUpdate { stream, delta } => encode_pair(&mut out, 9, *stream, *delta),
            Frame::Ping(id) => encode_control(&mut out, 6, 0, &id.to_be_bytes()),
            Frame::Settings(settings) => {
                let mut body = (settings.len() as u32).to_be_bytes().to_vec();
                for (id, value) in settings {
                    body.put_u32(*id);
                    body.put_u32(*value);
                }
                encode_control(&mut out, 4, 0, &body);
            }
            Frame::Unknown => {}
        }
        Ok(out)
    }
}

fn encode_control(out: &mut BytesMut, kind: u16, flags: u8, body: &[u8]) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32(u32::from(flags) << 24 | body.len() as u32);
    out.extend_from_slice(body);
}

/// Encodes a control frame that consists of two numbers.
fn encode_pair(out: &mut BytesMut, kind: u16, first: u32, second: u32) {
    let mut body = first.to_be_bytes().to_vec();
    body.put_u32(second);
    encode_control(out, kind, 0, &body);
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    #[tokio::test]
    async fn frames_round_trip() {
        let headers: Headers = [("streamtype".to_owned(), vec!["stdin".to_owned()])].into();
        let frames = [
            Frame::SynStream { stream: 1, headers: headers.clone(), fin: false, unidirectional: true },
            Frame::SynReply { stream: 1, headers: headers.clone(), fin: true },
            Frame::Headers { stream: 3, headers, fin: false },
            Frame::RstStream { stream: 5, status: RstStatus::CANCEL },
            Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 1 << 20)]),
            Frame::Ping(7),
            Frame::GoAway { last_good: 9, status: 0 },
            Frame::WindowUpdate { stream: 0, delta: 65_536 },
            Frame::Data { stream: 1, data: Bytes::from_static(b"hello"), fin: false },
            Frame::Data { stream: 1, data: Bytes::new(), fin: true },
        ];
        let mut compressor = Compressor::new().unwrap();
        let mut encoded = Vec::new();
        for frame in &frames {
            encoded.extend(frame.encode(&mut compressor).unwrap());
        }
        let mut reader = FrameReader::new(&encoded[..]);
        for frame in &frames {
            assert_eq!(reader.next().await.unwrap().as_ref(), Some(frame));
        }
        assert_eq!(reader.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn long_data_frames_are_read_in_chunks_with_one_fin() {
        let data = Bytes::from(vec![7u8; MAX_CHUNK_BYTES * 2 + 5]);
        let encoded = Frame::Data { stream: 1, data, fin: true }.encode(&mut Compressor::new().unwrap()).unwrap();
        let mut reader = FrameReader::new(&encoded[..]);
        let mut chunks = Vec::new();
        while let Some(Frame::Data { data, fin, .. }) = reader.next().await.unwrap() {
            chunks.push((data.len(), fin));
        }
        assert_eq!(chunks, [(MAX_CHUNK_BYTES, false), (MAX_CHUNK_BYTES, false), (5, true)]);
    }

    fn any_headers() -> impl Strategy<Value = Headers> {
        let values = prop::collection::vec("[ -~]{0,12}", 1..3);
        prop::collection::btree_map("[a-z-]{1,12}", values, 0..4)
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        let id = 0..=0x7fff_ffff_u32;
        let (flag, word) = (any::<bool>(), any::<u32>());
        prop_oneof![
            (id.clone(), any_headers(), flag, any::<bool>()).prop_map(|(stream, headers, fin, unidirectional)| {
                Frame::SynStream { stream, headers, fin, unidirectional }
            }),
            (id.clone(), any_headers(), flag).prop_map(|(stream, headers, fin)| Frame::SynReply {
                stream,
                headers,
                fin
            }),
            (id.clone(), any_headers(), flag).prop_map(|(stream, headers, fin)| Frame::Headers {
                stream,
                headers,
                fin
            }),
            (id.clone(), word).prop_map(|(stream, status)| Frame::RstStream { stream, status: RstStatus(status) }),
            prop::collection::vec((0..=0x00ff_ffff_u32, word), 0..5).prop_map(Frame::Settings),
            word.prop_map(Frame::Ping),
            (id.clone(), word).prop_map(|(last_good, status)| Frame::GoAway { last_good, status }),
            (id.clone(), id.clone()).prop_map(|(stream, delta)| Frame::WindowUpdate { stream, delta }),
            (id, prop::collection::vec(any::<u8>(), 0..100), flag).prop_map(|(stream, data, fin)| Frame::Data {
                stream,
                data: data.into(),
                fin
            }),
        ]
    }

    /// Reads frames until the first incomplete or invalid one.
    fn read(bytes: &[u8]) -> Vec<Frame> {
        let mut reader = FrameReader::new(bytes);
        let mut frames = Vec::new();
        // A slice is always ready.
        while let Some(Ok(Some(frame))) = reader.next().now_or_never() {
            frames.push(frame);
        }
        frames
    }

    proptest! {
        #[test]
        fn arbitrary_frames_round_trip(frames in prop::collection::vec(any_frame(), 0..12)) {
            let mut compressor = Compressor::new().unwrap();
            let encoded: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(&mut compressor).unwrap()).collect();
            prop_assert_eq!(read(&encoded), frames);
        }

        #[test]
        fn reader_does_not_panic_on_arbitrary_input(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes);
        }

        #[test]
        fn reader_does_not_panic_on_corrupt_frames(
            frames in prop::collection::vec(any_frame(), 1..6), at in any::<prop::sample::Index>(), flip in 1..=255_u8, cut in any::<prop::sample::Index>(),
        ) {
            let mut compressor = Compressor::new().unwrap();
            let mut encoded: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(&mut compressor).unwrap()).collect();
            let at = at.index(encoded.len());
            encoded[at] ^= flip;
            read(&encoded);
            read(&encoded[..cut.index(encoded.len())]);
        }
    }
}
