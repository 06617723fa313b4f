//! What kubectl would print of an object, without asking a server: status words, counts, table cells.
//!
//! Owns the extraction rules for built-in kinds; any other kind gets what its `status.phase` and `status.conditions`
//! say. Used where objects are cached (once, on ingest) and where tables are served. Reads borrowed JSON, so no tree is
//! built.

mod cells;
mod pod;
mod view;

pub use cells::{Cell, ColumnDefinition, table_columns};

use serde::{Deserialize, Serialize};

/// Something a view can be read from, more than once: JSON bytes or a parsed value.
pub trait Source<'a>: Copy {
    /// None when the JSON has another shape.
    fn read<T: Deserialize<'a>>(self) -> Option<T>;
}

impl<'a> Source<'a> for &'a [u8] {
    fn read<T: Deserialize<'a>>(self) -> Option<T> {
        serde_json::from_slice(self).ok()
    }
}

impl<'a> Source<'a> for &'a serde_json::Value {
    fn read<T: Deserialize<'a>>(self) -> Option<T> {
        T::deserialize(self).ok()
    }
}

/// What is worth knowing of an object beside its metadata. Empty fields mean the kind has no such thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Printed {
    /// The word in kubectl's STATUS column, or the closest thing the kind has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Reasons of conditions, containers and events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// (type, status).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(String, String)>,
    /// Ready containers of a pod, ready replicas of a workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
    /// Wanted containers or replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// CPU requested, in thousandths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<i64>,
    /// Memory requested, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<i64>,
    /// What an Event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// Type of an Event, a Service or a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// How often an Event was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// When an Event was last seen, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<i64>,
    /// Message of an Event, or of the condition or container that explains the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Names of the objects the spec refers to, as `configmap/name`, in the object's own namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<String>,
    /// Values field selectors may ask for, beside metadata.name and metadata.namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<(String, String)>,
    /// Cells of [`table_columns`], in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Cell>,
}

/// The object an Event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Prints one object of a kind. An object of another shape than its kind promises prints as little as it can.
pub fn print<'a>(group: &str, kind: &str, source: impl Source<'a>) -> Printed {
    let mut printed = match (group, kind) {
        ("", "Pod") => source.read::<view::Pod<'a>>().map(pod::print),
        ("" | "events.k8s.io", "Event") => source.read::<view::Event<'a>>().map(view::Event::print),
        ("", "Node") => source.read::<view::Node<'a>>().map(view::Node::print),
        ("", "Service") => source.read::<view::Service<'a>>().map(view::Service::print),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") | ("", "ReplicationController") => {
            source.read::<view::Workload<'a>>().map(|workload| workload.print(kind))
        }
        ("batch", "Job") => source.read::<view::Job<'a>>().map(view::Job::print),
        ("batch", "CronJob") => source.read::<view::CronJob<'a>>().map(view::CronJob::print),
        ("", "ConfigMap" | "Secret") => source.read::<view::Data<'a>>().map(|data| data.print(kind)),
        _ => None,
    };
    if printed.is_none() {
        printed = source.read::<view::Any<'a>>().map(|any| any.print(kind));
    }
    let mut printed = printed.unwrap_or_default();
    printed.reasons.sort_unstable();
    printed.reasons.dedup();
    printed.images.sort_unstable();
    printed.images.dedup();
    printed.uses.sort_unstable();
    printed.uses.dedup();
    printed
}

/// Unix seconds of an RFC 3339 time.
pub fn unix_seconds(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(|timestamp| timestamp.as_second())
}
