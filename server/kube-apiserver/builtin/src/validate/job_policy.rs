//! Validation of failure and success policies of jobs. Has no side effects.

use std::collections::BTreeSet;

use super::job_indexes::count_indexes;
use super::{
    Errors, FieldError, FieldErrorKind, Value, at, is_set, items, json, number, text, validate_qualified_name,
};

const MAX_RULES: usize = 20;
/// Longest list of indexes in bytes.
const MAX_INDEXES_BYTES: usize = 64 * 1024;

/// Adds an `Invalid` error that does not print the value.
fn push_error_without_value(e: &mut Errors, path: &str, reason: &str) {
    e.push(FieldError::new(FieldErrorKind::Invalid, path, None, reason));
}

/// Like `one_of`, but the error for a missing value lists the valid ones.
fn require_one_of(e: &mut Errors, field: &str, value: &Value, supported: &[&str]) {
    if value.is_null() || value == "" {
        let names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        e.required(field, &format!("valid values: [{}]", names.join(" ")));
    } else if !supported.iter().any(|name| value == name) {
        e.unsupported(field, value, supported);
    }
}

pub(super) fn validate_failure_policy(e: &mut Errors, spec: &Value, path: &str) {
    let rules = items(spec, "podFailurePolicy.rules");
    if rules.len() > MAX_RULES {
        e.too_many(format!("{path}.rules"), rules.len(), MAX_RULES);
    }
    let pod = at(spec, "template.spec");
    let names: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(pod, list))
        .map(|container| text(container, "name"))
        .collect();
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}.rules[{index}]");
        let action = at(rule, "action");
        if action == "FailIndex" {
            if !is_set(spec, "backoffLimitPerIndex") {
                e.invalid(format!("{path}.action"), action, "requires the backoffLimitPerIndex to be set");
            }
        } else {
            require_one_of(e, &format!("{path}.action"), action, &["Count", "FailIndex", "FailJob", "Ignore"]);
        }
        let has_exit_codes = is_set(rule, "onExitCodes");
        if has_exit_codes {
            validate_exit_codes(e, at(rule, "onExitCodes"), &names, &format!("{path}.onExitCodes"));
        }
        let conditions = items(rule, "onPodConditions");
        validate_pod_conditions(e, conditions, &format!("{path}.onPodConditions"));
        match (has_exit_codes, conditions.is_empty()) {
            (true, false) => {
                push_error_without_value(e, &path, "specifying both OnExitCodes and OnPodConditions is not supported")
            }
            (false, true) => {
                push_error_without_value(e, &path, "specifying one of OnExitCodes and OnPodConditions is required")
            }
            _ => {}
        }
    }
}

fn validate_pod_conditions(e: &mut Errors, conditions: &[Value], path: &str) {
    if conditions.len() > MAX_RULES {
        e.too_many(path, conditions.len(), MAX_RULES);
    }
    for (index, condition) in conditions.iter().enumerate() {
        let (path, kind) = (format!("{path}[{index}]"), text(condition, "type"));
        e.push_name_errors(&format!("{path}.type"), kind, validate_qualified_name(kind));
        require_one_of(e, &format!("{path}.status"), at(condition, "status"), &["False", "True", "Unknown"]);
    }
}

fn validate_exit_codes(e: &mut Errors, codes: &Value, names: &BTreeSet<&str>, path: &str) {
    require_one_of(e, &format!("{path}.operator"), at(codes, "operator"), &["In", "NotIn"]);
    if let Some(name) = at(codes, "containerName").as_str().filter(|name| !names.contains(name)) {
        let reason = "must be one of the container or initContainer names in the pod template";
        e.invalid(format!("{path}.containerName"), &json!(name), reason);
    }
    let (values, field) = (items(codes, "values"), format!("{path}.values"));
    if values.is_empty() {
        e.invalid(&field, &json!(values), "at least one value is required");
    } else if values.len() > 255 {
        e.too_many(&field, values.len(), 255);
    }
    for (index, value) in values.iter().enumerate() {
        if value == 0 && text(codes, "operator") == "In" {
            e.invalid(format!("{field}[{index}]"), value, "must not be 0 for the In operator");
        }
        if values[..index].contains(value) {
            e.duplicate(format!("{field}[{index}]"), value);
        }
    }
    if values.windows(2).any(|pair| pair[0].as_i64() > pair[1].as_i64()) {
        e.invalid(field, &json!(values), "must be ordered");
    }
}

pub(super) fn validate_success_policy(e: &mut Errors, spec: &Value, path: &str) {
    let (rules, path) = (items(spec, "successPolicy.rules"), format!("{path}.rules"));
    if rules.is_empty() {
        let reason = "at least one rules must be specified when the successPolicy is specified";
        e.required(&path, reason);
    }
    if rules.len() > MAX_RULES {
        e.too_many(&path, rules.len(), MAX_RULES);
    }
    let completions = number(spec, "completions").unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if !is_set(rule, "succeededCount") && !is_set(rule, "succeededIndexes") {
            e.required(&path, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut index_count = None;
        if let Some(indexes) = at(rule, "succeededIndexes").as_str() {
            let field = format!("{path}.succeededIndexes");
            if indexes.len() > MAX_INDEXES_BYTES {
                e.push(FieldError::too_long(field.clone(), MAX_INDEXES_BYTES));
            }
            match count_indexes(indexes, completions) {
                Ok(total) => index_count = Some(total),
                Err(reason) => {
                    index_count = Some(0);
                    e.invalid(field, &json!(indexes), format!("error parsing succeededIndexes: {reason}"));
                }
            }
        }
        let field = format!("{path}.succeededCount");
        e.non_negative(&field, at(rule, "succeededCount"));
        if let Some(count) = number(rule, "succeededCount").filter(|count| *count > completions) {
            let reason = format!("must be less than or equal to {completions} (the number of specified completions)");
            e.invalid(&field, &json!(count), reason);
        }
        if let (Some(index_count), Some(count)) = (index_count, number(rule, "succeededCount"))
            && count > index_count
        {
            let reason = format!(
                "must be less than or equal to {index_count} (the number of indexes in the specified succeededIndexes field)"
            );
            e.invalid(field, &json!(count), reason);
        }
    }
}
