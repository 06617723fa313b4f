//! Keys of bindings whose name has a hash suffix, because their default name is taken by the binding of another object.
//! These are few. The set is updated before controllers are notified of a binding.

use std::collections::HashSet;

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::names::NamespacedName;
use parking_lot::RwLock;
use serde_json::Value;

use super::Change;

/// Keys of all bindings whose name has a hash suffix.
#[derive(Default)]
pub struct HashSuffixedBindings(RwLock<HashSet<BindingKey>>);

impl HashSuffixedBindings {
    /// Applies a watch event of a binding.
    pub fn update(&self, change: &Change) {
        let key = BindingKey::from_object(change.object());
        match change.current().is_some_and(|binding| is_hash_suffixed(&key, binding)) {
            true => drop(self.0.write().insert(key)),
            false => drop(self.0.write().remove(&key)),
        }
    }

    /// Removes bindings of a scope that are not in `keys`.
    pub fn retain(&self, namespaced: bool, keys: &HashSet<NamespacedName>) {
        let is_listed = |key: &BindingKey| keys.contains(key.as_namespaced_name());
        self.0.write().retain(|key| key.is_cluster_scoped() == namespaced || is_listed(key));
    }

    /// Possible keys of an object's binding: the default one, and the one with a hash suffix if it exists.
    pub fn candidates(&self, object: &ObjectIdentity<'_>) -> impl Iterator<Item = BindingKey> + use<> {
        let suffixed = Some(object.hash_suffixed_binding_key()).filter(|key| self.0.read().contains(key));
        std::iter::once(object.default_binding_key()).chain(suffixed)
    }
}

fn is_hash_suffixed(key: &BindingKey, binding: &Value) -> bool {
    let template = ObjectIdentity::template_of(binding);
    *key == template.hash_suffixed_binding_key() && *key != template.default_binding_key()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn binding(name: &str) -> Value {
        let resource = json!({"apiVersion": "example.dev/v1", "kind": "Service", "namespace": "shop", "name": "web"});
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"resource": resource}})
    }

    #[rstest]
    #[case::default("web-service", false)]
    #[case::hash_suffixed(&ObjectIdentity::template_of(&binding("")).hash_suffixed_binding_key().name, true)]
    #[case::created_by_a_user("web", false)]
    fn bindings_with_hash_suffixed_names(#[case] name: &str, #[case] expected: bool) {
        let binding = binding(name);
        assert_eq!(is_hash_suffixed(&BindingKey::from_object(&binding), &binding), expected);
    }

    #[test]
    fn list_of_one_scope_keeps_the_other() {
        let bindings = HashSuffixedBindings::default();
        let (web, view) = (BindingKey::new("shop", "web-1"), BindingKey::new("", "view-1"));
        bindings.0.write().extend([web.clone(), view.clone()]);
        bindings.retain(true, &HashSet::new());
        assert_eq!(*bindings.0.read(), HashSet::from([view.clone()]));
        bindings.retain(false, &HashSet::from([view.as_namespaced_name().clone()]));
        assert_eq!(*bindings.0.read(), HashSet::from([view]));
    }
}
