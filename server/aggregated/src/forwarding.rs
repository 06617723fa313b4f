//! Bodies and responses of requests that `crowsnest_proxy` handles.

use axum::extract::Request;
use axum::response::Response;
use crowsnest_proxy::response_headers::drop_origin_wide;
use http_body_util::BodyExt;

use crowsnest_process::reply::Body;

pub fn outgoing(request: Request) -> http::Request<crowsnest_proxy::Body> {
    request.map(|body| body.map_err(|e| -> crowsnest_proxy::BoxError { e.into() }).boxed_unsync())
}

/// Converts a response of the proxies. Pages at the control plane's address must not affect its whole origin.
pub fn incoming(mut response: http::Response<crowsnest_proxy::Body>) -> Response {
    drop_origin_wide(response.headers_mut());
    response.map(Body::new)
}
