//! Validation of disruption budgets, leases, nodes, signing requests and priority classes.

use crowsnest_apiserver::authn::SigningRequest;
use crowsnest_schema::internal_structs::format_internal_struct;

use super::selector::validate_label_selector;
use super::workload::{validate_at_most_all, validate_int_or_percent};
use super::{
    Errors, Value, at, fields, is_set, items, json, number, resources, scheduling, text, validate_dns1123_label,
    validate_dns1123_subdomain, validate_label_value, validate_labels, validate_qualified_name,
};

pub(super) fn validate_disruption_budget(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if is_set(spec, "minAvailable") && is_set(spec, "maxUnavailable") {
        let reason = "minAvailable and maxUnavailable cannot be both set";
        e.push(super::go::invalid_struct("spec", spec, "policy.PodDisruptionBudgetSpec", reason));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let (value, path) = (at(spec, field), format!("spec.{field}"));
        validate_int_or_percent(e, &path, value);
        validate_at_most_all(e, &path, value);
    }
    validate_label_selector(e, at(spec, "selector"), "spec.selector");
    e.optional_one_of(
        "spec.unhealthyPodEvictionPolicy",
        at(spec, "unhealthyPodEvictionPolicy"),
        &["AlwaysAllow", "IfHealthyBudget"],
    );
}

pub(super) fn validate_lease(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if let Some(seconds) = number(spec, "leaseDurationSeconds").filter(|n| *n <= 0) {
        e.invalid("spec.leaseDurationSeconds", &json!(seconds), "must be greater than 0");
    }
    e.non_negative("spec.leaseTransitions", at(spec, "leaseTransitions"));
    if let Some(strategy) = at(spec, "strategy").as_str() {
        if strategy.contains('/') {
            e.push_name_errors("spec.strategy.strategy", strategy, validate_qualified_name(strategy));
        } else if strategy != "OldestEmulationVersion" {
            e.unsupported("spec.strategy.strategy", &json!(strategy), &["OldestEmulationVersion"]);
        }
    }
    if !text(spec, "preferredHolder").is_empty() && text(spec, "strategy").is_empty() {
        e.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined");
    }
}

pub(super) fn validate_node(e: &mut Errors, object: &Value) {
    validate_taints(e, object);
    validate_node_resources(e, object);
    let ranges = items(object, "spec.podCIDRs");
    for (index, range) in ranges.iter().enumerate() {
        super::network::validate_cidr(e, &format!("spec.podCIDRs[{index}]"), range.as_str().unwrap_or_default());
    }
    if ranges.len() < 2 {
        return;
    }
    let is_v6 = |range: &Value| range.as_str().is_some_and(|range| range.contains(':'));
    let is_dual_stack = ranges.iter().any(is_v6) && !ranges.iter().all(is_v6);
    if !is_dual_stack || ranges.len() > 2 {
        e.invalid("spec.podCIDRs", &json!(ranges), "may specify no more than one CIDR for each IP family");
    }
    for (index, range) in ranges.iter().enumerate().filter(|(index, range)| ranges[..*index].contains(range)) {
        e.duplicate(format!("spec.podCIDRs[{index}]"), range);
    }
}

fn validate_node_resources(e: &mut Errors, object: &Value) {
    for list in ["capacity", "allocatable"] {
        for (name, amount) in fields(object, &format!("status.{list}")) {
            super::resources::validate_resource_value(e, name, amount, &format!("status.{list}.{name}"));
        }
    }
}

fn validate_taints(e: &mut Errors, object: &Value) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, taint) in items(object, "spec.taints").iter().enumerate() {
        // kube-apiserver reports taints under this path.
        let path = format!("metadata.taints[{index}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        e.push_name_errors(&format!("{path}.key"), key, validate_qualified_name(key));
        let reasons = validate_label_value(value);
        if !reasons.is_empty() {
            e.invalid(format!("{path}.value"), &json!(value), reasons.join(";"));
        }
        if effect.is_empty() {
            e.required(format!("{path}.effect"), "");
        } else if !EFFECTS.contains(&effect) {
            e.unsupported(format!("{path}.effect"), &json!(effect), &EFFECTS);
        }
        if seen.contains(&(key, effect)) {
            let taint_text = format_internal_struct("core.Taint", taint);
            let detail = "taints must be unique by key and effect pair";
            e.push(super::FieldError::new(super::FieldErrorKind::Duplicate, &path, Some(taint_text), detail));
        }
        seen.push((key, effect));
    }
}

pub(super) fn validate_node_update(e: &mut Errors, old: &Value, new: &Value) {
    validate_node_resources(e, new);
    let addresses = items(new, "status.addresses");
    for (index, address) in
        addresses.iter().enumerate().filter(|(index, address)| addresses[..*index].contains(address))
    {
        let address_text = format!("{{\"Type\":{},\"Address\":{}}}", at(address, "type"), at(address, "address"));
        let kind = super::FieldErrorKind::Duplicate;
        e.push(super::FieldError::new(kind, format!("status.addresses[{index}]"), Some(address_text), ""));
    }
    let (before, after) = (items(old, "spec.podCIDRs"), items(new, "spec.podCIDRs"));
    let changes = if before.len() == after.len() {
        before.iter().zip(after).filter(|(before, after)| before != after).count()
    } else {
        usize::from(!before.is_empty())
    };
    for _ in 0..changes {
        e.forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
    }
    let provider = text(old, "spec.providerID");
    if !provider.is_empty() && provider != text(new, "spec.providerID") {
        e.forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
    }
    validate_taints(e, new);
}

