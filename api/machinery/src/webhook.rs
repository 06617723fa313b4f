//! Validation of webhook configurations, shared by kube-apiserver's webhooks and Karmada's interpreter webhooks.
//! Rules and messages are those of `k8s.io/apiserver/pkg/util/webhook/validation.go`.

use std::collections::BTreeSet;

use crate::field::FieldError;
use crate::names::format;
use crate::url::Url;

/// The Service of a webhook, and the path and port on which it is called.
#[derive(Debug, Clone, Copy)]
pub struct ServiceReference<'s> {
    pub namespace: &'s str,
    pub name: &'s str,
    /// Path of the webhook's URL; empty for none.
    pub path: &'s str,
    pub port: i64,
}

/// Validates the URL of a webhook: the scheme must be https, a host is required, and user, query and fragment are
/// forbidden.
pub fn validate_url(text: &str, field: &str) -> Vec<FieldError> {
    const DESIRED_FORMAT: &str = "; desired format: https://host[/path]";
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(problem) => {
            return vec![FieldError::required(field, format!("url must be a valid URL: {problem}{DESIRED_FORMAT}"))];
        }
    };
    let mut errors = Vec::new();
    if url.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{DESIRED_FORMAT}");
        errors.push(FieldError::invalid(field, &url.scheme, detail));
    }
    if url.host.is_empty() {
        errors.push(FieldError::invalid(field, url.host, format!("host must be specified{DESIRED_FORMAT}")));
    }
    errors.extend(url.forbidden_part_errors(field));
    errors
}

/// Validates a reference to a Service. `field` is the path of the reference in the configuration.
pub fn validate_service(service: ServiceReference<'_>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (value, name) in [(service.name, "name"), (service.namespace, "namespace")] {
        if value.is_empty() {
            errors.push(FieldError::required(format!("{field}.{name}"), ""));
        }
    }
    if !(1..=65535).contains(&service.port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(format!("{field}.port"), &service.port, detail));
    }
    errors.extend(validate_path(service.path, &format!("{field}.path")));
    errors
}

fn validate_path(path: &str, field: &str) -> Vec<FieldError> {
    let invalid = |detail: String| FieldError::invalid(field, path, detail);
    let mut errors = Vec::new();
    match path {
        "" | "/" => return errors,
        "//" => return vec![invalid("segment[0] may not be empty".to_owned())],
        _ if !path.starts_with('/') => errors.push(invalid("must start with a '/'".to_owned())),
        _ => {}
    }
    let mut characters = path.chars();
    characters.next();
    let segments = characters.as_str();
    for (index, segment) in segments.strip_suffix('/').unwrap_or(segments).split('/').enumerate() {
        if segment.is_empty() {
            errors.push(invalid(format!("segment[{index}] may not be empty")));
            continue;
        }
        let problems = format::validate_dns1123_subdomain(segment).into_iter();
        errors.extend(problems.map(|problem| invalid(format!("segment[{index}]: {problem}"))));
    }
    errors
}

/// Validates the review versions that a webhook supports. At least one of them must be in `recognized_versions`, those
/// that the API server sends.
pub fn validate_review_versions(versions: &[String], recognized_versions: &[&str], field: &str) -> Vec<FieldError> {
    let recognized_list = recognized_versions.join(", ");
    if versions.is_empty() {
        return vec![FieldError::required(field, format!("must specify one of {recognized_list}"))];
    }
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let item_field = format!("{field}[{index}]");
        if !seen.insert(version) {
            errors.push(FieldError::invalid(item_field, version, "duplicate version"));
            continue;
        }
        let problems = format::validate_dns1035_label(version).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(&item_field, version, problem)));
    }
    if !versions.iter().any(|version| recognized_versions.contains(&version.as_str())) {
        errors.push(FieldError::invalid(field, versions, format!("must include at least one of {recognized_list}")));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case("https://host/path", &[])]
    #[case("HTTPS://host", &[])]
    #[case("http://u@/x?q#f", &[
        "url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        "url: Invalid value: \"\": host must be specified; desired format: https://host[/path]",
        "url: Invalid value: \"u\": user information is not permitted in the URL",
        "url: Invalid value: \"f\": fragments are not permitted in the URL",
        "url: Invalid value: \"q\": query parameters are not permitted in the URL",
    ])]
    #[case("https://a b", &["url: Required value: url must be a valid URL: parse \"https://a b\": invalid character \" \" in \
        host name; desired format: https://host[/path]"])]
    fn urls_are_validated(#[case] text: &str, #[case] expected: &[&str]) {
        assert_eq!(texts(&validate_url(text, "url")), expected);
    }

    #[rstest]
    #[case(ServiceReference { namespace: "a", name: "b", path: "/x/", port: 443 }, &[])]
    #[case(ServiceReference { namespace: "", name: "", path: "//", port: 0 }, &[
        "service.name: Required value",
        "service.namespace: Required value",
        "service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
        "service.path: Invalid value: \"//\": segment[0] may not be empty",
    ])]
    #[case(ServiceReference { namespace: "a", name: "b", path: "éa//b", port: 1 }, &[
        "service.path: Invalid value: \"éa//b\": must start with a '/'",
        "service.path: Invalid value: \"éa//b\": segment[1] may not be empty",
    ])]
    fn services_are_validated(#[case] service: ServiceReference<'_>, #[case] expected: &[&str]) {
        assert_eq!(texts(&validate_service(service, "service")), expected);
    }

    #[rstest]
    #[case(&["v1"], &[])]
    #[case(&[], &["versions: Required value: must specify one of v1, v1beta1"])]
    #[case(&["v2", "v2"], &[
        "versions[1]: Invalid value: \"v2\": duplicate version",
        "versions: Invalid value: [\"v2\",\"v2\"]: must include at least one of v1, v1beta1",
    ])]
    fn review_versions_are_validated(#[case] versions: &[&str], #[case] expected: &[&str]) {
        let versions: Vec<String> = versions.iter().map(|version| (*version).to_owned()).collect();
        assert_eq!(texts(&validate_review_versions(&versions, &["v1", "v1beta1"], "versions")), expected);
    }
}
