//! Decisions of a real kube-apiserver 1.36, recorded in `tests/recorded`: its access reviews, and the attributes that its
//! refusals name.

use serde_json::Value;

use super::*;
use crate::rbac::Decision;
use crate::unstructured::text;
use crate::user::service_account_groups;
use crate::yaml;

const SCENARIOS: &str = include_str!("../../../../../tests/recorded/kube/scenarios/asked.yaml");
const RECORDED: &str = include_str!("../../../../../tests/recorded/kube/expected/rights-asked.json");
/// Namespace of a scenario, as recorded.
const NAMESPACE: &str = "ns-<id>";

/// The user of a request or review, with the groups that the API server gives to it.
fn requester(step: &Value) -> UserInfo {
    let headers = &step["headers"];
    let name = text(headers, "/Impersonate-User");
    let group = headers["Impersonate-Group"].as_str().map(str::to_owned);
    let account = name.strip_prefix("system:serviceaccount:").map(|_| service_account_groups(NAMESPACE));
    UserInfo::new(name, group.into_iter().chain(account.into_iter().flatten())).with_implied_groups()
}

/// The action of the attributes of a review.
fn reviewed_action(spec: &Value) -> Action {
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        return Action::Path { verb: text(path, "/verb").to_owned(), path: text(path, "/path").to_owned() };
    }
    let field = |name: &str| text(&spec["resourceAttributes"], name).to_owned();
    Action::Resource {
        verb: field("/verb"),
        group: field("/group"),
        resource: field("/resource"),
        subresource: field("/subresource"),
        namespace: field("/namespace"),
        name: field("/name"),
    }
}

/// The action that a refusal names: `User "ann" cannot get resource "pods/log" in API group "" in the namespace "shop"`.
fn refused_action(message: &str, name: &str) -> Option<Action> {
    let (verb, rest) = message.split_once(" cannot ")?.1.split_once(' ')?;
    if let Some(path) = rest.strip_prefix("path \"") {
        let path = path.split_once('"')?.0.to_owned();
        return Some(Action::Path { verb: verb.to_owned(), path });
    }
    let (resource, rest) = rest.strip_prefix("resource \"")?.split_once("\" in API group \"")?;
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (group, rest) = rest.split_once('"')?;
    let namespace = match rest.strip_prefix(" in the namespace \"") {
        Some(rest) => rest.split_once('"')?.0,
        None => "",
    };
    Some(Action::Resource {
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Applies a successful write of a role or binding.
fn apply(rbac: &mut Rbac, step: &Value) {
    let (path, body) = (text(step, "/do"), &step["body"]);
    let name = body["metadata"]["name"].as_str().or_else(|| path.rsplit('/').next()).expect("a name");
    if path.contains("/rolebindings") {
        rbac.put_binding(NAMESPACE, name, serde_json::from_value(body.clone()).expect("a binding"));
    } else if path.contains("/roles") {
        rbac.put_role(NAMESPACE, name, serde_json::from_value(body.clone()).expect("a role"));
    }
}

/// User and action of an access review or a refused request, and the reason if the server allows the action. `None` for
/// other steps.
fn decision(step: &Value, result: &Value) -> Option<(UserInfo, Action, Option<String>)> {
    let body = &result["body"];
    let reason = || (body["status"]["allowed"] == true).then(|| text(body, "/status/reason").to_owned());
    match text(body, "/kind") {
        "SelfSubjectAccessReview" => Some((requester(step), reviewed_action(&body["spec"]), reason())),
        "SubjectAccessReview" => {
            let groups = body["spec"]["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
            Some((UserInfo::new(text(body, "/spec/user"), groups), reviewed_action(&body["spec"]), reason()))
        }
        _ if result["status"] == 403 => {
            let action = refused_action(text(body, "/message"), text(body, "/details/name"));
            Some((requester(step), action.expect("the refused action"), None))
        }
        _ => None,
    }
}

#[test]
fn subjects_are_those_that_a_real_server_allows() {
    let scenario = SCENARIOS.replace("${ns}", NAMESPACE);
    let scenario = scenario.split("\n---\n").find(|scenario| scenario.contains("name: \"rights-asked\""));
    let scenario = yaml::parse(scenario.expect("the scenario")).expect("YAML");
    let recorded: Value = serde_json::from_str(RECORDED).expect("JSON");
    let recorded = recorded["steps"].as_array().expect("recorded steps");
    let (mut rbac, mut allowed, mut refused) = (Rbac::default(), 0, 0);
    for step in scenario["steps"].as_array().expect("steps") {
        let result = recorded
            .iter()
            .find(|recorded_step| recorded_step["step"] == step["name"])
            .map(|recorded_step| &recorded_step["result"]);
        let result = result.expect("the recorded result");
        if let Some((user, action, reason)) = decision(step, result) {
            let scope = match &action {
                Action::Resource { namespace, .. } => Scope::from_namespace(namespace),
                Action::Path { .. } => Scope::cluster(),
            };
            let view = VisibleRbac { rbac: &rbac, is_visible: &|_, _, _| true };
            let is_listed =
                view.who_can(&action, &scope).proofs.iter().any(|proof| proof.subject.matches_user(&user, ""));
            assert_eq!(is_listed, reason.is_some(), "{user:?} {action:?}");
            let actual_reason = match rbac.authorize(&user, &action) {
                Decision::Allowed { reason } => Some(reason),
                Decision::NoOpinion { .. } => None,
            };
            assert_eq!(actual_reason, reason, "{user:?} {action:?}");
            *if reason.is_some() { &mut allowed } else { &mut refused } += 1;
        }
        if matches!(result["status"].as_u64(), Some(200 | 201)) {
            apply(&mut rbac, step);
        }
    }
    assert_eq!((allowed, refused), (2, 16), "decisions in the recorded scenario");
}
