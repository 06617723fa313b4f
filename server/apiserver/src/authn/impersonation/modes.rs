//! Modes of impersonation: constrained ones, whose verbs name the mode and the request (KEP-5284, beta in Kubernetes
//! 1.36), and the legacy one, whose verb is `impersonate`. Has no side effects.

use crowsnest_apimachinery::field::{FieldError, aggregate};
use crowsnest_apimachinery::names::format::validate_dns1123_subdomain;
use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::user::{MASTERS, UserInfo, parse_service_account_user};

use super::{add_default_groups, required_actions};

const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_USER_PREFIX: &str = "system:node:";
const NODES_GROUP: &str = "system:nodes";
/// Attribute of a service account token that names the node of its pod.
const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";
/// Minimum number of groups or extra values for which a single check of all of them is tried first.
const MIN_BULK_CHECK: usize = 4;

/// A mode of impersonation. The first one that the caller is permitted to use is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A service account impersonates the node on which its pod runs.
    AssociatedNode,
    /// A caller impersonates any node, without groups and other attributes.
    ArbitraryNode,
    /// A caller impersonates a service account, without groups and other attributes.
    ServiceAccount,
    /// Any other user, with groups, UID and extra values.
    UserInfo,
    /// The verb `impersonate`, for all requests.
    Legacy,
}

/// A step of an attempt to impersonate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Check(Action),
    /// One check for all values, or one for each of them.
    CheckMany {
        all: Action,
        each: Vec<Action>,
    },
    /// Refuses values that the mode does not allow.
    Refuse {
        action: Action,
        reason: String,
    },
}

/// Steps by which a caller may impersonate a user in a mode, and the resulting user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub mode: Mode,
    pub steps: Vec<Step>,
    pub user: UserInfo,
}

/// Plans the attempts for the modes that apply to the caller and the user `requested`: first the mode by which the
/// caller impersonated last.
pub fn plan_attempts(caller: &UserInfo, requested: &UserInfo, request: &Action, last: Option<Mode>) -> Vec<Attempt> {
    let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
    let modes = last.into_iter().chain(others).filter(|mode| mode.applies_to(caller, requested));
    modes.map(|mode| mode.plan_attempt(requested, request)).collect()
}

impl Mode {
    const ALL: [Mode; 5] =
        [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

    /// The verb that permits impersonation in a constrained mode, as in audit events.
    pub fn constraint(self) -> Option<&'static str> {
        match self {
            Mode::AssociatedNode => Some("impersonate:associated-node"),
            Mode::ArbitraryNode => Some("impersonate:arbitrary-node"),
            Mode::ServiceAccount => Some("impersonate:serviceaccount"),
            Mode::UserInfo => Some("impersonate:user-info"),
            Mode::Legacy => None,
        }
    }

    fn applies_to(self, caller: &UserInfo, requested: &UserInfo) -> bool {
        let has_only_name = requested.uid.is_empty() && requested.groups.is_empty() && requested.extra.is_empty();
        match self {
            Mode::AssociatedNode => {
                let associated_node = match caller.extra.get(NODE_NAME_EXTRA).map(Vec::as_slice) {
                    Some([associated_node]) if parse_service_account_user(&caller.name).is_some() => {
                        Some(associated_node.as_str())
                    }
                    _ => None,
                };
                has_only_name && associated_node.is_some() && associated_node == node_name(&requested.name)
            }
            Mode::ArbitraryNode => has_only_name && node_name(&requested.name).is_some(),
            Mode::ServiceAccount => has_only_name && parse_service_account_user(&requested.name).is_some(),
            Mode::UserInfo => {
                node_name(&requested.name).is_none() && parse_service_account_user(&requested.name).is_none()
            }
            Mode::Legacy => true,
        }
    }

    fn plan_attempt(self, requested: &UserInfo, request: &Action) -> Attempt {
        let Some(verb) = self.constraint() else {
            let steps = required_actions(requested).into_iter().map(Step::Check).collect();
            return Attempt { mode: self, steps, user: add_default_groups(requested.clone()) };
        };
        let request_verb = verb.replacen("impersonate:", "impersonate-on:", 1);
        let mut steps =
            vec![Step::Check(with_verb(request, &request_verb)), Step::Check(self.name_action(verb, &requested.name))];
        if !requested.uid.is_empty() {
            steps.push(Step::Check(impersonation_action(verb, "uids", "", &requested.uid)));
        }
        steps.extend(group_steps(verb, &requested.groups));
        steps.extend(extra_steps(verb, requested));
        let mut user = requested.clone();
        if node_name(&requested.name).is_some() {
            user.groups = vec![NODES_GROUP.to_owned()];
        }
        Attempt { mode: self, steps, user: add_default_groups(user) }
    }

