//! The parts of `crowsnest bench propagate` and `failover`, each a process of its own: API servers, simulated members, and the
//! controllers with their cache.
//!
//! A part's first line of output says how it is reached. Then it answers each line of its input with one of its output,
//! until its input ends.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use crowsnest_component_base::kubeconfig;
use crowsnest_controllers::cache::chosen_labels;
use crowsnest_controllers::runtime::Manager;
use crowsnest_index::{Index, IndexOptions};
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_plan::gates::Gates;
use crowsnest_sim::member::faults::{Faults, Listening};
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

/// Nothing happens for so long before the controllers count as quiet; looked at so often.
const STILL: u32 = 20;
const LOOK: Duration = Duration::from_millis(100);
/// Simulated members that start at the same time.
const STARTED_AT_ONCE: usize = 8;

/// How an API server is reached by its administrator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reach {
    pub url: String,
    pub ca: String,
    pub token: String,
    pub kubeconfig: String,
}

impl Reach {
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let file = Kubeconfig::from_yaml(&self.kubeconfig)?;
        Ok(Client::try_from(kubeconfig::config_of(file).await?)?)
    }
}

/// What an API server has come to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Count {
    /// Requests to write that came through its socket.
    pub requests: u64,
    /// Writes that changed something, whoever made them.
    pub revision: u64,
}

/// The controllers once they are quiet.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Quiet {
    /// From the start of their process until then.
    pub after: Duration,
    pub resident: u64,
    /// The most memory so far.
    pub peak: u64,
}

/// An API server that listens.
struct Site {
    server: ApiServer,
    faults: Arc<Faults>,
    _listening: Listening,
    reach: Reach,
}

impl Site {
    async fn open(name: &str, control_plane: bool) -> anyhow::Result<Self> {
        let mut config = Config::new(name, Data::Memory);
        let token = format!("{:032x}", rand::random::<u128>());
        let admin = UserInfo { name: "admin".into(), groups: vec![MASTERS.into()], ..UserInfo::default() };
        config.tokens.insert(token.clone(), admin);
        let names = config.names.clone();
        let server = ApiServer::start(config).await?;
        controllers::start(&server, Controllers::default());
        if control_plane {
            let mut manifests = crowsnest_install::foundations();
            manifests.extend(crowsnest_api::crd::crds(None));
            manifests.push(clusters());
            crowsnest_install::apply_all(&server.admin(), &manifests).await?;
        }
        let faults = Arc::new(Faults::default());
        let router = faults.around(server.router());
        let address = ([127, 0, 0, 1], 0).into();
        let listening = Listening::open(server.clone(), router, names, faults.clone(), address).await?;
        let url = format!("https://{}", listening.address());
        let kubeconfig = server.kubeconfig("admin", &[MASTERS.to_owned()], &url)?;
        let reach = Reach { url, ca: server.authority().certificate().to_owned(), token, kubeconfig };
        Ok(Self { server, faults, _listening: listening, reach })
    }

    fn answer(&self, line: &str) -> anyhow::Result<String> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("limit", writes) => {
                self.faults.set_write_rate(writes.parse()?);
                Ok("limited".to_owned())
            }
            ("count", "") => {
                let revision = self.server.registry().store.revision();
                Ok(serde_json::to_string(&Count { requests: self.faults.writes(), revision })?)
            }
            _ => bail!("{line:?} cannot be answered"),
        }
    }
}

/// Clusters as a kind of the control plane's own, without the aggregated API.
fn clusters() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.karmada.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": "cluster.karmada.io", "scope": "Cluster",
            "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            }],
        },
    })
}

pub(super) fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

pub(super) fn asked() -> Lines<BufReader<tokio::io::Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

/// An API server as a process: a member, or a control plane.
pub(super) async fn serve(name: &str, control_plane: bool) -> anyhow::Result<()> {
    let site = Site::open(name, control_plane).await?;
    say(&serde_json::to_string(&site.reach)?)?;
    let mut asked = asked();
    while let Some(line) = asked.next_line().await? {
        say(&site.answer(&line)?)?;
    }
    Ok(site.server.stop().await?)
}

