//! Validation of scheduling directives: affinity, tolerations, topology spread, scheduling gates. Has no
//! side effects.

use super::selector::{validate_label_selector, validate_node_selector, validate_preferred_term};
use super::{
    Errors, FieldError, FieldErrorKind, Value, at, fields, is_set, items, json, number, text, validate_dns1123_label,
    validate_label_value, validate_qualified_name,
};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn validate_affinity(e: &mut Errors, affinity: &Value, path: &str) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let node = at(affinity, "nodeAffinity");
    if is_set(node, REQUIRED) {
        validate_node_selector(e, at(node, REQUIRED), &format!("{path}.nodeAffinity.{REQUIRED}"));
    }
    for (index, term) in items(node, PREFERRED).iter().enumerate() {
        let path = format!("{path}.nodeAffinity.{PREFERRED}[{index}]");
        validate_weight(e, term, &path);
        validate_preferred_term(e, at(term, "preference"), &format!("{path}.preference"));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let group = at(affinity, kind);
        for (index, term) in items(group, REQUIRED).iter().enumerate() {
            validate_pod_affinity_term(e, term, &format!("{path}.{kind}.{REQUIRED}[{index}]"));
        }
        for (index, term) in items(group, PREFERRED).iter().enumerate() {
            let path = format!("{path}.{kind}.{PREFERRED}[{index}]");
            validate_weight(e, term, &path);
            validate_pod_affinity_term(e, at(term, "podAffinityTerm"), &format!("{path}.podAffinityTerm"));
        }
    }
}

fn validate_weight(e: &mut Errors, term: &Value, path: &str) {
    let weight = number(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        e.invalid(format!("{path}.weight"), &json!(weight), "must be in the range 1-100");
    }
}

fn validate_pod_affinity_term(e: &mut Errors, term: &Value, path: &str) {
    validate_label_selector(e, at(term, "labelSelector"), &format!("{path}.labelSelector"));
    validate_label_selector(e, at(term, "namespaceSelector"), &format!("{path}.namespaceSelector"));
    for namespace in items(term, "namespaces") {
        let name = namespace.as_str().unwrap_or_default();
        e.push_name_errors(&format!("{path}.namespace"), name, validate_dns1123_label(name));
    }
    validate_match_label_keys(e, term, path);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        e.required(format!("{path}.topologyKey"), "can not be empty");
    }
    e.push_name_errors(&format!("{path}.topologyKey"), key, validate_qualified_name(key));
}

/// `ValidateMatchLabelKeysAndMismatchLabelKeys`. The values of these labels have already been merged into the selector.
fn validate_match_label_keys(e: &mut Errors, term: &Value, path: &str) {
    let selector = at(term, "labelSelector");
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = items(term, list);
        if !keys.is_empty() && selector.is_null() {
            e.forbidden(format!("{path}.{list}"), "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            let key = key.as_str().unwrap_or_default();
            e.push_name_errors(&format!("{path}.{list}[{index}]"), key, validate_qualified_name(key));
        }
    }
    let keys = items(term, "matchLabelKeys");
    let mut selected: Vec<&str> = fields(selector, "matchLabels").keys().map(String::as_str).collect();
    for expression in items(selector, "matchExpressions") {
        let key = text(expression, "key");
        if let Some(index) = keys.iter().rposition(|other| other == key).filter(|_| selected.contains(&key)) {
            e.invalid(format!("{path}[{index}]"), &json!(key), "exists in both matchLabelKeys and labelSelector");
        }
        selected.push(key);
    }
    for (index, key) in keys.iter().enumerate() {
        if items(term, "mismatchLabelKeys").contains(key) {
            let reason = "exists in both matchLabelKeys and mismatchLabelKeys";
            e.invalid(format!("{path}.matchLabelKeys[{index}]"), key, reason);
        }
    }
}

pub(super) fn validate_scheduling_gates(e: &mut Errors, spec: &Value, path: &str) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let (name, field) = (text(gate, "name"), format!("{path}.schedulingGates[{index}]"));
        e.push_name_errors(&field, name, validate_qualified_name(name));
        if seen.contains(&name) {
            e.duplicate(&field, &json!(name));
        }
        seen.push(name);
    }
}

pub(super) fn validate_topology_spread(e: &mut Errors, spec: &Value, path: &str) {
    let constraints = items(spec, "topologySpreadConstraints");
    for (index, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{index}]");
        let skew = number(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            e.invalid(format!("{path}.maxSkew"), &json!(skew), "must be greater than zero");
        }
        let (key, when) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            e.required(format!("{path}.topologyKey"), "can not be empty");
        }
        if !matches!(when, "DoNotSchedule" | "ScheduleAnyway") {
            e.unsupported(format!("{path}.whenUnsatisfiable"), &json!(when), &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let same = |other: &Value| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == when;
        if constraints[index + 1..].iter().any(same) {
            let constraint_text = json!(format!("{{{key}, {when}}}")).to_string();
            let field = format!("{path}.{{topologyKey, whenUnsatisfiable}}");
            e.push(FieldError::new(FieldErrorKind::Duplicate, field, Some(constraint_text), ""));
        }
        validate_min_domains(e, constraint, when, &path);
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let value = at(constraint, policy);
            if !value.is_null() && value != "Honor" && value != "Ignore" {
                e.unsupported(format!("{path}.{policy}"), value, &["Honor", "Ignore"]);
            }
        }
        validate_match_label_keys(e, constraint, &path);
        validate_label_selector(e, at(constraint, "labelSelector"), &format!("{path}.labelSelector"));
    }
}

fn validate_min_domains(e: &mut Errors, constraint: &Value, when: &str, path: &str) {
    let Some(count) = number(constraint, "minDomains") else { return };
    let field = format!("{path}.minDomains");
    if count <= 0 {
        e.invalid(&field, &json!(count), "must be greater than zero");
    }
    if when != "DoNotSchedule" {
        let reason = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
        e.invalid(field, &json!(count), reason);
    }
}

pub(super) fn validate_tolerations(e: &mut Errors, spec: &Value, path: &str) {
    for (index, toleration) in items(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{index}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (value, effect) = (text(toleration, "value"), text(toleration, "effect"));
        if !key.is_empty() {
            e.push_name_errors(&format!("{path}.key"), key, validate_qualified_name(key));
        } else if operator != "Exists" {
            let reason = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            e.invalid(format!("{path}.operator"), &json!(operator), reason);
        }
        if is_set(toleration, "tolerationSeconds") && effect != "NoExecute" {
            let reason = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            e.invalid(format!("{path}.effect"), &json!(effect), reason);
        }
        match operator {
            "Equal" | "" => {
                let reasons = validate_label_value(value);
                if !reasons.is_empty() {
                    e.invalid(format!("{path}.operator"), &json!(value), reasons.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                let reason = "value must be empty when `operator` is 'Exists'";
                e.invalid(format!("{path}.operator"), &json!(value), reason);
            }
            "Exists" => {}
            // The error lists operators of a disabled feature gate as supported, as in kube-apiserver.
            "Lt" | "Gt" => {
                e.unsupported(format!("{path}.operator"), &json!(operator), &["Equal", "Exists", "Lt", "Gt"]);
            }
            _ => e.unsupported(format!("{path}.operator"), &json!(operator), &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            e.unsupported(format!("{path}.effect"), &json!(effect), &EFFECTS);
        }
    }
}
