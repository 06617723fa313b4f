//! Server-side apply: owners, conflicts, types, and updates that change nothing.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Apply, ApplyError, Manager, Versions, only_times_differ};
use crate::Schema;
use crate::schema_set::SchemaSet;

fn manager(name: &str) -> Manager<'_> {
    Manager { name, subresource: "", api_version: "v1", now: jiff::Timestamp::UNIX_EPOCH, reset_fields: &[] }
}

/// Applies to an object with a single version.
fn apply(
    schema: Option<&Schema>,
    live: Option<&Value>,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
) -> ApiResult<Value> {
    Apply { versions: &Versions::default(), schema, live, config, manager, force }.run().map_err(into_api_error)
}

fn track_update(schema: Option<&Schema>, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
    match old {
        Some(old) => super::track_update(&Versions::default(), schema, old, new, manager)
            .map_err(into_api_error)
            .unwrap()
            .write(new),
        None => super::track_create(schema, new, manager),
    }
}

fn into_api_error(error: ApplyError) -> ApiError {
    match error {
        ApplyError::Failed(error) => error,
        ApplyError::ConversionRequired(conversion) => panic!("{conversion:?}"),
    }
}

fn config_map(data: &[(String, String)]) -> Value {
    let data: serde_json::Map<String, Value> = data.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
}

fn deployment(container: Value, replicas: Option<u32>) -> Value {
    let mut spec = json!({"template": {"spec": {"containers": [container]}}});
    if let Some(replicas) = replicas {
        spec["replicas"] = json!(replicas);
    }
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
}

fn schema(group: &str, kind: &str) -> std::sync::Arc<Schema> {
    SchemaSet::builtin().kind(group, "v1", kind).unwrap()
}

#[test]
fn fields_are_removed_with_their_last_owner() {
    let schema = schema("apps", "Deployment");
    let one = deployment(json!({"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}), Some(2));
    let live = apply(Some(&schema), None, &one, &manager("one"), false).unwrap();
    let two = deployment(json!({"name": "c", "env": [{"name": "B", "value": "2"}]}), None);
    let live = apply(Some(&schema), Some(&live), &two, &manager("two"), false).unwrap();
    let less = deployment(json!({"name": "c", "image": "i"}), None);
    let live = apply(Some(&schema), Some(&live), &less, &manager("one"), false).unwrap();
    assert_eq!(live.pointer("/spec/replicas"), None);
    assert_eq!(live.pointer("/spec/template/spec/containers/0/env"), Some(&json!([{"name": "B", "value": "2"}])));
}

#[test]
fn conflicts_name_manager_and_field() {
    let schema = schema("apps", "Deployment");
    let one = deployment(json!({"name": "c", "image": "i"}), Some(2));
    let live = apply(Some(&schema), None, &one, &manager("one"), false).unwrap();
    let other = deployment(json!({"name": "c", "image": "j"}), Some(3));
    let error = apply(Some(&schema), Some(&live), &other, &manager("two"), false).unwrap_err();
    assert_eq!(
        error.message,
        "Apply failed with 2 conflicts: conflicts with \"one\":\n- .spec.replicas\n- .spec.template.spec.containers[name=\"c\"].image"
    );
    assert!(apply(Some(&schema), Some(&live), &other, &manager("two"), true).is_ok());
}

#[test]
fn explicit_zero_values_conflict_with_other_managers() {
    let schema = schema("apps", "Deployment");
    let with =
        |spec: Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
    let live = apply(Some(&schema), None, &with(json!({"paused": true})), &manager("one"), false).unwrap();
    let other = with(json!({"paused": false}));
    let error = apply(Some(&schema), Some(&live), &other, &manager("two"), false).unwrap_err();
    assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"one\": .spec.paused");
    let live = apply(Some(&schema), Some(&live), &other, &manager("two"), true).unwrap();
    assert_eq!(live.pointer("/spec/paused"), None);
    let managers: Vec<&Value> = live["metadata"]["managedFields"].as_array().unwrap().iter().collect();
    assert_eq!(managers.len(), 1, "{managers:?}");
    // A null list is empty and removes nothing.
    let container = json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let live = apply(Some(&schema), Some(&live), &with(container), &manager("one"), false).unwrap();
    let none = with(json!({"template": {"spec": {"containers": null}}}));
    let live = apply(Some(&schema), Some(&live), &none, &manager("two"), false).unwrap();
    assert_eq!(live.pointer("/spec/template/spec/containers/0/name"), Some(&json!("c")));
}

#[test]
fn schema_errors_match_structured_merge_diff() {
    for (spec, expected) in [
        (json!({"replicas": "two"}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"paused": "yes"}), ".spec.paused: expected boolean, got &{yes}"),
        (json!({"selector": ["a", 1]}), ".spec.selector: expected map, got &{[a 1]}"),
        (
            json!({"selector": {"matchLabels": {"a": 5}}}),
            ".spec.selector.matchLabels.a: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (
            json!({"template": {"spec": {"containers": {"name": "c"}}}}),
            ".spec.template.spec.containers: expected list, got &{map[name:c]}",
        ),
        (
            json!({"template": {"spec": {"containers": [{"image": "i"}, {"image": "j"}]}}}),
            ".spec.template.spec.containers: duplicate entries for key [name=\"\"]",
        ),
        (
            json!({"template": {"spec": {"containers": [null]}}}),
            ".spec.template.spec.containers: element 0: associative list with keys may not have a null element",
        ),
    ] {
        let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
        let error = apply(Some(&schema("apps", "Deployment")), None, &config, &manager("one"), false).unwrap_err();
        let expected = format!("failed to create typed patch object (/d; apps/v1, Kind=Deployment): {expected}");
        assert_eq!((error.code, error.message), (500, expected), "{spec}");
    }
}

#[test]
fn a_create_owns_list_elements_by_their_keys() {
    let schema = schema("apps", "Deployment");
    let body = deployment(json!({"name": "c", "image": "i"}), None);
    let mut new = crate::decode::decode_value(body, &schema).object;
    track_update(Some(&schema), None, &mut new, &Manager { reset_fields: &[&["status"]], ..manager("u") });
    let fields = &new["metadata"]["managedFields"][0]["fieldsV1"];
    let expected = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {
        "k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}, "f:resources": {}},
    }}}}});
    assert_eq!(fields, &expected);
}

