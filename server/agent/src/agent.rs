//! `crowsnest agent`: runs in a member that the control plane cannot dial. Registers the cluster in pull mode, keeps a
//! tunnel open to each replica of the control plane, through which the replica reaches the member's API server, and
//! renews the agent's client certificate.

pub mod certificate;
mod config;
mod health;
mod metrics;
mod renewal;
pub mod replicas;
mod tunnels;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_api::cluster::ClusterSyncMode;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::{body, kubeconfig, spans, tls};
use crowsnest_members::dial::ProxyOptions;
use crowsnest_members::tunnel::{Agent, PROTOCOL};
use crowsnest_members::{Dialer, JoinOptions, join};
use futures::future::join_all;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::upgrade::Upgraded;
use kube::client::Body;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use config::{Config, Rotation, SecretName};
use crowsnest_process::signals::StopSignals;
use health::TunnelState;
use metrics::AgentMetrics;
use replicas::Replica;
use tunnels::{TunnelResponse, maintain};

/// Timeout for connecting to the member's API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a response from the control plane.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a Status body in bytes.
const MAX_STATUS_BYTES: usize = 64 << 10;

/// Runs the agent until the process receives a signal.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    StopSignals::new()?.run_until_signal(&stop, serve(config, &stop)).await?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the agent, with its probe and metrics endpoints, until `stop` is cancelled or the registration fails.
async fn serve(config: Config, stop: &CancellationToken) -> anyhow::Result<()> {
    let state_sender = watch::Sender::new(TunnelState::Registering);
    let (tunnel_state, work_end) = (state_sender.subscribe(), CancellationToken::new());
    let agent_metrics = AgentMetrics::default();
    let (probes, metrics) =
        (health::routes(tunnel_state.clone()), metrics::routes(agent_metrics.clone(), tunnel_state));
    let servers = config.probe_addresses.bind(probes, metrics, work_end.clone()).await?;
    let work = async {
        let result = register_and_connect(config, &state_sender, &agent_metrics, stop).await;
        work_end.cancel();
        result
    };
    tokio::join!(work, join_all(servers)).0
}

/// Registers the cluster, then maintains its tunnels and renews the certificate until the agent stops.
async fn register_and_connect(
    config: Config,
    state_sender: &watch::Sender<TunnelState>,
    agent_metrics: &AgentMetrics,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let member = kubeconfig::load_or_in_cluster(config.kubeconfig.as_ref()).await?;
    let endpoint = config.registration.api_endpoint.clone().unwrap_or_else(|| member.cluster_url.clone());
    let agent = Agent::new(&endpoint, dialer(&member)?)?;
    let options = JoinOptions {
        refresh: true,
        sync_mode: ClusterSyncMode::Pull,
        api_endpoint: Some(endpoint),
        ..config.registration.clone()
    };
    let control_plane = connect_control_plane(&config, agent_metrics).await?;
    let Some(joined) = stop.run_until_cancelled(join(&control_plane, &member, &options)).await else { return Ok(()) };
    let joined = joined.with_context(|| format!("cannot register cluster {}", options.name))?;
    tracing::info!(cluster = %joined.name, id = joined.id, created = joined.is_new, "registered the cluster");
    let certificate_renewal = async {
        if let Some(rotation) = &config.rotation {
            renewal::run(&config, rotation, &member, agent_metrics, stop).await;
        }
    };
    tokio::join!(maintain_tunnels(&config, &agent, state_sender, agent_metrics, stop), certificate_renewal);
    Ok(())
}

/// Maintains a tunnel to each replica until the agent stops.
async fn maintain_tunnels(
    config: &Config,
    agent: &Agent,
    state_sender: &watch::Sender<TunnelState>,
    agent_metrics: &AgentMetrics,
    stop: &CancellationToken,
) {
    let open_tunnel = |tunnel_headers: HeaderMap| async move {
        // The kubeconfig is read for each attempt because its certificate may have been renewed, and a new connection
        // may reach another replica.
        let control_plane = connect_control_plane(config, agent_metrics).await?;
        let response = tokio::time::timeout(
            RESPONSE_TIMEOUT,
            request_tunnel(&control_plane, &config.registration.name, tunnel_headers),
        )
        .await;
        let response = response
            .with_context(|| format!("no response from the control plane within {} s", RESPONSE_TIMEOUT.as_secs()))??;
        if let TunnelResponse::Opened(..) = response {
            agent_metrics.record_opened_tunnel();
        }
        anyhow::Ok(response)
    };
    maintain(open_tunnel, agent, state_sender, stop).await;
}

/// Requests a tunnel from the replica that the connection reaches.
async fn request_tunnel(
    control_plane: &kube::Client,
    cluster: &ClusterName,
    tunnel_headers: HeaderMap,
) -> anyhow::Result<TunnelResponse<Upgraded>> {
    let path = format!("/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/attach");
    let mut request = Request::post(&path)
        .header(header::CONNECTION, HeaderValue::from_static("Upgrade"))
        .header(header::UPGRADE, HeaderValue::from_static(PROTOCOL))
        .body(Body::empty())?;
    request.headers_mut().extend(tunnel_headers);
    let response = control_plane.send(request).await.context("cannot request a tunnel from the control plane")?;
    let status = response.status();
    if status == StatusCode::NO_CONTENT {
        return Ok(TunnelResponse::AlreadyOpen);
    }
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = body::collect(response.into_body(), MAX_STATUS_BYTES).await.unwrap_or_default();
        let status_body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = status_body["message"].as_str().map_or_else(|| String::from_utf8_lossy(&body), Into::into);
        let next_step =
            if status == StatusCode::NOT_FOUND { "; restart the agent to register the cluster" } else { "" };
        bail!("the control plane refused the tunnel with status {status}: {}{next_step}", message.trim());
    }
    let replica = Replica::from_response(response.headers());
    let upgraded = hyper::upgrade::on(response).await.context("cannot upgrade the connection")?;
    Ok(TunnelResponse::Opened(upgraded, replica))
}

/// Dials the API server named by the agent's kubeconfig over TCP. TLS to it is established by the control
/// plane, through the tunnel. An https proxy is verified with the kubeconfig's CA, as kubectl does.
fn dialer(member: &kube::Config) -> anyhow::Result<Dialer> {
    let url = member.proxy_url.clone();
    let tls = match url.as_ref().and_then(|url| url.scheme_str()) {
        Some("https") => {
            let mut tls = tls::kube_client_config(member).context("cannot read the member's kubeconfig")?;
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
            Some(Arc::new(tls))
        }
        _ => None,
    };
    let proxy = ProxyOptions { url, tls, ..ProxyOptions::default() };
    Ok(Dialer::new(member.cluster_url.clone(), None, proxy, CONNECT_TIMEOUT)?)
}

/// Creates a client of the control plane from the current kubeconfig file.
async fn connect_control_plane(config: &Config, agent_metrics: &AgentMetrics) -> anyhow::Result<kube::Client> {
    let kubeconfig = config.control_plane.load().await?;
    let counter = agent_metrics.request_counter(&kubeconfig);
    Ok(spans::traced_client(kubeconfig, &counter)?)
}
