//! Table tests of listed subjects and roles, and property tests that compare them with the authorizer.

use super::*;
use crate::rbac::Decision;
use crate::user::AUTHENTICATED;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rstest::rstest;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

fn action(verb: &str, group: &str, resource: &str, name: &str) -> Action {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Action::Resource {
        verb: verb.into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: String::new(),
        name: name.into(),
    }
}

fn path(verb: &str, path: &str) -> Action {
    Action::Path { verb: verb.into(), path: path.into() }
}

fn put_role(rbac: &mut Rbac, namespace: &str, name: &str, rules: &Value) {
    rbac.put_role(namespace, name, serde_json::from_value(json!({"rules": rules})).expect("a role"));
}

fn bind(rbac: &mut Rbac, namespace: &str, name: &str, role: &str, subjects: &Value) {
    let (kind, role) = role.split_once('/').expect("KIND/NAME");
    let binding = json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
    rbac.put_binding(namespace, name, serde_json::from_value(binding).expect("a binding"));
}

fn snapshot() -> Rbac {
    let mut rbac = Rbac::default();
    put_role(&mut rbac, "", "admin", &json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
    put_role(
        &mut rbac,
        "",
        "scale",
        &json!([
            {"apiGroups": ["apps"], "resources": ["*/scale"], "verbs": ["update"]},
            {"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]},
        ]),
    );
    let secret_by_name =
        json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["db"], "verbs": ["get", "list"]}]);
    put_role(&mut rbac, "shop", "one", &secret_by_name);
    bind(&mut rbac, "", "admins", "ClusterRole/admin", &json!([{"kind": "Group", "name": "sre"}]));
    bind(&mut rbac, "", "gone", "ClusterRole/gone", &json!([{"kind": "User", "name": "zoe"}]));
    bind(
        &mut rbac,
        "",
        "scalers",
        "ClusterRole/scale",
        &json!([{"kind": "ServiceAccount", "namespace": "ops", "name": "hpa"}]),
    );
    bind(&mut rbac, "ops", "scalers", "ClusterRole/scale", &json!([{"kind": "User", "name": "bea"}]));
    bind(&mut rbac, "shop", "all", "ClusterRole/admin", &json!([{"kind": "ServiceAccount", "name": "robot"}]));
    bind(
        &mut rbac,
        "shop",
        "db",
        "Role/one",
        &json!([{"kind": "User", "name": "ann"}, {"kind": "Alien", "name": "ann"}]),
    );
    rbac
}

fn in_shop() -> Scope {
    Scope::from_namespace("shop")
}

fn format_proofs(result: &AccessProofs<'_>) -> Vec<String> {
    let proof = |proof: &Proof<'_>| {
        let RoleBinding { namespace, name, role } = proof.binding;
        format!("{} by {namespace}/{name} of {}", proof.subject, role.name)
    };
    result.proofs.iter().map(proof).collect()
}

#[rstest]
#[case::cluster_scope(action("get", "", "secrets", "db"), Scope::cluster(), &["Group sre by /admins of admin"])]
#[case::a_namespace(action("get", "", "secrets", "db"), in_shop(), &[
    "Group sre by /admins of admin", "ServiceAccount shop/robot by shop/all of admin", "User ann by shop/db of one"])]
#[case::another_name(action("get", "", "secrets", "web"), in_shop(), &[
    "Group sre by /admins of admin", "ServiceAccount shop/robot by shop/all of admin"])]
#[case::resource_names_do_not_allow_list(action("list", "", "secrets", ""), in_shop(), &[
    "Group sre by /admins of admin", "ServiceAccount shop/robot by shop/all of admin"])]
#[case::subresource_of_all_resources(action("update", "apps", "deployments/scale", "web"), Scope::from_namespace("ops"), &[
    "Group sre by /admins of admin", "ServiceAccount ops/hpa by /scalers of scale", "User bea by ops/scalers of scale"])]
#[case::all_namespaces(action("update", "apps", "deployments/scale", "web"), Scope::All, &[
    "Group sre by /admins of admin", "ServiceAccount ops/hpa by /scalers of scale", "User bea by ops/scalers of scale",
    "ServiceAccount shop/robot by shop/all of admin"])]
#[case::paths_are_cluster_scoped(path("get", "/debug/pprof"), Scope::All, &["ServiceAccount ops/hpa by /scalers of scale"])]
#[case::another_path(path("get", "/metrics/x"), Scope::All, &[])]
fn subjects_are_listed_with_their_proof(#[case] action: Action, #[case] scope: Scope, #[case] expected: &[&str]) {
    let rbac = snapshot();
    let view = VisibleRbac { rbac: &rbac, is_visible: &|_, _, _| true };
    let result = view.who_can(&action, &scope);
    assert_eq!(format_proofs(&result), expected);
    let missing: Vec<_> = result.missing_roles.iter().map(|missing| missing.name).collect();
    assert_eq!(missing, ["gone"], "a missing role grants nothing and is reported");
}

