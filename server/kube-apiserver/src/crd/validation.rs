//! Validation of CustomResourceDefinitions, with kube-apiserver's order and wording.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::{dns1035_label, dns1123_subdomain};
use serde_json::Value;

use super::definition::{Definition, Version, flag, text, texts};
use super::version_parts::{columns, deprecation, selectable, subresources};
use super::{internal, structural};

const APPROVAL: &str = "api-approved.kubernetes.io";
const APPROVAL_HELP: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Validates a new CRD after `prepare_create`.
pub fn validate_create(definition: &Value) -> Vec<FieldError> {
    let view = Definition(definition);
    let wrong = dns1123_subdomain(view.name()).into_iter();
    let mut errors: Vec<FieldError> = wrong.map(|why| FieldError::invalid("metadata.name", view.name(), why)).collect();
    if view.name() != format!("{}.{}", view.plural(), view.group()) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(view.name()), detail));
    }
    errors.extend(spec(view, None));
    errors.extend(status(view));
    errors.extend(approval(view, None));
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
    let mut errors = spec(after, Some(before));
    let mut immutable = |pointer: &str, field: &str| {
        let (old, new) = (old.pointer(pointer), new.pointer(pointer));
        if old != new {
            errors.push(FieldError::invalid(field, new.unwrap_or(&Value::Null), "field is immutable"));
        }
    };
    if before.condition("Established") {
        immutable("/spec/scope", "spec.scope");
        immutable("/spec/names/kind", "spec.names.kind");
    }
    immutable("/spec/group", "spec.group");
    immutable("/spec/names/plural", "spec.names.plural");
    errors.extend(status(after));
    errors.extend(approval(after, Some(before)));
    if flag(new, "/spec/preserveUnknownFields") && !flag(old, "/spec/preserveUnknownFields") {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &Value::from(true), detail));
    }
    errors
}

fn joined(problems: Vec<String>) -> Option<String> {
    (!problems.is_empty()).then(|| problems.join(","))
}

fn invalid_versions(view: Definition<'_>, detail: &str) -> FieldError {
    let shared = |key: &str| same_everywhere(view, key).is_some();
    let shown = internal::versions(view.0.pointer("/spec/versions").unwrap_or(&Value::Null), &shared);
    FieldError::new(FieldErrorKind::Invalid, "spec.versions", Some(shown), detail)
}

fn spec(view: Definition<'_>, old: Option<Definition<'_>>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let group = view.group();
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let Some(problems) = joined(dns1123_subdomain(group)) {
        errors.push(FieldError::invalid("spec.group", &Value::from(group), problems));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", &Value::from(group), "should be a domain with at least one dot"));
    }
    match text(view.0, "/spec/scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => {
            errors.push(FieldError::not_supported_sorted("spec.scope", &Value::from(other), &["Cluster", "Namespaced"]))
        }
    }
    for (index, version) in view.versions().enumerate() {
        if version.schema().is_none() {
            errors.push(FieldError::required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
    }
    versions(view, old, &mut errors);
    names(view.0, "/spec/names", true, &mut errors);
    shared_parts(view, old, &mut errors);
    conversion(view, old, &mut errors);
    errors
}

fn versions(view: Definition<'_>, old: Option<Definition<'_>>, errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (index, version) in view.versions().enumerate() {
        let path = format!("spec.versions[{index}]");
        unique &= seen.insert(version.name().to_owned());
        if let Some(problems) = joined(dns1035_label(version.name())) {
            errors.push(FieldError::invalid(format!("{path}.name"), &Value::from(version.name()), problems));
        }
        deprecation(version, &path, errors);
        let own = |key: &str| same_everywhere(view, key).is_none();
        if own("schema") {
            let path = format!("{path}.schema.openAPIV3Schema");
            schema(version, &path, version.has_status(), stored(version, old), errors);
        }
        if own("subresources") {
            subresources(version, &format!("{path}.subresources"), errors);
        }
        if own("additionalPrinterColumns") {
            columns(version, &format!("{path}.additionalPrinterColumns"), errors);
        }
        if own("selectableFields") {
            selectable(version, &format!("{path}.selectableFields"), errors);
        }
    }
    if !unique {
        errors.push(invalid_versions(view, "must contain unique version names"));
    }
    if view.versions().filter(|v| flag(v.0, "/storage")).count() != 1 {
        errors.push(invalid_versions(view, "must have exactly one version marked as storage version"));
    }
    // The internal type also has the first version as a top-level field.
    if let Some(first) = view.versions().next()
        && let Some(problems) = joined(dns1035_label(first.name()))
    {
        errors.push(FieldError::invalid("spec.version", &Value::from(first.name()), problems));
    }
}

/// The first version if a field is equal in all versions. kube-apiserver then stores it at the top level, and its
/// errors have that path.
fn same_everywhere<'a>(view: Definition<'a>, key: &str) -> Option<Version<'a>> {
    let mut all = view.versions();
    let first = all.next()?;
    all.all(|v| v.0.get(key) == first.0.get(key)).then_some(first)
}

fn shared_parts(view: Definition<'_>, old: Option<Definition<'_>>, errors: &mut Vec<FieldError>) {
    if let Some(version) = same_everywhere(view, "schema") {
        let status = view.versions().any(Version::has_status);
        schema(version, "spec.validation.openAPIV3Schema", status, stored(version, old), errors);
    }
    if let Some(version) = same_everywhere(view, "subresources") {
        subresources(version, "spec.subresources", errors);
    }
    if let Some(version) = same_everywhere(view, "additionalPrinterColumns") {
        columns(version, "spec.additionalPrinterColumns", errors);
    }
    if let Some(version) = same_everywhere(view, "selectableFields") {
        selectable(version, "spec.selectableFields", errors);
    }
}

