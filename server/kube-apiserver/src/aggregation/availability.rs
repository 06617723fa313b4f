//! Availability checks of remote services: the Service resolves and its discovery document is readable. The OpenAPI
//! document is fetched as well, but does not affect availability.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apiserver::outbound::{OutboundClients, OutboundError, ResolveError, ServerAddress};
use crowsnest_component_base::body::{self, BodyError};
use crowsnest_schema::openapi::PublishedDocument;
use http::StatusCode;
use http::header::ACCEPT;
use serde_json::Value;

use super::discovery;
use super::service::RemoteService;
use crate::crd::status::Condition;

/// Time limit of a request to a service.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// Result of an availability check.
#[derive(Debug, Clone)]
pub(super) struct CheckResult {
    /// The `Available` condition of the APIService.
    pub condition: Condition,
    /// The version's entry in an `APIGroupDiscovery`.
    pub discovery: Option<Value>,
    pub openapi: Option<PublishedDocument>,
}

fn unavailable_result(reason: &'static str, message: String) -> CheckResult {
    CheckResult { condition: Condition::new("Available", "False", reason, message), discovery: None, openapi: None }
}

/// Checks a service by fetching `/apis/<group>/<version>`.
pub(super) async fn check(outbound: &OutboundClients, remote: &RemoteService) -> CheckResult {
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let url = format!("{}{path}", remote.target.url());
    let discovery_failure = |reason: String| {
        unavailable_result("FailedDiscoveryCheck", format!("failing or missing response from {url}: {reason}"))
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, get(outbound, remote, &path)).await {
        Err(_) => discovery_failure(format!("Get {url:?}: context deadline exceeded")),
        Ok(Err(OutboundError::Resolve { reason, .. })) => resolve_failure(remote, &reason),
        Ok(Err(error)) => discovery_failure(error.to_string()),
        Ok(Ok((status, _))) if !status.is_success() => {
            discovery_failure(format!("bad status from {url}: {}", status.as_u16()))
        }
        Ok(Ok((_, body))) => {
            let document = serde_json::from_slice::<Value>(&body).ok();
            CheckResult {
                condition: Condition::new("Available", "True", "Passed", "all checks passed"),
                discovery: document.map(|document| discovery::version_entry(&remote.version, &document)),
                openapi: tokio::time::timeout(REQUEST_TIMEOUT, fetch_openapi(outbound, remote)).await.ok().flatten(),
            }
        }
    }
}

async fn get(
    outbound: &OutboundClients,
    remote: &RemoteService,
    path: &str,
) -> Result<(StatusCode, Bytes), OutboundError> {
    let request = http::Request::get(path).header(ACCEPT, "application/json").body(Body::empty())?;
    let response = outbound.send(&remote.target, super::proxy::with_aggregator_identity(request), true).await?;
    let status = response.status();
    let body = body::collect(response.into_body(), MAX_DOCUMENT_BYTES).await;
    let read_error = |error: BodyError| OutboundError::Call {
        verb: "Get".into(),
        url: format!("{}{path}", remote.target.url()),
        reason: error.to_string(),
    };
    Ok((status, body.map_err(read_error)?))
}

/// Fetches the OpenAPI document of the group version: v3, or v2, which covers all groups of the server, if v3 is not
/// supported.
async fn fetch_openapi(outbound: &OutboundClients, remote: &RemoteService) -> Option<PublishedDocument> {
    let (group, version) = (&remote.group, &remote.version);
    let fetch = async |path: &str| match get(outbound, remote, path).await {
        Ok(response) => Some(response),
        Err(error) => {
            tracing::debug!(group, %error, "cannot fetch the OpenAPI document");
            None
        }
    };
    let v3 = fetch(&format!("/openapi/v3/apis/{group}/{version}")).await?;
    let (status, body) = match v3.0 {
        StatusCode::NOT_FOUND if fetch("/openapi/v3").await?.0 == StatusCode::NOT_FOUND => fetch("/openapi/v2").await?,
        _ => v3,
    };
    if status != StatusCode::OK {
        tracing::debug!(group, %status, "cannot fetch the OpenAPI document");
        return None;
    }
    PublishedDocument::parse(group, version, &body)
}

fn resolve_failure(remote: &RemoteService, reason: &ResolveError) -> CheckResult {
    let ServerAddress::Service(service) = &remote.target.address else {
        return unavailable_result("ServiceNotFound", reason.to_string());
    };
    let (name, namespace) = (&service.name, &service.namespace);
    match reason {
        ResolveError::NotFound(_) => {
            unavailable_result("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"))
        }
        ResolveError::NoPort { port, .. } => unavailable_result(
            "ServicePortError",
            format!("service/{name} in {namespace:?} is not listening on port {port}"),
        ),
        ResolveError::NoSlices(_) => unavailable_result(
            "EndpointsNotFound",
            format!("cannot find endpointslices for service/{name} in {namespace:?}"),
        ),
        ResolveError::NoEndpoints { port_name, .. } => {
            let lacking = format!("have no addresses with port name {port_name:?}");
            unavailable_result(
                "MissingEndpoints",
                format!("endpointslices for service/{name} in {namespace:?} {lacking}"),
            )
        }
    }
}
