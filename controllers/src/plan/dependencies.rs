//! Dependencies: bindings for what a propagated object needs beside it, in every cluster it goes to.

use crowsnest_api::constants::{annotation as annotations, finalizer as finalizers, label as labels};
use crowsnest_api::names::{binding_name, binding_reference_key};
use crowsnest_api::policy::ConflictResolution;
use crowsnest_api::work::{BindingSnapshot, TargetCluster};
use serde_json::{Value, json};

use super::interpreter::dependencies::Dependency;
use super::object;
use super::propagation::binding::{controller_reference, owner_uid, reference};

/// The binding whose object has dependencies.
pub struct Parent<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub permanent_id: &'a str,
    pub clusters: &'a [TargetCluster],
    pub conflict_resolution: Option<&'a ConflictResolution>,
    pub preserve_resources_on_deletion: Option<bool>,
}

impl Parent<'_> {
    /// The label that ties attached bindings to this parent.
    pub fn label(&self) -> String {
        format!("{}{}", labels::DEPENDED_BY_PREFIX, binding_reference_key(self.namespace, self.name))
    }
}

/// The `resourcebinding.karmada.io/dependencies` annotation of the parent.
pub fn annotation(dependencies: &[Dependency]) -> Value {
    // Go writes an empty list that was never made as null, and readers of the annotation expect that.
    let text = match dependencies {
        [] => "null".to_owned(),
        dependencies => serde_json::to_string(dependencies).unwrap_or_default(),
    };
    json!({ annotations::DEPENDENCIES: text })
}

/// What to do about an attached binding.
#[derive(Debug, Clone, PartialEq)]
pub enum AttachedPlan {
    Keep,
    Create(Value),
    Update(Value),
    WaitForGarbageCollection,
}

/// The attached binding of one dependency with this parent in it.
pub fn attach(parent: &Parent<'_>, template: &Value, existing: Option<&Value>, new_permanent_id: &str) -> AttachedPlan {
    let snapshot = BindingSnapshot {
        namespace: parent.namespace.to_owned(),
        name: parent.name.to_owned(),
        clusters: parent.clusters.to_vec(),
    };
    let Some(existing) = existing else {
        return AttachedPlan::Create(create(parent, template, &snapshot, new_permanent_id));
    };
    if owner_uid(existing).is_some_and(|uid| uid != object::uid(template)) {
        return AttachedPlan::WaitForGarbageCollection;
    }
    let mut updated = existing.clone();
    object::set_label(&mut updated, &parent.label(), parent.permanent_id);
    let mut required: Vec<BindingSnapshot> = required_by(existing);
    match required.iter_mut().find(|known| known.namespace == snapshot.namespace && known.name == snapshot.name) {
        Some(known) => *known = snapshot,
        None => required.push(snapshot),
    }
    object::set(&mut updated, &["spec", "requiredBy"], json!(required));
    let mut resource = json!(reference(template));
    let recorded = object::at(existing, &["spec", "resource", "resourceVersion"]).cloned();
    if object::text(existing, &["spec", "resource", "uid"]) == object::uid(template) {
        resource["resourceVersion"] = recorded.unwrap_or(Value::Null);
    }
    object::set(&mut updated, &["spec", "resource"], resource);
    if existing.get("spec").and_then(|spec| spec.get("placement")).is_none() {
        merge_behaviour(&mut updated, parent);
    }
    if object::semantically_equal(existing, &updated) { AttachedPlan::Keep } else { AttachedPlan::Update(updated) }
}

/// Namespaces and names of the bindings that require an attached one.
pub fn parents(binding: &Value) -> Vec<(String, String)> {
    required_by(binding).into_iter().map(|parent| (parent.namespace, parent.name)).collect()
}

fn required_by(binding: &Value) -> Vec<BindingSnapshot> {
    object::at(binding, &["spec", "requiredBy"])
        .and_then(|list| serde_json::from_value(list.clone()).ok())
        .unwrap_or_default()
}

/// Of several parents the stronger wish wins: overwrite, and preserve.
fn merge_behaviour(binding: &mut Value, parent: &Parent<'_>) {
    if parent.conflict_resolution == Some(&ConflictResolution::Overwrite) {
        object::set(binding, &["spec", "conflictResolution"], json!("Overwrite"));
    }
    if parent.preserve_resources_on_deletion == Some(true) {
        object::set(binding, &["spec", "preserveResourcesOnDeletion"], json!(true));
    }
}

fn create(parent: &Parent<'_>, template: &Value, snapshot: &BindingSnapshot, permanent_id: &str) -> Value {
    let mut binding = json!({
        "apiVersion": "work.karmada.io/v1alpha2",
        "kind": "ResourceBinding",
        "metadata": {
            "name": binding_name(object::kind(template), object::name(template)),
            "namespace": object::namespace(template),
            "labels": {
                parent.label(): parent.permanent_id,
                labels::RESOURCE_BINDING_PERMANENT_ID: permanent_id,
            },
            "finalizers": [finalizers::BINDING_CONTROLLER],
            "ownerReferences": [controller_reference(template)],
        },
        "spec": {
            "resource": reference(template),
            "requiredBy": [snapshot],
        },
    });
    if let Some(resolution) = parent.conflict_resolution {
        object::set(&mut binding, &["spec", "conflictResolution"], json!(resolution));
    }
    if let Some(preserve) = parent.preserve_resources_on_deletion {
        object::set(&mut binding, &["spec", "preserveResourcesOnDeletion"], json!(preserve));
    }
    binding
}

/// The attached binding without this parent, or `None` when it isn't in there. The binding itself stays: without any
/// parent it asks for no cluster, and its Works go. `parent_of` finds the bindings that still require it, by namespace
/// and name; what the departed parent wished for goes with it.
pub fn detach<'a>(
    parent_namespace: &str,
    parent_name: &str,
    existing: &Value,
    parent_of: impl Fn(&str, &str) -> Option<&'a Value>,
) -> Option<Value> {
    let label = format!("{}{}", labels::DEPENDED_BY_PREFIX, binding_reference_key(parent_namespace, parent_name));
    let mut required = required_by(existing);
    let before = required.len();
    required.retain(|known| known.namespace != parent_namespace || known.name != parent_name);
    if required.len() == before && object::label(existing, &label).is_none() {
        return None;
    }
    let mut updated = existing.clone();
    object::remove(&mut updated, &["metadata", "labels", &label]);
    if object::at(existing, &["spec", "placement"]).is_none() {
        let parents: Vec<&Value> =
            required.iter().filter_map(|known| parent_of(&known.namespace, &known.name)).collect();
        let strongest = |field: &str, stronger: Value| {
            let wishes = || parents.iter().filter_map(|parent| object::at(parent, &["spec", field]));
            wishes().find(|wish| **wish == stronger).or_else(|| wishes().next()).cloned()
        };
        for (field, stronger) in
            [("conflictResolution", json!("Overwrite")), ("preserveResourcesOnDeletion", json!(true))]
        {
            match strongest(field, stronger) {
                Some(wish) => object::set(&mut updated, &["spec", field], wish),
                None => drop(object::remove(&mut updated, &["spec", field])),
            }
        }
    }
    if required.is_empty() {
        object::remove(&mut updated, &["spec", "requiredBy"]);
    } else {
        object::set(&mut updated, &["spec", "requiredBy"], json!(required));
    }
    Some(updated)
}
