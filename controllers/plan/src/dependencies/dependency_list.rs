//! The dependencies of a template as an interpreter reports them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Dependencies of a template. `None` is an interpreter's nil list, which Go writes as `null` instead of `[]`. The JSON
/// form is the value of a binding's `resourcebinding.karmada.io/dependencies` annotation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DependencyList(pub Option<Vec<Dependency>>);

impl DependencyList {
    /// Dependencies of a built-in kind, whose empty list is nil.
    pub fn from_native(list: Vec<Dependency>) -> Self {
        DependencyList((!list.is_empty()).then_some(list))
    }

    pub fn list(&self) -> &[Dependency] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// An object that another object needs, by name or by label selector.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "serialize_label_selector")]
    pub label_selector: Option<LabelSelector>,
}

impl Dependency {
    pub fn core(kind: &str, namespace: &str, name: &str) -> Self {
        Dependency {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            label_selector: None,
        }
    }
}

/// Serializes a selector with its fields in the order of their declaration in Go.
fn serialize_label_selector<S: Serializer>(selector: &Option<LabelSelector>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    if let Some(labels) = selector.as_ref().and_then(|selector| selector.match_labels.as_ref()) {
        map.serialize_entry("matchLabels", labels)?;
    }
    if let Some(expressions) = selector.as_ref().and_then(|selector| selector.match_expressions.as_ref()) {
        map.serialize_entry("matchExpressions", expressions)?;
    }
    map.end()
}
