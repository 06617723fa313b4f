//! Signing in at an OpenID Connect issuer: the authorization code flow with PKCE.
//!
//! The browser is redirected to the issuer with the state of the sign-in in a sealed cookie ([`flow`]). The code that the
//! issuer returns is exchanged for tokens ([`exchange`]), and these become a session ([`sessions`]). A session has no
//! credential but its ID token: the control plane's API server is configured with the same issuer and authenticates the
//! user. This process therefore needs no permission to impersonate.

mod config;
mod exchange;
mod flow;
mod page;
mod sessions;

use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use crowsnest_process::reply::code;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use crowsnest_apiserver::authn::Oidc;
use crowsnest_apiserver::authn::oidc::{ClaimError, OidcError, format_error_chain};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;
use tokio_util::task::TaskTracker;
use url::Url;

use super::Ui;
use super::cookies::{self, Cookie, SameSite};
use super::seal::Seal;
pub use config::SignInConfig;
use crowsnest_process::reply::Body;
use flow::{Flow, SIGN_IN_TIMEOUT, local_path};
use page::{SIGN_IN_AGAIN, SignInFailure};
use sessions::{NewSession, Sessions};

/// Paths where a sign-in begins and to which the issuer redirects.
pub(super) const LOGIN: &str = "/ui/oidc/login";
pub const CALLBACK: &str = "/ui/oidc/callback";

/// Client configuration at the issuer, except the client ID.
#[derive(Debug, Clone)]
pub struct Client {
    pub secret_file: Option<PathBuf>,
    pub redirect_url: Url,
    pub scopes: Vec<String>,
}

/// Sign-in at one issuer.
pub struct SignIn {
    oidc: Arc<Oidc>,
    client: Client,
    seal: Seal,
    sessions: Sessions,
    /// Renewals in progress, which are completed at shutdown.
    renewals: TaskTracker,
}

impl SignIn {
    /// `renewals` tracks the renewals of this sign-in; the caller waits for them at shutdown.
    pub fn new(oidc: Arc<Oidc>, client: Client, seal: Seal, renewals: TaskTracker) -> Self {
        Self { oidc, client, seal, sessions: Sessions::new(), renewals }
    }

    /// Host name under which browsers return to this server after signing in.
    pub fn host(&self) -> Option<&str> {
        self.client.redirect_url.host_str()
    }

    /// True for HTTPS. Plain HTTP is allowed for loopback addresses only, where some browsers ignore `Secure` cookies.
    fn is_secure(&self) -> bool {
        self.client.redirect_url.scheme() == "https"
    }

    fn cookie(&self, kind: CookieKind, value: &str) -> Cookie {
        let (name, same_site, max_age) = match kind {
            // The issuer's site redirects the browser, and that request must carry the cookie.
            CookieKind::Flow => ("crowsnest-sign-in", SameSite::Lax, Some(SIGN_IN_TIMEOUT.as_secs())),
            CookieKind::Session => ("crowsnest-oidc", SameSite::Strict, None),
        };
        Cookie { name, value: value.to_owned(), same_site, max_age, is_secure: self.is_secure() }
    }

    /// Session handle of a browser.
    pub(super) fn handle(&self, headers: &HeaderMap) -> Option<String> {
        cookies::find_value(headers, &self.cookie(CookieKind::Session, "").full_name())
    }

    /// Name of the issuer and login URL, for the sign-in page.
    pub(super) fn describe(&self) -> serde_json::Value {
        let issuer = self.oidc.settings().issuer_url();
        let name = Url::parse(issuer).ok().and_then(|url| url.host_str().map(str::to_owned));
        // A sign-in must begin at the host where it ends, because cookies are bound to a host.
        let login_url = self.client.redirect_url.join(LOGIN).map(String::from);
        serde_json::json!({"name": name, "login": login_url.unwrap_or_else(|_| LOGIN.to_owned())})
    }

    /// URL of `path` on this server, and the issuer whose ID tokens are accepted there.
    pub(super) fn url_and_issuer(&self, path: &str) -> Option<(Url, &str)> {
        Some((self.client.redirect_url.join(path).ok()?, self.oidc.settings().issuer_url()))
    }

    /// Ends the browser's session. Returns the cookie that deletes it and the issuer's sign-out URL, if any.
    pub(super) async fn sign_out(&self, headers: &HeaderMap) -> (Cookie, Option<String>) {
        let deleted_cookie = self.cookie(CookieKind::Session, "").into_deletion();
        let Some(handle) = self.handle(headers) else { return (deleted_cookie, None) };
        let Some(refresh_token) = self.sessions.close(&handle).await else { return (deleted_cookie, None) };
        if let Some(token) = refresh_token
            && let Err(error) = exchange::revoke(&self.oidc, &self.client, &token).await
        {
            tracing::warn!(error = format_error_chain(&error), "cannot revoke a refresh token");
        }
        let documents = self.oidc.issuer().documents().await.ok();
        let endpoint = documents.and_then(|documents| documents.metadata.end_session_endpoint.clone());
        (deleted_cookie, endpoint.and_then(|endpoint| sign_out_url(&endpoint, self.oidc.settings().client_id())))
    }

