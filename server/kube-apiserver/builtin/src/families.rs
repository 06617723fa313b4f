//! IP families of Services in an IPv4 single-stack cluster: defaults and validation.

use crowsnest_apimachinery::field::FieldError;
use serde_json::{Value, json};

use super::object::{at, at_mut, is_unset, items, set_field, text};
use super::validate::cluster_ip_errors;

const POLICY: &str = "spec.ipFamilyPolicy";

/// Sets `ipFamilyPolicy` and `ipFamilies`. Errors are returned alone, before other validation.
pub(super) fn set_ip_families(old: Option<&Value>, new: &mut Value) -> Vec<FieldError> {
    if text(new, "spec.type") == "ExternalName" || old.is_some_and(|old| keeps_dual_stack(old, new)) {
        return Vec::new();
    }
    let headless = text(new, "spec.clusterIP") == "None";
    let has_selector = at(new, "spec.selector").as_object().is_some_and(|selector| !selector.is_empty());
    if is_unset(new, POLICY) {
        let before = old.map(|old| text(old, POLICY)).filter(|policy| !policy.is_empty());
        let policy =
            before.unwrap_or(if headless && !has_selector { "RequireDualStack" } else { "SingleStack" }).to_owned();
        if let Some(spec) = at_mut(new, "spec") {
            set_field(spec, "ipFamilyPolicy", policy);
        }
    }
    let mut errors = cluster_ip_errors(at(new, "spec"));
    if !errors.is_empty() {
        return errors;
    }
    let policy = text(new, POLICY).to_owned();
    if let Some(old) = old {
        errors.extend(release_secondary_families(old, new, &policy));
    }
    let addresses = items(new, "spec.clusterIPs").to_vec();
    let mut families = items(new, "spec.ipFamilies").to_vec();
    if policy == "SingleStack" {
        for (count, what) in [(addresses.len(), "cluster IPs"), (families.len(), "IP families")] {
            if count == 2 {
                let reason =
                    format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                errors.push(FieldError::invalid(POLICY, &policy, reason));
            }
        }
    }
    for (index, address) in addresses.iter().enumerate().skip(families.len()) {
        match address.as_str() {
            Some("None") | None => break,
            Some(address) if address.contains(':') => {
                let field = format!("spec.clusterIPs[{index}]");
                errors.push(FieldError::invalid(field, &json!(addresses), "IPv6 is not configured on this cluster"));
            }
            Some(_) => families.push("IPv4".into()),
        }
    }
    if errors.is_empty() && headless && !has_selector {
        if families.is_empty() {
            families.push("IPv4".into());
        }
        if families.len() < 2 && policy != "SingleStack" {
            families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.into());
        }
    } else if errors.is_empty() {
        if policy == "RequireDualStack" {
            errors.push(FieldError::invalid(POLICY, &policy, "this cluster is not configured for dual-stack services"));
        }
        for (index, family) in families.iter().enumerate().filter(|(_, family)| *family != "IPv4") {
            errors.push(FieldError::invalid(
                format!("spec.ipFamilies[{index}]"),
                family,
                "not configured on this cluster",
            ));
        }
        if families.is_empty() {
            families.push("IPv4".into());
        }
    }
    if errors.is_empty()
        && let Some(spec) = at_mut(new, "spec")
    {
        set_field(spec, "ipFamilies", families);
    }
    errors
}

/// True if a `PreferDualStack` service keeps its addresses because no related field changes.
fn keeps_dual_stack(old: &Value, new: &Value) -> bool {
    let prefers = |service: &Value| text(service, POLICY) == "PreferDualStack";
    let same = |field: &str| at(old, field) == at(new, field);
    prefers(old) && prefers(new) && same("spec.type") && same("spec.clusterIPs") && same("spec.ipFamilies")
}

/// Drops the second address and family if the policy is `SingleStack`. With another policy, a dropped one is an error.
fn release_secondary_families(old: &Value, new: &mut Value, policy: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let path = format!("spec.{field}");
        let (before, after) = (items(old, &path), items(new, &path));
        if policy == "SingleStack" {
            if before == after && after.len() > 1 {
                let first = after[..1].to_vec();
                if let Some(spec) = at_mut(new, "spec") {
                    set_field(spec, field, first);
                }
            }
        } else if !after.is_empty() && after.len() < before.len() {
            let reason = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid(POLICY, policy, reason));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn spec(text: &str) -> Value {
        json!({"spec": serde_json::from_str::<Value>(text).unwrap()})
    }

    #[rstest]
    #[case::plain(r#"{"selector":{"a":"b"}}"#, "SingleStack", r#"["IPv4"]"#)]
    #[case::prefer_dual_stack(r#"{"ipFamilyPolicy":"PreferDualStack"}"#, "PreferDualStack", r#"["IPv4"]"#)]
    #[case::headless(
        r#"{"clusterIP":"None","clusterIPs":["None"],"selector":{"a":"b"}}"#,
        "SingleStack",
        r#"["IPv4"]"#
    )]
    #[case::without_selector(r#"{"clusterIP":"None","clusterIPs":["None"]}"#, "RequireDualStack", r#"["IPv4","IPv6"]"#)]
    #[case::single(
        r#"{"clusterIP":"None","clusterIPs":["None"],"ipFamilyPolicy":"SingleStack"}"#,
        "SingleStack",
        r#"["IPv4"]"#
    )]
    #[case::ipv6(
        r#"{"clusterIP":"None","clusterIPs":["None"],"ipFamilies":["IPv6"]}"#,
        "RequireDualStack",
        r#"["IPv6","IPv4"]"#
    )]
    fn defaults_are_set(#[case] spec_json: &str, #[case] policy: &str, #[case] families: &str) {
        let mut service = spec(spec_json);
        assert_eq!(set_ip_families(None, &mut service), []);
        assert_eq!(
            (text(&service, POLICY), at(&service, "spec.ipFamilies").to_string()),
            (policy, families.to_owned())
        );
    }

    #[rstest]
    #[case::require_dual_stack(
        r#"{"ipFamilyPolicy":"RequireDualStack"}"#,
        "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services"
    )]
    #[case::ipv6(
        r#"{"ipFamilies":["IPv6"]}"#,
        "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"
    )]
    #[case::address(
        r#"{"clusterIP":"fd00::1","clusterIPs":["fd00::1"]}"#,
        "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster"
    )]
    #[case::two_families(
        r#"{"ipFamilies":["IPv4","IPv6"]}"#,
        "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
    )]
    fn unsupported_families_are_rejected(#[case] spec_json: &str, #[case] expected: &str) {
        let errors = set_ip_families(None, &mut spec(spec_json));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }
}
