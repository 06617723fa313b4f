//! Owner of a Work, the object for which it was created. Works of different objects can have the same name: it ends
//! with a 32-bit hash, usually of kind, name and namespace.

use std::fmt;

use crowsnest_api::constants::{annotation, label};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::construct::DesiredWork;

/// The object for which a Work was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkOwner {
    Binding(BindingKey),
    /// A FederatedResourceQuota.
    Quota,
    /// The object in the Work, if the Work belongs to neither a binding nor a quota, such as that of a Namespace.
    Object(ObjectKey),
}

impl fmt::Display for WorkOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binding(key) => write!(f, "{} {key}", key.kind()),
            Self::Quota => f.write_str("a FederatedResourceQuota"),
            Self::Object(key) => key.fmt(f),
        }
    }
}

/// The binding of a Work, from its annotations.
pub fn binding_of_work(work: &Value) -> Option<BindingKey> {
    binding_of(|key| unstructured::annotation(work, key))
}

fn binding_of<'a>(annotation_of: impl Fn(&str) -> Option<&'a str>) -> Option<BindingKey> {
    if let Some(name) = annotation_of(annotation::RESOURCE_BINDING_NAME) {
        let namespace = annotation_of(annotation::RESOURCE_BINDING_NAMESPACE).unwrap_or_default();
        return Some(BindingKey::new(namespace, name));
    }
    annotation_of(annotation::CLUSTER_RESOURCE_BINDING_NAME).map(|name| BindingKey::new("", name))
}

impl DesiredWork {
    /// Returns the owner of the existing Work of this name if this Work must not replace it: Works of a binding do not
    /// replace those of another binding or of a FederatedResourceQuota, and no Work replaces one with another object,
    /// unless both are of the same binding.
    pub fn conflicting_owner(&self, existing: &Value) -> Option<WorkOwner> {
        let binding = binding_of(|key| self.annotations.get(key).map(String::as_str));
        let owner = match unstructured::label(existing, label::FEDERATED_RESOURCE_QUOTA_NAME) {
            Some(_) => Some(WorkOwner::Quota),
            None => binding_of_work(existing).map(WorkOwner::Binding),
        };
        let is_own =
            binding.as_ref().is_some_and(|binding| matches!(&owner, Some(WorkOwner::Binding(key)) if key == binding));
        if is_own {
            return None;
        }
        let other = self.other_object(existing);
        match owner {
            Some(owner) => (binding.is_some() || other.is_some()).then_some(owner),
            None => other.map(WorkOwner::Object),
        }
    }

    /// The first object in the existing Work of this name that is not the object of this Work.
    pub fn other_object(&self, existing: &Value) -> Option<ObjectKey> {
        let identity = ObjectIdentity::from_object(&self.manifest);
        let manifests = unstructured::at(existing, &["spec", "workload", "manifests"]).and_then(Value::as_array);
        manifests
            .into_iter()
            .flatten()
            .map(ObjectIdentity::from_object)
            .find(|other| *other != identity)
            .map(ObjectKey::from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::work::construct::WorkOptions;
    use rstest::rstest;
    use serde_json::json;

    const NAMESPACE: &str = annotation::RESOURCE_BINDING_NAMESPACE;
    const NAME: &str = annotation::RESOURCE_BINDING_NAME;
    const CLUSTER_NAME: &str = annotation::CLUSTER_RESOURCE_BINDING_NAME;

    fn binding(namespace: &str, name: &str) -> Option<WorkOwner> {
        Some(WorkOwner::Binding(BindingKey::new(namespace, name)))
    }

    fn object(api_version: &str, namespace: &str, name: &str) -> Value {
        json!({"apiVersion": api_version, "kind": "Deployment", "metadata": {"namespace": namespace, "name": name}})
    }

    fn desired(manifest: Value) -> DesiredWork {
        let annotations =
            BTreeMap::from([(NAMESPACE.to_owned(), "shop".to_owned()), (NAME.to_owned(), "web-deployment".to_owned())]);
        super::super::construct::wrap("m1", manifest, BTreeMap::new(), annotations, WorkOptions::default())
    }

    #[rstest]
    #[case::same_binding(json!({NAMESPACE: "shop", NAME: "web-deployment"}), json!({}), None)]
    #[case::without_owner(json!({}), json!({}), None)]
    #[case::other_binding(json!({NAMESPACE: "shop", NAME: "db-deployment"}), json!({}), binding("shop", "db-deployment"))]
    #[case::other_namespace(json!({NAMESPACE: "bank", NAME: "web-deployment"}), json!({}), binding("bank", "web-deployment"))]
    #[case::cluster_scoped(json!({CLUSTER_NAME: "web"}), json!({}), binding("", "web"))]
    #[case::quota(json!({}), json!({label::FEDERATED_RESOURCE_QUOTA_NAME: "q"}), Some(WorkOwner::Quota))]
    fn works_of_other_bindings_are_not_replaced(
        #[case] annotations: Value,
        #[case] labels: Value,
        #[case] expected: Option<WorkOwner>,
    ) {
        let desired = desired(object("apps/v1", "shop", "web"));
        let mut existing = json!({"metadata": {"annotations": annotations, "labels": labels}});
        for manifests in [json!([]), json!([object("apps/v1beta1", "shop", "web")])] {
            existing["spec"] = json!({"workload": {"manifests": manifests}});
            assert_eq!(desired.conflicting_owner(&existing), expected);
            let unbound = DesiredWork { annotations: BTreeMap::new(), ..desired.clone() };
            assert_eq!(unbound.conflicting_owner(&existing), None, "the Work of the same object can be replaced");
        }
    }

    #[rstest]
    #[case::same_binding(json!({NAMESPACE: "shop", NAME: "web-deployment"}), json!({}), None, binding("shop", "web-deployment"))]
    #[case::other_binding(json!({NAMESPACE: "bank", NAME: "web-deployment"}), json!({}), binding("bank", "web-deployment"), binding("bank", "web-deployment"))]
    #[case::quota(json!({}), json!({label::FEDERATED_RESOURCE_QUOTA_NAME: "q"}), Some(WorkOwner::Quota), Some(WorkOwner::Quota))]
    #[case::without_owner(json!({}), json!({}), Some(WorkOwner::Object(ObjectKey::new("example.dev", "Deployment", "bank", "web"))),
        Some(WorkOwner::Object(ObjectKey::new("example.dev", "Deployment", "bank", "web"))))]
    fn works_of_other_objects_are_not_replaced(
        #[case] annotations: Value,
        #[case] labels: Value,
        #[case] for_binding: Option<WorkOwner>,
        #[case] for_others: Option<WorkOwner>,
    ) {
        let desired = desired(object("apps/v1", "shop", "web"));
        let manifests = json!([object("example.dev/v1", "bank", "web")]);
        let existing = json!({"metadata": {"annotations": annotations, "labels": labels}, "spec": {"workload": {"manifests": manifests}}});
        assert_eq!(desired.conflicting_owner(&existing), for_binding);
        let unbound = DesiredWork { annotations: BTreeMap::new(), ..desired };
        assert_eq!(unbound.conflicting_owner(&existing), for_others);
    }
}
