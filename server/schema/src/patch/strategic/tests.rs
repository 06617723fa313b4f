//! Strategic merge patches and the responses of kube-apiserver 1.36.2.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::SchemaRef;
use crate::patch::go_value;
use crate::schema_set::SchemaSet;

fn pod() -> SchemaRef {
    SchemaSet::builtin().kind("", "v1", "Pod").unwrap()
}

fn live() -> Value {
    json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["x", "y"]},
    "spec": {
        "containers": [
            {"name": "a", "image": "1", "args": ["x", "y"],
                "ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]},
            {"name": "b"},
            {"name": "c"},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a", "operator": "Exists"}],
    }})
}

fn apply_to_pod(patch: &Value) -> ApiResult<Value> {
    apply(&pod(), &live(), &mut patch.clone())
}

/// Names of the containers in order.
fn container_order(object: &Value) -> String {
    let containers = object["spec"]["containers"].as_array().unwrap();
    containers.iter().map(|container| container["name"].as_str().unwrap()).collect()
}

#[test]
fn lists_of_maps_merge_by_key() {
    for (containers, expected) in [
        (json!([{"name": "a", "image": "2"}]), "abc"),
        (json!([{"name": "n"}]), "nabc"),
        (json!([{"name": "c"}, {"name": "n"}, {"name": "a"}]), "bcna"),
        (json!([{"name": "z", "image": "1"}, {"name": "z", "image": "2"}]), "zabc"),
        (json!([{"name": "a", "$patch": "delete"}]), "bc"),
        (json!([{"name": "a", "$patch": "delete"}, {"name": "z"}, {"name": "c", "$patch": "delete"}]), "zb"),
        (json!([{"name": "z"}, {"$patch": "replace"}]), "z"),
        (json!([{"name": "z"}, {"name": "a", "$patch": "replace"}]), "z"),
        (json!([{"$patch": "replace"}]), ""),
    ] {
        let merged = apply_to_pod(&json!({"spec": {"containers": containers}})).unwrap();
        assert_eq!(container_order(&merged), expected, "{containers}");
    }
}

#[test]
fn element_order_is_applied() {
    for (element_order, containers, expected) in [
        ("ca", json!(null), "bca"),
        ("nb", json!(null), "abc"),
        ("nb", json!([{"name": "n"}]), "nabc"),
        // After a deletion, Go's `append` writes an added element into the backing array of the server's list, so that the
        // element also has a position in that list.
        ("bn", json!([{"name": "n"}, {"name": "a", "$patch": "delete"}]), "bcn"),
        ("nb", json!([{"name": "n"}, {"name": "c", "$patch": "delete"}]), "anb"),
        ("mn", json!([{"name": "m"}, {"name": "n"}, {"name": "b", "$patch": "delete"}]), "acmn"),
        ("", json!([{"name": "z"}, {"name": "y"}, {"name": "x"}]), "abcxyz"),
        ("zy", json!([{"$patch": "replace"}, {"name": "z"}, {"name": "y"}]), "zy"),
    ] {
        let element_order: Vec<Value> = element_order.chars().map(|name| json!({"name": name.to_string()})).collect();
        let mut patch = json!({"spec": {"$setElementOrder/containers": element_order, "containers": containers}});
        if containers.is_null() {
            patch["spec"].as_object_mut().unwrap().remove("containers");
        }
        assert_eq!(container_order(&apply_to_pod(&patch).unwrap()), expected, "{patch}");
    }
}

