//! `crowsnest bench failover`: measures how fast workloads of tainted clusters are rescheduled, whether unrelated
//! bindings are written during this, and what an idle fleet costs.
//!
//! Members are simulated in one process; control plane and controllers are separate processes, so that CPU usage of the
//! controllers can be measured.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::ResourceBinding;
use crowsnest_component_base::kubeconfig;
use crowsnest_members::join::{JoinOptions, join};
use crowsnest_sim::member::shape::NodeShape;
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use kube::config::Kubeconfig;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cache::MeasurementPrinter;
use super::processes::{BenchProcess, member_name};
use super::propagate::wait_for_clusters;
use super::scratch::ScratchArgs;
use super::workloads::{self, NAMESPACE, create};

#[derive(Debug, Args)]
pub(super) struct FailoverArgs {
    /// Number of members
    #[arg(long, default_value_t = 100)]
    members: usize,
    /// Number of Deployments with a binding each, distributed evenly over the members
    #[arg(long, default_value_t = 1000)]
    bindings: usize,
    /// Number of members that get a NoExecute taint at the same time
    #[arg(long, default_value_t = 5)]
    taint: usize,
    /// Idle time over which the controllers' CPU usage is measured, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    rest: u64,
}

/// Maximum number of concurrent requests and joins.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Time for the controllers to settle after the fleet is filled.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// Timeout of every step.
const STEP_TIMEOUT: Duration = Duration::from_secs(900);

pub(super) async fn run(args: &FailoverArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    ensure!(args.taint > 0 && args.taint < args.members, "--taint must be at least 1 and less than --members");
    ensure!(args.bindings >= args.members, "--bindings must be at least --members");
    let scratch = scratch.create()?;
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    let mut fleet = BenchFleet::start(args.members, scratch.path()).await?;
    let mut watch = FleetWatch::start(&fleet).await?;
    // Workloads can be applied only after the namespace exists in all members.
    fleet.controllers.wait_until_idle().await?;
    fleet.create_workloads(args).await?;
    let wait = watch.wait_for("workloads", args.bindings, |observation| match observation {
        Observation::Copy { workload, .. } => Some(workload),
        Observation::Binding { .. } => None,
    });
    wait.await?;
    fleet.controllers.wait_until_idle().await?;

    printer.print(
        "failover/idle-cpu",
        fleet.idle_cpu_share(Duration::from_secs(args.rest)).await? * 100.0,
        "% of a core",
    )?;
    measure_failover(&mut fleet, &mut watch, args, &mut printer).await?;
    drop(watch);
    fleet.stop().await
}

/// All processes of the benchmark.
struct BenchFleet {
    simulated: BenchProcess,
    control_plane: BenchProcess,
    controllers: BenchProcess,
    client: Client,
    members: BTreeMap<String, Client>,
}

impl BenchFleet {
    /// Starts empty members and waits until they are ready.
    async fn start(count: usize, dir: &Path) -> anyhow::Result<Self> {
        let (simulated, kubeconfigs) = BenchProcess::start_simulated_members(count, NodeShape::default().count).await?;
        let control_plane = BenchProcess::start_server("control-plane", true).await?;
        let kubeconfig = dir.join("control-plane.kubeconfig");
        std::fs::write(&kubeconfig, control_plane.connection()?.kubeconfig)?;
        let controllers = BenchProcess::start_evicting_controllers(&dir.join("cache"), &kubeconfig).await?;
        let client = control_plane.connection()?.client().await?;
        let joins =
            kubeconfigs.into_iter().enumerate().map(|(index, file)| join_member(&client, member_name(index + 1), file));
        let members = stream::iter(joins).buffer_unordered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        wait_for_clusters(&client, count).await?;
        workloads::create_namespace(&client).await?;
        Ok(Self { simulated, control_plane, controllers, client, members })
    }

