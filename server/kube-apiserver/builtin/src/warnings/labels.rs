//! Warnings for deprecated node labels.

use crowsnest_apimachinery::names::format::validate_label_value;
use serde_json::Value;

use super::super::object::{fields, items, text};

const DEPRECATED_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// The deprecation message of a label; `None` if it is not deprecated.
pub(super) fn deprecation_message(key: &str) -> Option<&'static str> {
    DEPRECATED_LABELS.iter().find(|(old, _)| *old == key).map(|(_, message)| *message)
}

/// Warnings for the keys of a label map; `format` formats message and key.
pub(super) fn selector_warnings(object: &Value, path: &str, format: impl Fn(&str, &str) -> String) -> Vec<String> {
    fields(object, path).keys().filter_map(|key| deprecation_message(key).map(|message| format(message, key))).collect()
}

/// Warnings for requirements at `path`; if `is_preferred`, also for values that no label can have.
pub(super) fn requirement_warnings(object: &Value, path: &str, is_preferred: bool) -> Vec<String> {
    let mut out = Vec::new();
    for (index, requirement) in items(object, "matchExpressions").iter().enumerate() {
        let key = text(requirement, "key");
        if let Some(message) = deprecation_message(key) {
            out.push(format!("{path}.matchExpressions[{index}].key: {key} is {message}"));
        }
        if !is_preferred {
            continue;
        }
        for (position, value) in items(requirement, "values").iter().filter_map(Value::as_str).enumerate() {
            let field = format!("{path}.matchExpressions[{index}].values[{position}]");
            out.extend(
                validate_label_value(value).into_iter().map(|reason| format!("{field}: {value} is invalid, {reason}")),
            );
        }
    }
    out
}