#[rstest]
#[case::no_cluster_role_bindings(ObjectKind::ClusterRoleBinding, "", &["ServiceAccount shop/robot by shop/all of admin", "User ann by shop/db of one"])]
#[case::no_cluster_roles(ObjectKind::ClusterRole, "", &["User ann by shop/db of one"])]
#[case::no_roles(ObjectKind::Role, "shop", &["Group sre by /admins of admin", "ServiceAccount shop/robot by shop/all of admin"])]
fn objects_that_the_caller_may_not_list_are_ignored(
    #[case] hidden: ObjectKind,
    #[case] within: &str,
    #[case] expected: &[&str],
) {
    let rbac = snapshot();
    let is_visible = |kind: ObjectKind, namespace: &str, _: &str| (kind, namespace) != (hidden, within);
    let view = VisibleRbac { rbac: &rbac, is_visible: &is_visible };
    let result = view.who_can(&action("get", "", "secrets", "db"), &in_shop());
    assert_eq!(format_proofs(&result), expected);
    // A missing role is not revealed either.
    assert_eq!(result.missing_roles.is_empty(), within.is_empty());
}

#[test]
fn roles_of_a_user_are_listed_with_their_subject() {
    let rbac = snapshot();
    let view = VisibleRbac { rbac: &rbac, is_visible: &|_, _, _| true };
    let format_roles = |name: &str, groups: &[&str], scope: &Scope| {
        let (roles, missing) = view.roles_of(&UserInfo::new(name, groups.iter().copied()), scope);
        let roles: Vec<String> = roles
            .iter()
            .map(|role| format!("{} in {:?} by {}", role.binding.role.name, role.binding.namespace, role.subject))
            .collect();
        (roles, missing.len())
    };
    assert_eq!(
        format_roles("ann", &["sre"], &Scope::All),
        (vec!["admin in \"\" by Group sre".into(), "one in \"shop\" by User ann".into()], 0)
    );
    assert_eq!(format_roles("ann", &[], &Scope::from_namespace("ops")), (vec![], 0));
    let robot = "system:serviceaccount:shop:robot";
    assert_eq!(
        format_roles(robot, &[], &in_shop()),
        (vec!["admin in \"shop\" by ServiceAccount shop/robot".into()], 0)
    );
    assert_eq!(format_roles("zoe", &[], &Scope::All), (vec![], 1));
}

const NAMESPACES: [&str; 3] = ["", "a", "b"];

fn word<const N: usize>(words: [&'static str; N]) -> impl Strategy<Value = String> {
    proptest::sample::select(words.to_vec()).prop_map(str::to_owned)
}

fn words<const N: usize>(words: [&'static str; N], count: RangeInclusive<usize>) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(word(words), count)
}

/// Repeated words are more frequent, so that a tenth of the cases are allowed.
fn any_rule() -> impl Strategy<Value = Value> {
    (
        words(["get", "list", "create", "*", "*"], 1..=2),
        words(["", "apps", "*", "*"], 1..=2),
        words(["pods", "pods/log", "*/log", "*/scale", "deployments", "deployments/scale", "*", "*"], 1..=2),
        words(["x", "y"], 0..=1),
        words(["/healthz", "/apis/*", "/apis", "*"], 0..=2),
    )
        .prop_map(|(verbs, groups, resources, names, urls)| {
            json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names, "nonResourceURLs": urls})
        })
}

fn any_subject() -> impl Strategy<Value = Value> {
    (
        word(["User", "Group", "Group", "ServiceAccount", "Alien"]),
        word(["", "a", "b"]),
        word([
            "ann",
            "bob",
            "staff",
            "system:authenticated",
            "system:serviceaccounts",
            "system:serviceaccounts:a",
            "system:serviceaccount:a:ann",
        ]),
    )
        .prop_map(|(kind, namespace, name)| json!({"kind": kind, "namespace": namespace, "name": name}))
}

