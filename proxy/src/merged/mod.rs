//! Lists and watches merged from those of several clusters: one mechanism for the cache (`proxying`) and for live
//! members (`clusters/*`).

pub mod events;
pub mod list;

pub use self::list::MissingCluster;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::{CollectionKey, GlobalCache};
use serde_json::{Value, json};

use crate::object::Form;
use crate::table::Shape;

/// API version, kind and table columns of a merged list or watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heading {
    pub api_version: String,
    /// Kind of the list, or of the objects of a watch. Empty: unknown.
    pub kind: String,
    /// `columnDefinitions` of tables, with the column of the cluster; `None` if unknown.
    pub columns: Option<Value>,
}

impl Heading {
    /// The fields of a list after its items.
    pub fn trailing_fields(&self, shape: Shape, metadata: Value) -> Value {
        match shape {
            Shape::Table(table) => {
                let columns = self.columns.clone().unwrap_or_else(|| json!([]));
                table.head(metadata, Some(columns))
            }
            Shape::Objects(Form::Metadata(meta)) => {
                json!({"kind": "PartialObjectMetadataList", "apiVersion": meta.api_version(), "metadata": metadata})
            }
            Shape::Objects(Form::Full) if self.kind.is_empty() => {
                json!({"kind": "List", "apiVersion": "v1", "metadata": metadata})
            }
            Shape::Objects(Form::Full) => {
                json!({"kind": self.kind, "apiVersion": self.api_version, "metadata": metadata})
            }
        }
    }
}

/// Kind of a resource's objects: from the first of these clusters whose cached collection or discovery has it, then
/// from the control plane.
pub fn kind_of(cache: &GlobalCache, resource: &Gvr, clusters: impl IntoIterator<Item = ClusterName>) -> Option<String> {
    clusters.into_iter().chain([ClusterName::control_plane()]).find_map(|cluster| {
        let key = CollectionKey::new(cluster, resource.clone());
        let known_kind = cache.state(&key).map(|state| state.kind.to_string()).filter(|kind| !kind.is_empty());
        known_kind.or_else(|| cache.served_resources(&key.cluster)?.get(resource).map(|served| served.kind.clone()))
    })
}
