//! Table tests of steps and paths.

use super::*;
use crate::rbac::{ObjectKind, Rbac};
use crate::user::UserInfo;
use rstest::rstest;
use serde_json::{Value, json};

/// Rules `VERB[,VERB] GROUP/RESOURCE[/SUBRESOURCE][ NAME]`, bound in a namespace (or in the cluster, if it is empty) to a
/// subject.
fn rbac(grants: &[(&str, &str, &str)]) -> Rbac {
    let mut rbac = Rbac::default();
    for (nth, (namespace, subject, rule)) in grants.iter().enumerate() {
        let words: Vec<&str> = rule.split(' ').collect();
        let (group, resource) = words[1].split_once('/').unwrap();
        let verbs: Vec<&str> = words[0].split(',').collect();
        let rule =
            json!({"verbs": verbs, "apiGroups": [group], "resources": [resource], "resourceNames": words.get(2..)});
        let name = format!("role{nth}");
        rbac.put_role("", &name, serde_json::from_value(json!({"rules": [rule]})).unwrap());
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": [subject_of(subject)]});
        rbac.put_binding(namespace, &name, serde_json::from_value(binding).unwrap());
    }
    rbac
}

/// `User/ann`, `ServiceAccount/shop/robot`.
fn subject_of(text: &str) -> Value {
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [kind, name] => json!({"kind": kind, "name": name}),
        [kind, namespace, name] => json!({"kind": kind, "namespace": namespace, "name": name}),
        _ => panic!("{text}"),
    }
}

fn visible(rbac: &Rbac) -> VisibleRbac<'_> {
    VisibleRbac { rbac, is_visible: &|_: ObjectKind, _: &str, _: &str| true }
}

fn get(resource: &str, namespace: &str) -> Action {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Action::Resource {
        verb: "get".into(),
        group: String::new(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: String::new(),
    }
}

/// `ann: CreatePod -> ServiceAccount shop/robot`
fn format_paths(paths: &[Path<'_>]) -> Vec<String> {
    let step = |step: &Step<'_>| match &step.reaches {
        Some(subject) => format!("{:?} -> {subject}", step.kind),
        None => format!("{:?}", step.kind),
    };
    let path = |path: &Path<'_>| {
        let steps: Vec<String> = path.steps.iter().map(step).collect();
        format!("{}: {}", path.subject.name, steps.join(", "))
    };
    paths.iter().map(path).collect()
}

const ROBOT: (&str, &str, &str) = ("shop", "ServiceAccount/shop/robot", "get /configmaps");

#[rstest]
#[case::creates_pods(&[("shop", "User/ann", "create /pods")], &["ann: CreatePod -> ServiceAccount shop/robot"])]
#[case::in_another_namespace(&[("ops", "User/ann", "create /pods")], &[])]
#[case::patches_deployments(&[("shop", "User/ann", "patch apps/deployments")], &["ann: CreateWorkload -> ServiceAccount shop/robot"])]
#[case::executes(&[("shop", "User/ann", "create /pods/exec")], &["ann: ExecInPod -> ServiceAccount shop/robot"])]
#[case::attaches(&[("shop", "User/ann", "get /pods/attach")], &["ann: AttachToPod -> ServiceAccount shop/robot"])]
#[case::adds_containers(&[("shop", "User/ann", "update /pods/ephemeralcontainers")], &["ann: EphemeralContainer -> ServiceAccount shop/robot"])]
#[case::requests_a_token(&[("shop", "User/ann", "create /serviceaccounts/token robot")], &["ann: RequestToken -> ServiceAccount shop/robot"])]
#[case::of_another_account(&[("shop", "User/ann", "create /serviceaccounts/token other")], &[])]
#[case::reads_tokens(&[("shop", "User/ann", "list /secrets")], &["ann: ReadSecrets -> ServiceAccount shop/robot"])]
#[case::impersonates(&[("", "User/ann", "impersonate /serviceaccounts robot")], &["ann: Impersonate -> ServiceAccount shop/robot"])]
#[case::uses_kubelets(&[("", "Group/sre", "get /nodes/proxy")], &["sre: NodeProxy -> ServiceAccount shop/robot"])]
#[case::escalates(&[("shop", "User/ann", "escalate,update rbac.authorization.k8s.io/roles")], &["ann: Escalate"])]
#[case::without_writing(&[("shop", "User/ann", "escalate rbac.authorization.k8s.io/roles")], &[])]
#[case::binds_a_role_that_allows_it(
    &[("shop", "User/ann", "bind rbac.authorization.k8s.io/clusterroles role0"), ("shop", "User/ann", "create rbac.authorization.k8s.io/rolebindings")],
    &["ann: Bind"])]
