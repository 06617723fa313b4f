//! Preparation of pods before storage, for creates and for writes of subresources.

use crowsnest_registry::strategy::RequestContext;
use serde_json::{Value, json};

use super::defaults::pod::qos_class;
use super::object::{at, at_mut, copy_field, for_each_item, is_set, is_unset, items, number, set_field, text};
use super::prepare::{copy_nested_field, with_new_fields};

/// Metadata that subresources other than `status` do not change.
const UNCHANGED_METADATA: [&str; 5] = ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"];

/// Sets the status of a new pod and adds `matchLabelKeys` to its selectors.
pub(super) fn prepare_create(ctx: &RequestContext, pod: &mut Value) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(at(pod, "spec"))});
    if !items(pod, "spec.schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": null,
            "lastTransitionTime": ctx.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    set_field(pod, "status", status);
    let labels = at(pod, "metadata.labels").clone();
    let Some(spec) = at_mut(pod, "spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let list = |list: &str| format!("affinity.{kind}.{list}DuringSchedulingIgnoredDuringExecution");
        for_each_item(spec, &list("required"), |term| add_key_requirements(term, &labels));
        for_each_item(spec, &list("preferred"), |term| {
            if let Some(term) = at_mut(term, "podAffinityTerm") {
                add_key_requirements(term, &labels);
            }
        });
    }
    for_each_item(spec, "topologySpreadConstraints", |constraint| add_key_requirements(constraint, &labels));
}

/// Adds selector requirements for the labels named by `matchLabelKeys` and `mismatchLabelKeys`.
fn add_key_requirements(term: &mut Value, labels: &Value) {
    let mut added = Vec::new();
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in items(term, list) {
            if let Some(value) = key.as_str().and_then(|key| labels.get(key)) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if added.is_empty() {
        return;
    }
    let mut expressions = items(term, "labelSelector.matchExpressions").to_vec();
    expressions.append(&mut added);
    if let Some(selector) = at_mut(term, "labelSelector") {
        set_field(selector, "matchExpressions", expressions);
    }
}

/// Restores the fields that a subresource does not change.
pub(super) fn prepare_update(subresource: &str, old: &Value, new: &mut Value) {
    match subresource {
        "status" => update_status(old, new),
        "ephemeralcontainers" => {
            let added = at(new, "spec.ephemeralContainers").clone();
            *new = with_new_fields(old, new, &["metadata"]);
            restore_metadata(old, new);
            set_field(&mut new["spec"], "ephemeralContainers", added);
        }
        "resize" => update_resources(old, new),
        _ => {}
    }
}

fn restore_metadata(old: &Value, new: &mut Value) {
    UNCHANGED_METADATA.iter().for_each(|field| copy_nested_field(old, new, "metadata", field));
}

fn update_status(old: &Value, new: &mut Value) {
    for field in ["deletionTimestamp", "ownerReferences"] {
        copy_nested_field(old, new, "metadata", field);
    }
    if !is_set(new, "status") {
        set_field(new, "status", json!({}));
    }
    // The QoS class is set once at creation; writers of the status may omit it.
    if is_unset(new, "status.qosClass") {
        copy_nested_field(old, new, "status", "qosClass");
    }
    // A client that does not know `observedGeneration` omits it, and the stored value is kept.
    if number(new, "status.observedGeneration").unwrap_or(0) == 0 {
        copy_nested_field(old, new, "status", "observedGeneration");
    }
    let mut before: Vec<&Value> = items(old, "status.conditions").iter().collect();
    for_each_item(new, "status.conditions", |condition| {
        let Some(found) = before.iter().position(|old| text(old, "type") == text(condition, "type")) else { return };
        let old = before.remove(found);
        if number(condition, "observedGeneration").unwrap_or(0) == 0 {
            copy_field(old, condition, "observedGeneration");
        }
    });
}

/// Restores all container fields except resources. If containers were added, removed or reordered, validation
/// reports it.
fn update_resources(old: &Value, new: &mut Value) {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    let list = |pod: &Value, list: &str| items(pod, &format!("spec.{list}")).to_vec();
    if LISTS.iter().any(|name| list(old, name).len() != list(new, name).len()) {
        return;
    }
    let mut out = with_new_fields(old, new, &["metadata"]);
    restore_metadata(old, &mut out);
    copy_field(at(new, "spec"), &mut out["spec"], "resources");
    for name in LISTS {
        let (mut containers, requested) = (list(old, name), list(new, name));
        if containers.iter().zip(&requested).any(|(old, new)| old["name"] != new["name"]) {
            set_field(&mut out["spec"], name, requested);
            continue;
        }
        for (container, other) in containers.iter_mut().zip(&requested) {
            ["resources", "resizePolicy"].iter().for_each(|field| copy_field(other, container, field));
        }
        if !containers.is_empty() {
            set_field(&mut out["spec"], name, containers);
        }
    }
    *new = out;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_registry::authz::bootstrap::loopback;

    #[test]
    fn match_label_keys_are_added_to_selectors() {
        let term = json!({"labelSelector": {}, "matchLabelKeys": ["x", "none"], "mismatchLabelKeys": ["y"]});
        let mut pod = json!({
            "metadata": {"labels": {"x": "1", "y": "2"}},
            "spec": {
                "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}},
                "topologySpreadConstraints": [{"matchLabelKeys": ["x"], "labelSelector": {"matchLabels": {"a": "b"}}}, {"matchLabelKeys": ["x"]}],
            },
        });
        prepare_create(&loopback("default"), &mut pod);
        let like = json!({"key": "x", "operator": "In", "values": ["1"]});
        let unlike = json!({"key": "y", "operator": "NotIn", "values": ["2"]});
        let affinity = "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm/labelSelector";
        assert_eq!(pod.pointer(affinity), Some(&json!({"matchExpressions": [like, unlike]})));
        let spread = at(&pod, "spec.topologySpreadConstraints");
        assert_eq!(spread[0]["labelSelector"], json!({"matchLabels": {"a": "b"}, "matchExpressions": [like]}));
        assert_eq!(spread[1], json!({"matchLabelKeys": ["x"]}));
    }

    #[test]
    fn subresources_change_only_their_fields() {
        let old = json!({
            "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]},
            "status": {"observedGeneration": 3, "qosClass": "Burstable", "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]},
        });
        let mut request = old.clone();
        request["metadata"]["labels"]["q"] = json!("r");
        request["spec"]["containers"][0] =
            json!({"name": "c", "image": "other", "resources": {"limits": {"cpu": "1"}}});
        request["spec"]["ephemeralContainers"] = json!([{"name": "e"}]);
        request["status"] = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        let after = |subresource: &str| {
            let mut new = request.clone();
            prepare_update(subresource, &old, &mut new);
            new
        };
        let mut added = old.clone();
        added["spec"]["ephemeralContainers"] = json!([{"name": "e"}]);
        assert_eq!(after("ephemeralcontainers"), added);
        let mut resized = old.clone();
        resized["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        assert_eq!(after("resize"), resized);
        let mut status = old["status"].clone();
        status["conditions"][0]["status"] = json!("False");
        assert_eq!(after("status")["status"], status);
    }
}
