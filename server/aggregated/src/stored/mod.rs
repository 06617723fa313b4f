//! Serves `cluster.karmada.io` clusters and `search.karmada.io` resource registries from the objects of the internal
//! group `storage.crowsnest.io` in the control plane, the only place where they are stored.
//!
//! A request is forwarded under the internal group and the response is translated back: objects, lists, tables, watch
//! events and Status texts. Validation and defaulting run as admission on the internal group (`webhook/`), on the whole
//! object, for every verb; a denial is returned with the name of the public group.

use bytes::Bytes;
use crowsnest_api::constants::annotation::MIGRATED_UID;
use crowsnest_api::storage::StoredKind;
use crowsnest_apimachinery::printers::columns::KindPrinter;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::yaml;
use crowsnest_component_base::client_errors::api_error;
use crowsnest_component_base::lines::LineBuffer;
use crowsnest_process::reply::collect;
use futures::{Stream, StreamExt, TryStreamExt};
use http::response::Parts;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use serde_json::Value;

use self::buffered_request::has_other_fields;
use self::forward::{Forward, JSON_MEDIA_TYPE};
use self::precondition::copy_version;
use self::representation::Representation;
use self::translation::{MIGRATED_FIELDS, annotation, rename_operands};
use self::writer::Writer;
use crate::resource::table::TableRequest;
use crate::{cluster_karmada_io, search_karmada_io};
use crowsnest_process::reply::{Body, ResponseStatus};

mod buffered_request;
pub(crate) mod forward;
mod precondition;
mod representation;
pub mod resource;
mod stored_request;
mod translation;
pub mod writer;

/// Group of the stored objects of the aggregated groups.
pub use crowsnest_api::storage::GROUP as STORAGE_GROUP;

const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Maximum number of query parameters. Go's `url.ParseQuery` ignores all parameters if there are more than 10,000.
const MAX_PARAMETERS: usize = 1_000;

/// Reads a stored object, or a complete list, by the path of the public kind after the version.
pub async fn read_stored(
    control_plane: &kube::Client,
    kind: &StoredKind,
    resource_path: &str,
) -> Result<Value, kube::Error> {
    let uri = format!("/apis/{STORAGE_GROUP}/v1alpha1{}", kind.stored_path(resource_path));
    let request = http::Request::get(uri).body(Vec::new()).map_err(kube::Error::HttpError)?;
    control_plane.request(request).await
}

/// A public group whose resource is kept under [`STORAGE_GROUP`]; both in version `v1alpha1`.
#[derive(Debug, Clone, Copy)]
pub struct StoredGroup {
    pub kind: &'static StoredKind,
    /// Columns of tables.
    pub columns: Option<&'static KindPrinter>,
}

/// Path after the version of a group (`/clusters/m1/status`), with the query.
#[derive(Clone, Copy)]
pub struct Target<'r> {
    pub resource_path: &'r str,
    pub query: &'r Query,
    /// True to write only the status, even if the body has other fields.
    pub status_only: bool,
}

