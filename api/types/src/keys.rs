//! Keys of Karmada's objects, with a type per kind, so that keys of different kinds cannot be confused.

use std::fmt;
use std::ops::Deref;

use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Scope;
use crate::names::cluster_of_execution_namespace;

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(NamespacedName);

        impl $name {
            pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
                Self(NamespacedName::new(namespace, name))
            }

            /// The key of an object of this kind.
            pub fn from_object(object: &Value) -> Self {
                Self(unstructured::key(object))
            }

            /// Namespace and name, without the kind.
            pub fn as_namespaced_name(&self) -> &NamespacedName {
                &self.0
            }

            pub fn scope(&self) -> Scope {
                Scope::from_namespace(&self.0.namespace)
            }
        }

        impl From<NamespacedName> for $name {
            fn from(key: NamespacedName) -> Self {
                Self(key)
            }
        }

        impl From<$name> for NamespacedName {
            fn from(key: $name) -> Self {
                key.0
            }
        }

        impl Deref for $name {
            type Target = NamespacedName;

            fn deref(&self) -> &NamespacedName {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, formatter)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }
    };
}

key! {
    /// Key of a ResourceBinding or, with an empty namespace, of a ClusterResourceBinding.
    BindingKey
}

key! {
    /// Key of a PropagationPolicy or OverridePolicy or, with an empty namespace, of their cluster-scoped forms.
    PolicyKey
}

key! {
    /// Key of a Work; its namespace is the execution namespace of a cluster.
    WorkKey
}

impl BindingKey {
    pub fn kind(&self) -> &'static str {
        binding_kind(self.scope())
    }
}

/// The kind of bindings of a scope.
pub fn binding_kind(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespaced => "ResourceBinding",
        Scope::Cluster => "ClusterResourceBinding",
    }
}

impl WorkKey {
    /// Name of the cluster that the Work is for; `None` outside execution namespaces.
    pub fn cluster(&self) -> Option<&str> {
        cluster_of_execution_namespace(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("shop", "web", "ResourceBinding shop/web")]
    #[case("", "crd", "ClusterResourceBinding crd")]
    fn binding_keys_have_a_kind_by_scope(#[case] namespace: &str, #[case] name: &str, #[case] expected: &str) {
        let key = BindingKey::new(namespace, name);
        assert_eq!(format!("{} {key}", key.kind()), expected);
    }

    #[test]
    fn work_keys_have_a_cluster() {
        assert_eq!(WorkKey::new("karmada-es-member1", "web").cluster(), Some("member1"));
        assert_eq!(WorkKey::new("shop", "web").cluster(), None);
    }
}
