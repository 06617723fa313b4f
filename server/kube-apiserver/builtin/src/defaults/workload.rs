//! Defaults of deployments, replica sets, stateful sets, daemon sets and replication controllers.

use serde_json::{Value, json};

use super::{at_mut, for_each_item, is_set, is_unset, pod, set_default, set_field, storage, text};
use crate::object::{at, fields};
use crate::prepare;

/// Defaults of the rollout strategy.
fn set_rollout_defaults(spec: &mut Value, field: &str, max_unavailable: impl Into<Value>, max_surge: impl Into<Value>) {
    if !is_set(spec, field) {
        set_field(spec, field, json!({}));
    }
    let Some(strategy) = at_mut(spec, field) else { return };
    set_default(strategy, "type", "RollingUpdate");
    if text(strategy, "type") != "RollingUpdate" {
        return;
    }
    if !is_set(strategy, "rollingUpdate") {
        set_field(strategy, "rollingUpdate", json!({}));
    }
    if let Some(rolling) = at_mut(strategy, "rollingUpdate") {
        set_default(rolling, "maxUnavailable", max_unavailable);
        set_default(rolling, "maxSurge", max_surge);
    }
}

pub(super) fn set_deployment_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    set_rollout_defaults(spec, "strategy", "25%", "25%");
    if let Some(template) = at_mut(spec, "template") {
        pod::set_template_defaults(template);
    }
}

pub(super) fn set_replica_set_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "replicas", 1);
    if let Some(template) = at_mut(spec, "template") {
        pod::set_template_defaults(template);
    }
}

pub(super) fn set_stateful_set_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "podManagementPolicy", "OrderedReady");
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    for field in ["updateStrategy", "persistentVolumeClaimRetentionPolicy"] {
        if !is_set(spec, field) {
            set_field(spec, field, json!({}));
        }
    }
    if let Some(strategy) = at_mut(spec, "updateStrategy") {
        if is_unset(strategy, "type") {
            set_field(strategy, "type", "RollingUpdate");
            if !is_set(strategy, "rollingUpdate") {
                set_field(strategy, "rollingUpdate", json!({}));
            }
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = at_mut(strategy, "rollingUpdate")
        {
            set_default(rolling, "partition", 0);
        }
    }
    if let Some(policy) = at_mut(spec, "persistentVolumeClaimRetentionPolicy") {
        set_default(policy, "whenDeleted", "Retain");
        set_default(policy, "whenScaled", "Retain");
    }
    for_each_item(spec, "volumeClaimTemplates", |claim| {
        set_default(claim, "apiVersion", "v1");
        set_default(claim, "kind", "PersistentVolumeClaim");
        storage::set_claim_defaults(claim);
    });
    if let Some(template) = at_mut(spec, "template") {
        pod::set_template_defaults(template);
    }
}

pub(super) fn set_daemon_set_defaults(object: &mut Value) {
    // `spec.templateGeneration` of removed API versions is stored in an annotation.
    if let Some(metadata) = at_mut(object, "metadata") {
        if !is_set(metadata, "annotations") {
            set_field(metadata, "annotations", json!({}));
        }
        set_default(&mut metadata["annotations"], prepare::TEMPLATE_GENERATION, "0");
    }
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "revisionHistoryLimit", 10);
    set_rollout_defaults(spec, "updateStrategy", 1, 0);
    if let Some(template) = at_mut(spec, "template") {
        pod::set_template_defaults(template);
    }
}

pub(super) fn set_replication_controller_defaults(object: &mut Value) {
    let labels = fields(object, "spec.template.metadata.labels").clone();
    if !labels.is_empty() {
        if fields(object, "spec.selector").is_empty()
            && let Some(spec) = at_mut(object, "spec")
        {
            set_field(spec, "selector", labels.clone());
        }
        if fields(object, "metadata.labels").is_empty() && !at(object, "metadata").is_null() {
            set_field(&mut object["metadata"], "labels", labels);
        }
    }
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "replicas", 1);
    if let Some(template) = at_mut(spec, "template") {
        pod::set_template_defaults(template);
    }
}
