//! Discovery documents, generated from the catalog: aggregated discovery (KEP-3352), and the unaggregated documents.
//! Lists of groups are derived from the aggregated form. Has no side effects.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_registry::catalog::CatalogSnapshot;
use crowsnest_registry::resource::{ResourceRef, Subresource};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::crd::versions;
use crate::http::delegate::RankedGroup;

/// Built-in groups in kube-apiserver's order.
const GROUP_ORDER: &[&str] = &[
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];

/// Priority of groups of CRDs.
const CRD_PRIORITY: i64 = 1000;

/// Priority of a group that this server serves, comparable with `groupPriorityMinimum`. Built-in groups are above the
/// range of APIServices.
fn group_priority(group: &str) -> i64 {
    GROUP_ORDER
        .iter()
        .rev()
        .zip(20_001..)
        .find(|(name, _)| **name == group)
        .map_or(CRD_PRIORITY, |(_, priority)| priority)
}

/// `APIGroupDiscovery` of all groups except core, including those of other servers, ordered by priority and name.
pub(super) fn groups(served: &CatalogSnapshot, delegated: Vec<RankedGroup>) -> Vec<Value> {
    let names: BTreeSet<&str> = served.iter().map(|r| &*r.gvr.group).filter(|g| !g.is_empty()).collect();
    let served_groups = names
        .into_iter()
        .map(|name| RankedGroup { priority: group_priority(name), group: group_discovery(served, name) });
    let mut all: Vec<RankedGroup> = served_groups.chain(delegated).collect();
    let name = |ranked: &RankedGroup| ranked.group["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    all.sort_by_cached_key(|ranked| (Reverse(ranked.priority), name(ranked)));
    all.into_iter().map(|ranked| ranked.group).collect()
}

/// `APIGroupDiscovery` of the core group, as a list with one entry.
pub(super) fn core_group(served: &CatalogSnapshot) -> Vec<Value> {
    vec![group_discovery(served, "")]
}

/// `APIGroupDiscovery` of a group.
fn group_discovery(served: &CatalogSnapshot, group: &str) -> Value {
    let mut resources_by_version: BTreeMap<&str, Vec<&ResourceRef>> = BTreeMap::new();
    for resource in served.iter().filter(|r| *r.gvr.group == *group) {
        resources_by_version.entry(&resource.gvr.version).or_default().push(resource);
    }
    let mut by_preference: Vec<(&str, Vec<&ResourceRef>)> = resources_by_version.into_iter().collect();
    by_preference.sort_by(|(a, _), (b, _)| versions::compare(b, a));
    let versions: Vec<Value> = by_preference
        .into_iter()
        .map(|(version, resources)| {
            let resources: Vec<Value> = resources.into_iter().map(resource_discovery).collect();
            json!({"version": version, "freshness": "Current", "resources": resources})
        })
        .collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
    json!({"metadata": metadata, "versions": versions})
}

/// `APIResourceDiscovery` of a resource.
fn resource_discovery(resource: &ResourceRef) -> Value {
    let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
    let mut entry = json!({
        "resource": resource.gvr.resource, "scope": scope, "singularResource": resource.singular,
        "responseKind": kind_reference(resource, &resource.kind, &resource.gvr.group, &resource.gvr.version),
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|s| json!({"subresource": s.name, "responseKind": kind_reference(resource, &s.kind, &s.group, &s.version), "verbs": s.verbs}))
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

/// A kind reference. Group and version are empty if they equal those of the resource, except for custom resources.
fn kind_reference(resource: &ResourceRef, kind: &str, group: &str, version: &str) -> Value {
    let is_own_version = *group == *resource.gvr.group && *version == *resource.gvr.version;
    if is_own_version && resource.is_built_in() {
        return json!({"group": "", "version": "", "kind": kind});
    }
    json!({"group": group, "version": version, "kind": kind})
}

/// `APIVersions` of the core group.
pub(super) fn api_versions(groups: &[Value]) -> Value {
    let versions: Vec<&Value> =
        groups.iter().flat_map(|g| g["versions"].as_array().into_iter().flatten()).map(|v| &v["version"]).collect();
    json!({
        "kind": "APIVersions", "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    })
}

/// `APIGroup` from an `APIGroupDiscovery`, without kind.
fn api_group(group: &Value) -> Value {
    let name = group["metadata"]["name"].as_str().unwrap_or_default();
    let versions: Vec<Value> = group["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| v["version"].as_str())
        .map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v}))
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

/// `APIGroupList` of all groups except core.
pub(super) fn group_list(groups: &[Value]) -> Value {
    let groups: Vec<Value> = groups.iter().map(api_group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `APIGroup` of a group; `None` if it is not served.
pub(super) fn group(groups: &[Value], name: &str) -> Option<Value> {
    let mut group = groups.iter().find(|g| g["metadata"]["name"] == name).map(api_group)?;
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// `APIResourceList` of a group and version; `None` if it is not served.
pub(super) fn resources(served: &CatalogSnapshot, group: &str, version: &str) -> Option<Value> {
    let mut entries = Vec::new();
    for resource in served.iter().filter(|r| *r.gvr.group == *group && *r.gvr.version == *version) {
        entries.push(api_resource(resource));
        entries.extend(resource.subresources.iter().map(|s| api_subresource(resource, s)));
    }
    if entries.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": entries});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// `APIResource` of a resource.
fn api_resource(resource: &ResourceRef) -> Value {
    let mut entry = json!({
        "name": resource.gvr.resource, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if resource.is_custom() || resource.verbs.contains(&"list") && resource.verbs.contains(&"create") {
        entry["storageVersionHash"] = storage_version_hash(resource).into();
    }
    entry
}

/// `storageVersionHash`, by which clients detect a change of the storage version.
fn storage_version_hash(resource: &ResourceRef) -> String {
    let text = format!("{}/{}/{}", resource.storage.group, resource.storage.version, resource.kind);
    STANDARD.encode(&Sha256::digest(text.as_bytes())[..8])
}

/// `APIResource` of a subresource.
fn api_subresource(resource: &ResourceRef, subresource: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.gvr.resource, subresource.name), "singularName": "",
        "namespaced": resource.namespaced, "kind": subresource.kind, "verbs": subresource.verbs,
    });
    if (subresource.group.as_str(), subresource.version.as_str()) != (&*resource.gvr.group, &*resource.gvr.version) {
        entry["group"] = subresource.group.clone().into();
        entry["version"] = subresource.version.clone().into();
    }
    entry
}
