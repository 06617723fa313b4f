//! Response types of explanations and plans. `crowsnest_controllers::reports` assembles them on request from the
//! results of the planners; nothing is stored.

use std::collections::BTreeMap;

use crowsnest_api::policy::Overriders;
use crowsnest_api::work::{ObjectReference, ResourceHealth, TargetCluster};
use crowsnest_apimachinery::differences::Difference;
use crowsnest_apimachinery::secret_copies::remove_copies;
use crowsnest_apimachinery::unstructured;
use serde::Serialize;
use serde_json::{Value, json};

use super::estimation::bounds::LimitingFactor;
use super::overriding::trace::OverrideTrace;
use super::propagation::Policy;
use super::propagation::choice::{ConsideredPolicy, Outcome};
use super::scheduling::{Plan, Rejection, Report, Trigger};
use super::selector::Precision;
use super::waiting::WaitReason;

/// A policy of any kind and scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyName {
    pub kind: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl PolicyName {
    /// A PropagationPolicy, or a ClusterPropagationPolicy if there is no namespace.
    pub fn propagation(namespace: &str, name: &str) -> Self {
        let kind = if namespace.is_empty() { "ClusterPropagationPolicy" } else { "PropagationPolicy" };
        PolicyName { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub fn from_policy(policy: &Policy<'_>) -> Self {
        PolicyName::propagation(policy.namespace, policy.name)
    }

    /// An OverridePolicy or a ClusterOverridePolicy.
    pub fn overriding(cluster_scoped: bool, namespace: &str, name: &str) -> Self {
        match cluster_scoped {
            true => PolicyName { kind: "ClusterOverridePolicy", namespace: String::new(), name: name.to_owned() },
            false => PolicyName { kind: "OverridePolicy", namespace: namespace.to_owned(), name: name.to_owned() },
        }
    }
}

/// A policy that selects the template, and why it was chosen or not.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReport {
    #[serde(flatten)]
    pub policy: PolicyName,
    pub priority: i32,
    /// Precision of its selector.
    pub selects_by: Precision,
    pub outcome: Outcome,
    pub message: &'static str,
}

impl PolicyReport {
    pub fn all(considered: &[ConsideredPolicy]) -> Vec<Self> {
        let report = |policy: &ConsideredPolicy| PolicyReport {
            policy: PolicyName::propagation(&policy.namespace, &policy.name),
            priority: policy.priority,
            selects_by: policy.precision,
            outcome: policy.outcome,
            message: outcome_message(policy.outcome),
        };
        considered.iter().map(report).collect()
    }
}

fn outcome_message(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Chosen => "it ranks first among the policies that select the template",
        Outcome::Claimed => "the template is claimed for it",
        Outcome::LowerPriority => "its priority is lower",
        Outcome::LessPrecise => "its selector is less precise",
        Outcome::LaterName => "its name sorts later",
        Outcome::ClusterScope => "policies of the namespace precede cluster-scoped ones",
        Outcome::NotPreempting => "the template is claimed for another policy, and this one does not preempt it",
    }
}

/// The scheduler's decision for the current state.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingReport {
    pub decision: Decision,
    /// Why a decision is needed. Absent if the current result is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// Why no cluster fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub terms: Vec<TermReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Decision {
    /// The current result is kept.
    Keep,
    Schedule,
    /// No cluster fits, and the result is cleared.
    Clear,
    /// Scheduling failed; the previous result is kept.
    Fail,
}

/// Evaluation of all clusters with one affinity term.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TermReport {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub affinity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub clusters: Vec<ClusterReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    pub name: String,
    /// The first filter that rejected the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejection>,
    /// The untolerated NoExecute taint of a current target: no filter rejects it, but it will be evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted_by: Option<String>,
    pub score: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateReport>,
    /// True if the cluster was selected by spread constraints.
    pub selected: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

/// Number of replicas that still fit into a cluster, and the limiting factor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EstimateReport {
    pub replicas: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_by: Option<LimitingFactor>,
}

