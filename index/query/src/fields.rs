//! Fields of the query language: names, aliases, value types, descriptions.

use super::ast::{Field, FieldDefinition, FieldKind};
use FieldKind::{Age, Condition, Label, Number, Output, Quantity, Reference, Time, Word};

const fn field(
    name: &'static str,
    aliases: &'static [&'static str],
    kind: FieldKind,
    description: &'static str,
) -> FieldDefinition {
    FieldDefinition { name, aliases, kind, description }
}

/// Every field, in the order of suggestions.
pub static FIELDS: &[FieldDefinition] = &[
    field("kind", &["k"], Word, "kind, plural or short name (pod, deploy); workload names all workload kinds"),
    field("group", &[], Word, "API group"),
    field("apiVersion", &["apiversion"], Word, "group and version"),
    field("name", &[], Word, "object name"),
    field("namespace", &["ns"], Word, "namespace"),
    field("uid", &[], Word, "object uid"),
    field("owner", &[], Reference, "owned by kind/name or kind.group/name"),
    field("node", &[], Word, "node of a pod"),
    field("ip", &[], Word, "address of a pod, service or node"),
    field("label", &["labels", "l"], Label, "label key=value"),
    field("ann", &["annotation", "annotations"], Label, "annotation key=value"),
    field("status", &[], Word, "status as kubectl prints it"),
    field("reason", &[], Word, "reason of a condition, container state or event"),
    field("phase", &[], Word, "status.phase"),
    field("condition", &[], Condition, "condition Type=Status"),
    field("exit", &[], Number, "exit code of a container"),
    field("restarts", &[], Number, "container restarts"),
    field("replicas", &[], Number, "desired replicas"),
    field("ready", &[], Number, "ready replicas or containers"),
    field("age", &[], Age, "time since creation"),
    field("created", &[], Time, "creation time"),
    field("changed", &[], Age, "time since the last observed change"),
    field("deleted", &[], Age, "time since deletion"),
    field("cpu.req", &[], Quantity, "requested CPU"),
    field("cpu.limit", &[], Quantity, "CPU limit"),
    field("mem.req", &[], Quantity, "requested memory"),
    field("mem.limit", &[], Quantity, "memory limit"),
    field("image", &[], Word, "any part of a container image"),
    field("image.tag", &[], Word, "tag of a container image"),
    field("digest", &[], Word, "digest of a container image"),
    field("cluster", &["c"], Word, "cluster name"),
    field("cluster.label", &[], Label, "label of the cluster"),
    field("region", &[], Word, "region of the cluster"),
    field("zone", &[], Word, "zone of the cluster"),
    field("provider", &[], Word, "provider of the cluster"),
    field("policy", &[], Word, "propagation policy namespace/name"),
    field("override", &[], Word, "override policy that was applied"),
    field("binding", &[], Word, "resource binding"),
    field("work", &[], Word, "work"),
    field("on", &[], Word, "cluster to which a resource is scheduled"),
    field("health", &[], Word, "health of a propagated resource"),
    field("quota", &[], Word, "federated quota that limits a resource"),
    field("evicting", &[], Word, "cluster from which a resource is being evicted"),
    field("is", &[], Word, "state: unhealthy, deleted, terminating, orphan, …"),
    field("type", &[], Word, "type of an event, service or secret"),
    field("about", &[], Reference, "object of an event or journal entry: kind/name"),
    field("cause", &[], Reference, "object that caused a journal entry: kind/name"),
    field("count", &[], Number, "number of times that an event occurred"),
    field("last", &[], Age, "time since the last occurrence of an event"),
    field("related", &[], Reference, "objects related to kind/namespace/name; kind may have a group"),
    field("uses", &[], Reference, "objects that use kind/namespace/name; kind may have a group (deployments.apps)"),
    field("usedby", &[], Reference, "objects used by kind/namespace/name; kind may have a group"),
    field("reaches", &[], Reference, "objects that depend on kind/namespace/name, directly or transitively"),
    field("reachedby", &[], Reference, "objects on which kind/namespace/name depends, directly or transitively"),
    field("changed.field", &[], Word, "path that changed"),
    field("content", &[], Word, "anywhere in the manifest"),
    field("message", &[], Word, "message of an event or condition"),
    field("select", &[], Output, "show objects of this kind that belong to the matched objects"),
    field("depth", &[], Output, "maximum number of steps of relations"),
    field("scope", &[], Output, "name of a saved search that limits the query"),
    field("at", &[], Output, "view as of a time"),
    field("during", &[], Output, "matches at any time in a period: from..to"),
    field("sort", &[], Output, "column to sort by, -column for descending"),
    field("group-by", &["groupby"], Output, "group hits by a field"),
    field("limit", &[], Output, "maximum number of hits"),
    field("timeout", &[], Output, "search timeout"),
];

/// Values of `is:`.
pub const STATES: &[&str] = &[
    "unhealthy",
    "drifted",
    "unscheduled",
    "orphan",
    "managed",
    "stale",
    "deleted",
    "terminating",
    "conflicting",
    "suspended",
    "evicting",
    "failover",
];

/// Facets by which `group:` groups the hits, in addition to labels (`label:KEY`). With any other value, `group:` filters
/// by API group.
pub const FACETS: &[&str] = &[
    "cluster",
    "kind",
    "namespace",
    "status",
    "node",
    "region",
    "zone",
    "provider",
    "image",
    "reason",
    "type",
    "label",
];

/// Finds a field by its name or an alias, case-insensitively. A name with a leading dot is a manifest path.
pub fn find_field(name: &str) -> Option<Field> {
    if let Some(path) = name.strip_prefix('.') {
        return (!path.is_empty()).then(|| Field::Path(path.to_owned()));
    }
    let found = FIELDS
        .iter()
        .find(|f| f.name.eq_ignore_ascii_case(name) || f.aliases.iter().any(|a| a.eq_ignore_ascii_case(name)));
    found.map(Field::Definition)
}

/// Canonical name of a facet. Facet names are case-insensitive, except label keys.
pub fn canonical_facet(text: &str) -> String {
    match text.split_once(':') {
        Some((label, key)) if label.eq_ignore_ascii_case("label") => format!("label:{key}"),
        _ if text.eq_ignore_ascii_case("ns") => "namespace".to_owned(),
        _ => text.to_ascii_lowercase(),
    }
}

/// True if `group:` with this value groups hits instead of filtering by API group.
pub fn is_facet(text: &str) -> bool {
    let facet = canonical_facet(text);
    FACETS.contains(&facet.as_str()) || facet.starts_with("label:")
}
