//! Owner of a Work. Works of different objects can have the same name, which is computed from kind, name and
//! namespace.

use std::fmt;

use crowsnest_api::constants::{annotation, label};
use crowsnest_api::keys::BindingKey;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::construct::DesiredWork;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Binding(BindingKey),
    /// A FederatedResourceQuota.
    Quota,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binding(key) => write!(f, "{} {key}", key.kind()),
            Self::Quota => f.write_str("a FederatedResourceQuota"),
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
    /// The owner of an existing Work of this name. `None` if that is this Work's binding or unknown.
    pub fn held_by_another(&self, existing: &Value) -> Option<Holder> {
        let own = binding_of(|key| self.annotations.get(key).map(String::as_str))?;
        if unstructured::label(existing, label::FEDERATED_RESOURCE_QUOTA_NAME).is_some() {
            return Some(Holder::Quota);
        }
        binding_of_work(existing).filter(|other| *other != own).map(Holder::Binding)
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

    fn binding(namespace: &str, name: &str) -> Option<Holder> {
        Some(Holder::Binding(BindingKey::new(namespace, name)))
    }

    #[rstest]
    #[case::its_own(json!({NAMESPACE: "shop", NAME: "web-deployment"}), json!({}), None)]
    #[case::nobodys(json!({}), json!({}), None)]
    #[case::another(json!({NAMESPACE: "shop", NAME: "db-deployment"}), json!({}), binding("shop", "db-deployment"))]
    #[case::another_namespace(json!({NAMESPACE: "bank", NAME: "web-deployment"}), json!({}), binding("bank", "web-deployment"))]
    #[case::cluster_scoped(json!({CLUSTER_NAME: "web"}), json!({}), binding("", "web"))]
    #[case::a_quotas(json!({}), json!({label::FEDERATED_RESOURCE_QUOTA_NAME: "q"}), Some(Holder::Quota))]
    fn works_of_others_are_recognized(
        #[case] annotations: Value,
        #[case] labels: Value,
        #[case] expected: Option<Holder>,
    ) {
        let manifest =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"}});
        let own =
            BTreeMap::from([(NAMESPACE.to_owned(), "shop".to_owned()), (NAME.to_owned(), "web-deployment".to_owned())]);
        let desired = super::super::construct::wrap("m1", manifest, BTreeMap::new(), own, WorkOptions::default());
        let existing = json!({"metadata": {"annotations": annotations, "labels": labels}});
        assert_eq!(desired.held_by_another(&existing), expected);
        let unbound = DesiredWork { annotations: BTreeMap::new(), ..desired };
        assert_eq!(unbound.held_by_another(&existing), None, "only Works of bindings are checked");
    }
}
