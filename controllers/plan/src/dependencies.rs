//! Dependencies distributor: attached bindings for the objects that a propagated object depends on, in every cluster
//! that it is propagated to.

use crowsnest_api::constants::{annotation as annotations, finalizer as finalizers, label as labels};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::names::binding_reference_key;
use crowsnest_api::policy::ConflictResolution;
use crowsnest_api::work::{BindingSnapshot, ResourceBindingSpec, Suspension, TargetCluster};
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::propagation::binding::{NewBinding, controller_reference, owner_uid, reference};
use super::work::construct::is_suspended;

mod dependency_list;

pub use dependency_list::{Dependency, DependencyList};

/// The binding whose template has dependencies.
pub struct Parent<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub permanent_id: &'a str,
    pub clusters: &'a [TargetCluster],
    pub settings: DependencySettings,
    /// While dispatching to a cluster is suspended, the template stays in the cluster even if it is no longer a target, so
    /// its dependencies stay as well.
    pub suspension: Option<&'a Suspension>,
}

/// Conflict resolution and preservation that a parent binding sets for its dependencies. The defaults are `Abort` and
/// not preserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DependencySettings {
    pub overwrite: bool,
    pub preserve: bool,
}

impl DependencySettings {
    /// Reads the settings from a parent's spec.
    pub fn from_spec(spec: &ResourceBindingSpec) -> Self {
        DependencySettings {
            overwrite: spec.conflict_resolution == Some(ConflictResolution::Overwrite),
            preserve: spec.preserve_resources_on_deletion.unwrap_or_default(),
        }
    }

    fn from_binding(binding: &Value) -> Self {
        DependencySettings {
            overwrite: unstructured::text(binding, &["spec", "conflictResolution"]) == "Overwrite",
            preserve: unstructured::at(binding, &["spec", "preserveResourcesOnDeletion"]) == Some(&json!(true)),
        }
    }

    /// Merges the settings of several parents: `Overwrite` and preserve win.
    fn merge(all: &[DependencySettings]) -> Self {
        DependencySettings {
            overwrite: all.iter().any(|settings| settings.overwrite),
            preserve: all.iter().any(|settings| settings.preserve),
        }
    }

    fn write(self, binding: &mut Value) {
        let resolution = if self.overwrite { ConflictResolution::Overwrite } else { ConflictResolution::Abort };
        unstructured::set(binding, &["spec", "conflictResolution"], json!(resolution));
        unstructured::set(binding, &["spec", "preserveResourcesOnDeletion"], json!(self.preserve));
    }
}

/// Describes in Karmada's words which settings of several parents conflict.
fn describe_conflict(all: &[DependencySettings]) -> Option<String> {
    let differ = |setting: fn(&DependencySettings) -> bool| all.iter().any(setting) && !all.iter().all(setting);
    let resolution =
        differ(|settings| settings.overwrite).then_some("ConflictResolution conflicted (Overwrite vs Abort)");
    let preserve =
        differ(|settings| settings.preserve).then_some("PreserveResourcesOnDeletion conflicted (true vs false)");
    let reasons: Vec<&str> = resolution.into_iter().chain(preserve).collect();
    (!reasons.is_empty()).then(|| format!("Dependency policy conflict detected: {}.", reasons.join("; ")))
}

impl Parent<'_> {
    /// The label that links attached bindings to this parent.
    pub fn label(&self) -> String {
        format!("{}{}", labels::DEPENDED_BY_PREFIX, binding_reference_key(self.namespace, self.name))
    }

    fn is_snapshot(&self, snapshot: &BindingSnapshot) -> bool {
        snapshot.namespace == self.namespace && snapshot.name == self.name
    }

    /// The clusters that an attached binding has recorded for this parent, and to which dispatching is suspended.
    fn suspended_clusters(&self, attached: &Value) -> Vec<TargetCluster> {
        let recorded = required_by(attached).into_iter().find(|snapshot| self.is_snapshot(snapshot));
        let clusters = recorded.map(|recorded| recorded.clusters).unwrap_or_default();
        clusters.into_iter().filter(|target| is_suspended(self.suspension, &target.name)).collect()
    }
}

