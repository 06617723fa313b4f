//! Who asks, and the headers that make a member see it.

use std::collections::BTreeMap;

use http::header::{AUTHORIZATION, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The authenticated user of a request (`authentication.k8s.io` `UserInfo`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Every API server adds these itself.
const OWN_GROUPS: &[&str] = &["system:authenticated", "system:unauthenticated"];
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");

impl Caller {
    /// Replaces the identity that `headers` carry by this caller, vouched for by `token` (none: whoever the connection
    /// is). Karmada's rules: user and groups only, UID and extra are not forwarded.
    pub(crate) fn impersonate(&self, headers: &mut HeaderMap, token: Option<&str>) -> Result<(), InvalidHeaderValue> {
        strip_identity(headers);
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(IMPERSONATE_USER, HeaderValue::from_bytes(self.name.as_bytes())?);
        for group in self.groups.iter().filter(|group| !OWN_GROUPS.contains(&group.as_str())) {
            headers.append(IMPERSONATE_GROUP, HeaderValue::from_bytes(group.as_bytes())?);
        }
        Ok(())
    }
}

/// Removes everything a client could claim to be somebody with.
fn strip_identity(headers: &mut HeaderMap) {
    let claims = |name: &HeaderName| {
        *name == AUTHORIZATION || name.as_str().starts_with("impersonate-") || name.as_str().starts_with("x-remote-")
    };
    let claimed: Vec<HeaderName> = headers.keys().filter(|name| claims(name)).cloned().collect();
    for name in claimed {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_user_and_real_groups_are_forwarded_and_claims_are_dropped() {
        let caller = Caller {
            name: "alice".into(),
            uid: "7".into(),
            groups: ["dev", "system:authenticated", "ops"].map(str::to_owned).into(),
            extra: BTreeMap::from([("scope".to_owned(), vec!["all".to_owned()])]),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer mine"),
            ("impersonate-user", "root"),
            ("impersonate-extra-scope", "x"),
            ("x-remote-group", "system:masters"),
            ("accept", "application/json"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        caller.impersonate(&mut headers, Some("token")).unwrap();
        let mut seen: Vec<_> = headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        seen.sort();
        assert_eq!(
            seen,
            [
                "accept: application/json",
                "authorization: Bearer token",
                "impersonate-group: dev",
                "impersonate-group: ops",
                "impersonate-user: alice"
            ]
        );
        assert!(Caller { name: "a\nb".into(), ..Caller::default() }.impersonate(&mut headers, None).is_err());
    }
}
