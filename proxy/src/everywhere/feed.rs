//! The part of one member in a merged watch: its current objects, then the events of its own watch, which is opened
//! again when it ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::retry::{Backoff, Delays};
use crowsnest_members::Member;
use futures::future::BoxFuture;
use http::StatusCode;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::item::{Document, Item};
use super::member::{CHUNK, Collection, MemberPage, Refusal, Start};
use crate::merged::Heading;
use crate::table::Shape;
use crate::{Body, Error};

/// Delays before a member is requested again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// A watch without a frame for so long is opened again. API servers send a bookmark each minute.
const SILENT: Duration = Duration::from_secs(180);
/// Size limit of an event in bytes.
const MAX_EVENT: usize = 16 << 20;

/// The part of a member.
pub struct Feed {
    collection: Arc<Collection>,
    pub cluster: ClusterName,
    /// uid of the Cluster: a cluster that joins again has another one.
    pub uid: String,
    state: State,
    /// When the merged watch ends.
    deadline: Instant,
    /// Columns of the member's tables.
    columns: Arc<Vec<Value>>,
    failures: Delays,
    /// Delay before the next request.
    wait: Duration,
}

enum State {
    /// Its current objects are read. The version is that of the first page.
    Listing {
        start: Start,
        version: Option<String>,
    },
    /// Its current version is read without its objects.
    Skipping,
    /// A watch is to be opened from this version.
    Opening(String),
    Watching {
        version: String,
        body: Body,
        buffer: BytesMut,
    },
}

enum MemberRequest {
    /// A page of the current objects, and their version if it is known.
    Page(Start, Option<String>),
    Version,
    Watch(String),
}

/// How a feed begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// With the current objects.
    Objects,
    /// With later changes only.
    Now,
    /// With the changes after a version.
    Version(String),
}

/// Report of a feed.
pub enum Step {
    /// Current objects, and after the last of them the version of all.
    Initial {
        items: Vec<Item>,
        version: Option<String>,
        heading: Heading,
    },
    /// The member's watch is open.
    Opened,
    Events(Vec<MemberEvent>),
    /// The member cannot be read. The next step tries again.
    Refused(Refusal),
    /// The member no longer keeps the changes after the version.
    Expired,
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

impl Feed {
    pub fn new(collection: Arc<Collection>, member: &Member, origin: Origin, deadline: Instant) -> Self {
        let state = match origin {
            Origin::Objects => State::Listing { start: Start::Latest, version: None },
            Origin::Now => State::Skipping,
            Origin::Version(version) => State::Opening(version),
        };
        Self {
            collection,
            cluster: member.name().clone(),
            uid: member.uid().to_owned(),
            state,
            deadline,
            columns: Arc::default(),
            failures: RETRY.delays(),
            wait: Duration::ZERO,
        }
    }

    /// The next report, with the feed for further ones.
    pub fn step(mut self) -> BoxFuture<'static, (Self, Step)> {
        Box::pin(async move {
            let step = self.next().await;
            (self, step)
        })
    }

    async fn next(&mut self) -> Step {
        let wait = std::mem::take(&mut self.wait);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if matches!(self.state, State::Watching { .. }) {
            return self.read().await;
        }
        // The member's connection may have changed.
        let Some(member) = self.collection.proxy.inner.fleet.member(&self.cluster) else {
            let error = Error::ClusterNotFound(self.cluster.to_string());
            return self.refused(Refusal::Failed(Box::new(error)));
        };
        match self.request() {
            MemberRequest::Page(start, version) => self.list(&member, start, version).await,
            MemberRequest::Version => self.skip(&member).await,
            MemberRequest::Watch(version) => self.open(&member, version).await,
        }
    }

