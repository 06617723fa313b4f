//! Subjects of bindings.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::user::{ANONYMOUS, AUTHENTICATED, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS, UNAUTHENTICATED, UserInfo};

/// Kind of a subject. Subjects of unknown kinds have no permissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SubjectKind {
    User,
    Group,
    ServiceAccount,
    #[default]
    #[serde(other)]
    Unknown,
}

/// A user, group or service account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    pub kind: SubjectKind,
    /// Empty for users and groups. A stored subject of a RoleBinding may omit it.
    #[serde(skip_serializing_if = "is_empty")]
    pub namespace: Box<str>,
    pub name: Box<str>,
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

impl Subject {
    pub fn user(name: &str) -> Self {
        Self { kind: SubjectKind::User, namespace: Box::default(), name: name.into() }
    }

    pub fn group(name: &str) -> Self {
        Self { kind: SubjectKind::Group, namespace: Box::default(), name: name.into() }
    }

    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self { kind: SubjectKind::ServiceAccount, namespace: namespace.into(), name: name.into() }
    }

    /// True if a binding in this namespace with this subject applies to the user.
    pub(super) fn matches_user(&self, user: &UserInfo, binding_namespace: &str) -> bool {
        match self.kind {
            SubjectKind::User => *user.name == *self.name,
            SubjectKind::Group => user.groups.iter().any(|group| **group == *self.name),
            SubjectKind::ServiceAccount => {
                let namespace = if self.namespace.is_empty() { binding_namespace } else { &self.namespace };
                let account = user.name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
                !namespace.is_empty() && account == Some((namespace, &*self.name))
            }
            SubjectKind::Unknown => false,
        }
    }

    /// The subject in a normal form: a service account has its namespace, and a user `system:serviceaccount:NAMESPACE:NAME`
    /// becomes that service account. `None` if a binding in this namespace with this subject applies to no user.
    pub(super) fn resolve(&self, binding_namespace: &str) -> Option<Self> {
        match self.kind {
            SubjectKind::Unknown => None,
            SubjectKind::Group => Some(Self::group(&self.name)),
            SubjectKind::User => {
                let account = self.name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
                Some(match account.filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty()) {
                    Some((namespace, name)) => Self::service_account(namespace, name),
                    None => Self::user(&self.name),
                })
            }
            SubjectKind::ServiceAccount => {
                let namespace = if self.namespace.is_empty() { binding_namespace } else { &self.namespace };
                (!namespace.is_empty()).then(|| Self::service_account(namespace, &self.name))
            }
        }
    }

    /// True if a binding to this subject also applies to `other`, because of the groups that API servers add to users.
    pub fn includes(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let is_everyone = self.kind == SubjectKind::Group && &*self.name == AUTHENTICATED;
        match other.kind {
            SubjectKind::Group => is_everyone && &*other.name != UNAUTHENTICATED,
            SubjectKind::User => is_everyone && &*other.name != ANONYMOUS,
            SubjectKind::ServiceAccount => {
                let namespace = self.service_account_group_namespace();
                is_everyone || namespace.is_some_and(|namespace| namespace.is_empty() || *namespace == *other.namespace)
            }
            SubjectKind::Unknown => false,
        }
    }

    /// The namespace of a group of service accounts; empty for the group of all service accounts. `None` for other
    /// subjects.
    pub(super) fn service_account_group_namespace(&self) -> Option<&str> {
        if self.kind != SubjectKind::Group {
            return None;
        }
        let rest = self.name.strip_prefix(SERVICE_ACCOUNTS)?;
        if rest.is_empty() { Some("") } else { rest.strip_prefix(':').filter(|namespace| !namespace.is_empty()) }
    }

    /// The subject in the reason of a decision, in kube-apiserver's format.
    pub(super) fn describe(&self) -> String {
        match self.kind {
            SubjectKind::ServiceAccount => format!("ServiceAccount {:?}", format!("{}/{}", self.name, self.namespace)),
            kind => format!("{kind:?} {:?}", self.name),
        }
    }
}

/// `ServiceAccount shop/robot`, `User ann`.
impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(formatter, "{:?} {}", self.kind, self.name),
            namespace => write!(formatter, "{:?} {namespace}/{}", self.kind, self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::itself(Subject::user("ann"), Subject::user("ann"), true)]
    #[case::everyone(Subject::group("system:authenticated"), Subject::user("ann"), true)]
    #[case::a_group(Subject::group("system:authenticated"), Subject::group("staff"), true)]
    #[case::anonymous(Subject::group("system:authenticated"), Subject::user("system:anonymous"), false)]
    #[case::unauthenticated(Subject::group("system:authenticated"), Subject::group("system:unauthenticated"), false)]
    #[case::accounts(Subject::group("system:serviceaccounts"), Subject::service_account("shop", "robot"), true)]
    #[case::accounts_of_the_namespace(
        Subject::group("system:serviceaccounts:shop"),
        Subject::service_account("shop", "robot"),
        true
    )]
    #[case::accounts_of_another_namespace(
        Subject::group("system:serviceaccounts:ops"),
        Subject::service_account("shop", "robot"),
        false
    )]
    #[case::not_an_account(Subject::group("system:serviceaccounts"), Subject::user("ann"), false)]
    #[case::group_with_unknown_members(Subject::group("staff"), Subject::user("ann"), false)]
    fn subjects_include_others(#[case] subject: Subject, #[case] other: Subject, #[case] expected: bool) {
        assert_eq!(subject.includes(&other), expected);
    }

    #[test]
    fn accounts_are_resolved() {
        let robot = Subject::service_account("shop", "robot");
        let cases = [
            (Subject::user("system:serviceaccount:shop:robot"), "", Some(&robot)),
            (Subject::service_account("", "robot"), "shop", Some(&robot)),
            (Subject::service_account("", "robot"), "", None),
            (Subject::default(), "shop", None),
        ];
        for (stored, namespace, expected) in cases {
            assert_eq!(stored.resolve(namespace).as_ref(), expected, "{stored:?}");
        }
        assert_eq!(robot.to_string(), "ServiceAccount shop/robot");
    }
}
