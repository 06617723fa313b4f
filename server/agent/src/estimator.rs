//! `crowsnest estimator`: a scheduler estimator with Karmada's gRPC API, one per member. Watches the member's nodes,
//! pods and quotas, and estimates how many replicas fit and how many are unschedulable. Clients are Crowsnest's
//! scheduler and descheduler, or Karmada's.
//!
//! Certificates are reloaded when their files change. The estimator writes nothing to the cluster.

mod config;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use crowsnest_api::estimator as wire;
use crowsnest_api::work;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apiserver::authn::{Credentials, ServingCertificates};
use crowsnest_component_base::kubeconfig;
use crowsnest_component_base::requests::RequestCounters;
use crowsnest_controllers::estimator::member_cache::MemberCache;
use crowsnest_plan::estimation::accurate::AssumedWorkload;
use http::{HeaderValue, StatusCode, header};
use jiff::SignedDuration;
use kube::client::ClientBuilder;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic_prost::ProstCodec;

pub use config::{Config, TlsFiles};

use crowsnest_component_base::metrics::Scrape;
use crowsnest_component_base::metrics::{BuildInfo, RequestsCollector};
use crowsnest_process::reload::{ReloadCounters, Reloader};
use crowsnest_process::serving::{self, Tls};
use crowsnest_process::signals::StopSignals;

/// Interval between checks of the certificate files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the estimator until the process receives a signal.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    StopSignals::new()?.run_until_signal(&stop, serve(config, &stop)).await?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config, stop: &CancellationToken) -> anyhow::Result<()> {
    let member = kubeconfig::load_or_in_cluster(config.kubeconfig.as_ref()).await?;
    let mut reloader = Reloader::new(RELOAD_INTERVAL);
    let tls = tls(config.tls.as_ref(), &mut reloader).await?;
    match &config.tls {
        None => tracing::warn!("serving plain text to any client; use --grpc-auth-cert-file to enable TLS"),
        Some(TlsFiles { client_ca: None, .. }) => {
            tracing::warn!("clients are not verified; use --grpc-client-ca-file to require client certificates")
        }
        Some(_) => {}
    }
    let requests = RequestCounters::default();
    let host = member.cluster_url.authority().map(|host| host.as_str()).unwrap_or_default();
    let request_layer = requests.layer(host);
    let client = ClientBuilder::try_from(member)?.with_layer(&request_layer).build();
    let member = MemberCache::new(client, config.feature_gates);
    let estimator = Arc::new(Estimator::new(config.cluster_name.clone(), Arc::clone(&member)));
    let extra_tasks = TaskTracker::new();
    let metrics = metrics(MetricsState { estimator: Arc::clone(&estimator), reloads: reloader.counts(), requests });
    for server in config.probe_addresses.bind(health(Arc::clone(&member)), metrics, stop.clone()).await? {
        extra_tasks.spawn(server);
    }
    extra_tasks.spawn(reloader.run(stop.clone()));
    let (cache, stop_token) = (Arc::clone(&member), stop.clone());
    let mut cache_task = tokio::spawn(async move { cache.run(stop_token).await });
    let grpc_server = async {
        if stop.run_until_cancelled(member.wait_until_listed()).await.is_none() {
            return Ok(());
        }
        let address = SocketAddr::from(([0, 0, 0, 0], config.server_port));
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} (--server-port)"))?;
        tracing::info!(cluster = %config.cluster_name, %address, "serving");
        serving::serve_grpc(listener, tls, router(estimator), stop.clone()).await;
        Ok(())
    };
    let result = tokio::select! {
        result = grpc_server => result,
        ended = &mut cache_task => match ended {
            Ok(()) if stop.is_cancelled() => Ok(()),
            Ok(()) => Err(anyhow::anyhow!("the watches of the cluster ended")),
            Err(error) => Err(error).context("the watches of the cluster failed"),
        },
    };
    stop.cancel();
    extra_tasks.close();
    extra_tasks.wait().await;
    result
}

/// The TLS configuration with server certificate and client CA; `None` for plain text.
async fn tls(files: Option<&TlsFiles>, reloader: &mut Reloader) -> anyhow::Result<Option<Tls>> {
    let Some(TlsFiles { certificate, key, client_ca }) = files else { return Ok(None) };
    let credentials = |contents: &[String]| match contents {
        [certificate, key] => Credentials { certificate: certificate.clone(), key: key.clone() },
        _ => Credentials { certificate: String::new(), key: String::new() },
    };
    let mut contents = Vec::new();
    for file in [certificate, key] {
        let content = tokio::fs::read_to_string(file).await;
        contents.push(content.with_context(|| {
            format!("cannot read {} (--grpc-auth-cert-file, --grpc-auth-key-file)", file.display())
        })?);
    }
    let certificates = ServingCertificates::new(&credentials(&contents)).context("--grpc-auth-cert-file")?;
    let tls = Tls::for_grpc(Arc::clone(&certificates), None)?;
    let replace = move |contents: &[String]| Ok(certificates.replace_default(&credentials(contents))?);
    reloader.watch("grpc-auth-cert-file", vec![certificate.clone(), key.clone()], replace).await?;
    if let Some(file) = client_ca {
        let shared_tls = tls.clone();
        let replace_ca =
            move |contents: &[String]| Ok(shared_tls.require_client_ca(contents.first().map_or("", String::as_str))?);
        reloader.watch("grpc-client-ca-file", vec![file.clone()], replace_ca).await?;
    }
    Ok(Some(tls))
}

