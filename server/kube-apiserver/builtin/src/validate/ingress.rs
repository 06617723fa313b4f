//! Validation of ingresses and ingress classes.

use super::{
    Errors, Value, at, is_set, items, json, number, port_name_errors, port_number_error, text, validate_dns1123_label,
    validate_dns1123_subdomain, validate_path_segment,
};

const WILDCARD_ERROR: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const FORBIDDEN_PATH_PARTS: [&str; 7] = ["//", "/./", "/../", "%2f", "%2F", "/..", "/."];

pub(super) fn validate_create(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if items(spec, "rules").is_empty() && !is_set(spec, "defaultBackend") {
        e.invalid("spec", at(spec, "rules"), "either `defaultBackend` or `rules` must be specified");
    }
    if is_set(spec, "defaultBackend") {
        validate_backend(e, at(spec, "defaultBackend"), "spec.defaultBackend");
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        validate_rule(e, rule, &format!("spec.rules[{index}]"));
    }
    for (index, tls) in items(spec, "tls").iter().enumerate() {
        for (position, host) in items(tls, "hosts").iter().enumerate() {
            let (host, path) = (host.as_str().unwrap_or_default(), format!("spec.tls[{index}].hosts[{position}]"));
            if host.contains('*') {
                e.push_name_errors(&path, host, wildcard_errors(host));
            } else {
                e.push_name_errors(&path, host, validate_dns1123_subdomain(host));
            }
        }
        let secret = text(tls, "secretName");
        if !secret.is_empty() {
            e.push_name_errors(&format!("spec.tls[{index}].secretName"), secret, validate_dns1123_subdomain(secret));
        }
    }
    let class = at(spec, "ingressClassName").as_str();
    if let Some(class) = class {
        e.push_name_errors("spec.ingressClassName", class, validate_dns1123_subdomain(class));
    }
}

/// The legacy class annotation is validated on create only.
pub(super) fn validate_class_annotation(e: &mut Errors, object: &Value) {
    const ANNOTATION: &str = "kubernetes.io/ingress.class";
    let annotation = at(object, "metadata.annotations").get(ANNOTATION).and_then(Value::as_str);
    if let (Some(annotation), Some(class)) = (annotation, at(object, "spec.ingressClassName").as_str())
        && annotation != class
    {
        let reason = "must match `ingressClassName` when both are specified";
        e.invalid(format!("annotations.{ANNOTATION}"), &json!(annotation), reason);
    }
}

fn wildcard_errors(host: &str) -> Vec<String> {
    let valid = host.strip_prefix("*.").is_some_and(|rest| validate_dns1123_subdomain(rest).is_empty());
    if valid { Vec::new() } else { vec![WILDCARD_ERROR.to_owned()] }
}

fn validate_rule(e: &mut Errors, rule: &Value, path: &str) {
    let host = text(rule, "host");
    if !host.is_empty() {
        if host.parse::<std::net::IpAddr>().is_ok() {
            e.invalid(format!("{path}.host"), &json!(host), "must be a DNS name, not an IP address");
        }
        let reason = if host.contains('*') { wildcard_errors(host) } else { validate_dns1123_subdomain(host) };
        e.push_name_errors(&format!("{path}.host"), host, reason);
    }
    if !is_set(rule, "http") {
        return;
    }
    let path = format!("{path}.http");
    if items(rule, "http.paths").is_empty() {
        e.required(format!("{path}.paths"), "");
    }
    for (index, entry) in items(rule, "http.paths").iter().enumerate() {
        validate_http_path(e, entry, &format!("{path}.paths[{index}]"));
    }
}