impl StoredGroup {
    /// Forwards `request` for `target` and translates the response. Without a `writer`, no permissions are reviewed: for
    /// writes of this program's controllers and of callers with all permissions.
    pub async fn serve(
        self,
        control_plane: &kube::Client,
        Target { resource_path, query, status_only }: Target<'_>,
        request: Request<Body>,
        writer: Option<Writer<'_>>,
    ) -> Result<Response<Body>, ApiError> {
        let caller = writer;
        let writer = self.writer_to_review(writer, request.method(), resource_path)?;
        let (parts, body) = request.into_parts();
        let is_watch = parts.method == Method::GET && query.flag("watch");
        let representation = Representation::choose(&parts.headers, is_watch)?;
        let table = match parts.method == Method::GET && representation.is_table() {
            true => Some(TableRequest::parse(self.columns, representation.is_beta(), query)?),
            false => None,
        };
        // The control plane must find the selectors that were authorized, so it receives the parsed parameters.
        if query.len() > MAX_PARAMETERS {
            return Err(ApiError::bad_request(format!("more than {MAX_PARAMETERS} query parameters")));
        }
        let query = encode_query(query);
        let (mut bytes, content_type) = self.translate_body(&parts.headers, collect(body).await?)?;
        let mut forward = Forward {
            control_plane,
            kind: self.kind,
            // Only a PATCH is authorized as a patch. A strategic patch becomes a replacement, so the media type alone
            // must not turn the body of another method into one.
            is_strategic_patch: parts.method == Method::PATCH
                && content_type.as_ref().is_some_and(|kind| kind == STRATEGIC),
            method: parts.method,
            content_type,
            headers: &parts.headers,
            query,
            accept: if table.is_some() { JSON_MEDIA_TYPE } else { representation.accept_json() },
            writer,
        };
        let spec_write = match status_only {
            true => None,
            false => self.spec_in_status_write(&forward, resource_path, &bytes).await?,
        };
        if let Some((object_path, mut status)) = spec_write {
            // The status is written last. If a dry run refuses it, the object is not written either.
            let dry_run_response = forward.to_dry_run().send(resource_path, &bytes).await?;
            if !dry_run_response.status().is_success() {
                return self.translate_object_response(dry_run_response, None, representation).await;
            }
            let object_body = self.check_create(caller, &forward, object_path, bytes).await?;
            let response = forward.send(object_path, &object_body).await?;
            if !response.status().is_success() {
                return self.translate_object_response(response, None, representation).await;
            }
            let object_bytes = response.into_body().collect().await.map_err(api_error)?.to_bytes();
            copy_version(&mut status, &serde_json::from_slice(&object_bytes).map_err(ApiError::internal)?);
            bytes = serde_json::to_vec(&status).map_err(ApiError::internal)?;
        } else if parent_path(resource_path).is_none() {
            bytes = self.check_create(caller, &forward, resource_path, bytes).await?;
        }
        if parent_path(resource_path).is_some() {
            // A write to the status cannot change references to tokens: the control plane keeps the rest of the object.
            forward.writer = None;
        }
        if forward.method == Method::DELETE {
            translate_uid_precondition(&forward, resource_path, &mut bytes).await?;
        }
        let response = forward.send(resource_path, &bytes).await?;
        if is_watch && response.status().is_success() {
            return Ok(self.translate_watch(response, table));
        }
        self.translate_object_response(response, table, representation).await
    }

