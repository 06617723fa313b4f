//! Destinations and state of propagated objects, read from Karmada's bindings, Works and federated quotas. The
//! store, the search engine and graph sinks name none of these kinds: they use this module and [`crate::references`].

use crate::constants::{annotation, condition, eviction};
use crate::names::cluster_of_execution_namespace;
use crate::policy::GROUP as POLICY_GROUP;
use crate::work::GROUP as WORK_GROUP;
use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_apimachinery::printers::JsonSource;
use crowsnest_apimachinery::printers::borrowed::{Str, null_as_default};
use crowsnest_apimachinery::references::group_of;
use crowsnest_apimachinery::views;
use serde::Deserialize;
use std::collections::BTreeMap;

const NAMESPACED_BINDING: &str = "ResourceBinding";
const CLUSTER_BINDING: &str = "ClusterResourceBinding";

/// Bindings of any scope.
pub const BINDINGS: KindSet = KindSet { group: WORK_GROUP, kinds: &[NAMESPACED_BINDING, CLUSTER_BINDING] };
/// Bindings that federated quotas can limit: those in namespaces.
pub const LIMITED_BINDINGS: KindSet = KindSet { group: WORK_GROUP, kinds: &[NAMESPACED_BINDING] };
/// Works.
pub const WORKS: KindSet = KindSet { group: WORK_GROUP, kinds: &["Work"] };
/// Federated quotas.
pub const QUOTAS: KindSet = KindSet { group: POLICY_GROUP, kinds: &["FederatedResourceQuota"] };

/// Annotations that name the policy of an object.
pub const POLICY_ANNOTATIONS: &[NameAnnotations] = &[
    NameAnnotations::namespaced(annotation::PROPAGATION_POLICY_NAMESPACE, annotation::PROPAGATION_POLICY_NAME),
    NameAnnotations::cluster_scoped(annotation::CLUSTER_PROPAGATION_POLICY_NAME),
];
/// Annotations that name the binding of an object.
pub const BINDING_ANNOTATIONS: &[NameAnnotations] = &[
    NameAnnotations::namespaced(annotation::RESOURCE_BINDING_NAMESPACE, annotation::RESOURCE_BINDING_NAME),
    NameAnnotations::cluster_scoped(annotation::CLUSTER_RESOURCE_BINDING_NAME),
];
/// Annotations that name the Work of an object.
pub const WORK_ANNOTATIONS: &[NameAnnotations] =
    &[NameAnnotations::namespaced(annotation::WORK_NAMESPACE, annotation::WORK_NAME)];

const BINDING_FIELDS: PropagationFields = PropagationFields { template: "spec.resource.uid", copies: "", limited: "" };
const WORK_FIELDS: PropagationFields = PropagationFields {
    template: "spec.workload.manifests[].metadata.annotations",
    copies: "spec.workload.manifests[]",
    limited: "",
};
const QUOTA_FIELDS: PropagationFields =
    PropagationFields { template: "", copies: "spec.staticAssignments[]", limited: "spec.overall" };

/// Kinds of one API group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindSet {
    pub group: &'static str,
    pub kinds: &'static [&'static str],
}

impl KindSet {
    pub fn contains(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kinds.contains(&kind)
    }
}

/// True for the API groups of Karmada's kinds, such as `work.karmada.io`.
pub fn is_karmada_group(group: &str) -> bool {
    group.ends_with(".karmada.io")
}

/// Annotations with the namespace and the name of another object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameAnnotations {
    /// None if the other object is cluster-scoped.
    pub namespace: Option<&'static str>,
    pub name: &'static str,
}

impl NameAnnotations {
    const fn namespaced(namespace: &'static str, name: &'static str) -> Self {
        Self { namespace: Some(namespace), name }
    }

    const fn cluster_scoped(name: &'static str) -> Self {
        Self { namespace: None, name }
    }
}

/// Paths of the fields from which a [`Propagation`] was read; empty if the kind has no such field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PropagationFields {
    pub template: &'static str,
    pub copies: &'static str,
    pub limited: &'static str,
}

