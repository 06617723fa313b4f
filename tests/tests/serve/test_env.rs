//! A control plane and a member, each in its own process, and replicas of `crowsnest serve`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Apiserver, wait_for};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::serve::member_writes::member_writes;
use crate::serve::network::Balancer;
use crate::serve::postgres::Database;
use crate::serve::replica::{CommandOutput, Replica, ReplicaConfig, client, crowsnest, free_port, run_with};

/// ConfigMaps of all members, from the cache.
pub const FLEET_CONFIG_MAPS: &str =
    "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/namespaces/default/configmaps";
/// Password of the database.
const PASSWORD: &str = "open-sesame-7e1f";
const LEASES: [&str; 3] = ["karmada-controller-manager", "karmada-scheduler", "karmada-descheduler"];
/// Flags with short intervals for the status of clusters.
const FAST_STATUS_FLAGS: [&str; 2] = ["--cluster-status-update-frequency=2s", "--cluster-success-threshold=1s"];

/// API of a kind, in a namespace or of all objects.
pub fn objects(client: &Client, group: &str, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Converts JSON to an object.
pub fn object(value: Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(value)?)
}

/// resourceVersions of all objects that `install` applies with these flags, and of `more_objects`.
pub fn versions(
    runtime: &Runtime,
    control_plane: &Client,
    kubeconfig: &Path,
    flags: &[&str],
    more_objects: Vec<Value>,
) -> Result<BTreeMap<String, Option<String>>> {
    let rendered = crowsnest(kubeconfig, &[&["install", "--dry-run", "-o", "json"], flags].concat())?;
    ensure!(rendered.ok && !rendered.out.contains("tls.key"), "{rendered:?}");
    let rendered: Value = serde_json::from_str(&rendered.out)?;
    let applied = rendered["items"].as_array().cloned().unwrap_or_default();
    let mut versions = BTreeMap::new();
    for item in applied.into_iter().chain(more_objects) {
        let item = object(item)?;
        let kind = item.types.as_ref().context("the object has no kind")?;
        let kind = GroupVersionKind::try_from(kind)?;
        let (namespace, name) = (item.namespace(), item.name_any());
        let found = objects(control_plane, &kind.group, &kind.version, &kind.kind, namespace.as_deref());
        let found = runtime.block_on(found.get(&name)).with_context(|| format!("{} {name}", kind.kind))?;
        versions.insert(format!("{} {name}", kind.kind), found.metadata.resource_version);
    }
    Ok(versions)
}

/// The running processes. See the module.
pub struct TestEnv {
    pub control_plane: Apiserver,
    member: Apiserver,
    database: Database,
    dir: TempDir,
    pub cp_client: Client,
    pub m1_client: Client,
    /// The common address of all replicas.
    pub port: u16,
    pub runtime: Runtime,
}

impl TestEnv {
    /// Changes the cache's schema and format as a later version would. `shared_with` is the oldest format whose
    /// versions can use the new schema; `None` leaves the stored value.
    pub fn make_cache_newer(&self, shared_with: Option<i32>) -> Result<()> {
        let sql = "SET search_path = crowsnest_cache; ALTER TABLE records ADD COLUMN IF NOT EXISTS mood TEXT NOT NULL DEFAULT 'calm'; \
            ALTER TABLE versions ADD COLUMN IF NOT EXISTS mood TEXT; CREATE TABLE IF NOT EXISTS moods (name TEXT)";
        let set_format = "UPDATE crowsnest_cache.format SET version = 999, shared_with = COALESCE($1, shared_with)";
        self.runtime.block_on(async {
            let mut connection = self.database.connect().await;
            sqlx::raw_sql(sql).execute(&mut connection).await?;
            sqlx::query(set_format).bind(shared_with).execute(&mut connection).await?;
            anyhow::Ok(())
        })
    }

    /// Runs the CLI against the database of the cache.
    pub fn crowsnest_cache(&self, args: &[&str]) -> Result<CommandOutput> {
        run_with(&[&["cache"], args].concat(), &[("CROWSNEST_DB", &self.replica_config().database)])
    }

    /// `None` if Postgres is not available.
    pub fn start() -> Result<Option<Self>> {
        let runtime = Runtime::new()?;
        let Some(database) = runtime.block_on(Database::create()) else { return Ok(None) };
        let dir = tempfile::tempdir()?;
        let (control_plane, member) =
            (Apiserver::start(&dir.path().join("cp"))?, Apiserver::start(&dir.path().join("m1"))?);
        let cp_client = runtime.block_on(client(&control_plane.kubeconfig))?;
        let m1_client = runtime.block_on(client(&member.kubeconfig))?;
        Ok(Some(Self { control_plane, member, database, dir, cp_client, m1_client, port: free_port()?, runtime }))
    }

    pub fn crowsnest(&self, args: &[&str]) -> Result<CommandOutput> {
        crowsnest(&self.control_plane.kubeconfig, args)
    }

    pub fn replica_config(&self) -> ReplicaConfig {
        ReplicaConfig {
            control_plane: self.control_plane.kubeconfig.clone(),
            // The server trusts all clients.
            database: self.database.url().replacen('@', &format!(":{PASSWORD}@"), 1),
            folder: self.dir.path().to_owned(),
            flags: FAST_STATUS_FLAGS.map(str::to_owned).to_vec(),
        }
    }

