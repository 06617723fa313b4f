//! A FederatedResourceQuota under 64 scale-ups at once: whoever looks never sees bindings that use more than it allows, what fits
//! is let through to the last, and what is recorded is what bindings use - also after a crash.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until};
use serde_json::{Value, json};

const NAMESPACE: &str = include_str!("quotas/namespace.yaml");
const WORKLOADS: usize = 64;
/// Thousandths of a CPU that a replica asks for, and that all may have.
const REPLICA: i64 = 10;
const LIMIT: i64 = 2000;
const WANTED: i64 = 5;

#[test]
fn a_quota_holds_whoever_scales_up_at_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["apply", "-f", "-"], NAMESPACE)?;
    kubectl.ok(&["create", "-f", "-"], &serde_json::to_string(&workloads())?)?;
    settles(&fleet, &kubectl, WORKLOADS as i64 * REPLICA)?;

    a_refused_template_says_so(&kubectl).with_context(|| fleet.log())?;

    // One scale-up needs 40m: as many as fit into the rest, and not one more.
    scale_all(&kubectl, WANTED)?;
    let fitting = (LIMIT - WORKLOADS as i64 * REPLICA) / ((WANTED - 1) * REPLICA);
    settles(&fleet, &kubectl, (WORKLOADS as i64 + fitting * (WANTED - 1)) * REPLICA)?;
    let refused = kubectl.ok(&["get", "rb", "-n", "shop", "-o", "json"], "")?;
    ensure!(refused.contains("exceeded for resource cpu: requested sum"), "nobody is told why: {refused}");

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

/// More than all may have together is asked for in a template: it waits, its binding and its events say why, and when it asks
/// for less again all is well.
fn a_refused_template_says_so(kubectl: &Kubectl) -> Result<()> {
    let ask = |cpu: &str| {
        let requests = format!("--requests=cpu={cpu}");
        kubectl.ok(&["set", "resources", "deployment/web-0", "-n", "shop", &requests], "").map(drop)
    };
    let said = "FederatedResourceQuota(shop/cpus) exceeded for resource cpu: requested sum 2630m, limit 2.";
    ask(&format!("{LIMIT}m"))?;
    let scheduled = r#"jsonpath={.status.conditions[?(@.type=="Scheduled")]}"#;
    let binding = ["get", "rb", "web-0-deployment", "-n", "shop", "-o", scheduled];
    kubectl.until(&binding, |out| out.contains("QuotaExceeded") && out.contains(said))?;
    for kind in ["Deployment", "ResourceBinding"] {
        let of = format!("involvedObject.kind={kind},reason=SyncWorkFailed");
        let events = ["get", "events", "-n", "shop", "--field-selector", &of, "-o", "jsonpath={..message}"];
        kubectl.until(&events, |out| out.contains("waiting for quota: ") && out.contains(said))?;
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

/// All at once, by as many kubectls as there are workers of a deployment pipeline.
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

/// Waits until bindings use this much and the quota says so; no look may find more than is allowed.
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

/// What bindings use together, read in one answer.
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
