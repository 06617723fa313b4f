//! `crowsnest bench cache`: the cache with a fleet of synthetic pods in another process, from the first list to a warm restart.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_api::user::UserInfo;
use crowsnest_apiserver::server::{ApiServer, Config, Data};
use crowsnest_fleet::{Clusters, Fleet, FleetOptions, Interest, InterestGuard, Namespaces, Why};
use crowsnest_index::{CollectionKey, Index, IndexOptions};
use crowsnest_proxy::Proxy;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::super::keep::KeepArgs;
use super::reads;

#[derive(Debug, Clone, Args)]
pub(super) struct CacheArgs {
    /// Clusters the pods are spread over
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clusters: u32,
    #[arg(long, default_value_t = 30_000)]
    pods: usize,
    /// About how large each pod is
    #[arg(long, default_value_t = 9_500, value_name = "BYTES")]
    pod_bytes: usize,
    /// Lists and searches measured
    #[arg(long, default_value_t = 200)]
    reads: usize,
    /// Changes a second while latencies are measured
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// How long
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Between two looks at whether Clusters are served, and for how long.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// The process that holds the members, and where it listens.
struct Elsewhere {
    _child: Child,
    address: String,
}

/// The control plane of the benchmark.
struct ControlPlane {
    server: ApiServer,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<crowsnest_apiserver::error::Result<()>>,
}

pub(super) async fn run(args: &CacheArgs) -> anyhow::Result<()> {
    let scratch = super::scratch();
    let members = elsewhere(args).await?;
    let control_plane = control_plane().await?;
    let client = control_plane.server.admin();
    register(&client, &members.address, args.clusters).await?;
    let mut figures = Figures { out: std::io::stdout().lock() };
    figures.line("cache/objects", args.pods as f64, "")?;
    let before = super::resident_bytes()?;
    figures.megabytes("cache/rss-before", before)?;

    let began = Instant::now();
    let (index, interest) = opened(&client, &scratch, &args.keep).await?;
    let proxy = Proxy::new(index.clone());
    fill(&index, args, began, &mut figures).await?;
    figures.megabytes("cache/rss-searchable", super::resident_bytes()?)?;
    figures.megabytes("cache/database", index.size().await?.bytes)?;
    figures.megabytes("cache/text-index", size_of(&scratch.join("text"))?)?;
    reads::lists(&proxy, args.pods, args.reads, &mut figures).await?;
    let listed = super::resident_bytes()?;
    figures.megabytes("cache/rss-after-lists", listed)?;
    figures.line("cache/rss-each", listed.saturating_sub(before) as f64 / args.pods.max(1) as f64, "B/object")?;
    reads::searches(&index, "cache/search", args.reads, &mut figures).await?;
    churned(&index, &members, args, &mut figures).await?;
    figures.megabytes("cache/rss-after-churn", super::resident_bytes()?)?;
    proxy.stop().await;
    stop(index, interest).await;

    let began = Instant::now();
    let (index, interest) = opened(&client, &scratch, &args.keep).await?;
    let answer = index.search_all(reads::question("kind:pod status:CrashLoopBackOff", UserInfo::system())).await?;
    figures.milliseconds("cache/restart", began.elapsed())?;
    ensure!(answer.summary.is_some_and(|summary| summary.total > 0), "after the restart nothing is found");
    stop(index, interest).await;
    control_plane.stop.cancel();
    control_plane.server.stop().await?;
    control_plane.serving.await??;
    std::fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))
}

/// Prints figures, one a line.
pub(super) struct Figures<W> {
    out: W,
}

impl<W: Write> Figures<W> {
    pub(super) fn line(&mut self, name: &str, value: f64, unit: &str) -> anyhow::Result<()> {
        let value = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        writeln!(self.out, "{name} {value} {unit}")?;
        Ok(self.out.flush()?)
    }

    fn megabytes(&mut self, name: &str, bytes: u64) -> anyhow::Result<()> {
        self.line(name, bytes as f64 / 1e6, "MB")
    }

    pub(super) fn milliseconds(&mut self, name: &str, time: Duration) -> anyhow::Result<()> {
        self.line(name, time.as_secs_f64() * 1e3, "ms")
    }

