//! Columns of configuration, identity and policy kinds: namespaces, config maps, secrets, events, quotas, RBAC, leases.

use serde_json::{Value, json};

use super::read::{self, int, list, size, text};
use super::{AGE, CREATED_AT, Column, Doc, KindPrinter, NAME, Now, age, printer};

/// As in the version of RBAC that tables are described by.
const ROLE_OF_BINDING: &str = "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.";
const ROLE_OF_CLUSTER_BINDING: &str = "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.";

pub(super) static KINDS: &[KindPrinter] = &[
    printer(
        "",
        "Namespace",
        &[NAME, Column::text("Status", Doc::Text("The status of the namespace")), AGE],
        |o, now| vec![read::name(o), json!(text(o, "/status/phase")), read::age(o, now)],
    ),
    printer(
        "",
        "ConfigMap",
        &[NAME, Column::text("Data", Doc::Field("api.core.v1.ConfigMap", "data")), AGE],
        |o, now| vec![read::name(o), json!(size(o, "/data") + size(o, "/binaryData")), read::age(o, now)],
    ),
    printer(
        "",
        "Secret",
        &[
            NAME,
            Column::text("Type", Doc::Field("api.core.v1.Secret", "type")),
            Column::text("Data", Doc::Field("api.core.v1.Secret", "data")),
            AGE,
        ],
        |o, now| vec![read::name(o), json!(text(o, "/type")), json!(size(o, "/data")), read::age(o, now)],
    ),
    printer("", "ServiceAccount", &[NAME, AGE], |o, now| vec![read::name(o), read::age(o, now)]),
    printer(
        "",
        "ComponentStatus",
        &[
            NAME,
            Column::text("Status", Doc::Text("Status of the component conditions")),
            Column::text("Message", Doc::Text("Message of the component conditions")),
            Column::text("Error", Doc::Text("Error of the component conditions")),
        ],
        |o, _| {
            let condition = list(o, "/conditions").iter().find(|c| text(c, "/type") == "Healthy");
            let (status, message, error) = match condition {
                Some(c) if text(c, "/status") == "True" => ("Healthy", text(c, "/message"), text(c, "/error")),
                Some(c) => ("Unhealthy", text(c, "/message"), text(c, "/error")),
                None => ("Unknown", "", ""),
            };
            vec![read::name(o), json!(status), json!(message), json!(error)]
        },
    ),
    printer(
        "",
        "ResourceQuota",
        &[
            NAME,
            Column::text(
                "Request",
                Doc::Text("Request represents a minimum amount of cpu/memory that a container may consume."),
            ),
            Column::text(
                "Limit",
                Doc::Text(
                    "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
                ),
            ),
            AGE,
        ],
        quota,
    ),
    printer(
        "",
        "Event",
        &[
            Column::text("Last Seen", Doc::Field("api.core.v1.Event", "lastTimestamp")),
            Column::text("Type", Doc::Field("api.core.v1.Event", "type")),
            Column::text("Reason", Doc::Field("api.core.v1.Event", "reason")),
            Column::text("Object", Doc::Field("api.core.v1.Event", "involvedObject")),
            Column::text("Subobject", Doc::Field("api.core.v1.ObjectReference", "fieldPath")).wide(),
            Column::text("Source", Doc::Field("api.core.v1.Event", "source")).wide(),
            Column::text("Message", Doc::Field("api.core.v1.Event", "message")),
            Column::text("First Seen", Doc::Field("api.core.v1.Event", "firstTimestamp")).wide(),
            Column::text("Count", Doc::Field("api.core.v1.Event", "count")).wide(),
            NAME.wide(),
        ],
        event,
    ),
    printer("rbac.authorization.k8s.io", "Role", &[NAME, CREATED_AT], |o, _| {
        vec![read::name(o), json!(text(o, "/metadata/creationTimestamp"))]
    }),
    printer("rbac.authorization.k8s.io", "ClusterRole", &[NAME, CREATED_AT], |o, _| {
        vec![read::name(o), json!(text(o, "/metadata/creationTimestamp"))]
    }),
    printer(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        &[
            NAME,
            Column::text("Role", Doc::Text(ROLE_OF_BINDING)),
            AGE,
            Column::text("Users", Doc::Text("Users in the roleBinding")).wide(),
            Column::text("Groups", Doc::Text("Groups in the roleBinding")).wide(),
            Column::text("ServiceAccounts", Doc::Text("ServiceAccounts in the roleBinding")).wide(),
        ],
        binding,
    ),
    printer(
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        &[
            NAME,
            Column::text("Role", Doc::Text(ROLE_OF_CLUSTER_BINDING)),
            AGE,
            Column::text("Users", Doc::Text("Users in the clusterRoleBinding")).wide(),
            Column::text("Groups", Doc::Text("Groups in the clusterRoleBinding")).wide(),
            Column::text("ServiceAccounts", Doc::Text("ServiceAccounts in the clusterRoleBinding")).wide(),
        ],
        binding,
    ),
    printer(
        "coordination.k8s.io",
        "Lease",
        &[NAME, Column::text("Holder", Doc::Field("api.coordination.v1.LeaseSpec", "holderIdentity")), AGE],
        |o, now| vec![read::name(o), json!(text(o, "/spec/holderIdentity")), read::age(o, now)],
    ),
    printer(
        "coordination.k8s.io",
        "LeaseCandidate",
        &[
            NAME,
            Column::text("LeaseName", Doc::Field("api.coordination.v1beta1.LeaseCandidateSpec", "leaseName")),
            Column::text("BinaryVersion", Doc::Field("api.coordination.v1beta1.LeaseCandidateSpec", "binaryVersion")),
            Column::text(
                "EmulationVersion",
                Doc::Field("api.coordination.v1beta1.LeaseCandidateSpec", "emulationVersion"),
            ),
            Column::text("Strategy", Doc::Field("api.coordination.v1beta1.LeaseCandidateSpec", "strategy")),
            AGE,
        ],
        |o, now| {
            let spec = |field: &str| json!(text(o, &format!("/spec/{field}")));
            vec![
                read::name(o),
                spec("leaseName"),
                spec("binaryVersion"),
                spec("emulationVersion"),
                spec("strategy"),
                read::age(o, now),
            ]
        },
    ),
];

