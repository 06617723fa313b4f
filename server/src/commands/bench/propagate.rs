//! `crowsnest bench propagate`: measures how fast templates and their changes reach the members, the writes to the
//! control plane, and a restart in steady state.
//!
//! Members, control plane and controllers are separate processes. A write limit makes each API server as slow as
//! kube-apiserver with etcd; without one the control plane runs in the controllers' process, as in `crowsnest up`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cache::MeasurementPrinter;
use super::joined_members::JoinedMembers;
use super::processes::{AdminConnection, BenchProcess, IdleReport, WriteCounts, member_name};
use super::scratch::ScratchArgs;
use super::workloads::{self, NAMESPACE, create};

#[derive(Debug, Args)]
pub(super) struct PropagateArgs {
    /// Number of templates, propagated to all members
    #[arg(long, default_value_t = 500)]
    config_maps: usize,
    /// Number of members
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// Kubeconfig file of a real cluster, instead of API servers of the benchmark; repeat for more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["members", "cold"])]
    member_kubeconfig: Vec<PathBuf>,
    /// Writes per second of each API server; 0 means no limit, with the control plane in the controllers' process
    #[arg(long, default_value_t = 250)]
    writes: u32,
    /// Number of sequential changes in steady state
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Number of templates for restarts of the controllers with and without their cache; 0 skips this
    #[arg(long, default_value_t = 0)]
    cold: usize,
}

/// Maximum number of templates created concurrently.
const MAX_CONCURRENT_CREATES: usize = 32;
/// Interval between checks of Clusters, and between two changes.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of every step.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) async fn run(args: &PropagateArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(args.members > 0 && args.config_maps > 0, "--members and --config-maps must be at least 1");
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    let scratch = scratch.create()?;
    measure_propagation(args, &scratch.path().join("propagate"), &mut printer).await?;
    if args.cold > 0 {
        measure_restarts(args, &scratch.path().join("cold"), &mut printer).await?;
    }
    Ok(())
}

/// All processes of the benchmark.
pub(super) struct BenchFleet {
    /// Empty if the members are real clusters.
    members: Vec<BenchProcess>,
    real_members: Option<JoinedMembers>,
    /// `None` if it runs in the controllers' process.
    control_plane: Option<BenchProcess>,
    pub controllers: BenchProcess,
    pub client: Client,
    /// Kubeconfig of the control plane.
    kubeconfig: PathBuf,
}

/// Members of a fleet.
#[derive(Debug, Clone, Copy)]
pub(super) enum FleetMembers<'a> {
    /// API servers of the benchmark.
    Processes(usize),
    /// Real clusters by their kubeconfig files.
    Real(&'a [PathBuf]),
}

impl BenchFleet {
    /// Starts or joins members and waits until they are ready.
    pub(super) async fn start(
        members: FleetMembers<'_>,
        has_own_control_plane: bool,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let mut member_processes = Vec::new();
        if let FleetMembers::Processes(count) = members {
            for number in 1..=count {
                member_processes.push(BenchProcess::start_server(&member_name(number), false).await?);
            }
        }
        let mut fleet = Self::start_controllers(member_processes, has_own_control_plane, dir).await?;
        for (number, member) in fleet.members.iter().enumerate() {
            register(&fleet.client, &member_name(number + 1), &member.connection()?).await?;
        }
        if let FleetMembers::Real(files) = members {
            fleet.real_members = Some(JoinedMembers::join(&fleet.client, files, NAMESPACE).await?);
        }
        let result = fleet.wait_until_ready().await;
        if result.is_err() {
            fleet.remove_real_members().await?;
        }
        result.map(|()| fleet)
    }

    /// Starts the control plane and the controllers.
    async fn start_controllers(
        members: Vec<BenchProcess>,
        has_own_control_plane: bool,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let kubeconfig = dir.join("control-plane.kubeconfig");
        let control_plane = match has_own_control_plane {
            true => Some(BenchProcess::start_server("control-plane", true).await?),
            false => None,
        };
        let file = match &control_plane {
            Some(process) => {
                std::fs::write(&kubeconfig, process.connection()?.kubeconfig)?;
                Some(kubeconfig.as_path())
            }
            None => None,
        };
        let controllers = BenchProcess::start_controllers(&dir.join("cache"), file).await?;
        let client = control_plane.as_ref().unwrap_or(&controllers).connection()?.client().await?;
        Ok(Self { members, real_members: None, control_plane, controllers, client, kubeconfig })
    }

