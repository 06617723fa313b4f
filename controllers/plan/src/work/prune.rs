//! Removes fields of a template that are specific to its object in the control plane.

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, kind, name, remove, set, text};

const SERVER_METADATA: [&str; 10] = [
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
    "ownerReferences",
    "finalizers",
];

/// Removes server-set metadata, status, and fields that controllers of the kind set. As in Karmada, rules depend on
/// the kind only, not on the group.
pub fn prune(object: &mut Value) {
    for field in SERVER_METADATA {
        remove(object, &["metadata", field]);
    }
    remove(object, &["status"]);
    match kind(object) {
        "Deployment" => {
            remove(object, &["metadata", "annotations", "deployment.kubernetes.io/revision"]);
            remove(object, &["metadata", "annotations", "deployment.kubernetes.io/revision-history"]);
        }
        "Job" => prune_job(object),
        "Secret" => prune_secret(object),
        "ServiceAccount" => prune_service_account(object),
        "Service" => prune_service(object),
        "PersistentVolumeClaim" => {
            remove(object, &["metadata", "annotations", "volume.kubernetes.io/selected-node"]);
        }
        _ => {}
    }
}

/// Removes the TTL of a Job. Otherwise the member would delete the finished Job, and it would be recreated as drift.
pub fn prune_job_ttl(object: &mut Value) {
    if kind(object) == "Job" {
        remove(object, &["spec", "ttlSecondsAfterFinished"]);
    }
}

fn prune_job(object: &mut Value) {
    if at(object, &["spec", "manualSelector"]).and_then(Value::as_bool).unwrap_or_default() {
        return;
    }
    for label in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        remove(object, &["spec", "selector", "matchLabels", label]);
    }
    for label in ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"] {
        remove(object, &["spec", "template", "metadata", "labels", label]);
    }
}

fn prune_secret(object: &mut Value) {
    if text(object, &["type"]) == "kubernetes.io/service-account-token" {
        remove(object, &["metadata", "annotations", "kubernetes.io/service-account.uid"]);
        set(object, &["data"], Value::Null);
    }
}

fn prune_service_account(object: &mut Value) {
    let prefix = format!("{}-token-", name(object));
    if let Some(secrets) = object.get_mut("secrets").and_then(Value::as_array_mut) {
        secrets.retain(|secret| !text(secret, &["name"]).starts_with(&prefix));
    }
}

fn prune_service(object: &mut Value) {
    let address = text(object, &["spec", "clusterIP"]);
    if at(object, &["spec", "clusterIP"]).is_some() && address != "None" {
        remove(object, &["spec", "clusterIP"]);
        remove(object, &["spec", "clusterIPs"]);
    }
}
