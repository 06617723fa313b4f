//! Defaults of secrets, namespaces, nodes, autoscalers, RBAC, admission configuration, CRDs and flow control.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{at_mut, for_each_item, is_set, set_default, set_field, set_pointer_default, text};
use crate::object::{fields, items};

/// Moves the write-only `stringData` to `data`.
pub(super) fn set_secret_defaults(object: &mut Value) {
    if let Some(Value::Object(plain)) = crate::object::remove_field(object, "stringData") {
        if !is_set(object, "data") && !plain.is_empty() {
            set_field(object, "data", json!({}));
        }
        for (key, value) in plain {
            set_field(&mut object["data"], &key, STANDARD.encode(value.as_str().unwrap_or_default()));
        }
    }
    set_default(object, "type", "Opaque");
}

pub(super) fn set_namespace_defaults(object: &mut Value) {
    // This label lets selectors select a namespace by name.
    let name = text(object, "metadata.name").to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(metadata) = at_mut(object, "metadata") {
        if !is_set(metadata, "labels") {
            set_field(metadata, "labels", json!({}));
        }
        if let Some(labels) = at_mut(metadata, "labels") {
            set_field(labels, "kubernetes.io/metadata.name", name);
        }
    }
}

pub(super) fn set_node_defaults(object: &mut Value) {
    let capacity = fields(object, "status.capacity").clone();
    if !capacity.is_empty()
        && fields(object, "status.allocatable").is_empty()
        && let Some(status) = at_mut(object, "status")
    {
        set_field(status, "allocatable", capacity);
    }
}

pub(super) fn set_limit_range_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    for_each_item(spec, "limits", |item| {
        if text(item, "type") != "Container" {
            return;
        }
        for field in ["default", "defaultRequest"] {
            if !is_set(item, field) {
                set_field(item, field, json!({}));
            }
        }
        // Bounds serve as defaults: max for the limit, then the limit and min for the request.
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            for (name, amount) in fields(item, from).clone() {
                set_default(&mut item[to], &name, amount);
            }
        }
    });
}

pub(super) fn set_autoscaler_defaults(version: &str, object: &mut Value) {
    let has_other_metrics = crate::autoscaler::has_other_metrics(object);
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "minReplicas", 1);
    if version == "v2" {
        if items(spec, "metrics").is_empty() {
            let target = json!({"type": "Utilization", "averageUtilization": 80});
            set_field(spec, "metrics", json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
        }
        set_scaling_rules_defaults(spec);
    } else if !has_other_metrics {
        set_default(spec, "targetCPUUtilizationPercentage", 80);
    }
}

fn set_scaling_rules_defaults(spec: &mut Value) {
    let Some(behavior) = at_mut(spec, "behavior") else { return };
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    for (name, window, policies) in
        [("scaleUp", Some(0), json!([pods, percent.clone()])), ("scaleDown", None, json!([percent]))]
    {
        if !is_set(behavior, name) {
            set_field(behavior, name, json!({}));
        }
        let Some(rules) = at_mut(behavior, name) else { continue };
        set_default(rules, "selectPolicy", "Max");
        if let Some(window) = window {
            set_default(rules, "stabilizationWindowSeconds", window);
        }
        if !is_set(rules, "policies") {
            set_field(rules, "policies", policies);
        }
    }
}

pub(super) fn set_rbac_defaults(kind: &str, object: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    if kind.ends_with("Binding") {
        if let Some(role) = at_mut(object, "roleRef") {
            set_default(role, "apiGroup", GROUP);
        }
        for_each_item(object, "subjects", |subject| {
            if matches!(text(subject, "kind"), "User" | "Group") {
                set_default(subject, "apiGroup", GROUP);
            }
        });
    }
}

pub(super) fn set_admission_defaults(object: &mut Value) {
    for_each_item(object, "webhooks", |webhook| {
        set_pointer_default(webhook, "failurePolicy", "Fail");
        set_pointer_default(webhook, "matchPolicy", "Equivalent");
        for selector in ["namespaceSelector", "objectSelector"] {
            if !is_set(webhook, selector) {
                set_field(webhook, selector, json!({}));
            }
        }
        set_default(webhook, "timeoutSeconds", 10);
        for_each_item(webhook, "rules", |rule| set_pointer_default(rule, "scope", "*"));
        if let Some(service) = at_mut(webhook, "clientConfig.service") {
            set_default(service, "port", 443);
        }
    });
    if text(object, "kind") == "MutatingWebhookConfiguration" {
        for_each_item(object, "webhooks", |webhook| set_default(webhook, "reinvocationPolicy", "Never"));
    }
    let is_policy = matches!(text(object, "kind"), "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy");
    if let Some(spec) = at_mut(object, "spec") {
        if is_policy {
            set_pointer_default(spec, "failurePolicy", "Fail");
        }
        for resources in ["matchConstraints", "matchResources"] {
            if let Some(matching) = at_mut(spec, resources) {
                set_pointer_default(matching, "matchPolicy", "Equivalent");
                for selector in ["namespaceSelector", "objectSelector"] {
                    if !is_set(matching, selector) {
                        set_field(matching, selector, json!({}));
                    }
                }
                for rules in ["resourceRules", "excludeResourceRules"] {
                    for_each_item(matching, rules, |rule| set_pointer_default(rule, "scope", "*"));
                }
            }
        }
    }
}

pub(super) fn set_crd_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    if !is_set(spec, "conversion") {
        set_field(spec, "conversion", json!({"strategy": "None"}));
    }
    if let Some(service) = at_mut(spec, "conversion.webhook.clientConfig.service") {
        set_default(service, "port", 443);
    }
    if let Some(names) = at_mut(spec, "names") {
        let kind = text(names, "kind").to_owned();
        if !kind.is_empty() {
            set_default(names, "singular", kind.to_lowercase());
            set_default(names, "listKind", format!("{kind}List"));
        }
    }
}

pub(super) fn set_flow_control_defaults(kind: &str, object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    if kind == "FlowSchema" {
        if spec.get("matchingPrecedence").and_then(Value::as_i64).unwrap_or(0) == 0 {
            set_field(spec, "matchingPrecedence", 1000);
        }
        return;
    }
    if let Some(exempt) = at_mut(spec, "exempt") {
        set_default(exempt, "nominalConcurrencyShares", 0);
        set_default(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = at_mut(spec, "limited") {
        set_default(limited, "nominalConcurrencyShares", 30);
        set_default(limited, "lendablePercent", 0);
        if let Some(queuing) = at_mut(limited, "limitResponse.queuing") {
            for (field, count) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                if queuing.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    set_field(queuing, field, count);
                }
            }
        }
    }
}
