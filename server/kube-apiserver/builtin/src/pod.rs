//! Preparation of pods and their subresources before storage.

use crowsnest_registry::strategy::RequestContext;
use serde_json::{Value, json};

use super::defaults::pod::qos_class;
use super::object::{at, copy, each, inside, is_set, is_unset, items, number, put, text};
use super::prepare::{copy_below, keep};

/// Metadata that subresources other than `status` do not change.
const METADATA: [&str; 5] = ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"];

/// Sets the status of a new pod and adds `matchLabelKeys` to its selectors.
pub(super) fn create(ctx: &RequestContext, pod: &mut Value) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(at(pod, "spec"))});
    if !items(pod, "spec.schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": null,
            "lastTransitionTime": ctx.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    put(pod, "status", status);
    let labels = at(pod, "metadata.labels").clone();
    let Some(spec) = inside(pod, "spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let list = |list: &str| format!("affinity.{kind}.{list}DuringSchedulingIgnoredDuringExecution");
        each(spec, &list("required"), |term| select_alike(term, &labels));
        each(spec, &list("preferred"), |term| {
            if let Some(term) = inside(term, "podAffinityTerm") {
                select_alike(term, &labels);
            }
        });
    }
    each(spec, "topologySpreadConstraints", |constraint| select_alike(constraint, &labels));
}

/// Adds selector requirements for the labels named by `matchLabelKeys` and `mismatchLabelKeys`.
fn select_alike(term: &mut Value, labels: &Value) {
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
    if let Some(selector) = inside(term, "labelSelector") {
        put(selector, "matchExpressions", expressions);
    }
}

pub(super) fn update(subresource: &str, old: &Value, new: &mut Value) {
    match subresource {
        "status" => status(old, new),
        "ephemeralcontainers" => {
            let added = at(new, "spec.ephemeralContainers").clone();
            *new = keep(old, new, &["metadata"]);
            keep_metadata(old, new);
            put(&mut new["spec"], "ephemeralContainers", added);
        }
        "resize" => resize(old, new),
        _ => {}
    }
}

fn keep_metadata(old: &Value, new: &mut Value) {
    METADATA.iter().for_each(|field| copy_below(old, new, "metadata", field));
}

fn status(old: &Value, new: &mut Value) {
    for field in ["deletionTimestamp", "ownerReferences"] {
        copy_below(old, new, "metadata", field);
    }
    if !is_set(new, "status") {
        put(new, "status", json!({}));
    }
    // The QoS class is set once at creation; writers of the status may omit it.
    if is_unset(new, "status.qosClass") {
        copy_below(old, new, "status", "qosClass");
    }
    // Clients that do not know `observedGeneration` do not remove it.
    if number(new, "status.observedGeneration").unwrap_or(0) == 0 {
        copy_below(old, new, "status", "observedGeneration");
    }
    let mut before: Vec<&Value> = items(old, "status.conditions").iter().collect();
    each(new, "status.conditions", |condition| {
        let Some(found) = before.iter().position(|old| text(old, "type") == text(condition, "type")) else { return };
        let old = before.remove(found);
        if number(condition, "observedGeneration").unwrap_or(0) == 0 {
            copy(old, condition, "observedGeneration");
        }
    });
}

/// Restores all container fields except resources. If containers were added, removed or reordered, validation
/// reports it.
fn resize(old: &Value, new: &mut Value) {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    let list = |pod: &Value, list: &str| items(pod, &format!("spec.{list}")).to_vec();
    if LISTS.iter().any(|name| list(old, name).len() != list(new, name).len()) {
        return;
    }
    let mut out = keep(old, new, &["metadata"]);
    keep_metadata(old, &mut out);
    copy(at(new, "spec"), &mut out["spec"], "resources");
    for name in LISTS {
        let (mut before, wanted) = (list(old, name), list(new, name));
        if before.iter().zip(&wanted).any(|(old, new)| old["name"] != new["name"]) {
            put(&mut out["spec"], name, wanted);
            continue;
        }
        for (container, other) in before.iter_mut().zip(&wanted) {
            ["resources", "resizePolicy"].iter().for_each(|field| copy(other, container, field));
        }
        if !before.is_empty() {
            put(&mut out["spec"], name, before);
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
        create(&loopback("default"), &mut pod);
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
        let mut wanted = old.clone();
        wanted["metadata"]["labels"]["q"] = json!("r");
        wanted["spec"]["containers"][0] = json!({"name": "c", "image": "other", "resources": {"limits": {"cpu": "1"}}});
        wanted["spec"]["ephemeralContainers"] = json!([{"name": "e"}]);
        wanted["status"] = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        let after = |subresource: &str| {
            let mut new = wanted.clone();
            update(subresource, &old, &mut new);
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
