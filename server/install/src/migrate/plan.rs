//! Plan of a migration between Karmada's collections of objects and those of Crowsnest. Has no side effects.

use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_FROM, MIGRATED_FROM_KARMADA, MIGRATED_UID};
use serde_json::{Map, Value, json};

/// Direction of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From Karmada to Crowsnest. Objects that only the target has are kept: they may have been created there.
    FromKarmada,
    /// From Crowsnest to Karmada. Objects that only the target has are deleted: they were deleted in Crowsnest.
    ToKarmada,
}

/// Annotations that a migration sets on stored objects.
pub(crate) const MIGRATION_ANNOTATIONS: [&str; 3] = [MIGRATED_UID, MIGRATED_CREATED, MIGRATED_FROM];

/// A write. Objects are complete, with the API version and kind of the target.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Create(Value),
    /// The object with the resource version it replaces.
    Replace(Value),
    /// The name of an object that the source does not have.
    Delete(String),
}

/// A collection that objects are written to: its API version, plural and kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ApiCollection<'p> {
    pub(crate) api_version: &'p str,
    pub(crate) plural: &'p str,
    pub(crate) kind: &'p str,
}

impl ApiCollection<'_> {
    pub(crate) fn group(&self) -> &str {
        self.api_version.split('/').next().unwrap_or_default()
    }

    /// Path of the collection.
    pub(crate) fn path(&self) -> String {
        format!("/apis/{}/{}", self.api_version, self.plural)
    }
}

/// Writes that make the objects in the target collection equal to those in the source collection.
pub(super) fn plan(
    source: &[Value],
    target: &[Value],
    collection: ApiCollection<'_>,
    direction: Direction,
) -> Vec<Step> {
    let mut remaining: BTreeMap<&str, &Value> = target.iter().map(|object| (name(object), object)).collect();
    let mut steps = Vec::new();
    for object in source {
        let mut desired = migrated_part(object, collection);
        if let (Direction::FromKarmada, Some(uid)) = (direction, object.pointer("/metadata/uid")) {
            desired["metadata"]["annotations"][MIGRATED_UID] = uid.clone();
            desired["metadata"]["annotations"][MIGRATED_FROM] = MIGRATED_FROM_KARMADA.into();
            if let Some(created) = object.pointer("/metadata/creationTimestamp") {
                desired["metadata"]["annotations"][MIGRATED_CREATED] = created.clone();
            }
        }
        match remaining.remove(name(object)) {
            None => steps.push(Step::Create(desired)),
            Some(found) if written_part(found, collection, direction) == desired => {}
            Some(found) => {
                let mut next = desired;
                next["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
                steps.push(Step::Replace(next));
            }
        }
    }
    if direction == Direction::ToKarmada {
        steps.extend(remaining.into_keys().map(|name| Step::Delete(name.to_owned())));
    }
    steps
}

pub(crate) fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// The part of an object of the target that a migration writes.
fn written_part(found: &Value, collection: ApiCollection<'_>, direction: Direction) -> Value {
    let mut written = migrated_part(found, collection);
    for annotation in MIGRATION_ANNOTATIONS {
        if let (Direction::FromKarmada, Some(value)) = (direction, found["metadata"]["annotations"].get(annotation)) {
            written["metadata"]["annotations"][annotation] = value.clone();
        }
    }
    written
}

/// UID of the original of a migrated object.
pub(super) fn migrated_uid(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][MIGRATED_UID].as_str()
}

