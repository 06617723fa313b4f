//! Forwards one request of a client to the control plane, under the internal group.
//!
//! The control plane stores these objects as custom resources, for which API servers do not support strategic merge
//! patches. This module applies such patches as an API server does for built-in kinds: it reads the object, merges by
//! the keys of `metadata`, writes it, and repeats this after a conflict. It treats a replacement without a
//! resourceVersion in the same way: Karmada accepts it (`AllowUnconditionalUpdate`), custom resources do not.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;
use std::sync::LazyLock;

use crowsnest_schema::patch::{parse_merge_patch, strategic_merge};
use crowsnest_schema::{Schema, SchemaRef};
use http::request::Builder;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use serde_json::{Value, json};

use crowsnest_api::storage::StoredKind;

use crate::stored::STORAGE_GROUP;
use crate::stored::precondition::{RESOURCE_VERSION_POINTER, expects_version};
use crate::stored::writer::{ACCEPT_JSON, Writer, dry_run_query};

pub(super) const JSON_MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/json");
/// Maximum number of attempts, the same as in an API server.
pub(crate) const MAX_ATTEMPTS: usize = 5;

/// Lists in these kinds have no merge keys; those in `metadata` have.
static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Schema::for_custom_resource(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
});

pub(super) struct Forward<'r> {
    pub(super) control_plane: &'r kube::Client,
    pub(super) kind: &'static StoredKind,
    pub(super) method: Method,
    /// Headers of the client's request.
    pub(super) headers: &'r HeaderMap,
    /// Query including the question mark, or empty.
    pub(super) query: String,
    pub(super) content_type: Option<HeaderValue>,
    /// `Accept` header for the control plane: JSON, which can be translated, as the object, table or metadata that the
    /// client requests.
    pub(super) accept: HeaderValue,
    pub(super) is_strategic_patch: bool,
    /// Caller whose permissions are reviewed before a Cluster is written; `None` skips the review.
    pub(super) writer: Option<Writer<'r>>,
}

/// The object in the body of a PUT without a resourceVersion, which replaces any version.
fn unconditional_replacement(method: &Method, body: &[u8]) -> Option<Value> {
    let object: Value = (method == Method::PUT).then(|| serde_json::from_slice(body).ok())??;
    (object["metadata"].is_object() && !expects_version(&object)).then_some(object)
}

