//! Columns of nodes, classes, certificates, admission configuration, flow control, devices and API registration.

use serde_json::Value;

use super::ColumnDescription::{Field, Text};
use super::fields::{self, NONE, flag, int, list, size, text};
use super::{AGE, Column, KindPrinter, NAME};
use crate::printers::{Cell, human_duration};

const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const DEVICES: &str = "resource.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";

const PARAM_KIND: Column =
    Column::text("ParamKind", Text("ParamKind specifies the kind of resources used to parameterize this policy"));

const WEBHOOKS: &[Column] = &[
    NAME,
    Column::number("Webhooks", Text("Webhooks indicates the number of webhooks registered in this configuration")),
    AGE,
];

const POLICY_BINDING: &[Column] = &[
    NAME,
    Column::text("PolicyName", Text("PolicyName indicates the policy definition which the policy binding binded to")),
    Column::text("ParamRef", Text("ParamRef indicates the param resource which sets the configuration param")),
    AGE,
];

pub(super) const KINDS: &[KindPrinter] = &[
    KindPrinter::new(
        "",
        "Node",
        &[
            NAME,
            Column::text("Status", Text("The status of the node")),
            Column::text("Roles", Text("The roles of the node")),
            AGE,
            Column::text("Version", Field("api.core.v1.NodeSystemInfo", "kubeletVersion")),
            Column::text("Internal-IP", Field("api.core.v1.NodeStatus", "addresses")).wide(),
            Column::text("External-IP", Field("api.core.v1.NodeStatus", "addresses")).wide(),
            Column::text("OS-Image", Field("api.core.v1.NodeSystemInfo", "osImage")).wide(),
            Column::text("Kernel-Version", Field("api.core.v1.NodeSystemInfo", "kernelVersion")).wide(),
            Column::text("Container-Runtime", Field("api.core.v1.NodeSystemInfo", "containerRuntimeVersion")).wide(),
        ],
        node,
    ),
    KindPrinter::new(
        "scheduling.k8s.io",
        "PriorityClass",
        &[
            NAME,
            Column::number("Value", Field("api.scheduling.v1.PriorityClass", "value")),
            Column::boolean("Global-Default", Field("api.scheduling.v1.PriorityClass", "globalDefault")),
            AGE,
            Column::text("PreemptionPolicy", Field("api.scheduling.v1.PriorityClass", "preemptionPolicy")),
        ],
        |o| {
            vec![
                fields::name(o),
                Cell::from(int(o, "/value")),
                Cell::from(flag(o, "/globalDefault")),
                fields::age(o),
                Cell::from(text(o, "/preemptionPolicy")),
            ]
        },
    ),
    KindPrinter::new("node.k8s.io", "RuntimeClass", &[NAME, Column::text("Handler", Text("")), AGE], |o| {
        vec![fields::name(o), Cell::from(text(o, "/handler")), fields::age(o)]
    }),
    KindPrinter::new(
        CERTIFICATES,
        "CertificateSigningRequest",
        &[
            NAME,
            AGE,
            Column::text("SignerName", Field("api.certificates.v1.CertificateSigningRequestSpec", "signerName")),
            Column::text("Requestor", Field("api.certificates.v1.CertificateSigningRequestSpec", "request")),
            Column::text(
                "RequestedDuration",
                Field("api.certificates.v1.CertificateSigningRequestSpec", "expirationSeconds"),
            ),
            Column::text("Condition", Field("api.certificates.v1.CertificateSigningRequestStatus", "conditions")),
        ],
        |o| {
            let duration = fields::maybe_int(o, "/spec/expirationSeconds").map_or(NONE.to_owned(), human_duration);
            vec![
                fields::name(o),
                fields::age(o),
                fields::text_or(o, "/spec/signerName", NONE),
                Cell::from(text(o, "/spec/username")),
                Cell::from(duration),
                Cell::from(signing_request_condition(o)),
            ]
        },
    ),
    KindPrinter::new(
        CERTIFICATES,
        "ClusterTrustBundle",
        &[NAME, Column::text("SignerName", Field("api.certificates.v1beta1.ClusterTrustBundleSpec", "signerName"))],
        |o| vec![fields::name(o), fields::text_or(o, "/spec/signerName", NONE)],
    ),
    KindPrinter::new(ADMISSION, "MutatingWebhookConfiguration", WEBHOOKS, webhooks),
    KindPrinter::new(ADMISSION, "ValidatingWebhookConfiguration", WEBHOOKS, webhooks),
    KindPrinter::new(
        ADMISSION,
        "ValidatingAdmissionPolicy",
        &policy_columns(
            "Validations",
            "Validations indicates the number of validation rules defined in this configuration",
        ),
        |o| policy(o, "/spec/validations"),
    ),
    KindPrinter::new(ADMISSION, "ValidatingAdmissionPolicyBinding", POLICY_BINDING, policy_binding),
    KindPrinter::new(
        ADMISSION,
        "MutatingAdmissionPolicy",
        &policy_columns("Mutations", "Mutation indicates the number of mutations rules defined in this configuration"),
        |o| policy(o, "/spec/mutations"),
    ),
    KindPrinter::new(ADMISSION, "MutatingAdmissionPolicyBinding", POLICY_BINDING, policy_binding),
    KindPrinter::new(
        FLOW,
        "FlowSchema",
        &[
            NAME,
            Column::text("PriorityLevel", Field("api.flowcontrol.v1.PriorityLevelConfigurationReference", "name")),
            Column::text("MatchingPrecedence", Field("api.flowcontrol.v1.FlowSchemaSpec", "matchingPrecedence")),
            Column::text("DistinguisherMethod", Field("api.flowcontrol.v1.FlowSchemaSpec", "distinguisherMethod")),
            AGE,
            Column::text("MissingPL", Text("references a broken or non-existent PriorityLevelConfiguration")),
        ],
        |o| {
            let missing = list(o, "/status/conditions").iter().find(|c| text(c, "/type") == "Dangling");
            vec![
                fields::name(o),
                fields::text_or(o, "/spec/priorityLevelConfiguration/name", NONE),
                Cell::from(int(o, "/spec/matchingPrecedence")),
                fields::text_or(o, "/spec/distinguisherMethod/type", NONE),
                fields::age(o),
                Cell::from(missing.map_or("?", |c| text(c, "/status"))),
            ]
        },
    ),
    KindPrinter::new(
        FLOW,
        "PriorityLevelConfiguration",
        &[
            NAME,
            Column::text("Type", Field("api.flowcontrol.v1.PriorityLevelConfigurationSpec", "type")),
            Column::text(
                "NominalConcurrencyShares",
                Field("api.flowcontrol.v1.LimitedPriorityLevelConfiguration", "nominalConcurrencyShares"),
            ),
            Column::text("Queues", Field("api.flowcontrol.v1.QueuingConfiguration", "queues")),
            Column::text("HandSize", Field("api.flowcontrol.v1.QueuingConfiguration", "handSize")),
            Column::text("QueueLengthLimit", Field("api.flowcontrol.v1.QueuingConfiguration", "queueLengthLimit")),
            AGE,
        ],
        |o| {
            let number = |pointer: &str| fields::maybe_int(o, pointer).map_or_else(|| Cell::from(NONE), Cell::from);
            vec![
                fields::name(o),
                Cell::from(text(o, "/spec/type")),
                number("/spec/limited/nominalConcurrencyShares"),
                number("/spec/limited/limitResponse/queuing/queues"),
                number("/spec/limited/limitResponse/queuing/handSize"),
                number("/spec/limited/limitResponse/queuing/queueLengthLimit"),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(DEVICES, "DeviceClass", &[NAME, AGE], |o| vec![fields::name(o), fields::age(o)]),
    KindPrinter::new(DEVICES, "ResourceClaimTemplate", &[NAME, AGE], |o| vec![fields::name(o), fields::age(o)]),
    KindPrinter::new(
        DEVICES,
        "ResourceClaim",
        &[
            NAME,
            Column::text("State", Text("A summary of the current state (allocated, pending, reserved, etc.).")),
            AGE,
        ],
        |o| {
            let mut states = Vec::new();
            if o.pointer("/metadata/deletionTimestamp").is_some() {
                states.push("deleted");
            }
            match (o.pointer("/status/allocation").is_some(), list(o, "/status/reservedFor").is_empty()) {
                (false, _) => states.push("pending"),
                (true, true) => states.push("allocated"),
                (true, false) => states.extend(["allocated", "reserved"]),
            }
            vec![fields::name(o), Cell::from(states.join(",")), fields::age(o)]
        },
    ),
    KindPrinter::new(
        DEVICES,
        "ResourceSlice",
        &[
            NAME,
            Column::text("Node", Field("api.resource.v1.ResourceSliceSpec", "nodeName")),
            Column::text("Driver", Field("api.resource.v1.ResourceSliceSpec", "driver")),
            Column::text("Pool", Field("api.resource.v1.ResourcePool", "name")),
            AGE,
        ],
        |o| {
            vec![
                fields::name(o),
                fields::text_or(o, "/spec/nodeName", "<unset>"),
                Cell::from(text(o, "/spec/driver")),
                Cell::from(text(o, "/spec/pool/name")),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(
        "apiregistration.k8s.io",
        "APIService",
        &[
            NAME,
            Column::text("Service", Text("The reference to the service that hosts this API endpoint.")),
            Column::text("Available", Text("Whether this service is available.")),
            AGE,
        ],
        |o| {
            let service = match o.pointer("/spec/service") {
                Some(service) if service.is_object() => {
                    format!("{}/{}", text(service, "/namespace"), text(service, "/name"))
                }
                _ => "Local".to_owned(),
            };
            let condition = list(o, "/status/conditions").iter().find(|c| text(c, "/type") == "Available");
            let available = condition.map_or("Unknown".to_owned(), |c| match text(c, "/status") {
                "True" => "True".to_owned(),
                status => format!("{status} ({})", text(c, "/reason")),
            });
            vec![fields::name(o), Cell::from(service), Cell::from(available), fields::age(o)]
        },
    ),
];

fn node(o: &Value) -> Vec<Cell> {
    let address = |kind: &str| {
        let found = list(o, "/status/addresses").iter().find(|a| text(a, "/type") == kind);
        Cell::from(found.map_or(NONE, |a| text(a, "/address")))
    };
    let info = |field: &str| fields::text_or(o, &format!("/status/nodeInfo/{field}"), "<unknown>");
    let mut status = match fields::condition(o, "Ready") {
        "" => "Unknown".to_owned(),
        "True" => "Ready".to_owned(),
        _ => "NotReady".to_owned(),
    };
    if flag(o, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    vec![
        fields::name(o),
        Cell::from(status),
        Cell::from(node_roles(o)),
        fields::age(o),
        Cell::from(text(o, "/status/nodeInfo/kubeletVersion")),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        Cell::from(kernel_version(o)),
        info("containerRuntimeVersion"),
    ]
}

/// Kernel version of a node, with the architecture if the node reports it.
fn kernel_version(node: &Value) -> String {
    let version = match text(node, "/status/nodeInfo/kernelVersion") {
        "" => "<unknown>",
        version => version,
    };
    match text(node, "/status/nodeInfo/architecture") {
        "" => version.to_owned(),
        architecture => format!("{version} ({architecture})"),
    }
}

fn node_roles(o: &Value) -> String {
    let mut roles: Vec<&str> = Vec::new();
    if let Some(labels) = o.pointer("/metadata/labels").and_then(Value::as_object) {
        for (key, value) in labels {
            if let Some(role) = key.strip_prefix("node-role.kubernetes.io/") {
                roles.push(role);
            } else if key == "kubernetes.io/role" {
                roles.push(value.as_str().unwrap_or(""));
            }
        }
    }
    roles.retain(|role| !role.is_empty());
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { NONE.to_owned() } else { roles.join(",") }
}

fn signing_request_condition(o: &Value) -> String {
    let has = |kind: &str| list(o, "/status/conditions").iter().any(|c| text(c, "/type") == kind);
    let mut state = if has("Approved") {
        "Approved"
    } else if has("Denied") {
        "Denied"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !text(o, "/status/certificate").is_empty() {
        state.push_str(",Issued");
    }
    state
}

fn param_kind(o: &Value) -> String {
    match (text(o, "/spec/paramKind/apiVersion"), text(o, "/spec/paramKind/kind")) {
        ("", "") => "<unset>".to_owned(),
        (version, kind) => format!("{version}/{kind}"),
    }
}

fn webhooks(o: &Value) -> Vec<Cell> {
    vec![fields::name(o), Cell::from(size(o, "/webhooks")), fields::age(o)]
}

/// Columns of an admission policy, whose second column is the number of its rules.
const fn policy_columns(rules: &'static str, description: &'static str) -> [Column; 4] {
    [NAME, Column::number(rules, Text(description)), PARAM_KIND, AGE]
}

/// Cells of an admission policy whose rules are at a JSON pointer.
fn policy(o: &Value, rules: &str) -> Vec<Cell> {
    vec![fields::name(o), Cell::from(size(o, rules)), Cell::from(param_kind(o)), fields::age(o)]
}

fn policy_binding(o: &Value) -> Vec<Cell> {
    let reference =
        o.pointer("/spec/paramRef").map_or("<unset>".to_owned(), |p| match (text(p, "/namespace"), text(p, "/name")) {
            (_, "") => format_selector_like_go(p.get("selector").unwrap_or(&Value::Null)),
            ("", name) => format!("*/{name}"),
            (namespace, name) => format!("{namespace}/{name}"),
        });
    vec![fields::name(o), Cell::from(text(o, "/spec/policyName")), Cell::from(reference), fields::age(o)]
}

/// A label selector as Go's `String` method of `metav1.LabelSelector` prints it, which kube-apiserver uses here.
fn format_selector_like_go(selector: &Value) -> String {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let pairs =
        labels.into_iter().flatten().map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default()));
    let requirements = list(selector, "/matchExpressions").iter().map(|expression| {
        let values: Vec<&str> = list(expression, "/values").iter().filter_map(Value::as_str).collect();
        let (key, operator) = (text(expression, "/key"), text(expression, "/operator"));
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},", values.join(" "))
    });
    let (pairs, requirements) = (pairs.collect::<String>(), requirements.collect::<String>());
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{pairs}}},MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )
}
