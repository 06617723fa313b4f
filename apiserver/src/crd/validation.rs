//! Validation of CustomResourceDefinitions, in kube-apiserver's order and wording.

use std::collections::BTreeSet;

use crowsnest_api::field::{FieldError, FieldErrorKind};
use crowsnest_api::jsonpath::JsonPath;
use serde_json::Value;

use super::definition::{Definition, Version, flag, list, text, texts};
use super::structural;
use crate::registry::validation::{dns1035_label, dns1123_subdomain};

const APPROVAL: &str = "api-approved.kubernetes.io";
const APPROVAL_HELP: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
const COLUMN_TYPES: &[&str] = &["integer", "number", "string", "boolean", "date"];
const COLUMN_FORMATS: &[&str] = &["int32", "int64", "float", "double", "byte", "date", "date-time", "password"];

/// Everything wrong with a new definition (its status as `prepare_create` left it).
pub fn validate_create(definition: &Value) -> Vec<FieldError> {
    let view = Definition(definition);
    let mut errors = Vec::new();
    if view.name() != format!("{}.{}", view.plural(), view.group()) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(view.name()), detail));
    }
    errors.extend(spec(view));
    errors.extend(status(view));
    errors.extend(approval(view, None));
    if flag(definition, "/spec/preserveUnknownFields") {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &Value::from(true), detail));
    }
    errors
}

/// Everything wrong with a change.
pub fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let (before, after) = (Definition(old), Definition(new));
    let mut errors = spec(after);
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

/// Prints a whole list the way Go prints the internal versions: only their names matter to a reader.
fn invalid_versions(view: Definition<'_>, detail: &str) -> FieldError {
    let shown = view.0.pointer("/spec/versions").cloned().unwrap_or(Value::Null);
    FieldError::invalid("spec.versions", &shown, detail)
}

fn spec(view: Definition<'_>) -> Vec<FieldError> {
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
    versions(view, &mut errors);
    names(view.0, "/spec/names", true, &mut errors);
    shared_parts(view, &mut errors);
    conversion(view, &mut errors);
    errors
}

fn versions(view: Definition<'_>, errors: &mut Vec<FieldError>) {
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
            schema(version, &format!("{path}.schema.openAPIV3Schema"), version.has_status(), errors);
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
    // The first version also stands at the top of the internal type.
    if let Some(first) = view.versions().next()
        && let Some(problems) = joined(dns1035_label(first.name()))
    {
        errors.push(FieldError::invalid("spec.version", &Value::from(first.name()), problems));
    }
}

/// The part all versions share: kube-apiserver then holds it once, and its errors carry the shared path.
fn same_everywhere<'a>(view: Definition<'a>, key: &str) -> Option<Version<'a>> {
    let mut all = view.versions();
    let first = all.next()?;
    all.all(|v| v.0.get(key) == first.0.get(key)).then_some(first)
}