fn validate_http_path(e: &mut Errors, entry: &Value, path: &str) {
    let target = text(entry, "path");
    if !is_set(entry, "pathType") {
        return e.required(format!("{path}.pathType"), "pathType must be specified");
    }
    match text(entry, "pathType") {
        "Exact" | "Prefix" => {
            if !target.starts_with('/') {
                e.invalid(format!("{path}.path"), &json!(target), "must be an absolute path");
            }
            for bad in FORBIDDEN_PATH_PARTS {
                let is_suffix = bad.starts_with("/.") && !bad.ends_with('/');
                let (found, reason) = match is_suffix {
                    true => (target.ends_with(bad), format!("cannot end with '{bad}'")),
                    false => (target.contains(bad), format!("must not contain '{bad}'")),
                };
                if found {
                    e.invalid(format!("{path}.path"), &json!(target), reason);
                }
            }
        }
        "ImplementationSpecific" => {
            if !target.is_empty() && !target.starts_with('/') {
                e.invalid(format!("{path}.path"), &json!(target), "must be an absolute path");
            }
        }
        other => {
            e.unsupported(format!("{path}.pathType"), &json!(other), &["Exact", "ImplementationSpecific", "Prefix"])
        }
    }
    validate_backend(e, at(entry, "backend"), &format!("{path}.backend"));
}

fn validate_backend(e: &mut Errors, backend: &Value, path: &str) {
    match (is_set(backend, "resource"), is_set(backend, "service")) {
        (true, true) => e.invalid(path, &json!(""), "cannot set both resource and service backends"),
        (false, false) => e.invalid(path, &json!(""), "resource or service backend is required"),
        (true, false) => {
            validate_resource_reference(e, at(backend, "resource"), &format!("{path}.resource"));
        }
        (false, true) => {
            let (service, backend_path, path) = (at(backend, "service"), path, format!("{path}.service"));
            let name = text(service, "name");
            if name.is_empty() {
                e.required(format!("{path}.name"), "");
            } else {
                e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
            }
            let (port, number) = (text(service, "port.name"), number(service, "port.number").unwrap_or(0));
            match (port.is_empty(), number) {
                (false, 0) => e.push_name_errors(&format!("{path}.port.name"), port, port_name_errors(port)),
                (false, _) => e.invalid(backend_path, &json!(""), "cannot set both port name & port number"),
                (true, 0) => e.required(backend_path, "port name or number is required"),
                (true, number) => {
                    if let Some(reason) = port_number_error(number) {
                        e.invalid(format!("{path}.port.number"), &json!(number), reason);
                    }
                }
            }
        }
    }
}

/// `validateIngressTypedLocalObjectReference`.
fn validate_resource_reference(e: &mut Errors, reference: &Value, path: &str) {
    if let Some(group) = at(reference, "apiGroup").as_str() {
        e.push_name_errors(&format!("{path}.apiGroup"), group, validate_dns1123_subdomain(group));
    }
    for field in ["kind", "name"] {
        let (value, path) = (text(reference, field), format!("{path}.{field}"));
        if value.is_empty() {
            e.required(path, "");
        } else {
            e.push_name_errors(&path, value, validate_path_segment(value, false));
        }
    }
}

/// `IsDomainPrefixedPath`.
pub(super) fn validate_domain_prefixed_path(e: &mut Errors, field: &str, value: &str) {
    const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
    if value.is_empty() {
        return e.required(field, "");
    }
    match value.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            e.push_name_errors(field, host, validate_dns1123_subdomain(host));
            if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
                e.invalid(field, &json!(path), PATH);
            }
        }
        _ => e.invalid(field, &json!(value), "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

pub(super) fn validate_ingress_class(e: &mut Errors, object: &Value) {
    let controller = text(object, "spec.controller");
    if controller.len() > 250 {
        e.push(super::FieldError::too_long("spec.controller", 250));
    }
    validate_domain_prefixed_path(e, "spec.controller", controller);
    let parameters = at(object, "spec.parameters");
    if parameters.is_null() {
        return;
    }
    validate_resource_reference(e, parameters, "spec.parameters");
    let namespace = at(parameters, "namespace").as_str();
    const NAMESPACE: &str = "spec.parameters.namespace";
    match (text(parameters, "scope"), namespace) {
        ("Namespace", None) => e.required(NAMESPACE, "`parameters.scope` is set to 'Namespace'"),
        ("Namespace", Some(name)) => e.push_name_errors(NAMESPACE, name, validate_dns1123_label(name)),
        ("Cluster", Some(_)) => e.forbidden(NAMESPACE, "`parameters.scope` is set to 'Cluster'"),
        ("Cluster", None) => {}
        _ if !is_set(parameters, "scope") => e.required("spec.parameters.scope", ""),
        (other, _) => e.unsupported("spec.parameters.scope", &json!(other), &["Cluster", "Namespace"]),
    }
}
