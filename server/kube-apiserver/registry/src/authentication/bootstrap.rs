//! Bootstrap tokens, `<id>.<secret>`: stored as Secrets `bootstrap-token-<id>` in `kube-system`. A new member or
//! node requests its certificate with one. The user is `system:bootstrap:<id>` in `system:bootstrappers` and in the
//! groups that the Secret names; RBAC decides on its permissions. The same secret signs the public cluster information,
//! so that a token's bearer can verify it ([`sign_cluster_info`]).

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use crowsnest_apimachinery::user::UserInfo;
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ring::hmac;
use serde_json::Value;

use crate::Registry;
use crate::authentication::service_account::stored_object;
use crate::object::Object;

/// Namespace of the Secrets with tokens.
pub const TOKEN_NAMESPACE: &str = "kube-system";
/// Type of the Secrets with tokens.
pub const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Prefix of the names of the Secrets with tokens; the ID of the token follows.
pub const TOKEN_NAME_PREFIX: &str = "bootstrap-token-";
const GROUP: &str = "system:bootstrappers";
const TOKEN_ID_LENGTH: usize = 6;
const TOKEN_SECRET_LENGTH: usize = 16;
/// Maximum length of an extra group name in bytes, without the common prefix.
const MAX_GROUP_LENGTH: usize = 256;

/// Splits a bootstrap token into ID and secret; `None` if the text does not have its format.
fn split_token(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_valid = id.len() == TOKEN_ID_LENGTH && secret.len() == TOKEN_SECRET_LENGTH && is_word(id) && is_word(secret);
    is_valid.then_some((id, secret))
}

/// True if a bearer token has the format of a bootstrap token, which no other kind of token has.
pub(super) fn is_bootstrap_token(token: &str) -> bool {
    split_token(token).is_some()
}

/// Authenticates a bootstrap token; returns its user or the reason for the rejection.
pub(super) fn authenticate(registry: &Registry, token: &str, now: Timestamp) -> Result<UserInfo, String> {
    let (id, secret) = split_token(token).ok_or("not a bootstrap token")?;
    let secret_object = stored_object(registry, "", "secrets", TOKEN_NAMESPACE, &format!("{TOKEN_NAME_PREFIX}{id}"));
    let secret_object = secret_object.ok_or_else(|| format!("there is no bootstrap token {id}"))?;
    user(&secret_object, (id, secret), now).map_err(|reason| format!("bootstrap token {id}: {reason}"))
}

