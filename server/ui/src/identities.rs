//! Sessions of users who signed in with a kubeconfig, or with a token too large for a cookie. The client certificate or
//! token stays in this process; the browser holds a handle. Only the user's credentials are taken from a kubeconfig:
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
const IDLE: Duration = Duration::from_secs(12 * 3600);
const MOST: u64 = 10_000;

/// Sessions by the fingerprint of their handle.
#[derive(Clone)]
pub struct Identities {
    sessions: Cache<Fingerprint, Actor>,
    /// True if browsers connect over HTTPS.
    secure: bool,
}

impl Identities {
    pub fn new(secure: bool) -> Self {
        Self { sessions: Cache::builder().max_capacity(MOST).time_to_idle(IDLE).build(), secure }
    }

    /// Opens a session for an authenticated user and returns its cookie.
    pub(super) fn open(&self, actor: Actor, random: [u8; 32]) -> Cookie {
        let handle = handle::handle(random);
        self.sessions.insert(fingerprint(&handle), actor);
        self.cookie(&handle)
    }

    /// The user that a browser's session acts as; `None` if it has no session of this kind.
    pub(super) fn actor(&self, headers: &HeaderMap) -> Result<Option<Actor>, ApiError> {
        let Some(handle) = cookies::find(headers, &self.cookie("").full_name()) else { return Ok(None) };
        let over = || ApiError::new(Reason::Unauthorized, "your session has ended; sign in again");
        self.sessions.get(&fingerprint(&handle)).map(Some).ok_or_else(over)
    }

    /// Ends a browser's session and returns the cookie that deletes it.
    pub(super) fn end(&self, headers: &HeaderMap) -> Cookie {
        if let Some(handle) = cookies::find(headers, &self.cookie("").full_name()) {
            self.sessions.invalidate(&fingerprint(&handle));
        }
        self.cookie("").deleted()
    }

    fn cookie(&self, handle: &str) -> Cookie {
        let value = handle.to_owned();
        Cookie { name: COOKIE, value, same_site: SameSite::Strict, max_age: None, secure: self.secure }
    }
}

/// The user of a kubeconfig's current context, as far as the kubeconfig itself contains its credentials.
pub(super) fn user_of(text: &str) -> Result<AuthInfo, ApiError> {
    let config =
        Kubeconfig::from_yaml(text).map_err(|error| ApiError::bad_request(format!("invalid kubeconfig: {error}")))?;
    let current = config.current_context.as_deref().filter(|name| !name.is_empty());
    let current = current.ok_or_else(|| ApiError::bad_request("this kubeconfig has no current-context"))?;
    let context = config.contexts.iter().find(|one| one.name == current).and_then(|one| one.context.as_ref());
    let name = context.and_then(|context| context.user.as_deref());
    let name = name.ok_or_else(|| ApiError::bad_request(format!("its context {current:?} has no user")))?;
    let user = config.auth_infos.iter().find(|one| one.name == name).and_then(|one| one.auth_info.as_ref());
    let user = user.ok_or_else(|| ApiError::bad_request(format!("its user {name:?} is not in it")))?;
    let has_certificate = user.client_certificate_data.is_some() && user.client_key_data.is_some();
    if has_certificate || user.token.is_some() {
        return Ok(AuthInfo {
            client_certificate_data: user.client_certificate_data.clone().filter(|_| has_certificate),
            client_key_data: user.client_key_data.clone().filter(|_| has_certificate),
            token: user.token.clone(),
            ..AuthInfo::default()
        });
    }
    Err(ApiError::bad_request(format!("its user {name:?} {}", lacking(user))))
}

