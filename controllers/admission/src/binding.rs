//! Admission of ResourceBindings and ClusterResourceBindings.

use std::collections::BTreeSet;

use crowsnest_api::config::DependentObjectReference;
use crowsnest_api::constants::{annotation, label};
use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_api::work::{ClusterResourceBinding, Component, ResourceBinding, ResourceBindingSpec};
use crowsnest_apimachinery::field::FieldError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::decode::{decode, encode_changed};
use super::{AdmissionContext, Operation, Outcome, Refusal, Request, Review, metadata, quota};

pub(super) fn mutate(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let mut binding: ResourceBinding = decode(&request.object)?;
    if metadata::label(&binding.metadata, label::RESOURCE_BINDING_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut binding.metadata, label::RESOURCE_BINDING_PERMANENT_ID, context.permanent_id);
    }
    encode_changed(&binding, &request.object).map(Outcome::Changed)
}

pub(super) fn mutate_cluster(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let mut binding: ClusterResourceBinding = decode(&request.object)?;
    if metadata::label(&binding.metadata, label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut binding.metadata, label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID, context.permanent_id);
    }
    encode_changed(&binding, &request.object).map(Outcome::Changed)
}

/// The permanent ID is immutable: changing it would orphan the binding's Works, or claim those of another binding.
fn validate_permanent_id(old: &ObjectMeta, new: &ObjectMeta) -> Option<FieldError> {
    let key = label::RESOURCE_BINDING_PERMANENT_ID;
    let (old, new) = (metadata::label(old, key), metadata::label(new, key));
    let is_changed = !old.is_empty() && old != new;
    is_changed.then(|| FieldError::invalid(format!("metadata.labels[{key}]"), new, "field is immutable"))
}

/// Rejects negative replicas, since quotas count them.
fn validate_replicas(spec: &ResourceBindingSpec) -> Vec<FieldError> {
    let clusters = spec.clusters.iter().enumerate();
    let clusters = clusters.map(|(index, target)| (format!("spec.clusters[{index}].replicas"), target.replicas));
    let components = spec.components.iter().enumerate();
    let components =
        components.map(|(index, component)| (format!("spec.components[{index}].replicas"), component.replicas));
    let required = spec.required_by.iter().enumerate().flat_map(|(index, parent)| {
        let clusters = parent.clusters.iter().enumerate();
        clusters.map(move |(at, target)| (format!("spec.requiredBy[{index}].clusters[{at}].replicas"), target.replicas))
    });
    let all =
        [("spec.replicas".to_owned(), spec.replicas)].into_iter().chain(clusters).chain(components).chain(required);
    let negative = all.filter(|(_, replicas)| *replicas < 0);
    negative
        .map(|(field, replicas)| FieldError::invalid(field, &replicas, "must be greater than or equal to 0"))
        .collect()
}

pub(super) fn validate(request: &Request, context: &AdmissionContext<'_>) -> Review {
    match check_binding(request, context) {
        Ok(quota_usage) => Review { outcome: Ok(Outcome::Unchanged), quota_usage },
        Err(refusal) => Review::from(Err(refusal)),
    }
}

/// Validates a binding, and returns the quotas whose usage it increases.
fn check_binding(request: &Request, context: &AdmissionContext<'_>) -> Result<Vec<FederatedResourceQuota>, Refusal> {
    let binding: ResourceBinding = decode(&request.object)?;
    let old = match request.operation {
        Operation::Update => Some(decode::<ResourceBinding>(&request.old_object)?),
        _ => None,
    };
    Refusal::check(&validate_annotations(&binding))?;
    Refusal::check(&validate_resource(old.as_ref(), &binding))?;
    if let Some(error) = old.as_ref().and_then(|old| validate_permanent_id(&old.metadata, &binding.metadata)) {
        Refusal::check(&[error])?;
    }
    if old.as_ref().is_none_or(|old| old.spec != binding.spec) {
        Refusal::check(&validate_replicas(&binding.spec))?;
    }
    let usage = match context.gates.federated_quota_enforcement {
        true => quota::check_quotas(context.quotas, old.as_ref(), &binding)?,
        false => Vec::new(),
    };
    if context.gates.multiple_pod_templates_scheduling {
        Refusal::check(&validate_components(&binding.spec.components))?;
    }
    Ok(usage)
}

/// A binding must refer to an object of its own namespace (`plan::reference::check`). Stored bindings with other
/// references are ignored by controllers, and remain valid until the reference changes.
fn validate_resource(old: Option<&ResourceBinding>, binding: &ResourceBinding) -> Vec<FieldError> {
    let (namespace, resource) = (binding.metadata.namespace.as_deref().unwrap_or_default(), &binding.spec.resource);
    // As in Karmada, a reference without namespace is accepted. Controllers ignore it.
    if namespace.is_empty() || resource.namespace.is_empty() || resource.namespace == namespace {
        return Vec::new();
    }
    if old.is_some_and(|old| old.spec.resource == *resource) {
        return Vec::new();
    }
    vec![FieldError::invalid(
        "spec.resource.namespace",
        &resource.namespace,
        format!("must be the binding's namespace, {namespace}"),
    )]
}

fn validate_annotations(binding: &ResourceBinding) -> Vec<FieldError> {
    let annotations = binding.metadata.annotations.as_ref();
    let Some(dependencies) = annotations.and_then(|annotations| annotations.get(annotation::DEPENDENCIES)) else {
        return Vec::new();
    };
    if serde_json::from_str::<Option<Vec<DependentObjectReference>>>(dependencies).is_ok() {
        return Vec::new();
    }
    let field = format!("metadata.annotations.{}", annotation::DEPENDENCIES);
    vec![FieldError::invalid(field, dependencies, "annotation value must be a valid JSON")]
}

fn validate_components(components: &[Component]) -> Vec<FieldError> {
    let mut names = BTreeSet::new();
    let mut errors = Vec::new();
    for (index, component) in components.iter().enumerate() {
        let detail = if component.name.is_empty() {
            "component names must be non-empty"
        } else if !names.insert(&component.name) {
            "component names must be unique"
        } else {
            continue;
        };
        errors.push(FieldError::invalid(format!("spec.components[{index}].name"), &component.name, detail));
    }
    errors
}
