//! Responses: objects, lists, tables and Statuses.

use std::sync::Arc;

use axum::body::Body;
use crowsnest_apimachinery::negotiate::{self, Encoding, Representation, Shape};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_builtin::internal;
use crowsnest_registry::List;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::table::{
    IncludeObject, ListMeta, Rows, partial_object_metadata, partial_object_metadata_list, to_v1beta1,
};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use serde_json::{Value, json};

use crate::http::Response;
use crate::http::audited::ReturnedStatus;

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub const YAML: HeaderValue = HeaderValue::from_static("application/yaml");

/// A response with a body.
pub fn bytes(code: u16, content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = http::Response::new(body.into());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub fn text(code: u16, body: impl Into<Body>) -> Response {
    let response = bytes(code, HeaderValue::from_static("text/plain; charset=utf-8"), body);
    if code >= 400 { unsniffed(response) } else { response }
}

/// Prevents browsers from guessing the content type.
pub fn unsniffed(mut response: Response) -> Response {
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A value in JSON or YAML.
pub fn value(code: u16, encoding: Encoding, value: &Value) -> Response {
    match encoding {
        Encoding::Json | Encoding::Protobuf => match serde_json::to_vec(value) {
            Ok(json) => bytes(code, JSON, json),
            Err(e) => error(&ApiError::internal(e)),
        },
        Encoding::Yaml => match serde_saphyr::to_string(value) {
            Ok(yaml) => bytes(code, YAML, yaml),
            Err(e) => error(&ApiError::internal(e)),
        },
    }
}

/// A Status.
pub fn status(code: u16, encoding: Encoding, status: Value) -> Response {
    let mut response = value(code, encoding, &status);
    response.extensions_mut().insert(ReturnedStatus(Arc::new(status)));
    response
}

/// An error as a Status.
pub fn error(error: &ApiError) -> Response {
    error_in(Encoding::Json, error)
}

/// Like [`error`], in the accepted encoding.
pub fn error_in(encoding: Encoding, error: &ApiError) -> Response {
    let mut response = status(error.code, encoding, error.to_status());
    if let Some(seconds) = error.details.as_ref().and_then(|d| d.retry_after_seconds) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// An object in the accepted representation.
pub fn object(
    code: u16,
    accepted: Representation,
    resource: &ResourceRef,
    object: &Value,
    include: &str,
) -> ApiResult<Response> {
    let mut shaped = match accepted.shape {
        Shape::Table => {
            let include = IncludeObject::parse(include)?;
            let columns = resource.printer.columns(&docs);
            rows(resource, include).table(Some(columns), [object], &ListMeta::of(object))
        }
        Shape::PartialMetadata => partial_object_metadata(object, internal),
        Shape::PartialMetadataList => {
            return Err(negotiate::object_not_acceptable(&go_type(resource)));
        }
        Shape::Object | Shape::Aggregated { .. } => return Ok(value(code, accepted.encoding, object)),
    };
    if accepted.beta {
        to_v1beta1(&mut shaped);
    }
    Ok(value(code, accepted.encoding, &shaped))
}

/// Printer of table rows for a resource, with the current time.
pub(super) fn rows(resource: &ResourceRef, include: IncludeObject) -> Rows<'_> {
    Rows { printer: &resource.printer, include, now: jiff::Timestamp::now(), internal }
}

/// Description of a column that shows a published field.
pub(crate) fn docs(definition: &str, field: &str) -> Option<String> {
    crowsnest_schema::table::field_description(definition, field)
}

/// Name of the kind's internal Go type.
fn go_type(resource: &ResourceRef) -> String {
    if resource.is_custom() {
        return "unstructured.Unstructured".to_owned();
    }
    let package = resource.gvr.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    format!("{package}.{}", resource.kind)
}

/// True if list items have no kind, which is the case for built-in kinds.
pub(super) fn untyped(resource: &ResourceRef) -> bool {
    resource.strategy.schema().is_some_and(|schema| schema.name.is_some())
}

pub(super) fn list_meta(revision: u64, continue_token: &str, remaining: Option<usize>) -> ListMeta {
    ListMeta {
        resource_version: revision.to_string(),
        continue_token: continue_token.to_owned(),
        remaining_item_count: remaining.and_then(|n| i64::try_from(n).ok()),
    }
}

/// A list in the accepted representation.
pub fn list(accepted: Representation, resource: &ResourceRef, list: List, include: &str) -> ApiResult<Response> {
    let meta = list_meta(list.revision, &list.continue_token, list.remaining);
    let mut shaped = match accepted.shape {
        Shape::Table => {
            let include = IncludeObject::parse(include)?;
            let columns = resource.printer.columns(&docs);
            rows(resource, include).table(Some(columns), &list.objects, &meta)
        }
        Shape::PartialMetadataList => partial_object_metadata_list(&list.objects, &meta, internal),
        Shape::PartialMetadata => {
            return Err(negotiate::list_not_acceptable(&format!("{}List", go_type(resource))));
        }
        Shape::Object | Shape::Aggregated { .. } => collection(resource, list.objects, &meta),
    };
    if accepted.beta {
        to_v1beta1(&mut shaped);
    }
    Ok(value(200, accepted.encoding, &shaped))
}

/// A `<Kind>List` of objects.
pub fn collection(resource: &ResourceRef, mut objects: Vec<Value>, meta: &ListMeta) -> Value {
    if untyped(resource) {
        for object in objects.iter_mut().filter_map(Value::as_object_mut) {
            object.remove("kind");
            object.remove("apiVersion");
        }
    }
    let mut metadata = meta.to_json();
    if resource.is_custom() && meta.continue_token.is_empty() {
        // Lists of custom resources always contain the continue token.
        metadata["continue"] = "".into();
    }
    json!({
        "kind": resource.list_kind, "apiVersion": resource.gvr.api_version(), "metadata": metadata, "items": objects,
    })
}
