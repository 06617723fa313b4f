//! HTTP responses: JSON bodies and `Status` objects.

use axum::body::Bytes;
use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::body;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

/// The body type of every response.
pub type Body = axum::body::Body;

/// The `Status` of a response, for the audit log.
#[derive(Debug, Clone)]
pub struct ResponseStatus(pub Value);

/// Conversion of an error to a response.
pub trait StatusResponse {
    /// Returns a JSON `Status` with its code, and `Retry-After` if the error has one. The response has a
    /// [`ResponseStatus`].
    fn into_response(self) -> Response<Body>;
}

impl StatusResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let status = self.to_status();
        let mut response = json(code(&self), &status);
        response.extensions_mut().insert(ResponseStatus(status));
        if let Some(seconds) = self.details.as_ref().and_then(|details| details.retry_after_seconds) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The HTTP status of an error.
pub fn code(error: &ApiError) -> StatusCode {
    StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The error of an axum handler.
pub struct HandlerError(ApiError);

impl<E: Into<ApiError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl axum::response::IntoResponse for HandlerError {
    fn into_response(self) -> Response<Body> {
        StatusResponse::into_response(self.0)
    }
}

/// Reads a request body as a whole. Fails with 413 if it is larger than kube-apiserver's own limit.
pub async fn collect(body: Body) -> Result<Bytes, ApiError> {
    collect_within(body, MAX_REQUEST_BODY_BYTES).await
}

/// Reads a request body as a whole. Fails with 413 if it has more than `limit` bytes.
pub async fn collect_within(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    Ok(body::collect_request(body, limit).await?)
}

/// A JSON response.
pub fn json(code: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
