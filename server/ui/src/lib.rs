//! Server of the web UI: the embedded pages, the session, and the proxy from the browser to the control plane.
//!
//! The browser connects only to this server and, for signing in, to an OIDC issuer. A session contains the user's bearer
//! token, sealed in an HttpOnly cookie or referenced by one, or a client certificate referenced by a cookie. Requests
//! under `/api`, `/apis` and `/openapi/v3`, including WebSockets, are forwarded to the control plane with this
//! credential, so they run with the user's own permissions.
//!
//! Responses of members and of the control plane are untrusted. Only the headers of an allow-list are kept
//! (`crowsnest_proxy::response_headers`), and no document in them runs or is displayed at the UI's origin.

mod config;
mod cookies;
mod handle;
mod kubeconfig_sessions;
mod mcp;
pub mod oidc;
mod pages;
mod seal;
mod session;
#[cfg(test)]
mod tests;
mod token_sessions;
mod tunnel;
mod upstream;

use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_component_base::client_errors::api_error;
use crowsnest_process::origin;
use crowsnest_process::reply::StatusResponse;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get};
use crowsnest_proxy::response_headers::pass_to_browser;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use tokio::sync::Semaphore;

pub use config::UiConfig;
pub use crowsnest_process::origin::Hosts;
use crowsnest_process::reply::Body;
pub use kubeconfig_sessions::KubeconfigSessions;
pub use seal::Seal;
pub use session::MAX_CONCURRENT_SIGN_INS;
pub use token_sessions::TokenSessions;
pub use tunnel::UpgradedConnections;
pub use upstream::Upstream;

/// A request header that forms and images of other sites cannot send; it protects the cookie against cross-site
/// requests.
const CLIENT_HEADER: &str = "x-crowsnest-client";

/// Content security policy of the UI's own pages.
const PAGE_POLICY: &str =
    "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'";
/// Content security policy of forwarded responses: displayed as a document, they have no origin, run no scripts and
/// load nothing.
const FORWARDED_POLICY: &str =
    "default-src 'none'; sandbox; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// State of the UI's handlers.
#[derive(Clone)]
pub struct Ui {
    pub upstream: Upstream,
    /// Sign-in at an OIDC issuer, if configured.
    pub oidc: Option<Arc<oidc::SignIn>>,
    /// Sessions of users who signed in with a token.
    pub token_sessions: TokenSessions,
    /// Sessions of users who signed in with a kubeconfig.
    pub kubeconfig_sessions: KubeconfigSessions,
    pub connections: UpgradedConnections,
    /// Host names under which browsers reach the UI.
    pub hosts: Arc<Hosts>,
    /// Limits concurrent sign-ins.
    pub sign_in_permits: Arc<Semaphore>,
}

impl Ui {
    /// `is_secure` is true if browsers connect over HTTPS, so that TLS checks the host name. Otherwise
    /// `proxy_hosts` are the host names of proxies in front of the UI.
    pub fn new(
        config: kube::Config,
        seal: Seal,
        is_secure: bool,
        proxy_hosts: &[String],
        connections: UpgradedConnections,
    ) -> kube::Result<Self> {
        let hosts = match is_secure {
            true => Hosts::VerifiedByTls,
            false => Hosts::from_names(proxy_hosts.iter().map(String::as_str)),
        };
        Ok(Self {
            upstream: Upstream::new(config)?,
            oidc: None,
            token_sessions: TokenSessions::new(seal, is_secure),
            kubeconfig_sessions: KubeconfigSessions::new(is_secure),
            connections,
            hosts: Arc::new(hosts),
            sign_in_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SIGN_INS)),
        })
    }

    /// Enables signing in at an OIDC issuer, which redirects users back to the registered address.
    pub fn with_oidc(mut self, sign_in: Option<oidc::SignIn>) -> Self {
        if let Some(host) = sign_in.as_ref().and_then(oidc::SignIn::host) {
            self.hosts = Arc::new(self.hosts.with_name(host));
        }
        self.oidc = sign_in.map(Arc::new);
        self
    }
}

/// All routes of the UI.
pub fn router(ui: Ui) -> Router {
    Router::new()
        .route("/ui/sign-in", get(session::sign_in_methods).post(session::preview))
        .route(oidc::LOGIN, get(oidc::login))
        .route(oidc::CALLBACK, get(oidc::callback))
        .route("/ui/session", get(session::show_session).post(session::sign_in).delete(session::sign_out))
        .route("/api", any(forward))
        .route("/api/{*path}", any(forward))
        .route("/apis", any(forward))
        .route("/apis/{*path}", any(forward))
        .route("/openapi/v3/{*path}", get(forward))
        .route(mcp::PATH, any(mcp::forward))
        .route(mcp::METADATA_PATH, get(mcp::metadata))
        .route(mcp::RESOURCE_METADATA_PATH, get(mcp::metadata))
        .route("/healthz", get(|| async { "ok" }))
        .fallback(pages::service())
        .layer(middleware::from_fn_with_state(Arc::clone(&ui.hosts), guard))
        .layer(tower_http::catch_panic::CatchPanicLayer::new())
        .with_state(ui)
}

