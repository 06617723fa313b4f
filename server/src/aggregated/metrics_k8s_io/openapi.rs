//! OpenAPI of the metrics groups, under Kubernetes' own names.

use serde_json::{Map, Value, json};

use crate::aggregated::resource::registry::{CUSTOM_METRICS, USAGE};
use crate::aggregated::search_crowsnest_io::openapi::{
    STATUS, list, number, object, status, status_schema, text, time,
};

const JSON: &str = "application/json";
const USAGE_VERSION: &str = "v1beta1";

fn usage_name(kind: &str) -> String {
    format!("io.k8s.metrics.pkg.apis.metrics.{USAGE_VERSION}.{kind}")
}

fn value_name(version: &str, kind: &str) -> String {
    format!("io.k8s.metrics.pkg.apis.custom_metrics.{version}.{kind}")
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The kind that is found under a path.
fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

/// A GET of a kind and the schema of its answer.
fn get(id: &str, summary: &str, parameters: &[Value], gvk: Value, schema: &str) -> Value {
    let answer =
        |description: &str, schema: Value| json!({"description": description, "content": {JSON: {"schema": schema}}});
    let responses = json!({
        "200": answer("OK", reference(schema)),
        "401": answer("Nobody is known to ask.", status()),
        "403": answer("The caller may not read it in the control plane.", status()),
        "404": answer("No member has it.", status()),
        "409": answer("Several members have it.", status()),
    });
    json!({"get": {"operationId": id, "summary": summary, "parameters": parameters, "responses": responses,
        "x-kubernetes-group-version-kind": gvk}})
}

fn in_path(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "description": description, "schema": text()})
}

fn in_query(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": text()})
}

/// Of usage.
pub(crate) fn usage_paths() -> Map<String, Value> {
    let root = format!("/apis/{USAGE}/{USAGE_VERSION}");
    let namespace = in_path("namespace", "Of the pods.");
    let name = in_path("name", "Of the pod or node; it has to be in one member alone.");
    let labels = in_query("labelSelector", "Labels of what is measured.");
    let fields = in_query("fieldSelector", "metadata.name and metadata.namespace.");
    let lists = [labels, fields];
    let in_namespace = [std::slice::from_ref(&namespace), lists.as_slice()].concat();
    let path = |tail: &str, id: &str, kind: &str, list: bool, parameters: &[Value]| {
        let summary = if list { "Of all members." } else { "Of the one member that has it." };
        let schema = usage_name(&if list { format!("{kind}List") } else { kind.to_owned() });
        (format!("{root}/{tail}"), get(id, summary, parameters, gvk(USAGE, USAGE_VERSION, kind), &schema))
    };
    let (pods, nodes) = ("PodMetrics", "NodeMetrics");
    Map::from_iter([
        path("nodes", "listNodeMetrics", nodes, true, &lists),
        path("nodes/{name}", "readNodeMetrics", nodes, false, std::slice::from_ref(&name)),
        path("pods", "listPodMetricsForAllNamespaces", pods, true, &lists),
        path("namespaces/{namespace}/pods", "listNamespacedPodMetrics", pods, true, &in_namespace),
        path("namespaces/{namespace}/pods/{name}", "readNamespacedPodMetrics", pods, false, &[namespace, name]),
    ])
}

/// A kind that clients find by its name.
fn kind(group: &str, version: &str, kind: &str, mut fields: Value, optional: &[&str]) -> Value {
    fields["kind"] = text();
    fields["apiVersion"] = text();
    let mut schema = object(fields, &[optional, &["kind", "apiVersion", "metadata"]].concat());
    schema["x-kubernetes-group-version-kind"] = json!([gvk(group, version, kind)]);
    schema
}

fn metadata() -> Value {
    json!({"type": "object", "description": "The annotation resource.karmada.io/query-from-cluster names the member."})
}

