//! Rules that read references from fields of an object.

use super::kubernetes::{CSI_DRIVER, ENDPOINTS, SECRET, VOLUME_SECRETS};
use super::{References, Relation, builtin_group, group_of, pod};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// Group and kind.
pub type GroupKind = (&'static str, &'static str);

/// A field of some kinds that refers to other objects.
pub struct Rule {
    /// The kinds that have the field.
    kinds: &'static [GroupKind],
    /// Fields separated by dots. `[]` selects all items of a list, `[field=value]` those with this value in a field.
    path: &'static str,
    target: Target,
    relation: Relation,
}

/// Form of the value of a field, which determines the objects that it refers to.
enum Target {
    /// The value is the name of an object of this kind.
    Name(GroupKind),
    /// The value is an object with the fields of a reference. This group and kind apply if it contains none.
    Reference(GroupKind),
    /// The value is a reference that contains its kind. Without a group, it is a built-in kind.
    TypedReference,
    /// The value is an object with these two fields for the name and the namespace of an object of this kind.
    Fields(GroupKind, &'static str, &'static str),
    /// The value is a pod's spec.
    PodSpec,
    /// The value is the spec of a PersistentVolume, of which only the volume source is read.
    VolumeSource,
}

impl Rule {
    /// The field contains the name of an object of this kind.
    pub const fn name(kinds: &'static [GroupKind], path: &'static str, kind: GroupKind) -> Self {
        Self { kinds, path, relation: Relation::Uses, target: Target::Name(kind) }
    }

    /// The field contains a reference; `kind` applies if the reference contains no group or kind.
    pub const fn reference(kinds: &'static [GroupKind], path: &'static str, kind: GroupKind) -> Self {
        Self { kinds, path, relation: Relation::Uses, target: Target::Reference(kind) }
    }

    /// The field contains a reference that contains its kind.
    pub const fn typed_reference(kinds: &'static [GroupKind], path: &'static str) -> Self {
        Self { kinds, path, relation: Relation::Uses, target: Target::TypedReference }
    }

    /// Two fields of the value contain the name and the namespace of an object of this kind.
    pub(super) const fn fields(
        kinds: &'static [GroupKind],
        path: &'static str,
        kind: GroupKind,
        name: &'static str,
        namespace: &'static str,
    ) -> Self {
        Self { kinds, path, relation: Relation::Uses, target: Target::Fields(kind, name, namespace) }
    }

    /// The field contains the spec of a pod.
    pub(super) const fn pod_spec(kinds: &'static [GroupKind], path: &'static str) -> Self {
        Self { kinds, path, relation: Relation::Uses, target: Target::PodSpec }
    }

    /// The field contains the source of a volume, as in the spec of a PersistentVolume.
    pub(super) const fn volume_source(kinds: &'static [GroupKind], path: &'static str) -> Self {
        Self { kinds, path, relation: Relation::Uses, target: Target::VolumeSource }
    }

    /// Returns this rule with this relation instead of [`Relation::Uses`].
    pub const fn with_relation(mut self, relation: Relation) -> Self {
        self.relation = relation;
        self
    }

    /// True if objects of the kind have the field.
    pub(super) fn applies_to(&self, group: &str, kind: &str) -> bool {
        self.kinds.contains(&(group, kind))
    }

    /// Adds the references of an object that this rule finds.
    pub(super) fn read(&self, object: &Value, references: &mut References<'_>) {
        references.relation = self.relation;
        references.prefix = Cow::Borrowed(self.path);
        select_values(object, self.path).into_iter().for_each(|value| self.target.read(value, references));
    }
}

/// User-defined rule: a field of a kind that refers to objects of another kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CustomRule {
    /// Group and kind of the objects that have the field.
    #[serde(default)]
    pub group: String,
    pub kind: String,
    /// Path of the field, as in [`Rule`]. The value is a name, or an object with the fields of a reference.
    pub path: String,
    pub target: CustomTarget,
    #[serde(default)]
    pub relation: CustomRelation,
}

/// Default group and kind of the referenced objects, for references that contain none.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CustomTarget {
    #[serde(default)]
    pub group: String,
    pub kind: String,
}

/// Relation of the references that a [`CustomRule`] finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum CustomRelation {
    #[default]
    #[serde(rename = "USES")]
    Uses,
    #[serde(rename = "ROUTES_TO")]
    RoutesTo,
}

impl CustomRule {
    /// True if objects of the kind have the field.
    pub fn applies_to(&self, group: &str, kind: &str) -> bool {
        (self.group.as_str(), self.kind.as_str()) == (group, kind)
    }

