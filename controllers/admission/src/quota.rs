//! FederatedResourceQuota: validation, and the effect of a binding on recorded usage.

use crowsnest_api::policy::{FederatedResourceQuota, FederatedResourceQuotaSpec, ResourceList};
use crowsnest_api::work::{ObjectReference, ResourceBinding};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_apimachinery::quantity::Quantity;

use super::decode::decode;
use super::{Outcome, Refusal, Request};
use crowsnest_plan::quota::{self as plan, ExceededQuota, Usage, add, amount, amounts, is_huge_page, to_list, usage};
use crowsnest_plan::work::construct::targets;

/// Resources whose names need no domain prefix.
const STANDARD_RESOURCES: [&str; 20] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];

/// Standard resources that count objects; their amounts must be integers.
const COUNT_RESOURCES: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

const MAX_NAME_LENGTH: usize = 63;

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let quota: FederatedResourceQuota = decode(&request.object)?;
    let mut errors = Vec::new();
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    if name.len() > MAX_NAME_LENGTH {
        let detail = format!("must be no more than {MAX_NAME_LENGTH} characters");
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    errors.extend(validate_spec(&quota.spec));
    errors.extend(validate_list(&quota.status.overall, "status.overall"));
    errors.extend(validate_list(&quota.status.overall_used, "status.overallUsed"));
    for (index, cluster) in quota.status.aggregated_status.iter().enumerate() {
        let path = format!("status.aggregatedStatus[{index}]");
        errors.extend(validate_cluster(&cluster.cluster_name, &path));
        errors.extend(validate_list(&cluster.hard, &format!("{path}.hard")));
        errors.extend(validate_list(&cluster.used, &format!("{path}.used")));
    }
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

fn validate_spec(spec: &FederatedResourceQuotaSpec) -> Vec<FieldError> {
    let mut errors = validate_list(&spec.overall, "spec.overall");
    for (index, assignment) in spec.static_assignments.iter().enumerate() {
        let path = format!("spec.staticAssignments[{index}]");
        errors.extend(validate_cluster(&assignment.cluster_name, &path));
        errors.extend(validate_list(&assignment.hard, &format!("{path}.hard")));
    }
    for (name, overall) in &spec.overall {
        let assigned = spec.static_assignments.iter().filter_map(|assignment| assignment.hard.get(name));
        let assigned = assigned.map(amount).fold(Quantity::ZERO, |sum, hard| sum + hard);
        if amount(overall) < assigned {
            let field = format!("spec.overall[{name}]");
            errors.push(FieldError::invalid(field, &amount(overall), "overall is less than assignments"));
        }
    }
    for (index, assignment) in spec.static_assignments.iter().enumerate() {
        for name in assignment.hard.keys().filter(|name| !spec.overall.contains_key(*name)) {
            let field = format!("spec.staticAssignments[{index}].hard[{name}]");
            errors.push(FieldError::invalid(field, name, "assignment resourceName is not exist in overall"));
        }
    }
    errors
}

fn validate_cluster(name: &str, path: &str) -> Option<FieldError> {
    let problems = format::validate_cluster_name(name);
    (!problems.is_empty()).then(|| FieldError::invalid(format!("{path}.clusterName"), name, problems.join(",")))
}

/// Validates names and amounts. Unparsable amounts, which the schema rejects, count as zero.
fn validate_list(list: &ResourceList, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, quantity) in list {
        let field = format!("{path}[{name}]");
        errors.extend(validate_resource_name(name, &field));
        let amount = amount(quantity);
        if amount < Quantity::ZERO {
            errors.push(FieldError::invalid(&field, &amount, "must be greater than or equal to 0"));
        }
        let is_count = COUNT_RESOURCES.contains(&name.as_str()) || is_extended(name);
        if is_count && amount.milli_value() % 1000 != 0 {
            errors.push(FieldError::invalid(&field, &amount, "must be an integer"));
        }
    }
    errors
}

/// True for vendor resources such as `example.com/gpu`.
fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    !is_native
        && !name.starts_with("requests.")
        && format::validate_qualified_name(&format!("requests.{name}")).is_empty()
}

fn validate_resource_name(name: &str, field: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = format::validate_qualified_name(name)
        .into_iter()
        .map(|problem| FieldError::invalid(field, name, problem))
        .collect();
    if name.contains('/') || is_huge_page(name) {
        return errors;
    }
    if errors.is_empty() && !STANDARD_RESOURCES.contains(&name) {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(field, name, detail));
    }
    if name == "storage" || !STANDARD_RESOURCES.contains(&name) {
        errors.push(FieldError::invalid(field, name, "must be a standard resource for quota"));
    }
    errors
}