    /// Creates a policy per member and its Deployments.
    async fn create_workloads(&self, args: &FailoverArgs) -> anyhow::Result<()> {
        let names: Vec<String> = (1..=args.members).map(member_name).collect();
        let policies = names.iter().map(|home| (workloads::policies_path(), policy(home, &names)));
        let deployments = (0..args.bindings).map(|number| {
            let home = &names[number % names.len()];
            (workloads::deployments_path(), deployment(number, home))
        });
        let creates =
            policies.chain(deployments).map(|(path, object)| async move { create(&self.client, &path, &object).await });
        stream::iter(creates).buffer_unordered(MAX_CONCURRENT_REQUESTS).try_collect::<()>().await
    }

    /// CPU usage of the controllers while idle, as a share of a core.
    async fn idle_cpu_share(&self, rest: Duration) -> anyhow::Result<f64> {
        tokio::time::sleep(SETTLE_TIME).await;
        let (start, before) = (Instant::now(), self.controllers.cpu_time()?);
        tokio::time::sleep(rest).await;
        Ok((self.controllers.cpu_time()? - before).as_secs_f64() / start.elapsed().as_secs_f64())
    }

    async fn bindings(&self) -> anyhow::Result<HashMap<String, ResourceBinding>> {
        let bindings: Api<ResourceBinding> = Api::namespaced(self.client.clone(), NAMESPACE);
        let list = bindings.list(&Default::default()).await.context("cannot list bindings")?;
        Ok(list.into_iter().map(|binding| (binding.name_any(), binding)).collect())
    }

    async fn taint(&self, cluster: &str) -> anyhow::Result<()> {
        let clusters: Api<Cluster> = Api::all(self.client.clone());
        let patch = json!({"spec": {"taints": [{"key": "bench", "effect": "NoExecute"}]}});
        let result = clusters.patch(cluster, &PatchParams::default(), &Patch::Merge(&patch)).await;
        result.map(drop).with_context(|| format!("cannot taint {cluster}"))
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.controllers.stop().await?;
        self.control_plane.stop().await?;
        self.simulated.stop().await
    }
}

/// Joins a member; returns its name and its administrator's client.
pub(super) async fn join_member(
    control_plane: &Client,
    name: String,
    file: Kubeconfig,
) -> anyhow::Result<(String, Client)> {
    let config = kubeconfig::config_from_content(file).await?;
    let result = join(control_plane, &config, &JoinOptions::new(name.parse()?)).await;
    result.with_context(|| format!("cannot join {name}"))?;
    Ok((name, Client::try_from(config)?))
}

/// A policy that prefers its own member and falls back to any other.
fn policy(home: &str, names: &[String]) -> Value {
    let others: Vec<&String> = names.iter().filter(|name| *name != home).collect();
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": home, "labels": {"propagationpolicy.karmada.io/permanent-id": home}},
        "spec": {
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment",
                "labelSelector": {"matchLabels": {"home": home}}}],
            "placement": {
                "clusterAffinities": [{"affinityName": "home", "clusterNames": [home]},
                    {"affinityName": "elsewhere", "clusterNames": others}],
                "replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"},
            },
        },
    })
}

fn deployment(number: usize, home: &str) -> Value {
    let name = format!("web-{number}");
    let app = json!({"app": name});
    let container = json!({"name": "web", "image": "nginx:1.27", "resources": {"requests": {"cpu": "10m"}}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"home": home}},
        "spec": {"replicas": 1, "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": {"containers": [container]}}},
    })
}

/// Progress of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// Its binding has new targets.
    Scheduled,
    /// It was created in another member.
    Created,
}

/// An observed object.
#[derive(Debug)]
enum Observation {
    /// A binding and its targets.
    Binding { workload: String, clusters: Vec<String> },
    /// A Deployment in a member.
    Copy { workload: String, member: String },
}

/// Watches bindings, and Deployments in all members.
struct FleetWatch {
    observations: mpsc::UnboundedReceiver<(Observation, Instant)>,
    _watches: JoinSet<()>,
}

