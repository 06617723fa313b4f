//! Sessions: a bearer token sealed in a cookie (`token_sessions`), a handle of a token issued by an identity provider (`oidc`),
//! or a handle of a kubeconfig's credentials (`kubeconfig_sessions`). The control plane authenticates the user in each case.
//!
//! A cookie that is not a valid session is refused without any request to the control plane.

use axum::extract::State;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::Ui;
use super::cookies::{self, Cookie};
use super::kubeconfig_sessions::parse_user;
use super::token_sessions::SessionRandom;
use super::upstream::Actor;
use crowsnest_process::reply::json;

/// Maximum number of concurrent sign-ins: each sends a request of an unauthenticated client to the control plane.
pub const MAX_CONCURRENT_SIGN_INS: usize = 16;

/// The user of a session; renews the token if necessary.
pub(super) async fn actor(ui: &Ui, headers: &HeaderMap) -> Result<Actor, ApiError> {
    if let Some(sign_in) = &ui.oidc
        && let Some(handle) = sign_in.handle(headers)
    {
        return ui.upstream.as_bearer(&sign_in.token(&handle).await?);
    }
    if let Some(actor) = ui.kubeconfig_sessions.actor(headers)? {
        return Ok(actor);
    }
    let token = ui.token_sessions.token(headers)?.ok_or_else(ApiError::unauthorized)?;
    ui.upstream.as_bearer(&token)
}

/// Credential of a sign-in: exactly one of the fields. Has no `Debug`, because credentials must not be logged.
#[derive(Deserialize)]
pub struct SignInRequest {
    token: Option<String>,
    kubeconfig: Option<String>,
}

/// `POST /ui/session`.
pub async fn sign_in(
    State(ui): State<Ui>,
    headers: HeaderMap,
    axum::Json(request): axum::Json<SignInRequest>,
) -> Response {
    match open_session(&ui, &request).await {
        Ok((user, cookie)) => {
            // One session per browser: previous ones are ended.
            let (mut cookies, _) = end_sessions(&ui, &headers).await;
            cookies.retain(|deleted| deleted.name != cookie.name);
            cookies.push(cookie);
            cookies::add_cookies(json(StatusCode::OK, &user), &cookies)
        }
        Err(failure) => failure.into_response(),
    }
}

/// `POST /ui/sign-in`: the user of a credential. Opens no session: a page opened with a token in its URL shows this
/// user and requests a confirmation.
pub async fn preview(State(ui): State<Ui>, axum::Json(request): axum::Json<SignInRequest>) -> Response {
    match authenticate(&ui, &request).await {
        Ok((user, _)) => json(StatusCode::OK, &user),
        Err(failure) => failure.into_response(),
    }
}

/// Authenticates a credential in the control plane; returns the user and the actor for its requests.
async fn authenticate(ui: &Ui, request: &SignInRequest) -> Result<(serde_json::Value, Actor), ApiError> {
    let _permit = ui.sign_in_permits.try_acquire().map_err(|_| ApiError::too_many_requests())?;
    let actor = match &request.kubeconfig {
        Some(kubeconfig) => ui.upstream.as_kubeconfig_user(parse_user(kubeconfig)?)?,
        None => ui.upstream.as_bearer(trimmed_token(request))?,
    };
    Ok((actor.whoami().await?, actor))
}

fn trimmed_token(request: &SignInRequest) -> &str {
    request.token.as_deref().unwrap_or_default().trim()
}

/// Authenticates a credential and returns the user and the cookie of the new session.
async fn open_session(ui: &Ui, request: &SignInRequest) -> Result<(serde_json::Value, Cookie), ApiError> {
    let (user, actor) = authenticate(ui, request).await?;
    let sealed = match &request.kubeconfig {
        Some(_) => None,
        None => ui.token_sessions.open(trimmed_token(request), SessionRandom::new()),
    };
    // Certificates and tokens too large for a cookie stay in this process.
    Ok((user, sealed.unwrap_or_else(|| ui.kubeconfig_sessions.open(actor, rand::random()))))
}

/// Ends all sessions of a browser. Returns the cookies that delete them and the issuer's sign-out URL, if any.
async fn end_sessions(ui: &Ui, headers: &HeaderMap) -> (Vec<Cookie>, Option<String>) {
    let mut deleted_cookies = vec![ui.token_sessions.end(headers), ui.kubeconfig_sessions.end(headers)];
    let mut sign_out_url = None;
    if let Some(oidc) = &ui.oidc {
        let (cookie, end) = oidc.sign_out(headers).await;
        deleted_cookies.push(cookie);
        sign_out_url = end;
    }
    (deleted_cookies, sign_out_url)
}

/// `GET /ui/session`.
pub async fn show_session(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    let user = match actor(&ui, &headers).await {
        Ok(actor) => actor.whoami().await,
        Err(failure) => Err(failure),
    };
    match user {
        Ok(user) => json(StatusCode::OK, &user),
        Err(failure) => failure.into_response(),
    }
}

/// `GET /ui/sign-in`: the available ways to sign in other than with a token.
pub async fn sign_in_methods(State(ui): State<Ui>) -> Response {
    json(StatusCode::OK, &serde_json::json!({"oidc": ui.oidc.as_ref().map(|oidc| oidc.describe())}))
}

/// `DELETE /ui/session`; the response contains the issuer's sign-out URL, if any.
pub async fn sign_out(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    let (deleted_cookies, sign_out_url) = end_sessions(&ui, &headers).await;
    cookies::add_cookies(json(StatusCode::OK, &serde_json::json!({"endSession": sign_out_url})), &deleted_cookies)
}
