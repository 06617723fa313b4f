//! `/openapi/v2` and `/openapi/v3`, generated from the schemas that patch and apply use.
//!
//! Documents are generated on request and cached until their resources change; the index needs only hashes.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::request::Query;
use crowsnest_registry::catalog::CatalogSnapshot;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::schema_set::SchemaSet;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY};
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::http::Response;

mod definitions;
mod identifiers;
mod non_resource_paths;
mod operation;
mod parameters;
mod paths;
mod protobuf;
#[cfg(test)]
mod served_tests;

use self::non_resource_paths::NonResourcePath;
use crowsnest_schema::openapi::{PublishedDocument, hash_document, to_upper_hex};

/// Maximum number of cached documents of all servers in the process. The largest have several megabytes.
const MAX_CACHED_DOCUMENTS: NonZeroUsize = NonZeroUsize::new(24).expect("a constant above zero");
const JSON: &str = "application/json";
/// Media types of gnostic's protobuf form: requested and returned, because `@` is not valid in a media type.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// Cached documents by path and hash.
static DOCUMENTS: LazyLock<Mutex<LruCache<(String, String), Bytes>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_CACHED_DOCUMENTS)));

/// Serves `/openapi/<parts>` for the resources of this server and for the documents of extension servers. `None` means
/// 404.
pub fn serve(
    served: &CatalogSnapshot,
    delegated: &[PublishedDocument],
    request: &http::Request<Body>,
    parts: &[&str],
) -> Option<Response> {
    let all: Vec<&ResourceRef> = served.iter().collect();
    match parts {
        ["v2"] => {
            let header = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
            let hash = delegated
                .iter()
                .fold(hash_resources(&all), |hash, more| hash_document(format!("{hash}{}", more.hash).as_bytes()));
            if PROTOBUF.iter().any(|kind| header.starts_with(kind)) {
                let make = || Bytes::from(protobuf::encode_document(&v2(&all, delegated)));
                return Some(respond_with_document(request, "v2.pb", PROTOBUF[1], &hash, make));
            }
            Some(respond_with_document(request, "v2", JSON, &hash, || to_bytes(&v2(&all, delegated))))
        }
        ["v3"] => {
            let index = v3_index(&all, delegated).to_string();
            Some(respond_with_document(request, "v3", JSON, &hash_document(index.as_bytes()), || {
                Bytes::from(index.clone())
            }))
        }
        ["v3", rest @ ..] => {
            let path = rest.join("/");
            if let Some(published) = delegated.iter().find(|published| published.path == path) {
                return Some(respond_with_document(request, &path, JSON, &published.hash, || {
                    to_bytes(&published.document)
                }));
            }
            let found = v3_documents(&all).remove(&path)?;
            let hash = found.hash(&path);
            Some(respond_with_document(request, &path, JSON, &hash, || to_bytes(&found.into_json())))
        }
        _ => None,
    }
}

/// Path of a group version: `api/v1`, `apis/apps/v1`.
fn group_version_path(resource: &ResourceRef) -> String {
    let api = if resource.gvr.group.is_empty() { "api" } else { "apis" };
    format!("{api}/{}", resource.gvr.api_version())
}

/// Hash of the parts of resources that determine a document.
fn hash_resources(resources: &[&ResourceRef]) -> String {
    let mut hasher = Sha256::new();
    for resource in resources {
        hasher.update(format!("{:?}{}{:?}", resource.gvr, resource.kind, resource.subresources));
        if let Some(schema) = resource.strategy.published_schema() {
            hasher.update(schema.to_string());
        }
    }
    to_upper_hex(&hasher.finalize())
}

fn to_bytes(document: &Value) -> Bytes {
    Bytes::from(document.to_string())
}