    /// The writer whose permissions are reviewed for the resulting object; `None` for reads and for other groups.
    /// Refuses agents that write another cluster.
    fn writer_to_review<'w>(
        self,
        writer: Option<Writer<'w>>,
        method: &Method,
        resource_path: &str,
    ) -> Result<Option<Writer<'w>>, ApiError> {
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let is_cluster = self.kind.group == cluster_karmada_io::NAME;
        let is_reviewed = is_cluster || self.kind.group == search_karmada_io::NAME;
        let Some(writer) = writer.filter(|_| is_reviewed && !reads) else { return Ok(None) };
        if is_cluster && *method != Method::POST {
            writer.check_name(name_of(resource_path))?;
        }
        Ok(Some(writer))
    }

    /// Reviews the verb `create` for an apply patch, which creates the object if there is none. Returns the body to
    /// send: for callers that must not create the object, it names the version of the existing one, so that the patch
    /// cannot create it.
    async fn check_create(
        self,
        caller: Option<Writer<'_>>,
        forward: &Forward<'_>,
        resource_path: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ApiError> {
        let applies = forward.method == Method::PATCH && writer::is_apply(forward.content_type.as_ref());
        let Some(caller) = caller.filter(|_| applies) else { return Ok(body) };
        let resource = resource_path.split('/').nth(1).unwrap_or_default();
        let Err(forbidden) = caller.check_create(self.kind.group, resource, name_of(resource_path)).await? else {
            return Ok(body);
        };
        let live = forward.get_stored(resource_path).await?;
        let version = live.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        version
            .filter(|_| live["kind"] != "Status")
            .map_or(Err(forbidden), |version| writer::apply_with_expected_version(&body, version))
    }

    /// As in Karmada, a write to the status of a Cluster also applies the spec in its body, but only if the caller may
    /// also write the Cluster itself: permission to report a status does not include permission to change an endpoint.
    /// Returns the path of the Cluster, which is written first, and the body, if the write contains more than a status.
    /// A dry run covers the status only, because its write of the Cluster would not be stored.
    async fn spec_in_status_write<'t>(
        self,
        forward: &Forward<'_>,
        resource_path: &'t str,
        bytes: &[u8],
    ) -> Result<Option<(&'t str, Value)>, ApiError> {
        let object_path = parent_path(resource_path).filter(|_| writes_spec_with_status(self));
        let is_stored_update = matches!(forward.method, Method::PUT | Method::PATCH)
            && !Query::parse(forward.query.strip_prefix('?')).has("dryRun");
        let Some(object_path) = object_path.filter(|_| is_stored_update) else { return Ok(None) };
        let Ok(body) = serde_json::from_slice::<Value>(bytes) else { return Ok(None) };
        let has_more = has_other_fields(&body);
        let may_write = match forward.writer {
            Some(writer) if has_more => writer.may_write(&forward.method, name_of(object_path)).await?,
            _ => has_more,
        };
        Ok(may_write.then_some((object_path, body)))
    }

    /// Renames group and kind in a request body.
    fn translate_body(
        self,
        headers: &HeaderMap,
        bytes: Bytes,
    ) -> Result<(Vec<u8>, Option<http::HeaderValue>), ApiError> {
        let content_type = headers.get(header::CONTENT_TYPE).cloned();
        let media_type = content_type.as_ref().and_then(|v| v.to_str().ok()).unwrap_or("application/json");
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        if bytes.is_empty() {
            return Ok((Vec::new(), content_type));
        }
        let format = body_format(headers);
        if format == BodyFormat::JsonPatch {
            // The control plane refuses an invalid patch with its own message.
            let Ok(mut patch) = serde_json::from_slice(&bytes) else { return Ok((bytes.to_vec(), content_type)) };
            rename_operands(&mut patch, &self.to_stored());
            return Ok((serde_json::to_vec(&patch).map_err(ApiError::internal)?, content_type));
        }
        let mut value: Value = if format == BodyFormat::Yaml {
            let text = std::str::from_utf8(&bytes)
                .map_err(|e| ApiError::bad_request(format!("the body is not UTF-8: {e}")))?;
            yaml::parse(text).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?
        } else if format == BodyFormat::Json {
            serde_json::from_slice(&bytes).map_err(|e| ApiError::bad_request(format!("error decoding JSON: {e}")))?
        } else {
            // The control plane refuses Protobuf and unknown types with 415.
            return Ok((bytes.to_vec(), content_type));
        };
        self.to_stored().rename_in_object(&mut value);
        for (field, key) in MIGRATED_FIELDS {
            if annotation(&value, key).is_some_and(|shown| value["metadata"][field] == shown)
                && let Some(metadata) = value["metadata"].as_object_mut()
            {
                // The control plane has a UID and a creation time of its own.
                metadata.remove(field);
            }
        }
        let text = serde_json::to_vec(&value).map_err(ApiError::internal)?;
        let media_type = if media_type == "application/yaml" { "application/json" } else { media_type };
        Ok((text, Some(http::HeaderValue::from_str(media_type).map_err(ApiError::internal)?)))
    }

    async fn translate_object_response(
        self,
        response: Response<KubeBody>,
        table: Option<TableRequest>,
        representation: Representation,
    ) -> Result<Response<Body>, ApiError> {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(api_error)?.to_bytes();
        let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else {
            return Ok(with_body(Body::from(bytes), parts));
        };
        self.translate_response(&mut value);
        if let (Some(table), true) = (table, parts.status.is_success()) {
            value = table.convert(&value, jiff::Timestamp::now());
        }
        let mut response = representation.encode(parts.status, &value)?;
        copy_headers(&parts.headers, response.headers_mut());
        if value.get("kind").and_then(Value::as_str) == Some("Status") {
            response.extensions_mut().insert(ResponseStatus(value));
        }
        Ok(response)
    }

    fn translate_watch(self, response: Response<KubeBody>, table: Option<TableRequest>) -> Response<Body> {
        let (parts, body) = response.into_parts();
        let mut is_first = true;
        let events = split_lines(body.into_data_stream().map_err(std::io::Error::other)).map(move |line| {
            let line = line?;
            let mut text = match serde_json::from_slice::<Value>(&line) {
                Ok(mut event) => {
                    if let Some(object) = event.get_mut("object") {
                        self.translate_response(object);
                        if let (Some(table), true) = (&table, object["kind"] != "Status") {
                            *object =
                                table.convert_event(object, std::mem::take(&mut is_first), jiff::Timestamp::now());
                        }
                    }
                    serde_json::to_vec(&event).map_err(std::io::Error::other)?
                }
                Err(_) => line.to_vec(),
            };
            text.push(b'\n');
            Ok::<_, std::io::Error>(Bytes::from(text))
        });
        with_body(Body::from_stream(events), parts)
    }
}