    /// Starts a sign-in. Returns the URL to redirect to and the cookie with its state.
    async fn begin(&self, return_path: String) -> Result<(Url, Cookie), SignInFailure> {
        let documents =
            self.oidc.issuer().documents().await.map_err(|error| SignInFailure::from_issuer_error(&error))?;
        let endpoint = documents.metadata.authorization_endpoint.as_deref().and_then(|url| Url::parse(url).ok());
        let endpoint = endpoint.ok_or_else(|| {
            SignInFailure::from_exchange_error(&exchange::ExchangeError::NoEndpoint("authorization_endpoint"))
        })?;
        let flow = Flow::new(rand::random(), return_path, Timestamp::now());
        let sealed = flow::seal(&self.seal, &flow, rand::random()).ok_or_else(|| {
            SignInFailure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The state of this sign-in is too large for a cookie.",
                SIGN_IN_AGAIN,
            )
        })?;
        let url = flow.authorization_url(endpoint, self.oidc.settings().client_id(), &self.client);
        Ok((url, self.cookie(CookieKind::Flow, &sealed)))
    }

    /// The sign-in in progress of a browser.
    fn find_flow(&self, headers: &HeaderMap) -> Option<Flow> {
        let cookie = cookies::find_value(headers, &self.cookie(CookieKind::Flow, "").full_name())?;
        flow::open(&self.seal, &cookie, Timestamp::now())
    }

    /// Checks the returned values and exchanges the code for tokens.
    async fn finish(&self, flow: &Flow, parameters: &CallbackParameters) -> Result<NewSession, SignInFailure> {
        if parameters.state.as_deref() != Some(flow.state.as_str()) {
            let cause =
                "This response belongs to another sign-in: its state differs from the latest one in this browser.";
            return Err(SignInFailure::new(StatusCode::BAD_REQUEST, cause, SIGN_IN_AGAIN));
        }
        let issuer = self.oidc.settings().issuer_url();
        if let Some(iss) = parameters.iss.as_deref().filter(|iss| *iss != issuer) {
            let cause = format!("This response is from {iss}, but the sign-in was started at {issuer}.");
            return Err(SignInFailure::new(StatusCode::BAD_REQUEST, cause, SIGN_IN_AGAIN));
        }
        if let Some(error) = &parameters.error {
            return Err(SignInFailure::from_error_response(error, parameters.error_description.as_deref()));
        }
        let Some(code) = parameters.code.as_deref().filter(|code| !code.is_empty()) else {
            let cause = "The identity provider returned no code.";
            return Err(SignInFailure::new(StatusCode::BAD_REQUEST, cause, SIGN_IN_AGAIN));
        };
        let tokens = exchange::redeem(&self.oidc, &self.client, code, &flow.verifier).await;
        let tokens = tokens.map_err(|error| SignInFailure::from_exchange_error(&error))?;
        let Some(id_token) = tokens.id_token else {
            let cause = "The identity provider returned no id_token.";
            let next_step = "The administrator of the identity provider must allow the scope openid for this client.";
            return Err(SignInFailure::new(StatusCode::BAD_GATEWAY, cause, next_step));
        };
        let claims = self.oidc.verify(&id_token).await.map_err(|error| SignInFailure::from_token_error(&error))?;
        if claims.get("nonce").and_then(serde_json::Value::as_str) != Some(flow.nonce.as_str()) {
            let cause = "The identity provider's token belongs to another sign-in: its nonce differs.";
            return Err(SignInFailure::new(StatusCode::UNAUTHORIZED, cause, SIGN_IN_AGAIN));
        }
        let rejected = |error: ClaimError| SignInFailure::from_token_error(&OidcError::from(error));
        self.oidc.user(&claims).map_err(rejected)?;
        Ok(NewSession { id_token, claims, refresh_token: tokens.refresh_token })
    }

    /// The failure for a user whom the control plane does not accept.
    fn rejected_user_failure(&self, failure: &ApiError) -> SignInFailure {
        let message = &failure.message;
        match code(failure) {
            StatusCode::UNAUTHORIZED => {
                let settings = self.oidc.settings();
                let next_step = format!(
                    "The administrator of the control plane must start its API server with --oidc-issuer-url={} and \
                     --oidc-client-id={}, and with the same other --oidc-* flags as Crowsnest.",
                    settings.issuer_url(),
                    settings.client_id()
                );
                let cause = "The identity provider authenticated you, but the control plane does not accept its token.";
                SignInFailure::new(StatusCode::UNAUTHORIZED, cause, next_step)
            }
            status => {
                let cause = format!("Cannot read your identity from the control plane: {message}");
                SignInFailure::new(status, cause, "Try again in a moment.")
            }
        }
    }
}

