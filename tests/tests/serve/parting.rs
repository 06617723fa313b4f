//! `crowsnest uninstall`: members are unchanged, unless all of Crowsnest's objects are to be removed from them.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, until};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::serve::member_writes::member_writes;
use crate::serve::relay::Balancer;
use crate::serve::site::{CommandOutput, Replica, Site, client, crowsnest, free_port};
use crate::serve::world::{object, objects};

struct Left {
    runtime: Runtime,
    control_plane: Apiserver,
    member: Apiserver,
    cp: Client,
    m1: Client,
    dir: tempfile::TempDir,
    port: u16,
}

impl Left {
    fn start() -> Result<Self> {
        let (runtime, dir) = (Runtime::new()?, tempfile::tempdir()?);
        let (control_plane, member) =
            (Apiserver::start(&dir.path().join("cp"))?, Apiserver::start(&dir.path().join("m1"))?);
        let cp = runtime.block_on(client(&control_plane.kubeconfig))?;
        let m1 = runtime.block_on(client(&member.kubeconfig))?;
        Ok(Self { runtime, control_plane, member, cp, m1, dir, port: free_port()? })
    }

    fn crowsnest(&self, args: &[&str]) -> Result<CommandOutput> {
        crowsnest(&self.control_plane.kubeconfig, args)
    }

    fn install(&self) -> Result<()> {
        let output = self.crowsnest(&["install", "--host", "127.0.0.1", "--port", &self.port.to_string()])?;
        ensure!(output.ok, "{output:?}");
        Ok(())
    }

    fn join(&self) -> Result<()> {
        let (kubeconfig, mut last) = (self.member.kubeconfig.display().to_string(), String::new());
        until("the member to be joined", || {
            let output = self.crowsnest(&["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{output:?}");
            Ok(output.ok)
        })
        .context(last)
    }

    /// ConfigMaps that are propagated to the member, one of which is to be kept there.
    fn propagate(&self) -> Result<()> {
        let maps = objects(&self.cp, "", "v1", "ConfigMap", Some("default"));
        let policies = objects(&self.cp, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
        for (name, stays) in [("goes", false), ("stays", true)] {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
                "metadata": {"name": name}, "spec": {"preserveResourcesOnDeletion": stays,
                    "placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
                    "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]}});
            self.runtime.block_on(policies.create(&PostParams::default(), &object(policy)?))?;
            self.runtime.block_on(maps.create(&PostParams::default(), &object(map)?))?;
            until("an object to arrive", || self.there("", "ConfigMap", Some("default"), name))?;
        }
        // The member's status is reported after all writes.
        let works = objects(&self.cp, "work.karmada.io", "v1alpha1", "Work", Some("karmada-es-m1"));
        until("all of it to be applied", || {
            let works = self.runtime.block_on(works.list(&kube::api::ListParams::default()))?;
            let applied = works.iter().filter(|work| work.data["status"]["conditions"][0]["status"] == "True");
            Ok(applied.count() == works.items.len() && works.items.len() >= 2)
        })
    }

    /// A namespace that `join` did not create is kept, and the cluster with it.
    fn keeps_a_namespace_of_others(&self) -> Result<()> {
        let namespaces = objects(&self.m1, "", "v1", "Namespace", None);
        let labelled = |value: Value| {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"karmada.io/system": value}}}));
            self.runtime.block_on(namespaces.patch("karmada-cluster", &PatchParams::default(), &patch))
        };
        labelled(Value::Null)?;
        let mut output = String::new();
        until("the namespace to be known for another's", || {
            output = self.crowsnest(&["uninstall", "--members"])?.err;
            Ok(!output.contains("`crowsnest serve` must be running"))
        })?;
        ensure!(output.contains("its namespace karmada-cluster was not created by `crowsnest join`"), "{output}");
        ensure!(self.there("", "ConfigMap", Some("default"), "goes")?, "{output}");
        labelled("true".into())?;
        Ok(())
    }

    fn there(&self, group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Result<bool> {
        let all = objects(&self.m1, group, "v1", kind, namespace);
        Ok(self.runtime.block_on(all.get_opt(name))?.is_some())
    }

    fn writes(&self) -> Result<Vec<String>> {
        member_writes(&self.runtime, &self.member, &self.m1)
    }

    fn serve(&self, station: &'static str) -> Result<(Replica, Balancer)> {
        let site = Site {
            control_plane: self.control_plane.kubeconfig.clone(),
            database: "sqlite:".to_owned(),
            folder: self.dir.path().to_owned(),
            flags: vec!["--cluster-status-update-frequency=2s".to_owned(), "--cluster-success-threshold=1s".to_owned()],
        };
        let replica = Replica::start(station, &site)?;
        let balancer = Balancer::start(self.port, [replica.backend()])?;
        until("it to lead", || Ok(replica.is_ready()? && replica.leads()?)).with_context(|| replica.log())?;
        Ok((replica, balancer))
    }
}

