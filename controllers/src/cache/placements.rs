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

#[derive(Default)]
pub struct Placements {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    of: HashMap<BindingKey, BindingPlacement>,
    within: HashMap<Arc<str>, HashSet<BindingKey>>,
    /// By affinity, in serialized form: many bindings share that of one policy.
    seeking: HashMap<Arc<str>, (ClusterAffinity, HashSet<BindingKey>)>,
    seeking_any: HashSet<BindingKey>,
}

/// Target clusters, clusters with an eviction in progress, and clusters that could be used.
#[derive(Debug, Default, PartialEq)]
struct BindingPlacement {
    targets: Vec<Arc<str>>,
    leaving: Vec<Arc<str>>,
    seeks: Seeks,
    /// Priority in the scheduling queue.
    priority: Option<i64>,
}

/// Clusters whose changes can affect a binding, as decided by [`crowsnest_plan::scheduling::affected_by_cluster`].
#[derive(Debug, Default, PartialEq)]
enum Seeks {
    #[default]
    Nothing,
    Any,
    /// An affinity in serialized form.
    Some(Arc<str>),
}

impl BindingPlacement {
    fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.targets.iter().chain(&self.leaving)
    }
}

impl Known {
    /// Interns the name of a cluster.
    fn name(&self, cluster: &str) -> Arc<str> {
        self.within.get_key_value(cluster).map_or_else(|| Arc::from(cluster), |(known, _)| Arc::clone(known))
    }

    fn binding_placement(&self, binding: &Value) -> BindingPlacement {
        let names = |list: &str, field: &str| {
            let entries = unstructured::at(binding, &["spec", list]).and_then(Value::as_array);
            entries.into_iter().flatten().map(|entry| self.name(unstructured::text(entry, &[field]))).collect()
        };
        BindingPlacement {
            targets: names("clusters", "name"),
            leaving: names("gracefulEvictionTasks", "fromCluster"),
            seeks: self.seeks(binding),
            priority: unstructured::integer(binding, &["spec", "schedulePriority", "priority"]),
        }
    }

    fn seeks(&self, binding: &Value) -> Seeks {
        let is_there = |value: &&Value| !value.is_null();
        let Some(placement) = unstructured::at(binding, &["spec", "placement"]).filter(is_there) else {
            return Seeks::Nothing;
        };
        let terms = placement.get("clusterAffinities").and_then(Value::as_array).filter(|terms| !terms.is_empty());
        let affinity = match terms {
            None => placement.get("clusterAffinity").filter(is_there),
            Some(terms) => {
                let observed =
                    unstructured::integer(binding, &["status", "schedulerObservedGeneration"]).unwrap_or_default();
                if observed != unstructured::generation(binding) {
                    return Seeks::Any;
                }
                let name = unstructured::text(binding, &["status", "schedulerObservingAffinityName"]);
                terms.iter().find(|term| unstructured::text(term, &["affinityName"]) == name).or(terms.first())
            }
        };
        let Some(affinity) = affinity else { return Seeks::Any };
        let written = affinity.to_string();
        Seeks::Some(match self.seeking.get_key_value(written.as_str()) {
            Some((known, _)) => Arc::clone(known),
            None => written.into(),
        })
    }

    fn put(&mut self, key: &BindingKey, binding_placement: BindingPlacement) {
        if self.of.get(key) == Some(&binding_placement) {
            return;
        }
        self.remove(key);
        for cluster in binding_placement.clusters() {
            self.within.entry(Arc::clone(cluster)).or_default().insert(key.clone());
        }
        match &binding_placement.seeks {
            Seeks::Nothing => {}
            Seeks::Any => drop(self.seeking_any.insert(key.clone())),
            Seeks::Some(written) => match self.seeking.get_mut(written) {
                Some((_, seeking)) => drop(seeking.insert(key.clone())),
                // An unreadable affinity matches no cluster.
                None => {
                    if let Ok(affinity) = serde_json::from_str(written) {
                        self.seeking.insert(Arc::clone(written), (affinity, HashSet::from([key.clone()])));
                    }
                }
            },
        }
        if binding_placement != BindingPlacement::default() {
            self.of.insert(key.clone(), binding_placement);
        }
    }

    fn remove(&mut self, key: &BindingKey) {
        let Some(binding_placement) = self.of.remove(key) else { return };
        for cluster in binding_placement.clusters() {
            if let Some(within) = self.within.get_mut(cluster) {
                within.remove(key);
                if within.is_empty() {
                    self.within.remove(cluster);
                }
            }
        }
        self.seeking_any.remove(key);
        if let Seeks::Some(written) = &binding_placement.seeks
            && let Some((_, seeking)) = self.seeking.get_mut(written)
        {
            seeking.remove(key);
            if seeking.is_empty() {
                self.seeking.remove(written);
            }
        }
    }
}

impl Placements {
    /// Updates the index with a change of a binding.
    pub fn learn(&self, change: &Change) {
        let key = BindingKey::of(change.object());
        let mut known = self.known.write();
        match change.current() {
            Some(binding) => {
                let binding_placement = known.binding_placement(binding);
                known.put(&key, binding_placement);
            }
            None => known.remove(&key),
        }
    }

