//! Columns of configuration, identity and policy kinds: namespaces, config maps, secrets, events, quotas, RBAC, leases.

use serde_json::Value;

use super::ColumnDescription::{Field, Text};
use super::fields::{self, int, list, size, text};
use super::{AGE, CREATED_AT, Column, KindPrinter, NAME};
use crate::printers::Cell;

/// Descriptions of `roleRef` in the API types from which kube-apiserver prints tables.
const ROLE_OF_BINDING: &str = "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.";
const ROLE_OF_CLUSTER_BINDING: &str = "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.";

pub(super) const KINDS: &[KindPrinter] = &[
    KindPrinter::new("", "Namespace", &[NAME, Column::text("Status", Text("The status of the namespace")), AGE], |o| {
        vec![fields::name(o), Cell::from(text(o, "/status/phase")), fields::age(o)]
    }),
    KindPrinter::new(
        "",
        "ConfigMap",
        &[NAME, Column::text("Data", Field("api.core.v1.ConfigMap", "data")), AGE],
        |o| vec![fields::name(o), Cell::from(size(o, "/data") + size(o, "/binaryData")), fields::age(o)],
    ),
    KindPrinter::new(
        "",
        "Secret",
        &[
            NAME,
            Column::text("Type", Field("api.core.v1.Secret", "type")),
            Column::text("Data", Field("api.core.v1.Secret", "data")),
            AGE,
        ],
        |o| vec![fields::name(o), Cell::from(text(o, "/type")), Cell::from(size(o, "/data")), fields::age(o)],
    ),
    KindPrinter::new("", "ServiceAccount", &[NAME, AGE], |o| vec![fields::name(o), fields::age(o)]),
    KindPrinter::new(
        "",
        "ComponentStatus",
        &[
            NAME,
            Column::text("Status", Text("Status of the component conditions")),
            Column::text("Message", Text("Message of the component conditions")),
            Column::text("Error", Text("Error of the component conditions")),
        ],
        |o| {
            let condition = list(o, "/conditions").iter().find(|c| text(c, "/type") == "Healthy");
            let (status, message, error) = match condition {
                Some(c) if text(c, "/status") == "True" => ("Healthy", text(c, "/message"), text(c, "/error")),
                Some(c) => ("Unhealthy", text(c, "/message"), text(c, "/error")),
                None => ("Unknown", "", ""),
            };
            vec![fields::name(o), Cell::from(status), Cell::from(message), Cell::from(error)]
        },
    ),
    KindPrinter::new(
        "",
        "ResourceQuota",
        &[
            NAME,
            Column::text(
                "Request",
                Text("Request represents a minimum amount of cpu/memory that a container may consume."),
            ),
            Column::text(
                "Limit",
                Text(
                    "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
                ),
            ),
            AGE,
        ],
        quota,
    ),
    KindPrinter::new(
        "",
        "Event",
        &[
            Column::text("Last Seen", Field("api.core.v1.Event", "lastTimestamp")),
            Column::text("Type", Field("api.core.v1.Event", "type")),
            Column::text("Reason", Field("api.core.v1.Event", "reason")),
            Column::text("Object", Field("api.core.v1.Event", "involvedObject")),
            Column::text("Subobject", Field("api.core.v1.ObjectReference", "fieldPath")).wide(),
            Column::text("Source", Field("api.core.v1.Event", "source")).wide(),
            Column::text("Message", Field("api.core.v1.Event", "message")),
            Column::text("First Seen", Field("api.core.v1.Event", "firstTimestamp")).wide(),
            Column::text("Count", Field("api.core.v1.Event", "count")).wide(),
            NAME.wide(),
        ],
        event,
    ),
    KindPrinter::new("rbac.authorization.k8s.io", "Role", &[NAME, CREATED_AT], |o| {
        vec![fields::name(o), Cell::from(text(o, "/metadata/creationTimestamp"))]
    }),
    KindPrinter::new("rbac.authorization.k8s.io", "ClusterRole", &[NAME, CREATED_AT], |o| {
        vec![fields::name(o), Cell::from(text(o, "/metadata/creationTimestamp"))]
    }),
    KindPrinter::new(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        &role_binding_columns(
            ROLE_OF_BINDING,
            ["Users in the roleBinding", "Groups in the roleBinding", "ServiceAccounts in the roleBinding"],
        ),
        role_binding,
    ),
    KindPrinter::new(
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        &role_binding_columns(
            ROLE_OF_CLUSTER_BINDING,
            [
                "Users in the clusterRoleBinding",
                "Groups in the clusterRoleBinding",
                "ServiceAccounts in the clusterRoleBinding",
            ],
        ),
        role_binding,
    ),
    KindPrinter::new(
        "coordination.k8s.io",
        "Lease",
        &[NAME, Column::text("Holder", Field("api.coordination.v1.LeaseSpec", "holderIdentity")), AGE],
        |o| vec![fields::name(o), Cell::from(text(o, "/spec/holderIdentity")), fields::age(o)],
    ),
    KindPrinter::new(
        "coordination.k8s.io",
        "LeaseCandidate",
        &[
            NAME,
            Column::text("LeaseName", Field("api.coordination.v1beta1.LeaseCandidateSpec", "leaseName")),
            Column::text("BinaryVersion", Field("api.coordination.v1beta1.LeaseCandidateSpec", "binaryVersion")),
            Column::text("EmulationVersion", Field("api.coordination.v1beta1.LeaseCandidateSpec", "emulationVersion")),
            Column::text("Strategy", Field("api.coordination.v1beta1.LeaseCandidateSpec", "strategy")),
            AGE,
        ],
        |o| {
            let spec = |field: &str| Cell::from(text(o, &format!("/spec/{field}")));
            vec![
                fields::name(o),
                spec("leaseName"),
                spec("binaryVersion"),
                spec("emulationVersion"),
                spec("strategy"),
                fields::age(o),
            ]
        },
    ),
];

