//! Claims of ID tokens: their validity, and the Kubernetes user they identify. Has no side effects; rules and messages
//! are those of kube-apiserver.

use crowsnest_apimachinery::user::UserInfo;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use super::jose::TokenError;
use super::settings::{EMAIL, Settings};

/// The claims of a token.
pub type Claims = Map<String, Value>;

/// Tolerated clock difference to the issuer for `nbf`, as in go-oidc; `exp` has no tolerance.
const NOT_BEFORE_LEEWAY: SignedDuration = SignedDuration::from_mins(5);

/// Reason why valid claims do not identify a user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("parse username claims {claim:?}: {reason}")]
    Username { claim: String, reason: &'static str },
    #[error("parse 'email_verified' claim: it is not a boolean")]
    EmailVerified,
    #[error("email not verified")]
    EmailNotVerified,
    #[error("parse groups claim {0:?}: it is neither a string nor a list of strings")]
    Groups(String),
    #[error("could not expand distributed claims: distributed claims are not supported")]
    Distributed,
    #[error("required claim {0} not present in ID token")]
    Missing(String),
    #[error("parse claim {0}: it is not a string")]
    NotAString(String),
    #[error("required claim {claim} value does not match. Got = {got}, want = {want}")]
    Mismatch { claim: String, got: String, want: String },
}

/// Checks issuer, audience and validity period.
pub(super) fn check_validity(settings: &Settings, claims: &Claims, now: Timestamp) -> Result<(), TokenError> {
    let issuer = claims.get("iss").and_then(Value::as_str).unwrap_or_default();
    if issuer != settings.issuer_url() {
        return Err(TokenError::Issuer { expected: settings.issuer_url().to_owned(), got: issuer.to_owned() });
    }
    let audience = strings(claims.get("aud").unwrap_or(&Value::Null)).unwrap_or_default();
    if !audience.iter().any(|audience| audience == settings.client_id()) {
        return Err(TokenError::Audience { expected: settings.client_id().to_owned(), got: audience });
    }
    let expiry = time(claims, "exp")?.unwrap_or(Timestamp::UNIX_EPOCH);
    if expiry <= now {
        return Err(TokenError::Expired(expiry.to_string()));
    }
    match time(claims, "nbf")? {
        Some(not_before) if now.saturating_add(NOT_BEFORE_LEEWAY).is_ok_and(|latest| latest < not_before) => {
            Err(TokenError::NotYetValid { now: now.to_string(), not_before: not_before.to_string() })
        }
        _ => Ok(()),
    }
}

/// Expiry time of a token; 1970 if it has none.
pub fn expiry(claims: &Claims) -> Timestamp {
    time(claims, "exp").ok().flatten().unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Reads a claim in seconds since 1970, with or without fractions. A value that is not a time makes the token
/// malformed.
fn time(claims: &Claims, name: &str) -> Result<Option<Timestamp>, TokenError> {
    let seconds = match claims.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64)),
    };
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map(Some).ok_or(TokenError::Malformed)
}

/// The user that valid claims identify.
pub(super) fn user(settings: &Settings, claims: &Claims) -> Result<UserInfo, ClaimError> {
    let name = username(settings, claims)?;
    let groups = groups(settings, claims)?;
    for (claim, want) in &settings.required_claims {
        let got = match claims.get(claim) {
            None => return Err(ClaimError::Missing(claim.clone())),
            Some(value) => value.as_str().ok_or_else(|| ClaimError::NotAString(claim.clone()))?,
        };
        if got != want {
            return Err(ClaimError::Mismatch { claim: claim.clone(), got: got.to_owned(), want: want.clone() });
        }
    }
    Ok(UserInfo { name, groups, ..UserInfo::default() })
}

