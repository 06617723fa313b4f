//! The watch of one member: its events, and why it ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::lines::{LineBuffer, LineTooLong};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::item::{Document, Item};
use crate::Body;
use crate::table::Shape;
use crate::transport::error_chain;

/// A watch that sends nothing for this time is opened again. API servers send a bookmark each minute.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// Size limit of an event in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// An open watch of a member.
pub struct MemberWatch {
    /// Version after the last event.
    pub version: String,
    body: Body,
    lines: LineBuffer,
}

/// A change in a member, or a bookmark.
#[derive(Debug)]
pub struct MemberEvent {
    /// Type of the event.
    pub kind: &'static str,
    /// None for a bookmark.
    pub item: Option<Item>,
    pub version: String,
}

/// The next events of a member, and why the watch ends after them.
#[derive(Debug, Default)]
pub struct ReceivedEvents {
    pub events: Vec<MemberEvent>,
    pub interruption: Option<Interruption>,
}

/// Why a watch of a member ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    #[error("the member no longer keeps the changes after the version")]
    Expired,
    #[error("the member ended the watch")]
    Ended,
    /// The connection broke before the end of the response. `error` includes its causes.
    #[error("the connection broke: {error}")]
    Disconnected { error: String },
    #[error("the member sent nothing for {} s", IDLE_TIMEOUT.as_secs())]
    IdleTimeout,
    #[error("the member sent an error event")]
    ErrorEvent,
    #[error("the member sent an invalid event")]
    Invalid,
    /// The message follows the name of the cluster in a `Warning` header.
    #[error("sent an event larger than {} MiB", MAX_EVENT_BYTES >> 20)]
    TooLarge,
}

impl MemberWatch {
    pub fn new(version: String, body: Body) -> Self {
        Self { version, body, lines: LineBuffer::new(MAX_EVENT_BYTES) }
    }

    /// The events of the next chunk. `columns` are those of the member's tables.
    pub async fn read(&mut self, cluster: &ClusterName, shape: Shape, columns: &mut Arc<Vec<Value>>) -> ReceivedEvents {
        let frame = match tokio::time::timeout(IDLE_TIMEOUT, self.body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Interruption::Disconnected { error: error_chain(&*error) }.into(),
            Ok(None) => return Interruption::Ended.into(),
            Err(_) => return Interruption::IdleTimeout.into(),
        };
        self.lines.push(&frame.into_data().unwrap_or_default());
        let mut received = ReceivedEvents::default();
        while received.interruption.is_none() {
            let line = match self.lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(LineTooLong { .. }) => {
                    received.interruption = Some(Interruption::TooLarge);
                    break;
                }
            };
            match decode_event(cluster, &line, shape, columns) {
                Ok(Some(event)) => {
                    event.version.clone_into(&mut self.version);
                    received.events.push(event);
                }
                Ok(None) => {}
                Err(interruption) => received.interruption = Some(interruption),
            }
        }
        received
    }
}

impl From<Interruption> for ReceivedEvents {
    fn from(interruption: Interruption) -> Self {
        Self { events: Vec::new(), interruption: Some(interruption) }
    }
}

/// Decodes a line of a watch; None if it is empty or of an unknown type.
fn decode_event(
    cluster: &ClusterName,
    line: &[u8],
    shape: Shape,
    columns: &mut Arc<Vec<Value>>,
) -> Result<Option<MemberEvent>, Interruption> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line: Line<'_> = serde_json::from_slice(line).map_err(|_| Interruption::Invalid)?;
    let kind = match &*line.kind {
        "ADDED" => "ADDED",
        "MODIFIED" => "MODIFIED",
        "DELETED" => "DELETED",
        "BOOKMARK" => "BOOKMARK",
        "ERROR" => return Err(interruption_of_status(line.object)),
        _ => return Ok(None),
    };
    let (item, version) = match shape {
        Shape::Objects(_) => {
            let item = Item::from_object(cluster, line.object);
            let version = item.own_version();
            (Some(item), version)
        }
        Shape::Table(_) => {
            let table: Document = serde_json::from_str(line.object.get()).map_err(|_| Interruption::Invalid)?;
            let table_version = Some(table.metadata.resource_version.clone()).filter(|version| !version.is_empty());
            let item = table.into_items(cluster, columns).pop();
            let version = item.as_ref().and_then(Item::own_version).or(table_version);
            (item, version)
        }
    };
    // A watch cannot be resumed after an object without a version.
    let version = version.ok_or(Interruption::Invalid)?;
    Ok(Some(MemberEvent { kind, item: item.filter(|_| kind != "BOOKMARK"), version }))
}

