//! Tests of the arguments and the output of `get`.

use super::collect::explain_missing;
use super::requests::GetResponse;
use super::*;
use crate::testing::parse_args;
use crowsnest_apimachinery::names::Gvr;
use serde_json::{Value, json};

fn parse(line: &str) -> Result<GetArgs, String> {
    parse_args(line)
}

#[rstest::rstest]
#[case("pods", Scope::Fleet, ("pods", None))]
#[case("pods web", Scope::Fleet, ("pods", Some("web")))]
#[case("pod/web --cluster m1", Scope::Named(vec!["m1".to_owned()]), ("pod", Some("web")))]
#[case("pods -C m1,m2", Scope::Named(vec!["m1".to_owned(), "m2".to_owned()]), ("pods", None))]
#[case("pods --clusters all -A", Scope::All, ("pods", None))]
#[case("pods -s members -C m1", Scope::Named(vec!["m1".to_owned()]), ("pods", None))]
#[case("pods -s karmada", Scope::ControlPlane(Some(Vec::new())), ("pods", None))]
#[case("pods -s all", Scope::ControlPlane(None), ("pods", None))]
#[case("pods -s all -C m1", Scope::ControlPlane(Some(vec!["m1".to_owned()])), ("pods", None))]
fn arguments_select_kinds_and_clusters(
    #[case] line: &str,
    #[case] scope: Scope,
    #[case] expected: (&str, Option<&str>),
) {
    let args = parse(line).unwrap();
    assert_eq!(args.scope(), scope);
    let all = args.parse_arguments().unwrap();
    let all: Vec<(&str, Option<&str>)> =
        all.iter().map(|object| (object.kind.as_str(), object.name.as_deref())).collect();
    assert_eq!(all, [expected]);
}

#[rstest::rstest]
#[case("deploy,svc", &[("deploy", None), ("svc", None)])]
#[case("pods web db", &[("pods", Some("web")), ("pods", Some("db"))])]
#[case("deploy,svc web", &[("deploy", Some("web")), ("svc", Some("web"))])]
#[case("deploy/web svc/db", &[("deploy", Some("web")), ("svc", Some("db"))])]
fn several_kinds_and_names_are_parsed(#[case] line: &str, #[case] expected: &[(&str, Option<&str>)]) {
    let all = parse(line).unwrap().parse_arguments().unwrap();
    let all: Vec<(&str, Option<&str>)> =
        all.iter().map(|object| (object.kind.as_str(), object.name.as_deref())).collect();
    assert_eq!(all, expected);
}

#[rstest::rstest]
#[case("pods --cluster m1 --clusters m2", "cannot be used with")]
#[case("pods web -l app=web", "cannot be used with")]
#[case("pods -s karmada -C m1", "-s karmada reads the control plane only")]
#[case("pods -o xml", "invalid value 'xml' for '--output <FORMAT>': unable to match a printer")]
#[case("pod/web db", "invalid argument \"db\": expected KIND/NAME")]
#[case(",", "\",\" names no kind")]
#[case("pods,svc -w", "-w requires a single kind, or a single object")]
#[case("pods --output-watch-events", "requires --watch or --watch-only")]
#[case("pods --show-labels -o json", "--show-labels can only be used with table output")]
#[case("pods --sort-by .spec[", "error parsing jsonpath .spec[")]
#[case("pod/web -l app=web", "selectors cannot be used with the name of an object")]
#[case("pod/a/b", "invalid object name \"a/b\"")]
#[case("pod/", "invalid object name \"\"")]
#[case("pod web -A", "use -n")]
fn invalid_arguments_are_rejected(#[case] line: &str, #[case] expected: &str) {
    let error = parse(line).and_then(|args| args.parse_arguments().map_err(|error| error.to_string())).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn files_select_objects() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    let manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n---\n\
        apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
    std::fs::write(&file, manifest).unwrap();
    let parse_file = |more: &str| parse(&format!("-f {} {more}", file.display()));
    let requested_object = |kind: &str, namespace: Option<&str>| RequestedObject {
        kind: kind.to_owned(),
        name: Some("web".to_owned()),
        namespace: namespace.map(str::to_owned),
    };
    let all = parse_file("").unwrap().requested_objects().await.unwrap();
    assert_eq!(all, [requested_object("Deployment.v1.apps", Some("shop")), requested_object("Service.v1.", None)]);
    let error = parse_file("-n other").unwrap().requested_objects().await.unwrap_err().to_string();
    assert!(error.contains("\"shop\" does not match the namespace \"other\""), "{error}");
    assert!(
        parse_file("-A").unwrap().requested_objects().await.unwrap_err().to_string().contains("-A requires a KIND")
    );
    assert!(parse("pods -f x.yaml").unwrap_err().contains("cannot be used with"));
    assert!(parse("").unwrap_err().contains("<KIND>"));
    assert!(parse("--raw /version").is_ok());
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "shop"}})
}

