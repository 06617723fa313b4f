//! Identities in headers: `X-Remote-*` of a front proxy and `Impersonate-*` of a caller. No other module parses either.
//!
//! Headers that cannot be parsed are refused, so that no user is mistaken for another one and none loses or gains
//! groups. kube-apiserver uses the first of several `X-Remote-User` or `Impersonate-User` headers; here they are
//! refused, because two proxies on the path may choose differently.

use crowsnest_apimachinery::user::UserInfo;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crowsnest_apimachinery::status::ApiError;

/// Header names with a common prefix.
struct HeaderFamily {
    prefix: &'static str,
    user: &'static str,
    uid: &'static str,
    group: &'static str,
    extra: &'static str,
}

const REMOTE: HeaderFamily = HeaderFamily {
    prefix: "x-remote-",
    user: "x-remote-user",
    uid: "x-remote-uid",
    group: "x-remote-group",
    extra: "x-remote-extra-",
};

const IMPERSONATE: HeaderFamily = HeaderFamily {
    prefix: "impersonate-",
    user: "impersonate-user",
    uid: "impersonate-uid",
    group: "impersonate-group",
    extra: "impersonate-extra-",
};

/// Reason why headers do not identify one user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityHeaderError {
    #[error("more than one {0} header")]
    Repeated(&'static str),
    #[error("the header {0} is not UTF-8")]
    NotUtf8(String),
}

impl From<IdentityHeaderError> for ApiError {
    fn from(error: IdentityHeaderError) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// The user for whom a front proxy sends the request; `None` if it names no user. Callers must have checked that the
/// connection has a front proxy's certificate.
pub fn remote_user(headers: &HeaderMap) -> Result<Option<UserInfo>, IdentityHeaderError> {
    let user = REMOTE.read(headers)?;
    Ok(Some(user).filter(|user| !user.name.is_empty()))
}

/// Removes the front proxy's headers, after they have been evaluated or if the connection is not trusted.
pub fn strip_remote_headers(headers: &mut HeaderMap) {
    REMOTE.strip(headers);
}

/// The identity in `Impersonate-*` headers, unchanged; the name may be empty.
pub(super) fn impersonated_user(headers: &HeaderMap) -> Result<UserInfo, IdentityHeaderError> {
    IMPERSONATE.read(headers)
}

pub(super) fn strip_impersonation_headers(headers: &mut HeaderMap) {
    IMPERSONATE.strip(headers);
}

impl HeaderFamily {
    fn read(&self, headers: &HeaderMap) -> Result<UserInfo, IdentityHeaderError> {
        let groups = headers.get_all(self.group).iter().map(|value| text(self.group, value));
        let mut user = UserInfo {
            name: single_value(headers, self.user)?,
            uid: single_value(headers, self.uid)?,
            groups: groups.collect::<Result<_, _>>()?,
            ..UserInfo::default()
        };
        for (name, value) in headers {
            let Some(key) = name.as_str().strip_prefix(self.extra) else { continue };
            let key = percent_encoding::percent_decode_str(key).decode_utf8();
            let key = key.map_err(|_| IdentityHeaderError::NotUtf8(name.to_string()))?.into_owned();
            user.extra.entry(key).or_default().push(text(name.as_str(), value)?);
        }
        Ok(user)
    }