/// Marks a response that was forwarded from the control plane or a member.
#[derive(Clone, Copy)]
struct ForwardedResponse;

/// Middleware that refuses requests to other hosts and from other origins, and sets the security headers of each
/// response.
async fn guard(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let mut response = match check_request(&hosts, &request) {
        Err(failure) => failure.into_response(),
        Ok(()) => next.run(request).await,
    };
    let is_forwarded = response.extensions().get::<ForwardedResponse>().is_some();
    set_security_headers(response.headers_mut(), is_forwarded);
    response
}

/// Refuses requests to other hosts and from pages of other origins.
fn check_request(hosts: &Hosts, request: &Request) -> Result<(), ApiError> {
    let (path, headers) = (request.uri().path(), request.headers());
    // Probes use the address they are configured with; the response contains no information.
    if path == "/healthz" {
        return Ok(());
    }
    let authority = match hosts.check(request.uri(), headers) {
        Ok(authority) => authority,
        Err(reason) => {
            return Err(ApiError::from_parts(StatusCode::MISDIRECTED_REQUEST.as_u16(), "BadRequest", reason));
        }
    };
    // Pages that the issuer redirects to; they trust only their own cookie.
    let is_sign_in_page = path == oidc::LOGIN || path == oidc::CALLBACK;
    let is_data = !is_sign_in_page && ["/api", "/openapi/", "/ui/"].iter().any(|prefix| path.starts_with(prefix));
    let is_ui_client = headers.contains_key(CLIENT_HEADER)
        || (tunnel::is_websocket_upgrade(headers) && origin::has_same_origin(headers, &authority));
    if is_data && !(is_ui_client && origin::is_same_origin_page(headers, &authority)) {
        let message =
            format!("this address serves the web UI; requests need the header {CLIENT_HEADER} and the same origin");
        return Err(ApiError::new(Reason::Forbidden, message));
    }
    Ok(())
}

/// Sets the security headers of a response.
fn set_security_headers(headers: &mut HeaderMap, is_forwarded: bool) {
    let policy = if is_forwarded { FORWARDED_POLICY } else { PAGE_POLICY };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_forwarded {
        // The next user of the same browser must not see this response from the browser's cache.
        headers.append(header::VARY, HeaderValue::from_static("cookie"));
    }
}

/// Forwards a request to the control plane as the session's user; the response is streamed.
async fn forward(State(ui): State<Ui>, request: Request) -> Response {
    let mut response = match forward_inner(&ui, request).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    };
    response.extensions_mut().insert(ForwardedResponse);
    response
}

async fn forward_inner(ui: &Ui, request: Request) -> Result<Response, ApiError> {
    let actor = session::actor(ui, request.headers()).await?;
    send(ui, &actor, request).await
}

/// Sends a request to the control plane as this user.
async fn send(ui: &Ui, actor: &upstream::Actor, mut request: Request) -> Result<Response, ApiError> {
    let browser = tunnel::take_upgrade(&mut request);
    let (parts, body) = request.into_parts();
    let body = crowsnest_process::reply::collect(body).await?;
    let mut forwarded = http::Request::new(KubeBody::from(body.to_vec()));
    // A target in absolute form names a host, which must not reach the control plane.
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    *forwarded.uri_mut() = path.parse().map_err(|_| ApiError::bad_request("invalid path"))?;
    *forwarded.method_mut() = parts.method;
    *forwarded.headers_mut() = upstream::forwarded_request_headers(&parts.headers);
    if browser.is_some() {
        tunnel::add_upgrade_headers(forwarded.headers_mut());
    }
    let mut upstream_response = actor.send(forwarded).await.map_err(api_error)?;
    let is_upgraded = upstream_response.status() == StatusCode::SWITCHING_PROTOCOLS;
    match browser {
        Some(browser) if is_upgraded => ui.connections.relay(browser, hyper::upgrade::on(&mut upstream_response)),
        _ if is_upgraded => {
            return Err(ApiError::from_parts(
                StatusCode::BAD_GATEWAY.as_u16(),
                "InternalError",
                "the control plane upgraded the connection without a request",
            ));
        }
        _ => {}
    }
    let (parts, body) = upstream_response.into_parts();
    let mut response = Response::new(Body::new(body.map_frame(without_trailers)));
    *response.status_mut() = parts.status;
    *response.headers_mut() = pass_to_browser(&parts.headers, is_upgraded);
    Ok(response)
}

/// Drops trailers: they are headers too, and none is needed.
fn without_trailers(frame: http_body::Frame<bytes::Bytes>) -> http_body::Frame<bytes::Bytes> {
    match frame.into_data() {
        Ok(data) => http_body::Frame::data(data),
        Err(_) => http_body::Frame::data(bytes::Bytes::new()),
    }
}
