//! The audit log of `crowsnest up`: requests to the control plane, to the servers behind it, and to members.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::{Value, json};

const POLICY: &str = include_str!("audit/policy.yaml");
const WEB: &str = include_str!("audit/web.yaml");
const POD: &str = include_str!("proxies/web.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const FLEET_PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
/// Value that the log must not contain.
const SECRET: &str = "hunter2-and-more";
const SECRET_BASE64: &str = "aHVudGVyMi1hbmQtbW9yZQ==";

#[test]
fn every_request_is_logged_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let policy = dir.path().join("policy.yaml");
    fs::write(&policy, POLICY)?;
    let file = policy.display().to_string();
    let fleet = Fleet::start(&data, &["--members", "member1,member2", "--audit-policy-file", &file])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let log = Log { path: data.join("audit/audit.log") };
    check_control_plane_requests(&kubectl, &log)?;
    check_refused_requests(&kubectl, &log)?;
    check_secrets(&kubectl, &log)?;
    check_forwarded_requests(&kubectl, &log)?;
    check_responding_clusters(&fleet, &kubectl, &log)?;
    ensure!(fleet.stop()?.success());

    let text = fs::read_to_string(&log.path)?;
    ensure!(!text.contains(SECRET) && !text.contains(SECRET_BASE64), "a secret's value is in the log");
    let events = log.events()?;
    let mut stages = BTreeSet::new();
    for event in &events {
        let is_first = stages.insert((event["auditID"].as_str(), event["stage"].as_str()));
        ensure!(is_first, "a stage of a request was logged twice: {event:#}");
        // Requests of the server's own components are not logged.
        ensure!(event["sourceIPs"].as_array().is_some_and(|ips| !ips.is_empty()), "{event:#}");
    }
    Ok(())
}

/// The audit log file.
struct Log {
    path: std::path::PathBuf,
}

impl Log {
    /// Complete lines of the log.
    fn events(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(&self.path)?;
        let complete = text.rsplit_once('\n').map(|(complete, _)| complete).unwrap_or_default();
        complete.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }

    /// Waits until an event satisfies the predicate; returns the last one.
    fn wait_for_event(&self, what: &str, predicate: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut found = None;
        wait_for(what, || {
            found = self.events()?.into_iter().rfind(&predicate);
            Ok(found.is_some())
        })
        .with_context(|| last_lines(&self.path))?;
        found.context("no event was found")
    }

    /// Waits for an event of a verb on a named object or its subresource; returns the last one.
    fn wait_for_event_on(&self, verb: &str, resource: &str, name: &str) -> Result<Value> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.wait_for_event(&format!("{verb} {resource} {name}"), |event| {
            let reference = &event["objectRef"];
            let sub = reference["subresource"].as_str().unwrap_or_default();
            event["verb"] == verb
                && reference["resource"] == resource
                && reference["name"] == name
                && sub == subresource
        })
    }
}

fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

fn check_control_plane_requests(kubectl: &Kubectl, log: &Log) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], WEB)?;
    let created = log.wait_for_event_on("create", "deployments", "web")?;
    ensure!(created["level"] == "RequestResponse" && created["stage"] == "ResponseComplete", "{created:#}");
    ensure!(created["user"]["username"] == "system:admin" && created["responseStatus"]["code"] == 201, "{created:#}");
    ensure!(created["sourceIPs"] == json!(["127.0.0.1"]), "{created:#}");
    ensure!(created["userAgent"].as_str().is_some_and(|agent| agent.starts_with("kubectl")), "{created:#}");
    let reference = &created["objectRef"];
    ensure!(
        reference["apiGroup"] == "apps" && reference["apiVersion"] == "v1" && reference["namespace"] == "default",
        "{created:#}"
    );
    let (request, response) = (&created["requestObject"], &created["responseObject"]);
    ensure!(
        request["kind"] == "Deployment" && request["spec"]["selector"]["matchLabels"]["app"] == "web",
        "{created:#}"
    );
    ensure!(response["kind"] == "Deployment" && response["metadata"]["uid"] == reference["uid"], "{created:#}");
    ensure!(response["metadata"].get("managedFields").is_none(), "{created:#}");
    ensure!(created["annotations"]["authorization.k8s.io/decision"] == "allow", "{created:#}");

    kubectl.run_ok(&["patch", "deployment", "web", "--type=json", "-p", PATCH], "")?;
    let patched = log.wait_for_event_on("patch", "deployments", "web")?;
    ensure!(patched["requestObject"] == serde_json::from_str::<Value>(PATCH)?, "{patched:#}");
    let mut watch = kubectl.stream(&["get", "deployments", "--watch", "-o", "name"])?;
    watch.expect("deployment.apps/web")?;
    let started =
        log.wait_for_event("a watch", |event| event["verb"] == "watch" && event["stage"] == "ResponseStarted")?;
    drop(watch);
    let ended = log.wait_for_event("the end of the watch", |event| {
        event["auditID"] == started["auditID"] && event["stage"] == "ResponseComplete"
    })?;
    ensure!(ended.get("responseObject").is_none(), "{ended:#}");
    Ok(())
}

