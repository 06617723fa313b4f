//! Discovery of remote groups: converts a legacy `APIResourceList` to entries of aggregated discovery. Has no side effects.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::service::RemoteService;
use crate::http::delegate::RankedGroup;

/// Entry of a version in aggregated discovery: its resources with their subresources.
pub(super) fn version_entry(version: &str, resource_list: &Value) -> Value {
    let listed_resources = resource_list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |resource: &Value, key: &str| resource[key].as_str().unwrap_or("").to_owned();
    // A kind without its own group stays unqualified, as in the server's list.
    let kind = |resource: &Value| json!({"group": text(resource, "group"), "version": text(resource, "version"), "kind": text(resource, "kind")});
    let mut resources: Vec<Value> = Vec::new();
    for resource in listed_resources.iter().filter(|r| !text(r, "name").contains('/')) {
        let namespaced = resource["namespaced"].as_bool().unwrap_or(false);
        let mut entry = json!({
            "resource": text(resource, "name"),
            "responseKind": kind(resource),
            "scope": if namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": text(resource, "singularName"),
            "verbs": resource["verbs"],
        });
        for key in ["shortNames", "categories"] {
            if resource[key].as_array().is_some_and(|list| !list.is_empty()) {
                entry[key] = resource[key].clone();
            }
        }
        resources.push(entry);
    }
    for resource in listed_resources {
        let name = text(resource, "name");
        let Some((parent, sub)) = name.split_once('/') else { continue };
        // As in kube-apiserver: custom metrics are subresources of resources in other groups.
        if !resources.iter().any(|existing| existing["resource"] == parent) {
            let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
            resources.push(
                json!({"resource": parent, "responseKind": {"group": "", "version": "", "kind": ""}, "scope": scope,
                "singularResource": "", "verbs": []}),
            );
        }
        let Some(entry) = resources.iter_mut().find(|r| r["resource"] == parent) else { continue };
        let sub = json!({"subresource": sub, "responseKind": kind(resource), "verbs": resource["verbs"]});
        match entry["subresources"].as_array_mut() {
            Some(subresources) => subresources.push(sub),
            None => entry["subresources"] = json!([sub]),
        }
    }
    json!({"version": version, "freshness": "Current", "resources": resources})
}

/// One `APIGroupDiscovery` per group: groups by priority, then name; versions by priority, then by version order.
pub(super) fn rank_groups<'a>(services: impl Iterator<Item = (&'a RemoteService, Value)>) -> Vec<RankedGroup> {
    type Versions<'a> = Vec<(&'a RemoteService, Value)>;
    let mut by_group: BTreeMap<&str, Versions<'a>> = BTreeMap::new();
    for (remote, entry) in services {
        by_group.entry(&remote.group).or_default().push((remote, entry));
    }
    let mut groups: Vec<(i64, &str, Versions<'a>)> = by_group
        .into_iter()
        .map(|(group, versions)| (versions.iter().map(|(r, _)| r.group_priority).max().unwrap_or(0), group, versions))
        .collect();
    groups.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    groups
        .into_iter()
        .map(|(priority, group, mut versions)| {
            versions.sort_by(|(a, _), (b, _)| {
                b.version_priority
                    .cmp(&a.version_priority)
                    .then_with(|| crate::crd::versions::compare(&b.version, &a.version))
            });
            let versions: Vec<Value> = versions.into_iter().map(|(_, entry)| entry).collect();
            let group = json!({"metadata": {"name": group}, "versions": versions});
            RankedGroup { priority, group }
        })
        .collect()
}
