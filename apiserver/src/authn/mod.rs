//! Authentication: client certificates, service-account, bootstrap and static tokens, ID tokens, front-proxy headers,
//! anonymous.
//!
//! [`Authenticator`] turns what a connection and its headers prove into a [`UserInfo`]. Read by `http/`; the service-account
//! part also issues tokens and answers TokenReviews.

pub mod authority;
pub mod bootstrap;
mod certificate;
pub mod impersonation;
#[cfg(test)]
mod impersonation_tests;
pub mod oidc;
mod rsa;
mod service_account;
pub mod serving;
mod sign;
mod signing_request;
pub mod token;

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_api::user::{ANONYMOUS, UserInfo};
use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap};

use crate::registry::Registry;
use crate::status::{ApiError, ApiResult, Reason};

pub(crate) use authority::renew;
pub use authority::{Authority, Credentials};
pub use certificate::PeerCertificate;
pub use oidc::Oidc;
pub use service_account::legacy_token;
pub use serving::Serving;
pub use signing_request::SigningRequest;
pub use token::{Algorithm, TokenSigner};

/// Common name of the certificate whose bearer may speak for others through `X-Remote-*` headers.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// Put on requests by in-process clients; cannot come from the network.
#[derive(Debug, Clone)]
pub struct InProcess(pub UserInfo);

/// See the module.
pub struct Authenticator {
    registry: Arc<Registry>,
    tokens: HashMap<String, UserInfo>,
    pub signer: Arc<TokenSigner>,
    oidc: Option<Arc<Oidc>>,
    anonymous: bool,
}

impl Authenticator {
    /// `tokens` are static bearer tokens; ID tokens of the issuer that `oidc` knows are believed, too.
    pub fn new(
        registry: Arc<Registry>,
        signer: Arc<TokenSigner>,
        tokens: HashMap<String, UserInfo>,
        oidc: Option<Arc<Oidc>>,
        anonymous: bool,
    ) -> Self {
        Self { registry, tokens, signer, oidc, anonymous }
    }

    /// Who sends this request; 401 when a given proof is wrong, or none is given and anonymous requests are off. A client's
    /// certificate goes before its token, and what is no bearer token proves nothing, as in kube-apiserver.
    pub async fn authenticate(&self, headers: &HeaderMap, extensions: &Extensions) -> ApiResult<UserInfo> {
        if let Some(InProcess(user)) = extensions.get::<InProcess>() {
            return Ok(authenticated(user.clone()));
        }
        if let Some(certificate) = extensions.get::<PeerCertificate>() {
            let user = certificate.user();
            if user.name == FRONT_PROXY
                && let Some(remote) = remote_user(headers)
            {
                return Ok(authenticated(remote));
            }
            if !user.name.is_empty() {
                return Ok(authenticated(user));
            }
        }
        match bearer(headers).or_else(|| websocket_bearer(headers)) {
            Some(token) => self.user_of_token(&token, &[]).await.map(|(user, _)| user).ok_or_else(unauthorized),
            None if self.anonymous => Ok(UserInfo {
                name: "system:anonymous".into(),
                groups: vec!["system:unauthenticated".into()],
                ..UserInfo::default()
            }),
            None => Err(unauthorized()),
        }
    }

    /// The user a bearer token proves, with the token's audiences. Empty `audiences` means this server's own.
    pub async fn user_of_token(&self, token: &str, audiences: &[String]) -> Option<(UserInfo, Vec<String>)> {
        match self.check_token(token, audiences).await {
            Ok(found) => Some(found),
            Err(reason) => {
                tracing::debug!(reason, "bearer token refused");
                None
            }
        }
    }

    /// The same with the reason for a refusal, as TokenReview reports it.
    pub async fn check_token(&self, token: &str, audiences: &[String]) -> Result<(UserInfo, Vec<String>), String> {
        let own = self.signer.audiences();
        let wanted = if audiences.is_empty() { own } else { audiences };
        // Neither static tokens nor bootstrap tokens nor ID tokens tell audiences of ours.
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

    /// Answers a TokenRequest for a service account.
    pub async fn issue(
        &self,
        registry: &Registry,
        ctx: &crate::registry::strategy::RequestContext,
        account: &serde_json::Value,
        request: &serde_json::Value,
    ) -> ApiResult<serde_json::Value> {
        service_account::issue(registry, &self.signer, ctx, account, request).await
    }
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let mut parts = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().splitn(3, ' ');
    let (scheme, token) = (parts.next()?, parts.next()?);
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

/// What is told to a client whose bearer token is not where it is looked for.
pub(crate) fn misplaced_bearer(headers: &HeaderMap) -> Option<&'static str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let text = "the provided Authorization header contains extra space before the bearer token, and is ignored";
    (scheme.eq_ignore_ascii_case("bearer") && token.starts_with(' ')).then_some(text)
}

/// Browsers cannot set headers on WebSockets: the token may come as a subprotocol.
fn websocket_bearer(headers: &HeaderMap) -> Option<String> {
    use base64::Engine;
    const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
    let protocols = headers.get_all("sec-websocket-protocol").iter().filter_map(|v| v.to_str().ok());
    let encoded =
        protocols.flat_map(|p| p.split(',')).find_map(|p| p.trim().strip_prefix(PREFIX).map(str::to_owned))?;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok()
}

fn remote_user(headers: &HeaderMap) -> Option<UserInfo> {
    const EXTRA: &str = "x-remote-extra-";
    let text = |v: &http::HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
    let name = text(headers.get("x-remote-user")?);
    let mut user = UserInfo {
        name,
        uid: headers.get("x-remote-uid").map(text).unwrap_or_default(),
        groups: headers.get_all("x-remote-group").iter().map(text).collect(),
        ..UserInfo::default()
    };
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            user.extra.entry(key).or_default().push(text(value));
        }
    }
    Some(user)
}

fn authenticated(user: UserInfo) -> UserInfo {
    if user.name == ANONYMOUS { user } else { user.completed() }
}

pub(crate) fn unauthorized() -> ApiError {
    ApiError::new(Reason::Unauthorized, "Unauthorized")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_tokens_are_proofs() {
        let cases = [
            ("Bearer t", Some("t"), false),
            ("bearer t u", Some("t"), false),
            ("Bearer  t", None, true),
            ("Bearer ", None, false),
            ("Basic dXNlcjpwYXNz", None, false),
            ("t", None, false),
        ];
        for (header, token, misplaced) in cases {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, http::HeaderValue::from_static(header))]);
            let found = (bearer(&headers), misplaced_bearer(&headers).is_some());
            assert_eq!(found, (token.map(str::to_owned), misplaced), "{header:?}");
        }
    }
}
