//! Metrics of an agent, with the names that Karmada's agent uses: build info, requests to the control plane, tunnels.
//! The control plane exports the metrics of the cluster itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use crowsnest_component_base::metrics::Series;
use crowsnest_component_base::requests::{RequestCountLayer, RequestCounters};
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::health::TunnelState;
use crowsnest_component_base::metrics::Scrape;
use crowsnest_component_base::metrics::{BuildInfo, RequestsCollector};

/// The agent's metrics. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct AgentMetrics(Arc<Counts>);

#[derive(Default)]
struct Counts {
    requests: RequestCounters,
    /// Layer of the latest control plane client. It keeps the totals of its host while no client exists; each tunnel
    /// attempt creates a client.
    request_counter: Mutex<Option<RequestCountLayer>>,
    opened_tunnels: AtomicU64,
}

impl AgentMetrics {
    /// The layer that counts the requests of a control plane client.
    pub(super) fn request_counter(&self, control_plane: &kube::Config) -> RequestCountLayer {
        let host = control_plane.cluster_url.authority().map(|host| host.as_str()).unwrap_or_default();
        let request_counter = self.0.requests.layer(host);
        *self.0.request_counter.lock() = Some(request_counter.clone());
        request_counter
    }

    pub(super) fn record_opened_tunnel(&self) {
        self.0.opened_tunnels.fetch_add(1, Ordering::Relaxed);
    }

    fn exposition(&self, tunnel: &TunnelState) -> Result<String, fmt::Error> {
        let series = |name, help, is_counter, value| Series { name, help, is_counter, labels: Vec::new(), value };
        let agent_series = vec![
            series(
                "crowsnest_agent_tunnel_open",
                "Whether a tunnel to the control plane is open.",
                false,
                u64::from(*tunnel == TunnelState::Open),
            ),
            series(
                "crowsnest_agent_tunnels_opened_total",
                "Number of opened tunnels.",
                true,
                self.0.opened_tunnels.load(Ordering::Relaxed),
            ),
        ];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(BuildInfo));
        registry.register_collector(Box::new(RequestsCollector(self.0.requests.clone())));
        registry.register_collector(Box::new(Scrape(agent_series)));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

type MetricsState = (AgentMetrics, watch::Receiver<TunnelState>);

pub(super) fn routes(metrics: AgentMetrics, tunnel: watch::Receiver<TunnelState>) -> Router {
    Router::new().route("/metrics", get(serve_metrics)).with_state((metrics, tunnel))
}

async fn serve_metrics(State((metrics, tunnel)): State<MetricsState>) -> Result<Response, StatusCode> {
    let state = tunnel.borrow().clone();
    let text = metrics.exposition(&state).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let mut response = Response::new(axum::body::Body::from(text));
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response as HttpResponse};
    use tower::{Layer, ServiceExt};

    #[tokio::test]
    async fn metrics_have_build_info_requests_and_tunnels() {
        let metrics = AgentMetrics::default();
        let config = kube::Config::new("https://cp:6443".parse().unwrap());
        let api = tower::service_fn(async |_: Request<()>| Ok::<_, &str>(HttpResponse::new(())));
        for _ in 0..2 {
            // Each tunnel has its own client.
            let client = metrics.request_counter(&config).layer(api);
            client.oneshot(Request::get("/").body(()).unwrap()).await.unwrap();
        }
        metrics.record_opened_tunnel();
        let text = metrics.exposition(&TunnelState::Closed("refused".to_owned())).unwrap();
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"cp:6443\"} 2",
            "crowsnest_agent_tunnel_open 0",
            "crowsnest_agent_tunnels_opened_total 1",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{text}");
        }
        assert!(text.contains("karmada_build_info{") && text.ends_with("# EOF\n"), "{text}");
        assert!(metrics.exposition(&TunnelState::Open).unwrap().contains("crowsnest_agent_tunnel_open 1\n"));
    }
}
