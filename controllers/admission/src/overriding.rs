//! Admission of OverridePolicies and ClusterOverridePolicies.

use crowsnest_api::policy::{
    ClusterOverridePolicy, FieldOverrider, FieldPatchOperation, OverridePolicy, OverrideSpec, OverriderOperator,
    Overriders, RuleWithCluster,
};
use crowsnest_apimachinery::field::FieldError;

use super::decode::decode;
use super::{Outcome, Refusal, Request, metadata, placement, policy};

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let policy: OverridePolicy = decode(&request.object)?;
    let mut errors = validate_spec(&policy.spec, &request.namespace);
    errors.extend(validate_identity(&policy.spec));
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

pub(super) fn validate_cluster(request: &Request) -> Result<Outcome, Refusal> {
    let policy: ClusterOverridePolicy = decode(&request.object)?;
    Refusal::check(&validate_spec(&policy.spec, "")).map(|()| Outcome::Unchanged)
}

fn validate_spec(spec: &OverrideSpec, namespace: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(target) = &spec.target_cluster {
        errors.extend(placement::validate_affinity(target, "spec.targetCluster"));
    }
    if !spec.override_rules.is_empty() {
        if let Some(target) = &spec.target_cluster {
            let detail = "overrideRules and targetCluster can't co-exist";
            errors.push(FieldError::invalid("spec.targetCluster", target, detail));
        }
        // Karmada's rule is older than field overriders and does not include them.
        if (Overriders { field_overrider: Vec::new(), ..spec.overriders.clone() }) != Overriders::default() {
            let detail = "overrideRules and overriders can't co-exist";
            errors.push(FieldError::invalid("spec.overriders", &spec.overriders, detail));
        }
    }
    for (index, rule) in spec.override_rules.iter().enumerate() {
        errors.extend(validate_rule(rule, &format!("spec.overrideRules[{index}]")));
    }
    errors.extend(policy::validate_selector_namespaces(&spec.resource_selectors, namespace));
    errors
}

/// Paths of the fields that identify an object. Namespaced policies must not change them (`plan::overriding`).
const IDENTITY_PATHS: [&str; 3] = ["/kind", "/metadata/namespace", "/metadata/name"];

fn validate_identity(spec: &OverrideSpec) -> Vec<FieldError> {
    let rules = spec.override_rules.iter().enumerate();
    let rules = rules.map(|(index, rule)| (format!("spec.overrideRules[{index}].overriders"), &rule.overriders));
    let mut errors = Vec::new();
    for (path, overriders) in [("spec.overriders".to_owned(), &spec.overriders)].into_iter().chain(rules) {
        for (index, overrider) in overriders.plaintext.iter().enumerate() {
            if IDENTITY_PATHS.contains(&overrider.path.as_str()) {
                let field = format!("{path}.plaintext[{index}].path");
                let detail = "only a ClusterOverridePolicy may change the identity of an object";
                errors.push(FieldError::invalid(field, &overrider.path, detail));
            }
        }
    }
    errors
}

fn validate_rule(rule: &RuleWithCluster, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let overriders = &rule.overriders;
    for (index, overrider) in overriders.annotations_overrider.iter().enumerate() {
        let field = format!("{path}.overriders.annotationsOverrider[{index}].value");
        errors.extend(metadata::validate_annotations(&overrider.value, &field));
    }
    for (index, overrider) in overriders.labels_overrider.iter().enumerate() {
        let field = format!("{path}.overriders.labelsOverrider[{index}].value");
        errors.extend(metadata::validate_labels(&overrider.value, &field));
    }
    for (index, overrider) in overriders.image_overrider.iter().enumerate() {
        if let Some(predicate) = &overrider.predicate {
            let field = format!("{path}.overriders.imageOverrider[{index}].predicate.path");
            errors.extend(validate_pointer(&predicate.path, field));
        }
    }
    for (index, overrider) in overriders.field_overrider.iter().enumerate() {
        errors.extend(validate_field(overrider, &format!("{path}.overriders.fieldOverrider[{index}]")));
    }
    if let Some(target) = &rule.target_cluster {
        errors.extend(placement::validate_affinity(target, &format!("{path}.targetCluster")));
    }
    errors
}

fn validate_field(overrider: &FieldOverrider, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match (overrider.json.is_empty(), overrider.yaml.is_empty()) {
        (false, false) => {
            let detail = "FieldOverrider has both YAML and JSON set. Only one is allowed";
            errors.push(FieldError::invalid(path, overrider, detail));
        }
        (true, true) => errors.push(FieldError::required(path, "FieldOverrider must have either JSON or YAML set")),
        _ => {}
    }
    errors.extend(validate_pointer(&overrider.field_path, format!("{path}.fieldPath")));
    for (name, operations) in [("json", &overrider.json), ("yaml", &overrider.yaml)] {
        for (index, operation) in operations.iter().enumerate() {
            let path = format!("{path}.{name}[{index}]");
            errors.extend(validate_pointer(&operation.sub_path, format!("{path}.subPath")));
            errors.extend(validate_value(operation, format!("{path}.value")));
        }
    }
    errors
}

fn validate_value(operation: &FieldPatchOperation, field: String) -> Option<FieldError> {
    let detail = match (&operation.operator, &operation.value) {
        (OverriderOperator::Add | OverriderOperator::Replace, None) => "value is required for add or replace operation",
        (OverriderOperator::Remove, Some(_)) => "value is not allowed for remove operation",
        _ => return None,
    };
    Some(FieldError::invalid(field, &operation.value, detail))
}

fn validate_pointer(pointer: &str, field: String) -> Option<FieldError> {
    let detail = "JSON pointer must be empty or start with a \"/\"\nJSON pointer error";
    (!pointer.is_empty() && !pointer.starts_with('/')).then(|| FieldError::invalid(field, pointer, detail))
}
