//! Sessions of users who signed in with a kubeconfig, or with a token too large for a cookie. The client certificate or
//! token stays in this process; the browser has a handle. Only the user's credentials are taken from a kubeconfig:
//! the control plane is the one that this server is configured with, and files and commands named in the kubeconfig are
//! never read or run.

use crowsnest_apimachinery::status::{ApiError, Reason};
use std::time::Duration;

use http::HeaderMap;
use kube::config::{AuthInfo, Kubeconfig};
use moka::sync::Cache;

use super::cookies::{self, Cookie, SameSite};
use super::handle::{self, Fingerprint, fingerprint};
use super::upstream::Actor;

const COOKIE: &str = "crowsnest-identity";
/// Idle time after which a session ends; a certificate also ends when it expires.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions; the least used ones are ended first.
const MAX_SESSIONS: u64 = 10_000;

/// Sessions by the fingerprint of their handle.
#[derive(Clone)]
pub struct KubeconfigSessions {
    sessions: Cache<Fingerprint, Actor>,
    /// True if browsers connect over HTTPS.
    is_secure: bool,
}

impl KubeconfigSessions {
    pub fn new(is_secure: bool) -> Self {
        Self { sessions: Cache::builder().max_capacity(MAX_SESSIONS).time_to_idle(IDLE_TIMEOUT).build(), is_secure }
    }

    /// Opens a session for an authenticated user and returns its cookie.
    pub(super) fn open(&self, actor: Actor, random: [u8; 32]) -> Cookie {
        let handle = handle::encode_handle(random);
        self.sessions.insert(fingerprint(&handle), actor);
        self.cookie(&handle)
    }

    /// The user that a browser's session acts as; `None` if it has no session of this kind.
    pub(super) fn actor(&self, headers: &HeaderMap) -> Result<Option<Actor>, ApiError> {
        let Some(handle) = cookies::find_value(headers, &self.cookie("").full_name()) else { return Ok(None) };
        let ended = || ApiError::new(Reason::Unauthorized, "your session has ended; sign in again");
        self.sessions.get(&fingerprint(&handle)).map(Some).ok_or_else(ended)
    }

    /// Ends a browser's session and returns the cookie that deletes it.
    pub(super) fn end(&self, headers: &HeaderMap) -> Cookie {
        if let Some(handle) = cookies::find_value(headers, &self.cookie("").full_name()) {
            self.sessions.invalidate(&fingerprint(&handle));
        }
        self.cookie("").into_deletion()
    }

    fn cookie(&self, handle: &str) -> Cookie {
        let value = handle.to_owned();
        Cookie { name: COOKIE, value, same_site: SameSite::Strict, max_age: None, is_secure: self.is_secure }
    }
}

/// The user of a kubeconfig's current context, with the credentials that the kubeconfig itself contains.
pub(super) fn parse_user(text: &str) -> Result<AuthInfo, ApiError> {
    let config =
        Kubeconfig::from_yaml(text).map_err(|error| ApiError::bad_request(format!("invalid kubeconfig: {error}")))?;
    let current = config.current_context.as_deref().filter(|name| !name.is_empty());
    let current = current.ok_or_else(|| ApiError::bad_request("this kubeconfig has no current-context"))?;
    let context = config.contexts.iter().find(|entry| entry.name == current).and_then(|entry| entry.context.as_ref());
    let name = context.and_then(|context| context.user.as_deref());
    let name =
        name.ok_or_else(|| ApiError::bad_request(format!("context {current:?} of this kubeconfig has no user")))?;
    let user = config.auth_infos.iter().find(|entry| entry.name == name).and_then(|entry| entry.auth_info.as_ref());
    let user = user.ok_or_else(|| ApiError::bad_request(format!("this kubeconfig has no user {name:?}")))?;
    let has_certificate = user.client_certificate_data.is_some() && user.client_key_data.is_some();
    if has_certificate || user.token.is_some() {
        return Ok(AuthInfo {
            client_certificate_data: user.client_certificate_data.clone().filter(|_| has_certificate),
            client_key_data: user.client_key_data.clone().filter(|_| has_certificate),
            token: user.token.clone(),
            ..AuthInfo::default()
        });
    }
    Err(ApiError::bad_request(format!("user {name:?} of this kubeconfig {}", explain_unusable(user))))
}

