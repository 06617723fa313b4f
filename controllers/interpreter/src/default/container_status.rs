//! Aggregated statuses of a Pod's containers.
//!
//! The API server must accept the result (kubernetes/kubernetes pkg/apis/core/validation): if a stored status of a
//! container is final, that is, terminated without a restart, all later statuses of that name must be terminated.
//! Statuses therefore have the names of their containers, and a final status is stored once the container has one in
//! every member that reports it.

use std::collections::BTreeSet;

use crowsnest_apimachinery::unstructured::{at, text};
use serde_json::{Value, json};

/// The statuses in `field` of all members, reduced to name, readiness and state. `containers` is the field of the pod's
/// spec with the containers.
pub(super) fn aggregate(template: &Value, reported: &[&Value], field: &str, containers: &str) -> Vec<Value> {
    let spec = template.get("spec").unwrap_or(&Value::Null);
    let is_final = |status: &Value| is_final(spec, containers, status);
    let statuses: Vec<&Value> = reported.iter().copied().flat_map(|status| items(status, field)).collect();
    let stored_statuses = template.get("status").map_or(&[][..], |status| items(status, field));
    let final_stored: Vec<&Value> =
        stored_statuses.iter().filter(|status| !name(status).is_empty() && is_final(status)).collect();
    let names_stored_as_final: BTreeSet<&str> = final_stored.iter().copied().map(name).collect();
    let names_with_final_status: BTreeSet<&str> =
        statuses.iter().copied().filter(|status| is_final(status)).map(name).collect();
    let names_with_other_status: BTreeSet<&str> =
        statuses.iter().copied().filter(|status| !is_final(status)).map(name).collect();
    let is_selected = |status: &&Value| match names_stored_as_final.contains(name(status)) {
        true => is_final(status),
        false => !is_final(status) || !names_with_other_status.contains(name(status)),
    };
    // A container that runs again, in a new pod of a member or in another member, keeps its stored status.
    let keeps_stored_status = |status: &&Value| {
        names_with_other_status.contains(name(status)) && !names_with_final_status.contains(name(status))
    };
    let kept_statuses = final_stored.iter().copied().filter(keeps_stored_status);
    statuses.iter().copied().filter(is_selected).chain(kept_statuses).map(reduce_status).collect()
}

fn items<'a>(status: &'a Value, field: &str) -> &'a [Value] {
    status.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn name(status: &Value) -> &str {
    text(status, &["name"])
}

/// True if the container has terminated, and neither its restart rules nor its restart policy, or that of the pod, restart
/// it. Containers that are not in the template, such as those that a member injects, count as not restarted.
fn is_final(spec: &Value, containers: &str, status: &Value) -> bool {
    let Some(terminated) = at(status, &["state", "terminated"]).filter(|terminated| terminated.is_object()) else {
        return false;
    };
    let Some(container) = items(spec, containers).iter().find(|container| name(container) == name(status)) else {
        return true;
    };
    let exit_code = terminated.get("exitCode").and_then(Value::as_i64).unwrap_or_default();
    if items(container, "restartPolicyRules").iter().any(|rule| is_restart_rule_for(rule, exit_code)) {
        return false;
    }
    let policies = [text(container, &["restartPolicy"]), text(spec, &["restartPolicy"])];
    match policies.into_iter().find(|policy| !policy.is_empty()) {
        None | Some("Always") => false,
        Some("OnFailure") => exit_code == 0,
        Some(_) => true,
    }
}

/// True if a restart rule of a container (KEP-5307) applies to an exit code. All actions of rules restart the container.
fn is_restart_rule_for(rule: &Value, exit_code: i64) -> bool {
    let Some(codes) = rule.get("exitCodes") else { return false };
    let is_listed = items(codes, "values").iter().any(|code| code.as_i64() == Some(exit_code));
    match text(codes, &["operator"]) {
        "In" => is_listed,
        "NotIn" => !is_listed,
        _ => false,
    }
}

