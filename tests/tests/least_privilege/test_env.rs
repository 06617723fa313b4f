//! A control plane and three members, each an API server with its own audit log, and `crowsnest serve` with an account
//! that has no other use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, CommandOutput, Kubectl, Process, binary, find_kubectl, free_port, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::least_privilege::grants::Rbac;
use crate::least_privilege::records::{Records, parse_records};
use crate::serve::network::Balancer;
use crate::serve::replica::{Replica, ReplicaConfig, run};

const POLICY: &str = include_str!("audit-policy.yaml");
const SERVER: &str = include_str!("server.yaml");
const CALLERS: &str = include_str!("callers.yaml");
const MEMBER_OBJECTS: &str = include_str!("members.yaml");
/// The members: one joined with `--rights observe`, one with `--rights steer:…`, one registered by its agent.
pub const MEMBERS: [&str; 3] = ["east", "south", "west"];

/// Number of markers in audit logs so far, in all servers; see [`Server::records`].
static MARKERS: AtomicUsize = AtomicUsize::new(0);

/// An API server and its administrator.
pub struct Server {
    api: Apiserver,
    pub kubectl: Kubectl,
    /// Bindings that every API server creates at its start.
    pub default_bindings: BTreeSet<String>,
}

impl Server {
    fn start(folder: &Path, name: &str, policy: &Path, program: &Path) -> Result<Self> {
        let policy = policy.display().to_string();
        let api = Apiserver::start_with(&folder.join(name), &["--audit-policy-file", &policy])?;
        let kubectl =
            Kubectl::new("any", program.to_owned(), &api.kubeconfig, &folder.join(format!("{name}-kubectl")))?;
        let default_bindings = Rbac::read(&kubectl)?.bindings().into_keys().collect();
        Ok(Self { api, kubectl, default_bindings })
    }

    pub fn kubeconfig(&self) -> String {
        self.api.kubeconfig.display().to_string()
    }

    /// `https://host:port`.
    pub fn url(&self) -> Result<String> {
        let kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(&self.api.kubeconfig)?)?;
        let server = kubeconfig.pointer("/clusters/0/cluster/server").and_then(Value::as_str);
        Ok(server.context("the kubeconfig has no server")?.to_owned())
    }

    /// Minor version of Kubernetes 1 that the API server implements.
    pub fn minor_version(&self) -> Result<u32> {
        let version: Value = serde_json::from_str(&self.kubectl.run_ok(&["get", "--raw", "/version"], "")?)?;
        let minor = version["minor"].as_str().context("the version has no minor number")?;
        Ok(minor.parse()?)
    }

    /// The permissions that all users have used so far.
    pub fn records(&self) -> Result<Records> {
        // Records are written in order, so all earlier records are complete when the marker appears.
        let marker = format!("marker-{}", MARKERS.fetch_add(1, Ordering::Relaxed));
        self.kubectl.run(&["get", "configmap", &marker], "")?;
        let mut log = String::new();
        wait_for("the audit log to be written", || {
            log = fs::read_to_string(self.api.audit_log())?;
            Ok(log.contains(&format!("{marker}\"")))
        })?;
        Ok(parse_records(&log))
    }

    /// Writes a kubeconfig with a token of a service account.
    pub fn account_kubeconfig(&self, folder: &Path, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.kubectl.run_ok(&["create", "token", name, "-n", namespace, "--duration=2h"], "")?;
        let mut kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(&self.api.kubeconfig)?)?;
        for user in kubeconfig["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({"token": token.trim()});
        }
        let file = folder.join(format!("{namespace}-{name}.kubeconfig"));
        fs::write(&file, kubeconfig.to_string())?;
        Ok(file)
    }
}

/// The running API servers and `crowsnest serve`.
pub struct TestEnv {
    pub servers: BTreeMap<&'static str, Server>,
    replica: Replica,
    _balancer: Balancer,
    dir: TempDir,
}

impl TestEnv {
    /// `None` if kubectl is not available.
    pub fn start() -> Result<Option<Self>> {
        let Some(program) = find_kubectl("")? else { return Ok(None) };
        let dir = tempfile::tempdir()?;
        let policy = dir.path().join("audit-policy.yaml");
        fs::write(&policy, POLICY)?;
        let mut servers = BTreeMap::new();
        for name in ["cp"].into_iter().chain(MEMBERS) {
            servers.insert(name, Server::start(dir.path(), name, &policy, &program)?);
        }
        let control_plane = &servers["cp"];
        let port = free_port()?;
        let installing = ["install", "--host", "127.0.0.1", "--port", &port.to_string(), "--kubeconfig"];
        let output = run(&[&installing[..], &[&control_plane.kubeconfig()]].concat())?;
        ensure!(output.ok, "{output:?}");
        control_plane.kubectl.run_ok(&["apply", "-f", "-"], SERVER)?;
        control_plane.kubectl.run_ok(&["apply", "-f", "-"], CALLERS)?;
        for member in MEMBERS {
            servers[member].kubectl.run_ok(&["apply", "-f", "-"], MEMBER_OBJECTS)?;
        }
        let flags = ["--cluster-status-update-frequency=2s", "--cluster-success-threshold=1s"];
        let config = ReplicaConfig {
            control_plane: control_plane.account_kubeconfig(dir.path(), "karmada-system", "crowsnest")?,
            database: "sqlite:".to_owned(),
            folder: dir.path().to_owned(),
            flags: flags.map(str::to_owned).to_vec(),
        };
        let replica = Replica::start("serve", &config)?;
        let balancer = Balancer::start(port, [replica.backend()])?;
        wait_for("the replica to be ready", || replica.is_ready()).with_context(|| replica.log())?;
        Ok(Some(Self { servers, replica, _balancer: balancer, dir }))
    }

    /// The control plane (`cp`) or a member.
    pub fn server(&self, name: &str) -> &Server {
        &self.servers[name]
    }

    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub fn log(&self) -> String {
        self.replica.log()
    }

    /// Runs the CLI as an administrator of the control plane.
    pub fn crowsnest(&self, args: &[&str]) -> Result<CommandOutput> {
        let mut command = Command::new(binary()?);
        command.args(args).env("KUBECONFIG", self.server("cp").kubeconfig());
        CommandOutput::parse(&command.output()?)
    }

    /// Starts a background process with its own log.
    pub fn spawn(&self, args: &[String], log: &str) -> Result<Process> {
        let mut command = Command::new(binary()?);
        command.arg("-v").args(args).env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(self.log_file(log))?);
        Ok(Process::spawn(&mut command)?)
    }

    /// Log of a background process.
    pub fn log_of(&self, log: &str) -> String {
        fs::read_to_string(self.log_file(log)).unwrap_or_default()
    }

    fn log_file(&self, log: &str) -> PathBuf {
        self.folder().join(format!("{log}.log"))
    }
}
