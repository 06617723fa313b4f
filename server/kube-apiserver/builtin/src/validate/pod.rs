//! Validation of pods and pod templates.

use std::collections::BTreeSet;

use super::container::{self, ContainerType};
use super::{
    Errors, Value, at, env, fields, is_set, items, json, number, pod_context, resources, scheduling, text,
    validate_dns1123_label, validate_dns1123_subdomain, validate_labels, validate_qualified_name, volume,
};

/// Annotation of mirror pods, which represent static pods of a kubelet.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn validate_create(e: &mut Errors, object: &Value) {
    validate_pod(e, object);
    if !items(object, "spec.ephemeralContainers").is_empty() {
        e.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    if !text(object, "spec.nodeName").is_empty() && !items(object, "spec.schedulingGates").is_empty() {
        e.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared");
    }
}

/// Validates a pod: its spec, and rules that do not apply to templates.
pub(super) fn validate_pod(e: &mut Errors, object: &Value) {
    let pod = at(object, "spec");
    validate_annotations(e, at(object, "metadata"), pod, "metadata.annotations");
    validate_pod_spec(e, pod, Some(text(object, "metadata.name")), "spec");
    if text(pod, "serviceAccountName").is_empty() {
        for (v, volume) in items(pod, "volumes").iter().enumerate() {
            for (s, source) in items(volume, "projected.sources").iter().enumerate() {
                if is_set(source, "serviceAccountToken") {
                    let field = format!("spec.volumes[{v}].projected.sources[{s}].serviceAccountToken");
                    e.forbidden(field, "must not be specified when serviceAccountName is not set");
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        container::validate_images(e, items(pod, list), &format!("spec.{list}"));
    }
}

/// `ValidatePodSpecificAnnotations` for the annotations that are still in use.
pub(super) fn validate_annotations(e: &mut Errors, metadata: &Value, spec: &Value, path: &str) {
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

/// Validates a pod template: labels and annotations, then the spec.
pub(super) fn validate_pod_template(e: &mut Errors, template: &Value, path: &str) {
    validate_template_metadata(e, template, path);
    validate_pod_spec(e, at(template, "spec"), None, &format!("{path}.spec"));
    if !items(template, "spec.ephemeralContainers").is_empty() {
        e.forbidden(format!("{path}.spec.ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

pub(super) fn validate_template_metadata(e: &mut Errors, template: &Value, path: &str) {
    let metadata = template.get("metadata");
    e.0.extend(validate_labels(metadata.and_then(|m| m.get("labels")), &format!("{path}.labels")));
    e.0.extend(crowsnest_registry::validation::validate_annotations(
        metadata.and_then(|m| m.get("annotations")),
        &format!("{path}.annotations"),
    ));
    validate_annotations(e, at(template, "metadata"), at(template, "spec"), &format!("{path}.annotations"));
}

/// Validates a pod spec; `name` is the name of the pod, `None` for templates.
pub(super) fn validate_pod_spec(e: &mut Errors, spec: &Value, name: Option<&str>, path: &str) {
    let volumes = volume::validate_volumes(e, spec, name, path);
    pod_context::validate_resource_claims(e, spec, path);
    let pod = container::Pod { spec, volumes };
    let mut names = BTreeSet::new();
    if items(spec, "containers").is_empty() {
        e.required(format!("{path}.containers"), "");
    }
    for (list, container_type) in [
        ("containers", ContainerType::Main),
        ("initContainers", ContainerType::Init),
        ("ephemeralContainers", ContainerType::Ephemeral),
    ] {
        container::validate_containers(
            e,
            items(spec, list),
            container_type,
            &pod,
            &mut names,
            &format!("{path}.{list}"),
        );
    }
    resources::validate_pod_resources(e, spec, &format!("{path}.resources"));
    pod_context::validate_host_network(e, spec, name.is_some(), path);
    e.one_of(&format!("{path}.restartPolicy"), at(spec, "restartPolicy"), &["Always", "OnFailure", "Never"]);
    e.one_of(
        &format!("{path}.dnsPolicy"),
        at(spec, "dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    e.0.extend(validate_labels(spec.get("nodeSelector"), &format!("{path}.nodeSelector")));
    pod_context::validate_pod_security_context(e, spec, path);
    scheduling::validate_affinity(e, at(spec, "affinity"), &format!("{path}.affinity"));
    pod_context::validate_dns_config(e, spec, path);
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let name = text(gate, "conditionType");
        e.push_name_errors(
            &format!("{path}.readinessGates[{index}].conditionType"),
            name,
            validate_qualified_name(name),
        );
    }
    scheduling::validate_scheduling_gates(e, spec, path);
    scheduling::validate_topology_spread(e, spec, path);
    pod_context::validate_host_users(e, spec, path);
    validate_names_and_deadline(e, spec, path);
    scheduling::validate_tolerations(e, spec, path);
    pod_context::validate_host_aliases(e, spec, path);
    for field in ["priorityClassName", "runtimeClassName"] {
        let class = text(spec, field);
        if !class.is_empty() {
            e.push_name_errors(&format!("{path}.{field}"), class, validate_dns1123_subdomain(class));
        }
    }
    e.optional_one_of(
        &format!("{path}.preemptionPolicy"),
        at(spec, "preemptionPolicy"),
        &["PreemptLowerPriority", "Never"],
    );
    if is_set(spec, "overhead") {
        resources::validate_requirements(
            e,
            &json!({"limits": at(spec, "overhead")}),
            None,
            &format!("{path}.overhead"),
        );
    }
    pod_context::validate_os(e, spec, path);
    env::validate_file_key_volumes(e, spec, path);
}

fn validate_names_and_deadline(e: &mut Errors, spec: &Value, path: &str) {
    let account = text(spec, "serviceAccountName");
    if !account.is_empty() {
        e.push_name_errors(&format!("{path}.serviceAccountName"), account, validate_dns1123_subdomain(account));
    }
    let node = text(spec, "nodeName");
    if !node.is_empty() {
        e.push_name_errors(&format!("{path}.nodeName"), node, validate_dns1123_subdomain(node));
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
            e.push_name_errors(&format!("{path}.{field}"), name, validate_dns1123_label(name));
        }
    }
}