/// The parent's `resourcebinding.karmada.io/dependencies` annotation.
pub fn annotation(dependencies: &DependencyList) -> Value {
    json!({ annotations::DEPENDENCIES: serde_json::to_string(dependencies).unwrap_or_default() })
}

/// The plan for an attached binding, and the conflict among its parents' settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    pub plan: AttachmentPlan,
    pub conflict: Option<String>,
}

/// The plan for an attached binding.
#[derive(Debug, Clone, PartialEq)]
pub enum AttachmentPlan {
    Keep,
    Create(Value),
    Update(Value),
    WaitForGarbageCollection,
}

/// Adds a parent to the attached binding of one dependency, or creates it. `find_parent` finds the other parents by
/// namespace and name, so that conflict resolution and preservation follow from all current parents.
pub fn attach<'a>(
    parent: &Parent<'_>,
    template: &Value,
    existing: Option<&Value>,
    find_parent: impl Fn(&str, &str) -> Option<&'a Value>,
    new: NewBinding<'_>,
) -> Attachment {
    let plan = |plan| Attachment { plan, conflict: None };
    let mut clusters = parent.clusters.to_vec();
    let suspended = existing.map(|existing| parent.suspended_clusters(existing)).unwrap_or_default();
    let is_former_target = |cluster: &TargetCluster| parent.clusters.iter().all(|target| target.name != cluster.name);
    clusters.extend(suspended.into_iter().filter(is_former_target));
    let snapshot = BindingSnapshot { namespace: parent.namespace.to_owned(), name: parent.name.to_owned(), clusters };
    let Some(existing) = existing else {
        return plan(AttachmentPlan::Create(create(parent, template, &snapshot, new)));
    };
    if owner_uid(existing).is_some_and(|uid| uid != unstructured::uid(template)) {
        return plan(AttachmentPlan::WaitForGarbageCollection);
    }
    let mut updated = existing.clone();
    unstructured::set_label(&mut updated, &parent.label(), parent.permanent_id);
    let mut required: Vec<BindingSnapshot> = required_by(existing);
    let mut settings = vec![parent.settings];
    settings.extend(
        required
            .iter()
            .filter(|snapshot| !parent.is_snapshot(snapshot))
            .filter_map(|snapshot| find_parent(&snapshot.namespace, &snapshot.name))
            .map(DependencySettings::from_binding),
    );
    match required.iter_mut().find(|recorded| parent.is_snapshot(recorded)) {
        Some(recorded) => *recorded = snapshot,
        None => required.push(snapshot),
    }
    unstructured::set(&mut updated, &["spec", "requiredBy"], json!(required));
    let mut resource = json!(reference(template));
    let recorded = unstructured::at(existing, &["spec", "resource", "resourceVersion"]).cloned();
    if unstructured::text(existing, &["spec", "resource", "uid"]) == unstructured::uid(template) {
        resource["resourceVersion"] = recorded.unwrap_or(Value::Null);
    }
    unstructured::set(&mut updated, &["spec", "resource"], resource);
    let mut conflict = None;
    if has_no_policy(existing) {
        DependencySettings::merge(&settings).write(&mut updated);
        conflict = describe_conflict(&settings);
    }
    let is_unchanged = unstructured::semantically_equal(existing, &updated);
    Attachment { plan: if is_unchanged { AttachmentPlan::Keep } else { AttachmentPlan::Update(updated) }, conflict }
}

/// Detaches a parent from the binding of a former dependency, except in clusters to which dispatching is suspended.
/// `None` if nothing changes.
pub fn release<'a>(
    parent: &Parent<'_>,
    existing: &Value,
    find_parent: impl Fn(&str, &str) -> Option<&'a Value>,
) -> Option<Value> {
    let suspended = parent.suspended_clusters(existing);
    if suspended.is_empty() {
        return detach(parent.namespace, parent.name, existing, find_parent);
    }
    let mut required = required_by(existing);
    for snapshot in required.iter_mut().filter(|snapshot| parent.is_snapshot(snapshot)) {
        snapshot.clusters.clone_from(&suspended);
    }
    let mut updated = existing.clone();
    unstructured::set(&mut updated, &["spec", "requiredBy"], json!(required));
    (!unstructured::semantically_equal(existing, &updated)).then_some(updated)
}

