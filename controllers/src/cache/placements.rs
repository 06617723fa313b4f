//! Index of bindings by cluster, in memory: bindings that target a cluster or are being evicted from it, and the
//! clusters that each binding could use. Updated before controllers are notified of a binding, so that finding a
//! cluster's bindings does not require reading all bindings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::policy::ClusterAffinity;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use parking_lot::RwLock;
use serde_json::Value;

use super::Change;
use crowsnest_plan::selector::cluster_matches;

/// Index of the placements of all bindings.
#[derive(Default)]
pub struct Placements {
    index: RwLock<PlacementIndex>,
}

#[derive(Default)]
struct PlacementIndex {
    by_binding: HashMap<BindingKey, BindingPlacement>,
    by_cluster: HashMap<Arc<str>, HashSet<BindingKey>>,
    /// Bindings by affinity, keyed by its serialized form. Many bindings share the affinity of one policy.
    by_affinity: HashMap<Arc<str>, (ClusterAffinity, HashSet<BindingKey>)>,
    /// Bindings that could use any cluster.
    any_cluster: HashSet<BindingKey>,
}

/// Clusters of one binding.
#[derive(Debug, Default, PartialEq)]
struct BindingPlacement {
    targets: Vec<Arc<str>>,
    /// Clusters with an eviction in progress.
    evicting: Vec<Arc<str>>,
    /// Clusters that could be used.
    candidates: Candidates,
    /// Priority in the scheduling queue.
    priority: Option<i64>,
}

/// Clusters whose changes can affect a binding, as decided by [`crowsnest_plan::scheduling::is_affected_by_cluster`].
#[derive(Debug, Default, PartialEq)]
enum Candidates {
    #[default]
    None,
    Any,
    /// An affinity in serialized form.
    Some(Arc<str>),
}

impl BindingPlacement {
    fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.targets.iter().chain(&self.evicting)
    }
}

impl PlacementIndex {
    /// Interns the name of a cluster.
    fn name(&self, cluster: &str) -> Arc<str> {
        self.by_cluster.get_key_value(cluster).map_or_else(|| Arc::from(cluster), |(existing, _)| Arc::clone(existing))
    }

    fn binding_placement(&self, binding: &Value) -> BindingPlacement {
        let names = |list: &str, field: &str| {
            let entries = unstructured::at(binding, &["spec", list]).and_then(Value::as_array);
            entries.into_iter().flatten().map(|entry| self.name(unstructured::text(entry, &[field]))).collect()
        };
        BindingPlacement {
            targets: names("clusters", "name"),
            evicting: names("gracefulEvictionTasks", "fromCluster"),
            candidates: self.candidates(binding),
            priority: unstructured::integer(binding, &["spec", "schedulePriority", "priority"]),
        }
    }

    fn candidates(&self, binding: &Value) -> Candidates {
        let is_present = |value: &&Value| !value.is_null();
        let Some(placement) = unstructured::at(binding, &["spec", "placement"]).filter(is_present) else {
            return Candidates::None;
        };
        let terms = placement.get("clusterAffinities").and_then(Value::as_array).filter(|terms| !terms.is_empty());
        let affinity = match terms {
            None => placement.get("clusterAffinity").filter(is_present),
            Some(terms) => {
                let observed =
                    unstructured::integer(binding, &["status", "schedulerObservedGeneration"]).unwrap_or_default();
                if observed != unstructured::generation(binding) {
                    return Candidates::Any;
                }
                let name = unstructured::text(binding, &["status", "schedulerObservingAffinityName"]);
                terms.iter().find(|term| unstructured::text(term, &["affinityName"]) == name).or(terms.first())
            }
        };
        let Some(affinity) = affinity else { return Candidates::Any };
        let serialized = affinity.to_string();
        Candidates::Some(match self.by_affinity.get_key_value(serialized.as_str()) {
            Some((known, _)) => Arc::clone(known),
            None => serialized.into(),
        })
    }

    fn put(&mut self, key: &BindingKey, binding_placement: BindingPlacement) {
        if self.by_binding.get(key) == Some(&binding_placement) {
            return;
        }
        self.remove(key);
        for cluster in binding_placement.clusters() {
            self.by_cluster.entry(Arc::clone(cluster)).or_default().insert(key.clone());
        }
        match &binding_placement.candidates {
            Candidates::None => {}
            Candidates::Any => drop(self.any_cluster.insert(key.clone())),
            Candidates::Some(serialized) => match self.by_affinity.get_mut(serialized) {
                Some((_, keys)) => drop(keys.insert(key.clone())),
                // An unreadable affinity matches no cluster.
                None => {
                    if let Ok(affinity) = serde_json::from_str(serialized) {
                        self.by_affinity.insert(Arc::clone(serialized), (affinity, HashSet::from([key.clone()])));
                    }
                }
            },
        }
        if binding_placement != BindingPlacement::default() {
            self.by_binding.insert(key.clone(), binding_placement);
        }
    }