#[test]
fn reverted_updates_are_not_written() {
    let entry = |manager: &str, time: &str| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:data": {}}});
    let object = |data: &str, entries: &[Value]| json!({"metadata": {"name": "a", "managedFields": entries}, "data": {"k": data}});
    let old = object("1", &[entry("a", "2026-01-01T00:00:00Z"), entry("b", "2026-01-01T00:00:01Z")]);
    let (later, b) = (entry("a", "2026-01-01T00:00:09Z"), entry("b", "2026-01-01T00:00:01Z"));
    let cases = [
        (object("1", &[b.clone(), later.clone()]), true),
        (object("2", &[b.clone(), later.clone()]), false),
        (object("1", std::slice::from_ref(&later)), false),
        (object("1", &[b.clone(), later, entry("c", "2026-01-01T00:00:09Z")]), false),
        (object("1", &[b.clone(), b]), false),
    ];
    for (new, expected) in cases {
        assert_eq!(only_times_differ(&old, &new), expected, "{new}");
    }
}

/// After a write of its Scale, an object can have two entries of the same manager.
#[rstest::rstest]
#[case::reordered(&[("f:spec", 1), ("f:data", 9)], true)]
#[case::other_fields(&[("f:data", 0), ("f:data", 1)], false)]
#[case::fewer(&[("f:data", 0)], false)]
fn entries_of_one_manager_are_compared_by_their_fields(#[case] new: &[(&str, u32)], #[case] expected: bool) {
    let object = |entries: &[(&str, u32)]| {
        let entry = |(fields, second): &(&str, u32)| {
            json!({"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsV1": {*fields: {}},
                "time": format!("2026-01-01T00:00:0{second}Z")})
        };
        json!({"metadata": {"name": "a", "managedFields": entries.iter().map(entry).collect::<Vec<_>>()}})
    };
    assert_eq!(only_times_differ(&object(&[("f:data", 0), ("f:spec", 1)]), &object(new)), expected);
}

fn data() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-d]", "[0-2]"), 1..5)
}

/// A Deployment with some of three containers, each with some environment variables. Lists are not empty: Go omits
/// empty ones, so they would differ on each apply and conflict.
fn any_deployment() -> impl Strategy<Value = Value> {
    let env = prop::collection::btree_map("[P-R]", "[0-1]", 0..3);
    let container = (prop::option::of("[x-z]"), env);
    let containers = prop::collection::btree_map("[a-c]", container, 1..4);
    (prop::option::of(1..3_u32), containers, prop::collection::btree_map("[k-l]", "[0-1]", 1..3)).prop_map(
        |(replicas, containers, labels)| {
            let containers = containers.into_iter().map(|(name, (image, env))| {
                let env: Vec<Value> =
                    env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                let mut container = json!({"name": name, "env": env});
                if let Some(image) = image {
                    container["image"] = image.into();
                }
                container
            });
            let containers: Vec<Value> = containers.collect();
            let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
            let mut spec = json!({"template": template});
            if let Some(replicas) = replicas {
                spec["replicas"] = replicas.into();
            }
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
        },
    )
}

