//! Objects as documents of an engine.

use super::engine_document;
use crate::opensearch::terms::MAX_TERM;
use proptest::prelude::*;
use serde_json::{Value, json};

pub fn objects() -> Vec<(&'static str, Value)> {
    let pod = |metadata: Value, rest: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        pod.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        pod
    };
    let named = |name: &str| json!({"name": name, "namespace": "shop", "uid": "u1", "creationTimestamp": "2026-09-21T10:00:00Z"});
    let failed = json!({"name": "c", "ready": false, "restartCount": 3, "lastState": {"terminated": {"exitCode": 137}},
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}});
    vec![
        (
            "pod",
            pod(
                named("web-0"),
                json!({"spec": {"nodeName": "n1", "containers": [
            {"name": "c", "image": "docker.io/library/nginx:1.27", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}},
            {"name": "d", "image": "busybox@sha256:00ff"}]},
            "status": {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": [failed]}}),
            ),
        ),
        ("empty", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}})),
        (
            "empty_values",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"empty": "", "none": null},
            "metadata": {"name": "a", "namespace": "b", "labels": {"": ""}, "annotations": {"note": ""}, "finalizers": []}}),
        ),
        (
            "cluster_scoped",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletDown", "message": "stopped: x, y"}]}}),
        ),
        (
            "dotted_keys",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b",
            "labels": {"app.kubernetes.io/name": "Web", "tier": "front"}}, "data": {"a.b": "c", "[x]": "y", "": "z"}}),
        ),
        (
            "keys_by_case",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"},
            "data": {"README": "one", "readme": "two"}}),
        ),
        (
            "unicode",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "straße", "namespace": "İΣ",
            "annotations": {"note": "ΑΣ 𝒳 naïve\u{1c}x"}}, "data": {"größe": "ÅÄ\u{a0}Ö 漢字"}}),
        ),
        (
            "numbers",
            json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "b"},
            "spec": {"a": -1, "b": 0, "c": 1.5, "d": "2Gi", "e": "2026-01-01T00:00:00Z", "f": true, "g": 18446744073709551615_u64}}),
        ),
        (
            "lists",
            json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "b"},
            "spec": {"a": [[1, 2], [], [null]], "b": [{"c": {}}, {"c": {"d": "e"}}], "f": {"g": {"h": null}}}}),
        ),
        (
            "event",
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "shop"},
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "u1"}, "reason": "BackOff",
            "type": "Warning", "count": 12, "message": format!("Pulling \"nginx:1.27\" {} failed", "y".repeat(200))}),
        ),
        (
            "owned",
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web-7d9f", "namespace": "shop",
            "uid": "r1", "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d1"}]},
            "spec": {"replicas": 2}, "status": {"readyReplicas": 1}}),
        ),
        (
            "template",
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop", "uid": "t1",
            "annotations": {"propagationpolicy.karmada.io/namespace": "shop", "propagationpolicy.karmada.io/name": "spread"}}}),
        ),
    ]
}

#[test]
fn objects_are_documents() {
    for (name, object) in objects() {
        let document = engine_document("member1", u64::from(name == "empty").wrapping_sub(1), &object);
        insta::assert_yaml_snapshot!(format!("document_{name}"), document);
    }
}

#[test]
fn long_values_are_cut() {
    let long = "x".repeat(40_000);
    let event = json!({"apiVersion": "v1", "kind": "Event", "reason": long, "message": long,
        "metadata": {"name": "a", "namespace": "b", "labels": {"app": long}}});
    let document = serde_json::to_value(engine_document("member1", 1, &event)).unwrap();
    assert_eq!(document["w"]["reason"][0].as_str().unwrap().len(), MAX_TERM);
    assert_eq!(document["f"]["label"][0].as_str().unwrap().len(), MAX_TERM);
    let paths = document["paths"].as_array().unwrap();
    assert!(paths.contains(&json!("reason\u{1d}")) && paths.contains(&json!("metadata.labels.app\u{1d}")));
    // Its chunk is not a term, and keeps its position in the message.
    assert_eq!(document["said"], json!(["\u{f8ff}"]));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Zé漢𝒳İß ./:\u{1c}\n\t\"-]{0,12}",
        ("[aéΣ]", 1..3_usize).prop_map(|(letter, times)| letter.repeat(times * 20_000)),
    ]
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        text().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null)
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z.\\[\\]]{0,4}", inner, 0..4)
                .prop_map(|fields| fields.into_iter().collect::<Value>()),
        ]
    })
}

/// Strings of keyword fields, each of which is one term.
fn keywords(value: &Value, in_text: bool, see: &mut dyn FnMut(&str, bool)) {
    match value {
        Value::String(text) => see(text, in_text),
        Value::Array(items) => items.iter().for_each(|item| keywords(item, in_text, see)),
        Value::Object(fields) => fields.iter().for_each(|(name, field)| {
            keywords(field, in_text || matches!(name.as_str(), "content" | "said" | "grams"), see);
        }),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every object has a document that an engine accepts, always the same one.
    #[test]
    fn every_object_has_a_document(labels in prop::collection::btree_map("[a-z.]{1,6}", text(), 0..3), reason in text(), body in json_value()) {
        let object = json!({"apiVersion": "v1", "kind": "Event", "reason": reason, "message": reason, "data": body,
            "metadata": {"name": "a", "namespace": "b", "labels": labels}});
        let bytes = serde_json::to_vec(&engine_document("member1", 7, &object)).unwrap();
        prop_assert_eq!(&bytes, &serde_json::to_vec(&engine_document("member1", 7, &object)).unwrap());
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let mut messages = Vec::new();
        keywords(&document, false, &mut |text, in_text| {
            let longest = if in_text { text.split(['\n', '\t', ' ']).map(str::len).max().unwrap_or_default() } else { text.len() };
            if longest > MAX_TERM {
                messages.push(text.len());
            }
        });
        prop_assert!(messages.is_empty(), "{:?}", messages);
    }
}
