//! Workloads that are scaled by autoscalers in the members: their scale targets, the `retain-replicas` label, and
//! when the template adopts the members' replicas. Decides for the HPA scale target marker and the deployment
//! replicas syncer.

use crowsnest_api::constants::label;
use crowsnest_api::permanent_id::POLICY_LABELS;
use crowsnest_api::policy::ReplicaSchedulingType;
use crowsnest_api::work::{AggregatedStatusItem, ResourceBinding};
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::scheduling::scheduling_type;

/// Scale target of an autoscaler. The API version is ignored, because all versions refer to the same object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScaleTarget {
    pub namespace: String,
    pub group: String,
    pub kind: String,
    pub name: String,
}

impl ScaleTarget {
    pub fn matches(&self, template: &Value) -> bool {
        self.name == unstructured::name(template)
            && self.namespace == unstructured::namespace(template)
            && self.kind == unstructured::kind(template)
            && self.group == group_of(unstructured::api_version(template))
    }
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The relevant facts of a HorizontalPodAutoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Autoscaler {
    pub target: ScaleTarget,
    /// True if a policy claims it, so that it runs in the members.
    pub is_propagated: bool,
}

impl Autoscaler {
    pub fn from_json(autoscaler: &Value) -> Self {
        let reference = |field| unstructured::text(autoscaler, &["spec", "scaleTargetRef", field]);
        let target = ScaleTarget {
            namespace: unstructured::namespace(autoscaler).to_owned(),
            group: group_of(reference("apiVersion")).to_owned(),
            kind: reference("kind").to_owned(),
            name: reference("name").to_owned(),
        };
        let is_propagated = POLICY_LABELS.iter().any(|claim| unstructured::label(autoscaler, claim).is_some());
        Autoscaler { target, is_propagated }
    }
}

/// Scale targets to reconcile after an autoscaler was added, changed or deleted: the previous target and the current
/// one. If the autoscaler is merely no longer propagated, its target keeps the label, because copies in members can
/// still exist.
pub fn affected_targets(old: Option<&Autoscaler>, new: Option<&Autoscaler>) -> Vec<ScaleTarget> {
    let previous = old.filter(|old| new.is_none_or(|new| new.target != old.target));
    let current = new.filter(|new| new.is_propagated);
    previous.into_iter().chain(current).map(|autoscaler| autoscaler.target.clone()).collect()
}

/// True if the members own the template's replicas.
pub fn is_retained(template: &Value) -> bool {
    unstructured::label(template, label::RETAIN_REPLICAS) == Some(label::RETAIN_REPLICAS_VALUE)
}

/// Patch of the template's `retain-replicas` label. `is_scaled` is true if an autoscaler in the members scales the
/// template. `None` if the label is correct.
pub fn label_patch(template: &Value, is_scaled: bool) -> Option<Value> {
    let value = match is_scaled {
        true if !is_retained(template) => json!(label::RETAIN_REPLICAS_VALUE),
        false if unstructured::label(template, label::RETAIN_REPLICAS).is_some() => Value::Null,
        _ => return None,
    };
    Some(json!({"metadata": {"labels": {label::RETAIN_REPLICAS: value}}}))
}

/// Decision about a template's replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicasDecision {
    /// The template's replicas are not changed.
    Keep,
    /// The status of the members is not complete yet.
    Wait,
    /// The template adopts this number of replicas.
    Adopt(i64),
}

/// A divided template adopts the sum of the members' replicas, once the members have applied and reported the requested
/// replicas.
pub fn decide_replicas(deployment: &Value, binding: &ResourceBinding) -> ReplicasDecision {
    let is_divided = binding
        .spec
        .placement
        .as_ref()
        .is_some_and(|placement| scheduling_type(placement) == ReplicaSchedulingType::Divided);
    if !is_divided || !is_retained(deployment) {
        return ReplicasDecision::Keep;
    }
    let requested = unstructured::integer(deployment, &["spec", "replicas"]);
    let observed = unstructured::integer(deployment, &["status", "replicas"]).unwrap_or_default();
    match requested {
        Some(requested) if requested == observed => ReplicasDecision::Keep,
        Some(requested) if is_status_complete(requested, observed, binding) => ReplicasDecision::Adopt(observed),
        _ => ReplicasDecision::Wait,
    }
}

