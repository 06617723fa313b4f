//! Metrics of a process in addition to those of controllers and cache, named as those of Karmada's components: build
//! info, client requests, admission. Written by the components, read by /metrics.

use std::fmt;

use crowsnest_component_base::metrics::{BuildInfo, RequestsCollector};
use crowsnest_component_base::requests::Requests;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Process-wide metrics.
pub struct ProcessMetrics {
    registry: Registry,
    pub requests: Requests,
    pub admissions: Admissions,
}

impl Default for ProcessMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessMetrics {
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (requests, admissions) = (Requests::default(), Admissions::new());
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

/// Counters of admission reviews, as controller-runtime exports them. Clones share the counters.
#[derive(Clone)]
pub struct Admissions {
    pub answers: Family<ResponseLabels, Counter>,
    pub latency: Family<WebhookLabels, Histogram, fn() -> Histogram>,
    pub in_flight: Family<WebhookLabels, Gauge>,
}

impl Default for Admissions {
    fn default() -> Self {
        Self::new()
    }
}

impl Admissions {
    pub fn new() -> Self {
        Self {
            answers: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(10e-9, 10.0, 12))),
            in_flight: Family::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let name = "controller_runtime_webhook_requests";
        registry.register(name, "Number of admission reviews by status code", self.answers.clone());
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
