//! Normalizes objects for comparison. Has no side effects.

use crowsnest_apimachinery::yaml;
use serde_json::{Map, Value};

/// Metadata that API servers set; never part of the desired state.
const SERVER_FIELDS: [&str; 6] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];
/// Prefix of labels and annotations that name the Work of an object.
const WORK_PREFIX: &str = "work.karmada.io/";
const CACHED_FROM: &str = "resource.karmada.io/cached-from-cluster";
/// Keys that identify the items of lists, in order of precedence.
const ITEM_KEYS: [&str; 8] = ["name", "mountPath", "containerPort", "port", "key", "type", "ip", "topologyKey"];

/// An object without the fields that API servers set and, unless requested, without status.
pub(super) fn without_server_fields(object: &Value, status: bool) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        if !status {
            fields.remove("status");
        }
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| !SERVER_FIELDS.contains(&name.as_str()));
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove(CACHED_FROM);
            }
        }
    }
    without_empty_fields(&object)
}

/// An object without the labels and annotations that name its Work, which differ in each cluster.
pub(super) fn without_cluster(mut object: Value) -> Value {
    for key in ["labels", "annotations"] {
        if let Some(entries) = object.pointer_mut(&format!("/metadata/{key}")).and_then(Value::as_object_mut) {
            entries.retain(|name, _| !name.starts_with(WORK_PREFIX));
        }
    }
    without_empty_fields(&object)
}

/// The desired manifest, normalized.
pub(super) fn normalize_desired(manifest: &Value) -> Value {
    without_server_fields(manifest, false)
}

/// The live object reduced to the fields of the desired one; API servers and controllers add others.
pub(super) fn select_desired_fields(live: &Value, desired: &Value) -> Value {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            let shared = desired
                .iter()
                .filter_map(|(name, desired)| Some((name.clone(), select_desired_fields(live.get(name)?, desired))));
            Value::Object(shared.collect())
        }
        (Value::Array(live), Value::Array(desired)) => Value::Array(select_desired_items(live, desired)),
        (live, _) => live.clone(),
    }
}

/// List items matched by their keys, or by position; items that are not desired are last.
fn select_desired_items(live: &[Value], desired: &[Value]) -> Vec<Value> {
    let all_have = |items: &[Value], key: &str| items.iter().all(|item| item.get(key).is_some());
    let are_distinct = |items: &[Value], key: &str| {
        items.iter().enumerate().all(|(at, item)| items[..at].iter().all(|before| before.get(key) != item.get(key)))
    };
    let identifies = |items: &[Value], key: &str| all_have(items, key) && are_distinct(items, key);
    let identifies_items = |key: &&&str| identifies(desired, key) && identifies(live, key);
    let Some(key) = ITEM_KEYS.iter().find(identifies_items).filter(|_| !desired.is_empty()) else {
        let select_item = |at: usize, item: &Value| {
            desired.get(at).map_or_else(|| item.clone(), |desired_item| select_desired_fields(item, desired_item))
        };
        return live.iter().enumerate().map(|(at, item)| select_item(at, item)).collect();
    };
    let has_same_key = |left: &Value, right: &Value| left.get(key) == right.get(key);
    let matched_items = desired.iter().filter_map(|desired_item| {
        Some(select_desired_fields(live.iter().find(|item| has_same_key(item, desired_item))?, desired_item))
    });
    let unmatched_items =
        live.iter().filter(|item| !desired.iter().any(|desired_item| has_same_key(item, desired_item))).cloned();
    matched_items.chain(unmatched_items).collect()
}

/// Removes nulls and empty objects.
fn without_empty_fields(value: &Value) -> Value {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    match value {
        Value::Object(fields) => {
            let set_fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), without_empty_fields(value)))
                .filter(|(_, value)| is_set(value));
            Value::Object(set_fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_empty_fields).collect()),
        other => other.clone(),
    }
}

