//! Request and response bodies that hold an audit record or permit until they end or are dropped, and copy their
//! bytes for the record.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use serde_json::Value;

use super::record::{LARGEST, Record};

/// Direction of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Request,
    Response,
}

/// A body that owns `holds` until it ends or is dropped, and copies its bytes for an audit record if one needs them.
pub struct TrackedBody<T> {
    inner: Body,
    capture: Option<BodyCapture>,
    holds: Option<T>,
}

impl<T> TrackedBody<T> {
    pub fn new(inner: Body, holds: T) -> Self {
        Self { inner, capture: None, holds: Some(holds) }
    }

    /// Copies the bytes of the body for an audit record.
    pub fn with_capture(mut self, capture: Option<BodyCapture>) -> Self {
        self.capture = capture;
        self
    }
}

/// Copy of a body for its audit record, up to `LARGEST` bytes.
pub struct BodyCapture {
    record: Arc<Record>,
    side: Side,
    yaml: bool,
    bytes: Vec<u8>,
    too_large: bool,
}

impl BodyCapture {
    /// Copies a request body, from which the object reference is completed. Only JSON and YAML are read.
    pub fn request(record: &Arc<Record>, headers: &HeaderMap) -> Option<Self> {
        Self::of(record, Side::Request, headers)
    }

    /// Copies a response body if the record's level includes it.
    pub fn response(record: &Arc<Record>, code: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let wanted = record.wants_response() && code != StatusCode::SWITCHING_PROTOCOLS;
        wanted.then(|| Self::of(record, Side::Response, headers)).flatten()
    }

    fn of(record: &Arc<Record>, side: Side, headers: &HeaderMap) -> Option<Self> {
        let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("application/json");
        let media = media.split(';').next().unwrap_or_default().trim();
        let yaml = media.ends_with("yaml");
        let text = yaml || media.ends_with("json");
        text.then(|| Self { record: Arc::clone(record), side, yaml, bytes: Vec::new(), too_large: false })
    }

    fn append(&mut self, data: &[u8]) {
        if self.too_large {
            return;
        }
        if self.bytes.len() + data.len() > LARGEST {
            self.too_large = true;
            self.bytes = Vec::new();
            return;
        }
        self.bytes.extend_from_slice(data);
    }

    /// The parsed body; `None` if it is incomplete or malformed.
    fn parsed(&self) -> Option<Value> {
        match self.yaml {
            true => serde_saphyr::from_str(std::str::from_utf8(&self.bytes).ok()?).ok(),
            false => serde_json::from_slice(&self.bytes).ok(),
        }
    }
}

/// The record is written on drop: a body of known length may never be polled to its end.
impl Drop for BodyCapture {
    fn drop(&mut self) {
        if self.too_large {
            if self.record.wants_request() {
                self.record.truncated();
            }
        } else if let Some(object) = self.parsed() {
            match self.side {
                Side::Request => self.record.requested(&object),
                Side::Response => self.record.responded(object),
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
                self.holds = None;
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
