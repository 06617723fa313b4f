//! Autoscalers, disruption budgets, leases, nodes, signing requests, priority classes, events.

use super::selector::label_selector;
use super::{
    Errors, Value, at, dns1123_subdomain, items, json, label_value, number, path_segment, qualified_name, set, text,
};

pub(super) fn autoscaler(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    let minimum = number(spec, "minReplicas");
    if let Some(count) = minimum.filter(|n| *n < 1) {
        e.invalid("spec.minReplicas", &json!(count), "must be greater than or equal to 1");
    }
    let maximum = number(spec, "maxReplicas").unwrap_or(0);
    if maximum < 1 {
        e.invalid("spec.maxReplicas", &json!(maximum), "must be greater than 0");
    }
    if minimum.is_some_and(|minimum| maximum < minimum) {
        e.invalid("spec.maxReplicas", &json!(maximum), "must be greater than or equal to `minReplicas`");
    }
    target(e, at(spec, "scaleTargetRef"), "spec.scaleTargetRef");
    for (index, metric) in items(spec, "metrics").iter().enumerate() {
        self::metric(e, metric, &format!("spec.metrics[{index}]"));
    }
}

fn target(e: &mut Errors, reference: &Value, path: &str) {
    for field in ["kind", "name"] {
        let value = text(reference, field);
        if value.is_empty() {
            e.required(format!("{path}.{field}"), "");
        } else {
            e.names(&format!("{path}.{field}"), value, path_segment(value, false));
        }
    }
    let version = text(reference, "apiVersion");
    if version.is_empty() {
        e.invalid(format!("{path}.apiVersion"), &json!(version), "apiVersion must specify API group");
    }
}

fn metric(e: &mut Errors, metric: &Value, path: &str) {
    const KINDS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    let kind = text(metric, "type");
    if kind.is_empty() {
        return e.required(format!("{path}.type"), "must specify a metric source type");
    }
    if !KINDS.contains(&kind) {
        return e.unsupported(format!("{path}.type"), &json!(kind), &KINDS);
    }
    let field = format!("{}{}", kind[..1].to_lowercase(), &kind[1..]);
    let source = at(metric, &field);
    let path = format!("{path}.{field}");
    if source.is_null() {
        return e.required(path, "must populate information for the given metric source");
    }
    if matches!(kind, "Resource" | "ContainerResource") {
        if text(source, "name").is_empty() {
            e.required(format!("{path}.name"), "must specify a resource name");
        }
        if kind == "ContainerResource" && text(source, "container").is_empty() {
            e.required(format!("{path}.container"), "must specify a container");
        }
    } else if text(source, "metric.name").is_empty() {
        e.required(format!("{path}.metric.name"), "must specify a metric name");
    }
    let target = at(source, "target");
    let kind = text(target, "type");
    if kind.is_empty() {
        e.required(format!("{path}.target.type"), "must specify a metric target type");
    } else if !matches!(kind, "AverageValue" | "Utilization" | "Value") {
        e.invalid(format!("{path}.target.type"), &json!(kind), "must be either Utilization, Value, or AverageValue");
    }
    if number(target, "averageUtilization").is_some_and(|percent| percent < 1) {
        e.invalid(
            format!("{path}.target.averageUtilization"),
            at(target, "averageUtilization"),
            "must be greater than 0",
        );
    }
}

pub(super) fn disruption_budget(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if set(spec, "minAvailable") && set(spec, "maxUnavailable") {
        e.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let (value, path) = (at(spec, field), format!("spec.{field}"));
        match value {
            Value::String(text) => {
                let digits = text.strip_suffix('%').unwrap_or_default();
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    e.invalid(&path, value, "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')");
                } else if digits.parse::<u64>().is_ok_and(|percent| percent > 100) {
                    e.invalid(&path, value, "must not be greater than 100%");
                }
            }
            value => e.non_negative(path, value),
        }
    }
    label_selector(e, at(spec, "selector"), "spec.selector");
    e.optional_one_of(
        "spec.unhealthyPodEvictionPolicy",
        at(spec, "unhealthyPodEvictionPolicy"),
        &["AlwaysAllow", "IfHealthyBudget"],
    );
}

pub(super) fn lease(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if let Some(seconds) = number(spec, "leaseDurationSeconds").filter(|n| *n <= 0) {
        e.invalid("spec.leaseDurationSeconds", &json!(seconds), "must be greater than 0");
    }
    e.non_negative("spec.leaseTransitions", at(spec, "leaseTransitions"));
    if set(spec, "holderIdentity") && text(spec, "holderIdentity").is_empty() && set(spec, "strategy") {
        e.invalid("spec.holderIdentity", &json!(""), "must not be empty");
    }
}

pub(super) fn node(e: &mut Errors, object: &Value) {
    taints(e, object);
    for (index, cidr) in items(object, "spec.podCIDRs").iter().enumerate() {
        if !super::network::is_cidr(cidr.as_str().unwrap_or_default()) {
            e.invalid(
                format!("spec.podCIDRs[{index}]"),
                cidr,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            );
        }
    }
}

