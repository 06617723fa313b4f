//! `cache`: state of the cache, and the metrics of a process as OpenMetrics text, for operators. Neither contains data
//! of members' objects.

use crowsnest_apimachinery::status::ApiError;
use std::fmt;

use axum::response::Response;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::metrics::{Scrape, Series};
use crowsnest_members::Fleet;
use http::{HeaderValue, header};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use super::call::typed_response;
use super::definition;
use crate::resource::{Call, HandledResource};
use crowsnest_process::reply::Body;
use crowsnest_runtime::metrics::ProcessMetrics;
use crowsnest_runtime::roles::RunningRoles;

pub(super) static CACHE: HandledResource =
    HandledResource::new(definition("cache", "CacheStatus"), |call| Box::pin(show(call)));

async fn show(call: Call<'_>) -> Result<Response, ApiError> {
    typed_response("CacheStatus", &call.server.running()?.cache.status().await.map_err(ApiError::internal)?)
}

/// Metrics of a process with a cache. A scrape counts the records of each collection, which costs as much as a request
/// for `cache`.
pub async fn metrics(
    running: &RunningRoles,
    more_series: impl Iterator<Item = Series>,
    process_metrics: &ProcessMetrics,
) -> Result<Response, ApiError> {
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let mut series = running.cache.series(now_ms).await.map_err(ApiError::internal)?;
    series.extend(tunnel_series(&running.fleet));
    series.extend(running.controller_runner.series());
    series.extend(running.backend_store_series());
    series.extend(running.graph_sink_series());
    series.extend(more_series);
    let metrics = running.controller_runner.metrics();
    metrics_response(series, |text| process_metrics.write(text).and_then(|()| metrics.write(text)))
}

/// Metrics of a process without a cache.
pub fn metrics_without_cache(
    series: impl Iterator<Item = Series>,
    process_metrics: &ProcessMetrics,
) -> Result<Response, ApiError> {
    metrics_response(series.collect(), |text| process_metrics.write(text))
}

fn metrics_response(
    series: Vec<Series>,
    write_more: impl FnOnce(&mut String) -> fmt::Result,
) -> Result<Response, ApiError> {
    let text = exposition(series, write_more).map_err(ApiError::internal)?;
    let mut response = Response::new(Body::from(text));
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// Series of tunnels; those of one metric are consecutive, as the text format requires.
fn tunnel_series(fleet: &Fleet) -> Vec<Series> {
    let gauge = |name, help, cluster: &ClusterName, value: usize| {
        let labels = vec![("cluster", cluster.to_string())];
        Series { name, help, is_counter: false, labels, value: value as u64 }
    };
    let counts = fleet.tunnels().counts();
    let open = counts
        .iter()
        .map(|(cluster, tunnels, _)| gauge("crowsnest_tunnels", "Tunnels that agents have open.", cluster, *tunnels));
    let streams = counts.iter().map(|(cluster, _, streams)| {
        gauge("crowsnest_tunnel_connections", "Connections to members through tunnels.", cluster, *streams)
    });
    open.chain(streams).collect()
}

fn exposition(series: Vec<Series>, write_more: impl FnOnce(&mut String) -> fmt::Result) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(series)));
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    write_more(&mut text)?;
    encode_eof(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_valid_openmetrics() {
        let series = |name, is_counter, labels, value| Series { name, help: "Help.", is_counter, labels, value };
        let all = vec![
            series("a", false, vec![("cluster", "m\"1".to_owned()), ("resource", "pods".to_owned())], 1),
            series("a", false, vec![("cluster", "m2".to_owned()), ("resource", "pods".to_owned())], 2),
            series("b_total", true, Vec::new(), 3),
            series("c", false, Vec::new(), 4),
        ];
        let text = exposition(all, |text| fmt::Write::write_str(text, "# TYPE d gauge\nd 5\n"));
        let expected = "# HELP a Help.\n# TYPE a gauge\na{cluster=\"m\\\"1\",resource=\"pods\"} 1\n\
            a{cluster=\"m2\",resource=\"pods\"} 2\n# HELP b Help.\n# TYPE b counter\nb_total 3\n\
            # HELP c Help.\n# TYPE c gauge\nc 4\n# TYPE d gauge\nd 5\n# EOF\n";
        assert_eq!(text.as_deref(), Ok(expected));
    }
}
