//! What a member's list and watch answers look like on the wire, read without copying objects.

use crate::ingest::{Draft, Expected, read};
use crate::{CollectionKey, Error};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Duration;

/// One page of a list.
#[derive(Deserialize)]
pub struct Page<'a> {
    #[serde(borrow, default)]
    pub kind: Cow<'a, str>,
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(borrow, default)]
    pub items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: Option<String>,
}

/// One line of a watch.
#[derive(Deserialize)]
pub struct Event<'a> {
    #[serde(rename = "type", borrow)]
    pub type_: Cow<'a, str>,
    #[serde(borrow)]
    pub object: &'a RawValue,
}

/// What a bookmark carries.
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
    /// The last of the initial events was sent.
    pub fn ends_initial_events(&self) -> bool {
        self.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true")
    }
}

/// A Kubernetes Status, as errors carry it.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct StatusBody {
    pub message: String,
    pub reason: String,
    pub code: u16,
}

/// Answer of a member: the body, once the status is 200.
pub async fn get(client: &Client, key: &CollectionKey, uri: &str, within: Duration) -> Result<Body, Error> {
    let interrupted =
        |reason: String| Error::Interrupted { cluster: key.cluster.clone(), resource: key.resource.clone(), reason };
    let request = Request::get(uri)
        .header(http::header::ACCEPT, "application/json")
        .body(Body::empty())
        .map_err(|e| interrupted(e.to_string()))?;
    let response = match tokio::time::timeout(within, client.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(interrupted(cause(&error))),
        Err(_) => return Err(interrupted(format!("no answer within {} s", within.as_secs()))),
    };
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let body = http_body_util::Limited::new(response.into_body(), 64 << 10).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let told: StatusBody = serde_json::from_slice(&body).unwrap_or_else(|_| StatusBody {
        message: String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
        ..StatusBody::default()
    });
    Err(Error::Answer {
        cluster: key.cluster.clone(),
        resource: key.resource.clone(),
        status: status.as_u16(),
        message: told.message,
    })
}

/// The innermost cause says what happened.
fn cause(error: &kube::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Reads a whole page, no larger than `max`.
pub async fn read_page(body: Body, key: &CollectionKey, max: usize) -> Result<Bytes, Error> {
    let limited = http_body_util::Limited::new(body, max);
    match limited.collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(Error::Interrupted {
            cluster: key.cluster.clone(),
            resource: key.resource.clone(),
            reason: error.to_string(),
        }),
    }
}

/// Cuts a byte stream into lines; a line longer than `max` ends it with an error.
pub struct Lines<S> {
    stream: S,
    buffer: BytesMut,
    scanned: usize,
    max: usize,
}

impl<S, E> Lines<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    pub fn new(stream: S, max: usize) -> Self {
        Self { stream, buffer: BytesMut::new(), scanned: 0, max }
    }

    /// A line that is already here.
    pub fn ready(&mut self) -> Option<Bytes> {
        let end = self.buffer[self.scanned..].iter().position(|&byte| byte == b'\n');
        match end {
            Some(at) => {
                let line = self.buffer.split_to(self.scanned + at).freeze();
                self.buffer.advance(1);
                self.scanned = 0;
                Some(line)
            }
            None => {
                self.scanned = self.buffer.len();
                None
            }
        }
    }

    /// Waits for more bytes. False at the end of the stream. Cancel-safe.
    pub async fn more(&mut self) -> Result<bool, String> {
        match self.stream.next().await {
            None => Ok(false),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(bytes)) => {
                if self.buffer.len() + bytes.len() > self.max {
                    return Err(format!("it sent a line longer than {} bytes", self.max));
                }
                self.buffer.extend_from_slice(&bytes);
                Ok(true)
            }
        }
    }
}

/// Reads one object, refusing other kinds and nameless things.
pub fn draft(raw: &RawValue, key: &CollectionKey, kind: &str, keep_secrets: bool) -> Result<Draft, Error> {
    let api_version = key.resource.api_version();
    let expected = Expected { group: &key.resource.group, api_version: &api_version, kind };
    let malformed = |source| Error::Malformed { cluster: key.cluster.clone(), resource: key.resource.clone(), source };
    let draft = read(raw, expected, keep_secrets).map_err(malformed)?;
    if draft.name.is_empty() || !kind.is_empty() && draft.kind != kind {
        let what = format!("{} {:?}", draft.kind, draft.name);
        return Err(malformed(<serde_json::Error as serde::de::Error>::custom(what)));
    }
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_however_they_arrive() {
        let chunks = ["{\"a\":1}\n{\"b\"", ":2}", "\n\n{\"c\":3}\n"];
        let stream = futures::stream::iter(chunks.map(|chunk| Ok::<_, String>(Bytes::from(chunk))));
        let mut lines = Lines::new(stream, 64);
        let mut got = Vec::new();
        loop {
            while let Some(line) = lines.ready() {
                got.push(String::from_utf8(line.to_vec()).unwrap());
            }
            if !lines.more().await.unwrap() {
                break;
            }
        }
        assert_eq!(got, ["{\"a\":1}", "{\"b\":2}", "", "{\"c\":3}"]);
        let endless = futures::stream::iter([Ok::<_, String>(Bytes::from(vec![b'x'; 65]))]);
        assert!(Lines::new(endless, 64).more().await.is_err());
    }
}