type Labels = Vec<(&'static str, &'static str)>;

/// Metrics with the names of Karmada's estimator.
struct EstimatorMetrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl EstimatorMetrics {
    fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(BuildInfo));
        let requests: Family<Labels, Counter> = Family::default();
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 10));
        let durations = Family::new_with_constructor(buckets);
        let name = |suffix: &str| format!("karmada_scheduler_estimator_{suffix}");
        registry.register(
            name("estimating_request"),
            "Number of scheduler estimator requests, by result",
            requests.clone(),
        );
        registry.register(
            name("estimating_algorithm_duration_seconds"),
            "Estimating latency in seconds",
            durations.clone(),
        );
        EstimatorMetrics { registry, requests, durations }
    }

    fn record(&self, kind: &'static str, started_at: Instant, is_success: bool) {
        let result = if is_success { "success" } else { "error" };
        self.requests.get_or_create(&vec![("result", result), ("type", kind)]).inc();
        let labels = vec![("result", result), ("type", kind), ("step", "Total")];
        self.durations.get_or_create(&labels).observe(started_at.elapsed().as_secs_f64());
    }
}

/// The estimator of one cluster.
pub struct Estimator {
    cluster: ClusterName,
    member: Arc<MemberCache>,
    metrics: EstimatorMetrics,
}

impl Estimator {
    pub fn new(cluster: ClusterName, member: Arc<MemberCache>) -> Self {
        Estimator { cluster, member, metrics: EstimatorMetrics::new() }
    }

    /// Fails unless the request names the estimator's cluster. The message is Karmada's.
    fn check_cluster(&self, cluster: &str) -> Result<(), Status> {
        match cluster == self.cluster.as_str() {
            true => Ok(()),
            false => {
                Err(Status::unknown(format!("cluster name does not match, got: {cluster}, desire: {}", self.cluster)))
            }
        }
    }

    fn max_available_replicas(
        &self,
        request_body: &wire::MaxAvailableReplicasRequest,
    ) -> Result<wire::MaxAvailableReplicasResponse, Status> {
        self.check_cluster(&request_body.cluster)?;
        let to_status =
            |error: wire::WireError| Status::unknown(format!("failed to estimate replicas: {}", error_chain(&error)));
        let requirements = request_body.replica_requirements.as_ref().map(work::ReplicaRequirements::try_from);
        let requirements = requirements.transpose().map_err(to_status)?;
        let assumed = parse_assumed_workloads(&request_body.assumed_workloads).map_err(to_status)?;
        let max_replicas = self.member.max_available_replicas(requirements.as_ref(), &assumed);
        Ok(wire::MaxAvailableReplicasResponse { max_replicas })
    }

    fn max_available_component_sets(
        &self,
        request_body: &wire::MaxAvailableComponentSetsRequest,
    ) -> Result<wire::MaxAvailableComponentSetsResponse, Status> {
        self.check_cluster(&request_body.cluster)?;
        let to_status = |error: wire::WireError| {
            Status::unknown(format!("failed to estimate component sets: {}", error_chain(&error)))
        };
        let components = parse_components(&request_body.components).map_err(to_status)?;
        let assumed = parse_assumed_workloads(&request_body.assumed_workloads).map_err(to_status)?;
        let max_sets = self.member.max_available_component_sets(&components, &request_body.namespace, &assumed);
        Ok(wire::MaxAvailableComponentSetsResponse { max_sets })
    }

    async fn unschedulable_replicas(
        &self,
        request_body: wire::UnschedulableReplicasRequest,
    ) -> Result<wire::UnschedulableReplicasResponse, Status> {
        self.check_cluster(&request_body.cluster)?;
        let resource = request_body.resource.ok_or_else(|| Status::unknown("resource is nil"))?;
        let workload = work::ObjectReference {
            api_version: resource.api_version,
            kind: resource.kind,
            namespace: resource.namespace,
            name: resource.name,
            ..work::ObjectReference::default()
        };
        let threshold = SignedDuration::from_nanos(request_body.unschedulable_threshold);
        let count = self.member.unschedulable_replicas(&workload, threshold).await;
        let unschedulable_replicas = count.map_err(|error| Status::unknown(error.message()))?;
        Ok(wire::UnschedulableReplicasResponse { unschedulable_replicas })
    }
}

