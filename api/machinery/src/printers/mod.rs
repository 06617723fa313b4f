//! Status words, counts and table cells of objects as kubectl prints them, without a request to a server.
//!
//! Built-in kinds have specific rules; the status of other kinds is `status.phase` or one of `status.conditions`.
//! Objects are printed once when they are stored in the cache, and whenever tables are served. Pods, the most frequent
//! objects, are parsed from borrowed JSON without a tree.

pub mod borrowed;
mod cells;
pub mod columns;
mod messages;
mod pod;
mod view;
mod workloads;

pub use cells::{Cell, human_duration};
pub use messages::{MessagePosition, Messages};

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::ObjectKey;
use crate::references::group_of_reference;

/// An object's JSON, as bytes or as a parsed value. Typed views of it can be deserialized repeatedly.
pub trait JsonSource<'a>: Copy {
    /// Deserializes a view; None if the JSON has another structure.
    fn read<T: Deserialize<'a>>(self) -> Option<T>;

    /// The complete value; null if it is not valid JSON.
    fn tree(self) -> Cow<'a, Value>;
}

impl<'a> JsonSource<'a> for &'a [u8] {
    fn read<T: Deserialize<'a>>(self) -> Option<T> {
        serde_json::from_slice(self).ok()
    }

    fn tree(self) -> Cow<'a, Value> {
        Cow::Owned(serde_json::from_slice(self).unwrap_or_default())
    }
}

impl<'a> JsonSource<'a> for &'a Value {
    fn read<T: Deserialize<'a>>(self) -> Option<T> {
        T::deserialize(self).ok()
    }

    fn tree(self) -> Cow<'a, Value> {
        Cow::Borrowed(self)
    }
}

/// Properties of an object in addition to its metadata. A field is empty if the object has no such value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrintedObject {
    /// The value of kubectl's STATUS column, or the closest equivalent of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Reasons of conditions, containers and events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Conditions as (type, status).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<(String, String)>,
    /// Ready containers of a pod, ready replicas of a workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
    /// Desired containers or replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<i64>,
    /// Sum of the restarts of a pod's containers.
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
    /// Requested CPU in millicores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<i64>,
    /// CPU limit in millicores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<i64>,
    /// Requested memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<i64>,
    /// Memory limit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<i64>,
    /// The object that an Event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<InvolvedObject>,
    /// The related object of an Event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub related: Option<InvolvedObject>,
    /// Type of an Event, a Service or a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Number of occurrences of an Event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Last occurrence of an Event, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<i64>,
    /// Message of an Event, or of the condition or container that explains the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Values for field selectors, in addition to metadata.name and metadata.namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<(String, String)>,
    /// Cells in the order of [`columns::columns`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Cell>,
}

/// Reference to an object in an Event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvolvedObject {
    /// Empty if the Event contains none.
    #[serde(default, rename = "apiVersion", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl InvolvedObject {
    /// Key of the object. Without `apiVersion`, its group is that of the built-in kind.
    pub fn key(&self) -> ObjectKey {
        let group = group_of_reference(&self.api_version, &self.kind);
        ObjectKey::new(group, &self.kind, &self.namespace, &self.name)
    }
}

/// Prints one object. For an object of an unexpected form, only the available fields are printed.
pub fn print<'a>(group: &str, kind: &str, source: impl JsonSource<'a>) -> PrintedObject {
    // Most objects are pods, so they are parsed without a tree, and only the fields that are printed.
    if let Some(pod) = ((group, kind) == ("", "Pod")).then(|| source.read::<view::Pod<'a>>()).flatten() {
        return sort_and_dedup(pod::print(pod));
    }
    let object = source.tree();
    let mut printed = print_view(group, kind, &*object);
    printed.cells = columns::cells(group, kind, &object);
    sort_and_dedup(printed)
}

/// Prints all properties except cells.
fn print_view<'a>(group: &str, kind: &str, source: impl JsonSource<'a>) -> PrintedObject {
    let printed = match (group, kind) {
        ("" | "events.k8s.io", "Event") => source.read::<view::Event<'a>>().map(view::Event::print),
        ("", "Node") => source.read::<view::Node<'a>>().map(view::Node::print),
        ("", "Service") => source.read::<view::Service<'a>>().map(view::Service::print),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") | ("", "ReplicationController") => {
            source.read::<view::Workload<'a>>().map(|workload| workload.print(kind))
        }
        ("batch", "Job") => source.read::<view::Job<'a>>().map(view::Job::print),
        ("batch", "CronJob") => source.read::<view::CronJob<'a>>().map(view::CronJob::print),
        ("", "Secret") => source.read::<view::Secret<'a>>().map(view::Secret::print),
        _ => None,
    };
    printed.or_else(|| source.read::<view::Any<'a>>().map(view::Any::print)).unwrap_or_default()
}

/// Sorts reasons and images and removes duplicates.
fn sort_and_dedup(mut printed: PrintedObject) -> PrintedObject {
    for names in [&mut printed.reasons, &mut printed.images] {
        names.sort_unstable();
        names.dedup();
    }
    printed
}

