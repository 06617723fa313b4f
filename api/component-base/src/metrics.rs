//! Collectors for Prometheus metrics: series computed at a scrape, build information, and requests to API servers.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::requests::{RequestCount, RequestCounters};

/// One value of one metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    pub name: &'static str,
    pub help: &'static str,
    /// True for a counter, false for a gauge.
    pub is_counter: bool,
    pub labels: Vec<(&'static str, String)>,
    pub value: u64,
}

impl Series {
    /// Creates a series without labels.
    pub fn without_labels(name: &'static str, help: &'static str, is_counter: bool, value: u64) -> Self {
        Self { name, help, is_counter, labels: Vec::new(), value }
    }
}

/// All series of one scrape. Series of the same metric must be adjacent.
#[derive(Debug)]
pub struct Scrape(pub Vec<Series>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric_series in self.0.chunk_by(|previous, next| previous.name == next.name) {
            let Some(Series { name, help, is_counter, .. }) = metric_series.first() else { continue };
            let kind = if *is_counter { MetricType::Counter } else { MetricType::Gauge };
            // The encoder adds the suffix of counters.
            let name = name.strip_suffix("_total").unwrap_or(name);
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for series in metric_series {
                encode_value(&mut metric, series)?;
            }
        }
        Ok(())
    }
}

fn encode_value(metric: &mut MetricEncoder<'_>, series: &Series) -> Result<(), fmt::Error> {
    if series.is_counter {
        return metric.encode_counter::<NoLabelSet, _, f64>(&series.value, None);
    }
    let value = i64::try_from(series.value).unwrap_or(i64::MAX);
    match series.labels.is_empty() {
        true => metric.encode_gauge(&value),
        false => metric.encode_family(&series.labels)?.encode_gauge(&value),
    }
}

/// Build information under Karmada's metric and label names. `go_version` is empty, and so is `build_date`, since builds are
/// reproducible.
#[derive(Debug)]
pub struct BuildInfo;

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
        let help = "Build information of this binary; the value is always 1";
        let mut metric = encoder.encode_descriptor("karmada_build_info", help, None, MetricType::Gauge)?;
        metric.encode_family(&labels)?.encode_gauge(&1_u32)
    }
}

/// Operating system and architecture by Go's names, such as `linux/amd64`.
fn platform(system: &str, processor: &str) -> String {
    let processor = match processor {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{system}/{processor}")
}

/// Collector of the number of requests to API servers, under client-go's metric name.
#[derive(Debug)]
pub struct RequestsCollector(pub RequestCounters);

impl Collector for RequestsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests to API servers, by status code";
        let mut metric = encoder.encode_descriptor("rest_client_requests", help, None, MetricType::Counter)?;
        for RequestCount { host, method, status, count } in self.0.counts() {
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
    use rstest::rstest;

    #[rstest]
    #[case("linux", "x86_64", "linux/amd64")]
    #[case("linux", "aarch64", "linux/arm64")]
    #[case("linux", "riscv64", "linux/riscv64")]
    fn platforms_have_kubernetes_names(#[case] system: &str, #[case] cpu: &str, #[case] expected: &str) {
        assert_eq!(platform(system, cpu), expected);
    }
}
