//! Applying a manifest to an existing member object: ownership, retained fields, and whether a write is needed.
//!
//! Defaulting, admission plugins and webhooks of a member change objects. These changes are the [`difference`]
//! between the written and the resulting object. With the difference remembered per manifest, the member's own
//! additions can be distinguished from drift, and nothing is written without drift.

use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::managed;
use super::prune::{prune, prune_job_ttl};

/// The write that a manifest needs in a member.
#[derive(Debug, Clone, PartialEq)]
pub enum ApplyPlan {
    Create(Value),
    Update(Value),
    /// The member object is up to date.
    Keep,
    /// The member has an object of this name that must not be changed. Contains the message of the Work's condition.
    Conflict(String),
}

impl ApplyPlan {
    /// Name of the plan, for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            ApplyPlan::Create(_) => "create",
            ApplyPlan::Update(_) => "update",
            ApplyPlan::Keep => "keep",
            ApplyPlan::Conflict(_) => "conflict",
        }
    }
}

/// Result of comparing a manifest with a member.
#[derive(Debug, Clone, PartialEq)]
pub enum ManifestComparison<'o> {
    /// The plan is complete, because no fields of a member object have to be retained.
    Planned(ApplyPlan),
    /// The member object may be updated. The kind's interpreter must add the fields to retain to `desired` before
    /// [`finish`].
    NeedsRetention { desired: Value, observed: &'o Value },
}

/// Compares a manifest with the existing member object, if any.
pub fn compare_with_member<'o>(cluster: &str, manifest: &Value, observed: Option<&'o Value>) -> ManifestComparison<'o> {
    let Some(observed) = observed else { return ManifestComparison::Planned(ApplyPlan::Create(manifest.clone())) };
    if !may_update(manifest, observed) {
        return ManifestComparison::Planned(ApplyPlan::Conflict(format!(
            "resource(kind={}, {}/{}) already exists in the cluster {cluster} and the {} strategy value is empty, \
             Karmada will not manage this resource",
            unstructured::kind(manifest),
            unstructured::namespace(manifest),
            unstructured::name(manifest),
            super::construct::CONFLICT_RESOLUTION,
        )));
    }
    let mut desired = manifest.clone();
    retain_metadata(&mut desired, observed);
    ManifestComparison::NeedsRetention { desired, observed }
}

/// Completes the plan after retention. `difference` is the difference from the last write of this manifest.
pub fn finish(desired: Value, observed: &Value, difference: Option<&Value>) -> ApplyPlan {
    if is_up_to_date(&desired, observed, difference) { ApplyPlan::Keep } else { ApplyPlan::Update(desired) }
}

/// True if the object is managed already, or the manifest requests overwriting.
fn may_update(manifest: &Value, observed: &Value) -> bool {
    managed::is_managed(observed)
        || unstructured::annotation(manifest, super::construct::CONFLICT_RESOLUTION) == Some("overwrite")
}

/// Retains the member's metadata in `desired`.
fn retain_metadata(desired: &mut Value, observed: &Value) {
    for field in MEMBER_METADATA {
        match unstructured::at(observed, &["metadata", field]) {
            Some(value) => unstructured::set(desired, &["metadata", field], value.clone()),
            None => {
                unstructured::remove(desired, &["metadata", field]);
            }
        }
    }
    managed::retain(desired, observed);
}

/// Metadata that is always retained.
const MEMBER_METADATA: [&str; 3] = ["resourceVersion", "finalizers", "ownerReferences"];

/// True if the live object, without the member's changes, equals the manifest.
fn is_up_to_date(desired: &Value, observed: &Value, difference: Option<&Value>) -> bool {
    let mut live = comparable_part(observed);
    prune_job_ttl(&mut live);
    let mut expected = comparable_part(desired);
    if let Some(difference) = difference {
        json_patch::merge(&mut expected, difference);
    }
    unstructured::semantically_equal(&live, &expected)
}

/// The compared part of an object. All labels and annotations are compared.
fn comparable_part(object: &Value) -> Value {
    let mut compared = object.clone();
    prune(&mut compared);
    for field in MEMBER_METADATA.into_iter().chain(["annotations", "labels"]) {
        if let Some(value) = unstructured::at(object, &["metadata", field]) {
            unstructured::set(&mut compared, &["metadata", field], value.clone());
        }
    }
    compared
}

/// Changes that a member made to a written object, as a JSON merge patch. `None` if there are none. Secret values are
/// not recorded, so a Secret with values added by the member is written once more after a restart.
pub fn difference(sent: &Value, live: &Value) -> Option<Value> {
    let compared = |object: &Value| {
        let mut compared = comparable_part(object);
        for field in MEMBER_METADATA {
            unstructured::remove(&mut compared, &["metadata", field]);
        }
        if unstructured::kind(object) == "Secret" && unstructured::api_version(object) == "v1" {
            for values in ["data", "stringData"] {
                unstructured::remove(&mut compared, &[values]);
            }
        }
        compared
    };
    let mut live = compared(live);
    prune_job_ttl(&mut live);
    merge_patch(&compared(sent), &live)
}

/// True if the live object contains all fields of `sent`, and possibly more.
pub fn contains_all_fields(sent: &Value, live: &Value) -> bool {
    has_all(&comparable_part(live), &comparable_part(sent))
}

