//! Processes of `crowsnest bench propagate`, `failover`, `schedule`, `slow-member` and `writes`: API servers, simulated
//! members, and the controllers with their cache.
//!
//! A process writes its connection data as the first line of its output. It then writes one line of output for each
//! line of input and stops when its input ends.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::audit::log::{AuditLog, Destination, LogFile, Writer};
use crowsnest_apiserver::audit::policy::Policy;
use crowsnest_component_base::kubeconfig;
use crowsnest_controllers::cache::indexed_labels;
use crowsnest_controllers::runtime::Manager;
use crowsnest_index::{CacheOptions, GlobalCache};
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_plan::gates::Gates;
use crowsnest_sim::member::faults::{Faults, Listener};
use crowsnest_sim::member::shape::NodeShape;
use crowsnest_sim::member::{Member, MemberConfig};
use futures::future::try_join_all;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::config::Kubeconfig;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

/// Number of consecutive checks without activity after which the controllers count as idle.
const IDLE_CHECKS: u32 = 20;
/// Interval between checks for activity.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// User of the controllers in the audit log.
pub(super) const CONTROLLERS: &str = "controllers";
/// Maximum number of simulated members that start concurrently.
const MAX_CONCURRENT_STARTS: usize = 8;

/// Connection of an administrator to an API server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AdminConnection {
    pub url: String,
    pub ca: String,
    pub token: String,
    pub kubeconfig: String,
    /// Kubeconfig of the user [`CONTROLLERS`], also an administrator.
    pub controllers_kubeconfig: String,
}

impl AdminConnection {
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let file = Kubeconfig::from_yaml(&self.kubeconfig)?;
        Ok(Client::try_from(kubeconfig::config_from_content(file).await?)?)
    }
}

/// Numbers of writes to an API server.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct WriteCounts {
    /// Write requests received over its socket.
    pub requests: u64,
    /// Writes that changed an object, from any source.
    pub changes: u64,
}

/// State of the controllers once they are idle.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct IdleReport {
    /// Time since the start of the process.
    pub after: Duration,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Peak resident memory in bytes.
    pub peak_bytes: u64,
}

/// A listening API server with fault injection and, optionally, an audit log.
struct BenchApiServer {
    api: ApiServer,
    faults: Arc<Faults>,
    _listener: Listener,
    connection: AdminConnection,
    audit: Option<Writer>,
}

impl BenchApiServer {
    async fn open(name: &str, control_plane: bool, audit_log: Option<&Path>) -> anyhow::Result<Self> {
        let mut config = Config::new(name, Data::Memory);
        let audit = match audit_log {
            Some(path) => {
                let (path, max_bytes, max_backups, max_age_days) = (path.to_owned(), 0, 0, 0);
                let files = LogFile { path, max_bytes, max_backups, max_age_days };
                let (log, writer) = AuditLog::start(Destination::File(files)).context("cannot open the audit log")?;
                config.requests.auditor = Auditor::new(Policy::default(), log, ());
                Some(writer)
            }
            None => None,
        };
        let token = format!("{:032x}", rand::random::<u128>());
        let admin = UserInfo { name: "admin".into(), groups: vec![MASTERS.into()], ..UserInfo::default() };
        config.accept_token(token.clone(), admin);
        let names = config.certificate_names.clone();
        let server = ApiServer::start(config).await?;
        controllers::start(&server, Controllers::default());
        if control_plane {
            let mut manifests = crowsnest_install::base_manifests();
            manifests.extend(crowsnest_api::crd::crds(None));
            manifests.push(cluster_definition());
            crowsnest_install::apply_all(&server.admin(), &manifests).await?;
        }
        let faults = Arc::new(Faults::default());
        let router = faults.wrap_router(server.router());
        let address = ([127, 0, 0, 1], 0).into();
        let listener = Listener::open(server.clone(), router, names, faults.clone(), address).await?;
        let url = format!("https://{}", listener.address());
        let kubeconfig = server.kubeconfig("admin", &[MASTERS.to_owned()], &url)?;
        let controllers_kubeconfig = server.kubeconfig(CONTROLLERS, &[MASTERS.to_owned()], &url)?;
        let ca = server.authority().certificate().to_owned();
        let connection = AdminConnection { url, ca, token, kubeconfig, controllers_kubeconfig };
        Ok(Self { api: server, faults, _listener: listener, connection, audit })
    }

