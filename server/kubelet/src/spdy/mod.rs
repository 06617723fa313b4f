//! SPDY/3.1, server side: multiplexed streams over one connection, as used by `kubectl exec` and `kubectl
//! port-forward`.
//!
//! Implemented from the published drafts (SPDY 3 and the 3.1 addition of connection flow control). [`frame`] has the
//! wire format, [`headers`] the compressed header blocks, and [`connection`] streams and flow control. Used by
//! `remotecommand` and `portforward`.

mod connection;
mod frame;
mod headers;

pub use connection::{Connection, Driver, Receiver, Sender, Stream};
pub use frame::{Frame, FrameReader, RstStatus};
pub use headers::{Compressor, Decompressor, Headers};

/// Errors that end a SPDY connection.
#[derive(Debug, thiserror::Error)]
pub enum SpdyError {
    #[error("connection lost: {0}")]
    Io(#[from] std::io::Error),
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    #[error("cannot compress headers: {0}")]
    Compress(#[from] flate2::CompressError),
    #[error("cannot decompress headers: {0}")]
    Decompress(#[from] flate2::DecompressError),
}
