//! Retained fields: fields of the live object that an update must not change.

use std::collections::BTreeSet;

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, integer, label, remove, set, text};

/// Label on workloads whose replicas are owned by an autoscaler in the member.
pub const RETAIN_REPLICAS_LABEL: &str = "resourcetemplate.karmada.io/retain-replicas";

/// Copies a field of the live object to the desired one, if the live object has it.
fn retain_field(desired: &mut Value, observed: &Value, path: &[&str]) {
    if let Some(value) = at(observed, path).filter(|value| !value.is_null()) {
        set(desired, path, value.clone());
    }
}

/// Retains the replicas of a workload with the label [`RETAIN_REPLICAS_LABEL`].
pub fn workload_replicas(desired: &mut Value, observed: &Value) {
    if label(desired, RETAIN_REPLICAS_LABEL) == Some("true") {
        retain_field(desired, observed, &["spec", "replicas"]);
    }
}

/// Retains the fields of a pod that are immutable or set by the member.
pub fn pod(desired: &mut Value, observed: &Value) {
    for field in ["nodeName", "serviceAccountName", "volumes"] {
        replace_field(desired, observed, &["spec", field]);
    }
    for field in ["containers", "initContainers"] {
        let Some(live) = at(observed, &["spec", field]).and_then(Value::as_array) else { continue };
        let containers = desired.get_mut("spec").and_then(|spec| spec.get_mut(field)).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let has_same_name = |live_container: &&Value| text(live_container, &["name"]) == text(container, &["name"]);
            if let Some(live_container) = live.iter().find(has_same_name) {
                replace_field(container, live_container, &["volumeMounts"]);
            }
        }
    }
}

/// Like [`retain_field`], but also removes a field that the live object lacks.
fn replace_field(desired: &mut Value, observed: &Value, path: &[&str]) {
    match at(observed, path).filter(|value| !value.is_null()) {
        Some(value) => set(desired, path, value.clone()),
        None => {
            remove(desired, path);
        }
    }
}

/// Retains the node port for health checks and the cluster IP that the member allocated.
pub fn service(desired: &mut Value, observed: &Value) {
    if integer(observed, &["spec", "healthCheckNodePort"]).is_some_and(|port| port > 0) {
        retain_field(desired, observed, &["spec", "healthCheckNodePort"]);
    }
    if !text(observed, &["spec", "clusterIP"]).is_empty() {
        retain_field(desired, observed, &["spec", "clusterIP"]);
    }
}

/// Retains secrets that the member added to a service account, in addition to the desired ones.
pub fn service_account(desired: &mut Value, observed: &Value) {
    for field in ["secrets", "imagePullSecrets"] {
        let mut merged = desired.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
        let mut names: BTreeSet<String> = merged.iter().map(|secret| text(secret, &["name"]).to_owned()).collect();
        for secret in observed.get(field).and_then(Value::as_array).into_iter().flatten() {
            if names.insert(text(secret, &["name"]).to_owned()) {
                merged.push(secret.clone());
            }
        }
        if !merged.is_empty() {
            set(desired, &[field], Value::Array(merged));
        }
    }
}

/// Retains the volume to which the member bound a claim.
pub fn persistent_volume_claim(desired: &mut Value, observed: &Value) {
    if !text(observed, &["spec", "volumeName"]).is_empty() {
        retain_field(desired, observed, &["spec", "volumeName"]);
    }
}

/// Retains the claim to which the member bound a volume.
pub fn persistent_volume(desired: &mut Value, observed: &Value) {
    retain_field(desired, observed, &["spec", "claimRef"]);
}

/// Retains the selector and the pod labels that the member's Job controller generated.
pub fn job(desired: &mut Value, observed: &Value) {
    retain_field(desired, observed, &["spec", "selector", "matchLabels"]);
    retain_field(desired, observed, &["spec", "template", "metadata", "labels"]);
}

/// Retains the token that the member generated in a service account token Secret.
pub fn secret(desired: &mut Value, observed: &Value) {
    if text(desired, &["type"]) == "kubernetes.io/service-account-token" {
        retain_field(desired, observed, &["data"]);
    }
}
