//! Reads the log of one container from its member, as the caller.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_component_base::body;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt, unfold};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::line::{Line, LineSplitter};
use super::merge::Timed;
use super::select::{LogRequest, LogStart};
use super::{LogSource, MAX_STREAMS_OF_ALL_REQUESTS};
use crate::{Body, Caller, Error, Proxy, full};

/// Idle timeout of a log that is not followed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of a refusal's body in bytes, and of its message in characters.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
const MAX_MESSAGE_CHARS: usize = 1024;

/// Reason why a log, or the rest of it, cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// HTTP status code.
    pub code: u16,
    pub reason: String,
    pub message: String,
}

/// An event of one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// The log was requested.
    Started,
    Line(Line),
    /// The log, or the rest of it, cannot be read.
    Refused(Refusal),
    /// The log has ended, with the reason.
    Ended(&'static str),
}

impl Timed for SourceEvent {
    fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Line(line) => line.time,
            _ => None,
        }
    }
}

/// Context for reading the logs of one request.
#[derive(Clone)]
pub struct LogReader {
    pub proxy: Proxy,
    pub caller: Arc<Caller>,
    pub request: Arc<LogRequest>,
    /// Permits for the open logs of the request.
    pub permits: Arc<Semaphore>,
}

/// An open log.
pub struct Log {
    body: Body,
    splitter: LineSplitter,
    lines: VecDeque<Line>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl Refusal {
    fn from_error(error: &Error) -> Self {
        let (code, reason) = error.code_and_reason();
        Self { code: code.as_u16(), reason: reason.to_owned(), message: error.to_string() }
    }

    fn new(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self { code: code.as_u16(), reason: reason.to_owned(), message: message.into() }
    }

    /// The refusal in a member's error response.
    async fn from_response(response: Response<Body>) -> Self {
        #[derive(Deserialize, Default)]
        struct Status {
            #[serde(default)]
            reason: String,
            #[serde(default)]
            message: String,
        }
        let code = response.status();
        let body = body::collect(response.into_body(), MAX_REFUSAL_BYTES);
        let body = tokio::time::timeout(IDLE_TIMEOUT, body).await;
        let bytes = body.ok().and_then(Result::ok).unwrap_or_default();
        let Status { reason, mut message } = serde_json::from_slice(&bytes).unwrap_or_default();
        if message.is_empty() {
            message = format!("the member responded with {code}");
        }
        Self::new(code, &reason, message.chars().take(MAX_MESSAGE_CHARS).collect::<String>())
    }
}

impl LogReader {
    /// Opens a log.
    pub async fn open(&self, source: &LogSource, start: LogStart) -> Result<Log, Refusal> {
        let permits = [
            acquire(
                &self.permits,
                format!("{} logs are already open, the limit set by maxStreams", self.request.max_streams),
            )?,
            acquire(
                &self.proxy.inner.log_streams,
                format!(
                    "{MAX_STREAMS_OF_ALL_REQUESTS} logs are already open on this server, which is its limit; retry later"
                ),
            )?,
        ];
        let (namespace, pod) = (path_segment(&source.namespace), path_segment(&source.pod));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log");
        let mut query = format!("container={}&timestamps=true", percent_encode(&source.container));
        if self.request.follow {
            query.push_str("&follow=true");
        }
        if self.request.previous {
            query.push_str("&previous=true");
        }
        if let Some(tail) = start.tail {
            query.push_str(&format!("&tailLines={tail}"));
        }
        // Members accept whole seconds.
        if let Some(since) = start.since.and_then(|since| Timestamp::from_second(since.as_second()).ok()) {
            query.push_str(&format!("&sinceTime={}", percent_encode(&since.to_string())));
        }
        let (proxy, caller, cluster) = (self.proxy.clone(), Arc::clone(&self.caller), source.cluster.clone());
        // Boxed because the compiler cannot prove `Send` for callers with unresolved lifetimes.
        let request: BoxFuture<'static, _> =
            Box::pin(
                async move { proxy.forward_to_cluster(cluster.as_str(), &caller, &path, get_request(&query)).await },
            );
        let response = request.await.map_err(|error| Refusal::from_error(&error))?;
        if response.status() != StatusCode::OK {
            return Err(Refusal::from_response(response).await);
        }
        let (body, splitter, lines) = (response.into_body(), LineSplitter::default(), VecDeque::new());
        Ok(Log { body, splitter, lines, _permits: permits })
    }

    /// A log from its start position to its current end.
    pub fn stream(self, source: Arc<LogSource>) -> BoxStream<'static, SourceEvent> {
        let log = UnfollowedLog { reader: self, source, has_started: false, log: None };
        unfold(Some(log), |log| async move { log?.next().await }).boxed()
    }
}

impl Log {
    /// The next line; None at the end. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Line>, Refusal> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(line));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(chunk) = frame.data_ref() {
                        self.splitter.push(chunk, &mut self.lines);
                    }
                }
                Some(Err(error)) => {
                    let message = format!("the log was interrupted: {error}");
                    return Err(Refusal::new(StatusCode::BAD_GATEWAY, "ServiceUnavailable", message));
                }
                None => return Ok(self.splitter.finish()),
            }
        }
    }
}

/// A log that is not followed.
struct UnfollowedLog {
    reader: LogReader,
    source: Arc<LogSource>,
    has_started: bool,
    log: Option<Log>,
}

impl UnfollowedLog {
    /// The next event, and the reader for the events after it.
    async fn next(mut self) -> Option<(SourceEvent, Option<Self>)> {
        if !std::mem::replace(&mut self.has_started, true) {
            return Some((SourceEvent::Started, Some(self)));
        }
        let log = match &mut self.log {
            Some(log) => log,
            None => match self.reader.open(&self.source, self.reader.request.start).await {
                Ok(log) => self.log.insert(log),
                Err(refusal) => return Some((SourceEvent::Refused(refusal), None)),
            },
        };
        loop {
            match tokio::time::timeout(IDLE_TIMEOUT, log.next()).await {
                Ok(Ok(Some(line))) if self.reader.request.lines.matches(&line.text) => {
                    return Some((SourceEvent::Line(line), Some(self)));
                }
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => return None,
                Ok(Err(refusal)) => return Some((SourceEvent::Refused(refusal), None)),
                Err(_) => {
                    let message = format!("the member sent nothing for {} s", IDLE_TIMEOUT.as_secs());
                    return Some((
                        SourceEvent::Refused(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)),
                        None,
                    ));
                }
            }
        }
    }
}

/// Acquires a permit, or returns a refusal with the message.
fn acquire(permits: &Arc<Semaphore>, message: String) -> Result<OwnedSemaphorePermit, Refusal> {
    let permit = Arc::clone(permits).try_acquire_owned();
    permit.map_err(|_| Refusal::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message))
}

fn get_request(query: &str) -> Request<Body> {
    let mut request = Request::new(full(""));
    *request.method_mut() = Method::GET;
    if let Ok(uri) = format!("/?{query}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json, */*"));
    request
}
