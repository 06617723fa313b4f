//! Selectors of Services and other objects that select Pods, by namespace. Has no side effects.
//!
//! A selecting object does not change when a Pod is created, so the SELECTS edges of a new Pod are determined from
//! the selectors in memory.

use crate::model::record_node_key;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_store::Record;
use std::collections::{BTreeMap, HashMap};

/// Cluster and namespace.
type NamespaceKey = (String, String);

/// All selectors.
#[derive(Debug, Default)]
pub struct PodSelectors {
    /// Selectors and the fields that state them, by namespace and key of the selecting node.
    by_namespace: HashMap<NamespaceKey, BTreeMap<String, (Selector, String)>>,
}

impl PodSelectors {
    /// Replaces the selector of an object; `None` removes it.
    pub fn set(&mut self, record: &Record, selects: Option<(Selector, String)>) {
        self.set_by_key(namespace_key(record), record_node_key(record), selects);
    }

    /// Replaces the selector of a node in a cluster and namespace.
    pub fn set_by_key(&mut self, namespace: NamespaceKey, key: String, selects: Option<(Selector, String)>) {
        match selects {
            Some(selects) => drop(self.by_namespace.entry(namespace).or_default().insert(key, selects)),
            None => {
                if let Some(selectors) = self.by_namespace.get_mut(&namespace) {
                    selectors.remove(&key);
                    if selectors.is_empty() {
                        self.by_namespace.remove(&namespace);
                    }
                }
            }
        }
    }

    /// Keys of the nodes whose selectors match a Pod, with the field that states the selector.
    pub fn find_selecting_nodes(&self, pod: &Record) -> Vec<(String, String)> {
        let Some(selectors) = self.by_namespace.get(&namespace_key(pod)) else { return Vec::new() };
        let matching = selectors.iter().filter(|(_, (selector, _))| selector.matches(&pod.labels));
        matching.map(|(key, (_, via))| (key.clone(), via.clone())).collect()
    }
}

fn namespace_key(record: &Record) -> NamespaceKey {
    (record.key.cluster().to_string(), record.key.namespace.to_string())
}
