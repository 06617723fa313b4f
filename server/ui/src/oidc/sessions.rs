//! Sessions of users who signed in at an issuer. Tokens stay in this process; the browser has a handle. The ID token
//! is renewed with the refresh token when it expires. The sign-in creates sessions; every request of the UI reads them.

use crowsnest_apimachinery::status::{ApiError, Reason};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apiserver::authn::oidc::{self, Claims, OidcError, format_error_chain};
use jiff::{SignedDuration, Timestamp};
use moka::sync::Cache;
use tokio::sync::Mutex;

use super::SignIn;
use super::exchange::{self, TokenResponse};
use super::flow::Secret;

use crate::handle::{self, Fingerprint, fingerprint};

/// Idle time after which a session ends. The issuer limits the lifetime of active sessions.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions; the least used ones are ended first.
const MAX_SESSIONS: u64 = 10_000;
/// Tokens that expire within this time are renewed, because they could expire during a request.
const RENEWAL_MARGIN: SignedDuration = SignedDuration::from_secs(10);

/// Sessions by the fingerprint of their handle.
pub(super) struct Sessions(Cache<Fingerprint, Arc<Session>>);

pub(super) struct Session {
    /// Subject at the issuer; must not change.
    subject: String,
    /// Nonce of the sign-in; later ID tokens repeat or omit it.
    nonce: String,
    tokens: Mutex<SessionTokens>,
}

struct SessionTokens {
    id_token: String,
    expires: Timestamp,
    refresh_token: Option<String>,
}

impl SessionTokens {
    fn is_valid(&self, now: Timestamp, margin: SignedDuration) -> bool {
        now.saturating_add(margin).is_ok_and(|then| then < self.expires)
    }
}

/// Verified ID token and the other tokens of the response.
pub(super) struct NewSession {
    pub(super) id_token: String,
    pub(super) claims: Claims,
    pub(super) refresh_token: Option<String>,
}

/// Reason why a session has no valid token.
#[derive(Debug)]
enum TokenError {
    /// The session has ended permanently.
    Ended(String),
    Unavailable(String),
}

impl From<TokenError> for ApiError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Ended(reason) => Self::new(Reason::Unauthorized, format!("{reason}; sign in again")),
            TokenError::Unavailable(reason) => {
                Self::new(Reason::ServiceUnavailable, format!("cannot renew your session: {reason}"))
            }
        }
    }
}

fn claim<'a>(claims: &'a Claims, name: &str) -> &'a str {
    claims.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self(Cache::builder().max_capacity(MAX_SESSIONS).time_to_idle(IDLE_TIMEOUT).build())
    }

    /// Opens a session; returns its handle.
    pub(super) fn open(&self, new_session: NewSession, nonce: String, random: Secret) -> String {
        let handle = handle::encode_handle(random);
        let session = Session {
            subject: claim(&new_session.claims, "sub").to_owned(),
            nonce,
            tokens: Mutex::new(SessionTokens {
                expires: oidc::expiry(&new_session.claims),
                id_token: new_session.id_token,
                refresh_token: new_session.refresh_token,
            }),
        };
        self.0.insert(fingerprint(&handle), Arc::new(session));
        handle
    }

    /// Ends a session; returns its refresh token, to be revoked at the issuer.
    pub(super) async fn close(&self, handle: &str) -> Option<Option<String>> {
        let session = self.0.remove(&fingerprint(handle))?;
        let refresh_token = session.tokens.lock().await.refresh_token.take();
        Some(refresh_token)
    }
}

impl SignIn {
    /// The current ID token of a session.
    pub async fn token(self: &Arc<Self>, handle: &str) -> Result<String, ApiError> {
        let key = fingerprint(handle);
        let Some(session) = self.sessions.0.get(&key) else {
            return Err(TokenError::Ended("your session has ended".to_owned()).into());
        };
        {
            let tokens = session.tokens.lock().await;
            if tokens.is_valid(Timestamp::now(), RENEWAL_MARGIN) {
                return Ok(tokens.id_token.clone());
            }
        }
        // The renewal must complete even if the browser disconnects, because the refresh token may work only once.
        let this = Arc::clone(self);
        let result = self.renewals.spawn(async move { this.renew(&session).await }).await;
        let result = result.map_err(ApiError::internal)?;
        if matches!(result, Err(TokenError::Ended(_))) {
            self.sessions.0.invalidate(&key);
        }
        Ok(result?)
    }

