//! Reasons why an object is not propagated yet: for the template, its binding, and each target cluster. Only
//! explanations use them; controllers do not.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{condition, label};
use crowsnest_api::policy::PurgeMode;
use crowsnest_api::work::ResourceBinding;
use crowsnest_apimachinery::unstructured;
use serde::Serialize;
use serde_json::Value;

use super::conditions;
use super::propagation::Choice;
use super::propagation::binding::BindingPlan;

/// Machine-readable cause of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Cause {
    TemplateDeleting,
    NeverPropagated,
    ClaimedElsewhere,
    NoPolicy,
    PolicyDeleting,
    PolicyGone,
    NotSelected,
    DependentOverride,
    LazyPolicy,
    GarbageCollection,
    InterpretFailed,
    BindingPending,
    BindingDeleting,
    SchedulingSuspended,
    OtherScheduler,
    SchedulingPending,
    NotScheduled,
    QuotaExceeded,
    Eviction,
    Purge,
    ClusterMissing,
    ClusterLeaving,
    ClusterNotReady,
    KindNotServed,
    DispatchingSuspended,
    OverrideFailed,
    WorkPending,
    WorkDeleting,
    ApplyFailed,
}

/// A reason why an object is not propagated yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitReason {
    pub cause: Cause,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub message: String,
}

impl WaitReason {
    /// Reason that concerns the template or its binding.
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        WaitReason { cause, cluster: None, message: message.into() }
    }

    /// Reason that concerns one target cluster.
    pub fn in_cluster(cluster: &str, cause: Cause, message: impl Into<String>) -> Self {
        WaitReason { cause, cluster: Some(cluster.to_owned()), message: message.into() }
    }
}

/// State of a template as seen by the detector.
pub struct TemplateState<'a> {
    pub template: &'a Value,
    /// True if its namespace or kind is never propagated.
    pub is_never_propagated: bool,
    pub choice: &'a Choice<'a>,
    /// Missing overrides that the policy depends on.
    pub missing_overrides: &'a [String],
    /// The write that the binding still needs. `None` if the template follows no policy.
    pub binding: Option<&'a BindingPlan>,
}

/// Reasons why a template's binding does not have its desired state.
pub fn explain_template(state: &TemplateState<'_>) -> Vec<WaitReason> {
    if unstructured::is_terminating(state.template) {
        return vec![WaitReason::new(Cause::TemplateDeleting, "the template is being deleted")];
    }
    if state.is_never_propagated {
        return vec![WaitReason::new(
            Cause::NeverPropagated,
            "objects of this kind or in this namespace are never propagated",
        )];
    }
    if let Some(claimant) =
        unstructured::label(state.template, label::RESOURCE_TEMPLATE_CLAIMED_BY).filter(|claimant| !claimant.is_empty())
    {
        return vec![WaitReason::new(
            Cause::ClaimedElsewhere,
            format!("the template is claimed by a {claimant}, so that policies do not apply"),
        )];
    }
    let policy = match state.choice {
        Choice::Follow(policy) | Choice::Preempt(policy) => policy,
        Choice::Unmatched => return vec![WaitReason::new(Cause::NoPolicy, "no policy selects the template")],
        Choice::Wait => return vec![WaitReason::new(Cause::PolicyDeleting, "its policy is being deleted")],
        Choice::Release => {
            return vec![WaitReason::new(Cause::PolicyGone, "its policy no longer exists; the claim is being removed")];
        }
        Choice::Unselected(policy) => {
            let message =
                format!("{} no longer selects the template; changes are not propagated until it does", policy.name);
            return vec![WaitReason::new(Cause::NotSelected, message)];
        }
    };
    if !state.missing_overrides.is_empty() {
        let missing = state.missing_overrides.iter();
        let message =
            |name| WaitReason::new(Cause::DependentOverride, format!("waiting for dependent overrides: {name}"));
        return missing.map(message).collect();
    }
    match state.binding {
        Some(BindingPlan::WaitForGarbageCollection) => {
            let message =
                "the binding belongs to a deleted object of the same name and must be garbage-collected first";
            vec![WaitReason::new(Cause::GarbageCollection, message)]
        }
        Some(BindingPlan::Create(_) | BindingPlan::Update(_)) if policy.is_lazy() => {
            let message = format!(
                "the activation preference of {} is Lazy: its changes take effect with the next change of the template",
                policy.name
            );
            vec![WaitReason::new(Cause::LazyPolicy, message)]
        }
        Some(BindingPlan::Create(_) | BindingPlan::Update(_)) => {
            vec![WaitReason::new(Cause::BindingPending, "the binding is being written")]
        }
        Some(BindingPlan::Keep) | None => Vec::new(),
    }
}

