//! `crowsnest uninstall`: members are unchanged, unless all of Crowsnest's objects are to be removed from them.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, wait_for};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::serve::member_writes::member_writes;
use crate::serve::network::Balancer;
use crate::serve::replica::{CommandOutput, Replica, ReplicaConfig, client, crowsnest, free_port};
use crate::serve::test_env::{object, objects};

/// A control plane and a member, and the port at which replicas are installed.
struct Installation {
    runtime: Runtime,
    control_plane: Apiserver,
    member: Apiserver,
    cp: Client,
    m1: Client,
    dir: tempfile::TempDir,
    port: u16,
}

impl Installation {
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
        wait_for("the member to be joined", || {
            let output = self.crowsnest(&["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{output:?}");
            Ok(output.ok)
        })
        .context(last)
    }

    /// Propagates two ConfigMaps to the member; the policy of one preserves it on deletion.
    fn propagate(&self) -> Result<()> {
        let maps = objects(&self.cp, "", "v1", "ConfigMap", Some("default"));
        let policies = objects(&self.cp, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
        for (name, is_preserved) in [("goes", false), ("stays", true)] {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
                "metadata": {"name": name}, "spec": {"preserveResourcesOnDeletion": is_preserved,
                    "placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
                    "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]}});
            self.runtime.block_on(policies.create(&PostParams::default(), &object(policy)?))?;
            self.runtime.block_on(maps.create(&PostParams::default(), &object(map)?))?;
            wait_for("an object to be propagated", || self.has_in_member("", "ConfigMap", Some("default"), name))?;
        }
        // The execution controller reports the status of a Work after its last write.
        let works = objects(&self.cp, "work.karmada.io", "v1alpha1", "Work", Some("karmada-es-m1"));
        wait_for("all Works to be applied", || {
            let works = self.runtime.block_on(works.list(&kube::api::ListParams::default()))?;
            let applied = works.iter().filter(|work| work.data["status"]["conditions"][0]["status"] == "True");
            Ok(applied.count() == works.items.len() && works.items.len() >= 2)
        })
    }

    /// Uninstalling stops before it deletes anything if `join` did not create the namespace karmada-cluster.
    fn check_foreign_namespace(&self) -> Result<()> {
        let namespaces = objects(&self.m1, "", "v1", "Namespace", None);
        let set_label = |value: Value| {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"karmada.io/system": value}}}));
            self.runtime.block_on(namespaces.patch("karmada-cluster", &PatchParams::default(), &patch))
        };
        set_label(Value::Null)?;
        let mut output = String::new();
        wait_for("the namespace to be reported", || {
            output = self.crowsnest(&["uninstall", "--members"])?.err;
            Ok(!output.contains("`crowsnest serve` must be running"))
        })?;
        ensure!(output.contains("its namespace karmada-cluster was not created by `crowsnest join`"), "{output}");
        ensure!(self.has_in_member("", "ConfigMap", Some("default"), "goes")?, "{output}");
        set_label("true".into())?;
        Ok(())
    }

    fn has_in_member(&self, group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Result<bool> {
        let all = objects(&self.m1, group, "v1", kind, namespace);
        Ok(self.runtime.block_on(all.get_opt(name))?.is_some())
    }

    fn writes(&self) -> Result<Vec<String>> {
        member_writes(&self.runtime, &self.member, &self.m1)
    }

    fn serve(&self, base_name: &'static str) -> Result<(Replica, Balancer)> {
        let config = ReplicaConfig {
            control_plane: self.control_plane.kubeconfig.clone(),
            database: "sqlite:".to_owned(),
            folder: self.dir.path().to_owned(),
            flags: vec!["--cluster-status-update-frequency=2s".to_owned(), "--cluster-success-threshold=1s".to_owned()],
        };
        let replica = Replica::start(base_name, &config)?;
        let balancer = Balancer::start(self.port, [replica.backend()])?;
        wait_for("the replica to be the leader", || Ok(replica.is_ready()? && replica.is_leader()?))
            .with_context(|| replica.log())?;
        Ok((replica, balancer))
    }
}

#[test]
fn objects_in_members_are_deleted_only_on_request() -> Result<()> {
    let installation = Installation::start()?;
    installation.install()?;
    let (mut replica, balancer) = installation.serve("first")?;
    installation.join()?;
    installation.propagate().with_context(|| replica.log())?;

    // Neither a dry run nor an uninstallation without members writes to them.
    let writes_before = installation.writes()?;
    let dry_run = installation.crowsnest(&["uninstall", "--members", "--dry-run"])?;
    let expected = [
        "cluster(m1) would be removed. ",
        "cluster(m1): serviceaccount karmada-cluster/karmada-m1 would be deleted\n",
        "cluster(m1): namespace karmada-cluster would be deleted\n",
        "clusterrolebinding karmada-controller-manager:karmada-m1",
        "apiservice/v1alpha1.cluster.karmada.io would be deleted\n",
    ];
    for line in expected {
        ensure!(dry_run.ok && dry_run.out.contains(line), "{line}: {dry_run:?}");
    }
    ensure!(dry_run.out.contains("kept: 1\n"), "expected one Work whose objects are kept: {dry_run:?}");
    let uninstalled = installation.crowsnest(&["uninstall"])?;
    ensure!(uninstalled.ok && uninstalled.out.contains("all objects in member clusters are kept"), "{uninstalled:?}");
    let (stopped, log) = replica.stop()?;
    ensure!(stopped.success(), "{log}");
    drop((replica, balancer));
    let new_writes = installation.writes()?.split_off(writes_before.len());
    ensure!(new_writes.is_empty(), "writes in the member: {new_writes:#?}");

    installation.install()?;
    let (replica, _balancer) = installation.serve("second")?;
    // An object of another project in another namespace is not affected.
    let maps = objects(&installation.m1, "", "v1", "ConfigMap", Some("default"));
    let theirs = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}));
    installation.runtime.block_on(maps.patch("theirs", &PatchParams::apply("them"), &theirs))?;
    installation.check_foreign_namespace().with_context(|| replica.log())?;
    let mut uninstalled = installation.crowsnest(&["uninstall", "--members"])?;
    // The control plane may connect to the replica only some time after the replica is ready.
    wait_for("clusters to be served", || {
        if !uninstalled.ok && uninstalled.err.contains("`crowsnest serve` must be running") {
            uninstalled = installation.crowsnest(&["uninstall", "--members"])?;
            return Ok(false);
        }
        Ok(true)
    })?;
    ensure!(uninstalled.ok && uninstalled.out.contains("cluster(m1) removed. "), "{uninstalled:?}\n{}", replica.log());
    for (name, expected) in [("goes", false), ("stays", true), ("theirs", true)] {
        ensure!(
            installation.has_in_member("", "ConfigMap", Some("default"), name)? == expected,
            "{name}: {}",
            replica.log()
        );
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
        wait_for(
            &format!("{kind} {name} to be deleted"),
            || Ok(!installation.has_in_member(group, kind, None, name)?),
        )?;
    }
    let again = installation.crowsnest(&["uninstall", "--members"])?;
    ensure!(!again.ok && again.err.contains("nothing is installed"), "{again:?}");
    Ok(())
}
