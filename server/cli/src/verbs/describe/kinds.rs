//! Registry of the kinds that are described as `kubectl describe` does, and of the related objects that their
//! descriptions need. Has no side effects.

mod clusters;
mod config;
mod containers;
mod network;
mod nodes;
mod pods;
mod propagation;
mod scaling;
mod volumes;
mod workloads;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crowsnest_apimachinery::printers::human_duration;
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use serde_json::Value;

use super::sheet::{Sheet, list, selector, time, to_text};
use crate::object::text;

/// Related objects by resource name, or the error of reading them.
pub(super) type RelatedObjects = BTreeMap<&'static str, Result<Vec<Value>, String>>;

const PODS: &str = "pods";
const REPLICA_SETS: &str = "replicasets";
const SLICES: &str = "endpointslices";
const LEASES: &str = "leases";
const QUOTAS: &str = "resourcequotas";
const LIMITS: &str = "limitranges";
const SECRETS: &str = "secrets";

/// Adds the fields below the name of an object of a known kind. Returns false for other kinds.
pub(super) fn describe_kind(sheet: &mut Sheet, object: &Value, related: &RelatedObjects, now: jiff::Timestamp) -> bool {
    match kind(object) {
        ("", "Pod") => pods::describe_pod(sheet, object, now),
        ("apps", "Deployment") => workloads::describe_deployment(sheet, object, related),
        ("apps", "ReplicaSet") => workloads::describe_replica_set(sheet, object, related),
        ("apps", "StatefulSet") => workloads::describe_stateful_set(sheet, object, related),
        ("apps", "DaemonSet") => workloads::describe_daemon_set(sheet, object, related),
        ("batch", "Job") => workloads::describe_job(sheet, object),
        ("batch", "CronJob") => workloads::describe_cron_job(sheet, object),
        ("autoscaling", "HorizontalPodAutoscaler") => scaling::describe_autoscaler(sheet, object),
        ("", "Node") => nodes::describe_node(sheet, object, related, now),
        ("", "Service") => network::describe_service(sheet, object, related),
        ("networking.k8s.io", "Ingress") => network::describe_ingress(sheet, object, related),
        ("", "PersistentVolumeClaim") => volumes::describe_claim(sheet, object, related),
        ("", "ConfigMap") => config::describe_config_map(sheet, object),
        ("", "Secret") => config::describe_secret(sheet, object),
        ("", "ServiceAccount") => config::describe_service_account(sheet, object, related),
        ("", "Namespace") => config::describe_namespace(sheet, object, related),
        ("cluster.karmada.io", "Cluster") => clusters::describe_cluster(sheet, object, now),
        ("policy.karmada.io", "PropagationPolicy" | "ClusterPropagationPolicy") => {
            propagation::describe_policy(sheet, object)
        }
        ("work.karmada.io", "ResourceBinding" | "ClusterResourceBinding") => {
            propagation::describe_binding(sheet, object)
        }
        ("work.karmada.io", "Work") => propagation::describe_work(sheet, object),
        _ => return false,
    }
    true
}

