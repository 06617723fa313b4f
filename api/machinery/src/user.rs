//! Identity of the user of a request, as established by authentication.

use std::collections::BTreeMap;

use crate::names::format::{validate_dns1123_label, validate_dns1123_subdomain};

/// Group whose members are authorized for everything.
pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const ANONYMOUS: &str = "system:anonymous";
/// Prefix of the user names of service accounts, `system:serviceaccount:<namespace>:<name>`.
pub(crate) const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Group of all service accounts. Each is also in the group of its namespace, `system:serviceaccounts:<namespace>`.
pub(crate) const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// Encodes the key of an extra field for the name of a header (`X-Remote-Extra-KEY`, `Impersonate-Extra-KEY`) as
/// client-go does: in lower case, with invalid characters percent-encoded.
pub fn extra_header_key(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.to_lowercase().bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02x}"));
        }
    }
    escaped
}

/// Namespace and name of a service account by its user name. `None` for other users, including invalid names with
/// the prefix: both parts must be valid, as in `serviceaccount.SplitUsername` of k8s.io/apiserver.
pub fn parse_service_account_user(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let is_valid = validate_dns1123_label(namespace).is_empty() && validate_dns1123_subdomain(name).is_empty();
    is_valid.then_some((namespace, name))
}

/// The user name of a service account.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The groups of the service accounts of a namespace, besides `system:authenticated`.
pub fn service_account_groups(namespace: &str) -> [String; 2] {
    [SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// A user with groups and extra fields (`UserInfo` of `authentication.k8s.io`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The identity of the process itself, which is authorized for everything.
    pub fn system() -> Self {
        Self::new("system:crowsnest", [MASTERS])
    }

    /// True for members of `system:masters`, who are authorized for everything.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// True if the name is that of a service account, or a group is one that only service accounts have.
    pub fn is_service_account(&self) -> bool {
        let is_service_account_group = |group: &String| {
            group.strip_prefix(SERVICE_ACCOUNTS).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        self.name.starts_with(SERVICE_ACCOUNT_PREFIX) || self.groups.iter().any(is_service_account_group)
    }

    /// Adds `system:authenticated`, or `system:unauthenticated` for the anonymous user, as every API server does.
    pub fn with_implied_groups(mut self) -> Self {
        let implied = if self.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        if !self.groups.iter().any(|group| group == implied) {
            self.groups.push(implied.to_owned());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("system:serviceaccount:shop:robot", Some(("shop", "robot")))]
    #[case("system:serviceaccount:shop:robot.v1", Some(("shop", "robot.v1")))]
    #[case("system:serviceaccount::robot", None)]
    #[case("system:serviceaccount:shop:", None)]
    #[case("system:serviceaccount:shop", None)]
    #[case("system:serviceaccount:a/../shop:robot", None)]
    #[case("system:serviceaccount:a.shop:robot", None)]
    #[case("system:serviceaccount:shop:robot:x", None)]
    #[case("system:serviceaccount:Shop:robot", None)]
    #[case("system:serviceaccount:shop:robot_1", None)]
    #[case("system:serviceaccounts:shop:robot", None)]
    #[case("robot", None)]
    fn service_account_names_are_parsed(#[case] user: &str, #[case] expected: Option<(&str, &str)>) {
        assert_eq!(parse_service_account_user(user), expected);
        if let Some((namespace, name)) = expected {
            assert_eq!(service_account_user(namespace, name), user);
        }
    }

    #[rstest::rstest]
    #[case("system:serviceaccount:monitoring:prometheus", &[], true)]
    #[case("ann", &["system:serviceaccounts"], true)]
    #[case("ann", &["staff", "system:serviceaccounts:monitoring"], true)]
    #[case("ann", &["staff", "system:serviceaccountsfoo"], false)]
    #[case("system:serviceaccounts", &["system:authenticated"], false)]
    #[case("ann", &["system:masters"], false)]
    fn service_accounts_are_recognized_by_name_and_group(
        #[case] name: &str,
        #[case] groups: &[&str],
        #[case] expected: bool,
    ) {
        assert_eq!(UserInfo::new(name, groups.iter().copied()).is_service_account(), expected);
    }
}
