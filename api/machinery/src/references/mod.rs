//! Objects that an object refers to, by group, kind, namespace and name.
//!
//! The tables [`KUBERNETES`] and [`EXTENSIONS`] list the references of each kind; those of pods and pod templates are
//! in `pod.rs`. Owner references and subjects of events have their own form and are not included.

mod extensions;
mod kinds;
mod kubernetes;
mod pod;
mod rule;

pub use extensions::EXTENSIONS;
pub use kubernetes::KUBERNETES;
pub use rule::{Kind, Rule};

use crate::names::ObjectKey;
use crate::printers::Source;
use crate::unstructured;
use kinds::builtin_group;
use std::collections::BTreeSet;

/// References of an object by the rules of these tables, in order and without duplicates.
///
/// A reference without a namespace is in the namespace of the object, unless its kind is cluster-scoped. If the scope of
/// the kind is unknown, both are returned: only one of them can exist.
pub fn references<'a>(tables: &[&[Rule]], group: &str, kind: &str, source: impl Source<'a>) -> Vec<ObjectKey> {
    if (group, kind) == ("", "Pod") {
        return source.read::<pod::Pod<'a>>().map(|pod| pod.references().into_keys()).unwrap_or_default();
    }
    let mut rules = tables.iter().copied().flatten().filter(|rule| rule.is_of(group, kind)).peekable();
    if rules.peek().is_none() {
        return Vec::new();
    }
    let object = source.tree();
    let mut found = References::of(unstructured::namespace(&object));
    rules.for_each(|rule| rule.read(&object, &mut found));
    found.into_keys()
}

/// Group of an `apiVersion`; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Group of a reference by `apiVersion` and kind. Without a version, it names a built-in kind.
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
    keys: BTreeSet<ObjectKey>,
}

impl<'n> References<'n> {
    fn of(namespace: &'n str) -> Self {
        Self { namespace, keys: BTreeSet::new() }
    }

    /// Adds a reference. An empty namespace is not stated in the reference; without kind or name there is none.
    fn add(&mut self, (group, kind): (&str, &str), namespace: &str, name: &str) {
        if kind.is_empty() || name.is_empty() {
            return;
        }
        let own = self.namespace;
        let mut add = |namespace: &str| {
            self.keys.insert(ObjectKey::new(group, kind, namespace, name));
        };
        match kinds::is_namespaced(group, kind) {
            Some(false) => add(""),
            _ if !namespace.is_empty() => add(namespace),
            Some(true) => add(own),
            None => [own, ""].into_iter().for_each(add),
        }
    }

    fn into_keys(self) -> Vec<ObjectKey> {
        self.keys.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
