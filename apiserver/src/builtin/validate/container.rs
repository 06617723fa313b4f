//! Containers: ports, environment, mounts, probes, lifecycle, security context.

use std::collections::BTreeSet;

use super::{
    Errors, Value, at, config, dns1123_label, flag, items, json, number, port, port_name, port_number, qualified_name,
    resources, set, text, unset,
};

/// What a container is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Main,
    Init,
    Ephemeral,
}

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
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

/// Containers of one list. `names` are those already taken in the pod.
pub(super) fn list(
    e: &mut Errors,
    containers: &[Value],
    role: Role,
    volumes: &BTreeSet<String>,
    names: &mut BTreeSet<String>,
    path: &str,
) {
    let mut own = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = format!("{path}[{index}]");
        common(e, container, volumes, &path);
        let name = text(container, "name");
        let taken = own.contains(name) || (role != Role::Main && names.contains(name));
        if taken {
            e.duplicate(format!("{path}.name"), &json!(name));
        } else if !name.is_empty() {
            own.insert(name.to_owned());
        }
        match role {
            Role::Main => handlers(e, container, &path),
            Role::Init => init(e, container, &path),
            Role::Ephemeral => ephemeral(e, container, &path),
        }
    }
    names.extend(own);
    if role != Role::Ephemeral {
        host_ports(e, containers, path);
    }
}

fn init(e: &mut Errors, container: &Value, path: &str) {
    // A restartable init container is a sidecar and may have all a container may.
    match text(container, "restartPolicy") {
        "Always" => handlers(e, container, path),
        "" => {
            for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if set(container, field) {
                    e.forbidden(
                        format!("{path}.{field}"),
                        "may not be set for init containers without restartPolicy=Always",
                    );
                }
            }
        }
        _ => e.unsupported(format!("{path}.restartPolicy"), at(container, "restartPolicy"), &["Always"]),
    }
}

fn ephemeral(e: &mut Errors, container: &Value, path: &str) {
    for field in ["ports", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if set(container, field) {
            e.forbidden(format!("{path}.{field}"), "cannot be set for an Ephemeral Container");
        }
    }
    if at(container, "resources").as_object().is_some_and(|r| !r.is_empty()) {
        e.forbidden(format!("{path}.resources"), "cannot be set for an Ephemeral Container");
    }
}

