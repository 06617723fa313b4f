//! Responses: objects, lists, tables and Statuses.

use std::sync::Arc;

use axum::body::Body;
use crowsnest_apimachinery::content_negotiation::{self, Encoding, Representation, Shape};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::yaml;
use crowsnest_builtin::to_internal;
use crowsnest_registry::List;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::table::{
    IncludeObject, ListMeta, Rows, partial_object_metadata, partial_object_metadata_list, to_v1beta1,
};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use serde_json::{Value, json};

use crate::http::Response;
use crate::http::request_audit::ReturnedStatus;

/// Content type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Content type of YAML.
pub const YAML: HeaderValue = HeaderValue::from_static("application/yaml");

/// A response with a body.
pub fn bytes(code: u16, content_type: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = http::Response::new(body.into());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A response in plain text.
pub fn text(code: u16, body: impl Into<Body>) -> Response {
    let response = bytes(code, HeaderValue::from_static("text/plain; charset=utf-8"), body);
    if code >= 400 { with_nosniff(response) } else { response }
}

/// Adds the header `X-Content-Type-Options: nosniff`, which prevents browsers from guessing the content type.
pub fn with_nosniff(mut response: Response) -> Response {
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A value in JSON or YAML; JSON if the client prefers protobuf.
pub fn value(code: u16, encoding: Encoding, value: &Value) -> Response {
    match encoding {
        Encoding::Json | Encoding::Protobuf => match serde_json::to_vec(value) {
            Ok(json) => bytes(code, JSON, json),
            Err(e) => error(&ApiError::internal(e)),
        },
        Encoding::Yaml => bytes(code, YAML, yaml::to_yaml(value)),
    }
}

/// A Status, which the audit record of the request includes.
pub fn status(code: u16, encoding: Encoding, status: Value) -> Response {
    let mut response = value(code, encoding, &status);
    response.extensions_mut().insert(ReturnedStatus(Arc::new(status)));
    response
}

/// An error as a Status in JSON.
pub fn error(error: &ApiError) -> Response {
    error_in(Encoding::Json, error)
}

/// An error as a Status in an encoding, with the header `Retry-After` if the error has a delay.
pub fn error_in(encoding: Encoding, error: &ApiError) -> Response {
    let mut response = status(error.code, encoding, error.to_status());
    if let Some(seconds) = error.details.as_ref().and_then(|d| d.retry_after_seconds) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// An object in a representation. `include_object` selects the contents of table rows.
pub fn object(
    code: u16,
    representation: Representation,
    resource: &ResourceRef,
    object: &Value,
    include_object: &str,
) -> ApiResult<Response> {
    let mut shaped = match representation.shape {
        Shape::Table => {
            let include_object = IncludeObject::parse(include_object)?;
            let columns = resource.printer.columns(&column_description);
            row_printer(resource, include_object).table(Some(columns), [object], &ListMeta::from_object(object))
        }
        Shape::PartialMetadata => partial_object_metadata(object, to_internal),
        Shape::PartialMetadataList => {
            return Err(content_negotiation::object_not_acceptable(&go_type(resource)));
        }
        Shape::Object | Shape::AggregatedDiscovery { .. } => return Ok(value(code, representation.encoding, object)),
    };
    if representation.is_beta {
        to_v1beta1(&mut shaped);
    }
    Ok(value(code, representation.encoding, &shaped))
}

/// Printer of table rows for a resource, with ages at the current time.
pub(super) fn row_printer(resource: &ResourceRef, include_object: IncludeObject) -> Rows<'_> {
    Rows { printer: &resource.printer, include_object, now: jiff::Timestamp::now(), to_internal }
}

/// Description of a table column that shows a field: that of the field in the published schema.
pub(crate) fn column_description(definition: &str, field: &str) -> Option<String> {
    crowsnest_schema::table::field_description(definition, field)
}

/// Name of the kind's internal Go type, as in errors of kube-apiserver.
fn go_type(resource: &ResourceRef) -> String {
    if resource.is_custom() {
        return "unstructured.Unstructured".to_owned();
    }
    let package = resource.gvr.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    format!("{package}.{}", resource.kind)
}

/// True if list items have no `apiVersion` and `kind`, which is the case for built-in kinds.
pub(super) fn omits_item_type(resource: &ResourceRef) -> bool {
    resource.is_built_in()
}

pub(super) fn list_meta(revision: u64, continue_token: &str, remaining: Option<usize>) -> ListMeta {
    ListMeta {
        resource_version: revision.to_string(),
        continue_token: continue_token.to_owned(),
        remaining_item_count: remaining.and_then(|n| i64::try_from(n).ok()),
    }
}

/// A list in a representation. `include_object` selects the contents of table rows.
pub fn list(
    representation: Representation,
    resource: &ResourceRef,
    list: List,
    include_object: &str,
) -> ApiResult<Response> {
    let meta = list_meta(list.revision, &list.continue_token, list.remaining);
    let mut shaped = match representation.shape {
        Shape::Table => {
            let include_object = IncludeObject::parse(include_object)?;
            let columns = resource.printer.columns(&column_description);
            row_printer(resource, include_object).table(Some(columns), &list.objects, &meta)
        }
        Shape::PartialMetadataList => partial_object_metadata_list(&list.objects, &meta, to_internal),
        Shape::PartialMetadata => {
            return Err(content_negotiation::list_not_acceptable(&format!("{}List", go_type(resource))));
        }
        Shape::Object | Shape::AggregatedDiscovery { .. } => collection(resource, list.objects, &meta),
    };
    if representation.is_beta {
        to_v1beta1(&mut shaped);
    }
    Ok(value(200, representation.encoding, &shaped))
}

/// A `<Kind>List` of objects.
pub fn collection(resource: &ResourceRef, mut objects: Vec<Value>, meta: &ListMeta) -> Value {
    if omits_item_type(resource) {
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
