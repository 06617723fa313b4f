//! Cached objects, their headers and their changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::secret_copies::remove_copies;
use crowsnest_apimachinery::unstructured;
use crowsnest_index::{Object, Record};
use serde_json::Value;

use crate::Error;
use crate::runtime::dynamic_client::Resource;
use crowsnest_plan::propagation::change::{self, Change as TemplateChange};

/// A cached object. Secret values are never cached, so an object with redacted values must be read from its API server
/// before it is written.
#[derive(Debug, Clone)]
pub struct CachedObject {
    object: Arc<Value>,
    redacted: bool,
}

impl CachedObject {
    /// Wraps an object from an API server's response.
    pub fn from_response(object: Value) -> Self {
        CachedObject { object: Arc::new(object), redacted: false }
    }

    /// Decodes an object of the global cache.
    pub fn from_stored(stored: &Object) -> Result<Self, Error> {
        let object = serde_json::from_slice(&stored.body).map_err(|source| Error::Decode {
            object: format!("{} {}/{}", stored.record.kind, stored.record.key.namespace, stored.record.key.name),
            source,
        })?;
        Ok(CachedObject { object: Arc::new(object), redacted: stored.record.redacted })
    }

    /// The object for decisions, never for writes: secret values may be redacted.
    pub fn view(&self) -> &Value {
        &self.object
    }

    /// The object with its Secret values. `None` if they are redacted.
    pub fn full(&self) -> Option<Arc<Value>> {
        (!self.redacted).then(|| Arc::clone(&self.object))
    }

    pub fn header(&self) -> Header {
        Header {
            namespace: unstructured::namespace(&self.object).to_owned(),
            name: unstructured::name(&self.object).to_owned(),
            generation: unstructured::generation(&self.object),
            terminating: unstructured::is_terminating(&self.object),
            labels: unstructured::labels(&self.object),
        }
    }
}

/// Properties of an object that are known without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub namespace: String,
    pub name: String,
    pub generation: i64,
    pub terminating: bool,
    pub labels: BTreeMap<String, String>,
}

impl From<&Record> for Header {
    fn from(record: &Record) -> Self {
        Header {
            namespace: record.key.namespace.to_string(),
            name: record.key.name.to_string(),
            generation: record.generation,
            terminating: record.deleting.is_some(),
            labels: record.labels.clone(),
        }
    }
}

/// The object before a change.
#[derive(Debug)]
pub struct PreviousObject {
    pub header: Header,
    /// `None` if it was evicted from memory: everything but the header may have changed.
    pub object: Option<CachedObject>,
}

/// Creation, change or deletion of one object.
#[derive(Debug)]
pub struct Change {
    pub cluster: ClusterName,
    pub resource: Arc<Resource>,
    /// `None` if no earlier version is known.
    pub old: Option<PreviousObject>,
    /// The current object; after a deletion, its last version.
    pub object: CachedObject,
    pub deleted: bool,
    /// Part of the first list: the object need not have changed.
    pub initial: bool,
}

impl Change {
    /// The current object, or its last version.
    pub fn object(&self) -> &Value {
        self.object.view()
    }

    /// The object, unless it was deleted.
    pub fn current(&self) -> Option<&Value> {
        (!self.deleted).then(|| self.object.view())
    }

    /// The object before the change. `None` if it did not exist or is unknown.
    pub fn old(&self) -> Option<&Value> {
        self.old.as_ref()?.object.as_ref().map(CachedObject::view)
    }

    /// Namespace and name.
    pub fn key(&self) -> NamespacedName {
        unstructured::key(self.object())
    }

    /// Name of a Cluster object; `None` if no cluster can have it.
    pub fn cluster_name(&self) -> Option<ClusterName> {
        ClusterName::parse(unstructured::name(self.object())).ok()
    }

    pub fn name(&self) -> String {
        unstructured::name(self.object()).to_owned()
    }

    /// True if the object before the change is unknown except for its header.
    pub fn is_previous_unknown(&self) -> bool {
        self.old.as_ref().is_some_and(|old| old.object.is_none())
    }

    /// True if the object was created or deleted, or its generation changed.
    pub fn is_generation_changed(&self) -> bool {
        self.compare(|old, new| old.generation != unstructured::generation(new))
    }

    /// True if it was created or deleted, or its generation, labels or deletion timestamp changed.
    pub fn is_generation_or_labels_changed(&self) -> bool {
        self.compare(|old, new| {
            old.generation != unstructured::generation(new)
                || self.is_deletion_changed(old)
                || old.labels != unstructured::labels(new)
        })
    }

    /// True if it was created or deleted, or its generation or deletion timestamp changed.
    pub fn is_generation_or_deletion_changed(&self) -> bool {
        self.compare(|old, new| old.generation != unstructured::generation(new) || self.is_deletion_changed(old))
    }