#[case::binds_another_role(
    &[("shop", "User/ann", "bind rbac.authorization.k8s.io/clusterroles role1"), ("shop", "User/ann", "create rbac.authorization.k8s.io/rolebindings")],
    &[])]
#[case::groups_are_not_combined(
    &[("shop", "User/ann", "bind rbac.authorization.k8s.io/clusterroles"), ("shop", "Group/staff", "create rbac.authorization.k8s.io/rolebindings")],
    &[])]
#[case::the_group_of_all_users_is_combined(
    &[("shop", "User/ann", "bind rbac.authorization.k8s.io/clusterroles"), ("shop", "Group/system:authenticated", "create rbac.authorization.k8s.io/rolebindings")],
    &["ann: Bind"])]
#[case::becomes_an_administrator(
    &[("", "User/ann", "impersonate /groups system:masters"), ("", "User/ann", "impersonate /users")],
    &["ann: Impersonate -> Group system:masters"])]
#[case::several_steps(
    &[("", "User/ann", "impersonate /users bob"), ("ops", "ServiceAccount/ops/ci", "create /pods"), ("shop", "User/bob", "create /pods")],
    &["bob: CreatePod -> ServiceAccount shop/robot", "ann: Impersonate -> User bob, CreatePod -> ServiceAccount shop/robot"])]
fn paths_lead_to_a_subject_that_is_allowed(#[case] grants: &[(&str, &str, &str)], #[case] expected: &[&str]) {
    let grants: Vec<_> = std::iter::once(ROBOT).chain(grants.iter().copied()).collect();
    let rbac = rbac(&grants);
    let searched = SearchedRules { cluster: visible(&rbac), control_plane: None };
    let (action, scope) = (get("configmaps", "shop"), Scope::from_namespace("shop"));
    let direct = searched.cluster.who_can(&action, &scope).proofs;
    let found = searched.paths_to(&action, &scope, &direct);
    assert_eq!(format_paths(&found.paths), expected);
    for path in &found.paths {
        let last = path.steps.last().and_then(|step| step.reaches.clone());
        let is_account = last.is_some_and(|last| last.kind == SubjectKind::ServiceAccount);
        assert_eq!(path.proof.is_some(), is_account, "{path:?}");
        assert!(path.steps.iter().all(|step| !step.permissions.is_empty()));
    }
}

/// Permissions to act as another subject for one kind of request (KEP-5284).
#[rstest]
#[case::of_an_account(
    &[("shop", "User/ann", "impersonate:serviceaccount authentication.k8s.io/serviceaccounts robot"),
        ("shop", "User/ann", "impersonate-on:serviceaccount:get /configmaps")],
    &["ann: Impersonate -> ServiceAccount shop/robot"])]
#[case::of_an_account_in_another_mode(
    &[("shop", "User/ann", "impersonate:user-info authentication.k8s.io/serviceaccounts robot"),
        ("shop", "User/ann", "impersonate-on:user-info:get /configmaps")],
    &[])]
#[case::for_another_verb(
    &[("shop", "User/ann", "impersonate:serviceaccount authentication.k8s.io/serviceaccounts robot"),
        ("shop", "User/ann", "impersonate-on:serviceaccount:list /configmaps")],
    &[])]
#[case::in_another_namespace(
    &[("shop", "User/ann", "impersonate:serviceaccount authentication.k8s.io/serviceaccounts robot"),
        ("ops", "User/ann", "impersonate-on:serviceaccount:get /configmaps")],
    &[])]
#[case::in_the_core_group(
    &[("shop", "User/ann", "impersonate:serviceaccount /serviceaccounts robot"),
        ("shop", "User/ann", "impersonate-on:serviceaccount:get /configmaps")],
    &[])]
#[case::of_a_user(
    &[("shop", "User/bob", "get /configmaps"), ("", "User/ann", "impersonate:user-info authentication.k8s.io/users bob"),
        ("shop", "User/ann", "impersonate-on:user-info:get /configmaps")],
    &["ann: Impersonate -> User bob"])]
#[case::of_a_group_with_any_user(
    &[("shop", "Group/staff", "get /configmaps"), ("", "User/ann", "impersonate:user-info authentication.k8s.io/*"),
        ("shop", "User/ann", "impersonate-on:user-info:get /configmaps")],
    &["ann: Impersonate -> Group staff"])]
