//! Decoding of request bodies as in kube-apiserver: strict decoding errors in document order, and Go's error
//! messages.
//!
//! Used by a server's HTTP layer and the registry. Built-in kinds are decoded by their schema (unknown fields
//! dropped, types checked, scalars normalized); custom resources are kept unchanged and validated later.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Number, Value};

use super::ordered_json::{self, Json};
use super::reader::Reader;
use super::{Schema, Type, canonical_micro_time, canonical_time, normalize};

/// A decoded body.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DecodedObject {
    pub object: Value,
    /// Strict decoding errors (`fieldValidation`) in document order, such as `duplicate field "data.x"` and
    /// `unknown field "spec.replica"`.
    pub strict_errors: Vec<String>,
    /// Error for a value of a wrong type, in which case the object must not be used.
    pub type_error: Option<String>,
}

/// Kind that a body must have.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedKind<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    /// `None` keeps all fields.
    pub schema: Option<&'a Schema>,
}

/// Decodes a JSON body; missing `apiVersion` and `kind` are set. Errors have status 400.
pub fn decode_body(body: &[u8], expected: &ExpectedKind<'_>) -> ApiResult<DecodedObject> {
    let unrecognized = |reason: String| {
        unrecognized_error(expected, &format!("couldn't get version/kind; json parse error: {reason}"), body)
    };
    let json = ordered_json::parse(body).map_err(unrecognized)?;
    decode(json, expected, &unrecognized)
}

/// The 400 error for a body whose kind cannot be read.
pub fn unrecognized_error(expected: &ExpectedKind<'_>, reason: &str, body: &[u8]) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {reason} ({})",
        expected.kind,
        body_excerpt(body)
    ))
}

/// Like [`decode_body`], for a body that was converted from YAML or is the result of a patch.
pub fn decode_object(object: Value, expected: &ExpectedKind<'_>) -> ApiResult<DecodedObject> {
    decode(Json::from_value(object), expected, &|reason| {
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {reason}"))
    })
}

/// Decodes the body of a delete: `DeleteOptions` of any group. Unknown fields are ignored.
pub fn decode_delete_options(body: &[u8]) -> ApiResult<Value> {
    let unrecognized =
        |reason: String| ApiError::bad_request(format!("couldn't get version/kind; json parse error: {reason}"));
    let json = match ordered_json::parse(body).map_err(unrecognized)? {
        // Go decodes null into a struct without changes.
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
    let schema =
        super::schema_set::SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    let decoded = read_and_normalize(json, schema.as_deref());
    match decoded.type_error {
        Some(error) => Err(ApiError::bad_request(error)),
        None => Ok(decoded.object),
    }
}

/// The Go type of apiVersion and kind in error messages.
pub const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// Error for a metadata field of a custom resource with a wrong type; everything else is validated later.
pub fn metadata_error(object: &Value) -> Option<String> {
    let metadata = object.get("metadata").filter(|metadata| !metadata.is_null())?;
    let schema =
        super::schema_set::SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")?;
    if has_valid_types(&schema, metadata) {
        return None;
    }
    let error = decode_value(metadata.clone(), &schema).type_error?;
    Some(error.replace("Go value of type ObjectMeta", "Go value of type v1.ObjectMeta"))
}

/// Normalizes metadata of a custom resource like Go, which drops nulls and empty lists. An empty `managedFields` list
/// requests a reset in built-in kinds only.
pub fn normalize_metadata(object: &mut Value) {
    let schema = super::schema_set::SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    if let (Some(schema), Some(metadata)) = (schema, object.get_mut("metadata")) {
        normalize(&schema, metadata);
    }
}

/// True if all values have the types of the schema. Checked without decoding, so false for types with their own
/// decoder, such as quantities.
pub fn has_valid_types(schema: &Schema, value: &Value) -> bool {
    match (schema.ty, value) {
        (_, Value::Null) => true,
        (Type::Any, value) => {
            let object = schema.object_form.as_deref().filter(|_| value.is_object());
            object.is_none_or(|object| has_valid_types(object, value))
        }
        (Type::Object, Value::Object(fields)) => {
            fields.iter().all(|(key, value)| schema.child(key).is_none_or(|node| has_valid_types(node, value)))
        }
        (Type::Array, Value::Array(items)) => {
            schema.items.as_deref().is_none_or(|node| items.iter().all(|item| has_valid_types(node, item)))
        }
        (Type::String, Value::String(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_))
        | (Type::IntOrString, Value::String(_)) => true,
        (Type::Integer, Value::Number(number)) => is_valid_integer(schema, number),
        (Type::Time, Value::String(text)) => canonical_time(text).is_ok(),
        (Type::MicroTime, Value::String(text)) => canonical_micro_time(text).is_ok(),
        _ => false,
    }
}

/// True for an integer within the range of the schema's format.
pub(super) fn is_valid_integer(schema: &Schema, number: &Number) -> bool {
    number.as_i64().is_some_and(|n| schema.format.as_deref() != Some("int32") || i32::try_from(n).is_ok())
}

/// Parses JSON; syntax errors are those of Go.
pub fn parse_json(body: &[u8]) -> Result<Value, String> {
    ordered_json::parse(body).map(Json::into_value)
}

/// Like [`parse_json`], and also returns strict decoding errors: `duplicate field "data.x"`.
pub fn parse_json_strict(body: &[u8]) -> Result<(Value, Vec<String>), String> {
    let decoded = read_and_normalize(ordered_json::parse(body)?, None);
    Ok((decoded.object, decoded.strict_errors))
}

/// Decodes a value by a schema, regardless of its kind. Used for patch results, whose errors the caller formats.
pub fn decode_value(object: Value, schema: &Schema) -> DecodedObject {
    read_and_normalize(Json::from_value(object), Some(schema))
}

/// Result of [`find_decoding_errors`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecodingErrors {
    /// `unknown field "spec.replica"`.
    pub unknown_fields: Vec<String>,
    /// `json: cannot unmarshal string into Go struct field …`.
    pub type_error: Option<String>,
}

