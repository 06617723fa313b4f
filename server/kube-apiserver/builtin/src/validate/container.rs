//! Validation of containers: names, ports, environment, restart rules, security context.

use std::collections::BTreeSet;

use super::mount::{self, Volumes};
use super::{
    Errors, Value, at, env, flag, is_set, is_unset, items, json, number, port_name_errors, port_number_error, probe,
    resources, text, validate_dns1123_label, validate_qualified_name, windows,
};

/// Type of a container, by the list of the pod that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerType {
    Main,
    Init,
    Ephemeral,
}

const DOWNWARD_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The parts of a pod that its containers refer to.
pub(super) struct Pod<'a> {
    pub(super) spec: &'a Value,
    pub(super) volumes: Volumes,
}

impl Pod<'_> {
    fn grace_period(&self) -> Option<i64> {
        number(self.spec, "terminationGracePeriodSeconds")
    }

    /// True if the containers share the host's user namespace.
    fn host_users(&self) -> bool {
        at(self.spec, "hostUsers") != false
    }
}

/// Validates the containers of a list. `names` are the container names already used in the pod.
pub(super) fn validate_containers<'a>(
    e: &mut Errors,
    containers: &'a [Value],
    container_type: ContainerType,
    pod: &Pod<'_>,
    names: &mut BTreeSet<&'a str>,
    list: &str,
) {
    for (index, container) in containers.iter().enumerate() {
        let path = format!("{list}[{index}]");
        validate_common_fields(e, container, pod, &path);
        if container_type == ContainerType::Init && is_set(container, "restartPolicy") {
            validate_restart_policy(e, container, &path);
        }
        let name = text(container, "name");
        if names.contains(name) {
            e.duplicate(format!("{path}.name"), &json!(name));
        } else if container_type != ContainerType::Init || !name.is_empty() {
            names.insert(name);
        }
        match container_type {
            ContainerType::Main => {
                probe::validate_handlers(e, container, pod.grace_period(), &path);
                validate_restart_policy(e, container, &path);
            }
            ContainerType::Init => validate_init_container(e, container, pod.grace_period(), list, &path),
            ContainerType::Ephemeral => validate_ephemeral_container(e, container, pod, &path),
        }
    }
    if container_type == ContainerType::Main {
        validate_host_ports(e, containers, list);
    }
}

/// `validateContainerRestartPolicy`: the container's restart policy and its rules for exit codes.
fn validate_restart_policy(e: &mut Errors, container: &Value, path: &str) {
    let (policy, rules) = (at(container, "restartPolicy"), items(container, "restartPolicyRules"));
    let supported = ["Always", "Never", "OnFailure"];
    if policy.is_null() {
        if !rules.is_empty() {
            e.required(format!("{path}.restartPolicy"), "must specify restartPolicy when restart rules are used");
        }
    } else if !supported.iter().any(|name| policy == name) {
        e.unsupported(format!("{path}.restartPolicy"), policy, &supported);
    }
    if rules.len() > 20 {
        e.too_many(format!("{path}.restartPolicyRules"), rules.len(), 20);
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}.restartPolicyRules[{index}]");
        if at(rule, "action") != "Restart" && at(rule, "action") != "RestartAllContainers" {
            e.unsupported(format!("{path}.action"), &json!(text(rule, "action")), &["Restart", "RestartAllContainers"]);
        }
        if !is_set(rule, "exitCodes") {
            e.required(format!("{path}.exitCodes"), "must be specified");
            continue;
        }
        let operator = text(rule, "exitCodes.operator");
        if !matches!(operator, "In" | "NotIn") {
            e.unsupported(format!("{path}.exitCodes.operator"), &json!(operator), &["In", "NotIn"]);
        }
        let values = items(rule, "exitCodes.values").len();
        if values > 255 {
            e.too_many(format!("{path}.exitCodes.values"), values, 255);
        }
    }
}

