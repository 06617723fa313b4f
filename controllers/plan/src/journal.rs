//! The fleet journal: changes and their causes. Each entry is written as one Event in the control plane, by
//! `crowsnest_controllers::journal` and by the webhook that enforces quotas. [`clusters`] and [`workloads`] define
//! the entries and their causes. Search (`cause:`) and the `journal` resource of `search.crowsnest.io` read them.
//!
//! The identity of an entry is derived from data in the objects: the `timeAdded` of a taint, the transition of a
//! condition, the creation of an eviction task. A controller that observes an effect can therefore name its cause
//! without having observed it, even after a restart, and an entry that is written twice has one Event.

pub mod clusters;
pub mod workloads;

use crowsnest_api::constants::{annotation, event};
use crowsnest_api::work::ObjectReference;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::reference::events_namespace;

/// Kind of an entry. Stored entries contain its [`name`](Action::name), which must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    ReadinessChanged,
    ClusterTainted,
    EvictionsHalted,
    EvictionsResumed,
    Evicted,
    EvictionKept,
    EvictionEnded,
    EvictionCancelled,
    Rescheduled,
    Descheduled,
    FailedBack,
    QuotaDenied,
    WaitingForFence,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::ReadinessChanged => "ClusterFlipped",
            Action::ClusterTainted => "ClusterTainted",
            Action::EvictionsHalted => "EvictionsHalted",
            Action::EvictionsResumed => "EvictionsResumed",
            Action::Evicted => "Evicted",
            Action::EvictionKept => "EvictionKept",
            Action::EvictionEnded => "EvictionEnded",
            Action::EvictionCancelled => "EvictionCancelled",
            Action::Rescheduled => "Rescheduled",
            Action::Descheduled => "Descheduled",
            Action::FailedBack => "ReturnedHome",
            Action::QuotaDenied => "QuotaDenied",
            Action::WaitingForFence => "FenceWaits",
        }
    }

    /// Reason of the entry's Event. For some actions it differs from the name.
    pub fn reason(self) -> &'static str {
        match self {
            Action::ReadinessChanged => event::CLUSTER_FLIPPED,
            Action::EvictionsHalted => event::EVICTIONS_HALTED,
            Action::EvictionsResumed => event::EVICTIONS_RESUMED,
            Action::EvictionKept => event::EVICTION_WAITS,
            Action::EvictionCancelled => event::EVICTION_CANCELLED,
            Action::FailedBack => event::FAILBACK,
            Action::WaitingForFence => event::WAITING_FOR_FENCE,
            other => other.name(),
        }
    }
}

/// Cause of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cause {
    /// The object that caused the change.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<ObjectReference>,
    pub text: String,
    /// Namespace and name of the previous entry's Event.
    #[serde(rename = "event", skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
}

impl Cause {
    pub fn new(text: impl Into<String>) -> Self {
        Cause { text: text.into(), ..Cause::default() }
    }

    /// Sets the object that caused the change.
    pub fn caused_by(self, reference: ObjectReference) -> Self {
        Cause { reference: Some(reference), ..self }
    }

    /// Sets the previous entry that led to this one, as namespace and name of its Event.
    pub fn preceded_by(self, previous: Option<String>) -> Self {
        Cause { previous, ..self }
    }
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Time of the change.
    pub at: Timestamp,
    /// The affected object.
    pub subject: ObjectReference,
    pub action: Action,
    /// The affected cluster, if there is exactly one.
    pub cluster: String,
    pub cause: Cause,
    /// Structured description of the change.
    pub effect: Value,
    /// Generation of the changed Cluster or binding after the change.
    pub generation: Option<i64>,
    /// True if an administrator should check it; its Event has the type Warning.
    pub is_warning: bool,
    /// Summary of the entry.
    pub message: String,
    /// Namespace and name of its Event.
    pub id: String,
}

/// Maximum length of an Event's message, in bytes.
const MAX_MESSAGE_LENGTH: usize = 1024;
/// Maximum length of the object's name as part of the Event's name.
const MAX_NAME_LENGTH: usize = 200;

/// Namespace and name of an entry's Event. `uid` is that of the changed Cluster or binding; `details` distinguishes
/// entries of the same action for the same object.
pub fn id(subject: &ObjectReference, uid: &str, action: Action, details: &[&str]) -> String {
    let parts: Vec<&str> = [uid, action.name()].into_iter().chain(details.iter().copied()).collect();
    let digest = Sha256::digest(parts.join("\u{1f}"));
    let short: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}/{}.{short}", events_namespace(subject), sanitize_name(&subject.name))
}

