//! Encoding of the events of a merged watch, and its timers.

use std::time::Duration;

use crowsnest_apimachinery::request::Query;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::Heading;
use crate::Error;
use crate::object::{Form, MetaVersion};
use crate::table::{Shape, TableForm};

/// Timeout of a watch without `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum timeout of a watch.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Interval of bookmarks, if the client allows them.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// List option that requests the current objects as the first events of a watch.
pub const INITIAL_EVENTS: &str = "sendInitialEvents";

/// Encoder of the events of one watch.
#[derive(Debug)]
pub struct EventEncoder {
    pub shape: Shape,
    pub heading: Heading,
    /// True if the column definitions of the table have been sent; later events omit them.
    has_sent_columns: bool,
}

impl EventEncoder {
    pub fn new(shape: Shape, heading: Heading) -> Self {
        Self { shape, heading, has_sent_columns: false }
    }

    /// Appends an event. `body` is the encoded object, or its row if the watch sends tables; `version` is the
    /// resourceVersion of the table.
    pub fn append(&mut self, event_type: &str, body: &[u8], version: &str, out: &mut Vec<u8>) {
        match self.shape {
            Shape::Objects(_) => append_event(event_type, body, out),
            Shape::Table(form) => {
                let table = self.table(form, version, body);
                append_event(event_type, &table, out);
            }
        }
    }

    /// Appends a bookmark: a client that resumes from its version misses nothing.
    pub fn append_bookmark(
        &mut self,
        version: &str,
        ends_initial: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), serde_json::Error> {
        let mut metadata = json!({"resourceVersion": version, "creationTimestamp": null});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let Heading { kind, api_version, .. } = &self.heading;
        let body = match self.shape {
            Shape::Objects(Form::Full) => {
                serde_json::to_vec(&json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))?
            }
            Shape::Objects(Form::Metadata(meta)) => serde_json::to_vec(&partial_metadata(meta, metadata))?,
            Shape::Table(table) => {
                serde_json::to_vec(&json!({"cells": [], "object": partial_metadata(table.meta, metadata)}))?
            }
        };
        self.append("BOOKMARK", &body, version, out);
        Ok(())
    }

    /// A table with one row. Only the first table has the column definitions.
    fn table(&mut self, form: TableForm, version: &str, row: &[u8]) -> Vec<u8> {
        let columns = match std::mem::replace(&mut self.has_sent_columns, true) {
            true => None,
            false => self.heading.columns.clone(),
        };
        let head = form.head(json!({"resourceVersion": version}), columns);
        let mut table = head.to_string().into_bytes();
        table.pop();
        table.extend_from_slice(b",\"rows\":[");
        table.extend_from_slice(row);
        table.extend_from_slice(b"]}");
        table
    }
}

/// Appends the event that ends a watch with an error.
pub fn append_error(error: &Error, out: &mut Vec<u8>) {
    append_event("ERROR", error.status().to_string().as_bytes(), out);
}

fn append_event(event_type: &str, object: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{{\"type\":\"{event_type}\",\"object\":").as_bytes());
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
}

fn partial_metadata(meta: MetaVersion, metadata: Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta.api_version(), "metadata": metadata})
}

/// Time after which a watch ends. As in kube-apiserver, `timeoutSeconds=0` means no timeout.
pub fn watch_timeout(query: &Query) -> Duration {
    let timeout = query.get("timeoutSeconds").unwrap_or_default().parse().ok().filter(|seconds| *seconds > 0);
    timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs).min(MAX_TIMEOUT)
}

/// Interval at which bookmarks are sent; None if the client does not allow them.
pub fn bookmark_interval(query: &Query) -> Option<Interval> {
    query.flag("allowWatchBookmarks").then(|| {
        let mut interval = tokio::time::interval_at(Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    })
}

/// Waits for the next tick; without an interval, forever.
pub async fn next_tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Include;
    use rstest::rstest;

    fn heading() -> Heading {
        let columns = Some(json!([{"name": "Name"}]));
        Heading { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned(), columns }
    }

    #[rstest]
    #[case::full(Shape::Objects(Form::Full), json!({"kind": "ConfigMap", "apiVersion": "v1"}))]
    #[case::metadata(
        Shape::Objects(Form::Metadata(MetaVersion::V1)),
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"})
    )]
    #[case::old_metadata(
        Shape::Objects(Form::Metadata(MetaVersion::V1beta1)),
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1beta1"})
    )]
    fn bookmarks_have_the_form_of_the_events(#[case] shape: Shape, #[case] mut expected: Value) {
        let (mut events, mut out) = (EventEncoder::new(shape, heading()), Vec::new());
        events.append_bookmark("v", true, &mut out).unwrap();
        let event: Value = serde_json::from_slice(&out).unwrap();
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        expected["metadata"] = json!({"resourceVersion": "v", "creationTimestamp": null, "annotations": annotations});
        assert_eq!(event, json!({"type": "BOOKMARK", "object": expected}));
    }

    #[test]
    fn only_the_first_table_has_columns() {
        let (mut events, mut out) = (EventEncoder::new(Shape::Table(Include::None.into()), heading()), Vec::new());
        events.append("ADDED", br#"{"cells":["a"],"object":null}"#, "1", &mut out);
        events.append("DELETED", br#"{"cells":["a"],"object":null}"#, "2", &mut out);
        let lines = out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let tables: Vec<Value> =
            lines.map(|line| serde_json::from_slice::<Value>(line).unwrap()["object"].take()).collect();
        assert_eq!(tables[0]["columnDefinitions"], json!([{"name": "Name"}]));
        assert_eq!((&tables[1]["columnDefinitions"], &tables[1]["rows"][0]["cells"]), (&json!(null), &json!(["a"])));
        assert_eq!(tables[1]["metadata"]["resourceVersion"], "2");
    }

    #[rstest]
    #[case("", DEFAULT_TIMEOUT)]
    #[case("timeoutSeconds=0", DEFAULT_TIMEOUT)]
    #[case("timeoutSeconds=-5", DEFAULT_TIMEOUT)]
    #[case("timeoutSeconds=7", Duration::from_secs(7))]
    #[case("timeoutSeconds=9999999", MAX_TIMEOUT)]
    fn the_timeout_of_a_watch_is_limited(#[case] query: &str, #[case] expected: Duration) {
        assert_eq!(watch_timeout(&Query::parse(Some(query))), expected);
    }
}
