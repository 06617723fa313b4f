//! `crowsnest serve` beside a control plane of its own process: installed twice, served by three replicas on one Postgres behind one
//! address. One that steers is killed, the next is paused, the third cut off: each time another steers.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "Postgres is started by what the cache's tests share")]

#[allow(dead_code, reason = "the cache's tests use more of it")]
#[path = "../../index/tests/support/postgres.rs"]
mod postgres;
#[path = "serve/site.rs"]
mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::until;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use postgres::Database;
use serde_json::{Value, json};
use site::{Apiserver, Relay, Replica, Said, apiserver, client, crowsnest, free_port};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Controllers move to another replica within this.
const MOVES_WITHIN: Duration = Duration::from_secs(15);
/// Of the database.
const PASSWORD: &str = "open-sesame-7e1f";
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

/// A control plane and a member, each a process, and where replicas find each other.
struct World {
    control_plane: Apiserver,
    member: Apiserver,
    database: Database,
    dir: TempDir,
    to_cp: Client,
    to_m1: Client,
    /// The one address of all replicas.
    port: u16,
    runtime: Runtime,
}

impl World {
    /// None where no Postgres can be had.
    fn start() -> Result<Option<Self>> {
        let runtime = Runtime::new()?;
        let Some(database) = runtime.block_on(Database::fresh()) else { return Ok(None) };
        let dir = tempfile::tempdir()?;
        let (control_plane, member) = (apiserver(&dir.path().join("cp"))?, apiserver(&dir.path().join("m1"))?);
        let to_cp = runtime.block_on(client(&control_plane.kubeconfig))?;
        let to_m1 = runtime.block_on(client(&member.kubeconfig))?;
        Ok(Some(Self { control_plane, member, database, dir, to_cp, to_m1, port: free_port()?, runtime }))
    }

    fn crowsnest(&self, args: &[&str]) -> Result<Said> {
        crowsnest(&self.control_plane.kubeconfig, args)
    }

    fn serve(&self, name: &'static str) -> Result<Replica> {
        // The server trusts whoever comes.
        let database = self.database.url().replacen('@', &format!(":{PASSWORD}@"), 1);
        Replica::start(name, &self.control_plane.kubeconfig, &database, self.dir.path())
    }

    fn join(&self) -> Result<()> {
        let kubeconfig = self.member.kubeconfig.display().to_string();
        let mut last = String::new();
        until("the member to be joined", || {
            let said = self.crowsnest(&["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{said:?}");
            Ok(said.ok)
        })
        .context(last)
    }

    /// Creates a ConfigMap and a policy that sends it to the member.
    fn propagate(&self, name: &str) -> Result<()> {
        let policies = objects(&self.to_cp, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
        let policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
            "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
                "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]},
        });
        let maps = objects(&self.to_cp, "", "v1", "ConfigMap", Some("default"));
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
        let created = PostParams::default();
        self.runtime.block_on(policies.create(&created, &object(policy)?)).context("creating a policy")?;
        self.runtime.block_on(maps.create(&created, &object(map)?)).context("creating a ConfigMap")?;
        Ok(())
    }

    fn in_member(&self, name: &str) -> Result<Option<DynamicObject>> {
        let in_member = objects(&self.to_m1, "", "v1", "ConfigMap", Some("default"));
        Ok(self.runtime.block_on(in_member.get_opt(name))?)
    }

    fn has_arrived(&self, name: &str) -> Result<bool> {
        Ok(self.in_member(name)?.is_some())
    }

    /// What no log may show: the database's password, and lines of all Secrets' values but certificates.
    fn secrets(&self) -> Result<Vec<String>> {
        let secrets = objects(&self.to_cp, "", "v1", "Secret", None);
        let mut lines = vec![PASSWORD.to_owned()];
        for secret in self.runtime.block_on(secrets.list(&ListParams::default()))? {
            for (key, value) in secret.data["data"].as_object().into_iter().flatten() {
                if key.ends_with(".crt") || key == "caBundle" {
                    continue;
                }
                let text = String::from_utf8(STANDARD.decode(value.as_str().unwrap_or_default())?)?;
                let told = |line: &&str| line.len() >= 16 && !line.starts_with("-----");
                lines.extend(text.lines().filter(told).map(str::to_owned));
            }
        }
        Ok(lines)
    }