/// Converts a name to a valid Event name. Names of RBAC roles allow more characters.
fn sanitize_name(name: &str) -> String {
    let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let clean = |c: char| match c.to_ascii_lowercase() {
        c if is_fine(c) => c,
        '.' => '.',
        _ => '-',
    };
    let sanitized: String = name.chars().map(clean).take(MAX_NAME_LENGTH).collect();
    // Each label between dots begins and ends with a letter or digit.
    let parts = sanitized.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.collect();
    if parts.is_empty() { "entry".to_owned() } else { parts.join(".") }
}

/// Truncates a text to at most `max_bytes` bytes.
fn truncate(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Unix time in seconds, the precision of conditions, taints and tasks.
fn unix_seconds(time: Timestamp) -> String {
    time.as_second().to_string()
}

impl Entry {
    /// The Event of this entry.
    pub fn event(&self, component: &str) -> Value {
        let (namespace, name) = self.id.split_once('/').unwrap_or(("default", &self.id));
        let seconds = self.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut entry = Map::from_iter([("action".to_owned(), json!(self.action.name()))]);
        let fields = [
            ("cluster", (!self.cluster.is_empty()).then(|| json!(self.cluster))),
            ("effect", (!self.effect.is_null()).then(|| self.effect.clone())),
            ("generation", self.generation.map(|generation| json!(generation))),
        ];
        entry.extend(fields.into_iter().filter_map(|(name, field)| Some((name.to_owned(), field?))));
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": namespace, "name": name, "annotations": {
                annotation::JOURNAL_CAUSE: json!(self.cause).to_string(),
                annotation::JOURNAL_ENTRY: Value::Object(entry).to_string(),
            }},
            "involvedObject": self.subject,
            "action": self.action.name(), "reason": self.action.reason(),
            "message": truncate(&self.message, MAX_MESSAGE_LENGTH),
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "eventTime": self.at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
            "firstTimestamp": seconds, "lastTimestamp": seconds, "count": 1,
            "source": {"component": component}, "reportingComponent": component, "reportingInstance": component,
        });
        if let Some(related) = &self.cause.reference {
            unstructured::set(&mut event, &["related"], json!(related));
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::usual("web", "web")]
    #[case::role_name("system:node-Proxier", "system-node-proxier")]
    #[case::with_dots("a.-b-.c", "a.b.c")]
    #[case::without_valid_characters(":::", "entry")]
    fn event_names_are_valid(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(sanitize_name(name), expected);
    }

    #[test]
    fn same_change_has_the_same_entry() {
        let web = ObjectReference::new("apps/v1", "Deployment", "shop", "web");
        let ids = [
            id(&web, "u", Action::Evicted, &["m1", "5"]),
            id(&web, "u", Action::Evicted, &["m1", "5"]),
            id(&web, "u", Action::Evicted, &["m1", "6"]),
            id(&web, "v", Action::Evicted, &["m1", "5"]),
            id(&web, "u", Action::EvictionKept, &["m1", "5"]),
        ];
        assert_eq!(ids[0], ids[1]);
        let different: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(different.len(), 4);
        assert!(ids[0].starts_with("shop/web."), "{}", ids[0]);
    }

    #[test]
    fn event_contains_the_entry() {
        let subject = ObjectReference::new("apps/v1", "Deployment", "shop", "web");
        let entry = Entry {
            at: "2026-01-01T10:05:00.5Z".parse().expect("a time"),
            id: id(&subject, "u", Action::Evicted, &["m1"]),
            subject,
            action: Action::Evicted,
            cluster: "m1".to_owned(),
            cause: Cause::new("why")
                .caused_by(ObjectReference::cluster("m1"))
                .preceded_by(Some("default/m1.1".to_owned())),
            effect: json!({"replicas": 2}),
            generation: Some(7),
            is_warning: false,
            message: "ü".repeat(MAX_MESSAGE_LENGTH),
        };
        let event = entry.event("crowsnest-controllers");
        let annotation_value = |key: &str| -> Value {
            let text = unstructured::annotation(&event, key).expect("an annotation");
            serde_json::from_str(text).expect("JSON")
        };
        let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "name": "m1"});
        assert_eq!(
            annotation_value(annotation::JOURNAL_CAUSE),
            json!({"ref": cluster, "text": "why", "event": "default/m1.1"})
        );
        let expected = json!({"action": "Evicted", "cluster": "m1", "effect": {"replicas": 2}, "generation": 7});
        assert_eq!(annotation_value(annotation::JOURNAL_ENTRY), expected);
        assert_eq!(
            (&event["related"], &event["involvedObject"]["namespace"], &event["eventTime"]),
            (&cluster, &json!("shop"), &json!("2026-01-01T10:05:00.500000Z"))
        );
        assert_eq!(event["message"].as_str().map(str::len), Some(MAX_MESSAGE_LENGTH));
    }
}
