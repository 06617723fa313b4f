//! Differences between the responses of two servers to one request.

use serde::Deserialize;
use serde_json::Value;

use super::server::{Identity, Response};

/// Maximum number of differences that are shown per request.
const MAX_SHOWN_DIFFERENCES: usize = 6;
/// Maximum number of characters that are shown per value.
const WIDTH: usize = 1000;

/// Start of a difference whose status code is 5xx in kube-apiserver.
pub const SERVER_ERROR: &str = "code: 5";

/// Known deviations; the content of `differences.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownDeviations {
    /// Intended differences.
    pub differences: Vec<Deviation>,
    /// Messages of errors with status 500 that kube-apiserver returns for invalid requests, and that recorded scenarios
    /// expect. They must be equal on both servers; any other server error is a failure.
    pub server_errors: Vec<Deviation>,
}

impl KnownDeviations {
    /// True if a difference is accepted for a request with this body. A server error of kube-apiserver is accepted only
    /// by an entry for its message.
    pub fn accepts(&self, difference: &str, body: &str) -> bool {
        let is_server_error = difference.starts_with(SERVER_ERROR);
        let mut entries =
            self.differences.iter().filter(|entry| !is_server_error || entry.text.starts_with(SERVER_ERROR));
        entries.any(|entry| entry.explains(difference, body))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// Part of the difference's text or of the message.
    pub text: String,
    /// Texts, one of which the request's body must contain; empty for any body.
    #[serde(default)]
    pub bodies: Vec<String>,
    /// The reason why it is accepted.
    pub reason: String,
}

impl Deviation {
    pub fn explains(&self, text: &str, body: &str) -> bool {
        text.contains(&self.text) && (self.bodies.is_empty() || self.bodies.iter().any(|part| body.contains(part)))
    }
}

/// Replaces values that each server chooses (UIDs, resource versions, times), and sorts entries without a fixed order.
pub fn mask(response: &mut Response, identity: &Identity) {
    let body = &mut response.body;
    if body["kind"] == "Status" {
        return mask_status(body, identity);
    }
    let ages: Vec<usize> = body["columnDefinitions"].as_array().map_or_else(Vec::new, |columns| {
        let dates =
            columns.iter().enumerate().filter(|(_, column)| column["type"] == "date" || column["name"] == "Age");
        dates.map(|(at, _)| at).collect()
    });
    mask_metadata(body);
    for field in ["items", "rows"] {
        for item in body.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            mask_metadata(item);
            item.get_mut("object").into_iter().for_each(mask_metadata);
            for age in &ages {
                item["cells"][*age] = "<age>".into();
            }
        }
    }
}

fn mask_metadata(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").filter(|metadata| metadata.is_object()) else { return };
    for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "selfLink"] {
        metadata.get_mut(field).filter(|value| value.is_string()).into_iter().for_each(|value| *value = "<own>".into());
    }
    let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) else { return };
    for entry in &mut *entries {
        entry.get_mut("time").into_iter().for_each(|time| *time = "<own>".into());
    }
    // The order of entries depends on their times, which differ between the servers.
    entries.sort_by_cached_key(|entry| {
        ["manager", "operation", "subresource", "apiVersion"].map(|field| entry[field].to_string())
    });
}

fn mask_status(status: &mut Value, identity: &Identity) {
    let clean = |text: &str| {
        let mut text = text.to_owned();
        if !identity.uid.is_empty() {
            text = text.replace(&identity.uid, "<uid>");
        }
        if !identity.resource_version.is_empty() {
            text = text.replace(&format!("({})", identity.resource_version), "(<version>)");
        }
        without_random_parts(&text)
    };
    if let Some(uid) = status["details"].get_mut("uid") {
        *uid = "<own>".into();
    }
    if let Some(causes) = status["details"].get_mut("causes").and_then(Value::as_array_mut) {
        // kube-apiserver validates properties in the order of Go's maps.
        causes.sort_by_cached_key(Value::to_string);
        for cause in causes {
            if let Some(text) = cause["message"].as_str().map(clean) {
                let is_patch = cause["field"] == "patch";
                cause["message"] = is_patch.then(|| without_patched_object(&text)).flatten().unwrap_or(text).into();
            }
        }
    }
    let Some(message) = status["message"].as_str().map(clean) else { return };
    // The patched object contains times.
    let message = without_patched_object(&message).unwrap_or(message);
    // The list repeats the messages of the causes, in the random order of Go's maps.
    let sorted = message.split_once(" is invalid: [").map(|(subject, list)| {
        let mut parts: Vec<&str> = list.trim_end_matches(']').split(", ").collect();
        parts.sort_unstable();
        format!("{subject} is invalid: [{}]", parts.join(", "))
    });
    status["message"] = sorted.unwrap_or(message).into();
}

/// Messages about objects that do not fit the version of a manager. kube-apiserver visits managers and fields in the order
/// of Go's maps.
const CONVERSION_ERRORS: [&str; 2] = ["failed to convert new object", "failed to prune fields"];

