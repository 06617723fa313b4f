//! Names and keys, parsed once at the edge and carried as types after that.
//!
//! `format` holds Kubernetes' rules for names, labels and taints with their wording, `identity` what identifies a kind, a
//! resource or an object.

pub mod format;
mod identity;

pub use identity::*;

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a text is not the name it should be.
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
    /// The name of a member cluster: a DNS label of at most 48 characters, so that the names made from it stay valid.
    ClusterName
}

name_type! {
    /// The name of a namespace: a DNS label.
    NamespaceName
}

/// The longest cluster name.
pub const CLUSTER_NAME_MAX_LENGTH: usize = 48;

/// The control plane's own place among the clusters objects come from. Not a DNS label, so no Cluster can be called so.
pub const CONTROL_PLANE: &str = "@control-plane";

impl ClusterName {
    /// A name a Cluster may have, or the reserved name of the control plane.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if name == CONTROL_PLANE {
            return Ok(Self::control_plane());
        }
        match format::cluster_name(name).into_iter().next() {
            None => Ok(Self(name.into())),
            Some(reason) => Err(NameError::Cluster { name: name.to_owned(), reason }),
        }
    }

    /// The control plane as one more place objects come from.
    pub fn control_plane() -> Self {
        Self(CONTROL_PLANE.into())
    }

    pub fn is_control_plane(&self) -> bool {
        &*self.0 == CONTROL_PLANE
    }
}

impl NamespaceName {
    pub fn parse(name: &str) -> Result<Self, NameError> {
        match format::dns1123_label(name).into_iter().next() {
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
    fn cluster_names(#[case] name: &str, #[case] valid: bool) {
        assert_eq!(ClusterName::parse(name).is_ok(), valid, "{name}");
    }
}