fn parse_components(components: &[wire::Component]) -> Result<Vec<work::Component>, wire::WireError> {
    components.iter().map(work::Component::try_from).collect()
}

fn parse_assumed_workloads(workloads: &[wire::AssumedWorkload]) -> Result<Vec<AssumedWorkload>, wire::WireError> {
    let parse = |workload: &wire::AssumedWorkload| {
        let components = parse_components(&workload.components)?;
        Ok(AssumedWorkload { namespace: workload.namespace.clone(), components })
    };
    workloads.iter().map(parse).collect()
}

/// Message of an error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Routes of the gRPC service.
pub fn router(estimator: Arc<Estimator>) -> Router {
    Router::new()
        .route(wire::MAX_AVAILABLE_REPLICAS, post(serve_max_available_replicas))
        .route(wire::MAX_AVAILABLE_COMPONENT_SETS, post(serve_max_available_component_sets))
        .route(wire::GET_UNSCHEDULABLE_REPLICAS, post(serve_unschedulable_replicas))
        .fallback(unknown_method)
        .with_state(estimator)
}

async fn unknown_method() -> Response {
    Status::unimplemented("unknown method").into_http()
}

async fn serve_max_available_replicas(State(estimator): State<Arc<Estimator>>, request: Request) -> Response {
    let handler =
        |estimator: Arc<Estimator>, request_body| async move { estimator.max_available_replicas(&request_body) };
    handle_unary(estimator, "MaxAvailableReplicas", request, handler).await
}

async fn serve_max_available_component_sets(State(estimator): State<Arc<Estimator>>, request: Request) -> Response {
    let handler =
        |estimator: Arc<Estimator>, request_body| async move { estimator.max_available_component_sets(&request_body) };
    handle_unary(estimator, "MaxAvailableComponentSets", request, handler).await
}

async fn serve_unschedulable_replicas(State(estimator): State<Arc<Estimator>>, request: Request) -> Response {
    let handler =
        |estimator: Arc<Estimator>, request_body| async move { estimator.unschedulable_replicas(request_body).await };
    handle_unary(estimator, "GetUnschedulableReplicas", request, handler).await
}

/// Decodes a request, runs the handler and records the metrics.
async fn handle_unary<Q, A, F>(
    estimator: Arc<Estimator>,
    kind: &'static str,
    request: Request,
    handler: impl Fn(Arc<Estimator>, Q) -> F + Copy,
) -> Response
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + std::fmt::Debug + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let service = tower::service_fn(move |request: tonic::Request<Q>| {
        let estimator = Arc::clone(&estimator);
        async move {
            let started_at = Instant::now();
            let object = request.metadata().get(wire::OBJECT_METADATA_KEY).and_then(|object| object.to_str().ok());
            let object = object.unwrap_or_default().to_owned();
            let result = handler(Arc::clone(&estimator), request.into_inner()).await;
            estimator.metrics.record(kind, started_at, result.is_ok());
            match &result {
                Ok(response) => tracing::debug!(kind, object, ?response, "responded to an estimation request"),
                Err(status) => tracing::warn!(kind, object, error = status.message(), "an estimation request failed"),
            }
            result.map(tonic::Response::new)
        }
    });
    let codec: ProstCodec<A, Q> = ProstCodec::default();
    tonic::server::Grpc::new(codec).unary(service, request).await.map(axum::body::Body::new)
}

fn health(member: Arc<MemberCache>) -> Router {
    Router::new().route("/healthz", get(serve_liveness)).route("/readyz", get(serve_readiness)).with_state(member)
}

async fn serve_liveness() -> &'static str {
    "ok"
}

async fn serve_readiness(State(member): State<Arc<MemberCache>>) -> (StatusCode, &'static str) {
    match member.is_listed() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the cluster has not been listed yet"),
    }
}

/// State of the /metrics endpoint.
#[derive(Clone)]
struct MetricsState {
    estimator: Arc<Estimator>,
    reloads: Arc<ReloadCounters>,
    requests: RequestCounters,
}

fn metrics(state: MetricsState) -> Router {
    Router::new().route("/metrics", get(serve_metrics)).with_state(state)
}

async fn serve_metrics(State(state): State<MetricsState>) -> Result<Response, StatusCode> {
    let mut text = String::new();
    let mut process_registry = Registry::default();
    process_registry.register_collector(Box::new(Scrape(state.reloads.series())));
    process_registry.register_collector(Box::new(RequestsCollector(state.requests)));
    encode_registry(&mut text, &process_registry)
        .and_then(|()| encode(&mut text, &state.estimator.metrics.registry))
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let mut response = Response::new(axum::body::Body::from(text));
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

#[cfg(test)]
mod tests;
