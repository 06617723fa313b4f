//! Builds the Work of a binding in one cluster. It equals Karmada's in every annotation, so that Works of an existing
//! control plane are adopted without a write.

use std::collections::BTreeMap;

use crowsnest_api::Scope;
use crowsnest_api::constants::annotation::EXCLUSIVE;
use crowsnest_api::names::{execution_namespace, work_name};
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::permanent_id;
use crowsnest_api::policy::{ConflictResolution, PurgeMode};
use crowsnest_api::work::{ResourceBindingSpec, Suspension, TargetCluster};
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::managed::{self, MANAGED_LABEL, WORK_PERMANENT_ID};
use super::prune::{prune, prune_job_ttl};
use crate::overriding;
use crate::propagation::binding::ReplicaFacts;
use crate::scheduling::{TieBreak, divide};

pub const EXECUTION_FINALIZER: &str = "karmada.io/execution-controller";
pub const CONFLICT_RESOLUTION: &str = "work.karmada.io/conflict-resolution";
/// Applied overrides. As in Karmada, the annotations stay after the last override is removed.
const APPLIED_OVERRIDES: [&str; 2] =
    ["policy.karmada.io/applied-cluster-overrides", "policy.karmada.io/applied-overrides"];

/// The binding that a Work is built for.
#[derive(Debug, Clone, Copy)]
pub struct BindingIdentity<'a> {
    /// Empty for a ClusterResourceBinding.
    pub namespace: &'a str,
    pub name: &'a str,
    pub permanent_id: &'a str,
}

impl<'a> BindingIdentity<'a> {
    pub fn from_binding(binding: &'a Value) -> Self {
        BindingIdentity {
            namespace: unstructured::namespace(binding),
            name: unstructured::name(binding),
            permanent_id: permanent_id::binding_id(binding),
        }
    }
}

impl BindingIdentity<'_> {
    /// Label with the binding's permanent id on Works.
    pub fn id_label(&self) -> &'static str {
        permanent_id::binding_label(Scope::from_namespace(self.namespace))
    }

    fn annotations(&self) -> Vec<(&'static str, &str)> {
        match self.namespace {
            "" => vec![("clusterresourcebinding.karmada.io/name", self.name)],
            namespace => {
                vec![
                    ("resourcebinding.karmada.io/namespace", namespace),
                    ("resourcebinding.karmada.io/name", self.name),
                ]
            }
        }
    }
}

/// Fields of a Work's spec besides the manifest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkOptions {
    pub suspend_dispatching: Option<bool>,
    pub preserve_resources_on_deletion: Option<bool>,
}

/// A desired Work. Its permanent id is that of the existing Work, or a new one.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredWork {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owner: Option<Value>,
    pub options: WorkOptions,
    /// Finalizer of the Work. Empty for a Work without finalizer.
    pub finalizer: &'static str,
    /// The manifest, complete except for the permanent id.
    pub manifest: Value,
}

/// Clusters that a binding's object must be in: scheduled clusters, then those of bindings that depend on it.
pub fn targets(spec: &ResourceBindingSpec) -> Vec<TargetCluster> {
    let mut targets = spec.clusters.clone();
    for target in spec.required_by.iter().flat_map(|parent| &parent.clusters) {
        if !targets.iter().any(|existing| existing.name == target.name) {
            targets.push(target.clone());
        }
    }
    targets
}

/// True if a Work in `cluster` must exist: for a target, or for a graceful eviction in progress.
pub fn is_expected_in(spec: &ResourceBindingSpec, cluster: &str) -> bool {
    let required = spec.required_by.iter().flat_map(|parent| &parent.clusters).any(|target| target.name == cluster);
    let evicting = spec
        .graceful_eviction_tasks
        .iter()
        .any(|task| task.from_cluster == cluster && task.purge_mode != Some(PurgeMode::Directly));
    spec.targets(cluster) || required || evicting
}

/// Treatment of an existing Work by the binding controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Keep,
    /// The object must be removed, but dispatching to the cluster is suspended: the Work stays until dispatching
    /// resumes.
    Suspend,
    Delete,
}

