//! Routes to members, handled by `crowsnest_proxy` with the caller's identity.

use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_proxy::response_headers::drop_origin_wide;
use http::{Method, StatusCode};
use http_body_util::BodyExt;

use crate::aggregated::reply::{Body, Failure};
use crate::roles::{Roles, Running};

pub(crate) fn running(roles: &Roles) -> Result<&Running, Failure> {
    roles
        .get()
        .ok_or_else(|| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "crowsnest is starting"))
}

/// Fails until registries have been read: before that, a registered resource would be served by the control plane.
fn registered(roles: &Roles) -> Result<&Running, Failure> {
    let starting = || {
        let text = "ResourceRegistries have not been read yet";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", text)
    };
    running(roles).and_then(|running| running.knows_registries().then_some(running).ok_or_else(starting))
}

pub(crate) fn outgoing(request: Request) -> http::Request<crowsnest_proxy::Body> {
    request.map(|body| body.map_err(|e| -> crowsnest_proxy::BoxError { e.into() }).boxed_unsync())
}

/// Converts a response of the proxies. Pages at the control plane's address must not affect its whole origin.
pub(crate) fn incoming(mut response: http::Response<crowsnest_proxy::Body>) -> Response {
    drop_origin_wide(response.headers_mut());
    response.map(Body::new)
}

pub(crate) async fn cluster_proxy(
    roles: &Roles,
    caller: &UserInfo,
    cluster: &str,
    path: &str,
    request: Request,
) -> Result<Response, Failure> {
    let cluster = percent_encoding::percent_decode_str(cluster).decode_utf8_lossy();
    let proxy = &running(roles)?.proxy;
    Ok(incoming(proxy.cluster(&cluster, caller, path, outgoing(request)).await))
}

pub(crate) async fn search_cache(
    roles: &Roles,
    caller: &UserInfo,
    path: &str,
    request: Request,
) -> Result<Response, Failure> {
    Ok(incoming(registered(roles)?.proxy.search_cache(caller, path, outgoing(request)).await))
}

/// Empty like Karmada's response: objects in an OpenSearch are queried there.
pub(crate) fn search_opensearch(path: &str, request: &Request) -> Result<Response, Failure> {
    if request.method() != Method::GET {
        return Err(Failure::method_not_allowed());
    }
    match crowsnest_proxy::names_a_resource(path) {
        true => Ok(Response::new(Body::empty())),
        false => Err(Failure::not_found("the server could not find the requested resource")),
    }
}

pub(crate) async fn fleet_proxy(
    roles: &Roles,
    caller: &UserInfo,
    path: &str,
    request: Request,
) -> Result<Response, Failure> {
    let running = match crowsnest_proxy::is_in_a_resource(path) {
        true => registered(roles)?,
        false => running(roles)?,
    };
    Ok(incoming(running.proxy.fleet_wide(caller, path, outgoing(request)).await))
}
