//! Sessions: a bearer token in a cookie that scripts can't read, or a handle of one that was got at an issuer (`oidc`). Either way
//! the control plane is asked who that is.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, PostParams};
use moka::future::Cache;
use serde::Deserialize;

use super::Ui;
use super::cookies::{self, Cookie, SameSite};
use crate::aggregated::reply::{Failure, json};

const COOKIE: &str = "crowsnest-session";

/// Where the UI's requests go: the control plane's address and authority, with one pooled client per user token.
#[derive(Clone)]
pub(crate) struct Upstream {
    config: kube::Config,
    clients: Cache<String, kube::Client>,
}

impl Upstream {
    /// `config` gives the address and the authority; its own credentials are never used.
    pub(crate) fn new(mut config: kube::Config) -> Self {
        config.auth_info = kube::config::AuthInfo::default();
        // The browser says when to ask again.
        config.default_retry = false;
        let clients = Cache::builder().max_capacity(1_000).time_to_idle(Duration::from_secs(600)).build();
        Self { config, clients }
    }

    /// A client that acts as the token's owner.
    pub(crate) async fn as_user(&self, token: &str) -> Result<kube::Client, Failure> {
        let made = self.clients.try_get_with(token.to_owned(), async {
            let mut config = self.config.clone();
            config.auth_info.token = Some(token.to_owned().into());
            kube::Client::try_from(config)
        });
        made.await.map_err(Failure::internal)
    }
}

/// The cookie of a token that was typed in.
pub(super) fn cookie(ui: &Ui, token: &str) -> Cookie {
    Cookie { name: COOKIE, value: token.to_owned(), same_site: SameSite::Strict, max_age: None, secure: ui.secure }
}

/// The session's token, renewed where it has to be.
pub(super) async fn token(ui: &Ui, headers: &HeaderMap) -> Result<String, Failure> {
    if let Some(sign_in) = &ui.oidc
        && let Some(handle) = sign_in.handle(headers)
    {
        return sign_in.token(&handle).await;
    }
    cookies::find(headers, &cookie(ui, "").full_name()).ok_or_else(Failure::unauthorized)
}

#[derive(Deserialize)]
pub(crate) struct SignIn {
    token: String,
}

/// `POST /ui/session`.
pub(crate) async fn sign_in(
    State(ui): State<Ui>,
    headers: HeaderMap,
    axum::Json(sign_in): axum::Json<SignIn>,
) -> Response {
    let token = sign_in.token.trim();
    if token.is_empty() || token.len() > 8192 || !token.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b',')
    {
        return Failure::bad_request("that is no bearer token").into_response();
    }
    match who(&ui.upstream, token).await {
        Ok(user) => {
            let mut set = vec![cookie(&ui, token)];
            if let Some(oidc) = &ui.oidc {
                set.push(oidc.sign_out(&headers).await.0);
            }
            cookies::set(json(StatusCode::OK, &user), &set)
        }
        Err(failure) => failure.into_response(),
    }
}

/// `GET /ui/session`.
pub(crate) async fn current(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    let user = match token(&ui, &headers).await {
        Ok(token) => who(&ui.upstream, &token).await,
        Err(failure) => Err(failure),
    };
    match user {
        Ok(user) => json(StatusCode::OK, &user),
        Err(failure) => failure.into_response(),
    }
}

/// `GET /ui/sign-in`: the ways to sign in beside a token.
pub(crate) async fn ways(State(ui): State<Ui>) -> Response {
    json(StatusCode::OK, &serde_json::json!({"oidc": ui.oidc.as_ref().map(|oidc| oidc.offer())}))
}

/// `DELETE /ui/session`; the answer says where the session at the issuer can be ended, too.
pub(crate) async fn sign_out(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    let mut gone = vec![cookie(&ui, "").gone()];
    let mut elsewhere = None;
    if let Some(oidc) = &ui.oidc {
        let (cookie, end) = oidc.sign_out(&headers).await;
        gone.push(cookie);
        elsewhere = end;
    }
    cookies::set(json(StatusCode::OK, &serde_json::json!({"endSession": elsewhere})), &gone)
}

/// Who the control plane says a token's bearer is.
pub(super) async fn who(upstream: &Upstream, token: &str) -> Result<serde_json::Value, Failure> {
    let client = upstream.as_user(token).await?;
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let review =
        reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.map_err(Failure::upstream)?;
    let user = review.status.and_then(|s| s.user_info).unwrap_or_default();
    let name = user.username.unwrap_or_default();
    if name.is_empty() || name == "system:anonymous" {
        return Err(Failure::unauthorized());
    }
    Ok(serde_json::json!({"user": name, "groups": user.groups.unwrap_or_default()}))
}
