//! Operation IDs and tags.

use super::operation::{Action, Operation};

/// A group as in tags and operation IDs.
fn short_group(group: &str) -> &str {
    match group {
        "" => "core",
        group => group.strip_suffix(".k8s.io").unwrap_or(group),
    }
}

/// Tag of the operations of a group, such as `rbacAuthorization`.
pub(super) fn group_tag(group: &str) -> String {
    identifier(short_group(group), false)
}

/// Tag of the operations of a group version, such as `apps_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    format!("{}_{}", group_tag(group), identifier(version, false))
}

/// Operation ID such as `readAppsV1NamespacedDeploymentStatus`. The list of a namespaced resource in all namespaces
/// has an ID of its own.
pub(super) fn operation_id(operation: &Operation<'_>) -> String {
    let resource = operation.resource;
    let (verb, before, after) = match operation.action {
        Action::Get => ("read", "", ""),
        Action::List => ("list", "", ""),
        Action::Create => ("create", "", ""),
        Action::Update => ("replace", "", ""),
        Action::Patch => ("patch", "", ""),
        Action::Delete => ("delete", "", ""),
        Action::DeleteCollection => ("delete", "Collection", ""),
        Action::Watch => ("watch", "", ""),
        Action::WatchList => ("watch", "", "List"),
        Action::Connect => ("connect", "", ""),
    };
    let method = match operation.action {
        Action::Connect => identifier(operation.method, true),
        _ => String::new(),
    };
    let (scope, everywhere) = match (resource.namespaced, operation.is_namespaced) {
        (false, _) => ("", ""),
        (true, true) => ("Namespaced", ""),
        (true, false) => ("", "ForAllNamespaces"),
    };
    let group = identifier(short_group(&resource.gvr.group), true);
    let version = identifier(&resource.gvr.version, true);
    let subresource = operation.subresource.map(|subresource| identifier(subresource.name, true)).unwrap_or_default();
    let path = if operation.has_path { "WithPath" } else { "" };
    let kind = &resource.kind;
    format!("{verb}{group}{version}{method}{before}{scope}{kind}{subresource}{path}{after}{everywhere}")
}

/// ID of an operation of a group or group version, such as `getAppsV1APIResources`.
pub(super) fn group_operation_id(group: &str, version: &str, suffix: &str) -> String {
    format!("get{}{}{suffix}", identifier(short_group(group), true), identifier(version, true))
}

/// The letters and digits of a text in camel case, as in Kubernetes' operation IDs.
fn identifier(text: &str, begins_upper_case: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_next_upper_case = begins_upper_case;
    for (at, c) in text.char_indices() {
        if !(c.is_alphabetic() || c == '_' || at != 0 && c.is_numeric()) {
            is_next_upper_case = true;
        } else if std::mem::take(&mut is_next_upper_case) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("core", true, "Core")]
    #[case("rbac.authorization", false, "rbacAuthorization")]
    #[case("acme.cert-manager.io", true, "AcmeCertManagerIo")]
    #[case("v1beta1", true, "V1beta1")]
    #[case("ephemeralcontainers", true, "Ephemeralcontainers")]
    #[case("3scale.net", true, "ScaleNet")]
    fn identifiers_are_camel_case(#[case] text: &str, #[case] upper: bool, #[case] expected: &str) {
        assert_eq!(identifier(text, upper), expected);
    }
}
