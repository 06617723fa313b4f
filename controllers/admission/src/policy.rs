//! Admission of PropagationPolicies and ClusterPropagationPolicies, and defaults of OverridePolicies.

use crowsnest_api::Kind;
use crowsnest_api::constants::{finalizer, label};
use crowsnest_api::policy::{
    ApplicationFailoverBehavior, ClusterFailoverBehavior, ClusterPropagationPolicy, FailoverBehavior, OverridePolicy,
    Placement, PreemptionBehavior, PropagationPolicy, PropagationSpec, PurgeMode, ReplicaDivisionPreference,
    ReplicaSchedulingType, ResourceSelector, SpreadFieldValue, StatePreservation, Suspension,
};
use crowsnest_apimachinery::field::FieldError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use super::decode::{decode, encode_changed, encode_changed_with_lists};
use super::{AdmissionContext, Operation, Outcome, Refusal, Request, metadata, placement};

/// Default of `gracePeriodSeconds` for graceful purging.
const DEFAULT_GRACE_PERIOD_SECONDS: i32 = 600;

pub(super) fn mutate_propagation_policy(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let mut policy: PropagationPolicy = decode(&request.object)?;
    set_default_namespaces(&mut policy.spec.resource_selectors, &request.namespace);
    set_spec_defaults(&mut policy.spec);
    if request.operation == Operation::Create {
        metadata::set_label(&mut policy.metadata, label::PROPAGATION_POLICY_PERMANENT_ID, context.permanent_id);
        metadata::add_finalizer(&mut policy.metadata, finalizer::PROPAGATION_POLICY_CONTROLLER);
    }
    encode_changed_with_lists(&policy, &request.object, &["resourceSelectors"])
}

pub(super) fn mutate_cluster_propagation_policy(
    request: &Request,
    context: &AdmissionContext<'_>,
) -> Result<Outcome, Refusal> {
    let mut policy: ClusterPropagationPolicy = decode(&request.object)?;
    set_spec_defaults(&mut policy.spec);
    if request.operation == Operation::Create {
        metadata::set_label(&mut policy.metadata, label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, context.permanent_id);
        metadata::add_finalizer(&mut policy.metadata, finalizer::CLUSTER_PROPAGATION_POLICY_CONTROLLER);
    }
    encode_changed_with_lists(&policy, &request.object, &["resourceSelectors"])
}

pub(super) fn mutate_override_policy(request: &Request) -> Result<Outcome, Refusal> {
    let mut policy: OverridePolicy = decode(&request.object)?;
    set_default_namespaces(&mut policy.spec.resource_selectors, &request.namespace);
    encode_changed(&policy, &request.object).map(Outcome::Changed)
}

fn set_default_namespaces(selectors: &mut [ResourceSelector], namespace: &str) {
    for selector in selectors.iter_mut().filter(|selector| selector.namespace.is_empty()) {
        selector.namespace = namespace.to_owned();
    }
}

fn set_spec_defaults(spec: &mut PropagationSpec) {
    set_default_spread_constraints(&mut spec.placement);
    // A ServiceImport needs the EndpointSlices that belong to it.
    let is_service_import = |selector: &ResourceSelector| {
        selector.kind == "ServiceImport" && selector.api_version == "multicluster.x-k8s.io/v1alpha1"
    };
    if spec.resource_selectors.iter().any(is_service_import) {
        spec.propagate_deps = true;
    }
    set_default_division_preference(&mut spec.placement);
    if let Some(application) = spec.failover.as_mut().and_then(|failover| failover.application.as_mut()) {
        if let Some(replacement) = application.purge_mode.as_ref().and_then(replace_removed_purge_mode) {
            application.purge_mode = Some(replacement);
        }
        if application.purge_mode == Some(PurgeMode::Gracefully) {
            application.grace_period_seconds.get_or_insert(DEFAULT_GRACE_PERIOD_SECONDS);
        }
    }
}

