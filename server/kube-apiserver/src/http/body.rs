//! Request bodies: size limit, JSON or YAML, decoding of objects.

use bytes::Bytes;
use crowsnest_apimachinery::content_negotiation::{self, Encoding};
use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use crowsnest_apimachinery::request::options::{FieldValidation, WriteOptions};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::yaml::{self, Document, ReadError};
use crowsnest_component_base::body;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::decode::{self, ExpectedKind};
use crowsnest_schema::patch::PatchBody;
use serde_json::Value;

use crate::http::protobuf;

/// Reads a complete request body; 413 above the limit.
pub async fn read(body: axum::body::Body) -> ApiResult<Bytes> {
    Ok(body::collect_request(body, MAX_REQUEST_BODY_BYTES).await?)
}

/// A complete body and its encoding.
pub struct EncodedBody {
    pub bytes: Bytes,
    pub encoding: Encoding,
}

impl EncodedBody {
    /// Reads a body; 415 for an unsupported content type, 413 above the size limit.
    pub async fn read(content_type: Option<&str>, body: axum::body::Body) -> ApiResult<Self> {
        let encoding = content_negotiation::body_encoding(content_type)?;
        Ok(Self { bytes: read(body).await?, encoding })
    }
}

/// Decodes an object of a served kind. Strict decoding errors become warnings or an error, depending on the field
/// validation.
pub fn decode_object(
    resource: &ResourceRef,
    body: &EncodedBody,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    if resource.is_custom() {
        return super::custom::decode_object(resource, body, options, warnings);
    }
    let EncodedBody { bytes, encoding } = body;
    let schema = resource.strategy.schema();
    let expected = ExpectedKind {
        group: &resource.gvr.group,
        version: &resource.gvr.version,
        kind: &resource.kind,
        schema: schema.as_deref(),
    };
    let decoded = match encoding {
        Encoding::Json => decode::decode_body(bytes, &expected)?,
        Encoding::Yaml => {
            let (value, duplicate_keys) = parse_yaml_object(bytes, options.field_validation)
                .map_err(|reason| decode::unrecognized_error(&expected, &reason, bytes))?;
            let mut decoded = decode::decode_object(value, &expected)?;
            if let Some(strict_error) = duplicate_keys {
                decoded.strict_errors.insert(0, strict_error);
            }
            decoded
        }
        Encoding::Protobuf => decode::decode_object(protobuf::decode_object(bytes)?, &expected)?,
    };
    let refuse = |strict_errors: &[String]| decode::strict_decoding_error(strict_errors, &expected);
    options.field_validation.enforce(decoded.strict_errors, warnings, refuse)?;
    Ok(decoded.object)
}

/// Parses an apply patch: a YAML mapping, with duplicate keys as strict decoding errors.
pub fn parse_apply_patch(bytes: &[u8]) -> ApiResult<PatchBody> {
    let refuse = |reason: String| ApiError::bad_request(format!("error decoding YAML: {reason}"));
    let patch =
        parse_yaml_document(bytes).map_err(|reason| refuse(format!("error converting YAML to JSON: {reason}")))?;
    let kind = match &patch.value {
        Value::Object(_) | Value::Null => return Ok(patch),
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    let target = "Go value of type map[string]interface {}";
    Err(refuse(format!("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into {target}")))
}

/// Parses YAML; duplicate keys are accepted.
pub fn parse_yaml(bytes: &[u8]) -> ApiResult<Value> {
    parse_yaml_document(bytes).map(|document| document.value).map_err(yaml_error)
}

/// The error for a body that is not valid YAML.
pub(super) fn yaml_error(reason: String) -> ApiError {
    ApiError::bad_request(format!("error converting YAML to JSON: {reason}"))
}

/// True for characters that Go's YAML reader rejects.
fn is_control(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

/// Parses YAML. For duplicate keys, the last value is used, and each repetition is a strict decoding error.
fn parse_yaml_document(bytes: &[u8]) -> Result<PatchBody, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("yaml: {error}"))?;
    if text.contains(is_control) {
        return Err("yaml: control characters are not allowed".to_owned());
    }
    match yaml::parse_document(text) {
        Ok(Document { value, duplicate_keys }) => Ok(PatchBody { value, strict_errors: duplicate_keys }),
        Err(ReadError::Syntax { line, problem }) if problem.contains("tabs disallowed") => {
            Err(format!("yaml: line {line}: found character that cannot start any token"))
        }
        Err(error @ ReadError::Syntax { .. }) => Err(unclosed_bracket_error(text).unwrap_or_else(|| error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses an object in YAML. Returns its value, and the strict decoding error for duplicate keys if the field validation
/// is `Strict`: a warning cannot contain the line breaks of this error, so only errors include it.
pub(super) fn parse_yaml_object(
    bytes: &[u8],
    field_validation: FieldValidation,
) -> Result<(Value, Option<String>), String> {
    let PatchBody { value, strict_errors: duplicate_keys } = parse_yaml_document(bytes)?;
    let is_strict = field_validation == FieldValidation::Strict && !duplicate_keys.is_empty();
    let strict_error = is_strict.then(|| format!("yaml: unmarshal errors:\n  {}", duplicate_keys.join("\n  ")));
    Ok((value, strict_error))
}

/// Message of Go's parser for an unclosed bracket in flow style, the most frequent syntax error. `None` if all brackets
/// are closed.
fn unclosed_bracket_error(text: &str) -> Option<String> {
    let mut open_brackets = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for c in line.chars() {
            match c {
                '[' | '{' => open_brackets.push((c, index + 1)),
                ']' | '}' => drop(open_brackets.pop()),
                _ => {}
            }
        }
    }
    let (bracket, line) = open_brackets.pop()?;
    let closing = if bracket == '[' { ']' } else { '}' };
    Some(format!("yaml: line {line}: did not find expected ',' or '{closing}'"))
}

/// Parses a body without checking its kind.
pub fn parse(bytes: &[u8], encoding: Encoding) -> ApiResult<Value> {
    match encoding {
        Encoding::Json => decode::parse_json(bytes).map_err(ApiError::bad_request),
        Encoding::Yaml => parse_yaml(bytes),
        Encoding::Protobuf => protobuf::decode_object(bytes),
    }
}

/// Decodes a body of a built-in kind that is not stored, such as a Scale or an Eviction. Strict decoding errors are handled
/// as by [`decode_object`], except that duplicate keys in YAML are accepted.
pub fn decode_kind(
    expected: &ExpectedKind<'_>,
    EncodedBody { bytes, encoding }: &EncodedBody,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let decoded = match encoding {
        Encoding::Json => decode::decode_body(bytes, expected)?,
        Encoding::Yaml => decode::decode_object(parse_yaml(bytes)?, expected)?,
        Encoding::Protobuf => decode::decode_object(protobuf::decode_object(bytes)?, expected)?,
    };
    let refuse = |strict_errors: &[String]| decode::strict_decoding_error(strict_errors, expected);
    options.field_validation.enforce(decoded.strict_errors, warnings, refuse)?;
    Ok(decoded.object)
}
