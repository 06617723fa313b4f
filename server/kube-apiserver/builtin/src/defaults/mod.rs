//! Defaults of the built-in kinds, as set by kube-apiserver's versioned defaulting.

use serde_json::{Value, json};

use super::object::{
    at, at_mut, for_each_item, is_set, is_unset, items, set_default, set_field, set_pointer_default, text,
};

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
            pod::set_pod_defaults(object);
            if let Some(status) = at_mut(object, "status") {
                synchronize_first(status, "podIP", "podIPs", |address| json!({"ip": address}));
            }
        }
        ("", "PodTemplate") => set_template_defaults(object, "template"),
        ("", "ReplicationController") => workload::set_replication_controller_defaults(object),
        ("apps", "Deployment") => workload::set_deployment_defaults(object),
        ("apps", "ReplicaSet") => workload::set_replica_set_defaults(object),
        ("apps", "StatefulSet") => workload::set_stateful_set_defaults(object),
        ("apps", "DaemonSet") => workload::set_daemon_set_defaults(object),
        ("batch", "Job") => batch::set_job_defaults(object),
        ("batch", "CronJob") => batch::set_cron_job_defaults(object),
        ("", "Service") => network::set_service_defaults(object),
        ("", "Endpoints") => network::set_endpoints_defaults(object),
        ("discovery.k8s.io", "EndpointSlice") => network::set_endpoint_slice_defaults(object),
        ("networking.k8s.io", "NetworkPolicy") => network::set_network_policy_defaults(object),
        ("networking.k8s.io", "IngressClass") => {
            if let Some(parameters) = at_mut(object, "spec.parameters") {
                set_pointer_default(parameters, "scope", "Cluster");
            }
        }
        ("", "PersistentVolume") => storage::set_persistent_volume_defaults(object),
        ("", "PersistentVolumeClaim") => storage::set_claim_defaults(object),
        ("storage.k8s.io", _) => storage::set_storage_group_defaults(kind, object),
        ("", "Secret") => cluster::set_secret_defaults(object),
        ("", "Namespace") => cluster::set_namespace_defaults(object),
        ("", "Node") => {
            cluster::set_node_defaults(object);
            if let Some(spec) = at_mut(object, "spec") {
                synchronize_first(spec, "podCIDR", "podCIDRs", |range| json!(range));
            }
        }
        ("", "LimitRange") => cluster::set_limit_range_defaults(object),
        ("autoscaling", _) => cluster::set_autoscaler_defaults(version, object),
        ("rbac.authorization.k8s.io", _) => cluster::set_rbac_defaults(kind, object),
        ("admissionregistration.k8s.io", _) => cluster::set_admission_defaults(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => cluster::set_crd_defaults(object),
        ("apiregistration.k8s.io", "APIService") => {
            if let Some(service) = at_mut(object, "spec.service") {
                set_default(service, "port", 443);
            }
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            set_pointer_default(object, "preemptionPolicy", "PreemptLowerPriority")
        }
        ("flowcontrol.apiserver.k8s.io", _) => cluster::set_flow_control_defaults(kind, object),
        _ => {}
    }
}

/// Synchronizes a list with the older field that holds its first element. If they differ, the older field takes
/// precedence, because older clients know only that one.
fn synchronize_first(object: &mut Value, one: &str, many: &str, entry: fn(&str) -> Value) {
    let single_value = text(object, one).to_owned();
    let first = items(object, many).first().cloned();
    if !single_value.is_empty() && first.as_ref() != Some(&entry(&single_value)) {
        set_field(object, many, vec![entry(&single_value)]);
    } else if single_value.is_empty()
        && let Some(first) = first
    {
        let single = first.get("ip").cloned().unwrap_or(first);
        set_field(object, one, single);
    }
}

fn set_template_defaults(object: &mut Value, path: &str) {
    if let Some(template) = at_mut(object, path) {
        pod::set_template_defaults(template);
    }
}
