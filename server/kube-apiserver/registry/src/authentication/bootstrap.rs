//! Bootstrap tokens, `<id>.<secret>`: stored as Secrets `bootstrap-token-<id>` in `kube-system`. A new member or
//! node requests its certificate with one. The user is `system:bootstrap:<id>` in `system:bootstrappers` and in the
//! groups that the Secret names; RBAC decides on its rights. The same secret signs the public cluster information,
//! so that a token's bearer can verify it ([`signature`]).

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use crowsnest_apimachinery::user::UserInfo;
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ring::hmac;
use serde_json::Value;

use crate::Registry;
use crate::authentication::service_account::stored;
use crate::object::Object;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
/// Longest extra group name in bytes, without the common prefix.
const LONGEST_GROUP: usize = 256;

/// Splits a bootstrap token into ID and secret; `None` if the text does not have its format.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let fits = id.len() == ID_LENGTH && secret.len() == SECRET_LENGTH && is_word(id) && is_word(secret);
    fits.then_some((id, secret))
}

/// True if a bearer token has the format of a bootstrap token, which no other kind of token has.
pub(super) fn is_addressed(token: &str) -> bool {
    parts(token).is_some()
}

/// Authenticates a bootstrap token; returns its user or the reason for the rejection.
pub(super) fn check(registry: &Registry, token: &str, now: Timestamp) -> Result<UserInfo, String> {
    let (id, secret) = parts(token).ok_or("not a bootstrap token")?;
    let found = stored(registry, "", "secrets", NAMESPACE, &format!("bootstrap-token-{id}"));
    let found = found.ok_or_else(|| format!("there is no bootstrap token {id}"))?;
    user(&found, (id, secret), now).map_err(|why| format!("bootstrap token {id}: {why}"))
}

/// The user that the Secret of a bootstrap token defines.
fn user(found: &Value, (id, secret): (&str, &str), now: Timestamp) -> Result<UserInfo, &'static str> {
    if found.is_deleting() || found["type"] != TYPE {
        return Err("its Secret is being deleted, or of another type");
    }
    let field = |name: &str| field(found, name);
    // Digests are compared, so that timing does not reveal the position of the first difference.
    let digested = |text: &str| digest(&SHA256, text.as_bytes());
    let same = field("token-secret").is_some_and(|own| digested(&own).as_ref() == digested(secret).as_ref());
    if !same || field("token-id").as_deref() != Some(id) {
        return Err("the secret is not its own");
    }
    check_expiration(found, now)?;
    if field("usage-bootstrap-authentication").as_deref() != Some("true") {
        return Err("it is not for authentication");
    }
    let mut groups = vec![GROUP.to_owned()];
    for group in field("auth-extra-groups").unwrap_or_default().split(',').filter(|group| !group.is_empty()) {
        if !is_extra_group(group) {
            return Err("one of its groups is no group of bootstrappers");
        }
        groups.push(group.to_owned());
    }
    Ok(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

fn field(found: &Value, name: &str) -> Option<String> {
    let bytes = STANDARD.decode(found["data"][name].as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

fn check_expiration(found: &Value, now: Timestamp) -> Result<(), &'static str> {
    let Some(expiry) = field(found, "expiration").filter(|text| !text.is_empty()) else { return Ok(()) };
    let expiry: Timestamp = expiry.parse().map_err(|_| "its expiration cannot be read")?;
    if expiry > now { Ok(()) } else { Err("it has expired") }
}

/// The ID of a token and its detached JSON web signature of `text`. `None` for Secrets that are not bootstrap tokens
/// or not enabled for signing.
pub fn signature(found: &Value, text: &str, now: Timestamp) -> Option<(String, String)> {
    let (id, secret) = (field(found, "token-id")?, field(found, "token-secret")?);
    let is_token = found["type"] == TYPE && !found.is_deleting() && found.name() == format!("bootstrap-token-{id}");
    let signs = field(found, "usage-bootstrap-signing").as_deref() == Some("true");
    (is_token && signs && check_expiration(found, now).is_ok()).then(|| {
        let signed = signed(text, (&id, &secret));
        (id, signed)
    })
}

fn signed(text: &str, (id, secret): (&str, &str)) -> String {
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
    name.len() <= LONGEST_GROUP && ends_well && name.bytes().all(|byte| is_word(byte) || matches!(byte, b'-' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    const SECRET: &str = "0123456789abcdef";

    fn kept(change: Value) -> Value {
        let mut data = json!({
            "token-id": "abcdef", "token-secret": SECRET, "usage-bootstrap-authentication": "true",
            "expiration": "2026-01-01T00:01:00Z",
        });
        json_patch::merge(&mut data, &change);
        let encoded = data.as_object().expect("fields").iter();
        let encoded = encoded.map(|(name, text)| (name.clone(), json!(STANDARD.encode(text.as_str().expect("text")))));
        json!({"type": TYPE, "metadata": {"name": "bootstrap-token-abcdef"},
            "data": encoded.collect::<serde_json::Map<_, _>>()})
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[rstest]
    #[case::plain(json!({}), Ok(vec![GROUP]))]
    #[case::for_ever(json!({"expiration": null}), Ok(vec![GROUP]))]
    #[case::of_karmada(
        json!({"auth-extra-groups": "system:bootstrappers:karmada:default-cluster-token"}),
        Ok(vec![GROUP, "system:bootstrappers:karmada:default-cluster-token"])
    )]
    #[case::expired(json!({"expiration": "2025-12-31T23:59:59Z"}), Err("it has expired"))]
    #[case::when(json!({"expiration": "soon"}), Err("its expiration cannot be read"))]
    #[case::other_secret(json!({"token-secret": "fedcba9876543210"}), Err("the secret is not its own"))]
    #[case::other_id(json!({"token-id": "fedcba"}), Err("the secret is not its own"))]
    #[case::to_sign_with(json!({"usage-bootstrap-authentication": "false"}), Err("it is not for authentication"))]
    #[case::masters(
        json!({"auth-extra-groups": "system:masters"}), Err("one of its groups is no group of bootstrappers")
    )]
    #[case::unfinished(
        json!({"auth-extra-groups": "system:bootstrappers:a:"}), Err("one of its groups is no group of bootstrappers")
    )]
    fn secrets_define_the_user(#[case] change: Value, #[case] expected: Result<Vec<&str>, &str>) {
        let result = user(&kept(change), ("abcdef", SECRET), now());
        let groups = result.as_ref().map(|user| user.groups.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(groups.map_err(|why| *why), expected);
        assert!(result.is_err() || result.is_ok_and(|user| user.name == "system:bootstrap:abcdef"));
    }

    #[test]
    fn deleting_or_other_secrets_are_rejected() {
        let mut going = kept(json!({}));
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(user(&going, ("abcdef", SECRET), now()).is_err());
        let mut opaque = kept(json!({}));
        opaque["type"] = json!("Opaque");
        assert!(user(&opaque, ("abcdef", SECRET), now()).is_err());
    }

    #[test]
    fn signature_is_a_detached_jws() {
        let text = "Hello from the other side. I must have called a thousand times.";
        assert_eq!(
            signed(text, ("joshua", "my voice is my passport")),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..Wvm4lABG2MTCQNvjZK5AJ7th6Qm1ywTmBDAVJNF7IHM"
        );
        let key_id = |change: Value| signature(&kept(change), text, now()).map(|(id, _)| id);
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
        assert_eq!(is_addressed(token), expected);
    }
}