/// Unix seconds of an RFC 3339 time.
pub fn unix_seconds(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(|timestamp| timestamp.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn pod(spec: Value, status: Value, deleting: bool) -> Value {
        let mut metadata = json!({"name": "web", "namespace": "a", "creationTimestamp": "2026-09-21T10:00:00Z"});
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-09-21T11:00:00Z");
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
    }

    fn running(ready: bool) -> Value {
        json!({"name": "c", "ready": ready, "restartCount": 2, "state": {"running": {}}})
    }

    #[rstest]
    #[case::phase(json!({}), json!({"phase": "Pending"}), false, "Pending", "0/1")]
    #[case::running(json!({}), json!({"phase": "Running", "containerStatuses": [running(true)]}), false, "Running", "1/1")]
    #[case::waiting(json!({}), json!({"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 9,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}), false, "CrashLoopBackOff", "0/1")]
    #[case::exit_code(json!({}), json!({"phase": "Failed", "containerStatuses": [{"name": "c",
        "state": {"terminated": {"exitCode": 3}}}]}), false, "ExitCode:3", "0/1")]
    #[case::completed(json!({}), json!({"phase": "Succeeded", "containerStatuses": [{"name": "c",
        "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}), false, "Completed", "0/1")]
    #[case::evicted(json!({}), json!({"phase": "Failed", "reason": "Evicted"}), false, "Evicted", "0/1")]
    #[case::initializing(json!({"initContainers": [{"name": "i"}, {"name": "j"}]}), json!({"phase": "Pending",
        "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}},
            {"name": "j", "state": {"waiting": {"reason": "PodInitializing"}}}]}), false, "Init:1/2", "0/1")]
    #[case::init_failed(json!({"initContainers": [{"name": "i"}]}), json!({"phase": "Pending",
        "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]}), false,
        "Init:ErrImagePull", "0/1")]
    #[case::sidecar(json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}]}), json!({"phase": "Running",
        "initContainerStatuses": [{"name": "s", "ready": true, "started": true, "state": {"running": {}}}],
        "containerStatuses": [running(true)]}), false, "Running", "2/2")]
    #[case::deleting(json!({}), json!({"phase": "Running", "containerStatuses": [running(true)]}), true, "Terminating", "1/1")]
    #[case::node_lost(json!({}), json!({"phase": "Running", "reason": "NodeLost"}), true, "Unknown", "0/1")]
    #[case::gated(json!({}), json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
        "reason": "SchedulingGated"}]}), false, "SchedulingGated", "0/1")]
    fn pods_have_the_status_of_kubectl(
        #[case] mut spec: Value,
        #[case] status: Value,
        #[case] deleting: bool,
        #[case] expected: &str,
        #[case] ready: &str,
    ) {
        spec["containers"] = json!([{"name": "c", "image": "nginx:1.27"}]);
        let object = pod(spec, status, deleting);
        let printed = print("", "Pod", &object);
        assert_eq!(printed.status.as_deref(), Some(expected));
        assert_eq!(printed.cells[1], Cell::text(ready));
        assert_eq!(printed.cells.len(), columns::columns("", "Pod").len());
        assert_eq!(print("", "Pod", object.to_string().as_bytes()), printed, "bytes and values print the same");
    }

    #[rstest]
    #[case("", "Node", json!({"spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        Some("Ready,SchedulingDisabled"))]
    #[case("apps", "Deployment", json!({"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}), Some("NotReady"))]
    #[case("batch", "Job", json!({"spec": {}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}), Some("Complete"))]
    #[case("", "Namespace", json!({"status": {"phase": "Active"}}), Some("Active"))]
    #[case("x.io", "Thing", json!({"status": {"conditions": [{"type": "Ready", "status": "False", "message": "no"}]}}), Some("NotReady"))]
    #[case("x.io", "Thing", json!({"spec": null, "status": null}), None)]
    #[case("x.io", "Thing", json!({"status": "a word where an object should be"}), None)]
    fn other_kinds_have_a_status(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] mut object: Value,
        #[case] expected: Option<&str>,
    ) {
        object["metadata"] = json!({"name": "x"});
        let printed = print(group, kind, &object);
        assert_eq!(printed.status.as_deref(), expected);
        assert_eq!(printed.cells.len(), columns::columns(group, kind).len());
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(-1, "0s")]
    #[case(-2, "<invalid>")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(125, "2m5s")]
    #[case(600, "10m")]
    #[case(3 * 3600 - 1, "179m")]
    #[case(3 * 3600, "3h")]
    #[case(3 * 3600 + 61, "3h1m")]
    #[case(47 * 3600, "47h")]
    #[case(48 * 3600, "2d")]
    #[case(49 * 3600, "2d1h")]
    #[case(8 * 86400, "8d")]
    #[case(729 * 86400, "729d")]
    #[case(731 * 86400, "2y1d")]
    #[case(8 * 365 * 86400, "8y")]
    #[case(150, "2m30s")]
    #[case(3 * 3600 + 60, "3h1m")]
    #[case(30 * 3600, "30h")]
    #[case(50 * 3600, "2d2h")]
    #[case(100 * 86400, "100d")]
    #[case(800 * 86400, "2y70d")]
    fn ages_are_printed_as_by_kubectl(#[case] seconds: i64, #[case] text: &str) {
        assert_eq!(Cell::Since { since: 0 }.render(seconds), text);
    }

    #[rstest]
    #[case("Service", json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1"}}),
        &["spec.clusterIP=10.0.0.1", "spec.type=NodePort"])]
    #[case("Service", json!({"spec": {"clusterIP": "None"}}), &["spec.clusterIP=None", "spec.type=ClusterIP"])]
    #[case("ReplicationController", json!({"spec": {"replicas": 3}, "status": {"replicas": 2}}), &["status.replicas=2"])]
    #[case("Event", json!({"involvedObject": {"apiVersion": "v1", "resourceVersion": "7"}}),
        &["involvedObject.apiVersion=v1", "involvedObject.resourceVersion=7"])]
    fn values_for_field_selectors_are_printed(#[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        let printed = print("", kind, &object);
        let fields: Vec<String> = printed.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for field in expected {
            assert!(fields.iter().any(|printed| printed == field), "{field}: {fields:?}");
        }
    }
}
