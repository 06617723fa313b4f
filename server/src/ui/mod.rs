//! The web UI's server: the embedded pages, the session, and the way from the browser to the control plane.
//!
//! The browser talks to nothing else, but for an issuer's pages to sign in there. A session is the user's own bearer token, in an
//! HttpOnly cookie or behind one, or a client certificate behind one; requests under `/api`, `/apis` and `/openapi/v3` are handed to the control plane with that,
//! so each is made with the user's own rights. So are WebSockets.

mod cookies;
mod handle;
mod identities;
pub(crate) mod oidc;
mod pages;
mod session;
mod tunnel;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get};
use http::{HeaderValue, StatusCode, header};
use kube::client::Body as KubeBody;

use crate::aggregated::reply::{Body, Failure};
pub(crate) use identities::Identities;
pub(crate) use session::Upstream;
pub(crate) use tunnel::Tunnels;

/// A request header that no form or image of another site can carry: with it the cookie is safe from cross-site requests.
const CLIENT_HEADER: &str = "x-crowsnest-client";

/// What requests of the UI are answered from.
#[derive(Clone)]
pub(crate) struct Ui {
    pub(crate) upstream: Upstream,
    /// People can sign in at an issuer.
    pub(crate) oidc: Option<Arc<oidc::SignIn>>,
    /// Of people who signed in with a kubeconfig.
    pub(crate) identities: Identities,
    pub(crate) tunnels: Tunnels,
    /// Browsers come over HTTPS.
    pub(crate) secure: bool,
}

/// All routes of the UI.
pub(crate) fn router(ui: Ui) -> Router {
    Router::new()
        .route("/ui/sign-in", get(session::ways))
        .route(oidc::LOGIN, get(oidc::login))
        .route(oidc::CALLBACK, get(oidc::callback))
        .route("/ui/session", get(session::current).post(session::sign_in).delete(session::sign_out))
        .route("/api", any(forward))
        .route("/api/{*path}", any(forward))
        .route("/apis", any(forward))
        .route("/apis/{*path}", any(forward))
        .route("/openapi/v3/{*path}", get(forward))
        .route("/healthz", get(|| async { "ok" }))
        .fallback(pages::service())
        .layer(middleware::from_fn(guard))
        .layer(tower_http::catch_panic::CatchPanicLayer::new())
        .with_state(ui)
}

/// Refuses cross-site requests and sets the security headers of every answer.
async fn guard(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Pages that the issuer's site leads to; they trust nothing but what they find in their own cookie.
    let page = path == oidc::LOGIN || path == oidc::CALLBACK;
    let data = !page && ["/api", "/openapi/", "/ui/"].iter().any(|data| path.starts_with(data));
    let cross_site = request.headers().get("sec-fetch-site").is_some_and(|v| v != "same-origin" && v != "none");
    let headers = request.headers();
    let ours = headers.contains_key(CLIENT_HEADER) || (tunnel::wanted(headers) && tunnel::same_origin(headers));
    if data && (cross_site || !ours) {
        let text =
            format!("this address serves the web UI; requests need the header {CLIENT_HEADER} and the same origin");
        return Failure::new(StatusCode::FORBIDDEN, "Forbidden", text).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
        ),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Hands a request to the control plane as the session's user; the answer streams.
async fn forward(State(ui): State<Ui>, request: Request) -> Response {
    match forward_inner(&ui, request).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn forward_inner(ui: &Ui, mut request: Request) -> Result<Response, Failure> {
    let client = session::client(ui, request.headers()).await?;
    let browser = tunnel::take(&mut request);
    let (mut parts, body) = request.into_parts();
    for name in [header::COOKIE, header::HOST, header::AUTHORIZATION, header::ORIGIN, header::ACCEPT_ENCODING] {
        parts.headers.remove(name);
    }
    // Impersonation stays the control plane's decision, but a page has no use for it.
    let impersonation: Vec<_> =
        parts.headers.keys().filter(|n| n.as_str().starts_with("impersonate-")).cloned().collect();
    for name in impersonation {
        parts.headers.remove(name);
    }
    let body = crate::aggregated::stored::collect(body).await?;
    let forwarded = http::Request::from_parts(parts, KubeBody::from(body.to_vec()));
    let mut answer = client.send(forwarded).await.map_err(Failure::upstream)?;
    if let (Some(browser), StatusCode::SWITCHING_PROTOCOLS) = (browser, answer.status()) {
        ui.tunnels.join(browser, hyper::upgrade::on(&mut answer));
        return Ok(answer.map(Body::new));
    }
    let (mut parts, body) = answer.into_parts();
    parts.headers.remove(header::CONNECTION);
    parts.headers.remove(header::TRANSFER_ENCODING);
    Ok(http::Response::from_parts(parts, Body::new(body)))
}