fn username(settings: &Settings, claims: &Claims) -> Result<String, ClaimError> {
    let claim = &settings.username_claim;
    let claim_error = |reason| ClaimError::Username { claim: claim.clone(), reason };
    let name = match claims.get(claim) {
        None => return Err(claim_error("claim not present")),
        Some(Value::String(name)) if name.is_empty() => return Err(claim_error("it is empty")),
        Some(Value::String(name)) => name,
        Some(_) => return Err(claim_error("it is not a string")),
    };
    if claim == EMAIL
        && let Some(verified) = claims.get("email_verified")
    {
        match verified.as_bool() {
            Some(true) => {}
            Some(false) => return Err(ClaimError::EmailNotVerified),
            None => return Err(ClaimError::EmailVerified),
        }
    }
    Ok(format!("{}{name}", settings.username_prefix))
}

fn groups(settings: &Settings, claims: &Claims) -> Result<Vec<String>, ClaimError> {
    let claim = settings.groups_claim.as_str();
    if claim.is_empty() {
        return Ok(Vec::new());
    }
    match claims.get(claim) {
        None if claims.get("_claim_names").is_some_and(|names| names.get(claim).is_some()) => {
            Err(ClaimError::Distributed)
        }
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => {
            let groups = strings(value).ok_or_else(|| ClaimError::Groups(claim.to_owned()))?;
            Ok(groups.into_iter().map(|group| format!("{}{group}", settings.groups_prefix)).collect())
        }
    }
}

