//! State of one sign-in in progress: its content, its cookie, and the URL that the browser is redirected to. Has no
//! side effects.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use url::Url;

use super::Client;
use crate::seal::{Purpose, Seal};

/// Time limit for signing in at the issuer.
pub(super) const SIGN_IN_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Maximum length of a path to which a browser returns.
const MAX_PATH_LENGTH: usize = 2048;

/// Random bytes; 256 bits cannot be guessed.
pub(super) type Secret = [u8; 32];

/// Values that must match when a browser returns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flow {
    pub(super) state: String,
    pub(super) nonce: String,
    /// PKCE verifier: proves that the sender of the code has requested it.
    pub(super) verifier: String,
    /// Page to show after the sign-in.
    #[serde(rename = "back")]
    pub(super) return_path: String,
    #[serde(rename = "until")]
    expires: Timestamp,
}

impl Flow {
    pub(super) fn new(random: [Secret; 3], return_path: String, now: Timestamp) -> Self {
        let [state, nonce, verifier] = random.map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
        Self { state, nonce, verifier, return_path, expires: now.saturating_add(SIGN_IN_TIMEOUT).unwrap_or(now) }
    }

    /// The issuer's URL that the browser is redirected to.
    pub(super) fn authorization_url(&self, mut endpoint: Url, client_id: &str, client: &Client) -> Url {
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, self.verifier.as_bytes()));
        endpoint
            .query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", client_id)
            .append_pair("redirect_uri", client.redirect_url.as_str())
            .append_pair("scope", &client.scopes.join(" "))
            .append_pair("state", &self.state)
            .append_pair("nonce", &self.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        endpoint
    }
}

/// Seals the flow in a cookie that only holders of the key can open.
pub(super) fn seal(seal: &Seal, flow: &Flow, nonce: [u8; 12]) -> Option<String> {
    seal.seal(Purpose::Flow, &serde_json::to_vec(flow).ok()?, nonce)
}

/// Opens the flow in a cookie that was sealed here and has not expired.
pub(super) fn open(seal: &Seal, cookie: &str, now: Timestamp) -> Option<Flow> {
    let flow: Flow = serde_json::from_slice(&seal.open(Purpose::Flow, cookie)?).ok()?;
    (now <= flow.expires).then_some(flow)
}

/// The path with query of a page of this UI, or `/` for any other value. Browsers interpret `//host`, `/\host`, and
/// such paths with tabs or line breaks, as other hosts.
pub(super) fn local_path(path: &str) -> String {
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\' && byte != b'#');
    let is_local = path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/ui/");
    if is_plain && is_local && path.len() <= MAX_PATH_LENGTH { path.to_owned() } else { "/".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        Client {
            secret_file: None,
            redirect_url: Url::parse("https://fleet.example.com/ui/oidc/callback").unwrap(),
            scopes: vec!["openid".into(), "groups".into()],
        }
    }

    fn flow(now: Timestamp) -> Flow {
        Flow::new([[1; 32], [2; 32], [3; 32]], "/search?q=a".into(), now)
    }

    #[test]
    fn only_local_paths_are_accepted() {
        let long = format!("/{}", "a".repeat(MAX_PATH_LENGTH));
        let kept = ["/", "/search?q=kind%3Apod%20a", "/object?cluster=m1&name=//x", "/a:b@c"];
        let dropped = [
            "",
            "search",
            "https://evil.example.com/",
            "//evil.example.com",
            "///evil.example.com",
            "/\\evil.example.com",
            "\\\\evil.example.com",
            "/\t/evil.example.com",
            "/\n/evil.example.com",
            " //evil.example.com",
            "javascript:alert(1)",
            "/ü",
            "/#token=x",
            "/ui/oidc/login",
            &long,
        ];
        for path in kept {
            assert_eq!(local_path(path), path);
        }
        for path in dropped {
            assert_eq!(local_path(path), "/", "{path:?}");
        }
    }

    #[test]
    fn authorization_url_has_a_challenge() {
        let endpoint = Url::parse("https://id.example.com/auth?tenant=a").unwrap();
        let url = flow(Timestamp::UNIX_EPOCH).authorization_url(endpoint, "crows nest", &client());
        let parameters: Vec<(String, String)> =
            url.query_pairs().map(|(k, v)| (k.into_owned(), v.into_owned())).collect();
        let expected = [
            ("tenant", "a"),
            ("response_type", "code"),
            ("client_id", "crows nest"),
            ("redirect_uri", "https://fleet.example.com/ui/oidc/callback"),
            ("scope", "openid groups"),
            ("state", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"),
            ("nonce", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI"),
            ("code_challenge", "g77gcvvTQj90gfwWOCFjatjPtz-u8N0FgfOXnqDHMbk"),
            ("code_challenge_method", "S256"),
        ];
        assert_eq!(parameters, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    }

    #[test]
    fn only_unexpired_cookies_of_the_same_key_open() {
        let new_seal = |letter: &str| Seal::new(&letter.repeat(40)).unwrap();
        let (first_seal, second_seal) = (new_seal("a"), new_seal("b"));
        let flow = flow(Timestamp::UNIX_EPOCH);
        let cookie = seal(&first_seal, &flow, [9; 12]).unwrap();
        let (in_time, late) = (Timestamp::from_second(600).unwrap(), Timestamp::from_second(601).unwrap());
        assert_eq!(open(&first_seal, &cookie, in_time), Some(flow.clone()));
        assert_eq!(open(&first_seal, &cookie, late), None);
        assert_eq!(open(&second_seal, &cookie, in_time), None);
        assert!(!cookie.contains(&flow.verifier));
        // A session's cookie is not accepted as a flow.
        let content = serde_json::to_vec(&flow).unwrap();
        let session = first_seal.seal(Purpose::Session, &content, [8; 12]).unwrap();
        for forged in [session.as_str(), "", "AAAA", "%"] {
            assert_eq!(open(&first_seal, forged, in_time), None, "{forged}");
        }
    }
}
