//! Sessions of people who signed in with a token: the token lies sealed in their browser's cookie, so that a restart keeps the
//! session and replicas that share the key know it.
//!
//! A session ends [`LIFETIME`] after the sign-in at the latest. Signing out is remembered by the process that did it: one that shares
//! its key takes a copy of the cookie until then.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use moka::sync::Cache;
use serde::{Deserialize, Serialize};

use super::cookies::{self, Cookie, SameSite};
use super::seal::{Purpose, Seal};
use super::upstream::is_bearer_token;
use crate::aggregated::reply::Failure;

const COOKIE: &str = "crowsnest-session";
/// From sign-in to the next one, used or not.
const LIFETIME: SignedDuration = SignedDuration::from_hours(12);
/// How long a sign-out has to be remembered.
const REMEMBERED: Duration = Duration::from_secs(LIFETIME.as_secs() as u64);
/// Sign-outs that are remembered.
const MOST: u64 = 100_000;

/// Random bytes of a new session: what it is known by, and the nonce of its cookie.
#[derive(Clone, Copy)]
pub(super) struct Random {
    pub(super) id: [u8; 16],
    pub(super) nonce: [u8; 12],
}

impl Random {
    pub(super) fn new() -> Self {
        Self { id: rand::random(), nonce: rand::random() }
    }
}