    /// Median and 99th percentile.
    pub(super) fn spread(&mut self, name: &str, mut times: Vec<Duration>) -> anyhow::Result<()> {
        times.sort_unstable();
        for (label, part) in [("p50", 0.5), ("p99", 0.99)] {
            let at = ((times.len() as f64 * part).ceil() as usize).clamp(1, times.len().max(1)) - 1;
            self.milliseconds(&format!("{name}-{label}"), times.get(at).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

async fn elsewhere(args: &CacheArgs) -> anyhow::Result<Elsewhere> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "members", "--clusters", &args.clusters.to_string(), "--pods", &args.pods.to_string()])
        .args(["--pod-bytes", &args.pod_bytes.to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("starting the members")?;
    let out = child.stdout.take().context("the members have no output")?;
    let address = BufReader::new(out).lines().next_line().await?.context("the members ended at once")?;
    Ok(Elsewhere { _child: child, address })
}

async fn control_plane() -> anyhow::Result<ControlPlane> {
    let server = ApiServer::start(Config::new("bench", Data::Memory)).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (stop, serves) = (CancellationToken::new(), server.clone());
    let stops = stop.clone();
    let serving = tokio::spawn(async move { serves.serve_beside(axum::Router::new(), listener, stops).await });
    Ok(ControlPlane { server, stop, serving })
}

fn parsed<T: DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    serde_json::from_value(value).context("building an object")
}

/// One Secret and a Cluster for each member.
async fn register(client: &Client, address: &str, clusters: u32) -> anyhow::Result<()> {
    let create = PostParams::default();
    let definition: CustomResourceDefinition = parsed(json!({
        "metadata": {"name": "clusters.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "scope": "Cluster",
            "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}))?;
    Api::all(client.clone()).create(&create, &definition).await?;
    let space: Namespace = parsed(json!({"metadata": {"name": "bench"}}))?;
    Api::all(client.clone()).create(&create, &space).await?;
    let secret: Secret = parsed(json!({"metadata": {"name": "bench"}, "stringData": {"token": "bench"}}))?;
    Api::namespaced(client.clone(), "bench").create(&create, &secret).await?;
    let kind = kube::core::GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kube::api::ApiResource::from_gvk(&kind));
    let served = async {
        while api.list(&ListParams::default().limit(1)).await.is_err() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(SERVED_WITHIN, served).await.context("the control plane does not serve Clusters")?;
    for nth in 0..clusters {
        let cluster = parsed(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": format!("bench{nth}")},
            "spec": {"syncMode": "Push", "apiEndpoint": format!("http://{address}/c/{nth}"),
                "secretRef": {"namespace": "bench", "name": "bench"}}}))?;
        api.create(&create, &cluster).await?;
    }
    Ok(())
}

/// A cache that is interested in all pods.
async fn opened(client: &Client, scratch: &Path, keep: &KeepArgs) -> anyhow::Result<(Index, InterestGuard)> {
    let fleet = Fleet::start(client.clone(), FleetOptions::default()).await?;
    let why = Why::ResourceRegistry("bench".to_owned());
    let interest = Interest { clusters: Clusters::All, resource: pods(), namespaces: Namespaces::All, why };
    let interest = fleet.interests().declare(interest);
    let options = IndexOptions { collect_everything: false, collect_control_plane: false, ..keep.options(scratch) };
    Ok((Index::open(fleet, options).await?, interest))
}

/// The interest ends last: without it the cache would drop what it holds.
async fn stop(index: Index, interest: InterestGuard) {
    index.stop().await;
    index.fleet().stop().await;
    drop(interest);
}

fn pods() -> Gvr {
    Gvr::new("", "v1", "pods")
}

/// From the opening of an empty cache to the last object found.
async fn fill(
    index: &Index,
    args: &CacheArgs,
    began: Instant,
    figures: &mut Figures<impl Write>,
) -> anyhow::Result<()> {
    for nth in 0..args.clusters {
        index.complete(&CollectionKey::new(ClusterName::parse(&format!("bench{nth}"))?, pods())).await;
    }
    let stored = began.elapsed();
    figures.milliseconds("cache/complete", stored)?;
    figures.line("cache/ingest", args.pods as f64 / stored.as_secs_f64(), "objects/s")?;
    figures.megabytes("cache/rss-complete", super::resident_bytes()?)?;
    let target = index.seq();
    index.searchable().wait_for(|seq| *seq >= target).await?;
    figures.milliseconds("cache/searchable", began.elapsed())
}

/// Latencies and searches while pods change.
async fn churned(
    index: &Index,
    members: &Elsewhere,
    args: &CacheArgs,
    figures: &mut Figures<impl Write>,
) -> anyhow::Result<()> {
    rate(&members.address, args.churn).await?;
    let began = Instant::now();
    let watched = tokio::spawn(reads::latencies(index.clone(), Duration::from_secs(args.seconds)));
    while began.elapsed() < Duration::from_secs(args.seconds) {
        reads::searches(index, "cache/churn/search", args.reads, figures).await?;
    }
    let (watch, text) = watched.await??;
    rate(&members.address, 0.0).await?;
    figures.line("cache/churn/changes", watch.len() as f64 / args.seconds as f64, "changes/s")?;
    figures.spread("cache/churn/change-to-watch", watch)?;
    figures.spread("cache/churn/change-to-text", text)
}

async fn rate(address: &str, rate: f64) -> anyhow::Result<()> {
    let config = kube::Config::new(format!("http://{address}").parse()?);
    let request = http::Request::post(format!("/churn?rate={rate}")).body(Vec::new())?;
    Client::try_from(config)?.request_text(request).await.context("asking the members for changes")?;
    Ok(())
}

/// Bytes of the files in a folder.
fn size_of(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        // Files come and go with merges.
        bytes += entry?.metadata().map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}