fn table(rows: &[&str]) -> Value {
    let rows: Vec<Value> = rows.iter().map(|name| json!({"cells": [name, "1/1"], "object": pod(name)})).collect();
    json!({"kind": "Table", "columnDefinitions": [{"name": "Name"}, {"name": "Ready"}], "rows": rows})
}

fn printed(line: &str, parts: &[(&str, Value)], named: bool) -> String {
    let args = parse(line).unwrap();
    let kind = Kind { gvr: Gvr::new("", "v1", "pods"), kind: "Pod".to_owned(), namespaced: true };
    let (namespace, as_table) = (None, args.prints_table());
    let with_objects = args.sort_by.is_some();
    let request = GetRequest { kind, namespace, name: None, labels: None, fields: None, as_table, with_objects };
    let mut printer = Printer::new(&args, &request, jiff::Timestamp::UNIX_EPOCH);
    let response = |page: &Value| GetResponse { pages: vec![page.clone()], ..GetResponse::default() };
    let mut out = Vec::new();
    if as_table {
        parts.iter().for_each(|(cluster, page)| printer.add(Some(cluster), &response(page)));
        printer.flush(&mut out).unwrap();
    } else {
        let objects = parts.iter().flat_map(|(cluster, page)| response(page).objects(Some(cluster))).collect();
        printer.print_all(&mut out, objects, named).unwrap();
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn tables_have_one_header() {
    let parts = [("m1", table(&[])), ("m2", table(&["web", "db"])), ("m3", table(&["web"]))];
    let expected = "NAMESPACE   NAME   CLUSTER   READY\nshop        web    m2        1/1\n\
        shop        db     m2        1/1\nshop        web    m3        1/1\n";
    assert_eq!(printed("pods -A", &parts, false), expected);
    assert_eq!(printed("pods --no-headers", &parts[..2], false), "web   m2   1/1\ndb    m2   1/1\n");
}

#[test]
fn rows_and_objects_are_sorted() {
    let parts = [("m1", table(&["web-10", "web-2"])), ("m2", table(&["db"]))];
    let expected = "NAME     CLUSTER   READY\ndb       m2        1/1\nweb-2    m1        1/1\nweb-10   m1        1/1\n";
    assert_eq!(printed("pods --sort-by .metadata.name", &parts, false), expected);
    let parts = [("m1", pod("web")), ("m2", pod("db"))];
    let output = printed("pods --sort-by {.metadata.name} -o jsonpath={.items[*].metadata.name}", &parts, false);
    assert_eq!(output, "db web");
}

#[test]
fn labels_and_adoption_become_columns() {
    let mut table = table(&["web"]);
    table["rows"][0]["object"]["metadata"]["labels"] = json!({"app": "web"});
    let parts = [("m1", table)];
    let expected =
        "NAME   CLUSTER   READY   ADOPTION   APP   LABELS\nweb    m1        1/1     N          web   app=web\n";
    assert_eq!(printed("pods -o wide -L app --show-labels", &parts, false), expected);
}

#[test]
fn managed_fields_are_shown_on_request() {
    let mut pod = pod("web");
    pod["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
    let parts = [("m1", pod)];
    assert!(!printed("pod/web -o yaml", &parts, true).contains("managedFields"));
    assert!(printed("pod/web -o yaml --show-managed-fields", &parts, true).contains("manager: kubectl"));
}

#[test]
fn colours_are_for_terminals() {
    let parts = [("m1", table(&["web"]))];
    assert_eq!(printed("pods --color always --no-headers", &parts, false), "web   m1   1/1\n");
    let mut unready = table(&["web"]);
    unready["rows"][0]["cells"][1] = json!("0/1");
    assert_eq!(
        printed("pods --color always --no-headers", &[("m1", unready)], false),
        "web   m1   \u{1b}[33m0/1\u{1b}[0m\n"
    );
}

#[test]
fn objects_become_one_document() {
    let list =
        json!({"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "web", "namespace": "shop"}}]});
    assert_eq!(printed("pods -o name", &[("m1", list.clone())], false), "m1/shop/pods/web\n");
    let document: Value =
        serde_json::from_str(&printed("pods -o json", &[("m1", list.clone()), ("m2", list)], false)).unwrap();
    let clusters: Vec<&Value> = document["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"])
        .collect();
    assert_eq!((document["kind"].as_str(), clusters), (Some("List"), vec![&json!("m1"), &json!("m2")]));
    assert_eq!(printed("pods -o jsonpath={.items[*].metadata.name}", &[("m1", pod("web"))], false), "web");
    assert_eq!(printed("pod/web -o go-template={{.metadata.name}}", &[("m1", pod("web"))], true), "web");
    let columns =
        "pods -o custom-columns=A:.metadata.name,B:.metadata.annotations.resource\\.karmada\\.io/cached-from-cluster";
    assert_eq!(printed(columns, &[("m1", pod("web")), ("m2", pod("db"))], false), "A     B\nweb   m1\ndb    m2\n");
    assert_eq!(printed(&format!("{columns} --no-headers"), &[("m1", pod("web"))], false), "web   m1\n");
    let single_yaml = printed("pod/web -o yaml", &[("m1", pod("web"))], true);
    assert!(single_yaml.contains("kind: Pod\n") && single_yaml.contains("cached-from-cluster: m1\n"), "{single_yaml}");
}

#[rstest::rstest]
#[case::unserved_everywhere(Scope::All, false, None, "no cluster serves rollouts.argoproj.io")]
#[case::unserved_in_a_member(
    Scope::Named(vec!["m1".to_owned()]), true, None, "m1 does not serve rollouts.argoproj.io"
)]
#[case::unserved_in_the_control_plane(
    Scope::ControlPlane(Some(Vec::new())),
    true,
    None,
    "the control plane does not serve rollouts.argoproj.io"
)]
#[case::missing_everywhere(
    Scope::All,
    false,
    Some("web"),
    "no cluster has it: no such rollout; `crowsnest search 'name:=web'` finds the clusters that have it"
)]
#[case::missing_in_a_member(
    Scope::Named(vec!["m1".to_owned()]),
    true,
    Some("web"),
    "m1: no such rollout; `crowsnest search 'name:=web'` finds the clusters that have it"
)]
fn missing_objects_and_unserved_kinds_have_different_messages(
    #[case] scope: Scope,
    #[case] is_single_source: bool,
    #[case] object: Option<&str>,
    #[case] expected: &str,
) {
    // kube-apiserver has no status for a path that it does not serve.
    let status = match object {
        None => json!({"status": "Failure", "message": "404 page not found", "code": 404}),
        Some(name) => json!({"status": "Failure", "message": "no such rollout", "reason": "NotFound", "code": 404,
            "details": {"group": "argoproj.io", "kind": "rollouts", "name": name}}),
    };
    let status = Box::new(serde_json::from_value(status).unwrap());
    assert_eq!(explain_missing(&scope, is_single_source, "rollouts.argoproj.io", status), expected);
}
