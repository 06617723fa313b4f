//! Bodies of custom resources. As in kube-apiserver, kind and version are required, unknown fields are found by the
//! CRD's schema, and wrong types are left to validation.

use crowsnest_apimachinery::content_negotiation::Encoding;
use crowsnest_apimachinery::request::options::{FieldValidation, WriteOptions};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::{Schema, find_decoding_errors};
use serde_json::Value;

use crate::http::body::{self, EncodedBody};

/// Maximum number of characters of the body in an error.
const MAX_EXCERPT_CHARS: usize = 30;

/// Decodes an object of a custom kind.
pub(super) fn decode_object(
    resource: &ResourceRef,
    EncodedBody { bytes, encoding }: &EncodedBody,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let unrecognized = |reason: String| {
        let text = String::from_utf8_lossy(bytes);
        let excerpt: String = text.chars().take(MAX_EXCERPT_CHARS).collect();
        let excerpt = if text.chars().count() > MAX_EXCERPT_CHARS { format!("{excerpt} ...") } else { excerpt };
        let kind = &resource.kind;
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {reason} ({excerpt})"
        ))
    };
    let (mut object, mut strict_errors) = match encoding {
        Encoding::Json => crowsnest_schema::decode::parse_json_strict(bytes)
            .map_err(|reason| unrecognized(format!("couldn't get version/kind; json parse error: {reason}")))?,
        Encoding::Yaml => {
            let (value, duplicate_keys) =
                body::parse_yaml_object(bytes, options.field_validation).map_err(body::yaml_error)?;
            (value, duplicate_keys.into_iter().collect())
        }
        Encoding::Protobuf => (body::parse(bytes, *encoding)?, Vec::new()),
    };
    if !object.is_object() {
        return Err(unrecognized(
            "couldn't get version/kind; json parse error: cannot unmarshal into an object".into(),
        ));
    }
    let (kind, version) = (&resource.kind, &resource.gvr.version);
    let unusable = |(given_kind, given_version): (&str, &str), reason: String| {
        let message = format!("{given_kind} in version {given_version:?} cannot be handled as a {kind}: {reason}");
        ApiError::bad_request(message)
    };
    let given_version = object["apiVersion"].as_str().unwrap_or("");
    if given_version.matches('/').count() > 1 {
        return Err(unrecognized(format!("unexpected GroupVersion string: {given_version}")));
    }
    if object["kind"].as_str().unwrap_or("").is_empty() {
        let reason = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(bytes));
        // Decoding without strict checks fails later.
        let is_lenient = options.field_validation == FieldValidation::Ignore;
        return Err(if is_lenient { unusable((kind, version), reason) } else { unrecognized(reason) });
    }
    let is_own_kind = resource.has_kind_of(&object);
    let given_kind = object["kind"].as_str().unwrap_or("").to_owned();
    let given_version = given_version.rsplit('/').next().unwrap_or("").to_owned();
    let given_type = (given_kind.as_str(), given_version.as_str());
    let embedded_error = || if is_own_kind { resource.strategy.decode_error(&object) } else { None };
    if let Some(error) = crowsnest_schema::decode::metadata_error(&object).or_else(embedded_error) {
        return Err(unusable(given_type, error));
    }
    // The schema does not describe objects of other kinds, which validation rejects.
    let schema = resource.strategy.schema();
    if let Some(schema) = schema.map(|schema| if is_own_kind { schema } else { Schema::for_any_custom_resource() }) {
        strict_errors.extend(find_decoding_errors(&schema, &object).unknown_fields);
        let refuse = |strict_errors: &[String]| {
            unusable(given_type, format!("strict decoding error: {}", strict_errors.join(", ")))
        };
        options.field_validation.enforce(strict_errors, warnings, refuse)?;
    }
    check_version(resource, &object)?;
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(serde_json::Map::new());
    }
    resource.strategy.prune(&mut object);
    crowsnest_schema::decode::normalize_metadata(&mut object);
    Ok(object)
}

fn check_version(resource: &ResourceRef, object: &Value) -> ApiResult<()> {
    let (expected, actual) = (resource.gvr.api_version(), object["apiVersion"].as_str().unwrap_or(""));
    if actual == expected {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the API version in the data ({actual}) does not match the expected API version ({expected})"
    )))
}
