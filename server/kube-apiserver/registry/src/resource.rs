//! Description of a served resource (group, version, resource), from which discovery and request dispatch derive.
//!
//! Written by `crowsnest-builtin` (built-in kinds) and the CRDs of `server/kube-apiserver` (custom resources); read
//! by that server's HTTP, discovery and OpenAPI code.

use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_schema::table::Printer;
use serde_json::Value;

use crate::strategy::StrategyRef;

/// A subresource and its discovery entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// `status`, `scale`, `log`, …
    pub name: &'static str,
    /// Kind in discovery (`Scale`, `Pod`, `Eviction`, …) with its group and version when they differ from the parent's.
    pub kind: String,
    pub group: String,
    pub version: String,
    pub verbs: Vec<&'static str>,
}

/// Paths of the scale subresource, as in a CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// Path of a string or a LabelSelector; printed as text in `Scale.status.selector`.
    pub selector: Option<String>,
}

/// Group and version in which the objects of a resource are stored. All versions of a group and resource share one
/// storage prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageVersion {
    /// Differs from the group of the resource only for `events.k8s.io` events, which are stored with those of core.
    pub group: String,
    pub version: String,
}

/// One served resource.
#[derive(Debug, Clone)]
pub struct ResourceInfo {
    pub gvr: Gvr,
    pub kind: String,
    pub list_kind: String,
    pub singular: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    /// `create`, `delete`, `deletecollection`, `get`, `list`, `patch`, `update`, `watch`, in the order of discovery.
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    pub scale: Option<ScalePaths>,
    pub storage: StorageVersion,
    /// Prints objects as table rows.
    pub printer: Printer,
    pub strategy: StrategyRef,
}

/// Shared handle to a resource description.
pub type ResourceRef = Arc<ResourceInfo>;

impl ResourceInfo {
    /// True for resources of a CRD.
    pub fn is_custom(&self) -> bool {
        self.strategy.is_custom()
    }

    /// True if an object states the group and the kind of this resource, in any version. Others are not decoded by its
    /// schema.
    pub fn has_kind_of(&self, object: &Value) -> bool {
        let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = object.get("kind").and_then(Value::as_str);
        kind == Some(self.kind.as_str()) && *group == *self.gvr.group
    }

    /// True for kinds of Kubernetes; false for resources of a CRD, and for those without a schema.
    pub fn is_built_in(&self) -> bool {
        !self.is_custom() && self.strategy.schema().is_some()
    }

    /// The table in which its objects are stored.
    pub fn table(&self) -> crate::storage::ResourceKey {
        crate::storage::ResourceKey::new(&self.storage.group, &self.gvr.resource)
    }
}