#[test]
fn fields_are_merged() {
    let port = |port: i32, protocol: &str| json!({"containerPort": port, "protocol": protocol});
    for (patch, path, expected) in [
        (
            json!({"spec": {"containers": [{"name": "n", "ports": [port(53, "UDP"), port(53, "TCP")], "$retainKeys": ["x"]}]}}),
            "/spec/containers/0",
            json!({"name": "n", "ports": [port(53, "UDP"), port(53, "TCP")], "$retainKeys": ["x"]}),
        ),
        (
            json!({"spec": {"initContainers": [{"image": "i", "args": null}, {"name": "m", "$patch": "x"}]}}),
            "/spec/initContainers",
            json!([{"image": "i"}]),
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 53, "name": "q"}, {"containerPort": 54}]}]}}),
            "/spec/containers/0/ports",
            json!([{"containerPort": 53, "protocol": "UDP", "name": "q"}, port(53, "TCP"), {"containerPort": 54}]),
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$deleteFromPrimitiveList/args": ["x"]}]}}),
            "/spec/containers/0/args",
            json!(["y"]),
        ),
        (
            json!({"spec": {"tolerations": [{"key": "b", "$patch": "delete"}]}}),
            "/spec/tolerations",
            json!([{"key": "b", "$patch": "delete"}]),
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}]),
        ),
        (json!({"metadata": {"labels": {"$patch": "replace", "c": "d"}}}), "/metadata/labels", json!({"c": "d"})),
        (json!({"metadata": {"labels": {"$patch": "delete", "c": "d"}}}), "/metadata/labels", json!({})),
        (
            json!({"metadata": {"annotations": {"$patch": "delete"}, "$foo": 1}}),
            "/metadata",
            json!({"labels": {"a": "b"}, "finalizers": ["x", "y"], "$foo": 1}),
        ),
        (
            json!({"metadata": {"annotations": {"$retainKeys": ["a"], "a": null}}}),
            "/metadata/annotations",
            json!({"$retainKeys": ["a"]}),
        ),
        (json!({"metadata": {"finalizers": ["z", "y", "z"]}}), "/metadata/finalizers", json!(["z", "x", "y"])),
        (json!({"metadata": {"$setElementOrder/finalizers": ["y", "x"]}}), "/metadata/finalizers", json!(["y", "x"])),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]}}),
            "/metadata/finalizers",
            json!(["z", "y"]),
        ),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}}), "/metadata/finalizers", json!(["x", "y"])),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": null}}),
            "/metadata",
            json!({"labels": {"a": "b"}}),
        ),
    ] {
        assert_eq!(apply_to_pod(&patch).unwrap().pointer(path), Some(&expected), "{patch}");
    }
}

#[test]
fn maps_with_replace_strategy_are_replaced() {
    let schema = SchemaSet::builtin().kind("policy", "v1", "PodDisruptionBudget").unwrap();
    let live = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "minAvailable": 1}});
    for (selector, expected) in [
        (json!({"matchLabels": {"e": "f"}}), json!({"matchLabels": {"e": "f"}})),
        (json!({"$patch": "delete", "matchLabels": null}), json!({"$patch": "delete", "matchLabels": null})),
    ] {
        let merged = apply(&schema, &live, &mut json!({"spec": {"selector": selector}})).unwrap();
        assert_eq!(merged, json!({"spec": {"selector": expected, "minAvailable": 1}}));
    }
}

#[test]
fn invalid_patches_are_rejected() {
    let spec = |spec: Value| json!({"spec": spec});
    let metadata = |metadata: Value| json!({"metadata": metadata});
    let list_error = "invalid patch format of primitive list";
    let order_error = "invalid patch format of setElementOrder list";
    let retain_keys_error = "invalid patch format of retainKeys";
    for (patch, code, message) in [
        (
            spec(json!({"containers": [{"image": "x"}]})),
            500,
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            spec(json!({"containers": [{"image": "x", "$patch": "delete"}]})),
            500,
            "map: map[$patch:delete image:x] does not contain declared merge key: name",
        ),
        (
            spec(json!({"containers": [{"name": "a", "$patch": "merge"}]})),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            spec(json!({"containers": [{"name": "a", "$patch": "foo"}]})),
            500,
            "unknown patch type: foo in map: map[$patch:foo name:a]",
        ),
        (
            metadata(json!({"labels": {"$patch": 1.5, "a": null}})),
            500,
            "unknown patch type: %!s(float64=1.5) in map: map[$patch:1.5 a:<nil>]",
        ),
        (spec(json!({"$retainKeys": "x"})), 400, retain_keys_error),
        (spec(json!({"$retainKeys": ["x"], "y": 1})), 400, retain_keys_error),
        (spec(json!({"$retainKeys": ["x"], "$y": 1})), 400, retain_keys_error),
        (metadata(json!({"$deleteFromPrimitiveList": ["x"]})), 400, list_error),
        (metadata(json!({"$deleteFromPrimitiveListOf/finalizers": ["x"]})), 400, list_error),
        (
            metadata(json!({"$deleteFromPrimitiveList/finalizers": [5]})),
            500,
            "list element types are not identical: [[x y] [5]]",
        ),
        (metadata(json!({"finalizers": [null]})), 500, "list element types are not identical: [[x y] [<nil>]]"),
        (
            spec(json!({"$deleteFromPrimitiveList/tolerations": [{"key": "b"}]})),
            500,
            "cannot merge lists without merge key for struct",
        ),
        (metadata(json!({"$setElementOrder": ["x"]})), 400, order_error),
        (metadata(json!({"$setElementOrderOf/finalizers": ["x"]})), 400, order_error),
        (
            metadata(json!({"$setElementOrder/finalizers": "x"})),
            500,
            "expected a []interface {}, but received a string",
        ),
        (
            metadata(json!({"$setElementOrder/finalizers": null})),
            500,
            "expected a []interface {}, but received a %!s(<nil>)",
        ),
        (
            metadata(json!({"$setElementOrder/finalizers": ["z"], "finalizers": ["w"]})),
            500,
            "The order in patch list:\n[w]\n doesn't match $setElementOrder list:\n[z]\n",
        ),
        (
            spec(
                json!({"$setElementOrder/containers": [{"name": "z"}], "containers": [{"name": "z"}, {"$patch": "replace"}]}),
            ),
            500,
            "The order in patch list:\n[map[name:z] map[$patch:replace]]\n doesn't match $setElementOrder list:\n[map[name:z]]\n",
        ),
        (spec(json!({"$setElementOrder/containers": ["a"]})), 500, "value for key 0 is not a map"),
        (spec(json!({"$setElementOrder/nodeName": ["a"]})), 500, "expected slice or array type, but got: struct"),
        (
            spec(json!({"$setElementOrder/foo": ["a"]})),
            500,
            "unable to find api field in struct PodSpec for the json field \"foo\"",
        ),
        (
            spec(json!({"$setElementOrder/initContainers": [], "initContainers": []})),
            500,
            "no elements in any of the given slices",
        ),
        (
            spec(json!({"$setElementOrder/initContainers": [], "initContainers": [{"image": "i"}]})),
            500,
            "map: map[image:i] does not contain declared merge key: name",
        ),
    ] {
        let error = apply_to_pod(&patch).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (code, message), "{patch}");
    }
}

