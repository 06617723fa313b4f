//! Process-wide metrics that `/metrics` serves in addition to those of controllers and cache: build information, client
//! requests and admission. Their names are those of Karmada's components.

use std::fmt;

use crowsnest_component_base::metrics::{BuildInfo, RequestsCollector};
use crowsnest_component_base::requests::RequestCounters;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Process-wide metrics.
pub struct ProcessMetrics {
    registry: Registry,
    pub requests: RequestCounters,
    pub admissions: AdmissionMetrics,
}

impl Default for ProcessMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessMetrics {
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (requests, admissions) = (RequestCounters::default(), AdmissionMetrics::new());
        registry.register_collector(Box::new(BuildInfo));
        registry.register_collector(Box::new(RequestsCollector(requests.clone())));
        admissions.register(&mut registry);
        Self { registry, requests, admissions }
    }

    /// Writes all metrics as OpenMetrics text without `# EOF`.
    pub fn write(&self, out: &mut String) -> fmt::Result {
        encode_registry(out, &self.registry)
    }
}

type WebhookLabels = [(&'static str, &'static str); 1];
type ResponseLabels = Vec<(&'static str, String)>;

/// Metrics of admission reviews under controller-runtime's names. Clones share the values.
#[derive(Clone)]
pub struct AdmissionMetrics {
    pub responses: Family<ResponseLabels, Counter>,
    /// Duration of reviews in seconds.
    pub latency: Family<WebhookLabels, Histogram, fn() -> Histogram>,
    pub in_flight: Family<WebhookLabels, Gauge>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl AdmissionMetrics {
    pub fn new() -> Self {
        Self {
            responses: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(10e-9, 10.0, 12))),
            in_flight: Family::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let name = "controller_runtime_webhook_requests";
        registry.register(name, "Number of admission reviews by status code", self.responses.clone());
        let name = "controller_runtime_webhook_latency_seconds";
        registry.register(name, "Latency of admission reviews", self.latency.clone());
        let name = "controller_runtime_webhook_requests_in_flight";
        registry.register(name, "Number of admission reviews in flight", self.in_flight.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use tower::{Layer, ServiceExt};

    #[tokio::test]
    async fn metrics_have_build_info_and_requests() {
        let metrics = ProcessMetrics::new();
        let api = tower::service_fn(|request: Request<()>| async move {
            if request.uri().path() == "/" { Ok(Response::new(())) } else { Err("no connection") }
        });
        for path in ["/", "/unreachable"] {
            let request = Request::get(path).body(()).unwrap();
            drop(metrics.requests.layer("cp:6443").layer(api).oneshot(request).await);
        }
        let second = metrics.requests.layer("cp:6443");
        let request = Request::get("/").body(()).unwrap();
        drop(second.layer(api).oneshot(request).await);
        let mut text = String::new();
        metrics.write(&mut text).unwrap();
        // The layer of the earlier client was dropped with its counts.
        assert!(
            text.contains("rest_client_requests_total{code=\"200\",method=\"GET\",host=\"cp:6443\"} 1\n"),
            "{text}"
        );
        let version = concat!("karmada_build_info{git_version=\"v", env!("CARGO_PKG_VERSION"), "\",git_commit=\"");
        let build_info = text.lines().find(|line| line.starts_with(version));
        assert!(
            build_info.is_some_and(|line| line.ends_with("} 1") && line.contains(",compiler=\"rustc\",")),
            "{text}"
        );
    }
}