/// Responds with a document from the cache, or from `make`. Handles `Accept`, `If-None-Match` and the hash in the
/// query.
fn respond_with_document(
    request: &http::Request<Body>,
    path: &str,
    media_type: &'static str,
    hash: &str,
    make: impl FnOnce() -> Bytes,
) -> Response {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let mut response = http::Response::new(Body::empty());
    let accepts = header(ACCEPT);
    let accepts_json = accepts.is_empty() || ["json", "*/*", "application/*"].iter().any(|kind| accepts.contains(kind));
    if media_type == JSON && !accepts_json {
        *response.status_mut() = http::StatusCode::NOT_ACCEPTABLE;
        return response;
    }
    let tag = format!("\"{hash}\"");
    let query = Query::parse(request.uri().query());
    let requested = query.get("hash").filter(|_| request.uri().path().starts_with("/openapi/v3/"));
    if requested.is_some_and(|requested| requested != hash) {
        return redirect_to_current(path, hash, media_type, &tag);
    }
    if header(IF_NONE_MATCH) == tag {
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
    } else {
        let key = (path.to_owned(), hash.to_owned());
        let cached = DOCUMENTS.lock().get(&key).cloned();
        let body = cached.unwrap_or_else(|| {
            let body = make();
            DOCUMENTS.lock().put(key, body.clone());
            body
        });
        *response.body_mut() = Body::from(body);
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    // The index references documents by hash, so they can be cached indefinitely.
    let caching = if requested.is_some() { "public, immutable" } else { "no-cache, private" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    if let Some(until) = requested.and_then(|_| now.checked_add(jiff::Span::new().years(1)).ok())
        && let Ok(until) = HeaderValue::from_str(&until.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string())
    {
        headers.insert(EXPIRES, until);
    }
    response
}

/// Redirects a request with an outdated hash to the current document.
fn redirect_to_current(path: &str, hash: &str, media_type: &'static str, tag: &str) -> Response {
    let mut response = http::Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::MOVED_PERMANENTLY;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    for (name, text) in [(ETAG, tag.to_owned()), (LOCATION, format!("/openapi/v3/{path}?hash={hash}"))] {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    }
    response
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": crate::discovery::GIT_VERSION})
}

/// The OpenAPI v2 document of the whole server.
fn v2(resources: &[&ResourceRef], delegated: &[PublishedDocument]) -> Value {
    let mut paths = paths::all(resources, definitions::SpecVersion::V2);
    let mut definition_names = Vec::new();
    non_resource_paths::add_all(resources, &mut paths, &mut definition_names);
    let mut definitions = definitions::collect(resources, definition_names, definitions::SpecVersion::V2);
    for published in delegated {
        published.merge_into(&mut paths, &mut definitions);
    }
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": {"description": "Bearer Token authentication", "type": "apiKey", "name": "authorization", "in": "header"}},
        "security": [{"BearerToken": []}],
    })
}

/// An OpenAPI v3 document: the resources of a group version, a path that belongs to no resource, or both.
#[derive(Default)]
struct Document<'a> {
    resources: Vec<&'a ResourceRef>,
    non_resource_path: Option<NonResourcePath>,
}

/// All OpenAPI v3 documents by name.
fn v3_documents<'a>(all: &[&'a ResourceRef]) -> BTreeMap<String, Document<'a>> {
    let mut documents: BTreeMap<String, Document<'a>> = BTreeMap::new();
    for &resource in all {
        documents.entry(group_version_path(resource)).or_default().resources.push(resource);
    }
    for path in non_resource_paths::all(all) {
        let document = documents.entry(path.path.clone()).or_default();
        document.non_resource_path = Some(path);
    }
    documents
}

impl Document<'_> {
    fn hash(&self, name: &str) -> String {
        hash_document(format!("{name}{}", hash_resources(&self.resources)).as_bytes())
    }

    /// The complete document.
    fn into_json(self) -> Value {
        let spec_version = definitions::SpecVersion::V3;
        let mut paths = paths::all(&self.resources, spec_version);
        let mut definition_names = Vec::new();
        if let Some(path) = self.non_resource_path {
            paths.insert(path.document_path(), path.item(spec_version));
            definition_names.extend(path.definition);
        }
        json!({
            "openapi": "3.0.0",
            "info": info(),
            "paths": paths,
            "components": {
                "schemas": definitions::collect(&self.resources, definition_names, spec_version),
                "securitySchemes": {"BearerToken": {"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"}},
            },
        })
    }
}

fn v3_index(resources: &[&ResourceRef], delegated: &[PublishedDocument]) -> Value {
    let entry = |(name, document): (String, Document<'_>)| {
        let hash = document.hash(&name);
        let url = format!("/openapi/v3/{name}?hash={hash}");
        (name, json!({"serverRelativeURL": url}))
    };
    let own = v3_documents(resources).into_iter().map(entry);
    let paths: serde_json::Map<String, Value> =
        own.chain(delegated.iter().map(PublishedDocument::index_entry)).collect();
    json!({"paths": paths})
}

/// Description of a field in a built-in definition. Caches the descriptions of recently used definitions.
pub fn description(definition: &str, field: &str) -> Option<String> {
    type Fields = Arc<BTreeMap<String, String>>;
    static CACHE: LazyLock<Mutex<LruCache<String, Fields>>> =
        LazyLock::new(|| Mutex::new(LruCache::new(MAX_CACHED_DOCUMENTS)));
    if let Some(fields) = CACHE.lock().get(definition) {
        return fields.get(field).cloned();
    }
    let raw = SchemaSet::raw_definitions();
    let properties = raw.get(definition).and_then(|definition| definition.get("properties")?.as_object());
    let descriptions = properties
        .into_iter()
        .flatten()
        .filter_map(|(name, node)| Some((name.clone(), node.get("description")?.as_str()?.to_owned())));
    let fields: Fields = Arc::new(descriptions.collect());
    CACHE.lock().put(definition.to_owned(), fields.clone());
    fields.get(field).cloned()
}