/// Reads a string or a list of strings.
fn strings(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::OidcFlags;
    use super::*;
    use serde_json::json;

    const ISSUER: &str = "https://id.example.com";

    fn settings(change: impl FnOnce(&mut OidcFlags)) -> Settings {
        let mut flags = OidcFlags { issuer_url: ISSUER.into(), client_id: "crowsnest".into(), ..OidcFlags::default() };
        flags.username_prefix = "-".into();
        change(&mut flags);
        Settings::new(flags).unwrap()
    }

    fn claims(value: Value) -> Claims {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn issuer_audience_and_time_are_checked() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let base = json!({"iss": ISSUER, "aud": "crowsnest", "exp": 1_000_001});
        let cases = [
            (json!({}), Ok(())),
            (json!({"aud": ["other", "crowsnest"]}), Ok(())),
            (json!({"exp": 1_000_000.5}), Err("token is expired (Token Expiry: 1970-01-12T13:46:40Z)")),
            (json!({"exp": 1_000_001.5, "nbf": 999_999.5}), Ok(())),
            (json!({"nbf": 1_000_300}), Ok(())),
            (json!({"nbf": null}), Ok(())),
            (
                json!({"nbf": 1_000_301}),
                Err("current time 1970-01-12T13:46:40Z before the nbf (not before) time: 1970-01-12T13:51:41Z"),
            ),
            (json!({"nbf": "1"}), Err("malformed token")),
            (json!({"exp": "9999999999"}), Err("malformed token")),
            (json!({"exp": null}), Err("token is expired (Token Expiry: 1970-01-01T00:00:00Z)")),
            (json!({"exp": 999_999}), Err("token is expired (Token Expiry: 1970-01-12T13:46:39Z)")),
            (
                json!({"iss": "https://id.example.com/"}),
                Err(
                    "id token issued by a different provider, expected \"https://id.example.com\" got \"https://id.example.com/\"",
                ),
            ),
            (json!({"aud": "other"}), Err("expected audience \"crowsnest\" got [\"other\"]")),
            (json!({"aud": ["other", "another"]}), Err("expected audience \"crowsnest\" got [\"other\", \"another\"]")),
            (json!({"aud": 7}), Err("expected audience \"crowsnest\" got []")),
            (json!({"aud": [7, "crowsnest"]}), Err("expected audience \"crowsnest\" got []")),
        ];
        for (change, expected) in cases {
            let mut changed = claims(base.clone());
            changed.extend(claims(change.clone()));
            let got = check_validity(&settings(|_| {}), &changed, now);
            assert_eq!(got.map_err(|e| e.to_string()), expected.map_err(str::to_owned), "{change}");
        }
    }

    #[test]
    fn usernames_are_read_from_their_claim() {
        let cases = [
            ("sub", json!({"sub": "u-1"}), Ok("u-1")),
            ("sub", json!({}), Err("parse username claims \"sub\": claim not present")),
            ("sub", json!({"sub": 7}), Err("parse username claims \"sub\": it is not a string")),
            ("sub", json!({"sub": ""}), Err("parse username claims \"sub\": it is empty")),
            ("email", json!({"email": "a@b.c"}), Ok("a@b.c")),
            ("email", json!({"email": "a@b.c", "email_verified": true}), Ok("a@b.c")),
            ("email", json!({"email": "a@b.c", "email_verified": false}), Err("email not verified")),
            (
                "email",
                json!({"email": "a@b.c", "email_verified": "true"}),
                Err("parse 'email_verified' claim: it is not a boolean"),
            ),
            ("name", json!({"name": "Alice", "email_verified": false}), Ok("Alice")),
        ];
        for (claim, claim_set, expected) in cases {
            let settings = settings(|g| g.username_claim = claim.into());
            let got = user(&settings, &claims(claim_set.clone())).map(|user| user.name);
            assert_eq!(
                got.map_err(|e| e.to_string()),
                expected.map(str::to_owned).map_err(str::to_owned),
                "{claim_set}"
            );
        }
    }

    #[test]
    fn groups_are_a_string_or_list_and_get_their_prefix() {
        let cases = [
            ("groups", "oidc:", json!({"groups": ["a", "b"]}), Ok(vec!["oidc:a", "oidc:b"])),
            ("groups", "", json!({"groups": "a"}), Ok(vec!["a"])),
            ("groups", "-", json!({"groups": "a"}), Ok(vec!["-a"])),
            ("groups", "", json!({"groups": []}), Ok(vec![])),
            ("groups", "", json!({"groups": null}), Ok(vec![])),
            ("groups", "", json!({}), Ok(vec![])),
            ("", "oidc:", json!({"groups": ["a"]}), Ok(vec![])),
            (
                "groups",
                "",
                json!({"groups": ["a", 7]}),
                Err("parse groups claim \"groups\": it is neither a string nor a list of strings"),
            ),
            (
                "groups",
                "",
                json!({"_claim_names": {"groups": "src1"}}),
                Err("could not expand distributed claims: distributed claims are not supported"),
            ),
            ("groups", "", json!({"groups": "a", "_claim_names": {"groups": "src1"}}), Ok(vec!["a"])),
        ];
        for (claim, prefix, claim_set, expected) in cases {
            let settings = settings(|g| (g.groups_claim, g.groups_prefix) = (claim.into(), prefix.into()));
            let mut with_name = claims(claim_set.clone());
            with_name.insert("sub".into(), "alice".into());
            let got = user(&settings, &with_name).map(|user| user.groups).map_err(|e| e.to_string());
            let expected = expected.map(|groups| groups.into_iter().map(str::to_owned).collect());
            assert_eq!(got, expected.map_err(str::to_owned), "{claim_set}");
        }
    }

    #[test]
    fn required_claims_must_match() {
        let settings = settings(|g| g.required_claims = [("hd".to_owned(), "example.com".to_owned())].into());
        let cases = [
            (json!({"hd": "example.com"}), None),
            (json!({}), Some("required claim hd not present in ID token")),
            (json!({"hd": ["example.com"]}), Some("parse claim hd: it is not a string")),
            (
                json!({"hd": "example.org"}),
                Some("required claim hd value does not match. Got = example.org, want = example.com"),
            ),
        ];
        for (claim_set, expected) in cases {
            let mut with_name = claims(claim_set.clone());
            with_name.insert("sub".into(), "alice".into());
            let got = user(&settings, &with_name).err().map(|e| e.to_string());
            assert_eq!(got.as_deref(), expected, "{claim_set}");
        }
    }
}
