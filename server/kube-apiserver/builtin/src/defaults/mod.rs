//! Defaults of the built-in kinds, as set by kube-apiserver's versioned defaulting.

use serde_json::{Value, json};

use super::object::{at, default, default_pointer, each, inside, is_set, is_unset, items, put, text};

mod batch;
mod cluster;
mod network;
pub(super) mod pod;
mod storage;
mod workload;

/// Sets the defaults of one object.
pub(super) fn apply(group: &str, version: &str, kind: &str, object: &mut Value) {
    match (group, kind) {
        ("", "Pod") => {
            pod::pod(object);
            if let Some(status) = inside(object, "status") {
                first_of(status, "podIP", "podIPs", |address| json!({"ip": address}));
            }
        }
        ("", "PodTemplate") => each_template(object, "template"),
        ("", "ReplicationController") => workload::replication_controller(object),
        ("apps", "Deployment") => workload::deployment(object),
        ("apps", "ReplicaSet") => workload::replica_set(object),
        ("apps", "StatefulSet") => workload::stateful_set(object),
        ("apps", "DaemonSet") => workload::daemon_set(object),
        ("batch", "Job") => batch::job(object),
        ("batch", "CronJob") => batch::cron_job(object),
        ("", "Service") => network::service(object),
        ("", "Endpoints") => network::endpoints(object),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(object),
        ("networking.k8s.io", "NetworkPolicy") => network::network_policy(object),
        ("networking.k8s.io", "IngressClass") => {
            if let Some(parameters) = inside(object, "spec.parameters") {
                default_pointer(parameters, "scope", "Cluster");
            }
        }
        ("", "PersistentVolume") => storage::persistent_volume(object),
        ("", "PersistentVolumeClaim") => storage::claim(object),
        ("storage.k8s.io", _) => storage::storage(kind, object),
        ("", "Secret") => cluster::secret(object),
        ("", "Namespace") => cluster::namespace(object),
        ("", "Node") => {
            cluster::node(object);
            if let Some(spec) = inside(object, "spec") {
                first_of(spec, "podCIDR", "podCIDRs", |range| json!(range));
            }
        }
        ("", "LimitRange") => cluster::limit_range(object),
        ("autoscaling", _) => cluster::autoscaler(version, object),
        ("rbac.authorization.k8s.io", _) => cluster::rbac(kind, object),
        ("admissionregistration.k8s.io", _) => cluster::admission(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => cluster::definition(object),
        ("apiregistration.k8s.io", "APIService") => {
            if let Some(service) = inside(object, "spec.service") {
                default(service, "port", 443);
            }
        }
        ("policy", "PodDisruptionBudget") => {}
        ("scheduling.k8s.io", "PriorityClass") => default_pointer(object, "preemptionPolicy", "PreemptLowerPriority"),
        ("flowcontrol.apiserver.k8s.io", _) => cluster::flow_control(kind, object),
        _ => {}
    }
}

/// Synchronizes a list with the older field that holds its first element. If they differ, the older field takes
/// precedence, because older clients know only that one.
fn first_of(object: &mut Value, one: &str, many: &str, entry: fn(&str) -> Value) {
    let given = text(object, one).to_owned();
    let first = items(object, many).first().cloned();
    if !given.is_empty() && first.as_ref() != Some(&entry(&given)) {
        put(object, many, vec![entry(&given)]);
    } else if given.is_empty()
        && let Some(first) = first
    {
        let single = first.get("ip").cloned().unwrap_or(first);
        put(object, one, single);
    }
}

fn each_template(object: &mut Value, path: &str) {
    if let Some(template) = inside(object, path) {
        pod::template(template);
    }
}