impl SchedulingReport {
    pub fn new(plan: &Plan, report: Report, bounds: &BTreeMap<String, LimitingFactor>) -> Self {
        let (decision, error) = match plan {
            Plan::Keep => (Decision::Keep, None),
            Plan::Schedule { .. } => (Decision::Schedule, None),
            Plan::Clear { error } => (Decision::Clear, Some(error)),
            Plan::Fail { error } => (Decision::Fail, Some(error)),
        };
        let cluster = |report: super::scheduling::ClusterReport| {
            let bound_by = bounds.get(&report.name).copied();
            // Without replicas there is no estimate.
            let allocatable = report.allocatable.filter(|allocatable| *allocatable != i32::MAX || bound_by.is_some());
            ClusterReport {
                rejected: report.rejected,
                evicted_by: report.evicted_by,
                score: report.score,
                estimate: allocatable.map(|replicas| EstimateReport { replicas, bound_by }),
                selected: report.selected,
                replicas: report.replicas,
                name: report.name,
            }
        };
        let term = |report: super::scheduling::TermReport| TermReport {
            affinity: report.affinity,
            message: report.error,
            clusters: report.clusters.into_iter().map(cluster).collect(),
        };
        SchedulingReport {
            decision,
            trigger: report.trigger,
            reason: error.map(|error| error.reason()),
            message: error.map(ToString::to_string),
            terms: report.terms.into_iter().map(term).collect(),
        }
    }
}

/// An override rule applied in a cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverrideReport {
    #[serde(flatten)]
    pub policy: PolicyName,
    pub overriders: Overriders,
    pub differences: Vec<Difference>,
    /// Changes that no overrider requests, with their reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl OverrideReport {
    /// `namespace` is that of the template.
    pub fn all(traced: &OverrideTrace, namespace: &str) -> Vec<Self> {
        let reports = traced.steps.iter().map(|step| OverrideReport {
            policy: PolicyName::overriding(step.cluster_scoped, namespace, &step.rule.policy_name),
            overriders: step.rule.overriders.clone(),
            differences: step.differences.clone(),
            notes: step.notes.clone(),
        });
        reports.collect()
    }
}

/// The binding of a template.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BindingReport {
    #[serde(flatten)]
    pub reference: ObjectReference,
    /// Replicas of the template according to the resource interpreter.
    pub replicas: i32,
    /// Time of the last scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<String>,
    /// Message of the binding's condition `Scheduled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Bindings that depend on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_by: Vec<ObjectReference>,
}

/// Reason why an object is in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum PlacementReason {
    Scheduled,
    /// An object in the cluster depends on it.
    Required,
    /// It is being evicted, and stays until it is replaced.
    Evicting,
}

/// A cluster of the object, now or planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetReport {
    pub cluster: String,
    #[serde(rename = "placed")]
    pub placement_reason: PlacementReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    pub overrides: Vec<OverrideReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<ObjectReference>,
    /// True if the binding's status reports the object as applied.
    pub applied: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<ResourceHealth>,
}

/// Replicas of a target. `None` for objects without replicas.
pub fn target_replicas(target: &TargetCluster) -> Option<i32> {
    (target.replicas > 0).then_some(target.replicas)
}

/// Explanation of where an object is propagated, and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub template: ObjectReference,
    /// The policy that it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    pub policies: Vec<PolicyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingReport>,
    pub targets: Vec<TargetReport>,
    pub waiting: Vec<WaitReason>,
}

/// Planned change of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Change {
    Added,
    Changed,
    Removed,
    Unchanged,
}

impl Change {
    /// Change between two optional values.
    pub fn between<T>(before: Option<&T>, after: Option<&T>, is_equal: impl FnOnce(&T, &T) -> bool) -> Self {
        match (before, after) {
            (None, Some(_)) => Change::Added,
            (Some(_), None) => Change::Removed,
            (Some(before), Some(after)) if !is_equal(before, after) => Change::Changed,
            _ => Change::Unchanged,
        }
    }
}

