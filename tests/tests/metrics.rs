//! Metrics of all members at the control plane's address: kubectl top, requests of autoscalers, discovery, errors,
//! unresponsive members; and a control plane with another metrics adapter.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::{Value, json};

const PODS: &str = include_str!("metrics/pods.yaml");
const FOREIGN: &str = include_str!("metrics/foreign.yaml");
const USAGE: &str = "/apis/metrics.k8s.io/v1beta1";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
const FLEET_PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
const NODES: [&str; 6] =
    ["member1-node-1", "member1-node-2", "member1-node-3", "member2-node-1", "member2-node-2", "member2-node-3"];

fn start(data: &Path, extra_args: &[&str]) -> Result<Fleet> {
    Fleet::start(data, &[&["--members", "2"], extra_args].concat())
}

fn get_raw(kubectl: &Kubectl, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&kubectl.run_ok(&["get", "--raw", path], "")?)?)
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

/// Creates pods in both members and waits until they run.
fn create_pods(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for member in ["member1", "member2"] {
        let member_kubectl = kubectl.with_kubeconfig(&fleet.kubeconfig(member));
        member_kubectl.run_ok(&["apply", "-f", "-"], &PODS.replace("MEMBER", member))?;
        let gauge = if member == "member1" { "10" } else { "32" };
        member_kubectl
            .run_ok(&["annotate", "namespace", "default", &format!("metrics.sim.crowsnest.io/gauge={gauge}")], "")?;
        member_kubectl.run_until(&["get", "pods"], |out| out.matches("Running").count() == 2)?;
    }
    kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"], "").map(drop)
}

#[test]
fn the_control_plane_serves_metrics_of_all_members() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = start(&data, &[])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    create_pods(&fleet, &kubectl)?;
    check_usage(&kubectl).context("usage")?;
    check_single_objects(&kubectl).context("single objects")?;
    check_custom_metrics(&kubectl).context("custom metrics")?;
    check_discovery(&kubectl).context("discovery")?;
    check_permissions(&kubectl).context("permissions")?;
    check_unavailable_members(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    check_another_adapter(&data).context("another adapter")
}

fn check_usage(kubectl: &Kubectl) -> Result<()> {
    let top = kubectl.run_until(&["top", "pods"], |out| out.matches("same ").count() == 2)?;
    ensure!(top.contains("only-member1") && top.contains("only-member2") && top.contains("250m"), "{top}");
    ensure!(!top.contains("waits-in"), "{top}");
    let nodes = kubectl.run_ok(&["top", "nodes"], "")?;
    ensure!(nodes.contains("member1-node-1") && nodes.contains("member2-node-1"), "{nodes}");
    // The fleet-wide proxy leaves usage to the control plane.
    let fleet_nodes = get_raw(kubectl, &format!("{FLEET_PROXY}{USAGE}/nodes"))?;
    ensure!(names(&fleet_nodes) == NODES, "{fleet_nodes}");

    let list = get_raw(kubectl, &format!("{USAGE}/namespaces/default/pods?labelSelector=app%3Dweb"))?;
    ensure!(list["kind"] == "PodMetricsList" && list["apiVersion"] == "metrics.k8s.io/v1beta1", "{list}");
    ensure!(names(&list) == ["only-member1", "only-member2", "same", "same"], "{list}");
    let clusters: Vec<&Value> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| &item["metadata"]["annotations"]["resource.karmada.io/query-from-cluster"])
        .collect();
    ensure!(clusters == ["member1", "member2", "member1", "member2"], "{list}");
    ensure!(list["items"][0]["containers"][0]["usage"]["cpu"] == "250m", "{list}");
    let selected = get_raw(kubectl, &format!("{USAGE}/pods?fieldSelector=metadata.name%3Donly-member2"))?;
    ensure!(names(&selected) == ["only-member2"], "{selected}");
    let path = format!("{USAGE}/pods?fieldSelector=spec.nodeName%3Dx");
    kubectl.expect_output(&["get", "--raw", &path], "", 1, "\"spec.nodeName\" is not a known field selector")?;

    let table = kubectl.run_ok(&["get", "pods.v1beta1.metrics.k8s.io", "-o", "wide"], "")?;
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(columns == ["NAME", "CPU", "MEMORY", "WINDOW", "CLUSTER"], "{table}");
    ensure!(table.contains("64Mi") && table.contains("member2"), "{table}");
    Ok(())
}

