//! MultiClusterIngress: validation by the rules of Kubernetes' Ingress.

use std::net::IpAddr;

use crowsnest_api::networking::MultiClusterIngress;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, IngressBackend, IngressServiceBackend, IngressSpec, IngressTLS,
};

use super::autoscaling::path_segment_problems;
use super::decode::decode;
use super::{Operation, Outcome, Refusal, Request, metadata};

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let ingress: MultiClusterIngress = decode(&request.object)?;
    let mut errors = metadata::validate(&ingress.metadata, true, format::validate_dns1123_subdomain);
    errors.extend(validate_spec(&ingress.spec));
    if request.operation == Operation::Update {
        let ingresses = ingress.status.load_balancer.iter().flat_map(|status| status.ingress.iter().flatten());
        errors
            .extend(validate_addresses(ingresses.map(|ingress| (ingress.ip.as_deref(), ingress.hostname.as_deref()))));
    }
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

/// Validates load balancer addresses, which are pairs of IP and host name.
pub(super) fn validate_addresses<'a>(
    addresses: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, (ip, host)) in addresses.enumerate() {
        let path = format!("status.loadBalancer.ingress[{index}]");
        if let Some(ip) = ip.filter(|ip| !ip.is_empty() && !is_address(ip)) {
            errors.push(FieldError::invalid(format!("{path}.ip"), ip, "must be a valid IP address"));
        }
        if let Some(host) = host.filter(|host| !host.is_empty()) {
            let field = format!("{path}.hostname");
            errors.extend(to_invalid_errors(format::validate_dns1123_subdomain(host), &field, host));
            if is_address(host) {
                errors.push(FieldError::invalid(field, host, "must be a DNS name, not an IP address"));
            }
        }
    }
    errors
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

fn to_invalid_errors(problems: Vec<String>, field: &str, value: &str) -> Vec<FieldError> {
    problems.into_iter().map(|problem| FieldError::invalid(field, value, problem)).collect()
}

pub(super) fn validate_port_number(port: i32, field: String) -> Option<FieldError> {
    let detail = "must be between 1 and 65535, inclusive";
    (!(1..=65535).contains(&port)).then(|| FieldError::invalid(field, &port, detail))
}

fn validate_spec(spec: &IngressSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rules = spec.rules.as_deref().unwrap_or_default();
    if rules.is_empty() && spec.default_backend.is_none() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid("spec", &spec.rules, detail));
    }
    if let Some(backend) = &spec.default_backend {
        errors.extend(validate_backend(backend, "spec.defaultBackend"));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        if let Some(host) = rule.host.as_deref().filter(|host| !host.is_empty()) {
            errors.extend(validate_host(host, &format!("{path}.host"), true));
        }
        if let Some(http) = &rule.http {
            if http.paths.is_empty() {
                errors.push(FieldError::required(format!("{path}.http.paths"), ""));
            }
            for (index, http_path) in http.paths.iter().enumerate() {
                errors.extend(validate_path(http_path, &format!("{path}.http.paths[{index}]")));
            }
        }
    }
    for (index, tls) in spec.tls.iter().flatten().enumerate() {
        errors.extend(validate_tls(tls, &format!("spec.tls[{index}]")));
    }
    if let Some(class) = &spec.ingress_class_name {
        errors.extend(to_invalid_errors(format::validate_dns1123_subdomain(class), "spec.ingressClassName", class));
    }
    errors
}

fn validate_host(host: &str, field: &str, reject_addresses: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if reject_addresses && is_address(host) {
        errors.push(FieldError::invalid(field, host, "must be a DNS name, not an IP address"));
    }
    let problems = if host.contains('*') {
        format::validate_wildcard_subdomain(host)
    } else {
        format::validate_dns1123_subdomain(host)
    };
    errors.extend(to_invalid_errors(problems, field, host));
    errors
}

fn validate_tls(tls: &IngressTLS, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, host) in tls.hosts.iter().flatten().enumerate() {
        errors.extend(validate_host(host, &format!("{path}.hosts[{index}]"), false));
    }
    if let Some(secret) = tls.secret_name.as_deref().filter(|secret| !secret.is_empty()) {
        errors.extend(to_invalid_errors(
            format::validate_dns1123_subdomain(secret),
            &format!("{path}.secretName"),
            secret,
        ));
    }
    errors
}

fn validate_path(path: &HTTPIngressPath, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if path.path_type.is_empty() {
        return vec![FieldError::required(format!("{at}.pathType"), "pathType must be specified")];
    }
    let text = path.path.as_deref().unwrap_or_default();
    let mut reject = |detail: String| errors.push(FieldError::invalid(format!("{at}.path"), text, detail));
    match path.path_type.as_str() {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                reject("must be an absolute path".to_owned());
            }
            for sequence in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|sequence| text.contains(**sequence)) {
                reject(format!("must not contain '{sequence}'"));
            }
            for suffix in ["/..", "/."].iter().filter(|suffix| text.ends_with(**suffix)) {
                reject(format!("cannot end with '{suffix}'"));
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                reject("must be an absolute path".to_owned());
            }
        }
        _ => {
            let supported = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(FieldError::not_supported(format!("{at}.pathType"), &path.path_type, &supported));
        }
    }
    errors.extend(validate_backend(&path.backend, &format!("{at}.backend")));
    errors
}

fn validate_backend(backend: &IngressBackend, path: &str) -> Vec<FieldError> {
    match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => {
            vec![FieldError::invalid(path, "", "cannot set both resource and service backends")]
        }
        (Some(resource), None) => validate_resource(resource, &format!("{path}.resource")),
        (None, Some(service)) => validate_service(service, path),
        (None, None) => vec![FieldError::invalid(path, "", "resource or service backend is required")],
    }
}

fn validate_service(service: &IngressServiceBackend, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let field = format!("{path}.service.name");
    if service.name.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else {
        errors.extend(to_invalid_errors(format::validate_dns1035_label(&service.name), &field, &service.name));
    }
    let port = service.port.clone().unwrap_or_default();
    let name = port.name.as_deref().unwrap_or_default();
    let number = port.number.unwrap_or_default();
    match (name.is_empty(), number == 0) {
        (false, false) => errors.push(FieldError::invalid(path, "", "cannot set both port name & port number")),
        (false, true) => errors.extend(to_invalid_errors(
            format::validate_port_name(name),
            &format!("{path}.service.port.name"),
            name,
        )),
        (true, false) => errors.extend(validate_port_number(number, format!("{path}.service.port.number"))),
        (true, true) => errors.push(FieldError::required(path, "port name or number is required")),
    }
    errors
}

fn validate_resource(resource: &TypedLocalObjectReference, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(group) = &resource.api_group {
        errors.extend(to_invalid_errors(format::validate_dns1123_subdomain(group), &format!("{path}.apiGroup"), group));
    }
    for (value, name) in [(&resource.kind, "kind"), (&resource.name, "name")] {
        let field = format!("{path}.{name}");
        if value.is_empty() {
            errors.push(FieldError::required(field, format!("{name} is required")));
        } else {
            errors.extend(to_invalid_errors(path_segment_problems(value), &field, value));
        }
    }
    errors
}
