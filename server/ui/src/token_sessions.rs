//! Sessions of users who signed in with a token. The token is sealed in the browser's cookie, so sessions survive a
//! restart, and replicas that share the key accept them.
//!
//! A session ends at most [`LIFETIME`] after the sign-in. Only the process that handled a sign-out remembers it:
//! another replica with the same key accepts a copy of the cookie until the session's lifetime ends.

use crowsnest_apimachinery::status::{ApiError, Reason};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use moka::sync::Cache;
use serde::{Deserialize, Serialize};

use super::cookies::{self, Cookie, SameSite};
use super::seal::{Purpose, Seal};
use super::upstream::is_bearer_token;

const COOKIE: &str = "crowsnest-session";
/// Lifetime of a session from the sign-in, independent of its use.
const LIFETIME: SignedDuration = SignedDuration::from_hours(12);
/// Time for which a sign-out is remembered.
const SIGN_OUT_TTL: Duration = Duration::from_secs(LIFETIME.as_secs() as u64);
/// Maximum number of remembered sign-outs.
const MAX_SIGN_OUTS: u64 = 100_000;

/// Random bytes of a new session: its id and the nonce of its cookie.
#[derive(Clone, Copy)]
pub(super) struct SessionRandom {
    pub(super) id: [u8; 16],
    pub(super) nonce: [u8; 12],
}

impl SessionRandom {
    pub(super) fn new() -> Self {
        Self { id: rand::random(), nonce: rand::random() }
    }
}

/// Content of a cookie. Has no `Debug`: the token must not be logged.
#[derive(Serialize, Deserialize)]
struct SealedSession {
    id: String,
    token: String,
    until: Timestamp,
}