/// True if all scheduled clusters have reported the replicas of the current template and schedule.
fn is_status_complete(requested: i64, observed: i64, binding: &ResourceBinding) -> bool {
    let (spec, status) = (&binding.spec, &binding.status);
    // Autoscalers keep at least one replica, so a member without replicas has not reported yet. Without scheduled
    // clusters there is nothing to adopt.
    let reported_replicas = |item: &AggregatedStatusItem| {
        let status = item.status.as_ref()?;
        unstructured::integer(&status.0, &["replicas"]).filter(|replicas| *replicas > 0)
    };
    let sum: Option<i64> = status.aggregated_status.iter().map(reported_replicas).sum();
    requested == i64::from(spec.replicas)
        && binding.metadata.generation == Some(status.scheduler_observed_generation)
        && !spec.clusters.is_empty()
        && status.aggregated_status.len() == spec.clusters.len()
        && sum == Some(observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn autoscaler(namespace: &str, target: &str, claim: Option<&str>) -> Autoscaler {
        let (api_version, name) = target.split_once(' ').expect("apiVersion and name");
        let mut object = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "namespace": namespace},
            "spec": {"scaleTargetRef": {"apiVersion": api_version, "kind": "Deployment", "name": name}},
        });
        if let Some(claim) = claim {
            unstructured::set_label(&mut object, claim, "id");
        }
        Autoscaler::from_json(&object)
    }

    const BY_POLICY: Option<&str> = Some("propagationpolicy.karmada.io/permanent-id");
    const BY_CLUSTER_POLICY: Option<&str> = Some("clusterpropagationpolicy.karmada.io/permanent-id");

    #[rstest]
    #[case::same_object(autoscaler("ns", "apps/v1 web", BY_POLICY), true)]
    #[case::another_version(autoscaler("ns", "apps/v1beta1 web", BY_POLICY), true)]
    #[case::another_group(autoscaler("ns", "v1 web", BY_POLICY), false)]
    #[case::another_name(autoscaler("ns", "apps/v1 api", BY_POLICY), false)]
    #[case::another_namespace(autoscaler("other", "apps/v1 web", BY_POLICY), false)]
    fn scale_targets_match_their_objects(#[case] autoscaler: Autoscaler, #[case] expected: bool) {
        let template =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ns"}});
        assert_eq!(autoscaler.target.matches(&template), expected);
    }

    #[rstest]
    #[case::added(None, Some(("web", BY_POLICY)), &["web"])]
    #[case::added_with_cluster_policy(None, Some(("web", BY_CLUSTER_POLICY)), &["web"])]
    #[case::added_unclaimed(None, Some(("web", None)), &[])]
    #[case::claimed(Some(("web", None)), Some(("web", BY_POLICY)), &["web"])]
    #[case::unchanged(Some(("web", BY_POLICY)), Some(("web", BY_POLICY)), &["web"])]
    #[case::released(Some(("web", BY_POLICY)), Some(("web", None)), &[])]
    #[case::another_target(Some(("web", BY_POLICY)), Some(("api", BY_POLICY)), &["web", "api"])]
    #[case::another_target_unclaimed(Some(("web", None)), Some(("api", None)), &["web"])]
    #[case::deleted(Some(("web", BY_POLICY)), None, &["web"])]
    #[case::deleted_unclaimed(Some(("web", None)), None, &["web"])]
    fn targets_of_changed_autoscalers_are_reconciled(
        #[case] old: Option<(&str, Option<&str>)>,
        #[case] new: Option<(&str, Option<&str>)>,
        #[case] expected: &[&str],
    ) {
        let read = |text: Option<(&str, Option<&str>)>| {
            text.map(|(name, claim)| autoscaler("ns", &format!("apps/v1 {name}"), claim))
        };
        let affected_targets = affected_targets(read(old).as_ref(), read(new).as_ref());
        let names: Vec<&str> = affected_targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, expected);
    }

    #[rstest]
    #[case::marked(None, true, Some(json!("true")))]
    #[case::marked_already(Some("true"), true, None)]
    #[case::another_value(Some("no"), true, Some(json!("true")))]
    #[case::unmarked(Some("true"), false, Some(Value::Null))]
    #[case::never_marked(None, false, None)]
    fn labels_are_patched_if_they_are_wrong(
        #[case] label: Option<&str>,
        #[case] scaled: bool,
        #[case] expected: Option<Value>,
    ) {
        let mut template = json!({"metadata": {"name": "web", "labels": {"app": "web"}}});
        if let Some(value) = label {
            unstructured::set_label(&mut template, label::RETAIN_REPLICAS, value);
        }
        let patch = expected.map(|value| json!({"metadata": {"labels": {label::RETAIN_REPLICAS: value}}}));
        assert_eq!(label_patch(&template, scaled), patch);
    }

    fn deployment() -> Value {
        json!({
            "metadata": {"labels": {label::RETAIN_REPLICAS: "true"}},
            "spec": {"replicas": 3}, "status": {"replicas": 7},
        })
    }

    fn binding() -> Value {
        json!({
            "metadata": {"generation": 4},
            "spec": {
                "replicas": 3, "clusters": [{"name": "m1", "replicas": 1}, {"name": "m2", "replicas": 2}],
                "placement": {"replicaScheduling": {"replicaSchedulingType": "Divided"}},
            },
            "status": {"schedulerObservedGeneration": 4, "aggregatedStatus": [
                {"clusterName": "m1", "status": {"replicas": 2}}, {"clusterName": "m2", "status": {"replicas": 5}},
            ]},
        })
    }

    #[rstest]
    #[case::all_reported(&[], &[], ReplicasDecision::Adopt(7))]
    #[case::not_retained(&[("/metadata/labels", json!({}))], &[], ReplicasDecision::Keep)]
    #[case::equal_replicas(&[("/status/replicas", json!(3))], &[], ReplicasDecision::Keep)]
    #[case::duplicated(
        &[], &[("/spec/placement/replicaScheduling/replicaSchedulingType", json!("Duplicated"))], ReplicasDecision::Keep
    )]
    #[case::no_placement(&[], &[("/spec/placement", Value::Null)], ReplicasDecision::Keep)]
    #[case::without_replicas(&[("/spec/replicas", Value::Null)], &[], ReplicasDecision::Wait)]
    #[case::binding_is_behind(&[("/spec/replicas", json!(4))], &[], ReplicasDecision::Wait)]
    #[case::scheduler_is_behind(&[], &[("/status/schedulerObservedGeneration", json!(3))], ReplicasDecision::Wait)]
    #[case::missing_cluster(
        &[], &[("/status/aggregatedStatus", json!([{"clusterName": "m1", "status": {"replicas": 7}}]))], ReplicasDecision::Wait
    )]
    #[case::cluster_without_status(&[], &[("/status/aggregatedStatus/0/status", Value::Null)], ReplicasDecision::Wait)]
    #[case::cluster_with_zero_replicas(&[], &[("/status/aggregatedStatus/0/status/replicas", json!(0))], ReplicasDecision::Wait)]
    #[case::template_is_behind(&[], &[("/status/aggregatedStatus/0/status/replicas", json!(3))], ReplicasDecision::Wait)]
    #[case::no_target(
        &[("/status/replicas", json!(0))],
        &[("/spec/clusters", json!([])), ("/status/aggregatedStatus", json!([]))],
        ReplicasDecision::Wait
    )]
    fn replicas_follow_the_members(
        #[case] deployment_edits: &[(&str, Value)],
        #[case] binding_edits: &[(&str, Value)],
        #[case] expected: ReplicasDecision,
    ) {
        let edit = |mut object: Value, edits: &[(&str, Value)]| {
            for (pointer, value) in edits {
                *object.pointer_mut(pointer).expect("a field") = value.clone();
            }
            object
        };
        let binding = serde_json::from_value(edit(binding(), binding_edits)).expect("a binding");
        assert_eq!(decide_replicas(&edit(deployment(), deployment_edits), &binding), expected);
    }
}
