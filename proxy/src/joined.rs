//! Joins the lists of several members into one list, with items in the order in which they arrive.
//!
//! All members are read concurrently and only complete items are forwarded. A member that stalls or is interrupted
//! in the middle of its list is left out from there on and does not delay the others. The response head is already
//! sent by then; as in the fleet-wide proxy, `metadata.incompleteClusters` at the end of the list names these
//! members.
//!
//! At most one item per member is buffered.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use crowsnest_apimachinery::names::ClusterName;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::items::ItemsScanner;
use crate::{Body, BoxError};

/// Maximum duration of a member's part, the request timeout of kube-apiserver.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);

/// A member whose part is missing or incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub cluster: ClusterName,
    pub reason: String,
}

impl Missing {
    /// Text of the `Warning` header. Most reasons already name the cluster.
    pub fn text(&self) -> String {
        let Self { cluster, reason } = self;
        let named = reason.contains(&format!("cluster {cluster}"));
        if named { reason.clone() } else { format!("cluster {cluster} {reason}") }
    }
}

/// A joined list that is being streamed.
pub struct Joined {
    reading: FuturesUnordered<BoxFuture<'static, (Part, Step)>>,
    missing: Vec<Missing>,
    kind: Option<String>,
    api_version: Option<String>,
    /// An item was already written.
    any: bool,
    started: bool,
    ended: bool,
}

/// A member's list.
struct Part {
    cluster: ClusterName,
    body: Body,
    scanner: ItemsScanner,
    /// Maximum idle time.
    patience: Duration,
    /// Deadline for the complete list.
    end: Instant,
}

/// Next event of a member's list.
enum Step {
    /// Complete items, separated by commas.
    Items(BytesMut),
    Over,
    /// The list is incomplete; the rest is discarded.
    Broken(String),
}

impl Part {
    async fn step(mut self) -> (Self, Step) {
        let step = self.next().await;
        (self, step)
    }

