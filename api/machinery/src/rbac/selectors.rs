//! Validation of selectors in access reviews, and the message about unreadable ones. RBAC does not evaluate
//! selectors.

use serde_json::Value;

use crate::field::{FieldError, FieldErrorKind};
use crate::names::format::{validate_label_value, validate_qualified_name};
use crate::selector::{FieldSelector, Selector};
use crate::unstructured::{list, text};

const KINDS: [&str; 2] = ["fieldSelector", "labelSelector"];

/// Maximum number of requirements in a selector: any user may send reviews, and each requirement costs time.
const MAX_REQUIREMENTS: usize = 1000;

/// Validates the selectors of `resourceAttributes`. Unknown operators are accepted, for newer clients.
pub fn validate(attributes: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for kind in KINDS {
        let (selector, path) = (&attributes[kind], format!("spec.resourceAttributes.{kind}"));
        if !selector.is_object() {
            continue;
        }
        let (raw, requirements) = (text(selector, "rawSelector"), list(selector, "requirements"));
        if !raw.is_empty() && !requirements.is_empty() {
            let reason = "may not specified at the same time as requirements";
            errors.push(FieldError::invalid(format!("{path}.rawSelector"), raw, reason));
        }
        if raw.is_empty() && requirements.is_empty() {
            let reason = format!("when {path} is specified, requirements or rawSelector is required");
            errors.push(FieldError::required(format!("{path}.requirements"), reason));
        }
        if requirements.len() > MAX_REQUIREMENTS {
            let reason = format!("must have at most {MAX_REQUIREMENTS} items");
            errors.push(FieldError::new(FieldErrorKind::TooMany, format!("{path}.requirements"), None, reason));
            continue;
        }
        for (index, requirement) in requirements.iter().enumerate() {
            validate_requirement(&mut errors, kind, requirement, &format!("{path}.requirements[{index}]"));
        }
    }
    errors
}

fn validate_requirement(errors: &mut Vec<FieldError>, kind: &str, requirement: &Value, path: &str) {
    let (key, values) = (text(requirement, "key"), list(requirement, "values"));
    if kind == "fieldSelector" && key.is_empty() {
        errors.push(FieldError::required(format!("{path}.key"), "must be specified"));
    }
    errors.extend(FieldError::check_requirement_values(text(requirement, "operator"), !values.is_empty(), path));
    if kind == "labelSelector" {
        let messages = validate_qualified_name(key).into_iter();
        errors.extend(messages.map(|reason| FieldError::invalid(format!("{path}.key"), key, reason)));
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            let messages = validate_label_value(value).into_iter();
            errors.extend(messages.map(|reason| FieldError::invalid(format!("{path}.values[{index}]"), value, reason)));
        }
    }
}

/// `status.evaluationError`: selectors that are ignored because they cannot be parsed.
pub fn evaluation_error(attributes: &Value) -> String {
    let mut messages = Vec::new();
    for kind in KINDS {
        let selector = &attributes[kind];
        let (raw, requirements) = (text(selector, "rawSelector"), list(selector, "requirements"));
        let readable_count = requirements.iter().filter(|requirement| is_readable(kind, requirement)).count();
        let path = format!("spec.resourceAttributes.{kind}");
        if readable_count < requirements.len() {
            let how = if readable_count > 0 { "partially ignored" } else { "ignored" };
            messages.push(format!("{path} {how} due to parse error"));
        } else if !raw.is_empty() && !is_parsable(kind, raw) {
            messages.push(format!("{path} ignored due to parse error"));
        }
    }
    messages.join("; ")
}

fn is_parsable(kind: &str, raw: &str) -> bool {
    if kind == "labelSelector" { Selector::parse(raw).is_ok() } else { FieldSelector::parse(raw).is_ok() }
}

fn is_readable(kind: &str, requirement: &Value) -> bool {
    let (operator, values) = (text(requirement, "operator"), list(requirement, "values"));
    match kind {
        "fieldSelector" => values.len() == 1 && matches!(operator, "In" | "NotIn"),
        _ => matches!(operator, "In" | "NotIn" | "Exists" | "DoesNotExist"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(r#"{}"#, &[], "")]
    #[case::both(
        r#"{"fieldSelector": {"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}"#,
        &["spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements"],
        ""
    )]
    #[case::empty(
        r#"{"labelSelector": {}}"#,
        &["spec.resourceAttributes.labelSelector.requirements: Required value: when spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required"],
        ""
    )]
    #[case::values(
        r#"{"fieldSelector": {"requirements": [{"operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]}]}}"#,
        &[
            "spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified",
            "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "spec.resourceAttributes.fieldSelector.requirements[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        ],
        "spec.resourceAttributes.fieldSelector ignored due to parse error"
    )]
    #[case::unknown_operator(
        r#"{"labelSelector": {"requirements": [{"key": "a", "operator": "Foo"}, {"key": "b", "operator": "Exists"}]}}"#,
        &[],
        "spec.resourceAttributes.labelSelector partially ignored due to parse error"
    )]
    #[case::raw(
        r#"{"fieldSelector": {"rawSelector": "a"}, "labelSelector": {"rawSelector": "a in (b"}}"#,
        &[],
        "spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error"
    )]
    fn selectors_are_validated(#[case] attributes: &str, #[case] expected: &[&str], #[case] ignored: &str) {
        let attributes: Value = serde_json::from_str(attributes).unwrap();
        let errors: Vec<String> = validate(&attributes).iter().map(ToString::to_string).collect();
        assert_eq!(
            (errors, evaluation_error(&attributes)),
            (expected.iter().map(ToString::to_string).collect(), ignored.to_owned())
        );
    }
}