/// Errors of server-side apply about objects that do not fit their schema, with the text between the object and its
/// errors.
const SCHEMA_ERRORS: [(&str, &str); 3] = [
    ("failed to create typed patch object", "): "),
    ("failed to create typed live object", "): "),
    ("failed to create manager for existing fields", ") to smd typed: "),
];

/// A message without the request's body, and without the errors of server-side apply: kube-apiserver reports some of
/// them, in the random order of Go's maps.
fn without_random_parts(text: &str) -> String {
    let end_of_object = SCHEMA_ERRORS.iter().find(|(what, _)| text.starts_with(what)).map(|(_, end)| *end);
    if let Some(what) = CONVERSION_ERRORS.iter().find(|what| text.starts_with(**what)) {
        return (*what).to_owned();
    }
    // Names of schemes contain source paths of the build.
    let end = [" is missing in '", " in scheme \""].iter().find_map(|part| text.find(part));
    let end = end.or_else(|| text.find(end_of_object?));
    text[..end.unwrap_or(text.len())].to_owned()
}

/// The error of a patched object without the object; `None` for other texts.
fn without_patched_object(text: &str) -> Option<String> {
    let (subject, rest) = text.split_once("Invalid value: \"{")?;
    let (_, reason) = rest.split_once("}\": ")?;
    Some(format!("{subject}Invalid value: \"<object>\": {reason}"))
}

/// Texts of the differences, `real` first; empty if there are none. If the status codes differ, only codes and messages
/// are compared.
pub fn differences(real: &Response, ours: &Response) -> Vec<String> {
    let mut differences = Vec::new();
    if real.code != ours.code {
        let brief = |response: &Response| match response.body["message"].as_str() {
            Some(message) => format!("{} {}", response.code, shorten(message)),
            None => response.code.to_string(),
        };
        differences.push(format!("code: {} | {}", brief(real), brief(ours)));
        return differences;
    }
    if real.content_type != ours.content_type {
        differences.push(format!("content type: {} | {}", real.content_type, ours.content_type));
    }
    if real.warnings != ours.warnings {
        differences.push(format!("warnings: {:?} | {:?}", real.warnings, ours.warnings));
    }
    compare(&real.body, &ours.body, "", &mut differences);
    let more = differences.len().saturating_sub(MAX_SHOWN_DIFFERENCES);
    differences.truncate(MAX_SHOWN_DIFFERENCES);
    if more > 0 {
        differences.push(format!("and {more} more"));
    }
    differences
}

fn compare(real: &Value, ours: &Value, path: &str, differences: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let others = right.keys().filter(|name| !left.contains_key(*name));
            for name in left.keys().chain(others) {
                let absent = Value::String("<absent>".into());
                let (left, right) = (left.get(name).unwrap_or(&absent), right.get(name).unwrap_or(&absent));
                compare(left, right, &format!("{path}/{name}"), differences);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let pairs = left.iter().zip(right).enumerate();
            pairs.for_each(|(at, (left, right))| compare(left, right, &format!("{path}/{at}"), differences));
        }
        (Value::Array(left), Value::Array(right)) if path.ends_with("/managedFields") => {
            differences.push(format!("{path}: {} | {}", name_managers(left), name_managers(right)));
        }
        (Value::String(left), Value::String(right)) if path == "/message" && concern_different_fields(left, right) => {}
        _ if real != ours => {
            differences.push(format!("{path}: {} | {}", shorten(&real.to_string()), shorten(&ours.to_string())));
        }
        _ => {}
    }
}

/// True for errors about different fields of an object whose embedded resources have several fields that cannot be
/// decoded. kube-apiserver reports one of them, in the random order of Go's maps.
fn concern_different_fields(real: &str, ours: &str) -> bool {
    let errors = embedded_resource_error(real).zip(embedded_resource_error(ours));
    errors.is_some_and(|((subject, field), (other_subject, other_field))| {
        subject == other_subject && field != other_field
    })
}

/// The subject of an error and the path of the field, if the error is about an embedded resource whose `apiVersion` or
/// `kind` is not a string, or whose `metadata` cannot be decoded; `None` for other errors.
fn embedded_resource_error(message: &str) -> Option<(&str, &str)> {
    let (subject, error) = message.split_once(": ")?;
    let (field, cause) = error.split_once(": Invalid value: ")?;
    // The object itself has no prefix.
    let (_, name) = field.rsplit_once('.')?;
    let is_decode_error = match name {
        "apiVersion" | "kind" => cause.ends_with(": must be a string"),
        "metadata" => [": json: cannot unmarshal", ": parsing time "].iter().any(|reason| cause.contains(reason)),
        _ => false,
    };
    (subject.contains(" cannot be handled as a ") && is_decode_error).then_some((subject, field))
}

/// The managers of entries, without their fields.
fn name_managers(entries: &[Value]) -> String {
    let name = |entry: &Value| {
        let parts =
            ["manager", "operation", "apiVersion", "subresource"].map(|field| entry[field].as_str().unwrap_or(""));
        parts.join(" ").trim_end().to_owned()
    };
    entries.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