/// State of a binding as seen by the scheduler and the binding controller.
pub struct BindingState<'a> {
    pub binding: &'a Value,
    pub typed: &'a ResourceBinding,
    pub scheduler_name: &'a str,
    /// True if this scheduler is responsible for the binding.
    pub is_responsible: bool,
    /// True if the binding permits the requests of the current template; see
    /// [`permits_requests`](super::work::construct::permits_requests).
    pub permits_requests: bool,
    /// Clusters that have a Work of the binding.
    pub work_clusters: &'a [String],
}

/// Reasons why a binding is not scheduled or its Works are not updated, and its evictions in progress.
pub fn explain_binding(state: &BindingState<'_>) -> Vec<WaitReason> {
    let spec = &state.typed.spec;
    if unstructured::is_terminating(state.binding) {
        return vec![WaitReason::new(Cause::BindingDeleting, "the binding is being deleted")];
    }
    let mut reasons: Vec<WaitReason> = scheduling_reason(state).into_iter().collect();
    if !state.permits_requests {
        let message =
            "the binding does not permit the current requests of the template; a quota may have rejected them";
        reasons.push(WaitReason::new(Cause::QuotaExceeded, message));
    }
    for task in &spec.graceful_eviction_tasks {
        let cluster = &task.from_cluster;
        let reason = if task.message.is_empty() { &task.reason } else { &task.message };
        reasons.push(match task.purge_mode {
            Some(PurgeMode::Directly) if state.work_clusters.contains(cluster) => {
                let message = format!(
                    "waiting for the copy in {cluster} to be deleted before other clusters are used ({reason})"
                );
                WaitReason::in_cluster(cluster, Cause::Purge, message)
            }
            Some(PurgeMode::Directly) => WaitReason::in_cluster(
                cluster,
                Cause::Eviction,
                format!("evicted from {cluster} ({reason}); not healthy elsewhere yet"),
            ),
            _ => WaitReason::in_cluster(
                cluster,
                Cause::Eviction,
                format!("stays in {cluster} until its replacement is healthy ({reason})"),
            ),
        });
    }
    reasons
}

/// Reason why the current generation of the binding is not scheduled. `None` for a binding without a placement.
fn scheduling_reason(state: &BindingState<'_>) -> Option<WaitReason> {
    let (spec, status) = (&state.typed.spec, &state.typed.status);
    spec.placement.as_ref()?;
    if spec.suspension.as_ref().and_then(|suspension| suspension.scheduling).unwrap_or_default() {
        return Some(WaitReason::new(Cause::SchedulingSuspended, "scheduling of the binding is suspended"));
    }
    if !spec.scheduler_name.is_empty() && spec.scheduler_name != state.scheduler_name {
        let message = format!("the binding is scheduled by another scheduler, {:?}", spec.scheduler_name);
        return Some(WaitReason::new(Cause::OtherScheduler, message));
    }
    if !state.is_responsible {
        return Some(WaitReason::new(Cause::NoPolicy, "no policy claims the binding any longer; it is unchanged"));
    }
    match conditions::find(&status.conditions, condition::SCHEDULED) {
        Some(scheduled) if scheduled.status == "False" => {
            let is_quota_exceeded = scheduled.reason == condition::SCHEDULED_QUOTA_EXCEEDED;
            let cause = if is_quota_exceeded { Cause::QuotaExceeded } else { Cause::NotScheduled };
            Some(WaitReason::new(cause, format!("{}: {}", scheduled.reason, scheduled.message)))
        }
        None => Some(WaitReason::new(Cause::SchedulingPending, "the binding has not been scheduled yet")),
        Some(_) if status.scheduler_observed_generation < unstructured::generation(state.binding) => {
            Some(WaitReason::new(Cause::SchedulingPending, "the scheduler has not observed the last change yet"))
        }
        Some(_) => None,
    }
}

/// State of an object in one target cluster.
pub struct TargetState<'a> {
    pub cluster: &'a str,
    pub member: Option<&'a Cluster>,
    /// Kind and group that the cluster does not serve, according to its API enablements.
    pub unserved_kind: Option<String>,
    pub is_suspended: bool,
    pub override_error: Option<String>,
    pub work: Option<&'a Value>,
}

