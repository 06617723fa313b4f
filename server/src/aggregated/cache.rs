//! What the cache says of itself: `search.crowsnest.io/v1alpha1` `cache` (JSON) and `metrics` (Prometheus' text), for those who run
//! it. Neither holds anything of an object.

use std::collections::BTreeMap;

use axum::response::Response;
use crowsnest_index::metrics::Series;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::reply::{Body, Failure, json as reply};
use crate::roles::Running;

pub(super) async fn status(running: &Running) -> Result<Response, Failure> {
    let status = running.index.status().await.map_err(Failure::internal)?;
    let mut body = json!({"kind": "CacheStatus", "apiVersion": "search.crowsnest.io/v1alpha1"});
    let status = serde_json::to_value(status).map_err(Failure::internal)?;
    if let (Some(body), Value::Object(status)) = (body.as_object_mut(), status) {
        body.extend(status);
    }
    Ok(reply(StatusCode::OK, &body))
}

pub(super) async fn metrics(running: &Running) -> Result<Response, Failure> {
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let series = running.index.series(now_ms).await.map_err(Failure::internal)?;
    let mut response = Response::new(Body::from(exposition(&series)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Prometheus' text format, version 0.0.4: metrics by name, series as they came.
fn exposition(series: &[Series]) -> String {
    let mut by_name: BTreeMap<&str, Vec<&Series>> = BTreeMap::new();
    for one in series {
        by_name.entry(one.name).or_default().push(one);
    }
    let mut text = String::new();
    for (name, series) in by_name {
        let Some(first) = series.first() else { continue };
        let kind = if first.counts { "counter" } else { "gauge" };
        text.push_str(&format!("# HELP {name} {}\n# TYPE {name} {kind}\n", first.help));
        series.iter().for_each(|one| text.push_str(&format!("{name}{} {}\n", labels(&one.labels), one.value)));
    }
    text
}

fn labels(labels: &[(&'static str, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_prometheus_text() {
        let series = |name, counts, labels, value| Series { name, help: "Help.", counts, labels, value };
        let text = exposition(&[
            series("b_total", true, Vec::new(), 3),
            series("a", false, vec![("cluster", "m\"1".to_owned()), ("resource", "pods".to_owned())], 1),
            series("a", false, vec![("cluster", "m2".to_owned()), ("resource", "pods".to_owned())], 2),
        ]);
        let expected = "# HELP a Help.\n# TYPE a gauge\na{cluster=\"m\\\"1\",resource=\"pods\"} 1\n\
            a{cluster=\"m2\",resource=\"pods\"} 2\n# HELP b_total Help.\n# TYPE b_total counter\nb_total 3\n";
        assert_eq!(text, expected);
    }
}