/// The content of a cookie. It has no `Debug`: the token must not be logged.
#[derive(Serialize, Deserialize)]
struct Content {
    id: String,
    token: String,
    until: Timestamp,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Tokens {
    seal: Seal,
    /// Sessions that were signed out, by their ids.
    ended: Cache<String, ()>,
    /// Browsers connect over HTTPS.
    secure: bool,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Tokens {
    pub(crate) fn new(seal: Seal, secure: bool) -> Self {
        Self::with_clock(seal, secure, Timestamp::now)
    }

    fn with_clock(seal: Seal, secure: bool, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let ended = Cache::builder().max_capacity(MOST).time_to_live(REMEMBERED).build();
        Self { seal, ended, secure, clock: Arc::new(clock) }
    }

    /// The cookie of a new session; `None` where the token is too large for one.
    pub(super) fn open(&self, token: &str, random: Random) -> Option<Cookie> {
        let until = (self.clock)().checked_add(LIFETIME).ok()?;
        let content = Content { id: URL_SAFE_NO_PAD.encode(random.id), token: token.to_owned(), until };
        let content = serde_json::to_vec(&content).ok()?;
        self.seal.close(Purpose::Session, &content, random.nonce).map(|value| self.cookie(value))
    }

    /// The token of a browser's session; `None` when it has none of this kind.
    pub(super) fn token(&self, headers: &HeaderMap) -> Result<Option<String>, Failure> {
        let Some(value) = cookies::find(headers, &self.cookie(String::new()).full_name()) else { return Ok(None) };
        let over = || Failure::new(StatusCode::UNAUTHORIZED, "Unauthorized", "your session is over; sign in again");
        self.content(&value).map(|content| Some(content.token)).ok_or_else(over)
    }

    /// Ends a browser's session: the cookie that forgets it.
    pub(super) fn end(&self, headers: &HeaderMap) -> Cookie {
        let gone = self.cookie(String::new()).gone();
        if let Some(content) = cookies::find(headers, &gone.full_name()).and_then(|value| self.content(&value)) {
            self.ended.insert(content.id, ());
        }
        gone
    }

    /// The content of a session that is not over.
    fn content(&self, value: &str) -> Option<Content> {
        let content: Content = serde_json::from_slice(&self.seal.open(Purpose::Session, value)?).ok()?;
        let holds = (self.clock)() < content.until && !self.ended.contains_key(&content.id);
        (holds && is_bearer_token(&content.token)).then_some(content)
    }

    fn cookie(&self, value: String) -> Cookie {
        Cookie { name: COOKIE, value, same_site: SameSite::Strict, max_age: None, secure: self.secure }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use http::header;
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "a-key-of-more-than-thirty-two-characters";

    fn tokens(secure: bool) -> Tokens {
        Tokens::new(Seal::new(KEY).unwrap(), secure)
    }

    fn random() -> Random {
        Random { id: [1; 16], nonce: [2; 12] }
    }

    fn with(cookie: &Cookie) -> HeaderMap {
        let pair = format!("{}={}", cookie.full_name(), cookie.value);
        HeaderMap::from_iter([(header::COOKIE, pair.parse().unwrap())])
    }

    fn code(tokens: &Tokens, headers: &HeaderMap) -> Option<StatusCode> {
        tokens.token(headers).err().map(|failure| failure.code())
    }

    #[test]
    fn a_token_is_sealed_and_comes_back() {
        let tokens = tokens(true);
        let opened = tokens.open("a.bearer.token", random()).unwrap();
        assert_eq!((opened.full_name().as_str(), opened.same_site), ("__Host-crowsnest-session", SameSite::Strict));
        assert!(!opened.value.contains("bearer"));
        assert_eq!(tokens.token(&with(&opened)).unwrap().as_deref(), Some("a.bearer.token"));
        assert_eq!(tokens.token(&HeaderMap::new()).unwrap(), None);
        assert!(tokens.open(&"a".repeat(4_000), random()).is_none());
    }

    #[test]
    fn replicas_and_restarts_know_it_by_the_key() {
        let opened = tokens(false).open("a.bearer.token", random()).unwrap();
        assert!(tokens(false).token(&with(&opened)).unwrap().is_some());
        let other = Tokens::new(Seal::new(&KEY.replace('a', "b")).unwrap(), false);
        assert_eq!(code(&other, &with(&opened)), Some(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn a_copied_cookie_is_worth_nothing_after_the_sign_out() {
        let tokens = tokens(false);
        let opened = tokens.open("a.bearer.token", random()).unwrap();
        let kept = tokens.open("a.bearer.token", Random { id: [3; 16], nonce: [4; 12] }).unwrap();
        let gone = tokens.end(&with(&opened));
        assert_eq!((gone.value.as_str(), gone.max_age), ("", Some(0)));
        assert_eq!(code(&tokens, &with(&opened)), Some(StatusCode::UNAUTHORIZED));
        assert!(tokens.token(&with(&kept)).unwrap().is_some(), "another session of the same token ended, too");
    }

    #[test]
    fn a_session_ends_by_itself() {
        let now = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&now);
        let tokens = Tokens::with_clock(Seal::new(KEY).unwrap(), false, move || {
            Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap_or_default()
        });
        let opened = with(&tokens.open("a.bearer.token", random()).unwrap());
        now.store(LIFETIME.as_secs() - 1, Ordering::Relaxed);
        assert!(tokens.token(&opened).unwrap().is_some());
        now.store(LIFETIME.as_secs(), Ordering::Relaxed);
        assert_eq!(code(&tokens, &opened), Some(StatusCode::UNAUTHORIZED));
    }

    /// A bare token was the cookie of earlier versions.
    #[test]
    fn a_token_in_clear_is_no_session() {
        let tokens = tokens(false);
        let cookie = tokens.cookie("a.bearer.token".to_owned());
        assert_eq!(code(&tokens, &with(&cookie)), Some(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn unknown_sign_outs_are_not_remembered() {
        let tokens = tokens(false);
        for n in 0..1_000 {
            tokens.end(&with(&tokens.cookie(format!("made-up-{n}"))));
        }
        tokens.ended.run_pending_tasks();
        assert_eq!(tokens.ended.entry_count(), 0);
    }

    proptest! {
        /// No cookie of somebody else's making is a session, whatever its bytes.
        #[test]
        fn arbitrary_cookies_are_no_session(value in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = b"crowsnest-session=".to_vec();
            bytes.extend(value);
            if let Ok(value) = http::HeaderValue::from_bytes(&bytes) {
                let headers = HeaderMap::from_iter([(header::COOKIE, value)]);
                prop_assert!(!matches!(tokens(false).token(&headers), Ok(Some(_))));
            }
        }
    }
}
