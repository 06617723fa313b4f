//! Validation of pod status updates.

use std::net::IpAddr;

use super::pod::validate_annotations;
use super::{
    Errors, Value, addresses, at, go, items, number, text, validate_dns1123_subdomain, validate_qualified_name,
};

const NOT_NEGATIVE: &str = "must be a non-negative integer";

/// `ValidatePodStatusUpdate`.
pub(super) fn validate_update(e: &mut Errors, old: &Value, new: &Value) {
    validate_annotations(e, at(new, "metadata"), at(new, "spec"), "metadata.annotations");
    for (index, condition) in items(new, "status.conditions").iter().enumerate() {
        let (kind, path) = (text(condition, "type"), format!("status.conditions[{index}]"));
        if number(condition, "observedGeneration").is_some_and(|n| n < 0) {
            e.invalid(format!("{path}.observedGeneration"), at(condition, "observedGeneration"), NOT_NEGATIVE);
        }
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            e.push_name_errors(&format!("{path}.Type"), kind, validate_qualified_name(kind));
        }
    }
    if text(old, "spec.nodeName") != text(new, "spec.nodeName") {
        e.forbidden("status.nodeName", "may not be changed directly");
    }
    let nominated = text(new, "status.nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "status.nominatedNodeName") {
        e.push_name_errors("status.nominatedNodeName", nominated, validate_dns1123_subdomain(nominated));
        if !text(old, "spec.nodeName").is_empty() {
            e.forbidden("status.nominatedNodeName", "may not be set on pods that are already bound to a node");
        }
    }
    if number(new, "status.observedGeneration").is_some_and(|n| n < 0) {
        e.invalid("status.observedGeneration", at(new, "status.observedGeneration"), NOT_NEGATIVE);
    }
    e.immutable("status.qosClass", at(old, "status.qosClass"), at(new, "status.qosClass"));
    for (list, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        validate_container_transitions(e, old, new, list, containers);
    }
    validate_pod_ips(e, old, new, "podIPs");
    let first_ip = items(new, "status.hostIPs").first();
    if let Some(first_ip) = first_ip.filter(|first_ip| text(first_ip, "ip") != text(new, "status.hostIP")) {
        e.invalid("status.hostIPs[0].ip", at(first_ip, "ip"), "must be equal to `hostIP`");
    }
    validate_pod_ips(e, old, new, "hostIPs");
}

/// Terminated containers may run again only if the restart policy allows it. `list` contains the statuses of the
/// containers in the spec's list `containers`.
fn validate_container_transitions(e: &mut Errors, old: &Value, new: &Value, list: &str, containers: &str) {
    let path = format!("status.{list}");
    let spec = at(old, "spec");
    let mut containers_of_pod = items(spec, "containers").iter().chain(items(spec, "initContainers"));
    let restarts_all = |container: &Value| {
        items(container, "restartPolicyRules").iter().any(|rule| text(rule, "action") == "RestartAllContainers")
    };
    if containers_of_pod.any(restarts_all) {
        return;
    }
    for (index, before) in items(old, &path).iter().enumerate() {
        let name = text(before, "name");
        let Some(code) =
            at(before, "state.terminated").as_object().map(|_| number(before, "state.terminated.exitCode"))
        else {
            continue;
        };
        let Some(after) = items(new, &path).iter().find(|after| text(after, "name") == name) else { continue };
        let container = items(spec, containers).iter().find(|container| text(container, "name") == name);
        let may_run_again = container.is_some_and(|container| should_restart(container, spec, code.unwrap_or(0)));
        if at(after, "state.terminated").is_null() && !may_run_again {
            e.forbidden(format!("{path}[{index}].state"), "may not be transitioned to non-terminated state");
        }
    }
}

/// `ContainerShouldRestart`: the container's restart rules, its restart policy, then that of the pod.
fn should_restart(container: &Value, spec: &Value, code: i64) -> bool {
    let applies = |rule: &&Value| {
        let is_listed = items(rule, "exitCodes.values").iter().any(|value| value.as_i64() == Some(code));
        match text(rule, "exitCodes.operator") {
            "In" => is_listed,
            "NotIn" => !is_listed,
            _ => false,
        }
    };
    if items(container, "restartPolicyRules").iter().any(|rule| applies(&rule) && text(rule, "action") == "Restart") {
        return true;
    }
    let policy = match text(container, "restartPolicy") {
        "" => text(spec, "restartPolicy"),
        container_policy => container_policy,
    };
    policy == "Always" || (policy == "OnFailure" && code != 0)
}

/// Validates pod IPs: one per family. Invalid addresses that already exist are accepted.
fn validate_pod_ips(e: &mut Errors, old: &Value, new: &Value, list: &str) {
    let path = format!("status.{list}");
    let pod_ips = items(new, &path);
    let parsed: Vec<Option<IpAddr>> = pod_ips.iter().map(|address| text(address, "ip").parse().ok()).collect();
    for (index, address) in pod_ips.iter().enumerate() {
        if let Some(reason) = addresses::legacy_address_error(text(address, "ip"))
            && !items(old, &path).iter().any(|old| old["ip"] == address["ip"])
        {
            e.invalid(format!("{path}[{index}]"), at(address, "ip"), reason);
        }
    }
    let mut addresses = parsed.iter().flatten();
    let is_dual_stack = addresses.clone().any(IpAddr::is_ipv4) && addresses.any(IpAddr::is_ipv6);
    if pod_ips.len() > 1 && (!is_dual_stack || pod_ips.len() > 2) {
        e.push(go::invalid_struct(
            &path,
            at(new, &path),
            "[]core.PodIP",
            "may specify no more than one IP for each IP family",
        ));
    }
}
