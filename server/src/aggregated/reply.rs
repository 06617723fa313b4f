//! Responses of this server: JSON bodies and `Status` objects.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

/// The body type of every response here.
pub(crate) type Body = axum::body::Body;

/// `Status` of a response, for the audit log.
#[derive(Debug, Clone)]
pub(crate) struct Told(pub(crate) Value);

/// A failed request, with its `Status`.
#[derive(Debug)]
pub(crate) struct Failure {
    code: StatusCode,
    status: Value,
}

impl Failure {
    pub(crate) fn new(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        let status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message.into(), "reason": reason, "code": code.as_u16(),
        });
        Self { code, status }
    }

    pub(crate) fn with_details(mut self, group: &str, resource: &str, name: &str) -> Self {
        self.status["details"] = serde_json::json!({"name": name, "group": group, "kind": resource});
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// A path that leads to no resource.
    pub(crate) fn unknown_resource() -> Self {
        Self::not_found("the server could not find the requested resource")
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn too_many_requests() -> Self {
        let text = "Too many requests, please try again later.";
        let mut failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", text);
        failure.status["details"] = serde_json::json!({"retryAfterSeconds": 1});
        failure
    }

    pub(crate) fn timeout() -> Self {
        let text = "Timeout: request did not complete within the allotted timeout";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", text)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// An error in this server.
    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", format!("Internal error occurred: {error}"))
    }

    /// A failed request to the control plane: its own `Status`, or 503 if it cannot be reached.
    pub(crate) fn upstream(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                match serde_json::to_value(&*status) {
                    Ok(mut value) => {
                        value["kind"] = "Status".into();
                        value["apiVersion"] = "v1".into();
                        Self { code, status: value }
                    }
                    Err(error) => Self::internal(error),
                }
            }
            other => Self::unavailable(format!("the control plane can't be reached: {other}")),
        }
    }

    pub(crate) fn code(&self) -> StatusCode {
        self.code
    }

    pub(crate) fn status(&self) -> &Value {
        &self.status
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = json(self.code, &self.status);
        if let Some(seconds) = self.status.pointer("/details/retryAfterSeconds").and_then(Value::as_u64) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<crowsnest_apiserver::status::ApiError> for Failure {
    fn from(error: crowsnest_apiserver::status::ApiError) -> Self {
        let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { code, status: error.to_status() }
    }
}

impl From<crowsnest_proxy::Error> for Failure {
    fn from(error: crowsnest_proxy::Error) -> Self {
        Self { code: error.reason().0, status: error.status() }
    }
}

impl From<crowsnest_controllers::Error> for Failure {
    fn from(error: crowsnest_controllers::Error) -> Self {
        use crowsnest_controllers::Error;
        match error {
            Error::Request { source, .. } => Self::upstream(*source),
            Error::UnknownKind { api_version, kind, .. } => {
                Self::bad_request(format!("no matches for kind {kind:?} in version {api_version:?}"))
            }
            other => Self::internal(other),
        }
    }
}

impl axum::response::IntoResponse for Failure {
    fn into_response(self) -> Response<Body> {
        Failure::into_response(self)
    }
}

/// A JSON response.
pub(crate) fn json(code: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
