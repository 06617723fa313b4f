//! Typed schemas and the operations on them: decoding, pruning, unknown fields, patches, server-side apply, tables,
//! OpenAPI documents.
//!
//! Has no side effects and no storage. `server/kube-apiserver` and its crates decode and patch with it; the aggregated
//! APIs of `server/` print tables.
//!
//! Schemas of built-in kinds are in the committed [`schema_set::SchemaSet`] (`schemas/generate.py`), those of custom
//! resources are derived from their CRD ([`Schema::for_custom_resource`], called by `server/kube-apiserver/src/crd`).
//! Descriptions of built-in kinds stay compressed until an OpenAPI document is requested, schemas of custom resources
//! until one of their objects is read or written ([`compressed::CompressedSchema`]).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;

pub mod apply;
pub mod compressed;
pub mod decode;
pub mod defaulting;
pub mod formats;
pub mod go_regexp_errors;
pub mod internal_structs;
mod normalize;
pub mod openapi;
mod ordered_json;
pub mod patch;
pub mod print;
mod prune;
mod reader;
pub mod schema_set;
mod structural;
pub mod table;
#[cfg(test)]
mod tests;
mod time;

pub use decode::{DecodingErrors, find_decoding_errors};
pub use normalize::{is_zero_value, normalize, zero_value};
pub use prune::{prune, unknown_fields};
pub use time::{canonical_micro_time, canonical_time};

/// Type of a schema node. Kubernetes types with their own JSON encoding are separate variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Type {
    /// Any value, kept unchanged (`RawExtension`, `JSON`, `FieldsV1`, `x-kubernetes-preserve-unknown-fields` without
    /// a type).
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    IntOrString,
    Quantity,
    /// `metav1.Time`: RFC 3339 with whole seconds.
    Time,
    /// `metav1.MicroTime`: RFC 3339 with six fractional digits.
    MicroTime,
    /// `[]byte`: standard base64 in a string.
    Bytes,
}

/// `x-kubernetes-list-type` with `x-kubernetes-list-map-keys`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<Box<str>>),
}

/// Strategic merge patch strategy of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PatchStrategy {
    /// Maps are merged, lists replaced.
    #[default]
    Unset,
    Replace,
    Merge,
    RetainKeys,
    MergeRetainKeys,
}

impl PatchStrategy {
    pub fn is_merge(self) -> bool {
        matches!(self, Self::Merge | Self::MergeRetainKeys)
    }
}

/// A node of a typed schema.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    pub ty: Type,
    /// Name of the OpenAPI definition (`io.k8s.api.core.v1.Pod`) for built-in types; determines Go's type names in
    /// errors.
    pub name: Option<Box<str>>,
    /// `int32`, `int64`, `date-time`, …
    pub format: Option<Box<str>>,
    pub properties: BTreeMap<Box<str>, Field>,
    pub required: Vec<Box<str>>,
    /// `additionalProperties`: values of a map.
    pub additional_properties: Option<Node>,
    /// `items`: elements of a list.
    pub items: Option<Node>,
    /// Schema of the object form of a type that has two forms: an object or a boolean (`JSONSchemaPropsOrBool`), or an
    /// object or a list of such objects (`JSONSchemaPropsOrArray`).
    pub object_form: Option<Node>,
    pub list_type: ListType,
    /// `x-kubernetes-map-type: atomic`.
    pub is_atomic: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserves_unknown_fields: bool,
    /// `additionalProperties: true` of a custom resource: unknown fields are kept, but objects in them lose all of their
    /// fields.
    pub prunes_unknown_objects: bool,
    /// `x-kubernetes-embedded-resource`.
    pub is_embedded_resource: bool,
    pub is_nullable: bool,
    pub enumeration: Vec<Value>,
}

/// Shared handle to the schema of one kind.
pub type SchemaRef = Arc<Schema>;

/// A property of an object node.
#[derive(Debug, Clone)]
pub struct Field {
    pub node: Node,
    pub default: Option<Value>,
    pub patch_strategy: PatchStrategy,
    pub patch_merge_key: Option<Box<str>>,
    /// Go declaration of the field; `None` for custom resources.
    pub go_field: Option<GoField>,
}

/// Go declaration of a field in a built-in type: determines how empty values are encoded, and error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoField {
    /// `*int32`, `[]v1.Container`, `map[string]string`.
    pub ty: Box<str>,
    pub omit: Omit,
    /// Path of embedded structs that contain the field, joined by dots; used in errors.
    pub embedded_path: Option<Box<str>>,
    /// Position in the struct, which determines the order of Go's output.
    pub order: u16,
}

/// When a Go field is omitted from JSON, by the option in its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omit {
    /// No option: the field is always encoded.
    Never,
    /// `omitempty`.
    Empty,
    /// `omitzero`.
    Zero,
}

impl GoField {
    pub fn is_pointer(&self) -> bool {
        self.ty.starts_with('*')
    }
}

impl Field {
    pub fn new(node: Node) -> Self {
        Self { node, default: None, patch_strategy: PatchStrategy::Unset, patch_merge_key: None, go_field: None }
    }
}

/// A child node: owned, or a definition of the built-in set (which can be recursive).
#[derive(Debug, Clone)]
pub enum Node {
    Own(Arc<Schema>),
    Definition(u16),
}

impl Deref for Node {
    type Target = Schema;

    fn deref(&self) -> &Schema {
        match self {
            Self::Own(schema) => schema,
            Self::Definition(index) => schema_set::SchemaSet::builtin().by_index(*index),
        }
    }
}

impl Schema {
    /// The node of a property, or of the values of a map.
    pub fn child(&self, key: &str) -> Option<&Schema> {
        match self.properties.get(key) {
            Some(field) => Some(&field.node),
            None => self.additional_properties.as_deref(),
        }
    }

    /// True for an object without declared fields, such as `type: object` alone.
    pub fn has_no_declared_fields(&self) -> bool {
        self.ty == Type::Object && self.properties.is_empty() && self.additional_properties.is_none()
    }

    pub fn field(&self, key: &str) -> Option<&Field> {
        self.properties.get(key)
    }

    pub fn is_map(&self) -> bool {
        self.ty == Type::Object && self.additional_properties.is_some()
    }

    pub fn is_scalar(&self) -> bool {
        !matches!(self.ty, Type::Any | Type::Object | Type::Array)
    }

    /// Last part of the definition's name, which is the name of the Go struct. Empty for custom resources.
    pub fn short_name(&self) -> &str {
        self.name.as_deref().and_then(|n| n.rsplit('.').next()).unwrap_or_default()
    }

    /// True for the schema of a custom resource, as opposed to that of a built-in kind, which has the name of its OpenAPI
    /// definition. Not meaningful for the schemas of fields.
    pub fn is_of_custom_resource(&self) -> bool {
        self.name.is_none()
    }

    /// Creates the schema of a custom resource from its structural `openAPIV3Schema`, with the built-in `metadata`.
    pub fn for_custom_resource(open_api_v3_schema: &Value) -> SchemaRef {
        structural::convert_custom_resource(open_api_v3_schema)
    }

    /// The schema of a custom resource of which only the metadata is known.
    pub fn for_any_custom_resource() -> SchemaRef {
        Self::for_custom_resource(&serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
    }
}
