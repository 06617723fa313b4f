//! What a member decides: fields of the live object that an update must not take back.

use std::collections::BTreeSet;

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, integer, label, remove, set, text};

/// Label on a workload whose replicas a member's own autoscaler owns.
pub const RETAIN_REPLICAS_LABEL: &str = "resourcetemplate.karmada.io/retain-replicas";

fn keep(desired: &mut Value, observed: &Value, path: &[&str]) {
    if let Some(value) = at(observed, path).filter(|value| !value.is_null()) {
        set(desired, path, value.clone());
    }
}

pub fn workload_replicas(desired: &mut Value, observed: &Value) {
    if label(desired, RETAIN_REPLICAS_LABEL) == Some("true") {
        keep(desired, observed, &["spec", "replicas"]);
    }
}

/// What the member added to a pod, or never had: most fields of a pod can't be changed once it is there.
pub fn pod(desired: &mut Value, observed: &Value) {
    for field in ["nodeName", "serviceAccountName", "volumes"] {
        take_over(desired, observed, &["spec", field]);
    }
    for field in ["containers", "initContainers"] {
        let Some(live) = at(observed, &["spec", field]).and_then(Value::as_array) else { continue };
        let wanted = desired.get_mut("spec").and_then(|spec| spec.get_mut(field)).and_then(Value::as_array_mut);
        for container in wanted.into_iter().flatten() {
            let same = |other: &&Value| text(other, &["name"]) == text(container, &["name"]);
            if let Some(other) = live.iter().find(same) {
                take_over(container, other, &["volumeMounts"]);
            }
        }
    }
}

/// As [`keep`], and what the live object lacks goes.
fn take_over(desired: &mut Value, observed: &Value, path: &[&str]) {
    match at(observed, path).filter(|value| !value.is_null()) {
        Some(value) => set(desired, path, value.clone()),
        None => {
            remove(desired, path);
        }
    }
}

pub fn service(desired: &mut Value, observed: &Value) {
    if integer(observed, &["spec", "healthCheckNodePort"]).is_some_and(|port| port > 0) {
        keep(desired, observed, &["spec", "healthCheckNodePort"]);
    }
    if !text(observed, &["spec", "clusterIP"]).is_empty() {
        keep(desired, observed, &["spec", "clusterIP"]);
    }
}

/// Secrets that the member added to the account stay beside the desired ones.
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

pub fn persistent_volume_claim(desired: &mut Value, observed: &Value) {
    if !text(observed, &["spec", "volumeName"]).is_empty() {
        keep(desired, observed, &["spec", "volumeName"]);
    }
}

pub fn persistent_volume(desired: &mut Value, observed: &Value) {
    keep(desired, observed, &["spec", "claimRef"]);
}

/// The selector and pod labels a member's Job controller generated.
pub fn job(desired: &mut Value, observed: &Value) {
    keep(desired, observed, &["spec", "selector", "matchLabels"]);
    keep(desired, observed, &["spec", "template", "metadata", "labels"]);
}

pub fn secret(desired: &mut Value, observed: &Value) {
    if text(desired, &["type"]) == "kubernetes.io/service-account-token" {
        keep(desired, observed, &["data"]);
    }
}
