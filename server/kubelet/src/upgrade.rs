//! Negotiation of streaming protocols and the upgrade responses.

use std::io;
use std::time::Duration;

use axum::body::Body;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::idle::IdleTimeout;
use super::portforward;
use super::remotecommand::Version;
use super::websocket::Encoding;

/// The SPDY version of all Kubernetes clients.
const SPDY: &str = "SPDY/3.1";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The connection after the response has been sent. It fails when idle.
pub type PendingConnection = BoxFuture<'static, io::Result<IdleTimeout<TokioIo<Upgraded>>>>;

/// The protocol that a connection switches to after the response.
pub enum Upgrade<S, W> {
    /// No upgrade: the response is an error.
    None,
    Spdy(PendingConnection, S),
    WebSocket(PendingConnection, W),
}

/// Negotiates the protocol of exec and attach.
pub fn negotiate_remote_command(
    request: Request<Body>,
    idle: Duration,
) -> ApiResult<(Response<Body>, Upgrade<Version, (Version, Encoding)>)> {
    if is_websocket(request.headers()) {
        let offers = header_values(request.headers(), &header::SEC_WEBSOCKET_PROTOCOL);
        let (name, protocol) = choose_subprotocol(&offers, Version::WEBSOCKET, (Version::V1, Encoding::Binary))?;
        let (response, io) = switch_websocket(request, name, idle)?;
        return Ok((response, Upgrade::WebSocket(io, protocol)));
    }
    require_spdy(request.headers())?;
    let offers = header_values(request.headers(), &STREAM_PROTOCOL);
    if offers.is_empty() {
        let (response, io) = switch_spdy(request, None, idle);
        return Ok((response, Upgrade::Spdy(io, Version::V1)));
    }
    match choose_protocol(&offers, Version::SPDY) {
        Ok((name, version)) => {
            let (response, io) = switch_spdy(request, Some(name), idle);
            Ok((response, Upgrade::Spdy(io, version)))
        }
        Err(_) => Ok((protocol_forbidden(&offers, Version::SPDY.iter().map(|(name, _)| *name)), Upgrade::None)),
    }
}

/// Negotiates the protocol of port-forward. `Upgrade::Spdy` contains true if SPDY runs inside a WebSocket.
pub fn negotiate_port_forward(
    request: Request<Body>,
    has_ports: bool,
    idle: Duration,
) -> ApiResult<(Response<Body>, Upgrade<bool, Encoding>)> {
    if is_websocket(request.headers()) {
        let offers = header_values(request.headers(), &header::SEC_WEBSOCKET_PROTOCOL);
        if offers.iter().any(|offer| offer == portforward::TUNNEL_PROTOCOL) {
            let (response, io) = switch_websocket(request, Some(portforward::TUNNEL_PROTOCOL), idle)?;
            return Ok((response, Upgrade::Spdy(io, true)));
        }
        if !has_ports {
            return Err(ApiError::bad_request("query parameter \"port\" is required"));
        }
        let (name, encoding) = choose_subprotocol(&offers, portforward::CHANNEL_PROTOCOLS, Encoding::Binary)?;
        let (response, io) = switch_websocket(request, name, idle)?;
        return Ok((response, Upgrade::WebSocket(io, encoding)));
    }
    require_spdy(request.headers())?;
    let offers = header_values(request.headers(), &STREAM_PROTOCOL);
    if !offers.is_empty() && !offers.iter().any(|offer| offer == portforward::PROTOCOL) {
        return Ok((protocol_forbidden(&offers, [portforward::PROTOCOL]), Upgrade::None));
    }
    let (response, io) = switch_spdy(request, Some(portforward::PROTOCOL), idle);
    Ok((response, Upgrade::Spdy(io, false)))
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    header_values(headers, name).iter().any(|value| value.eq_ignore_ascii_case(token))
}

fn is_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, &header::UPGRADE, "websocket")
}

fn require_spdy(headers: &HeaderMap) -> ApiResult<()> {
    if has_token(headers, &header::CONNECTION, "upgrade") && has_token(headers, &header::UPGRADE, SPDY) {
        return Ok(());
    }
    Err(ApiError::bad_request("Upgrade request required"))
}

/// Returns all values of a header, from one or several header lines.
fn header_values(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty()).collect()
}

/// Returns the first supported subprotocol that the client offers; `default`, without a name, if it offers none.
fn choose_subprotocol<T: Copy>(
    offers: &[String],
    supported: &[(&'static str, T)],
    default: T,
) -> ApiResult<(Option<&'static str>, T)> {
    if offers.is_empty() {
        return Ok((None, default));
    }
    choose_protocol(offers, supported).map(|(name, protocol)| (Some(name), protocol))
}

/// Returns the first supported protocol that the client offers.
fn choose_protocol<T: Copy>(offers: &[String], supported: &[(&'static str, T)]) -> ApiResult<(&'static str, T)> {
    let find = |offer: &String| supported.iter().find(|(name, _)| name == offer).copied();
    offers.iter().find_map(find).ok_or_else(|| {
        let supported: Vec<_> = supported.iter().map(|(name, _)| *name).collect();
        ApiError::bad_request(format!(
            "unable to negotiate protocol: client supports {offers:?}, server accepts {supported:?}"
        ))
    })
}

fn protocol_forbidden<'a>(offers: &[String], supported: impl IntoIterator<Item = &'a str>) -> Response<Body> {
    let mut response = Response::new(Body::from(format!(
        "unable to upgrade: unable to negotiate protocol: client supports {offers:?}"
    )));
    *response.status_mut() = StatusCode::FORBIDDEN;
    for name in supported {
        if let Ok(value) = HeaderValue::from_str(name) {
            response.headers_mut().append(ACCEPTED_PROTOCOLS, value);
        }
    }
    response
}

fn switch_protocols(
    request: Request<Body>,
    protocol: &'static str,
    idle: Duration,
) -> (Response<Body>, PendingConnection) {
    let mut request = request;
    let upgrade = hyper::upgrade::on(&mut request);
    let pending = Box::pin(async move {
        let upgraded = upgrade.await.map_err(io::Error::other)?;
        Ok(IdleTimeout::new(TokioIo::new(upgraded), idle))
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
    (response, pending)
}

fn switch_spdy(
    request: Request<Body>,
    protocol: Option<&'static str>,
    idle: Duration,
) -> (Response<Body>, PendingConnection) {
    let (mut response, io) = switch_protocols(request, SPDY, idle);
    if let Some(protocol) = protocol {
        response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    }
    (response, io)
}

fn switch_websocket(
    request: Request<Body>,
    protocol: Option<&'static str>,
    idle: Duration,
) -> ApiResult<(Response<Body>, PendingConnection)> {
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| ApiError::bad_request("websocket: Sec-WebSocket-Key is missing"))?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(ApiError::internal)?;
    let (mut response, io) = switch_protocols(request, "websocket", idle);
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok((response, io))
}
