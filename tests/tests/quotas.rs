//! A FederatedResourceQuota with 64 concurrent scale-ups: the bindings never exceed it, all that fit
//! succeed, and the status equals the bindings' usage, also after a crash.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until};
use serde_json::{Value, json};

const NAMESPACE: &str = include_str!("quotas/namespace.yaml");
const WORKLOADS: usize = 64;
/// Millicores requested by a replica, and the quota.
const REPLICA: i64 = 10;
const LIMIT: i64 = 2000;
const WANTED: i64 = 5;

#[test]
fn concurrent_scale_ups_do_not_exceed_a_quota() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["apply", "-f", "-"], NAMESPACE)?;
    kubectl.ok(&["create", "-f", "-"], &serde_json::to_string(&workloads())?)?;
    settles(&fleet, &kubectl, WORKLOADS as i64 * REPLICA)?;

    a_refused_template_waits(&kubectl).with_context(|| fleet.log())?;

    // A scale-up needs 40m: exactly as many as fit succeed.
    scale_all(&kubectl, WANTED)?;
    let fitting = (LIMIT - WORKLOADS as i64 * REPLICA) / ((WANTED - 1) * REPLICA);
    settles(&fleet, &kubectl, (WORKLOADS as i64 + fitting * (WANTED - 1)) * REPLICA)?;
    let refused = kubectl.ok(&["get", "rb", "-n", "shop", "-o", "json"], "")?;
    ensure!(refused.contains("exceeded for resource cpu: requested sum"), "no reason is reported: {refused}");

    fleet.kill()?;
    let fleet = Fleet::start(&data, &["--profile", "conformance"])?;
    let kubectl = fleet.any_kubectl()?.context("there was a kubectl")?;
    settles(&fleet, &kubectl, (WORKLOADS as i64 + fitting * (WANTED - 1)) * REPLICA)?;
    scale_all(&kubectl, 1)?;
    settles(&fleet, &kubectl, WORKLOADS as i64 * REPLICA)?;
    let half: Vec<String> = (0..WORKLOADS / 2).map(|index| format!("deployment/{}", name(index))).collect();
    let mut args = vec!["delete", "-n", "shop"];
    args.extend(half.iter().map(String::as_str));
    kubectl.ok(&args, "")?;
    settles(&fleet, &kubectl, WORKLOADS as i64 / 2 * REPLICA)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A template that requests more than the quota waits, with the reason in its binding and events, and continues when it requests
/// less.
fn a_refused_template_waits(kubectl: &Kubectl) -> Result<()> {
    let ask = |cpu: &str| {
        let requests = format!("--requests=cpu={cpu}");
        kubectl.ok(&["set", "resources", "deployment/web-0", "-n", "shop", &requests], "").map(drop)
    };
    let message = "FederatedResourceQuota(shop/cpus) exceeded for resource cpu: requested sum 2630m, limit 2.";
    ask(&format!("{LIMIT}m"))?;
    let scheduled = r#"jsonpath={.status.conditions[?(@.type=="Scheduled")]}"#;
    let binding = ["get", "rb", "web-0-deployment", "-n", "shop", "-o", scheduled];
    kubectl.until(&binding, |out| out.contains("QuotaExceeded") && out.contains(message))?;
    for kind in ["Deployment", "ResourceBinding"] {
        let of = format!("involvedObject.kind={kind},reason=SyncWorkFailed");
        let events = ["get", "events", "-n", "shop", "--field-selector", &of, "-o", "jsonpath={..message}"];
        kubectl.until(&events, |out| out.contains("waiting for quota: ") && out.contains(message))?;
    }
    ask(&format!("{REPLICA}m"))?;
    kubectl.until(&binding, |out| out.contains("\"Success\"")).map(drop)
}

fn name(index: usize) -> String {
    format!("web-{index}")
}

fn workloads() -> Value {
    let workload = |index: usize| {
        let (name, cpu) = (name(index), format!("{REPLICA}m"));
        let container = json!({"name": "web", "image": "nginx:1.25", "resources": {"requests": {"cpu": cpu}}});
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
            },
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": (0..WORKLOADS).map(workload).collect::<Vec<_>>()})
}

/// All at once, with as many kubectls as a deployment pipeline has workers.
fn scale_all(kubectl: &Kubectl, replicas: i64) -> Result<()> {
    const PIPELINES: usize = 8;
    let replicas = format!("--replicas={replicas}");
    std::thread::scope(|scope| {
        let scale = |pipeline: usize| {
            let names: Vec<String> = (0..WORKLOADS).filter(|index| index % PIPELINES == pipeline).map(name).collect();
            let mut args = vec!["scale", "-n", "shop", "deployment", &replicas];
            args.extend(names.iter().map(String::as_str));
            kubectl.ok(&args, "").map(drop)
        };
        let pipelines: Vec<_> = (0..PIPELINES).map(|pipeline| scope.spawn(move || scale(pipeline))).collect();
        pipelines.into_iter().try_for_each(|pipeline| {
            pipeline.join().map_err(|_| anyhow::anyhow!("a kubectl could not be run")).and_then(|scaled| scaled)
        })
    })
}

/// Waits until bindings and status have this usage; no read may find more than the quota.
fn settles(fleet: &Fleet, kubectl: &Kubectl, expected: i64) -> Result<()> {
    let mut seen = (0, 0);
    let settled = until(&format!("bindings to use {expected}m"), || {
        let used = used(kubectl)?;
        ensure!(used <= LIMIT, "bindings use {used}m of {LIMIT}m");
        seen = (used, recorded(kubectl)?);
        Ok(seen == (expected, expected))
    });
    settled.with_context(|| format!("used and recorded: {seen:?}; {}", fleet.log()))
}

/// Total usage of the bindings, from one list.
fn used(kubectl: &Kubectl) -> Result<i64> {
    let bindings: Value = serde_json::from_str(&kubectl.ok(&["get", "rb", "-n", "shop", "-o", "json"], "")?)?;
    let items = bindings["items"].as_array().context("a list")?;
    let mut replicas: BTreeMap<&str, i64> = BTreeMap::new();
    for binding in items {
        let clusters = binding["spec"]["clusters"].as_array().into_iter().flatten();
        let sum = clusters.filter_map(|cluster| cluster["replicas"].as_i64()).sum();
        replicas.insert(binding["metadata"]["name"].as_str().unwrap_or_default(), sum);
    }
    Ok(replicas.values().sum::<i64>() * REPLICA)
}

fn recorded(kubectl: &Kubectl) -> Result<i64> {
    let path = ["get", "federatedresourcequotas", "cpus", "-n", "shop", "-o", "jsonpath={.status.overallUsed.cpu}"];
    let text = kubectl.ok(&path, "")?;
    match (text.strip_suffix('m'), text.as_str()) {
        (_, "") => Ok(0),
        (Some(milli), _) => Ok(milli.parse()?),
        (None, whole) => Ok(whole.parse::<i64>()? * 1000),
    }
}
