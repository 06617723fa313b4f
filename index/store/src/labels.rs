//! Configuration of the label index, and its changes in a transaction. Shared by all backends.

use super::decide::BatchDecision;
use crate::Error;
use std::collections::BTreeMap;

/// Keys of labels to index; `*` at either end is a wildcard.
#[derive(Debug, Clone, Default)]
pub(super) struct IndexedLabels(pub Vec<String>);

/// An entry of the label index: one label of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    /// Id of the collection.
    pub collection: i64,
    pub key: String,
    pub value: String,
    /// Id of the record.
    pub record: i64,
}

/// Labels to remove and to add.
#[derive(Debug, Default)]
pub(super) struct LabelChanges {
    pub removed: Vec<Label>,
    pub added: Vec<Label>,
}

impl IndexedLabels {
    pub fn contains(&self, key: &str) -> bool {
        self.0.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => key.ends_with(end),
            (None, Some(start)) => key.starts_with(start),
            (None, None) => key == pattern,
        })
    }

    /// Fails if a label is not indexed.
    pub fn require(&self, key: &str) -> Result<(), Error> {
        if self.contains(key) { Ok(()) } else { Err(Error::LabelNotIndexed(key.to_owned())) }
    }

    /// Encodes the keys for the fact `chosen_labels`.
    pub fn encode(&self) -> String {
        self.0.join("\n")
    }

    /// Decodes [`IndexedLabels::encode`].
    pub fn parse(text: &str) -> Self {
        Self(text.lines().map(str::to_owned).collect())
    }

    /// The changes of indexed labels in a decision.
    pub fn label_changes(&self, decision: &BatchDecision<'_>) -> LabelChanges {
        let mut changes = LabelChanges::default();
        for deletion in &decision.deletions {
            self.add_differences(
                (deletion.collection, deletion.old.id),
                &deletion.old.labels,
                &BTreeMap::new(),
                &mut changes,
            );
        }
        for put in &decision.puts {
            let none = BTreeMap::new();
            let old = put.previous.as_ref().map_or(&none, |previous| &previous.labels);
            self.add_differences((put.collection, put.id), old, &put.draft.labels, &mut changes);
        }
        changes
    }

    fn add_differences(
        &self,
        (collection, record): (i64, u64),
        old: &BTreeMap<String, String>,
        new: &BTreeMap<String, String>,
        changes: &mut LabelChanges,
    ) {
        let only_in = |these: &BTreeMap<String, String>, others: &BTreeMap<String, String>| -> Vec<Label> {
            let labels = these.iter().filter(|(key, value)| others.get(*key) != Some(value) && self.contains(key));
            let label = |(key, value): (&String, &String)| Label {
                collection,
                key: key.clone(),
                value: value.clone(),
                record: record as i64,
            };
            labels.map(label).collect()
        };
        changes.removed.extend(only_in(old, new));
        changes.added.extend(only_in(new, old));
    }
}
