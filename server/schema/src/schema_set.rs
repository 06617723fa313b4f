//! Schemas of the built-in kinds, loaded once from `schemas/kubernetes.json.gz`.
//!
//! Written by `schemas/generate.py`; read by `crowsnest-builtin` (typed nodes) and by OpenAPI documents (raw
//! definitions with descriptions).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::compressed::decompress;
use super::{Field, GoField, ListType, Node, Omit, PatchStrategy, Schema, SchemaRef, Type};

static COMPRESSED: &[u8] = include_bytes!("../schemas/kubernetes.json.gz");

/// Group, version, kind.
type KindKey = (Box<str>, Box<str>, Box<str>);

/// All definitions, by index and by name.
#[derive(Debug, Default)]
pub struct SchemaSet {
    nodes: Vec<SchemaRef>,
    by_name: BTreeMap<Box<str>, u16>,
    by_kind: BTreeMap<KindKey, u16>,
}

impl SchemaSet {
    /// The set of the built-in kinds, loaded on first use.
    pub fn builtin() -> &'static SchemaSet {
        static SET: LazyLock<SchemaSet> = LazyLock::new(|| {
            let raw: BTreeMap<Box<str>, RawNode> = serde_json::from_slice(&decompress(COMPRESSED))
                .expect("the committed schema file is checked by a test");
            SchemaSet::build(&raw)
        });
        &SET
    }

    /// A definition with descriptions, as `schemas/generate.py` wrote it (`$ref` is a bare definition name). The texts
    /// of all definitions are decompressed on first use and kept.
    pub fn raw_definition(name: &str) -> Option<Value> {
        static TEXTS: LazyLock<BTreeMap<Box<str>, Box<RawValue>>> = LazyLock::new(|| {
            serde_json::from_slice(&decompress(COMPRESSED)).expect("the committed schema file is checked by a test")
        });
        let text = TEXTS.get(name)?;
        Some(serde_json::from_str(text.get()).expect("the committed schema file is checked by a test"))
    }

    /// The schema of a kind in one version.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<SchemaRef> {
        let key = (Box::from(group), Box::from(version), Box::from(kind));
        self.by_kind.get(&key).map(|index| self.nodes[usize::from(*index)].clone())
    }

    /// The schema of a definition, such as `io.k8s.api.core.v1.PodSpec`.
    pub fn definition(&self, name: &str) -> Option<SchemaRef> {
        self.by_name.get(name).map(|index| self.nodes[usize::from(*index)].clone())
    }

    pub(super) fn node(&self, name: &str) -> Option<Node> {
        self.by_name.get(name).map(|index| Node::Definition(*index))
    }

    pub(super) fn by_index(&self, index: u16) -> &Schema {
        &self.nodes[usize::from(index)]
    }

    fn build(raw: &BTreeMap<Box<str>, RawNode>) -> SchemaSet {
        let by_name: BTreeMap<Box<str>, u16> =
            raw.keys().enumerate().map(|(i, name)| (name.clone(), u16::try_from(i).unwrap_or(u16::MAX))).collect();
        let mut set = SchemaSet { by_name, ..SchemaSet::default() };
        for (index, (name, node)) in raw.iter().enumerate() {
            for kind in &node.kinds {
                let key = (kind.group.as_str().into(), kind.version.as_str().into(), kind.kind.as_str().into());
                set.by_kind.insert(key, u16::try_from(index).unwrap_or(u16::MAX));
            }
            let mut schema = set.convert(node);
            schema.name = Some(name.clone());
            schema.ty = special_type(name).unwrap_or(schema.ty);
            schema.object_form = set.object_form(name);
            if schema.ty == Type::Any {
                schema.preserves_unknown_fields = true;
            }
            set.nodes.push(Arc::new(schema));
        }
        set.make_granular(raw);
        set
    }

    /// Creates granular variants of atomic definitions for fields that reference them as granular.
    fn make_granular(&mut self, raw: &BTreeMap<Box<str>, RawNode>) {
        for (index, (_, node)) in raw.iter().enumerate() {
            let granular = node.properties.iter().filter(|(_, node)| node.map_type.as_deref() == Some("granular"));
            for (name, property) in granular {
                let target = property.reference.as_deref().and_then(|target| self.by_name.get(target));
                let Some(schema) =
                    target.map(|target| Schema { is_atomic: false, ..(*self.nodes[usize::from(*target)]).clone() })
                else {
                    continue;
                };
                if let Some(field) = Arc::make_mut(&mut self.nodes[index]).properties.get_mut(name) {
                    field.node = Node::Own(Arc::new(schema));
                }
            }
        }
    }

    /// The definition of the object form of a type that accepts several JSON forms.
    fn object_form(&self, name: &str) -> Option<Node> {
        let object = name.strip_suffix("OrArray").or_else(|| name.strip_suffix("OrBool"))?;
        self.by_name.get(object).map(|index| Node::Definition(*index))
    }

    fn child(&self, raw: &RawNode) -> Node {
        match raw.reference.as_deref().and_then(|name| self.by_name.get(name)) {
            Some(index) => Node::Definition(*index),
            None => Node::Own(Arc::new(self.convert(raw))),
        }
    }

    fn convert(&self, raw: &RawNode) -> Schema {
        let go_fields: BTreeMap<&str, GoField> =
            raw.go_fields.iter().zip(0..).map(|(field, order)| field.parse(order)).collect();
        let field = |name: &str, node: &RawNode| {
            let field = Field {
                node: self.child(node),
                default: node.default.clone(),
                patch_strategy: patch_strategy(node.patch_strategy.as_deref()),
                patch_merge_key: node.patch_merge_key.clone(),
                go_field: go_fields.get(name).cloned(),
            };
            (Box::from(name), field)
        };
        Schema {
            ty: raw.ty(),
            format: raw.format.clone(),
            properties: raw.properties.iter().map(|(name, node)| field(name, node)).collect(),
            required: raw.required.clone(),
            additional_properties: raw.additional_properties.as_ref().map(|node| self.child(node)),
            items: raw.items.as_ref().map(|node| self.child(node)),
            list_type: match raw.list_type.as_deref() {
                Some("map") => ListType::Map(raw.list_map_keys.clone()),
                Some("set") => ListType::Set,
                _ => ListType::Atomic,
            },
            is_atomic: raw.map_type.as_deref() == Some("atomic"),
            ..Schema::default()
        }
    }
}

