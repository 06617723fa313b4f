//! Names, labels, annotations and generic object metadata: what apimachinery's `validation` package refuses and how it says so.
//!
//! Pure. Used by every create and update in `registry/`, and by the strategies of `builtin/` and `crd/`.

use std::sync::LazyLock;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use regex::Regex;
use serde_json::{Map, Value, json};

const DNS1123_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const CONDITION_REASON: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const TOTAL_ANNOTATIONS: usize = 256 * 1024;

fn whole(pattern: &str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("patterns of this module are valid")
}

static LABEL: LazyLock<Regex> = LazyLock::new(|| whole(DNS1123_LABEL));
static SUBDOMAIN: LazyLock<Regex> = LazyLock::new(|| whole(DNS1123_SUBDOMAIN));
static LABEL_1035: LazyLock<Regex> = LazyLock::new(|| whole(DNS1035_LABEL));
static QUALIFIED: LazyLock<Regex> = LazyLock::new(|| whole(QUALIFIED_NAME));
static REASON: LazyLock<Regex> = LazyLock::new(|| whole(CONDITION_REASON));
static VALUE: LazyLock<Regex> = LazyLock::new(|| whole(LABEL_VALUE));

/// What is wrong with the reason of a condition.
pub fn condition_reason(value: &str) -> Vec<String> {
    if REASON.is_match(value) {
        return Vec::new();
    }
    vec![regex_error(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        CONDITION_REASON,
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

fn max_length(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// Of labels, which count bytes.
fn max_bytes(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn regex_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let shown: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{pattern}')", shown.join(" or "))
}

/// An address without the zeros that lead its numbers, which C reads as octal.
pub fn without_zeros(text: &str) -> String {
    let trimmed = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    text.split('.').map(trimmed).collect::<Vec<_>>().join(".")
}

/// `IsDNS1123Label`.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_length(63));
    }
    if !LABEL.is_match(value) {
        let shape = if SUBDOMAIN.is_match(value) {
            "must not contain dots".to_owned()
        } else {
            regex_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                DNS1123_LABEL,
                &["my-name", "123-abc"],
            )
        };
        errors.push(shape);
    }
    errors
}

/// `IsDNS1123Subdomain`.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_length(253));
    }
    if !SUBDOMAIN.is_match(value) {
        errors.push(regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            DNS1123_SUBDOMAIN,
            &["example.com"],
        ));
    }
    errors
}

/// `IsDNS1035Label`.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_length(63));
    }
    if !LABEL_1035.is_match(value) {
        errors.push(regex_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            DNS1035_LABEL,
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// `IsValidPathSegmentName`: names that only need to fit into a path.
pub fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|bad| name.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

/// `IsQualifiedName`: label and annotation keys, finalizers.
pub fn qualified_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                let too_long = (prefix.len() > 253).then(|| max_bytes(253));
                let shape = dns1123_subdomain(prefix).into_iter().filter(|e| *e != max_length(253));
                errors.extend(too_long.into_iter().chain(shape).map(|e| format!("prefix part {e}")));
            }
            *name
        }
        _ => {
            let text = regex_error(
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
                QUALIFIED_NAME,
                &["MyName", "my.name", "123-abc"],
            );
            errors.push(format!("{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"));
            return errors;
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_bytes(63)));
    }
    if !QUALIFIED.is_match(name) {
        let text = regex_error(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            QUALIFIED_NAME,
            &["MyName", "my.name", "123-abc"],
        );
        errors.push(format!("name part {text}"));
    }
    errors
}

/// `IsValidLabelValue`.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_bytes(63));
    }
    if !VALUE.is_match(value) {
        errors.push(regex_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// `ValidateLabels`.
pub fn labels(labels: Option<&Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(qualified_name(key).into_iter().map(|e| FieldError::invalid(field, &json!(key), e)));
        let text = value.as_str().unwrap_or_default();
        errors.extend(label_value(text).into_iter().map(|e| FieldError::invalid(field, &json!(text), e)));
    }
    errors
}

/// `ValidateAnnotations`.
pub fn annotations(annotations: Option<&Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(
            qualified_name(&key.to_lowercase()).into_iter().map(|e| FieldError::invalid(field, &json!(key), e)),
        );
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > TOTAL_ANNOTATIONS {
        errors.push(FieldError::too_long(field, TOTAL_ANNOTATIONS));
    }
    errors
}

fn finalizers(metadata: &Map<String, Value>) -> Vec<FieldError> {
    const FIELD: &str = "metadata.finalizers";
    let names: Vec<&str> = strings(metadata.get("finalizers"));
    let wrong = |name: &&str| {
        let name = json!(name);
        let why = qualified_name(name.as_str().unwrap_or_default());
        why.into_iter().map(move |why| FieldError::invalid(FIELD, &name, why))
    };
    let mut errors: Vec<FieldError> = names.iter().flat_map(wrong).collect();
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let text = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(FIELD, &json!(names), text));
    }
    errors
}

