//! Where bindings are: of each cluster those that target it or are leaving it, in memory. Kept from what the loops are told of
//! bindings, before any of them hears of it; read by loops that look for a cluster's bindings, so that none reads them all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use super::scheduling::BindingKey;
use super::world::Change;
use crate::plan::object;

#[derive(Default)]
pub struct Placements {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    of: HashMap<BindingKey, Place>,
    within: HashMap<Arc<str>, HashSet<BindingKey>>,
}

/// Clusters a binding is for, and those it is leaving.
#[derive(Debug, Default, PartialEq)]
struct Place {
    targets: Vec<Arc<str>>,
    leaving: Vec<Arc<str>>,
}

impl Place {
    fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.targets.iter().chain(&self.leaving)
    }
}

impl Known {
    /// One string for each cluster's name.
    fn name(&self, cluster: &str) -> Arc<str> {
        self.within.get_key_value(cluster).map_or_else(|| Arc::from(cluster), |(known, _)| Arc::clone(known))
    }

    fn place(&self, binding: &Value) -> Place {
        let names = |list: &str, field: &str| {
            let entries = object::at(binding, &["spec", list]).and_then(Value::as_array);
            entries.into_iter().flatten().map(|entry| self.name(object::text(entry, &[field]))).collect()
        };
        Place { targets: names("clusters", "name"), leaving: names("gracefulEvictionTasks", "fromCluster") }
    }

    fn put(&mut self, key: &BindingKey, place: Place) {
        if self.of.get(key) == Some(&place) {
            return;
        }
        self.remove(key);
        for cluster in place.clusters() {
            self.within.entry(Arc::clone(cluster)).or_default().insert(key.clone());
        }
        if place != Place::default() {
            self.of.insert(key.clone(), place);
        }
    }

    fn remove(&mut self, key: &BindingKey) {
        for cluster in self.of.remove(key).iter().flat_map(Place::clusters) {
            if let Some(within) = self.within.get_mut(cluster) {
                within.remove(key);
                if within.is_empty() {
                    self.within.remove(cluster);
                }
            }
        }
    }
}

impl Placements {
    /// Takes in a change of a binding.
    pub fn learn(&self, change: &Change) {
        let key = change.key();
        let mut known = self.known.write();
        match change.current() {
            Some(binding) => {
                let place = known.place(binding);
                known.put(&key, place);
            }
            None => known.remove(&key),
        }
    }

    /// Of this scope only these are there.
    pub fn keep(&self, namespaced: bool, keys: &HashSet<BindingKey>) {
        let mut known = self.known.write();
        let is_gone = |key: &&BindingKey| key.0.is_empty() != namespaced && !keys.contains(*key);
        let gone: Vec<BindingKey> = known.of.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|key| known.remove(key));
    }

    /// Bindings that target a cluster, or are leaving it.
    pub fn within(&self, cluster: &str) -> Vec<BindingKey> {
        self.known.read().within.get(cluster).into_iter().flatten().cloned().collect()
    }

    /// Those of them that are leaving it.
    pub fn leaving(&self, cluster: &str) -> Vec<BindingKey> {
        let known = self.known.read();
        let leaves = |key: &&BindingKey| {
            let place = known.of.get(*key);
            place.is_some_and(|place| place.leaving.iter().any(|left| left.as_ref() == cluster))
        };
        known.within.get(cluster).into_iter().flatten().filter(leaves).cloned().collect()
    }

    /// Bindings that are leaving any cluster.
    pub fn all_leaving(&self) -> Vec<BindingKey> {
        let known = self.known.read();
        known.of.iter().filter(|(_, place)| !place.leaving.is_empty()).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use serde_json::json;

    fn binding(targets: &[&str], leaving: &[&str]) -> Value {
        let targets: Vec<Value> = targets.iter().map(|name| json!({"name": name})).collect();
        let tasks: Vec<Value> = leaving.iter().map(|name| json!({"fromCluster": name})).collect();
        json!({"spec": {"clusters": targets, "gracefulEvictionTasks": tasks}})
    }

    fn key(namespace: &str, name: &str) -> BindingKey {
        (namespace.to_owned(), name.to_owned())
    }

    fn put(placements: &Placements, key: &BindingKey, binding: &Value) {
        let mut known = placements.known.write();
        let place = known.place(binding);
        known.put(key, place);
    }

    fn within(placements: &Placements, cluster: &str) -> Vec<String> {
        let mut names: Vec<String> = placements.within(cluster).into_iter().map(|(_, name)| name).collect();
        names.sort();
        names
    }

    #[test]
    fn bindings_are_found_by_their_clusters_as_these_change() {
        let placements = Placements::default();
        let (a, b, wide) = (key("default", "a"), key("default", "b"), key("", "wide"));
        put(&placements, &a, &binding(&["m1", "m2"], &[]));
        put(&placements, &b, &binding(&["m2"], &["m1"]));
        put(&placements, &wide, &binding(&["m1"], &[]));
        assert_eq!(within(&placements, "m1"), ["a", "b", "wide"]);
        assert_eq!(within(&placements, "m2"), ["a", "b"]);
        assert_eq!((placements.leaving("m1"), placements.leaving("m2")), (vec![b.clone()], Vec::new()));
        assert_eq!(placements.all_leaving(), slice::from_ref(&b));

        put(&placements, &a, &binding(&["m2"], &[]));
        put(&placements, &b, &binding(&["m2"], &[]));
        assert_eq!((within(&placements, "m1"), placements.all_leaving()), (vec!["wide".into()], Vec::new()));

        // A list of one scope says nothing of the other.
        placements.keep(true, &HashSet::from([b.clone()]));
        assert_eq!((within(&placements, "m1"), within(&placements, "m2")), (vec!["wide".into()], vec!["b".into()]));
        placements.keep(false, &HashSet::new());
        put(&placements, &b, &binding(&[], &[]));
        assert!(placements.known.read().within.is_empty() && placements.known.read().of.is_empty());
    }
}
