//! Warnings for accepted writes of built-in kinds, sent in `Warning` headers as by kube-apiserver: deprecated
//! fields, labels and annotations, and values without effect or with an unexpected one.

mod addresses;
mod labels;
mod network;
mod overlaps;
mod pod;
mod storage;
#[cfg(test)]
mod tests;
mod tls;

use crowsnest_apimachinery::names::format::validate_dns1123_label;
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::Value;

use super::apparmor;
use super::object::{are_equal, at, fields, is_unset, items, number, text};

/// Limits of an Indexed Job: above both, the Job controller may not be able to track the completed indexes.
const COMPLETIONS_SOFT_LIMIT: i64 = 100_000;
const PARALLELISM_LIMIT_FOR_HIGH_COMPLETIONS: i64 = 10_000;

/// Warning texts of a write. `old` is the object before an update.
pub(super) fn warnings_for(group: &str, kind: &str, old: Option<&Value>, new: &Value) -> Vec<String> {
    match (group, kind) {
        ("", "Pod") => pod_warnings(old, new),
        ("", "PodTemplate") if is_changed(old, new, "template") => {
            pod::template_warnings(at(new, "template"), "template")
        }
        ("", "ReplicationController") | ("apps", _) => workload_warnings(kind, old, new),
        ("batch", "Job") => job_warnings(old, new, "spec"),
        ("batch", "CronJob") => {
            let mut out = job_warnings(old, new, "spec.jobTemplate.spec");
            if old.is_some() && text(new, "spec.schedule").contains("TZ") {
                out.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".into());
            }
            out
        }
        ("", "Service") => network::service_warnings(new),
        ("networking.k8s.io", "Ingress") if old.is_none() => network::ingress_warnings(new),
        ("networking.k8s.io", "NetworkPolicy") => network::network_policy_warnings(new),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice_warnings(old, new),
        ("", "Endpoints") => network::endpoints_warnings(old, new),
        ("", "ComponentStatus") => vec!["v1 ComponentStatus is deprecated in v1.19+".into()],
        ("", "PersistentVolume") => storage::volume_warnings(new),
        ("", "PersistentVolumeClaim") => storage::claim_warnings(new),
        ("storage.k8s.io", _) => storage::storage_group_warnings(kind, old, new),
        ("node.k8s.io", "RuntimeClass") => {
            labels::selector_warnings(at(new, "scheduling"), "nodeSelector", |message, _| {
                format!("scheduling.nodeSelector: {message}")
            })
        }
        ("", "Node") => node_warnings(new),
        ("", "ResourceQuota") => quota_warnings(new),
        ("", "Secret") if text(new, "type") == "kubernetes.io/tls" => {
            tls::key_pair_error(at(new, "data")).into_iter().collect()
        }
        ("", "ServiceAccount") => service_account_warnings(old, new),
        _ => Vec::new(),
    }
}

fn is_changed(old: Option<&Value>, new: &Value, path: &str) -> bool {
    old.is_none_or(|old| !are_equal(at(old, path), at(new, path)))
}

/// Only new pods are checked: updates are frequent and made by controllers.
fn pod_warnings(old: Option<&Value>, new: &Value) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut out: Vec<String> = name_warning(new, "the Pod's hostname").into_iter().collect();
    out.splice(0..0, apparmor::warnings(new));
    out.extend(pod::pod_warnings(new));
    out
}

fn name_warning(new: &Value, used_in: &str) -> Option<String> {
    let reasons = validate_dns1123_label(text(new, "metadata.name"));
    (!reasons.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            reasons.join(" ")
        )
    })
}

fn workload_warnings(kind: &str, old: Option<&Value>, new: &Value) -> Vec<String> {
    let has_pod_names = !matches!(kind, "StatefulSet" | "DaemonSet" | "ControllerRevision");
    let mut out = Vec::new();
    if old.is_none() && has_pod_names {
        out.extend(name_warning(new, "Pod names and hostnames"));
    }
    let compared_path = if kind == "DaemonSet" { "spec.template" } else { "spec" };
    if is_changed(old, new, compared_path) {
        out.extend(pod::template_warnings(at(new, "spec.template"), "spec.template"));
    }
    if kind == "StatefulSet" {
        let path_suffix = if old.is_some() { ".Spec" } else { "" };
        for (index, claim) in items(new, "spec.volumeClaimTemplates").iter().enumerate() {
            out.extend(storage::resource_warnings(
                at(claim, "spec"),
                &format!("spec.volumeClaimTemplates[{index}]{path_suffix}"),
            ));
        }
        if number(new, "spec.revisionHistoryLimit").is_some_and(|limit| limit < 0) {
            out.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".into());
        }
    }
    out
}

fn job_warnings(old: Option<&Value>, new: &Value, path: &str) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() {
        out.extend(name_warning(new, "Pod names and hostnames"));
    }
    if !is_changed(old, new, "spec") {
        return out;
    }
    let spec = at(new, path);
    let above = |field: &str, limit: i64| number(spec, field).is_some_and(|count| count > limit);
    if text(spec, "completionMode") == "Indexed"
        && above("completions", COMPLETIONS_SOFT_LIMIT)
        && above("parallelism", PARALLELISM_LIMIT_FOR_HIGH_COMPLETIONS)
    {
        out.push(format!("{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    out.extend(pod::template_warnings(at(spec, "template"), &format!("{path}.template")));
    out
}

/// Warnings for a quota whose requests exceed its limits.
fn quota_warnings(quota: &Value) -> Vec<String> {
    let hard = fields(quota, "spec.hard");
    let mut out = Vec::new();
    for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (requests, limits) = (format!("requests.{name}"), format!("limits.{name}"));
        let unprefixed = || hard.get(name).filter(|_| matches!(name, "cpu" | "memory")).map(|amount| (name, amount));
        let Some((request_name, request)) =
            hard.get(&requests).map(|amount| (requests.as_str(), amount)).or_else(unprefixed)
        else {
            continue;
        };
        let Some(limit) = hard.get(&limits) else { continue };
        let amount = |value: &Value| Quantity::parse(value.as_str().unwrap_or_default()).ok();
        if let (Some(request), Some(limit)) = (amount(request), amount(limit))
            && request > limit
        {
            out.push(format!("ResourceQuota {request_name} ({request}) should be less than {limits} ({limit})"));
        }
    }
    out
}

fn node_warnings(new: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if !is_unset(new, "spec.configSource") {
        out.push("spec.configSource: the feature is removed".into());
    }
    if !text(new, "spec.externalID").is_empty() {
        out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".into());
    }
    for (index, network) in items(new, "spec.podCIDRs").iter().enumerate() {
        out.extend(addresses::network_warnings(
            &format!("spec.podCIDRs[{index}]"),
            network.as_str().unwrap_or_default(),
        ));
    }
    out
}

fn service_account_warnings(old: Option<&Value>, new: &Value) -> Vec<String> {
    const ANNOTATION: &str = "kubernetes.io/enforce-mountable-secrets";
    let has = |account: &Value| fields(account, "metadata.annotations").contains_key(ANNOTATION);
    if !has(new) || old.is_some_and(has) {
        return Vec::new();
    }
    vec![format!(
        "metadata.annotations[{ANNOTATION}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    )]
}
