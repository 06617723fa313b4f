//! A corpus of secrets, in each place where an answer shows untrusted text. None may appear in an answer.

use rstest::rstest;
use serde_json::{Value, json};

use super::{PreparedApi, call};

const CORPUS: &str = include_str!("secrets.json");

/// A text with secrets.
#[derive(serde::Deserialize)]
struct Sample {
    /// Name of an environment variable or key of a ConfigMap whose value is the first secret.
    name: Option<String>,
    text: String,
    secrets: Vec<String>,
}

fn corpus() -> Vec<Sample> {
    serde_json::from_str(CORPUS).unwrap()
}

/// An API whose responses have the text in messages, logs, manifests and differences.
fn api_with(text: &str) -> PreparedApi {
    let manifest = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-0", "annotations": {"note": text, "kubectl.kubernetes.io/last-applied-configuration": text},
            "labels": {"app": "web"}, "managedFields": [{"manager": text}]},
        "spec": {"containers": [{"name": "web", "image": "nginx:1.27", "args": [text], "env": [{"name": "NOTE", "value": text}]}]},
        "data": {"config": text}, "status": {"message": text, "conditions": [{"type": "Ready", "message": text}]}});
    let pod = json!({"cluster": "m1", "apiVersion": "v1", "kind": "Pod", "resource": "pods", "namespace": "shop", "name": "web-0",
        "status": text, "matched": [{"field": "content", "text": text}, {"field": ".metadata.annotations.note", "text": text}],
        "columns": {".metadata.annotations.note": text, "label:note": text, ".message": text, ".reason": text}});
    let response = json!({"hits": [pod], "total": 2, "facets": {"status": [{"value": text, "count": 1}]},
        "skipped": [{"cluster": "m2", "reason": text}], "notices": [{"message": text}], "didYouMean": [text]});
    let differences = json!([{"path": "/metadata/annotations/note", "before": text, "after": text}]);
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0"});
    let target = json!({"cluster": "m1", "name": "m1", "message": text,
        "overrides": [{"kind": "OverridePolicy", "name": "o", "differences": differences}], "differences": differences});
    let logs: String =
        text.lines().map(|line| format!("m1 shop/web-0 web | 2026-01-01T00:00:00.000000000Z {line}\n")).collect();
    let mut template = pod.clone();
    template["cluster"] = json!("@control-plane");
    PreparedApi::new(&[
        ("%40control%2Dplane", json!({"hits": [template], "total": 1})),
        ("/query", response),
        ("&seq=", manifest),
        ("/history", json!({"versions": [{"seq": 9}, {"seq": 4}]})),
        ("/diff", json!({"differences": differences})),
        ("/graph", json!({"nodes": [pod, pod], "edges": [{"from": 0, "to": 1, "relation": "uses"}]})),
        (
            "/paths",
            json!({"nodes": [pod, pod], "edges": [{"from": 0, "to": 1, "type": "USES"}], "paths": [{"nodes": [0, 1], "edges": [0]}],
                "total": 1, "notices": [text]}),
        ),
        ("/logs", Value::String(format!("{logs}crowsnest: {}\n", text.replace('\n', " ")))),
        (
            "/explanations/",
            json!({"template": reference, "policy": reference, "targets": [target], "waiting": [{"cause": text, "message": text}],
                "scheduling": {"message": text, "terms": [{"clusters": [{"name": "m1", "rejected": {"filter": "f", "reason": text}}]}]}}),
        ),
        (
            "/journal",
            json!({"entries": [{"action": text, "message": text, "cause": {"text": text}, "subject": reference}]}),
        ),
        (
            "/plans",
            json!({"status": {"objects": [{"kind": "Pod", "name": "web-0", "differences": differences}], "notices": [text],
                "templates": [{"template": reference, "clusters": [target], "message": text}]}}),
        ),
        (
            "reviews",
            json!({"status": {"warnings": [text], "clusters": [{"name": "m1", "state": "Unknown", "evaluationError": text}],
                "grants": [{"cluster": "m1", "subject": {"kind": "User", "name": text}}]}}),
        ),
        ("/status", json!({"clusters": [{"name": "m1", "message": text}]})),
    ])
}