    pub(super) fn read(&self, object: &Value, references: &mut References<'_>) {
        references.relation = match self.relation {
            CustomRelation::Uses => Relation::Uses,
            CustomRelation::RoutesTo => Relation::RoutesTo,
        };
        references.prefix = Cow::Owned(self.path.clone());
        let CustomTarget { group, kind } = &self.target;
        for value in select_values(object, &self.path) {
            match value.as_str() {
                Some(name) => references.add((group, kind), "", name, ""),
                None => add_reference(value, (group, kind), references),
            }
        }
    }
}

impl Target {
    fn read(&self, value: &Value, references: &mut References<'_>) {
        match self {
            Self::Name(kind) => references.add(*kind, "", value.as_str().unwrap_or_default(), ""),
            Self::Reference(default) => add_reference(value, *default, references),
            Self::TypedReference => {
                let kind = text(value, "kind");
                let group = find_group(value).or_else(|| builtin_group(kind)).unwrap_or_default();
                references.add((group, kind), text(value, "namespace"), text(value, "name"), "");
            }
            Self::Fields(kind, name, namespace) => {
                // Parameters of a StorageClass may be templates, such as `${pvc.name}`; their values are unknown here.
                let fields = [text(value, name), text(value, namespace)];
                if fields.iter().all(|field| !field.contains("${")) {
                    references.add(*kind, fields[1], fields[0], name);
                }
            }
            Self::PodSpec => {
                if let Ok(spec) = pod::PodSpec::deserialize(value) {
                    spec.references(references);
                }
            }
            Self::VolumeSource => add_volume_source(value, references),
        }
    }
}

/// Adds the references of the volume source in the spec of a PersistentVolume. If a source names no namespace, the kubelet
/// reads the object in the namespace of the claim; without a claim, the namespace is unknown and the reference is skipped.
fn add_volume_source(spec: &Value, references: &mut References<'_>) {
    let text_of = |field: &str, name: &str| spec.get(field).map_or("", |value| text(value, name));
    references.add(CSI_DRIVER, "", text_of("csi", "driver"), "csi.driver");
    let claim_namespace = text_of("claimRef", "namespace");
    let mut add = |kind: GroupKind, namespace: &str, name: &str, field: &'static str| {
        let namespace = if namespace.is_empty() { claim_namespace } else { namespace };
        if !namespace.is_empty() {
            references.add(kind, namespace, name, field);
        }
    };
    for &field in VOLUME_SECRETS {
        for secret in select_values(spec, field) {
            add(SECRET, text(secret, "namespace"), text(secret, "name"), field);
        }
    }
    add(SECRET, text_of("azureFile", "secretNamespace"), text_of("azureFile", "secretName"), "azureFile.secretName");
    let endpoints_namespace = text_of("glusterfs", "endpointsNamespace");
    add(ENDPOINTS, endpoints_namespace, text_of("glusterfs", "endpoints"), "glusterfs.endpoints");
}

/// Adds a reference; `group` and `kind` apply if it contains none.
fn add_reference(value: &Value, (group, kind): (&str, &str), references: &mut References<'_>) {
    let group = find_group(value).unwrap_or(group);
    let kind = Some(text(value, "kind")).filter(|kind| !kind.is_empty()).unwrap_or(kind);
    references.add((group, kind), text(value, "namespace"), text(value, "name"), "");
}

/// The group in a reference, if any.
fn find_group(reference: &Value) -> Option<&str> {
    let field_text = |field: &str| reference.get(field).and_then(Value::as_str);
    match field_text("apiVersion") {
        Some(api_version) if !api_version.is_empty() => Some(group_of(api_version)),
        _ => field_text("apiGroup").or_else(|| field_text("group")),
    }
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Values at a path of the form of [`Rule::path`].
fn select_values<'v>(object: &'v Value, path: &str) -> Vec<&'v Value> {
    let mut current = vec![object];
    for segment in path.split('.') {
        let (field, condition) = match segment.split_once('[') {
            Some((field, condition)) => (field, Some(condition.trim_end_matches(']'))),
            None => (segment, None),
        };
        current = current.into_iter().filter_map(|value| value.get(field)).collect();
        if let Some(condition) = condition {
            let items = current.into_iter().filter_map(Value::as_array).flatten();
            current = items.filter(|item| meets_condition(item, condition)).collect();
        }
    }
    current
}

/// True if an item of a list meets the condition `field=value`, or the condition is empty.
fn meets_condition(item: &Value, condition: &str) -> bool {
    condition.split_once('=').is_none_or(|(field, value)| text(item, field) == value)
}
