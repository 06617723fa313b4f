//! ResourceBinding and ClusterResourceBinding.

use std::collections::BTreeSet;

use crowsnest_api::config::DependentObjectReference;
use crowsnest_api::constants::{annotation, label};
use crowsnest_api::field::FieldError;
use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_api::work::{ClusterResourceBinding, Component, ResourceBinding};

use super::decode::{changed, decode};
use super::{Operation, Outcome, Refusal, Request, Review, World, metadata, quota};

pub(super) fn mutate(request: &Request, world: &World<'_>) -> Result<Outcome, Refusal> {
    let mut binding: ResourceBinding = decode(&request.object)?;
    if metadata::label(&binding.metadata, label::RESOURCE_BINDING_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut binding.metadata, label::RESOURCE_BINDING_PERMANENT_ID, world.permanent_id);
    }
    changed(&binding, &request.object).map(Outcome::Changed)
}

pub(super) fn mutate_cluster(request: &Request, world: &World<'_>) -> Result<Outcome, Refusal> {
    let mut binding: ClusterResourceBinding = decode(&request.object)?;
    if metadata::label(&binding.metadata, label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut binding.metadata, label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID, world.permanent_id);
    }
    changed(&binding, &request.object).map(Outcome::Changed)
}

pub(super) fn validate(request: &Request, world: &World<'_>) -> Review {
    match check(request, world) {
        Ok(quota_usage) => Review { outcome: Ok(Outcome::Unchanged), quota_usage },
        Err(refusal) => Review::from(Err(refusal)),
    }
}

fn check(request: &Request, world: &World<'_>) -> Result<Vec<FederatedResourceQuota>, Refusal> {
    let binding: ResourceBinding = decode(&request.object)?;
    let old = match request.operation {
        Operation::Update => Some(decode::<ResourceBinding>(&request.old_object)?),
        _ => None,
    };
    Refusal::of(&validate_annotations(&binding))?;
    Refusal::of(&validate_resource(old.as_ref(), &binding))?;
    let usage = match world.gates.federated_quota_enforcement {
        true => quota::follow(world.quotas, old.as_ref(), &binding)?,
        false => Vec::new(),
    };
    if world.gates.multiple_pod_templates_scheduling {
        Refusal::of(&validate_components(&binding.spec.components))?;
    }
    Ok(usage)
}

/// Bindings refer to objects of their own namespace (`plan::reference::check`). Stored bindings that refer to others are
/// not followed, and remain valid until the reference changes.
fn validate_resource(old: Option<&ResourceBinding>, binding: &ResourceBinding) -> Vec<FieldError> {
    let (own, to) = (binding.metadata.namespace.as_deref().unwrap_or_default(), &binding.spec.resource);
    if own.is_empty() || to.namespace.is_empty() || to.namespace == own {
        return Vec::new();
    }
    if old.is_some_and(|old| old.spec.resource == *to) {
        return Vec::new();
    }
    vec![FieldError::invalid(
        "spec.resource.namespace",
        &to.namespace,
        format!("must be the binding's namespace, {own}"),
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
