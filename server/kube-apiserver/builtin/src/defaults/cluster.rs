//! Defaults of secrets, namespaces, nodes, autoscalers, RBAC, admission configuration, CRDs and flow control.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{default, default_pointer, each, inside, is_set, put, text};
use crate::object::{fields, items};

/// Moves the write-only `stringData` to `data`.
pub(super) fn secret(object: &mut Value) {
    if let Some(Value::Object(plain)) = crate::object::take(object, "stringData") {
        if !is_set(object, "data") && !plain.is_empty() {
            put(object, "data", json!({}));
        }
        for (key, value) in plain {
            put(&mut object["data"], &key, STANDARD.encode(value.as_str().unwrap_or_default()));
        }
    }
    default(object, "type", "Opaque");
}

pub(super) fn namespace(object: &mut Value) {
    // This label lets selectors select a namespace by name.
    let name = text(object, "metadata.name").to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(metadata) = inside(object, "metadata") {
        if !is_set(metadata, "labels") {
            put(metadata, "labels", json!({}));
        }
        if let Some(labels) = inside(metadata, "labels") {
            put(labels, "kubernetes.io/metadata.name", name);
        }
    }
}

pub(super) fn node(object: &mut Value) {
    let capacity = fields(object, "status.capacity").clone();
    if !capacity.is_empty()
        && fields(object, "status.allocatable").is_empty()
        && let Some(status) = inside(object, "status")
    {
        put(status, "allocatable", capacity);
    }
}

pub(super) fn limit_range(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    each(spec, "limits", |item| {
        if text(item, "type") != "Container" {
            return;
        }
        for field in ["default", "defaultRequest"] {
            if !is_set(item, field) {
                put(item, field, json!({}));
            }
        }
        // Bounds serve as defaults: max for the limit, then the limit and min for the request.
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            for (name, amount) in fields(item, from).clone() {
                default(&mut item[to], &name, amount);
            }
        }
    });
}

pub(super) fn autoscaler(version: &str, object: &mut Value) {
    let others = crate::autoscaler::has_other_metrics(object);
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "minReplicas", 1);
    if version == "v2" {
        if items(spec, "metrics").is_empty() {
            let target = json!({"type": "Utilization", "averageUtilization": 80});
            put(spec, "metrics", json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
        }
        scaling_rules(spec);
    } else if !others {
        default(spec, "targetCPUUtilizationPercentage", 80);
    }
}

fn scaling_rules(spec: &mut Value) {
    let Some(behavior) = inside(spec, "behavior") else { return };
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    for (name, window, policies) in
        [("scaleUp", Some(0), json!([pods, percent.clone()])), ("scaleDown", None, json!([percent]))]
    {
        if !is_set(behavior, name) {
            put(behavior, name, json!({}));
        }
        let Some(rules) = inside(behavior, name) else { continue };
        default(rules, "selectPolicy", "Max");
        if let Some(window) = window {
            default(rules, "stabilizationWindowSeconds", window);
        }
        if !is_set(rules, "policies") {
            put(rules, "policies", policies);
        }
    }
}

pub(super) fn rbac(kind: &str, object: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    if kind.ends_with("Binding") {
        if let Some(role) = inside(object, "roleRef") {
            default(role, "apiGroup", GROUP);
        }
        each(object, "subjects", |subject| {
            if matches!(text(subject, "kind"), "User" | "Group") {
                default(subject, "apiGroup", GROUP);
            }
        });
    }
}

pub(super) fn admission(object: &mut Value) {
    each(object, "webhooks", |webhook| {
        default_pointer(webhook, "failurePolicy", "Fail");
        default_pointer(webhook, "matchPolicy", "Equivalent");
        for selector in ["namespaceSelector", "objectSelector"] {
            if !is_set(webhook, selector) {
                put(webhook, selector, json!({}));
            }
        }
        default(webhook, "timeoutSeconds", 10);
        each(webhook, "rules", |rule| default_pointer(rule, "scope", "*"));
        if let Some(service) = inside(webhook, "clientConfig.service") {
            default(service, "port", 443);
        }
    });
    if text(object, "kind") == "MutatingWebhookConfiguration" {
        each(object, "webhooks", |webhook| default(webhook, "reinvocationPolicy", "Never"));
    }
    let policy = matches!(text(object, "kind"), "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy");
    if let Some(spec) = inside(object, "spec") {
        if policy {
            default_pointer(spec, "failurePolicy", "Fail");
        }
        for resources in ["matchConstraints", "matchResources"] {
            if let Some(matching) = inside(spec, resources) {
                default_pointer(matching, "matchPolicy", "Equivalent");
                for selector in ["namespaceSelector", "objectSelector"] {
                    if !is_set(matching, selector) {
                        put(matching, selector, json!({}));
                    }
                }
                for rules in ["resourceRules", "excludeResourceRules"] {
                    each(matching, rules, |rule| default_pointer(rule, "scope", "*"));
                }
            }
        }
    }
}

pub(super) fn definition(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    if !is_set(spec, "conversion") {
        put(spec, "conversion", json!({"strategy": "None"}));
    }
    if let Some(service) = inside(spec, "conversion.webhook.clientConfig.service") {
        default(service, "port", 443);
    }
    if let Some(names) = inside(spec, "names") {
        let kind = text(names, "kind").to_owned();
        if !kind.is_empty() {
            default(names, "singular", kind.to_lowercase());
            default(names, "listKind", format!("{kind}List"));
        }
    }
}

pub(super) fn flow_control(kind: &str, object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    if kind == "FlowSchema" {
        if spec.get("matchingPrecedence").and_then(Value::as_i64).unwrap_or(0) == 0 {
            put(spec, "matchingPrecedence", 1000);
        }
        return;
    }
    if let Some(exempt) = inside(spec, "exempt") {
        default(exempt, "nominalConcurrencyShares", 0);
        default(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = inside(spec, "limited") {
        default(limited, "nominalConcurrencyShares", 30);
        default(limited, "lendablePercent", 0);
        if let Some(queuing) = inside(limited, "limitResponse.queuing") {
            for (field, count) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                if queuing.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    put(queuing, field, count);
                }
            }
        }
    }
}
