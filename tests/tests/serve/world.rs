//! A control plane and a member, each a process, and the configuration of replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Apiserver, until};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::serve::member_writes::member_writes;
use crate::serve::postgres::Database;
use crate::serve::relay::Balancer;
use crate::serve::site::{CommandOutput, Replica, Site, client, crowsnest, free_port, run_with};

/// ConfigMaps of all members, from the cache.
pub const MAPS_EVERYWHERE: &str =
    "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/namespaces/default/configmaps";
/// Password of the database.
const PASSWORD: &str = "open-sesame-7e1f";
const LEASES: [&str; 3] = ["karmada-controller-manager", "karmada-scheduler", "karmada-descheduler"];
/// Short periods.
const QUICKLY: [&str; 2] = ["--cluster-status-update-frequency=2s", "--cluster-success-threshold=1s"];

pub fn objects(client: &Client, group: &str, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

pub fn object(value: Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(value)?)
}

/// Versions of all objects that `install` applies with these flags, and of `more`.
pub fn versions(
    runtime: &Runtime,
    control_plane: &Client,
    kubeconfig: &Path,
    flags: &[&str],
    more: Vec<Value>,
) -> Result<BTreeMap<String, Option<String>>> {
    let rendered = crowsnest(kubeconfig, &[&["install", "--dry-run", "-o", "json"], flags].concat())?;
    ensure!(rendered.ok && !rendered.out.contains("tls.key"), "{rendered:?}");
    let rendered: Value = serde_json::from_str(&rendered.out)?;
    let wanted = rendered["items"].as_array().cloned().unwrap_or_default();
    let mut versions = BTreeMap::new();
    for item in wanted.into_iter().chain(more) {
        let item = object(item)?;
        let kind = item.types.as_ref().context("an object of no kind")?;
        let kind = GroupVersionKind::try_from(kind)?;
        let (namespace, name) = (item.namespace(), item.name_any());
        let found = objects(control_plane, &kind.group, &kind.version, &kind.kind, namespace.as_deref());
        let found = runtime.block_on(found.get(&name)).with_context(|| format!("{} {name}", kind.kind))?;
        versions.insert(format!("{} {name}", kind.kind), found.metadata.resource_version);
    }
    Ok(versions)
}

/// See the module.
pub struct World {
    pub control_plane: Apiserver,
    member: Apiserver,
    database: Database,
    dir: TempDir,
    pub to_cp: Client,
    pub to_m1: Client,
    /// The common address of all replicas.
    pub port: u16,
    pub runtime: Runtime,
}

impl World {
    /// Sets the cache's format to that of a later version, shared with formats from `shared_with` on; without it the format is
    /// not shared.
    pub fn make_cache_newer(&self, shared_with: Option<i32>) -> Result<()> {
        let sql = "SET search_path = crowsnest_cache; ALTER TABLE records ADD COLUMN IF NOT EXISTS mood TEXT NOT NULL DEFAULT 'calm'; \
            ALTER TABLE versions ADD COLUMN IF NOT EXISTS mood TEXT; CREATE TABLE IF NOT EXISTS moods (name TEXT)";
        let raised = "UPDATE crowsnest_cache.format SET version = 999, shared_with = COALESCE($1, shared_with)";
        self.runtime.block_on(async {
            let mut connection = self.database.connect().await;
            sqlx::raw_sql(sql).execute(&mut connection).await?;
            sqlx::query(raised).bind(shared_with).execute(&mut connection).await?;
            anyhow::Ok(())
        })
    }

    /// Runs the CLI against the database of the cache.
    pub fn crowsnest_cache(&self, args: &[&str]) -> Result<CommandOutput> {
        run_with(&[&["cache"], args].concat(), &[("CROWSNEST_DB", &self.site().database)])
    }

    /// `None` if Postgres is not available.
    pub fn start() -> Result<Option<Self>> {
        let runtime = Runtime::new()?;
        let Some(database) = runtime.block_on(Database::create()) else { return Ok(None) };
        let dir = tempfile::tempdir()?;
        let (control_plane, member) =
            (Apiserver::start(&dir.path().join("cp"))?, Apiserver::start(&dir.path().join("m1"))?);
        let to_cp = runtime.block_on(client(&control_plane.kubeconfig))?;
        let to_m1 = runtime.block_on(client(&member.kubeconfig))?;
        Ok(Some(Self { control_plane, member, database, dir, to_cp, to_m1, port: free_port()?, runtime }))
    }

    pub fn crowsnest(&self, args: &[&str]) -> Result<CommandOutput> {
        crowsnest(&self.control_plane.kubeconfig, args)
    }

    pub fn site(&self) -> Site {
        Site {
            control_plane: self.control_plane.kubeconfig.clone(),
            // The server trusts all clients.
            database: self.database.url().replacen('@', &format!(":{PASSWORD}@"), 1),
            folder: self.dir.path().to_owned(),
            flags: QUICKLY.map(str::to_owned).to_vec(),
        }
    }

