//! The description of one served (group, version, resource): what discovery prints and handlers dispatch on.
//!
//! Written by `crowsnest-builtin` (built-in kinds) and the definitions of `server/kube-apiserver` (custom resources), whose HTTP, discovery
//! and OpenAPI read it.

use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_schema::table::Printer;

use crate::strategy::StrategyRef;

/// One subresource and what discovery says of it.
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
    /// `create delete deletecollection get list patch update watch`, sorted.
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    pub scale: Option<ScalePaths>,
    /// Version objects are stored in. All versions of a group and resource share one storage prefix.
    pub storage_version: String,
    /// Group of the storage prefix: the group itself, except for `events.k8s.io` events, which live with core's.
    pub storage_group: String,
    /// How its objects become table rows.
    pub printer: Printer,
    pub strategy: StrategyRef,
}

/// Shared handle to a resource description.
pub type ResourceRef = Arc<ResourceInfo>;

impl ResourceInfo {
    /// True for resources that come from a definition.
    pub fn is_custom(&self) -> bool {
        self.strategy.schema().is_some_and(|schema| schema.name.is_none())
    }

    /// The table its objects are stored in.
    pub fn table(&self) -> crate::storage::ResourceKey {
        crate::storage::ResourceKey::new(&self.storage_group, &self.gvr.resource)
    }
}
