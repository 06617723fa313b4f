//! Validation of placements and cluster affinities.

use std::collections::BTreeSet;

use crowsnest_api::policy::{
    ClusterAffinity, ClusterAffinityTerm, FieldSelector, Placement, ReplicaDivisionPreference,
    ReplicaSchedulingStrategy, ReplicaSchedulingType, SpreadConstraint, SpreadFieldValue, WorkloadAffinity,
};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use k8s_openapi::api::core::v1::Toleration;

pub(super) fn validate(placement: &Placement, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if placement.cluster_affinity.is_some() && !placement.cluster_affinities.is_empty() {
        errors.push(FieldError::invalid(path, placement, "clusterAffinities cannot co-exist with clusterAffinity"));
    }
    if !allows_overflow(placement.replica_scheduling.as_ref()) {
        let detail = "overflowAffinities can only be used together with dynamic weight or aggregated scheduling";
        for (index, term) in placement.cluster_affinities.iter().enumerate() {
            if !term.overflow_affinities.is_empty() {
                let field = format!("{path}.clusterAffinities[{index}].overflowAffinities");
                errors.push(FieldError::invalid(field, &term.overflow_affinities, detail));
            }
        }
    }
    if let Some(affinity) = &placement.cluster_affinity {
        errors.extend(validate_affinity(affinity, &format!("{path}.clusterAffinity")));
    }
    errors.extend(validate_terms(&placement.cluster_affinities, &format!("{path}.clusterAffinities")));
    errors.extend(validate_spread(&placement.spread_constraints, &format!("{path}.spreadConstraints")));
    if let Some(affinity) = &placement.workload_affinity {
        errors.extend(validate_workload_affinity(affinity, &format!("{path}.workloadAffinity")));
    }
    errors.extend(validate_tolerations(&placement.cluster_tolerations, &format!("{path}.clusterTolerations")));
    errors
}

/// True if overflow affinities are allowed: replicas must be divided by available replicas.
fn allows_overflow(scheduling: Option<&ReplicaSchedulingStrategy>) -> bool {
    let Some(scheduling) = scheduling else { return false };
    if scheduling.replica_scheduling_type != Some(ReplicaSchedulingType::Divided) {
        return false;
    }
    scheduling.replica_division_preference == Some(ReplicaDivisionPreference::Aggregated)
        || scheduling.weight_preference.as_ref().is_some_and(|weights| weights.dynamic_weight.is_some())
}

/// Validates a cluster affinity. Field selectors support provider, region and zone only.
pub(super) fn validate_affinity(affinity: &ClusterAffinity, path: &str) -> Option<FieldError> {
    let selector = affinity.field_selector.as_ref()?;
    let problem = field_selector_problem(selector)?;
    Some(FieldError::invalid(format!("{path}.fieldSelector"), selector, problem))
}

fn field_selector_problem(selector: &FieldSelector) -> Option<String> {
    selector.match_expressions.iter().find_map(|expression| {
        if !matches!(expression.key.as_str(), "provider" | "region" | "zone") {
            return Some(format!("unsupported key {:?}, must be provider, region, or zone", expression.key));
        }
        if !matches!(expression.operator.as_str(), "In" | "NotIn") {
            return Some(format!("unsupported operator {:?}, must be In or NotIn", expression.operator));
        }
        None
    })
}

fn validate_terms(terms: &[ClusterAffinityTerm], path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (index, term) in terms.iter().enumerate() {
        let path_of_term = format!("{path}[{index}]");
        for problem in format::validate_qualified_name(&term.affinity_name) {
            errors.push(FieldError::invalid(&path_of_term, &term.affinity_name, problem));
        }
        if !names.insert(&term.affinity_name) {
            errors.push(FieldError::invalid(path, terms, "each affinity term in a policy must have a unique name"));
        }
        errors.extend(validate_affinity(&term.affinity, &path_of_term));
        errors.extend(validate_overflow(term, &format!("{path_of_term}.overflowAffinities")));
    }
    errors
}