/// The reason that the user's credentials cannot be used.
fn explain_unusable(user: &AuthInfo) -> String {
    let has_files = user.client_certificate.is_some() || user.client_key.is_some() || user.token_file.is_some();
    if let Some(exec) = &user.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        return format!(
            "uses the exec command {command:?}, which the server does not run; sign in with a token instead"
        );
    }
    if user.auth_provider.is_some() {
        return "uses an auth-provider, which the server does not support; sign in with a token instead".to_owned();
    }
    if has_files {
        let flatten_command = "kubectl config view --raw --flatten --minify";
        return format!(
            "refers to files, which the server does not read; `{flatten_command}` prints a kubeconfig that contains them"
        );
    }
    "has neither client-certificate-data with client-key-data nor a token".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Upstream;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn config(user: &str) -> String {
        format!(
            "current-context: cp\ncontexts: [{{name: cp, context: {{cluster: cp, user: ann}}}}]\n\
             clusters: [{{name: cp, cluster: {{server: 'https://elsewhere.example'}}}}]\nusers: [{{name: ann, user: {user}}}]\n"
        )
    }

    #[tokio::test]
    async fn handles_identify_one_session() {
        let kubeconfig_sessions = KubeconfigSessions::new(false);
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let actor = Upstream::new(config).unwrap().as_bearer("a.bearer.token").unwrap();
        let cookie = kubeconfig_sessions.open(actor, [1; 32]);
        let mut headers = HeaderMap::new();
        let pair = format!("{}={}", cookie.full_name(), cookie.value);
        headers.insert(http::header::COOKIE, pair.parse().unwrap());
        assert!(kubeconfig_sessions.actor(&headers).unwrap().is_some());
        assert!(kubeconfig_sessions.actor(&HeaderMap::new()).unwrap().is_none());
        let deleted_cookie = kubeconfig_sessions.end(&headers);
        assert_eq!(
            (deleted_cookie.full_name(), deleted_cookie.value.as_str(), deleted_cookie.max_age),
            (cookie.full_name(), "", Some(0))
        );
        let code = kubeconfig_sessions.actor(&headers).err().map(|failure| failure.code);
        assert_eq!(code, Some(401));
    }

    #[rstest]
    #[case::certificate("{client-certificate-data: YQ==, client-key-data: Yg==}", (true, false))]
    #[case::token("{token: abc}", (false, true))]
    #[case::both("{client-certificate-data: YQ==, client-key-data: Yg==, token: abc}", (true, true))]
    #[case::half("{client-certificate-data: YQ==, token: abc}", (false, true))]
    #[case::files_are_ignored("{client-certificate: /etc/passwd, client-key: /etc/shadow, token: abc}", (false, true))]
    fn credentials_are_taken_from_the_kubeconfig(#[case] user: &str, #[case] expected: (bool, bool)) {
        let parsed = parse_user(&config(user)).unwrap_or_else(|failure| panic!("{failure}"));
        let has_certificate = parsed.client_certificate_data.is_some() && parsed.client_key_data.is_some();
        assert_eq!((has_certificate, parsed.token.is_some()), expected);
        let others = [parsed.client_certificate, parsed.client_key, parsed.token_file, parsed.impersonate];
        assert!(others.iter().all(Option::is_none) && parsed.exec.is_none() && parsed.auth_provider.is_none());
    }

    #[rstest]
    #[case::text("{", "invalid kubeconfig: ")]
    #[case::nothing("users: []", "this kubeconfig has no current-context")]
    #[case::no_context("current-context: cp", "context \"cp\" of this kubeconfig has no user")]
    #[case::no_user(
        "current-context: cp\ncontexts: [{name: cp, context: {cluster: cp, user: ann}}]",
        "this kubeconfig has no user \"ann\""
    )]
    fn invalid_kubeconfigs_are_rejected(#[case] text: &str, #[case] expected_start: &str) {
        let failure = parse_user(text).expect_err("a refusal");
        let message = failure.message;
        assert!(message.starts_with(expected_start), "{message}");
    }

    #[rstest]
    #[case::command("{exec: {apiVersion: v1, command: aws}}", "uses the exec command \"aws\"")]
    #[case::files("{client-certificate: a.crt, client-key: a.key}", "refers to files, which the server does not read")]
    #[case::password("{username: ann, password: x}", "has neither client-certificate-data")]
    fn unusable_credentials_are_explained(#[case] user: &str, #[case] expected: &str) {
        let failure = parse_user(&config(user)).expect_err("a refusal");
        let message = failure.message;
        assert!(message.starts_with("user \"ann\" of this kubeconfig ") && message.contains(expected), "{message}");
    }

    /// A kubeconfig in YAML or JSON with fields of any type, some of them damaged.
    fn any_kubeconfig() -> impl Strategy<Value = String> {
        let name = || prop_oneof![Just("cp".to_owned()), Just("ann".to_owned()), "\\PC{0,6}"];
        let value = prop_oneof![
            name().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            Just(Value::Null),
            Just(json!({"command": "touch", "args": ["/tmp/x"], "env": null})),
            Just(json!(["a"])),
        ];
        let field = prop::sample::select(vec![
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "token",
            "tokenFile",
            "username",
            "password",
            "exec",
            "auth-provider",
            "as",
        ]);
        let user = prop::collection::btree_map(field, value.clone(), 0..5);
        let users = prop::collection::vec((name(), user), 0..3);
        let parts = (name(), name(), users, value, any::<bool>(), any::<prop::sample::Index>(), 0..4_u8);
        parts.prop_map(|(current, user, users, other, is_yaml, cut, damage)| {
            let users: Vec<Value> = users.into_iter().map(|(name, user)| json!({"name": name, "user": user})).collect();
            let contexts = json!([{"name": "cp", "context": {"cluster": "cp", "user": user}}]);
            let kubeconfig =
                json!({"current-context": current, "contexts": contexts, "clusters": other, "users": users});
            let mut text =
                if is_yaml { serde_saphyr::to_string(&kubeconfig).unwrap_or_default() } else { kubeconfig.to_string() };
            if damage == 0 && !text.is_empty() {
                text.truncate(text.floor_char_boundary(cut.index(text.len())));
            }
            text
        })
    }

    proptest! {
        /// From any kubeconfig, only a client certificate with its key, and a token, are taken.
        #[test]
        fn only_credentials_are_taken(text in prop_oneof![9 => any_kubeconfig(), 1 => "\\PC{0,200}"]) {
            match parse_user(&text) {
                Ok(parsed) => {
                    let AuthInfo { client_certificate_data, client_key_data, token, .. } = parsed.clone();
                    prop_assert_eq!(client_certificate_data.is_some(), client_key_data.is_some());
                    prop_assert!(client_certificate_data.is_some() || token.is_some());
                    let credentials = AuthInfo { client_certificate_data, client_key_data, token, ..AuthInfo::default() };
                    prop_assert_eq!(serde_json::to_value(&parsed).ok(), serde_json::to_value(&credentials).ok());
                }
                Err(failure) => prop_assert_eq!(failure.code, 400),
            }
        }
    }
}