/// The part of an object that is equal in source and target: without the fields that an API server sets and without
/// [`MIGRATION_ANNOTATIONS`].
pub(crate) fn migrated_part(object: &Value, collection: ApiCollection<'_>) -> Value {
    let is_set = |field: &&str| object.pointer(&format!("/metadata/{field}")).is_some_and(|value| !is_empty(value));
    let mut metadata: Map<String, Value> = ["name", "labels", "annotations", "finalizers", "ownerReferences"]
        .into_iter()
        .filter(is_set)
        .map(|field| (field.to_owned(), object["metadata"][field].clone()))
        .collect();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !MIGRATION_ANNOTATIONS.contains(&name.as_str()));
    }
    metadata.retain(|_, value| !is_empty(value));
    let mut part = json!({"apiVersion": collection.api_version, "kind": collection.kind, "metadata": metadata});
    for field in ["spec", "status"] {
        if object.get(field).is_some_and(|value| !is_empty(value)) {
            part[field] = object[field].clone();
        }
    }
    part
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = "storage.crowsnest.io/v1alpha1";
    const CROWSNEST: ApiCollection<'_> =
        ApiCollection { api_version: STORED, plural: "storedclusters", kind: "StoredCluster" };
    const KARMADA: ApiCollection<'_> =
        ApiCollection { api_version: "cluster.karmada.io/v1alpha1", plural: "clusters", kind: "Cluster" };
    const CREATED: &str = "2026-01-01T00:00:00Z";

    fn cluster(api: &str, name: &str, version: &str, region: &str) -> Value {
        json!({
            "apiVersion": api, "kind": if api == STORED { "StoredCluster" } else { "Cluster" },
            "metadata": {"name": name, "uid": format!("{api}-{name}"), "resourceVersion": version, "labels": {},
                "creationTimestamp": CREATED, "finalizers": ["karmada.io/cluster-controller"],
                "managedFields": [{"manager": "m"}]},
            "spec": {"region": region, "id": "7"}, "status": {"kubernetesVersion": "v1.36.0"},
        })
    }

    #[test]
    fn the_target_becomes_equal_to_the_source() {
        let karmada = "cluster.karmada.io/v1alpha1";
        let migrated = |name: &str, version: &str, region: &str| {
            let mut stored = cluster(STORED, name, version, region);
            stored["metadata"]["annotations"] =
                json!({MIGRATED_UID: format!("{karmada}-{name}"), MIGRATED_CREATED: CREATED, MIGRATED_FROM: "karmada"});
            stored
        };
        let source = [
            cluster(karmada, "same", "1", "a"),
            cluster(karmada, "changed", "2", "b"),
            cluster(karmada, "new", "3", "c"),
        ];
        let target = [migrated("same", "7", "a"), migrated("changed", "8", "a"), cluster(STORED, "own", "9", "d")];
        let steps = plan(&source, &target, CROWSNEST, Direction::FromKarmada);
        let [Step::Replace(changed), Step::Create(new)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!((&changed["metadata"]["resourceVersion"], &changed["spec"]["region"]), (&json!("8"), &json!("b")));
        let expected = json!({
            "apiVersion": STORED, "kind": "StoredCluster",
            "metadata": {"name": "new", "finalizers": ["karmada.io/cluster-controller"],
                "annotations": {MIGRATED_UID: "cluster.karmada.io/v1alpha1-new", MIGRATED_CREATED: CREATED,
                    MIGRATED_FROM: "karmada"}},
            "spec": {"region": "c", "id": "7"}, "status": {"kubernetesVersion": "v1.36.0"},
        });
        assert_eq!(new, &expected);
        // A second plan is empty.
        let target = [migrated("same", "7", "a"), migrated("changed", "10", "b"), expected];
        assert_eq!(plan(&source, &target, CROWSNEST, Direction::FromKarmada), []);
    }

    #[test]
    fn changes_and_deletions_are_migrated_back_to_karmada() {
        let karmada = "cluster.karmada.io/v1alpha1";
        let mut stored = cluster(STORED, "same", "7", "a");
        stored["metadata"]["annotations"] =
            json!({MIGRATED_UID: "u", MIGRATED_CREATED: CREATED, MIGRATED_FROM: "karmada"});
        let target = [cluster(karmada, "same", "1", "a"), cluster(karmada, "deleted", "2", "a")];
        let steps = plan(&[stored.clone()], &target, KARMADA, Direction::ToKarmada);
        assert_eq!(steps, [Step::Delete("deleted".to_owned())]);
        stored["spec"]["region"] = "b".into();
        let steps = plan(&[stored], &target[..1], KARMADA, Direction::ToKarmada);
        let [Step::Replace(changed)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!((&changed["spec"]["region"], &changed["metadata"]["annotations"]), (&json!("b"), &Value::Null));
    }
}