const PATCH: &str = r#"[{"op":"replace","path":"/spec/replicas","value":2}]"#;

fn check_refused_requests(kubectl: &Kubectl, log: &Log) -> Result<()> {
    let alice = kubectl.with_flags(&["--as", "alice"]);
    alice.expect_output(&["delete", "deployment", "web"], "", 1, "forbidden")?;
    let refused = log.wait_for_event_on("delete", "deployments", "web")?;
    ensure!(refused["user"]["username"] == "system:admin", "{refused:#}");
    ensure!(refused["impersonatedUser"]["username"] == "alice", "{refused:#}");
    ensure!(refused["annotations"]["authorization.k8s.io/decision"] == "forbid", "{refused:#}");
    let status = &refused["responseStatus"];
    ensure!(status["code"] == 403 && status["reason"] == "Forbidden" && status["status"] == "Failure", "{refused:#}");

    let unauthenticated = kubectl.with_token("made-up")?;
    unauthenticated.expect_output(&["get", "--raw", "/api/v1/nodes?as=nobody"], "", 1, "")?;
    let unauthorized = log.wait_for_event("the request with an invalid token", |event| {
        event["requestURI"] == "/api/v1/nodes?as=nobody"
    })?;
    ensure!(unauthorized["verb"] == "list", "{unauthorized:#}");
    Ok(())
}

fn check_secrets(kubectl: &Kubectl, log: &Log) -> Result<()> {
    kubectl.run_ok(&["create", "secret", "generic", "quiet", &format!("--from-literal=password={SECRET}")], "")?;
    kubectl.run_ok(&["get", "secret", "quiet", "-o", "yaml"], "")?;
    kubectl.run_ok(&["create", "configmap", "quiet", &format!("--from-literal=password={SECRET}")], "")?;
    kubectl.run_ok(&["create", "serviceaccount", "robot"], "")?;
    let token = kubectl.run_ok(&["create", "token", "robot"], "")?;
    for (verb, resource, name) in [
        ("create", "secrets", "quiet"),
        ("get", "secrets", "quiet"),
        ("create", "configmaps", "quiet"),
        ("create", "serviceaccounts/token", "robot"),
    ] {
        let event = log.wait_for_event_on(verb, resource, name)?;
        ensure!(event["level"] == "Metadata", "{event:#}");
        ensure!(event.get("requestObject").is_none() && event.get("responseObject").is_none(), "{event:#}");
    }
    ensure!(!fs::read_to_string(&log.path)?.contains(token.trim()), "a token is in the log");
    Ok(())
}