fn check_single_objects(kubectl: &Kubectl) -> Result<()> {
    let pods = format!("{USAGE}/namespaces/default/pods");
    let one = get_raw(kubectl, &format!("{pods}/only-member2"))?;
    ensure!(one["kind"] == "PodMetrics" && one["metadata"]["name"] == "only-member2", "{one}");
    ensure!(one["metadata"]["annotations"]["resource.karmada.io/query-from-cluster"] == "member2", "{one}");
    let refusals = [
        ("nosuch", "pods \"nosuch\" not found"),
        ("same", "Operation cannot be fulfilled on pods \"same\": the pod(same) found in more than one clusters"),
        ("waits-in-member1", "podmetrics.metrics.k8s.io \"default/waits-in-member1\" not found"),
    ];
    for (name, text) in refusals {
        kubectl.expect_output(&["get", "--raw", &format!("{pods}/{name}")], "", 1, text)?;
    }
    kubectl.expect_output(&["get", "--raw", &format!("{USAGE}/nodes/nosuch")], "", 1, "nodes \"nosuch\" not found")?;
    Ok(())
}

/// Object and value of each item.
fn metric_values(list: &Value) -> Vec<(&str, &str)> {
    let items = list["items"].as_array().into_iter().flatten();
    items.filter_map(|item| Some((item["describedObject"]["name"].as_str()?, item["value"].as_str()?))).collect()
}

fn check_custom_metrics(kubectl: &Kubectl) -> Result<()> {
    let get = |path: &str| get_raw(kubectl, &format!("{CUSTOM}/{path}"));
    let all = get("v1beta2/namespaces/default/pods/*/qps?labelSelector=app%3Dweb")?;
    ensure!(all["kind"] == "MetricValueList" && all["apiVersion"] == "custom.metrics.k8s.io/v1beta2", "{all}");
    ensure!(metric_values(&all) == [("only-member1", "1500m"), ("only-member2", "1500m"), ("same", "4")], "{all}");
    let mut item = all["items"][0].clone();
    ensure!(item["timestamp"].take().is_string(), "{item}");
    let object = json!({"kind": "Pod", "namespace": "default", "name": "only-member1", "apiVersion": "/v1"});
    ensure!(
        item == json!({"describedObject": object, "metric": {"name": "qps"}, "timestamp": null, "value": "1500m"}),
        "{item}"
    );
    let old = get("v1beta1/namespaces/default/pods/*/qps?metricLabelSelector=verb%3DPOST")?;
    ensure!(metric_values(&old) == [("same", "4")] && old["apiVersion"] == "custom.metrics.k8s.io/v1beta1", "{old}");
    ensure!(old["items"][0]["metricName"] == "qps" && old["items"][0].get("metric").is_none(), "{old}");
    ensure!(old["items"][0]["selector"]["matchLabels"]["verb"] == "POST", "{old}");

    ensure!(metric_values(&get("v1beta2/namespaces/default/deployments.apps/queue/lag")?) == [("queue", "42")]);
    ensure!(metric_values(&get("v1beta1/namespaces/default/metrics/gauge")?) == [("default", "42")]);
    ensure!(metric_values(&get("v1beta2/namespaces/default/pods/only-member2/qps")?) == [("only-member2", "1500m")]);
    let refusals = [
        ("v1beta2/namespaces/default/pods/*/nosuch", "the server could not find the metric nosuch for pods"),
        ("v1beta1/namespaces/default/deployments.apps/queue/qps", "could not find the metric qps for deployments.apps"),
        ("v1beta1/namespaces/default/metrics/qps", "could not find the metric qps for namespaces"),
        ("v1beta2/namespaces/default/pods/*/qps?labelSelector=a%20b", "unable to parse requirement"),
    ];
    for (path, text) in refusals {
        kubectl.expect_output(&["get", "--raw", &format!("{CUSTOM}/{path}")], "", 1, text)?;
    }
    Ok(())
}

fn check_discovery(kubectl: &Kubectl) -> Result<()> {
    let usage = get_raw(kubectl, USAGE)?;
    let expected = json!([
        {"name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics", "verbs": ["get", "list"]},
        {"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics", "verbs": ["get", "list"]},
    ]);
    ensure!(usage["resources"] == expected, "{usage}");
    let group = get_raw(kubectl, CUSTOM)?;
    ensure!(
        group["preferredVersion"]["version"] == "v1beta2" && group["versions"][1]["version"] == "v1beta1",
        "{group}"
    );
    // Discovery of members is cached for 30 s, and the first request found nothing.
    for version in ["v1beta1", "v1beta2"] {
        let list = &["get", "--raw", &format!("{CUSTOM}/{version}")];
        let metrics = ["deployments.apps/lag", "namespaces/gauge", "pods/qps"];
        kubectl.run_until(list, |out| metrics.iter().all(|metric| out.contains(&format!("\"{metric}\""))))?;
    }
    let services = [
        "get",
        "apiservices",
        "v1beta1.metrics.k8s.io",
        "v1beta2.custom.metrics.k8s.io",
        "v1beta1.custom.metrics.k8s.io",
    ];
    let services = kubectl.run_ok(&services, "")?;
    ensure!(services.matches("karmada-system/crowsnest   True").count() == 3, "{services}");
    // Names without a group still refer to the core group.
    kubectl.expect_output(&["get", "pods"], "", 0, "No resources found")?;
    kubectl.expect_output(&["explain", "podmetrics"], "", 0, "PodMetrics")?;
    Ok(())
}

