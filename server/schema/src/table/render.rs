//! `Table` and `PartialObjectMetadata`, the alternative representations of objects.

use std::borrow::Cow;

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Value, json};

use super::{Now, Printer};

/// `includeObject` of a table request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// Parses the query parameter; empty means `Metadata`.
    pub fn parse(text: &str) -> ApiResult<Self> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// List metadata of a table, copied from the printed list or object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListMeta {
    pub resource_version: String,
    pub continue_token: String,
    pub remaining_item_count: Option<i64>,
}

impl ListMeta {
    /// Reads the metadata of a list, or of a single object.
    pub fn from_object(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        Self {
            resource_version: text("resourceVersion"),
            continue_token: text("continue"),
            remaining_item_count: metadata["remainingItemCount"].as_i64(),
        }
    }

    pub fn to_json(&self) -> Value {
        let mut meta = Map::new();
        if !self.resource_version.is_empty() {
            meta.insert("resourceVersion".into(), json!(self.resource_version));
        }
        if !self.continue_token.is_empty() {
            meta.insert("continue".into(), json!(self.continue_token));
        }
        if let Some(remaining) = self.remaining_item_count {
            meta.insert("remainingItemCount".into(), json!(remaining));
        }
        Value::Object(meta)
    }
}

/// Converts an object to the version with all fields, from which tables and metadata are derived.
pub type ToInternal = for<'v> fn(&'v Value) -> Cow<'v, Value>;

/// `PartialObjectMetadata` of an object.
pub fn partial_object_metadata(object: &Value, to_internal: ToInternal) -> Value {
    let mut metadata = to_internal(object).get("metadata").cloned().unwrap_or_else(|| json!({}));
    if object.get("kind").is_some_and(|kind| kind == "DaemonSet") {
        hide_template_generation(&mut metadata);
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// Removes the annotation that stores `spec.templateGeneration`, a field of removed versions of DaemonSets.
fn hide_template_generation(metadata: &mut Value) {
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.remove("deprecated.daemonset.template.generation");
    if annotations.is_empty() {
        metadata.as_object_mut().map(|m| m.remove("annotations"));
    }
}

/// `PartialObjectMetadataList` of objects.
pub fn partial_object_metadata_list<'a>(
    objects: impl IntoIterator<Item = &'a Value>,
    meta: &ListMeta,
    to_internal: ToInternal,
) -> Value {
    let items: Vec<Value> = objects.into_iter().map(|object| partial_object_metadata(object, to_internal)).collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta.to_json(), "items": items})
}

/// Prints objects as rows of a table.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'p> {
    pub printer: &'p Printer,
    pub include_object: IncludeObject,
    pub now: Now,
    pub to_internal: ToInternal,
}

impl Rows<'_> {
    /// A `meta.k8s.io/v1` Table with one row per object. `columns` is `None` for all but the first event of a watch.
    pub fn table<'a>(
        &self,
        columns: Option<Vec<Value>>,
        objects: impl IntoIterator<Item = &'a Value>,
        meta: &ListMeta,
    ) -> Value {
        let rows: Vec<Value> = objects.into_iter().map(|object| self.row(object)).collect();
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta.to_json(),
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn row(&self, object: &Value) -> Value {
        let internal = (self.to_internal)(object);
        let mut row = json!({"cells": self.printer.cells(&internal, self.now)});
        let conditions = self.printer.conditions(&internal);
        if !conditions.is_empty() {
            row["conditions"] = Value::Array(conditions);
        }
        row["object"] = match self.include_object {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_object_metadata(object, self.to_internal),
            IncludeObject::Object => object.clone(),
        };
        row
    }
}

/// Changes the document's version to `meta.k8s.io/v1beta1`, which has the same fields.
pub fn to_v1beta1(document: &mut Value) {
    fn rename(object: &mut Value) {
        if object["apiVersion"] == "meta.k8s.io/v1" {
            object["apiVersion"] = "meta.k8s.io/v1beta1".into();
        }
    }
    rename(document);
    for (list, is_row_list) in [("items", false), ("rows", true)] {
        let entries = document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        entries.filter_map(|entry| if is_row_list { entry.get_mut("object") } else { Some(entry) }).for_each(rename);
    }
}