/// An object of the plan's input.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectPlan {
    #[serde(flatten)]
    pub reference: ObjectReference,
    pub change: Change,
    pub differences: Vec<Difference>,
}

/// Planned change of a template.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplatePlan {
    pub template: ObjectReference,
    pub change: Change,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_before: Option<PolicyName>,
    /// The policy that it would follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    pub policies: Vec<PolicyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingReport>,
    pub clusters: Vec<ClusterPlan>,
    /// Dependencies that would be propagated with it.
    pub dependencies: Vec<ObjectReference>,
    /// Bindings that would depend on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_by: Vec<ObjectReference>,
    pub waiting: Vec<WaitReason>,
    /// Why it could not be planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Planned change of a template in one cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlan {
    pub name: String,
    pub change: Change,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_before: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    pub overrides: Vec<OverrideReport>,
    /// Current manifest of its Work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest_before: Option<Value>,
    /// Planned manifest of its Work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Value>,
    pub differences: Vec<Difference>,
    /// Why the cluster is removed or cannot be used, or why that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Planned change of the fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    pub objects: Vec<ObjectPlan>,
    pub templates: Vec<TemplatePlan>,
    /// Number of templates that are left out because of a limit.
    pub more: usize,
    /// Number of templates that the caller is not allowed to get.
    pub withheld: usize,
    pub notices: Vec<String>,
}

/// Replaces withheld values.
pub const MASK: &str = "***";

/// Fields with a Secret's values. [`remove_copies`] removes those that tools copied into annotations.
const SECRET_VALUE_FIELDS: [&str; 2] = ["data", "stringData"];

fn is_secret(manifest: &Value) -> bool {
    unstructured::kind(manifest) == "Secret" && unstructured::api_version(manifest) == "v1"
}

/// Returns a Secret with masked values; other objects unchanged.
pub fn mask_secret(mut manifest: Value) -> Value {
    if is_secret(&manifest) {
        remove_copies(&mut manifest);
        for field in SECRET_VALUE_FIELDS {
            let values = manifest.get_mut(field).and_then(Value::as_object_mut);
            values.into_iter().flat_map(|values| values.values_mut()).for_each(|value| *value = json!(MASK));
        }
    }
    manifest
}

/// Returns a Secret without any of its contents; other objects unchanged.
pub fn empty_secret(mut manifest: Value) -> Value {
    if is_secret(&manifest) {
        remove_copies(&mut manifest);
        for field in SECRET_VALUE_FIELDS {
            unstructured::remove(&mut manifest, &[field]);
        }
    }
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn masked_secret_keeps_keys_and_emptied_one_keeps_nothing() {
        let metadata = |annotations: Value| json!({"name": "s", "annotations": annotations});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "YQ=="}, "stringData": {"b": "c"},
            "metadata": metadata(json!({"kubectl.kubernetes.io/last-applied-configuration": "a", "kapp.k14s.io/original": "b", "x": "y"}))});
        let rest = metadata(json!({"x": "y"}));
        let expected = json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": MASK}, "stringData": {"b": MASK},
            "metadata": rest});
        assert_eq!(mask_secret(secret.clone()), expected);
        assert_eq!(empty_secret(secret), json!({"apiVersion": "v1", "kind": "Secret", "metadata": rest}));
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
        assert_eq!((mask_secret(other.clone()), empty_secret(other.clone())), (other.clone(), other));
    }

    #[rstest]
    #[case(None, Some(1), Change::Added)]
    #[case(Some(1), None, Change::Removed)]
    #[case(Some(1), Some(2), Change::Changed)]
    #[case(Some(1), Some(1), Change::Unchanged)]
    #[case(None, None, Change::Unchanged)]
    fn changes_of_replicas(#[case] before: Option<i32>, #[case] after: Option<i32>, #[case] expected: Change) {
        assert_eq!(Change::between(before.as_ref(), after.as_ref(), |a, b| a == b), expected);
    }
}