/// Simulated members in one process, `member1` and so on.
pub(super) async fn simulate(count: usize) -> anyhow::Result<()> {
    let starting = (1..=count).map(|number| Member::start(MemberConfig::new(&member_name(number))));
    let members = stream::iter(starting).buffered(STARTED_AT_ONCE).try_collect::<Vec<_>>().await?;
    let kubeconfigs = members.iter().map(|member| member.kubeconfig()).collect::<Result<Vec<String>, _>>()?;
    say(&serde_json::to_string(&kubeconfigs)?)?;
    let mut asked = asked();
    if let Some(line) = asked.next_line().await? {
        bail!("{line:?} cannot be answered");
    }
    try_join_all(members.iter().map(|member| member.stop())).await?;
    Ok(())
}

/// Name of a member, counted from 1.
pub(super) fn member_name(number: usize) -> String {
    format!("member{number}")
}

/// What the controllers do beside what they always do.
fn settings(evicts: bool) -> crowsnest_controllers::runtime::Config {
    let standard = crowsnest_controllers::runtime::Config::default();
    let gates = Gates { failover: evicts, ..standard.gates };
    crowsnest_controllers::runtime::Config { gates, no_execute_taint_eviction: evicts, ..standard }
}

/// The controllers as a process, with a cache in `dir`: of the control plane that a kubeconfig names, or of their own. Taints
/// evict if `evicts`.
pub(super) async fn control(dir: &Path, kubeconfig: Option<&Path>, evicts: bool) -> anyhow::Result<()> {
    let began = Instant::now();
    let (site, client) = match kubeconfig {
        Some(path) => {
            let config = kubeconfig::config(Some(path), None).await?;
            say("{}")?;
            (None, Client::try_from(config)?)
        }
        None => {
            let site = Site::open("control-plane", true).await?;
            say(&serde_json::to_string(&site.reach)?)?;
            let client = site.server.admin();
            (Some(site), client)
        }
    };
    let fleet = Fleet::start(client, FleetOptions::on_loopback()).await?;
    let options = IndexOptions { chosen_labels: chosen_labels(), ..IndexOptions::new(dir) };
    let index = Index::open(fleet, options).await?;
    let stop = CancellationToken::new();
    let manager = Manager::start(index.clone(), settings(evicts), stop.clone());
    let mut asked = asked();
    while let Some(line) = asked.next_line().await? {
        match (line.as_str(), &site) {
            ("quiet", _) => {
                let after = quiet(&manager, &index, began).await?;
                let (resident, peak) = (super::resident_bytes()?, peak_bytes()?);
                say(&serde_json::to_string(&Quiet { after, resident, peak })?)?;
            }
            (_, Some(site)) => say(&site.answer(&line)?)?,
            (_, None) => bail!("{line:?} cannot be answered"),
        }
    }
    manager.stop().await;
    index.stop().await;
    index.fleet().stop().await;
    match site {
        Some(site) => Ok(site.server.stop().await?),
        None => Ok(()),
    }
}

/// Waits until the controllers have nothing to do and hear of nothing; since when, from `began` on.
async fn quiet(manager: &Manager, index: &Index, began: Instant) -> anyhow::Result<Duration> {
    manager.health().wait_for(Result::is_ok).await?;
    loop {
        manager.idle().await;
        let (since, heard) = (began.elapsed(), index.seq());
        let mut looks = 0;
        while looks < STILL && index.seq() == heard && manager.idle().now_or_never().is_some() {
            tokio::time::sleep(LOOK).await;
            looks += 1;
        }
        if looks == STILL {
            return Ok(since);
        }
    }
}

fn peak_bytes() -> anyhow::Result<u64> {
    super::memory("self", "VmHWM:")
}

/// A part, as whoever started it sees it. It ends when this is dropped.
pub(super) struct Part {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    first: String,
}