/// What they answer with.
pub(crate) fn usage_schemas() -> Map<String, Value> {
    let used =
        || json!({"type": "object", "additionalProperties": text(), "description": "Quantities of cpu and memory."});
    let window = || json!({"type": "string", "description": "The time before the timestamp in which it was measured."});
    let kind = |name: &str, fields: Value| kind(USAGE, USAGE_VERSION, name, fields, &[]);
    let list_of = |name: &str| json!({"metadata": {"type": "object"}, "items": list(reference(&usage_name(name)))});
    let pod = json!({"metadata": metadata(), "timestamp": time(), "window": window(),
        "containers": list(reference(&usage_name("ContainerMetrics")))});
    let node = json!({"metadata": metadata(), "timestamp": time(), "window": window(), "usage": used()});
    Map::from_iter([
        (usage_name("ContainerMetrics"), object(json!({"name": text(), "usage": used()}), &[])),
        (usage_name("PodMetrics"), kind("PodMetrics", pod)),
        (usage_name("PodMetricsList"), kind("PodMetricsList", list_of("PodMetrics"))),
        (usage_name("NodeMetrics"), kind("NodeMetrics", node)),
        (usage_name("NodeMetricsList"), kind("NodeMetricsList", list_of("NodeMetrics"))),
        (STATUS.to_owned(), status_schema()),
    ])
}

/// Of custom metrics.
pub(crate) fn value_paths(version: &str) -> Map<String, Value> {
    let root = format!("/apis/{CUSTOM_METRICS}/{version}");
    let namespace = in_path("namespace", "Of the objects.");
    let resource = in_path("resource", "The objects' resource, with a dot and its group if it has one.");
    let object = in_path("name", "The object's name; * for all of them.");
    let metric = in_path("metric", "The metric's name.");
    let labels = in_query("labelSelector", "Labels of the objects.");
    let metrics = in_query("metricLabelSelector", "Labels of the metric.");
    let answer = value_name(version, "MetricValueList");
    let summary = "Values of a metric; those of objects of one name in several members are added.";
    let of_objects = [resource, object, metric.clone(), labels, metrics.clone()];
    let in_namespace = [std::slice::from_ref(&namespace), of_objects.as_slice()].concat();
    let path = |tail: &str, id: &str, parameters: &[Value]| {
        (
            format!("{root}/{tail}"),
            get(id, summary, parameters, gvk(CUSTOM_METRICS, version, "MetricValueList"), &answer),
        )
    };
    Map::from_iter([
        path("{resource}/{name}/{metric}", "listMetricValue", &of_objects),
        path("namespaces/{namespace}/{resource}/{name}/{metric}", "listNamespacedMetricValue", &in_namespace),
        path("namespaces/{namespace}/metrics/{metric}", "readMetricValueForNamespace", &[namespace, metric, metrics]),
    ])
}

/// What they answer with.
pub(crate) fn value_schemas(version: &str) -> Map<String, Value> {
    let described = object(
        json!({"kind": text(), "namespace": text(), "name": text(), "apiVersion": text()}),
        &["kind", "namespace", "name", "apiVersion"],
    );
    let selector = || json!({"type": "object", "nullable": true});
    let mut value = json!({"describedObject": described, "timestamp": time(), "value": text()});
    let (window, metric): (&str, &[(&str, Value)]) = match version {
        "v1beta1" => ("window", &[("metricName", text()), ("selector", selector())]),
        _ => ("windowSeconds", &[("metric", object(json!({"name": text(), "selector": selector()}), &["selector"]))]),
    };
    value[window] = number();
    for (name, field) in metric {
        value[*name] = field.clone();
    }
    let kind = |name: &str, fields: Value, optional: &[&str]| kind(CUSTOM_METRICS, version, name, fields, optional);
    let values = json!({"metadata": {"type": "object"}, "items": list(reference(&value_name(version, "MetricValue")))});
    Map::from_iter([
        (value_name(version, "MetricValue"), kind("MetricValue", value, &[window, "selector"])),
        (value_name(version, "MetricValueList"), kind("MetricValueList", values, &[])),
        (STATUS.to_owned(), status_schema()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_referred_to_is_there() {
        let values = ["v1beta1", "v1beta2"].map(|version| (value_paths(version), value_schemas(version)));
        for (paths, schemas) in [(usage_paths(), usage_schemas())].into_iter().chain(values) {
            let text = json!({"paths": paths, "schemas": schemas}).to_string();
            let names: Vec<&str> =
                text.split("#/components/schemas/").skip(1).filter_map(|part| part.split('"').next()).collect();
            assert!(names.len() > paths.len() && names.iter().all(|name| schemas.contains_key(*name)), "{names:?}");
        }
    }
}
