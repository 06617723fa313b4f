//! What has to be written so that objects are in one place as they are in another. Pure.

use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_FROM, MIGRATED_FROM_KARMADA, MIGRATED_UID};
use serde_json::{Map, Value, json};

/// From Karmada to us, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// What only we have may have come from somewhere else, and stays.
    Forth,
    /// Whatever they had and we have no more was taken away by somebody meanwhile.
    Back,
}

/// What is noted on objects here.
pub(crate) const NOTES: [&str; 3] = [MIGRATED_UID, MIGRATED_CREATED, MIGRATED_FROM];

/// One write. Objects are whole, in the words of the place they go to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Create(Value),
    /// The object with the resource version it replaces.
    Replace(Value),
    /// By its name: it is not there any more where the others come from.
    Delete(String),
}

/// A collection that objects are written to: its API version, plural and kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'p> {
    pub(crate) api_version: &'p str,
    pub(crate) plural: &'p str,
    pub(crate) kind: &'p str,
}

impl Place<'_> {
    pub(crate) fn group(&self) -> &str {
        self.api_version.split('/').next().unwrap_or_default()
    }

    /// Path of the collection.
    pub(crate) fn path(&self) -> String {
        format!("/apis/{}/{}", self.api_version, self.plural)
    }
}

/// What makes `there` be as `here`.
pub(super) fn plan(here: &[Value], there: &[Value], place: Place<'_>, way: Way) -> Vec<Step> {
    let mut left: BTreeMap<&str, &Value> = there.iter().map(|object| (name(object), object)).collect();
    let mut steps = Vec::new();
    for object in here {
        let mut wanted = carried(object, place);
        if let (Way::Forth, Some(uid)) = (way, object.pointer("/metadata/uid")) {
            wanted["metadata"]["annotations"][MIGRATED_UID] = uid.clone();
            wanted["metadata"]["annotations"][MIGRATED_FROM] = MIGRATED_FROM_KARMADA.into();
            if let Some(created) = object.pointer("/metadata/creationTimestamp") {
                wanted["metadata"]["annotations"][MIGRATED_CREATED] = created.clone();
            }
        }
        match left.remove(name(object)) {
            None => steps.push(Step::Create(wanted)),
            Some(found) if as_written(found, place, way) == wanted => {}
            Some(found) => {
                let mut next = wanted;
                next["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
                steps.push(Step::Replace(next));
            }
        }
    }
    if way == Way::Back {
        steps.extend(left.into_keys().map(|name| Step::Delete(name.to_owned())));
    }
    steps
}

pub(crate) fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// What `there` has of what would be written.
fn as_written(found: &Value, place: Place<'_>, way: Way) -> Value {
    let mut written = carried(found, place);
    for note in NOTES {
        if let (Way::Forth, Some(noted)) = (way, found["metadata"]["annotations"].get(note)) {
            written["metadata"]["annotations"][note] = noted.clone();
        }
    }
    written
}

/// The UID an object had before it came to us.
pub(super) fn migrated_uid(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][MIGRATED_UID].as_str()
}

/// What of an object is the same in both places: not what an API server gave it, nor what we noted.
pub(crate) fn carried(object: &Value, place: Place<'_>) -> Value {
    let kept = |field: &&str| object.pointer(&format!("/metadata/{field}")).is_some_and(|value| !is_empty(value));
    let mut metadata: Map<String, Value> = ["name", "labels", "annotations", "finalizers", "ownerReferences"]
        .into_iter()
        .filter(kept)
        .map(|field| (field.to_owned(), object["metadata"][field].clone()))
        .collect();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !NOTES.contains(&name.as_str()));
    }
    metadata.retain(|_, value| !is_empty(value));
    let mut carried = json!({"apiVersion": place.api_version, "kind": place.kind, "metadata": metadata});
    for field in ["spec", "status"] {
        if object.get(field).is_some_and(|value| !is_empty(value)) {
            carried[field] = object[field].clone();
        }
    }
    carried
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
    const OURS: Place<'_> = Place { api_version: STORED, plural: "storedclusters", kind: "StoredCluster" };
    const THEIRS: Place<'_> = Place { api_version: "cluster.karmada.io/v1alpha1", plural: "clusters", kind: "Cluster" };
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
    fn objects_become_what_they_are_elsewhere() {
        let karmada = "cluster.karmada.io/v1alpha1";
        let migrated = |name: &str, version: &str, region: &str| {
            let mut stored = cluster(STORED, name, version, region);
            stored["metadata"]["annotations"] =
                json!({MIGRATED_UID: format!("{karmada}-{name}"), MIGRATED_CREATED: CREATED, MIGRATED_FROM: "karmada"});
            stored
        };
        let here = [
            cluster(karmada, "same", "1", "a"),
            cluster(karmada, "changed", "2", "b"),
            cluster(karmada, "new", "3", "c"),
        ];
        let there = [migrated("same", "7", "a"), migrated("changed", "8", "a"), cluster(STORED, "ours", "9", "d")];
        let steps = plan(&here, &there, OURS, Way::Forth);
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
        // Once more, nothing is left to do.
        let done = [here[0].clone(), here[1].clone(), here[2].clone()];
        let there = [migrated("same", "7", "a"), migrated("changed", "10", "b"), expected];
        assert_eq!(plan(&done, &there, OURS, Way::Forth), []);
    }

    #[test]
    fn karmada_gets_back_what_it_had() {
        let karmada = "cluster.karmada.io/v1alpha1";
        let mut ours = cluster(STORED, "same", "7", "a");
        ours["metadata"]["annotations"] =
            json!({MIGRATED_UID: "u", MIGRATED_CREATED: CREATED, MIGRATED_FROM: "karmada"});
        let theirs = [cluster(karmada, "same", "1", "a"), cluster(karmada, "gone", "2", "a")];
        let steps = plan(&[ours.clone()], &theirs, THEIRS, Way::Back);
        assert_eq!(steps, [Step::Delete("gone".to_owned())]);
        ours["spec"]["region"] = "b".into();
        let steps = plan(&[ours], &theirs[..1], THEIRS, Way::Back);
        let [Step::Replace(changed)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!((&changed["spec"]["region"], &changed["metadata"]["annotations"]), (&json!("b"), &Value::Null));
    }
}
