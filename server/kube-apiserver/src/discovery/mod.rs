//! Discovery: API groups and resources (unaggregated and aggregated), version, health, metrics, root paths.
//!
//! Reads the catalog and the delegates' groups; used by `http/` for all non-resource paths.

mod documents;
mod health;

use std::sync::Arc;

use axum::body::Body;
use crowsnest_apimachinery::content_negotiation::{self, Encoding, Offer, Shape};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_registry::Registry;
use http::header::{ACCEPT, CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Method, Request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::http::{ApiState, Response, respond};

pub use health::Health;

/// The Kubernetes version whose API this server implements.
pub const GIT_VERSION: &str = "v1.36.2";

/// Discovery endpoints of a server.
pub struct Discovery {
    registry: Arc<Registry>,
    pub health: Health,
    /// Kubernetes version reported to clients.
    version: String,
}

impl Discovery {
    pub fn new(registry: Arc<Registry>, version: String) -> Self {
        Self { health: Health::new(registry.store.clone()), registry, version }
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Serves all non-resource paths.
    pub fn serve(&self, api: &ApiState, request: &Request<Body>) -> Response {
        let path = request.uri().path();
        let trimmed = path.trim_end_matches('/');
        // Only the paths of the API, of OpenID and of the version may end with a slash.
        let ends_with_slash = path.len() > 1 && path.ends_with('/');
        if ends_with_slash && !["/api", "/openid/", "/version"].iter().any(|root| path.starts_with(root)) {
            return not_found();
        }
        if let Some(response) = self.health.serve(path, request.uri().query()) {
            return respond::with_nosniff(response);
        }
        let parts: Vec<&str> = trimmed.split('/').skip(1).collect();
        match parts.as_slice() {
            ["openapi", ..] => return self.serve_openapi(api, request, &parts),
            ["api" | "apis" | "version" | "openid" | ".well-known", ..] if request.method() == Method::HEAD => {
                return respond::error(&ApiError::method_not_allowed());
            }
            _ if ![Method::GET, Method::HEAD].contains(request.method()) => {
                let roots = ["", "api", "apis", "version", "openid", ".well-known", "metrics"];
                let is_known = parts.first().is_none_or(|root| roots.contains(root));
                return if is_known { respond::error(&ApiError::method_not_allowed()) } else { not_found() };
            }
            _ => {}
        }
        match parts.as_slice() {
            [] | [""] => respond::value(200, Encoding::Json, &self.root_paths(api)),
            ["version"] => respond_with_document(request, Offer::Version, &version_document(&self.version)),
            ["metrics"] => respond::text(200, self.metrics()),
            ["metrics", "slis"] => respond::text(200, self.health.metrics()),
            ["openid", "v1", "jwks"] => {
                respond_for_issuer("application/jwk-set+json", &api.authenticator.signer.key_set())
            }
            [".well-known", "openid-configuration"] => {
                respond_for_issuer("application/json", &openid_configuration(api.authenticator.signer.algorithm()))
            }
            ["api"] => self.serve_groups(api, request, true),
            ["apis"] => self.serve_groups(api, request, false),
            ["apis", group] => match documents::group(&self.all_groups(api), group) {
                Some(document) => respond_with_document(request, Offer::Document, &document),
                None => not_found(),
            },
            ["api", version] => self.serve_resources(request, "", version),
            ["apis", group, version] => self.serve_resources(request, group, version),
            _ => not_found(),
        }
    }

    /// `APIGroupDiscovery` of all groups except core.
    fn all_groups(&self, api: &ApiState) -> Vec<Value> {
        let delegated = api.delegates().iter().flat_map(|delegate| delegate.discovery()).collect();
        documents::groups(&self.registry.catalog.snapshot(), delegated)
    }

    fn serve_groups(&self, api: &ApiState, request: &Request<Body>, is_core: bool) -> Response {
        let accept = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok());
        let accepted = match content_negotiation::choose_representation(
            accept,
            if is_core { Offer::Versions } else { Offer::Groups },
        ) {
            Ok(accepted) => accepted,
            Err(error) => return respond::error(&error),
        };
        let groups =
            if is_core { documents::core_group(&self.registry.catalog.snapshot()) } else { self.all_groups(api) };
        let mut response = match accepted.shape {
            Shape::AggregatedDiscovery { is_beta } => respond_with_aggregated(groups, is_beta, request),
            _ if is_core => respond::value(200, accepted.encoding, &documents::api_versions(&groups)),
            _ => respond::value(200, accepted.encoding, &documents::group_list(&groups)),
        };
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
        response
    }

    fn serve_resources(&self, request: &Request<Body>, group: &str, version: &str) -> Response {
        let served = self.registry.catalog.snapshot();
        match documents::resources(&served, group, version) {
            Some(document) => respond_with_document(request, Offer::Resources, &document),
            // As in kube-apiserver: groups of CRDs have no routes of their own, so the response is plain text.
            None if group.is_empty()
                || served.iter().any(|resource| *resource.gvr.group == *group && !resource.is_custom()) =>
            {
                respond::error(&ApiError::unknown_resource())
            }
            None => not_found(),
        }
    }

    fn serve_openapi(&self, api: &ApiState, request: &Request<Body>, parts: &[&str]) -> Response {
        let served = self.registry.catalog.snapshot();
        let delegated: Vec<_> = api.delegates().iter().flat_map(|delegate| delegate.openapi()).collect();
        crate::openapi::serve(&served, &delegated, request, &parts[1..]).unwrap_or_else(not_found)
    }

    /// `RootPaths`: paths of API groups and versions, health checks, documents and metrics.
    fn root_paths(&self, api: &ApiState) -> Value {
        let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into(), "/apis/".into()];
        for group in self.all_groups(api) {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            paths.push(format!("/apis/{name}"));
            for version in group["versions"].as_array().into_iter().flatten() {
                paths.push(format!("/apis/{name}/{}", version["version"].as_str().unwrap_or_default()));
            }
        }
        paths.extend(self.health.paths());
        paths.extend(["/.well-known/openid-configuration", "/metrics", "/metrics/slis"].map(String::from));
        paths.extend(["/openapi/v2", "/openapi/v3", "/openid/v1/jwks"].map(String::from));
        paths.push("/version".to_owned());
        paths.sort();
        json!({"paths": paths})
    }

    fn metrics(&self) -> String {
        let store = &self.registry.store;
        let mut out = String::from("# TYPE apiserver_storage_objects gauge\n");
        for (table, count) in store.tables() {
            let resource = table.as_str().trim_start_matches('/');
            out.push_str(&format!("apiserver_storage_objects{{resource=\"{resource}\"}} {count}\n"));
        }
        out.push_str("# TYPE apiserver_storage_revision gauge\n");
        out.push_str(&format!("apiserver_storage_revision {}\n", store.revision()));
        out.push_str("# TYPE apiserver_watch_event_encodings_total counter\n");
        out.push_str(&format!(
            "apiserver_watch_event_encodings_total {}\n",
            self.registry.event_cache.encoded_line_count()
        ));
        out
    }
}

