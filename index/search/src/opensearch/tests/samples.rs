//! Generators of queries and objects that match each other: every kind of condition, with words that some objects
//! contain.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

const WORDS: [&str; 26] = [
    "web",
    "web-0",
    "checkout",
    "checkuot",
    "nginx:1.27",
    "docker.io/library/nginx",
    "shop",
    "team-a",
    "Running",
    "a",
    "27",
    "app=web",
    "member1",
    "straße",
    "STRASSE",
    "größe",
    "漢字",
    "ΑΣ",
    "b/c",
    "acme.io",
    "back-off",
    "restarting",
    "Ready",
    "e-1",
    "0",
    "iNg",
];
const PATTERNS: [&str; 16] = [
    "x*",
    "?eb*",
    "*e*b*",
    "*ing",
    "shop/w*",
    "/w.b/",
    "/^(web|api)/",
    "/[0-9]+$/",
    "/[^a-z]{2,3}/",
    "/^\\d+\\.\\d/",
    "/ß|é/",
    "/\"|#/",
    "/(?i:WEB)-\\w/",
    "/a$b/",
    "*漢*",
    "/^$/",
];
const FUZZY: [&str; 8] = ["checkuot~", "chekout~2", "wbe~1", "a~1", "nginz~2", "restartin~1", "strasse~2", "backoff~2"];
const PHRASES: [&str; 9] = [
    "\"back-off restarting\"",
    "\"restarting failed\"",
    "\"pulling image\"",
    "\"image library/nginx:1.27\"",
    "\"failed c\"",
    "\"back-off re\"",
    "\"host network\"",
    "\"off pulling\"",
    "\"ÅÄ Ö\"",
];
const OTHERS: [&str; 40] = [
    "restarts:>1",
    "restarts:0..3",
    "restarts:!=2",
    "exit:137",
    "ready:1",
    "replicas:*",
    "age:<1d",
    "created:>2026-09-21",
    "cpu.req:>100m",
    "mem.req:<=1Gi",
    "image:*",
    "label:app",
    "label:!app",
    "label:app=web",
    "label:a*=w*",
    "label:tier=front",
    "status:=Running",
    "name:=WEB",
    "kind:workload",
    "is:unhealthy",
    "is:orphan",
    "region:eu-*",
    "cluster.label:env=prod",
    ".spec.replicas:>2",
    ".spec.replicas:1..3",
    ".spec.replicas:2",
    ".metadata.name:web*",
    ".metadata.labels.app:*",
    ".metadata.labels[app.kubernetes.io/name]:web",
    ".spec.containers.image:/nginx/",
    ".spec.containers[0].image:nginx*",
    ".spec.containers[*].name:c",
    ".data.readme:*",
    ".data.README:two",
    ".data.readme:two",
    ".spec.d:>=1Gi",
    ".spec.f:true",
    ".status.phase:=Running",
    ".metadata.name:wbe~1",
    ".data.long:*xyz*",
];

fn pick(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(all.to_vec()).prop_map(str::to_owned)
}

fn term() -> impl Strategy<Value = String> {
    let fields = [
        "name", "ns", "kind", "status", "image", "label", "node", "cluster", "content", "message", "reason", "ann",
        "uid",
    ];
    let value = prop_oneof![4 => pick(&WORDS), 2 => pick(&PATTERNS), 1 => pick(&FUZZY), 1 => pick(&PHRASES)];
    prop_oneof![
        3 => value.clone(),
        3 => (prop::sample::select(fields.to_vec()), value).prop_map(|(field, value)| format!("{field}:{value}")),
        3 => pick(&OTHERS),
    ]
}

/// Queries of several conditions.
pub fn query() -> impl Strategy<Value = String> {
    term().prop_recursive(3, 10, 3, |inner| {
        prop_oneof![
            2 => prop::collection::vec(inner.clone(), 2..3).prop_map(|parts| parts.join(" ")),
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" OR "))),
            1 => inner.prop_map(|part| format!("-({part})")),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    let marks = prop::sample::select(vec![" ", "-", ": ", ", ", " \"", "\u{a0}", "/", "\u{1c}", ""]);
    let part = (pick(&WORDS), marks).prop_map(|(word, mark)| format!("{word}{mark}"));
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

/// Objects of several kinds, with strings of the words that queries use.
pub fn object() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["web", "web-0", "checkout-7d9f", "api-x", "nginx", "straße", "WEB", "a"]);
    let namespace = prop::sample::select(vec!["shop", "team-a", "größe", ""]);
    let common_kinds =
        prop::sample::select(vec!["Pod", "Deployment", "ConfigMap", "Event", "Node"]).prop_map(str::to_owned);
    let kind = prop_oneof![4 => common_kinds, 1 => (0..35).prop_map(|nth| format!("Widget{nth}"))];
    let labels = prop::collection::btree_map(
        prop::sample::select(vec!["app", "tier", "app.kubernetes.io/name"]),
        prop::sample::select(vec!["web", "Web", "api", "front", ""]),
        0..3,
    );
    let parts =
        (text(), text(), prop::option::of(0..4_i64), prop::sample::select(vec!["Running", "Failed", "Pending"]));
    (name, namespace, kind, labels, parts).prop_map(|(name, namespace, kind, labels, (message, data, count, phase))| {
        let mut metadata = json!({"name": name, "labels": labels, "annotations": {"note": data}, "uid": format!("uid-{message}"),
            "creationTimestamp": "2026-09-21T10:00:00Z"});
        if !namespace.is_empty() && kind != "Node" {
            metadata["namespace"] = namespace.into();
        }
        let state = json!({"name": "c", "ready": count == Some(1), "restartCount": count, "lastState": {"terminated":
            {"exitCode": 137, "message": message}}, "state": {"waiting": {"reason": "BackOff", "message": data}}});
        let version = match kind.as_str() {
            "Deployment" => "apps/v1",
            kind if kind.starts_with("Widget") => "acme.io/v1",
            _ => "v1",
        };
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "message": message, "reason": phase, "count": count,
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web"}, "data": {"long": data.repeat(20)},
            "spec": {"replicas": count, "nodeName": "n1", "containers": [{"name": "c", "image": "docker.io/library/nginx:1.27"},
                {"name": "d", "image": format!("acme.io/{name}:{}", count.unwrap_or(9))}]},
            "status": {"phase": phase, "readyReplicas": count, "containerStatuses": [state]}})
    })
}

/// Generates values, the same ones every time.
pub fn generate<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    let tree = |_| strategy.new_tree(&mut runner).unwrap().current();
    (0..count).map(tree).collect()
}