fn common(e: &mut Errors, container: &Value, volumes: &BTreeSet<String>, path: &str) {
    let name = text(container, "name");
    if name.is_empty() {
        e.required(format!("{path}.name"), "");
    } else {
        e.names(&format!("{path}.name"), name, dns1123_label(name));
    }
    let image = text(container, "image");
    if image.is_empty() {
        e.required(format!("{path}.image"), "");
    } else if image.trim() != image {
        e.invalid(format!("{path}.image"), &json!(image), "must not have leading or trailing whitespace");
    }
    e.one_of(
        &format!("{path}.terminationMessagePolicy"),
        at(container, "terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    ports(e, container, path);
    env(e, container, path);
    mounts(e, container, volumes, path);
    e.one_of(
        &format!("{path}.imagePullPolicy"),
        at(container, "imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
    );
    resources::requirements(e, at(container, "resources"), &format!("{path}.resources"));
    security(e, at(container, "securityContext"), &format!("{path}.securityContext"));
}

fn ports(e: &mut Errors, container: &Value, path: &str) {
    let mut names = BTreeSet::new();
    for (index, port) in items(container, "ports").iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let why = port_name(name);
            if why.is_empty() && !names.insert(name) {
                e.duplicate(format!("{path}.name"), &json!(name));
            }
            e.names(&format!("{path}.name"), name, why);
        }
        match number(port, "containerPort").unwrap_or(0) {
            0 => e.required(format!("{path}.containerPort"), ""),
            number => {
                if let Some(why) = port_number(number) {
                    e.invalid(format!("{path}.containerPort"), &json!(number), why);
                }
            }
        }
        if let Some(number) = number(port, "hostPort").filter(|n| *n != 0)
            && let Some(why) = port_number(number)
        {
            e.invalid(format!("{path}.hostPort"), &json!(number), why);
        }
        e.one_of(&format!("{path}.protocol"), at(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn host_ports(e: &mut Errors, containers: &[Value], path: &str) {
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

/// `IsRelaxedEnvVarName`.
fn env_name(name: &str) -> Vec<String> {
    let printable = name.chars().all(|c| (' '..='~').contains(&c) && c != '=');
    if printable {
        Vec::new()
    } else {
        vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".into()]
    }
}

fn env(e: &mut Errors, container: &Value, path: &str) {
    for (index, variable) in items(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        let name = text(variable, "name");
        if name.is_empty() {
            e.required(format!("{path}.name"), "");
        } else {
            e.names(&format!("{path}.name"), name, env_name(name));
        }
        if set(variable, "valueFrom") {
            value_from(e, variable, &format!("{path}.valueFrom"));
        }
    }
    for (index, source) in items(container, "envFrom").iter().enumerate() {
        let path = format!("{path}.envFrom[{index}]");
        let prefix = text(source, "prefix");
        e.names(&format!("{path}.prefix"), prefix, env_name(prefix));
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if set(source, kind) {
                sources += 1;
                if text(source, &format!("{kind}.name")).is_empty() {
                    e.required(format!("{path}.{kind}.name"), "");
                }
            }
        }
        match sources {
            0 => e.invalid(path, &json!(""), "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => e.invalid(path, &json!(""), "may not have more than one field specified at a time"),
        }
    }
}

fn value_from(e: &mut Errors, variable: &Value, path: &str) {
    let source = at(variable, "valueFrom");
    let mut sources = 0;
    if set(source, "fieldRef") {
        sources += 1;
        field_selector(e, at(source, "fieldRef"), &ENV_FIELDS, &format!("{path}.fieldRef"));
    }
    if set(source, "resourceFieldRef") {
        sources += 1;
        resource_field(e, at(source, "resourceFieldRef"), &format!("{path}.resourceFieldRef"));
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if set(source, kind) {
            sources += 1;
            let (path, reference) = (format!("{path}.{kind}"), at(source, kind));
            if text(reference, "name").is_empty() {
                e.required(format!("{path}.name"), "");
            }
            let key = text(reference, "key");
            if key.is_empty() {
                e.required(format!("{path}.key"), "");
            } else {
                e.names(&format!("{path}.key"), key, config::key(key));
            }
        }
    }
    if set(source, "fileKeyRef") {
        sources += 1;
    }
    if sources == 0 {
        e.invalid(
            path,
            &json!(""),
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
        );
    } else if !unset(variable, "value") {
        e.invalid(path, &json!(""), "may not be specified when `value` is not empty");
    } else if sources > 1 {
        e.invalid(path, &json!(""), "may not have more than one field specified at a time");
    }
}

fn resource_field(e: &mut Errors, reference: &Value, path: &str) {
    const NAMES: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let resource = text(reference, "resource");
    if resource.is_empty() {
        e.required(format!("{path}.resource"), "");
    } else if !NAMES.contains(&resource) && !resource.contains("hugepages-") {
        e.unsupported(format!("{path}.resource"), &json!(resource), &NAMES);
    }
}

/// `validateObjectFieldSelector`; `supported` are the paths without a key.
pub(super) fn field_selector(e: &mut Errors, reference: &Value, supported: &[&str], path: &str) {
    for field in ["apiVersion", "fieldPath"] {
        if text(reference, field).is_empty() {
            return e.required(format!("{path}.{field}"), "");
        }
    }
    let (version, field) = (text(reference, "apiVersion"), text(reference, "fieldPath"));
    let at_path = format!("{path}.fieldPath");
    if version != "v1" {
        let why = format!("error converting fieldPath: unsupported pod version: {version}");
        return e.invalid(at_path, &json!(field), why);
    }
    let subscript = field.split_once("['").and_then(|(head, rest)| Some((head, rest.strip_suffix("']")?)));
    if let Some(("metadata.annotations" | "metadata.labels", key)) = subscript {
        return e.names(&at_path, key, qualified_name(&key.to_lowercase()));
    }
    if !DOWNWARD_FIELDS.contains(&field) {
        let why = format!("error converting fieldPath: field label not supported: {field}");
        e.invalid(at_path, &json!(field), why);
    } else if !supported.contains(&field) {
        e.unsupported(at_path, &json!(field), supported);
    }
}

fn relative(e: &mut Errors, path: &str, value: &str) {
    if value.starts_with('/') {
        e.invalid(path, &json!(value), "must be a relative path");
    }
    if value.split('/').any(|part| part == "..") {
        e.invalid(path, &json!(value), "must not contain '..'");
    }
}

fn mounts(e: &mut Errors, container: &Value, volumes: &BTreeSet<String>, path: &str) {
    let mut points = BTreeSet::new();
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        let name = text(mount, "name");
        if name.is_empty() {
            e.required(format!("{path}.name"), "");
        }
        if !volumes.contains(name) {
            e.push(super::FieldError::not_found(format!("{path}.name"), &json!(name)));
        }
        let point = text(mount, "mountPath");
        if point.is_empty() {
            e.required(format!("{path}.mountPath"), "");
        }
        if !points.insert(point) {
            e.invalid(format!("{path}.mountPath"), &json!(point), "must be unique");
        }
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        relative(e, &format!("{path}.subPath"), sub);
        if !expression.is_empty() {
            if !sub.is_empty() {
                e.invalid(
                    format!("{path}.subPathExpr"),
                    &json!(expression),
                    "subPathExpr and subPath are mutually exclusive",
                );
            }
            relative(e, &format!("{path}.subPathExpr"), expression);
        }
        e.optional_one_of(
            &format!("{path}.mountPropagation"),
            at(mount, "mountPropagation"),
            &["Bidirectional", "HostToContainer", "None"],
        );
    }
}

fn handlers(e: &mut Errors, container: &Value, path: &str) {
    for name in ["postStart", "preStop"] {
        let handler = at(container, &format!("lifecycle.{name}"));
        if !handler.is_null() {
            action(e, handler, &format!("{path}.lifecycle.{name}"));
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = at(container, name);
        if probe.is_null() {
            continue;
        }
        let path = format!("{path}.{name}");
        action(e, probe, &path);
        for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            e.non_negative(format!("{path}.{field}"), at(probe, field));
        }
        if let Some(seconds) = number(probe, "terminationGracePeriodSeconds").filter(|n| *n <= 0) {
            e.invalid(format!("{path}.terminationGracePeriodSeconds"), &json!(seconds), "must be greater than 0");
        }
        if name != "readinessProbe" && number(probe, "successThreshold").unwrap_or(1) != 1 {
            e.invalid(format!("{path}.successThreshold"), at(probe, "successThreshold"), "must be 1");
        }
    }
}

fn action(e: &mut Errors, handler: &Value, path: &str) {
    let mut handlers = 0;
    let mut count = |e: &mut Errors, kind: &str| {
        handlers += 1;
        let first = handlers == 1;
        if !first {
            e.forbidden(format!("{path}.{kind}"), "may not specify more than 1 handler type");
        }
        first
    };
    if set(handler, "exec") && count(e, "exec") && items(handler, "exec.command").is_empty() {
        e.required(format!("{path}.exec.command"), "");
    }
    if set(handler, "httpGet") && count(e, "httpGet") {
        let (get, path) = (at(handler, "httpGet"), format!("{path}.httpGet"));
        if unset(get, "path") {
            e.required(format!("{path}.path"), "");
        }
        port(e, &format!("{path}.port"), at(get, "port"));
        if !matches!(text(get, "scheme"), "HTTP" | "HTTPS") {
            e.unsupported(format!("{path}.scheme"), at(get, "scheme"), &["HTTP", "HTTPS"]);
        }
        for (index, header) in items(get, "httpHeaders").iter().enumerate() {
            let name = text(header, "name");
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
                e.invalid(format!("{path}.httpHeaders[{index}].name"), &json!(name), "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')");
            }
        }
    }
    if set(handler, "tcpSocket") && count(e, "tcpSocket") {
        port(e, &format!("{path}.tcpSocket.port"), at(handler, "tcpSocket.port"));
    }
    if set(handler, "grpc") && count(e, "grpc") {
        port(e, &format!("{path}.grpc.port"), at(handler, "grpc.port"));
    }
    if set(handler, "sleep") && count(e, "sleep") && number(handler, "sleep.seconds").unwrap_or(0) < 0 {
        e.invalid(format!("{path}.sleep"), at(handler, "sleep.seconds"), "must be non-negative");
    }
    if handlers == 0 {
        e.required(path, "must specify a handler type");
    }
}

fn security(e: &mut Errors, context: &Value, path: &str) {
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = number(context, field).filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            e.invalid(format!("{path}.{field}"), &json!(id), "must be between 0 and 2147483647, inclusive");
        }
    }
    if at(context, "allowPrivilegeEscalation") == false {
        const WHY: &str = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        if flag(context, "privileged") {
            e.invalid(path, context, WHY);
        }
        if items(context, "capabilities.add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            e.invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
    e.optional_one_of(&format!("{path}.procMount"), at(context, "procMount"), &["Default", "Unmasked"]);
    seccomp(e, at(context, "seccompProfile"), &format!("{path}.seccompProfile"));
}

pub(super) fn seccomp(e: &mut Errors, profile: &Value, path: &str) {
    if profile.is_null() {
        return;
    }
    let localhost = text(profile, "localhostProfile");
    match text(profile, "type") {
        "Localhost" if localhost.is_empty() => {
            e.required(format!("{path}.localhostProfile"), "must be set when seccomp type is Localhost")
        }
        "Localhost" => relative(e, &format!("{path}.localhostProfile"), localhost),
        "RuntimeDefault" | "Unconfined" if !localhost.is_empty() => {
            e.invalid(
                format!("{path}.localhostProfile"),
                &json!(localhost),
                "can only be set when seccomp type is Localhost",
            );
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => e.required(format!("{path}.type"), "type is required when seccompProfile is set"),
        other => e.unsupported(format!("{path}.type"), &json!(other), &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}
