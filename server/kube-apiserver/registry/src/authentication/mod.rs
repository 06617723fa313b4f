//! Authentication with the credentials of [`crowsnest_apiserver::authn`] and with tokens that depend on stored
//! objects (service accounts, bootstrap tokens).
//!
//! [`Authenticator`] derives a [`UserInfo`] from a connection and its headers. Used by `http/`; the service account
//! part also issues tokens and processes TokenReviews.

pub mod bootstrap;
mod service_account;

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apimachinery::user::{ANONYMOUS, UserInfo};
use crowsnest_apiserver::authn::{
    InProcessUser, Oidc, Peer, PeerCertificate, TokenSigner, bearer, oidc, request_header,
};
use http::{Extensions, HeaderMap};

use crate::Registry;

pub use service_account::legacy_token;

/// Authenticates requests.
pub struct Authenticator {
    registry: Arc<Registry>,
    tokens: HashMap<String, UserInfo>,
    pub signer: Arc<TokenSigner>,
    oidc: Option<Arc<Oidc>>,
    anonymous: bool,
}

impl Authenticator {
    /// Creates an authenticator. `tokens` are static bearer tokens; `oidc` adds ID tokens of an issuer.
    pub fn new(
        registry: Arc<Registry>,
        signer: Arc<TokenSigner>,
        tokens: HashMap<String, UserInfo>,
        oidc: Option<Arc<Oidc>>,
        anonymous: bool,
    ) -> Self {
        Self { registry, tokens, signer, oidc, anonymous }
    }

    /// The user who sends this request. Fails with 401 if a credential is invalid, or if there is none and anonymous
    /// requests are disabled. As in kube-apiserver, front-proxy headers take precedence over a certificate, and a
    /// certificate over a token.
    pub async fn authenticate(&self, headers: &HeaderMap, extensions: &Extensions) -> ApiResult<UserInfo> {
        if let Some(InProcessUser(user)) = extensions.get::<InProcessUser>() {
            return Ok(authenticated(user.clone()));
        }
        let peer = extensions.get::<Peer>().cloned().unwrap_or_default();
        if peer.front_proxy
            && let Some(remote) = request_header::remote_user(headers)?
        {
            return Ok(authenticated(remote));
        }
        if let PeerCertificate::User(user) = peer.certificate {
            return Ok(authenticated(user));
        }
        if let Some(token) = bearer::bearer_token(headers)? {
            return self.user_of_token(&token, &[]).await.map(|(user, _)| user).ok_or_else(ApiError::unauthorized);
        }
        match peer.certificate {
            PeerCertificate::Refused(why) => {
                tracing::debug!(why, "client certificate refused");
                Err(ApiError::unauthorized())
            }
            _ if self.anonymous => Ok(UserInfo {
                name: "system:anonymous".into(),
                groups: vec!["system:unauthenticated".into()],
                ..UserInfo::default()
            }),
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// The user of a bearer token, and the matching audiences. Empty `audiences` means those of this server.
    pub async fn user_of_token(&self, token: &str, audiences: &[String]) -> Option<(UserInfo, Vec<String>)> {
        match self.check_token(token, audiences).await {
            Ok(found) => Some(found),
            Err(reason) => {
                tracing::debug!(reason, "bearer token refused");
                None
            }
        }
    }

    /// Like [`Self::user_of_token`], with the reason for a rejection as TokenReview reports it.
    pub async fn check_token(&self, token: &str, audiences: &[String]) -> Result<(UserInfo, Vec<String>), String> {
        let own = self.signer.audiences();
        let wanted = if audiences.is_empty() { own } else { audiences };
        // Static tokens, bootstrap tokens and ID tokens carry none of our audiences.
        let shared = || own.iter().filter(|a| wanted.contains(a)).cloned().collect::<Vec<String>>();
        let known = |user: UserInfo| match shared() {
            shared if shared.is_empty() => Err("invalid bearer token".to_owned()),
            shared => Ok((authenticated(user), shared)),
        };
        if let Some(user) = self.tokens.get(token) {
            return known(user.clone());
        }
        if bootstrap::is_addressed(token) {
            return known(bootstrap::check(&self.registry, token, jiff::Timestamp::now())?);
        }
        if let Some(oidc) = self.oidc.as_ref().filter(|oidc| oidc.is_addressed(token)) {
            return match oidc.authenticate(token).await {
                Ok(user) => known(user),
                Err(error) => Err(format!("[invalid bearer token, oidc: {}]", oidc::whole(&error))),
            };
        }
        let (user, audiences) = service_account::check(&self.registry, &self.signer, token, wanted)?;
        Ok((authenticated(user), audiences))
    }

    /// Serves a TokenRequest for a service account.
    pub async fn issue(
        &self,
        registry: &Registry,
        ctx: &crate::strategy::RequestContext,
        account: &serde_json::Value,
        request: &serde_json::Value,
    ) -> ApiResult<serde_json::Value> {
        service_account::issue(registry, &self.signer, ctx, account, request).await
    }
}

fn authenticated(user: UserInfo) -> UserInfo {
    if user.name == ANONYMOUS { user } else { user.completed() }
}