    async fn next(&mut self) -> Step {
        loop {
            // Data that is already available is accepted after the deadline.
            let due = self.end.min(Instant::now() + self.patience);
            let data = match tokio::time::timeout_at(due, self.body.frame()).await {
                Err(_) if Instant::now() >= self.end => {
                    return Step::Broken(format!("did not send all of its list within {} s", WHOLE_WITHIN.as_secs()));
                }
                Err(_) => {
                    let silent = self.patience.as_secs_f32();
                    return Step::Broken(format!("sent a part of its list, then nothing for {silent} s"));
                }
                Ok(None) if self.scanner.is_whole() => return Step::Over,
                Ok(None) => return Step::Broken("broke off in the middle of its list".to_owned()),
                Ok(Some(Err(error))) => return Step::Broken(format!("broke off in the middle of its list: {error}")),
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            let mut items = BytesMut::new();
            let fed = self.scanner.feed(&data, |item| {
                if !items.is_empty() {
                    items.extend_from_slice(b",");
                }
                items.extend_from_slice(item);
            });
            match fed {
                Ok(()) if items.is_empty() => {}
                Ok(()) => return Step::Items(items),
                Err(error) => return Step::Broken(error.to_string()),
            }
        }
    }
}

impl Joined {
    /// `missing` are the members without a list. A member that is idle for longer than `patience` is left out.
    pub fn new(lists: impl Iterator<Item = (ClusterName, Body)>, missing: Vec<Missing>, patience: Duration) -> Self {
        let end = Instant::now() + WHOLE_WITHIN;
        let part = |(cluster, body)| Part { cluster, body, scanner: ItemsScanner::default(), patience, end };
        let reading = lists.map(|list| -> BoxFuture<'static, _> { Box::pin(part(list).step()) }).collect();
        Self { reading, missing, kind: None, api_version: None, any: false, started: false, ended: false }
    }

    pub fn into_body(self) -> Body {
        let stream = futures::stream::unfold(self, |mut joined| async move {
            let chunk = joined.next().await?;
            Some((Ok::<_, BoxError>(Frame::data(chunk)), joined))
        });
        BodyExt::boxed_unsync(StreamBody::new(stream))
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = BytesMut::new();
        if !std::mem::replace(&mut self.started, true) {
            out.extend_from_slice(b"{\"items\":[");
        }
        while let Some((part, step)) = self.reading.next().await {
            match step {
                Step::Items(items) => {
                    self.reading.push(Box::pin(part.step()));
                    if std::mem::replace(&mut self.any, true) {
                        out.extend_from_slice(b",");
                    }
                    out.unsplit(items);
                    return Some(out.freeze());
                }
                Step::Over => {
                    let Part { scanner: ItemsScanner { kind, api_version, .. }, .. } = part;
                    self.kind = self.kind.take().or(kind);
                    self.api_version = self.api_version.take().or(api_version);
                }
                Step::Broken(reason) => {
                    tracing::debug!(cluster = %part.cluster, reason, "a part of a list is left out");
                    self.missing.push(Missing { cluster: part.cluster, reason });
                }
            }
        }
        self.ended = true;
        out.extend_from_slice(b"],");
        out.extend_from_slice(&self.tail().to_string().as_bytes()[1..]);
        Some(out.freeze())
    }

    /// The end of the list after the items.
    fn tail(&mut self) -> Value {
        let mut metadata = json!({});
        if !self.missing.is_empty() {
            self.missing.sort_by(|one, other| one.cluster.cmp(&other.cluster));
            let missing = self.missing.iter().map(|one| json!({"cluster": one.cluster, "reason": one.reason}));
            metadata["incompleteClusters"] = missing.collect();
        }
        json!({
            "apiVersion": self.api_version.as_deref().unwrap_or("v1"), "kind": self.kind.as_deref().unwrap_or("List"),
            "metadata": metadata,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use rstest::rstest;

    const SILENCE: &str = "…";
    const BREAK: &str = "!";

    /// A body that sends these pieces, stalls or fails.
    fn body(pieces: &[&'static str]) -> Body {
        let pieces = pieces.to_vec();
        let stream = stream::iter(pieces).then(|piece| async move {
            match piece {
                SILENCE => std::future::pending().await,
                BREAK => Err(BoxError::from("connection reset")),
                data => Ok(Frame::data(Bytes::from_static(data.as_bytes()))),
            }
        });
        BodyExt::boxed_unsync(StreamBody::new(stream))
    }

    const WHOLE: &[&str] = &[r#"{"kind":"PodList","apiVersion":"v1","items":[{"a":1},"#, r#"{"a":2}]}"#];

    #[rstest]
    #[case::whole(&[r#"{"items":[{"b":1}]}"#], &[r#"{"b":1}"#], None)]
    #[case::empty(&[r#"{"items":[]}"#], &[], None)]
    #[case::silent(&[r#"{"items":[{"b":1},{"b""#, SILENCE], &[r#"{"b":1}"#],
        Some("sent a part of its list, then nothing for 0.1 s"))]
    #[case::broken_off(&[r#"{"items":[{"b":1},{"b""#, BREAK], &[r#"{"b":1}"#],
        Some("broke off in the middle of its list: connection reset"))]
    #[case::half(&[r#"{"items":[{"b":1},{"b""#], &[r#"{"b":1}"#], Some("broke off in the middle of its list"))]
    #[case::nothing(&[], &[], Some("broke off in the middle of its list"))]
    #[tokio::test]
    async fn a_member_that_stalls_is_left_out(
        #[case] pieces: &[&'static str],
        #[case] more: &[&str],
        #[case] missing: Option<&str>,
    ) {
        let name = |name: &str| ClusterName::parse(name).unwrap();
        // The member that may stall is first.
        let lists = [(name("m1"), body(pieces)), (name("m2"), body(WHOLE))];
        let joined = Joined::new(lists.into_iter(), Vec::new(), Duration::from_millis(100)).into_body();
        let list: Value = serde_json::from_slice(&joined.collect().await.unwrap().to_bytes()).unwrap();
        let mut items: Vec<String> = list["items"].as_array().unwrap().iter().map(Value::to_string).collect();
        items.sort();
        let mut expected = vec![r#"{"a":1}"#, r#"{"a":2}"#];
        expected.extend(more);
        expected.sort_unstable();
        assert_eq!(
            (items, list["kind"].as_str()),
            (expected.iter().map(|i| (*i).to_owned()).collect(), Some("PodList"))
        );
        let said = missing.map(|reason| json!([{"cluster": "m1", "reason": reason}])).unwrap_or_default();
        assert_eq!(list["metadata"]["incompleteClusters"], said);
    }

    /// Items of the others arrive before the stall is detected.
    #[tokio::test]
    async fn nobody_waits_for_one_that_stalls() {
        let name = |name: &str| ClusterName::parse(name).unwrap();
        let lists = [(name("m1"), body(&[SILENCE])), (name("m2"), body(WHOLE))];
        let patience = Duration::from_secs(3600);
        let mut joined = Joined::new(lists.into_iter(), Vec::new(), patience).into_body();
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).ends_with(r#"{"a":1},{"a":2}"#) {
            let frame = joined.frame().await.expect("all of the list").unwrap();
            seen.extend_from_slice(&frame.into_data().unwrap());
        }
    }
}