/// The user that the Secret of a bootstrap token defines.
fn user(object: &Value, (id, secret): (&str, &str), now: Timestamp) -> Result<UserInfo, &'static str> {
    if object.is_deleting() || object["type"] != TOKEN_TYPE {
        return Err("its Secret is being deleted or has another type");
    }
    let field = |name: &str| field(object, name);
    // Digests are compared, so that timing does not reveal the position of the first difference.
    let hash = |text: &str| digest(&SHA256, text.as_bytes());
    let is_valid_secret =
        field("token-secret").is_some_and(|token_secret| hash(&token_secret).as_ref() == hash(secret).as_ref());
    if !is_valid_secret || field("token-id").as_deref() != Some(id) {
        return Err("its ID or secret is wrong");
    }
    check_expiration(object, now)?;
    if field("usage-bootstrap-authentication").as_deref() != Some("true") {
        return Err("it is not enabled for authentication");
    }
    let mut groups = vec![GROUP.to_owned()];
    for group in field("auth-extra-groups").unwrap_or_default().split(',').filter(|group| !group.is_empty()) {
        if !is_extra_group(group) {
            return Err("auth-extra-groups contains an invalid group");
        }
        groups.push(group.to_owned());
    }
    Ok(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

/// A decoded value of the Secret.
fn field(object: &Value, name: &str) -> Option<String> {
    let bytes = STANDARD.decode(object["data"][name].as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

fn check_expiration(object: &Value, now: Timestamp) -> Result<(), &'static str> {
    let Some(expiry) = field(object, "expiration").filter(|text| !text.is_empty()) else { return Ok(()) };
    let expiry: Timestamp = expiry.parse().map_err(|_| "its expiration cannot be read")?;
    if expiry > now { Ok(()) } else { Err("it has expired") }
}

/// Signs `text` with a bootstrap token; returns the ID of the token and the detached JSON web signature. `None` for Secrets that are not bootstrap tokens
/// or not enabled for signing.
pub fn sign_cluster_info(object: &Value, text: &str, now: Timestamp) -> Option<(String, String)> {
    let (id, secret) = (field(object, "token-id")?, field(object, "token-secret")?);
    let is_token =
        object["type"] == TOKEN_TYPE && !object.is_deleting() && object.name() == format!("{TOKEN_NAME_PREFIX}{id}");
    let is_enabled_for_signing = field(object, "usage-bootstrap-signing").as_deref() == Some("true");
    (is_token && is_enabled_for_signing && check_expiration(object, now).is_ok()).then(|| {
        let jws = detached_jws(text, (&id, &secret));
        (id, jws)
    })
}

/// The JSON web signature of `text` with detached content, as in cluster-info's `jws-kubeconfig-<id>`.
fn detached_jws(text: &str, (id, secret): (&str, &str)) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), message.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// True for `system:bootstrappers:` followed by lower-case letters, digits, dashes and colons, ending in a letter or
/// digit.
fn is_extra_group(group: &str) -> bool {
    let Some(name) = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')) else { return false };
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends_well = name.bytes().last().is_some_and(is_word);
    name.len() <= MAX_GROUP_LENGTH && ends_well && name.bytes().all(|byte| is_word(byte) || matches!(byte, b'-' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    const SECRET: &str = "0123456789abcdef";

    fn secret_object(change: Value) -> Value {
        let mut data = json!({
            "token-id": "abcdef", "token-secret": SECRET, "usage-bootstrap-authentication": "true",
            "expiration": "2026-01-01T00:01:00Z",
        });
        json_patch::merge(&mut data, &change);
        let encoded = data.as_object().expect("fields").iter();
        let encoded = encoded.map(|(name, text)| (name.clone(), json!(STANDARD.encode(text.as_str().expect("text")))));
        json!({"type": TOKEN_TYPE, "metadata": {"name": "bootstrap-token-abcdef"},
            "data": encoded.collect::<serde_json::Map<_, _>>()})
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[rstest]
    #[case::plain(json!({}), Ok(vec![GROUP]))]
    #[case::without_expiration(json!({"expiration": null}), Ok(vec![GROUP]))]
    #[case::karmada_group(
        json!({"auth-extra-groups": "system:bootstrappers:karmada:default-cluster-token"}),
        Ok(vec![GROUP, "system:bootstrappers:karmada:default-cluster-token"])
    )]
    #[case::expired(json!({"expiration": "2025-12-31T23:59:59Z"}), Err("it has expired"))]
    #[case::invalid_expiration(json!({"expiration": "soon"}), Err("its expiration cannot be read"))]
    #[case::other_secret(json!({"token-secret": "fedcba9876543210"}), Err("its ID or secret is wrong"))]
    #[case::other_id(json!({"token-id": "fedcba"}), Err("its ID or secret is wrong"))]
    #[case::signing_only(json!({"usage-bootstrap-authentication": "false"}), Err("it is not enabled for authentication"))]
    #[case::other_group(
        json!({"auth-extra-groups": "system:masters"}), Err("auth-extra-groups contains an invalid group")
    )]
    #[case::trailing_colon(
        json!({"auth-extra-groups": "system:bootstrappers:a:"}), Err("auth-extra-groups contains an invalid group")
    )]
    fn secrets_define_the_user(#[case] change: Value, #[case] expected: Result<Vec<&str>, &str>) {
        let result = user(&secret_object(change), ("abcdef", SECRET), now());
        let groups = result.as_ref().map(|user| user.groups.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(groups.map_err(|reason| *reason), expected);
        assert!(result.is_err() || result.is_ok_and(|user| user.name == "system:bootstrap:abcdef"));
    }

    #[test]
    fn deleting_or_other_secrets_are_rejected() {
        let mut deleting = secret_object(json!({}));
        deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(user(&deleting, ("abcdef", SECRET), now()).is_err());
        let mut opaque = secret_object(json!({}));
        opaque["type"] = json!("Opaque");
        assert!(user(&opaque, ("abcdef", SECRET), now()).is_err());
    }

    #[test]
    fn signature_is_a_detached_jws() {
        let text = "Hello from the other side. I must have called a thousand times.";
        assert_eq!(
            detached_jws(text, ("joshua", "my voice is my passport")),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..Wvm4lABG2MTCQNvjZK5AJ7th6Qm1ywTmBDAVJNF7IHM"
        );
        let key_id = |change: Value| sign_cluster_info(&secret_object(change), text, now()).map(|(id, _)| id);
        assert_eq!(key_id(json!({"usage-bootstrap-signing": "true"})).as_deref(), Some("abcdef"));
        assert_eq!(key_id(json!({})), None);
        let expired = json!({"usage-bootstrap-signing": "true", "expiration": "2025-01-01T00:00:00Z"});
        assert_eq!(key_id(expired), None);
    }

    #[rstest]
    #[case("abcdef.0123456789abcdef", true)]
    #[case("abcde.0123456789abcdef", false)]
    #[case("ABCDEF.0123456789abcdef", false)]
    #[case("abcdef.0123456789abcde_", false)]
    #[case("abcdef.0123456789abcdef.x", false)]
    #[case("eyJhbGciOiJFUzI1NiJ9.e30.c2ln", false)]
    fn token_format_is_checked(#[case] token: &str, #[case] expected: bool) {
        assert_eq!(is_bootstrap_token(token), expected);
    }
}