#[case::of_a_group_with_one_user(
    &[("shop", "Group/staff", "get /configmaps"), ("", "User/ann", "impersonate:user-info authentication.k8s.io/groups"),
        ("", "User/ann", "impersonate:user-info authentication.k8s.io/users bob"),
        ("shop", "User/ann", "impersonate-on:user-info:get /configmaps")],
    &[])]
#[case::of_a_node(
    &[("shop", "User/system:node:n1", "get /configmaps"),
        ("", "User/ann", "impersonate:arbitrary-node authentication.k8s.io/nodes n1"),
        ("shop", "User/ann", "impersonate-on:arbitrary-node:get /configmaps")],
    &["ann: Impersonate -> User system:node:n1"])]
#[case::after_another_step(
    &[("shop", "User/ann", "impersonate:serviceaccount authentication.k8s.io/serviceaccounts robot"),
        ("shop", "User/ann", "impersonate-on:serviceaccount:get /configmaps"), ("", "User/cyd", "impersonate /users ann")],
    &["ann: Impersonate -> ServiceAccount shop/robot", "cyd: Impersonate -> User ann, Impersonate -> ServiceAccount shop/robot"])]
fn constrained_impersonation_is_searched(#[case] grants: &[(&str, &str, &str)], #[case] expected: &[&str]) {
    let grants: Vec<_> = std::iter::once(ROBOT).chain(grants.iter().copied()).collect();
    let rbac = rbac(&grants);
    let searched = SearchedRules { cluster: visible(&rbac), control_plane: None };
    let (action, scope) = (get("configmaps", "shop"), Scope::from_namespace("shop"));
    let direct = searched.cluster.who_can(&action, &scope).proofs;
    let found = searched.paths_to(&action, &scope, &direct);
    assert_eq!(format_paths(&found.paths), expected);
    assert!(found.paths.iter().all(|path| path.proof.is_some()), "{found:?}");
}

#[test]
fn constrained_impersonation_in_one_namespace_is_found_for_all_namespaces() {
    let rbac = rbac(&[
        ("", "User/bob", "get /configmaps"),
        ("", "User/ann", "impersonate:user-info authentication.k8s.io/users bob"),
        ("shop", "User/ann", "impersonate-on:user-info:get /configmaps"),
    ]);
    let searched = SearchedRules { cluster: visible(&rbac), control_plane: None };
    let action = get("configmaps", "");
    let direct = searched.cluster.who_can(&action, &Scope::All).proofs;
    assert_eq!(format_paths(&searched.paths_to(&action, &Scope::All, &direct).paths), ["ann: Impersonate -> User bob"]);
}

#[rstest]
#[case::mounts_them("create /pods", &["ann: CreatePod"])]
#[case::lists_them("list /secrets", &["ann: ReadSecrets"])]
#[case::reads_others("list /configmaps", &[])]
fn permissions_other_than_get_give_access_to_secrets(#[case] rule: &str, #[case] expected: &[&str]) {
    let rbac = rbac(&[("shop", "User/ann", rule)]);
    let searched = SearchedRules { cluster: visible(&rbac), control_plane: None };
    let found = searched.paths_to(&get("secrets", "shop"), &Scope::from_namespace("shop"), &[]);
    assert_eq!(format_paths(&found.paths), expected);
}

#[rstest]
#[case::one_of_all_namespaces(Scope::All, "ops", &["ann: Bind"])]
#[case::the_cluster_for_all_namespaces(Scope::All, "", &["ann: Bind"])]
#[case::the_requested_namespace(Scope::from_namespace("ops"), "ops", &["ann: Bind"])]
#[case::another_namespace(Scope::from_namespace("shop"), "ops", &[])]
#[case::one_namespace_for_a_list_over_all(Scope::cluster(), "ops", &[])]
fn permissions_are_granted_in_each_namespace(#[case] scope: Scope, #[case] namespace: &str, #[case] expected: &[&str]) {
    let rule = "create,bind rbac.authorization.k8s.io/*";
    let rbac = rbac(&[("web", "User/bob", "get /configmaps"), (namespace, "User/ann", rule)]);
    let searched = SearchedRules { cluster: visible(&rbac), control_plane: None };
    let found = searched.paths_to(&get("pods", ""), &scope, &[]);
    assert_eq!(
        (format_paths(&found.paths), found.is_truncated),
        (expected.iter().map(|path| (*path).to_owned()).collect(), false)
    );
}

