//! OpenAPI documents of the groups. Stored kinds are described by the control plane's document of the internal group,
//! which is translated to the public group. Resources add the other paths and schemas.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;
use crowsnest_schema::openapi::PublishedDocument;
use http::Request;
use serde_json::{Map, Value, json};

use super::registry::{Group, Registry, VERSION};

use crate::server::AggregatedServer;
use crate::stored::STORAGE_GROUP;
use crowsnest_api::storage::STORED_KINDS;

/// OpenAPI v3 document of a group in one version.
pub struct Document(Value);

impl Document {
    /// Adds a path.
    pub fn add_path(&mut self, path: String, item: Value) {
        self.insert("/paths", path, item);
    }

    /// Adds a schema. For kinds of Kubernetes, an existing description of the control plane has precedence.
    pub fn add_schema(&mut self, name: String, schema: Value) {
        if !name.starts_with("io.k8s.") || self.schema_mut(&name).is_none() {
            self.insert("/components/schemas", name, schema);
        }
    }

    pub fn schema_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.0.pointer_mut("/components/schemas")?.get_mut(name)
    }

    fn insert(&mut self, at: &str, name: String, value: Value) {
        if let Some(object) = self.0.pointer_mut(at).and_then(Value::as_object_mut) {
            object.insert(name, value);
        }
    }

    /// Adds the descriptions of a group's resources.
    fn describe(&mut self, group: &Group, version: &str) {
        for (name, schema) in (group.schemas)() {
            self.add_schema(name, schema);
        }
        for resource in group.resources {
            resource.describe(version, self);
        }
    }
}

/// `/openapi/v3`, `/openapi/v3/apis/GROUP/VERSION`, `/openapi/v2`; `None` for other paths.
pub async fn document(server: &AggregatedServer, path: &str) -> Result<Option<Value>, ApiError> {
    match path.trim_end_matches('/') {
        "/openapi/v3" => Ok(Some(index(server.registry, server.metrics_adapter))),
        "/openapi/v2" => build_v2(server).await.map(Some),
        document_path => {
            let requested_version =
                document_path.strip_prefix("/openapi/v3/apis/").and_then(|rest| rest.split_once('/'));
            let mut served = versions(server.registry, server.metrics_adapter);
            match served.find(|(group, version)| requested_version == Some((group.api.name, version))) {
                Some((group, version)) => build_v3(&server.control_plane, group, version).await.map(Some),
                None => Ok(None),
            }
        }
    }
}

/// Groups with their versions.
fn versions(registry: &Registry, metrics: bool) -> impl Iterator<Item = (&'static Group, &'static str)> + use<> {
    registry.groups(metrics).flat_map(|group| group.api.versions.iter().map(move |(version, _)| (group, *version)))
}

fn index(registry: &Registry, metrics: bool) -> Value {
    let paths = versions(registry, metrics).map(|(group, version)| {
        let path = format!("apis/{}/{version}", group.api.name);
        let url = json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"))});
        (path, url)
    });
    json!({"paths": paths.collect::<Map<_, _>>()})
}

async fn build_v3(control_plane: &kube::Client, group: &Group, version: &str) -> Result<Value, ApiError> {
    let path = format!("/openapi/v3/apis/{STORAGE_GROUP}/{VERSION}");
    let request = Request::get(path).body(Vec::new()).map_err(ApiError::internal)?;
    let text = control_plane.request_text(request).await.map_err(api_error)?;
    let mut document = Document(translate(&text, group).map_err(ApiError::internal)?);
    document.describe(group, version);
    Ok(document.0)
}

