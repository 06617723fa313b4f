//! Which object is meant: as an Event names it, and as explanations and plans do, where no UID is told.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::ObjectReference;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::object;

/// An object of the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reference {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Reference {
    pub fn named(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let [api_version, kind, namespace, name] = [api_version, kind, namespace, name].map(str::to_owned);
        Reference { api_version, kind, namespace, name, uid: String::new() }
    }

    /// Without its UID.
    pub fn of(object: &Value) -> Self {
        let (api_version, kind) = (object::api_version(object), object::kind(object));
        Self::named(api_version, kind, object::namespace(object), object::name(object))
    }

    /// A cluster of which nothing but the name is at hand.
    pub fn cluster(name: &str) -> Self {
        Self::named("cluster.karmada.io/v1alpha1", "Cluster", "", name)
    }

    pub fn of_cluster(cluster: &Cluster) -> Self {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        Reference { uid: cluster.metadata.uid.clone().unwrap_or_default(), ..Self::cluster(name) }
    }

    pub fn of_template(template: &ObjectReference) -> Self {
        let named = Self::named(&template.api_version, &template.kind, &template.namespace, &template.name);
        Reference { uid: template.uid.clone(), ..named }
    }

    /// Where its Events are.
    pub(super) fn events_in(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}