fn has_all(live: &Value, expected: &Value) -> bool {
    match (live, expected) {
        (Value::Object(live), Value::Object(expected)) => {
            expected.iter().all(|(key, value)| has_all(live.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Array(live), Value::Array(expected)) if live.len() == expected.len() => {
            live.iter().zip(expected).all(|(live, expected)| has_all(live, expected))
        }
        (live, expected) => unstructured::semantically_equal(live, expected),
    }
}

/// JSON merge patch between two values that are not semantically equal. Null counts as absent.
fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    if unstructured::semantically_equal(from, to) {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (from, to) else { return Some(to.clone()) };
    let changed = after.iter().filter_map(|(key, value)| {
        let patch = merge_patch(before.get(key).unwrap_or(&Value::Null), value)?;
        Some((key.clone(), patch))
    });
    let removed = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    Some(Value::Object(changed.chain(removed).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn service(ports: Value, more: Value) -> Value {
        let mut service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"karmada.io/managed": "true"}},
            "spec": {"selector": {"app": "web"}, "ports": ports}});
        json_patch::merge(&mut service, &more);
        service
    }

    fn sent() -> Value {
        service(json!([{"port": 80}]), json!({}))
    }

    /// The object as returned by a member's API server.
    fn accepted() -> Value {
        let filled_in = json!({"metadata": {"uid": "1", "resourceVersion": "7"}, "status": {"loadBalancer": {}},
            "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}});
        service(json!([{"port": 80, "protocol": "TCP", "targetPort": 80}]), filled_in)
    }

    fn planned(manifest: &Value, live: &Value, difference: Option<&Value>) -> ApplyPlan {
        match compare_with_member("m1", manifest, Some(live)) {
            ManifestComparison::Planned(planned) => planned,
            ManifestComparison::NeedsRetention { mut desired, observed } => {
                crate::work::retain::service(&mut desired, observed);
                finish(desired, observed, difference)
            }
        }
    }

    #[test]
    fn remembered_changes_of_a_member_are_not_drift() {
        assert!(matches!(planned(&sent(), &accepted(), None), ApplyPlan::Update(_)));
        let difference = difference(&sent(), &accepted());
        assert!(difference.is_some());
        assert_eq!(planned(&sent(), &accepted(), difference.as_ref()), ApplyPlan::Keep);
    }

    #[rstest]
    #[case::a_field_changed(json!({"spec": {"type": "NodePort"}}))]
    #[case::a_field_added(json!({"spec": {"sessionAffinity": "ClientIP"}}))]
    #[case::a_field_removed(json!({"spec": {"selector": null}}))]
    #[case::defaulted_field_removed(json!({"spec": {"type": null}}))]
    #[case::in_a_list(json!({"spec": {"ports": [{"port": 81, "protocol": "TCP", "targetPort": 80}]}}))]
    #[case::manifest_label_removed(json!({"metadata": {"labels": {"karmada.io/managed": "true", "tier": null}}}))]
    fn drift_is_detected(#[case] drift: Value) {
        let mut sent = sent();
        unstructured::set_label(&mut sent, "tier", "front");
        let mut live = accepted();
        unstructured::set_label(&mut live, "tier", "front");
        let difference = difference(&sent, &live);
        assert_eq!(planned(&sent, &live, difference.as_ref()), ApplyPlan::Keep);
        json_patch::merge(&mut live, &drift);
        assert!(matches!(planned(&sent, &live, difference.as_ref()), ApplyPlan::Update(_)), "{live}");
    }

    #[rstest]
    #[case::status(json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}))]
    #[case::another_version(json!({"metadata": {"resourceVersion": "9"}}))]
    #[case::label_of_the_member(json!({"metadata": {"labels": {"theirs": "1"}}}))]
    #[case::a_finalizer(json!({"metadata": {"finalizers": ["a/b"]}}))]
    fn fields_of_the_member_are_not_drift(#[case] change: Value) {
        let difference = difference(&sent(), &accepted());
        let mut live = accepted();
        json_patch::merge(&mut live, &change);
        assert_eq!(planned(&sent(), &live, difference.as_ref()), ApplyPlan::Keep);
    }

    #[rstest]
    #[case::more(json!({"spec": {"sessionAffinity": "ClientIP"}, "metadata": {"labels": {"theirs": "1"}}}), true)]
    #[case::less(json!({"spec": {"selector": null}}), false)]
    #[case::another_value(json!({"spec": {"selector": {"app": "other"}}}), false)]
    #[case::a_shorter_list(json!({"spec": {"ports": []}}), false)]
    fn additional_fields_are_allowed(#[case] change: Value, #[case] expected: bool) {
        let mut live = accepted();
        json_patch::merge(&mut live, &change);
        assert_eq!(contains_all_fields(&sent(), &live), expected, "{live}");
    }

    #[test]
    fn unchanged_object_has_no_difference() {
        let sent = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "1"}});
        let mut live = sent.clone();
        json_patch::merge(&mut live, &json!({"metadata": {"uid": "1", "resourceVersion": "3"}, "binaryData": {}}));
        assert_eq!(difference(&sent, &live), None);
    }

    #[test]
    fn secret_values_are_not_recorded() {
        let sent = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}});
        let mut live = sent.clone();
        json_patch::merge(&mut live, &json!({"type": "Opaque", "data": {"token": "c2VjcmV0"}}));
        assert_eq!(difference(&sent, &live), Some(json!({"type": "Opaque"})));
    }

    #[rstest]
    #[case(json!({"a": 1}), json!({"a": 1, "b": [2]}))]
    #[case(json!({"a": {"b": 1, "c": 2}}), json!({"a": {"c": 3}}))]
    #[case(json!({"a": [1, 2]}), json!({"a": [1]}))]
    #[case(json!({"a": "text"}), json!({"a": {"b": "map", "c": {}}}))]
    fn merge_patch_converts_one_value_to_the_other(#[case] from: Value, #[case] to: Value) {
        let mut patched = from.clone();
        json_patch::merge(&mut patched, &merge_patch(&from, &to).expect("they differ"));
        assert!(unstructured::semantically_equal(&patched, &to), "{patched} is not {to}");
        assert_eq!(merge_patch(&to, &patched), None);
    }
}