fn validate_init_container(e: &mut Errors, container: &Value, grace: Option<i64>, list: &str, path: &str) {
    // Init containers run sequentially, so only ports within one container conflict; errors name the first
    // container.
    validate_host_ports(e, std::slice::from_ref(container), list);
    // A restartable init container is a sidecar and supports all fields of a container.
    if text(container, "restartPolicy") == "Always" {
        return probe::validate_handlers(e, container, grace, path);
    }
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if is_set(container, field) {
            e.forbidden(format!("{path}.{field}"), "may not be set for init containers without restartPolicy=Always");
        }
    }
}

fn validate_ephemeral_container(e: &mut Errors, container: &Value, pod: &Pod<'_>, path: &str) {
    const REASON: &str = "cannot be set for an Ephemeral Container";
    let target = text(container, "targetContainerName");
    let mut targets = items(pod.spec, "containers").iter().chain(items(pod.spec, "initContainers"));
    if !target.is_empty() && !targets.any(|container| text(container, "name") == target) {
        e.push(super::FieldError::not_found(format!("{path}.targetContainerName"), &json!(target)));
    }
    for field in ["ports", "resources", "resizePolicy", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"]
    {
        let has_value = match at(container, field) {
            Value::Array(list) => !list.is_empty(),
            Value::Object(fields) => field != "resources" || !fields.is_empty(),
            _ => false,
        };
        if has_value {
            e.forbidden(format!("{path}.{field}"), REASON);
        }
    }
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        for field in ["subPath", "subPathExpr"] {
            if !is_unset(mount, field) {
                e.forbidden(format!("{path}.volumeMounts[{index}].{field}"), REASON);
            }
        }
    }
}

/// `validateContainerOnlyForPod`: images in templates may have surrounding whitespace.
pub(super) fn validate_images(e: &mut Errors, containers: &[Value], path: &str) {
    for (index, container) in containers.iter().enumerate() {
        let image = text(container, "image");
        if image.trim() != image {
            let reason = "must not have leading or trailing whitespace";
            e.invalid(format!("{path}[{index}].image"), &json!(image), reason);
        }
    }
}

