//! Builds the binding of a template from the policy and the template. Fields of other owners (scheduled clusters,
//! dependents, eviction tasks, scheduling suspension) are kept.

use crowsnest_api::Scope;
use crowsnest_api::constants::{finalizer as finalizers, label as labels};
use crowsnest_api::keys::binding_kind;
use crowsnest_api::permanent_id;
use crowsnest_api::policy::PropagationSpec;
use crowsnest_api::work::{
    Component, ObjectReference, ReplicaRequirements, ResourceBindingSpec, SchedulePriority, Suspension,
    WorkloadAffinityGroups,
};
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::choice::Policy;
use super::claim;
use crate::gates::Gates;

/// Replica facts of a template from the resource interpreter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplicaFacts {
    pub replicas: i32,
    pub requirements: Option<ReplicaRequirements>,
    pub components: Vec<Component>,
}

fn finalizer(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespaced => finalizers::BINDING_CONTROLLER,
        Scope::Cluster => finalizers::CLUSTER_RESOURCE_BINDING_CONTROLLER,
    }
}

/// The write that a binding needs.
#[derive(Debug, Clone, PartialEq)]
pub enum BindingPlan {
    Keep,
    Create(Value),
    Update(Value),
    /// The binding belongs to a previous object of the same name, which the garbage collector must delete first.
    WaitForGarbageCollection,
}

/// Input of a binding.
pub struct BindingInput<'a> {
    pub template: &'a Value,
    pub policy: &'a Policy<'a>,
    pub replica_facts: ReplicaFacts,
    /// Value of the policy's PriorityClass.
    pub priority: Option<i32>,
    pub gates: Gates,
    /// True if a user changed the template, so that the recorded resourceVersion is updated even without other
    /// changes.
    pub template_changed: bool,
    /// Identity for a binding that does not exist yet.
    pub new: NewBinding<'a>,
}

/// Name and permanent id of a new binding.
#[derive(Debug, Clone, Copy)]
pub struct NewBinding<'a> {
    pub name: &'a str,
    pub permanent_id: &'a str,
}

/// Plans the binding of a template. `existing` is the stored binding.
pub fn plan(input: &BindingInput<'_>, existing: Option<&Value>) -> BindingPlan {
    let scope = Scope::from_namespace(unstructured::namespace(input.template));
    let spec = build_spec(input, scope);
    let Some(existing) = existing else { return BindingPlan::Create(build_binding(input, scope, &spec)) };
    if owner_uid(existing).is_some_and(|uid| uid != unstructured::uid(input.template)) {
        return BindingPlan::WaitForGarbageCollection;
    }
    let updated = update_binding(input, scope, &spec, existing);
    let is_unchanged = match input.template_changed {
        true => unstructured::semantically_equal(existing, &updated),
        false => {
            let mut updated = updated.clone();
            let version = unstructured::at(existing, &["spec", "resource", "resourceVersion"]).cloned();
            unstructured::set(&mut updated, &["spec", "resource", "resourceVersion"], version.unwrap_or(Value::Null));
            unstructured::semantically_equal(existing, &updated)
        }
    };
    if is_unchanged { BindingPlan::Keep } else { BindingPlan::Update(updated) }
}

/// UID of the controlling owner.
pub fn owner_uid(object: &Value) -> Option<&str> {
    let owners = unstructured::at(object, &["metadata", "ownerReferences"])?.as_array()?;
    let is_controller = |owner: &&Value| owner.get("controller").and_then(Value::as_bool).unwrap_or_default();
    owners.iter().find(is_controller).map(|owner| unstructured::text(owner, &["uid"]))
}