    /// Removes bindings of a scope that are not in `keys`.
    pub fn keep(&self, namespaced: bool, keys: &HashSet<NamespacedName>) {
        let mut known = self.known.write();
        let is_gone =
            |key: &&BindingKey| key.is_cluster_scoped() != namespaced && !keys.contains(key.as_namespaced_name());
        let gone: Vec<BindingKey> = known.of.keys().filter(is_gone).cloned().collect();
        gone.iter().for_each(|key| known.remove(key));
    }

    /// Bindings that target a cluster or are being evicted from it.
    pub fn within(&self, cluster: &str) -> Vec<BindingKey> {
        self.known.read().within.get(cluster).into_iter().flatten().cloned().collect()
    }

    /// Bindings that a change of a cluster can affect, with their priorities. `versions` are its old and new version.
    pub fn affected(&self, versions: &[&Cluster]) -> Vec<(BindingKey, Option<i64>)> {
        let known = self.known.read();
        let matching = |(affinity, _): &&(ClusterAffinity, HashSet<BindingKey>)| {
            versions.iter().any(|cluster| cluster_matches(cluster, affinity))
        };
        let matching = known.seeking.values().filter(matching).flat_map(|(_, seeking)| seeking);
        let with_priority = |key: &BindingKey| {
            (key.clone(), known.of.get(key).and_then(|binding_placement| binding_placement.priority))
        };
        known.seeking_any.iter().chain(matching).map(with_priority).collect()
    }

    /// Bindings that are being evicted from a cluster.
    pub fn leaving(&self, cluster: &str) -> Vec<BindingKey> {
        let known = self.known.read();
        let leaves = |key: &&BindingKey| {
            let binding_placement = known.of.get(*key);
            binding_placement
                .is_some_and(|binding_placement| binding_placement.leaving.iter().any(|left| left.as_ref() == cluster))
        };
        known.within.get(cluster).into_iter().flatten().filter(leaves).cloned().collect()
    }

    /// Bindings that are being evicted from any cluster.
    pub fn all_leaving(&self) -> Vec<BindingKey> {
        let known = self.known.read();
        known
            .of
            .iter()
            .filter(|(_, binding_placement)| !binding_placement.leaving.is_empty())
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
    use crate::scheduling::scheduler::view;
    use crowsnest_api::work::ResourceBinding;
    use crowsnest_plan::scheduling::affected_by_cluster;
    use serde_json::json;

    fn binding(targets: &[&str], leaving: &[&str]) -> Value {
        let targets: Vec<Value> = targets.iter().map(|name| json!({"name": name})).collect();
        let tasks: Vec<Value> = leaving.iter().map(|name| json!({"fromCluster": name})).collect();
        json!({"spec": {"clusters": targets, "gracefulEvictionTasks": tasks}})
    }

    fn key(namespace: &str, name: &str) -> BindingKey {
        BindingKey::new(namespace, name)
    }

    fn put(placements: &Placements, key: &BindingKey, binding: &Value) {
        let mut known = placements.known.write();
        let binding_placement = known.binding_placement(binding);
        known.put(key, binding_placement);
    }

    fn within(placements: &Placements, cluster: &str) -> Vec<String> {
        let mut names: Vec<String> = placements.within(cluster).into_iter().map(|key| key.name.clone()).collect();
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
        assert_eq!(within(&placements, "m1"), ["a", "b", "wide"]);
        assert_eq!(within(&placements, "m2"), ["a", "b"]);
        assert_eq!((placements.leaving("m1"), placements.leaving("m2")), (vec![b.clone()], Vec::new()));
        assert_eq!(placements.all_leaving(), slice::from_ref(&b));

        put(&placements, &a, &binding(&["m2"], &[]));
        put(&placements, &b, &binding(&["m2"], &[]));
        assert_eq!((within(&placements, "m1"), placements.all_leaving()), (vec!["wide".into()], Vec::new()));

        // A list of one scope does not affect the other.
        placements.keep(true, &HashSet::from([(*b).clone()]));
        assert_eq!((within(&placements, "m1"), within(&placements, "m2")), (vec!["wide".into()], vec!["b".into()]));
        placements.keep(false, &HashSet::new());
        put(&placements, &b, &binding(&[], &[]));
        assert!(placements.known.read().within.is_empty() && placements.known.read().of.is_empty());
    }

    /// Equals the planner's decision for each binding.
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
                versions.iter().any(|cluster| affected_by_cluster(&view(binding, &typed), cluster))
            };
            let expected: BTreeSet<&str> = bindings.iter().filter(planned).map(unstructured::name).collect();
            let found = placements.affected(&versions);
            let names: BTreeSet<&str> = found.iter().map(|(key, _)| key.name.as_str()).collect();
            assert_eq!((names, found.len()), (expected.clone(), expected.len()));
            assert!(found.iter().all(|(_, priority)| *priority == Some(7)));
        }
        assert_eq!(placements.known.read().seeking.len(), 5, "an affinity is stored once");
        placements.keep(true, &HashSet::new());
        let known = placements.known.read();
        assert!(known.of.is_empty() && known.seeking.is_empty() && known.seeking_any.is_empty());
    }
}
