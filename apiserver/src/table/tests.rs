use crowsnest_api::jsonpath::{self, JsonPath};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{IncludeObject, ListMeta, Printer, table};

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
fn json_paths(#[case] path: &str, #[case] expected: &[&str]) {
    let object = json!({
        "metadata": {"labels": {"a.b/c": "dotted"}},
        "spec": {"size": 3},
        "status": {"conditions": [{"type": "Other", "status": "No"}, {"type": "Ready", "status": "Yes", "n": 2}]},
    });
    let parsed = JsonPath::parse(path).unwrap();
    let found: Vec<String> = parsed.find(&object).into_iter().map(jsonpath::print).collect();
    assert_eq!(found, expected);
}

#[rstest]
#[case("{.a")]
#[case(".a[")]
#[case(".a['b")]
#[case(".a[x]")]
#[case(".a[?(@.b]")]
#[case(".a)")]
fn bad_json_paths(#[case] path: &str) {
    assert!(JsonPath::parse(path).is_err(), "{path}");
}

proptest! {
    #[test]
    fn parsing_never_panics_and_printing_round_trips(text in r#"[\.\$@a-c\[\]0-9:,'"*?()=<> \\]{0,24}"#) {
        if let Ok(path) = JsonPath::parse(&text) {
            let again = JsonPath::parse(&path.to_string());
            prop_assert_eq!(again, Ok(path));
        }
    }
}

/// Cells of one object per kind, as a user of `kubectl get -o wide` reads them.
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
            headers.iter().zip(&cells).map(|((name, _), cell)| format!("{name}={}", jsonpath::print(cell))).collect();
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
    let table = table(&printer, columns, [&object], &ListMeta::of(&object), IncludeObject::None, now());
    insta::assert_json_snapshot!(table);
}
