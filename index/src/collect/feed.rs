//! Wire format of list and watch responses. Objects are parsed without being copied.

use bytes::{Bytes, BytesMut};
use crowsnest_component_base::body;
use crowsnest_component_base::lines::{LineBuffer, LineTooLong};
use crowsnest_store::ingest::{Draft, ExpectedType, IngestOptions, RawObject, read};
use crowsnest_store::{CollectionKey, Error};
use futures::{Stream, StreamExt};
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Duration;

/// A page of a list. `items` is required; null is an empty list.
#[derive(Deserialize)]
pub struct Page<'a> {
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(borrow, deserialize_with = "null_or_items")]
    pub items: Vec<&'a RawValue>,
}

fn null_or_items<'de: 'a, 'a, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<&'a RawValue>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: Option<String>,
}

/// A line of a watch.
pub struct Event<'a> {
    pub type_: Cow<'a, str>,
    pub object: RawObject<'a>,
}

impl<'a> Event<'a> {
    pub fn parse(line: &'a str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct RawEvent<'a> {
            #[serde(rename = "type", borrow)]
            type_: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        if let Some(event) = Self::parse_usual_form(line) {
            return Ok(event);
        }
        let RawEvent { type_, object } = serde_json::from_str(line)?;
        Ok(Self { type_, object: RawObject::new(object.get()) })
    }

    /// Parses a line in the form that kube-apiserver writes; `None` for any other. Its object is scanned only once.
    fn parse_usual_form(line: &'a str) -> Option<Self> {
        let (type_, rest) = line.strip_prefix(r#"{"type":""#)?.split_once('"')?;
        let object = RawObject::new(rest.strip_prefix(r#","object":"#)?.trim_ascii_end().strip_suffix('}')?);
        let is_plain = type_.bytes().all(|byte| byte.is_ascii_alphabetic());
        (is_plain && object.is_object()).then_some(Self { type_: Cow::Borrowed(type_), object })
    }
}

/// Metadata of a bookmark.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Bookmark {
    pub metadata: BookmarkMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct BookmarkMeta {
    pub resource_version: String,
    pub annotations: std::collections::BTreeMap<String, String>,
}

impl Bookmark {
    /// True if this bookmark marks the end of the initial events.
    pub fn ends_initial_events(&self) -> bool {
        self.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true")
    }
}

/// The fields that identify an object, readable even if others are invalid.
#[derive(Deserialize)]
pub struct PartialObject<'a> {
    #[serde(borrow, default)]
    pub kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub metadata: PartialMetadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartialMetadata<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub resource_version: Option<Cow<'a, str>>,
}

impl<'a> PartialObject<'a> {
    /// None if the object has no name.
    pub fn parse(json: &'a str) -> Option<Self> {
        serde_json::from_str(json).ok().filter(|object: &Self| !object.metadata.name.is_empty())
    }

    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }
}

/// Maximum size in bytes of a `Status` body.
const MAX_STATUS_BYTES: usize = 64 << 10;

/// A Kubernetes `Status` that describes an error.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct StatusBody {
    pub message: String,
    pub reason: String,
    pub code: u16,
}

/// Requests a document and returns its body. Any status other than success is an error. `timeout` limits the time to the
/// response head.
pub async fn get(client: &Client, key: &CollectionKey, uri: &str, timeout: Duration) -> Result<Body, Error> {
    let interrupted = |reason: String| interruption_error(key, reason);
    let request = Request::get(uri).header(ACCEPT, "application/json").body(Body::empty());
    let request = request.map_err(|e| interrupted(e.to_string()))?;
    let response = match tokio::time::timeout(timeout, client.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(interrupted(root_cause(&error))),
        Err(_) => return Err(interrupted(format!("no response within {timeout:?}"))),
    };
    let status = response.status();
    if status.is_success() {
        return match non_json_content_type(response.headers()) {
            None => Ok(response.into_body()),
            Some(content_type) => Err(interrupted(format!("it responded with {content_type} instead of JSON"))),
        };
    }
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    // The body of an error is read within the same time limit.
    let body = body::collect(response.into_body(), MAX_STATUS_BYTES);
    let body = tokio::time::timeout(timeout, body).await.ok().and_then(Result::ok).unwrap_or_default();
    let status_body: StatusBody = serde_json::from_slice(&body).unwrap_or_else(|_| StatusBody {
        message: String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
        ..StatusBody::default()
    });
    Err(Error::ErrorResponse {
        cluster: key.cluster.clone(),
        resource: key.resource.clone(),
        status: status.as_u16(),
        message: status_body.message,
        retry_after: seconds.map(Duration::from_secs),
    })
}

/// The content type of a response that is not JSON.
fn non_json_content_type(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    (!kind.contains("json")).then(|| kind.to_owned())
}

pub fn interruption_error(key: &CollectionKey, reason: impl Into<String>) -> Error {
    Error::Interrupted { cluster: key.cluster.clone(), resource: key.resource.clone(), reason: reason.into() }
}

fn too_large(key: &CollectionKey, part: &'static str, limit: usize) -> Error {
    Error::TooLarge { cluster: key.cluster.clone(), resource: key.resource.clone(), part, limit }
}

/// Message of the innermost cause of an error, which is the most specific one.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Reads a complete page of at most `max_bytes`.
pub async fn read_page(
    mut body: Body,
    key: &CollectionKey,
    max_bytes: usize,
    timeout: Duration,
) -> Result<Bytes, Error> {
    let reading = async {
        let mut page = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| interruption_error(key, root_cause(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            if page.len() + data.len() > max_bytes {
                return Err(too_large(key, "page", max_bytes));
            }
            page.extend_from_slice(&data);
        }
        Ok(page.freeze())
    };
    let read = tokio::time::timeout(timeout, reading).await;
    let (cluster, resource) = (key.cluster.clone(), key.resource.clone());
    read.unwrap_or(Err(Error::PageTimeout { cluster, resource, timeout }))
}

/// Lines of a watch.
pub struct Lines<S> {
    stream: S,
    key: CollectionKey,
    buffer: LineBuffer,
}

impl<S, E> Lines<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::error::Error + 'static,
{
    /// `max_line_bytes` is the maximum length of a line.
    pub fn new(stream: S, key: &CollectionKey, max_line_bytes: usize) -> Self {
        Self { stream, key: key.clone(), buffer: LineBuffer::new(max_line_bytes) }
    }

    /// The next line if it is already buffered. Fails if it is too long.
    pub fn next_buffered(&mut self) -> Result<Option<Bytes>, Error> {
        self.buffer.next_line().map_err(|LineTooLong { max_line_bytes }| too_large(&self.key, "line", max_line_bytes))
    }

    /// Number of buffered bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.buffered_bytes()
    }

    /// Reads the next chunk into the buffer. Returns false at the end of the stream. Cancel-safe.
    pub async fn fill(&mut self) -> Result<bool, Error> {
        match self.stream.next().await {
            None => Ok(false),
            Some(Err(error)) => Err(interruption_error(&self.key, root_cause(&error))),
            Some(Ok(chunk)) => {
                self.buffer.push(&chunk);
                Ok(true)
            }
        }
    }
}

/// Decodes an object; rejects other kinds and objects without a name. `kind` is the required kind, if known.
/// `implied_kind` is the kind of objects that do not state one.
pub fn decode_object(
    object: RawObject<'_>,
    key: &CollectionKey,
    kind: &str,
    implied_kind: &str,
    options: &IngestOptions,
) -> Result<Draft, Error> {
    let expected = ExpectedType { resource: &key.resource, kind: implied_kind };
    let draft = read(object, expected, options).map_err(|source| malformed_error(key, source))?;
    let is_other_kind = draft.kind.is_empty() || !kind.is_empty() && draft.kind != kind;
    if draft.name.is_empty() || is_other_kind {
        return Err(malformed_error(key, json_error(format!("{} {:?}", draft.kind, draft.name))));
    }
    Ok(draft)
}

pub fn malformed_error(key: &CollectionKey, source: serde_json::Error) -> Error {
    Error::Malformed { cluster: key.cluster.clone(), resource: key.resource.clone(), source }
}

/// An error of serde for an object that is valid JSON but not acceptable.
pub fn json_error(message: impl std::fmt::Display) -> serde_json::Error {
    serde::de::Error::custom(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_assembled_from_any_chunks() {
        let chunks = ["{\"a\":1}\n{\"b\"", ":2}", "\n\n{\"c\":3}\n"];
        let key = CollectionKey::new(
            crowsnest_store::fixtures::cluster("member1"),
            crowsnest_apimachinery::names::Gvr::new("", "v1", "pods"),
        );
        let stream = futures::stream::iter(chunks.map(|chunk| Ok::<_, std::io::Error>(Bytes::from(chunk))));
        let mut lines = Lines::new(stream, &key, 64);
        let mut found = Vec::new();
        loop {
            while let Some(line) = lines.next_buffered().unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
            if !lines.fill().await.unwrap() {
                break;
            }
        }
        assert_eq!(found, ["{\"a\":1}", "{\"b\":2}", "", "{\"c\":3}"]);
        let too_long = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65]))]);
        let mut lines = Lines::new(too_long, &key, 64);
        assert!(lines.fill().await.unwrap());
        assert!(lines.next_buffered().is_err_and(|error| error.is_invalid_response()));
    }

    #[test]
    fn events_are_parsed_in_any_form() {
        let cases = [
            (r#"{"type":"ADDED","object":{"a":{"b":1}}}"#, Some(("ADDED", r#"{"a":{"b":1}}"#, true))),
            ("{\"type\":\"ADDED\",\"object\":{}} \r", Some(("ADDED", "{}", true))),
            (r#"{"type":"ADDED","object":null}"#, Some(("ADDED", "null", false))),
            (r#"{"object":{"a":1},"type":"DELETED"}"#, Some(("DELETED", r#"{"a":1}"#, true))),
            (r#"{ "type": "ADDED", "object": {"a":1} }"#, Some(("ADDED", r#"{"a":1}"#, true))),
            (r#"{"type":"ADDED","object":{"a":1},"more":{}}"#, Some(("ADDED", r#"{"a":1}"#, true))),
            (r#"{"type":"AD\u0044ED","object":{}}"#, Some(("ADDED", "{}", true))),
            (r#"{"type":"ADDED","object":7}"#, Some(("ADDED", "7", false))),
            (r#"{"type":"ADDED","object":{"a":1}"#, None),
            (r#"{"type":"ADDED","object":{"a":1}}}"#, None),
            (r#"{"type":"ADDED","object":{},"object":{}}"#, None),
            (r#"{"type":"ADDED"}"#, None),
            (r#"{"object":{}}"#, None),
        ];
        for (line, expected) in cases {
            let event = Event::parse(line).ok();
            let parsed = event.as_ref().map(|event| (&*event.type_, event.object.json(), event.object.is_object()));
            assert_eq!(parsed, expected, "{line}");
        }
    }

    #[test]
    fn other_json_is_not_an_empty_list() {
        let items = |text: &'static str| serde_json::from_str::<Page<'_>>(text).ok().map(|page| page.items.len());
        assert_eq!(items(r#"{"kind":"PodList","items":[{},7]}"#), Some(2));
        assert_eq!(items(r#"{"kind":"PodList","items":null}"#), Some(0));
        for text in
            ["{}", r#"{"kind":"Status","status":"Success"}"#, r#"{"items":[]}"#, r#"{"kind":"PodList","items":{}}"#]
        {
            assert_eq!(items(text), None, "{text}");
        }
    }
}