    /// All logs of all processes, those that died included.
    fn all_logs(&self) -> Result<Vec<(PathBuf, String)>> {
        let mut logs = Vec::new();
        for entry in std::fs::read_dir(self.dir.path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read_to_string(&path)?;
                logs.push((path, text));
            }
        }
        Ok(logs)
    }

    /// Asked of the replicas through the control plane, twice at most.
    fn reads_cluster(&self) -> Result<()> {
        let clusters = objects(&self.to_cp, "cluster.karmada.io", "v1alpha1", "Cluster", None);
        if self.runtime.block_on(clusters.get("m1")).is_err() {
            self.runtime.block_on(clusters.get("m1")).context("reading a cluster for the second time")?;
        }
        Ok(())
    }

    /// Of all that is installed.
    fn versions(&self) -> Result<BTreeMap<String, Option<String>>> {
        let rendered = self.crowsnest(&["install", "--dry-run", "-o", "json"])?;
        ensure!(rendered.ok && !rendered.out.contains("tls.key"), "{rendered:?}");
        let rendered: Value = serde_json::from_str(&rendered.out)?;
        let mut wanted = rendered["items"].as_array().cloned().unwrap_or_default();
        wanted.push(json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "crowsnest-serving", "namespace": "karmada-system"}}));
        let mut versions = BTreeMap::new();
        for item in wanted {
            let item = object(item)?;
            let kind = item.types.as_ref().context("an object of no kind")?;
            let kind = GroupVersionKind::try_from(kind)?;
            let (namespace, name) = (item.namespace(), item.name_any());
            let found = objects(&self.to_cp, &kind.group, &kind.version, &kind.kind, namespace.as_deref());
            let found = self.runtime.block_on(found.get(&name)).with_context(|| format!("{} {name}", kind.kind))?;
            versions.insert(format!("{} {name}", kind.kind), found.metadata.resource_version);
        }
        Ok(versions)
    }

    /// Those that hold the leases, by the control plane.
    fn holders(&self) -> Result<BTreeSet<Option<String>>> {
        let leases = objects(&self.to_cp, "coordination.k8s.io", "v1", "Lease", Some("karmada-system"));
        let mut holders = BTreeSet::new();
        for name in LEASES {
            let lease = self.runtime.block_on(leases.get(name))?;
            holders.insert(lease.data["spec"]["holderIdentity"].as_str().map(str::to_owned));
        }
        Ok(holders)
    }
}

/// Takes out the one that leads.
fn leader(replicas: &mut Vec<Replica>) -> Result<Replica> {
    let leads = replicas.iter().map(Replica::leads).collect::<Result<Vec<bool>>>()?;
    ensure!(leads.iter().filter(|leads| **leads).count() == 1, "leaders: {leads:?}");
    Ok(replicas.remove(leads.iter().position(|leads| *leads).context("nobody leads")?))
}

fn logs(replicas: &[Replica]) -> String {
    replicas.iter().map(Replica::log).collect()
}

/// Until one of those that are left leads; none of them is out of service meanwhile.
fn moved(replicas: &[Replica], also: impl Fn() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    until("another to lead", || {
        also()?;
        for replica in replicas {
            ensure!(replica.is_ready()?, "{} is not ready", replica.name);
        }
        Ok(replicas.iter().map(Replica::leads).collect::<Result<Vec<bool>>>()?.contains(&true))
    })
    .with_context(|| logs(replicas))?;
    let took = began.elapsed();
    ensure!(took < MOVES_WITHIN, "the controllers moved after {took:?}\n{}", logs(replicas));
    Ok(())
}