    /// The action that must be allowed to impersonate a user name.
    fn name_action(self, verb: &str, name: &str) -> Action {
        match (node_name(name), parse_service_account_user(name)) {
            // The action is independent of the node on which the service account's pod runs.
            (Some(_), _) if self == Mode::AssociatedNode => impersonation_action(verb, "nodes", "", "*"),
            (Some(node), _) => impersonation_action(verb, "nodes", "", node),
            (None, Some((account_namespace, account))) => {
                let mut action = impersonation_action(verb, "serviceaccounts", "", account);
                if let Action::Resource { namespace, .. } = &mut action {
                    namespace.push_str(account_namespace);
                }
                action
            }
            (None, None) => impersonation_action(verb, "users", "", name),
        }
    }
}

fn group_steps(verb: &str, groups: &[String]) -> Vec<Step> {
    let refuse = |name: &str, description: &str| {
        let reason = format!("impersonating the {description} is not allowed");
        vec![Step::Refuse { action: impersonation_action(verb, "groups", "", name), reason }]
    };
    if groups.iter().any(String::is_empty) {
        return refuse("", "empty string group");
    }
    if groups.iter().any(|group| group == MASTERS) {
        return refuse(MASTERS, "system:masters group");
    }
    let each = groups.iter().map(|group| impersonation_action(verb, "groups", "", group)).collect();
    plan_checks(each, impersonation_action(verb, "groups", "", "*"))
}

fn extra_steps(verb: &str, requested: &UserInfo) -> Vec<Step> {
    if let Some(reason) = requested.extra.iter().find_map(|(key, values)| extra_error(key, values)) {
        return vec![Step::Refuse { action: impersonation_action(verb, "userextras", "", ""), reason }];
    }
    let pairs = requested.extra.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
    let each = pairs.map(|(key, value)| impersonation_action(verb, "userextras", key, value)).collect();
    plan_checks(each, impersonation_action(verb, "userextras", "*", "*"))
}

/// Plans the checks of several values. For many values, one check of all is tried first.
fn plan_checks(each: Vec<Action>, all: Action) -> Vec<Step> {
    match each.len() {
        MIN_BULK_CHECK.. => vec![Step::CheckMany { all, each }],
        _ => each.into_iter().map(Step::Check).collect(),
    }
}

/// Reason why an extra value cannot be impersonated; `None` if it can.
fn extra_error(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".into());
    }
    let Some((host, path)) = key.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        let error = FieldError::invalid("extra.key", key, "must be a domain-prefixed path (such as \"acme.io/foo\")");
        return Some(format!("impersonating an invalid key in extra is not allowed: {error}"));
    };
    let mut errors: Vec<FieldError> = validate_dns1123_subdomain(host)
        .into_iter()
        .map(|problem| FieldError::invalid("extra.key", host, problem))
        .collect();
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
        let problem = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.push(FieldError::invalid("extra.key", path, problem));
    }
    if !errors.is_empty() {
        return Some(format!("impersonating an invalid key in extra is not allowed: {}", aggregate(&errors)));
    }
    if key != key.to_lowercase() {
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {key:?}"));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".into());
    }
    let has_empty = values.iter().any(String::is_empty);
    has_empty.then(|| "impersonating the empty string value in extra is not allowed".into())
}

/// The node in the user name of a kubelet.
fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_USER_PREFIX).filter(|node| validate_dns1123_subdomain(node).is_empty())
}