fn reduce_status(status: &Value) -> Value {
    json!({
        "name": name(status), "image": "", "imageID": "", "lastState": {}, "restartCount": 0,
        "ready": status.get("ready").and_then(Value::as_bool).unwrap_or_default(),
        "state": status.get("state").cloned().unwrap_or_else(|| json!({})),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Statuses such as `c=running` and `c=0`, which terminated with the exit code 0.
    fn statuses(entries: &str) -> Value {
        let status = |entry: &str| {
            let (name, state) = entry.split_once('=').expect("a name and a state");
            let state = match state.parse::<i64>() {
                Ok(code) => json!({"terminated": {"exitCode": code}}),
                Err(_) => json!({state: {}}),
            };
            json!({"name": name, "ready": false, "state": state})
        };
        json!({"containerStatuses": entries.split_whitespace().map(status).collect::<Vec<_>>()})
    }

    fn render(aggregated: &[Value]) -> String {
        let entry = |status: &Value| {
            let (kind, state) = status["state"].as_object().and_then(|state| state.iter().next()).expect("a state");
            let state = state["exitCode"].as_i64().map_or_else(|| kind.clone(), |code| code.to_string());
            format!("{}={state}", name(status))
        };
        aggregated.iter().map(entry).collect::<Vec<_>>().join(" ")
    }

    #[rstest]
    #[case::running("Never", "", &["c=running", "c=waiting"], "c=running c=waiting")]
    #[case::ended_in_one_member("Never", "", &["c=0", "c=running"], "c=running")]
    #[case::ended_in_all("Never", "c=running", &["c=0", "c=1"], "c=0 c=1")]
    #[case::each_container_by_itself("Never", "", &["c=0 d=running", "c=0 d=running"], "c=0 d=running c=0 d=running")]
    #[case::runs_again("Never", "c=0", &["c=running"], "c=0")]
    #[case::runs_in_another_member("Never", "c=0", &["c=1", "c=running"], "c=1")]
    #[case::no_longer_reported("Never", "c=0 d=0", &["d=0"], "d=0")]
    #[case::restarted("Always", "c=1", &["c=running", "c=0"], "c=running c=0")]
    #[case::restarted_by_default("", "c=1", &["c=running"], "c=running")]
    #[case::failed_and_restarted("OnFailure", "c=1", &["c=running"], "c=running")]
    #[case::failed_elsewhere("OnFailure", "", &["c=0", "c=1"], "c=1")]
    #[case::succeeded("OnFailure", "c=0", &["c=running"], "c=0")]
    #[case::container_policy("Never", "r=0", &["r=running"], "r=running")]
    #[case::restart_rule("Never", "in=42 not=1", &["in=running not=running"], "in=running not=running")]
    #[case::no_restart_rule("Never", "in=1 not=42", &["in=running not=running"], "in=1 not=42")]
    #[case::injected_by_a_member("Always", "x=0", &["x=running"], "x=0")]
    #[case::stored_without_a_name("Never", "=0", &["c=running"], "c=running")]
    fn container_statuses_are_aggregated(
        #[case] policy: &str,
        #[case] stored: &str,
        #[case] reported: &[&str],
        #[case] expected: &str,
    ) {
        let rules =
            |operator: &str| json!([{"action": "Restart", "exitCodes": {"operator": operator, "values": [42]}}]);
        let containers = json!([
            {"name": "c"},
            {"name": "d"},
            {"name": "r", "restartPolicy": "Always"},
            {"name": "in", "restartPolicy": "Never", "restartPolicyRules": rules("In")},
            {"name": "not", "restartPolicy": "Never", "restartPolicyRules": rules("NotIn")},
        ]);
        let mut template =
            json!({"spec": {"restartPolicy": policy, "containers": containers}, "status": statuses(stored)});
        let members: Vec<Value> = reported.iter().map(|entries| statuses(entries)).collect();
        let members: Vec<&Value> = members.iter().collect();
        let aggregated = aggregate(&template, &members, "containerStatuses", "containers");
        assert_eq!(render(&aggregated), expected);
        // Aggregating the same reports again changes nothing.
        template["status"]["containerStatuses"] = json!(aggregated);
        assert_eq!(aggregate(&template, &members, "containerStatuses", "containers"), aggregated);
    }
}