    /// Renews one token at a time, because refresh tokens often work only once.
    async fn renew(&self, session: &Session) -> Result<String, TokenError> {
        let mut tokens = session.tokens.lock().await;
        if tokens.is_valid(Timestamp::now(), RENEWAL_MARGIN) {
            return Ok(tokens.id_token.clone());
        }
        match self.request_renewal(session, &tokens).await {
            Ok(renewed) => {
                *tokens = renewed;
                Ok(tokens.id_token.clone())
            }
            Err(TokenError::Unavailable(_)) if tokens.is_valid(Timestamp::now(), SignedDuration::ZERO) => {
                Ok(tokens.id_token.clone())
            }
            Err(error) => {
                let (TokenError::Ended(reason) | TokenError::Unavailable(reason)) = &error;
                tracing::info!(reason, "cannot renew a session of the UI");
                Err(error)
            }
        }
    }

    async fn request_renewal(&self, session: &Session, tokens: &SessionTokens) -> Result<SessionTokens, TokenError> {
        let Some(refresh_token) = &tokens.refresh_token else {
            return Err(TokenError::Ended(format!("your session lasted until {:.0}", tokens.expires)));
        };
        let TokenResponse { id_token, refresh_token: new_refresh_token } =
            exchange::renew(&self.oidc, &self.client, refresh_token).await.map_err(|error| match error.is_final() {
                true => TokenError::Ended(format!("your session is no longer renewed: {}", format_error_chain(&error))),
                false => TokenError::Unavailable(format_error_chain(&error)),
            })?;
        let id_token = id_token.ok_or_else(|| {
            TokenError::Ended("your session has ended: the issuer renewed it without an id_token".to_owned())
        })?;
        let claims = self.oidc.verify(&id_token).await.map_err(|error| match error {
            OidcError::Issuer(_) => TokenError::Unavailable(format_error_chain(&error)),
            error => TokenError::Ended(format!("your session has ended: {}", format_error_chain(&error))),
        })?;
        if let Some(claim) = session.differing_claim(&claims) {
            return Err(TokenError::Ended(format!(
                "your session has ended: the issuer renewed it with another {claim}"
            )));
        }
        let expires = oidc::expiry(&claims);
        Ok(SessionTokens {
            id_token,
            expires,
            refresh_token: new_refresh_token.or_else(|| Some(refresh_token.clone())),
        })
    }
}

impl Session {
    /// The claim of a renewed token that differs from the original (OpenID Connect Core 12.2).
    fn differing_claim(&self, claims: &Claims) -> Option<&'static str> {
        if claim(claims, "sub") != self.subject {
            return Some("user");
        }
        let has_other_nonce = claims.get("nonce").is_some() && claim(claims, "nonce") != self.nonce;
        has_other_nonce.then_some("nonce")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(value: serde_json::Value) -> Claims {
        value.as_object().cloned().unwrap()
    }

    fn tokens(expires: i64) -> SessionTokens {
        let expires = Timestamp::from_second(expires).unwrap();
        SessionTokens { id_token: "a.b.c".into(), expires, refresh_token: None }
    }

    #[test]
    fn tokens_are_renewed_before_they_expire() {
        let now = Timestamp::from_second(100).unwrap();
        for (expires, expected) in [(111, true), (110, false), (100, false), (90, false)] {
            assert_eq!(tokens(expires).is_valid(now, RENEWAL_MARGIN), expected, "{expires}");
        }
    }

    #[test]
    fn renewed_tokens_must_have_the_same_subject() {
        let session = Session { subject: "u-1".into(), nonce: "n".into(), tokens: Mutex::new(tokens(0)) };
        let cases = [
            (json!({"sub": "u-1"}), None),
            (json!({"sub": "u-1", "nonce": "n"}), None),
            (json!({"sub": "u-1", "nonce": "m"}), Some("nonce")),
            (json!({"sub": "u-1", "nonce": 7}), Some("nonce")),
            (json!({"sub": "u-2"}), Some("user")),
            (json!({}), Some("user")),
        ];
        for (renewed_claims, expected) in cases {
            assert_eq!(session.differing_claim(&claims(renewed_claims.clone())), expected, "{renewed_claims}");
        }
    }

    #[tokio::test]
    async fn handles_open_one_session_until_it_is_closed() {
        let sessions = Sessions::new();
        let new_session = |refresh: &str| NewSession {
            id_token: "a.b.c".into(),
            claims: claims(json!({"sub": "u-1", "exp": 5})),
            refresh_token: Some(refresh.to_owned()),
        };
        let (first, second) = (
            sessions.open(new_session("r-1"), "n".into(), [1; 32]),
            sessions.open(new_session("r-2"), "n".into(), [2; 32]),
        );
        assert_eq!(sessions.close("unknown").await, None);
        assert_eq!(sessions.close(&first).await, Some(Some("r-1".to_owned())));
        assert_eq!(sessions.close(&first).await, None);
        assert_eq!(sessions.close(&second).await, Some(Some("r-2".to_owned())));
    }
}
