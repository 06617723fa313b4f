//! Fields that field selectors support in addition to `metadata.name` and `metadata.namespace`.

use serde_json::Value;

use super::object::at;

/// Field paths with their values as text.
pub(super) fn selectable_fields(group: &str, kind: &str, object: &Value) -> Vec<(String, String)> {
    let names: &[&str] = match (group, kind) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "Event") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "Secret") => &["type"],
        ("", "Namespace") => &["status.phase"],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("", "ReplicationController") => &["status.replicas"],
        ("batch", "Job") => &["status.successful"],
        ("certificates.k8s.io", _) => &["spec.signerName"],
        _ => &[],
    };
    names.iter().map(|name| ((*name).to_owned(), field_value(kind, name, object))).collect()
}

fn field_value(kind: &str, name: &str, object: &Value) -> String {
    let path = match (kind, name) {
        ("Event", "source") => "source.component",
        ("Job", "status.successful") => "status.succeeded",
        _ => name,
    };
    match at(object, path) {
        Value::Null if matches!(name, "spec.hostNetwork" | "spec.unschedulable") => "false".into(),
        Value::Null if matches!(name, "status.replicas" | "status.successful") => "0".into(),
        Value::Null => match (kind, name) {
            // The reporting component is the default for an absent source.
            ("Event", "source") => at(object, "reportingComponent").as_str().unwrap_or_default().into(),
            _ => String::new(),
        },
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
