//! Dependencies of bindings, by binding and by object.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_apimachinery::selector::label_selector_matches;
use crowsnest_plan::dependencies::Dependency;
use serde_json::Value;

type Labels = BTreeMap<String, String>;

/// Dependencies of all bindings, indexed by object, so that a change of an object does not require visiting every
/// binding.
#[derive(Default)]
pub(super) struct DependencyIndex {
    dependencies: BTreeMap<BindingKey, Vec<Dependency>>,
    /// Bindings by the objects that they depend on. The name is empty for dependencies by label selector.
    parents: HashMap<ObjectKey, BTreeSet<BindingKey>>,
}

impl DependencyIndex {
    /// Replaces the dependencies of a binding.
    pub fn insert(&mut self, parent: &BindingKey, dependencies: &[Dependency]) {
        self.remove(parent);
        for dependency in dependencies {
            self.parents.entry(object_key(dependency)).or_default().insert(parent.clone());
        }
        self.dependencies.insert(parent.clone(), dependencies.to_vec());
    }

    pub fn remove(&mut self, parent: &BindingKey) {
        for dependency in self.dependencies.remove(parent).into_iter().flatten() {
            let key = object_key(&dependency);
            if let Some(parents) = self.parents.get_mut(&key) {
                parents.remove(parent);
                if parents.is_empty() {
                    self.parents.remove(&key);
                }
            }
        }
    }

    /// Removes the bindings that do not exist, and returns them.
    pub fn remove_deleted(&mut self, exists: impl Fn(&BindingKey) -> bool) -> Vec<BindingKey> {
        let deleted: Vec<BindingKey> = self.dependencies.keys().filter(|parent| !exists(parent)).cloned().collect();
        deleted.iter().for_each(|parent| self.remove(parent));
        deleted
    }

    /// Bindings that depend on an object, if it has one of these sets of labels: its labels before and after a change.
    pub fn parents_of(&self, object: &Value, labels: &[&Labels]) -> BTreeSet<BindingKey> {
        let identity = ObjectIdentity::from_object(object);
        let mut found = self.parents.get(&ObjectKey::from(identity)).cloned().unwrap_or_default();
        let selector_parents = self.parents.get(&ObjectKey::from(ObjectIdentity { name: "", ..identity }));
        let selects = |parent: &&BindingKey| {
            let dependencies = self.dependencies.get(*parent).into_iter().flatten();
            let mut selectors = dependencies.filter(|dependency| dependency.name.is_empty());
            selectors.any(|dependency| labels.iter().any(|labels| is_dependency(dependency, object, labels)))
        };
        found.extend(selector_parents.into_iter().flatten().filter(selects).cloned());
        found
    }
}

fn object_key(dependency: &Dependency) -> ObjectKey {
    ObjectKey::from(object_identity(dependency))
}

fn object_identity(dependency: &Dependency) -> ObjectIdentity<'_> {
    ObjectIdentity::new(&dependency.api_version, &dependency.kind, &dependency.namespace, &dependency.name)
}

/// True if a dependency refers to this object with these labels. The version is not part of an object's identity.
pub(crate) fn is_dependency(dependency: &Dependency, object: &Value, labels: &Labels) -> bool {
    let (expected, identity) = (object_identity(dependency), ObjectIdentity::from_object(object));
    match &dependency.label_selector {
        _ if !expected.name.is_empty() => expected == identity,
        Some(selector) => {
            expected == ObjectIdentity { name: "", ..identity } && label_selector_matches(selector, labels)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn dependency(fields: Value) -> Dependency {
        let mut dependency = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "a"});
        dependency.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(dependency).unwrap()
    }

    fn object(api_version: &str, name: &str) -> Value {
        json!({"apiVersion": api_version, "kind": "Secret", "metadata": {"namespace": "a", "name": name}})
    }

    fn index() -> DependencyIndex {
        let mut index = DependencyIndex::default();
        let by_label = dependency(json!({"labelSelector": {"matchLabels": {"app": "web"}}}));
        let parent = |name: &str| BindingKey::new("a", name);
        index.insert(&parent("by-name"), &[dependency(json!({"name": "db"})), dependency(json!({"name": "tls"}))]);
        index.insert(&parent("by-label"), &[by_label, dependency(json!({"name": "tls"}))]);
        index.insert(&parent("of-another-group"), &[dependency(json!({"apiVersion": "x.io/v1", "name": "db"}))]);
        index
    }

    #[rstest]
    #[case::by_name("v1", "db", "", &["by-name"])]
    #[case::several("v1", "tls", "", &["by-label", "by-name"])]
    #[case::by_label("v1", "other", "web", &["by-label"])]
    #[case::other_label("v1", "other", "api", &[])]
    #[case::another_group("x.io/v1", "db", "", &["of-another-group"])]
    #[case::another_version("x.io/v2", "db", "", &["of-another-group"])]
    fn parents_are_found(#[case] api_version: &str, #[case] name: &str, #[case] app: &str, #[case] expected: &[&str]) {
        let (before, now) = (Labels::new(), Labels::from([("app".to_owned(), app.to_owned())]));
        let parents = index().parents_of(&object(api_version, name), &[&now, &before]);
        assert_eq!(parents.iter().map(|parent| parent.name.as_str()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn deleted_parents_are_removed() {
        let mut index = index();
        let deleted = index.remove_deleted(|parent| parent.name == "by-label");
        assert_eq!(deleted.len(), 2);
        assert!(index.parents_of(&object("v1", "db"), &[]).is_empty());
        index.insert(&BindingKey::new("a", "by-label"), &[]);
        assert!(index.parents.is_empty() && index.dependencies.len() == 1);
    }
}