/// The reason that the user's credentials cannot be used.
fn lacking(user: &AuthInfo) -> String {
    let files = user.client_certificate.is_some() || user.client_key.is_some() || user.token_file.is_some();
    if let Some(exec) = &user.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        return format!(
            "uses the exec command {command:?}, which the server does not run; sign in with a token instead"
        );
    }
    if user.auth_provider.is_some() {
        return "uses an auth-provider, which the server does not support; sign in with a token instead".to_owned();
    }
    if files {
        let mend = "kubectl config view --raw --flatten --minify";
        return format!(
            "refers to files, which the server does not read; `{mend}` prints a kubeconfig that contains them"
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
        let identities = Identities::new(false);
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let actor = Upstream::new(config).unwrap().as_bearer("a.bearer.token").unwrap();
        let opened = identities.open(actor, [1; 32]);
        let mut headers = HeaderMap::new();
        let cookie = format!("{}={}", opened.full_name(), opened.value);
        headers.insert(http::header::COOKIE, cookie.parse().unwrap());
        assert!(identities.actor(&headers).unwrap().is_some());
        assert!(identities.actor(&HeaderMap::new()).unwrap().is_none());
        let gone = identities.end(&headers);
        assert_eq!((gone.full_name(), gone.value.as_str(), gone.max_age), (opened.full_name(), "", Some(0)));
        let over = identities.actor(&headers).err().map(|failure| failure.code);
        assert_eq!(over, Some(401));
    }

    #[rstest]
    #[case::certificate("{client-certificate-data: YQ==, client-key-data: Yg==}", (true, false))]
    #[case::token("{token: abc}", (false, true))]
    #[case::both("{client-certificate-data: YQ==, client-key-data: Yg==, token: abc}", (true, true))]
    #[case::half("{client-certificate-data: YQ==, token: abc}", (false, true))]
    #[case::files_are_left("{client-certificate: /etc/passwd, client-key: /etc/shadow, token: abc}", (false, true))]
    fn credentials_are_taken_from_the_kubeconfig(#[case] user: &str, #[case] expected: (bool, bool)) {
        let found = user_of(&config(user)).unwrap_or_else(|failure| panic!("{failure}"));
        let certificate = found.client_certificate_data.is_some() && found.client_key_data.is_some();
        assert_eq!((certificate, found.token.is_some()), expected);
        let others = [found.client_certificate, found.client_key, found.token_file, found.impersonate];
        assert!(others.iter().all(Option::is_none) && found.exec.is_none() && found.auth_provider.is_none());
    }

    #[rstest]
    #[case::text("{", "invalid kubeconfig: ")]
    #[case::nothing("users: []", "this kubeconfig has no current-context")]
    #[case::no_context("current-context: cp", "its context \"cp\" has no user")]
    #[case::no_user(
        "current-context: cp\ncontexts: [{name: cp, context: {cluster: cp, user: ann}}]",
        "its user \"ann\" is not in it"
    )]
    fn invalid_kubeconfigs_are_rejected(#[case] text: &str, #[case] begin: &str) {
        let failure = user_of(text).expect_err("a refusal");
        let message = failure.message;
        assert!(message.starts_with(begin), "{message}");
    }

    #[rstest]
    #[case::command("{exec: {apiVersion: v1, command: aws}}", "uses the exec command \"aws\"")]
    #[case::files("{client-certificate: a.crt, client-key: a.key}", "refers to files, which the server does not read")]
    #[case::password("{username: ann, password: x}", "has neither client-certificate-data")]
    fn unusable_credentials_are_explained(#[case] user: &str, #[case] why: &str) {
        let failure = user_of(&config(user)).expect_err("a refusal");
        let message = failure.message;
        assert!(message.starts_with("its user \"ann\" ") && message.contains(why), "{message}");
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
        parts.prop_map(|(current, of, users, other, yaml, at, damage)| {
            let users: Vec<Value> = users.into_iter().map(|(name, user)| json!({"name": name, "user": user})).collect();
            let contexts = json!([{"name": "cp", "context": {"cluster": "cp", "user": of}}]);
            let whole = json!({"current-context": current, "contexts": contexts, "clusters": other, "users": users});
            let mut text = if yaml { serde_saphyr::to_string(&whole).unwrap_or_default() } else { whole.to_string() };
            if damage == 0 && !text.is_empty() {
                text.truncate(text.floor_char_boundary(at.index(text.len())));
            }
            text
        })
    }

    proptest! {
        /// From any kubeconfig, only a client certificate with its key, and a token, are taken.
        #[test]
        fn only_credentials_are_taken(text in prop_oneof![9 => any_kubeconfig(), 1 => "\\PC{0,200}"]) {
            match user_of(&text) {
                Ok(found) => {
                    let AuthInfo { client_certificate_data, client_key_data, token, .. } = found.clone();
                    prop_assert_eq!(client_certificate_data.is_some(), client_key_data.is_some());
                    prop_assert!(client_certificate_data.is_some() || token.is_some());
                    let taken = AuthInfo { client_certificate_data, client_key_data, token, ..AuthInfo::default() };
                    prop_assert_eq!(serde_json::to_value(&found).ok(), serde_json::to_value(&taken).ok());
                }
                Err(refusal) => prop_assert_eq!(refusal.code, 400),
            }
        }
    }
}
