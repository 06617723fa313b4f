//! Reads bodies of HTTP messages completely, up to a limit.

use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Buf, Bytes};
use crowsnest_apimachinery::status::{ApiError, Reason};
use futures::future::BoxFuture;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};

/// Maximum number of bytes of an oversized request body that are read and discarded after the limit.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
/// Maximum time for discarding them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of a body or of the connection that it is read from.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reasons why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("length limit exceeded")]
    TooLarge {
        /// Maximum size in bytes.
        limit: usize,
    },
    #[error(transparent)]
    Read(BoxError),
}

impl From<BodyError> for ApiError {
    /// The error response for a request with such a body, in kube-apiserver's wording.
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { limit } => {
                Self::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {limit}"))
            }
            BodyError::Read(error) => Self::bad_request(format!("error reading the request body: {error}")),
        }
    }
}

/// Reads a complete body. Fails if it has more than `limit` bytes.
///
/// The future is boxed, because its `Send` cannot be proved inside a caller whose lifetimes are not yet known
/// (rust-lang/rust#110338).
pub fn collect<B>(body: B, limit: usize) -> BoxFuture<'static, Result<Bytes, BodyError>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    Box::pin(async move { read(pin!(body), limit).await })
}

/// Like [`collect`], for the body of a request. The rest of an oversized body is discarded, up to a limit: many clients
/// read the response only after they have sent the whole body, and lose it if the connection is closed before.
pub fn collect_request<B>(body: B, limit: usize) -> BoxFuture<'static, Result<Bytes, BodyError>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    Box::pin(async move {
        let mut body = pin!(body);
        let result = read(body.as_mut(), limit).await;
        if matches!(result, Err(BodyError::TooLarge { .. })) {
            // After the timeout, the response is sent anyway.
            drop(tokio::time::timeout(DISCARD_TIMEOUT, discard(body)).await);
        }
        result
    })
}

async fn read<B>(body: Pin<&mut B>, limit: usize) -> Result<Bytes, BodyError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge { limit }),
        Err(error) => Err(BodyError::Read(error)),
    }
}

/// Reads the rest of a body, at most [`MAX_DISCARDED_BYTES`] and the frame that exceeds them.
async fn discard<B: Body>(mut body: Pin<&mut B>) {
    let mut discarded: usize = 0;
    while discarded <= MAX_DISCARDED_BYTES {
        let Some(Ok(frame)) = body.frame().await else { return };
        discarded += frame.data_ref().map_or(0, Buf::remaining);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use rstest::rstest;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn body(chunks: Vec<Result<&'static str, &'static str>>) -> impl Body<Data = Bytes, Error = BoxError> + Send {
        let frames = chunks.into_iter().map(|chunk| Ok(Frame::data(Bytes::from(chunk.map_err(BoxError::from)?))));
        StreamBody::new(futures::stream::iter(frames))
    }

    #[rstest]
    #[case::at_the_limit(vec![Ok("abc"), Ok("d")], Ok("abcd"))]
    #[case::above_the_limit(vec![Ok("abc"), Ok("de")], Err((413, "Request entity too large: limit is 4")))]
    #[case::read_error(vec![Ok("abc"), Err("reset")], Err((400, "error reading the request body: reset")))]
    #[tokio::test]
    async fn bodies_are_read_up_to_the_limit(
        #[case] chunks: Vec<Result<&'static str, &'static str>>,
        #[case] expected: Result<&str, (u16, &str)>,
    ) {
        let read = collect(body(chunks), 4).await.map_err(ApiError::from);
        let read = read.as_ref().map(|bytes| std::str::from_utf8(bytes).unwrap());
        assert_eq!(read.map_err(|error| (error.code, error.message.as_str())), expected);
    }

    /// The body has `frames` frames of one MiB, and two MiB are accepted. `expected` is the number of frames that are read.
    #[rstest]
    #[case::within_the_limit(2, 2)]
    #[case::oversized(10, 10)]
    #[case::endless(usize::MAX, 2 + 1 + 17)]
    #[tokio::test]
    async fn the_rest_of_an_oversized_request_is_discarded(#[case] frames: usize, #[case] expected: usize) {
        const FRAME_BYTES: usize = 1 << 20;
        let count = Arc::new(AtomicUsize::new(0));
        let reads = Arc::clone(&count);
        let frames = (0..frames).map(move |_| {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok::<_, BoxError>(Frame::data(Bytes::from(vec![b' '; FRAME_BYTES])))
        });
        let body = StreamBody::new(futures::stream::iter(frames));
        let read = collect_request(body, 2 * FRAME_BYTES).await;
        assert_eq!(read.is_ok(), expected == 2);
        assert_eq!(count.load(Ordering::Relaxed), expected);
    }
}
