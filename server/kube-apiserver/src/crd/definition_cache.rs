//! Cache of the names and status of all CRDs, for conflict checks. Each CRD is parsed once per change, because the CRDs
//! of a large operator are several megabytes long.

use std::collections::BTreeMap;

use crowsnest_registry::storage::{Record, ResourceKey, Revision, Store};
use serde_json::{Value, json};

use super::definition::{Definition, GROUP, PLURAL};
use super::status;

/// CRDs without their versions, by name.
#[derive(Debug, Default)]
pub(super) struct DefinitionCache(BTreeMap<String, (Revision, Value)>);

/// The group in the name of a CRD.
pub(super) fn group_of(name: &str) -> &str {
    name.split_once('.').map_or("", |(_, group)| group)
}

fn without_versions(definition: &Value) -> Value {
    json!({
        "metadata": {
            "name": definition["metadata"]["name"],
            "deletionTimestamp": definition["metadata"]["deletionTimestamp"],
        },
        "spec": {"group": definition["spec"]["group"], "names": definition["spec"]["names"]},
        "status": definition["status"],
    })
}

impl DefinitionCache {
    /// Updates the CRDs of a group from the store.
    pub fn refresh(&mut self, store: &Store, group: &str) {
        let records = store.records(&ResourceKey::new(GROUP, PLURAL), "");
        let current: BTreeMap<&str, &Record> =
            records.iter().map(|r| (r.key.name(), r)).filter(|(name, _)| group_of(name) == group).collect();
        self.0.retain(|name, _| group_of(name) != group || current.contains_key(name.as_str()));
        for (name, record) in current {
            if self.0.get(name).is_some_and(|(revision, _)| *revision == record.revision) {
                continue;
            }
            if let Ok(definition) = record.body.decode(record.revision) {
                self.0.insert(name.to_owned(), (record.revision, without_versions(&definition)));
            }
        }
    }

    /// All CRDs of a group except one.
    pub fn others_in_group(&self, group: &str, name: &str) -> Vec<&Value> {
        let definitions = self.0.iter().filter(|(key, _)| group_of(key) == group && *key != name);
        definitions.map(|(_, (_, definition))| definition).collect()
    }

    /// CRDs of a group whose names were rejected and can now be accepted.
    pub fn newly_acceptable(&self, group: &str, now: jiff::Timestamp) -> Vec<String> {
        let rejected = self.0.iter().filter(|(name, (_, definition))| {
            let crd = Definition(definition);
            let accepted = crd.is_condition_true("NamesAccepted");
            group_of(name) == group && !accepted && !crd.is_deleting()
        });
        let is_acceptable = |name: &str, definition: &Value| {
            let decision = status::decide(Definition(definition), &self.others_in_group(group, name));
            status::apply(definition, &decision, now).is_some()
        };
        rejected.filter(|(name, (_, d))| is_acceptable(name, d)).map(|(name, _)| name.clone()).collect()
    }
}
