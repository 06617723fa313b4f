//! Managed labels and annotations of member objects, as opposed to the member's own.
//!
//! Two annotations list the keys of a manifest. On an update, live keys that were listed before and are missing in
//! the new manifest are removed; all other live keys are kept.

use std::collections::BTreeSet;

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{
    self, annotation, annotations, label, labels, remove, set, set_annotation, set_label,
};

pub const MANAGED_LABEL: &str = "karmada.io/managed";
pub const MANAGED_ANNOTATIONS: &str = "resourcetemplate.karmada.io/managed-annotations";
pub const MANAGED_LABELS: &str = "resourcetemplate.karmada.io/managed-labels";
pub const WORK_PERMANENT_ID: &str = "work.karmada.io/permanent-id";

/// True if a member object is managed by the control plane.
pub fn is_managed(member: &Value) -> bool {
    label(member, MANAGED_LABEL) == Some("true")
}

/// Adds the Work's permanent id to a manifest, and records the keys of the manifest's labels and annotations.
pub fn set_work_id(manifest: &mut Value, work_permanent_id: &str) {
    if !work_permanent_id.is_empty() {
        set_label(manifest, WORK_PERMANENT_ID, work_permanent_id);
    }
    record_managed_keys(manifest);
}

/// Records the sorted keys of a manifest's labels and annotations.
pub fn record_managed_keys(manifest: &mut Value) {
    let mut keys: BTreeSet<String> = annotations(manifest).into_keys().collect();
    keys.extend([MANAGED_ANNOTATIONS.to_owned(), MANAGED_LABELS.to_owned()]);
    let label_keys: Vec<String> = labels(manifest).into_keys().collect();
    set_annotation(manifest, MANAGED_ANNOTATIONS, &keys.into_iter().collect::<Vec<_>>().join(","));
    set_annotation(manifest, MANAGED_LABELS, &label_keys.join(","));
}

/// Adds the member's own labels and annotations to `desired`.
pub fn retain(desired: &mut Value, observed: &Value) {
    retain_keys(desired, observed, "annotations", MANAGED_ANNOTATIONS);
    retain_keys(desired, observed, "labels", MANAGED_LABELS);
}

fn retain_keys(desired: &mut Value, observed: &Value, field: &str, list: &str) {
    let previously_managed: BTreeSet<&str> = annotation(observed, list).unwrap_or_default().split(',').collect();
    let live = observed.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_object);
    for (key, value) in live.into_iter().flatten() {
        let desired_keys = desired.get("metadata").and_then(|metadata| metadata.get(field));
        let is_desired = desired_keys.is_some_and(|keys| keys.get(key).is_some());
        if !is_desired && !previously_managed.contains(key.as_str()) {
            set(desired, &["metadata", field, key], value.clone());
        }
    }
}

const OWNERSHIP_LABELS: [&str; 3] = [MANAGED_LABEL, WORK_PERMANENT_ID, "resourcebinding.karmada.io/permanent-id"];

const OWNERSHIP_ANNOTATIONS: [&str; 8] = [
    MANAGED_ANNOTATIONS,
    MANAGED_LABELS,
    "resourcetemplate.karmada.io/uid",
    "resourcetemplate.karmada.io/generation",
    "resourcebinding.karmada.io/namespace",
    "resourcebinding.karmada.io/name",
    "work.karmada.io/namespace",
    "work.karmada.io/name",
];

const POLICY_LABEL: &str = "propagationpolicy.karmada.io/permanent-id";
const POLICY_ANNOTATIONS: [&str; 2] = ["propagationpolicy.karmada.io/namespace", "propagationpolicy.karmada.io/name"];
const CLUSTER_POLICY_LABEL: &str = "clusterpropagationpolicy.karmada.io/permanent-id";
const CLUSTER_POLICY_ANNOTATION: &str = "clusterpropagationpolicy.karmada.io/name";

/// Removes the management metadata from a manifest, which releases a member object that is to be kept. As in Karmada,
/// conflict resolution and the name and id of a ClusterResourceBinding are kept.
pub fn remove_ownership_metadata(manifest: &mut Value) {
    let cluster_scoped = unstructured::namespace(manifest).is_empty();
    let policy_label = if cluster_scoped { CLUSTER_POLICY_LABEL } else { POLICY_LABEL };
    let policy_annotations = if cluster_scoped { &[CLUSTER_POLICY_ANNOTATION][..] } else { &POLICY_ANNOTATIONS[..] };
    for key in OWNERSHIP_LABELS.iter().chain([&policy_label]) {
        remove(manifest, &["metadata", "labels", key]);
    }
    for key in OWNERSHIP_ANNOTATIONS.iter().chain(policy_annotations) {
        remove(manifest, &["metadata", "annotations", key]);
    }
    for field in ["labels", "annotations"] {
        let is_empty = unstructured::at(manifest, &["metadata", field])
            .and_then(Value::as_object)
            .is_some_and(serde_json::Map::is_empty);
        if is_empty {
            remove(manifest, &["metadata", field]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn own_keys_are_kept_and_removed_keys_are_deleted() {
        let mut desired = json!({"metadata": {"labels": {"a": "2"}}});
        set_label(&mut desired, MANAGED_LABEL, "true");
        set_work_id(&mut desired, "id");
        let observed = json!({"metadata": {
            "labels": {"a": "1", "gone": "x", "own": "y"},
            "annotations": {MANAGED_LABELS: "a,gone", MANAGED_ANNOTATIONS: MANAGED_LABELS, "own": "z"},
        }});
        retain(&mut desired, &observed);
        assert_eq!(desired["metadata"]["labels"]["own"], "y");
        assert_eq!(desired["metadata"]["labels"]["a"], "2");
        assert_eq!(desired["metadata"]["labels"].get("gone"), None);
        assert_eq!(desired["metadata"]["annotations"]["own"], "z");
        assert_eq!(
            desired["metadata"]["annotations"][MANAGED_LABELS],
            "a,karmada.io/managed,work.karmada.io/permanent-id"
        );
    }
}