    /// Stops the server, then flushes the audit log.
    async fn stop(self) -> anyhow::Result<()> {
        self.api.stop().await?;
        if let Some(audit) = self.audit {
            audit.stop().await;
        }
        Ok(())
    }

    fn execute(&self, line: &str) -> anyhow::Result<String> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("limit", writes) => {
                self.faults.set_write_rate(writes.parse()?);
                Ok("limited".to_owned())
            }
            ("delay", milliseconds) => {
                self.faults.set_delay(Duration::from_millis(milliseconds.parse()?));
                Ok("delayed".to_owned())
            }
            ("count", "") => {
                let changes = self.api.registry().store.revision();
                Ok(serde_json::to_string(&WriteCounts { requests: self.faults.writes(), changes })?)
            }
            _ => bail!("unknown request {line:?}"),
        }
    }
}

/// A CustomResourceDefinition for Clusters, instead of the aggregated API.
fn cluster_definition() -> Value {
    let any_object = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.karmada.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": "cluster.karmada.io", "scope": "Cluster",
            "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema":
                    {"type": "object", "properties": {"spec": any_object, "status": any_object}}},
            }],
        },
    })
}

/// Writes a line to standard output and flushes it.
pub(super) fn write_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

pub(super) fn stdin_lines() -> Lines<BufReader<tokio::io::Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

/// Runs an API server process: a member or a control plane.
pub(super) async fn run_apiserver(name: &str, control_plane: bool, audit_log: Option<&Path>) -> anyhow::Result<()> {
    let server = BenchApiServer::open(name, control_plane, audit_log).await?;
    write_line(&serde_json::to_string(&server.connection)?)?;
    let mut commands = stdin_lines();
    while let Some(line) = commands.next_line().await? {
        write_line(&server.execute(&line)?)?;
    }
    server.stop().await
}

/// Runs simulated members `member1`, `member2`, … in one process.
pub(super) async fn run_simulated_members(count: usize, nodes: usize) -> anyhow::Result<()> {
    let start = |number: usize| {
        let node_shapes = Some(vec![NodeShape { count: nodes, ..NodeShape::default() }]);
        Member::start(MemberConfig { node_shapes, ..MemberConfig::new(&member_name(number)) })
    };
    let starts = (1..=count).map(start);
    let members = stream::iter(starts).buffered(MAX_CONCURRENT_STARTS).try_collect::<Vec<_>>().await?;
    let kubeconfigs = members.iter().map(|member| member.kubeconfig()).collect::<Result<Vec<String>, _>>()?;
    write_line(&serde_json::to_string(&kubeconfigs)?)?;
    let mut commands = stdin_lines();
    if let Some(line) = commands.next_line().await? {
        bail!("unknown request {line:?}");
    }
    try_join_all(members.iter().map(|member| member.stop())).await?;
    Ok(())
}

/// Name of a member; numbers start with 1.
pub(super) fn member_name(number: usize) -> String {
    format!("member{number}")
}

/// Controller configuration; `evict` enables evictions by taints.
fn controller_config(evict: bool) -> crowsnest_controllers::runtime::Config {
    let defaults = crowsnest_controllers::runtime::Config::default();
    let gates = Gates { failover: evict, ..defaults.gates };
    crowsnest_controllers::runtime::Config { gates, no_execute_taint_eviction: evict, ..defaults }
}

