//! Validation of the built-in kinds, with kube-apiserver's order and wording. `crowsnest-registry` validates generic
//! metadata.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::{
    validate_dns1123_label, validate_dns1123_subdomain, validate_label_value, validate_path_segment,
    validate_qualified_name,
};
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::validation::validate_labels;
use serde_json::{Value, json};

use super::object::{are_equal, at, fields, flag, is_set, is_unset, items, number, text};

mod addresses;
mod admission_policy;
mod autoscaler;
mod batch;
mod cluster;
mod config;
mod container;
mod cron;
mod difference;
mod drivers;
mod env;
mod event;
mod flow;
pub(super) mod go;
mod ingress;
mod job_indexes;
mod job_policy;
mod job_status;
mod mount;
mod network;
mod persistent_volume;
mod pod;
mod pod_context;
mod pod_status;
mod pod_update;
mod probe;
mod quota;
mod rbac;
mod resources;
mod scheduling;
pub(crate) mod selector;
mod service;
mod signing;
mod status;
mod storage;
#[cfg(test)]
mod tests;
mod volume;
mod volume_sources;
pub mod webhook;
mod windows;
mod workload;

/// Validation errors in the order in which they are reported.
#[derive(Default)]
pub(super) struct Errors(Vec<FieldError>);

impl Errors {
    fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    fn required(&mut self, field: impl Into<String>, detail: &str) {
        self.push(FieldError::required(field, detail));
    }

    fn invalid(&mut self, field: impl Into<String>, value: &Value, detail: impl Into<String>) {
        self.push(FieldError::invalid(field, value, detail));
    }

    fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.push(FieldError::forbidden(field, detail));
    }

    fn duplicate(&mut self, field: impl Into<String>, value: &Value) {
        self.push(FieldError::duplicate(field, value));
    }

    fn unsupported(&mut self, field: impl Into<String>, value: &Value, supported: &[&str]) {
        self.push(FieldError::not_supported(field, value, supported));
    }

    /// Adds an error for each reason why a name is invalid.
    fn push_name_errors(&mut self, field: &str, value: &str, reasons: Vec<String>) {
        reasons.into_iter().for_each(|reason| self.invalid(field, &json!(value), reason));
    }

    fn too_many(&mut self, field: impl Into<String>, count: usize, most: usize) {
        let reason = format!("must have at most {most} items");
        self.push(FieldError::new(FieldErrorKind::TooMany, field, Some(count.to_string()), reason));
    }

    fn non_negative(&mut self, field: impl Into<String>, value: &Value) {
        if value.as_i64().is_some_and(|n| n < 0) {
            self.invalid(field, value, "must be greater than or equal to 0");
        }
    }

    /// Requires a value that is one of the supported ones (in the order in which they are printed).
    fn one_of(&mut self, field: &str, value: &Value, supported: &[&str]) {
        if value.is_null() || value == "" {
            self.required(field, "");
        } else if !supported.iter().any(|s| value == s) {
            self.unsupported(field, value, supported);
        }
    }

    /// Like [`Self::one_of`] for a field that may be absent.
    fn optional_one_of(&mut self, field: &str, value: &Value, supported: &[&str]) {
        if !value.is_null() && value != "" {
            self.one_of(field, value, supported);
        }
    }

    fn immutable(&mut self, field: &str, old: &Value, new: &Value) {
        if old != new {
            self.invalid(field, new, "field is immutable");
        }
    }
}

