//! Validation of roles and bindings.

use crowsnest_apimachinery::selector::Selector;

use super::selector::validate_label_selector;
use super::{Errors, Value, at, items, json, text, validate_path_segment};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn validate_create(e: &mut Errors, kind: &str, object: &Value) {
    match kind {
        "Role" | "ClusterRole" => {
            for (index, rule) in items(object, "rules").iter().enumerate() {
                validate_policy_rule(e, rule, kind == "Role", &format!("rules[{index}]"));
            }
            if kind == "ClusterRole" && !at(object, "aggregationRule").is_null() {
                let selectors = items(object, "aggregationRule.clusterRoleSelectors");
                if selectors.is_empty() {
                    e.required(
                        "aggregationRule.clusterRoleSelectors",
                        "at least one clusterRoleSelector required if aggregationRule is non-nil",
                    );
                }
                for (index, selector) in selectors.iter().enumerate() {
                    let path = format!("aggregationRule.clusterRoleSelectors[{index}]");
                    let before = e.0.len();
                    validate_label_selector(e, selector, &path);
                    if e.0.len() > before || Selector::from_json(Some(selector)).is_err() {
                        e.invalid(path, &Value::Null, "invalid label selector.");
                    }
                }
            }
        }
        _ => validate_role_binding(e, kind == "RoleBinding", object),
    }
}

fn validate_policy_rule(e: &mut Errors, rule: &Value, namespaced: bool, path: &str) {
    if items(rule, "verbs").is_empty() {
        e.required(format!("{path}.verbs"), "verbs must contain at least one value");
    }
    let urls = items(rule, "nonResourceURLs");
    if !urls.is_empty() {
        let field = format!("{path}.nonResourceURLs");
        if namespaced {
            e.invalid(&field, &json!(urls), "namespaced rules cannot apply to non-resource URLs");
        }
        let has_resource_fields =
            ["apiGroups", "resources", "resourceNames"].iter().any(|name| !items(rule, name).is_empty());
        if has_resource_fields {
            e.invalid(&field, &json!(urls), "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if items(rule, "apiGroups").is_empty() {
        e.required(format!("{path}.apiGroups"), "resource rules must supply at least one api group");
    }
    if items(rule, "resources").is_empty() {
        e.required(format!("{path}.resources"), "resource rules must supply at least one resource");
    }
}

fn validate_role_binding(e: &mut Errors, namespaced: bool, object: &Value) {
    let group = at(object, "roleRef.apiGroup");
    if group != GROUP {
        e.unsupported("roleRef.apiGroup", group, &[GROUP]);
    }
    let kind = at(object, "roleRef.kind");
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.iter().any(|k| kind == k) {
        e.unsupported("roleRef.kind", &json!(text(object, "roleRef.kind")), kinds);
    }
    let name = text(object, "roleRef.name");
    if name.is_empty() {
        e.required("roleRef.name", "");
    } else {
        e.push_name_errors("roleRef.name", name, validate_path_segment(name, false));
    }
    for (index, subject) in items(object, "subjects").iter().enumerate() {
        let path = format!("subjects[{index}]");
        let (name, kind) = (text(subject, "name"), text(subject, "kind"));
        if name.is_empty() {
            e.required(format!("{path}.name"), "");
        }
        let expected_group = match kind {
            "ServiceAccount" => {
                if !name.is_empty() {
                    e.push_name_errors(&format!("{path}.name"), name, super::validate_dns1123_subdomain(name));
                }
                if !namespaced && text(subject, "namespace").is_empty() {
                    e.required(format!("{path}.namespace"), "");
                }
                ""
            }
            "User" | "Group" => GROUP,
            _ => {
                e.unsupported(format!("{path}.kind"), &json!(kind), &["ServiceAccount", "User", "Group"]);
                continue;
            }
        };
        if text(subject, "apiGroup") != expected_group {
            e.unsupported(format!("{path}.apiGroup"), &json!(text(subject, "apiGroup")), &[expected_group]);
        }
    }
}