/// Writes: manager, true for an apply and false for an update, true for `force`, object.
fn any_writes() -> impl Strategy<Value = Vec<(&'static str, bool, bool, Value)>> {
    let manager_names = prop::sample::select(vec!["one", "two", "three"]);
    prop::collection::vec((manager_names, prop::bool::weighted(0.7), any::<bool>(), any_deployment()), 1..8)
}

/// The object without empty fields, which a typed object contains although no manager wrote them.
fn without_empty_fields(value: &Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(map) => {
            let filled = map.iter().map(|(key, value)| (key.clone(), without_empty_fields(value)));
            Value::Object(filled.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => items.iter().map(without_empty_fields).collect(),
        other => other.clone(),
    }
}

/// Fields of the object that no manager owns.
fn fields_without_owner(schema: &Schema, object: &Value) -> Vec<String> {
    let mut owned: Vec<String> =
        super::managed::decode(object).unwrap().iter().flat_map(|entry| entry.fields.paths()).collect();
    owned.sort();
    let mut plain = without_empty_fields(object);
    plain["metadata"] = json!({"name": "d"});
    let existing = super::typed::field_set(Some(schema), &plain).paths();
    let below = |path: &String| path.starts_with(".spec");
    existing.into_iter().filter(|path| below(path) && owned.binary_search(path).is_err()).collect()
}

proptest! {
    #[test]
    fn written_fields_have_owners_and_apply_is_idempotent(writes in any_writes()) {
        let schema = schema("apps", "Deployment");
        let mut live: Option<Value> = None;
        for (manager_name, applies, force, object) in writes {
            // An object without any owner stays untracked until the next apply.
            let is_tracked = applies || live.as_ref().is_none_or(|live| live["metadata"]["managedFields"].is_array());
            if applies {
                // A conflicting apply writes nothing.
                let Ok(next) = apply(Some(&schema), live.as_ref(), &object, &manager(manager_name), force) else { continue };
                let again = apply(Some(&schema), Some(&next), &object, &manager(manager_name), false).unwrap();
                prop_assert_eq!(&again, &next);
                live = Some(next);
            } else {
                // An update has been decoded: fields that Go omits are absent.
                let mut next = object;
                crate::normalize(&schema, &mut next);
                track_update(Some(&schema), live.as_ref(), &mut next, &manager(manager_name));
                live = Some(next);
            }
            if let Some(live) = live.as_ref().filter(|_| is_tracked) {
                let lost = fields_without_owner(&schema, live);
                prop_assert_eq!(lost, Vec::<String>::new(), "fields without owner in {}", live);
            }
        }
    }

    #[test]
    fn applying_twice_changes_nothing(first in data(), second in data()) {
        let schema = schema("", "ConfigMap");
        let live = apply(Some(&schema), None, &config_map(&first), &manager("one"), true).unwrap();
        let once = apply(Some(&schema), Some(&live), &config_map(&second), &manager("two"), true).unwrap();
        let twice = apply(Some(&schema), Some(&once), &config_map(&second), &manager("two"), false).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn disjoint_managers_commute(first in data(), second in data()) {
        let schema = schema("", "ConfigMap");
        let second: Vec<(String, String)> = second.into_iter().map(|(k, v)| (format!("z{k}"), v)).collect();
        let (a, b) = (config_map(&first), config_map(&second));
        let one = |live: Option<&Value>, config: &Value, name: &str| apply(Some(&schema), live, config, &manager(name), false).unwrap();
        let ab = one(Some(&one(None, &a, "one")), &b, "two");
        let ba = one(Some(&one(None, &b, "two")), &a, "one");
        prop_assert_eq!(&ab["data"], &ba["data"]);
        let fields = |object: &Value| object["metadata"]["managedFields"].as_array().unwrap().iter().map(|e| e["fieldsV1"].to_string()).collect::<std::collections::BTreeSet<_>>();
        prop_assert_eq!(fields(&ab), fields(&ba));
    }

    #[test]
    fn every_written_field_has_an_owner(first in data(), second in data()) {
        let schema = schema("", "ConfigMap");
        let mut live = config_map(&first);
        track_update(Some(&schema), None, &mut live, &manager("one"));
        let mut next = config_map(&second);
        track_update(Some(&schema), Some(&live), &mut next, &manager("two"));
        let owners = next["metadata"]["managedFields"].to_string();
        for key in next["data"].as_object().unwrap().keys() {
            prop_assert!(owners.contains(&format!("f:{key}")), "{} not owned in {}", key, owners);
        }
    }
}

fn custom_schema() -> std::sync::Arc<Schema> {
    let text = json!({"type": "string"});
    Schema::for_custom_resource(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "mode": text,
        "values": {"x-kubernetes-preserve-unknown-fields": true},
        "location": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"near": {"type": "object", "properties": {"name": text}}}},
        "amount": {"x-kubernetes-int-or-string": true},
        "since": {"type": "string", "format": "date-time"},
        "closed": {"type": "object", "properties": {"name": text}},
    }}}}))
}