/// Runs the controllers with a cache in `dir`, against the control plane of a kubeconfig or an embedded one.
pub(super) async fn run_controllers(dir: &Path, kubeconfig: Option<&Path>, evict: bool) -> anyhow::Result<()> {
    let start = Instant::now();
    let (server, client) = match kubeconfig {
        Some(path) => {
            let config = kubeconfig::load_config(Some(path), None).await?;
            write_line("{}")?;
            (None, Client::try_from(config)?)
        }
        None => {
            let server = BenchApiServer::open("control-plane", true, None).await?;
            write_line(&serde_json::to_string(&server.connection)?)?;
            let client = server.api.admin();
            (Some(server), client)
        }
    };
    let fleet = Fleet::start(client, FleetOptions::on_loopback()).await?;
    let options = CacheOptions { indexed_labels: indexed_labels(), ..CacheOptions::new(dir) };
    let cache = GlobalCache::open(fleet, options).await?;
    let stop = CancellationToken::new();
    let manager = Manager::start(cache.clone(), controller_config(evict), stop.clone());
    let mut commands = stdin_lines();
    while let Some(line) = commands.next_line().await? {
        match (line.as_str(), &server) {
            ("idle", _) => {
                let after = wait_until_idle(&manager, &cache, start).await?;
                let (resident_bytes, peak_bytes) = (super::resident_bytes()?, peak_bytes()?);
                write_line(&serde_json::to_string(&IdleReport { after, resident_bytes, peak_bytes })?)?;
            }
            (_, Some(server)) => write_line(&server.execute(&line)?)?,
            (_, None) => bail!("unknown request {line:?}"),
        }
    }
    manager.stop().await;
    cache.stop().await;
    cache.fleet().stop().await;
    match server {
        Some(server) => server.stop().await,
        None => Ok(()),
    }
}

/// Waits until the controllers are idle and receive no changes; returns the time since `start`.
async fn wait_until_idle(manager: &Manager, cache: &GlobalCache, start: Instant) -> anyhow::Result<Duration> {
    manager.health().wait_for(Result::is_ok).await?;
    loop {
        manager.wait_until_idle().await;
        let (since, seq) = (start.elapsed(), cache.seq());
        let mut checks = 0;
        while checks < IDLE_CHECKS && cache.seq() == seq && manager.wait_until_idle().now_or_never().is_some() {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
            checks += 1;
        }
        if checks == IDLE_CHECKS {
            return Ok(since);
        }
    }
}

fn peak_bytes() -> anyhow::Result<u64> {
    super::proc_status_bytes("self", "VmHWM:")
}

/// A child process; dropping it kills it.
pub(super) struct BenchProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    first_line: String,
}