/// Serves a document with a single representation in the requested encoding.
fn respond_with_document(request: &Request<Body>, offer: Offer, document: &Value) -> Response {
    let accept = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok());
    match content_negotiation::choose_representation(accept, offer) {
        Ok(accepted) => respond::value(200, accepted.encoding, document),
        Err(error) => respond::error(&error),
    }
}

/// Serves an `APIGroupDiscoveryList` with an entity tag for client caches.
fn respond_with_aggregated(groups: Vec<Value>, is_beta: bool, request: &Request<Body>) -> Response {
    let version = if is_beta { "v2beta1" } else { "v2" };
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {}, "items": groups,
    });
    let body = list.to_string();
    let hash: String = Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02X}")).collect();
    let tag = HeaderValue::from_str(&format!("\"{hash}\"")).unwrap_or(HeaderValue::from_static("\"\""));
    let media = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    let media = HeaderValue::from_str(&media).unwrap_or(respond::JSON);
    let is_unchanged = request.headers().get(IF_NONE_MATCH) == Some(&tag);
    let mut response =
        if is_unchanged { respond::bytes(304, media, Body::empty()) } else { respond::bytes(200, media, body) };
    response.headers_mut().insert(ETAG, tag);
    response
}

/// The `/version` document for a version such as `v1.36.2`.
fn version_document(git_version: &str) -> Value {
    let mut numbers = git_version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let previous = minor.parse::<u32>().map_or(0, |minor| minor.saturating_sub(1)).to_string();
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": previous, "gitVersion": git_version,
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none",
        "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// Go's name of this machine's architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Serves a document of the token issuer, cacheable for an hour.
fn respond_for_issuer(media: &'static str, document: &Value) -> Response {
    let mut response = respond::bytes(200, HeaderValue::from_static(media), document.to_string());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

fn openid_configuration(algorithm: &str) -> Value {
    let issuer = crowsnest_apiserver::authn::token::ISSUER;
    json!({
        "issuer": issuer, "jwks_uri": format!("{issuer}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": [algorithm],
    })
}

fn not_found() -> Response {
    respond::text(404, "404 page not found\n")
}