/// Format of a request body, by its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyFormat {
    Json,
    JsonPatch,
    Yaml,
    Other,
}

fn body_format(headers: &HeaderMap) -> BodyFormat {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("application/json");
    match kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "application/json-patch+json" => BodyFormat::JsonPatch,
        "application/yaml" | "application/apply-patch+yaml" => BodyFormat::Yaml,
        kind if kind.starts_with("application/") && kind.ends_with("json") => BodyFormat::Json,
        _ => BodyFormat::Other,
    }
}

/// The query of a request with its question mark, or empty.
fn encode_query(query: &Query) -> String {
    if query.is_empty() { String::new() } else { format!("?{}", query.encode()) }
}

/// True if a write to the status of an object of the group can also write its other fields.
fn writes_spec_with_status(group: StoredGroup) -> bool {
    group.kind.group == cluster_karmada_io::NAME
}

/// Replaces the UID in the precondition of a deletion: clients send the UID from before a migration.
async fn translate_uid_precondition(
    forward: &Forward<'_>,
    resource_path: &str,
    bytes: &mut Vec<u8>,
) -> Result<(), ApiError> {
    let Ok(mut options) = serde_json::from_slice::<Value>(bytes) else { return Ok(()) };
    let Some(expected) = options.pointer_mut("/preconditions/uid") else { return Ok(()) };
    let found = forward.get_stored(resource_path).await?;
    if annotation(&found, MIGRATED_UID).is_some_and(|uid| *expected == uid) {
        *expected = found["metadata"]["uid"].clone();
        *bytes = serde_json::to_vec(&options).map_err(ApiError::internal)?;
    }
    Ok(())
}

/// `/clusters/m1` for `/clusters/m1/status`; `None` for other paths, such as an object named `status`.
fn parent_path(resource_path: &str) -> Option<&str> {
    let path = resource_path.strip_suffix("/status")?;
    matches!(path.split('/').collect::<Vec<_>>().as_slice(), ["", _, name] if !name.is_empty()).then_some(path)
}

/// The name in `/clusters/m1/status`; empty for collections.
fn name_of(resource_path: &str) -> &str {
    resource_path.split('/').nth(2).unwrap_or_default()
}

/// Splits a byte stream of the control plane into lines of any length. An incomplete last line is dropped.
fn split_lines(
    stream: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    let state = (Box::pin(stream), LineBuffer::new(usize::MAX));
    futures::stream::unfold(state, |(mut stream, mut lines)| async move {
        loop {
            match lines.next_line() {
                Ok(Some(line)) => return Some((Ok(line), (stream, lines))),
                Ok(None) => {}
                Err(error) => return Some((Err(std::io::Error::other(error)), (stream, lines))),
            }
            match stream.next().await {
                Some(Ok(chunk)) => lines.push(&chunk),
                Some(Err(error)) => return Some((Err(error), (stream, lines))),
                None => return None,
            }
        }
    })
}

/// The control plane's response with its body replaced by one of the same media type.
fn with_body(body: Body, parts: Parts) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    copy_headers(&parts.headers, response.headers_mut());
    if let Some(content_type) = parts.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type.clone());
    }
    response
}

fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for name in [header::WARNING, header::RETRY_AFTER] {
        for value in from.get_all(&name) {
            to.append(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
