//! `/openapi/v2` and `/openapi/v3`, generated from the schemas that patch and apply use.
//!
//! Documents are assembled on request, those of v3 from the compressed schemas of custom resources, and cached,
//! compressed, until their resources change; the index needs only hashes.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::http_headers::{accepts_coding, has_current_etag};
use crowsnest_apimachinery::request::Query;
use crowsnest_registry::catalog::CatalogSnapshot;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::compressed::{compress, decompress};
use crowsnest_schema::schema_set::SchemaSet;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, LOCATION, VARY};
use lru::LruCache;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::http::{MIN_COMPRESSED_BYTES, Response};

mod definitions;
mod document_text;
mod identifiers;
mod non_resource_paths;
mod operation;
mod parameters;
mod paths;
mod protobuf;
#[cfg(test)]
mod served_tests;

pub(crate) use self::definitions::publishes_unchanged;
use self::document_text::DocumentText;
use self::non_resource_paths::NonResourcePath;
use crowsnest_schema::openapi::{PublishedDocument, hash_document, to_upper_hex};

/// Maximum number of cached documents of all servers in the process. The largest have several megabytes, compressed a
/// tenth of that.
const MAX_CACHED_DOCUMENTS: u64 = 128;
/// Maximum number of definitions whose fields' descriptions are cached.
const MAX_DESCRIBED_DEFINITIONS: NonZeroUsize = NonZeroUsize::new(24).expect("a constant above zero");
const JSON: &str = "application/json";
/// Media types of gnostic's protobuf form: requested and returned, because `@` is not valid in a media type.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// Documents, compressed with gzip, by path and hash. Concurrent requests for a document make it once, because making
/// the largest takes much memory.
static DOCUMENTS: LazyLock<Cache<(String, String), Bytes>> = LazyLock::new(|| {
    Cache::builder().max_capacity(MAX_CACHED_DOCUMENTS).eviction_policy(EvictionPolicy::lru()).build()
});

/// Serves `/openapi/<parts>` for the resources of this server and for the documents of extension servers. `None` means
/// 404.
pub fn serve(
    served: &CatalogSnapshot,
    delegated: &[PublishedDocument],
    request: &http::Request<Body>,
    parts: &[&str],
) -> Option<Response> {
    let resources: Vec<&ResourceRef> = served.iter().collect();
    match parts {
        ["v2"] => {
            let header = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
            let hash = delegated.iter().fold(hash_resources(&resources), |hash, more| {
                hash_document(format!("{hash}{}", more.hash).as_bytes())
            });
            if PROTOBUF.iter().any(|kind| header.starts_with(kind)) {
                let make = || compress(&protobuf::encode_document(&v2(&resources, delegated)));
                return Some(respond_with_document(request, "v2.pb", PROTOBUF[1], &hash, make));
            }
            Some(respond_with_document(request, "v2", JSON, &hash, || compress_json(&v2(&resources, delegated))))
        }
        ["v3"] => {
            let index = v3_index(&resources, delegated).to_string();
            let hash = hash_document(index.as_bytes());
            Some(respond_with_document(request, "v3", JSON, &hash, || compress(index.as_bytes())))
        }
        ["v3", rest @ ..] => {
            let path = rest.join("/");
            if let Some(published) = delegated.iter().find(|published| published.path == path) {
                return Some(respond_with_document(request, &path, JSON, &published.hash, || {
                    compress_json(&published.document)
                }));
            }
            let document = v3_documents(&resources).remove(&path)?;
            let hash = document.hash(&path);
            Some(respond_with_document(request, &path, JSON, &hash, || document.into_gzip()))
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
            hasher.update(schema.hash());
            hasher.update(format!("{}{:?}", resource.list_kind, resource.strategy.selectable_fields(&Value::Null)));
        }
    }
    to_upper_hex(&hasher.finalize())
}

fn compress_json(document: &Value) -> Vec<u8> {
    compress(document.to_string().as_bytes())
}

