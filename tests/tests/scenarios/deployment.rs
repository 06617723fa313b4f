//! All processes of the standard deployment.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, Member, wait_for};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::serve::network::Balancer;
use crate::serve::postgres::Database;
use crate::serve::replica::{Replica, ReplicaConfig, client, crowsnest, free_port};

const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// Settings of the recorded control plane.
const FLAGS: [&str; 8] = [
    "--feature-gates=AllAlpha=true,AllBeta=true",
    "--controllers=*,hpaScaleTargetMarker,deploymentReplicasSyncer",
    "--enable-no-execute-taint-eviction",
    "--allow-no-execute-taint-policy",
    "--resource-eviction-rate=50",
    "--cluster-status-update-frequency=3s",
    "--cluster-success-threshold=4s",
    "--cluster-failure-threshold=4s",
];

/// The running processes. Stopped when dropped.
pub struct Deployment {
    /// `cp.kubeconfig` and one for each member.
    pub kubeconfigs: PathBuf,
    pub replicas: Vec<Replica>,
    _balancer: Balancer,
    _control_plane: Apiserver,
    _members: Vec<Member>,
    _database: Database,
    runtime: Runtime,
    // Dropped last, with its contents.
    _dir: TempDir,
}

impl Deployment {
    /// `None` if Postgres is not available.
    pub fn start() -> Result<Option<Self>> {
        crate::use_ring();
        let runtime = Runtime::new()?;
        let Some(database) = runtime.block_on(Database::create()) else { return Ok(None) };
        let dir = tempfile::tempdir()?;
        let kubeconfigs = dir.path().join("kubeconfigs");
        fs::create_dir(&kubeconfigs)?;
        let cp = kubeconfigs.join("cp.kubeconfig");
        let control_plane = Apiserver::start(&dir.path().join("cp"))?;
        fs::copy(&control_plane.kubeconfig, &cp)?;
        let mut members = Vec::new();
        for name in MEMBERS {
            let member = Member::start(name, &dir.path().join(name), &["--profile", "conformance"])?;
            fs::copy(&member.kubeconfig, kubeconfigs.join(format!("{name}.kubeconfig")))?;
            members.push(member);
        }
        let port = free_port()?;
        let installed = crowsnest(&cp, &["install", "--host", "127.0.0.1", "--port", &port.to_string()])?;
        ensure!(installed.ok, "{installed:?}");
        let config = ReplicaConfig {
            control_plane: cp.clone(),
            database: database.url(),
            folder: dir.path().to_owned(),
            flags: FLAGS.map(str::to_owned).to_vec(),
        };
        let replicas = ["a", "b", "c"].map(|base_name| Replica::start(base_name, &config));
        let replicas = replicas.into_iter().collect::<Result<Vec<_>>>()?;
        let balancer = Balancer::start(port, replicas.iter().map(Replica::backend))?;
        let deployment = Self {
            kubeconfigs,
            replicas,
            _balancer: balancer,
            _control_plane: control_plane,
            _members: members,
            _database: database,
            runtime,
            _dir: dir,
        };
        for replica in &deployment.replicas {
            wait_for(&format!("replica {} to be ready", replica.name), || replica.is_ready())
                .with_context(|| replica.log())?;
        }
        deployment.join()?;
        Ok(Some(deployment))
    }

    fn join(&self) -> Result<()> {
        let cp = self.kubeconfigs.join("cp.kubeconfig");
        let cp_client = self.runtime.block_on(client(&cp))?;
        self.runtime.block_on(grant_proxy_access(&cp_client))?;
        for name in MEMBERS {
            let member_kubeconfig = self.kubeconfigs.join(format!("{name}.kubeconfig")).display().to_string();
            let mut last = String::new();
            wait_for(&format!("{name} to be joined"), || {
                let output = crowsnest(&cp, &["join", name, "--cluster-kubeconfig", &member_kubeconfig])?;
                last = format!("{output:?}");
                Ok(output.ok)
            })
            .context(last)?;
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster"));
        let clusters: Api<DynamicObject> = Api::all_with(cp_client, &resource);
        for name in MEMBERS {
            wait_for(&format!("{name} to be ready"), || {
                let cluster = self.runtime.block_on(clusters.get_opt(name)).ok().flatten();
                let conditions = cluster.and_then(|cluster| cluster.data.pointer("/status/conditions").cloned());
                let conditions = conditions.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
                let is_true =
                    |kind: &str| conditions.iter().any(|shown| shown["type"] == kind && shown["status"] == "True");
                Ok(is_true("Ready") && is_true("CompleteAPIEnablements"))
            })
            .with_context(|| self.logs())?;
        }
        Ok(())
    }

    pub fn logs(&self) -> String {
        self.replicas.iter().map(Replica::log).collect()
    }
}

/// Allows the administrator to use the proxies, as in the recorded scenarios.
async fn grant_proxy_access(control_plane: &Client) -> Result<()> {
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"));
    let binding: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "cluster-proxy-admin-admin"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-proxy-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "admin"}],
    }))?;
    let bindings: Api<DynamicObject> = Api::all_with(control_plane.clone(), &resource);
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .context("cannot grant the administrator access to the proxies")?;
    Ok(())
}
