//! Sessions: a bearer token in a cookie that scripts can't read, a handle of one that was got at an issuer (`oidc`), or a handle of what
//! a kubeconfig proves somebody by (`identities`). Always the control plane is asked who that is.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, PostParams};
use kube::config::AuthInfo;
use moka::future::Cache;
use serde::Deserialize;

use super::Ui;
use super::cookies::{self, Cookie, SameSite};
use super::identities::user_of;
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

    /// A client that proves who it is by what a kubeconfig had.
    fn proven(&self, user: AuthInfo) -> Result<kube::Client, Failure> {
        let mut config = self.config.clone();
        config.auth_info = user;
        let unusable =
            |error: kube::Error| Failure::bad_request(format!("its client certificate or key can't be used: {error}"));
        kube::Client::try_from(config).map_err(unusable)
    }
}

/// The cookie of a token that was typed in.
pub(super) fn cookie(ui: &Ui, token: &str) -> Cookie {
    Cookie { name: COOKIE, value: token.to_owned(), same_site: SameSite::Strict, max_age: None, secure: ui.secure }
}

/// Acts as the session's user, whose token is renewed where it has to be.
pub(super) async fn client(ui: &Ui, headers: &HeaderMap) -> Result<kube::Client, Failure> {
    if let Some(sign_in) = &ui.oidc
        && let Some(handle) = sign_in.handle(headers)
    {
        return ui.upstream.as_user(&sign_in.token(&handle).await?).await;
    }
    if let Some(client) = ui.identities.client(headers)? {
        return Ok(client);
    }
    let token = cookies::find(headers, &cookie(ui, "").full_name()).ok_or_else(Failure::unauthorized)?;
    ui.upstream.as_user(&token).await
}

/// What somebody signs in with: one of these.
#[derive(Deserialize)]
pub(crate) struct SignIn {
    token: Option<String>,
    kubeconfig: Option<String>,
}

/// `POST /ui/session`.
pub(crate) async fn sign_in(
    State(ui): State<Ui>,
    headers: HeaderMap,
    axum::Json(sign_in): axum::Json<SignIn>,
) -> Response {
    match opened(&ui, &sign_in).await {
        Ok((user, opened)) => {
            // One session at a time: whatever was there before is forgotten.
            let (mut set, _) = ended(&ui, &headers).await;
            set.retain(|gone| gone.name != opened.name);
            set.push(opened);
            cookies::set(json(StatusCode::OK, &user), &set)
        }
        Err(failure) => failure.into_response(),
    }
}

/// Who that is, and the cookie of the session, once the control plane knows them.
async fn opened(ui: &Ui, sign_in: &SignIn) -> Result<(serde_json::Value, Cookie), Failure> {
    if let Some(kubeconfig) = &sign_in.kubeconfig {
        let client = ui.upstream.proven(user_of(kubeconfig)?)?;
        let user = whom(client.clone()).await?;
        return Ok((user, ui.identities.open(client, rand::random())));
    }
    let token = sign_in.token.as_deref().unwrap_or_default().trim();
    if token.is_empty() || token.len() > 8192 || !token.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b',')
    {
        return Err(Failure::bad_request("that is no bearer token"));
    }
    Ok((who(&ui.upstream, token).await?, cookie(ui, token)))
}

/// Ends whatever session a browser has: the cookies that forget it, and where it may be ended at the issuer, too.
async fn ended(ui: &Ui, headers: &HeaderMap) -> (Vec<Cookie>, Option<String>) {
    let mut gone = vec![cookie(ui, "").gone(), ui.identities.end(headers)];
    let mut elsewhere = None;
    if let Some(oidc) = &ui.oidc {
        let (cookie, end) = oidc.sign_out(headers).await;
        gone.push(cookie);
        elsewhere = end;
    }
    (gone, elsewhere)
}

/// `GET /ui/session`.
pub(crate) async fn current(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    let user = match client(&ui, &headers).await {
        Ok(client) => whom(client).await,
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
    let (gone, elsewhere) = ended(&ui, &headers).await;
    cookies::set(json(StatusCode::OK, &serde_json::json!({"endSession": elsewhere})), &gone)
}

/// Who the control plane says a token's bearer is.
pub(super) async fn who(upstream: &Upstream, token: &str) -> Result<serde_json::Value, Failure> {
    whom(upstream.as_user(token).await?).await
}

/// Who the control plane says a client acts as.
async fn whom(client: kube::Client) -> Result<serde_json::Value, Failure> {
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