#[test]
fn skipped_namespaces_are_reported() {
    let names: Vec<String> = (0..=step_requirements::MAX_NAMESPACES).map(|nth| format!("n{nth:03}")).collect();
    for (count, is_truncated) in [(names.len(), true), (names.len() - 1, false)] {
        let grants: Vec<_> = names[..count].iter().map(|name| (name.as_str(), "User/ann", "get /pods")).collect();
        let rbac = rbac(&grants);
        let searched = SearchedRules { cluster: visible(&rbac), control_plane: None };
        assert_eq!(searched.paths_to(&get("configmaps", ""), &Scope::All, &[]).is_truncated, is_truncated, "{count}");
        let cluster =
            VisibleRbac { rbac: &rbac, is_visible: &|kind: ObjectKind, _: &str, _: &str| !kind.is_namespaced() };
        let hidden = SearchedRules { cluster, control_plane: None };
        assert!(
            !hidden.paths_to(&get("configmaps", ""), &Scope::All, &[]).is_truncated,
            "hidden namespaces are counted"
        );
    }
}

#[test]
fn hidden_namespaces_are_not_named() {
    let rbac = rbac(&[("hidden", "User/bob", "get /configmaps"), ("", "User/ann", "create /pods")]);
    let cluster = VisibleRbac { rbac: &rbac, is_visible: &|kind: ObjectKind, _: &str, _: &str| !kind.is_namespaced() };
    let searched = SearchedRules { cluster, control_plane: None };
    let found = searched.paths_to(&get("secrets", ""), &Scope::All, &[]);
    assert_eq!(format_paths(&found.paths), ["ann: CreatePod"]);
    let (permission, proof) = &found.paths[0].steps[0].permissions[0];
    assert!(matches!(&permission.action, Action::Resource { namespace, .. } if namespace.is_empty()), "{permission:?}");
    assert_eq!(proof.binding.name, "role1");
}

#[test]
fn paths_have_at_most_four_steps() {
    let chain: Vec<(String, String)> =
        (0..6).map(|nth| (format!("User/u{}", nth + 1), format!("impersonate /users u{nth}"))).collect();
    let mut grants: Vec<(&str, &str, &str)> =
        chain.iter().map(|(subject, rule)| ("", subject.as_str(), rule.as_str())).collect();
    grants.push(("shop", "User/u0", "get /configmaps"));
    let rbac = rbac(&grants);
    let view = visible(&rbac);
    let (action, scope) = (get("configmaps", "shop"), Scope::from_namespace("shop"));
    let direct = view.who_can(&action, &scope).proofs;
    let searched = SearchedRules { cluster: view, control_plane: None };
    let found = searched.paths_to(&action, &scope, &direct);
    let lengths: Vec<usize> = found.paths.iter().map(|path| path.steps.len()).collect();
    assert_eq!(lengths, [1, 2, 3, 4]);
    let reached = searched.paths_from(&UserInfo::new("u6", ["staff"]), None);
    assert_eq!(
        reached.paths.iter().map(|path| path.subject.name.to_string()).collect::<Vec<_>>(),
        ["u5", "u4", "u3", "u2"]
    );
    assert!(!found.is_truncated && !reached.is_truncated);
}

#[rstest]
#[case::credentials("karmada-cluster", "User/ann", "get /secrets member1", &["ann: ReadClusterCredentials"])]
#[case::of_another_member("karmada-cluster", "User/ann", "get /secrets member2", &[])]
#[case::works("karmada-es-member1", "User/ann", "create work.karmada.io/works", &["ann: WriteWork"])]
#[case::works_of_another_member("karmada-es-member2", "User/ann", "create work.karmada.io/works", &[])]
#[case::the_account_of_the_same_name("", "ServiceAccount/shop/robot", "get cluster.karmada.io/clusters/proxy member1",
    &["robot: ClusterProxy -> ServiceAccount shop/robot"])]
#[case::an_account_of_another_name("", "ServiceAccount/shop/other", "get cluster.karmada.io/clusters/proxy member1", &[])]
#[case::binds_a_role("karmada-es-member1", "User/ann", "bind,create rbac.authorization.k8s.io/*", &["ann: Bind, WriteWork"])]
#[case::changes_a_role("karmada-cluster", "User/ann", "escalate,update rbac.authorization.k8s.io/roles",
    &["ann: Escalate, ReadClusterCredentials"])]
