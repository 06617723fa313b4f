//! Names and keys, parsed once at the edge and carried as types after that.
//!
//! `format` holds Kubernetes' rules for names, labels and taints with their wording; `generated` the names Karmada
//! derives for works, bindings and helper objects; `identity` what identifies a kind, a resource or an object.

pub mod format;
mod generated;
mod identity;

pub use generated::*;
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
    #[error("the execution space name is in wrong format")]
    ExecutionNamespace,
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(String),
    #[error("invalid permanent id {0:?}: it is empty")]
    PermanentId(String),
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

name_type! {
    /// The id an object keeps for life in a `…/permanent-id` label, so that others can refer to it even when its name is
    /// too long for a label value.
    PermanentId
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

    /// The namespace of the control plane that holds this cluster's works.
    pub fn execution_namespace(&self) -> NamespaceName {
        NamespaceName(format!("{EXECUTION_NAMESPACE_PREFIX}{self}").into())
    }

    /// The cluster whose works a namespace holds.
    pub fn from_execution_namespace(namespace: &str) -> Result<Self, NameError> {
        let name = namespace.strip_prefix(EXECUTION_NAMESPACE_PREFIX).ok_or(NameError::ExecutionNamespace)?;
        Self::parse(name)
    }
}

impl NamespaceName {
    pub fn parse(name: &str) -> Result<Self, NameError> {
        match format::dns1123_label(name).into_iter().next() {
            None => Ok(Self(name.into())),
            Some(reason) => Err(NameError::Namespace { name: name.to_owned(), reason }),
        }
    }

    /// Whether nothing in this namespace is ever propagated: it belongs to the control plane itself.
    pub fn is_reserved(&self) -> bool {
        is_reserved_namespace(&self.0)
    }
}

impl PermanentId {
    pub fn parse(id: &str) -> Result<Self, NameError> {
        if id.is_empty() {
            return Err(NameError::PermanentId(id.to_owned()));
        }
        Ok(Self(id.into()))
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

    #[test]
    fn execution_namespace_goes_both_ways() {
        let cluster = ClusterName::parse("member-1").unwrap();
        assert_eq!(cluster.execution_namespace().as_str(), "karmada-es-member-1");
        assert_eq!(ClusterName::from_execution_namespace("karmada-es-member-1").unwrap(), cluster);
        for wrong in ["", "karmada-system", "karmada-es-", "karmada-es-UPPER"] {
            assert!(ClusterName::from_execution_namespace(wrong).is_err(), "{wrong}");
        }
    }
}
