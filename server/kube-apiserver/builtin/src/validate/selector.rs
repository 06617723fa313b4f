//! Validation of label selectors and node selectors.

use super::{
    Errors, Value, fields, items, json, text, validate_dns1123_subdomain, validate_label_value, validate_qualified_name,
};

/// Validates a label selector into a separate list of errors.
pub(crate) fn selector_errors(selector: &Value, path: &str) -> Vec<super::FieldError> {
    let mut errors = Errors::default();
    validate_label_selector(&mut errors, selector, path);
    errors.0
}

pub(super) fn validate_label_selector(e: &mut Errors, selector: &Value, path: &str) {
    for (key, value) in fields(selector, "matchLabels") {
        e.push_name_errors(&format!("{path}.matchLabels"), key, validate_qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        e.push_name_errors(&format!("{path}.matchLabels"), value, validate_label_value(value));
    }
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        validate_label_requirement(e, expression, &format!("{path}.matchExpressions[{index}]"));
    }
}

fn validate_label_requirement(e: &mut Errors, expression: &Value, path: &str) {
    let values = items(expression, "values");
    match text(expression, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            e.required(format!("{path}.values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            e.forbidden(format!("{path}.values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => e.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator"),
    }
    let key = text(expression, "key");
    e.push_name_errors(&format!("{path}.key"), key, validate_qualified_name(key));
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        e.push_name_errors(&format!("{path}.values[{index}]"), value, validate_label_value(value));
    }
}

pub(super) fn validate_node_selector(e: &mut Errors, selector: &Value, path: &str) {
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        e.required(format!("{path}.nodeSelectorTerms"), "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        validate_node_selector_term(e, term, true, &format!("{path}.nodeSelectorTerms[{index}]"));
    }
}

/// Validates a preferred term. Its values need not be valid label values, for compatibility with existing objects.
pub(super) fn validate_preferred_term(e: &mut Errors, term: &Value, path: &str) {
    validate_node_selector_term(e, term, false, path);
}

fn validate_node_selector_term(e: &mut Errors, term: &Value, strict: bool, path: &str) {
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = items(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                e.required(format!("{path}.values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                e.forbidden(
                    format!("{path}.values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "Gt" | "Lt" if values.len() != 1 => {
                e.required(format!("{path}.values"), "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => e.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator"),
        }
        let key = text(expression, "key");
        e.push_name_errors(&format!("{path}.key"), key, validate_qualified_name(key));
        for (index, value) in values.iter().enumerate().filter(|_| strict) {
            let value = value.as_str().unwrap_or_default();
            e.push_name_errors(&format!("{path}.values[{index}]"), value, validate_label_value(value));
        }
    }
    for (index, expression) in items(term, "matchFields").iter().enumerate() {
        let path = format!("{path}.matchFields[{index}]");
        match text(expression, "operator") {
            "In" | "NotIn" if items(expression, "values").len() != 1 => {
                e.required(
                    format!("{path}.values"),
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                );
            }
            "In" | "NotIn" => {}
            other => e.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator"),
        }
        if text(expression, "key") != "metadata.name" {
            e.invalid(format!("{path}.key"), &json!(text(expression, "key")), "not a valid field selector key");
            continue;
        }
        for (index, value) in items(expression, "values").iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            e.push_name_errors(&format!("{path}.values[{index}]"), value, validate_dns1123_subdomain(value));
        }
    }
}
