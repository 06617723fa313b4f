//! Validation of CustomResourceDefinitions, with kube-apiserver's order and wording.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::{validate_dns1035_label, validate_dns1123_subdomain};
use serde_json::Value;

use super::definition::{Definition, Version, flag, text, texts};
use super::version_parts::{
    validate_deprecation_warning, validate_printer_columns, validate_selectable_fields, validate_subresources,
};
use super::{internal_types, structural};

const APPROVAL_ANNOTATION: &str = "api-approved.kubernetes.io";
const APPROVAL_HELP: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Validates a new CRD after `prepare_create`.
pub fn validate_create(definition: &Value) -> Vec<FieldError> {
    let crd = Definition(definition);
    let messages = validate_dns1123_subdomain(crd.name()).into_iter();
    let mut errors: Vec<FieldError> =
        messages.map(|reason| FieldError::invalid("metadata.name", crd.name(), reason)).collect();
    if crd.name() != format!("{}.{}", crd.plural(), crd.group()) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(crd.name()), detail));
    }
    errors.extend(validate_spec(crd, None));
    errors.extend(validate_status(crd));
    errors.extend(validate_approval(crd, None));
    if flag(definition, "/spec/preserveUnknownFields") {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &Value::from(true), detail));
    }
    errors
}

/// Validates an update.
pub fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let (before, after) = (Definition(old), Definition(new));
    let mut errors = validate_spec(after, Some(before));
    let mut check_immutable = |pointer: &str, field: &str| {
        let (old, new) = (old.pointer(pointer), new.pointer(pointer));
        if old != new {
            errors.push(FieldError::invalid(field, new.unwrap_or(&Value::Null), "field is immutable"));
        }
    };
    if before.is_condition_true("Established") {
        check_immutable("/spec/scope", "spec.scope");
        check_immutable("/spec/names/kind", "spec.names.kind");
    }
    check_immutable("/spec/group", "spec.group");
    check_immutable("/spec/names/plural", "spec.names.plural");
    errors.extend(validate_status(after));
    errors.extend(validate_approval(after, Some(before)));
    if flag(new, "/spec/preserveUnknownFields") && !flag(old, "/spec/preserveUnknownFields") {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &Value::from(true), detail));
    }
    errors
}

fn join_problems(problems: Vec<String>) -> Option<String> {
    (!problems.is_empty()).then(|| problems.join(","))
}

fn versions_error(crd: Definition<'_>, detail: &str) -> FieldError {
    let is_shared = |key: &str| find_shared_version(crd, key).is_some();
    let printed = internal_types::print_versions(crd.0.pointer("/spec/versions").unwrap_or(&Value::Null), &is_shared);
    FieldError::new(FieldErrorKind::Invalid, "spec.versions", Some(printed), detail)
}

fn validate_spec(crd: Definition<'_>, old: Option<Definition<'_>>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let group = crd.group();
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let Some(problems) = join_problems(validate_dns1123_subdomain(group)) {
        errors.push(FieldError::invalid("spec.group", &Value::from(group), problems));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", &Value::from(group), "should be a domain with at least one dot"));
    }
    match text(crd.0, "/spec/scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => {
            errors.push(FieldError::not_supported_sorted("spec.scope", &Value::from(other), &["Cluster", "Namespaced"]))
        }
    }
    for (index, version) in crd.versions().enumerate() {
        if version.schema().is_none() {
            errors.push(FieldError::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
    }
    validate_versions(crd, old, &mut errors);
    validate_names(crd.0, "/spec/names", true, &mut errors);
    validate_shared_fields(crd, old, &mut errors);
    validate_conversion(crd, old, &mut errors);
    errors
}

fn validate_versions(crd: Definition<'_>, old: Option<Definition<'_>>, errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    let mut are_names_unique = true;
    for (index, version) in crd.versions().enumerate() {
        let path = format!("spec.versions[{index}]");
        are_names_unique &= seen.insert(version.name().to_owned());
        if let Some(problems) = join_problems(validate_dns1035_label(version.name())) {
            errors.push(FieldError::invalid(format!("{path}.name"), &Value::from(version.name()), problems));
        }
        validate_deprecation_warning(version, &path, errors);
        let is_own = |key: &str| find_shared_version(crd, key).is_none();
        if is_own("schema") {
            let path = format!("{path}.schema.openAPIV3Schema");
            let is_stored = is_schema_unchanged(version, old);
            validate_schema(version, &path, version.has_status(), is_stored, errors);
        }
        if is_own("subresources") {
            validate_subresources(version, &format!("{path}.subresources"), errors);
        }
        if is_own("additionalPrinterColumns") {
            validate_printer_columns(version, &format!("{path}.additionalPrinterColumns"), errors);
        }
        if is_own("selectableFields") {
            validate_selectable_fields(version, &format!("{path}.selectableFields"), errors);
        }
    }
    if !are_names_unique {
        errors.push(versions_error(crd, "must contain unique version names"));
    }
    if crd.versions().filter(|v| flag(v.0, "/storage")).count() != 1 {
        errors.push(versions_error(crd, "must have exactly one version marked as storage version"));
    }
    // The internal type also has the first version as a top-level field.
    if let Some(first) = crd.versions().next()
        && let Some(problems) = join_problems(validate_dns1035_label(first.name()))
    {
        errors.push(FieldError::invalid("spec.version", &Value::from(first.name()), problems));
    }
}

/// The first version if a field is equal in all versions. kube-apiserver then stores it at the top level, and its
/// errors have that path.
fn find_shared_version<'a>(crd: Definition<'a>, key: &str) -> Option<Version<'a>> {
    let mut all = crd.versions();
    let first = all.next()?;
    all.all(|v| v.0.get(key) == first.0.get(key)).then_some(first)
}