impl Forward<'_> {
    /// Sends `body` to `resource_path`, a path of the public kind (`/clusters/m1/status`).
    pub(super) async fn send(&self, resource_path: &str, body: &[u8]) -> Result<Response<KubeBody>, ApiError> {
        if self.is_strategic_patch {
            let patch = parse_merge_patch(body)?;
            // A client that sends a resourceVersion must receive the conflict.
            let attempts = if expects_version(&patch) { 1 } else { MAX_ATTEMPTS };
            let merged = |live: &Value| strategic_merge(&SCHEMA, live, &mut patch.clone());
            return self.update_with_retry(resource_path, attempts, merged).await;
        }
        if let Some(object) = unconditional_replacement(&self.method, body) {
            let next = |live: &Value| {
                let mut next = object.clone();
                next["metadata"]["resourceVersion"] =
                    live.pointer(RESOURCE_VERSION_POINTER).cloned().unwrap_or_default();
                Ok(next)
            };
            return self.update_with_retry(resource_path, MAX_ATTEMPTS, next).await;
        }
        match self.writer {
            Some(writer) if matches!(self.method, Method::POST | Method::PUT | Method::PATCH) => {
                writer.send(self, resource_path, body).await
            }
            _ => self.send_unchanged(resource_path, body).await,
        }
    }

    /// Sends `body` unchanged.
    pub(super) async fn send_unchanged(
        &self,
        resource_path: &str,
        body: &[u8],
    ) -> Result<Response<KubeBody>, ApiError> {
        self.request(&self.method, resource_path, &self.query, self.content_type.as_ref(), body.to_vec()).await
    }

    /// A copy whose requests are dry runs with JSON responses, and are not reviewed. It checks that the second of two
    /// writes would succeed before the first one is made; both are reviewed when they are made.
    pub(super) fn to_dry_run(&self) -> Self {
        let (method, content_type) = (self.method.clone(), self.content_type.clone());
        Self { method, content_type, query: dry_run_query(&self.query), accept: ACCEPT_JSON, writer: None, ..*self }
    }

    /// The response to `body` as a dry run, as JSON.
    pub(super) async fn send_dry_run(&self, resource_path: &str, body: &[u8]) -> Result<Response<KubeBody>, ApiError> {
        let (query, body) = (dry_run_query(&self.query), body.to_vec());
        let request =
            self.build_request(&self.method, resource_path, &query, self.content_type.as_ref(), ACCEPT_JSON)?;
        self.send_to_control_plane(request, body).await
    }

    /// The stored object; an error response is not an object.
    pub(super) async fn get_stored(&self, resource_path: &str) -> Result<Value, ApiError> {
        let response = self.get(resource_path).await?;
        let bytes = response.into_body().collect().await.map_err(api_error)?.to_bytes();
        serde_json::from_slice(&bytes).map_err(ApiError::internal)
    }

    /// The response to a read of the stored object.
    async fn get(&self, resource_path: &str) -> Result<Response<KubeBody>, ApiError> {
        let request = self.build_request(&Method::GET, resource_path, "", None, ACCEPT_JSON)?;
        self.send_to_control_plane(request, Vec::new()).await
    }

    async fn request(
        &self,
        method: &Method,
        resource_path: &str,
        query: &str,
        content_type: Option<&HeaderValue>,
        body: Vec<u8>,
    ) -> Result<Response<KubeBody>, ApiError> {
        let request = self.build_request(method, resource_path, query, content_type, self.accept.clone())?;
        self.send_to_control_plane(request, body).await
    }

    async fn send_to_control_plane(&self, request: Builder, body: Vec<u8>) -> Result<Response<KubeBody>, ApiError> {
        let request = request.body(KubeBody::from(body)).map_err(ApiError::internal)?;
        self.control_plane.send(request).await.map_err(api_error)
    }

    fn build_request(
        &self,
        method: &Method,
        resource_path: &str,
        query: &str,
        content_type: Option<&HeaderValue>,
        accept: HeaderValue,
    ) -> Result<Builder, ApiError> {
        let uri = format!("/apis/{STORAGE_GROUP}/v1alpha1{}{query}", self.kind.stored_path(resource_path));
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(headers) = request.headers_mut() {
            if let Some(value) = self.headers.get(header::USER_AGENT) {
                headers.insert(header::USER_AGENT, value.clone());
            }
            headers.insert(header::ACCEPT, accept);
            if let Some(content_type) = content_type {
                headers.insert(header::CONTENT_TYPE, content_type.clone());
            }
        }
        Ok(request)
    }

    /// Writes an object derived from the stored one, and retries after conflicts.
    async fn update_with_retry(
        &self,
        resource_path: &str,
        attempts: usize,
        update: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Response<KubeBody>, ApiError> {
        let mut attempt = 1;
        loop {
            let live = self.get(resource_path).await?;
            if !live.status().is_success() {
                return Ok(live);
            }
            let live = live.into_body().collect().await.map_err(api_error)?.to_bytes();
            let live: Value = serde_json::from_slice(&live).map_err(ApiError::internal)?;
            let next = update(&live)?;
            if let Some(writer) = self.writer {
                writer.check_values(&live, &next).await?;
            }
            let next = serde_json::to_vec(&next).map_err(ApiError::internal)?;
            let response = self.request(&Method::PUT, resource_path, &self.query, Some(&JSON_MEDIA_TYPE), next).await?;
            if response.status() != StatusCode::CONFLICT || attempt == attempts {
                return Ok(response);
            }
            attempt += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::unnamed(Method::PUT, r#"{"metadata":{}}"#, true)]
    #[case::empty(Method::PUT, r#"{"metadata":{"resourceVersion":""}}"#, true)]
    #[case::zero(Method::PUT, r#"{"metadata":{"resourceVersion":"0"}}"#, true)]
    #[case::named(Method::PUT, r#"{"metadata":{"resourceVersion":"7"}}"#, false)]
    #[case::no_metadata(Method::PUT, "{}", false)]
    #[case::patch(Method::PATCH, r#"{"metadata":{}}"#, false)]
    fn replacements_without_a_version_are_unconditional(
        #[case] method: Method,
        #[case] body: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(unconditional_replacement(&method, body.as_bytes()).is_some(), expected);
    }
}