impl FleetWatch {
    async fn start(fleet: &BenchFleet) -> anyhow::Result<Self> {
        let (sender, observations) = mpsc::unbounded_channel();
        let mut watches = JoinSet::new();
        let bindings: Api<ResourceBinding> = Api::namespaced(fleet.client.clone(), NAMESPACE);
        watches.spawn(follow(bindings, sender.clone(), |binding: ResourceBinding| Observation::Binding {
            workload: binding.spec.resource.name.clone(),
            clusters: binding.spec.clusters.into_iter().map(|target| target.name).collect(),
        }));
        for (member, client) in &fleet.members {
            let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
            let member = member.clone();
            watches.spawn(follow(deployments, sender.clone(), move |deployment: Deployment| Observation::Copy {
                workload: deployment.name_any(),
                member: member.clone(),
            }));
        }
        Ok(Self { observations, _watches: watches })
    }

    /// Waits until `classify` has returned `count` distinct values; returns the time of the first occurrence of each.
    async fn wait_for<T: Eq + Hash>(
        &mut self,
        name: &str,
        count: usize,
        classify: impl Fn(Observation) -> Option<T>,
    ) -> anyhow::Result<HashMap<T, Instant>> {
        let mut times = HashMap::new();
        while times.len() < count {
            let next = tokio::time::timeout(STEP_TIMEOUT, self.observations.recv()).await;
            let next = next.with_context(|| format!("{name}: only {} of {count} arrived", times.len()))?;
            let (observation, at) = next.context("the watches ended")?;
            if let Some(value) = classify(observation) {
                times.entry(value).or_insert(at);
            }
        }
        Ok(times)
    }
}

async fn follow<K>(
    api: Api<K>,
    sender: mpsc::UnboundedSender<(Observation, Instant)>,
    convert: impl Fn(K) -> Observation,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut changes = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(next) = changes.next().await {
        // The watcher recovers from errors by itself.
        let Ok(object) = next else { continue };
        if sender.send((convert(object), Instant::now())).is_err() {
            return;
        }
    }
}

/// Taints members and waits until their workloads are created elsewhere.
async fn measure_failover(
    fleet: &mut BenchFleet,
    watch: &mut FleetWatch,
    args: &FailoverArgs,
    printer: &mut MeasurementPrinter<impl std::io::Write>,
) -> anyhow::Result<()> {
    let tainted: HashSet<String> = (1..=args.taint).map(member_name).collect();
    let before = fleet.bindings().await?;
    let is_affected =
        |binding: &ResourceBinding| binding.spec.clusters.iter().any(|target| tainted.contains(&target.name));
    let affected: HashSet<&String> =
        before.values().filter(|binding| is_affected(binding)).map(|binding| &binding.spec.resource.name).collect();
    ensure!(!affected.is_empty(), "nothing runs in {tainted:?}");

    let start = Instant::now();
    try_join_all(tainted.iter().map(|cluster| fleet.taint(cluster))).await?;
    let wait = watch.wait_for("decisions and replacements", 2 * affected.len(), |observation| match observation {
        Observation::Binding { workload, clusters } => {
            let is_moved = !clusters.is_empty() && clusters.iter().all(|cluster| !tainted.contains(cluster));
            (is_moved && affected.contains(&workload)).then_some((Step::Scheduled, workload))
        }
        Observation::Copy { workload, member } => {
            (!tainted.contains(&member) && affected.contains(&workload)).then_some((Step::Created, workload))
        }
    });
    let times = wait.await?;
    let durations_of = |step| {
        let observed = times.iter().filter(move |((other, _), _)| *other == step);
        observed.map(|(_, at)| at.duration_since(start)).collect::<Vec<Duration>>()
    };
    printer.print_percentiles("failover/decided", durations_of(Step::Scheduled))?;
    let last = durations_of(Step::Created).into_iter().max().unwrap_or_default();
    printer.print("failover/replacements-requested", last.as_secs_f64(), "s")?;

    fleet.controllers.wait_until_idle().await?;
    let after = fleet.bindings().await?;
    let unaffected = before.iter().filter(|(_, binding)| !is_affected(binding));
    let rewritten = unaffected.filter(|(name, binding)| {
        after.get(*name).is_none_or(|now| now.resource_version() != binding.resource_version())
    });
    printer.print("failover/untouched-writes", rewritten.count() as f64, "bindings")
}