fn validate_common_fields(e: &mut Errors, container: &Value, pod: &Pod<'_>, path: &str) {
    let name = text(container, "name");
    if name.is_empty() {
        e.required(format!("{path}.name"), "");
    } else {
        e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
    }
    if text(container, "image").is_empty() {
        e.required(format!("{path}.image"), "");
    }
    e.one_of(
        &format!("{path}.terminationMessagePolicy"),
        at(container, "terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    validate_ports(e, container, path);
    env::validate_environment(e, container, path);
    mount::validate_volume_mounts(e, container, &pod.volumes, &format!("{path}.volumeMounts"));
    mount::validate_volume_devices(e, container, &pod.volumes, &format!("{path}.volumeDevices"));
    e.one_of(
        &format!("{path}.imagePullPolicy"),
        at(container, "imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
    );
    resources::validate_requirements(e, at(container, "resources"), Some(pod.spec), &format!("{path}.resources"));
    validate_resize_policy(e, container, text(pod.spec, "restartPolicy"), &format!("{path}.resizePolicy"));
    validate_security_context(
        e,
        at(container, "securityContext"),
        pod.host_users(),
        &format!("{path}.securityContext"),
    );
}

fn validate_resize_policy(e: &mut Errors, container: &Value, pod_policy: &str, path: &str) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, policy) in items(container, "resizePolicy").iter().enumerate() {
        let (resource, restart_policy) = (text(policy, "resourceName"), at(policy, "restartPolicy"));
        if seen.contains(&resource) {
            e.duplicate(format!("{path}[{index}]"), &json!(resource));
        }
        seen.push(resource);
        e.one_of(path, at(policy, "resourceName"), &["cpu", "memory"]);
        e.one_of(path, restart_policy, &["NotRequired", "RestartContainer"]);
        if pod_policy == "Never" && restart_policy != "NotRequired" {
            e.invalid(path, restart_policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'");
        }
    }
}

fn validate_ports(e: &mut Errors, container: &Value, path: &str) {
    let mut names = BTreeSet::new();
    for (index, port) in items(container, "ports").iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let reasons = port_name_errors(name);
            if reasons.is_empty() && !names.insert(name) {
                e.duplicate(format!("{path}.name"), &json!(name));
            }
            e.push_name_errors(&format!("{path}.name"), name, reasons);
        }
        match number(port, "containerPort").unwrap_or(0) {
            0 => e.required(format!("{path}.containerPort"), ""),
            number => {
                if let Some(reason) = port_number_error(number) {
                    e.invalid(format!("{path}.containerPort"), &json!(number), reason);
                }
            }
        }
        if let Some(number) = number(port, "hostPort").filter(|n| *n != 0)
            && let Some(reason) = port_number_error(number)
        {
            e.invalid(format!("{path}.hostPort"), &json!(number), reason);
        }
        e.one_of(&format!("{path}.protocol"), at(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn validate_host_ports(e: &mut Errors, containers: &[Value], path: &str) {
    let mut seen = BTreeSet::new();
    for (c, container) in containers.iter().enumerate() {
        for (p, port) in items(container, "ports").iter().enumerate() {
            let host = number(port, "hostPort").unwrap_or(0);
            if host == 0 {
                continue;
            }
            let key = format!("{}/{}/{host}", text(port, "protocol"), text(port, "hostIP"));
            if !seen.insert(key.clone()) {
                e.duplicate(format!("{path}[{c}].ports[{p}].hostPort"), &json!(key));
            }
        }
    }
}

pub(super) fn validate_resource_field_ref(e: &mut Errors, reference: &Value, in_volume: bool, path: &str) {
    const NAMES: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let resource = text(reference, "resource");
    let is_hugepages = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if in_volume && text(reference, "containerName").is_empty() {
        e.required(format!("{path}.containerName"), "");
    } else if resource.is_empty() {
        e.required(format!("{path}.resource"), "");
    } else if !NAMES.contains(&resource) && !is_hugepages {
        e.unsupported(format!("{path}.resource"), &json!(resource), &NAMES);
    }
    let divisor = resources::amount(at(reference, "divisor")).filter(|divisor| !divisor.is_zero());
    let Some(divisor) = divisor.map(|divisor| divisor.to_string()) else { return };
    const SIZES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let kind = match resource.split_once('.') {
        Some((_, "cpu")) if divisor != "1m" && divisor != "1" => {
            let reason = "only divisor's values 1m and 1 are supported with the cpu resource";
            return e.invalid(format!("{path}.divisor"), &json!(resource), reason);
        }
        Some((_, "memory")) => "memory",
        Some((_, "ephemeral-storage")) => "local ephemeral storage",
        _ if is_hugepages => "hugepages",
        _ => return,
    };
    if !SIZES.contains(&divisor.as_str()) {
        let reason = format!("only divisor's values {} are supported with the {kind} resource", SIZES.join(", "));
        e.invalid(format!("{path}.divisor"), &json!(resource), reason);
    }
}

/// `validateObjectFieldSelector`; `supported` are the paths without a key.
pub(super) fn validate_object_field_selector(e: &mut Errors, reference: &Value, supported: &[&str], path: &str) {
    for field in ["apiVersion", "fieldPath"] {
        if text(reference, field).is_empty() {
            return e.required(format!("{path}.{field}"), "");
        }
    }
    let (version, field) = (text(reference, "apiVersion"), text(reference, "fieldPath"));
    let field_path = format!("{path}.fieldPath");
    if version != "v1" {
        let reason = format!("error converting fieldPath: unsupported pod version: {version}");
        return e.invalid(field_path, &json!(field), reason);
    }
    let subscript = field.split_once("['").and_then(|(head, rest)| Some((head, rest.strip_suffix("']")?)));
    match subscript {
        Some(("metadata.annotations", key)) => {
            return e.push_name_errors(path, &key.to_lowercase(), validate_qualified_name(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => return e.push_name_errors(path, key, validate_qualified_name(key)),
        Some(_) => {
            let reason = format!("error converting fieldPath: field label does not support subscript: {field}");
            return e.invalid(field_path, &json!(field), reason);
        }
        None => {}
    }
    if !DOWNWARD_FIELDS.contains(&field) {
        let reason = format!("error converting fieldPath: field label not supported: {field}");
        e.invalid(field_path, &json!(field), reason);
    } else if !supported.contains(&field) {
        e.unsupported(field_path, &json!(field), supported);
    }
}

fn validate_security_context(e: &mut Errors, context: &Value, host_users: bool, path: &str) {
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = number(context, field).filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            e.invalid(format!("{path}.{field}"), &json!(id), "must be between 0 and 2147483647, inclusive");
        }
    }
    let proc_mount = at(context, "procMount");
    if !proc_mount.is_null() && proc_mount != "Default" && proc_mount != "Unmasked" {
        e.unsupported(format!("{path}.procMount"), proc_mount, &["Default", "Unmasked"]);
    }
    if host_users && proc_mount == "Unmasked" {
        e.invalid(format!("{path}.procMount"), proc_mount, "`hostUsers` must be false to use `Unmasked`");
    }
    validate_seccomp_profile(e, at(context, "seccompProfile"), &format!("{path}.seccompProfile"));
    if at(context, "allowPrivilegeEscalation") == false {
        const REASON: &str = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        if flag(context, "privileged") {
            e.push(super::go::invalid_struct(path, context, "core.SecurityContext", REASON));
        }
        for _ in items(context, "capabilities.add").iter().filter(|c| *c == "CAP_SYS_ADMIN") {
            let reason = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            e.push(super::go::invalid_struct(path, context, "core.SecurityContext", reason));
        }
    }
    windows::validate_windows_options(e, context, path);
    validate_app_armor_profile(e, at(context, "appArmorProfile"), &format!("{path}.appArmorProfile"));
}

pub(super) fn validate_app_armor_profile(e: &mut Errors, profile: &Value, path: &str) {
    const REQUIRED: &str = "must be set when AppArmor type is Localhost";
    if profile.is_null() {
        return;
    }
    let (field, localhost_profile) = (format!("{path}.localhostProfile"), at(profile, "localhostProfile"));
    match text(profile, "type") {
        "Localhost" => match localhost_profile.as_str() {
            Some(name) if name.trim() != name => {
                e.invalid(field, localhost_profile, "must not be padded with whitespace")
            }
            Some(name) if name.len() > 4095 => e.push(super::FieldError::too_long(field, 4095)),
            None | Some("") => e.required(field, REQUIRED),
            Some(_) => {}
        },
        "RuntimeDefault" | "Unconfined" if !localhost_profile.is_null() => {
            e.invalid(field, localhost_profile, "can only be set when AppArmor type is Localhost");
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => e.required(format!("{path}.type"), "type is required when appArmorProfile is set"),
        other => e.unsupported(format!("{path}.type"), &json!(other), &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

pub(super) fn validate_seccomp_profile(e: &mut Errors, profile: &Value, path: &str) {
    if profile.is_null() {
        return;
    }
    let kind = text(profile, "type");
    match kind {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => e.required(format!("{path}.type"), "type is required when seccompProfile is set"),
        other => e.unsupported(format!("{path}.type"), &json!(other), &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    let field = format!("{path}.localhostProfile");
    match (kind, at(profile, "localhostProfile").as_str()) {
        ("Localhost", None) => e.required(field, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(localhost)) => mount::validate_local_descending_path(e, &field, localhost),
        (_, Some(_)) => {
            let reason = "can only be set when seccomp type is Localhost";
            e.push(super::go::invalid_struct(&field, profile, "core.SeccompProfile", reason));
        }
        (_, None) => {}
    }
}
