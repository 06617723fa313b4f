//! Values as Go prints them in messages: struct fields in their order of declaration.

use crowsnest_api::field::{FieldError, FieldErrorKind};
use serde_json::Value;

use crate::schema::print::text_of;

/// An `Invalid` error whose value is a struct of the named definition.
pub(super) fn invalid(field: &str, value: &Value, definition: &str, detail: &str) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, field, Some(text_of(value, definition)), detail)
}

/// Go fields of a type that only the server has: the name, the field of the API, what stands there.
pub(in crate::builtin) type Fields = &'static [(&'static str, &'static str, Go)];

/// What a Go field holds.
#[derive(Clone, Copy)]
pub(in crate::builtin) enum Go {
    /// A pointer, a list or a map: null when absent.
    Nullable,
    /// A text, empty when absent.
    Text,
    /// A number, zero when absent.
    Number,
    /// A pointer to a struct of the API itself, by its definition.
    Api(&'static str),
    /// A pointer to a struct.
    Struct(Fields),
    /// A list of structs.
    Structs(Fields),
}

pub(super) const PROFILE: Fields =
    &[("Type", "type", Go::Text), ("LocalhostProfile", "localhostProfile", Go::Nullable)];

pub(super) const SECURITY_CONTEXT: Fields = &[
    ("Capabilities", "capabilities", Go::Struct(&[("Add", "add", Go::Nullable), ("Drop", "drop", Go::Nullable)])),
    ("Privileged", "privileged", Go::Nullable),
    (
        "SELinuxOptions",
        "seLinuxOptions",
        Go::Struct(&[
            ("User", "user", Go::Text),
            ("Role", "role", Go::Text),
            ("Type", "type", Go::Text),
            ("Level", "level", Go::Text),
        ]),
    ),
    (
        "WindowsOptions",
        "windowsOptions",
        Go::Struct(&[
            ("GMSACredentialSpecName", "gmsaCredentialSpecName", Go::Nullable),
            ("GMSACredentialSpec", "gmsaCredentialSpec", Go::Nullable),
            ("RunAsUserName", "runAsUserName", Go::Nullable),
            ("HostProcess", "hostProcess", Go::Nullable),
        ]),
    ),
    ("RunAsUser", "runAsUser", Go::Nullable),
    ("RunAsGroup", "runAsGroup", Go::Nullable),
    ("RunAsNonRoot", "runAsNonRoot", Go::Nullable),
    ("ReadOnlyRootFilesystem", "readOnlyRootFilesystem", Go::Nullable),
    ("AllowPrivilegeEscalation", "allowPrivilegeEscalation", Go::Nullable),
    ("ProcMount", "procMount", Go::Nullable),
    ("SeccompProfile", "seccompProfile", Go::Struct(PROFILE)),
    ("AppArmorProfile", "appArmorProfile", Go::Struct(PROFILE)),
];

pub(super) const RESOURCE_CLAIM: Fields = &[
    ("Name", "name", Go::Text),
    ("ResourceClaimName", "resourceClaimName", Go::Nullable),
    ("ResourceClaimTemplateName", "resourceClaimTemplateName", Go::Nullable),
];

pub(super) const SCOPE_SELECTOR: Fields = &[(
    "MatchExpressions",
    "matchExpressions",
    Go::Structs(&[
        ("ScopeName", "scopeName", Go::Text),
        ("Operator", "operator", Go::Text),
        ("Values", "values", Go::Nullable),
    ]),
)];

pub(super) const DISRUPTION_BUDGET: Fields = &[
    ("MinAvailable", "minAvailable", Go::Nullable),
    ("Selector", "selector", Go::Api("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector")),
    ("MaxUnavailable", "maxUnavailable", Go::Nullable),
    ("UnhealthyPodEvictionPolicy", "unhealthyPodEvictionPolicy", Go::Nullable),
];

pub(super) const STATEFUL_SET_ROLLING: Fields =
    &[("Partition", "partition", Go::Number), ("MaxUnavailable", "maxUnavailable", Go::Nullable)];

pub(super) const STATEFUL_SET_STRATEGY: Fields =
    &[("Type", "type", Go::Text), ("RollingUpdate", "rollingUpdate", Go::Struct(STATEFUL_SET_ROLLING))];

/// Of deployments and daemon sets whose type is none: what rolls is not looked at.
pub(super) const STRATEGY: Fields = &[("Type", "type", Go::Text), ("RollingUpdate", "rollingUpdate", Go::Nullable)];

pub(super) const SUCCESS_POLICY: Fields = &[(
    "Rules",
    "rules",
    Go::Structs(&[
        ("SucceededIndexes", "succeededIndexes", Go::Nullable),
        ("SucceededCount", "succeededCount", Go::Nullable),
    ]),
)];

pub(super) const FAILURE_POLICY: Fields = &[(
    "Rules",
    "rules",
    Go::Structs(&[
        ("Action", "action", Go::Text),
        (
            "OnExitCodes",
            "onExitCodes",
            Go::Struct(&[
                ("ContainerName", "containerName", Go::Nullable),
                ("Operator", "operator", Go::Text),
                ("Values", "values", Go::Nullable),
            ]),
        ),
        (
            "OnPodConditions",
            "onPodConditions",
            Go::Structs(&[("Type", "type", Go::Text), ("Status", "status", Go::Text)]),
        ),
    ]),
)];

const NODE_REQUIREMENT: Fields =
    &[("Key", "key", Go::Text), ("Operator", "operator", Go::Text), ("Values", "values", Go::Nullable)];

pub(super) const NODE_SELECTOR_TERM: Fields = &[
    ("MatchExpressions", "matchExpressions", Go::Structs(NODE_REQUIREMENT)),
    ("MatchFields", "matchFields", Go::Structs(NODE_REQUIREMENT)),
];

pub(super) const ADDRESS: Fields = &[("IP", "ip", Go::Text)];

pub(super) const TOLERATION: Fields = &[
    ("Key", "key", Go::Text),
    ("Operator", "operator", Go::Text),
    ("Value", "value", Go::Text),
    ("Effect", "effect", Go::Text),
    ("TolerationSeconds", "tolerationSeconds", Go::Nullable),
];

pub(super) const ATTACHMENT: Fields = &[
    ("Attacher", "attacher", Go::Text),
    (
        "Source",
        "source",
        Go::Struct(&[
            ("PersistentVolumeName", "persistentVolumeName", Go::Nullable),
            ("InlineVolumeSpec", "inlineVolumeSpec", Go::Nullable),
        ]),
    ),
    ("NodeName", "nodeName", Go::Text),
];

pub(super) const VOLUME_AFFINITY: Fields = &[(
    "Required",
    "required",
    Go::Struct(&[(
        "NodeSelectorTerms",
        "nodeSelectorTerms",
        Go::Structs(&[
            ("MatchExpressions", "matchExpressions", Go::Structs(NODE_REQUIREMENT)),
            ("MatchFields", "matchFields", Go::Structs(NODE_REQUIREMENT)),
        ]),
    )]),
)];

pub(super) const NODE_DRIVER: Fields = &[
    ("Name", "name", Go::Text),
    ("NodeID", "nodeID", Go::Text),
    ("TopologyKeys", "topologyKeys", Go::Nullable),
    ("Allocatable", "allocatable", Go::Nullable),
];

pub(super) const TAINT: Fields = &[
    ("Key", "key", Go::Text),
    ("Value", "value", Go::Text),
    ("Effect", "effect", Go::Text),
    ("TimeAdded", "timeAdded", Go::Nullable),
];

pub(super) const ROLE_REF: Fields =
    &[("APIGroup", "apiGroup", Go::Text), ("Kind", "kind", Go::Text), ("Name", "name", Go::Text)];

pub(super) const SERVICE_PORT: Fields = &[
    ("Name", "name", Go::Text),
    ("Protocol", "protocol", Go::Text),
    ("AppProtocol", "appProtocol", Go::Nullable),
    ("Port", "port", Go::Number),
    ("TargetPort", "targetPort", Go::Number),
    ("NodePort", "nodePort", Go::Number),
];

/// A struct of the server's own as JSON.
pub(in crate::builtin) fn internal_text(value: &Value, fields: Fields) -> String {
    let mut text = String::new();
    internal(fields, value, &mut text);
    text
}

/// An `Invalid` error whose value is a struct of the server's own: it has no names of JSON, and leaves nothing out.
pub(super) fn invalid_internal(field: &str, value: &Value, fields: Fields, detail: &str) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, field, Some(internal_text(value, fields)), detail)
}