    /// Ready replicas with these names behind the common address.
    pub fn serve(&self, base_names: &[&'static str]) -> Result<(Vec<Replica>, Balancer)> {
        let config = self.replica_config();
        let replicas = base_names.iter().map(|&base_name| Replica::start(base_name, &config));
        let replicas = replicas.collect::<Result<Vec<_>>>()?;
        let balancer = Balancer::start(self.port, replicas.iter().map(Replica::backend))?;
        for replica in &replicas {
            wait_for(&format!("replica {} to be ready", replica.name), || replica.is_ready())
                .with_context(|| replica.log())?;
        }
        Ok((replicas, balancer))
    }

    pub fn install(&self) -> Result<CommandOutput> {
        self.crowsnest(&["install", "--host", "127.0.0.1", "--port", &self.port.to_string()])
    }

    /// Registers the member's ConfigMaps for the fleet-wide proxy.
    pub fn register(&self) -> Result<()> {
        let registries = objects(&self.cp_client, "search.karmada.io", "v1alpha1", "ResourceRegistry", None);
        let registry = object(json!({
            "apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "maps"},
            "spec": {"targetCluster": {"clusterNames": ["m1"]},
                "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]},
        }))?;
        // Until the API server has noticed that the group is available again, it responds with 503.
        wait_for("the registry to be created", || {
            match self.runtime.block_on(registries.create(&PostParams::default(), &registry)) {
                Err(kube::Error::Api(status)) if status.code == 503 => Ok(false),
                result => Ok(result.map(|_| true)?),
            }
        })
    }

    pub fn join(&self) -> Result<()> {
        let kubeconfig = self.member.kubeconfig.display().to_string();
        let mut last = String::new();
        wait_for("the member to be joined", || {
            let output = self.crowsnest(&["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{output:?}");
            Ok(output.ok)
        })
        .context(last)
    }

    /// Creates a ConfigMap and a policy that propagates it to the member.
    pub fn propagate(&self, name: &str) -> Result<()> {
        let policies = objects(&self.cp_client, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("default"));
        let policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
            "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
                "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]},
        });
        let maps = objects(&self.cp_client, "", "v1", "ConfigMap", Some("default"));
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
        let params = PostParams::default();
        self.runtime.block_on(policies.create(&params, &object(policy)?)).context("cannot create the policy")?;
        self.runtime.block_on(maps.create(&params, &object(map)?)).context("cannot create the ConfigMap")?;
        Ok(())
    }

    pub fn get_in_member(&self, name: &str) -> Result<Option<DynamicObject>> {
        let in_member = objects(&self.m1_client, "", "v1", "ConfigMap", Some("default"));
        Ok(self.runtime.block_on(in_member.get_opt(name))?)
    }

    /// Writes that the member has received so far.
    pub fn member_writes(&self) -> Result<Vec<String>> {
        member_writes(&self.runtime, &self.member, &self.m1_client)
    }

    /// True if a ConfigMap exists in the member.
    pub fn has_in_member(&self, name: &str) -> Result<bool> {
        Ok(self.get_in_member(name)?.is_some())
    }

    /// True if the binding of a ConfigMap has the condition FullyApplied.
    pub fn is_fully_applied(&self, name: &str) -> Result<bool> {
        let bindings = objects(&self.cp_client, "work.karmada.io", "v1alpha2", "ResourceBinding", Some("default"));
        let binding = self.runtime.block_on(bindings.get_opt(&format!("{name}-configmap")))?;
        let conditions = binding.as_ref().and_then(|binding| binding.data["status"]["conditions"].as_array());
        let is_true = |condition: &Value| condition["type"] == "FullyApplied" && condition["status"] == "True";
        Ok(conditions.is_some_and(|conditions| conditions.iter().any(is_true)))
    }

    /// Checks the logs of all processes, including the control plane and the member.
    pub fn ensure_logs_contain_no_secrets(&self) -> Result<()> {
        let (secrets, logs) = (self.secrets()?, self.all_logs()?);
        ensure!(secrets.len() > 3 && logs.len() >= 5, "{} secrets, {} logs", secrets.len(), logs.len());
        for (path, log) in &logs {
            let found = secrets.iter().position(|secret| log.contains(secret));
            ensure!(found.is_none(), "{} contains secret {found:?} of {}", path.display(), secrets.len());
        }
        Ok(())
    }

    /// Values that must not be logged: the database's password, and lines of all Secrets' values except certificates.
    fn secrets(&self) -> Result<Vec<String>> {
        let secrets = objects(&self.cp_client, "", "v1", "Secret", None);
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

    /// Creates a folder for a client's files.
    pub fn create_folder(&self, name: &str) -> Result<PathBuf> {
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

    /// resourceVersions of all installed objects.
    pub fn installed_versions(&self) -> Result<BTreeMap<String, Option<String>>> {
        let serving_secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "crowsnest-serving", "namespace": "karmada-system"}});
        versions(&self.runtime, &self.cp_client, &self.control_plane.kubeconfig, &[], vec![serving_secret])
    }

    /// Holder and number of transitions of each leader election lease.
    pub fn lease_transitions(&self) -> Result<Vec<(Option<String>, Option<i64>)>> {
        let leases = objects(&self.cp_client, "coordination.k8s.io", "v1", "Lease", Some("karmada-system"));
        let read = |name: &str| -> Result<(Option<String>, Option<i64>)> {
            let lease = self.runtime.block_on(leases.get(name))?;
            let spec = &lease.data["spec"];
            Ok((spec["holderIdentity"].as_str().map(str::to_owned), spec["leaseTransitions"].as_i64()))
        };
        LEASES.iter().map(|name| read(name)).collect()
    }

    /// Holders of the leader election leases; `None` for a released lease.
    pub fn lease_holders(&self) -> Result<BTreeSet<Option<String>>> {
        let leases = objects(&self.cp_client, "coordination.k8s.io", "v1", "Lease", Some("karmada-system"));
        let mut holders = BTreeSet::new();
        for name in LEASES {
            let lease = self.runtime.block_on(leases.get(name))?;
            holders.insert(lease.data["spec"]["holderIdentity"].as_str().map(str::to_owned));
        }
        Ok(holders)
    }
}
