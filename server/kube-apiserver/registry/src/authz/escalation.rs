//! Prevention of privilege escalation: checks of the permissions that roles and bindings grant, and the rules of
//! aggregated ClusterRoles. Messages are those of kube-apiserver's RBAC escalation checks.

use crowsnest_apimachinery::rbac::{PolicyRule, Rbac};
use crowsnest_apimachinery::user::UserInfo;
use serde_json::Value;

/// Returns an error if `granted` contains permissions that `user` lacks in `namespace`. Callers have already checked for
/// the verb `escalate` (roles) or `bind` (bindings), which exempts the user.
pub fn check_grant(rbac: &Rbac, user: &UserInfo, namespace: &str, granted: &[PolicyRule]) -> Result<(), String> {
    if user.is_master() {
        return Ok(());
    }
    let (user_rules, unresolved) = rbac.rules_for(user, namespace);
    let mut missing: Vec<PolicyRule> = Vec::new();
    for rule in granted {
        for subrule in rule.break_down() {
            if !user_rules.iter().any(|h| h.covers(&subrule)) {
                merge_verbs(&mut missing, subrule);
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = missing.iter().map(PolicyRule::compact_string).collect();
    lines.sort();
    let groups: Vec<String> = user.groups.iter().map(|g| format!("{g:?}")).collect();
    let mut text = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        lines.join("\n")
    );
    if !unresolved.is_empty() {
        text.push_str(&format!("; resolution errors: [{}]", unresolved.join(", ")));
    }
    Err(text)
}

/// Merges subrules that differ only in their verb, to shorten the message.
fn merge_verbs(missing: &mut Vec<PolicyRule>, subrule: PolicyRule) {
    let is_same_target = |m: &PolicyRule| {
        m.api_groups == subrule.api_groups
            && m.resources == subrule.resources
            && m.resource_names == subrule.resource_names
            && m.non_resource_urls == subrule.non_resource_urls
    };
    match missing.iter_mut().find(|m| is_same_target(m)) {
        Some(found) => {
            for verb in subrule.verbs {
                if !found.verbs.contains(&verb) {
                    found.verbs.push(verb);
                }
            }
        }
        None => missing.push(subrule),
    }
}

/// Rules of an aggregated ClusterRole: those of all selected roles in name order, without duplicates. `None` if the
/// role does not aggregate. `roles` are all ClusterRoles.
pub fn aggregated_rules<'a>(role: &Value, roles: impl IntoIterator<Item = &'a Value>) -> Option<Vec<Value>> {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors")?.as_array()?;
    let role_name = role.pointer("/metadata/name");
    let mut chosen: Vec<&Value> = roles
        .into_iter()
        .filter(|r| r.pointer("/metadata/name") != role_name && selectors.iter().any(|s| selects(s, r)))
        .collect();
    chosen.sort_by_key(|r| r.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned());
    let mut rules: Vec<Value> = Vec::new();
    for rule in chosen.iter().flat_map(|r| r.get("rules").and_then(Value::as_array).into_iter().flatten()) {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    Some(rules)
}

fn selects(selector: &Value, role: &Value) -> bool {
    let labels = role.pointer("/metadata/labels");
    let label = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
    let matched = selector.get("matchLabels").and_then(Value::as_object);
    if !matched.into_iter().flatten().all(|(key, value)| label(key) == value.as_str()) {
        return false;
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    expressions.into_iter().flatten().all(|expression| {
        let actual = label(expression.get("key").and_then(Value::as_str).unwrap_or_default());
        let values = expression.get("values").and_then(Value::as_array);
        let listed = || values.into_iter().flatten().any(|v| v.as_str() == actual);
        match expression.get("operator").and_then(Value::as_str).unwrap_or_default() {
            "In" => actual.is_some() && listed(),
            "NotIn" => actual.is_none() || !listed(),
            "Exists" => actual.is_some(),
            "DoesNotExist" => actual.is_none(),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_permissions_are_listed_in_the_refusal() {
        let role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "alice"}]});
        let mut rbac = Rbac::default();
        rbac.put_role("", "r", serde_json::from_value(role).unwrap());
        rbac.put_binding("", "b", serde_json::from_value(binding).unwrap());
        let alice = UserInfo { name: "alice".into(), groups: vec!["dev".into()], ..UserInfo::default() };
        let rules = |verbs: &[&str]| {
            vec![PolicyRule {
                verbs: verbs.iter().map(|v| (*v).to_owned()).collect(),
                api_groups: vec![String::new()],
                resources: vec!["pods".into()],
                ..PolicyRule::default()
            }]
        };
        assert_eq!(check_grant(&rbac, &alice, "", &rules(&["get"])), Ok(()));
        assert_eq!(
            check_grant(&rbac, &alice, "", &rules(&["get", "list", "watch"])).unwrap_err(),
            "user \"alice\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}"
        );
    }

    #[test]
    fn aggregated_rules_are_ordered_and_deduplicated() {
        let rule = |verb: &str| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
        let part = |name: &str, verbs: &[&str]| json!({"metadata": {"name": name, "labels": {"to": "x"}}, "rules": verbs.iter().map(|v| rule(v)).collect::<Vec<_>>()});
        let aggregated = json!({"metadata": {"name": "x"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "x"}}]}});
        let parts = [
            part("b", &["list", "get"]),
            part("a", &["get"]),
            json!({"metadata": {"name": "c"}, "rules": [rule("watch")]}),
        ];
        assert_eq!(aggregated_rules(&aggregated, &parts), Some(vec![rule("get"), rule("list")]));
        assert_eq!(aggregated_rules(&parts[0], &parts), None);
    }
}
