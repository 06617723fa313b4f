//! Objects that an object refers to, by group, kind, namespace and name.
//!
//! The tables [`KUBERNETES`] and [`EXTENSIONS`] list the references of each kind; those of pods and pod templates are
//! in `pod.rs`. Owner references and subjects of events have their own form and are not included.

mod extensions;
mod kinds;
mod kubernetes;
mod pod;
mod rule;
mod selectors;

pub use extensions::EXTENSIONS;
pub use kinds::{canonical_kind, is_namespaced};
pub use kubernetes::KUBERNETES;
pub use rule::{CustomRelation, CustomRule, CustomTarget, GroupKind, Rule};
pub use selectors::{PodSelection, SELECTING_KINDS, pod_selection};

use crate::names::ObjectKey;
use crate::printers::JsonSource;
use crate::unstructured;
use kinds::builtin_group;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Meaning of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// The object uses the referenced one.
    Uses,
    /// The object sends traffic to the referenced one.
    RoutesTo,
    /// The referenced object sends traffic to this one, as a Gateway to its routes.
    RoutedBy,
    /// The binding grants a role to the referenced object.
    Subject,
    /// The binding grants the referenced role.
    RoleRef,
    /// The object runs on the referenced node.
    RunsOn,
}

/// A reference with the field that contains it. Ordered by the referenced object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub object: ObjectKey,
    pub relation: Relation,
    /// Path of the rule.
    prefix: Cow<'static, str>,
    /// Path of the field below `prefix`; empty for the value at `prefix` itself.
    field: &'static str,
}

impl Reference {
    /// Path of the field that contains the reference: `spec.template.spec.volumes[].secret.secretName`.
    pub fn field_path(&self) -> String {
        let dot = if self.prefix.is_empty() || self.field.is_empty() { "" } else { "." };
        [&*self.prefix, dot, self.field].concat()
    }
}

/// The referenced objects, in order and without duplicates.
pub fn referenced_objects(references: BTreeSet<Reference>) -> Vec<ObjectKey> {
    let mut keys: Vec<ObjectKey> = references.into_iter().map(|reference| reference.object).collect();
    keys.dedup();
    keys
}

/// Finds the references of an object by the rules of these tables, in the order of the referenced objects.
///
/// A reference without a namespace is in the namespace of the object, unless its kind is cluster-scoped. If the scope of
/// the kind is unknown, both the namespaced and the cluster-scoped object are returned, of which only one can exist.
pub fn find_references<'a>(
    tables: &[&[Rule]],
    group: &str,
    kind: &str,
    source: impl JsonSource<'a>,
) -> BTreeSet<Reference> {
    if (group, kind) == ("", "Pod") {
        return source.read::<pod::Pod<'a>>().map(|pod| pod.references().references).unwrap_or_default();
    }
    let mut rules = tables.iter().copied().flatten().filter(|rule| rule.applies_to(group, kind)).peekable();
    if rules.peek().is_none() {
        return BTreeSet::new();
    }
    let object = source.tree();
    let mut found = References::in_namespace(unstructured::namespace(&object));
    rules.for_each(|rule| rule.read(&object, &mut found));
    found.references
}

/// Finds the references of an object by rules that users add.
pub fn find_custom_references(rules: &[CustomRule], group: &str, kind: &str, object: &Value) -> BTreeSet<Reference> {
    let mut found = References::in_namespace(unstructured::namespace(object));
    rules.iter().filter(|rule| rule.applies_to(group, kind)).for_each(|rule| rule.read(object, &mut found));
    found.references
}

/// Group of an `apiVersion`; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Group of a reference by `apiVersion` and kind. A reference without a version is to a built-in kind.
pub fn group_of_reference<'a>(api_version: &'a str, kind: &str) -> &'a str {
    match api_version {
        "" => builtin_group(kind).unwrap_or_default(),
        api_version => group_of(api_version),
    }
}

/// References of an object in a namespace.
struct References<'n> {
    /// Namespace of the referring object; empty for cluster-scoped objects.
    namespace: &'n str,
    /// Relation and path of the rule that is applied.
    relation: Relation,
    prefix: Cow<'static, str>,
    references: BTreeSet<Reference>,
}

impl<'n> References<'n> {
    fn in_namespace(namespace: &'n str) -> Self {
        Self { namespace, relation: Relation::Uses, prefix: Cow::Borrowed(""), references: BTreeSet::new() }
    }

    /// Adds a reference from a field below the rule's path. The namespace is empty if the reference names none. A
    /// reference without kind or name is skipped.
    fn add(&mut self, (group, kind): (&str, &str), namespace: &str, name: &str, field: &'static str) {
        if kind.is_empty() || name.is_empty() {
            return;
        }
        let default_namespace = self.namespace;
        let mut add = |namespace: &str| {
            let object = ObjectKey::new(group, kind, namespace, name);
            let is_node_name = field == pod::NODE_NAME;
            let relation = if is_node_name { Relation::RunsOn } else { self.relation };
            self.references.insert(Reference { object, relation, prefix: self.prefix.clone(), field });
        };
        match kinds::is_namespaced(group, kind) {
            Some(false) => add(""),
            _ if !namespace.is_empty() => add(namespace),
            Some(true) => add(default_namespace),
            None => [default_namespace, ""].into_iter().for_each(add),
        }
    }
}

#[cfg(test)]
mod tests;