fn taints(e: &mut Errors, object: &Value) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, taint) in items(object, "spec.taints").iter().enumerate() {
        let path = format!("spec.taints[{index}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        e.names(&format!("{path}.key"), key, qualified_name(key));
        let why = label_value(value);
        if !why.is_empty() {
            e.invalid(format!("{path}.value"), &json!(value), why.join(";"));
        }
        if effect.is_empty() {
            e.required(format!("{path}.effect"), "");
        } else if !EFFECTS.contains(&effect) {
            e.unsupported(format!("{path}.effect"), &json!(effect), &EFFECTS);
        }
        if seen.contains(&(key, effect)) {
            let shown = super::go::text_of(taint, "io.k8s.api.core.v1.Taint");
            let detail = "taints must be unique by key and effect pair";
            e.push(super::FieldError::new(super::FieldErrorKind::Duplicate, &path, Some(shown), detail));
        }
        seen.push((key, effect));
    }
}

pub(super) fn node_update(e: &mut Errors, old: &Value, new: &Value) {
    node(e, new);
    for field in ["podCIDR", "podCIDRs", "providerID"] {
        let path = format!("spec.{field}");
        let before = at(old, &path);
        if !before.is_null() && before != "" && before != at(new, &path) {
            e.forbidden(&path, "node updates may not change this field except from \"\" to valid");
        }
    }
}

pub(super) fn signing_request(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if items(spec, "usages").is_empty() {
        e.required("spec.usages", "usages must be provided");
    }
    let request = text(spec, "request");
    let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, request).unwrap_or_default();
    let well_formed = x509_parser::pem::parse_x509_pem(&pem).is_ok_and(|(_, block)| {
        matches!(block.label.as_str(), "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST")
            && <x509_parser::certification_request::X509CertificationRequest<'_> as x509_parser::prelude::FromDer<
                '_,
                x509_parser::error::X509Error,
            >>::from_der(&block.contents)
            .is_ok()
    });
    if !well_formed {
        e.invalid("spec.request", at(spec, "request"), "PEM block type must be CERTIFICATE REQUEST");
    }
    let signer = text(spec, "signerName");
    if signer.is_empty() {
        e.required("spec.signerName", "");
    } else {
        match signer.split_once('/') {
            Some((domain, path)) if !path.is_empty() => {
                e.names("spec.signerName", domain, dns1123_subdomain(domain));
                if !domain.contains('.') {
                    e.invalid(
                        "spec.signerName",
                        &json!(signer),
                        "should be a domain with at least two segments separated by dots",
                    );
                }
            }
            _ => e.invalid(
                "spec.signerName",
                &json!(signer),
                "must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ),
        }
    }
    if let Some(seconds) = number(spec, "expirationSeconds").filter(|n| *n < 600) {
        e.invalid(
            "spec.expirationSeconds",
            &json!(seconds),
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
    approval(e, object);
}

pub(super) fn approval(e: &mut Errors, object: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in items(object, "status.conditions").iter().enumerate() {
        let (kind, path) = (text(condition, "type"), format!("status.conditions[{index}]"));
        if kind.is_empty() {
            e.required(format!("{path}.type"), "");
        }
        if matches!(kind, "Approved" | "Denied" | "Failed") {
            match text(condition, "status") {
                "" => e.required(format!("{path}.status"), ""),
                "True" => {}
                other => e.unsupported(format!("{path}.status"), &json!(other), &["True"]),
            }
        }
        if kind == "Denied" && seen.contains(&"Approved") || kind == "Approved" && seen.contains(&"Denied") {
            e.invalid(format!("{path}.type"), &json!(kind), "Approved and Denied conditions are mutually exclusive");
        }
        if seen.contains(&kind) {
            e.duplicate(format!("{path}.type"), &json!(kind));
        }
        seen.push(kind);
    }
}

pub(super) fn priority_class(e: &mut Errors, object: &Value) {
    let name = text(object, "metadata.name");
    let value = number(object, "value").unwrap_or(0);
    if name.starts_with("system-") {
        if !matches!(name, "system-node-critical" | "system-cluster-critical") {
            e.forbidden("metadata.name", "priority class names with 'system-' prefix are reserved for system use only. error: error: unknown name for a system priority class");
        }
    } else if value > 1_000_000_000 {
        e.forbidden("value", "maximum allowed value of a user defined priority is 1000000000");
    }
    e.optional_one_of("preemptionPolicy", at(object, "preemptionPolicy"), &["Never", "PreemptLowerPriority"]);
}

pub(super) fn priority_class_update(e: &mut Errors, old: &Value, new: &Value) {
    if at(old, "value") != at(new, "value") {
        e.forbidden("value", "may not be changed in an update.");
    }
    if at(old, "preemptionPolicy") != at(new, "preemptionPolicy") {
        e.invalid("preemptionPolicy", at(new, "preemptionPolicy"), "field is immutable");
    }
}

pub(super) fn event(e: &mut Errors, namespace: &str, object: &Value) {
    let involved = if object.get("involvedObject").is_some() { "involvedObject" } else { "regarding" };
    let of = text(object, &format!("{involved}.namespace"));
    let wrong = if of.is_empty() { !matches!(namespace, "default" | "kube-system" | "") } else { of != namespace };
    if wrong {
        e.invalid(format!("{involved}.namespace"), &json!(of), "does not match event.namespace");
    }
}