/// Validates the fields of versions that are equal in all of them.
fn validate_shared_fields(crd: Definition<'_>, old: Option<Definition<'_>>, errors: &mut Vec<FieldError>) {
    if let Some(version) = find_shared_version(crd, "schema") {
        let has_status = crd.versions().any(Version::has_status);
        let is_stored = is_schema_unchanged(version, old);
        validate_schema(version, "spec.validation.openAPIV3Schema", has_status, is_stored, errors);
    }
    if let Some(version) = find_shared_version(crd, "subresources") {
        validate_subresources(version, "spec.subresources", errors);
    }
    if let Some(version) = find_shared_version(crd, "additionalPrinterColumns") {
        validate_printer_columns(version, "spec.additionalPrinterColumns", errors);
    }
    if let Some(version) = find_shared_version(crd, "selectableFields") {
        validate_selectable_fields(version, "spec.selectableFields", errors);
    }
}

/// True if the version's schema is unchanged.
fn is_schema_unchanged(version: Version<'_>, old: Option<Definition<'_>>) -> bool {
    let before = old.and_then(|old| old.version(version.name()));
    before.is_some_and(|before| before.schema() == version.schema())
}

fn validate_schema(version: Version<'_>, path: &str, has_status: bool, is_stored: bool, errors: &mut Vec<FieldError>) {
    if let Some(schema) = version.schema() {
        errors.extend(structural::validate(schema, path, has_status, is_stored));
    }
}

/// Validates `spec.names`, where names are required, or `status.acceptedNames`.
fn validate_names(definition: &Value, pointer: &str, are_required: bool, errors: &mut Vec<FieldError>) {
    let Some(names) = definition.pointer(pointer) else {
        if are_required {
            for key in ["plural", "singular", "kind", "listKind"] {
                errors.push(FieldError::required(format!("spec.names.{key}"), ""));
            }
        }
        return;
    };
    let path = pointer.trim_start_matches('/').replace('/', ".");
    let name = |key: &str| text(names, &format!("/{key}"));
    if are_required {
        for key in ["plural", "singular", "kind", "listKind"] {
            if name(key).is_empty() {
                errors.push(FieldError::required(format!("{path}.{key}"), ""));
            }
        }
    }
    let label_error = |field: String, value: &str, ignores_case: bool, prefix: &str| {
        let problems =
            join_problems(validate_dns1035_label(&if ignores_case { value.to_lowercase() } else { value.to_owned() }))?;
        Some(FieldError::invalid(field, &Value::from(value), format!("{prefix}{problems}")))
    };
    for key in ["plural", "singular"] {
        if !name(key).is_empty() {
            errors.extend(label_error(format!("{path}.{key}"), name(key), false, ""));
        }
    }
    for key in ["kind", "listKind"] {
        if !name(key).is_empty() {
            errors.extend(label_error(
                format!("{path}.{key}"),
                name(key),
                true,
                "may have mixed case, but should otherwise match: ",
            ));
        }
    }
    for (index, short) in texts(names, "/shortNames").iter().enumerate() {
        errors.extend(label_error(format!("{path}.shortNames[{index}]"), short, false, ""));
    }
    if !name("kind").is_empty() && name("kind") == name("listKind") {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(format!("{path}.listKind"), &Value::from(name("listKind")), detail));
    }
    for (index, category) in texts(names, "/categories").iter().enumerate() {
        errors.extend(label_error(format!("{path}.categories[{index}]"), category, false, ""));
    }
}

