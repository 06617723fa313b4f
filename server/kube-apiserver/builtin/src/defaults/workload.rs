//! Defaults of deployments, replica sets, stateful sets, daemon sets and replication controllers.

use serde_json::{Value, json};

use super::{default, each, inside, is_set, is_unset, pod, put, storage, text};
use crate::object::{at, fields};
use crate::prepare;

/// Defaults of the rollout strategy.
fn rollout(spec: &mut Value, field: &str, max_unavailable: impl Into<Value>, max_surge: impl Into<Value>) {
    if !is_set(spec, field) {
        put(spec, field, json!({}));
    }
    let Some(strategy) = inside(spec, field) else { return };
    default(strategy, "type", "RollingUpdate");
    if text(strategy, "type") != "RollingUpdate" {
        return;
    }
    if !is_set(strategy, "rollingUpdate") {
        put(strategy, "rollingUpdate", json!({}));
    }
    if let Some(rolling) = inside(strategy, "rollingUpdate") {
        default(rolling, "maxUnavailable", max_unavailable);
        default(rolling, "maxSurge", max_surge);
    }
}

pub(super) fn deployment(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
    rollout(spec, "strategy", "25%", "25%");
    if let Some(template) = inside(spec, "template") {
        pod::template(template);
    }
}

pub(super) fn replica_set(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "replicas", 1);
    if let Some(template) = inside(spec, "template") {
        pod::template(template);
    }
}

pub(super) fn stateful_set(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "podManagementPolicy", "OrderedReady");
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    for field in ["updateStrategy", "persistentVolumeClaimRetentionPolicy"] {
        if !is_set(spec, field) {
            put(spec, field, json!({}));
        }
    }
    if let Some(strategy) = inside(spec, "updateStrategy") {
        if is_unset(strategy, "type") {
            put(strategy, "type", "RollingUpdate");
            if !is_set(strategy, "rollingUpdate") {
                put(strategy, "rollingUpdate", json!({}));
            }
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = inside(strategy, "rollingUpdate")
        {
            default(rolling, "partition", 0);
        }
    }
    if let Some(policy) = inside(spec, "persistentVolumeClaimRetentionPolicy") {
        default(policy, "whenDeleted", "Retain");
        default(policy, "whenScaled", "Retain");
    }
    each(spec, "volumeClaimTemplates", |claim| {
        default(claim, "apiVersion", "v1");
        default(claim, "kind", "PersistentVolumeClaim");
        storage::claim(claim);
    });
    if let Some(template) = inside(spec, "template") {
        pod::template(template);
    }
}

pub(super) fn daemon_set(object: &mut Value) {
    // A field of removed versions, stored in an annotation.
    if let Some(metadata) = inside(object, "metadata") {
        if !is_set(metadata, "annotations") {
            put(metadata, "annotations", json!({}));
        }
        default(&mut metadata["annotations"], prepare::TEMPLATE_GENERATION, "0");
    }
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "revisionHistoryLimit", 10);
    rollout(spec, "updateStrategy", 1, 0);
    if let Some(template) = inside(spec, "template") {
        pod::template(template);
    }
}

pub(super) fn replication_controller(object: &mut Value) {
    let labels = fields(object, "spec.template.metadata.labels").clone();
    if !labels.is_empty() {
        if fields(object, "spec.selector").is_empty()
            && let Some(spec) = inside(object, "spec")
        {
            put(spec, "selector", labels.clone());
        }
        if fields(object, "metadata.labels").is_empty() && !at(object, "metadata").is_null() {
            put(&mut object["metadata"], "labels", labels);
        }
    }
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "replicas", 1);
    if let Some(template) = inside(spec, "template") {
        pod::template(template);
    }
}