#[test]
fn replicas_may_die_sleep_and_be_cut_off() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    let port = world.port.to_string();
    let said = world.crowsnest(&["install", "--host", "127.0.0.1", "--port", &port])?;
    ensure!(said.ok && said.out.contains("apiservice/v1alpha1.cluster.karmada.io applied"), "{said:?}");
    let sick = world.crowsnest(&["doctor"])?;
    ensure!(!sick.ok && sick.out.contains("see that `crowsnest serve` runs with the role aggregated"), "{sick:?}");

    let mut replicas = ["a", "b", "c"].into_iter().map(|name| world.serve(name)).collect::<Result<Vec<_>>>()?;
    let _balancer = Relay::start(world.port, replicas.iter().map(|replica| replica.port).collect())?;
    for replica in &replicas {
        until(&format!("replica {} to be ready", replica.name), || replica.is_ready())
            .with_context(|| replica.log())?;
    }
    world.join()?;
    world.propagate("first")?;
    until("the first object to arrive", || world.has_arrived("first")).with_context(|| logs(&replicas))?;
    let first = world.in_member("first")?;
    until("all to be well", || Ok(world.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", world.crowsnest(&["doctor"])))?;
    // Once more it applies the same, and writes nothing.
    let before = world.versions()?;
    let again = world.crowsnest(&["install"])?;
    ensure!(again.ok && again.out == said.out, "{again:?}");
    let after = world.versions()?;
    ensure!(before == after, "before {before:?}, after {after:?}");

    leader(&mut replicas)?.kill()?;
    moved(&replicas, || world.reads_cluster())?;
    world.propagate("second")?;
    until("the second object to arrive", || world.has_arrived("second")).with_context(|| logs(&replicas))?;

    let asleep = leader(&mut replicas)?;
    asleep.signal("STOP")?;
    // Whoever reads waits for it, too: only what does not is asked.
    moved(&replicas, || Ok(()))?;
    asleep.signal("CONT")?;
    until("the one that slept to follow", || Ok(!asleep.leads()? && asleep.is_ready()?))
        .with_context(|| asleep.log())?;
    replicas.push(asleep);
    let cut_off = leader(&mut replicas)?;
    ensure!(world.holders()? == BTreeSet::from([Some(cut_off.name.to_owned())]), "{:?}", world.holders()?);
    world.propagate("third")?;
    until("the third object to arrive", || world.has_arrived("third")).with_context(|| cut_off.log())?;

    // The same for one that runs on, and hears nothing: it has ended before another begins.
    cut_off.cable.cut();
    moved(&replicas, || Ok(()))?;
    ensure!(!cut_off.leads()?, "two lead: {}{}", cut_off.log(), logs(&replicas));
    cut_off.cable.mend();
    let leads = replicas.pop().context("nobody is left")?;
    world.propagate("fourth")?;
    until("the fourth object to arrive", || world.has_arrived("fourth")).with_context(|| leads.log())?;
    ensure!(world.holders()? == BTreeSet::from([Some(leads.name.to_owned())]), "{:?}", world.holders()?);
    ensure!(!cut_off.leads()? && leads.leads()?, "{}{}", cut_off.log(), leads.log());

    for replica in [cut_off, leads] {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "it stopped with {stopped}: {log}");
    }
    ensure!(world.holders()? == BTreeSet::from([None]), "leases are not given back: {:?}", world.holders()?);
    // Whoever took over found it as it should be.
    ensure!(world.in_member("first")? == first, "{first:?} has been written again: {:?}", world.in_member("first")?);
    let (secrets, logs) = (world.secrets()?, world.all_logs()?);
    ensure!(secrets.len() > 3 && logs.len() == 5, "{} secrets, {} logs", secrets.len(), logs.len());
    for (path, log) in &logs {
        let shown = secrets.iter().position(|secret| log.contains(secret));
        ensure!(shown.is_none(), "{} shows secret {shown:?} of {}", path.display(), secrets.len());
    }
    let gone = world.crowsnest(&["uninstall"])?;
    ensure!(gone.ok && gone.out.contains("everything in members stay as they are"), "{gone:?}");
    for name in ["first", "second", "third", "fourth"] {
        ensure!(world.has_arrived(name)?, "the member has lost {name}");
    }
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
