//! Discovery of the aggregated groups: `/apis`, `/apis/<group>` and `/apis/<group>/<version>`. Which of them are served is said by
//! whoever asks: those of metrics may be left to somebody else.

use crowsnest_proxy::Metric;
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
const READ: &[&str] = &["get", "list"];
const CONNECT: &[&str] = &["create", "delete", "get", "patch", "update"];

const fn line(name: &'static str, singular: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Line {
    Line { name, singular, kind, namespaced: false, verbs, short: &[], categories: &[] }
}

/// A group, and how it is registered in the control plane.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    /// With their priorities among the group's, the preferred one first.
    pub(crate) versions: &'static [(&'static str, i32)],
    /// `groupPriorityMinimum`
    pub(crate) priority: i32,
    /// The metrics adapter's, which can be turned off, and which others serve, too.
    pub(crate) of_metrics: bool,
    lines: &'static [Line],
}

impl Group {
    const fn own(name: &'static str, lines: &'static [Line]) -> Self {
        Self { name, versions: &[(VERSION, 10)], priority: 2000, of_metrics: false, lines }
    }

    /// Those of others depend on what members have.
    pub(crate) fn has_resources(&self) -> bool {
        !self.lines.is_empty()
    }

    fn serves(&self, version: &str) -> bool {
        self.versions.iter().any(|(known, _)| *known == version)
    }
}

/// The groups served here, with the lines of their resources.
const GROUPS: &[Group] = &[
    Group::own(
        "cluster.karmada.io",
        &[
            Line { categories: &["karmada-io"], ..line("clusters", "cluster", "Cluster", STORED) },
            line("clusters/attach", "", "Cluster", &["create"]),
            line("clusters/proxy", "", "Cluster", CONNECT),
            line("clusters/status", "", "Cluster", STATUS),
        ],
    ),
    Group::own(
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
    Group::own(
        "search.crowsnest.io",
        &[
            line("cache", "cache", "CacheStatus", &["list"]),
            line("count", "count", "SearchCount", &["list"]),
            line("diff", "diff", "ObjectDiff", &["list"]),
            line("explain", "explain", "SearchExplanation", &["list"]),
            line("export", "export", "SearchExport", &["list"]),
            line("graph", "graph", "ObjectGraph", &["list"]),
            line("history", "history", "ObjectHistory", &["list"]),
            line("index", "index", "SearchIndex", &["create", "list"]),
            line("journal", "journal", "Journal", &["list"]),
            line("logs", "logs", "FleetLogs", &["list"]),
            line("metrics", "metrics", "CacheMetrics", &["list"]),
            line("query", "query", "SearchResult", &["list"]),
            line("savedsearches", "savedsearch", "SavedSearch", &["create", "delete", "get", "list", "update"]),
            line("status", "status", "FleetStatus", &["list"]),
            line("suggest", "suggest", "SearchSuggestions", &["list"]),
        ],
    ),
    // Made when somebody asks, so there is nothing to list.
    Group::own(
        "propagation.crowsnest.io",
        &[
            line("clusterexplanations", "clusterexplanation", "ClusterExplanation", GET),
            Line { namespaced: true, ..line("explanations", "explanation", "Explanation", GET) },
            line("plans", "plan", "Plan", &["create"]),
        ],
    ),
    Group {
        name: "metrics.k8s.io",
        versions: &[("v1beta1", 10)],
        priority: 2000,
        of_metrics: true,
        lines: &[
            line("nodes", "", "NodeMetrics", READ),
            Line { namespaced: true, ..line("pods", "", "PodMetrics", READ) },
        ],
    },
    // Its resources are what the members list.
    Group {
        name: "custom.metrics.k8s.io",
        versions: &[("v1beta2", 200), ("v1beta1", 100)],
        priority: 100,
        of_metrics: true,
        lines: &[],
    },
];

/// The version of every group of ours.
pub(crate) const VERSION: &str = "v1alpha1";

/// Groups served here; those of metrics only where they are.
pub(crate) fn groups(metrics: bool) -> impl Iterator<Item = &'static Group> {
    GROUPS.iter().filter(move |group| metrics || !group.of_metrics)
}

fn known(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}

/// Whether a group can be served here at all.
pub(crate) fn is_ours(group: &str) -> bool {
    known(group).is_some()
}

/// Whether it can be in this version.
pub(crate) fn serves(group: &str, version: &str) -> bool {
    known(group).is_some_and(|group| group.serves(version))
}

/// Whether it is one of metrics.
pub(crate) fn is_of_metrics(group: &str) -> bool {
    known(group).is_some_and(|group| group.of_metrics)
}

/// (plural, kind) of the group's stored resources.
pub(crate) fn kinds(group: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = known(group).into_iter().flat_map(|group| group.lines.iter());
    lines.filter(|line| line.verbs == STORED).map(|line| (line.name, line.kind))
}

/// `/apis`.
pub(crate) fn group_list(metrics: bool) -> Value {
    let groups: Vec<Value> = groups(metrics).filter_map(|known| group(known.name)).map(strip_type).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`.
pub(crate) fn group(name: &str) -> Option<Value> {
    let version = |(version, _): &(&str, i32)| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = known(name)?.versions.iter().map(version).collect();
    let preferred = versions.first().cloned();
    Some(
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": versions, "preferredVersion": preferred}),
    )
}

/// `/apis/<group>/<version>`, with metrics that members list.
pub(crate) fn resources(name: &str, version: &str, metrics: &[Metric]) -> Option<Value> {
    let group = known(name).filter(|group| group.serves(version))?;
    let listed = metrics.iter().map(|metric| {
        json!({"name": metric.name, "singularName": "", "namespaced": metric.namespaced, "kind": "MetricValueList", "verbs": GET})
    });
    let resources: Vec<Value> = group.lines.iter().map(resource).chain(listed).collect();
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{name}/{version}"), "resources": resources}),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_listed_where_they_are_served() {
        let names = |metrics| groups(metrics).map(|group| group.name).collect::<Vec<_>>();
        assert!(!names(false).contains(&"metrics.k8s.io") && names(true).contains(&"custom.metrics.k8s.io"));
        assert_eq!(group_list(true)["groups"].as_array().map(Vec::len), Some(names(false).len() + 2));
        let custom = group("custom.metrics.k8s.io").unwrap();
        assert_eq!(custom["preferredVersion"]["version"], "v1beta2");
        let metric = Metric { name: "pods/qps".to_owned(), namespaced: true };
        let listed = resources("custom.metrics.k8s.io", "v1beta1", &[metric]).unwrap();
        assert_eq!(listed["groupVersion"], "custom.metrics.k8s.io/v1beta1");
        assert_eq!(
            listed["resources"],
            json!([{"name": "pods/qps", "singularName": "", "namespaced": true, "kind": "MetricValueList", "verbs": ["get"]}])
        );
        assert_eq!(resources("metrics.k8s.io", "v1alpha1", &[]), None);
    }
}