/// True if the binding exists only as a dependency of others.
fn has_no_policy(binding: &Value) -> bool {
    unstructured::at(binding, &["spec", "placement"]).is_none()
}

/// Keys of the parents of an attached binding.
pub fn parents(binding: &Value) -> Vec<BindingKey> {
    let is_in_namespace = |parent: &BindingSnapshot| parent.namespace == unstructured::namespace(binding);
    required_by(binding)
        .into_iter()
        .filter(is_in_namespace)
        .map(|parent| BindingKey::new(parent.namespace, parent.name))
        .collect()
}

fn required_by(binding: &Value) -> Vec<BindingSnapshot> {
    unstructured::at(binding, &["spec", "requiredBy"])
        .and_then(|list| serde_json::from_value(list.clone()).ok())
        .unwrap_or_default()
}

fn create(parent: &Parent<'_>, template: &Value, snapshot: &BindingSnapshot, new: NewBinding<'_>) -> Value {
    let mut binding = json!({
        "apiVersion": "work.karmada.io/v1alpha2",
        "kind": "ResourceBinding",
        "metadata": {
            "name": new.name,
            "namespace": unstructured::namespace(template),
            "labels": {
                parent.label(): parent.permanent_id,
                labels::RESOURCE_BINDING_PERMANENT_ID: new.permanent_id,
            },
            "finalizers": [finalizers::BINDING_CONTROLLER],
            "ownerReferences": [controller_reference(template)],
        },
        "spec": {
            "resource": reference(template),
            "requiredBy": [snapshot],
        },
    });
    parent.settings.write(&mut binding);
    binding
}

