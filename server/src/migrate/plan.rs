//! What has to be written so that objects are in one place as they are in another. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// One write. Objects are whole, in the words of the place they go to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Create(Value),
    /// The object with the resource version it replaces.
    Replace(Value),
    /// By its name: it is not there any more where the others come from.
    Delete(String),
}

/// What makes `there` be as `here`, whose objects are served as `api_version` there. Objects that only `there` has go where they
/// are known to have been taken away (`deletes`).
pub(super) fn plan(here: &[Value], there: &[Value], api_version: &str, deletes: bool) -> Vec<Step> {
    let mut left: BTreeMap<&str, &Value> = there.iter().map(|object| (name(object), object)).collect();
    let mut steps = Vec::new();
    for object in here {
        let wanted = carried(object, api_version);
        match left.remove(name(object)) {
            None => steps.push(Step::Create(wanted)),
            Some(found) if carried(found, api_version) == wanted => {}
            Some(found) => {
                let mut next = wanted;
                next["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
                steps.push(Step::Replace(next));
            }
        }
    }
    if deletes {
        steps.extend(left.into_keys().map(|name| Step::Delete(name.to_owned())));
    }
    steps
}

pub(super) fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// What of an object is the same in both places: not what an API server gave it.
fn carried(object: &Value, api_version: &str) -> Value {
    let kept = |field: &&str| object.pointer(&format!("/metadata/{field}")).is_some_and(|value| !is_empty(value));
    let metadata: Map<String, Value> = ["name", "labels", "annotations", "finalizers"]
        .into_iter()
        .filter(kept)
        .map(|field| (field.to_owned(), object["metadata"][field].clone()))
        .collect();
    let mut carried = json!({"apiVersion": api_version, "kind": object["kind"], "metadata": metadata});
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

    fn cluster(api: &str, name: &str, version: &str, region: &str) -> Value {
        json!({
            "apiVersion": api, "kind": "Cluster",
            "metadata": {"name": name, "uid": format!("{api}-{name}"), "resourceVersion": version, "labels": {},
                "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["karmada.io/cluster-controller"],
                "managedFields": [{"manager": "m"}]},
            "spec": {"region": region, "id": "7"}, "status": {"kubernetesVersion": "v1.36.0"},
        })
    }

    #[test]
    fn objects_become_what_they_are_elsewhere() {
        let karmada = "cluster.karmada.io/v1alpha1";
        let here = [
            cluster(karmada, "same", "1", "a"),
            cluster(karmada, "changed", "2", "b"),
            cluster(karmada, "new", "3", "c"),
        ];
        let there = [
            cluster(STORED, "same", "7", "a"),
            cluster(STORED, "changed", "8", "a"),
            cluster(STORED, "gone", "9", "d"),
        ];
        let steps = plan(&here, &there, STORED, true);
        let [Step::Replace(changed), Step::Create(new), Step::Delete(gone)] = steps.as_slice() else {
            panic!("{steps:?}")
        };
        assert_eq!(changed["metadata"]["resourceVersion"], "8");
        assert_eq!((changed["spec"]["region"].as_str(), gone.as_str()), (Some("b"), "gone"));
        let expected = json!({
            "apiVersion": STORED, "kind": "Cluster",
            "metadata": {"name": "new", "finalizers": ["karmada.io/cluster-controller"]},
            "spec": {"region": "c", "id": "7"}, "status": {"kubernetesVersion": "v1.36.0"},
        });
        assert_eq!(new, &expected);
        assert_eq!(plan(&here, &there, STORED, false).len(), 2, "nothing is deleted unless it is known to be gone");
        // Once more, nothing is left to do.
        let done = [here[0].clone(), expected, cluster(STORED, "changed", "10", "b")];
        assert_eq!(plan(&here, &done, STORED, true), []);
    }
}