/// Validates a new object.
pub(super) fn validate_create(ctx: &RequestContext, group: &str, kind: &str, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let e = &mut errors;
    match (group, kind) {
        ("", "Pod") => pod::validate_create(e, object),
        ("", "PodTemplate") => pod::validate_pod_template(e, at(object, "template"), "template"),
        ("", "ReplicationController") => workload::validate_replication_controller(e, object),
        ("apps", "Deployment") => workload::validate_deployment(e, object),
        ("apps", "ReplicaSet") => workload::validate_replica_set(e, object),
        ("apps", "StatefulSet") => workload::validate_stateful_set(e, object, true),
        ("apps", "DaemonSet") => workload::validate_daemon_set(e, object),
        ("apps", "ControllerRevision") => workload::validate_controller_revision(e, object),
        ("batch", "Job") => batch::validate_job(e, object),
        ("batch", "CronJob") => batch::validate_cron_job(e, object),
        ("", "Service") => service::validate_create(e, object),
        ("", "Endpoints") => network::validate_endpoints(e, object),
        ("discovery.k8s.io", "EndpointSlice") => network::validate_endpoint_slice(e, object),
        ("networking.k8s.io", "Ingress") => {
            ingress::validate_create(e, object);
            ingress::validate_class_annotation(e, object);
        }
        ("networking.k8s.io", "IngressClass") => ingress::validate_ingress_class(e, object),
        ("networking.k8s.io", "NetworkPolicy") => network::validate_network_policy(e, object),
        ("", "ConfigMap") => config::validate_config_map(e, object),
        ("", "Secret") => config::validate_secret(e, object),
        ("", "PersistentVolumeClaim") => storage::validate_claim_spec(e, at(object, "spec"), "spec"),
        ("", "PersistentVolume") => persistent_volume::validate_persistent_volume(e, object),
        ("storage.k8s.io", "StorageClass") => storage::validate_storage_class(e, object),
        ("storage.k8s.io", _) => drivers::validate_create(e, kind, object),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::validate_autoscaler(e, None, object),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow::validate_flow_schema(e, object),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => flow::validate_priority_level(e, object),
        ("networking.k8s.io", "IPAddress") => addresses::validate_ip_address(e, object),
        ("networking.k8s.io", "ServiceCIDR") => addresses::validate_service_cidr(e, object),
        ("rbac.authorization.k8s.io", _) => rbac::validate_create(e, kind, object),
        ("", "Node") => cluster::validate_node(e, object),
        ("policy", "PodDisruptionBudget") => cluster::validate_disruption_budget(e, object),
        ("coordination.k8s.io", "Lease") => cluster::validate_lease(e, object),
        ("certificates.k8s.io", "CertificateSigningRequest") => cluster::validate_signing_request(e, object),
        ("scheduling.k8s.io", "PriorityClass") => cluster::validate_priority_class(e, object),
        ("node.k8s.io", "RuntimeClass") => cluster::validate_runtime_class(e, object),
        ("", "ResourceQuota") => quota::validate_resource_quota(e, object),
        ("", "LimitRange") => quota::validate_limit_range(e, object),
        ("", "Namespace") => cluster::validate_finalizers(e, object, false),
        ("" | "events.k8s.io", "Event") => event::validate_event(e, group, &ctx.namespace, object),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
            e.0.extend(webhook::validate_webhooks(object));
        }
        ("admissionregistration.k8s.io", _) => e.0.extend(policy_errors(kind, object)),
        _ => {}
    }
    errors.0
}

fn policy_errors(kind: &str, object: &Value) -> Vec<FieldError> {
    match kind {
        "ValidatingAdmissionPolicy" => admission_policy::validate_validating_policy(object),
        "ValidatingAdmissionPolicyBinding" => admission_policy::validate_validating_binding(object),
        "MutatingAdmissionPolicy" => admission_policy::validate_mutating_policy(object),
        "MutatingAdmissionPolicyBinding" => admission_policy::validate_mutating_binding(object),
        _ => Vec::new(),
    }
}

