//! OpenAPI of the aggregated groups, from the schemas of their kinds.

use serde_json::{Value, json};

use super::discovery;

/// `/openapi/v3`, `/openapi/v3/apis/<group>/<version>`, `/openapi/v2`.
pub(super) fn document(path: &str) -> Option<Value> {
    match path.trim_end_matches('/') {
        "/openapi/v3" => Some(index()),
        "/openapi/v2" => Some(v2()),
        other => {
            let (group, version) = other.strip_prefix("/openapi/v3/apis/")?.split_once('/')?;
            (version == discovery::VERSION && discovery::groups().any(|g| g == group)).then(|| v3(group))
        }
    }
}

fn index() -> Value {
    let paths = discovery::groups().map(|group| {
        let path = format!("apis/{group}/{}", discovery::VERSION);
        let url = json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"))});
        (path, url)
    });
    json!({"paths": paths.collect::<serde_json::Map<_, _>>()})
}

/// (group, kind, plural, schema) of the stored kinds.
fn kinds() -> [(&'static str, &'static str, &'static str, Value); 2] {
    [
        (
            "cluster.karmada.io",
            "Cluster",
            "clusters",
            crowsnest_api::crd::schema::<crowsnest_api::cluster::Cluster>(&["spec"]),
        ),
        (
            "search.karmada.io",
            "ResourceRegistry",
            "resourceregistries",
            crowsnest_api::crd::schema::<crowsnest_api::search::ResourceRegistry>(&["spec"]),
        ),
    ]
}

fn definition_name(group: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{}.{kind}", reversed.join("."), discovery::VERSION)
}

fn with_kind(mut schema: Value, group: &str, kind: &str) -> Value {
    schema["x-kubernetes-group-version-kind"] = json!([{"group": group, "kind": kind, "version": discovery::VERSION}]);
    schema
}

fn v3(group: &str) -> Value {
    let mut schemas = serde_json::Map::new();
    let mut paths = serde_json::Map::new();
    for (of, kind, plural, schema) in kinds() {
        if of != group {
            continue;
        }
        let name = definition_name(group, kind);
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        let answer = json!({"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}});
        let gvk = json!({"group": group, "kind": kind, "version": discovery::VERSION});
        let operation = |action: &str| json!({"responses": answer, "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk});
        let root = format!("/apis/{group}/{}/{plural}", discovery::VERSION);
        paths.insert(root.clone(), json!({"get": operation("list"), "post": operation("post")}));
        paths.insert(
            format!("{root}/{{name}}"),
            json!({"get": operation("get"), "put": operation("put"), "patch": operation("patch"), "delete": operation("delete")}),
        );
        schemas.insert(name, with_kind(schema, group, kind));
    }
    json!({"openapi": "3.0.0", "info": {"title": "Crowsnest", "version": env!("CARGO_PKG_VERSION")},
           "paths": paths, "components": {"schemas": schemas}})
}

fn v2() -> Value {
    let definitions = kinds()
        .into_iter()
        .map(|(group, kind, _, schema)| (definition_name(group, kind), with_kind(schema, group, kind)));
    json!({"swagger": "2.0", "info": {"title": "Crowsnest", "version": env!("CARGO_PKG_VERSION")}, "paths": {},
           "definitions": definitions.collect::<serde_json::Map<_, _>>()})
}
