//! Events on objects of the control plane (`core/v1`). Equal ones are counted up instead of repeated, and a recorder
//! that can't keep up drops the newest rather than hold up a loop.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::objects::{Objects, Resource, Target};
use crate::plan::object;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

struct Entry {
    regarding: Value,
    severity: Severity,
    reason: &'static str,
    message: String,
}

/// Records events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    sender: mpsc::Sender<Entry>,
}

const WAITING: usize = 4096;
const REMEMBERED: usize = 8192;

impl Events {
    /// The recorder and the task that writes for it.
    pub fn new(objects: Objects, component: &'static str, stop: CancellationToken) -> (Self, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Events { sender }, write(objects, component, receiver, stop))
    }

    /// Notes that something happened to `regarding` (any object with apiVersion, kind and metadata).
    pub fn note(&self, regarding: &Value, severity: Severity, reason: &'static str, message: impl Into<String>) {
        let reference = json!({
            "apiVersion": object::api_version(regarding), "kind": object::kind(regarding),
            "namespace": object::namespace(regarding), "name": object::name(regarding),
            "uid": object::uid(regarding),
        });
        let entry = Entry { regarding: reference, severity, reason, message: message.into() };
        if self.sender.try_send(entry).is_err() {
            tracing::debug!(reason, "event dropped");
        }
    }
}

type Key = (String, &'static str, String);

async fn write(
    objects: Objects,
    component: &'static str,
    mut receiver: mpsc::Receiver<Entry>,
    stop: CancellationToken,
) {
    let resource = Resource::builtin("", "v1", "events", "Event", true);
    let mut written: HashMap<Key, (String, String, u64)> = HashMap::new();
    loop {
        let entry = tokio::select! {
            () = stop.cancelled() => return,
            entry = receiver.recv() => entry,
        };
        let Some(entry) = entry else { return };
        let key = (entry.regarding.to_string(), entry.reason, entry.message.clone());
        let now = Timestamp::now();
        if let Some((namespace, name, count)) = written.get_mut(&key) {
            *count += 1;
            let patch = json!({"count": *count, "lastTimestamp": seconds(now)});
            if objects.merge(Target::new(&resource, namespace, name), &patch).await.is_ok() {
                continue;
            }
            written.remove(&key);
        }
        if let Some((namespace, name)) = create(&objects, &resource, component, &entry, now).await {
            if written.len() >= REMEMBERED {
                written.clear();
            }
            written.insert(key, (namespace, name, 1));
        }
    }
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

async fn create(
    objects: &Objects,
    resource: &Resource,
    component: &'static str,
    entry: &Entry,
    now: Timestamp,
) -> Option<(String, String)> {
    let namespace = match object::text(&entry.regarding, &["namespace"]) {
        "" => "default",
        namespace => namespace,
    };
    let name = format!("{}.{:x}", object::text(&entry.regarding, &["name"]), now.as_nanosecond());
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": entry.regarding,
        "type": if entry.severity == Severity::Warning { "Warning" } else { "Normal" },
        "reason": entry.reason, "message": entry.message, "count": 1,
        "firstTimestamp": seconds(now), "lastTimestamp": seconds(now),
        "source": {"component": component}, "reportingComponent": component, "reportingInstance": "",
    });
    match objects.create(resource, namespace, &event).await {
        Ok(_) => Some((namespace.to_owned(), name)),
        Err(error) => {
            tracing::debug!(%error, "event not written");
            None
        }
    }
}
