//! Errors of proxied requests, and the `Status` that clients receive.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::field::{FieldError, aggregate};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::status::{ApiError, Details};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use crate::composite::InvalidContinueToken;
use crate::{Body, full};

/// Error of a body or connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Errors of this crate. Their messages are sent to clients.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("clusters.cluster.karmada.io {0:?} not found")]
    ClusterNotFound(String),
    /// Its Status has no reason, as in Karmada.
    #[error("API endpoint of cluster {0} should not be empty")]
    NoEndpoint(ClusterName),
    #[error("cannot impersonate the user in cluster {cluster}: {source}")]
    Impersonator { cluster: ClusterName, source: crowsnest_members::Error },
    #[error("cluster {cluster} has no usable connection: {source}")]
    Connection { cluster: ClusterName, source: crowsnest_members::Error },
    #[error("error trying to reach cluster {cluster}: {reason}")]
    Unreachable { cluster: ClusterName, reason: String },
    #[error("requests to cluster {cluster} are suspended for another {retry_after:.0?}: {reason}")]
    Suspended { cluster: ClusterName, reason: Arc<str>, retry_after: Duration },
    #[error("cluster {0} switched protocols without an upgrade request")]
    UnrequestedUpgrade(ClusterName),
    #[error("error trying to reach the control plane: {0}")]
    ControlPlane(#[source] kube::Error),
    #[error("cannot read the cache: {0}")]
    Cache(#[from] crowsnest_index::Error),
    #[error("cannot encode a cached object: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("{0}")]
    BadRequest(String),
    #[error("ListOptions.meta.k8s.io \"\" is invalid: {}", aggregate(.0))]
    InvalidOptions(Vec<FieldError>),
    #[error("FleetLogs.search.crowsnest.io \"\" is invalid: {}", aggregate(.0))]
    InvalidLogs(Vec<FieldError>),
    #[error("clusters.cluster.karmada.io {:?} is forbidden: {reason}", cluster.as_str())]
    SessionForbidden { cluster: ClusterName, reason: String },
    /// Same message as kube-apiserver for a forbidden subresource.
    #[error("clusters.cluster.karmada.io {:?} is forbidden: User {user:?} cannot get resource \"clusters/proxy\" in API group \"cluster.karmada.io\" at the cluster scope", cluster.as_str())]
    ProxyForbidden { cluster: ClusterName, user: String },
    /// Invalid list options of `search/cache`. The response is not a Status but has Karmada's format.
    #[error("{0}")]
    InvalidCacheOptions(String),
    #[error("the server could not find the requested resource")]
    UnknownResource,
    #[error("{} {name:?} not found", resource.group_resource())]
    NotFound { resource: Gvr, name: String },
    #[error("Operation cannot be fulfilled on {} {name:?}: ambiguous objects in clusters [{}]", resource.group_resource(), clusters.join(", "))]
    Ambiguous { resource: Gvr, name: String, clusters: Vec<String> },
    /// Message of Karmada's metrics adapter.
    #[error("Operation cannot be fulfilled on {} {name:?}: the {kind}({name}) found in more than one clusters", resource.group_resource())]
    FoundInMultipleClusters { resource: Gvr, kind: &'static str, name: String },
    #[error("the server could not find the metric {metric} for {object_resource}")]
    NoMetric { metric: String, object_resource: String },
    /// An update of an object that the caller read with withheld values; it would overwrite them.
    #[error("Operation cannot be fulfilled on {} {name:?}: its values are withheld from lists and watches; get the object by name and repeat the update", resource.group_resource())]
    Withheld { resource: Gvr, name: String },
    #[error("{verb} is not supported on resources of kind {:?}", resource.group_resource())]
    NotSupported { resource: Gvr, verb: &'static str },
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    #[error("request body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("cannot read the request: {0}")]
    Body(#[source] BoxError),
    #[error("response body is larger than {0} bytes")]
    ResponseTooLarge(usize),
    #[error("cannot read the response: {0}")]
    ResponseBody(#[source] BoxError),
    #[error("too old resource version: the changes since then are no longer kept")]
    Expired,
    /// Contains a token for the rest of the list in its current state; empty if the list cannot continue.
    #[error("the provided continue parameter is too old to display a consistent list result")]
    ExpiredContinue(String),
    #[error(transparent)]
    Continue(#[from] InvalidContinueToken),
    /// No clause of `Accept` can be served.
    #[error("{}", .0.message)]
    NotAcceptable(ApiError),
    /// Admission denies the request to a member.
    #[error("{}", .0.message)]
    NotAdmitted(ApiError),
}

impl Error {
    /// HTTP status code and `Status.reason`; an empty reason is omitted from the Status.
    pub fn code_and_reason(&self) -> (StatusCode, &'static str) {
        match self {
            Self::ClusterNotFound(_) | Self::UnknownResource | Self::NotFound { .. } | Self::NoMetric { .. } => {
                (StatusCode::NOT_FOUND, "NotFound")
            }
            Self::NoEndpoint(_) => (StatusCode::INTERNAL_SERVER_ERROR, ""),
            Self::Impersonator { .. } | Self::Connection { .. } | Self::Cache(_) | Self::Encode(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
            }
            Self::Unreachable { .. } | Self::Suspended { .. } | Self::ControlPlane(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Self::UnrequestedUpgrade(_) | Self::ResponseTooLarge(_) | Self::ResponseBody(_) => {
                (StatusCode::BAD_GATEWAY, "InternalError")
            }
            Self::BadRequest(_) | Self::InvalidCacheOptions(_) | Self::Body(_) | Self::Continue(_) => {
                (StatusCode::BAD_REQUEST, "BadRequest")
            }
            Self::Ambiguous { .. } | Self::FoundInMultipleClusters { .. } | Self::Withheld { .. } => {
                (StatusCode::CONFLICT, "Conflict")
            }
            Self::NotSupported { .. } | Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::InvalidOptions(_) | Self::InvalidLogs(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            Self::SessionForbidden { .. } | Self::ProxyForbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::NotAcceptable(_) => (StatusCode::NOT_ACCEPTABLE, "NotAcceptable"),
            Self::NotAdmitted(error) => {
                (StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), "NotAdmitted")
            }
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            Self::Expired | Self::ExpiredContinue(_) => (StatusCode::GONE, "Expired"),
        }
    }

    /// Message of invalid list options without the prefix of their Status; of other errors, the complete message.
    pub fn list_options_message(&self) -> String {
        match self {
            Self::InvalidOptions(errors) => aggregate(errors),
            other => other.to_string(),
        }
    }

    /// The `Status` object.
    pub fn status(&self) -> serde_json::Value {
        self.api_error().to_status()
    }

    fn api_error(&self) -> ApiError {
        match self {
            Self::InvalidOptions(errors) => {
                return ApiError::invalid("meta.k8s.io", "ListOptions", "", errors.clone());
            }
            Self::NotAcceptable(error) | Self::NotAdmitted(error) => return error.clone(),
            Self::ExpiredContinue(token) if !token.is_empty() => return ApiError::expired_continue(token.as_str()),
            Self::InvalidLogs(errors) => {
                return ApiError::invalid("search.crowsnest.io", "FleetLogs", "", errors.clone());
            }
            _ => {}
        }
        let (code, reason) = self.code_and_reason();
        let error = ApiError::from_parts(code.as_u16(), reason, self.to_string());
        let cluster_details = |name: &str| Details {
            name: name.to_owned(),
            group: "cluster.karmada.io".to_owned(),
            kind: "clusters".to_owned(),
            ..Details::default()
        };
        let details = match self {
            Self::ClusterNotFound(name) => cluster_details(name),
            Self::Impersonator { cluster: name, .. }
            | Self::Connection { cluster: name, .. }
            | Self::SessionForbidden { cluster: name, .. }
            | Self::ProxyForbidden { cluster: name, .. }
            | Self::Unreachable { cluster: name, .. } => cluster_details(name.as_str()),
            Self::Suspended { cluster: name, retry_after, .. } => {
                let seconds = u32::try_from(retry_after.as_secs() + 1).unwrap_or(u32::MAX);
                Details { retry_after_seconds: Some(seconds), ..cluster_details(name.as_str()) }
            }
            Self::NotFound { resource, name }
            | Self::Ambiguous { resource, name, .. }
            | Self::FoundInMultipleClusters { resource, name, .. }
            | Self::Withheld { resource, name } => resource_details(resource, name),
            Self::NotSupported { resource, .. } => resource_details(resource, ""),
            _ => return error,
        };
        error.with_details(details)
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let (code, _) = self.code_and_reason();
        tracing::debug!(error = %self, code = code.as_u16(), "cannot proxy the request");
        let body = match &self {
            Self::InvalidCacheOptions(reason) => json!({"error": reason}),
            _ => self.status(),
        };
        let mut response = Response::new(full(body.to_string()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *response.status_mut() = code;
        response
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        error.api_error()
    }
}

/// `details` of a resource's Status.
fn resource_details(resource: &Gvr, name: &str) -> Details {
    Details {
        name: name.to_owned(),
        group: resource.group.to_string(),
        kind: resource.resource.to_string(),
        ..Details::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(
        Error::NotSupported { resource: Gvr::new("apps", "v1", "deployments"), verb: "create" },
        405, "MethodNotAllowed", json!({"group": "apps", "kind": "deployments"})
    )]
    #[case(
        Error::NotFound { resource: Gvr::new("", "v1", "pods"), name: "p".to_owned() },
        404, "NotFound", json!({"name": "p", "kind": "pods"})
    )]
    #[case(
        Error::Withheld { resource: Gvr::new("", "v1", "secrets"), name: "s".to_owned() },
        409, "Conflict", json!({"name": "s", "kind": "secrets"})
    )]
    #[case(
        Error::InvalidOptions(vec![FieldError::forbidden("f", "no")]),
        422, "Invalid",
        json!({"group": "meta.k8s.io", "kind": "ListOptions",
            "causes": [{"reason": "FieldValueForbidden", "message": "Forbidden: no", "field": "f"}]})
    )]
    #[case(Error::Expired, 410, "Expired", json!(null))]
    #[case(Error::Body("reset".into()), 400, "BadRequest", json!(null))]
    #[case(Error::ResponseBody("reset".into()), 502, "InternalError", json!(null))]
    #[case(Error::ResponseTooLarge(1), 502, "InternalError", json!(null))]
    fn errors_have_the_status_of_their_kind(
        #[case] error: Error,
        #[case] code: u16,
        #[case] reason: &str,
        #[case] details: serde_json::Value,
    ) {
        let status = error.status();
        assert_eq!((&status["code"], &status["reason"], &status["details"]), (&json!(code), &json!(reason), &details));
        assert_eq!(error.code_and_reason(), (StatusCode::from_u16(code).unwrap(), reason));
    }
}
