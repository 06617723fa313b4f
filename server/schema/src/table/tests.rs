//! JSON paths of printer columns, rows of built-in kinds and tables of custom resources.

use std::borrow::Cow;

use crowsnest_apimachinery::jsonpath::{self, JsonPath};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{IncludeObject, ListMeta, Printer, Rows};

fn now() -> jiff::Timestamp {
    "2024-06-01T12:00:00Z".parse().unwrap()
}

#[rstest]
#[case(".spec.size", &["3"])]
#[case("{.spec.size}", &["3"])]
#[case("$.spec['size']", &["3"])]
#[case(".metadata.labels['a.b/c']", &["dotted"])]
#[case(r".metadata.labels.a\.b/c", &["dotted"])]
#[case(r#".status.conditions[?(@.type=="Ready")].status"#, &["Yes"])]
#[case(".status.conditions[?(@.n > 1)].type", &["Ready"])]
#[case(".status.conditions[?(@.n)].type", &["Ready"])]
#[case(".status.conditions[*].type", &["Other", "Ready"])]
#[case(".status.conditions[-1].type", &["Ready"])]
#[case(".status.conditions[0:1].type", &["Other"])]
#[case(".status.conditions[0,1].type", &["Other", "Ready"])]
#[case("..type", &["Other", "Ready"])]
#[case(".spec.absent.deeper", &[])]
fn json_paths_select_values(#[case] path: &str, #[case] expected: &[&str]) {
    let object = json!({
        "metadata": {"labels": {"a.b/c": "dotted"}},
        "spec": {"size": 3},
        "status": {"conditions": [{"type": "Other", "status": "No"}, {"type": "Ready", "status": "Yes", "n": 2}]},
    });
    let parsed = JsonPath::parse(path).unwrap();
    let found: Vec<String> = parsed.find(&object).into_iter().map(jsonpath::to_text).collect();
    assert_eq!(found, expected);
}

#[rstest]
#[case("{.a")]
#[case(".a[")]
#[case(".a['b")]
#[case(".a[x]")]
#[case(".a[?(@.b]")]
#[case(".a)")]
fn malformed_json_paths_are_rejected(#[case] path: &str) {
    assert!(JsonPath::parse(path).is_err(), "{path}");
}

/// Objects with values in the fields that columns read, mostly of a wrong type.
fn any_object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9./:-]{0,6}|2024-05-31T1[0-9]:00:00Z|-?[0-9]{1,20}|é{1,9}|10%|1Gi".prop_map(Value::from),
    ];
    let names: Vec<&str> = vec![
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "annotations",
        "creationTimestamp",
        "deletionTimestamp",
        "containers",
        "initContainers",
        "containerStatuses",
        "initContainerStatuses",
        "conditions",
        "type",
        "reason",
        "state",
        "waiting",
        "running",
        "terminated",
        "exitCode",
        "signal",
        "ready",
        "restartCount",
        "replicas",
        "readyReplicas",
        "selector",
        "matchLabels",
        "matchExpressions",
        "ports",
        "port",
        "nodePort",
        "protocol",
        "clusterIP",
        "externalIPs",
        "loadBalancer",
        "ingress",
        "ip",
        "hostname",
        "rules",
        "host",
        "tls",
        "backend",
        "phase",
        "accessModes",
        "capacity",
        "storage",
        "metrics",
        "resource",
        "target",
        "current",
        "schedule",
        "lastScheduleTime",
        "active",
        "startTime",
        "completionTime",
        "completions",
        "parallelism",
        "succeeded",
        "subjects",
        "roleRef",
        "kind",
        "hard",
        "used",
        "template",
        "data",
        "value",
        "addresses",
        "endpoints",
        "subsets",
        "nodeInfo",
        "involvedObject",
        "message",
        "count",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "series",
        "rolloutStatus",
        "images",
        "image",
        "volumes",
        "handler",
        "webhooks",
    ];
    let name = prop::sample::select(names);
    leaf.prop_recursive(6, 96, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_object_of_any_kind_has_a_row(parts in prop::collection::vec(any_object(), 3)) {
        // All stored objects have metadata.
        let mut parts = parts;
        if !parts[0].is_object() {
            parts[0] = json!({"name": parts[0]});
        }
        let objects: Vec<Value> = serde_json::from_str(include_str!("fixtures/objects.json")).unwrap();
        for template in &objects {
            let mut object = template.clone();
            for (key, part) in ["metadata", "spec", "status"].into_iter().zip(&parts) {
                object[key] = part.clone();
            }
            let api_version = template["apiVersion"].as_str().unwrap();
            let group = api_version.split_once('/').map_or("", |(group, _)| group);
            let printer = Printer::built_in(group, template["kind"].as_str().unwrap());
            prop_assert_eq!(printer.cells(&object, now()).len(), printer.headers().len());
        }
    }

    #[test]
    fn parsing_never_panics_and_printing_round_trips(text in r#"[\.\$@a-c\[\]0-9:,'"*?()=<> \\]{0,24}"#) {
        if let Ok(path) = JsonPath::parse(&text) {
            let again = JsonPath::parse(&path.to_string());
            prop_assert_eq!(again, Ok(path));
        }
    }
}

/// Cells of one object per kind, as in `kubectl get -o wide`.
#[test]
fn rows() {
    let objects: Vec<Value> = serde_json::from_str(include_str!("fixtures/objects.json")).unwrap();
    let mut printed = Vec::new();
    for object in &objects {
        let api_version = object["apiVersion"].as_str().unwrap();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let printer = Printer::built_in(group, object["kind"].as_str().unwrap());
        let cells = printer.cells(object, now());
        let headers = printer.headers();
        assert_eq!(cells.len(), headers.len(), "{}", object["kind"]);
        let row: Vec<String> =
            headers.iter().zip(&cells).map(|((name, _), cell)| format!("{name}={}", jsonpath::to_text(cell))).collect();
        printed.push(format!("{}: {}", object["kind"].as_str().unwrap(), row.join(" | ")));
    }
    insta::assert_snapshot!(printed.join("\n"));
}

#[test]
fn custom_columns() {
    let columns = json!([
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "how big"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "Map", "type": "string", "jsonPath": ".spec.map", "priority": 1},
        {"name": "Since", "type": "date", "jsonPath": ".spec.at"},
        {"name": "Wrong", "type": "boolean", "jsonPath": ".spec.size"},
    ]);
    let printer = Printer::Custom(super::CustomPrinter::new(columns.as_array().unwrap()).into());
    let object = json!({
        "metadata": {"name": "w", "resourceVersion": "7"},
        "spec": {"size": 3, "map": {"a": 1}, "at": "2024-06-01T11:00:00Z"},
        "status": {"conditions": [{"type": "Ready", "status": "Yes"}]},
    });
    let columns = Some(printer.columns(&|_, field| Some(format!("about {field}"))));
    let rows = Rows {
        printer: &printer,
        include_object: IncludeObject::None,
        now: now(),
        to_internal: |object| Cow::Borrowed(object),
    };
    let table = rows.table(columns, [&object], &ListMeta::from_object(&object));
    insta::assert_json_snapshot!(table);
}