/// Validates the conversion. Unknown review versions are accepted if the `old` CRD has only such.
fn validate_conversion(crd: Definition<'_>, old: Option<Definition<'_>>, errors: &mut Vec<FieldError>) {
    let Some(conversion) = crd.0.pointer("/spec/conversion") else { return };
    let strategy = text(conversion, "/strategy");
    match strategy {
        "" => errors.push(FieldError::required("spec.conversion.strategy", "")),
        "None" | "Webhook" => {}
        other => {
            let field = "spec.conversion.strategy";
            errors.push(FieldError::not_supported_sorted(field, &Value::from(other), &["None", "Webhook"]));
        }
    }
    let at = "spec.conversion.webhookClientConfig";
    let client = conversion.pointer("/webhook/clientConfig").filter(|client| client.is_object());
    let reviews = "spec.conversion.conversionReviewVersions";
    let versions = texts(conversion, "/webhook/conversionReviewVersions");
    if strategy == "Webhook" {
        match client {
            Some(client) => errors.extend(crowsnest_builtin::validate::webhook::validate_client_config(client, at)),
            None => errors.push(FieldError::required(at, "required when strategy is set to Webhook")),
        }
        let before = old.map(|old| texts(old.0, "/spec/conversion/webhook/conversionReviewVersions"));
        let allows_unknown = before
            .is_some_and(|before| !before.is_empty() && !before.iter().any(|version| is_known_review_version(version)));
        validate_review_versions(&versions, reviews, allows_unknown, errors);
        return;
    }
    const DETAIL: &str = "should not be set when strategy is not set to Webhook";
    if client.is_some() {
        errors.push(FieldError::forbidden(at, DETAIL));
    }
    if !versions.is_empty() {
        errors.push(FieldError::forbidden(reviews, DETAIL));
    }
}

fn is_known_review_version(version: &str) -> bool {
    matches!(version, "v1" | "v1beta1")
}

/// `allows_unknown` is true if the stored CRD has no known version either.
fn validate_review_versions(versions: &[String], field: &str, allows_unknown: bool, errors: &mut Vec<FieldError>) {
    if versions.is_empty() {
        errors.push(FieldError::required(field, ""));
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if versions[..index].contains(version) {
            errors.push(FieldError::invalid(at, version.as_str(), "duplicate version"));
            continue;
        }
        let messages = validate_dns1035_label(version).into_iter();
        errors.extend(messages.map(|reason| FieldError::invalid(at.as_str(), version.as_str(), reason)));
    }
    if !allows_unknown && !versions.iter().any(|version| is_known_review_version(version)) {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(field, versions, detail));
    }
}

fn validate_status(crd: Definition<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_names(crd.0, "/status/acceptedNames", false, &mut errors);
    let field = "status.storedVersions";
    let stored = texts(crd.0, "/status/storedVersions");
    if stored.is_empty() {
        errors.push(FieldError::invalid(field, &Value::Null, "must have at least one stored version"));
        return errors;
    }
    for version in crd.versions().filter(|version| flag(version.0, "/storage")) {
        if !stored.iter().any(|name| name == version.name()) {
            let detail = format!("must have the storage version {}", version.name());
            errors.push(FieldError::invalid(field, &stored, detail));
        }
    }
    for (index, version) in stored.iter().enumerate() {
        if crd.version(version).is_none() {
            let detail = format!(
                "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions until \
                 a storage migration ensures no data remains persisted in {version} and removes {version} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{field}[{index}]"), &Value::from(version.as_str()), detail));
        }
    }
    errors
}

/// Validates the approval annotation that protected community groups require.
fn validate_approval(crd: Definition<'_>, old: Option<Definition<'_>>) -> Option<FieldError> {
    let group = crd.group();
    let is_protected = ["k8s.io", "kubernetes.io"].iter().any(|g| group == *g || group.ends_with(&format!(".{g}")));
    if !is_protected {
        return None;
    }
    let annotation = |crd: Definition<'_>| {
        crd.0
            .pointer("/metadata/annotations")
            .and_then(|a| a.get(APPROVAL_ANNOTATION))
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let view_annotation = annotation(crd);
    if old.is_some_and(|old| annotation(old) == view_annotation) {
        return None;
    }
    let field = format!("metadata.annotations[{APPROVAL_ANNOTATION}]");
    if view_annotation.is_empty() {
        let detail = format!("protected groups must have approval annotation {APPROVAL_ANNOTATION:?}, {APPROVAL_HELP}");
        return Some(FieldError::required(field, detail));
    }
    let is_url = view_annotation.parse::<http::Uri>().is_ok_and(|u| u.scheme().is_some() && u.host().is_some());
    if is_url || view_annotation.starts_with("unapproved") {
        return None;
    }
    let detail = format!(
        "protected groups must have approval annotation {APPROVAL_ANNOTATION:?} with either a URL or a reason starting with \"unapproved\", {APPROVAL_HELP}"
    );
    Some(FieldError::invalid(field, &Value::from(view_annotation), detail))
}
