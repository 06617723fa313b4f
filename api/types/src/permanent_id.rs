//! Permanent ids: Karmada assigns an id to an object once, in a label, and copies the label to derived objects.

use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use crate::Scope;
use crate::constants::label;

/// Labels of propagation policies of both scopes.
pub const POLICY_LABELS: [&str; 2] =
    [label::PROPAGATION_POLICY_PERMANENT_ID, label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID];

/// Label of the propagation policies of a scope, and of the objects that they claim.
pub const fn policy_label(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespaced => label::PROPAGATION_POLICY_PERMANENT_ID,
        Scope::Cluster => label::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID,
    }
}

/// Label of the bindings of a scope, and of their Works.
pub const fn binding_label(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespaced => label::RESOURCE_BINDING_PERMANENT_ID,
        Scope::Cluster => label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID,
    }
}

/// Id of a propagation policy; empty if it has none yet.
pub fn policy_id(policy: &Value) -> &str {
    id(policy, policy_label)
}

/// Id of a binding; empty if it has none yet.
pub fn binding_id(binding: &Value) -> &str {
    id(binding, binding_label)
}

fn id(object: &Value, label_of: fn(Scope) -> &'static str) -> &str {
    let scope = Scope::from_namespace(unstructured::namespace(object));
    unstructured::label(object, label_of(scope)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::namespaced("shop", "propagationpolicy.karmada.io/permanent-id", "resourcebinding.karmada.io/permanent-id")]
    #[case::cluster(
        "",
        "clusterpropagationpolicy.karmada.io/permanent-id",
        "clusterresourcebinding.karmada.io/permanent-id"
    )]
    fn ids_are_in_the_label_of_the_scope(#[case] namespace: &str, #[case] policy: &str, #[case] binding: &str) {
        let object = json!({"metadata": {"namespace": namespace, "labels": {policy: "p", binding: "b"}}});
        assert_eq!((policy_id(&object), binding_id(&object)), ("p", "b"));
        assert_eq!(policy_id(&json!({"metadata": {"namespace": namespace}})), "");
    }
}