async fn build_v2(server: &AggregatedServer) -> Result<Value, ApiError> {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for (group, version) in versions(server.registry, server.metrics_adapter) {
        let document = build_v3(&server.control_plane, group, version).await?;
        if let Some(published) = PublishedDocument::parse(group.api.name, version, document.to_string().as_bytes()) {
            published.merge_into(&mut paths, &mut definitions);
        }
    }
    let info = json!({"title": "Crowsnest", "version": env!("CARGO_PKG_VERSION")});
    Ok(json!({"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}))
}

/// Name of a schema of `group` (`io.karmada.cluster.v1alpha1.Cluster` for a Cluster of cluster.karmada.io).
pub fn schema_name(group: &str, version: &str, kind: &str) -> String {
    format!("{}.{version}.{kind}", reverse_domain(group))
}

/// Reverses the labels of a domain: `com.example.a` for `a.example.com`.
fn reverse_domain(group: &str) -> String {
    group.split('.').rev().collect::<Vec<_>>().join(".")
}

/// Translates the document of the internal group to that of `group`, with the group's kinds only.
fn translate(text: &str, group: &Group) -> serde_json::Result<Value> {
    let stored_prefix = format!("{}.", reverse_domain(STORAGE_GROUP));
    let public_prefix = format!("{}.", reverse_domain(group.api.name));
    let text = text.replace(&stored_prefix, &public_prefix);
    let kinds = STORED_KINDS.into_iter().filter(|kind| kind.group == group.api.name);
    let text = kinds.fold(text, |text, kind| kind.public_text(&text)).replace(STORAGE_GROUP, group.api.name);
    let mut document: Value = serde_json::from_str(&text)?;
    let root = format!("/apis/{}/{VERSION}/", group.api.name);
    if let Some(paths) = document.pointer_mut("/paths").and_then(Value::as_object_mut) {
        paths.retain(|path, _| {
            let plural = path.strip_prefix(&root).map(|rest| rest.split('/').next().unwrap_or_default());
            plural.is_some_and(|plural| group.stored_kinds().any(|(name, _)| name == plural))
        });
    }
    let schema_prefix = format!("{public_prefix}{VERSION}.");
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.retain(|name, _| {
            let Some(kind) = name.strip_prefix(&schema_prefix) else { return true };
            group.stored_kinds().any(|(_, name)| kind == name || kind.strip_suffix("List") == Some(name))
        });
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::registry::REGISTRY;
    use crate::resource::{CREATE, Paths};

    fn group(name: &str) -> &'static Group {
        REGISTRY.groups.iter().find(|group| group.api.name == name).unwrap()
    }

    /// Every schema that a description refers to is part of the document.
    #[test]
    fn referenced_schemas_are_part_of_the_document() {
        for (group, version) in versions(&REGISTRY, true) {
            let mut document = Document(json!({"paths": {}, "components": {"schemas": {}}}));
            document.describe(group, version);
            let text = document.0.to_string();
            for part in text.split("#/components/schemas/").skip(1) {
                let name = part.split('"').next().unwrap();
                assert!(document.schema_mut(name).is_some(), "{}: {name}", group.api.name);
            }
        }
    }

    /// Resources whose objects are not kept are described by the resources themselves, in both versions of OpenAPI.
    #[test]
    fn resources_that_are_only_created_are_described() {
        let mut described = Vec::new();
        for (group, version) in versions(&REGISTRY, true) {
            let mut document = Document(json!({"openapi": "3.0.0", "paths": {}, "components": {"schemas": {}}}));
            document.describe(group, version);
            let bytes = document.0.to_string();
            let published = PublishedDocument::parse(group.api.name, version, bytes.as_bytes()).unwrap();
            let (mut paths, mut definitions) = (Map::new(), Map::new());
            published.merge_into(&mut paths, &mut definitions);
            let resources = group.resources.iter().map(|resource| resource.definition());
            for definition in
                resources.filter(|definition| definition.verbs == CREATE && definition.paths == Paths::Collection)
            {
                let path = format!("/apis/{}/{version}/{}", group.api.name, definition.resource);
                let schema = schema_name(group.api.name, version, definition.kind);
                let post = &document.0["paths"][&path]["post"];
                let content = &post["requestBody"]["content"]["application/json"]["schema"]["$ref"];
                assert_eq!(content, &json!(format!("#/components/schemas/{schema}")), "{post}");
                let body = json!({"$ref": format!("#/definitions/{schema}")});
                let parameters = paths[&path]["post"]["parameters"].as_array().unwrap();
                assert!(parameters.iter().any(|parameter| parameter["schema"] == body), "{parameters:?}");
                assert_eq!(definitions[&schema]["type"], "object");
                described.push(definition.resource);
            }
        }
        assert_eq!(described, ["mcp", "plans", "resourceaccessreviews", "subjectrulesreviews"]);
    }

    /// The whole description of a resource, as clients receive it.
    #[test]
    fn the_description_of_messages_is_stable() {
        let mut document = Document(json!({"paths": {}, "components": {"schemas": {}}}));
        document.describe(group("search.crowsnest.io"), VERSION);
        let schema = schema_name("search.crowsnest.io", VERSION, "McpMessage");
        let found = json!({
            "path": document.0["paths"]["/apis/search.crowsnest.io/v1alpha1/mcp"], "schema": document.schema_mut(&schema),
        });
        let expected: Value = serde_json::from_str(include_str!("fixtures/mcp.json")).unwrap();
        assert_eq!(found, expected, "{found:#}");
    }

    #[test]
    fn documents_have_only_the_kinds_of_their_group() {
        let schema = |kind: &str| json!({"x-kubernetes-group-version-kind": [{"group": STORAGE_GROUP, "kind": kind}]});
        let stored = json!({
            "openapi": "3.0.0",
            "paths": {
                "/apis/storage.crowsnest.io/v1alpha1/storedclusters/{name}": {},
                "/apis/storage.crowsnest.io/v1alpha1/storedresourceregistries": {},
            },
            "components": {"schemas": {
                "io.crowsnest.storage.v1alpha1.StoredCluster": schema("StoredCluster"),
                "io.crowsnest.storage.v1alpha1.StoredClusterList": schema("StoredClusterList"),
                "io.crowsnest.storage.v1alpha1.StoredResourceRegistry": schema("StoredResourceRegistry"),
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {},
            }},
        });
        let clusters = translate(&stored.to_string(), group("cluster.karmada.io")).unwrap();
        let names =
            |pointer: &str| clusters.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names("/paths"), ["/apis/cluster.karmada.io/v1alpha1/clusters/{name}"]);
        assert_eq!(
            names("/components/schemas"),
            [
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                "io.karmada.cluster.v1alpha1.Cluster",
                "io.karmada.cluster.v1alpha1.ClusterList"
            ]
        );
        let gvk = clusters.pointer("/components/schemas/io.karmada.cluster.v1alpha1.Cluster").unwrap();
        let gvk = &gvk["x-kubernetes-group-version-kind"][0];
        assert_eq!((&gvk["group"], &gvk["kind"]), (&json!("cluster.karmada.io"), &json!("Cluster")));
    }

    #[test]
    fn registries_have_their_required_fields() {
        let spec = json!({"type": "object", "properties": {"targetCluster": {"type": "object"}}});
        let name = "io.crowsnest.storage.v1alpha1.StoredResourceRegistry";
        let stored = json!({"components": {"schemas": {name: {"properties": {"spec": spec}}}}});
        let mut served = Document(translate(&stored.to_string(), group("search.karmada.io")).unwrap());
        served.describe(group("search.karmada.io"), VERSION);
        let spec =
            &served.0["components"]["schemas"]["io.karmada.search.v1alpha1.ResourceRegistry"]["properties"]["spec"];
        assert_eq!(spec["required"], json!(["targetCluster", "resourceSelectors"]));
    }
}