/// Destinations and state of a propagated object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Propagation {
    /// UID of the template; empty if the object contains none.
    pub template_uid: String,
    /// The template in the control plane; None if the object does not identify one.
    pub template_object: Option<ObjectKey>,
    /// Copies that a Work or quota creates in member clusters.
    pub copies: Vec<MemberCopy>,
    /// Clusters to which it is scheduled.
    pub clusters: Vec<String>,
    /// Clusters from which it is being evicted.
    pub evicting_clusters: Vec<String>,
    /// Its health in the clusters: Healthy, Unhealthy or Unknown, sorted and without duplicates.
    pub health: Vec<String>,
    /// Applied override policies: `name`, or `namespace/name`.
    pub overrides: Vec<String>,
    /// In the order of their declaration.
    pub states: Vec<PropagationState>,
    /// The bindings that a federated quota limits, by their [`shared_key`].
    pub limited: Option<ObjectKey>,
    pub fields: PropagationFields,
}

/// A state in which a propagated object is not applied as desired, or is being moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropagationState {
    /// Scheduling failed or selected no cluster.
    Unscheduled,
    /// It is being evicted from some cluster.
    Evicting,
    /// Applying it failed in some cluster.
    ApplyFailed,
    /// Applying it failed because of a conflict with an existing object in the cluster.
    Conflict,
    /// It is being evicted because of a cluster or application failure.
    Failover,
}

impl PropagationState {
    /// The states whose condition is met.
    fn select<const N: usize>(conditions: [(Self, bool); N]) -> Vec<Self> {
        conditions.into_iter().filter_map(|(state, is_met)| is_met.then_some(state)).collect()
    }
}

/// An object in a member cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberCopy {
    pub cluster: String,
    pub object: ObjectKey,
}

type Text<'a> = Option<Str<'a>>;