#[test]
fn members_are_unchanged_unless_cleared() -> Result<()> {
    let left = Left::start()?;
    left.install()?;
    let (mut replica, balancer) = left.serve("first")?;
    left.join()?;
    left.propagate().with_context(|| replica.log())?;

    // Neither a dry run nor an uninstallation without members writes to them.
    let written = left.writes()?;
    let would = left.crowsnest(&["uninstall", "--members", "--dry-run"])?;
    let expected = [
        "cluster(m1) would be removed, ",
        "cluster(m1): serviceaccount karmada-cluster/karmada-m1 would be deleted\n",
        "cluster(m1): namespace karmada-cluster would be deleted\n",
        "clusterrolebinding karmada-controller-manager:karmada-m1",
        "apiservice/v1alpha1.cluster.karmada.io would be deleted\n",
    ];
    for line in expected {
        ensure!(would.ok && would.out.contains(line), "{line}: {would:?}");
    }
    ensure!(would.out.contains("and 1 without"), "expected one Work whose objects are kept: {would:?}");
    let uninstalled = left.crowsnest(&["uninstall"])?;
    ensure!(uninstalled.ok && uninstalled.out.contains("all objects in member clusters are kept"), "{uninstalled:?}");
    let (stopped, log) = replica.stop()?;
    ensure!(stopped.success(), "{log}");
    drop((replica, balancer));
    let wrote = left.writes()?.split_off(written.len());
    ensure!(wrote.is_empty(), "written in the member: {wrote:#?}");

    left.install()?;
    let (replica, _balancer) = left.serve("second")?;
    // An object of another project in another namespace is not affected.
    let maps = objects(&left.m1, "", "v1", "ConfigMap", Some("default"));
    let theirs = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}));
    left.runtime.block_on(maps.patch("theirs", &PatchParams::apply("them"), &theirs))?;
    left.keeps_a_namespace_of_others().with_context(|| replica.log())?;
    let mut gone = left.crowsnest(&["uninstall", "--members"])?;
    // The control plane connects to the responding replica shortly after it is ready.
    until("clusters to be served", || {
        if !gone.ok && gone.err.contains("`crowsnest serve` must be running") {
            gone = left.crowsnest(&["uninstall", "--members"])?;
            return Ok(false);
        }
        Ok(true)
    })?;
    ensure!(gone.ok && gone.out.contains("cluster(m1) removed, "), "{gone:?}\n{}", replica.log());
    for (name, expected) in [("goes", false), ("stays", true), ("theirs", true)] {
        ensure!(left.there("", "ConfigMap", Some("default"), name)? == expected, "{name}: {}", replica.log());
    }
    const RBAC: &str = "rbac.authorization.k8s.io";
    let ours = "karmada-controller-manager:karmada-m1";
    for (group, kind, name) in [
        ("", "Namespace", "karmada-cluster"),
        (RBAC, "ClusterRole", ours),
        (RBAC, "ClusterRoleBinding", ours),
        (RBAC, "ClusterRole", "karmada-impersonator"),
        (RBAC, "ClusterRoleBinding", "karmada-impersonator"),
    ] {
        until(&format!("{kind} {name} to be gone"), || Ok(!left.there(group, kind, None, name)?))?;
    }
    let again = left.crowsnest(&["uninstall", "--members"])?;
    ensure!(!again.ok && again.err.contains("nothing is installed"), "{again:?}");
    Ok(())
}
