//! Proxies requests to an extension API server as the authenticated user.

use std::net::IpAddr;

use axum::body::Body;
use crowsnest_apimachinery::request::{identity_header_value, remove_hop_by_hop, requested_upgrade, upstream_headers};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::{UserInfo, extra_header_key};
use crowsnest_apiserver::audit::FORWARDED_RECORD;
use crowsnest_apiserver::outbound::OutboundClients;
use crowsnest_apiserver::serve::PeerAddress;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::RemoteService;
use crate::http::request_audit::RequestAudit;
use crate::http::respond;

/// Name of the user as which this server calls extension servers by itself.
const AGGREGATOR_USER: &str = "system:kube-aggregator";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Buffer size of a tunnel in bytes, per direction: more than one TLS record.
const TUNNEL_BUFFER_BYTES: usize = 32 * 1024;

/// A 503 response in plain text, as kube-apiserver's aggregation layer returns it.
pub(super) fn unavailable_response(message: &str) -> http::Response<Body> {
    plain_text_error(http::StatusCode::SERVICE_UNAVAILABLE, message)
}

/// An error response as Go's `http.Error` writes it.
fn plain_text_error(status: http::StatusCode, message: &str) -> http::Response<Body> {
    let mut response = http::Response::new(Body::from(format!("{message}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

/// Sets the identity of this server on a request.
pub(super) fn with_aggregator_identity(mut request: http::Request<Body>) -> http::Request<Body> {
    let aggregator =
        UserInfo { name: AGGREGATOR_USER.into(), groups: vec!["system:masters".into()], ..UserInfo::default() };
    // These constants are valid header values, so the default is never used.
    *request.headers_mut() = forwarded_headers(&aggregator, request.headers()).unwrap_or_default();
    request
}

/// The headers to forward to an extension server: with the identity that this server authenticated and without any
/// that the client sent. `None` if a name or group is not a valid header value.
pub(super) fn forwarded_headers(user: &UserInfo, received: &HeaderMap) -> Option<HeaderMap> {
    let mut headers = upstream_headers(received);
    headers.insert("x-remote-user", identity_header_value(&user.name)?);
    for group in &user.groups {
        headers.append("x-remote-group", identity_header_value(group)?);
    }
    // The other attributes grant no permissions; those that are not valid header values are omitted.
    let mut append = |name: &str, value: &str| {
        if let (Ok(name), Some(value)) = (HeaderName::try_from(name), identity_header_value(value)) {
            headers.append(name, value);
        }
    };
    append("x-remote-uid", &user.uid);
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", extra_header_key(key));
        for value in values {
            append(&name, value);
        }
    }
    Some(headers)
}

/// Appends the address of the connection to `X-Forwarded-For`.
fn append_forwarded_for(headers: &mut HeaderMap, address: IpAddr) {
    let proxies = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let addresses: Vec<String> = proxies.map(str::to_owned).chain([address.to_string()]).collect();
    if let Ok(value) = HeaderValue::from_str(&addresses.join(", ")) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Forwards the request and streams the response; upgraded connections are tunnelled.
pub(super) async fn serve(
    outbound: &OutboundClients,
    tunnels: &TaskTracker,
    stop: &CancellationToken,
    remote: &RemoteService,
    user: &UserInfo,
    mut request: http::Request<Body>,
) -> http::Response<Body> {
    let client_side = requested_upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut upstream_request = http::Request::new(body);
    *upstream_request.method_mut() = parts.method;
    match path.parse() {
        Ok(uri) => *upstream_request.uri_mut() = uri,
        Err(error) => return unavailable_response(&format!("error trying to reach service: {error}")),
    }
    let Some(headers) = forwarded_headers(user, &parts.headers) else {
        let text = "the user's name or groups are empty, or have control characters or white space around them";
        return respond::error(&ApiError::bad_request(text));
    };
    *upstream_request.headers_mut() = headers;
    if let Some(PeerAddress(address)) = parts.extensions.get() {
        append_forwarded_for(upstream_request.headers_mut(), *address);
    }
    let request_audit = parts.extensions.get::<RequestAudit>().cloned();
    upstream_request.headers_mut().remove(FORWARDED_RECORD);
    // A server that shares the audit log finds the record under this key until it has responded.
    let forwarded_record =
        request_audit.as_ref().and_then(|audit| audit.auditor.register_forwarded(audit.record.clone()));
    if let Some(forwarded_record) = &forwarded_record
        && let Ok(key) = HeaderValue::from_str(forwarded_record.key())
    {
        upstream_request.headers_mut().insert(FORWARDED_RECORD, key);
    }
    if let Some(service) = outbound.find_in_process_server(&remote.target) {
        // An in-process server takes over the client's connection, so no bytes are copied.
        if let Some(client_side) = client_side {
            upstream_request.extensions_mut().insert(client_side);
        }
        return without_hop_headers(service.serve(upstream_request).await);
    }
    let mut response = match outbound.send(&remote.target, upstream_request, true).await {
        Ok(response) => response,
        Err(error) => return unavailable_response(&format!("error trying to reach service: {error}")),
    };
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        let Some(client_side) = client_side else {
            let reason = "the extension server switches protocols without an upgrade request";
            return plain_text_error(http::StatusCode::BAD_GATEWAY, reason);
        };
        let server_side = hyper::upgrade::on(&mut response);
        let stop = stop.clone();
        // The audit record ends with the tunnel.
        let record = request_audit.and_then(|audit| audit.record.clone());
        tunnels.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                result = copy_tunnel(client_side, server_side) => if let Err(error) = result {
                    tracing::debug!(%error, "the tunnel to an extension server ended with an error");
                },
            }
            drop(record);
        });
        return response;
    }
    without_hop_headers(response)
}

/// Removes hop-by-hop headers, except from an upgrade.
fn without_hop_headers(mut response: http::Response<Body>) -> http::Response<Body> {
    if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
        remove_hop_by_hop(response.headers_mut());
    }
    response
}

/// Copies bytes in both directions until both sides are closed.
async fn copy_tunnel(
    client: hyper::upgrade::OnUpgrade,
    server: hyper::upgrade::OnUpgrade,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (client, server) = tokio::try_join!(client, server)?;
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, TUNNEL_BUFFER_BYTES, TUNNEL_BUFFER_BYTES)
        .await?;
    Ok(())
}