#[case::binds_a_role_elsewhere("shop", "User/ann", "bind,create rbac.authorization.k8s.io/*", &[])]
fn the_control_plane_gives_access_to_members(
    #[case] namespace: &str,
    #[case] subject: &str,
    #[case] rule: &str,
    #[case] expected: &[&str],
) {
    let (member, control_plane_rbac) = (rbac(&[ROBOT]), rbac(&[(namespace, subject, rule)]));
    let credentials = [("karmada-cluster".to_owned(), "member1".to_owned())];
    let control_plane = ControlPlane {
        view: visible(&control_plane_rbac),
        cluster: "member1",
        execution_namespace: "karmada-es-member1",
        credentials: &credentials,
    };
    let searched = SearchedRules { cluster: visible(&member), control_plane: Some(control_plane) };
    let (action, scope) = (get("configmaps", "shop"), Scope::from_namespace("shop"));
    let direct = searched.cluster.who_can(&action, &scope).proofs;
    assert_eq!(format_paths(&searched.paths_to(&action, &scope, &direct).paths), expected);
}

#[rstest]
#[case::rule_with_the_name("get /secrets member1", "member1")]
#[case::rule_without_names("get /secrets", "")]
fn credentials_are_named_only_if_a_rule_names_them(#[case] rule: &str, #[case] expected: &str) {
    let (member, control_plane_rbac) = (rbac(&[ROBOT]), rbac(&[("karmada-cluster", "User/ann", rule)]));
    let credentials = [("karmada-cluster".to_owned(), "member1".to_owned())];
    let control_plane = ControlPlane {
        view: visible(&control_plane_rbac),
        cluster: "member1",
        execution_namespace: "karmada-es-member1",
        credentials: &credentials,
    };
    let searched = SearchedRules { cluster: visible(&member), control_plane: Some(control_plane) };
    let found = searched.paths_to(&get("configmaps", "shop"), &Scope::from_namespace("shop"), &[]);
    assert_eq!(format_paths(&found.paths), ["ann: ReadClusterCredentials"]);
    let (permission, _) = &found.paths[0].steps[0].permissions[0];
    assert!(matches!(&permission.action, Action::Resource { name, .. } if name == expected), "{permission:?}");
}

#[test]
fn templates_and_policies_start_containers_in_members() {
    let grants = [
        ("shop", "User/ann", "create apps/deployments"),
        ("shop", "User/ann", "create policy.karmada.io/propagationpolicies"),
        ("shop", "User/bob", "create apps/deployments"),
    ];
    let (member, control_plane_rbac) = (rbac(&[ROBOT]), rbac(&grants));
    let control_plane = ControlPlane {
        view: visible(&control_plane_rbac),
        cluster: "member1",
        execution_namespace: "karmada-es-member1",
        credentials: &[],
    };
    let searched = SearchedRules { cluster: visible(&member), control_plane: Some(control_plane) };
    let (action, scope) = (get("configmaps", "shop"), Scope::from_namespace("shop"));
    let direct = searched.cluster.who_can(&action, &scope).proofs;
    let found = searched.paths_to(&action, &scope, &direct);
    assert_eq!(format_paths(&found.paths), ["ann: Propagate -> ServiceAccount shop/robot"]);
    assert_eq!(found.paths[0].source, RuleSource::ControlPlane);
}

const PROXY: &str = "get cluster.karmada.io/clusters/proxy member1";

/// Paths of the user ann of the group staff, with these grants in the control plane. In member1, a service account and the
/// users bob and ann have permissions.
#[rstest]
#[case::nothing(&[], &[])]
#[case::credentials(&[("karmada-cluster", "User/ann", "get /secrets member1")], &["ann: ReadClusterCredentials"])]
#[case::credentials_of_another_member(&[("karmada-cluster", "User/ann", "get /secrets member2")], &[])]
#[case::works_by_a_group(&[("karmada-es-member1", "Group/staff", "create work.karmada.io/works")], &["staff: WriteWork"])]
#[case::works_of_another_member(&[("karmada-es-member2", "User/ann", "create work.karmada.io/works")], &[])]
#[case::everything(&[("", "User/ann", "* */*")],
    &["ann: ReadClusterCredentials", "ann: WriteWork", "robot: Propagate -> ServiceAccount shop/robot"])]
#[case::propagates(
    &[("shop", "User/ann", "create apps/deployments"), ("shop", "User/ann", "create policy.karmada.io/propagationpolicies")],
    &["robot: Propagate -> ServiceAccount shop/robot"])]