/// Owner reference of the controller, with which the object is garbage-collected together with its owner.
pub fn controller_reference(owner: &Value) -> Value {
    json!({
        "apiVersion": unstructured::api_version(owner), "kind": unstructured::kind(owner),
        "name": unstructured::name(owner), "uid": unstructured::uid(owner),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Reference of a binding to its template.
pub fn reference(template: &Value) -> ObjectReference {
    ObjectReference {
        api_version: unstructured::api_version(template).to_owned(),
        kind: unstructured::kind(template).to_owned(),
        namespace: unstructured::namespace(template).to_owned(),
        name: unstructured::name(template).to_owned(),
        uid: unstructured::uid(template).to_owned(),
        resource_version: unstructured::resource_version(template).to_owned(),
    }
}

fn build_spec(input: &BindingInput<'_>, scope: Scope) -> ResourceBindingSpec {
    let policy: &PropagationSpec = input.policy.spec;
    let is_namespaced = scope == Scope::Namespaced;
    ResourceBindingSpec {
        resource: reference(input.template),
        propagate_deps: policy.propagate_deps,
        replica_requirements: input.replica_facts.requirements.clone(),
        replicas: input.replica_facts.replicas,
        components: input.replica_facts.components.clone(),
        placement: Some(policy.placement.clone()),
        scheduler_name: policy.scheduler_name.clone(),
        failover: policy.failover.clone(),
        conflict_resolution: policy.conflict_resolution.clone(),
        suspension: policy.suspension.clone().map(|policy| Suspension { policy, scheduling: None }),
        preserve_resources_on_deletion: policy.preserve_resources_on_deletion,
        schedule_priority: input.priority.filter(|_| is_namespaced).map(|priority| SchedulePriority { priority }),
        workload_affinity_groups: if is_namespaced { affinity_groups(input) } else { None },
        ..ResourceBindingSpec::default()
    }
}

fn affinity_groups(input: &BindingInput<'_>) -> Option<WorkloadAffinityGroups> {
    let affinity = input.policy.spec.placement.workload_affinity.as_ref().filter(|_| input.gates.workload_affinity)?;
    let group = |key: Option<&String>| {
        let value = key.and_then(|key| Some(format!("{key}={}", unstructured::label(input.template, key)?)));
        value.unwrap_or_default()
    };
    let groups = WorkloadAffinityGroups {
        affinity_group: group(affinity.affinity.as_ref().map(|term| &term.group_by_label_key)),
        anti_affinity_group: group(affinity.anti_affinity.as_ref().map(|term| &term.group_by_label_key)),
    };
    (groups != WorkloadAffinityGroups::default()).then_some(groups)
}

fn build_binding(input: &BindingInput<'_>, scope: Scope, spec: &ResourceBindingSpec) -> Value {
    let template = input.template;
    let mut binding = json!({
        "apiVersion": "work.karmada.io/v1alpha2",
        "kind": binding_kind(scope),
        "metadata": {
            "name": input.new.name,
            "finalizers": [finalizer(scope)],
            "ownerReferences": [controller_reference(template)],
        },
        "spec": spec,
    });
    if scope == Scope::Namespaced {
        unstructured::set(&mut binding, &["metadata", "namespace"], json!(unstructured::namespace(template)));
    }
    claim_binding(&mut binding, input.policy);
    unstructured::set_label(&mut binding, permanent_id::binding_label(scope), input.new.permanent_id);
    binding
}

fn claim_binding(binding: &mut Value, policy: &Policy<'_>) {
    let (claim_labels, claim_annotations) = claim::metadata(policy);
    for (key, value) in claim_labels {
        unstructured::set_label(binding, key, &value);
    }
    for (key, value) in claim_annotations {
        unstructured::set_annotation(binding, key, &value);
    }
}

/// Spec fields that are copied from policy or template, in bindings of both scopes.
const MANAGED_FIELDS: [&str; 9] = [
    "resource",
    "replicaRequirements",
    "replicas",
    "components",
    "schedulerName",
    "placement",
    "failover",
    "conflictResolution",
    "preserveResourcesOnDeletion",
];

/// Spec fields that are copied from policy or template, in ResourceBindings only.
const MANAGED_FIELDS_NAMESPACED: [&str; 3] = ["propagateDeps", "schedulePriority", "workloadAffinityGroups"];

fn update_binding(input: &BindingInput<'_>, scope: Scope, spec: &ResourceBindingSpec, existing: &Value) -> Value {
    let mut updated = existing.clone();
    let desired = json!(spec);
    let namespaced: &[&str] = if scope == Scope::Namespaced { &MANAGED_FIELDS_NAMESPACED } else { &[] };
    for field in MANAGED_FIELDS.iter().chain(namespaced) {
        match desired.get(field) {
            Some(value) => unstructured::set(&mut updated, &["spec", field], value.clone()),
            // The API server would set the default again, so removing the field has no effect.
            None if *field == "conflictResolution" => {}
            None => {
                unstructured::remove(&mut updated, &["spec", field]);
            }
        }
    }
    merge_suspension(&mut updated, desired.get("suspension"));
    claim_binding(&mut updated, input.policy);
    if !input.policy.namespace.is_empty() {
        unstructured::remove(&mut updated, &["metadata", "labels", labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID]);
        let name = crowsnest_api::constants::annotation::CLUSTER_PROPAGATION_POLICY_NAME;
        unstructured::remove(&mut updated, &["metadata", "annotations", name]);
    }
    if !unstructured::has_finalizer(&updated, finalizer(scope)) {
        let mut finalizers: Vec<String> = unstructured::finalizers(&updated).map(str::to_owned).collect();
        finalizers.push(finalizer(scope).to_owned());
        unstructured::set(&mut updated, &["metadata", "finalizers"], json!(finalizers));
    }
    unstructured::set(&mut updated, &["metadata", "ownerReferences"], json!([controller_reference(input.template)]));
    updated
}

/// Merges suspensions: `dispatching` is set by the policy, `scheduling` is kept as other writers set it.
fn merge_suspension(binding: &mut Value, policy_suspension: Option<&Value>) {
    let scheduling = unstructured::at(binding, &["spec", "suspension", "scheduling"]).cloned();
    let mut merged = policy_suspension.cloned().unwrap_or_else(|| json!({}));
    if let Some(scheduling) = scheduling {
        unstructured::set(&mut merged, &["scheduling"], scheduling);
    } else if policy_suspension.is_none() {
        unstructured::remove(binding, &["spec", "suspension"]);
        return;
    }
    unstructured::set(binding, &["spec", "suspension"], merged);
}