/// The interruption by an ERROR event with this `Status`.
fn interruption_of_status(status: &RawValue) -> Interruption {
    #[derive(Deserialize)]
    struct Status {
        code: Option<u16>,
    }
    let code = serde_json::from_str::<Status>(status.get()).ok().and_then(|status| status.code);
    if code == Some(410) { Interruption::Expired } else { Interruption::ErrorEvent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoxError;
    use crate::object::{Form, MetaVersion};
    use crate::table::{Include, TableForm};
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use rstest::rstest;
    use serde_json::json;

    const FULL: Shape = Shape::Objects(Form::Full);
    const TABLE: Shape = Shape::Table(TableForm { include: Include::Metadata, meta: MetaVersion::V1 });

    #[rstest]
    #[case::added("ADDED", json!({"metadata": {"resourceVersion": "7"}}), FULL, Ok(Some(("ADDED", true, "7"))))]
    #[case::bookmark("BOOKMARK", json!({"metadata": {"resourceVersion": "7"}}), FULL, Ok(Some(("BOOKMARK", false, "7"))))]
    #[case::expired("ERROR", json!({"kind": "Status", "code": 410}), FULL, Err(Interruption::Expired))]
    #[case::error("ERROR", json!({"kind": "Status", "code": 500}), TABLE, Err(Interruption::ErrorEvent))]
    #[case::unknown_type("CHANGED", json!({}), FULL, Ok(None))]
    #[case::without_a_version("ADDED", json!({"metadata": {}}), FULL, Err(Interruption::Invalid))]
    #[case::row(
        "DELETED", json!({"rows": [{"cells": ["a"], "object": {"metadata": {"resourceVersion": "7"}}}]}), TABLE,
        Ok(Some(("DELETED", true, "7")))
    )]
    #[case::bookmark_of_a_table(
        "BOOKMARK", json!({"metadata": {"resourceVersion": "7"}, "rows": []}), TABLE, Ok(Some(("BOOKMARK", false, "7")))
    )]
    fn lines_are_decoded(
        #[case] kind: &str,
        #[case] object: Value,
        #[case] shape: Shape,
        #[case] expected: Result<Option<(&str, bool, &str)>, Interruption>,
    ) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        let cluster = ClusterName::parse("m1").unwrap();
        let decoded = decode_event(&cluster, line.as_bytes(), shape, &mut Arc::default());
        let decoded = decoded.map(|event| event.map(|event| (event.kind, event.item.is_some(), event.version)));
        let expected =
            expected.map(|event| event.map(|(kind, has_item, version)| (kind, has_item, version.to_owned())));
        assert_eq!(decoded, expected);
    }

    /// A watch from version 5 whose body has these chunks.
    fn watch(chunks: impl IntoIterator<Item = Vec<u8>>) -> MemberWatch {
        watch_with_end(chunks, None)
    }

    /// A watch from version 5 whose body has these chunks and then this error.
    fn watch_with_end(chunks: impl IntoIterator<Item = Vec<u8>>, error: Option<BoxError>) -> MemberWatch {
        let chunks = chunks.into_iter().map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
        let frames: Vec<Result<_, BoxError>> = chunks.chain(error.map(Err)).collect();
        MemberWatch::new("5".to_owned(), StreamBody::new(futures::stream::iter(frames)).boxed_unsync())
    }

    /// Reads a watch to its end. Returns the number of events, and why the watch ended.
    async fn read_all(watch: &mut MemberWatch) -> (usize, Interruption) {
        let (cluster, mut count) = (ClusterName::parse("m1").unwrap(), 0);
        loop {
            let received = watch.read(&cluster, FULL, &mut Arc::default()).await;
            count += received.events.len();
            if let Some(interruption) = received.interruption {
                return (count, interruption);
            }
        }
    }

    #[rstest]
    #[case::event_in_two_chunks(&[r#"{"type":"ADDED","object":{"meta"#, "data\":{\"resourceVersion\":\"7\"}}}\n"], 1, Interruption::Ended, "7")]
    #[case::incomplete_event(&[r#"{"type":"ADDED","object":{"meta"#], 0, Interruption::Ended, "5")]
    #[case::two_events_and_an_invalid_one(
        &["{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}}\n\n{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"resourceVersion\":\"8\"}}}\n{\n"],
        2, Interruption::Invalid, "8",
    )]
    #[tokio::test]
    async fn a_watch_continues_after_its_last_event(
        #[case] chunks: &[&str],
        #[case] count: usize,
        #[case] interruption: Interruption,
        #[case] version: &str,
    ) {
        let mut watch = watch(chunks.iter().map(|chunk| chunk.as_bytes().to_vec()));
        assert_eq!(read_all(&mut watch).await, (count, interruption));
        assert_eq!(watch.version, version);
    }

    #[tokio::test]
    async fn a_broken_connection_is_reported_with_its_error() {
        let event = b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}}\n".to_vec();
        let mut watch = watch_with_end([event], Some("connection reset".into()));
        let (count, interruption) = read_all(&mut watch).await;
        assert_eq!((count, watch.version.as_str()), (1, "7"));
        assert_eq!(interruption, Interruption::Disconnected { error: "connection reset".to_owned() });
        assert_eq!(interruption.to_string(), "the connection broke: connection reset");
    }

    #[tokio::test]
    async fn the_size_of_an_event_is_limited() {
        const CHUNK_BYTES: usize = 1 << 20;
        let mut watch = watch((0..=MAX_EVENT_BYTES / CHUNK_BYTES + 1).map(|_| vec![b'x'; CHUNK_BYTES]));
        assert_eq!(read_all(&mut watch).await, (0, Interruption::TooLarge));
        assert!(watch.lines.buffered_bytes() <= MAX_EVENT_BYTES + CHUNK_BYTES);
    }
}
