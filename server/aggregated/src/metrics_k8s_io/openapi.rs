//! OpenAPI of resource usage, with the schema names of Kubernetes.

use serde_json::{Map, Value, json};

use super::{NAME, VERSION};
use crate::resource::openapi::Document;
use crate::resource::schema::{
    JSON, date_time, in_path, in_query, list, object, reference, responses, status_schema, string,
};

const FAILURES: [(&str, &str); 4] = [
    ("401", "The caller is not authenticated."),
    ("403", "The caller is not authorized to read it in the control plane."),
    ("404", "No member has it."),
    ("409", "Several members have it."),
];

fn usage_name(kind: &str) -> String {
    format!("io.k8s.metrics.pkg.apis.metrics.{VERSION}.{kind}")
}

/// Group, version and kind of an operation or schema.
fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

/// A GET of a kind.
pub struct Get<'a> {
    pub id: &'a str,
    pub summary: &'a str,
    pub parameters: &'a [Value],
    /// Group, version and kind.
    pub gvk: (&'a str, &'a str, &'a str),
    /// Name of the schema of the response.
    pub schema: &'a str,
}

impl Get<'_> {
    pub fn item(&self) -> Value {
        let content = json!({JSON: {"schema": reference(self.schema)}});
        let (group, version, kind) = self.gvk;
        json!({"get": {"operationId": self.id, "summary": self.summary, "parameters": self.parameters,
            "responses": responses("200", content, &FAILURES), "x-kubernetes-group-version-kind": gvk(group, version, kind)}})
    }
}

/// Adds the path of a list, or of one object.
fn add_path(
    document: &mut Document,
    (resource_path, id): (&str, &str),
    kind: &str,
    is_list: bool,
    parameters: &[Value],
) {
    let summary = if is_list { "Usage in all members." } else { "Usage in the member that has the object." };
    let schema = usage_name(&if is_list { format!("{kind}List") } else { kind.to_owned() });
    let get = Get { id, summary, parameters, gvk: (NAME, VERSION, kind), schema: &schema };
    document.add_path(format!("/apis/{NAME}/{VERSION}/{resource_path}"), get.item());
}

fn object_name() -> Value {
    in_path("name", "Name of the pod or node, which must exist in a single member.")
}

fn selectors() -> [Value; 2] {
    [
        in_query("labelSelector", "Label selector for the pods or nodes."),
        in_query("fieldSelector", "Field selector; metadata.name and metadata.namespace are supported."),
    ]
}

pub(super) fn describe_nodes(document: &mut Document) {
    add_path(document, ("nodes", "listNodeMetrics"), "NodeMetrics", true, &selectors());
    add_path(document, ("nodes/{name}", "readNodeMetrics"), "NodeMetrics", false, &[object_name()]);
}

pub(super) fn describe_pods(document: &mut Document) {
    let kind = "PodMetrics";
    let namespace = in_path("namespace", "Namespace of the pods.");
    let in_namespace: Vec<Value> = std::iter::once(namespace.clone()).chain(selectors()).collect();
    add_path(document, ("pods", "listPodMetricsForAllNamespaces"), kind, true, &selectors());
    add_path(document, ("namespaces/{namespace}/pods", "listNamespacedPodMetrics"), kind, true, &in_namespace);
    let single_pod = ("namespaces/{namespace}/pods/{name}", "readNamespacedPodMetrics");
    add_path(document, single_pod, kind, false, &[namespace, object_name()]);
}

/// Schema of a kind, with the extension by which clients find it.
pub fn kind(group: &str, version: &str, kind: &str, mut fields: Value, optional: &[&str]) -> Value {
    fields["kind"] = string();
    fields["apiVersion"] = string();
    let mut schema = object(fields, &[optional, &["kind", "apiVersion", "metadata"]].concat());
    schema["x-kubernetes-group-version-kind"] = json!([gvk(group, version, kind)]);
    schema
}

fn metadata() -> Value {
    json!({"type": "object", "description": "The annotation resource.karmada.io/query-from-cluster names the member."})
}

/// Schemas of the usage of pods and nodes.
pub(super) fn schemas() -> Map<String, Value> {
    let usage =
        || json!({"type": "object", "additionalProperties": string(), "description": "Quantities of cpu and memory."});
    let window = || json!({"type": "string", "description": "The time before the timestamp in which it was measured."});
    let kind = |name: &str, fields: Value| kind(NAME, VERSION, name, fields, &[]);
    let list_of = |name: &str| json!({"metadata": {"type": "object"}, "items": list(reference(&usage_name(name)))});
    let pod = json!({"metadata": metadata(), "timestamp": date_time(), "window": window(),
        "containers": list(reference(&usage_name("ContainerMetrics")))});
    let node = json!({"metadata": metadata(), "timestamp": date_time(), "window": window(), "usage": usage()});
    let mut schemas = status_schema();
    schemas.extend([
        (usage_name("ContainerMetrics"), object(json!({"name": string(), "usage": usage()}), &[])),
        (usage_name("PodMetrics"), kind("PodMetrics", pod)),
        (usage_name("PodMetricsList"), kind("PodMetricsList", list_of("PodMetrics"))),
        (usage_name("NodeMetrics"), kind("NodeMetrics", node)),
        (usage_name("NodeMetricsList"), kind("NodeMetricsList", list_of("NodeMetrics"))),
    ]);
    schemas
}
