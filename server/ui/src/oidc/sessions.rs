//! Sessions of users who signed in at an issuer. Tokens stay in this process; the browser holds a handle. The ID token
//! is renewed with the refresh token when it expires. Written by the sign-in, read by every request of the UI.

use crowsnest_apimachinery::status::{ApiError, Reason};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apiserver::authn::oidc::{self, Claims, OidcError, format_error_chain};
use jiff::{SignedDuration, Timestamp};
use moka::sync::Cache;
use tokio::sync::Mutex;

use super::SignIn;
use super::exchange::{self, Tokens};
use super::flow::Secret;

use crate::handle::{self, Fingerprint, fingerprint};

/// Idle time after which a session ends. The issuer limits the lifetime of active sessions.
const IDLE: Duration = Duration::from_secs(12 * 3600);
const MOST: u64 = 10_000;
/// Tokens that expire within this time are renewed, because they could expire during a request.
const MARGIN: SignedDuration = SignedDuration::from_secs(10);

/// Sessions by the fingerprint of their handle.
pub(super) struct Sessions(Cache<Fingerprint, Arc<Session>>);

pub(super) struct Session {
    /// Subject at the issuer; must not change.
    subject: String,
    /// Nonce of the sign-in; later ID tokens repeat or omit it.
    nonce: String,
    held: Mutex<Held>,
}

struct Held {
    id_token: String,
    expires: Timestamp,
    refresh_token: Option<String>,
}

impl Held {
    fn is_good(&self, now: Timestamp, margin: SignedDuration) -> bool {
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
enum NoToken {
    /// The session has ended permanently.
    Ended(String),
    NotNow(String),
}

impl From<NoToken> for ApiError {
    fn from(no_token: NoToken) -> Self {
        match no_token {
            NoToken::Ended(why) => Self::new(Reason::Unauthorized, format!("{why}; sign in again")),
            NoToken::NotNow(why) => Self::new(Reason::ServiceUnavailable, format!("cannot renew your session: {why}")),
        }
    }
}

fn claim<'a>(claims: &'a Claims, name: &str) -> &'a str {
    claims.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self(Cache::builder().max_capacity(MOST).time_to_idle(IDLE).build())
    }

    /// Opens a session; returns its handle.
    pub(super) fn open(&self, fresh: NewSession, nonce: String, random: Secret) -> String {
        let handle = handle::handle(random);
        let session = Session {
            subject: claim(&fresh.claims, "sub").to_owned(),
            nonce,
            held: Mutex::new(Held {
                expires: oidc::expiry(&fresh.claims),
                id_token: fresh.id_token,
                refresh_token: fresh.refresh_token,
            }),
        };
        self.0.insert(fingerprint(&handle), Arc::new(session));
        handle
    }

    /// Ends a session; returns its refresh token, to be revoked at the issuer.
    pub(super) async fn close(&self, handle: &str) -> Option<Option<String>> {
        let session = self.0.remove(&fingerprint(handle))?;
        let refresh_token = session.held.lock().await.refresh_token.take();
        Some(refresh_token)
    }
}

impl SignIn {
    /// The current ID token of a session.
    pub async fn token(self: &Arc<Self>, handle: &str) -> Result<String, ApiError> {
        let key = fingerprint(handle);
        let Some(session) = self.sessions.0.get(&key) else {
            return Err(NoToken::Ended("your session has ended".to_owned()).into());
        };
        {
            let held = session.held.lock().await;
            if held.is_good(Timestamp::now(), MARGIN) {
                return Ok(held.id_token.clone());
            }
        }
        // The renewal must complete even if the browser disconnects, because the refresh token may work only once.
        let this = Arc::clone(self);
        let renewed = self.renewals.spawn(async move { this.renewed(&session).await }).await;
        let renewed = renewed.map_err(ApiError::internal)?;
        if matches!(renewed, Err(NoToken::Ended(_))) {
            self.sessions.0.invalidate(&key);
        }
        Ok(renewed?)
    }

