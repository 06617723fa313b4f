//! Request bodies to objects, as kube-apiserver's decoder does it: strict findings in document order, Go's words for errors.
//!
//! Read by a server's HTTP layer and registry. Built-in kinds are decoded by their schema (unknown fields dropped, types checked,
//! scalars in canonical form); custom resources keep everything, their own validation follows.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Number, Value};

use super::ordered::{self, Json};
use super::reader::Reader;
use super::{Schema, Type, canonical_micro_time, canonical_time, normalise};

/// A decoded object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoded {
    pub object: Value,
    /// `duplicate field "data.x"`, `unknown field "spec.replica"`, in document order.
    pub strict: Vec<String>,
    /// A value of a wrong type; the object is not usable then.
    pub wrong: Option<String>,
}

/// The kind a body must be of.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    /// `None` keeps everything.
    pub schema: Option<&'a Schema>,
}

/// Decodes a JSON body; absent `apiVersion` and `kind` are filled in. Errors are 400.
pub fn decode_body(body: &[u8], expected: &Expected<'_>) -> ApiResult<Decoded> {
    let unrecognized =
        |why: String| unrecognized(expected, &format!("couldn't get version/kind; json parse error: {why}"), body);
    let json = ordered::parse(body).map_err(unrecognized)?;
    decode(json, expected, &unrecognized)
}

/// 400 for a body that does not even tell what it is.
pub fn unrecognized(expected: &Expected<'_>, why: &str, body: &[u8]) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({})",
        expected.kind,
        summary(body)
    ))
}

/// The same for a body that was YAML or came from a patch.
pub fn decode_object(object: Value, expected: &Expected<'_>) -> ApiResult<Decoded> {
    decode(Json::from_value(object), expected, &|why| {
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {why}"))
    })
}

/// The body of a delete: `DeleteOptions`, of any group that has them. Fields it does not know are passed over.
pub fn decode_delete_options(body: &[u8]) -> ApiResult<Value> {
    let unrecognized =
        |why: String| ApiError::bad_request(format!("couldn't get version/kind; json parse error: {why}"));
    let json = match ordered::parse(body).map_err(unrecognized)? {
        // Into a struct null changes nothing.
        Json::Null => Json::Object(Vec::new()),
        json => json,
    };
    let Json::Object(fields) = &json else {
        return Err(unrecognized(format!("json: cannot unmarshal {} into Go value of type {TYPE_META}", json.kind())));
    };
    let text = |name: &str| match fields.iter().rev().find(|(key, _)| key == name) {
        Some((_, Json::String(text))) => text.clone(),
        _ => String::new(),
    };
    let (kind, version) = (text("kind"), text("apiVersion"));
    if !kind.is_empty() && kind != "DeleteOptions" {
        let version = if version.is_empty() { "v1" } else { &version };
        return Err(ApiError::bad_request(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
        )));
    }
    let schema = super::set::SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    let decoded = finish(json, schema.as_deref());
    match decoded.wrong {
        Some(wrong) => Err(ApiError::bad_request(wrong)),
        None => Ok(decoded.object),
    }
}

/// The Go type that tells kind and version, as errors name it.
pub const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// What in the metadata of a custom resource is of a wrong type; the rest of it is validation's business.
pub fn wrong_metadata(object: &Value) -> Option<String> {
    let metadata = object.get("metadata").filter(|metadata| !metadata.is_null())?;
    let schema = super::set::SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")?;
    if fits(&schema, metadata) {
        return None;
    }
    let wrong = decode_value(metadata.clone(), &schema).wrong?;
    Some(wrong.replace("Go value of type ObjectMeta", "Go value of type v1.ObjectMeta"))
}

/// Metadata as Go reads and writes it: without nulls. A wish to forget managers stays.
pub fn settle_metadata(object: &mut Value) {
    keep_wish(object);
    let schema = super::set::SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    if let (Some(schema), Some(metadata)) = (schema, object.get_mut("metadata")) {
        normalise(&schema, metadata);
    }
}

