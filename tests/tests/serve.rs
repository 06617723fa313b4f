//! `crowsnest serve` beside a control plane of its own process: installed twice, served by two replicas on one Postgres behind one
//! address, one of which is killed. The other steers, and whoever reads and tries once more is answered.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "Postgres is started by what the cache's tests share")]

#[allow(dead_code, reason = "the cache's tests use more of it")]
#[path = "../../index/tests/support/postgres.rs"]
mod postgres;
#[path = "serve/site.rs"]
mod site;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::until;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use postgres::Database;
use serde_json::{Value, json};
use site::{Balancer, Replica, apiserver, client, crowsnest, free_port};
use tokio::runtime::Runtime;

/// Controllers move to another replica within this.
const MOVES_WITHIN: Duration = Duration::from_secs(15);
const LEASES: [&str; 3] = ["karmada-controller-manager", "karmada-scheduler", "karmada-descheduler"];

fn objects(client: &Client, group: &str, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn object(value: Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(value)?)
}

/// A ConfigMap that a policy sends everywhere.
async fn propagate(client: &Client, name: &str) -> Result<()> {
    let policies = objects(client, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
        "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
            "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]},
    });
    let maps = objects(client, "", "v1", "ConfigMap", Some("default"));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
    policies.create(&PostParams::default(), &object(policy)?).await.context("creating a policy")?;
    maps.create(&PostParams::default(), &object(map)?).await.context("creating a ConfigMap")?;
    Ok(())
}

#[test]
fn one_of_two_replicas_may_die() -> Result<()> {
    let runtime = Runtime::new()?;
    let Some(database) = runtime.block_on(Database::fresh()) else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let (control_plane, member) = (apiserver(&dir.path().join("cp"))?, apiserver(&dir.path().join("m1"))?);
    let (cp, m1) = (control_plane.kubeconfig.as_path(), member.kubeconfig.as_path());
    let (to_cp, to_m1) = (runtime.block_on(client(cp))?, runtime.block_on(client(m1))?);
    let port = free_port()?;

    let host = ["install", "--host", "127.0.0.1", "--port", &port.to_string()];
    let said = crowsnest(cp, &host)?;
    ensure!(said.ok && said.out.contains("apiservice/v1alpha1.cluster.karmada.io applied"), "{said:?}");
    // Once more it says the same of what it found, and makes no other certificate.
    let secrets = objects(&to_cp, "", "v1", "Secret", Some("karmada-system"));
    let before = runtime.block_on(secrets.get("crowsnest-serving"))?;
    let again = crowsnest(cp, &["install"])?;
    ensure!(again.ok && again.out == said.out, "{again:?}");
    let after = runtime.block_on(secrets.get("crowsnest-serving"))?;
    ensure!(before.metadata.resource_version == after.metadata.resource_version, "another certificate was made");
    let rendered = crowsnest(cp, &["install", "--dry-run", "-o", "yaml"])?;
    ensure!(
        rendered.ok && rendered.out.contains("kind: APIService") && !rendered.out.contains("tls.key"),
        "{rendered:?}"
    );
    let sick = crowsnest(cp, &["doctor"])?;
    ensure!(!sick.ok && sick.out.contains("see that `crowsnest serve` runs with the role aggregated"), "{sick:?}");

    let mut replicas = Vec::new();
    for name in ["a", "b"] {
        replicas.push(Replica::start(name, cp, &database.url(), dir.path())?);
    }
    let _balancer = Balancer::start(port, replicas.iter().map(|replica| replica.port).collect())?;
    for replica in &replicas {
        until(&format!("replica {} to be ready", replica.name), || replica.is_ready())
            .with_context(|| replica.log())?;
    }
    let join = ["join", "m1", "--cluster-kubeconfig", &m1.display().to_string()];
    let mut last = String::new();
    until("the member to be joined", || {
        let said = crowsnest(cp, &join)?;
        last = format!("{said:?}");
        Ok(said.ok)
    })
    .with_context(|| last.clone())?;
    runtime.block_on(propagate(&to_cp, "first"))?;
    let in_member = objects(&to_m1, "", "v1", "ConfigMap", Some("default"));
    let arrived = |name: &str| -> Result<bool> { Ok(runtime.block_on(in_member.get_opt(name))?.is_some()) };
    until("the first object to arrive", || arrived("first")).with_context(|| replicas[0].log() + &replicas[1].log())?;
    until("all to be well", || Ok(crowsnest(cp, &["doctor"])?.ok))
        .with_context(|| format!("{:?}", crowsnest(cp, &["doctor"])))?;

    let leaders = replicas.iter().map(Replica::leads).collect::<Result<Vec<bool>>>()?;
    ensure!(leaders.iter().filter(|leads| **leads).count() == 1, "leaders: {leaders:?}");
    let dying = leaders.iter().position(|leads| *leads).context("nobody leads")?;
    replicas.remove(dying).kill()?;
    let died = Instant::now();
    let living = replicas.pop().context("nobody is left")?;
    // Whoever reads tries once more at most.
    let clusters = objects(&to_cp, "cluster.karmada.io", "v1alpha1", "Cluster", None);
    let read = || match runtime.block_on(clusters.get("m1")) {
        Ok(_) => Ok(()),
        Err(_) => runtime.block_on(clusters.get("m1")).map(drop),
    };
    until("the other to lead", || {
        read().context("reading a cluster twice")?;
        living.leads()
    })
    .with_context(|| living.log())?;
    ensure!(died.elapsed() < MOVES_WITHIN, "the controllers moved after {:?}", died.elapsed());
    runtime.block_on(propagate(&to_cp, "second"))?;
    until("the second object to arrive", || arrived("second")).with_context(|| living.log())?;

    let (stopped, log) = living.stop()?;
    ensure!(stopped.success(), "it stopped with {stopped}: {log}");
    for name in LEASES {
        let leases = objects(&to_cp, "coordination.k8s.io", "v1", "Lease", Some("karmada-system"));
        let lease = runtime.block_on(leases.get(name))?;
        ensure!(lease.data["spec"].get("holderIdentity").is_none(), "{name} was not given back: {lease:?}");
    }
    let gone = crowsnest(cp, &["uninstall"])?;
    ensure!(gone.ok && gone.out.contains("everything in members stay as they are"), "{gone:?}");
    ensure!(arrived("first")? && arrived("second")?, "the member has lost what it had");
    Ok(())
}

