//! A control plane and three members, each an API server with its own audit log, and `crowsnest serve` with an account
//! that has no other use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Apiserver, CommandOutput, Kubectl, Process, binary, free_port, kubectl, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::least_rights::grants::Rbac;
use crate::least_rights::used::{Records, records};
use crate::serve::relay::Balancer;
use crate::serve::site::{Replica, Site, run};

const POLICY: &str = include_str!("audit-policy.yaml");
const SERVER: &str = include_str!("server.yaml");
const CALLERS: &str = include_str!("callers.yaml");
const IN_MEMBERS: &str = include_str!("members.yaml");
/// The members: one observed, one steered, one registered by its agent.
pub const MEMBERS: [&str; 3] = ["east", "south", "west"];

static MARKS: AtomicUsize = AtomicUsize::new(0);

/// An API server and its administrator.
pub struct Server {
    api: Apiserver,
    pub kubectl: Kubectl,
    /// Bindings that every API server creates at its start.
    pub defaults: BTreeSet<String>,
}

impl Server {
    fn start(folder: &Path, name: &str, policy: &Path, program: &Path) -> Result<Self> {
        let policy = policy.display().to_string();
        let api = Apiserver::start_with(&folder.join(name), &["--audit-policy-file", &policy])?;
        let kubectl =
            Kubectl::new("any", program.to_owned(), &api.kubeconfig, &folder.join(format!("{name}-kubectl")))?;
        let defaults = Rbac::read(&kubectl)?.bindings().into_keys().collect();
        Ok(Self { api, kubectl, defaults })
    }

    pub fn kubeconfig(&self) -> String {
        self.api.kubeconfig.display().to_string()
    }

    /// `https://host:port`.
    pub fn url(&self) -> Result<String> {
        let kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(&self.api.kubeconfig)?)?;
        let server = kubeconfig.pointer("/clusters/0/cluster/server").and_then(Value::as_str);
        Ok(server.context("a kubeconfig of no server")?.to_owned())
    }

    /// The rights that all users have used so far.
    pub fn records(&self) -> Result<Records> {
        // Records are written in order, so all earlier records are complete when the mark appears.
        let mark = format!("mark-{}", MARKS.fetch_add(1, Ordering::Relaxed));
        self.kubectl.run(&["get", "configmap", &mark], "")?;
        let mut log = String::new();
        until("the audit log to be written", || {
            log = fs::read_to_string(self.api.audit_log())?;
            Ok(log.contains(&format!("{mark}\"")))
        })?;
        Ok(records(&log))
    }

    /// Kubeconfig of a service account, as its pod would have it.
    pub fn account(&self, folder: &Path, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.kubectl.ok(&["create", "token", name, "-n", namespace, "--duration=2h"], "")?;
        let mut kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(&self.api.kubeconfig)?)?;
        for user in kubeconfig["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({"token": token.trim()});
        }
        let file = folder.join(format!("{namespace}-{name}.kubeconfig"));
        fs::write(&file, kubeconfig.to_string())?;
        Ok(file)
    }
}

/// See the module.
pub struct World {
    pub servers: BTreeMap<&'static str, Server>,
    replica: Replica,
    _balancer: Balancer,
    dir: TempDir,
}

impl World {
    /// `None` if kubectl is not available.
    pub fn start() -> Result<Option<Self>> {
        let Some(program) = kubectl("")? else { return Ok(None) };
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
        control_plane.kubectl.ok(&["apply", "-f", "-"], SERVER)?;
        control_plane.kubectl.ok(&["apply", "-f", "-"], CALLERS)?;
        for member in MEMBERS {
            servers[member].kubectl.ok(&["apply", "-f", "-"], IN_MEMBERS)?;
        }
        let flags = ["--cluster-status-update-frequency=2s", "--cluster-success-threshold=1s"];
        let site = Site {
            control_plane: control_plane.account(dir.path(), "karmada-system", "crowsnest")?,
            database: "sqlite:".to_owned(),
            folder: dir.path().to_owned(),
            flags: flags.map(str::to_owned).to_vec(),
        };
        let replica = Replica::start("serve", &site)?;
        let balancer = Balancer::start(port, [replica.backend()])?;
        until("it to be ready", || replica.is_ready()).with_context(|| replica.log())?;
        Ok(Some(Self { servers, replica, _balancer: balancer, dir }))
    }

    pub fn at(&self, server: &str) -> &Server {
        &self.servers[server]
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
        command.args(args).env("KUBECONFIG", self.at("cp").kubeconfig());
        CommandOutput::of(&command.output()?)
    }

    /// Starts a background process with its own log.
    pub fn spawn(&self, args: &[String], log: &str) -> Result<Process> {
        let mut command = Command::new(binary()?);
        command.arg("-v").args(args).env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(self.log_file(log))?);
        Ok(Process::spawn(&mut command)?)
    }

    pub fn log_of(&self, log: &str) -> String {
        fs::read_to_string(self.log_file(log)).unwrap_or_default()
    }

    fn log_file(&self, log: &str) -> PathBuf {
        self.folder().join(format!("{log}.log"))
    }
}
