//! `custom.metrics.k8s.io`: values of metrics in all members, as Karmada's metrics adapter serves them. The resources
//! are those that members list; members are read with the account of this server.

mod openapi;

use axum::response::Response;
use crowsnest_api::aggregated_groups;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_proxy::Metric;
use futures::future::BoxFuture;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::forwarding::{to_proxy_request, to_response};

use crate::resource::openapi::Document;
use crate::resource::registry::Group;
use crate::resource::schema::status_schema;
use crate::resource::{Call, Definition, GET, Paths, Resource};
use crate::server::AggregatedServer;

const NAME: &str = aggregated_groups::CUSTOM_METRICS.name;

pub const GROUP: Group =
    Group { schemas: status_schema, ..Group::new(&aggregated_groups::CUSTOM_METRICS, &[&MetricValues]) };

/// The resource of the values of all custom metrics.
struct MetricValues;

impl Resource for MetricValues {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition =
            Definition { route: NAME, ..Definition::new("", "MetricValueList", GET, Paths::Object) };
        &DEFINITION
    }

    /// Members are read with the account of this server, so a path must have the same meaning in all of them: each part
    /// must be a plain name.
    fn locate(&self, resource_path: &str) -> Option<usize> {
        let parts = resource_path.strip_prefix('/')?.split('/').map(|part| percent_decode_str(part).decode_utf8().ok());
        let parts = parts.map(|part| part.filter(|name| is_name(name))).collect::<Option<Vec<_>>>()?;
        let found = match parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().as_slice() {
            // For these paths, the authorized attributes would name another resource.
            ["namespaces" | "watch" | "proxy", _, _] | ["namespaces", _, "status" | "finalize", ..] => false,
            [_, _, _] | ["namespaces", _, "metrics", _] | ["namespaces", _, _, _, _] => true,
            _ => false,
        };
        found.then_some(resource_path.len())
    }

    /// The metrics that members list. Empty until the members are known.
    fn discover<'a>(&'a self, server: &'a AggregatedServer) -> BoxFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let metrics = match server.running() {
                Ok(running) => running.proxy.list_custom_metrics().await,
                Err(_) => Vec::new(),
            };
            metrics.iter().map(discovery).collect()
        })
    }

    fn describe(&self, version: &str, document: &mut Document) {
        openapi::describe(version, document);
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let Call { server, context, request } = call;
            let path = &context.attributes.path;
            Ok(to_response(server.running()?.proxy.custom_metrics(path, to_proxy_request(request)).await))
        })
    }
}

fn discovery(metric: &Metric) -> Value {
    json!({"name": metric.name, "singularName": "", "namespaced": metric.namespaced, "kind": "MetricValueList", "verbs": GET})
}

/// True if a decoded part of a path can be a name.
fn is_name(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains(['/', '%'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_resources() {
        let metric = Metric { name: "pods/qps".to_owned(), namespaced: true };
        let expected = json!({"name": "pods/qps", "singularName": "", "namespaced": true, "kind": "MetricValueList",
            "verbs": ["get"]});
        assert_eq!(discovery(&metric), expected);
    }
}