    fn remove(&mut self, key: &BindingKey) {
        let Some(binding_placement) = self.by_binding.remove(key) else { return };
        for cluster in binding_placement.clusters() {
            if let Some(keys) = self.by_cluster.get_mut(cluster) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_cluster.remove(cluster);
                }
            }
        }
        self.any_cluster.remove(key);
        if let Candidates::Some(serialized) = &binding_placement.candidates
            && let Some((_, keys)) = self.by_affinity.get_mut(serialized)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_affinity.remove(serialized);
            }
        }
    }
}

impl Placements {
    /// Updates the index with a change of a binding.
    pub fn update(&self, change: &Change) {
        let key = BindingKey::from_object(change.object());
        let mut index = self.index.write();
        match change.current() {
            Some(binding) => {
                let binding_placement = index.binding_placement(binding);
                index.put(&key, binding_placement);
            }
            None => index.remove(&key),
        }
    }

    /// Removes bindings of a scope that are not in `keys`.
    pub fn retain(&self, namespaced: bool, keys: &HashSet<NamespacedName>) {
        let mut index = self.index.write();
        let is_deleted =
            |key: &&BindingKey| key.is_cluster_scoped() != namespaced && !keys.contains(key.as_namespaced_name());
        let deleted: Vec<BindingKey> = index.by_binding.keys().filter(is_deleted).cloned().collect();
        deleted.iter().for_each(|key| index.remove(key));
    }

    /// Bindings that target a cluster or are being evicted from it.
    pub fn bindings_in(&self, cluster: &str) -> Vec<BindingKey> {
        self.index.read().by_cluster.get(cluster).into_iter().flatten().cloned().collect()
    }

    /// Bindings that a change of a cluster can affect, with their priorities. `versions` are its old and new version.
    pub fn bindings_affected_by(&self, versions: &[&Cluster]) -> Vec<(BindingKey, Option<i64>)> {
        let index = self.index.read();
        let matching = |(affinity, _): &&(ClusterAffinity, HashSet<BindingKey>)| {
            versions.iter().any(|cluster| cluster_matches(cluster, affinity))
        };
        let matching = index.by_affinity.values().filter(matching).flat_map(|(_, keys)| keys);
        let with_priority = |key: &BindingKey| {
            (key.clone(), index.by_binding.get(key).and_then(|binding_placement| binding_placement.priority))
        };
        index.any_cluster.iter().chain(matching).map(with_priority).collect()
    }

    /// Bindings that are being evicted from a cluster.
    pub fn bindings_evicted_from(&self, cluster: &str) -> Vec<BindingKey> {
        let index = self.index.read();
        let is_evicted = |key: &&BindingKey| {
            let binding_placement = index.by_binding.get(*key);
            binding_placement
                .is_some_and(|binding_placement| binding_placement.evicting.iter().any(|name| name.as_ref() == cluster))
        };
        index.by_cluster.get(cluster).into_iter().flatten().filter(is_evicted).cloned().collect()
    }

