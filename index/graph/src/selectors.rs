//! Selectors of Services and other objects that select Pods, by namespace. Pure.
//!
//! A selecting object does not change when a Pod appears, so the edges of a new Pod are found here.

use crate::model::record_key;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_store::Record;
use std::collections::{BTreeMap, HashMap};

/// Cluster and namespace.
type Place = (String, String);

/// All selectors, by place and key of the node that states them.
#[derive(Debug, Default)]
pub struct PodSelectors {
    places: HashMap<Place, BTreeMap<String, (Selector, String)>>,
}

impl PodSelectors {
    /// Replaces the selector of an object; `None` removes it.
    pub fn set(&mut self, record: &Record, selects: Option<(Selector, String)>) {
        self.set_key(place(record), record_key(record), selects);
    }

    /// Replaces the selector of a node in a cluster and namespace.
    pub fn set_key(&mut self, place: Place, key: String, selects: Option<(Selector, String)>) {
        match selects {
            Some(selects) => drop(self.places.entry(place).or_default().insert(key, selects)),
            None => {
                if let Some(known) = self.places.get_mut(&place) {
                    known.remove(&key);
                    if known.is_empty() {
                        self.places.remove(&place);
                    }
                }
            }
        }
    }

    /// Nodes whose selectors match a Pod, with the field that selects it.
    pub fn selecting(&self, pod: &Record) -> Vec<(String, String)> {
        let Some(known) = self.places.get(&place(pod)) else { return Vec::new() };
        let matching = known.iter().filter(|(_, (selector, _))| selector.matches(&pod.labels));
        matching.map(|(key, (_, via))| (key.clone(), via.clone())).collect()
    }
}

fn place(record: &Record) -> Place {
    (record.key.cluster().to_string(), record.key.namespace.to_string())
}