/// True if a change of a binding can change its usage.
fn changes_usage(old: &ResourceBinding, new: &ResourceBinding) -> bool {
    let request = |binding: &ResourceBinding| {
        let requirements = binding.spec.replica_requirements.as_ref();
        requirements.map(|requirements| amounts(&requirements.resource_request)).unwrap_or_default()
    };
    let replicas = |binding: &ResourceBinding| -> i64 {
        targets(&binding.spec).iter().map(|target| i64::from(target.replicas)).sum()
    };
    let clusters = |binding: &ResourceBinding| {
        let mut names: Vec<String> = targets(&binding.spec).into_iter().map(|target| target.name).collect();
        names.sort();
        names
    };
    let components = |binding: &ResourceBinding| -> Vec<(i32, Option<Usage>)> {
        let components = binding.spec.components.iter();
        components
            .map(|component| {
                let requirements = component.replica_requirements.as_ref();
                (component.replicas, requirements.map(|requirements| amounts(&requirements.resource_request)))
            })
            .collect()
    };
    let has_components = !old.spec.components.is_empty() || !new.spec.components.is_empty();
    request(old) != request(new)
        || replicas(old) != replicas(new)
        || (has_components && clusters(old) != clusters(new))
        || components(old) != components(new)
}

/// Quotas of a namespace whose recorded usage increases when a binding is created (`old` is `None`) or updated. An
/// error names the first exceeded quota. Changes that cannot affect usage are not checked.
pub fn check_quotas(
    quotas: &[FederatedResourceQuota],
    old: Option<&ResourceBinding>,
    new: &ResourceBinding,
) -> Result<Vec<FederatedResourceQuota>, Refusal> {
    let affects_usage = old.map_or(!targets(&new.spec).is_empty(), |old| changes_usage(old, new));
    if affects_usage { enforce(quotas, old, new) } else { Ok(Vec::new()) }
}

/// Quotas whose recorded usage increases, or an error for the first exceeded one. A decrease is rejected as well
/// while the sum exceeds the limit. Decreases are not recorded here: the change may not be stored after all, and
/// other bindings would be admitted too early. The quota controller recounts usage.
fn enforce(
    quotas: &[FederatedResourceQuota],
    old: Option<&ResourceBinding>,
    new: &ResourceBinding,
) -> Result<Vec<FederatedResourceQuota>, Refusal> {
    let mut change = usage(&new.spec);
    for (name, quantity) in old.map(|old| usage(&old.spec)).unwrap_or_default() {
        *change.entry(name).or_default() -= quantity;
    }
    change.retain(|_, quantity| !quantity.is_zero());
    let mut changed = Vec::new();
    for quota in quotas {
        let tracked: Usage = change
            .iter()
            .filter(|(name, _)| quota.spec.overall.contains_key(*name))
            .map(|(name, quantity)| (name.clone(), *quantity))
            .collect();
        if tracked.is_empty() {
            continue;
        }
        let used = sum(&quota.status.overall_used, tracked.clone());
        for (name, requested) in &used {
            let Some(limit) = quota.spec.overall.get(name).map(amount) else { continue };
            if *requested > limit {
                let resource = name.clone();
                let exceeded = ExceededQuota { quota: reference(quota), resource, requested: *requested, limit };
                return Err(Refusal::quota_exceeded(&exceeded));
            }
        }
        let increase: Usage = tracked.into_iter().filter(|(_, quantity)| *quantity > Quantity::ZERO).collect();
        if increase.is_empty() {
            continue;
        }
        let mut quota = quota.clone();
        quota.status.overall_used = to_list(sum(&quota.status.overall_used, increase));
        changed.push(quota);
    }
    Ok(changed)
}

fn reference(quota: &FederatedResourceQuota) -> ObjectReference {
    let text = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&quota.metadata.namespace), text(&quota.metadata.name));
    let reference_by_name =
        ObjectReference::new("policy.karmada.io/v1alpha1", "FederatedResourceQuota", &namespace, &name);
    ObjectReference { uid: text(&quota.metadata.uid), ..reference_by_name }
}

/// Recorded usage plus a change, in the formats of recorded usage.
fn sum(recorded: &ResourceList, change: Usage) -> Usage {
    let mut used = amounts(recorded);
    add(&mut used, change);
    plan::in_status_formats(used)
}
