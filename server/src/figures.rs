//! What a process counts beside its loops and its cache, under the names of Karmada's components: what it was built from, requests
//! it sends, admission. Written by those at work, read by whoever serves metrics.

use std::fmt;

use crowsnest_component_base::requests::{Counted, Requests};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::webhook::counted::Admissions;

/// See the module.
pub(crate) struct Figures {
    registry: Registry,
    pub(crate) requests: Requests,
    pub(crate) admissions: Admissions,
}

impl Figures {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let (requests, admissions) = (Requests::default(), Admissions::new());
        registry.register_collector(Box::new(BuildInfo));
        registry.register_collector(Box::new(Sent(requests.clone())));
        admissions.register(&mut registry);
        Self { registry, requests, admissions }
    }

    /// All of them as OpenMetrics text, without its end.
    pub(crate) fn write(&self, out: &mut String) -> fmt::Result {
        encode_registry(out, &self.registry)
    }
}

/// What this binary was built from. Karmada's words; those about Go have nothing to say here, and a build that can be
/// repeated has no date.
#[derive(Debug)]
pub(crate) struct BuildInfo;

impl Collector for BuildInfo {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let commit = option_env!("CROWSNEST_COMMIT").unwrap_or_default();
        let version = concat!("v", env!("CARGO_PKG_VERSION"));
        let platform = platform(std::env::consts::OS, std::env::consts::ARCH);
        let labels = [
            ("git_version", version),
            ("git_commit", commit),
            ("git_short_commit", commit.get(..commit.len().min(10)).unwrap_or_default()),
            ("git_tree_state", ""),
            ("build_date", ""),
            ("go_version", ""),
            ("compiler", "rustc"),
            ("platform", &platform),
        ];
        let help = "What this binary was built from, always 1";
        let mut metric = encoder.encode_descriptor("karmada_build_info", help, None, MetricType::Gauge)?;
        metric.encode_family(&labels)?.encode_gauge(&1_u32)
    }
}

/// As Go and Kubernetes name it.
fn platform(system: &str, processor: &str) -> String {
    let processor = match processor {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{system}/{processor}")
}

/// Requests to API servers, under client-go's name.
#[derive(Debug)]
pub(crate) struct Sent(pub(crate) Requests);

impl Collector for Sent {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests to API servers, by what was answered";
        let mut metric = encoder.encode_descriptor("rest_client_requests", help, None, MetricType::Counter)?;
        for Counted { host, method, status, count } in self.0.counted() {
            let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
            let labels = [("code", code), ("method", method), ("host", host)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use rstest::rstest;
    use tower::{Layer, ServiceExt};

    #[rstest]
    #[case("linux", "x86_64", "linux/amd64")]
    #[case("linux", "aarch64", "linux/arm64")]
    #[case("linux", "riscv64", "linux/riscv64")]
    fn platforms_are_named_as_kubernetes_names_them(#[case] system: &str, #[case] cpu: &str, #[case] named: &str) {
        assert_eq!(platform(system, cpu), named);
    }

    #[tokio::test]
    async fn a_process_tells_what_it_is_and_what_it_asked() {
        let figures = Figures::new();
        let api = tower::service_fn(|request: Request<()>| async move {
            if request.uri().path() == "/" { Ok(Response::new(())) } else { Err("no connection") }
        });
        for path in ["/", "/nowhere"] {
            let request = Request::get(path).body(()).unwrap();
            drop(figures.requests.layer("cp:6443").layer(api).oneshot(request).await);
        }
        let kept = figures.requests.layer("cp:6443");
        let request = Request::get("/").body(()).unwrap();
        drop(kept.layer(api).oneshot(request).await);
        let mut text = String::new();
        figures.write(&mut text).unwrap();
        // Who asked before is gone, and so is what was counted of it.
        assert!(
            text.contains("rest_client_requests_total{code=\"200\",method=\"GET\",host=\"cp:6443\"} 1\n"),
            "{text}"
        );
        let version = concat!("karmada_build_info{git_version=\"v", env!("CARGO_PKG_VERSION"), "\",git_commit=\"");
        let told = text.lines().find(|line| line.starts_with(version));
        assert!(told.is_some_and(|told| told.ends_with("} 1") && told.contains(",compiler=\"rustc\",")), "{text}");
    }
}
