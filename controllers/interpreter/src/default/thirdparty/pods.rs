//! Requirements and dependencies of pod templates in third-party kinds.

use std::collections::BTreeMap;

use crowsnest_api::work::{Component, ComponentReplicaRequirements, NodeClaim, ReplicaRequirements};
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::super::dependencies::from_pod_spec;
use super::super::replicas::pod_requirements;
use super::accessors::{remove_blanks, require, value_at};
use super::{ReplicasAndRequirements, RuleError};
use crowsnest_apimachinery::unstructured::namespace;
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::gates::Gates;

/// Requirements of a pod template. The priority class is only needed for quota estimates.
pub(super) fn requirements(template: &Value, gates: Gates) -> Option<ReplicaRequirements> {
    let template = remove_blanks(template.clone());
    let mut requirements = pod_requirements(template.get("spec")?)?;
    if !gates.resource_quota_estimate {
        requirements.priority_class_name.clear();
    }
    Some(requirements)
}

/// `replicas` with the requirements of the pod template in `spec.template`, which must exist.
pub(super) fn template_replicas(
    object: &Value,
    replicas: i32,
    gates: Gates,
) -> Result<ReplicasAndRequirements, RuleError> {
    Ok((replicas, requirements(require(object, &["spec", "template"])?, gates)))
}

/// A component with the requirements of its pod template.
pub(super) fn component(name: &str, replicas: i32, template: Option<&Value>, gates: Gates) -> Component {
    let requirements = template.and_then(|template| requirements(template, gates));
    let replica_requirements = requirements.map(|requirements| ComponentReplicaRequirements {
        node_claim: requirements.node_claim,
        resource_request: requirements.resource_request,
        priority_class_name: requirements.priority_class_name,
    });
    Component { name: name.to_owned(), replicas, replica_requirements }
}

/// Requests from the kind's own fields, which are strings or numbers.
pub(super) fn requests<'a>(
    amounts: impl IntoIterator<Item = (&'a str, Value)>,
) -> Result<BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>, RuleError> {
    let amount = |(name, value): (&str, Value)| Ok((name.to_owned(), quantity(&value)?.into()));
    amounts.into_iter().map(amount).collect()
}

pub(super) fn quantity(value: &Value) -> Result<Quantity, RuleError> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    Quantity::parse(&text).map_err(|source| RuleError::Quantity { text, source })
}

/// Node claim from fields of a pod spec or a similar structure.
pub(super) fn node_claim(spec: &Value, with_affinity: bool) -> Result<Option<NodeClaim>, RuleError> {
    let affinity = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let found = [
        ("nodeSelector", value_at(spec, &["nodeSelector"])),
        ("tolerations", value_at(spec, &["tolerations"])),
        ("hardNodeAffinity", value_at(spec, &affinity).filter(|_| with_affinity)),
    ];
    let claim: Map<String, Value> =
        found.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.clone()))).collect();
    if claim.is_empty() {
        return Ok(None);
    }
    let claim = serde_json::from_value(remove_blanks(Value::Object(claim)));
    claim.map(Some).map_err(|source| RuleError::Decode { field: "node claim", source })
}

/// Dependencies of the pod template in `spec.template`.
pub(super) fn template_dependencies(object: &Value) -> Vec<Dependency> {
    dependencies(value_at(object, &["spec", "template"]), object)
}

/// Dependencies of a pod template of `object`.
pub(super) fn dependencies(template: Option<&Value>, object: &Value) -> Vec<Dependency> {
    let namespace = match namespace(object) {
        "" => "default",
        namespace => namespace,
    };
    from_pod_spec(template.and_then(|template| template.get("spec")), namespace)
}

pub(super) fn set_spec_replicas(object: &mut Value, replicas: i32) {
    crowsnest_apimachinery::unstructured::set(object, &["spec", "replicas"], json!(replicas));
}

pub(super) fn set_spec_parallelism(object: &mut Value, replicas: i32) {
    crowsnest_apimachinery::unstructured::set(object, &["spec", "parallelism"], json!(replicas));
}
