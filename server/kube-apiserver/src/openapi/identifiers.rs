//! Operation IDs and tags.

use crowsnest_registry::resource::ResourceRef;

use super::operation::{Action, Operation};

/// The group in tags and operation IDs.
fn group(resource: &ResourceRef) -> &str {
    match &*resource.gvr.group {
        "" => "core",
        group => group.strip_suffix(".k8s.io").unwrap_or(group),
    }
}

/// Tag of a resource's operations, such as `apps_v1`.
pub(super) fn tag(resource: &ResourceRef) -> String {
    tag_of(group(resource), &resource.gvr.version)
}

/// Tag of a group version.
pub(super) fn tag_of(group: &str, version: &str) -> String {
    format!("{}_{}", identifier(group, false), identifier(version, false))
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
    let (scope, everywhere) = match (resource.namespaced, operation.namespaced) {
        (false, _) => ("", ""),
        (true, true) => ("Namespaced", ""),
        (true, false) => ("", "ForAllNamespaces"),
    };
    let group_version = format!("{}{}", identifier(group(resource), true), identifier(&resource.gvr.version, true));
    let subresource = operation.subresource.map(|subresource| identifier(subresource.name, true)).unwrap_or_default();
    let path = if operation.with_path { "WithPath" } else { "" };
    format!("{verb}{group_version}{method}{before}{scope}{}{subresource}{path}{after}{everywhere}", resource.kind)
}

/// ID of an operation of a whole group or group version, such as `getAppsV1APIResources`.
pub(super) fn group_operation_id(group: &str, version: &str, what: &str) -> String {
    let group = match group {
        "" => "core",
        group => group.strip_suffix(".k8s.io").unwrap_or(group),
    };
    format!("get{}{}{what}", identifier(group, true), identifier(version, true))
}

/// The letters and digits of a text in camel case, as in Kubernetes' operation IDs.
pub(super) fn identifier(text: &str, begins_upper_case: bool) -> String {
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