/// Returns the replacement of a purge mode that Karmada 1.19 removed. `None` for current modes.
fn replace_removed_purge_mode(mode: &PurgeMode) -> Option<PurgeMode> {
    match mode.as_str() {
        "Immediately" => Some(PurgeMode::Directly),
        "Graciously" => Some(PurgeMode::Gracefully),
        _ => None,
    }
}

fn set_default_spread_constraints(placement: &mut Placement) {
    for constraint in &mut placement.spread_constraints {
        if constraint.spread_by_label.is_empty() && constraint.spread_by_field.is_none() {
            constraint.spread_by_field = Some(SpreadFieldValue::Cluster);
        }
        if constraint.min_groups == 0 {
            constraint.min_groups = 1;
        }
    }
}

fn set_default_division_preference(placement: &mut Placement) {
    if let Some(scheduling) = &mut placement.replica_scheduling
        && scheduling.replica_scheduling_type == Some(ReplicaSchedulingType::Divided)
    {
        scheduling.replica_division_preference.get_or_insert(ReplicaDivisionPreference::Weighted);
    }
}

pub(super) fn validate_propagation_policy(request: &Request) -> Result<Outcome, Refusal> {
    let (id_label, namespace) = (label::PROPAGATION_POLICY_PERMANENT_ID, &request.namespace);
    validate_policy::<PropagationPolicy>(request, id_label, namespace, |policy| (&policy.metadata, &policy.spec))
}

pub(super) fn validate_cluster_propagation_policy(request: &Request) -> Result<Outcome, Refusal> {
    let id_label = label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID;
    validate_policy::<ClusterPropagationPolicy>(request, id_label, "", |policy| (&policy.metadata, &policy.spec))
}

/// Metadata and spec of a policy.
type MetadataAndSpec<'p> = (&'p ObjectMeta, &'p PropagationSpec);

/// Validates a policy of kind `P`. `namespace` is empty for a cluster-scoped one.
fn validate_policy<P: Kind + DeserializeOwned>(
    request: &Request,
    id_label: &str,
    namespace: &str,
    parts: fn(&P) -> MetadataAndSpec<'_>,
) -> Result<Outcome, Refusal> {
    let policy: P = decode(&request.object)?;
    let (metadata, spec) = parts(&policy);
    if request.operation == Operation::Update {
        let old: P = decode(&request.old_object)?;
        check_immutable_fields((metadata, spec), parts(&old), id_label)?;
    }
    require_permanent_id(metadata, id_label)?;
    Refusal::check(&validate_spec(spec, namespace)).map(|()| Outcome::Unchanged)
}

fn check_immutable_fields(new: MetadataAndSpec<'_>, old: MetadataAndSpec<'_>, id_label: &str) -> Result<(), Refusal> {
    if new.1.scheduler_name != old.1.scheduler_name {
        return Err(Refusal::denied("the schedulerName should not be updated"));
    }
    if metadata::label(new.0, id_label) != metadata::label(old.0, id_label) {
        let message = format!("label {id_label} is immutable, it can only be set by the system during creation");
        return Err(Refusal::denied(message));
    }
    Ok(())
}

fn require_permanent_id(metadata: &ObjectMeta, id_label: &str) -> Result<(), Refusal> {
    if metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(id_label)) {
        return Ok(());
    }
    let message =
        format!("label {id_label} is required, it should be set by the mutating admission webhook during creation");
    Err(Refusal::denied(message))
}

fn validate_spec(spec: &PropagationSpec, namespace: &str) -> Vec<FieldError> {
    let mut errors = placement::validate(&spec.placement, "spec.placement");
    if spec.failover.as_ref().is_some_and(|failover| failover.application.is_some()) && !spec.propagate_deps {
        let detail = "application failover is set, propagateDeps must be true";
        errors.push(FieldError::invalid("spec.propagateDeps", &spec.propagate_deps, detail));
    }
    if let Some(failover) = &spec.failover {
        errors.extend(validate_failover(failover));
    }
    errors.extend(validate_selector_namespaces(&spec.resource_selectors, namespace));
    errors.extend(validate_preemption(spec));
    errors.extend(validate_suspension(spec.suspension.as_ref()));
    errors
}

