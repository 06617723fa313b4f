//! Classifies an update of a template: irrelevant, by the control plane, or by its user.

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, semantically_equal};

/// Kind of an update of a template, in increasing order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Nothing but status or managed fields changed.
    None,
    /// Only labels and annotations of `karmada.io` changed, besides fields that the API server sets.
    ByControlPlane,
    /// Anything else changed.
    ByUser,
}

/// Label or annotation in the control plane's domain that only users set.
const SKIP_AUTO_PROPAGATION: &str = "namespace.karmada.io/skip-auto-propagation";

/// Classifies the difference between two versions of a template.
pub fn classify(old: &Value, new: &Value) -> Change {
    let rest_differs = |old: &Value, new: &Value| {
        let keys = |value: &Value| -> Vec<String> {
            value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
        };
        let mut names = keys(old);
        names.extend(keys(new));
        names.iter().filter(|name| !matches!(name.as_str(), "status" | "metadata")).any(|name| {
            !semantically_equal(old.get(name).unwrap_or(&Value::Null), new.get(name).unwrap_or(&Value::Null))
        })
    };
    if rest_differs(old, new) || metadata_differs(old, new) {
        return Change::ByUser;
    }
    let [labels, annotations] = ["labels", "annotations"].map(|field| classify_keys(old, new, field));
    labels.max(annotations)
}

/// True if metadata other than labels, annotations and server-owned fields differs.
fn metadata_differs(old: &Value, new: &Value) -> bool {
    ["finalizers", "ownerReferences", "deletionTimestamp"].iter().any(|field| {
        let value = |object: &Value| at(object, &["metadata", field]).cloned().unwrap_or(Value::Null);
        !semantically_equal(&value(old), &value(new))
    })
}

fn classify_keys(old: &Value, new: &Value, field: &str) -> Change {
    let map = |object| at(object, &["metadata", field]).and_then(Value::as_object);
    let (old, new) = (map(old), map(new));
    let keys = old.into_iter().chain(new).flat_map(|map| map.keys());
    keys.filter(|key| old.and_then(|map| map.get(*key)) != new.and_then(|map| map.get(*key)))
        .map(|key| match key.contains(".karmada.io") && key != SKIP_AUTO_PROPAGATION {
            true => Change::ByControlPlane,
            false => Change::ByUser,
        })
        .max()
        .unwrap_or(Change::None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!({"status": {"a": 1}}), Change::None)]
    #[case(json!({"metadata": {"resourceVersion": "9", "managedFields": []}}), Change::None)]
    #[case(json!({"metadata": {"generation": 2, "labels": {"propagationpolicy.karmada.io/permanent-id": "x"}}}), Change::ByControlPlane)]
    #[case(json!({"metadata": {"labels": {"app": "x"}}}), Change::ByUser)]
    #[case(json!({"data": {"a": "b"}}), Change::ByUser)]
    fn updates_are_classified(#[case] new: Value, #[case] expected: Change) {
        assert_eq!(classify(&json!({}), &new), expected);
    }
}