/// A merge consumes the patch; errors about the result print what remains of it.
#[test]
fn the_remaining_patch_matches_kubernetes() {
    for (patch, expected) in [
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a"}],
                "$retainKeys": ["containers", "restartPolicy"], "restartPolicy": 5}}),
            "map[spec:map[restartPolicy:5]]",
        ),
        (
            json!({"metadata": {"labels": {"$patch": "replace", "c": 5}, "annotations": {"a": null, "$retainKeys": []}}}),
            "map[metadata:map[annotations:map[$retainKeys:[]] labels:map[c:5]]]",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "labels": {"$patch": "delete"}}}),
            "map[metadata:map[$deleteFromPrimitiveList/finalizers:[x] labels:map[$patch:delete]]]",
        ),
        (
            json!({"spec": {"containers": [{"name": "z", "image": "1"}, {"name": "z", "image": null, "tty": true}]}}),
            "map[spec:map[containers:[map[name:z tty:true] map[image:<nil> name:z tty:true]]]]",
        ),
    ] {
        let mut remaining = patch.clone();
        apply(&pod(), &live(), &mut remaining).unwrap();
        assert_eq!(go_value(&remaining), expected, "{patch}");
    }
}

fn any_value(keys: &'static str) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3_i32).prop_map(Value::from),
        "[a-c]{0,2}|delete|replace|merge|name".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys, inner, 0..5).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const DIRECTIVES: &str = "\\$patch|\\$retainKeys|name|\
    (\\$deleteFromPrimitiveList/|\\$setElementOrder/|)(spec|metadata|labels|finalizers|containers|args|tolerations)";

fn has_null(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(has_null),
        other => other.is_null(),
    }
}

proptest! {
    #[test]
    fn applying_twice_is_idempotent(names in prop::collection::vec("[a-d]", 0..4), images in prop::collection::vec("[x-z]", 4)) {
        let mut seen = Vec::new();
        let containers: Vec<Value> = names.iter().zip(&images).filter(|(name, _)| !seen.contains(name) && { seen.push(name); true })
            .map(|(name, image)| json!({"name": name, "image": image})).collect();
        let patch = json!({"spec": {"containers": containers}});
        let once = apply_to_pod(&patch).unwrap();
        prop_assert_eq!(apply(&pod(), &once, &mut patch.clone()).unwrap(), once);
    }

    #[test]
    fn no_patch_causes_a_panic(spec in any_value(DIRECTIVES), metadata in any_value(DIRECTIVES)) {
        let _ = apply_to_pod(&json!({"spec": spec, "metadata": metadata}));
    }

    #[test]
    fn patches_without_directives_and_lists_are_merge_patches(
        before in prop::collection::btree_map("[a-c]", "[a-c]", 0..4),
        labels in prop_oneof![
            Just(Value::Null),
            prop::collection::btree_map("[a-d]", prop_oneof![Just(Value::Null), "[a-c]".prop_map(Value::from)], 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ],
        spec in any_value("[a-c]"),
    ) {
        let doc = json!({"metadata": {"labels": before}});
        let patch = json!({"metadata": {"labels": labels}, "spec": spec});
        let merged = apply(&pod(), &doc, &mut patch.clone()).unwrap();
        if !patch.to_string().contains('[') {
            prop_assert_eq!(&merged, &crate::patch::merge_patch(&doc, &patch).unwrap());
        }
        prop_assert!(merged.get("spec").is_none_or(|spec| !has_null(spec)));
    }
}