/// Responds with a document from the cache, or from `make`, which returns gzip data. Handles `Accept`, `If-None-Match`
/// and the hash in the query.
fn respond_with_document(
    request: &http::Request<Body>,
    path: &str,
    media_type: &'static str,
    hash: &str,
    make: impl FnOnce() -> Vec<u8>,
) -> Response {
    let mut response = http::Response::new(Body::empty());
    let accepts = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
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
    let mut is_compressed = false;
    if has_current_etag(request.headers(), tag.as_bytes()) {
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
    } else {
        let gzip = find_document((path.to_owned(), hash.to_owned()), make);
        is_compressed = uncompressed_size(&gzip) > MIN_COMPRESSED_BYTES && accepts_coding(request.headers(), "gzip");
        *response.body_mut() = if is_compressed { Body::from(gzip) } else { Body::from(decompress(&gzip)) };
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
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

/// A document as gzip data, from the cache or from `make`.
fn find_document(key: (String, String), make: impl FnOnce() -> Vec<u8>) -> Bytes {
    DOCUMENTS.get_with(key, || make().into())
}

/// Size of the uncompressed data, from the last four bytes of the gzip format (RFC 1952, ISIZE).
fn uncompressed_size(gzip: &[u8]) -> u64 {
    gzip.last_chunk().map_or(0, |size| u64::from(u32::from_le_bytes(*size)))
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

/// The OpenAPI v2 document of the server.
fn v2(resources: &[&ResourceRef], delegated: &[PublishedDocument]) -> Value {
    let mut paths = paths::build_paths(resources, definitions::SpecVersion::V2);
    let mut definition_names = Vec::new();
    non_resource_paths::add_all(resources, &mut paths, &mut definition_names);
    let mut definitions = definitions::collect_v2(resources, definition_names);
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
fn v3_documents<'a>(resources: &[&'a ResourceRef]) -> BTreeMap<String, Document<'a>> {
    let mut documents: BTreeMap<String, Document<'a>> = BTreeMap::new();
    for &resource in resources {
        documents.entry(group_version_path(resource)).or_default().resources.push(resource);
    }
    for path in non_resource_paths::list_paths(resources) {
        let document = documents.entry(path.path.clone()).or_default();
        document.non_resource_path = Some(path);
    }
    documents
}

impl Document<'_> {
    fn hash(&self, name: &str) -> String {
        hash_document(format!("{name}{}", hash_resources(&self.resources)).as_bytes())
    }

    /// The complete document as gzip data.
    fn into_gzip(self) -> Vec<u8> {
        let spec_version = definitions::SpecVersion::V3;
        let mut paths = paths::build_paths(&self.resources, spec_version);
        let mut definition_names = Vec::new();
        if let Some(path) = self.non_resource_path {
            paths.insert(path.document_path(), path.item(spec_version));
            definition_names.extend(path.definition);
        }
        let schemas = definitions::collect_v3(&self.resources, definition_names);
        let security_schemes = json!({"BearerToken": {"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"}});
        let components = DocumentText::object([
            ("schemas", DocumentText::Fields(schemas)),
            ("securitySchemes", security_schemes.into()),
        ]);
        let document = DocumentText::object([
            ("components", components),
            ("info", info().into()),
            ("openapi", json!("3.0.0").into()),
            ("paths", Value::Object(paths).into()),
        ]);
        document.to_gzip()
    }
}

fn v3_index(resources: &[&ResourceRef], delegated: &[PublishedDocument]) -> Value {
    let entry = |(name, document): (String, Document<'_>)| {
        let hash = document.hash(&name);
        let url = format!("/openapi/v3/{name}?hash={hash}");
        (name, json!({"serverRelativeURL": url}))
    };
    let local_entries = v3_documents(resources).into_iter().map(entry);
    let paths: Map<String, Value> = local_entries.chain(delegated.iter().map(PublishedDocument::index_entry)).collect();
    json!({"paths": paths})
}

/// Description of a field in a built-in definition. Caches the descriptions of recently used definitions.
pub fn description(definition: &str, field: &str) -> Option<String> {
    type Fields = Arc<BTreeMap<String, String>>;
    static CACHE: LazyLock<Mutex<LruCache<String, Fields>>> =
        LazyLock::new(|| Mutex::new(LruCache::new(MAX_DESCRIBED_DEFINITIONS)));
    if let Some(fields) = CACHE.lock().get(definition) {
        return fields.get(field).cloned();
    }
    let raw = SchemaSet::raw_definition(definition).unwrap_or_default();
    let properties = raw.get("properties").and_then(Value::as_object);
    let descriptions = properties
        .into_iter()
        .flatten()
        .filter_map(|(name, node)| Some((name.clone(), node.get("description")?.as_str()?.to_owned())));
    let fields: Fields = Arc::new(descriptions.collect());
    CACHE.lock().put(definition.to_owned(), fields.clone());
    fields.get(field).cloned()
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT_ENCODING;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::small(40, false)]
    #[case::large(MIN_COMPRESSED_BYTES + 1, true)]
    fn documents_are_made_once_and_sent_as_stored(#[case] size: u64, #[case] is_compressed: bool) {
        let document = vec![b'x'; usize::try_from(size).unwrap()];
        let path = format!("made-once-{size}");
        let mut made = 0;
        let mut respond = |encoding: &str| {
            let request = http::Request::get("/openapi/v3/test").header(ACCEPT_ENCODING, encoding);
            respond_with_document(&request.body(Body::empty()).unwrap(), &path, JSON, "hash", || {
                made += 1;
                compress(&document)
            })
        };
        let (first, gzip, identity) = (respond("gzip"), respond("gzip"), respond("identity"));
        for response in [&first, &gzip] {
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), is_compressed);
        }
        let vary: Vec<_> = gzip.headers().get_all(VARY).iter().collect();
        assert_eq!(vary.len(), 1 + usize::from(is_compressed));
        assert!(!identity.headers().contains_key(CONTENT_ENCODING));
        assert_eq!(http_body::Body::size_hint(identity.body()).exact(), Some(size));
        assert_eq!(made, 1);
        let stored = find_document((path, "hash".to_owned()), Vec::new);
        assert_eq!((decompress(&stored), uncompressed_size(&stored)), (document, size));
    }
}
