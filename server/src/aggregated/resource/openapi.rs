//! OpenAPI of the aggregated groups: what the control plane says of the kinds it keeps for them, in their own group's words.

use crowsnest_api::crd;
use crowsnest_api::search::ResourceRegistry;
use crowsnest_apiserver::openapi::remote::Published;
use http::Request;
use serde_json::{Map, Value, json};

use super::{discovery, registry};
use crate::aggregated::reply::Failure;
use crate::aggregated::stored::STORAGE_GROUP;
use crate::aggregated::{
    metrics_k8s_io as metrics, propagation_crowsnest_io as propagation, search_crowsnest_io as search,
};

/// `/openapi/v3`, `/openapi/v3/apis/<group>/<version>`, `/openapi/v2`.
pub(crate) async fn document(
    control_plane: &kube::Client,
    path: &str,
    metrics: bool,
) -> Result<Option<Value>, Failure> {
    match path.trim_end_matches('/') {
        "/openapi/v3" => Ok(Some(index(metrics))),
        "/openapi/v2" => v2(control_plane, metrics).await.map(Some),
        other => {
            let named = other.strip_prefix("/openapi/v3/apis/").and_then(|rest| rest.split_once('/'));
            match named.filter(|named| served(metrics).any(|known| known == *named)) {
                Some((group, version)) => v3(control_plane, group, version).await.map(Some),
                None => Ok(None),
            }
        }
    }
}

/// Groups and versions.
fn served(metrics: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    discovery::groups(metrics).flat_map(|group| group.versions.iter().map(|(version, _)| (group.name, *version)))
}

fn index(metrics: bool) -> Value {
    let paths = served(metrics).map(|(group, version)| {
        let path = format!("apis/{group}/{version}");
        let url = json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"))});
        (path, url)
    });
    json!({"paths": paths.collect::<Map<_, _>>()})
}

async fn v3(control_plane: &kube::Client, group: &str, version: &str) -> Result<Value, Failure> {
    let path = format!("/openapi/v3/apis/{STORAGE_GROUP}/{}", discovery::VERSION);
    let request = Request::get(path).body(Vec::new()).map_err(Failure::internal)?;
    let text = control_plane.request_text(request).await.map_err(Failure::upstream)?;
    let mut document = translate(&text, group).map_err(Failure::internal)?;
    let own = match group {
        registry::QUERIES => Some((search::openapi::paths(), search::openapi::schemas())),
        registry::PROPAGATION => Some((propagation::openapi::paths(), propagation::openapi::schemas())),
        registry::USAGE => Some((metrics::openapi::usage_paths(), metrics::openapi::usage_schemas())),
        registry::CUSTOM_METRICS => {
            Some((metrics::openapi::value_paths(version), metrics::openapi::value_schemas(version)))
        }
        _ => None,
    };
    if let Some((paths, schemas)) = own {
        for (at, entries) in [("/paths", paths), ("/components/schemas", schemas)] {
            if let Some(known) = document.pointer_mut(at).and_then(Value::as_object_mut) {
                for (name, entry) in entries {
                    // Kubernetes' own schemas may be there already, in its words.
                    if !name.starts_with("io.k8s.") || !known.contains_key(&name) {
                        known.insert(name, entry);
                    }
                }
            }
        }
    }
    Ok(document)
}

async fn v2(control_plane: &kube::Client, metrics: bool) -> Result<Value, Failure> {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for (group, version) in served(metrics) {
        let document = v3(control_plane, group, version).await?;
        if let Some(published) = Published::read(group, version, document.to_string().as_bytes()) {
            published.merge_into(&mut paths, &mut definitions);
        }
    }
    let info = json!({"title": "Crowsnest", "version": env!("CARGO_PKG_VERSION")});
    Ok(json!({"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}))
}

/// `com.example.a` for `a.example.com`
fn reversed(group: &str) -> String {
    group.split('.').rev().collect::<Vec<_>>().join(".")
}

/// The storage group's document as that of `group`: its kinds alone, under its name.
fn translate(text: &str, group: &str) -> serde_json::Result<Value> {
    let stored = format!("{}.", reversed(STORAGE_GROUP));
    let own = format!("{}.", reversed(group));
    let mut document: Value = serde_json::from_str(&text.replace(STORAGE_GROUP, group).replace(&stored, &own))?;
    let root = format!("/apis/{group}/{}/", discovery::VERSION);
    if let Some(paths) = document.pointer_mut("/paths").and_then(Value::as_object_mut) {
        paths.retain(|path, _| {
            let plural = path.strip_prefix(&root).map(|rest| rest.split('/').next().unwrap_or_default());
            plural.is_some_and(|plural| discovery::kinds(group).any(|(known, _)| known == plural))
        });
    }
    let definitions = format!("{own}{}.", discovery::VERSION);
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.retain(|name, _| {
            let Some(kind) = name.strip_prefix(&definitions) else { return true };
            discovery::kinds(group).any(|(_, known)| kind == known || kind.strip_suffix("List") == Some(known))
        });
    }
    if group == registry::SEARCH {
        let name = format!("/components/schemas/{definitions}ResourceRegistry/properties/spec");
        if let Some(spec) = document.pointer_mut(&name) {
            // What keeps it requires less than what is promised.
            *spec = crd::schema::<ResourceRegistry>(&[])["properties"]["spec"].take();
        }
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_tells_of_its_own_kinds() {
        let schema = |kind: &str| json!({"x-kubernetes-group-version-kind": [{"group": STORAGE_GROUP, "kind": kind}]});
        let stored = json!({
            "openapi": "3.0.0",
            "paths": {
                "/apis/storage.crowsnest.io/v1alpha1/clusters/{name}": {},
                "/apis/storage.crowsnest.io/v1alpha1/resourceregistries": {},
            },
            "components": {"schemas": {
                "io.crowsnest.storage.v1alpha1.Cluster": schema("Cluster"),
                "io.crowsnest.storage.v1alpha1.ClusterList": schema("ClusterList"),
                "io.crowsnest.storage.v1alpha1.ResourceRegistry": schema("ResourceRegistry"),
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {},
            }},
        });
        let clusters = translate(&stored.to_string(), "cluster.karmada.io").unwrap();
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
        assert_eq!(gvk["x-kubernetes-group-version-kind"][0]["group"], "cluster.karmada.io");
    }

    #[test]
    fn a_registry_is_described_with_what_it_needs() {
        let spec = json!({"type": "object", "properties": {"targetCluster": {"type": "object"}}});
        let name = "io.crowsnest.storage.v1alpha1.ResourceRegistry";
        let stored = json!({"components": {"schemas": {name: {"properties": {"spec": spec}}}}});
        let served = translate(&stored.to_string(), "search.karmada.io").unwrap();
        let spec =
            &served["components"]["schemas"]["io.karmada.search.v1alpha1.ResourceRegistry"]["properties"]["spec"];
        assert_eq!(spec["required"], json!(["targetCluster", "resourceSelectors"]));
    }
}
