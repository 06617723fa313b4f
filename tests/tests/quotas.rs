//! 64 concurrent scale-ups under a FederatedResourceQuota: the bindings never exceed the quota, as many scale-ups as
//! fit succeed, and the quota's status equals the usage of the bindings, also after a crash.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::{Value, json};

const NAMESPACE: &str = include_str!("quotas/namespace.yaml");
const FLAGS: [&str; 4] = ["--members", "m1", "--feature-gates", "FederatedQuotaEnforcement=true"];
const WORKLOADS: usize = 64;
/// CPU request of a replica.
const REPLICA_MILLICORES: i64 = 10;
/// CPU limit of the quota.
const LIMIT_MILLICORES: i64 = 2000;
/// Replicas of each workload after the scale-up.
const SCALED_REPLICAS: i64 = 5;

#[test]
fn concurrent_scale_ups_do_not_exceed_a_quota() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &FLAGS)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["apply", "-f", "-"], NAMESPACE)?;
    kubectl.run_ok(&["create", "-f", "-"], &serde_json::to_string(&workloads())?)?;
    wait_for_usage(&fleet, &kubectl, WORKLOADS as i64 * REPLICA_MILLICORES)?;

    check_refused_template(&kubectl).with_context(|| fleet.log())?;

    // Each scale-up requests 40m more; as many as fit into the quota succeed.
    scale_all(&kubectl, SCALED_REPLICAS)?;
    let successful_scale_ups =
        (LIMIT_MILLICORES - WORKLOADS as i64 * REPLICA_MILLICORES) / ((SCALED_REPLICAS - 1) * REPLICA_MILLICORES);
    wait_for_usage(
        &fleet,
        &kubectl,
        (WORKLOADS as i64 + successful_scale_ups * (SCALED_REPLICAS - 1)) * REPLICA_MILLICORES,
    )?;
    let bindings = ["get", "rb", "-n", "shop", "-o", "json"];
    kubectl.run_until(&bindings, |out| out.contains("exceeded for resource cpu: requested sum"))?;

    fleet.kill()?;
    let fleet = Fleet::start(&data, &FLAGS)?;
    let kubectl = fleet.any_kubectl()?.context("no kubectl was found")?;
    wait_for_usage(
        &fleet,
        &kubectl,
        (WORKLOADS as i64 + successful_scale_ups * (SCALED_REPLICAS - 1)) * REPLICA_MILLICORES,
    )?;
    scale_all(&kubectl, 1)?;
    wait_for_usage(&fleet, &kubectl, WORKLOADS as i64 * REPLICA_MILLICORES)?;
    let half: Vec<String> = (0..WORKLOADS / 2).map(|index| format!("deployment/{}", name(index))).collect();
    let mut args = vec!["delete", "-n", "shop"];
    args.extend(half.iter().map(String::as_str));
    kubectl.run_ok(&args, "")?;
    wait_for_usage(&fleet, &kubectl, WORKLOADS as i64 / 2 * REPLICA_MILLICORES)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A template that requests more than the quota waits, with the reason in its binding and events, and continues when it
/// requests less.
fn check_refused_template(kubectl: &Kubectl) -> Result<()> {
    let set_request = |cpu: &str| {
        let requests = format!("--requests=cpu={cpu}");
        kubectl.run_ok(&["set", "resources", "deployment/web-0", "-n", "shop", &requests], "").map(drop)
    };
    let message = "FederatedResourceQuota(shop/cpus) exceeded for resource cpu: requested sum 2630m, limit 2.";
    set_request(&format!("{LIMIT_MILLICORES}m"))?;
    let scheduled = r#"jsonpath={.status.conditions[?(@.type=="Scheduled")]}"#;
    let binding = ["get", "rb", "web-0-deployment", "-n", "shop", "-o", scheduled];
    kubectl.run_until(&binding, |out| out.contains("QuotaExceeded") && out.contains(message))?;
    for kind in ["Deployment", "ResourceBinding"] {
        let selector = format!("involvedObject.kind={kind},reason=SyncWorkFailed");
        let events = ["get", "events", "-n", "shop", "--field-selector", &selector, "-o", "jsonpath={..message}"];
        kubectl.run_until(&events, |out| out.contains("waiting for quota: ") && out.contains(message))?;
    }
    set_request(&format!("{REPLICA_MILLICORES}m"))?;
    kubectl.run_until(&binding, |out| out.contains("\"Success\"")).map(drop)
}

fn name(index: usize) -> String {
    format!("web-{index}")
}

fn workloads() -> Value {
    let workload = |index: usize| {
        let (name, cpu) = (name(index), format!("{REPLICA_MILLICORES}m"));
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

/// Scales all workloads with several concurrent kubectl processes.
fn scale_all(kubectl: &Kubectl, replicas: i64) -> Result<()> {
    const PROCESSES: usize = 8;
    let replicas = format!("--replicas={replicas}");
    std::thread::scope(|scope| {
        let scale = |process: usize| {
            let names: Vec<String> = (0..WORKLOADS).filter(|index| index % PROCESSES == process).map(name).collect();
            let mut args = vec!["scale", "-n", "shop", "deployment", &replicas];
            args.extend(names.iter().map(String::as_str));
            kubectl.run_ok(&args, "").map(drop)
        };
        let threads: Vec<_> = (0..PROCESSES).map(|process| scope.spawn(move || scale(process))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a scaling thread panicked")).and_then(|result| result)
        })
    })
}

/// Waits until the bindings and the quota's status have this usage, in millicores. Fails if the bindings exceed the
/// quota.
fn wait_for_usage(fleet: &Fleet, kubectl: &Kubectl, expected: i64) -> Result<()> {
    let mut last = (0, 0);
    let result = wait_for(&format!("bindings to use {expected}m"), || {
        let used = bindings_usage(kubectl)?;
        ensure!(used <= LIMIT_MILLICORES, "bindings use {used}m of {LIMIT_MILLICORES}m");
        last = (used, quota_usage(kubectl)?);
        Ok(last == (expected, expected))
    });
    result.with_context(|| format!("usage of the bindings and in the status: {last:?}; {}", fleet.log()))
}

/// CPU requests of all bindings in millicores, from one list.
fn bindings_usage(kubectl: &Kubectl) -> Result<i64> {
    let bindings: Value = serde_json::from_str(&kubectl.run_ok(&["get", "rb", "-n", "shop", "-o", "json"], "")?)?;
    let items = bindings["items"].as_array().context("the response is not a list")?;
    let mut replicas: BTreeMap<&str, i64> = BTreeMap::new();
    for binding in items {
        let clusters = binding["spec"]["clusters"].as_array().into_iter().flatten();
        let sum = clusters.filter_map(|cluster| cluster["replicas"].as_i64()).sum();
        replicas.insert(binding["metadata"]["name"].as_str().unwrap_or_default(), sum);
    }
    Ok(replicas.values().sum::<i64>() * REPLICA_MILLICORES)
}

/// CPU usage in the quota's status, in millicores.
fn quota_usage(kubectl: &Kubectl) -> Result<i64> {
    let path = ["get", "federatedresourcequotas", "cpus", "-n", "shop", "-o", "jsonpath={.status.overallUsed.cpu}"];
    let text = kubectl.run_ok(&path, "")?;
    match (text.strip_suffix('m'), text.as_str()) {
        (_, "") => Ok(0),
        (Some(milli), _) => Ok(milli.parse()?),
        (None, cores) => Ok(cores.parse::<i64>()? * 1000),
    }
}
