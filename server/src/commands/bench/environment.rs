//! Environment of cache benchmarks: members in another process, a control plane, and a cache of their pods.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::{CacheOptions, CollectionKey, GlobalCache};
use crowsnest_kube_apiserver::server::{ApiServer, Config, Data};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Interests, Namespaces};
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

use super::super::cache_options::CacheOptionsArgs;
use super::scratch::{ScratchArgs, ScratchDirectory};

/// Interval between checks that the control plane serves Clusters.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout of these checks.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Default size of a pod in bytes.
pub(super) const POD_BYTES: usize = 9_500;

/// The process with the members, and its address.
pub(super) struct MembersProcess {
    _child: Child,
    pub address: String,
}

/// The control plane of the benchmark.
struct ControlPlane {
    server: ApiServer,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<crowsnest_registry::error::Result<()>>,
}

/// Flags of the synthetic pods.
#[derive(Debug, Clone, Args)]
pub(super) struct PodArgs {
    /// Number of clusters for the pods
    #[arg(long, alias = "members", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub clusters: u32,
    /// Number of pods in all clusters
    #[arg(long, default_value_t = 30_000)]
    pub pods: usize,
    /// Approximate size of each pod in bytes
    #[arg(long, default_value_t = POD_BYTES, value_name = "BYTES")]
    pub pod_bytes: usize,
}

/// Members in another process, a control plane with their Clusters, and a folder for the cache.
pub(super) struct BenchEnvironment {
    pub members: MembersProcess,
    pub scratch: ScratchDirectory,
    control_plane: ControlPlane,
    client: Client,
}

impl BenchEnvironment {
    pub(super) async fn start(pods: &PodArgs, scratch: &ScratchArgs) -> anyhow::Result<Self> {
        let scratch = scratch.create()?;
        let members = start_members(pods).await?;
        let control_plane = start_control_plane().await?;
        let client = control_plane.server.admin();
        register(&client, &members.address, pods.clusters).await?;
        Ok(Self { members, scratch, control_plane, client })
    }

    /// Opens a cache that collects all pods.
    pub(super) async fn open(&self, cache: &CacheOptionsArgs) -> anyhow::Result<(GlobalCache, InterestGuard)> {
        let (cache, mut interests) = self.open_resources(cache, [pods()]).await?;
        Ok((cache, interests.pop().context("no interest was declared")?))
    }

    /// Opens a cache that collects all objects of these resources.
    pub(super) async fn open_resources(
        &self,
        cache: &CacheOptionsArgs,
        resources: impl IntoIterator<Item = Gvr>,
    ) -> anyhow::Result<(GlobalCache, Vec<InterestGuard>)> {
        let fleet = Fleet::start(self.client.clone(), FleetOptions::on_loopback()).await?;
        let reason = InterestReason::ResourceRegistry("bench".to_owned());
        let interest = |resource| {
            let reason = reason.clone();
            Interest { clusters: Clusters::All, resource, namespaces: Namespaces::All, reason }
        };
        let options = cache.options(self.scratch.path());
        let options = CacheOptions { collect_everything: false, collect_control_plane: false, ..options };
        let interests = Interests::default();
        let guards = interests.declare_all(resources.into_iter().map(interest));
        Ok((GlobalCache::open_with(fleet, options, interests).await?, guards))
    }

    /// Stops the control plane and the members, and deletes the folder.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.control_plane.stop().await
    }
}

/// Starts the process with the synthetic members.
pub(super) async fn start_members(PodArgs { clusters, pods, pod_bytes }: &PodArgs) -> anyhow::Result<MembersProcess> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "members", "--clusters", &clusters.to_string(), "--pods", &pods.to_string()])
        .args(["--pod-bytes", &pod_bytes.to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the members")?;
    let out = child.stdout.take().context("the process has no standard output")?;
    let address = BufReader::new(out).lines().next_line().await?.context("the members exited immediately")?;
    Ok(MembersProcess { _child: child, address })
}

async fn start_control_plane() -> anyhow::Result<ControlPlane> {
    let server = ApiServer::start(Config::new("bench", Data::Memory)).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (stop, server_clone) = (CancellationToken::new(), server.clone());
    let stop_serving = stop.clone();
    let serving =
        tokio::spawn(async move { server_clone.serve_with_routes(axum::Router::new(), listener, stop_serving).await });
    Ok(ControlPlane { server, stop, serving })
}

fn parse_object<T: DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    serde_json::from_value(value).context("cannot build an object")
}

/// Creates a Secret and a Cluster for each member.
pub(super) async fn register(client: &Client, address: &str, clusters: u32) -> anyhow::Result<()> {
    let create = PostParams::default();
    let definition: CustomResourceDefinition = parse_object(json!({
        "metadata": {"name": "clusters.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "scope": "Cluster",
            "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}))?;
    Api::all(client.clone()).create(&create, &definition).await?;
    let namespace: Namespace = parse_object(json!({"metadata": {"name": "bench"}}))?;
    Api::all(client.clone()).create(&create, &namespace).await?;
    let secret: Secret = parse_object(json!({"metadata": {"name": "bench"}, "stringData": {"token": "bench"}}))?;
    Api::namespaced(client.clone(), "bench").create(&create, &secret).await?;
    let kind = kube::core::GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kube::api::ApiResource::from_gvk(&kind));
    let wait = async {
        while api.list(&ListParams::default().limit(1)).await.is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(SERVE_TIMEOUT, wait).await.context("the control plane does not serve Clusters")?;
    for nth in 0..clusters {
        let cluster = parse_object(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": format!("bench{nth}")},
            "spec": {"syncMode": "Push", "apiEndpoint": format!("http://{address}/c/{nth}"),
                "secretRef": {"namespace": "bench", "name": "bench"}}}))?;
        api.create(&create, &cluster).await?;
    }
    Ok(())
}

/// Stops the cache. The interests are dropped last: without them the cache would delete its objects.
pub(super) async fn stop<G>(cache: GlobalCache, interests: G) {
    cache.stop().await;
    cache.fleet().stop().await;
    drop(interests);
}

pub(super) fn pods() -> Gvr {
    Gvr::new("", "v1", "pods")
}

/// Sets the number of changes per second in the members process.
pub(super) async fn set_churn(address: &str, rate: f64) -> anyhow::Result<()> {
    let config = kube::Config::new(format!("http://{address}").parse()?);
    let request = http::Request::post(format!("/churn?rate={rate}")).body(Vec::new())?;
    Client::try_from(config)?.request_text(request).await.context("cannot set the rate of changes")?;
    Ok(())
}

impl ControlPlane {
    async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.server.stop().await?;
        Ok(self.serving.await??)
    }
}

/// Waits until every cluster was listed once.
pub(super) async fn wait_until_complete(cache: &GlobalCache, clusters: u32) -> anyhow::Result<()> {
    for nth in 0..clusters {
        cache.wait_until_complete(&CollectionKey::new(ClusterName::parse(&format!("bench{nth}"))?, pods())).await;
    }
    Ok(())
}
