//! Headers of proxied requests, local APIServices, and discovery of remote groups.

use std::collections::BTreeSet;

use crowsnest_apimachinery::user::UserInfo;
use http::HeaderMap;
use serde_json::json;

use super::service::RemoteService;
use super::{discovery, local, proxy};

#[test]
fn client_identity_headers_are_replaced() {
    let mut headers = HeaderMap::new();
    headers.insert("x-remote-user", "root".parse().unwrap());
    headers.insert("authorization", "Bearer x".parse().unwrap());
    headers.insert("impersonate-user", "root".parse().unwrap());
    headers.insert("connection", "x-remote-user, x-remote-group".parse().unwrap());
    headers.insert("accept", "application/json".parse().unwrap());
    let extra = [("example.com/Scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into();
    let user = UserInfo { name: "jane".into(), uid: "7".into(), groups: vec!["g".into(), "h".into()], extra };
    let headers = proxy::forwarded_headers(&user, &headers).unwrap();
    let mut lines: Vec<String> = headers.iter().map(|(k, v)| format!("{k}: {}", v.to_str().unwrap())).collect();
    lines.sort();
    insta::assert_snapshot!(lines.join("\n"), @r"
    accept: application/json
    x-remote-extra-example.com%2fscopes: a
    x-remote-extra-example.com%2fscopes: b
    x-remote-group: g
    x-remote-group: h
    x-remote-uid: 7
    x-remote-user: jane
    ");
}

#[test]
fn local_services_follow_the_catalog() {
    let crd_groups = BTreeSet::from(["example.com".to_owned()]);
    let served = [("", "v1"), ("apps", "v1"), ("example.com", "v1"), ("apiregistration.k8s.io", "v1")];
    let desired = local::desired_services(served.into_iter(), &crd_groups);
    let existing = [
        desired["v1."].clone(),
        json!({"metadata": {"name": "v1.gone.example.com", "labels": {local::AUTOMANAGED_LABEL: "true"}}}),
        json!({"metadata": {"name": "v1.mine.example.com"}}),
    ];
    let plan = local::plan(&desired, &existing, true);
    assert_eq!(plan.delete, ["v1.gone.example.com"]);
    insta::assert_json_snapshot!(plan.create);
}

#[test]
fn changed_services_of_crds_are_restored() {
    let crd_groups = BTreeSet::from(["example.com".to_owned(), "b.example.com".to_owned()]);
    let served = [("apps", "v1"), ("example.com", "v1"), ("b.example.com", "v1")];
    let desired = local::desired_services(served.into_iter(), &crd_groups);
    let mut changed = desired["v1.example.com"].clone();
    changed["spec"]["groupPriorityMinimum"] = json!(5);
    let plan = local::plan(&desired, &[changed], false);
    let names = |all: &[serde_json::Value]| -> Vec<String> {
        all.iter().filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(&plan.create), ["v1.b.example.com"], "APIServices of built-in groups are created at start only");
    assert_eq!(names(&plan.restore), ["v1.example.com"]);
    assert_eq!(plan.restore[0]["spec"], desired["v1.example.com"]["spec"]);
}

#[test]
fn discovered_groups_are_ordered_by_priority() {
    let remote = |group: &str, version: &str, priority: i64| {
        let service = json!({"metadata": {"name": format!("{version}.{group}")}, "spec": {"group": group, "version": version,
            "groupPriorityMinimum": priority, "versionPriority": 10, "service": {"name": "s", "namespace": "n"}}});
        RemoteService::from_api_service(&service).unwrap()
    };
    let (a, b, c) = (remote("a.io", "v1beta1", 10), remote("a.io", "v1", 10), remote("b.io", "v1", 20));
    let list = json!({"resources": [
        {"name": "bricks", "singularName": "brick", "namespaced": true, "kind": "Brick", "verbs": ["get"]},
        {"name": "bricks/status", "namespaced": true, "kind": "Brick", "verbs": ["patch"]}]});
    let entry = |r: &RemoteService| discovery::version_entry(&r.version, &list);
    let groups = discovery::rank_groups([(&a, entry(&a)), (&b, entry(&b)), (&c, entry(&c))].into_iter());
    assert_eq!(groups.iter().map(|ranked| ranked.priority).collect::<Vec<_>>(), [20, 10]);
    insta::assert_json_snapshot!(groups.into_iter().map(|ranked| ranked.group).collect::<Vec<_>>());
}

#[test]
fn subresources_of_other_groups_are_listed() {
    let list = json!({"resources": [
        {"name": "pods/qps", "singularName": "", "namespaced": true, "kind": "MetricValueList", "verbs": ["get"]},
        {"name": "pods/load", "singularName": "", "namespaced": true, "kind": "MetricValueList", "verbs": ["get"]},
        {"name": "nodes/load", "singularName": "", "namespaced": false, "kind": "MetricValueList", "verbs": ["get"]}]});
    let entry = discovery::version_entry("v1beta2", &list);
    let resources: Vec<String> = entry["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| {
            let subresources =
                resource["subresources"].as_array().unwrap().iter().map(|sub| sub["subresource"].as_str().unwrap());
            let (name, scope) = (resource["resource"].as_str().unwrap(), resource["scope"].as_str().unwrap());
            format!("{name} {scope}: {}", subresources.collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert_eq!(resources, ["pods Namespaced: qps load", "nodes Cluster: load"]);
}
