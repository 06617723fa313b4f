//! Requests of the tools to Crowsnest's APIs.

use std::error::Error;

use bytes::{Bytes, BytesMut};
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_apimachinery::status::{ApiError, Details};
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::Value;

/// Base paths of the APIs.
pub(crate) const SEARCH_API: &str = "/apis/search.crowsnest.io/v1alpha1";
pub(crate) const PROPAGATION_API: &str = "/apis/propagation.crowsnest.io/v1alpha1";
pub(crate) const ACCESS_API: &str = "/apis/access.crowsnest.io/v1alpha1";

/// Maximum number of bytes that are read of a response.
const MAX_RESPONSE_BYTES: usize = 8 << 20;

/// A request to an API: a GET, or a POST if it has a body.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// Path and query.
    pub uri: String,
    pub body: Option<Value>,
}

/// The start of a response's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiResponse {
    pub body: Bytes,
    /// True if the complete body is longer.
    pub is_truncated: bool,
}

impl ApiRequest {
    /// The HTTP request, with the body as JSON.
    pub fn to_http<B: From<Vec<u8>>>(&self) -> Result<Request<B>, ApiError> {
        let method = if self.body.is_some() { Method::POST } else { Method::GET };
        let body = self.body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(&self.uri)
            .header(ACCEPT, "application/json, text/plain")
            .header(CONTENT_TYPE, "application/json")
            .body(body.into());
        request.map_err(|error| ApiError::bad_request(format!("invalid request of a tool: {error}")))
    }
}

impl ApiResponse {
    /// Reads the start of a response. Fails with the `Status` of a response that is not a success.
    pub fn read<B>(response: Response<B>) -> BoxFuture<'static, Result<Self, ApiError>>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Error + Send + Sync + 'static,
    {
        Box::pin(async move {
            let (status, mut body) = (response.status(), response.into_body());
            let mut start = BytesMut::new();
            let mut is_truncated = false;
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.map_err(ApiError::internal)?.into_data() else { continue };
                let remaining = MAX_RESPONSE_BYTES - start.len();
                start.extend_from_slice(&data[..data.len().min(remaining)]);
                if data.len() > remaining {
                    is_truncated = true;
                    break;
                }
            }
            let body = start.freeze();
            if status.is_success() {
                return Ok(Self { body, is_truncated });
            }
            let sent_status: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = sent_status["message"].as_str().or(status.canonical_reason()).unwrap_or_default();
            let reason = sent_status["reason"].as_str().unwrap_or_default();
            let details = Some(Box::new(Details::from_json(&sent_status["details"])));
            Err(ApiError { details, ..ApiError::from_parts(status.as_u16(), reason, message) })
        })
    }
}

/// Sends requests to Crowsnest's APIs with the identity of one caller.
pub trait Api: Send + Sync {
    /// Sends a request and reads at most [`MAX_RESPONSE_BYTES`] bytes. Fails if the status is not a success.
    fn send(&self, request: ApiRequest) -> BoxFuture<'_, Result<ApiResponse, ApiError>>;
}

/// Sends a request and parses the response as JSON. Fails if the response is longer than [`MAX_RESPONSE_BYTES`].
pub(crate) async fn request_json(api: &dyn Api, request: ApiRequest) -> Result<Value, ApiError> {
    let response = api.send(request).await?;
    if response.is_truncated {
        return Err(ApiError::internal("the response of the API is too large; narrow the request"));
    }
    serde_json::from_slice(&response.body).map_err(ApiError::internal)
}

/// Sends a GET request and parses the JSON response.
pub(crate) async fn get(api: &dyn Api, uri: String) -> Result<Value, ApiError> {
    request_json(api, ApiRequest { uri, body: None }).await
}

/// Sends a POST request and parses the JSON response.
pub(crate) async fn post(api: &dyn Api, uri: String, body: Value) -> Result<Value, ApiError> {
    request_json(api, ApiRequest { uri, body: Some(body) }).await
}

/// A URI with these query parameters. Parameters with an empty value are omitted.
pub(crate) fn uri(path: &str, parameters: &[(&str, &str)]) -> String {
    let non_empty = parameters.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<String> = non_empty.map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}