    /// Three ready replicas behind the common address.
    pub fn serve(&self) -> Result<(Vec<Replica>, Balancer)> {
        let site = self.site();
        let replicas = ["a", "b", "c"].map(|station| Replica::start(station, &site));
        let replicas = replicas.into_iter().collect::<Result<Vec<_>>>()?;
        let balancer = Balancer::start(self.port, replicas.iter().map(Replica::backend))?;
        for replica in &replicas {
            until(&format!("replica {} to be ready", replica.name), || replica.is_ready())
                .with_context(|| replica.log())?;
        }
        Ok((replicas, balancer))
    }

    pub fn install(&self) -> Result<CommandOutput> {
        self.crowsnest(&["install", "--host", "127.0.0.1", "--port", &self.port.to_string()])
    }

    /// Registers the member's ConfigMaps for the fleet-wide proxy.
    pub fn register(&self) -> Result<()> {
        let registries = objects(&self.to_cp, "search.karmada.io", "v1alpha1", "ResourceRegistry", None);
        let registry = object(json!({
            "apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "maps"},
            "spec": {"targetCluster": {"clusterNames": ["m1"]},
                "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]},
        }))?;
        self.runtime.block_on(registries.create(&PostParams::default(), &registry)).context("registering")?;
        Ok(())
    }

    pub fn join(&self) -> Result<()> {
        let kubeconfig = self.member.kubeconfig.display().to_string();
        let mut last = String::new();
        until("the member to be joined", || {
            let output = self.crowsnest(&["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{output:?}");
            Ok(output.ok)
        })
        .context(last)
    }

    /// Creates a ConfigMap and a policy that propagates it to the member.
    pub fn propagate(&self, name: &str) -> Result<()> {
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

    pub fn in_member(&self, name: &str) -> Result<Option<DynamicObject>> {
        let in_member = objects(&self.to_m1, "", "v1", "ConfigMap", Some("default"));
        Ok(self.runtime.block_on(in_member.get_opt(name))?)
    }

    pub fn writes_in_member(&self) -> Result<Vec<String>> {
        member_writes(&self.runtime, &self.member, &self.to_m1)
    }

    pub fn has_arrived(&self, name: &str) -> Result<bool> {
        Ok(self.in_member(name)?.is_some())
    }

    /// Logs of all processes, including the control plane and the member.
    pub fn logs_tell_no_secret(&self) -> Result<()> {
        let (secrets, logs) = (self.secrets()?, self.all_logs()?);
        ensure!(secrets.len() > 3 && logs.len() >= 5, "{} secrets, {} logs", secrets.len(), logs.len());
        for (path, log) in &logs {
            let shown = secrets.iter().position(|secret| log.contains(secret));
            ensure!(shown.is_none(), "{} shows secret {shown:?} of {}", path.display(), secrets.len());
        }
        Ok(())
    }

    /// Values that must not be logged: the database's password, and lines of all Secrets' values except certificates.
    fn secrets(&self) -> Result<Vec<String>> {
        let secrets = objects(&self.to_cp, "", "v1", "Secret", None);
        let mut lines = vec![PASSWORD.to_owned()];
        for secret in self.runtime.block_on(secrets.list(&ListParams::default()))? {
            for (key, value) in secret.data["data"].as_object().into_iter().flatten() {
                if key.ends_with(".crt") || key == "caBundle" {
                    continue;
                }
                let text = String::from_utf8(STANDARD.decode(value.as_str().unwrap_or_default())?)?;
                let is_secret = |line: &&str| line.len() >= 16 && !line.starts_with("-----");
                lines.extend(text.lines().filter(is_secret).map(str::to_owned));
            }
        }
        Ok(lines)
    }

    /// A folder for a client's files.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// All logs of all processes, including stopped ones.
    pub fn all_logs(&self) -> Result<Vec<(PathBuf, String)>> {
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

    /// Versions of all installed objects.
    pub fn versions(&self) -> Result<BTreeMap<String, Option<String>>> {
        let kept = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "crowsnest-serving", "namespace": "karmada-system"}});
        versions(&self.runtime, &self.to_cp, &self.control_plane.kubeconfig, &[], vec![kept])
    }

    /// The holders of the leases, by the control plane.
    pub fn holders(&self) -> Result<BTreeSet<Option<String>>> {
        let leases = objects(&self.to_cp, "coordination.k8s.io", "v1", "Lease", Some("karmada-system"));
        let mut holders = BTreeSet::new();
        for name in LEASES {
            let lease = self.runtime.block_on(leases.get(name))?;
            holders.insert(lease.data["spec"]["holderIdentity"].as_str().map(str::to_owned));
        }
        Ok(holders)
    }
}