/// Validates that namespaced policies select objects of the same namespace only. `namespace` is empty for
/// cluster-scoped policies.
pub(super) fn validate_selector_namespaces(selectors: &[ResourceSelector], namespace: &str) -> Vec<FieldError> {
    let validate = |(index, selector): (usize, &ResourceSelector)| {
        (!namespace.is_empty() && selector.namespace != namespace).then(|| {
            let detail = "namespace of resource selector must be the same as the namespace of the policy";
            FieldError::invalid(format!("spec.resourceSelectors[{index}].namespace"), &selector.namespace, detail)
        })
    };
    selectors.iter().enumerate().filter_map(validate).collect()
}

fn validate_preemption(spec: &PropagationSpec) -> Vec<FieldError> {
    if spec.preemption != Some(PreemptionBehavior::Always) {
        return Vec::new();
    }
    let detail =
        "name cannot be empty if preemption is Always, the empty name may cause unexpected resources preemption";
    let without_name = spec.resource_selectors.iter().enumerate().filter(|(_, selector)| selector.name.is_empty());
    without_name
        .map(|(index, selector)| {
            FieldError::invalid(format!("spec.resourceSelectors[{index}].name"), &selector.name, detail)
        })
        .collect()
}

fn validate_suspension(suspension: Option<&Suspension>) -> Option<FieldError> {
    let suspension = suspension?;
    let is_suspended = suspension.dispatching == Some(true);
    let has_suspended_clusters =
        suspension.dispatching_on_clusters.as_ref().is_some_and(|clusters| !clusters.cluster_names.is_empty());
    (is_suspended && has_suspended_clusters).then(|| {
        let detail = "suspension dispatching cannot co-exist with dispatchingOnClusters.clusterNames";
        FieldError::invalid("spec.suspension.suspension", suspension, detail)
    })
}

fn validate_failover(failover: &FailoverBehavior) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(application) = &failover.application {
        errors.extend(validate_application_failover(application, "spec.failover.application"));
    }
    if let Some(ClusterFailoverBehavior { state_preservation: Some(preservation), .. }) = &failover.cluster {
        errors.extend(validate_preservation(preservation, "spec.failover.cluster.statePreservation"));
    }
    errors
}

fn validate_application_failover(application: &ApplicationFailoverBehavior, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(seconds) = application.decision_conditions.toleration_seconds.filter(|seconds| *seconds < 0) {
        let field = format!("{path}.decisionConditions.tolerationSeconds");
        errors.push(FieldError::invalid(field, &seconds, "must be greater than or equal to 0"));
    }
    let field = format!("{path}.gracePeriodSeconds");
    let is_graceful = application.purge_mode == Some(PurgeMode::Gracefully);
    match application.grace_period_seconds {
        Some(seconds) if !is_graceful => {
            errors.push(FieldError::invalid(&field, &seconds, "only takes effect when purgeMode is gracefully"));
        }
        None if is_graceful => {
            errors.push(FieldError::invalid(&field, &(), "should not be empty when purgeMode is gracefully"));
        }
        _ => {}
    }
    if let Some(seconds) = application.grace_period_seconds.filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid(&field, &seconds, "must be greater than 0"));
    }
    if let Some(preservation) = &application.state_preservation {
        errors.extend(validate_preservation(preservation, &format!("{path}.statePreservation")));
    }
    errors
}

fn validate_preservation(preservation: &StatePreservation, path: &str) -> Vec<FieldError> {
    let rules = preservation.rules.iter().enumerate();
    rules
        .flat_map(|(index, rule)| {
            metadata::validate_label_name(&rule.alias_label_name, &format!("{path}.rules[{index}].aliasLabelName"))
        })
        .collect()
}