/// Disposition of the Work in `cluster` while the template exists. When the template is deleted, all Works are
/// deleted, suspended or not.
pub fn disposition(spec: &ResourceBindingSpec, cluster: &str) -> Disposition {
    if is_expected_in(spec, cluster) {
        Disposition::Keep
    } else if is_suspended(spec.suspension.as_ref(), cluster) {
        Disposition::Suspend
    } else {
        Disposition::Delete
    }
}

/// Clusters from which the object must be deleted before it is created elsewhere (purge mode `Directly`).
pub fn directly_purged_clusters(spec: &ResourceBindingSpec) -> Vec<&str> {
    let direct = spec.graceful_eviction_tasks.iter().filter(|task| task.purge_mode == Some(PurgeMode::Directly));
    direct.map(|task| task.from_cluster.as_str()).collect()
}

/// Completions per cluster of a divided Job, in proportion to the replicas. Empty if they are not divided.
pub fn job_completions(
    spec: &ResourceBindingSpec,
    template: &Value,
    targets: &[TargetCluster],
) -> BTreeMap<String, i32> {
    let divided =
        spec.placement.as_ref().and_then(|placement| placement.replica_scheduling.as_ref()).is_some_and(|strategy| {
            strategy.replica_scheduling_type == Some(crowsnest_api::policy::ReplicaSchedulingType::Divided)
        });
    let completions = unstructured::integer(template, &["spec", "completions"]);
    let Some(completions) =
        completions.filter(|_| unstructured::kind(template) == "Job" && divided && spec.replicas > 0)
    else {
        return BTreeMap::new();
    };
    // The replicas of a cluster are its votes in the apportionment of the completions.
    let votes = targets.iter().map(|target| (target.name.as_str(), i64::from(target.replicas)));
    let seats = i32::try_from(completions).unwrap_or(i32::MAX);
    let divided = divide(seats, votes, TieBreak::from_uid(unstructured::uid(template)));
    divided.into_iter().map(|(name, seats)| (name.to_owned(), seats)).collect()
}

/// True if the binding permits the requests of the current template per replica and component.
pub fn permits_requests(spec: &ResourceBindingSpec, template: &ReplicaFacts) -> bool {
    let is_equal = |left: Value, right: Value| unstructured::semantically_equal(&left, &right);
    is_equal(json!(spec.replica_requirements), json!(template.requirements))
        && is_equal(json!(spec.components), json!(template.components))
}

/// True if dispatching to a cluster is suspended.
pub fn is_suspended(suspension: Option<&Suspension>, cluster: &str) -> bool {
    let Some(suspension) = suspension else { return false };
    let on_cluster = || {
        let clusters = suspension.policy.dispatching_on_clusters.as_ref();
        clusters.is_some_and(|clusters| clusters.cluster_names.iter().any(|name| name == cluster))
    };
    suspension.policy.dispatching.unwrap_or_default() || on_cluster()
}

/// The Work of a binding's object in one cluster. `manifest` is the template with the cluster's replicas and overrides
/// applied. With `inject_state` (feature gate `StatefulFailoverInjection`), an object with a single target gets the
/// labels preserved on failover.
pub fn work_for_binding(
    spec: &ResourceBindingSpec,
    binding: BindingIdentity<'_>,
    cluster: &str,
    mut manifest: Value,
    overrides: &overriding::AppliedOverrides,
    single_target: bool,
    inject_state: bool,
) -> DesiredWork {
    let mut annotations: BTreeMap<String, String> = BTreeMap::new();
    unstructured::set_label(&mut manifest, binding.id_label(), binding.permanent_id);
    let generation = unstructured::generation(&manifest);
    if generation > 0 {
        unstructured::set_annotation(&mut manifest, "resourcetemplate.karmada.io/generation", &generation.to_string());
    }
    for (key, value) in binding.annotations() {
        unstructured::set_annotation(&mut manifest, key, value);
        annotations.insert(key.to_owned(), value.to_owned());
    }
    let resolution = conflict_resolution(spec, &manifest);
    annotations.insert(CONFLICT_RESOLUTION.to_owned(), resolution.to_owned());
    let (cluster_wide, namespaced) = overrides.annotations();
    let applied = APPLIED_OVERRIDES.into_iter().zip([cluster_wide, namespaced]);
    annotations.extend(applied.filter_map(|(key, text)| Some((key.to_owned(), text?))));
    if inject_state && single_target {
        inject_preserved_state(spec, cluster, &mut manifest);
    }
    let options = WorkOptions {
        suspend_dispatching: Some(is_suspended(spec.suspension.as_ref(), cluster)),
        preserve_resources_on_deletion: Some(spec.preserve_resources_on_deletion.unwrap_or_default()),
    };
    let labels = BTreeMap::from([(binding.id_label().to_owned(), binding.permanent_id.to_owned())]);
    let name = ObjectIdentity::from_object(&manifest).work_name(binding.name);
    wrap_as(name, cluster, manifest, labels, annotations, options)
}