pub(super) fn validate_signing_request(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    let request = text(spec, "request");
    let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, request).unwrap_or_default();
    // Other signers validate the subject themselves.
    let signer = text(spec, "signerName");
    let result = match signer.starts_with("kubernetes.io/") {
        true => SigningRequest::parse(&pem).map(drop),
        false => SigningRequest::check_syntax_and_signature(&pem),
    };
    if let Err(reason) = result {
        e.invalid("spec.request", at(spec, "request"), reason.to_string());
    }
    validate_usages(e, items(spec, "usages"));
    if signer.is_empty() {
        e.required("spec.signerName", "");
    } else {
        match signer.split_once('/') {
            Some((domain, path)) if !path.is_empty() => {
                e.push_name_errors("spec.signerName", domain, validate_dns1123_subdomain(domain));
                if !domain.contains('.') {
                    e.invalid(
                        "spec.signerName",
                        &json!(domain),
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
    validate_approval(e, object);
}

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn validate_usages(e: &mut Errors, usages: &[Value]) {
    if usages.is_empty() {
        e.required("spec.usages", "");
    }
    for (index, usage) in usages.iter().enumerate() {
        if !USAGES.iter().any(|known| usage == known) {
            e.unsupported(format!("spec.usages[{index}]"), usage, &USAGES);
        }
    }
    for (index, usage) in usages.iter().enumerate().filter(|(index, usage)| usages[..*index].contains(usage)) {
        e.duplicate(format!("spec.usages[{index}]"), usage);
    }
}

pub(super) fn validate_approval(e: &mut Errors, object: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in items(object, "status.conditions").iter().enumerate() {
        let (kind, path) = (text(condition, "type"), format!("status.conditions[{index}]"));
        if kind.is_empty() {
            e.required(format!("{path}.type"), "");
        }
        let supported: &[&str] =
            if matches!(kind, "Approved" | "Denied" | "Failed") { &["True"] } else { &["False", "True", "Unknown"] };
        e.one_of(&format!("{path}.status"), at(condition, "status"), supported);
        if kind == "Denied" && seen.contains(&"Approved") || kind == "Approved" && seen.contains(&"Denied") {
            let reason = "Approved and Denied conditions are mutually exclusive";
            e.invalid("status.conditions", &json!(kind), reason);
        }
        if seen.contains(&kind) {
            e.duplicate(format!("{path}.type"), &json!(kind));
        }
        seen.push(kind);
    }
}

pub(super) fn validate_priority_class(e: &mut Errors, object: &Value) {
    let name = text(object, "metadata.name");
    let value = number(object, "value").unwrap_or(0);
    if name.starts_with("system-") {
        if let Some(reason) = system_class_error(name, value, at(object, "globalDefault") == true) {
            const RESERVED: &str =
                "priority class names with 'system-' prefix are reserved for system use only. error: ";
            e.forbidden("metadata.name", &format!("{RESERVED}{reason}"));
        }
    } else if value > 1_000_000_000 {
        e.forbidden("value", "maximum allowed value of a user defined priority is 1000000000");
    }
    if is_set(object, "preemptionPolicy") {
        e.one_of("preemptionPolicy", at(object, "preemptionPolicy"), &["PreemptLowerPriority", "Never"]);
    }
}

/// `IsKnownSystemPriorityClass`: the first difference from the server's own class.
fn system_class_error(name: &str, value: i64, is_default: bool) -> Option<String> {
    let expected = match name {
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        _ => return Some(format!("{name} is not a known system priority class")),
    };
    if value != expected {
        return Some(format!("value of {name} PriorityClass must be {expected}"));
    }
    is_default.then(|| format!("globalDefault of {name} PriorityClass must be false"))
}

pub(super) fn validate_runtime_class(e: &mut Errors, object: &Value) {
    let handler = text(object, "handler");
    if handler.is_empty() {
        e.required("handler", "");
    } else {
        e.push_name_errors("handler", handler, validate_dns1123_label(handler));
    }
    if is_set(object, "overhead") {
        let limits = json!({"limits": at(object, "overhead.podFixed")});
        resources::validate_requirements(e, &limits, None, "overhead");
    }
    let scheduling = at(object, "scheduling");
    e.0.extend(validate_labels(scheduling.get("nodeSelector"), "scheduling.nodeSelector"));
    scheduling::validate_tolerations(e, scheduling, "scheduling");
    let tolerations = items(scheduling, "tolerations");
    for (index, toleration) in tolerations.iter().enumerate() {
        if tolerations[..index].contains(toleration) {
            let toleration_text = format_internal_struct("core.Toleration", toleration);
            let path = format!("scheduling.tolerations[{index}]");
            e.push(super::FieldError::new(super::FieldErrorKind::Duplicate, path, Some(toleration_text), ""));
        }
    }
}

pub(super) fn validate_priority_class_update(e: &mut Errors, old: &Value, new: &Value) {
    if at(old, "value") != at(new, "value") {
        e.forbidden("value", "may not be changed in an update.");
    }
    if at(old, "preemptionPolicy") != at(new, "preemptionPolicy") {
        e.invalid("preemptionPolicy", at(new, "preemptionPolicy"), "field is immutable");
    }
}

/// Validates the finalizers of a namespace. With `has_index`, errors contain the index of the finalizer, as for the
/// subresource `finalize`.
pub(super) fn validate_finalizers(e: &mut Errors, object: &Value, has_index: bool) {
    for (index, finalizer) in items(object, "spec.finalizers").iter().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        let path = if has_index { format!("spec.finalizers[{index}]") } else { "spec.finalizers".to_owned() };
        let reasons = validate_qualified_name(name);
        // Both the generic and the core validation report this error.
        let times = if reasons.is_empty() { 2 } else { 1 };
        e.push_name_errors(&path, name, reasons);
        if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
            for _ in 0..times {
                e.invalid(&path, &json!(name), "name is neither a standard finalizer name nor is it fully qualified");
            }
        }
    }
}