/// Reasons why the current version of the object is not in a target cluster.
pub fn explain_target(state: &TargetState<'_>) -> Vec<WaitReason> {
    let cluster = state.cluster;
    let Some(member) = state.member else {
        return vec![WaitReason::in_cluster(
            cluster,
            Cause::ClusterMissing,
            format!("cluster {cluster} does not exist"),
        )];
    };
    let mut reasons = Vec::new();
    if member.metadata.deletion_timestamp.is_some() {
        reasons.push(WaitReason::in_cluster(
            cluster,
            Cause::ClusterLeaving,
            format!("cluster {cluster} is being removed"),
        ));
    }
    let conditions = &member.status.conditions;
    if !conditions::is_true(conditions, condition::READY) {
        let reason = conditions::find(conditions, condition::READY).map_or("", |ready| ready.message.as_str());
        let reason = if reason.is_empty() { "its status is not known yet" } else { reason };
        reasons.push(WaitReason::in_cluster(
            cluster,
            Cause::ClusterNotReady,
            format!("cluster({cluster}) not ready: {reason}"),
        ));
    }
    if let Some(kind) = &state.unserved_kind {
        reasons.push(WaitReason::in_cluster(
            cluster,
            Cause::KindNotServed,
            format!("cluster {cluster} does not serve {kind}"),
        ));
    }
    if state.is_suspended {
        let message = format!("dispatching to {cluster} is suspended");
        reasons.push(WaitReason::in_cluster(cluster, Cause::DispatchingSuspended, message));
    }
    if let Some(error) = &state.override_error {
        reasons.push(WaitReason::in_cluster(cluster, Cause::OverrideFailed, error.clone()));
    }
    // A missing Work is reported only if there is no other reason.
    let has_reason = !reasons.is_empty();
    reasons
        .extend(work_reason(cluster, state.work).filter(|waiting| waiting.cause != Cause::WorkPending || !has_reason));
    reasons
}