/// True if the version's schema is unchanged.
fn stored(version: Version<'_>, old: Option<Definition<'_>>) -> bool {
    let before = old.and_then(|old| old.version(version.name()));
    before.is_some_and(|before| before.schema() == version.schema())
}

fn schema(version: Version<'_>, path: &str, status: bool, stored: bool, errors: &mut Vec<FieldError>) {
    if let Some(schema) = version.schema() {
        errors.extend(structural::validate(schema, path, status, stored));
    }
}

/// Validates `spec.names` (complete) or `status.acceptedNames` (only those that are set).
fn names(definition: &Value, pointer: &str, complete: bool, errors: &mut Vec<FieldError>) {
    let Some(names) = definition.pointer(pointer) else {
        if complete {
            for key in ["plural", "singular", "kind", "listKind"] {
                errors.push(FieldError::required(format!("spec.names.{key}"), ""));
            }
        }
        return;
    };
    let path = pointer.trim_start_matches('/').replace('/', ".");
    let one = |key: &str| text(names, &format!("/{key}"));
    if complete {
        for key in ["plural", "singular", "kind", "listKind"] {
            if one(key).is_empty() {
                errors.push(FieldError::required(format!("{path}.{key}"), ""));
            }
        }
    }
    let label = |field: String, value: &str, lower: bool, prefix: &str| {
        let problems = joined(dns1035_label(&if lower { value.to_lowercase() } else { value.to_owned() }))?;
        Some(FieldError::invalid(field, &Value::from(value), format!("{prefix}{problems}")))
    };
    for key in ["plural", "singular"] {
        if !one(key).is_empty() {
            errors.extend(label(format!("{path}.{key}"), one(key), false, ""));
        }
    }
    for key in ["kind", "listKind"] {
        if !one(key).is_empty() {
            errors.extend(label(
                format!("{path}.{key}"),
                one(key),
                true,
                "may have mixed case, but should otherwise match: ",
            ));
        }
    }
    for (index, short) in texts(names, "/shortNames").iter().enumerate() {
        errors.extend(label(format!("{path}.shortNames[{index}]"), short, false, ""));
    }
    if !one("kind").is_empty() && one("kind") == one("listKind") {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(format!("{path}.listKind"), &Value::from(one("listKind")), detail));
    }
    for (index, category) in texts(names, "/categories").iter().enumerate() {
        errors.extend(label(format!("{path}.categories[{index}]"), category, false, ""));
    }
}

/// Validates the conversion. `old` is the previous CRD, whose invalid `caBundle` is tolerated.
fn conversion(view: Definition<'_>, old: Option<Definition<'_>>, errors: &mut Vec<FieldError>) {
    let Some(conversion) = view.0.pointer("/spec/conversion") else { return };
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
            Some(client) => errors.extend(crowsnest_builtin::validate::webhook::client_config(client, at)),
            None => errors.push(FieldError::required(at, "required when strategy is set to Webhook")),
        }
        let before = old.map(|old| texts(old.0, "/spec/conversion/webhook/conversionReviewVersions"));
        let lenient =
            before.is_some_and(|before| !before.is_empty() && !before.iter().any(|version| known_review(version)));
        review_versions(&versions, reviews, lenient, errors);
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

fn known_review(version: &str) -> bool {
    matches!(version, "v1" | "v1beta1")
}

fn review_versions(versions: &[String], field: &str, lenient: bool, errors: &mut Vec<FieldError>) {
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
        let wrong = dns1035_label(version).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(at.as_str(), version.as_str(), why)));
    }
    if !lenient && !versions.iter().any(|version| known_review(version)) {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(field, versions, detail));
    }
}

fn status(view: Definition<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    names(view.0, "/status/acceptedNames", false, &mut errors);
    let field = "status.storedVersions";
    let stored = texts(view.0, "/status/storedVersions");
    if stored.is_empty() {
        errors.push(FieldError::invalid(field, &Value::Null, "must have at least one stored version"));
        return errors;
    }
    for version in view.versions().filter(|version| flag(version.0, "/storage")) {
        if !stored.iter().any(|name| name == version.name()) {
            let detail = format!("must have the storage version {}", version.name());
            errors.push(FieldError::invalid(field, &stored, detail));
        }
    }
    for (index, version) in stored.iter().enumerate() {
        if view.version(version).is_none() {
            let detail = format!(
                "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions until \
                 a storage migration ensures no data remains persisted in {version} and removes {version} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{field}[{index}]"), &Value::from(version.as_str()), detail));
        }
    }
    errors
}

/// Checks the approval annotation that protected community groups require.
fn approval(view: Definition<'_>, old: Option<Definition<'_>>) -> Option<FieldError> {
    let group = view.group();
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|g| group == *g || group.ends_with(&format!(".{g}")));
    if !protected {
        return None;
    }
    let annotation = |view: Definition<'_>| {
        view.0
            .pointer("/metadata/annotations")
            .and_then(|a| a.get(APPROVAL))
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let given = annotation(view);
    if old.is_some_and(|old| annotation(old) == given) {
        return None;
    }
    let field = format!("metadata.annotations[{APPROVAL}]");
    if given.is_empty() {
        let detail = format!("protected groups must have approval annotation {APPROVAL:?}, {APPROVAL_HELP}");
        return Some(FieldError::required(field, detail));
    }
    let url = given.parse::<http::Uri>().is_ok_and(|u| u.scheme().is_some() && u.host().is_some());
    if url || given.starts_with("unapproved") {
        return None;
    }
    let detail = format!(
        "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", {APPROVAL_HELP}"
    );
    Some(FieldError::invalid(field, &Value::from(given), detail))
}