fn any_rbac() -> impl Strategy<Value = Rbac> {
    let roles = proptest::collection::vec(
        (word(NAMESPACES), word(["r", "s"]), proptest::collection::vec(any_rule(), 1..=2)),
        3..=8,
    );
    let role = (word(["Role", "ClusterRole"]), word(["r", "r", "s", "s", "gone"]));
    let subjects = proptest::collection::vec(any_subject(), 1..=3);
    let binding = (word(NAMESPACES), word(["p", "q", "r", "s", "t"]), role, subjects);
    (roles, proptest::collection::vec(binding, 4..=11)).prop_map(|(roles, bindings)| {
        let mut rbac = Rbac::default();
        for (namespace, name, rules) in roles {
            put_role(&mut rbac, &namespace, &name, &json!(rules));
        }
        for (namespace, name, (kind, role), subjects) in bindings {
            bind(&mut rbac, &namespace, &name, &format!("{kind}/{role}"), &json!(subjects));
        }
        rbac
    })
}

fn any_action() -> impl Strategy<Value = Action> {
    let resource = (
        word(["get", "list", "create", "delete"]),
        word(["", "apps"]),
        word(["pods", "pods/log", "deployments", "deployments/scale", "services"]),
        word(["", "x", "y"]),
    );
    let resource = resource.prop_map(|(verb, group, resource, name)| action(&verb, &group, &resource, &name));
    let path = (word(["get", "create"]), word(["/healthz", "/apis", "/apis/apps", "/"]))
        .prop_map(|(verb, at)| path(&verb, &at));
    prop_oneof![4 => resource, 1 => path]
}

fn any_user() -> impl Strategy<Value = UserInfo> {
    let groups = words(["staff", "ann", AUTHENTICATED, "system:serviceaccounts", "system:serviceaccounts:a"], 0..=4);
    let name = word([
        "ann",
        "bob",
        "system:serviceaccount:a:ann",
        "system:serviceaccount:b:bob",
        "system:serviceaccount:a:staff",
    ]);
    (name, groups).prop_map(|(name, groups)| UserInfo::new(name, groups))
}

/// The action in a namespace; paths have none.
fn within(action: &Action, namespace: &str) -> Action {
    match action.clone() {
        Action::Resource { verb, group, resource, subresource, name, .. } => {
            Action::Resource { verb, group, resource, subresource, namespace: namespace.to_owned(), name }
        }
        path => path,
    }
}

#[test]
fn generated_cases_are_allowed_and_refused() {
    let mut runner = TestRunner::deterministic();
    let cases = (any_rbac(), any_action(), any_user(), word(NAMESPACES));
    let mut is_allowed = || {
        let (rbac, action, user, namespace) = cases.new_tree(&mut runner).expect("a case").current();
        matches!(rbac.authorize(&user, &within(&action, &namespace)), Decision::Allowed { .. })
    };
    let allowed = (0..1000).filter(|_| is_allowed()).count();
    assert!((30..500).contains(&allowed), "{allowed} of 1000 are allowed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// A user may perform an action if and only if the listed subjects contain the user or one of its groups. This holds
    /// for a list for one namespace and for a list for all namespaces.
    #[test]
    fn the_list_agrees_with_the_authorizer(
        rbac in any_rbac(),
        action in any_action(),
        user in any_user(),
        namespace in word(NAMESPACES),
    ) {
        let view = VisibleRbac { rbac: &rbac, is_visible: &|_, _, _| true };
        let in_namespace = within(&action, &namespace);
        let allowed = |action: &Action| matches!(rbac.authorize(&user, action), Decision::Allowed { .. });
        let result = view.who_can(&action, &Scope::from_namespace(&namespace));
        let is_listed = result.proofs.iter().any(|proof| proof.subject.matches_user(&user, ""));
        prop_assert_eq!(is_listed, allowed(&in_namespace), "{:?}", result);
        for proof in &result.proofs {
            prop_assert!(proof.rule.allows(&in_namespace));
            prop_assert!(proof.binding.namespace.is_empty() || proof.binding.namespace == namespace);
        }
        let result_for_all = view.who_can(&action, &Scope::All);
        let is_allowed_somewhere = NAMESPACES.iter().any(|namespace| allowed(&within(&action, namespace)));
        let is_listed = result_for_all.proofs.iter().any(|proof| proof.subject.matches_user(&user, ""));
        prop_assert_eq!(is_listed, is_allowed_somewhere, "{:?}", result_for_all);
    }

    /// The rules of the roles that a user has are those of the authorizer.
    #[test]
    fn the_roles_agree_with_the_authorizer(rbac in any_rbac(), user in any_user(), namespace in word(NAMESPACES)) {
        let view = VisibleRbac { rbac: &rbac, is_visible: &|_, _, _| true };
        let (roles, missing) = view.roles_of(&user, &Scope::from_namespace(&namespace));
        let (rules, problems) = rbac.rules_for(&user, &namespace);
        let actual_rules: Vec<PolicyRule> = roles.iter().flat_map(|role| role.rules.iter().cloned()).collect();
        prop_assert_eq!((actual_rules, missing.len()), (rules, problems.len()));
    }
}
