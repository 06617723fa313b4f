//! Bodies and responses of requests that `crowsnest_proxy` handles.

use axum::extract::Request;
use axum::response::Response;
use crowsnest_proxy::response_headers::drop_origin_wide;
use http_body_util::BodyExt;

use crowsnest_process::reply::Body;

/// Converts the body of a request to the type that the proxies expect.
pub fn to_proxy_request(request: Request) -> http::Request<crowsnest_proxy::Body> {
    request.map(|body| body.map_err(|e| -> crowsnest_proxy::BoxError { e.into() }).boxed_unsync())
}

/// Converts a response of the proxies. Removes headers that would affect the whole origin of the control plane, since
/// members' web pages are served at its address.
pub fn to_response(mut response: http::Response<crowsnest_proxy::Body>) -> Response {
    drop_origin_wide(response.headers_mut());
    response.map(Body::new)
}