fn patch_strategy(text: Option<&str>) -> PatchStrategy {
    match text {
        Some("merge") => PatchStrategy::Merge,
        Some("retainKeys") => PatchStrategy::RetainKeys,
        Some("merge,retainKeys") => PatchStrategy::MergeRetainKeys,
        Some("replace") => PatchStrategy::Replace,
        _ => PatchStrategy::Unset,
    }
}

/// Type of a Go struct with its own JSON encoding.
fn special_type(name: &str) -> Option<Type> {
    Some(match name.rsplit('.').next()? {
        "Quantity" => Type::Quantity,
        "IntOrString" => Type::IntOrString,
        "Time" => Type::Time,
        "MicroTime" => Type::MicroTime,
        "FieldsV1"
        | "RawExtension"
        | "JSON"
        | "JSONSchemaPropsOrArray"
        | "JSONSchemaPropsOrBool"
        | "JSONSchemaPropsOrStringArray"
        | "Patch" => Type::Any,
        _ => return None,
    })
}

#[derive(Debug, Deserialize)]
struct RawKind {
    group: String,
    version: String,
    kind: String,
}

/// A definition in the committed file; other fields, such as descriptions, are skipped.
#[derive(Debug, Deserialize)]
struct RawNode {
    #[serde(rename = "$ref")]
    reference: Option<Box<str>>,
    #[serde(rename = "type")]
    ty: Option<Box<str>>,
    format: Option<Box<str>>,
    #[serde(default)]
    properties: BTreeMap<Box<str>, RawNode>,
    #[serde(default)]
    required: Vec<Box<str>>,
    #[serde(rename = "additionalProperties")]
    additional_properties: Option<Box<RawNode>>,
    items: Option<Box<RawNode>>,
    default: Option<Value>,
    #[serde(rename = "x-kubernetes-list-type")]
    list_type: Option<Box<str>>,
    #[serde(rename = "x-kubernetes-list-map-keys", default)]
    list_map_keys: Vec<Box<str>>,
    #[serde(rename = "x-kubernetes-map-type")]
    map_type: Option<Box<str>>,
    #[serde(rename = "x-kubernetes-patch-strategy")]
    patch_strategy: Option<Box<str>>,
    #[serde(rename = "x-kubernetes-patch-merge-key")]
    patch_merge_key: Option<Box<str>>,
    #[serde(rename = "x-kubernetes-group-version-kind", default)]
    kinds: Vec<RawKind>,
    #[serde(rename = "x-go", default)]
    go_fields: Vec<RawGoField>,
}

/// Name of the field, Go type, option (`e` for `omitempty`, `z` for `omitzero`, or empty), path of embedded structs.
#[derive(Debug, Deserialize)]
struct RawGoField(Box<str>, Box<str>, Box<str>, #[serde(default)] Option<Box<str>>);

impl RawGoField {
    fn parse(&self, order: u16) -> (&str, GoField) {
        let omit = match &*self.2 {
            "e" => Omit::Empty,
            "z" => Omit::Zero,
            _ => Omit::Never,
        };
        (&self.0, GoField { ty: self.1.clone(), omit, embedded_path: self.3.clone(), order })
    }
}

impl RawNode {
    fn ty(&self) -> Type {
        match (self.ty.as_deref(), self.format.as_deref()) {
            (Some("string"), Some("byte")) => Type::Bytes,
            (Some("string"), Some("int-or-string")) => Type::IntOrString,
            (Some("string"), _) => Type::String,
            (Some("integer"), _) => Type::Integer,
            (Some("number"), _) => Type::Number,
            (Some("boolean"), _) => Type::Boolean,
            (Some("array"), _) => Type::Array,
            (Some("object"), _) => Type::Object,
            _ => Type::Any,
        }
    }
}