/// Whether a value is of the right types throughout, told without reading it into another. False of what only its own decoder
/// knows to judge.
pub fn fits(schema: &Schema, value: &Value) -> bool {
    match (schema.ty, value) {
        (Type::Any, _) | (_, Value::Null) => true,
        (Type::Object, Value::Object(fields)) => {
            fields.iter().all(|(key, value)| schema.child(key).is_none_or(|node| fits(node, value)))
        }
        (Type::Array, Value::Array(items)) => {
            schema.items.as_deref().is_none_or(|node| items.iter().all(|item| fits(node, item)))
        }
        (Type::String, Value::String(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_))
        | (Type::IntOrString, Value::String(_)) => true,
        (Type::Integer, Value::Number(number)) => is_whole(schema, number),
        (Type::Time, Value::String(text)) => canonical_time(text).is_ok(),
        (Type::MicroTime, Value::String(text)) => canonical_micro_time(text).is_ok(),
        _ => false,
    }
}

/// Whether a number is an integer of the width the schema tells.
pub(super) fn is_whole(schema: &Schema, number: &Number) -> bool {
    number.as_i64().is_some_and(|n| schema.format.as_deref() != Some("int32") || i32::try_from(n).is_ok())
}

/// JSON with Go's syntax errors.
pub fn parse_json(body: &[u8]) -> Result<Value, String> {
    ordered::parse(body).map(Json::into_value)
}

/// The same with what strict reading finds: `duplicate field "data.x"`.
pub fn read_json(body: &[u8]) -> Result<(Value, Vec<String>), String> {
    let decoded = finish(ordered::parse(body)?, None);
    Ok((decoded.object, decoded.strict))
}

/// Reads a value by a schema, whatever its kind. Used for patch results, whose errors are worded by the caller.
pub fn decode_value(object: Value, schema: &Schema) -> Decoded {
    finish(Json::from_value(object), Some(schema))
}

/// Findings of [`check`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// `unknown field "spec.replica"`.
    pub unknown: Vec<String>,
    /// `json: cannot unmarshal string into Go struct field …`.
    pub wrong: Option<String>,
}

/// Looks for unknown fields and, in built-in kinds, values of a wrong type.
pub fn check(schema: &Schema, object: &Value) -> Checked {
    if schema.name.is_some() {
        let decoded = decode_value(object.clone(), schema);
        return Checked { unknown: decoded.strict, wrong: decoded.wrong };
    }
    let unknown = super::unknown(schema, object);
    Checked { unknown: unknown.into_iter().map(|path| format!("unknown field {path:?}")).collect(), wrong: None }
}

fn decode(json: Json, expected: &Expected<'_>, unrecognized: &dyn Fn(String) -> ApiError) -> ApiResult<Decoded> {
    let Json::Object(fields) = &json else {
        return Err(unrecognized(format!("json: cannot unmarshal {} into Go value of type {TYPE_META}", json.kind())));
    };
    let text = |name: &str| match fields.iter().rev().find(|(key, _)| key == name) {
        None | Some((_, Json::Null)) => Ok(String::new()),
        Some((_, Json::String(text))) => Ok(text.clone()),
        Some((_, other)) => Err(unrecognized(format!(
            "json: cannot unmarshal {} into Go struct field .{name} of type string",
            other.kind()
        ))),
    };
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    check_kind(&api_version, &kind, expected)?;
    let mut decoded = finish(json, expected.schema);
    if let Some(wrong) = &decoded.wrong {
        return Err(cannot_be_handled(&kind, &api_version, expected, wrong));
    }
    if let Value::Object(fields) = &mut decoded.object {
        let api = if expected.group.is_empty() {
            expected.version.to_owned()
        } else {
            format!("{}/{}", expected.group, expected.version)
        };
        fields.insert("apiVersion".into(), Value::String(api));
        fields.insert("kind".into(), Value::String(expected.kind.to_owned()));
    }
    Ok(decoded)
}

/// 400 for strict findings when `fieldValidation=Strict`.
pub fn strict_error(findings: &[String], expected: &Expected<'_>) -> ApiError {
    cannot_be_handled("", "", expected, &format!("strict decoding error: {}", findings.join(", ")))
}