fn check_permissions(kubectl: &Kubectl) -> Result<()> {
    let user = kubectl.with_flags(&["--as", "nobody"]);
    let pods = ["get", "--raw", &format!("{USAGE}/namespaces/default/pods")];
    user.expect_output(
        &pods,
        "",
        1,
        "cannot list resource \"pods\" in API group \"metrics.k8s.io\" in the namespace \"default\"",
    )?;
    let values = ["get", "--raw", &format!("{CUSTOM}/v1beta2/namespaces/default/pods/*/qps")];
    user.expect_output(&values, "", 1, "cannot get resource \"pods/qps\" in API group \"custom.metrics.k8s.io\"")?;
    kubectl.run_ok(&["create", "role", "metrics", "--verb=get,list", "--resource=pods.metrics.k8s.io"], "")?;
    kubectl.run_ok(&["create", "rolebinding", "metrics", "--role=metrics", "--user=nobody"], "")?;
    user.run_until(&pods, |out| out.contains("only-member1"))?;
    user.expect_output(&values, "", 1, "forbidden")?;
    Ok(())
}

/// Members that fail are named, and metrics of the others are returned.
fn check_unavailable_members(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let sim = |args: &[&str]| -> Result<()> {
        let output = fleet.crowsnest(&[&["sim", "member2"], args].concat())?;
        ensure!(output.code == Some(0), "{output:?}");
        Ok(())
    };
    let pods = ["get", "--raw", &format!("{USAGE}/namespaces/default/pods?labelSelector=app%3Dweb")];
    let values = ["get", "--raw", &format!("{CUSTOM}/v1beta2/namespaces/default/pods/*/qps")];
    sim(&["delay", "60000"])?;
    let output = kubectl.expect_output(&pods, "", 0, "cluster member2")?;
    ensure!(output.err.contains("no response within 10 s") || output.err.contains("is not ready"), "{output:?}");
    sim(&["stop"])?;
    for args in [&pods, &values] {
        let output = kubectl.expect_output(args, "", 0, "only-member1")?;
        ensure!(output.err.contains("Warning: ") && output.err.contains("cluster member2"), "{output:?}");
        ensure!(!output.out.contains("only-member2"), "{output:?}");
    }
    let unavailable_pod = format!("{USAGE}/namespaces/default/pods/only-member2");
    kubectl.expect_output(&["get", "--raw", &unavailable_pod], "", 1, "pods \"only-member2\" not found")?;
    // The object is in two members, one of which responds.
    kubectl.expect_output(&["get", "--raw", &format!("{USAGE}/namespaces/default/pods/same")], "", 0, "\"member1\"")?;
    sim(&["delay", "0"])?;
    sim(&["start"])?;
    kubectl.run_until(&pods, |out| out.contains("only-member2")).map(drop)
}

/// Restarts the fleet of a data directory whose control plane has served metrics: another adapter is kept.
fn check_another_adapter(data: &Path) -> Result<()> {
    let registered = ["get", "apiservices", "-o", "name"];
    // When disabled, the registrations are removed, and the fleet-wide proxy serves usage itself.
    let fleet = start(data, &["--metrics-adapter=false"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let services = kubectl.run_ok(&registered, "")?;
    ensure!(!services.contains("metrics.k8s.io"), "{services}");
    kubectl.expect_output(
        &["get", "--raw", &format!("{USAGE}/nodes")],
        "",
        1,
        "the server could not find the requested resource",
    )?;
    let everywhere = kubectl.with_flags(&["--server", &format!("{}{FLEET_PROXY}", fleet.server()?)]);
    let nodes = everywhere
        .run_until(&["top", "nodes"], |out| out.contains("member1-node-1") && out.contains("member2-node-1"))?;
    ensure!(nodes.contains("CPU(cores)"), "{nodes}");
    let list = get_raw(&kubectl, &format!("{FLEET_PROXY}{USAGE}/nodes"))?;
    ensure!(names(&list) == NODES, "{list}");
    kubectl.run_ok(&["apply", "-f", "-"], FOREIGN)?;
    ensure!(fleet.stop()?.success());

    // Another adapter's registration is kept; the other group has none.
    let fleet = start(data, &[])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let service = ["get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "jsonpath={.spec.service.name}"];
    kubectl.expect_output(&service, "", 0, "karmada-metrics-adapter")?;
    kubectl.expect_output(&registered, "", 0, "v1beta2.custom.metrics.k8s.io")?;
    let log = std::fs::read_to_string(data.with_extension("log"))?;
    ensure!(log.contains("the group is served by another server and is not registered"), "{log}");
    wait_for("the members' Clusters to exist", || Ok(kubectl.run_ok(&["get", "clusters"], "")?.contains("member2")))?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
