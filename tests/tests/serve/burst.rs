//! Leadership under load: the only replica keeps its leases while it propagates a burst of Deployments. On real
//! clusters (`.ci/ground system-tests`), the replica and kube-apiserver compete for the CPU.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::ground::uses_real_clusters;
use crowsnest_tests::wait_for;
use kube::api::{DynamicObject, ListParams, PostParams};
use serde_json::json;
use tokio::task::JoinSet;

use crate::serve::network::Balancer;
use crate::serve::replica::Replica;
use crate::serve::test_env::{TestEnv, object, objects};

/// Twice the burst in which a replica loses its leases if it renews them through the connection of its writes.
const DEPLOYMENTS: usize = 300;
/// Ten times that burst.
const DEPLOYMENTS_ON_REAL_CLUSTERS: usize = 1_500;
/// Number of Deployments that must be propagated within the time limit of one wait.
const STEP: usize = 100;
/// Number of concurrent requests that create Deployments.
const WRITERS: usize = 16;
/// Messages of a replica that did not renew its leases in time.
const LOSSES: [&str; 2] = ["lost leadership", "lease not renewed in time"];

/// A Deployment of which no controller creates pods.
fn deployment(number: usize) -> Result<DynamicObject> {
    let labels = json!({"app": format!("web-{number}")});
    object(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("web-{number}")},
        "spec": {
            "replicas": 1, "paused": true,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}},
        },
    }))
}

/// Creates a policy, then all Deployments concurrently.
fn propagate_deployments(env: &TestEnv, count: usize) -> Result<()> {
    let policies = objects(&env.cp_client, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
    let policy = object(json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "burst"},
        "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment"}]},
    }))?;
    let deployments = objects(&env.cp_client, "apps", "v1", "Deployment", Some("default"));
    env.runtime.block_on(async {
        policies.create(&PostParams::default(), &policy).await.context("cannot create the policy")?;
        let mut writers = JoinSet::new();
        for first in 0..WRITERS {
            let deployments = deployments.clone();
            writers.spawn(async move {
                for number in (first..count).step_by(WRITERS) {
                    deployments.create(&PostParams::default(), &deployment(number)?).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written?.context("cannot create a Deployment")?;
        }
        Ok(())
    })
}

/// Number of Deployments in the member.
fn count_propagated(env: &TestEnv) -> Result<usize> {
    let deployments = objects(&env.m1_client, "apps", "v1", "Deployment", Some("default"));
    Ok(env.runtime.block_on(deployments.list_metadata(&ListParams::default()))?.items.len())
}

#[test]
fn the_only_replica_keeps_its_leases_in_a_burst() -> Result<()> {
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    let output = env.install()?;
    ensure!(output.ok, "{output:?}");
    let mut replica = Replica::start("a", &env.replica_config())?;
    let _balancer = Balancer::start(env.port, [replica.backend()])?;
    wait_for("the replica to be ready", || replica.is_ready()).with_context(|| replica.log())?;
    env.join().with_context(|| replica.log())?;
    wait_for("the replica to be the leader", || replica.is_leader()).with_context(|| replica.log())?;
    let before = env.lease_transitions()?;

    let count = if uses_real_clusters() { DEPLOYMENTS_ON_REAL_CLUSTERS } else { DEPLOYMENTS };
    propagate_deployments(&env, count).with_context(|| replica.log())?;
    for expected in (STEP..=count).step_by(STEP) {
        wait_for(&format!("{expected} Deployments to be propagated"), || {
            let propagated = count_propagated(&env)?;
            ensure!(replica.is_leader()?, "the replica is no longer the leader after {propagated} Deployments");
            Ok(propagated >= expected)
        })
        .with_context(|| replica.log())?;
    }

    ensure!(env.lease_transitions()? == before, "before {before:?}, after {:?}", env.lease_transitions()?);
    for (path, log) in env.all_logs()? {
        let losses: Vec<&str> = log.lines().filter(|line| LOSSES.iter().any(|loss| line.contains(loss))).collect();
        ensure!(losses.is_empty(), "{}: {losses:#?}", path.display());
    }
    let (stopped, log) = replica.stop()?;
    ensure!(stopped.success(), "the replica stopped with {stopped}: {log}");
    Ok(())
}
