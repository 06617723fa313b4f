//! Authentication with the credentials of [`crowsnest_apiserver::authn`] and with tokens that depend on stored
//! objects (service accounts, bootstrap tokens).
//!
//! [`Authenticator`] derives a [`UserInfo`] from a connection and its headers. Used by `http/`; the service account
//! part also issues tokens and processes TokenReviews.

pub mod bootstrap;
mod service_account;

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::user::{ANONYMOUS, UserInfo};
use crowsnest_apiserver::authn::{
    InProcessUser, Oidc, Peer, PeerCertificate, TokenSigner, bearer, oidc, request_header,
};
use http::{Extensions, HeaderMap};
use serde_json::Value;

use crate::Registry;
use crate::strategy::RequestContext;

pub use service_account::legacy_token;

/// Credentials that are accepted in addition to client certificates, service account tokens and bootstrap tokens.
pub struct AuthenticationConfig {
    /// Static bearer tokens, with their users.
    pub tokens: HashMap<String, UserInfo>,
    /// Issuer of accepted ID tokens.
    pub oidc: Option<Arc<Oidc>>,
    /// True if requests without credentials are accepted as `system:anonymous`.
    pub allows_anonymous: bool,
}

/// By default, only requests without credentials are accepted in addition.
impl Default for AuthenticationConfig {
    fn default() -> Self {
        Self { tokens: HashMap::new(), oidc: None, allows_anonymous: true }
    }
}

/// Authenticates requests.
pub struct Authenticator {
    registry: Arc<Registry>,
    pub signer: Arc<TokenSigner>,
    config: AuthenticationConfig,
}

impl Authenticator {
    pub fn new(registry: Arc<Registry>, signer: Arc<TokenSigner>, config: AuthenticationConfig) -> Self {
        Self { registry, signer, config }
    }

    /// The user who sends this request. Fails with 401 if a credential is invalid, or if there is none and anonymous
    /// requests are disabled. As in kube-apiserver, front-proxy headers take precedence over a certificate, and a
    /// certificate over a token.
    pub async fn authenticate(&self, headers: &HeaderMap, extensions: &Extensions) -> ApiResult<UserInfo> {
        if let Some(InProcessUser(user)) = extensions.get::<InProcessUser>() {
            return Ok(with_standard_groups(user.clone()));
        }
        let peer = extensions.get::<Peer>().cloned().unwrap_or_default();
        if peer.is_front_proxy
            && let Some(remote) = request_header::remote_user(headers)?
        {
            return Ok(with_standard_groups(remote));
        }
        if let PeerCertificate::User(user) = peer.certificate {
            return Ok(with_standard_groups(user));
        }
        if let Some(token) = bearer::bearer_token(headers)? {
            return self.authenticate_token(&token, &[]).await.map(|(user, _)| user).ok_or_else(ApiError::unauthorized);
        }
        match peer.certificate {
            PeerCertificate::Rejected(reason) => {
                tracing::debug!(reason, "client certificate rejected");
                Err(ApiError::unauthorized())
            }
            _ if self.config.allows_anonymous => Ok(UserInfo {
                name: "system:anonymous".into(),
                groups: vec!["system:unauthenticated".into()],
                ..UserInfo::default()
            }),
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// The user of a bearer token, and the matching audiences. Empty `audiences` means those of this server.
    pub async fn authenticate_token(&self, token: &str, audiences: &[String]) -> Option<(UserInfo, Vec<String>)> {
        match self.check_token(token, audiences).await {
            Ok(user_and_audiences) => Some(user_and_audiences),
            Err(reason) => {
                tracing::debug!(reason, "bearer token rejected");
                None
            }
        }
    }

    /// Like [`Self::authenticate_token`], with the reason for a rejection as TokenReview reports it.
    pub async fn check_token(&self, token: &str, audiences: &[String]) -> Result<(UserInfo, Vec<String>), String> {
        let server_audiences = self.signer.audiences();
        let accepted = if audiences.is_empty() { server_audiences } else { audiences };
        // Static tokens, bootstrap tokens and ID tokens name none of this server's audiences and are valid for all of them.
        let accept = |user: UserInfo| {
            let matching: Vec<String> = server_audiences.iter().filter(|a| accepted.contains(a)).cloned().collect();
            match matching.is_empty() {
                true => Err("invalid bearer token".to_owned()),
                false => Ok((with_standard_groups(user), matching)),
            }
        };
        if let Some(user) = self.config.tokens.get(token) {
            return accept(user.clone());
        }
        if bootstrap::is_bootstrap_token(token) {
            return accept(bootstrap::authenticate(&self.registry, token, jiff::Timestamp::now())?);
        }
        if let Some(oidc) = self.config.oidc.as_ref().filter(|oidc| oidc.is_issuer_of(token)) {
            return match oidc.authenticate(token).await {
                Ok(user) => accept(user),
                Err(error) => Err(format!("[invalid bearer token, oidc: {}]", oidc::format_error_chain(&error))),
            };
        }
        let (user, audiences) = service_account::authenticate(&self.registry, &self.signer, token, accepted)?;
        Ok((with_standard_groups(user), audiences))
    }

    /// Serves a TokenRequest for a service account.
    pub async fn issue_token(&self, ctx: &RequestContext, account: &Value, request: &Value) -> ApiResult<Value> {
        service_account::issue(&self.registry, &self.signer, ctx, account, request).await
    }
}

/// Adds the groups of all authenticated users, unless the user is anonymous.
fn with_standard_groups(user: UserInfo) -> UserInfo {
    if user.name == ANONYMOUS { user } else { user.with_implied_groups() }
}
