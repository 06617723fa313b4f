//! Object references: which objects a binding may refer to, and the namespace of an object's Events.

use crowsnest_api::names::is_reserved_namespace;
use crowsnest_api::work::ObjectReference;

/// Error of a binding that must not refer to its object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignReference {
    #[error("spec.resource.namespace is {0:?}, not the binding's own namespace")]
    OtherNamespace(String),
    #[error("spec.resource is a cluster-scoped {0}; only a ClusterResourceBinding may refer to it")]
    ClusterScoped(String),
    #[error("spec.resource is a namespaced {0}; only a ResourceBinding of its namespace may refer to it")]
    Namespaced(String),
    #[error("objects in namespace {0:?} are not propagated")]
    Reserved(String),
}

/// Checks that a binding refers to an object in the scope of the binding. Controllers read and write that object with
/// their permissions; otherwise, permission to write bindings in one namespace would allow copying any object of the
/// control plane into a member. `namespaced` is the scope of the object's kind; `binding_namespace` is empty for
/// ClusterResourceBindings.
pub fn check(binding_namespace: &str, target: &ObjectReference, namespaced: bool) -> Result<(), ForeignReference> {
    match (binding_namespace, namespaced) {
        ("", true) => Err(ForeignReference::Namespaced(target.kind.clone())),
        ("", false) => Ok(()),
        (_, false) => Err(ForeignReference::ClusterScoped(target.kind.clone())),
        (namespace, true) if namespace != target.namespace => {
            Err(ForeignReference::OtherNamespace(target.namespace.clone()))
        }
        (namespace, true) if is_reserved_namespace(namespace) => Err(ForeignReference::Reserved(namespace.to_owned())),
        (_, true) => Ok(()),
    }
}

/// Namespace of an object's Events.
pub(super) fn events_namespace(object: &ObjectReference) -> &str {
    if object.namespace.is_empty() { "default" } else { &object.namespace }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::same_namespace("shop", "shop", true, true)]
    #[case::other_namespace("shop", "bank", true, false)]
    #[case::without_namespace("shop", "", true, false)]
    #[case::cluster_scoped("shop", "", false, false)]
    #[case::cluster_scoped_with_a_namespace("shop", "shop", false, false)]
    #[case::tokens_of_members("karmada-cluster", "karmada-cluster", true, false)]
    #[case::works("karmada-es-m1", "karmada-es-m1", true, false)]
    #[case::cluster_binding_without_namespace("", "", false, true)]
    #[case::cluster_binding_to_a_namespaced_object("", "bank", true, false)]
    fn bindings_refer_to_their_own_scope(
        #[case] binding: &str,
        #[case] target_namespace: &str,
        #[case] namespaced: bool,
        #[case] expected: bool,
    ) {
        let target = ObjectReference { namespace: target_namespace.to_owned(), ..ObjectReference::default() };
        assert_eq!(check(binding, &target, namespaced).is_ok(), expected);
    }
}