fn gadget(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Gadget", "metadata": {"name": "x"}, "spec": spec})
}

#[rstest::rstest]
#[case::undeclared_below_an_open_field(json!({"location": {"near": {"name": "x", "bogus": 1}}}), None)]
#[case::undeclared(json!({"closed": {"bogus": 1}}), Some(".spec.closed.bogus: field not declared in schema"))]
#[case::number_in_a_string_with_a_format(json!({"since": 5}), None)]
#[case::map_in_a_string_with_a_format(json!({"since": {"a": 1}}), Some(".spec.since: expected any scalar, got"))]
#[case::map_in_int_or_string(json!({"amount": {"a": 1}}), None)]
#[case::number_in_a_string(json!({"mode": 5}), Some(".spec.mode: expected string, got"))]
fn configurations_of_custom_resources_are_typed(#[case] spec: Value, #[case] expected_error: Option<&str>) {
    match (super::validate_config(Some(&custom_schema()), &gadget(spec)), expected_error) {
        (Ok(()), None) => {}
        (Err(error), Some(expected)) => assert!(error.message.contains(expected), "{}", error.message),
        (result, _) => panic!("{result:?}"),
    }
}

#[test]
fn owners_lose_the_parts_of_a_map_that_becomes_a_scalar() {
    let schema = custom_schema();
    let owners = |object: &Value| -> Vec<String> {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        entries.iter().map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
    };
    let (a, b) = (manager("a"), manager("b"));
    let apply_spec = |live: Option<&Value>, spec: Value, manager: &Manager<'_>, force: bool| {
        apply(Some(&schema), live, &gadget(spec), manager, force).unwrap()
    };
    let live = apply_spec(None, json!({"values": {"c": {"d": "1"}}}), &a, false);
    let live = apply_spec(Some(&live), json!({"values": {"c": 5}}), &b, true);
    assert_eq!(owners(&live), ["b"]);
    let live = apply_spec(Some(&live), json!({"mode": "m"}), &b, false);
    assert_eq!(live["spec"], json!({"mode": "m"}));
    let live = apply_spec(Some(&live), json!({"values": {"c": {"d": "2"}}}), &b, false);
    // An update that replaces the scalar with a map owns the parts of the map.
    let mut scalar = live.clone();
    scalar["spec"]["values"]["c"] = json!(5);
    track_update(Some(&schema), Some(&live), &mut scalar, &manager("u"));
    assert_eq!(owners(&scalar), ["u"]);
    let mut map = scalar.clone();
    map["spec"]["values"]["c"] = json!({"d": "3"});
    track_update(Some(&schema), Some(&scalar), &mut map, &manager("v"));
    let error = apply(Some(&schema), Some(&map), &gadget(json!({"values": {"c": {"d": "4"}}})), &a, false).unwrap_err();
    assert!(error.message.starts_with("Apply failed with 1 conflict: conflict with \"v\""), "{}", error.message);
    assert!(error.message.ends_with(": .spec.values.c.d"), "{}", error.message);
}