    /// Waits until all members are ready, and creates the namespace of the benchmark.
    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        wait_for_clusters(&self.client, self.member_count()).await?;
        workloads::create_namespace(&self.client).await
    }

    fn member_count(&self) -> usize {
        self.members.len() + self.real_members.as_ref().map_or(0, JoinedMembers::len)
    }

    /// Administrators' clients of the members.
    async fn member_clients(&self) -> anyhow::Result<Vec<Client>> {
        let mut clients: Vec<Client> = self.real_members.iter().flat_map(JoinedMembers::clients).cloned().collect();
        for process in &self.members {
            clients.push(process.connection()?.client().await?);
        }
        Ok(clients)
    }

    /// Removes everything of the benchmark from real members.
    async fn remove_real_members(&self) -> anyhow::Result<()> {
        match &self.real_members {
            Some(members) => members.remove(&self.client, NAMESPACE).await,
            None => Ok(()),
        }
    }

    async fn limit_writes(&mut self, writes: u32) -> anyhow::Result<()> {
        for process in self.members.iter_mut().chain(&mut self.control_plane) {
            process.limit_writes(writes).await?;
        }
        Ok(())
    }

    /// Write counters of the control plane, and the sum of all members.
    async fn counts(&mut self) -> anyhow::Result<(WriteCounts, WriteCounts)> {
        let mut sum = WriteCounts { requests: 0, changes: 0 };
        for member in &mut self.members {
            let count = member.count().await?;
            sum = WriteCounts { requests: sum.requests + count.requests, changes: sum.changes + count.changes };
        }
        Ok((self.control_plane.as_mut().unwrap_or(&mut self.controllers).count().await?, sum))
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.controllers.stop().await?;
        for process in self.members.into_iter().chain(self.control_plane) {
            process.stop().await?;
        }
        Ok(())
    }
}

/// Creates a Cluster and the Secret with its administrator's token.
pub(super) async fn register(client: &Client, name: &str, connection: &AdminConnection) -> anyhow::Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "karmada-cluster"},
        "stringData": {"token": connection.token, "caBundle": connection.ca}});
    create(client, "/api/v1/namespaces/karmada-cluster/secrets", &secret).await?;
    let reference = json!({"namespace": "karmada-cluster", "name": name});
    let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
        "spec": {"syncMode": "Push", "apiEndpoint": connection.url, "secretRef": reference,
            "impersonatorSecretRef": reference}});
    create(client, "/apis/cluster.karmada.io/v1alpha1/clusters", &cluster).await
}

