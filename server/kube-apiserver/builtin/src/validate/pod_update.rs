//! Validation of updates of pods and their subresources.

use super::difference::format_difference;
use super::pod::{MIRROR, validate_pod};
use super::{Errors, Value, are_equal, at, container, fields, go, is_set, items, json, number, scheduling, text};
use crate::defaults::pod::qos_class;
use crate::object;

const UPDATE_ERROR: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn validate_update(e: &mut Errors, subresource: &str, old: &Value, new: &Value) {
    validate_pod(e, new);
    match subresource {
        "ephemeralcontainers" => return validate_ephemeral_containers_update(e, old, new),
        "resize" => return validate_resize(e, old, new),
        _ => {}
    }
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    for list in ["containers", "initContainers"] {
        if items(before, list).len() != items(after, list).len() {
            e.forbidden(format!("spec.{list}"), "pod updates may not add or remove containers");
            return;
        }
        for (index, container) in items(after, list).iter().enumerate() {
            if text(container, "image").is_empty() {
                e.required(format!("spec.{list}[{index}].image"), "");
            }
        }
        container::validate_images(e, items(after, list), &format!("spec.{list}"));
    }
    let mut without_allowed_changes = after.clone();
    for list in ["containers", "initContainers"] {
        let images: Vec<Value> = items(before, list).iter().map(|c| at(c, "image").clone()).collect();
        let mut images = images.into_iter();
        object::for_each_item(&mut without_allowed_changes, list, |container| {
            object::set_field(container, "image", images.next().unwrap_or_default());
        });
    }
    if !validate_active_deadline(e, before, after) {
        return;
    }
    // Only `tolerationSeconds` of a toleration can change.
    let without_seconds = |toleration: &Value| {
        let mut copy = toleration.clone();
        object::remove_field(&mut copy, "tolerationSeconds");
        copy
    };
    let now: Vec<Value> = items(after, "tolerations").iter().map(without_seconds).collect();
    if items(before, "tolerations").iter().all(|toleration| now.contains(&without_seconds(toleration))) {
        scheduling::validate_tolerations(e, after, "spec");
    } else {
        e.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
    let gates_before = items(before, "schedulingGates");
    for (index, gate) in items(after, "schedulingGates").iter().enumerate() {
        if !gates_before.contains(gate) {
            let reason = format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
            e.forbidden(format!("spec.schedulingGates[{index}].name"), &reason);
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        object::copy_field(before, &mut without_allowed_changes, field);
    }
    if number(before, "terminationGracePeriodSeconds").is_some_and(|n| n < 0)
        && number(after, "terminationGracePeriodSeconds") == Some(1)
    {
        object::copy_field(before, &mut without_allowed_changes, "terminationGracePeriodSeconds");
    }
    if !gates_before.is_empty() {
        validate_gated_node_selection(e, before, &mut without_allowed_changes);
    }
    if !are_equal(&without_allowed_changes, before) {
        e.forbidden(
            "spec",
            &format!("{UPDATE_ERROR}\n{}", format_difference("core.PodSpec", before, &without_allowed_changes)),
        );
    }
}

fn is_static(pod: &Value) -> bool {
    fields(pod, "metadata.annotations").contains_key(MIRROR)
}

/// `ValidatePodEphemeralContainersUpdate`: containers can be added, but neither changed nor removed.
fn validate_ephemeral_containers_update(e: &mut Errors, old: &Value, new: &Value) {
    const LIST: &str = "spec.ephemeralContainers";
    if is_static(old) {
        e.0.clear();
        return e.forbidden("", "static pods do not support ephemeral containers");
    }
    for before in items(old, LIST) {
        let name = text(before, "name");
        match items(new, LIST).iter().find(|after| text(after, "name") == name) {
            None => e.forbidden(LIST, &format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(after) if !are_equal(before, after) => {
                let difference = format_difference("core.EphemeralContainer", before, after);
                e.forbidden(LIST, &format!("existing ephemeral containers {name:?} may not be changed\n{difference}"));
            }
            Some(_) => {}
        }
    }
}

/// Validates that the node selection of a pod with scheduling gates has only become narrower, and restores the old
/// selection in `spec`, which the caller compares with the old spec.
fn validate_gated_node_selection(e: &mut Errors, before: &Value, spec: &mut Value) {
    let kept = |(key, value): (&String, &Value)| fields(spec, "nodeSelector").get(key) == Some(value);
    if !fields(before, "nodeSelector").iter().all(kept) {
        let reason = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        e.invalid("spec.nodeSelector", at(spec, "nodeSelector"), reason);
    }
    object::copy_field(before, spec, "nodeSelector");
    let (old, new) = (at(before, "affinity.nodeAffinity"), at(spec, "affinity.nodeAffinity"));
    if are_equal(old, new) {
        return;
    }
    validate_node_affinity(e, old, new);
    let has_pod_affinity = ["podAffinity", "podAntiAffinity"].iter().any(|kind| is_set(at(spec, "affinity"), kind));
    if !is_set(spec, "affinity") || (!has_pod_affinity && !is_set(before, "affinity")) {
        let mut affinity = json!({});
        object::copy_field(at(before, "affinity"), &mut affinity, "nodeAffinity");
        match old.is_null() {
            true => drop(object::remove_field(spec, "affinity")),
            false => object::set_field(spec, "affinity", affinity),
        }
    } else if let Some(affinity) = object::at_mut(spec, "affinity") {
        object::copy_field(at(before, "affinity"), affinity, "nodeAffinity");
    }
}

/// `validateNodeAffinityMutation`: requirements can be added to existing terms.
fn validate_node_affinity(e: &mut Errors, old: &Value, new: &Value) {
    const TERMS: &str = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let field = format!("spec.affinity.nodeAffinity.{TERMS}");
    let (before, after) = (items(old, TERMS), items(new, TERMS));
    if before.is_empty() {
        return;
    }
    if before.len() != after.len() {
        let reason = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return e.push(go::invalid_struct(&field, at(new, TERMS), "[]core.NodeSelectorTerm", reason));
    }
    for (index, (old, new)) in before.iter().zip(after).enumerate() {
        let list = |term: &Value, list: &str| items(term, list).to_vec();
        let empty = |term: &Value| items(term, "matchExpressions").is_empty() && items(term, "matchFields").is_empty();
        let is_kept = |name: &str| list(new, name).starts_with(&list(old, name));
        if (empty(old) && !empty(new)) || !is_kept("matchExpressions") || !is_kept("matchFields") {
            let reason = "only additions are allowed (no mutations or deletions)";
            e.push(go::invalid_struct(&format!("{field}[{index}]"), new, "core.NodeSelectorTerm", reason));
        }
    }
}

/// `ValidatePodResize`: only quantities of cpu and memory can change, and the QoS class cannot.
fn validate_resize(e: &mut Errors, old: &Value, new: &Value) {
    if is_static(old) {
        e.0.clear();
        return e.forbidden("", "static pods cannot be resized");
    }
    if text(old, "spec.os.name") == "windows" {
        e.0.clear();
        return e.forbidden("", "windows pods cannot be resized");
    }
    let before = match text(old, "status.qosClass") {
        "" => qos_class(at(old, "spec")),
        recorded => recorded,
    };
    if before != qos_class(at(new, "spec")) {
        e.invalid("spec", at(new, "status.qosClass"), "Pod QOS Class may not change as a result of resizing");
    }
    let running = items(old, "status.containerStatuses").iter().find(|status| is_set(status, "state.running"));
    if running.is_some_and(|status| !is_set(status, "resources")) {
        e.forbidden("spec", "Pod running on node without support for resize");
    }
    validate_pod_level_resize(e, old, new);
    let count = e.0.len();
    for list in ["containers", "initContainers"] {
        validate_container_order(e, old, new, list);
    }
    if e.0.len() > count {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (index, (before, after)) in pairs(old, new, list) {
            validate_removed_resources(e, before, after, &format!("spec.{list}[{index}].resources"), "resource");
        }
    }
    for (_, (before, after)) in pairs(old, new, "containers") {
        if !are_equal(&with_old_quantities(before, after), before) {
            e.forbidden("spec", "only cpu and memory resources are mutable");
        }
    }
    for (index, (before, after)) in pairs(old, new, "initContainers") {
        let (is_sidecar, path) = (at(after, "restartPolicy") == "Always", format!("spec.initContainers[{index}]"));
        let is_changed = !are_equal(after, before);
        if !are_equal(&with_old_quantities(before, after), before) {
            e.forbidden(&path, "only cpu and memory resources for init or sidecar containers are mutable");
        }
        for policy in items(after, "resizePolicy") {
            if is_changed && !is_sidecar && at(policy, "restartPolicy") == "RestartContainer" {
                let reason = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                e.forbidden(&path, reason);
            }
        }
    }
}

type Pair<'a> = (usize, (&'a Value, &'a Value));

fn pairs<'a>(old: &'a Value, new: &'a Value, list: &str) -> impl Iterator<Item = Pair<'a>> {
    items(at(old, "spec"), list).iter().zip(items(at(new, "spec"), list)).enumerate()
}

/// Validates changes of pod-level resources.
fn validate_pod_level_resize(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    let amounts = |spec: &Value| fields(spec, "resources.requests").len() + fields(spec, "resources.limits").len();
    if amounts(before) + amounts(after) == 0 {
        return;
    }
    if is_set(before, "resources") && !is_set(after, "resources") {
        return e.forbidden("spec.resources", "pod-level resources cannot be removed");
    }
    validate_removed_resources(e, before, after, "spec.resources", "pod-level resource");
    let resources = |spec: &Value| json!({"resources": at(spec, "resources")});
    let (before, after) = (resources(before), resources(after));
    if is_set(&before, "resources") && !are_equal(&with_old_quantities(&before, &after), &before) {
        e.forbidden("spec", "only cpu and memory resources are mutable at pod-level");
    }
}

fn validate_container_order(e: &mut Errors, old: &Value, new: &Value, list: &str) {
    let path = format!("spec.{list}");
    if items(old, &path).len() != items(new, &path).len() {
        return e.forbidden(&path, &format!("{list} may not be added or removed on resize"));
    }
    for (index, (before, after)) in pairs(old, new, list) {
        if before["name"] != after["name"] {
            let reason = format!("{list} may not be renamed or reordered on resize");
            e.forbidden(format!("{path}[{index}].name"), &reason);
        }
    }
}

fn validate_removed_resources(e: &mut Errors, before: &Value, after: &Value, path: &str, owner: &str) {
    for kind in ["requests", "limits"] {
        let amounts = format!("resources.{kind}");
        let (old_amounts, new_amounts) = (fields(before, &amounts), fields(after, &amounts));
        if old_amounts.keys().any(|name| !new_amounts.contains_key(name)) {
            e.forbidden(format!("{path}.{kind}"), &format!("{owner} {kind} cannot be removed"));
        }
    }
}

/// The new container with the old quantities of cpu and memory. Any other change is invalid.
fn with_old_quantities(old: &Value, new: &Value) -> Value {
    let mut container = new.clone();
    object::copy_field(old, &mut container, "resizePolicy");
    for kind in ["limits", "requests"] {
        restore_cpu_and_memory(old, &mut container, kind);
    }
    container
}

/// Restores a container's quantities of cpu and memory.
fn restore_cpu_and_memory(old: &Value, container: &mut Value, kind: &str) {
    let path = format!("resources.{kind}");
    let mut amounts = fields(container, &path).clone();
    for name in ["cpu", "memory"] {
        amounts.remove(name);
        amounts.extend(fields(old, &path).get(name).map(|amount| (name.to_owned(), amount.clone())));
    }
    if !is_set(container, "resources") {
        object::set_field(container, "resources", json!({}));
    }
    let Some(resources) = object::at_mut(container, "resources") else { return };
    match is_set(old, &path) {
        true => object::set_field(resources, kind, amounts),
        false => drop(object::remove_field(resources, kind)),
    }
}

/// Validates the active deadline; false if the remaining comparison should be skipped.
fn validate_active_deadline(e: &mut Errors, before: &Value, after: &Value) -> bool {
    const FIELD: &str = "spec.activeDeadlineSeconds";
    let (old, new) = (number(before, "activeDeadlineSeconds"), number(after, "activeDeadlineSeconds"));
    match (old, new) {
        (_, Some(new)) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            e.invalid(FIELD, &json!(new), "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(old), Some(new)) if new > old => {
            e.invalid(FIELD, &json!(new), "must be less than or equal to previous value");
            false
        }
        (Some(_), None) => {
            e.invalid(FIELD, &Value::Null, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}