#[rstest]
#[case::search("search", json!({"query": "web", "columns": [".metadata.annotations.note", "label:note"]}))]
#[case::events("search", json!({"query": "kind:event"}))]
#[case::counts("search", json!({"count_only": true}))]
#[case::summary("get", json!({"kind": "pod", "name": "web-0"}))]
#[case::manifest("get", json!({"kind": "pod", "name": "web-0", "view": "manifest"}))]
#[case::history("history", json!({"kind": "pod", "name": "web-0"}))]
#[case::comparison("history", json!({"kind": "pod", "name": "web-0", "compare_with": "m2"}))]
#[case::related("related", json!({"kind": "pod", "name": "web-0"}))]
#[case::paths("related", json!({"path": "pod --> *"}))]
#[case::logs("logs", json!({"pod": "web-0"}))]
#[case::explain("explain", json!({"kind": "pod", "name": "web-0", "namespace": "shop"}))]
#[case::plan("plan", json!({"apply": [{"kind": "Pod"}]}))]
#[case::who_can("who_can", json!({"verb": "get", "resource": "pods"}))]
#[tokio::test]
async fn no_secret_of_the_corpus_appears(#[case] tool: &str, #[case] arguments: Value) {
    for Sample { text, secrets, .. } in corpus() {
        let api = api_with(&text);
        // The text, and structured content if the tool has it.
        let result = call(&api, "tools/call", json!({"name": tool, "arguments": arguments})).await.unwrap();
        let parts = [Some(&result["content"]), result.get("structuredContent")];
        let is_redacted = |part: &Value| part.to_string().contains("[redacted]");
        assert!(result["isError"] == false && parts.into_iter().flatten().all(is_redacted), "{text}: {result}");
        let answer = result.to_string();
        let status = call(&api, "resources/read", json!({"uri": "crowsnest://status"})).await.unwrap().to_string();
        for secret in secrets {
            assert!(text.contains(&secret), "{secret} is part of its sample");
            assert!(!answer.contains(&secret), "{secret} is in {answer}");
            assert!(!status.contains(&secret), "{secret} is in {status}");
        }
    }
}

/// An API whose responses have an environment variable and a key of this name in manifests, differences and columns.
fn api_with_named_value(name: &str, value: &str) -> PreparedApi {
    let variable = json!({"name": name, "value": value});
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0"},
        "spec": {"containers": [{"name": "web", "env": [variable]}]}, "data": {name: value}});
    let column = format!(".data.{name}");
    let pod = json!({"cluster": "m1", "apiVersion": "v1", "kind": "Pod", "resource": "pods", "namespace": "shop", "name": "web-0",
        "columns": {column: value}});
    let differences = json!([
        {"path": format!("/data/{name}"), "before": value, "after": value},
        {"path": "/data", "before": {name: value}},
        {"path": "/spec/containers/0/env/0", "after": variable},
        {"path": "/spec/containers/0/env/0/value", "before": value, "after": value},
    ]);
    let target = json!({"cluster": "m1", "name": "m1", "differences": differences,
        "overrides": [{"kind": "OverridePolicy", "name": "o", "differences": differences}]});
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0"});
    let mut template = pod.clone();
    template["cluster"] = json!("@control-plane");
    PreparedApi::new(&[
        ("%40control%2Dplane", json!({"hits": [template], "total": 1})),
        ("/query", json!({"hits": [pod], "total": 1})),
        ("&seq=", manifest),
        ("/history", json!({"versions": [{"seq": 9}, {"seq": 4}]})),
        ("/diff", json!({"differences": differences})),
        ("/explanations/", json!({"template": reference, "policy": reference, "targets": [target]})),
        ("/journal", json!({"entries": []})),
        (
            "/plans",
            json!({"status": {"objects": [{"kind": "Pod", "name": "web-0", "differences": differences}],
                "templates": [{"template": reference, "clusters": [target]}]}}),
        ),
    ])
}

/// `NAME` in the arguments is the name of the value.
#[rstest]
#[case::column("search", json!({"query": "web", "columns": [".data.NAME"]}))]
#[case::manifest("get", json!({"kind": "pod", "name": "web-0", "view": "manifest"}))]
#[case::paths("get", json!({"kind": "pod", "name": "web-0", "paths": [".data.NAME", ".spec.containers"]}))]
#[case::history("history", json!({"kind": "pod", "name": "web-0"}))]
#[case::comparison("history", json!({"kind": "pod", "name": "web-0", "compare_with": "m2"}))]
#[case::explain("explain", json!({"kind": "pod", "name": "web-0", "namespace": "shop"}))]
#[case::plan("plan", json!({"apply": [{"kind": "Pod"}]}))]
#[tokio::test]
async fn no_value_of_a_secret_name_appears(#[case] tool: &str, #[case] arguments: Value) {
    for Sample { name, secrets, .. } in corpus() {
        let (Some(name), Some(value)) = (name, secrets.first()) else { continue };
        let arguments: Value = serde_json::from_str(&arguments.to_string().replace("NAME", &name)).unwrap();
        let api = api_with_named_value(&name, value);
        let result = call(&api, "tools/call", json!({"name": tool, "arguments": arguments})).await.unwrap();
        let answer = result.to_string();
        assert!(result["isError"] == false && answer.contains("[redacted]"), "{name}: {answer}");
        assert!(!answer.contains(value), "the value of {name} is in {answer}");
    }
}