fn cannot_be_handled(kind: &str, api_version: &str, expected: &Expected<'_>, why: &str) -> ApiError {
    let kind = if kind.is_empty() { expected.kind } else { kind };
    let version = api_version.rsplit('/').next().filter(|v| !v.is_empty()).unwrap_or(expected.version);
    ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {why}", expected.kind))
}

/// Why an object that says it is of another kind cannot be read as a built-in one.
pub fn other_kind(api_version: &str, kind: &str, expected: &Expected<'_>) -> Option<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let (group, version) = if api_version.is_empty() { (expected.group, expected.version) } else { (group, version) };
    let named = if kind.is_empty() { expected.kind } else { kind };
    if (group, version, named) == (expected.group, expected.version, expected.kind) {
        return None;
    }
    Some(if super::set::SchemaSet::builtin().kind(group, version, named).is_some() {
        let internal =
            if expected.group.is_empty() { "core" } else { expected.group.split('.').next().unwrap_or_default() };
        format!("converting ({version}.{named}) to ({internal}.{}): unknown conversion", expected.kind)
    } else {
        let shown = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        format!("no kind {named:?} is registered for version {shown:?} in scheme {BUILTIN_SCHEME:?}")
    })
}

/// The registry of built-in kinds, as errors name it.
const BUILTIN_SCHEME: &str = "k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30";

fn check_kind(api_version: &str, kind: &str, expected: &Expected<'_>) -> ApiResult<()> {
    let (group, version) = match api_version.split_once('/') {
        Some((group, version)) => (group, version),
        None if api_version.is_empty() => (expected.group, expected.version),
        None => ("", api_version),
    };
    let named = if kind.is_empty() { expected.kind } else { kind };
    if (group, version, named) == (expected.group, expected.version, expected.kind) {
        return Ok(());
    }
    if expected.schema.is_some_and(|schema| schema.name.is_none()) {
        // Custom resources are read as they are and refused by their API version or kind.
        let shown = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        return Err(ApiError::bad_request(if (group, version) == (expected.group, expected.version) {
            format!(
                "{named} in version {version:?} cannot be handled as a {}: no kind {named:?} is registered for version {shown:?} in scheme \"k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:52\"",
                expected.kind
            )
        } else {
            format!(
                "the API version in the data ({shown}) does not match the expected API version ({}/{})",
                expected.group, expected.version
            )
        }));
    }
    let why = other_kind(api_version, kind, expected).unwrap_or_default();
    Err(cannot_be_handled(named, api_version, expected, &why))
}

/// What kube-apiserver shows of a body it cannot make out.
fn summary(body: &[u8]) -> String {
    const MAX: usize = 30;
    let (head, dots) = if body.len() > MAX { (&body[..MAX], " ...") } else { (body, "") };
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{dots}", String::from_utf8_lossy(head)),
        Some(_) => {
            let hex: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{dots}")
        }
    }
}

fn finish(json: Json, schema: Option<&Schema>) -> Decoded {
    let mut reader = Reader::default();
    let mut object = match schema {
        Some(schema) if schema.name.is_some() => {
            reader.read(schema, json, schema.short_name(), &mut String::new()).unwrap_or(Value::Object(Map::new()))
        }
        _ => reader.untyped(json, &mut String::new()),
    };
    keep_wish(&mut object);
    let wrong = reader.fatal.or(reader.wrong);
    if wrong.is_none()
        && let Some(schema) = schema.filter(|schema| schema.name.is_some())
    {
        normalise(schema, &mut object);
    }
    Decoded { object, strict: reader.strict, wrong }
}

/// A list without managers is a wish to forget them, which the canonical form would not tell from none.
pub(crate) fn keep_wish(object: &mut Value) {
    let managers = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"));
    if let Some(list) = managers.filter(|list| list.as_array().is_some_and(Vec::is_empty)) {
        *list = Value::Array(vec![Value::Object(Map::new())]);
    }
}