views! {
    Object { metadata: Metadata<'a>, spec: Spec<'a>, status: Status<'a> }
    Metadata { name: Str<'a>, namespace: Text<'a>, annotations: BTreeMap<Str<'a>, Text<'a>> }
    Spec {
        resource: Template<'a>,
        clusters: Vec<NameRef<'a>>,
        graceful_eviction_tasks: Vec<Eviction<'a>>,
        workload: Workload<'a>,
    }
    Template { api_version: Str<'a>, kind: Str<'a>, namespace: Text<'a>, name: Str<'a>, uid: Str<'a> }
    NameRef { name: Str<'a> }
    Condition { #[serde(rename = "type")] type_: Str<'a>, status: Str<'a>, message: Text<'a> }
    Eviction { from_cluster: Str<'a>, reason: Str<'a>, producer: Str<'a> }
    Workload { manifests: Vec<Manifest<'a>> }
    Manifest { api_version: Str<'a>, kind: Str<'a>, metadata: Metadata<'a> }
    Status { aggregated_status: Vec<StatusItem<'a>>, manifest_statuses: Vec<StatusItem<'a>>, conditions: Vec<Condition<'a>> }
    StatusItem { health: Text<'a>, applied: bool, applied_message: Text<'a> }
    Quota { metadata: Metadata<'a>, spec: QuotaSpec<'a> }
    QuotaSpec { overall: BTreeMap<Str<'a>, serde::de::IgnoredAny>, static_assignments: Vec<Assignment<'a>> }
    Assignment { cluster_name: Str<'a> }
    Override { policy_name: Str<'a> }
}

impl Metadata<'_> {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.iter().find(|(name, _)| *name == key).and_then(|(_, value)| value.as_deref())
    }
}

/// Reads the propagation from a binding, a Work or a federated quota; None for other objects.
pub fn read_propagation<'a>(group: &str, kind: &str, source: impl JsonSource<'a>) -> Option<Propagation> {
    if BINDINGS.contains(group, kind) {
        source.read::<Object<'a>>().map(read_binding)
    } else if WORKS.contains(group, kind) {
        source.read::<Object<'a>>().map(read_work)
    } else if QUOTAS.contains(group, kind) {
        source.read::<Quota<'a>>().map(read_quota)
    } else {
        None
    }
}

/// Key that the bindings of a namespace share, by which the namespace's federated quotas refer to them; None for objects
/// that quotas do not limit. It is the key of a binding with an empty name.
pub fn shared_key(group: &str, kind: &str, namespace: &str) -> Option<ObjectKey> {
    LIMITED_BINDINGS.contains(group, kind).then(|| limited_bindings(namespace))
}

fn limited_bindings(namespace: &str) -> ObjectKey {
    ObjectKey::new(WORK_GROUP, NAMESPACED_BINDING, namespace, "")
}

/// The binding that annotations of a Work name. `annotation_value` returns an empty text for a missing annotation.
pub fn binding_in_annotations<'a>(annotation_value: impl Fn(&str) -> &'a str) -> Option<ObjectKey> {
    let name = annotation_value(annotation::RESOURCE_BINDING_NAME);
    if !name.is_empty() {
        let namespace = annotation_value(annotation::RESOURCE_BINDING_NAMESPACE);
        return Some(ObjectKey::new(WORK_GROUP, NAMESPACED_BINDING, namespace, name));
    }
    let name = annotation_value(annotation::CLUSTER_RESOURCE_BINDING_NAME);
    (!name.is_empty()).then(|| ObjectKey::new(WORK_GROUP, CLUSTER_BINDING, "", name))
}

fn read_binding(binding: Object<'_>) -> Propagation {
    let Object { spec, status, .. } = binding;
    let clusters: Vec<String> = spec.clusters.iter().map(|target| target.name.to_string()).collect();
    let has_scheduling_failed =
        status.conditions.iter().any(|c| c.type_ == condition::SCHEDULED && c.status == "False");
    // Without an attempt there is no message.
    let apply_errors = || {
        let not_applied = status.aggregated_status.iter().filter(|item| !item.applied);
        not_applied.filter_map(|item| item.applied_message.as_deref()).filter(|message| !message.is_empty())
    };
    let evictions = &spec.graceful_eviction_tasks;
    let states = PropagationState::select([
        (PropagationState::Unscheduled, has_scheduling_failed || clusters.is_empty()),
        (PropagationState::Evicting, !evictions.is_empty()),
        (PropagationState::ApplyFailed, apply_errors().next().is_some()),
        (PropagationState::Conflict, apply_errors().any(is_conflict)),
        (PropagationState::Failover, evictions.iter().any(is_failover)),
    ]);
    Propagation {
        template_uid: spec.resource.uid.to_string(),
        template_object: template_object(&spec.resource),
        clusters,
        evicting_clusters: evictions.iter().map(|task| task.from_cluster.to_string()).collect(),
        health: health(&status.aggregated_status),
        states,
        fields: BINDING_FIELDS,
        ..Propagation::default()
    }
}

fn template_object(template: &Template<'_>) -> Option<ObjectKey> {
    let Template { api_version, kind, namespace, name, .. } = template;
    let is_complete = !kind.is_empty() && !name.is_empty();
    is_complete.then(|| ObjectKey::new(group_of(api_version), kind, namespace.as_deref().unwrap_or_default(), name))
}

fn key_of(manifest: &Manifest<'_>) -> ObjectKey {
    let Manifest { api_version, kind, metadata, .. } = manifest;
    ObjectKey::new(group_of(api_version), kind, metadata.namespace.as_deref().unwrap_or_default(), &metadata.name)
}

fn read_work(work: Object<'_>) -> Propagation {
    let Object { metadata, spec, status, .. } = work;
    let cluster = metadata.namespace.as_deref().and_then(cluster_of_execution_namespace);
    let manifests = &spec.workload.manifests;
    let uid_of =
        |manifest: &'_ Manifest<'_>| manifest.metadata.annotation(annotation::RESOURCE_TEMPLATE_UID).map(str::to_owned);
    let template = manifests.iter().find_map(|manifest| Some((uid_of(manifest)?, key_of(manifest))));
    // A copy has the name of its template.
    let (template_uid, template_object) = template.map(|(uid, object)| (uid, Some(object))).unwrap_or_default();
    let copy = |(cluster, manifest): (&str, &Manifest<'_>)| MemberCopy {
        cluster: cluster.to_owned(),
        object: key_of(manifest),
    };
    let apply_failure = status.conditions.iter().find(|c| c.type_ == condition::APPLIED && c.status == "False");
    Propagation {
        template_uid,
        template_object,
        copies: cluster
            .into_iter()
            .flat_map(|cluster| manifests.iter().map(move |manifest| (cluster, manifest)))
            .map(copy)
            .collect(),
        clusters: cluster.into_iter().map(str::to_owned).collect(),
        health: health(&status.manifest_statuses),
        overrides: overrides(&metadata),
        states: PropagationState::select([
            (PropagationState::ApplyFailed, apply_failure.is_some()),
            (PropagationState::Conflict, apply_failure.and_then(|c| c.message.as_deref()).is_some_and(is_conflict)),
        ]),
        fields: WORK_FIELDS,
        ..Propagation::default()
    }
}

fn read_quota(quota: Quota<'_>) -> Propagation {
    let Quota { metadata, spec, .. } = quota;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let copy = |assignment: &Assignment<'_>| MemberCopy {
        cluster: assignment.cluster_name.to_string(),
        object: ObjectKey::new("", "ResourceQuota", namespace, &metadata.name),
    };
    Propagation {
        copies: spec.static_assignments.iter().map(copy).collect(),
        limited: (!spec.overall.is_empty()).then(|| limited_bindings(namespace)),
        fields: QUOTA_FIELDS,
        ..Propagation::default()
    }
}

fn health(items: &[StatusItem<'_>]) -> Vec<String> {
    let mut health: Vec<String> = items.iter().filter_map(|item| item.health.as_deref()).map(str::to_owned).collect();
    health.sort_unstable();
    health.dedup();
    health
}

/// True for Karmada's message about an existing object that it does not manage.
fn is_conflict(message: &str) -> bool {
    message.contains("already exists in the cluster") && message.contains(annotation::CONFLICT_RESOLUTION)
}

fn is_failover(task: &Eviction<'_>) -> bool {
    let producers = [
        eviction::PRODUCER_TAINT_MANAGER,
        eviction::PRODUCER_APPLICATION_FAILOVER,
        eviction::PRODUCER_CLUSTER_APPLICATION_FAILOVER,
    ];
    let reasons = [eviction::REASON_TAINT_UNTOLERATED, eviction::REASON_APPLICATION_FAILURE];
    producers.contains(&&*task.producer) || reasons.contains(&&*task.reason)
}

/// Override policies in the annotations of a Work.
fn overrides(metadata: &Metadata<'_>) -> Vec<String> {
    let policy_names = |key: &str| {
        let text = metadata.annotation(key).unwrap_or_default();
        let applied: Vec<Override<'_>> = serde_json::from_str(text).unwrap_or_default();
        applied.into_iter().map(|policy| policy.policy_name.to_string()).collect::<Vec<_>>()
    };
    let mut overrides = policy_names(annotation::APPLIED_CLUSTER_OVERRIDES);
    let namespace = metadata.annotation(annotation::RESOURCE_BINDING_NAMESPACE).filter(|ns| !ns.is_empty());
    for name in policy_names(annotation::APPLIED_OVERRIDES) {
        overrides.extend(namespace.map(|namespace| format!("{namespace}/{name}")));
        overrides.push(name);
    }
    overrides.retain(|name| !name.is_empty());
    overrides.sort_unstable();
    overrides.dedup();
    overrides
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    const CONFLICT: &str = "Failed to apply all manifests (0/1): resource(kind=Mill, a/b) already exists in the cluster m1 and \
        the work.karmada.io/conflict-resolution strategy value is empty, Karmada will not manage this resource";

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn with_template() -> Propagation {
        Propagation { template_uid: "u1".into(), ..Propagation::default() }
    }

    fn copies_in_m1(group: &str, kind: &str) -> Vec<MemberCopy> {
        vec![MemberCopy { cluster: "m1".into(), object: ObjectKey::new(group, kind, "a", "b") }]
    }

    #[rstest]
    #[case::scheduled(json!({"clusters": [{"name": "m1"}, {"name": "m2"}], "gracefulEvictionTasks": [{"fromCluster": "m3"}]}),
        json!({"aggregatedStatus": [{"health": "Healthy"}, {"health": "Unhealthy", "applied": true}, {"health": "Healthy"}]}),
        Propagation { clusters: strings(&["m1", "m2"]), evicting_clusters: strings(&["m3"]), health: strings(&["Healthy", "Unhealthy"]),
            states: vec![PropagationState::Evicting], ..with_template() })]
    #[case::scheduling_failed(json!({"clusters": [{"name": "m1"}]}), json!({"conditions": [{"type": "Scheduled", "status": "False"}]}),
        Propagation { clusters: strings(&["m1"]), states: vec![PropagationState::Unscheduled], ..with_template() })]
    #[case::unscheduled(json!({}), json!({}), Propagation { states: vec![PropagationState::Unscheduled], ..with_template() })]
    #[case::failed(json!({"clusters": [{"name": "m1"}]}), json!({"aggregatedStatus": [{"appliedMessage": "forbidden"}]}),
        Propagation { clusters: strings(&["m1"]), states: vec![PropagationState::ApplyFailed], ..with_template() })]
    #[case::conflicting(json!({"clusters": [{"name": "m1"}]}), json!({"aggregatedStatus": [{"applied": true, "appliedMessage": "done"},
        {"applied": false, "appliedMessage": CONFLICT}]}),
        Propagation { clusters: strings(&["m1"]), states: vec![PropagationState::ApplyFailed, PropagationState::Conflict], ..with_template() })]
    #[case::fails_over(json!({"clusters": [{"name": "m1"}], "gracefulEvictionTasks": [{"fromCluster": "m2",
        "reason": "ApplicationFailure", "producer": "resource-binding-application-failover-controller"}]}), json!(null),
        Propagation { clusters: strings(&["m1"]), evicting_clusters: strings(&["m2"]),
            states: vec![PropagationState::Evicting, PropagationState::Failover], ..with_template() })]
    fn propagation_of_bindings(#[case] mut spec: Value, #[case] status: Value, #[case] expected: Propagation) {
        spec["resource"] = json!({"uid": "u1"});
        let object = json!({"metadata": {"annotations": null}, "spec": spec, "status": status});
        let expected = Propagation { fields: BINDING_FIELDS, ..expected };
        for kind in ["ResourceBinding", "ClusterResourceBinding"] {
            assert_eq!(read_propagation("work.karmada.io", kind, &object).as_ref(), Some(&expected));
        }
        assert_eq!(read_propagation("apps", "Deployment", &object), None);
    }

    #[rstest]
    #[case::namespaced(json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "a", "name": "b", "uid": "u1"}),
        Some(ObjectKey::new("apps", "Deployment", "a", "b")))]
    #[case::cluster_scoped(json!({"apiVersion": "v1", "kind": "Namespace", "name": "b"}),
        Some(ObjectKey::new("", "Namespace", "", "b")))]
    #[case::unnamed(json!({"apiVersion": "v1", "kind": "Namespace"}), None)]
    fn templates_of_bindings(#[case] resource: Value, #[case] expected: Option<ObjectKey>) {
        let object = json!({"spec": {"resource": resource}});
        let found = read_propagation("work.karmada.io", "ResourceBinding", &object)
            .map(|propagation| propagation.template_object);
        assert_eq!(found, Some(expected));
    }

    #[rstest]
    #[case::applied(json!({}), json!({"manifestStatuses": [{"health": "Healthy"}], "conditions": [{"type": "Applied",
        "status": "True", "message": CONFLICT}]}), Propagation { health: strings(&["Healthy"]), ..with_template() })]
    #[case::failed(json!({}), json!({"conditions": [{"type": "Applied", "status": "False", "message": "forbidden"}]}),
        Propagation { states: vec![PropagationState::ApplyFailed], ..with_template() })]
    #[case::conflicting(json!({}), json!({"conditions": [{"type": "Applied", "status": "False", "message": CONFLICT}]}),
        Propagation { states: vec![PropagationState::ApplyFailed, PropagationState::Conflict], ..with_template() })]
    #[case::overridden(json!({"resourcebinding.karmada.io/namespace": "a",
        "policy.karmada.io/applied-overrides": r#"[{"policyName": "near", "overriders": {}}, {"policyName": "near"}]"#,
        "policy.karmada.io/applied-cluster-overrides": r#"[{"policyName": "wide", "overriders": {}}]"#}), json!({}),
        Propagation { overrides: strings(&["a/near", "near", "wide"]), ..with_template() })]
    #[case::not_json(json!({"policy.karmada.io/applied-overrides": "near"}), json!({}), with_template())]
    fn propagation_of_works(#[case] annotations: Value, #[case] status: Value, #[case] expected: Propagation) {
        let manifest = json!({"apiVersion": "farm.example/v1", "kind": "Mill", "metadata": {"namespace": "a", "name": "b",
            "annotations": {"resourcetemplate.karmada.io/uid": "u1"}}});
        let object = json!({"metadata": {"namespace": "karmada-es-m1", "annotations": annotations},
            "spec": {"workload": {"manifests": [manifest]}}, "status": status});
        let copies = copies_in_m1("farm.example", "Mill");
        let template_object = Some(copies[0].object.clone());
        let fields = WORK_FIELDS;
        let expected = Propagation { clusters: strings(&["m1"]), copies, template_object, fields, ..expected };
        assert_eq!(read_propagation("work.karmada.io", "Work", &object), Some(expected));
    }

    #[rstest]
    #[case::overall(json!({"overall": {"cpu": "1"}}),
        Propagation { limited: shared_key("work.karmada.io", "ResourceBinding", "a"), ..Propagation::default() })]
    #[case::static_assignments(json!({"overall": null, "staticAssignments": [{"clusterName": "m1", "hard": {"cpu": 1}}]}),
        Propagation { copies: copies_in_m1("", "ResourceQuota"), ..Propagation::default() })]
    fn propagation_of_quotas(#[case] spec: Value, #[case] expected: Propagation) {
        let object = json!({"metadata": {"namespace": "a", "name": "b"}, "spec": spec});
        let expected = Propagation { fields: QUOTA_FIELDS, ..expected };
        assert_eq!(read_propagation("policy.karmada.io", "FederatedResourceQuota", &object), Some(expected));
    }

    #[rstest]
    #[case::binding(
        "work.karmada.io",
        "ResourceBinding",
        Some(ObjectKey::new("work.karmada.io", "ResourceBinding", "a", ""))
    )]
    #[case::cluster_scoped("work.karmada.io", "ClusterResourceBinding", None)]
    #[case::work("work.karmada.io", "Work", None)]
    #[case::other_group("example.com", "ResourceBinding", None)]
    fn quotas_refer_to_bindings_by_a_shared_key(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] expected: Option<ObjectKey>,
    ) {
        assert_eq!(shared_key(group, kind, "a"), expected);
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::namespaced(&[("resourcebinding.karmada.io/namespace", "a"), ("resourcebinding.karmada.io/name", "b")],
        Some(("ResourceBinding", "a", "b")))]
    #[case::without_a_name(&[("resourcebinding.karmada.io/namespace", "a")], None)]
    #[case::cluster_scoped(&[("clusterresourcebinding.karmada.io/name", "b")], Some(("ClusterResourceBinding", "", "b")))]
    #[case::both(&[("clusterresourcebinding.karmada.io/name", "c"), ("resourcebinding.karmada.io/name", "b"),
        ("resourcebinding.karmada.io/namespace", "a")], Some(("ResourceBinding", "a", "b")))]
    fn annotations_of_works_name_bindings(
        #[case] annotations: &[(&str, &str)],
        #[case] expected: Option<(&str, &str, &str)>,
    ) {
        let value = |key: &str| annotations.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| *value);
        let expected = expected.map(|(kind, namespace, name)| ObjectKey::new("work.karmada.io", kind, namespace, name));
        assert_eq!(binding_in_annotations(value), expected);
    }
}