#[case::propagates_without_a_policy(&[("shop", "User/ann", "create apps/deployments")], &[])]
#[case::own_proxy(&[("", "User/ann", PROXY)], &[])]
#[case::impersonates_a_user_of_the_proxy(&[("", "User/ann", "impersonate /users bob"), ("", "User/bob", PROXY)],
    &["bob: Impersonate -> User bob, ClusterProxy -> User bob"])]
#[case::impersonates_a_user_without_the_proxy(
    &[("", "User/ann", "impersonate /users bob"), ("", "User/bob", "get /configmaps")], &[])]
#[case::account_of_the_same_name(
    &[("shop", "User/ann", "create /serviceaccounts/token robot"), ("", "ServiceAccount/shop/robot", PROXY)],
    &["robot: RequestToken -> ServiceAccount shop/robot, ClusterProxy -> ServiceAccount shop/robot"])]
#[case::impersonates_a_writer(
    &[("", "User/ann", "impersonate /users ops"), ("karmada-es-member1", "User/ops", "patch work.karmada.io/works")],
    &["ops: Impersonate -> User ops, WriteWork"])]
#[case::binds_a_role(&[("karmada-es-member1", "User/ann", "bind,create rbac.authorization.k8s.io/*")], &["ann: Bind, WriteWork"])]
#[case::binds_a_cluster_role(&[("", "User/ann", "bind,create rbac.authorization.k8s.io/*")],
    &["ann: Bind, ReadClusterCredentials", "ann: Bind, WriteWork"])]
#[case::changes_a_role(&[("karmada-cluster", "User/ann", "escalate,update rbac.authorization.k8s.io/roles")],
    &["ann: Escalate, ReadClusterCredentials"])]
#[case::five_steps(
    &[("", "User/ann", "impersonate /users a"), ("", "User/a", "impersonate /users b"), ("", "User/b", "impersonate /users c"),
        ("karmada-cluster", "User/c", "list /secrets"), ("karmada-es-member1", "User/c", "bind,create rbac.authorization.k8s.io/*")],
    &["c: Impersonate -> User a, Impersonate -> User b, Impersonate -> User c, ReadClusterCredentials"])]
fn a_user_reaches_a_member_through_the_control_plane(#[case] grants: &[(&str, &str, &str)], #[case] expected: &[&str]) {
    let own = [ROBOT, ("shop", "User/bob", "get /configmaps"), ("shop", "User/ann", "get /configmaps")];
    // A subject without a binding is not searched, so bob has one in the control plane too.
    let grants: Vec<_> = grants.iter().copied().chain([("shop", "User/bob", "get /configmaps")]).collect();
    let (member, control_plane_rbac) = (rbac(&own), rbac(&grants));
    let (ann, view) = (UserInfo::new("ann", ["staff"]), visible(&control_plane_rbac));
    let credentials = [("karmada-cluster".to_owned(), "member1".to_owned())];
    let control_plane =
        ControlPlane { view, cluster: "member1", execution_namespace: "karmada-es-member1", credentials: &credentials };
    let searched = SearchedRules { cluster: visible(&member), control_plane: Some(control_plane) };
    let found = searched.paths_from(&ann, Some(&Identities::in_control_plane(view, &ann)));
    assert_eq!(
        (format_paths(&found.paths), found.is_truncated),
        (expected.iter().map(ToString::to_string).collect(), false)
    );
    for path in &found.paths {
        let reaches = path.steps.last().and_then(|step| Some((step.reaches.clone()?, step.reached_source())));
        match path.source {
            RuleSource::Cluster => assert_eq!(reaches, Some((path.subject.clone(), RuleSource::Cluster))),
            RuleSource::ControlPlane => assert_eq!(reaches, None),
        }
    }
}

#[test]
fn hidden_objects_of_the_control_plane_give_no_paths() {
    let (member, control_plane_rbac) = (rbac(&[ROBOT]), rbac(&[("", "User/ann", "* */*")]));
    let view = VisibleRbac { rbac: &control_plane_rbac, is_visible: &|_: ObjectKind, _: &str, _: &str| false };
    let control_plane =
        ControlPlane { view, cluster: "member1", execution_namespace: "karmada-es-member1", credentials: &[] };
    let searched = SearchedRules { cluster: visible(&member), control_plane: Some(control_plane) };
    let ann = UserInfo::new("ann", ["staff"]);
    let found = searched.paths_from(&ann, Some(&Identities::in_control_plane(view, &ann)));
    assert_eq!(format_paths(&found.paths), [""; 0]);
}