/// Opens and ends the sessions of users who signed in with a token.
#[derive(Clone)]
pub struct TokenSessions {
    seal: Seal,
    /// IDs of sessions that were signed out.
    signed_out: Cache<String, ()>,
    /// True if browsers connect over HTTPS.
    is_secure: bool,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl TokenSessions {
    pub fn new(seal: Seal, is_secure: bool) -> Self {
        Self::with_clock(seal, is_secure, Timestamp::now)
    }

    fn with_clock(seal: Seal, is_secure: bool, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let signed_out = Cache::builder().max_capacity(MAX_SIGN_OUTS).time_to_live(SIGN_OUT_TTL).build();
        Self { seal, signed_out, is_secure, clock: Arc::new(clock) }
    }

    /// Seals a token into the cookie of a new session; `None` if the token is too large.
    pub(super) fn open(&self, token: &str, random: SessionRandom) -> Option<Cookie> {
        let until = (self.clock)().checked_add(LIFETIME).ok()?;
        let content = SealedSession { id: URL_SAFE_NO_PAD.encode(random.id), token: token.to_owned(), until };
        let content = serde_json::to_vec(&content).ok()?;
        self.seal.seal(Purpose::Session, &content, random.nonce).map(|value| self.cookie(value))
    }

    /// The token of a browser's session; `None` if it has no session of this kind.
    pub(super) fn token(&self, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
        let Some(value) = cookies::find_value(headers, &self.cookie(String::new()).full_name()) else {
            return Ok(None);
        };
        let ended = || ApiError::new(Reason::Unauthorized, "your session has ended; sign in again");
        self.content(&value).map(|content| Some(content.token)).ok_or_else(ended)
    }

    /// Ends a browser's session and returns the cookie that deletes it.
    pub(super) fn end(&self, headers: &HeaderMap) -> Cookie {
        let deleted_cookie = self.cookie(String::new()).into_deletion();
        if let Some(content) =
            cookies::find_value(headers, &deleted_cookie.full_name()).and_then(|value| self.content(&value))
        {
            self.signed_out.insert(content.id, ());
        }
        deleted_cookie
    }

    /// Content of a cookie whose session has neither expired nor been signed out.
    fn content(&self, value: &str) -> Option<SealedSession> {
        let content: SealedSession = serde_json::from_slice(&self.seal.open(Purpose::Session, value)?).ok()?;
        let is_valid = (self.clock)() < content.until && !self.signed_out.contains_key(&content.id);
        (is_valid && is_bearer_token(&content.token)).then_some(content)
    }

    fn cookie(&self, value: String) -> Cookie {
        Cookie { name: COOKIE, value, same_site: SameSite::Strict, max_age: None, is_secure: self.is_secure }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use http::header;
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "a-key-of-more-than-thirty-two-characters";

    fn sessions(is_secure: bool) -> TokenSessions {
        TokenSessions::new(Seal::new(KEY).unwrap(), is_secure)
    }

    fn random() -> SessionRandom {
        SessionRandom { id: [1; 16], nonce: [2; 12] }
    }

    fn headers_with(cookie: &Cookie) -> HeaderMap {
        let pair = format!("{}={}", cookie.full_name(), cookie.value);
        HeaderMap::from_iter([(header::COOKIE, pair.parse().unwrap())])
    }

    fn code(sessions: &TokenSessions, headers: &HeaderMap) -> Option<u16> {
        sessions.token(headers).err().map(|failure| failure.code)
    }

    #[test]
    fn tokens_are_sealed_and_opened() {
        let sessions = sessions(true);
        let opened = sessions.open("a.bearer.token", random()).unwrap();
        assert_eq!((opened.full_name().as_str(), opened.same_site), ("__Host-crowsnest-session", SameSite::Strict));
        assert!(!opened.value.contains("bearer"));
        assert_eq!(sessions.token(&headers_with(&opened)).unwrap().as_deref(), Some("a.bearer.token"));
        assert_eq!(sessions.token(&HeaderMap::new()).unwrap(), None);
        assert!(sessions.open(&"a".repeat(4_000), random()).is_none());
    }

    #[test]
    fn replicas_with_the_key_accept_the_session() {
        let opened = sessions(false).open("a.bearer.token", random()).unwrap();
        assert!(sessions(false).token(&headers_with(&opened)).unwrap().is_some());
        let other = TokenSessions::new(Seal::new(&KEY.replace('a', "b")).unwrap(), false);
        assert_eq!(code(&other, &headers_with(&opened)), Some(401));
    }

    #[test]
    fn copied_cookies_end_with_the_sign_out() {
        let sessions = sessions(false);
        let opened = sessions.open("a.bearer.token", random()).unwrap();
        let other = sessions.open("a.bearer.token", SessionRandom { id: [3; 16], nonce: [4; 12] }).unwrap();
        let deleted_cookie = sessions.end(&headers_with(&opened));
        assert_eq!((deleted_cookie.value.as_str(), deleted_cookie.max_age), ("", Some(0)));
        assert_eq!(code(&sessions, &headers_with(&opened)), Some(401));
        assert!(
            sessions.token(&headers_with(&other)).unwrap().is_some(),
            "another session of the same token ended, too"
        );
    }

    #[test]
    fn sessions_expire() {
        let now = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&now);
        let sessions = TokenSessions::with_clock(Seal::new(KEY).unwrap(), false, move || {
            Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap_or_default()
        });
        let opened = headers_with(&sessions.open("a.bearer.token", random()).unwrap());
        now.store(LIFETIME.as_secs() - 1, Ordering::Relaxed);
        assert!(sessions.token(&opened).unwrap().is_some());
        now.store(LIFETIME.as_secs(), Ordering::Relaxed);
        assert_eq!(code(&sessions, &opened), Some(401));
    }

    /// Earlier versions stored a plain token in the cookie.
    #[test]
    fn plain_tokens_are_rejected() {
        let sessions = sessions(false);
        let cookie = sessions.cookie("a.bearer.token".to_owned());
        assert_eq!(code(&sessions, &headers_with(&cookie)), Some(401));
    }

    #[test]
    fn unknown_sign_outs_are_not_remembered() {
        let sessions = sessions(false);
        for n in 0..1_000 {
            sessions.end(&headers_with(&sessions.cookie(format!("made-up-{n}"))));
        }
        sessions.signed_out.run_pending_tasks();
        assert_eq!(sessions.signed_out.entry_count(), 0);
    }

    proptest! {
        /// Cookies that were not sealed here are never a session, for any bytes.
        #[test]
        fn arbitrary_cookies_are_not_a_session(value in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = b"crowsnest-session=".to_vec();
            bytes.extend(value);
            if let Ok(value) = http::HeaderValue::from_bytes(&bytes) {
                let headers = HeaderMap::from_iter([(header::COOKIE, value)]);
                prop_assert!(!matches!(sessions(false).token(&headers), Ok(Some(_))));
            }
        }
    }
}
