//! Reading request bodies: the size limit, JSON or YAML, and the objects in them.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use crate::http::negotiate::Encoding;
use crate::http::protobuf;
use crate::registry::options::{FieldValidation, WriteOptions};
use crate::registry::resource::ResourceRef;
use crate::schema;
use crate::schema::decode::{self, Expected};
use crate::status::{ApiError, ApiResult, Reason};

/// Largest accepted body.
pub const LIMIT: usize = 3 * 1024 * 1024;

/// Reads a whole body; 413 beyond the limit.
pub async fn read(body: Body) -> ApiResult<Bytes> {
    match Limited::new(body, LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(ApiError::new(Reason::RequestEntityTooLarge, format!("limit is {LIMIT}")))
        }
        Err(error) => Err(ApiError::bad_request(format!("error reading the request body: {error}"))),
    }
}

/// An object of a known kind from a request body; strict findings become warnings or a refusal.
pub fn object(
    resource: &ResourceRef,
    bytes: &[u8],
    encoding: Encoding,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    if super::custom::is_custom(resource) {
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
        Encoding::Yaml => decode::decode_object(yaml(bytes)?, &expected)?,
        Encoding::Protobuf => decode::decode_object(protobuf::object(bytes)?, &expected)?,
    };
    // Custom resources are pruned by their own schema, which also tells what it did not know.
    if let Some(schema) = schema.as_deref().filter(|schema| schema.name.is_none()) {
        decoded.strict.extend(schema::check(schema, &decoded.object).unknown);
        resource.strategy.prune(&mut decoded.object);
    }
    match options.field_validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => warnings.append(&mut decoded.strict),
        FieldValidation::Strict if decoded.strict.is_empty() => {}
        FieldValidation::Strict => return Err(decode::strict_error(&decoded, &expected)),
    }
    Ok(decoded.object)
}

/// An apply patch: any YAML.
pub fn apply_patch(bytes: &[u8]) -> ApiResult<Value> {
    yaml(bytes).map_err(|error| ApiError::bad_request(format!("error decoding YAML: {}", error.message)))
}

pub fn yaml(bytes: &[u8]) -> ApiResult<Value> {
    let text = std::str::from_utf8(bytes).map_err(|e| ApiError::bad_request(format!("yaml: {e}")))?;
    serde_saphyr::from_str(text).map_err(|error| {
        let why = unclosed(text).unwrap_or_else(|| format!("yaml: {error}"));
        ApiError::bad_request(format!("error converting YAML to JSON: {why}"))
    })
}

/// The commonest mistake in flow style, in the words of Go's parser.
fn unclosed(text: &str) -> Option<String> {
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

/// JSON of no particular kind, such as patches and DeleteOptions.
pub fn json(bytes: &[u8], encoding: Encoding) -> ApiResult<Value> {
    match encoding {
        Encoding::Json => serde_json::from_slice(bytes).map_err(|e| ApiError::bad_request(e.to_string())),
        Encoding::Yaml => yaml(bytes),
        Encoding::Protobuf => protobuf::object(bytes),
    }
}