impl Part {
    async fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(arguments, &[]).await
    }

    /// The same with something in its environment.
    async fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("bench")
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {arguments:?}"))?;
        let input = child.stdin.take().context("a part has no input")?;
        let mut output = BufReader::new(child.stdout.take().context("a part has no output")?).lines();
        let first = output.next_line().await?.with_context(|| format!("{arguments:?} ended at once"))?;
        Ok(Self { child, input, output, first })
    }

    pub(super) async fn server(name: &str, control_plane: bool) -> anyhow::Result<Self> {
        let mut arguments = vec!["server", "--name", name];
        arguments.extend(control_plane.then_some("--control-plane"));
        Self::start(&arguments).await
    }

    /// The controllers, of a control plane elsewhere or of their own.
    pub(super) async fn controllers(dir: &Path, control_plane: Option<&Path>) -> anyhow::Result<Self> {
        let (dir, file) = (dir.display().to_string(), control_plane.map(|file| file.display().to_string()));
        let mut arguments = vec!["controllers", "--cache-dir", dir.as_str()];
        arguments.extend(file.iter().flat_map(|file| ["--kubeconfig", file.as_str()]));
        Self::start(&arguments).await
    }

    /// The same, where taints evict.
    pub(super) async fn evicting_controllers(dir: &Path, control_plane: &Path) -> anyhow::Result<Self> {
        let (dir, file) = (dir.display().to_string(), control_plane.display().to_string());
        Self::start(&["controllers", "--evict", "--cache-dir", &dir, "--kubeconfig", &file]).await
    }

    /// A process with a cache that others share: by which variable it is named, and its URL.
    pub(super) async fn replica(dir: &Path, control_plane: &Path, database: (&str, &str)) -> anyhow::Result<Self> {
        let (dir, file) = (dir.display().to_string(), control_plane.display().to_string());
        Self::start_in(&["replica", "--cache-dir", &dir, "--kubeconfig", &file], &[database]).await
    }

    /// What tells so many listeners something without a server; it listens.
    pub(super) async fn floor(listeners: usize, writes: usize, bytes: usize, every: Duration) -> anyhow::Result<Self> {
        let numbers = [listeners, writes, bytes, every.as_millis() as usize].map(|number| number.to_string());
        let [listeners, writes, bytes, every] = numbers.each_ref().map(String::as_str);
        Self::start(&["floor", "--listeners", listeners, "--writes", writes, "--bytes", bytes, "--every", every]).await
    }

    /// The first line that it said.
    pub(super) fn first(&self) -> &str {
        &self.first
    }

    /// Simulated members, and how each is reached.
    pub(super) async fn simulated(count: usize) -> anyhow::Result<(Self, Vec<Kubeconfig>)> {
        let part = Self::start(&["simulated", "--count", &count.to_string()]).await?;
        let kubeconfigs: Vec<String> = serde_json::from_str(&part.first)?;
        let kubeconfigs = kubeconfigs.iter().map(|text| Kubeconfig::from_yaml(text)).collect::<Result<_, _>>()?;
        Ok((part, kubeconfigs))
    }

    /// Time that it has had of a processor so far.
    pub(super) fn busy(&self) -> anyhow::Result<Duration> {
        let process = self.child.id().context("a part ended by itself")?;
        // A tick is a hundredth of a second.
        Ok(Duration::from_millis(super::ticks(&process.to_string())? * 10))
    }

    pub(super) fn reach(&self) -> anyhow::Result<Reach> {
        Ok(serde_json::from_str(&self.first)?)
    }

    pub(super) async fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        self.output.next_line().await?.with_context(|| format!("a part ended when it was asked {line:?}"))
    }

    /// So many writes a second from now on; 0 for no limit.
    pub(super) async fn limit(&mut self, writes: u32) -> anyhow::Result<()> {
        self.ask(&format!("limit {writes}")).await.map(drop)
    }

    pub(super) async fn count(&mut self) -> anyhow::Result<Count> {
        Ok(serde_json::from_str(&self.ask("count").await?)?)
    }

    pub(super) async fn quiet(&mut self) -> anyhow::Result<Quiet> {
        Ok(serde_json::from_str(&self.ask("quiet").await?)?)
    }

    /// As a power cut would.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.input);
        let ended = self.child.wait().await?;
        anyhow::ensure!(ended.success(), "a part ended with {ended}");
        Ok(())
    }
}
