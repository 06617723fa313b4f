//! Request and response bodies that own an audit record or permit until they end or are dropped, and copy their
//! bytes for the record.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::yaml;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use serde_json::Value;

use super::record::{MAX_BODY_BYTES, Record};

/// Direction of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Response,
}

/// A body that owns `guard` until it ends or is dropped, and copies its bytes for an audit record if one needs them.
pub struct TrackedBody<T> {
    inner: Body,
    capture: Option<BodyCapture>,
    guard: Option<T>,
}

impl<T> TrackedBody<T> {
    pub fn new(inner: Body, guard: T) -> Self {
        Self { inner, capture: None, guard: Some(guard) }
    }

    /// Copies the bytes of the body for an audit record.
    pub fn with_capture(mut self, capture: Option<BodyCapture>) -> Self {
        self.capture = capture;
        self
    }
}

/// Copy of a body for its audit record, up to `MAX_BODY_BYTES` bytes.
pub struct BodyCapture {
    record: Arc<Record>,
    direction: Direction,
    is_yaml: bool,
    bytes: Vec<u8>,
    is_too_large: bool,
}

impl BodyCapture {
    /// Copies a request body, which also completes the event's object reference. Only JSON and YAML are read.
    pub fn request(record: &Arc<Record>, headers: &HeaderMap) -> Option<Self> {
        Self::new(record, Direction::Request, headers)
    }

    /// Copies a response body if the record's level includes it.
    pub fn response(record: &Arc<Record>, code: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let is_logged = record.logs_response_body() && code != StatusCode::SWITCHING_PROTOCOLS;
        is_logged.then(|| Self::new(record, Direction::Response, headers)).flatten()
    }

    fn new(record: &Arc<Record>, direction: Direction, headers: &HeaderMap) -> Option<Self> {
        let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("application/json");
        let media = media.split(';').next().unwrap_or_default().trim();
        let is_yaml = media.ends_with("yaml");
        let is_text = is_yaml || media.ends_with("json");
        is_text.then(|| Self { record: Arc::clone(record), direction, is_yaml, bytes: Vec::new(), is_too_large: false })
    }

    fn append(&mut self, data: &[u8]) {
        if self.is_too_large {
            return;
        }
        if self.bytes.len() + data.len() > MAX_BODY_BYTES {
            self.is_too_large = true;
            self.bytes = Vec::new();
            return;
        }
        self.bytes.extend_from_slice(data);
    }

    /// Parses the body; `None` if it is incomplete or malformed.
    fn parse(&self) -> Option<Value> {
        match self.is_yaml {
            true => yaml::parse(std::str::from_utf8(&self.bytes).ok()?).ok(),
            false => serde_json::from_slice(&self.bytes).ok(),
        }
    }
}

/// Records the body on drop, because a body with a Content-Length may never be polled to its end.
impl Drop for BodyCapture {
    fn drop(&mut self) {
        if self.is_too_large {
            if self.record.logs_request_body() {
                self.record.mark_truncated();
            }
        } else if let Some(object) = self.parse() {
            match self.direction {
                Direction::Request => self.record.record_request(&object),
                Direction::Response => self.record.record_response_body(object),
            }
        }
    }
}

impl<T: Unpin> http_body::Body for TrackedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        match (&frame, &mut self.capture) {
            (Some(Ok(frame)), Some(capture)) => {
                if let Some(data) = frame.data_ref() {
                    capture.append(data);
                }
            }
            (None, _) => {
                self.capture = None;
                self.guard = None;
            }
            _ => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
