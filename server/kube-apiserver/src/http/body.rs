//! Request bodies: size limit, JSON or YAML, decoding of objects.

use bytes::Bytes;
use crowsnest_apimachinery::negotiate::Encoding;
use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use crowsnest_apimachinery::request::options::{FieldValidation, WriteOptions};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::yaml::{self, Document, ReadError};
use crowsnest_component_base::body;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::decode::{self, Expected};
use crowsnest_schema::patch::Body;
use serde_json::Value;

use crate::http::protobuf;

/// Reads a complete body; 413 above the limit.
pub async fn read(body: axum::body::Body) -> ApiResult<Bytes> {
    Ok(body::collect(body, MAX_REQUEST_BODY_BYTES).await?)
}

/// Decodes an object of a served kind. Strict findings become warnings or an error, depending on the field
/// validation.
pub fn object(
    resource: &ResourceRef,
    bytes: &[u8],
    encoding: Encoding,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    if resource.is_custom() {
        return super::custom::object(resource, bytes, encoding, options, warnings);
    }
    let schema = resource.strategy.schema();
    let expected = Expected {
        group: &resource.gvr.group,
        version: &resource.gvr.version,
        kind: &resource.kind,
        schema: schema.as_deref(),
    };
    let mut decoded = match encoding {
        Encoding::Json => decode::decode_body(bytes, &expected)?,
        Encoding::Yaml => {
            let read = read_yaml(bytes).map_err(|why| decode::unrecognized(&expected, &why, bytes))?;
            let mut decoded = decode::decode_object(read.value, &expected)?;
            // A warning cannot contain the line break of this finding, so only errors include it.
            if let Some(finding) = duplicate_keys_finding(&read.strict)
                && options.field_validation == FieldValidation::Strict
            {
                decoded.strict.insert(0, finding);
            }
            decoded
        }
        Encoding::Protobuf => decode::decode_object(protobuf::object(bytes)?, &expected)?,
    };
    // Custom resources are pruned by their own schema, which also finds unknown fields.
    if let Some(schema) = schema.as_deref().filter(|schema| schema.name.is_none()) {
        decoded.strict.extend(crowsnest_schema::check(schema, &decoded.object).unknown);
        resource.strategy.prune(&mut decoded.object);
    }
    let refuse = |findings: &[String]| decode::strict_error(findings, &expected);
    options.field_validation.enforce(decoded.strict, warnings, refuse)?;
    Ok(decoded.object)
}

/// Decodes an apply patch: a YAML mapping.
pub fn apply_patch(bytes: &[u8]) -> ApiResult<Body> {
    let refuse = |why: String| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let read = read_yaml(bytes).map_err(|why| refuse(format!("error converting YAML to JSON: {why}")))?;
    let kind = match &read.value {
        Value::Object(_) | Value::Null => return Ok(read),
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    let target = "Go value of type map[string]interface {}";
    Err(refuse(format!("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into {target}")))
}

pub fn yaml(bytes: &[u8]) -> ApiResult<Value> {
    custom_yaml(bytes).map(|(value, _)| value)
}

/// Parses YAML. For duplicate keys, the last value is used and the others are strict findings.
fn read_yaml(bytes: &[u8]) -> Result<Body, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("yaml: {error}"))?;
    match yaml::parse_document(text) {
        Ok(Document { value, duplicate_keys }) => Ok(Body { value, strict: duplicate_keys }),
        Err(ReadError::Syntax { line, problem }) if problem.contains("tabs disallowed") => {
            Err(format!("yaml: line {line}: found character that cannot start any token"))
        }
        Err(error @ ReadError::Syntax { .. }) => Err(unclosed_bracket(text).unwrap_or_else(|| error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses YAML of a custom resource: its value, and the strict finding about duplicate keys.
pub(super) fn custom_yaml(bytes: &[u8]) -> ApiResult<(Value, Option<String>)> {
    let read =
        read_yaml(bytes).map_err(|why| ApiError::bad_request(format!("error converting YAML to JSON: {why}")))?;
    Ok((read.value, duplicate_keys_finding(&read.strict)))
}

fn duplicate_keys_finding(duplicate_keys: &[String]) -> Option<String> {
    (!duplicate_keys.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", duplicate_keys.join("\n  ")))
}

/// An unclosed bracket in flow style, the most frequent error, with the message of Go's parser.
fn unclosed_bracket(text: &str) -> Option<String> {
    let mut open = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for c in line.chars() {
            match c {
                '[' | '{' => open.push((c, number + 1)),
                ']' | '}' => drop(open.pop()),
                _ => {}
            }
        }
    }
    let (bracket, line) = open.pop()?;
    let closing = if bracket == '[' { ']' } else { '}' };
    Some(format!("yaml: line {line}: did not find expected ',' or '{closing}'"))
}

/// Parses JSON of no specific kind, such as patches and DeleteOptions.
pub fn json(bytes: &[u8], encoding: Encoding) -> ApiResult<Value> {
    match encoding {
        Encoding::Json => decode::parse_json(bytes).map_err(ApiError::bad_request),
        Encoding::Yaml => yaml(bytes),
        Encoding::Protobuf => protobuf::object(bytes),
    }
}

/// Decodes a body of a built-in kind that is not stored, such as a Scale or an Eviction. Strict findings are handled as
/// by [`object`].
pub fn of_kind(
    expected: &Expected<'_>,
    bytes: &[u8],
    encoding: Encoding,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let decoded = match encoding {
        Encoding::Json => decode::decode_body(bytes, expected)?,
        Encoding::Yaml => decode::decode_object(yaml(bytes)?, expected)?,
        Encoding::Protobuf => decode::decode_object(protobuf::object(bytes)?, expected)?,
    };
    let refuse = |findings: &[String]| decode::strict_error(findings, expected);
    options.field_validation.enforce(decoded.strict, warnings, refuse)?;
    Ok(decoded.object)
}
