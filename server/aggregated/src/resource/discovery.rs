//! Discovery documents: `/apis`, `/apis/GROUP` and `/apis/GROUP/VERSION`.

use serde_json::{Value, json};

use super::registry::{Group, Registry};
use crate::server::AggregatedServer;

/// `/apis`; with `metrics`, including the groups of the metrics APIs.
pub fn group_list(registry: &Registry, metrics: bool) -> Value {
    let groups: Vec<Value> = registry.groups(metrics).map(group).map(strip_type).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(group: &Group) -> Value {
    let name = group.api.name;
    let version = |(version, _): &(&str, i32)| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = group.api.versions.iter().map(version).collect();
    let preferred = versions.first().cloned();
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": versions, "preferredVersion": preferred})
}

/// `/apis/GROUP/VERSION`.
pub async fn resources(server: &AggregatedServer, group: &Group, version: &str) -> Value {
    let mut resources: Vec<Value> = Vec::new();
    for resource in group.resources {
        resources.extend(resource.discover(server).await);
    }
    // Two definitions may have the same name, such as those of `proxying` in search.karmada.io.
    resources.dedup_by(|next, listed| next["name"] == listed["name"]);
    let version = format!("{}/{version}", group.api.name);
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}

fn strip_type(mut group: Value) -> Value {
    if let Some(fields) = group.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    group
}