/// The same for a value that is none of those that are supported.
pub(super) fn unsupported_internal(field: &str, value: &Value, fields: Fields, supported: &[&str]) -> FieldError {
    let known: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!("supported values: {}", known.join(", "));
    FieldError::new(FieldErrorKind::NotSupported, field, Some(internal_text(value, fields)), detail)
}

/// The same of a list of them.
pub(super) fn invalid_internals(field: &str, values: &[Value], fields: Fields, detail: &str) -> FieldError {
    let texts: Vec<String> = values.iter().map(|value| internal_text(value, fields)).collect();
    let text = if texts.is_empty() { "null".to_owned() } else { format!("[{}]", texts.join(",")) };
    FieldError::new(FieldErrorKind::Invalid, field, Some(text), detail)
}

fn internal(fields: Fields, value: &Value, out: &mut String) {
    out.push('{');
    for (index, (name, key, go)) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&format!("{name:?}:"));
        let value = value.get(key).unwrap_or(&Value::Null);
        match go {
            Go::Struct(fields) if value.is_object() => internal(fields, value, out),
            Go::Structs(fields) if value.is_array() => {
                out.push('[');
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    internal(fields, item, out);
                }
                out.push(']');
            }
            Go::Text if value.is_null() => out.push_str("\"\""),
            Go::Number if value.is_null() => out.push('0'),
            Go::Api(definition) => out.push_str(&text_of(value, definition)),
            _ => out.push_str(&value.to_string()),
        }
    }
    out.push('}');
}