/// A Work for any object, for the namespace, unified auth and quota controllers.
pub fn wrap(
    cluster: &str,
    manifest: Value,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    options: WorkOptions,
) -> DesiredWork {
    let name =
        work_name(unstructured::kind(&manifest), unstructured::name(&manifest), unstructured::namespace(&manifest));
    wrap_as(name, cluster, manifest, labels, annotations, options)
}

fn wrap_as(
    name: String,
    cluster: &str,
    mut manifest: Value,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    options: WorkOptions,
) -> DesiredWork {
    let namespace = execution_namespace(cluster);
    let uid = unstructured::uid(&manifest).to_owned();
    unstructured::set_label(&mut manifest, MANAGED_LABEL, "true");
    unstructured::set_annotation(&mut manifest, "resourcetemplate.karmada.io/uid", &uid);
    unstructured::set_annotation(&mut manifest, "work.karmada.io/name", &name);
    unstructured::set_annotation(&mut manifest, "work.karmada.io/namespace", &namespace);
    if let Some(resolution) = annotations.get(CONFLICT_RESOLUTION) {
        unstructured::set_annotation(&mut manifest, CONFLICT_RESOLUTION, resolution);
    }
    prune(&mut manifest);
    prune_job_ttl(&mut manifest);
    let finalizer = EXECUTION_FINALIZER;
    DesiredWork { namespace, name, labels, annotations, owner: None, options, finalizer, manifest }
}

/// The template's annotation takes precedence over the policy.
fn conflict_resolution(spec: &ResourceBindingSpec, manifest: &Value) -> &'static str {
    match unstructured::annotation(manifest, CONFLICT_RESOLUTION) {
        Some("overwrite") => "overwrite",
        Some("abort") => "abort",
        _ if spec.conflict_resolution == Some(ConflictResolution::Overwrite) => "overwrite",
        _ => "abort",
    }
}

/// Injects the labels preserved from the cluster that a failed-over application left.
fn inject_preserved_state(spec: &ResourceBindingSpec, cluster: &str, manifest: &mut Value) {
    let Some(task) = spec.graceful_eviction_tasks.last() else { return };
    let moved_here = !task.clusters_before_failover.iter().any(|name| name == cluster);
    if task.purge_mode == Some(PurgeMode::Directly) && moved_here {
        for (key, value) in &task.preserved_label_state {
            unstructured::set_label(manifest, key, value);
        }
    }
}

/// The write that a Work needs.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkPlan {
    Keep,
    Create(Value),
    /// The complete object, with the resourceVersion of the existing Work.
    Update(Value),
    /// The existing Work is being deleted; the new one must wait.
    WaitForDeletion,
}

