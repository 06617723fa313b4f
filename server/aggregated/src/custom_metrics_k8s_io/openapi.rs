//! OpenAPI of custom metrics, with the schema names of Kubernetes.

use serde_json::{Map, Value, json};

use super::NAME;
use crate::metrics_k8s_io::openapi::{Get, kind};
use crate::resource::openapi::Document;
use crate::resource::schema::{date_time, in_path, in_query, integer, list, object, reference, string};

fn value_name(version: &str, kind: &str) -> String {
    format!("io.k8s.metrics.pkg.apis.custom_metrics.{version}.{kind}")
}

pub(super) fn describe(version: &str, document: &mut Document) {
    for (path, item) in paths(version) {
        document.add_path(path, item);
    }
    for (name, schema) in schemas(version) {
        document.add_schema(name, schema);
    }
}

fn paths(version: &str) -> Map<String, Value> {
    let root = format!("/apis/{NAME}/{version}");
    let namespace = in_path("namespace", "Namespace of the objects.");
    let resource =
        in_path("resource", "Resource of the objects, with its group unless it is the core group: deployments.apps.");
    let object = in_path("name", "Name of the object; * for all objects.");
    let metric = in_path("metric", "Name of the metric.");
    let labels = in_query("labelSelector", "Label selector for the objects.");
    let metrics = in_query("metricLabelSelector", "Label selector for the metric.");
    let schema = value_name(version, "MetricValueList");
    let summary = "Values of a metric; values of objects with the same name in several members are summed.";
    let of_objects = [resource, object, metric.clone(), labels, metrics.clone()];
    let in_namespace = [std::slice::from_ref(&namespace), of_objects.as_slice()].concat();
    let path = |resource_path: &str, id: &str, parameters: &[Value]| {
        let get = Get { id, summary, parameters, gvk: (NAME, version, "MetricValueList"), schema: &schema };
        (format!("{root}/{resource_path}"), get.item())
    };
    Map::from_iter([
        path("{resource}/{name}/{metric}", "listMetricValue", &of_objects),
        path("namespaces/{namespace}/{resource}/{name}/{metric}", "listNamespacedMetricValue", &in_namespace),
        path("namespaces/{namespace}/metrics/{metric}", "readMetricValueForNamespace", &[namespace, metric, metrics]),
    ])
}

fn schemas(version: &str) -> Map<String, Value> {
    let described = object(
        json!({"kind": string(), "namespace": string(), "name": string(), "apiVersion": string()}),
        &["kind", "namespace", "name", "apiVersion"],
    );
    let selector = || json!({"type": "object", "nullable": true});
    let mut value = json!({"describedObject": described, "timestamp": date_time(), "value": string()});
    let (window, metric): (&str, &[(&str, Value)]) = match version {
        "v1beta1" => ("window", &[("metricName", string()), ("selector", selector())]),
        _ => ("windowSeconds", &[("metric", object(json!({"name": string(), "selector": selector()}), &["selector"]))]),
    };
    value[window] = integer();
    for (name, field) in metric {
        value[*name] = field.clone();
    }
    let kind = |name: &str, fields: Value, optional: &[&str]| kind(NAME, version, name, fields, optional);
    let values = json!({"metadata": {"type": "object"}, "items": list(reference(&value_name(version, "MetricValue")))});
    Map::from_iter([
        (value_name(version, "MetricValue"), kind("MetricValue", value, &[window, "selector"])),
        (value_name(version, "MetricValueList"), kind("MetricValueList", values, &[])),
    ])
}