    /// Bindings that are being evicted from any cluster.
    pub fn all_evicted_bindings(&self) -> Vec<BindingKey> {
        let index = self.index.read();
        index
            .by_binding
            .iter()
            .filter(|(_, binding_placement)| !binding_placement.evicting.is_empty())
            .map(|(key, _)| key.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::slice;

    use super::*;
    use crate::runtime::context::decode;
    use crate::scheduling::scheduler::planner_binding;
    use crowsnest_api::work::ResourceBinding;
    use crowsnest_plan::scheduling::is_affected_by_cluster;
    use serde_json::json;

    fn binding(targets: &[&str], evicting: &[&str]) -> Value {
        let targets: Vec<Value> = targets.iter().map(|name| json!({"name": name})).collect();
        let tasks: Vec<Value> = evicting.iter().map(|name| json!({"fromCluster": name})).collect();
        json!({"spec": {"clusters": targets, "gracefulEvictionTasks": tasks}})
    }

    fn key(namespace: &str, name: &str) -> BindingKey {
        BindingKey::new(namespace, name)
    }

    fn put(placements: &Placements, key: &BindingKey, binding: &Value) {
        let mut index = placements.index.write();
        let binding_placement = index.binding_placement(binding);
        index.put(key, binding_placement);
    }

    fn names_in(placements: &Placements, cluster: &str) -> Vec<String> {
        let mut names: Vec<String> = placements.bindings_in(cluster).into_iter().map(|key| key.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn index_follows_changes_of_bindings() {
        let placements = Placements::default();
        let (a, b, wide) = (key("default", "a"), key("default", "b"), key("", "wide"));
        put(&placements, &a, &binding(&["m1", "m2"], &[]));
        put(&placements, &b, &binding(&["m2"], &["m1"]));
        put(&placements, &wide, &binding(&["m1"], &[]));
        assert_eq!(names_in(&placements, "m1"), ["a", "b", "wide"]);
        assert_eq!(names_in(&placements, "m2"), ["a", "b"]);
        assert_eq!(
            (placements.bindings_evicted_from("m1"), placements.bindings_evicted_from("m2")),
            (vec![b.clone()], Vec::new())
        );
        assert_eq!(placements.all_evicted_bindings(), slice::from_ref(&b));

        put(&placements, &a, &binding(&["m2"], &[]));
        put(&placements, &b, &binding(&["m2"], &[]));
        assert_eq!((names_in(&placements, "m1"), placements.all_evicted_bindings()), (vec!["wide".into()], Vec::new()));

        // A list of one scope does not affect the other.
        placements.retain(true, &HashSet::from([(*b).clone()]));
        assert_eq!((names_in(&placements, "m1"), names_in(&placements, "m2")), (vec!["wide".into()], vec!["b".into()]));
        placements.retain(false, &HashSet::new());
        put(&placements, &b, &binding(&[], &[]));
        assert!(placements.index.read().by_cluster.is_empty() && placements.index.read().by_binding.is_empty());
    }

    /// The index finds exactly the bindings that the planner considers affected.
    #[test]
    fn affected_bindings_are_found_without_reading_them() {
        let cluster = |name: &str, tier: &str| -> Cluster {
            let metadata = json!({"name": name, "labels": {"tier": tier}});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"syncMode": "Push"}})).expect("a cluster")
        };
        let clusters = [cluster("m1", "gold"), cluster("m2", "silver")];
        let gold = json!({"labelSelector": {"matchLabels": {"tier": "gold"}}});
        let terms = json!({"clusterAffinities": [
            {"affinityName": "first", "clusterNames": ["m1"]},
            {"affinityName": "second", "clusterNames": ["m2"], "overflowAffinities": [{"affinityName": "more", "clusterNames": ["m1"]}]},
        ]});
        let placements = Placements::default();
        let seen = |observed: i64, name: &str| json!({"schedulerObservedGeneration": observed, "schedulerObservingAffinityName": name});
        let cases = [
            ("of-no-policy", Value::Null, json!({})),
            ("anywhere", json!({}), json!({})),
            ("gold", json!({"clusterAffinity": gold}), json!({})),
            ("gold-too", json!({"clusterAffinity": gold}), json!({})),
            ("named", json!({"clusterAffinity": {"clusterNames": ["m2"]}}), json!({})),
            ("not-m1", json!({"clusterAffinity": {"exclude": ["m1"]}}), json!({})),
            ("in-second-term", terms.clone(), seen(3, "second")),
            ("in-no-term", terms.clone(), seen(3, "")),
            ("changed-since", terms, seen(2, "second")),
        ];
        let mut bindings = Vec::new();
        for (name, placement, status) in cases {
            let resource = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name});
            let spec = json!({"resource": resource, "placement": placement, "schedulePriority": {"priority": 7}});
            let metadata = json!({"name": name, "namespace": "default", "generation": 3});
            let binding = json!({"metadata": metadata, "spec": spec, "status": status});
            put(&placements, &key("default", name), &binding);
            bindings.push(binding);
        }
        for versions in [vec![&clusters[0]], vec![&clusters[1]], clusters.iter().collect()] {
            let planned = |binding: &&Value| {
                let typed = decode::<ResourceBinding>(binding).expect("a binding");
                versions.iter().any(|cluster| is_affected_by_cluster(&planner_binding(binding, &typed), cluster))
            };
            let expected: BTreeSet<&str> = bindings.iter().filter(planned).map(unstructured::name).collect();
            let found = placements.bindings_affected_by(&versions);
            let names: BTreeSet<&str> = found.iter().map(|(key, _)| key.name.as_str()).collect();
            assert_eq!((names, found.len()), (expected.clone(), expected.len()));
            assert!(found.iter().all(|(_, priority)| *priority == Some(7)));
        }
        assert_eq!(placements.index.read().by_affinity.len(), 5, "an affinity is stored once");
        placements.retain(true, &HashSet::new());
        let index = placements.index.read();
        assert!(index.by_binding.is_empty() && index.by_affinity.is_empty() && index.any_cluster.is_empty());
    }
}
