//! Discovery of the aggregated groups: `/apis`, `/apis/<group>` and `/apis/<group>/<version>`.

use serde_json::{Value, json};

/// One resource line of an APIResourceList.
struct Line {
    name: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
    verbs: &'static [&'static str],
    short: &'static [&'static str],
    categories: &'static [&'static str],
}

const STORED: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS: &[&str] = &["get", "patch", "update"];
const GET: &[&str] = &["get"];
const CONNECT: &[&str] = &["create", "delete", "get", "patch", "update"];

const fn line(name: &'static str, singular: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Line {
    Line { name, singular, kind, namespaced: false, verbs, short: &[], categories: &[] }
}

/// The groups served here, each in one version, with the lines of their resources.
const GROUPS: &[(&str, &[Line])] = &[
    (
        "cluster.karmada.io",
        &[
            Line { categories: &["karmada-io"], ..line("clusters", "cluster", "Cluster", STORED) },
            line("clusters/attach", "", "Cluster", &["create"]),
            line("clusters/proxy", "", "Cluster", CONNECT),
            line("clusters/status", "", "Cluster", STATUS),
        ],
    ),
    (
        "search.karmada.io",
        &[
            line("proxying", "proxying", "Proxying", CONNECT),
            line("proxying/proxy", "", "Proxying", CONNECT),
            Line {
                categories: &["karmada-io"],
                short: &["rr"],
                ..line("resourceregistries", "resourceregistry", "ResourceRegistry", STORED)
            },
            line("resourceregistries/status", "", "ResourceRegistry", STATUS),
            line("search", "search", "Search", GET),
        ],
    ),
    // No lists of objects: whoever collects what a server says can be watched would try to.
    (
        "search.crowsnest.io",
        &[
            line("cache", "cache", "CacheStatus", &["list"]),
            line("count", "count", "SearchCount", &["list"]),
            line("diff", "diff", "ObjectDiff", &["list"]),
            line("explain", "explain", "SearchExplanation", &["list"]),
            line("export", "export", "SearchExport", &["list"]),
            line("graph", "graph", "ObjectGraph", &["list"]),
            line("history", "history", "ObjectHistory", &["list"]),
            line("logs", "logs", "FleetLogs", &["list"]),
            line("metrics", "metrics", "CacheMetrics", &["list"]),
            line("query", "query", "SearchResult", &["list"]),
            line("savedsearches", "savedsearch", "SavedSearch", &["create", "delete", "get", "list", "update"]),
            line("status", "status", "FleetStatus", &["list"]),
            line("suggest", "suggest", "SearchSuggestions", &["list"]),
        ],
    ),
    // Made when somebody asks, so there is nothing to list.
    (
        "propagation.crowsnest.io",
        &[
            line("clusterexplanations", "clusterexplanation", "ClusterExplanation", GET),
            Line { namespaced: true, ..line("explanations", "explanation", "Explanation", GET) },
            line("plans", "plan", "Plan", &["create"]),
        ],
    ),
];

/// The version of every group here.
pub(crate) const VERSION: &str = "v1alpha1";

/// Groups served here.
pub(crate) fn groups() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|(name, _)| *name)
}

/// (plural, kind) of the group's stored resources.
pub(super) fn kinds(group: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = GROUPS.iter().filter(move |(known, _)| *known == group).flat_map(|(_, lines)| lines.iter());
    lines.filter(|line| line.verbs == STORED).map(|line| (line.name, line.kind))
}

/// `/apis`.
pub(crate) fn group_list() -> Value {
    let groups: Vec<Value> = groups().filter_map(group).map(strip_type).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`.
pub(crate) fn group(name: &str) -> Option<Value> {
    GROUPS.iter().find(|(group, _)| *group == name)?;
    let version = json!({"groupVersion": format!("{name}/{VERSION}"), "version": VERSION});
    Some(
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [version], "preferredVersion": version}),
    )
}

/// `/apis/<group>/<version>`.
pub(crate) fn resources(name: &str) -> Option<Value> {
    let (_, lines) = GROUPS.iter().find(|(group, _)| *group == name)?;
    let resources: Vec<Value> = lines.iter().map(resource).collect();
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{name}/{VERSION}"), "resources": resources}),
    )
}

fn resource(line: &Line) -> Value {
    let mut value = json!({
        "name": line.name, "singularName": line.singular, "namespaced": line.namespaced, "kind": line.kind, "verbs": line.verbs,
    });
    if !line.short.is_empty() {
        value["shortNames"] = json!(line.short);
    }
    if !line.categories.is_empty() {
        value["categories"] = json!(line.categories);
    }
    value
}

fn strip_type(mut group: Value) -> Value {
    if let Some(fields) = group.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    group
}