/// Both objects as YAML; a missing one is empty. Secret values are masked and only marked as changed, as in `kubectl
/// diff`.
pub(super) fn yaml_texts(before: Option<&Value>, after: &Value) -> [String; 2] {
    let (mut before, mut after) = (before.cloned(), after.clone());
    if after.get("kind").and_then(Value::as_str) == Some("Secret") {
        for field in ["data", "stringData"] {
            let values =
                |object: Option<&Value>| object.and_then(|object| object.get(field)).cloned().unwrap_or_default();
            let (old, new) = (values(before.as_ref()), values(Some(&after)));
            if let Some(before) = &mut before {
                mask(before, field, &new, "*** (before)");
            }
            mask(&mut after, field, &old, "*** (after)");
        }
    }
    [before.as_ref().map(yaml::to_yaml).unwrap_or_default(), yaml::to_yaml(&after)]
}

fn mask(object: &mut Value, field: &str, counterpart: &Value, changed: &str) {
    for (name, value) in object.get_mut(field).and_then(Value::as_object_mut).into_iter().flatten() {
        let differs = counterpart.get(name).is_some_and(|counterpart_value| counterpart_value != value);
        *value = if differs { changed } else { "***" }.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case::defaults_do_not_differ(
        json!({"spec": {"replicas": 2, "strategy": {"type": "RollingUpdate"}}, "status": {"replicas": 2}}),
        json!({"spec": {"replicas": 2}}), true)]
    #[case::different_value(json!({"spec": {"replicas": 3}}), json!({"spec": {"replicas": 2}}), false)]
    #[case::missing_field(json!({"spec": {}}), json!({"spec": {"paused": true}}), false)]
    #[case::items_have_names(
        json!({"c": [{"name": "side", "image": "b", "x": 1}, {"name": "web", "image": "a"}]}),
        json!({"c": [{"name": "web", "image": "a"}, {"name": "side", "image": "b"}]}), true)]
    #[case::an_undesired_item(
        json!({"c": [{"name": "web"}, {"name": "side"}]}), json!({"c": [{"name": "web"}]}), false)]
    #[case::an_item_that_is_missing(json!({"c": [{"name": "a"}]}), json!({"c": [{"name": "a"}, {"name": "b"}]}), false)]
    #[case::items_without_keys(json!({"args": ["-v", "-x"]}), json!({"args": ["-v"]}), false)]
    #[case::empty_fields_are_ignored(json!({"a": 1}), json!({"a": 1, "resources": {}, "b": null}), true)]
    fn desired_fields_are_compared(#[case] live: Value, #[case] desired: Value, #[case] same: bool) {
        let desired = normalize_desired(&desired);
        assert_eq!(
            select_desired_fields(&live, &desired) == desired,
            same,
            "{}",
            select_desired_fields(&live, &desired)
        );
    }

    #[test]
    fn works_do_not_differ_between_clusters() {
        let object_in = |cluster: &str| {
            let work = json!({"work.karmada.io/namespace": cluster, "work.karmada.io/name": "web"});
            without_cluster(
                json!({"metadata": {"name": "web", "labels": {"work.karmada.io/permanent-id": cluster, "app": "web"},
                "annotations": work}}),
            )
        };
        assert_eq!(object_in("m1"), json!({"metadata": {"name": "web", "labels": {"app": "web"}}}));
        assert_eq!(object_in("m1"), object_in("m2"));
    }

    #[test]
    fn secret_values_are_masked() {
        let secret = |data: Value| json!({"kind": "Secret", "data": data});
        let before = secret(json!({"a": "b25l", "b": "b25l", "gone": "b25l"}));
        let after = secret(json!({"a": "b25l", "b": "dHdv"}));
        let expected = [
            "data:\n  a: '***'\n  b: '*** (before)'\n  gone: '***'\nkind: Secret\n",
            "data:\n  a: '***'\n  b: '*** (after)'\nkind: Secret\n",
        ];
        assert_eq!(yaml_texts(Some(&before), &after), expected);
        assert_eq!(yaml_texts(None, &after), ["", "data:\n  a: '***'\n  b: '***'\nkind: Secret\n"]);
    }

    #[test]
    fn server_fields_are_ignored() {
        let object = |uid: &str, cluster: &str| {
            json!({"metadata": {"name": "web", "uid": uid, "resourceVersion": uid, "annotations": {CACHED_FROM: cluster}},
                "status": {"phase": uid}})
        };
        assert_eq!(without_server_fields(&object("1", "m1"), false), without_server_fields(&object("2", "m2"), false));
        assert_ne!(without_server_fields(&object("1", "m1"), true), without_server_fields(&object("2", "m2"), true));
    }
}