/// Kinds of cookies.
#[derive(Debug, Clone, Copy)]
enum CookieKind {
    Flow,
    Session,
}

/// The issuer's sign-out URL. The user confirms there: an ID token hint would avoid this, but a token must not be in a
/// URL.
fn sign_out_url(endpoint: &str, client_id: &str) -> Option<String> {
    let mut url = Url::parse(endpoint).ok()?;
    url.query_pairs_mut().append_pair("client_id", client_id);
    Some(url.into())
}

#[derive(Debug, Deserialize)]
pub(super) struct LoginParameters {
    #[serde(rename = "return")]
    return_path: Option<String>,
}

/// `GET /ui/oidc/login`.
pub(super) async fn login(State(ui): State<Ui>, Query(parameters): Query<LoginParameters>) -> Response<Body> {
    let return_path = local_path(parameters.return_path.as_deref().unwrap_or_default());
    let Some(sign_in) = &ui.oidc else { return not_configured() };
    match sign_in.begin(return_path.clone()).await {
        Ok((url, cookie)) => redirect(url.as_str(), &[cookie]),
        Err(failure) => failure_page(&failure, &return_path, &[]),
    }
}

/// Parameters of the redirect from the issuer.
#[derive(Deserialize)]
pub(super) struct CallbackParameters {
    code: Option<String>,
    state: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// `GET /ui/oidc/callback`.
pub(super) async fn callback(
    State(ui): State<Ui>,
    headers: HeaderMap,
    Query(parameters): Query<CallbackParameters>,
) -> Response<Body> {
    let Some(sign_in) = &ui.oidc else { return not_configured() };
    let deleted_cookie = sign_in.cookie(CookieKind::Flow, "").into_deletion();
    let Some(flow) = sign_in.find_flow(&headers) else {
        let cause = "This browser has not started a sign-in here, or it has expired.";
        return failure_page(
            &SignInFailure::new(StatusCode::BAD_REQUEST, cause, SIGN_IN_AGAIN),
            "/",
            &[deleted_cookie],
        );
    };
    let new_session = match sign_in.finish(&flow, &parameters).await {
        Ok(new_session) => new_session,
        Err(failure) => return failure_page(&failure, &flow.return_path, &[deleted_cookie]),
    };
    let user = match ui.upstream.as_bearer(&new_session.id_token) {
        Ok(actor) => actor.whoami().await,
        Err(failure) => Err(failure),
    };
    match user {
        Ok(_) => {
            // A browser has one session at a time, so an earlier session or token is removed.
            if let Some(handle) = sign_in.handle(&headers) {
                sign_in.sessions.close(&handle).await;
            }
            let handle = sign_in.sessions.open(new_session, flow.nonce, rand::random());
            let session_cookie = sign_in.cookie(CookieKind::Session, &handle);
            redirect(
                &flow.return_path,
                &[
                    deleted_cookie,
                    session_cookie,
                    ui.token_sessions.end(&headers),
                    ui.kubeconfig_sessions.end(&headers),
                ],
            )
        }
        Err(failure) => failure_page(&sign_in.rejected_user_failure(&failure), &flow.return_path, &[deleted_cookie]),
    }
}

fn not_configured() -> Response<Body> {
    let cause = "Sign-in with an identity provider is not configured.";
    let next_step =
        "Sign in with a token on the first page, or start Crowsnest with --oidc-issuer-url and --oidc-client-id.";
    failure_page(&SignInFailure::new(StatusCode::NOT_FOUND, cause, next_step), "/", &[])
}

fn failure_page(failure: &SignInFailure, return_path: &str, cookies: &[Cookie]) -> Response<Body> {
    tracing::info!(reason = failure.cause, "sign-in failed");
    finish_response(failure.page(return_path), cookies)
}

fn redirect(url: &str, cookies: &[Cookie]) -> Response<Body> {
    let Ok(location) = HeaderValue::from_str(url) else {
        return ApiError::internal("invalid redirect URL").into_response();
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(header::LOCATION, location);
    finish_response(response, cookies)
}

/// Adds cookies and disables caching.
fn finish_response(mut response: Response<Body>, cookies: &[Cookie]) -> Response<Body> {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    cookies::add_cookies(response, cookies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_out_urls_contain_no_token() {
        let url = sign_out_url("https://id.example.com/logout?a=b", "crows nest");
        assert_eq!(url.as_deref(), Some("https://id.example.com/logout?a=b&client_id=crows+nest"));
    }
}