    /// The request that continues the feed.
    fn request(&self) -> MemberRequest {
        match &self.state {
            State::Listing { start, version } => MemberRequest::Page(start.clone(), version.clone()),
            State::Skipping => MemberRequest::Version,
            State::Opening(version) | State::Watching { version, .. } => MemberRequest::Watch(version.clone()),
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Step {
        self.wait = self.failures.next_delay();
        Step::Refused(refusal)
    }

    async fn list(&mut self, member: &Arc<Member>, start: Start, version: Option<String>) -> Step {
        let page = self.collection.page(member, start, CHUNK).await;
        let MemberPage { mut items, next, version: current, mut heading, .. } = match page {
            Ok(page) => page,
            Err(refusal) => return self.refused(refusal),
        };
        self.failures.reset();
        if let Some(kind) = heading.kind.strip_suffix("List") {
            heading.kind = kind.to_owned();
        }
        if matches!(self.collection.shape, Shape::Objects(_)) {
            items.iter_mut().for_each(|item| item.set_kind(&heading.api_version, &heading.kind));
        }
        let version = version.unwrap_or(current);
        let version = match next {
            Some(token) => {
                self.state = State::Listing { start: Start::After(token), version: Some(version) };
                None
            }
            None => {
                self.state = State::Opening(version.clone());
                Some(version)
            }
        };
        Step::Initial { items, version, heading }
    }

    async fn skip(&mut self, member: &Arc<Member>) -> Step {
        match self.collection.page(member, Start::Latest, 1).await {
            Ok(page) => {
                self.failures.reset();
                self.state = State::Opening(page.version.clone());
                Step::Initial { items: Vec::new(), version: Some(page.version), heading: Heading::default() }
            }
            Err(refusal) => self.refused(refusal),
        }
    }

    async fn open(&mut self, member: &Arc<Member>, version: String) -> Step {
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        match self.collection.watch(member, version.clone(), timeout).await {
            Ok(body) => {
                self.state = State::Watching { version, body, buffer: BytesMut::new() };
                Step::Opened
            }
            Err(refusal) if refusal.status() == Some(StatusCode::GONE) => Step::Expired,
            Err(refusal) => self.refused(refusal),
        }
    }

    /// The next events. A watch that ended, is interrupted or silent is opened again after its last event.
    async fn read(&mut self) -> Step {
        let State::Watching { version, body, buffer } = &mut self.state else { return Step::Events(Vec::new()) };
        let frame = match tokio::time::timeout(SILENT, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None | Some(Err(_))) | Err(_) => {
                self.state = State::Opening(std::mem::take(version));
                self.wait = self.failures.next_delay();
                return Step::Events(Vec::new());
            }
        };
        self.failures.reset();
        buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
        let mut events = Vec::new();
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            match event(&self.cluster, &line, self.collection.shape, &mut self.columns) {
                Ok(Some(event)) => {
                    event.version.clone_into(version);
                    events.push(event);
                }
                Ok(None) => {}
                Err(Interrupted::Expired) if events.is_empty() => return Step::Expired,
                // The watch from the last event is refused with the same error.
                Err(_) => {
                    self.state = State::Opening(std::mem::take(version));
                    self.wait = self.failures.next_delay();
                    return Step::Events(events);
                }
            }
        }
        if buffer.len() > MAX_EVENT {
            return self.refused(Refusal::Broken {
                cluster: self.cluster.clone(),
                reason: format!("sent an event larger than {} MiB", MAX_EVENT >> 20),
            });
        }
        Step::Events(events)
    }
}

/// Why a line ends the member's watch.
#[derive(Debug, PartialEq, Eq)]
enum Interrupted {
    Expired,
    Other,
}

/// Decodes a line of a watch; None if it is empty or of an unknown type.
fn event(
    cluster: &ClusterName,
    line: &[u8],
    shape: Shape,
    columns: &mut Arc<Vec<Value>>,
) -> Result<Option<MemberEvent>, Interrupted> {
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
    let line: Line<'_> = serde_json::from_slice(line).map_err(|_| Interrupted::Other)?;
    let kind = match &*line.kind {
        "ADDED" => "ADDED",
        "MODIFIED" => "MODIFIED",
        "DELETED" => "DELETED",
        "BOOKMARK" => "BOOKMARK",
        "ERROR" => return Err(interrupted(line.object)),
        _ => return Ok(None),
    };
    let (item, version) = match shape {
        Shape::Objects(_) => {
            let item = Item::of_object(cluster, line.object);
            let version = item.own_version();
            (Some(item), version)
        }
        Shape::Table(_) => {
            let table: Document = serde_json::from_str(line.object.get()).map_err(|_| Interrupted::Other)?;
            let own = Some(table.metadata.resource_version.clone()).filter(|version| !version.is_empty());
            let item = table.into_items(cluster, columns).pop();
            let version = item.as_ref().and_then(Item::own_version).or(own);
            (item, version)
        }
    };
    // A watch cannot be resumed after an object without a version.
    let version = version.ok_or(Interrupted::Other)?;
    Ok(Some(MemberEvent { kind, item: item.filter(|_| kind != "BOOKMARK"), version }))
}

fn interrupted(status: &RawValue) -> Interrupted {
    #[derive(Deserialize)]
    struct Status {
        code: Option<u16>,
    }
    let code = serde_json::from_str::<Status>(status.get()).ok().and_then(|status| status.code);
    if code == Some(410) { Interrupted::Expired } else { Interrupted::Other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Form, MetaVersion};
    use crate::table::{Include, TableForm};
    use rstest::rstest;
    use serde_json::json;

    const WHOLE: Shape = Shape::Objects(Form::Whole);
    const TABLE: Shape = Shape::Table(TableForm { include: Include::Metadata, meta: MetaVersion::V1 });

    #[rstest]
    #[case::added("ADDED", json!({"metadata": {"resourceVersion": "7"}}), WHOLE, Ok(Some(("ADDED", true, "7"))))]
    #[case::progress("BOOKMARK", json!({"metadata": {"resourceVersion": "7"}}), WHOLE, Ok(Some(("BOOKMARK", false, "7"))))]
    #[case::expired("ERROR", json!({"kind": "Status", "code": 410}), WHOLE, Err(Interrupted::Expired))]
    #[case::failed("ERROR", json!({"kind": "Status", "code": 500}), TABLE, Err(Interrupted::Other))]
    #[case::unknown("CHANGED", json!({}), WHOLE, Ok(None))]
    #[case::without_a_version("ADDED", json!({"metadata": {}}), WHOLE, Err(Interrupted::Other))]
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
        #[case] expected: Result<Option<(&str, bool, &str)>, Interrupted>,
    ) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        let cluster = ClusterName::parse("m1").unwrap();
        let decoded = event(&cluster, line.as_bytes(), shape, &mut Arc::default());
        let decoded = decoded.map(|event| event.map(|event| (event.kind, event.item.is_some(), event.version)));
        let expected =
            expected.map(|event| event.map(|(kind, has_item, version)| (kind, has_item, version.to_owned())));
        assert_eq!(decoded, expected);
    }
}