/// Waits until this many clusters are ready and untainted.
pub(super) async fn wait_for_clusters(client: &Client, clusters: usize) -> anyhow::Result<()> {
    let is_usable = |cluster: &&Value| {
        let conditions = cluster["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|one| one["type"] == "Ready" && one["status"] == "True");
        ready.next().is_some()
            && cluster["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
            && cluster["metadata"]["finalizers"].is_array()
    };
    let polling = async {
        loop {
            let request = http::Request::get("/apis/cluster.karmada.io/v1alpha1/clusters").body(Vec::new())?;
            let list: Value = client.request(request).await?;
            if list["items"].as_array().into_iter().flatten().filter(is_usable).count() == clusters {
                return anyhow::Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, polling).await.context("the members did not become ready")?
}

pub(super) async fn create_templates(client: &Client, count: usize) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let creates = stream::iter(0..count).map(|number| {
        let path = &path;
        async move {
            let template = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": template_name(number)},
                "data": {"stamp": "", "settings": "level = info\nworkers = 8\n".repeat(8)}});
            create(client, path, &template).await
        }
    });
    creates.buffer_unordered(MAX_CONCURRENT_CREATES).try_collect::<()>().await
}

fn template_name(number: usize) -> String {
    format!("settings-{number}")
}

/// Creates a policy that propagates all ConfigMaps of the namespace to all members.
pub(super) async fn create_policy(client: &Client) -> anyhow::Result<()> {
    workloads::create_policy(client, "v1", "ConfigMap", &json!({"clusterAffinity": {}})).await
}

/// A template observed in a member.
pub(super) struct Observation {
    member: usize,
    name: String,
    stamp: String,
    at: Instant,
}

/// Watches templates in the members.
pub(super) struct FleetWatch {
    observations: mpsc::UnboundedReceiver<Observation>,
    _watches: JoinSet<()>,
}

impl FleetWatch {
    pub(super) async fn start(fleet: &BenchFleet) -> anyhow::Result<Self> {
        let (sender, observations) = mpsc::unbounded_channel();
        let mut watches = JoinSet::new();
        for (member, client) in fleet.member_clients().await?.into_iter().enumerate() {
            let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
            let config = watcher::Config::default().labels("karmada.io/managed=true");
            let (mut objects, sender) =
                (watcher(api, config).default_backoff().applied_objects().boxed(), sender.clone());
            watches.spawn(async move {
                while let Some(next) = objects.next().await {
                    // The watcher recovers from errors by itself.
                    let Ok(object) = next else { continue };
                    let stamp = object.data.and_then(|mut data| data.remove("stamp")).unwrap_or_default();
                    let name = object.metadata.name.unwrap_or_default();
                    if sender.send(Observation { member, name, stamp, at: Instant::now() }).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { observations, _watches: watches })
    }

    /// Waits until this many distinct objects satisfy `is_match`; returns the time of the last.
    pub(super) async fn wait_for(
        &mut self,
        count: usize,
        is_match: impl Fn(&Observation) -> bool,
    ) -> anyhow::Result<Instant> {
        let mut seen = HashSet::new();
        loop {
            let next = tokio::time::timeout(STEP_TIMEOUT, self.observations.recv()).await;
            let next = next.with_context(|| format!("only {} of {count} arrived", seen.len()))?;
            let observation = next.context("the watches ended")?;
            if is_match(&observation) && seen.insert((observation.member, observation.name)) && seen.len() == count {
                return Ok(observation.at);
            }
        }
    }
}

/// Measures the propagation of existing templates after a policy is created, then changes in steady state.
async fn measure_propagation(
    args: &PropagateArgs,
    dir: &Path,
    printer: &mut MeasurementPrinter<impl std::io::Write>,
) -> anyhow::Result<()> {
    let members = match args.member_kubeconfig.as_slice() {
        [] => FleetMembers::Processes(args.members),
        files => FleetMembers::Real(files),
    };
    let mut fleet = BenchFleet::start(members, args.writes > 0, dir).await?;
    let result = measure_fleet(&mut fleet, args, printer).await;
    fleet.remove_real_members().await?;
    result?;
    fleet.stop().await
}

/// Measures the propagation to the members of a fleet.
async fn measure_fleet(
    fleet: &mut BenchFleet,
    args: &PropagateArgs,
    printer: &mut MeasurementPrinter<impl std::io::Write>,
) -> anyhow::Result<()> {
    create_templates(&fleet.client, args.config_maps).await?;
    let mut watch = FleetWatch::start(fleet).await?;
    fleet.controllers.wait_until_idle().await?;
    if args.writes > 0 {
        fleet.limit_writes(args.writes).await?;
    }
    let (before, _) = fleet.counts().await?;
    let count = args.config_maps * fleet.member_count();
    let start = Instant::now();
    create_policy(&fleet.client).await?;
    let applied = watch.wait_for(count, |_| true).await? - start;
    printer.print_milliseconds("propagate/applied", applied)?;
    printer.print("propagate/applied-rate", count as f64 / applied.as_secs_f64(), "objects/s")?;
    let IdleReport { resident_bytes, .. } = fleet.controllers.wait_until_idle().await?;
    let elapsed = start.elapsed();
    let (after, _) = fleet.counts().await?;
    printer.print_milliseconds("propagate/statuses-told", elapsed)?;
    let per_template = |now: u64, before: u64| (now - before) as f64 / args.config_maps as f64;
    printer.print("propagate/control-plane-writes", per_template(after.changes, before.changes), "writes/template")?;
    if args.writes > 0 {
        // Requests exceed writes on conflicts and no-op updates.
        let requests = per_template(after.requests, before.requests);
        printer.print("propagate/control-plane-requests", requests, "requests/template")?;
    }
    printer.print("propagate/rss", resident_bytes as f64 / 1e6, "MB")?;
    let mut times = Vec::with_capacity(args.changes);
    for number in 0..args.changes {
        let change = TemplateChange { template: number % args.config_maps, stamp: format!("change {number}") };
        times.push(change.measure(&fleet.client, &mut watch, fleet.member_count()).await?);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if !times.is_empty() {
        printer.print_percentiles("propagate/change", times)?;
    }
    Ok(())
}

/// A change of a template.
pub(super) struct TemplateChange {
    /// Number of the template.
    pub template: usize,
    /// New data, which no earlier change had.
    pub stamp: String,
}

impl TemplateChange {
    /// Makes the change and measures the time until this many members have it.
    pub(super) async fn measure(
        &self,
        client: &Client,
        watch: &mut FleetWatch,
        members: usize,
    ) -> anyhow::Result<Duration> {
        let name = template_name(self.template);
        let request = http::Request::patch(format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"))
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .body(serde_json::to_vec(&json!({"data": {"stamp": self.stamp}}))?)?;
        let start = Instant::now();
        client.request::<Value>(request).await.context("cannot change a template")?;
        let is_change = |observation: &Observation| observation.name == name && observation.stamp == self.stamp;
        Ok(watch.wait_for(members, is_change).await? - start)
    }
}

/// Measures restarts of the controllers in steady state, without a cache and with the previous one.
async fn measure_restarts(
    args: &PropagateArgs,
    dir: &Path,
    printer: &mut MeasurementPrinter<impl std::io::Write>,
) -> anyhow::Result<()> {
    let mut fleet = BenchFleet::start(FleetMembers::Processes(args.members), true, dir).await?;
    create_policy(&fleet.client).await?;
    let mut watch = FleetWatch::start(&fleet).await?;
    let start = Instant::now();
    create_templates(&fleet.client, args.cold).await?;
    watch.wait_for(args.cold * args.members, |_| true).await?;
    drop(watch);
    printer.print("propagate/filled", start.elapsed().as_secs_f64(), "s")?;
    fleet.controllers.wait_until_idle().await?;
    for cache_state in ["cold", "warm"] {
        let before = fleet.counts().await?;
        let BenchFleet { members, real_members, control_plane, controllers, client, kubeconfig } = fleet;
        controllers.stop().await?;
        let mut controllers = BenchProcess::start_controllers(&dir.join("next-cache"), Some(&kubeconfig)).await?;
        let IdleReport { after, resident_bytes, peak_bytes } = controllers.wait_until_idle().await?;
        fleet = BenchFleet { members, real_members, control_plane, controllers, client, kubeconfig };
        let now = fleet.counts().await?;
        printer.print(&format!("propagate/{cache_state}/quiet"), after.as_secs_f64(), "s")?;
        for (servers, before, now) in [("control-plane", before.0, now.0), ("members", before.1, now.1)] {
            let (changed, requests) = (now.changes - before.changes, now.requests - before.requests);
            printer.print(&format!("propagate/{cache_state}/{servers}-writes"), changed as f64, "writes")?;
            printer.print(&format!("propagate/{cache_state}/{servers}-requests"), requests as f64, "requests")?;
        }
        printer.print(&format!("propagate/{cache_state}/rss"), resident_bytes as f64 / 1e6, "MB")?;
        printer.print(&format!("propagate/{cache_state}/peak-rss"), peak_bytes as f64 / 1e6, "MB")?;
    }
    fleet.stop().await
}