    /// Renews one at a time, because refresh tokens often work only once.
    async fn renewed(&self, session: &Session) -> Result<String, NoToken> {
        let mut held = session.held.lock().await;
        if held.is_good(Timestamp::now(), MARGIN) {
            return Ok(held.id_token.clone());
        }
        match self.next(session, &held).await {
            Ok(next) => {
                *held = next;
                Ok(held.id_token.clone())
            }
            Err(NoToken::NotNow(_)) if held.is_good(Timestamp::now(), SignedDuration::ZERO) => {
                Ok(held.id_token.clone())
            }
            Err(no_token) => {
                let (NoToken::Ended(why) | NoToken::NotNow(why)) = &no_token;
                tracing::info!(why, "cannot renew a session of the UI");
                Err(no_token)
            }
        }
    }

    async fn next(&self, session: &Session, held: &Held) -> Result<Held, NoToken> {
        let Some(refresh_token) = &held.refresh_token else {
            return Err(NoToken::Ended(format!("your session lasted until {:.0}", held.expires)));
        };
        let Tokens { id_token, refresh_token: next } =
            exchange::renew(&self.oidc, &self.client, refresh_token).await.map_err(|error| match error.is_final() {
                true => NoToken::Ended(format!("your session is no longer renewed: {}", format_error_chain(&error))),
                false => NoToken::NotNow(format_error_chain(&error)),
            })?;
        let id_token = id_token.ok_or_else(|| {
            NoToken::Ended("your session has ended: the issuer renewed it without an id_token".to_owned())
        })?;
        let claims = self.oidc.verify(&id_token).await.map_err(|error| match error {
            OidcError::Issuer(_) => NoToken::NotNow(format_error_chain(&error)),
            error => NoToken::Ended(format!("your session has ended: {}", format_error_chain(&error))),
        })?;
        if let Some(wrong) = session.differs(&claims) {
            return Err(NoToken::Ended(format!("your session has ended: the issuer renewed it with another {wrong}")));
        }
        let expires = oidc::expiry(&claims);
        Ok(Held { id_token, expires, refresh_token: next.or_else(|| Some(refresh_token.clone())) })
    }
}

impl Session {
    /// The claim of a renewed token that differs from the original (OpenID Connect Core 12.2).
    fn differs(&self, claims: &Claims) -> Option<&'static str> {
        if claim(claims, "sub") != self.subject {
            return Some("user");
        }
        let nonce = claims.get("nonce").is_some() && claim(claims, "nonce") != self.nonce;
        nonce.then_some("nonce")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(value: serde_json::Value) -> Claims {
        value.as_object().cloned().unwrap()
    }

    fn held(expires: i64) -> Held {
        let expires = Timestamp::from_second(expires).unwrap();
        Held { id_token: "a.b.c".into(), expires, refresh_token: None }
    }

    #[test]
    fn tokens_are_renewed_before_they_expire() {
        let now = Timestamp::from_second(100).unwrap();
        for (expires, good) in [(111, true), (110, false), (100, false), (90, false)] {
            assert_eq!(held(expires).is_good(now, MARGIN), good, "{expires}");
        }
    }

    #[test]
    fn renewed_tokens_must_have_the_same_subject() {
        let session = Session { subject: "u-1".into(), nonce: "n".into(), held: Mutex::new(held(0)) };
        let cases = [
            (json!({"sub": "u-1"}), None),
            (json!({"sub": "u-1", "nonce": "n"}), None),
            (json!({"sub": "u-1", "nonce": "m"}), Some("nonce")),
            (json!({"sub": "u-1", "nonce": 7}), Some("nonce")),
            (json!({"sub": "u-2"}), Some("user")),
            (json!({}), Some("user")),
        ];
        for (given, expected) in cases {
            assert_eq!(session.differs(&claims(given.clone())), expected, "{given}");
        }
    }

    #[tokio::test]
    async fn handles_open_one_session_until_it_is_closed() {
        let sessions = Sessions::new();
        let fresh = |refresh: &str| NewSession {
            id_token: "a.b.c".into(),
            claims: claims(json!({"sub": "u-1", "exp": 5})),
            refresh_token: Some(refresh.to_owned()),
        };
        let (one, other) =
            (sessions.open(fresh("r-1"), "n".into(), [1; 32]), sessions.open(fresh("r-2"), "n".into(), [2; 32]));
        assert_eq!(sessions.close("nobody's").await, None);
        assert_eq!(sessions.close(&one).await, Some(Some("r-1".to_owned())));
        assert_eq!(sessions.close(&one).await, None);
        assert_eq!(sessions.close(&other).await, Some(Some("r-2".to_owned())));
    }
}