/// Reason why the Work of a cluster does not apply the object.
fn work_reason(cluster: &str, work: Option<&Value>) -> Option<WaitReason> {
    match work {
        None => Some(WaitReason::in_cluster(cluster, Cause::WorkPending, "the Work is about to be created")),
        Some(work) if unstructured::is_terminating(work) => {
            Some(WaitReason::in_cluster(cluster, Cause::WorkDeleting, "the Work is being deleted"))
        }
        Some(work) => {
            let conditions = unstructured::at(work, &["status", "conditions"]).and_then(Value::as_array);
            let applied = conditions
                .into_iter()
                .flatten()
                .find(|condition| unstructured::text(condition, &["type"]) == condition::APPLIED);
            applied.filter(|condition| unstructured::text(condition, &["status"]) == "False").map(|condition| {
                WaitReason::in_cluster(cluster, Cause::ApplyFailed, unstructured::text(condition, &["message"]))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::propagation::Policy;
    use crowsnest_api::policy::PropagationSpec;
    use rstest::rstest;
    use serde_json::json;

    fn causes(found: &[WaitReason]) -> Vec<Cause> {
        found.iter().map(|waiting| waiting.cause).collect()
    }

    #[rstest]
    #[case::follows(json!({}), "follow", &[], Some(BindingPlan::Keep), &[])]
    #[case::deleting(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "follow", &[], None, &[Cause::TemplateDeleting])]
    #[case::claimed_by_a_multi_cluster_service(json!({"labels": {"resourcetemplate.karmada.io/claimed-by": "MultiClusterService"}}), "follow", &[], None, &[Cause::ClaimedElsewhere])]
    #[case::no_policy(json!({}), "unmatched", &[], None, &[Cause::NoPolicy])]
    #[case::policy_being_deleted(json!({}), "wait", &[], None, &[Cause::PolicyDeleting])]
    #[case::policy_deleted(json!({}), "release", &[], None, &[Cause::PolicyGone])]
    #[case::no_longer_selected(json!({}), "unselected", &[], None, &[Cause::NotSelected])]
    #[case::missing_overrides(json!({}), "follow", &["a", "b"], None, &[Cause::DependentOverride, Cause::DependentOverride])]
    #[case::waiting_for_garbage_collection(json!({}), "follow", &[], Some(BindingPlan::WaitForGarbageCollection), &[Cause::GarbageCollection])]
    #[case::binding_not_written_yet(json!({}), "follow", &[], Some(BindingPlan::Create(Value::Null)), &[Cause::BindingPending])]
    #[case::lazy(json!({}), "lazy", &[], Some(BindingPlan::Update(Value::Null)), &[Cause::LazyPolicy])]
    fn templates_are_explained(
        #[case] metadata: Value,
        #[case] choice: &str,
        #[case] missing: &[&str],
        #[case] binding: Option<BindingPlan>,
        #[case] expected: &[Cause],
    ) {
        let mut spec = PropagationSpec::default();
        if choice == "lazy" {
            spec.activation_preference = Some(crowsnest_api::policy::ActivationPreference::Lazy);
        }
        let policy = Policy { namespace: "n", name: "p", permanent_id: "id", is_terminating: false, spec: &spec };
        let choice = match choice {
            "follow" | "lazy" => Choice::Follow(policy),
            "unmatched" => Choice::Unmatched,
            "wait" => Choice::Wait,
            "release" => Choice::Release,
            _ => Choice::Unselected(policy),
        };
        let template = json!({"metadata": metadata});
        let missing: Vec<String> = missing.iter().map(|name| (*name).to_owned()).collect();
        let state = TemplateState {
            template: &template,
            is_never_propagated: false,
            choice: &choice,
            missing_overrides: &missing,
            binding: binding.as_ref(),
        };
        assert_eq!(causes(&explain_template(&state)), expected);
    }

    #[rstest]
    #[case::scheduled(json!({}), json!({"conditions": [scheduled("True", "Success")], "schedulerObservedGeneration": 2}), &[])]
    #[case::never_scheduled(json!({}), json!({}), &[Cause::SchedulingPending])]
    #[case::change_not_observed(json!({}), json!({"conditions": [scheduled("True", "Success")], "schedulerObservedGeneration": 1}), &[Cause::SchedulingPending])]
    #[case::no_fitting_cluster(json!({}), json!({"conditions": [scheduled("False", "NoClusterFit")]}), &[Cause::NotScheduled])]
    #[case::quota_exceeded(json!({}), json!({"conditions": [scheduled("False", "QuotaExceeded")]}), &[Cause::QuotaExceeded])]
    #[case::suspended(json!({"suspension": {"scheduling": true}}), json!({}), &[Cause::SchedulingSuspended])]
    #[case::other_scheduler(json!({"schedulerName": "other"}), json!({}), &[Cause::OtherScheduler])]
    #[case::evictions(
        json!({"gracefulEvictionTasks": [task("m1", "Gracefully"), task("m2", "Directly"), task("m3", "Directly")]}),
        json!({"conditions": [scheduled("True", "Success")], "schedulerObservedGeneration": 2}),
        &[Cause::Eviction, Cause::Purge, Cause::Eviction]
    )]
    fn bindings_are_explained(#[case] mut spec: Value, #[case] status: Value, #[case] expected: &[Cause]) {
        spec["resource"] = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c"});
        spec["placement"] = json!({});
        let binding = json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
            "metadata": {"name": "c-configmap", "namespace": "n", "generation": 2}, "spec": spec, "status": status});
        let typed: ResourceBinding = serde_json::from_value(binding.clone()).expect("a binding");
        let work_clusters = ["m2".to_owned()];
        let state = BindingState {
            binding: &binding,
            typed: &typed,
            scheduler_name: "default-scheduler",
            is_responsible: true,
            permits_requests: true,
            work_clusters: &work_clusters,
        };
        assert_eq!(causes(&explain_binding(&state)), expected);
    }

    fn scheduled(status: &str, reason: &str) -> Value {
        json!({"type": "Scheduled", "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn task(from: &str, mode: &str) -> Value {
        json!({"fromCluster": from, "purgeMode": mode, "reason": "TaintUntolerated", "producer": "TaintManager"})
    }

    #[rstest]
    #[case::applied("True", None, false, Some(work("True", false)), &[])]
    #[case::without_work("True", None, false, None, &[Cause::WorkPending])]
    #[case::cluster_not_ready("False", None, false, None, &[Cause::ClusterNotReady])]
    #[case::kind_not_served("True", Some("example.io/v1 Widget"), false, Some(work("False", false)), &[Cause::KindNotServed, Cause::ApplyFailed])]
    #[case::suspended("True", None, true, Some(work("True", false)), &[Cause::DispatchingSuspended])]
    #[case::work_being_deleted("True", None, false, Some(work("True", true)), &[Cause::WorkDeleting])]
    fn targets_are_explained(
        #[case] ready: &str,
        #[case] unserved: Option<&str>,
        #[case] suspended: bool,
        #[case] work: Option<Value>,
        #[case] expected: &[Cause],
    ) {
        let ready = json!({"type": "Ready", "status": ready, "reason": "r", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let member: Cluster = serde_json::from_value(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1"},
            "spec": {"syncMode": "Push"}, "status": {"conditions": [ready]},
        }))
        .expect("a cluster");
        let state = TargetState {
            cluster: "m1",
            member: Some(&member),
            unserved_kind: unserved.map(str::to_owned),
            is_suspended: suspended,
            override_error: None,
            work: work.as_ref(),
        };
        assert_eq!(causes(&explain_target(&state)), expected);
    }

    fn work(applied: &str, deleting: bool) -> Value {
        let mut work = json!({"metadata": {}, "status": {"conditions": [{"type": "Applied", "status": applied}]}});
        if deleting {
            work["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        work
    }
}