    /// True if any of these annotations changed, or the object before the change is unknown.
    pub fn is_annotation_changed(&self, keys: &[&str]) -> bool {
        let differs = |old: &Value| {
            keys.iter().any(|key| unstructured::annotation(old, key) != unstructured::annotation(self.object(), key))
        };
        !self.deleted && self.old.is_some() && self.old().is_none_or(differs)
    }

    fn is_deletion_changed(&self, old: &Header) -> bool {
        old.terminating != unstructured::is_terminating(self.object())
    }

    fn compare(&self, differ: impl FnOnce(&Header, &Value) -> bool) -> bool {
        match (&self.old, self.current()) {
            (Some(old), Some(new)) => differ(&old.header, new),
            _ => true,
        }
    }

    /// Classifies the change of a template. Creation, deletion and, conservatively, changes that cannot be compared
    /// count as changes by the user.
    pub fn template_change(&self) -> TemplateChange {
        let (Some(old), Some(new)) = (&self.old, self.current()) else { return TemplateChange::ByUser };
        match &old.object {
            Some(before) if before.redacted || self.object.redacted => {
                let found = change::classify(&redact_values(before.view()), &redact_values(new));
                // Without a visible difference, redacted values changed.
                if found == TemplateChange::None { TemplateChange::ByUser } else { found }
            }
            Some(before) => change::classify(before.view(), new),
            None if old.header.generation != 0 && old.header.generation == unstructured::generation(new) => {
                TemplateChange::ByControlPlane
            }
            None => TemplateChange::ByUser,
        }
    }
}

/// A Secret with redacted values as in the cache, for comparison.
fn redact_values(secret: &Value) -> Value {
    let mut blank = secret.clone();
    remove_copies(&mut blank);
    for field in ["data", "stringData"] {
        for value in blank.get_mut(field).and_then(Value::as_object_mut).into_iter().flat_map(|data| data.values_mut())
        {
            *value = Value::String(String::new());
        }
    }
    blank
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn change(kind: &str, old: Option<(Value, bool, bool)>, new: (Value, bool)) -> Change {
        let cached = |mut object: Value, redacted| {
            object["kind"] = json!(kind);
            CachedObject { object: Arc::new(object), redacted }
        };
        let old = old.map(|(object, redacted, is_known)| {
            let object = cached(object, redacted);
            PreviousObject { header: object.header(), object: is_known.then_some(object) }
        });
        let resource = Arc::new(Resource::builtin("", "v1", "things", kind, true));
        let cluster = ClusterName::control_plane();
        Change { cluster, resource, old, object: cached(new.0, new.1), deleted: false, initial: false }
    }

    const CLAIM: &str = "propagationpolicy.karmada.io/permanent-id";

    #[rstest]
    #[case::new(None, (json!({}), false), TemplateChange::ByUser)]
    #[case::status(Some((json!({}), false, true)), (json!({"status": {"a": 1}}), false), TemplateChange::None)]
    #[case::evicted_without_generation(Some((json!({}), false, false)), (json!({}), false), TemplateChange::ByUser)]
    #[case::evicted_same_generation(
        Some((json!({"metadata": {"generation": 2}}), false, false)),
        (json!({"metadata": {"generation": 2}, "status": {}}), false),
        TemplateChange::ByControlPlane
    )]
    #[case::evicted_other_generation(
        Some((json!({"metadata": {"generation": 2}}), false, false)), (json!({"metadata": {"generation": 3}}), false),
        TemplateChange::ByUser
    )]
    #[case::secret_value(
        Some((json!({"data": {"a": ""}}), true, true)), (json!({"data": {"a": ""}}), true), TemplateChange::ByUser
    )]
    #[case::secret_key(
        Some((json!({"data": {"a": ""}}), true, true)), (json!({"data": {"b": ""}}), true), TemplateChange::ByUser
    )]
    #[case::secret_claimed_by_the_detector(
        Some((json!({"data": {"a": ""}}), true, true)),
        (json!({"data": {"a": "eA=="}, "metadata": {"labels": {CLAIM: "1"}}}), false),
        TemplateChange::ByControlPlane
    )]
    fn template_changes(
        #[case] old: Option<(Value, bool, bool)>,
        #[case] new: (Value, bool),
        #[case] expected: TemplateChange,
    ) {
        assert_eq!(change("Secret", old, new).template_change(), expected);
    }

    #[test]
    fn a_redacted_object_is_never_full() {
        let cached = |redacted| CachedObject { object: Arc::new(json!({"data": {"a": ""}})), redacted };
        assert!(cached(true).full().is_none() && cached(false).full().is_some());
    }
}