/// Validates an update.
pub(super) fn validate_update(
    ctx: &RequestContext,
    group: &str,
    kind: &str,
    old: &Value,
    new: &Value,
) -> Vec<FieldError> {
    // Written by the server itself: only a binding can set the node of a pod.
    if matches!(ctx.subresource.as_str(), "binding" | "eviction") {
        return Vec::new();
    }
    let mut errors = Errors::default();
    let e = &mut errors;
    if matches!(ctx.subresource.as_str(), "status" | "finalize" | "approval") {
        match kind {
            "Pod" => pod_status::validate_update(e, old, new),
            "CertificateSigningRequest" => signing::validate_update(e, &ctx.subresource, old, new),
            "Namespace" if ctx.subresource == "finalize" => cluster::validate_finalizers(e, new, true),
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "ReplicationController" => {
                workload::validate_status(e, kind, old, new);
            }
            "Node" => cluster::validate_node_update(e, old, new),
            "Job" => job_status::validate_update(e, old, new),
            _ if ctx.subresource == "status" => status::validate_update(e, kind, new),
            _ => {}
        }
        return errors.0;
    }
    match (group, kind) {
        ("", "Pod") => pod_update::validate_update(e, &ctx.subresource, old, new),
        ("", "ConfigMap") | ("", "Secret") => {
            config::validate_update(e, kind, old, new);
            e.0.extend(validate_create(ctx, group, kind, new));
        }
        ("", "Service") => service::validate_update(e, old, new),
        ("apps", "StatefulSet") => {
            workload::validate_stateful_set(e, new, false);
            workload::validate_stateful_set_update(e, old, new);
        }
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => {
            e.0.extend(validate_create(ctx, group, kind, new));
            e.immutable("spec.selector", at(old, "spec.selector"), at(new, "spec.selector"));
        }
        ("batch", "Job") => batch::validate_job_update(e, old, new),
        ("rbac.authorization.k8s.io", _) => {
            e.0.extend(validate_create(ctx, group, kind, new));
            if at(old, "roleRef") != at(new, "roleRef") {
                e.push(go::invalid_struct("roleRef", at(new, "roleRef"), "rbac.RoleRef", "cannot change roleRef"));
            }
        }
        ("", "PersistentVolumeClaim") => storage::validate_claim_update(e, old, new),
        ("", "PersistentVolume") => {
            // Both the strategy and the update validation check it.
            persistent_volume::validate_persistent_volume(e, new);
            persistent_volume::validate_persistent_volume(e, new);
            persistent_volume::validate_persistent_volume_update(e, old, new);
        }
        ("storage.k8s.io", "StorageClass") => storage::validate_storage_class_update(e, old, new),
        ("storage.k8s.io", _) => drivers::validate_update(e, kind, old, new),
        ("scheduling.k8s.io", "PriorityClass") => cluster::validate_priority_class_update(e, old, new),
        // The other fields of a runtime class are mutable and not validated.
        ("node.k8s.io", "RuntimeClass") => {
            cluster::validate_runtime_class(e, new);
            e.immutable("handler", at(old, "handler"), at(new, "handler"));
        }
        ("", "Node") => cluster::validate_node_update(e, old, new),
        ("", "ResourceQuota") => {
            quota::validate_resource_quota(e, new);
            quota::validate_quota_update(e, old, new);
        }
        ("", "Namespace") => {}
        ("networking.k8s.io", "Ingress") => ingress::validate_create(e, new),
        ("policy", "PodDisruptionBudget") => cluster::validate_disruption_budget(e, new),
        ("discovery.k8s.io", "EndpointSlice") => {
            network::validate_endpoint_slice(e, new);
            e.immutable("addressType", at(old, "addressType"), at(new, "addressType"));
        }
        ("networking.k8s.io", "IngressClass") => {
            e.immutable("spec.controller", &json!(text(old, "spec.controller")), &json!(text(new, "spec.controller")));
            ingress::validate_ingress_class(e, new);
        }
        ("networking.k8s.io", "IPAddress") => {
            e.immutable("spec.parentRef", at(old, "spec.parentRef"), at(new, "spec.parentRef"));
        }
        ("networking.k8s.io", "ServiceCIDR") => addresses::validate_service_cidr_update(e, old, new),
        ("apps", "ControllerRevision") => {
            e.non_negative("revision", at(new, "revision"));
            e.immutable("data", at(old, "data"), at(new, "data"));
        }
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::validate_autoscaler(e, Some(old), new),
        (_, "Event") => event::validate_update(e, group, &ctx.namespace, (old, new)),
        _ => e.0.extend(validate_create(ctx, group, kind, new)),
    }
    errors.0
}

/// Validates the cluster IPs and IP families of a Service before allocation.
pub(super) fn cluster_ip_errors(spec: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    service::validate_cluster_ips(&mut errors, spec);
    errors.0
}

/// Validates the name of an object.
pub(super) fn name_errors(group: &str, kind: &str, name: &str, prefix: bool) -> Vec<String> {
    // The prefix of a generated name may end with a dash, because a suffix follows.
    let ends_with_dash = prefix && name.len() > 1 && name.ends_with('-');
    let checked_name = if ends_with_dash { format!("{}a", &name[..name.len() - 1]) } else { name.to_owned() };
    match (group, kind) {
        ("", "Service" | "Namespace") | ("apps", "StatefulSet") => validate_dns1123_label(&checked_name),
        ("networking.k8s.io", "IPAddress") => addresses::address_error(name).into_iter().collect(),
        ("rbac.authorization.k8s.io", _)
        | ("", "Event")
        | ("policy", "PodDisruptionBudget")
        | ("certificates.k8s.io", "CertificateSigningRequest") => validate_path_segment(name, prefix),
        _ => validate_dns1123_subdomain(&checked_name),
    }
}

/// `IsValidPortNum`.
fn port_number_error(value: i64) -> Option<&'static str> {
    (!(1..=65535).contains(&value)).then_some("must be between 1 and 65535, inclusive")
}

/// `IsValidPortName`.
fn port_name_errors(name: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if name.len() > 15 {
        reasons.push("must be no more than 15 characters".to_owned());
    }
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        reasons.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        reasons.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        reasons.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        reasons.push("must not begin or end with a hyphen".to_owned());
    }
    reasons
}

/// Validates a port number or name.
fn validate_port(e: &mut Errors, field: &str, value: &Value) {
    match value {
        Value::String(name) => e.push_name_errors(field, name, port_name_errors(name)),
        other => {
            if let Some(reason) = port_number_error(other.as_i64().unwrap_or(0)) {
                e.invalid(field, &json!(other.as_i64().unwrap_or(0)), reason);
            }
        }
    }
}
