//! Bodies of custom resources. As in kube-apiserver, kind and version are required, unknown fields are found by the
//! CRD's schema, and wrong types are left to validation.

use crowsnest_apimachinery::content_negotiation::Encoding;
use crowsnest_apimachinery::request::options::WriteOptions;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::find_decoding_errors;
use serde_json::Value;

use crate::http::body;

/// Maximum number of characters of the body in an error.
const MAX_EXCERPT_CHARS: usize = 30;

/// Decodes an object of a custom kind.
pub(super) fn decode_object(
    resource: &ResourceRef,
    bytes: &[u8],
    encoding: Encoding,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let unrecognized = |why: String| {
        let text = String::from_utf8_lossy(bytes);
        let excerpt: String = text.chars().take(MAX_EXCERPT_CHARS).collect();
        let excerpt = if text.chars().count() > MAX_EXCERPT_CHARS { format!("{excerpt} ...") } else { excerpt };
        let kind = &resource.kind;
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why} ({excerpt})"
        ))
    };
    let (mut object, mut findings) = match encoding {
        Encoding::Json => crowsnest_schema::decode::parse_json_strict(bytes)
            .map_err(|why| unrecognized(format!("couldn't get version/kind; json parse error: {why}")))?,
        Encoding::Yaml => {
            let (value, duplicate_keys) =
                body::parse_yaml_object(bytes, options.field_validation).map_err(body::yaml_error)?;
            (value, duplicate_keys.into_iter().collect())
        }
        Encoding::Protobuf => (body::parse(bytes, encoding)?, Vec::new()),
    };
    if !object.is_object() {
        return Err(unrecognized(
            "couldn't get version/kind; json parse error: cannot unmarshal into an object".into(),
        ));
    }
    for (key, name_in_error) in [("kind", "Kind"), ("apiVersion", "apiVersion")] {
        if object[key].as_str().unwrap_or("").is_empty() {
            let text = String::from_utf8_lossy(bytes);
            return Err(unrecognized(format!("Object '{name_in_error}' is missing in '{text}'")));
        }
    }
    check_version(resource, &object)?;
    let (kind, version) = (&resource.kind, &resource.gvr.version);
    let unusable = |why: String| {
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let error = crowsnest_schema::decode::metadata_error(&object);
    if let Some(error) = error.or_else(|| resource.strategy.decode_error(&object)) {
        return Err(unusable(error));
    }
    if let Some(schema) = resource.strategy.schema() {
        findings.extend(find_decoding_errors(&schema, &object).unknown_fields);
        let refuse = |findings: &[String]| unusable(format!("strict decoding error: {}", findings.join(", ")));
        options.field_validation.enforce(findings, warnings, refuse)?;
    }
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(serde_json::Map::new());
    }
    resource.strategy.prune(&mut object);
    crowsnest_schema::decode::normalize_metadata(&mut object);
    Ok(object)
}

fn check_version(resource: &ResourceRef, object: &Value) -> ApiResult<()> {
    let (expected, given) = (resource.gvr.api_version(), object["apiVersion"].as_str().unwrap_or(""));
    if given == expected {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the API version in the data ({given}) does not match the expected API version ({expected})"
    )))
}