/// Finds unknown fields and, in built-in kinds, values of a wrong type.
pub fn find_decoding_errors(schema: &Schema, object: &Value) -> DecodingErrors {
    if schema.name.is_some() {
        let decoded = decode_value(object.clone(), schema);
        return DecodingErrors { unknown_fields: decoded.strict_errors, type_error: decoded.type_error };
    }
    let unknown = super::unknown_fields(schema, object);
    DecodingErrors {
        unknown_fields: unknown.into_iter().map(|path| format!("unknown field {path:?}")).collect(),
        type_error: None,
    }
}

fn decode(
    json: Json,
    expected: &ExpectedKind<'_>,
    unrecognized: &dyn Fn(String) -> ApiError,
) -> ApiResult<DecodedObject> {
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
    let mut decoded = read_and_normalize(json, expected.schema);
    if let Some(error) = &decoded.type_error {
        return Err(cannot_be_handled_error(&kind, &api_version, expected, error));
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

/// The 400 error for strict decoding errors, for requests with `fieldValidation=Strict`.
pub fn strict_decoding_error(strict_errors: &[String], expected: &ExpectedKind<'_>) -> ApiError {
    cannot_be_handled_error("", "", expected, &format!("strict decoding error: {}", strict_errors.join(", ")))
}

fn cannot_be_handled_error(kind: &str, api_version: &str, expected: &ExpectedKind<'_>, reason: &str) -> ApiError {
    let kind = if kind.is_empty() { expected.kind } else { kind };
    let version = api_version.rsplit('/').next().filter(|v| !v.is_empty()).unwrap_or(expected.version);
    ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {reason}", expected.kind))
}

/// The error if `api_version` and `kind` of an object name another kind than the expected built-in one; absent values
/// match.
pub fn kind_mismatch(api_version: &str, kind: &str, expected: &ExpectedKind<'_>) -> Option<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let (group, version) = if api_version.is_empty() { (expected.group, expected.version) } else { (group, version) };
    let effective_kind = if kind.is_empty() { expected.kind } else { kind };
    if (group, version, effective_kind) == (expected.group, expected.version, expected.kind) {
        return None;
    }
    Some(if super::schema_set::SchemaSet::builtin().kind(group, version, effective_kind).is_some() {
        let internal =
            if expected.group.is_empty() { "core" } else { expected.group.split('.').next().unwrap_or_default() };
        format!("converting ({version}.{effective_kind}) to ({internal}.{}): unknown conversion", expected.kind)
    } else {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        format!("no kind {effective_kind:?} is registered for version {api_version:?} in scheme {BUILTIN_SCHEME:?}")
    })
}

/// Name of the scheme of built-in kinds in error messages.
const BUILTIN_SCHEME: &str = "k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30";

fn check_kind(api_version: &str, kind: &str, expected: &ExpectedKind<'_>) -> ApiResult<()> {
    match kind_mismatch(api_version, kind, expected) {
        None => Ok(()),
        Some(reason) => Err(cannot_be_handled_error(kind, api_version, expected, &reason)),
    }
}

/// Excerpt of a malformed body for error messages.
fn body_excerpt(body: &[u8]) -> String {
    const MAX_BYTES: usize = 30;
    let (head, dots) = if body.len() > MAX_BYTES { (&body[..MAX_BYTES], " ...") } else { (body, "") };
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{dots}", String::from_utf8_lossy(head)),
        Some(_) => {
            let hex: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{dots}")
        }
    }
}

/// Decodes a document by a schema and normalizes it; without the schema of a built-in kind, all fields are kept.
fn read_and_normalize(json: Json, schema: Option<&Schema>) -> DecodedObject {
    let mut reader = Reader::default();
    let mut object = match schema {
        Some(schema) if schema.name.is_some() => {
            reader.read(schema, json, schema.short_name(), &mut String::new()).unwrap_or(Value::Object(Map::new()))
        }
        _ => reader.read_untyped(json, &mut String::new()),
    };
    if schema.is_some_and(|schema| schema.name.is_some()) {
        preserve_reset(&mut object);
    }
    let type_error = reader.fatal_error.or(reader.type_error);
    if type_error.is_none()
        && let Some(schema) = schema.filter(|schema| schema.name.is_some())
    {
        normalize(schema, &mut object);
    }
    DecodedObject { object, strict_errors: reader.strict_errors, type_error }
}

/// Replaces an empty `managedFields` list, which requests a reset and would be dropped by normalization, by the
/// equivalent `[{}]`.
pub(crate) fn preserve_reset(object: &mut Value) {
    let managers = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"));
    if let Some(list) = managers.filter(|list| list.as_array().is_some_and(Vec::is_empty)) {
        *list = Value::Array(vec![Value::Object(Map::new())]);
    }
}