/// What Karmada's API server keeps by itself, as a control plane shows it: a kind of the group, and who serves it.
async fn karmada(client: &Client) -> Result<()> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": open, "status": open}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "scope": "Cluster", "names": {"plural": "clusters", "kind": "Cluster"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    });
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1alpha1.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 10},
    });
    // Registered first, so that the control plane does not register by itself what it defines.
    let services = objects(client, "apiregistration.k8s.io", "v1", "APIService", None);
    services.create(&PostParams::default(), &object(service)?).await.context("registering clusters")?;
    let definitions = objects(client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    definitions.create(&PostParams::default(), &object(definition)?).await.context("defining clusters")?;
    Ok(())
}

#[test]
fn karmadas_clusters_come_and_go_back() -> Result<()> {
    let runtime = Runtime::new()?;
    let dir = tempfile::tempdir()?;
    let control_plane = apiserver(&dir.path().join("cp"))?;
    let cp = control_plane.kubeconfig.as_path();
    let client = runtime.block_on(client(cp))?;
    runtime.block_on(karmada(&client))?;
    let theirs = objects(&client, "cluster.karmada.io", "v1alpha1", "Cluster", None);
    let ours = objects(&client, "storage.crowsnest.io", "v1alpha1", "Cluster", None);
    let cluster = object(json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1", "labels": {"tier": "gold"}, "finalizers": ["karmada.io/cluster-controller"]},
        "spec": {"syncMode": "Push", "id": "7", "apiEndpoint": "https://m1"},
    }))?;
    until("clusters to be served", || Ok(runtime.block_on(theirs.create(&PostParams::default(), &cluster)).is_ok()))?;
    let mut stored = runtime.block_on(theirs.get("m1"))?;
    stored.data["status"] = json!({"kubernetesVersion": "v1.36.0"});
    runtime.block_on(theirs.replace_status("m1", &PostParams::default(), &stored))?;

    let early = crowsnest(cp, &["install", "--host", "127.0.0.1", "--port", "1"])?;
    ensure!(!early.ok && early.err.contains("run `crowsnest migrate` first"), "{early:?}");
    let would = crowsnest(cp, &["migrate", "--dry-run"])?;
    ensure!(would.ok && would.out.contains("clusters/m1 would be created"), "{would:?}");
    let came = crowsnest(cp, &["migrate"])?;
    ensure!(came.ok && came.out.contains("clusters/m1 created"), "{came:?}");
    let kept = runtime.block_on(ours.get("m1"))?;
    ensure!(kept.data["spec"] == cluster.data["spec"] && kept.metadata.labels == cluster.metadata.labels, "{kept:?}");
    ensure!(kept.data["status"]["kubernetesVersion"] == "v1.36.0", "{kept:?}");
    let again = crowsnest(cp, &["migrate"])?;
    ensure!(again.ok && again.out.contains("1 clusters, 0 of them written"), "{again:?}");

    let installed = crowsnest(cp, &["install", "--take-over", "--host", "127.0.0.1", "--port", "1"])?;
    ensure!(installed.ok, "{installed:?}");
    let services = objects(&client, "apiregistration.k8s.io", "v1", "APIService", None);
    let service = || runtime.block_on(services.get("v1alpha1.cluster.karmada.io"));
    ensure!(service()?.data["spec"]["service"]["name"] == "crowsnest", "{:?}", service()?);

    let back = crowsnest(cp, &["migrate", "--back"])?;
    ensure!(back.ok && back.out.contains("1 clusters, 0 of them written"), "{back:?}");
    ensure!(service()?.data["spec"].get("service").is_none_or(Value::is_null), "{:?}", service()?);
    // A cluster that left while we were there is gone for Karmada, too.
    let free = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    runtime.block_on(ours.patch("m1", &kube::api::PatchParams::default(), &free))?;
    runtime.block_on(ours.delete("m1", &kube::api::DeleteParams::default()))?;
    let back = crowsnest(cp, &["migrate", "--back"])?;
    ensure!(back.ok && back.out.contains("clusters/m1 deleted"), "{back:?}");
    ensure!(runtime.block_on(theirs.get_opt("m1"))?.is_none(), "it is still there");
    Ok(())
}

#[test]
fn settings_are_read_from_a_file_and_unknown_ones_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let settings = dir.path().join("serve.yaml");
    std::fs::write(&settings, "kubeconfig: /nowhere/kubeconfig\nroles: [webhook]\nlisten: 127.0.0.1:0\n")?;
    let file = settings.display().to_string();
    let serve = |more: &[&str]| site::run(&[&["serve", "--config", &file][..], more].concat());
    let said = serve(&[])?;
    ensure!(!said.ok && said.err.contains("reading /nowhere/kubeconfig"), "{said:?}");
    let said = serve(&["--kubeconfig", "/elsewhere"])?;
    ensure!(!said.ok && said.err.contains("reading /elsewhere"), "{said:?}");
    std::fs::write(&settings, "role: [webhook]\n")?;
    let said = serve(&[])?;
    ensure!(!said.ok && said.err.contains("unknown key \"role\""), "{said:?}");
    Ok(())
}