/// A request to an aggregated API is processed by two servers, each of which knows only a part of its audit event. The
/// request is logged once.
fn check_forwarded_requests(kubectl: &Kubectl, log: &Log) -> Result<()> {
    let root = kubectl.with_flags(&["--as", "root", "--as-group", "system:masters"]);
    root.run_ok(&["label", "cluster", "member1", "tier=gold"], "")?;
    let labelled = log.wait_for_event_on("patch", "clusters", "member1")?;
    ensure!(labelled["user"]["username"] == "system:admin", "{labelled:#}");
    ensure!(labelled["impersonatedUser"]["username"] == "root", "{labelled:#}");
    ensure!(labelled["requestObject"]["metadata"]["labels"]["tier"] == "gold", "{labelled:#}");
    ensure!(labelled["responseObject"]["apiVersion"] == "cluster.karmada.io/v1alpha1", "{labelled:#}");
    ensure!(labelled["sourceIPs"] == json!(["127.0.0.1"]), "{labelled:#}");
    // A rejection by the aggregated server is recorded with its message.
    let unknown = format!("{CLUSTERS}/nowhere/proxy/api/v1/pods");
    kubectl.expect_output(&["get", "--raw", &unknown], "", 1, "not found")?;
    let refused = log.wait_for_event("an unknown cluster", |event| event["requestURI"] == unknown.as_str())?;
    ensure!(refused["annotations"]["crowsnest.io/cluster"] == "nowhere", "{refused:#}");
    ensure!(refused["responseStatus"]["code"] == 404, "{refused:#}");
    // Invalid values of annotations are refused, like those of any other field.
    let invalid = ["annotate", "--overwrite", "cluster", "member1", "proxy.crowsnest.io/exec=off"];
    let output = kubectl.expect_output(
        &invalid,
        "",
        1,
        "metadata.annotations[proxy.crowsnest.io/exec]: Unsupported value: \"off\"",
    )?;
    ensure!(output.err.contains("supported values: \"disabled\", \"enabled\""), "{output:?}");
    let refused = log.wait_for_event("an invalid annotation", |event| {
        event["verb"] == "patch" && event["responseStatus"]["reason"] == "Invalid"
    })?;
    ensure!(refused["objectRef"]["name"] == "member1", "{refused:#}");
    // Response bodies of members are not logged.
    let nodes = format!("{CLUSTERS}/member1/proxy/api/v1/nodes?limit=1");
    kubectl.run_ok(&["get", "--raw", &nodes], "")?;
    let proxied = log.wait_for_event("a member's nodes", |event| event["requestURI"] == nodes.as_str())?;
    ensure!(proxied["annotations"]["crowsnest.io/cluster"] == "member1", "{proxied:#}");
    ensure!(proxied.get("responseObject").is_none(), "{proxied:#}");
    Ok(())
}

fn check_responding_clusters(fleet: &Fleet, kubectl: &Kubectl, log: &Log) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member2"));
    member.run_ok(&["apply", "-f", "-"], &POD.replace("NAME", "lonely"))?;
    let via_fleet = kubectl.with_flags(&["--server", &format!("{}{FLEET_PROXY}", fleet.server()?)]);
    via_fleet.run_until(&["get", "pod", "lonely", "-o", "name"], |out| out.contains("lonely"))?;
    let pods = format!("{FLEET_PROXY}/api/v1/namespaces/default/pods");
    let read = log.wait_for_event("the read of a pod", |event| {
        event["requestURI"] == format!("{pods}/lonely") && event["responseStatus"]["code"] == 200
    })?;
    ensure!(read["annotations"]["crowsnest.io/cluster"] == "member2", "{read:#}");
    kubectl.run_ok(&["get", "--raw", &pods], "")?;
    let listed = log.wait_for_event("a list", |event| event["requestURI"] == pods.as_str())?;
    let annotations = &listed["annotations"];
    ensure!(
        annotations["crowsnest.io/clusters"] == "member1,member2" && annotations["crowsnest.io/cluster-count"] == "2",
        "{listed:#}"
    );
    // The member `*` stands for all members.
    let all_members = format!("{CLUSTERS}/*/proxy/api/v1/namespaces/default/pods");
    kubectl.run_ok(&["get", "--raw", &all_members], "")?;
    let entry = log.wait_for_event("the request to all members", |event| event["objectRef"]["name"] == "*")?;
    let annotations = &entry["annotations"];
    ensure!(annotations["crowsnest.io/cluster"] == "*", "{entry:#}");
    ensure!(annotations["crowsnest.io/clusters"] == "member1,member2", "{entry:#}");
    Ok(())
}
