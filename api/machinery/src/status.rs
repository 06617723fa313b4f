//! The error that request handlers return: a Kubernetes `Status`.
//!
//! Handlers build [`ApiError`] values with the constructors below; each server writes them to the wire in one place. Wording
//! follows the `errors` and `field` packages of Kubernetes' apimachinery, because clients (kubectl, client-go) match on it.

use std::fmt;

use crate::field::{FieldError, aggregate};
use serde::{Deserialize, Serialize};

/// `metav1.StatusReason` with its HTTP code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Invalid,
    Gone,
    Expired,
    MethodNotAllowed,
    NotAcceptable,
    UnsupportedMediaType,
    RequestEntityTooLarge,
    TooManyRequests,
    ServerTimeout,
    Timeout,
    InternalError,
    ServiceUnavailable,
}

impl Reason {
    /// The HTTP status that kube-apiserver sends with this reason.
    pub fn code(self) -> u16 {
        match self {
            Reason::BadRequest => 400,
            Reason::Unauthorized => 401,
            Reason::Forbidden => 403,
            Reason::NotFound => 404,
            Reason::MethodNotAllowed => 405,
            Reason::NotAcceptable => 406,
            Reason::AlreadyExists | Reason::Conflict => 409,
            Reason::Gone | Reason::Expired => 410,
            Reason::RequestEntityTooLarge => 413,
            Reason::UnsupportedMediaType => 415,
            Reason::Invalid => 422,
            Reason::TooManyRequests => 429,
            Reason::ServerTimeout | Reason::InternalError => 500,
            Reason::ServiceUnavailable => 503,
            Reason::Timeout => 504,
        }
    }
}

/// `metav1.StatusCause`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub field: String,
}

impl From<&FieldError> for Cause {
    fn from(error: &FieldError) -> Self {
        Self { reason: error.kind.cause_reason().to_owned(), message: error.body(), field: error.field.clone() }
    }
}

/// `metav1.StatusDetails`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_after_seconds: Option<u32>,
}

impl Details {
    /// The `details` of another server's Status. Members of a wrong type are ignored.
    pub fn from_json(details: &serde_json::Value) -> Self {
        let text = |key: &str| details[key].as_str().unwrap_or_default().to_owned();
        let causes = details["causes"].as_array().into_iter().flatten();
        Self {
            name: text("name"),
            group: text("group"),
            kind: text("kind"),
            uid: text("uid"),
            causes: causes.filter_map(|cause| Cause::deserialize(cause).ok()).collect(),
            retry_after_seconds: details["retryAfterSeconds"].as_u64().and_then(|seconds| u32::try_from(seconds).ok()),
        }
    }
}

/// A failed request, ready to be written as a `Status` object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    /// Empty for responses of other servers without a reason.
    pub reason: String,
    pub message: String,
    pub details: Option<Box<Details>>,
    /// Token with which an expired list continues at the current version (`metadata.continue`).
    pub continue_token: Option<Box<str>>,
}

/// Result of an operation whose failure is reported as a `Status`.
pub type ApiResult<T> = Result<T, ApiError>;

/// Maximum number of causes in a Status, because a small request can have many field errors.
const MAX_CAUSES: usize = 200;
/// kube-apiserver's message for a continue token whose snapshot has expired.
const INCONSISTENT_CONTINUE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a \
    new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. \
    Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between \
    the time the first chunk was returned and now may show up in the list.";

