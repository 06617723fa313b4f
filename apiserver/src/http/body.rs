//! Reading request bodies: the size limit, JSON or YAML, and the objects in them.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use crate::http::negotiate::Encoding;
use crate::registry::options::{FieldValidation, WriteOptions};
use crate::registry::resource::ResourceRef;
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
    let schema = resource.strategy.schema();
    let mut object = json(bytes, encoding)?;
    if !object.is_object() {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error",
            resource.kind
        )));
    }
    let (api_version, kind) = (resource.gvr.api_version(), resource.kind.as_str());
    let given = |key: &str| object[key].as_str().filter(|t| !t.is_empty()).map(str::to_owned);
    let (given_version, given_kind) = (given("apiVersion"), given("kind"));
    if given_version.as_ref().is_some_and(|v| *v != api_version) || given_kind.as_ref().is_some_and(|k| k != kind) {
        return Err(ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {kind}: no kind is registered",
            given_kind.unwrap_or_else(|| kind.to_owned()),
            given_version.unwrap_or_else(|| api_version.clone()),
        )));
    }
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    if let Some(schema) = &schema {
        let checked = crate::schema::check(schema, &object);
        let refuse = |why: String| {
            let version = &resource.gvr.version;
            Err(ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}")))
        };
        if let Some(wrong) = checked.wrong {
            return refuse(wrong);
        }
        match options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => warnings.extend(checked.unknown),
            FieldValidation::Strict if checked.unknown.is_empty() => {}
            FieldValidation::Strict => {
                return refuse(format!("strict decoding error: {}", checked.unknown.join(", ")));
            }
        }
    }
    resource.strategy.prune(&mut object);
    Ok(object)
}

pub fn yaml(bytes: &[u8]) -> ApiResult<Value> {
    let text = std::str::from_utf8(bytes).map_err(|e| ApiError::bad_request(format!("yaml: {e}")))?;
    serde_saphyr::from_str(text).map_err(|e| ApiError::bad_request(format!("error converting YAML to JSON: yaml: {e}")))
}

/// JSON of no particular kind, such as patches and DeleteOptions.
pub fn json(bytes: &[u8], encoding: Encoding) -> ApiResult<Value> {
    match encoding {
        Encoding::Json => serde_json::from_slice(bytes).map_err(|e| ApiError::bad_request(e.to_string())),
        Encoding::Yaml => yaml(bytes),
    }
}
