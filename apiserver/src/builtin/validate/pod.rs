//! Pods and pod templates.

use std::collections::BTreeSet;

use super::container::{self, Role};
use super::difference::difference;
use super::{
    Errors, Value, at, dns1123_label, dns1123_subdomain, fields, items, json, labels, number, pod_context,
    qualified_name, resources, same, scheduling, set, text, volume,
};
use crate::builtin::object;

const UPDATE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Pods that a kubelet has from elsewhere carry it.
const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn create(e: &mut Errors, object: &Value) {
    whole(e, object);
    if !items(object, "spec.ephemeralContainers").is_empty() {
        e.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    if !text(object, "spec.nodeName").is_empty() && !items(object, "spec.schedulingGates").is_empty() {
        e.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared");
    }
}

/// A pod itself: what `spec` checks, and what templates are not held to.
fn whole(e: &mut Errors, object: &Value) {
    let pod = at(object, "spec");
    annotations(e, at(object, "metadata"), pod, "metadata.annotations");
    spec(e, pod, Some(text(object, "metadata.name")), "spec");
    if text(pod, "serviceAccountName").is_empty() {
        for (v, volume) in items(pod, "volumes").iter().enumerate() {
            for (s, source) in items(volume, "projected.sources").iter().enumerate() {
                if set(source, "serviceAccountToken") {
                    let field = format!("spec.volumes[{v}].projected.sources[{s}].serviceAccountToken");
                    e.forbidden(field, "must not be specified when serviceAccountName is not set");
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        container::images(e, items(pod, list), &format!("spec.{list}"));
    }
}

/// `ValidatePodSpecificAnnotations`, as far as the annotations still mean something.
fn annotations(e: &mut Errors, metadata: &Value, spec: &Value, path: &str) {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let all = fields(metadata, "annotations");
    if let Some(mirror) = all.get(MIRROR)
        && text(spec, "nodeName").is_empty()
    {
        e.invalid(format!("{path}[{MIRROR}]"), mirror, "must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(cost) = all.get(COST) {
        let value = cost.as_str().unwrap_or_default();
        let padded = value.starts_with('+') || (value.starts_with('0') && value != "0");
        if padded || value.parse::<i32>().is_err() {
            e.invalid(format!("{path}[{COST}]"), cost, "must be a 32bit integer");
        }
    }
}

/// A template: its labels and annotations, then the spec.
pub(super) fn template(e: &mut Errors, template: &Value, path: &str) {
    let metadata = template.get("metadata");
    e.0.extend(labels(metadata.and_then(|m| m.get("labels")), &format!("{path}.labels")));
    e.0.extend(super::super::super::registry::validation::annotations(
        metadata.and_then(|m| m.get("annotations")),
        &format!("{path}.annotations"),
    ));
    annotations(e, at(template, "metadata"), at(template, "spec"), &format!("{path}.annotations"));
    spec(e, at(template, "spec"), None, &format!("{path}.spec"));
    if !items(template, "spec.ephemeralContainers").is_empty() {
        e.forbidden(format!("{path}.spec.ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

/// `name` is the pod's own, absent for the spec of a template.
pub(super) fn spec(e: &mut Errors, spec: &Value, name: Option<&str>, path: &str) {
    let volumes = volume::list(e, spec, name, path);
    pod_context::resource_claims(e, spec, path);
    let pod = container::Pod { spec, volumes };
    let mut names = BTreeSet::new();
    if items(spec, "containers").is_empty() {
        e.required(format!("{path}.containers"), "");
    }
    for (list, role) in
        [("containers", Role::Main), ("initContainers", Role::Init), ("ephemeralContainers", Role::Ephemeral)]
    {
        container::list(e, items(spec, list), role, &pod, &mut names, &format!("{path}.{list}"));
    }
    resources::pod(e, spec, &format!("{path}.resources"));
    pod_context::host_network(e, spec, name.is_some(), path);
    e.one_of(&format!("{path}.restartPolicy"), at(spec, "restartPolicy"), &["Always", "OnFailure", "Never"]);
    e.one_of(
        &format!("{path}.dnsPolicy"),
        at(spec, "dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    e.0.extend(labels(spec.get("nodeSelector"), &format!("{path}.nodeSelector")));
    pod_context::security(e, spec, path);
    scheduling::affinity(e, at(spec, "affinity"), &format!("{path}.affinity"));
    pod_context::dns(e, spec, path);
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let name = text(gate, "conditionType");
        e.names(&format!("{path}.readinessGates[{index}].conditionType"), name, qualified_name(name));
    }
    scheduling::gates(e, spec, path);
    scheduling::spread(e, spec, path);
    pod_context::host_users(e, spec, path);
    identity(e, spec, path);
    scheduling::tolerations(e, spec, path);
    pod_context::host_aliases(e, spec, path);
    for field in ["priorityClassName", "runtimeClassName"] {
        let class = text(spec, field);
        if !class.is_empty() {
            e.names(&format!("{path}.{field}"), class, dns1123_subdomain(class));
        }
    }
    e.optional_one_of(
        &format!("{path}.preemptionPolicy"),
        at(spec, "preemptionPolicy"),
        &["PreemptLowerPriority", "Never"],
    );
    if set(spec, "overhead") {
        resources::requirements(e, &json!({"limits": at(spec, "overhead")}), None, &format!("{path}.overhead"));
    }
    pod_context::os(e, spec, path);
}

fn identity(e: &mut Errors, spec: &Value, path: &str) {
    let account = text(spec, "serviceAccountName");
    if !account.is_empty() {
        e.names(&format!("{path}.serviceAccountName"), account, dns1123_subdomain(account));
    }
    let node = text(spec, "nodeName");
    if !node.is_empty() {
        e.names(&format!("{path}.nodeName"), node, dns1123_subdomain(node));
    }
    if let Some(seconds) = number(spec, "activeDeadlineSeconds").filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        e.invalid(
            format!("{path}.activeDeadlineSeconds"),
            &json!(seconds),
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, field);
        if !name.is_empty() {
            e.names(&format!("{path}.{field}"), name, dns1123_label(name));
        }
    }
}

pub(super) fn update(e: &mut Errors, subresource: &str, old: &Value, new: &Value) {
    whole(e, new);
    match subresource {
        "ephemeralcontainers" => return ephemeral(e, old, new),
        "resize" => return resize(e, old, new),
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
        container::images(e, items(after, list), &format!("spec.{list}"));
    }
    let mut allowed = after.clone();
    for list in ["containers", "initContainers"] {
        let images: Vec<Value> = items(before, list).iter().map(|c| at(c, "image").clone()).collect();
        let mut images = images.into_iter();
        object::each(&mut allowed, list, |container| {
            object::put(container, "image", images.next().unwrap_or_default());
        });
    }
    if !deadline(e, before, after) {
        return;
    }
    // Only how long a toleration holds may change.
    let timeless = |toleration: &Value| {
        let mut copy = toleration.clone();
        object::take(&mut copy, "tolerationSeconds");
        copy
    };
    let now: Vec<Value> = items(after, "tolerations").iter().map(timeless).collect();
    if items(before, "tolerations").iter().all(|toleration| now.contains(&timeless(toleration))) {
        scheduling::tolerations(e, after, "spec");
    } else {
        e.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
    let gates_before = items(before, "schedulingGates");
    for (index, gate) in items(after, "schedulingGates").iter().enumerate() {
        if !gates_before.contains(gate) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
            e.forbidden(format!("spec.schedulingGates[{index}].name"), &why);
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        object::copy(before, &mut allowed, field);
    }
    if number(before, "terminationGracePeriodSeconds").is_some_and(|n| n < 0)
        && number(after, "terminationGracePeriodSeconds") == Some(1)
    {
        object::copy(before, &mut allowed, "terminationGracePeriodSeconds");
    }
    if !gates_before.is_empty() {
        // A gated pod may be narrowed to fewer nodes.
        let kept = |(key, value): (&String, &Value)| fields(after, "nodeSelector").get(key) == Some(value);
        if !fields(before, "nodeSelector").iter().all(kept) {
            let why = "only additions are allowed";
            e.invalid("spec.nodeSelector", at(after, "nodeSelector"), why);
        }
        for field in ["nodeSelector", "affinity"] {
            object::copy(before, &mut allowed, field);
        }
    }
    if !same(&allowed, before) {
        e.forbidden("spec", &format!("{UPDATE}\n{}", difference("core.PodSpec", before, &allowed)));
    }
}

fn is_static(pod: &Value) -> bool {
    fields(pod, "metadata.annotations").contains_key(MIRROR)
}

/// `ValidatePodEphemeralContainersUpdate`: they come, and stay as they are.
fn ephemeral(e: &mut Errors, old: &Value, new: &Value) {
    const LIST: &str = "spec.ephemeralContainers";
    if is_static(old) {
        e.0.clear();
        return e.forbidden("", "static pods do not support ephemeral containers");
    }
    for before in items(old, LIST) {
        let name = text(before, "name");
        match items(new, LIST).iter().find(|after| text(after, "name") == name) {
            None => e.forbidden(LIST, &format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(after) if !same(before, after) => {
                let differs = difference("core.EphemeralContainer", before, after);
                e.forbidden(LIST, &format!("existing ephemeral containers {name:?} may not be changed\n{differs}"));
            }
            Some(_) => {}
        }
    }
}

/// `ValidatePodResize`: what containers may use changes in amounts of cpu and memory alone, and never the class of the pod.
fn resize(e: &mut Errors, old: &Value, new: &Value) {
    if is_static(old) {
        e.0.clear();
        return e.forbidden("", "static pods cannot be resized");
    }
    if text(old, "spec.os.name") == "windows" {
        e.0.clear();
        return e.forbidden("", "windows pods cannot be resized");
    }
    let class = |pod: &Value| crate::builtin::defaults::pod::qos_class(at(pod, "spec"));
    if class(old) != class(new) {
        e.invalid("spec", at(old, "status.qosClass"), "Pod QOS Class may not change as a result of resizing");
    }
    for list in ["initContainers", "containers"] {
        let path = format!("spec.{list}");
        for (index, (before, after)) in items(old, &path).iter().zip(items(new, &path)).enumerate() {
            for kind in ["limits", "requests"] {
                let field = format!("{path}[{index}].resources.{kind}");
                let (was, is) =
                    (fields(before, &format!("resources.{kind}")), fields(after, &format!("resources.{kind}")));
                if ["cpu", "memory"].iter().any(|name| was.contains_key(*name) && !is.contains_key(*name)) {
                    e.forbidden(&field, &format!("resource {kind} cannot be removed"));
                }
            }
        }
    }
    let mut kept = at(new, "spec").clone();
    for list in ["initContainers", "containers"] {
        let mut before = items(old, &format!("spec.{list}")).iter();
        object::each(&mut kept, list, |container| {
            let old = before.next().unwrap_or(&Value::Null);
            object::copy(old, container, "resizePolicy");
            for kind in ["limits", "requests"] {
                cpu_and_memory_of(old, container, kind);
            }
        });
    }
    if !same(&kept, at(old, "spec")) {
        let differs = difference("core.PodSpec", at(old, "spec"), &kept);
        e.forbidden("spec", &format!("only cpu and memory resources are mutable\n{differs}"));
    }
}

/// Gives a container the amounts of cpu and memory that it had.
fn cpu_and_memory_of(old: &Value, container: &mut Value, kind: &str) {
    let path = format!("resources.{kind}");
    let mut amounts = fields(container, &path).clone();
    for name in ["cpu", "memory"] {
        amounts.remove(name);
        amounts.extend(fields(old, &path).get(name).map(|amount| (name.to_owned(), amount.clone())));
    }
    if !set(container, "resources") {
        object::put(container, "resources", json!({}));
    }
    let Some(resources) = object::inside(container, "resources") else { return };
    match set(old, &path) {
        true => object::put(resources, kind, amounts),
        false => drop(object::take(resources, kind)),
    }
}

/// False when the comparison of the rest is not worth telling.
fn deadline(e: &mut Errors, before: &Value, after: &Value) -> bool {
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

pub(super) fn status(e: &mut Errors, old: &Value, new: &Value) {
    let nominated = text(new, "status.nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "status.nominatedNodeName") {
        e.names("status.nominatedNodeName", nominated, dns1123_subdomain(nominated));
    }
    if text(old, "spec.nodeName") != text(new, "spec.nodeName") {
        e.forbidden("status.nodeName", "may not be changed directly");
    }
}