/// Returns an attached binding without this parent. `None` if it is not one of its parents. The binding itself is kept;
/// without parents it has no clusters, so its Works are deleted. `find_parent` finds the remaining parents by namespace
/// and name; the settings of the removed parent no longer count.
pub fn detach<'a>(
    parent_namespace: &str,
    parent_name: &str,
    existing: &Value,
    find_parent: impl Fn(&str, &str) -> Option<&'a Value>,
) -> Option<Value> {
    let label = format!("{}{}", labels::DEPENDED_BY_PREFIX, binding_reference_key(parent_namespace, parent_name));
    let mut required = required_by(existing);
    let before = required.len();
    required.retain(|snapshot| snapshot.namespace != parent_namespace || snapshot.name != parent_name);
    if required.len() == before && unstructured::label(existing, &label).is_none() {
        return None;
    }
    let mut updated = existing.clone();
    unstructured::remove(&mut updated, &["metadata", "labels", &label]);
    if has_no_policy(existing) {
        let settings: Vec<DependencySettings> = required
            .iter()
            .filter_map(|snapshot| find_parent(&snapshot.namespace, &snapshot.name))
            .map(DependencySettings::from_binding)
            .collect();
        if required.is_empty() {
            unstructured::remove(&mut updated, &["spec", "conflictResolution"]);
            unstructured::remove(&mut updated, &["spec", "preserveResourcesOnDeletion"]);
        } else {
            DependencySettings::merge(&settings).write(&mut updated);
        }
    }
    if required.is_empty() {
        unstructured::remove(&mut updated, &["spec", "requiredBy"]);
    } else {
        unstructured::set(&mut updated, &["spec", "requiredBy"], json!(required));
    }
    Some(updated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NEW: NewBinding<'_> = NewBinding { name: "settings-configmap", permanent_id: "id" };

    fn parent<'a>(name: &'a str, settings: DependencySettings) -> Parent<'a> {
        Parent { namespace: "ns", name, permanent_id: "id", clusters: &[], settings, suspension: None }
    }

    fn parent_with_settings(resolution: Option<&str>, preserve: Option<bool>) -> Value {
        json!({"spec": {"conflictResolution": resolution, "preserveResourcesOnDeletion": preserve}})
    }

    fn config_map() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns", "uid": "u"}})
    }

    fn no_parents<'a>(_: &str, _: &str) -> Option<&'a Value> {
        None
    }

    /// The attached binding with parents `a` and `b`, and the conflict between them.
    fn attached(a: (Option<&str>, Option<bool>), b: (Option<&str>, Option<bool>)) -> (Value, Option<String>) {
        let [a, b] = [a, b].map(|(resolution, preserve)| parent_with_settings(resolution, preserve));
        let first = attach(&parent("a", DependencySettings::from_binding(&a)), &config_map(), None, no_parents, NEW);
        let AttachmentPlan::Create(created) = first.plan else { panic!("{first:?}") };
        let second = attach(
            &parent("b", DependencySettings::from_binding(&b)),
            &config_map(),
            Some(&created),
            |_, name| (name == "a").then_some(&a),
            NEW,
        );
        let AttachmentPlan::Update(updated) = second.plan else { panic!("{second:?}") };
        (updated, second.conflict)
    }

    fn written_settings(binding: &Value) -> (&str, Option<bool>) {
        let preserve = unstructured::at(binding, &["spec", "preserveResourcesOnDeletion"]).and_then(Value::as_bool);
        (unstructured::text(binding, &["spec", "conflictResolution"]), preserve)
    }

    const RESOLUTION: &str = "ConflictResolution conflicted (Overwrite vs Abort)";
    const PRESERVE: &str = "PreserveResourcesOnDeletion conflicted (true vs false)";

    #[rstest]
    #[case::native_without_dependencies(DependencyList::from_native(Vec::new()), "null")]
    #[case::script_without_dependencies(DependencyList(Some(Vec::new())), "[]")]
    #[case::labels_come_first(
        DependencyList(Some(vec![serde_json::from_value(json!({"apiVersion": "v1", "kind": "Secret", "namespace": "ns",
            "labelSelector": {"matchExpressions": [{"operator": "Exists", "key": "a"}], "matchLabels": {"b": "c"}}}))
            .expect("a dependency")])),
        r#"[{"apiVersion":"v1","kind":"Secret","namespace":"ns","labelSelector":{"matchLabels":{"b":"c"},"matchExpressions":[{"key":"a","operator":"Exists"}]}}]"#
    )]
    fn annotation_matches_gos_json(#[case] dependencies: DependencyList, #[case] text: &str) {
        assert_eq!(annotation(&dependencies), json!({ annotations::DEPENDENCIES: text }));
    }

    #[rstest]
    #[case::unset((None, None), (None, None), ("Abort", false), &[])]
    #[case::equal_settings((Some("Overwrite"), Some(true)), (Some("Overwrite"), Some(true)), ("Overwrite", true), &[])]
    #[case::default_set_explicitly((Some("Abort"), Some(false)), (None, None), ("Abort", false), &[])]
    #[case::overwrite_wins((Some("Abort"), None), (Some("Overwrite"), None), ("Overwrite", false), &[RESOLUTION])]
    #[case::preserve_wins((None, Some(true)), (None, None), ("Abort", true), &[PRESERVE])]
    #[case::both((Some("Overwrite"), None), (None, Some(true)), ("Overwrite", true), &[RESOLUTION, PRESERVE])]
    fn strongest_setting_of_all_parents_wins(
        #[case] a: (Option<&str>, Option<bool>),
        #[case] b: (Option<&str>, Option<bool>),
        #[case] expected: (&str, bool),
        #[case] differ: &[&str],
    ) {
        let (binding, conflict) = attached(a, b);
        assert_eq!(written_settings(&binding), (expected.0, Some(expected.1)));
        let words = format!("Dependency policy conflict detected: {}.", differ.join("; "));
        assert_eq!(conflict, (!differ.is_empty()).then_some(words));
    }

    #[test]
    fn setting_removed_from_a_parent_is_removed_from_the_attached_binding() {
        let (binding, _) = attached((Some("Overwrite"), Some(true)), (None, None));
        let unset = parent_with_settings(None, None);
        let again = attach(
            &parent("a", DependencySettings::default()),
            &config_map(),
            Some(&binding),
            |_, _| Some(&unset),
            NEW,
        );
        assert_eq!(again.conflict, None);
        let AttachmentPlan::Update(updated) = again.plan else { panic!("{again:?}") };
        assert_eq!(written_settings(&updated), ("Abort", Some(false)));
        // Without a change, nothing is written.
        let unchanged = attach(
            &parent("a", DependencySettings::default()),
            &config_map(),
            Some(&updated),
            |_, _| Some(&unset),
            NEW,
        );
        assert_eq!(unchanged.plan, AttachmentPlan::Keep);
    }

    #[test]
    fn settings_of_a_removed_parent_no_longer_count() {
        let (binding, _) = attached((Some("Overwrite"), Some(true)), (None, None));
        let unset = parent_with_settings(None, None);
        let detached = detach("ns", "a", &binding, |_, _| Some(&unset)).expect("a parent");
        assert_eq!(written_settings(&detached), ("Abort", Some(false)));
        let alone = detach("ns", "b", &detached, no_parents).expect("a parent");
        assert_eq!(written_settings(&alone), ("", None));
        assert_eq!(detach("ns", "b", &alone, no_parents), None);
    }

    #[test]
    fn binding_with_a_policy_keeps_its_own_settings() {
        let (mut binding, _) = attached((None, None), (None, None));
        unstructured::set(&mut binding, &["spec", "placement"], json!({}));
        let settings = DependencySettings { overwrite: true, preserve: true };
        let result = attach(&parent("a", settings), &config_map(), Some(&binding), no_parents, NEW);
        assert_eq!(result, Attachment { plan: AttachmentPlan::Keep, conflict: None });
    }

    fn required_clusters(binding: &Value) -> Vec<String> {
        required_by(binding).into_iter().flat_map(|parent| parent.clusters).map(|target| target.name).collect()
    }

    /// While dispatching to a cluster is suspended, a dependency stays there, even if the cluster is no longer a target of
    /// its parent or the object is no longer a dependency. It is removed when dispatching resumes.
    #[rstest]
    #[case::not_suspended(json!({}), &["m2"], None)]
    #[case::on_the_cluster(json!({"dispatchingOnClusters": {"clusterNames": ["m1"]}}), &["m2", "m1"], Some(&["m1"][..]))]
    #[case::on_another_cluster(json!({"dispatchingOnClusters": {"clusterNames": ["m3"]}}), &["m2"], None)]
    #[case::everywhere(json!({"dispatching": true}), &["m2", "m1"], Some(&["m1", "m2"][..]))]
    fn dependencies_stay_in_suspended_clusters(
        #[case] suspension: Value,
        #[case] attached: &[&str],
        #[case] released: Option<&[&str]>,
    ) {
        let target = |name: &str| TargetCluster { name: name.to_owned(), ..TargetCluster::default() };
        let (before, after) = ([target("m1"), target("m2")], [target("m2")]);
        let suspension: Suspension = serde_json::from_value(suspension).expect("a suspension");
        let scheduled = Parent { clusters: &before, ..parent("a", DependencySettings::default()) };
        let created = attach(&scheduled, &config_map(), None, no_parents, NEW);
        let AttachmentPlan::Create(binding) = created.plan else { panic!("{created:?}") };

        let moved =
            Parent { clusters: &after, suspension: Some(&suspension), ..parent("a", DependencySettings::default()) };
        let updated = attach(&moved, &config_map(), Some(&binding), no_parents, NEW);
        let AttachmentPlan::Update(updated) = updated.plan else { panic!("{updated:?}") };
        assert_eq!(required_clusters(&updated), attached);
        let resumed = Parent { suspension: None, ..moved };
        let detached = match attach(&resumed, &config_map(), Some(&updated), no_parents, NEW).plan {
            AttachmentPlan::Update(detached) => detached,
            _ => updated,
        };
        assert_eq!(required_clusters(&detached), ["m2"]);

        let moved = Parent { suspension: Some(&suspension), ..resumed };
        let result = release(&moved, &binding, no_parents).unwrap_or_else(|| binding.clone());
        assert_eq!(required_clusters(&result), released.unwrap_or_default());
    }
}