    fn strip(&self, headers: &mut HeaderMap) {
        let has_prefix = |name: &&HeaderName| name.as_str().starts_with(self.prefix);
        let names: Vec<HeaderName> = headers.keys().filter(has_prefix).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// The value of a header that must occur at most once; empty if it is absent.
fn single_value(headers: &HeaderMap, name: &'static str) -> Result<String, IdentityHeaderError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(String::new()),
        (Some(value), None) => text(name, value),
        (Some(_), Some(_)) => Err(IdentityHeaderError::Repeated(name)),
    }
}

fn text(name: &str, value: &HeaderValue) -> Result<String, IdentityHeaderError> {
    let text = std::str::from_utf8(value.as_bytes()).map(str::to_owned);
    text.map_err(|_| IdentityHeaderError::NotUtf8(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    type Headers<'a> = &'a [(&'static str, &'a [u8])];

    fn headers(fields: Headers<'_>, prefix: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::try_from(format!("{prefix}{name}")).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    const PREFIXES: [&str; 2] = ["x-remote-", "impersonate-"];

    #[test]
    fn headers_become_a_user() {
        let fields: Headers<'_> = &[
            ("user", "zoë".as_bytes()),
            ("uid", b"u-1"),
            ("group", b"dev"),
            ("group", "équipe".as_bytes()),
            ("extra-example.com%2fteam", b"blue"),
            ("extra-example.com%2fteam", b"red"),
        ];
        let mut expected = UserInfo { uid: "u-1".into(), ..UserInfo::new("zoë", ["dev", "équipe"]) };
        expected.extra.insert("example.com/team".into(), vec!["blue".into(), "red".into()]);
        assert_eq!(remote_user(&headers(fields, "x-remote-")), Ok(Some(expected.clone())));
        assert_eq!(impersonated_user(&headers(fields, "impersonate-")), Ok(expected));
    }

    /// Encodes each character as one byte (Latin-1).
    fn latin1_headers(fields: &[(&'static str, &str)], prefix: &str) -> HeaderMap {
        let bytes: Vec<Vec<u8>> = fields.iter().map(|(_, value)| value.chars().map(|c| c as u8).collect()).collect();
        let fields: Vec<_> = fields.iter().zip(&bytes).map(|((name, _), value)| (*name, value.as_slice())).collect();
        headers(&fields, prefix)
    }

    #[rstest]
    #[case::nothing(&[])]
    #[case::empty(&[("user", "")])]
    #[case::group_alone(&[("group", "system:masters")])]
    fn proxies_without_a_user_name_identify_no_user(#[case] fields: &[(&'static str, &str)]) {
        assert_eq!(remote_user(&latin1_headers(fields, "x-remote-")), Ok(None));
    }

    #[rstest]
    #[case::two_users(&[("user", "a"), ("user", "")], "more than one")]
    #[case::same_user_twice(&[("user", "a"), ("user", "a")], "more than one")]
    #[case::empty_user_first(&[("user", ""), ("user", "a")], "more than one")]
    #[case::two_uids(&[("user", "a"), ("uid", "1"), ("uid", "2")], "more than one")]
    #[case::latin_user(&[("user", "zo\u{eb}")], "not UTF-8")]
    #[case::latin_uid(&[("user", "a"), ("uid", "\u{ff}")], "not UTF-8")]
    #[case::latin_group(&[("user", "a"), ("group", "dev"), ("group", "\u{ff}")], "not UTF-8")]
    #[case::latin_extra(&[("user", "a"), ("extra-scopes", "\u{ff}")], "not UTF-8")]
    #[case::latin_extra_key(&[("user", "a"), ("extra-%ff", "x")], "not UTF-8")]
    fn ambiguous_headers_are_refused(#[case] fields: &[(&'static str, &str)], #[case] reason: &str) {
        for prefix in PREFIXES {
            let headers = latin1_headers(fields, prefix);
            let refused = match prefix {
                "x-remote-" => remote_user(&headers).map(drop),
                _ => impersonated_user(&headers).map(drop),
            };
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(prefix), "{error}");
        }
    }

    #[test]
    fn strip_removes_all_headers_of_a_family() {
        let fields: Headers<'_> =
            &[("user", b"a"), ("user", b"b"), ("group", b"g"), ("extra-x", b"y"), ("anything", b"z")];
        let mut remote = headers(fields, "x-remote-");
        remote.insert("impersonate-user", HeaderValue::from_static("a"));
        strip_remote_headers(&mut remote);
        assert_eq!(remote.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["impersonate-user"]);
        strip_impersonation_headers(&mut remote);
        assert!(remote.is_empty());
    }
}