impl DesiredWork {
    /// Compares with the existing Work. `new_permanent_id` is used only for a new Work.
    pub fn plan(&self, existing: Option<&Value>, new_permanent_id: &str) -> WorkPlan {
        let Some(existing) = existing else { return WorkPlan::Create(self.build(new_permanent_id)) };
        if unstructured::is_terminating(existing) {
            return WorkPlan::WaitForDeletion;
        }
        let permanent_id = unstructured::label(existing, WORK_PERMANENT_ID).unwrap_or(new_permanent_id);
        let mut updated = existing.clone();
        for (key, value) in &self.labels {
            unstructured::set_label(&mut updated, key, value);
        }
        unstructured::set_label(&mut updated, WORK_PERMANENT_ID, permanent_id);
        for (key, value) in &self.annotations {
            unstructured::set_annotation(&mut updated, key, value);
        }
        // The workload may no longer be exclusive.
        if !self.annotations.contains_key(EXCLUSIVE)
            && let Some(annotations) = updated.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
        {
            annotations.remove(EXCLUSIVE);
        }
        if !self.finalizer.is_empty() && !unstructured::has_finalizer(&updated, self.finalizer) {
            let mut finalizers: Vec<String> = unstructured::finalizers(&updated).map(str::to_owned).collect();
            finalizers.push(self.finalizer.to_owned());
            unstructured::set(&mut updated, &["metadata", "finalizers"], json!(finalizers));
        }
        updated["spec"] = self.spec(permanent_id);
        if unstructured::semantically_equal(existing, &updated) { WorkPlan::Keep } else { WorkPlan::Update(updated) }
    }

    fn build(&self, permanent_id: &str) -> Value {
        let mut labels = self.labels.clone();
        labels.insert(WORK_PERMANENT_ID.to_owned(), permanent_id.to_owned());
        let mut work = json!({
            "apiVersion": "work.karmada.io/v1alpha1",
            "kind": "Work",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": labels,
            },
            "spec": self.spec(permanent_id),
        });
        if !self.finalizer.is_empty() {
            work["metadata"]["finalizers"] = json!([self.finalizer]);
        }
        if !self.annotations.is_empty() {
            work["metadata"]["annotations"] = json!(self.annotations);
        }
        if let Some(owner) = &self.owner {
            work["metadata"]["ownerReferences"] = json!([owner]);
        }
        work
    }

    fn spec(&self, permanent_id: &str) -> Value {
        let mut manifest = self.manifest.clone();
        managed::set_work_id(&mut manifest, permanent_id);
        let mut spec = json!({"workload": {"manifests": [manifest]}});
        if let Some(suspend) = self.options.suspend_dispatching {
            spec["suspendDispatching"] = json!(suspend);
        }
        if let Some(preserve) = self.options.preserve_resources_on_deletion {
            spec["preserveResourcesOnDeletion"] = json!(preserve);
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn needs(cpu: &str) -> Value {
        json!({"resourceRequest": {"cpu": cpu}})
    }

    #[rstest]
    #[case::without_requests(json!({}), json!({}), true)]
    #[case::the_same(json!({"replicaRequirements": needs("1")}), json!({"replicaRequirements": needs("1")}), true)]
    #[case::more_replicas(
        json!({"replicas": 1, "replicaRequirements": needs("1")}),
        json!({"replicas": 9, "replicaRequirements": needs("1")}),
        true
    )]
    #[case::larger_requests(json!({"replicaRequirements": needs("1")}), json!({"replicaRequirements": needs("2")}), false)]
    #[case::requests_added(json!({}), json!({"replicaRequirements": needs("2")}), false)]
    #[case::larger_requests_of_a_component(
        json!({"components": [{"name": "a", "replicas": 1, "replicaRequirements": needs("1")}]}),
        json!({"components": [{"name": "a", "replicas": 1, "replicaRequirements": needs("2")}]}),
        false
    )]
    fn binding_permits_its_requests(#[case] binding: Value, #[case] template: Value, #[case] expected: bool) {
        let spec = |mut spec: Value| -> ResourceBindingSpec {
            spec["resource"] = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
            serde_json::from_value(spec).expect("a spec")
        };
        let (binding, template) = (spec(binding), spec(template));
        let replica_facts = ReplicaFacts {
            replicas: template.replicas,
            requirements: template.replica_requirements,
            components: template.components,
        };
        assert_eq!(permits_requests(&binding, &replica_facts), expected);
    }
}