#[test]
fn keys_of_list_elements_are_escaped_as_in_go() {
    let text = json!({"type": "string"});
    let schema = Schema::for_custom_resource(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "rules": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": text}}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        }}}}),
    );
    let config = gadget(json!({"rules": [{"name": "a<b & c>"}], "tags": ["x>y"]}));
    let applied = apply(Some(&schema), None, &config, &manager("a"), false).unwrap();
    let fields = &applied["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert!(fields["f:rules"].get(r#"k:{"name":"a\u003cb \u0026 c\u003e"}"#).is_some(), "{fields}");
    assert!(fields["f:tags"].get(r#"v:"x\u003ey""#).is_some(), "{fields}");
    assert_eq!(apply(Some(&schema), Some(&applied), &config, &manager("a"), false).unwrap(), applied);
}

/// An object that violates its schema has no owners. Duplicate list items are accepted.
#[rstest::rstest]
#[case::valid(json!({"mode": "a"}), true)]
#[case::wrong_type(json!({"closed": [1]}), false)]
#[case::unknown(json!({"closed": {"bogus": 1}}), false)]
#[case::number_in_a_string_with_a_format(json!({"since": 5}), true)]
#[case::duplicates(json!({"tags": ["a", "a"]}), true)]
#[case::item_without_keys(json!({"rules": [{}]}), false)]
fn owners_of_objects_that_violate_their_schema_are_dropped(#[case] spec: Value, #[case] expected: bool) {
    let text = json!({"type": "string"});
    let schema = Schema::for_custom_resource(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "mode": text,
            "since": {"type": "string", "format": "date-time"},
            "closed": {"type": "object", "properties": {"name": text}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
            "rules": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": text}}},
        }}}}),
    );
    let has_owners = |object: &Value| object["metadata"].get("managedFields").is_some();
    let mut created = gadget(spec.clone());
    track_update(Some(&schema), None, &mut created, &manager("a"));
    assert_eq!(has_owners(&created), expected, "{created}");
    let mut live = gadget(json!({"mode": "b"}));
    track_update(Some(&schema), None, &mut live, &manager("a"));
    let mut new = live.clone();
    new["spec"] = spec;
    let tracked = super::track_update(&Versions::default(), Some(&schema), &live, &new, &manager("b"));
    assert_eq!(tracked.is_ok(), expected, "{tracked:?}");
}

/// As in structured-merge-diff; kube-apiserver then validates the result.
#[test]
fn a_map_that_loses_all_fields_of_its_owner_becomes_null() {
    let text = json!({"type": "string"});
    let schema = Schema::for_custom_resource(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "labels": {"type": "object", "additionalProperties": text}, "mode": text,
        }}}}),
    );
    let one = manager("one");
    let apply_spec = |live: Option<&Value>, spec: Value| {
        let applied = apply(Some(&schema), live, &gadget(spec), &one, false).unwrap();
        (applied["spec"].clone(), applied)
    };
    let (_, live) = apply_spec(None, json!({"labels": {"a": "b"}, "mode": "m"}));
    let (without_labels, _) = apply_spec(Some(&live), json!({"mode": "m"}));
    assert_eq!(without_labels, json!({"mode": "m"}));
    let (empty_labels, _) = apply_spec(Some(&live), json!({"labels": {}, "mode": "m"}));
    assert_eq!(empty_labels, json!({"labels": null, "mode": "m"}));
}

/// kube-apiserver checks the live object before the configuration if it has no managers yet, otherwise after it.
#[rstest::rstest]
#[case::valid(json!({"mode": "a"}), json!({"mode": "b"}), true, None)]
#[case::wrong_configuration(json!({"mode": "a"}), json!({"mode": [1]}), true, Some("failed to create typed patch object (default/x; "))]
#[case::untracked(json!({"mode": [1]}), json!({"mode": [1]}), false,
    Some("failed to create manager for existing fields: failed to convert new object (default/x; example.com/v1, Kind=Gadget) to smd typed: "))]
#[case::both(json!({"mode": [1]}), json!({"mode": [1]}), true, Some("failed to create typed patch object (default/x; "))]
#[case::tracked(json!({"mode": [1]}), json!({"mode": "b"}), true,
    Some("failed to create typed live object (default/x; example.com/v1, Kind=Gadget): .spec.mode: expected string, got "))]
#[case::number_in_a_string_field(json!({"size": 5}), json!({"mode": "b"}), true, Some("failed to create typed live object"))]
fn applies_over_objects_that_violate_their_schema_are_refused(
    #[case] live_spec: Value,
    #[case] spec: Value,
    #[case] is_tracked: bool,
    #[case] expected: Option<&str>,
) {
    let schema = Schema::for_custom_resource(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "mode": {"type": "string"}, "size": {"type": "string", "x-kubernetes-int-or-string": true},
        }}}}),
    );
    let object = |spec: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Gadget",
            "metadata": {"name": "x", "namespace": "default"}, "spec": spec})
    };
    let mut live = object(json!({"mode": "a"}));
    if is_tracked {
        track_update(Some(&schema), None, &mut live, &manager("a"));
    }
    live["spec"] = live_spec;
    let applied = apply(Some(&schema), Some(&live), &object(spec), &manager("b"), true);
    let message = applied.err().map(|error| error.message);
    match (message, expected) {
        (None, None) => {}
        (Some(message), Some(expected)) => assert!(message.starts_with(expected), "{message}"),
        (message, expected) => assert_eq!(message.as_deref(), expected),
    }
}
