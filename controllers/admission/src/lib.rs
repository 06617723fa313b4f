//! Admission of objects of the Karmada API groups: defaulting (`mutate`), validation with Karmada's messages
//! (`validate`), and conversion of old bindings.
//!
//! All functions are pure: required state is passed as [`AdmissionContext`], and writes are returned in the review. The server
//! receives requests over HTTPS, or directly from the embedded control plane. Clusters and ResourceRegistries are
//! served by the aggregated API, which calls `cluster` and `registry` itself.

pub mod agents;
mod autoscaling;
pub mod backend_store;
pub mod binding;
pub mod cluster;
pub mod configurations;
pub mod convert;
mod cron;
mod decode;
mod deletion;
pub mod destination;
mod ingress;
mod interpreter;
mod metadata;
mod overriding;
mod placement;
mod policy;
pub mod quota;
pub mod registry;
mod review;
mod service;
pub mod stored;
mod taint;
mod work;

pub use configurations::webhook_configurations;
pub use convert::convert_review;
pub use decode::copy_unknown_fields;
pub use review::{Operation, Outcome, Refusal, Request, Review};

use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::policy::FederatedResourceQuota;

pub use crowsnest_plan::gates::Gates;

/// State that decisions need besides the request.
pub struct AdmissionContext<'w> {
    /// A generated id, for objects without one.
    pub permanent_id: &'w str,
    pub gates: Gates,
    /// True if ClusterTaintPolicies may add `NoExecute` taints.
    pub allow_no_execute_taint_policy: bool,
    /// All ResourceInterpreterCustomizations.
    pub customizations: &'w [ResourceInterpreterCustomization],
    /// FederatedResourceQuotas of the request's namespace.
    pub quotas: &'w [FederatedResourceQuota],
    /// Compiles a Lua script. The error is the compiler's message.
    pub compile_lua: &'w dyn Fn(&str) -> Result<(), String>,
}

/// State that the review of a path needs, so that the server reads no more than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequiredState {
    pub customizations: bool,
    pub quotas: bool,
}

/// The state that `review` needs for a path.
pub fn required_state(path: &str) -> RequiredState {
    RequiredState {
        customizations: path == "/validate-resourceinterpretercustomization",
        quotas: path == "/validate-resourcebinding",
    }
}

/// Reviews a request to one of Karmada's webhook paths. `None` for other paths.
pub fn review(path: &str, request: &Request, context: &AdmissionContext<'_>) -> Option<Review> {
    let outcome = match path {
        "/mutate-propagationpolicy" => policy::mutate_propagation_policy(request, context),
        "/mutate-clusterpropagationpolicy" => policy::mutate_cluster_propagation_policy(request, context),
        "/mutate-overridepolicy" => policy::mutate_override_policy(request),
        "/mutate-resourcebinding" => binding::mutate(request, context),
        "/mutate-clusterresourcebinding" => binding::mutate_cluster(request, context),
        "/mutate-work" => work::mutate(request, context),
        "/mutate-federatedhpa" => autoscaling::mutate(request),
        "/mutate-multiclusterservice" => service::mutate(request, context),
        "/validate-propagationpolicy" => policy::validate_propagation_policy(request),
        "/validate-clusterpropagationpolicy" => policy::validate_cluster_propagation_policy(request),
        "/validate-overridepolicy" => overriding::validate(request),
        "/validate-clusteroverridepolicy" => overriding::validate_cluster(request),
        "/validate-resourceinterpreterwebhookconfiguration" => interpreter::validate_webhooks(request),
        "/validate-resourceinterpretercustomization" => interpreter::validate_customization(request, context),
        "/validate-federatedresourcequota" => quota::validate(request),
        "/validate-multiclusteringress" => ingress::validate(request),
        "/validate-federatedhpa" => autoscaling::validate(request),
        "/validate-cronfederatedhpa" => cron::validate(request),
        "/validate-multiclusterservice" => service::validate(request),
        "/validate-resourcedeletionprotection" => deletion::validate(request),
        "/validate-resourcebinding" => return Some(binding::validate(request, context)),
        "/validate-clustertaintpolicy" => taint::validate(request, context),
        _ => return None,
    };
    Some(Review::from(outcome))
}

#[cfg(test)]
mod tests;