fn validate_overflow(term: &ClusterAffinityTerm, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if term.overflow_affinities.is_empty() {
        return errors;
    }
    if term.affinity == ClusterAffinity::default() {
        let detail = "overflowAffinities can only be used together with the inline ClusterAffinity";
        errors.push(FieldError::invalid(path, &term.overflow_affinities, detail));
    }
    let mut names = BTreeSet::from([&term.affinity_name]);
    for (index, overflow) in term.overflow_affinities.iter().enumerate() {
        let field = format!("{path}[{index}].affinityName");
        for problem in format::validate_qualified_name(&overflow.affinity_name) {
            errors.push(FieldError::invalid(&field, &overflow.affinity_name, problem));
        }
        if !names.insert(&overflow.affinity_name) {
            let detail =
                "overflow affinity name must be unique and must not duplicate the primary group's affinityName";
            errors.push(FieldError::invalid(&field, &overflow.affinity_name, detail));
        }
        errors.extend(validate_affinity(&overflow.affinity, &format!("{path}[{index}]")));
    }
    errors
}

fn validate_spread(constraints: &[SpreadConstraint], path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut fields: Vec<(&SpreadFieldValue, bool)> = Vec::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let rules = [
            (
                constraint.spread_by_field.is_some() && !constraint.spread_by_label.is_empty(),
                "spreadByLabel should not co-exist with spreadByField",
            ),
            (constraint.min_groups < 0, "minGroups lower than 0 is not allowed"),
            (constraint.max_groups < 0, "maxGroups lower than 0 is not allowed"),
            (
                constraint.max_groups > 0 && constraint.max_groups < constraint.min_groups,
                "maxGroups lower than minGroups is not allowed",
            ),
        ];
        for (_, detail) in rules.iter().filter(|(is_violated, _)| *is_violated) {
            errors.push(FieldError::invalid(format!("{path}[{index}]"), constraint, *detail));
        }
        let Some(field) = &constraint.spread_by_field else { continue };
        match fields.iter_mut().find(|(existing, _)| *existing == field) {
            None => fields.push((field, false)),
            // Reported once per field.
            Some((_, is_reported)) if !*is_reported => {
                *is_reported = true;
                let detail = format!("multiple {field} spread constraints are not allowed");
                errors.push(FieldError::invalid(path, constraints, detail));
            }
            Some(_) => {}
        }
    }
    if !fields.is_empty() && !fields.iter().any(|(field, _)| **field == SpreadFieldValue::Cluster) {
        let detail = "the cluster spread constraint must be enabled in one of the constraints in case of SpreadByField is enabled";
        errors.push(FieldError::invalid(path, constraints, detail));
    }
    errors
}

fn validate_workload_affinity(affinity: &WorkloadAffinity, path: &str) -> Vec<FieldError> {
    let affinity_key = affinity.affinity.as_ref().map(|term| &term.group_by_label_key);
    let anti_affinity_key = affinity.anti_affinity.as_ref().map(|term| &term.group_by_label_key);
    let mut errors = Vec::new();
    for (key, name) in [(affinity_key, "affinity"), (anti_affinity_key, "antiAffinity")] {
        for problem in key.iter().flat_map(|key| format::validate_qualified_name(key)) {
            errors.push(FieldError::invalid(format!("{path}.{name}.groupByLabelKey"), &key, problem));
        }
    }
    if affinity_key.is_some() && affinity_key == anti_affinity_key {
        let detail = "affinity and antiAffinity must not use the same groupByLabelKey";
        errors.push(FieldError::invalid(path, affinity, detail));
    }
    errors
}

fn validate_tolerations(tolerations: &[Toleration], path: &str) -> Vec<FieldError> {
    let is_comparison = |operator: &&str| matches!(*operator, "Lt" | "Gt");
    let tolerations = tolerations.iter().enumerate();
    tolerations
        .filter_map(|(index, toleration)| {
            let operator = toleration.operator.as_deref().filter(is_comparison)?;
            Some(FieldError::not_supported(format!("{path}[{index}].operator"), operator, &["", "Exists", "Equal"]))
        })
        .collect()
}