fn impersonation_action(verb: &str, resource: &str, subresource: &str, name: &str) -> Action {
    Action::Resource {
        verb: verb.to_owned(),
        group: AUTHENTICATION.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

/// The request with the verb of a mode: `impersonate-on:user-info:list` for a list.
fn with_verb(request: &Action, request_verb: &str) -> Action {
    let mut action = request.clone();
    match &mut action {
        Action::Resource { verb, .. } | Action::Path { verb, .. } => *verb = format!("{request_verb}:{verb}"),
    }
    action
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn user(name: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> UserInfo {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let extra = extra.iter().map(|(key, values)| ((*key).to_owned(), texts(values))).collect();
        UserInfo { name: name.to_owned(), groups: texts(groups), extra, ..UserInfo::default() }
    }

    fn list_pods() -> Action {
        Action::Resource {
            verb: "list".into(),
            group: String::new(),
            resource: "pods".into(),
            subresource: String::new(),
            namespace: "a".into(),
            name: String::new(),
        }
    }

    /// A step as `verb resource/subresource namespace/name`.
    fn format_step(step: &Step) -> String {
        let action = |action: &Action| match action {
            Action::Resource { verb, resource, subresource, namespace, name, .. } => {
                let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
                format!("{verb} {resource}{subresource} {namespace}/{name}")
            }
            Action::Path { verb, path } => format!("{verb} {path}"),
        };
        match step {
            Step::Check(check) => action(check),
            Step::CheckMany { all, each } => {
                format!("{} or {}", action(all), each.iter().map(action).collect::<Vec<_>>().join(" and "))
            }
            Step::Refuse { reason, .. } => reason.clone(),
        }
    }

    #[rstest]
    #[case::user(user("jane", &[], &[]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /jane"], &["system:authenticated"])]
    #[case::group(user("jane", &["devs"], &[]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /jane", "impersonate:user-info groups /devs"],
        &["devs", "system:authenticated"])]
    #[case::masters(user("jane", &["system:masters"], &[]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /jane", "impersonating the system:masters group is not allowed"],
        &["system:masters", "system:authenticated"])]
    #[case::extra(user("jane", &[], &[("acme.io/team", &["a"])]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /jane", "impersonate:user-info userextras/acme.io/team /a"],
        &["system:authenticated"])]
    #[case::extra_without_domain(user("jane", &[], &[("team", &["a"])]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /jane",
          "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \"team\": must be a domain-prefixed path (such as \"acme.io/foo\")"],
        &["system:authenticated"])]
    #[case::anonymous(user("system:anonymous", &["system:authenticated"], &[]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /system:anonymous",
          "impersonate:user-info groups /system:authenticated"],
        &["system:authenticated", "system:unauthenticated"])]
    #[case::unauthenticated(user("jane", &["system:unauthenticated"], &[]), Mode::UserInfo,
        &["impersonate-on:user-info:list pods a/", "impersonate:user-info users /jane",
          "impersonate:user-info groups /system:unauthenticated"],
        &["system:unauthenticated"])]
    #[case::account(user("system:serviceaccount:ci:bot", &[], &[]), Mode::ServiceAccount,
        &["impersonate-on:serviceaccount:list pods a/", "impersonate:serviceaccount serviceaccounts ci/bot"],
        &["system:serviceaccounts", "system:serviceaccounts:ci", "system:authenticated"])]
    #[case::node(user("system:node:n1", &[], &[]), Mode::ArbitraryNode,
        &["impersonate-on:arbitrary-node:list pods a/", "impersonate:arbitrary-node nodes /n1"],
        &["system:nodes", "system:authenticated"])]
    #[case::own_node(user("system:node:own", &[], &[]), Mode::AssociatedNode,
        &["impersonate-on:associated-node:list pods a/", "impersonate:associated-node nodes /*"],
        &["system:nodes", "system:authenticated"])]
    #[case::account_with_groups(user("system:serviceaccount:ci:bot", &["g"], &[]), Mode::Legacy,
        &["impersonate serviceaccounts ci/bot", "impersonate groups /g"], &["g", "system:authenticated"])]
    #[case::account_with_uid(
        UserInfo { uid: "u".to_owned(), ..user("system:serviceaccount:ci:bot", &["g"], &[("team", &["a"])]) }, Mode::Legacy,
        &["impersonate serviceaccounts ci/bot", "impersonate uids /u", "impersonate groups /g", "impersonate userextras/team /a"],
        &["g", "system:authenticated"])]
    fn the_first_attempt_is_the_most_constrained(
        #[case] requested: UserInfo,
        #[case] mode: Mode,
        #[case] steps: &[&str],
        #[case] groups: &[&str],
    ) {
        let caller = user("system:serviceaccount:kube-system:agent", &[], &[(NODE_NAME_EXTRA, &["own"])]);
        let attempts = plan_attempts(&caller, &requested, &list_pods(), None);
        let first = attempts.first().unwrap();
        assert_eq!(first.mode, mode);
        assert_eq!(first.steps.iter().map(format_step).collect::<Vec<_>>(), steps);
        assert_eq!(first.user.groups, groups);
        assert_eq!(attempts.last().unwrap().mode, Mode::Legacy);
    }

    #[test]
    fn the_last_mode_comes_first() {
        let caller = user("ops", &[], &[]);
        let modes = |last| -> Vec<Mode> {
            plan_attempts(&caller, &user("jane", &[], &[]), &list_pods(), last)
                .iter()
                .map(|attempt| attempt.mode)
                .collect()
        };
        assert_eq!(modes(None), [Mode::UserInfo, Mode::Legacy]);
        assert_eq!(modes(Some(Mode::Legacy)), [Mode::Legacy, Mode::UserInfo]);
        assert_eq!(modes(Some(Mode::ArbitraryNode)), [Mode::UserInfo, Mode::Legacy]);
    }

    #[test]
    fn many_groups_are_checked_at_once() {
        let groups = ["a", "b", "c", "d"];
        let requested = user("jane", &groups, &[]);
        let attempts = plan_attempts(&user("ops", &[], &[]), &requested, &list_pods(), None);
        let last = format_step(attempts[0].steps.last().unwrap());
        assert!(last.starts_with("impersonate:user-info groups /* or impersonate:user-info groups /a and"), "{last}");
    }
}