impl ApiError {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: format!("{reason:?}"), ..Self::without_reason(reason.code(), message) }
    }

    /// A failure whose code differs from that of its reason.
    pub fn from_parts(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), ..Self::without_reason(code, message) }
    }

    /// A failure without a reason.
    pub fn without_reason(code: u16, message: impl Into<String>) -> Self {
        Self { code, reason: String::new(), message: message.into(), details: None, continue_token: None }
    }

    /// 410 for a list whose snapshot has expired. With `token`, the client can continue at the current version.
    pub fn expired_continue(token: impl Into<Box<str>>) -> Self {
        Self { continue_token: Some(token.into()), ..Self::new(Reason::Expired, INCONSISTENT_CONTINUE) }
    }

    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Sets a cause for each field error.
    pub fn with_causes(self, errors: &[FieldError]) -> Self {
        self.with_details(Details { causes: errors.iter().map(Cause::from).collect(), ..Details::default() })
    }

    /// Sets the object in the details. `resource` is the plural.
    pub fn with_object(self, group: &str, resource: &str, name: &str) -> Self {
        let (name, group, kind) = (name.to_owned(), group.to_owned(), resource.to_owned());
        self.with_details(Details { name, group, kind, ..Details::default() })
    }

    /// True if the failure has this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason == format!("{reason:?}")
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// `resource` is the plural, `group` empty for core.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("{} \"{name}\" not found", qualified_resource(group, resource)))
            .with_object(group, resource, name)
    }

    /// `NewMethodNotSupported`: the resource does not support the verb.
    pub fn method_not_supported(group: &str, resource: &str, verb: &str) -> Self {
        let resource_name = qualified_resource(group, resource);
        Self::new(Reason::MethodNotAllowed, format!("{verb} is not supported on resources of kind \"{resource_name}\""))
            .with_details(Details { group: group.into(), kind: resource.into(), ..Details::default() })
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(Reason::AlreadyExists, format!("{} \"{name}\" already exists", qualified_resource(group, resource)))
            .with_object(group, resource, name)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, reason: impl fmt::Display) -> Self {
        Self::new(
            Reason::Conflict,
            format!("Operation cannot be fulfilled on {} \"{name}\": {reason}", qualified_resource(group, resource)),
        )
        .with_object(group, resource, name)
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, reason: impl fmt::Display) -> Self {
        let message = match (resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {reason}"),
            (false, true) => format!("{} is forbidden: {reason}", qualified_resource(group, resource)),
            (false, false) => format!("{} \"{name}\" is forbidden: {reason}", qualified_resource(group, resource)),
        };
        Self::new(Reason::Forbidden, message).with_object(group, resource, name)
    }

    /// 422 with a cause for each of the first [`MAX_CAUSES`] field errors. `kind` is the CamelCase kind.
    pub fn invalid(group: &str, kind: &str, name: &str, mut errors: Vec<FieldError>) -> Self {
        let more = errors.len().saturating_sub(MAX_CAUSES);
        errors.truncate(MAX_CAUSES);
        let mut message = if errors.is_empty() { "<nil>".to_owned() } else { aggregate(&errors) };
        if more > 0 {
            message.push_str(&format!(" and {more} more"));
        }
        let causes = errors.iter().map(Cause::from).collect();
        Self::new(Reason::Invalid, format!("{} \"{name}\" is invalid: {message}", qualified_resource(group, kind)))
            .with_details(Details {
                name: name.into(),
                group: group.into(),
                kind: kind.into(),
                causes,
                ..Details::default()
            })
    }

    /// 404 for a path or resource that the server does not serve.
    pub fn unknown_resource() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource").with_details(Details::default())
    }

    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// 405 for a method that no resource of this path supports.
    pub fn method_not_allowed() -> Self {
        Self::new(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
            .with_details(Details::default())
    }

    /// 429 when the limit of concurrent requests is reached; the client should retry after one second.
    pub fn too_many_requests() -> Self {
        Self::new(Reason::TooManyRequests, "Too many requests, please try again later.")
            .with_details(Details { retry_after_seconds: Some(1), ..Details::default() })
    }

    pub fn timeout() -> Self {
        Self::new(Reason::Timeout, "Timeout: request did not complete within the allotted timeout")
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Reason::ServiceUnavailable, message)
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        let text = message.to_string();
        Self::new(Reason::InternalError, format!("Internal error occurred: {text}"))
            .with_details(Details { causes: vec![Cause { message: text, ..Cause::default() }], ..Details::default() })
    }

    /// The `Status` object of the response.
    pub fn to_status(&self) -> serde_json::Value {
        let mut status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.clone().into();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = (&**token).into();
        }
        if let Some(details) = &self.details {
            status["details"] = serde_json::to_value(details).unwrap_or_default();
        }
        status
    }
}

/// `resource.group`, or only the resource for the core group (`GroupResource.String` in Kubernetes).
pub fn qualified_resource(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}
