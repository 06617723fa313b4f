//! The watch of one member: its events, and the reason for which it ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use crowsnest_apimachinery::names::ClusterName;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::codec::{AnyDelimiterCodec, Decoder};

use super::item::{Document, Item};
use crate::Body;
use crate::table::Shape;

/// A watch without a frame for so long is opened again. API servers send a bookmark each minute.
const SILENT: Duration = Duration::from_secs(180);
/// Size limit of an event in bytes.
const MAX_EVENT: usize = 16 << 20;

/// An open watch of a member.
pub struct MemberWatch {
    /// Version after the last event.
    pub version: String,
    body: Body,
    /// Finds the ends of lines. It continues its search where the previous chunk ended.
    lines: AnyDelimiterCodec,
    buffer: BytesMut,
}

/// A change in a member, or its progress without a change.
#[derive(Debug)]
pub struct MemberEvent {
    /// Type of the event.
    pub kind: &'static str,
    /// None for progress.
    pub item: Option<Item>,
    pub version: String,
}

/// The next events of a member, and why the watch ends after them.
#[derive(Debug, Default)]
pub struct Received {
    pub events: Vec<MemberEvent>,
    pub interruption: Option<Interruption>,
}

/// Why a watch of a member ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    #[error("the member no longer keeps the changes after the version")]
    Expired,
    #[error("the member ended the watch")]
    Ended,
    #[error("the member sent nothing for {} s", SILENT.as_secs())]
    Silent,
    #[error("the member sent an error event")]
    Failed,
    #[error("the member sent an invalid event")]
    Invalid,
    #[error("sent an event larger than {} MiB", MAX_EVENT >> 20)]
    TooLarge,
}

impl MemberWatch {
    pub fn new(version: String, body: Body) -> Self {
        let lines = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), MAX_EVENT);
        Self { version, body, lines, buffer: BytesMut::new() }
    }

    /// The events of the next chunk. `columns` are those of the member's tables.
    pub async fn read(&mut self, cluster: &ClusterName, shape: Shape, columns: &mut Arc<Vec<Value>>) -> Received {
        let frame = match tokio::time::timeout(SILENT, self.body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None | Some(Err(_))) => return Interruption::Ended.into(),
            Err(_) => return Interruption::Silent.into(),
        };
        self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
        let mut received = Received::default();
        while received.interruption.is_none() {
            let line = match self.lines.decode(&mut self.buffer) {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(_) => {
                    received.interruption = Some(Interruption::TooLarge);
                    break;
                }
            };
            match event(cluster, &line, shape, columns) {
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

impl From<Interruption> for Received {
    fn from(interruption: Interruption) -> Self {
        Self { events: Vec::new(), interruption: Some(interruption) }
    }
}

/// Decodes a line of a watch; None if it is empty or of an unknown type.
fn event(
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
        "ERROR" => return Err(interruption(line.object)),
        _ => return Ok(None),
    };
    let (item, version) = match shape {
        Shape::Objects(_) => {
            let item = Item::of_object(cluster, line.object);
            let version = item.own_version();
            (Some(item), version)
        }
        Shape::Table(_) => {
            let table: Document = serde_json::from_str(line.object.get()).map_err(|_| Interruption::Invalid)?;
            let own = Some(table.metadata.resource_version.clone()).filter(|version| !version.is_empty());
            let item = table.into_items(cluster, columns).pop();
            let version = item.as_ref().and_then(Item::own_version).or(own);
            (item, version)
        }
    };
    // A watch cannot be resumed after an object without a version.
    let version = version.ok_or(Interruption::Invalid)?;
    Ok(Some(MemberEvent { kind, item: item.filter(|_| kind != "BOOKMARK"), version }))
}

/// The interruption by an ERROR event.
fn interruption(status: &RawValue) -> Interruption {
    #[derive(Deserialize)]
    struct Status {
        code: Option<u16>,
    }
    let code = serde_json::from_str::<Status>(status.get()).ok().and_then(|status| status.code);
    if code == Some(410) { Interruption::Expired } else { Interruption::Failed }
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

    const WHOLE: Shape = Shape::Objects(Form::Whole);
    const TABLE: Shape = Shape::Table(TableForm { include: Include::Metadata, meta: MetaVersion::V1 });

    #[rstest]
    #[case::added("ADDED", json!({"metadata": {"resourceVersion": "7"}}), WHOLE, Ok(Some(("ADDED", true, "7"))))]
    #[case::progress("BOOKMARK", json!({"metadata": {"resourceVersion": "7"}}), WHOLE, Ok(Some(("BOOKMARK", false, "7"))))]
    #[case::expired("ERROR", json!({"kind": "Status", "code": 410}), WHOLE, Err(Interruption::Expired))]
    #[case::failed("ERROR", json!({"kind": "Status", "code": 500}), TABLE, Err(Interruption::Failed))]
    #[case::unknown("CHANGED", json!({}), WHOLE, Ok(None))]
    #[case::without_a_version("ADDED", json!({"metadata": {}}), WHOLE, Err(Interruption::Invalid))]
    #[case::row(
        "DELETED", json!({"rows": [{"cells": ["a"], "object": {"metadata": {"resourceVersion": "7"}}}]}), TABLE,
        Ok(Some(("DELETED", true, "7")))
    )]
    #[case::progress_of_a_table(
        "BOOKMARK", json!({"metadata": {"resourceVersion": "7"}, "rows": []}), TABLE, Ok(Some(("BOOKMARK", false, "7")))
    )]
    fn lines(
        #[case] kind: &str,
        #[case] object: Value,
        #[case] shape: Shape,
        #[case] expected: Result<Option<(&str, bool, &str)>, Interruption>,
    ) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        let cluster = ClusterName::parse("m1").unwrap();
        let decoded = event(&cluster, line.as_bytes(), shape, &mut Arc::default());
        let decoded = decoded.map(|event| event.map(|event| (event.kind, event.item.is_some(), event.version)));
        let expected =
            expected.map(|event| event.map(|(kind, has_item, version)| (kind, has_item, version.to_owned())));
        assert_eq!(decoded, expected);
    }

    /// A watch from version 5 whose body has these chunks.
    fn watch(chunks: impl IntoIterator<Item = Vec<u8>>) -> MemberWatch {
        let frames: Vec<_> =
            chunks.into_iter().map(|chunk| Ok::<_, BoxError>(Frame::data(Bytes::from(chunk)))).collect();
        MemberWatch::new("5".to_owned(), StreamBody::new(futures::stream::iter(frames)).boxed_unsync())
    }

    /// Number of all events of a watch, and why it ends.
    async fn all(watch: &mut MemberWatch) -> (usize, Interruption) {
        let (cluster, mut count) = (ClusterName::parse("m1").unwrap(), 0);
        loop {
            let received = watch.read(&cluster, WHOLE, &mut Arc::default()).await;
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
        assert_eq!(all(&mut watch).await, (count, interruption));
        assert_eq!(watch.version, version);
    }

    #[tokio::test]
    async fn the_size_of_an_event_is_limited() {
        const CHUNK: usize = 1 << 20;
        let mut watch = watch((0..=MAX_EVENT / CHUNK + 1).map(|_| vec![b'x'; CHUNK]));
        assert_eq!(all(&mut watch).await, (0, Interruption::TooLarge));
        assert!(watch.buffer.len() <= MAX_EVENT + CHUNK);
    }
}
