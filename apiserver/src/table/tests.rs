use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::jsonpath::{self, JsonPath};
use super::{IncludeObject, ListMeta, Printer, age, pod_summary, table};

fn now() -> jiff::Timestamp {
    "2024-06-01T12:00:00Z".parse().unwrap()
}

#[rstest]
#[case(0, "0s")]
#[case(-1, "0s")]
#[case(-2, "<invalid>")]
#[case(119, "119s")]
#[case(120, "2m")]
#[case(125, "2m5s")]
#[case(600, "10m")]
#[case(3 * 3600 - 1, "179m")]
#[case(3 * 3600, "3h")]
#[case(3 * 3600 + 61, "3h1m")]
#[case(47 * 3600, "47h")]
#[case(48 * 3600, "2d")]
#[case(49 * 3600, "2d1h")]
#[case(8 * 86400, "8d")]
#[case(729 * 86400, "729d")]
#[case(731 * 86400, "2y1d")]
#[case(8 * 365 * 86400, "8y")]
fn durations(#[case] seconds: i64, #[case] printed: &str) {
    assert_eq!(age::human_duration(seconds), printed);
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

#[rstest]
#[case::pending(json!({"status": {"phase": "Pending"}}), "Pending", 0, 0)]
#[case::evicted(json!({"status": {"phase": "Failed", "reason": "Evicted"}}), "Evicted", 0, 0)]
#[case::gated(json!({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}}), "SchedulingGated", 0, 0)]
#[case::crash_loop(json!({"status": {"phase": "Running", "containerStatuses": [
    {"name": "a", "ready": true, "restartCount": 1, "state": {"running": {}}},
    {"name": "b", "ready": false, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}), "CrashLoopBackOff", 1, 5)]
#[case::exit_code(json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 3}}}]}}), "ExitCode:3", 0, 0)]
#[case::signal(json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 137, "signal": 9}}}]}}), "Signal:9", 0, 0)]
#[case::init_progress(json!({"spec": {"initContainers": [{"name": "i"}, {"name": "j"}]}, "status": {"phase": "Pending", "initContainerStatuses": [
    {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {"running": {}}}]}}), "Init:1/2", 0, 0)]
#[case::init_error(json!({"spec": {"initContainers": [{"name": "i"}]}, "status": {"phase": "Pending", "initContainerStatuses": [
    {"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}}), "Init:Error", 0, 2)]
#[case::sidecar(json!({"spec": {"initContainers": [{"name": "i", "restartPolicy": "Always"}], "containers": [{"name": "a"}]}, "status": {"phase": "Running",
    "initContainerStatuses": [{"name": "i", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}}],
    "containerStatuses": [{"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}), "Running", 2, 2)]
#[case::completed_but_running(json!({"status": {"phase": "Running", "containerStatuses": [
    {"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
    {"name": "b", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}), "NotReady", 1, 0)]
#[case::terminating(json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "status": {"phase": "Running"}}), "Terminating", 0, 0)]
#[case::lost(json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "status": {"phase": "Running", "reason": "NodeLost"}}), "Unknown", 0, 0)]
fn pod_status(#[case] pod: Value, #[case] status: &str, #[case] ready: usize, #[case] restarts: i64) {
    let summary = pod_summary(&pod);
    assert_eq!((summary.status.as_str(), summary.ready, summary.restarts), (status, ready, restarts));
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