/// Related objects to request: resource name and path.
pub(super) fn related_requests(object: &Value) -> Vec<(&'static str, String)> {
    let (namespace, name) = (path_segment(text(object, "/metadata/namespace")), text(object, "/metadata/name"));
    let path_in_namespace = |root: &str, resource: &str| format!("{root}/namespaces/{namespace}/{resource}");
    let with_selector = |path: String| {
        let selector = selector(&object["spec"]["selector"]);
        (!selector.is_empty()).then(|| format!("{path}?labelSelector={}", percent_encode(&selector)))
    };
    let slices = |services: &[&str]| {
        let selector = format!("kubernetes.io/service-name in ({})", services.join(","));
        let selector = percent_encode(&selector);
        (SLICES, format!("{}?labelSelector={selector}", path_in_namespace("/apis/discovery.k8s.io/v1", SLICES)))
    };
    match kind(object) {
        ("apps", "Deployment") => with_selector(path_in_namespace("/apis/apps/v1", REPLICA_SETS))
            .map(|path| (REPLICA_SETS, path))
            .into_iter()
            .collect(),
        ("apps", _) => with_selector(path_in_namespace("/api/v1", PODS)).map(|path| (PODS, path)).into_iter().collect(),
        ("", "Node") => {
            let selector = format!("spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed");
            let selector = percent_encode(&selector);
            let lease =
                format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", path_segment(name));
            vec![(PODS, format!("/api/v1/pods?fieldSelector={selector}")), (LEASES, lease)]
        }
        ("", "Service") => vec![slices(&[name])],
        ("networking.k8s.io", "Ingress") => {
            let services = network::service_names(object);
            if services.is_empty() { Vec::new() } else { vec![slices(&services)] }
        }
        ("", "PersistentVolumeClaim") => vec![(PODS, path_in_namespace("/api/v1", PODS))],
        ("", "ServiceAccount") => {
            let selector = percent_encode("type=kubernetes.io/service-account-token");
            vec![(SECRETS, format!("{}?fieldSelector={selector}", path_in_namespace("/api/v1", SECRETS)))]
        }
        ("", "Namespace") => {
            let path = |resource: &str| format!("/api/v1/namespaces/{}/{resource}", path_segment(name));
            vec![(QUOTAS, path(QUOTAS)), (LIMITS, path(LIMITS))]
        }
        _ => Vec::new(),
    }
}

/// API group and kind.
fn kind(object: &Value) -> (&str, &str) {
    let group = text(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    (group, text(object, "/kind"))
}

/// `Kind/name` of the owner reference that is the controller.
fn controller(object: &Value) -> Option<String> {
    let owner = owner(object)?;
    Some(format!("{}/{}", to_text(&owner["kind"]), to_text(&owner["name"])))
}

fn owner(object: &Value) -> Option<&Value> {
    list(&object["metadata"]["ownerReferences"]).iter().find(|owner| owner["controller"] == true)
}

/// The related objects that are controlled by an object, or the error of reading them.
fn controlled_objects<'r>(related: &'r RelatedObjects, name: &str, object: &Value) -> Result<Vec<&'r Value>, &'r str> {
    let uid = &object["metadata"]["uid"];
    match related.get(name) {
        Some(Ok(objects)) => {
            Ok(objects.iter().filter(|object| owner(object).is_some_and(|owner| owner["uid"] == *uid)).collect())
        }
        Some(Err(reason)) => Err(reason.as_str()),
        None => Ok(Vec::new()),
    }
}

/// Text for a field whose related objects could not be read.
fn format_unknown(reason: &str) -> String {
    format!("<unknown: {reason}>")
}

/// Adds the creation timestamp.
fn add_creation_timestamp(sheet: &mut Sheet, object: &Value) {
    sheet.add_field(0, "CreationTimestamp", time(&object["metadata"]["creationTimestamp"]));
}

/// Age of a timestamp.
fn age_since(value: &Value, now: jiff::Timestamp) -> String {
    let then = value.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    then.map_or_else(|| "<unknown>".to_owned(), |then| human_duration(now.as_second() - then.as_second()))
}

/// Adds the table of conditions, with these headers and fields.
fn add_conditions(sheet: &mut Sheet, object: &Value, columns: &[(&str, &str)]) {
    let conditions = list(&object["status"]["conditions"]);
    if conditions.is_empty() {
        return;
    }
    let headers: Vec<&str> = columns.iter().map(|(header, _)| *header).collect();
    let cell = |condition: &Value, field: &str| match field.ends_with("Time") {
        true => time(&condition[field]),
        false => condition[field].as_str().unwrap_or_default().replace('\n', " "),
    };
    let row = |condition: &Value| columns.iter().map(|(_, field)| cell(condition, field)).collect::<Vec<String>>();
    sheet.add_heading(0, "Conditions");
    sheet.add_table(2, &headers, &conditions.iter().map(row).collect::<Vec<_>>());
}

/// Default columns: type, status, reason and message.
const CONDITIONS: [(&str, &str); 4] =
    [("Type", "type"), ("Status", "status"), ("Reason", "reason"), ("Message", "message")];
