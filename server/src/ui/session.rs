//! Sessions: the user's bearer token in a cookie that scripts can't read, checked by asking the control plane who it is.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, PostParams};
use moka::future::Cache;
use serde::Deserialize;

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

/// The session's token.
pub(crate) fn token(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    let found = cookies
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == COOKIE && !value.is_empty())?;
    Some(found.1.to_owned())
}

#[derive(Deserialize)]
pub(crate) struct SignIn {
    token: String,
}

/// `POST /ui/session`.
pub(crate) async fn sign_in(State(upstream): State<Upstream>, axum::Json(sign_in): axum::Json<SignIn>) -> Response {
    let token = sign_in.token.trim();
    if token.is_empty() || token.len() > 8192 || !token.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b',')
    {
        return Failure::bad_request("that is no bearer token").into_response();
    }
    match who(&upstream, token).await {
        Ok(user) => {
            with_cookie(json(StatusCode::OK, &user), &format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict"))
        }
        Err(failure) => failure.into_response(),
    }
}

/// `GET /ui/session`.
pub(crate) async fn current(State(upstream): State<Upstream>, headers: HeaderMap) -> Response {
    let Some(token) = token(&headers) else { return Failure::unauthorized().into_response() };
    match who(&upstream, &token).await {
        Ok(user) => json(StatusCode::OK, &user),
        Err(failure) => failure.into_response(),
    }
}

/// `DELETE /ui/session`.
pub(crate) async fn sign_out() -> Response {
    with_cookie(
        StatusCode::NO_CONTENT.into_response(),
        &format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"),
    )
}

async fn who(upstream: &Upstream, token: &str) -> Result<serde_json::Value, Failure> {
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

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    match HeaderValue::from_str(cookie) {
        Ok(value) => {
            response.headers_mut().insert(header::SET_COOKIE, value);
            response
        }
        Err(error) => Failure::internal(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("theme=dark; crowsnest-session=abc.def; x=y"));
        assert_eq!(token(&headers).as_deref(), Some("abc.def"));
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
