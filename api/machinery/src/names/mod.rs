//! Names and keys as types, parsed once at the boundary.
//!
//! `format` contains Kubernetes' rules for names, labels and taints with their messages, `identity` the identifiers
//! of kinds, resources and objects.

pub mod format;
mod identity;

pub use identity::*;

use std::fmt;

use serde::{Deserialize, Serialize};

/// Reason why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("invalid cluster name {name:?}: {reason}")]
    Cluster { name: String, reason: String },
    #[error("invalid namespace name {name:?}: {reason}")]
    Namespace { name: String, reason: String },
    #[error("invalid name {name:?}: {reason}")]
    Object { name: String, reason: String },
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name_type! {
    /// The name of a member cluster: a DNS label of at most 48 characters, so that derived names are valid.
    ClusterName
}

name_type! {
    /// The name of a namespace: a DNS label.
    NamespaceName
}

/// Maximum length of cluster names.
pub const MAX_CLUSTER_NAME_LENGTH: usize = 48;

/// The reserved name of the control plane as a source of objects. Not a DNS label, so no Cluster can have it.
pub const CONTROL_PLANE: &str = "@control-plane";

impl ClusterName {
    /// Parses the name of a Cluster, or the reserved name of the control plane.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if name == CONTROL_PLANE {
            return Ok(Self::control_plane());
        }
        match format::validate_cluster_name(name).into_iter().next() {
            None => Ok(Self(name.into())),
            Some(reason) => Err(NameError::Cluster { name: name.to_owned(), reason }),
        }
    }

    /// The control plane as a source of objects.
    pub fn control_plane() -> Self {
        Self(CONTROL_PLANE.into())
    }

    pub fn is_control_plane(&self) -> bool {
        &*self.0 == CONTROL_PLANE
    }
}

impl NamespaceName {
    pub fn parse(name: &str) -> Result<Self, NameError> {
        match format::validate_dns1123_label(name).into_iter().next() {
            None => Ok(Self(name.into())),
            Some(reason) => Err(NameError::Namespace { name: name.to_owned(), reason }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("member1", true)]
    #[case("a", true)]
    #[case(&"m".repeat(48), true)]
    #[case(&"m".repeat(49), false)]
    #[case("", false)]
    #[case("Member", false)]
    #[case("member.1", false)]
    #[case("-member", false)]
    fn cluster_names_are_validated(#[case] name: &str, #[case] valid: bool) {
        assert_eq!(ClusterName::parse(name).is_ok(), valid, "{name}");
    }
}