fn quota(o: &Value, now: Now) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    if let Some(hard) = o.pointer("/status/hard").and_then(Value::as_object) {
        let used = o.pointer("/status/used");
        for (resource, hard) in hard {
            let used = used.and_then(|u| u.get(resource)).and_then(Value::as_str).unwrap_or("0");
            let cell = format!("{resource}: {used}/{}", hard.as_str().unwrap_or(""));
            if resource.starts_with("limits") { limits.push(cell) } else { requests.push(cell) }
        }
    }
    vec![read::name(o), json!(requests.join(", ")), json!(limits.join(", ")), read::age(o, now)]
}

fn event(o: &Value, now: Now) -> Vec<Value> {
    let since = |pointers: &[&str]| {
        pointers.iter().find_map(|p| age::since(text(o, p), now)).unwrap_or_else(|| "<unknown>".to_owned())
    };
    let first = ["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"];
    let last: &[&str] = if o.get("series").is_some_and(Value::is_object) {
        &["/series/lastObservedTime"]
    } else {
        &["/lastTimestamp", "/deprecatedLastTimestamp", "/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"]
    };
    let count = match (read::maybe_int(o, "/series/count"), int(o, "/count"), int(o, "/deprecatedCount")) {
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
        json!(since(last)),
        json!(text(o, "/type")),
        json!(text(o, "/reason")),
        json!(target),
        json!(field("fieldPath")),
        json!(source),
        json!(pick(&["/message", "/note"]).trim()),
        json!(since(&first)),
        json!(count),
        read::name(o),
    ]
}

fn binding(o: &Value, now: Now) -> Vec<Value> {
    let subjects = |kind: &str| {
        let names: Vec<String> = list(o, "/subjects")
            .iter()
            .filter(|s| text(s, "/kind") == kind)
            .map(|s| match kind {
                "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
                _ => text(s, "/name").to_owned(),
            })
            .collect();
        json!(names.join(", "))
    };
    vec![
        read::name(o),
        json!(format!("{}/{}", text(o, "/roleRef/kind"), text(o, "/roleRef/name"))),
        read::age(o, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}
