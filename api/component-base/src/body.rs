//! Reads bodies of HTTP messages completely, up to a limit.

use bytes::Bytes;
use crowsnest_apimachinery::status::{ApiError, Reason};
use futures::future::BoxFuture;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};

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
    Box::pin(async move {
        match Limited::new(body, limit).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge { limit }),
            Err(error) => Err(BodyError::Read(error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use rstest::rstest;

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
}