/// `validateKubeFinalizerName`: built-in kinds know the finalizers that have no domain.
pub fn kubernetes_finalizers(object: &Value) -> Vec<FieldError> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let names = strings(object.pointer("/metadata/finalizers"));
    let unknown = names.iter().enumerate().filter(|(_, name)| !name.contains('/') && !STANDARD.contains(name));
    let text = "name is neither a standard finalizer name nor is it fully qualified";
    unknown.map(|(i, name)| FieldError::invalid(format!("metadata.finalizers[{i}]"), &json!(name), text)).collect()
}

fn owner_references(metadata: &Map<String, Value>) -> Vec<FieldError> {
    const FIELD: &str = "metadata.ownerReferences";
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    let Some(all) = metadata.get("ownerReferences").and_then(Value::as_array) else { return errors };
    for reference in all {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, name, uid) = (text("apiVersion"), text("kind"), text("name"), text("uid"));
        // Groups have no slashes: with two of them there is neither group nor version.
        let parts: Vec<&str> = api_version.split('/').collect();
        let version = if parts.len() > 2 { "" } else { parts.last().copied().unwrap_or_default() };
        for (key, value, message) in [
            ("apiVersion", if version.is_empty() { "" } else { api_version }, "version must not be empty"),
            ("kind", kind, "must not be empty"),
            ("name", name, "must not be empty"),
            ("uid", uid, "must not be empty"),
        ] {
            if value.is_empty() {
                let given = if key == "apiVersion" { api_version } else { "" };
                errors.push(FieldError::invalid(format!("{FIELD}.{key}"), &json!(given), message));
            }
        }
        if (api_version, kind) == ("v1", "Event") {
            let message = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(FIELD, reference, message));
        }
        if reference.get("controller") == Some(&Value::Bool(true)) {
            let this = format!("{kind}/{name}");
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    let shown = all.iter().map(print_owner).collect::<Vec<_>>().join(",");
                    let value = Some(format!("[{shown}]"));
                    errors.push(FieldError::new(FieldErrorKind::Invalid, FIELD, value, detail));
                }
            }
        }
    }
    errors
}

/// An owner reference as Go marshals it: members in the order of the struct.
fn print_owner(reference: &Value) -> String {
    let order = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let members: Vec<String> =
        order.iter().filter_map(|k| reference.get(k).map(|v| format!("{}:{v}", json!(k)))).collect();
    format!("{{{}}}", members.join(","))
}

fn strings(value: Option<&Value>) -> Vec<&str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// `ValidateObjectMeta`. `check_name` is the kind's own rule (name, is it a prefix).
pub fn object_meta(
    metadata: &Map<String, Value>,
    namespaced: bool,
    check_name: &dyn Fn(&str, bool) -> Vec<String>,
) -> Vec<FieldError> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    let generate = text("generateName");
    if !generate.is_empty() {
        let wrong = check_name(generate, true);
        errors.extend(wrong.into_iter().map(|e| FieldError::invalid("metadata.generateName", &json!(generate), e)));
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        let wrong = check_name(name, false);
        errors.extend(wrong.into_iter().map(|e| FieldError::invalid("metadata.name", &json!(name), e)));
    }
    errors.extend(object_meta_common(metadata, namespaced));
    errors
}

/// What is asked of metadata whenever it is written.
pub fn object_meta_common(metadata: &Map<String, Value>, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else {
            let wrong = dns1123_label(namespace);
            errors.extend(wrong.into_iter().map(|e| FieldError::invalid("metadata.namespace", &json!(namespace), e)));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    if let Some(generation) = metadata.get("generation")
        && generation.as_i64().is_some_and(|g| g < 0)
    {
        errors.push(FieldError::invalid("metadata.generation", generation, "must be greater than or equal to 0"));
    }
    errors.extend(labels(metadata.get("labels"), "metadata.labels"));
    errors.extend(annotations(metadata.get("annotations"), "metadata.annotations"));
    errors.extend(owner_references(metadata));
    errors.extend(finalizers(metadata));
    errors
}

/// `ValidateObjectMetaUpdate`.
pub fn object_meta_update(new: &Map<String, Value>, old: &Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get("deletionTimestamp").is_some_and(|t| !t.is_null()) {
        let before = strings(old.get("finalizers"));
        let added: Vec<String> = strings(new.get("finalizers"))
            .into_iter()
            .filter(|f| !before.contains(f))
            .map(|f| format!("{f:?}"))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", detail));
        }
    }
    let number = |m: &Map<String, Value>| m.get("generation").and_then(Value::as_i64).unwrap_or(0);
    if number(new) < number(old) {
        let detail = "must not be decremented";
        errors.push(FieldError::invalid("metadata.generation", &json!(number(new)), detail));
    }
    for key in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (a, b) = (present(new.get(key)), present(old.get(key)));
        if a != b {
            let value = a.cloned().unwrap_or(if key.starts_with("deletion") { Value::Null } else { json!("") });
            errors.push(FieldError::invalid(format!("metadata.{key}"), &value, "field is immutable"));
        }
    }
    errors.extend(labels(new.get("labels"), "metadata.labels"));
    errors.extend(annotations(new.get("annotations"), "metadata.annotations"));
    errors.extend(owner_references(new));
    errors
}

fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|v| !v.is_null() && v.as_str() != Some(""))
}
