//! Availability checks of remote services: the Service resolves and its discovery document is readable. The OpenAPI
//! document is fetched as well, but does not affect availability.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apiserver::outbound::{Outbound, OutboundError, ResolveError, ServerAddress};
use crowsnest_component_base::body::{self, BodyError};
use crowsnest_schema::openapi::Published;
use http::StatusCode;
use http::header::ACCEPT;
use serde_json::Value;

use super::discovery;
use super::service::Remote;
use crate::crd::names::Condition;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT: usize = 16 * 1024 * 1024;

/// Result of a check.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub condition: Condition,
    /// The version's entry of an `APIGroupDiscovery`.
    pub discovered: Option<Value>,
    pub published: Option<Published>,
}

fn unavailable(reason: &'static str, message: String) -> Finding {
    Finding { condition: Condition::new("Available", "False", reason, message), discovered: None, published: None }
}

/// Fetches `/apis/<group>/<version>` from the service.
pub(super) async fn check(outbound: &Outbound, remote: &Remote) -> Finding {
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let url = format!("{}{path}", remote.target.url());
    let failing =
        |why: String| unavailable("FailedDiscoveryCheck", format!("failing or missing response from {url}: {why}"));
    match tokio::time::timeout(TIMEOUT, get(outbound, remote, &path)).await {
        Err(_) => failing(format!("Get {url:?}: context deadline exceeded")),
        Ok(Err(OutboundError::Resolve { why, .. })) => unresolved(remote, &why),
        Ok(Err(error)) => failing(error.to_string()),
        Ok(Ok((status, _))) if !status.is_success() => failing(format!("bad status from {url}: {}", status.as_u16())),
        Ok(Ok((_, body))) => {
            let document = serde_json::from_slice::<Value>(&body).ok();
            Finding {
                condition: Condition::new("Available", "True", "Passed", "all checks passed"),
                discovered: document.map(|d| discovery::version_entry(&remote.version, &d)),
                published: tokio::time::timeout(TIMEOUT, openapi(outbound, remote)).await.ok().flatten(),
            }
        }
    }
}

async fn get(outbound: &Outbound, remote: &Remote, path: &str) -> Result<(StatusCode, Bytes), OutboundError> {
    let request = http::Request::get(path).header(ACCEPT, "application/json").body(Body::empty())?;
    let response = outbound.send(&remote.target, super::proxy::as_aggregator(request), true).await?;
    let status = response.status();
    let body = body::collect(response.into_body(), MAX_DOCUMENT).await;
    let lost = |error: BodyError| OutboundError::Call {
        verb: "Get".into(),
        url: format!("{}{path}", remote.target.url()),
        why: error.to_string(),
    };
    Ok((status, body.map_err(lost)?))
}

/// The OpenAPI document of the group; from v2, which covers all groups of the server, if v3 is not supported.
async fn openapi(outbound: &Outbound, remote: &Remote) -> Option<Published> {
    let (group, version) = (&remote.group, &remote.version);
    let fetch = async |path: &str| match get(outbound, remote, path).await {
        Ok(answer) => Some(answer),
        Err(error) => {
            tracing::debug!(group, %error, "cannot fetch the OpenAPI document");
            None
        }
    };
    let of_group = fetch(&format!("/openapi/v3/apis/{group}/{version}")).await?;
    let (status, body) = match of_group.0 {
        StatusCode::NOT_FOUND if fetch("/openapi/v3").await?.0 == StatusCode::NOT_FOUND => fetch("/openapi/v2").await?,
        _ => of_group,
    };
    if status != StatusCode::OK {
        tracing::debug!(group, %status, "cannot fetch the OpenAPI document");
        return None;
    }
    Published::read(group, version, &body)
}

fn unresolved(remote: &Remote, why: &ResolveError) -> Finding {
    let ServerAddress::Service(service) = &remote.target.address else {
        return unavailable("ServiceNotFound", why.to_string());
    };
    let (name, namespace) = (&service.name, &service.namespace);
    match why {
        ResolveError::NotFound(_) => {
            unavailable("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"))
        }
        ResolveError::NoPort { port, .. } => {
            unavailable("ServicePortError", format!("service/{name} in {namespace:?} is not listening on port {port}"))
        }
        ResolveError::NoSlices(_) => {
            unavailable("EndpointsNotFound", format!("cannot find endpointslices for service/{name} in {namespace:?}"))
        }
        ResolveError::NoEndpoints { port_name, .. } => {
            let lacking = format!("have no addresses with port name {port_name:?}");
            unavailable("MissingEndpoints", format!("endpointslices for service/{name} in {namespace:?} {lacking}"))
        }
    }
}
