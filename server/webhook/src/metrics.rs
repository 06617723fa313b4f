//! Admission metrics by webhook path, as controller-runtime exports them. Only the paths in Karmada's webhook
//! configurations are counted, because clients can request arbitrary others.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::metrics::gauge::Gauge;

use crowsnest_runtime::metrics::AdmissionMetrics;

pub(super) const PATHS: [&str; 22] = [
    "/mutate-clusterpropagationpolicy",
    "/mutate-clusterresourcebinding",
    "/mutate-federatedhpa",
    "/mutate-multiclusterservice",
    "/mutate-overridepolicy",
    "/mutate-propagationpolicy",
    "/mutate-resourcebinding",
    "/mutate-work",
    "/validate-clusteroverridepolicy",
    "/validate-clusterpropagationpolicy",
    "/validate-clustertaintpolicy",
    "/validate-cronfederatedhpa",
    "/validate-federatedhpa",
    "/validate-federatedresourcequota",
    "/validate-multiclusteringress",
    "/validate-multiclusterservice",
    "/validate-overridepolicy",
    "/validate-propagationpolicy",
    "/validate-resourcebinding",
    "/validate-resourcedeletionprotection",
    "/validate-resourceinterpretercustomization",
    "/validate-resourceinterpreterwebhookconfiguration",
];

/// A counted review in flight. Dropping it decrements the gauge, also if the request is cancelled.
struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

pub(super) async fn count(State(admissions): State<AdmissionMetrics>, request: Request, next: Next) -> Response {
    let requested_path = request.uri().path();
    let Some(path) = PATHS.into_iter().find(|path| *path == requested_path) else { return next.run(request).await };
    let label = [("webhook", path)];
    let in_flight = admissions.in_flight.get_or_create_owned(&label);
    in_flight.inc();
    let in_flight = InFlight(in_flight);
    let start = Instant::now();
    let response = next.run(request).await;
    drop(in_flight);
    admissions.latency.get_or_create(&label).observe(start.elapsed().as_secs_f64());
    let labels = vec![("webhook", path.to_owned()), ("code", response.status().as_str().to_owned())];
    admissions.responses.get_or_create(&labels).inc();
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::body::Body;
    use axum::routing::post;
    use http::StatusCode;
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::registry::Registry;
    use serde_json::Value;
    use std::collections::BTreeSet;
    use tower::ServiceExt;

    #[test]
    fn installed_webhooks_are_counted() {
        let manifests: Vec<Value> = crowsnest_install::admission_manifests("https://here", "");
        let hooks = manifests.iter().filter_map(|manifest| manifest["webhooks"].as_array()).flatten();
        let urls = hooks.filter_map(|hook| hook["clientConfig"]["url"].as_str()?.strip_prefix("https://here"));
        let installed: BTreeSet<&str> =
            urls.filter(|path| !path.starts_with("/stored/") && !path.starts_with("/agents/")).collect();
        assert_eq!(installed, BTreeSet::from(PATHS));
    }

    #[tokio::test]
    async fn reviews_are_counted_by_webhook_and_code() {
        let admissions = AdmissionMetrics::new();
        let handler = async |request: Request| match request.uri().query() {
            Some(_) => StatusCode::BAD_REQUEST,
            None => StatusCode::OK,
        };
        let counting = axum::middleware::from_fn_with_state(admissions.clone(), count);
        let router: Router = Router::new().route("/{path}", post(handler).layer(counting));
        for path in ["/mutate-work", "/mutate-work", "/mutate-work?wrong", "/made-up"] {
            let request = Request::post(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap();
        }
        let mut registry = Registry::default();
        admissions.register(&mut registry);
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        for line in [
            "requests_total{webhook=\"/mutate-work\",code=\"200\"} 2",
            "requests_total{webhook=\"/mutate-work\",code=\"400\"} 1",
            "latency_seconds_count{webhook=\"/mutate-work\"} 3",
            "requests_in_flight{webhook=\"/mutate-work\"} 0",
        ] {
            let line = format!("controller_runtime_webhook_{line}");
            assert!(text.lines().any(|printed| printed == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("made-up"), "{text}");
    }
}
