//! Impersonation headers for requests on behalf of a caller.

use crate::{Error, Token};
use crowsnest_apimachinery::request::{identity_header_value, upstream_headers};
use crowsnest_apimachinery::user::{
    AUTHENTICATED, UNAUTHENTICATED, UserInfo, extra_header_key, parse_service_account_user,
};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Groups that every API server adds itself.
const OWN_GROUPS: [&str; 2] = [AUTHENTICATED, UNAUTHENTICATED];
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// Attributes of a caller that are impersonated. The whole request fails if the impersonator lacks the permission
/// for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImpersonatedAttributes {
    /// Name and groups, as in Karmada.
    UserAndGroups,
    /// Name, groups, UID and extra.
    All,
}

/// The headers of a request to a member or the control plane: those of `received` that may be forwarded
/// ([`upstream_headers`]), the impersonated caller, and `token` as the credential (without one, the connection's own
/// credentials apply).
///
/// Refuses a caller without a name, because the request would run with the permissions of the impersonating account.
pub fn impersonated_headers(
    received: &HeaderMap,
    caller: &UserInfo,
    token: Option<&Token>,
    attributes: ImpersonatedAttributes,
) -> Result<HeaderMap, Error> {
    let error = |reason: String| Error::Impersonate { user: caller.name.clone(), reason };
    let invalid =
        |part: &str| error(format!("{part} is empty, has control characters, or has leading or trailing white space"));
    let name = identity_header_value(&caller.name).ok_or_else(|| invalid("the name"))?;
    let groups: Option<Vec<HeaderValue>> = impersonated_groups(caller).into_iter().map(identity_header_value).collect();
    let groups = groups.ok_or_else(|| invalid("a group"))?;
    let mut headers = upstream_headers(received);
    if let Some(token) = token {
        let value = HeaderValue::from_str(&format!("Bearer {}", token.reveal()));
        let mut value = value.map_err(|source| error(source.to_string()))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers.insert(IMPERSONATE_USER, name);
    for group in groups {
        headers.append(IMPERSONATE_GROUP, group);
    }
    if attributes == ImpersonatedAttributes::All {
        add_uid_and_extra(caller, &mut headers);
    }
    Ok(headers)
}

/// Adds UID and extra in client-go's encoding. Permissions depend only on user and groups, so values that no
/// header can hold are omitted.
fn add_uid_and_extra(caller: &UserInfo, headers: &mut HeaderMap) {
    let mut put = |name: Result<HeaderName, _>, value: &str| {
        if let (Ok(name), Some(value)) = (name, identity_header_value(value)) {
            headers.append(name, value);
        }
    };
    if !caller.uid.is_empty() {
        put(Ok(IMPERSONATE_UID), &caller.uid);
    }
    for (key, values) in caller.extra.iter().filter(|(key, _)| !key.is_empty()) {
        for value in values {
            put(HeaderName::try_from(format!("{IMPERSONATE_EXTRA}{}", extra_header_key(key))), value);
        }
    }
}

/// Groups to impersonate. Groups that an API server adds itself are omitted, including a service account's
/// namespace group when it has no others: impersonating them requires a permission that is never granted.
fn impersonated_groups(caller: &UserInfo) -> Vec<&str> {
    let groups = caller.groups.iter().map(String::as_str).filter(|group| !OWN_GROUPS.contains(group));
    let groups: Vec<&str> = groups.collect();
    let Some((namespace, _)) = parse_service_account_user(&caller.name) else { return groups };
    let is_own_group = |group: &str| {
        group
            .strip_prefix("system:serviceaccounts")
            .is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':') == Some(namespace))
    };
    if groups.iter().all(|group| is_own_group(group)) { Vec::new() } else { groups }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("alice", &["dev", "system:authenticated"], &["dev"])]
    #[case("alice", &["system:serviceaccounts"], &["system:serviceaccounts"])]
    #[case("system:serviceaccount:ops:robot", &["system:serviceaccounts", "system:serviceaccounts:ops", "system:authenticated"], &[])]
    #[case("system:serviceaccount:ops:robot", &["system:serviceaccounts:dev"], &["system:serviceaccounts:dev"])]
    #[case("system:serviceaccount::robot", &["system:serviceaccounts"], &["system:serviceaccounts"])]
    #[case("system:serviceaccount:ops:robot", &["system:serviceaccounts", "crew"], &["system:serviceaccounts", "crew"])]
    fn groups_that_an_api_server_adds_are_not_impersonated(
        #[case] name: &str,
        #[case] groups: &[&str],
        #[case] expected: &[&str],
    ) {
        assert_eq!(impersonated_groups(&UserInfo::new(name, groups.iter().copied())), expected);
    }

    #[rstest]
    #[case(ImpersonatedAttributes::UserAndGroups, &[])]
    #[case(ImpersonatedAttributes::All, &[
        "impersonate-extra-example.com%2fteam: blue",
        "impersonate-extra-scope: all",
        "impersonate-extra-scope: more",
        "impersonate-uid: 7",
    ])]
    fn groups_are_forwarded_and_received_impersonation_headers_are_dropped(
        #[case] attributes: ImpersonatedAttributes,
        #[case] rest: &[&str],
    ) {
        let extra = [("Example.com/Team", vec!["blue", "a\nb"]), ("scope", vec!["all", "more"])];
        let extra = extra.map(|(key, values)| (key.to_owned(), values.into_iter().map(str::to_owned).collect()));
        let caller = UserInfo {
            name: "alice".into(),
            uid: "7".into(),
            groups: ["dev", "system:authenticated", "ops"].map(str::to_owned).into(),
            extra: extra.into(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer mine"),
            ("impersonate-user", "root"),
            ("impersonate-extra-scope", "x"),
            ("x-remote-group", "system:masters"),
            ("connection", "impersonate-user, impersonate-group, authorization"),
            ("accept", "application/json"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let headers = impersonated_headers(&headers, &caller, Some(&Token::new("token")), attributes).unwrap();
        let mut seen: Vec<_> = headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        seen.sort();
        let always = ["accept: application/json", "authorization: Bearer token", "impersonate-group: dev"];
        let mut expected = [&always, &["impersonate-group: ops", "impersonate-user: alice"][..], rest].concat();
        expected.sort_unstable();
        assert_eq!(seen, expected);
        for name in ["a\nb", "", " ", " root"] {
            assert!(
                impersonated_headers(&headers, &UserInfo::new(name, ["dev"]), None, attributes).is_err(),
                "{name:?}"
            );
        }
    }
}