fn quota(o: &Value) -> Vec<Cell> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    if let Some(hard) = o.pointer("/status/hard").and_then(Value::as_object) {
        let used = o.pointer("/status/used");
        for (resource, hard) in hard {
            let used = used.and_then(|u| u.get(resource)).and_then(Value::as_str).unwrap_or("0");
            let cell = format!("{resource}: {used}/{}", hard.as_str().unwrap_or(""));
            if resource.starts_with("limits") { limits.push(cell) } else { requests.push(cell) }
        }
    }
    vec![fields::name(o), Cell::from(requests.join(", ")), Cell::from(limits.join(", ")), fields::age(o)]
}

fn event(o: &Value) -> Vec<Cell> {
    let since = |pointers: &[&str]| Cell::since(pointers.iter().find_map(|pointer| fields::time(o, pointer)));
    let first = ["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"];
    let last: &[&str] = if o.get("series").is_some_and(Value::is_object) {
        &["/series/lastObservedTime"]
    } else {
        &["/lastTimestamp", "/deprecatedLastTimestamp", "/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"]
    };
    let count = match (fields::maybe_int(o, "/series/count"), int(o, "/count"), int(o, "/deprecatedCount")) {
        (Some(n), _, _) => n,
        (None, 0, 0) => 1,
        (None, 0, n) | (None, n, _) => n,
    };
    let about = if o.get("regarding").is_some() { "/regarding" } else { "/involvedObject" };
    let field = |name: &str| text(o, &format!("{about}/{name}"));
    let (kind, name) = (field("kind").to_lowercase(), field("name"));
    let target = if name.is_empty() { kind } else { format!("{kind}/{name}") };
    let pick = |pointers: &[&'static str]| pointers.iter().map(|p| text(o, p)).find(|t| !t.is_empty()).unwrap_or("");
    let component =
        pick(&["/source/component", "/deprecatedSource/component", "/reportingComponent", "/reportingController"]);
    let instance = pick(&["/source/host", "/deprecatedSource/host", "/reportingInstance"]);
    let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
    vec![
        since(last),
        Cell::from(text(o, "/type")),
        Cell::from(text(o, "/reason")),
        Cell::from(target),
        Cell::from(field("fieldPath")),
        Cell::from(source),
        Cell::from(pick(&["/message", "/note"]).trim()),
        since(&first),
        Cell::from(count),
        fields::name(o),
    ]
}

/// Columns of bindings of both scopes, with the descriptions of the role and of the subjects: users, groups and service
/// accounts.
const fn role_binding_columns(role: &'static str, [users, groups, accounts]: [&'static str; 3]) -> [Column; 6] {
    [
        NAME,
        Column::text("Role", Text(role)),
        AGE,
        Column::text("Users", Text(users)).wide(),
        Column::text("Groups", Text(groups)).wide(),
        Column::text("ServiceAccounts", Text(accounts)).wide(),
    ]
}

fn role_binding(o: &Value) -> Vec<Cell> {
    let subjects = |kind: &str| {
        let names: Vec<String> = list(o, "/subjects")
            .iter()
            .filter(|s| text(s, "/kind") == kind)
            .map(|s| match kind {
                "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
                _ => text(s, "/name").to_owned(),
            })
            .collect();
        Cell::from(names.join(", "))
    };
    vec![
        fields::name(o),
        Cell::from(format!("{}/{}", text(o, "/roleRef/kind"), text(o, "/roleRef/name"))),
        fields::age(o),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}