impl BenchProcess {
    async fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        Self::start_with_environment(arguments, &[]).await
    }

    /// Starts a process with additional environment variables.
    async fn start_with_environment(arguments: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("bench")
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {arguments:?}"))?;
        let input = child.stdin.take().context("the process has no standard input")?;
        let mut output = BufReader::new(child.stdout.take().context("the process has no standard output")?).lines();
        let first_line = output.next_line().await?.with_context(|| format!("{arguments:?} exited immediately"))?;
        Ok(Self { child, input, output, first_line })
    }

    pub(super) async fn start_server(name: &str, control_plane: bool) -> anyhow::Result<Self> {
        let mut arguments = vec!["server", "--name", name];
        arguments.extend(control_plane.then_some("--control-plane"));
        Self::start(&arguments).await
    }

    /// Starts a control plane with an audit log.
    pub(super) async fn start_audited_control_plane(audit_log: &Path) -> anyhow::Result<Self> {
        let path = audit_log.display().to_string();
        Self::start(&["server", "--name", "control-plane", "--control-plane", "--audit-log", &path]).await
    }

    /// Starts the controllers, for a separate or an embedded control plane.
    pub(super) async fn start_controllers(dir: &Path, control_plane: Option<&Path>) -> anyhow::Result<Self> {
        let (dir, file) = (dir.display().to_string(), control_plane.map(|file| file.display().to_string()));
        let mut arguments = vec!["controllers", "--cache-dir", dir.as_str()];
        arguments.extend(file.iter().flat_map(|file| ["--kubeconfig", file.as_str()]));
        Self::start(&arguments).await
    }

    /// Starts the controllers with evictions by taints.
    pub(super) async fn start_evicting_controllers(dir: &Path, control_plane: &Path) -> anyhow::Result<Self> {
        let (dir, file) = (dir.display().to_string(), control_plane.display().to_string());
        Self::start(&["controllers", "--evict", "--cache-dir", &dir, "--kubeconfig", &file]).await
    }

    /// Starts a replica with a shared cache; `database` is the environment variable and its value.
    pub(super) async fn start_replica(
        dir: &Path,
        control_plane: &Path,
        database: (&str, &str),
    ) -> anyhow::Result<Self> {
        let (dir, file) = (dir.display().to_string(), control_plane.display().to_string());
        Self::start_with_environment(&["replica", "--cache-dir", &dir, "--kubeconfig", &file], &[database]).await
    }

    /// Starts the event source without an API server.
    pub(super) async fn start_event_source(
        listeners: usize,
        writes: usize,
        bytes: usize,
        interval: Duration,
    ) -> anyhow::Result<Self> {
        let numbers = [listeners, writes, bytes, interval.as_millis() as usize].map(|number| number.to_string());
        let [listeners, writes, bytes, interval] = numbers.each_ref().map(String::as_str);
        Self::start(&["floor", "--listeners", listeners, "--writes", writes, "--bytes", bytes, "--every", interval])
            .await
    }

    /// The first line of output.
    pub(super) fn first_line(&self) -> &str {
        &self.first_line
    }

    /// Starts simulated members; returns their kubeconfigs.
    pub(super) async fn start_simulated_members(count: usize, nodes: usize) -> anyhow::Result<(Self, Vec<Kubeconfig>)> {
        let process = Self::start(&["simulated", "--count", &count.to_string(), "--nodes", &nodes.to_string()]).await?;
        let kubeconfigs: Vec<String> = serde_json::from_str(&process.first_line)?;
        let kubeconfigs = kubeconfigs.iter().map(|text| Kubeconfig::from_yaml(text)).collect::<Result<_, _>>()?;
        Ok((process, kubeconfigs))
    }

    /// CPU time used so far.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let process = self.child.id().context("the process exited unexpectedly")?;
        // A tick is 10 ms.
        Ok(Duration::from_millis(super::process_cpu_ticks(&process.to_string())? * 10))
    }

    pub(super) fn connection(&self) -> anyhow::Result<AdminConnection> {
        Ok(serde_json::from_str(&self.first_line)?)
    }

    /// Sends one line of input and returns the line of output.
    pub(super) async fn request(&mut self, line: &str) -> anyhow::Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        self.output.next_line().await?.with_context(|| format!("the process exited on request {line:?}"))
    }

    /// Limits writes per second; 0 means no limit.
    pub(super) async fn limit_writes(&mut self, writes: u32) -> anyhow::Result<()> {
        self.request(&format!("limit {writes}")).await.map(drop)
    }

    /// Delays all responses; zero means no delay.
    pub(super) async fn delay_responses(&mut self, delay: Duration) -> anyhow::Result<()> {
        self.request(&format!("delay {}", delay.as_millis())).await.map(drop)
    }

    pub(super) async fn count(&mut self) -> anyhow::Result<WriteCounts> {
        Ok(serde_json::from_str(&self.request("count").await?)?)
    }

    pub(super) async fn wait_until_idle(&mut self) -> anyhow::Result<IdleReport> {
        Ok(serde_json::from_str(&self.request("idle").await?)?)
    }

    /// Kills the process without a shutdown.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.input);
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success(), "the process exited with {status}");
        Ok(())
    }
}