fn shared_parts(view: Definition<'_>, errors: &mut Vec<FieldError>) {
    if let Some(version) = same_everywhere(view, "schema") {
        let status = view.versions().any(Version::has_status);
        schema(version, "spec.validation.openAPIV3Schema", status, errors);
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

fn schema(version: Version<'_>, path: &str, status: bool, errors: &mut Vec<FieldError>) {
    if let Some(schema) = version.schema() {
        errors.extend(structural::validate(schema, path, status));
    }
}

fn deprecation(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.0.get("deprecationWarning").filter(|w| !w.is_null()) else { return };
    let written = warning.as_str().unwrap_or("");
    let unprintable = written.char_indices().find(|(_, c)| c.is_control());
    let problem = if !flag(version.0, "/deprecated") {
        "can only be set for deprecated versions".to_owned()
    } else if written.is_empty() {
        "must not be an empty string".to_owned()
    } else if written.chars().count() > 256 {
        "must be <= 256 characters long".to_owned()
    } else if let Some((at, _)) = unprintable {
        format!("must only contain printable UTF-8 characters; non-printable character found at index {at}")
    } else {
        return;
    };
    errors.push(FieldError::invalid(format!("{path}.deprecationWarning"), warning, problem));
}

fn subresources(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = version.scale() else { return };
    let mut check = |key: &str, start: &[&str], required: bool| {
        let field = format!("{path}.scale.{key}");
        let written = text(scale, &format!("/{key}"));
        if written.is_empty() {
            if required {
                errors.push(FieldError::required(field, ""));
            }
            return;
        }
        let why = match written.starts_with('.') {
            false => "must be a simple json path starting with .".to_owned(),
            true if start.iter().any(|start| written.starts_with(&format!("{start}."))) => return,
            true if start.len() > 1 => format!("should be a json path under either {}", start.join(" or ")),
            true => format!("should be a json path under {}", start.concat()),
        };
        errors.push(FieldError::invalid(field, written, why));
    };
    check("specReplicasPath", &[".spec"], true);
    check("statusReplicasPath", &[".status"], true);
    check("labelSelectorPath", &[".spec", ".status"], false);
}

fn columns(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    for (index, column) in version.columns().iter().enumerate() {
        let at = format!("{path}[{index}]");
        if text(column, "/name").is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        }
        match text(column, "/type") {
            "" => {
                let detail = format!("must be one of {}", COLUMN_TYPES.join(","));
                errors.push(FieldError::required(format!("{at}.type"), detail));
            }
            kind if !COLUMN_TYPES.contains(&kind) => {
                let detail = format!("must be one of {}", sorted(COLUMN_TYPES));
                errors.push(FieldError::invalid(format!("{at}.type"), &Value::from(kind), detail));
            }
            _ => {}
        }
        let format = text(column, "/format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let detail = format!("must be one of {}", sorted(COLUMN_FORMATS));
            errors.push(FieldError::invalid(format!("{at}.format"), &Value::from(format), detail));
        }
        let json_path = text(column, "/jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(format!("{at}.JSONPath"), ""));
        } else if let Err(error) = JsonPath::parse(json_path) {
            let detail = format!("is an invalid jsonPath: {error}");
            errors.push(FieldError::invalid(format!("{at}.JSONPath"), &Value::from(json_path), detail));
        }
    }
}

fn sorted(words: &[&str]) -> String {
    let mut words = words.to_vec();
    words.sort_unstable();
    words.join(",")
}

fn selectable(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let fields = list(version.0, "/selectableFields");
    if !fields.is_empty() && version.schema().is_none() {
        let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
        errors.push(FieldError::invalid(path, "", detail));
        return;
    }
    if fields.len() > 8 {
        let count = Some(fields.len().to_string());
        errors.push(FieldError::new(FieldErrorKind::TooMany, path, count, "must have at most 8 items"));
    }
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (index, field) in fields.iter().enumerate() {
        let at = format!("{path}[{index}].jsonPath");
        let written = text(field, "/jsonPath");
        let value = Value::from(written);
        if written.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let path = JsonPath::parse(written).ok();
        let names = path.as_ref().and_then(JsonPath::fields).filter(|f| !f.is_empty() && written.starts_with('.'));
        let Some(names) = names else {
            errors.push(FieldError::invalid(at, &value, "is an invalid path: must be a simple JSON path"));
            continue;
        };
        if names[0] == "metadata" {
            errors.push(FieldError::invalid(at.as_str(), &value, "must not point to fields in metadata"));
        }
        let mut node = version.schema();
        for name in &names {
            node = node.and_then(|s| s.pointer("/properties").and_then(|p| p.get(*name)));
        }
        match node.map(|n| text(n, "/type")) {
            Some("string" | "integer" | "boolean") => {}
            Some(_) => {
                let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
                errors.push(FieldError::invalid(at.as_str(), &value, detail));
            }
            None if names[0] != "metadata" => {
                errors.push(FieldError::invalid(
                    at.as_str(),
                    &value,
                    "is an invalid path: does not refer to a valid field",
                ));
            }
            None => {}
        }
        if !seen.insert(written) {
            errors.push(FieldError::duplicate(at, &value));
        }
    }
}

/// `spec.names` (complete) or `status.acceptedNames` (as far as they are set).
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

fn conversion(view: Definition<'_>, errors: &mut Vec<FieldError>) {
    let Some(conversion) = view.0.pointer("/spec/conversion") else { return };
    let strategy = text(conversion, "/strategy");
    let webhook = conversion.get("webhook").filter(|w| w.is_object());
    match strategy {
        "Webhook" => {
            let Some(webhook) = webhook else {
                errors.push(FieldError::required(
                    "spec.conversion.webhookClientConfig",
                    "required when strategy is set to Webhook",
                ));
                return;
            };
            match webhook.get("clientConfig").filter(|c| c.is_object()) {
                Some(client) => {
                    errors
                        .extend(crate::admission::webhook_client_config(client, "spec.conversion.webhookClientConfig"));
                }
                None => {
                    errors.push(FieldError::required(
                        "spec.conversion.webhookClientConfig",
                        "required when strategy is set to Webhook",
                    ));
                }
            }
            review_versions(webhook, errors);
        }
        "" | "None" => {
            if strategy.is_empty() {
                errors.push(FieldError::required("spec.conversion.strategy", ""));
            }
            if webhook.is_some_and(|w| w.get("clientConfig").is_some()) {
                let detail = "should not be set when strategy is not set to Webhook";
                errors.push(FieldError::forbidden("spec.conversion.webhookClientConfig", detail));
            }
        }
        other => {
            let field = "spec.conversion.strategy";
            errors.push(FieldError::not_supported_sorted(field, &Value::from(other), &["None", "Webhook"]));
        }
    }
}

fn review_versions(webhook: &Value, errors: &mut Vec<FieldError>) {
    let field = "spec.conversion.conversionReviewVersions";
    let versions = texts(webhook, "/conversionReviewVersions");
    if versions.is_empty() {
        errors.push(FieldError::required(field, ""));
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        if versions[..index].contains(version) {
            errors.push(FieldError::invalid(
                format!("{field}[{index}]"),
                &Value::from(version.as_str()),
                "duplicate version",
            ));
        } else if let Some(problems) = joined(dns1035_label(version)) {
            errors.push(FieldError::invalid(format!("{field}[{index}]"), &Value::from(version.as_str()), problems));
        }
    }
    if !versions.iter().any(|v| v == "v1" || v == "v1beta1") {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(FieldError::invalid(field, &serde_json::json!(versions), detail));
    }
}

fn status(view: Definition<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    names(view.0, "/status/acceptedNames", false, &mut errors);
    let field = "status.storedVersions";
    let stored = texts(view.0, "/status/storedVersions");
    if stored.is_empty() {
        errors.push(FieldError::invalid(field, &serde_json::json!([]), "must have at least one stored version"));
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

/// Groups of the Kubernetes community need the annotation that says who approved the API.
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
