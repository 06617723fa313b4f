//! Table tests of permissions with `resourceNames`, and a comparison with the writes that an API server accepts.

use super::*;
use crate::rbac::access::Scope;
use crate::rbac::indirect::forward::identity_of;
use crate::rbac::indirect::{Path, SearchedRules};
use crate::rbac::{Decision, ObjectKind, Rbac, Subject};
use crate::user::{AUTHENTICATED, UserInfo};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

/// `VERB[,VERB] RESOURCE[ NAME]` of the RBAC group.
fn rule(text: &str) -> Value {
    let words: Vec<&str> = text.split(' ').collect();
    let verbs: Vec<&str> = words[0].split(',').collect();
    json!({"verbs": verbs, "apiGroups": [RBAC], "resources": [words[1]], "resourceNames": words.get(2..)})
}

/// The rule that allows the action of [`read_in_shop`] in every namespace where it is bound.
fn read_rule() -> Value {
    json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]})
}

fn put_role(rbac: &mut Rbac, namespace: &str, name: &str, rules: &Value) {
    rbac.put_role(namespace, name, serde_json::from_value(json!({"rules": rules})).expect("a role"));
}

fn bind(rbac: &mut Rbac, namespace: &str, name: &str, role: &str, subjects: &Value) {
    let (kind, role) = role.split_once('/').expect("KIND/NAME");
    let binding = json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
    rbac.put_binding(namespace, name, serde_json::from_value(binding).expect("a binding"));
}

fn action(verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Action {
    Action::Resource {
        verb: verb.into(),
        group: group.into(),
        resource: resource.into(),
        subresource: String::new(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn read_in_shop() -> Action {
    action("get", "", "configmaps", "shop", "")
}

/// Paths to the action, and the subjects that may perform the action directly.
fn paths(rbac: &Rbac) -> (Vec<Path<'_>>, Vec<Subject>) {
    let (action, scope) = (read_in_shop(), Scope::from_namespace("shop"));
    let searched = SearchedRules { cluster: VisibleRbac { rbac, is_visible: &|_, _, _| true }, control_plane: None };
    let direct = searched.cluster.who_can(&action, &scope).proofs;
    let found = searched.paths_to(&action, &scope, &direct).paths;
    (found, direct.into_iter().map(|proof| proof.subject).collect())
}

#[rstest]
#[case::binds_a_role("shop", &["create rolebindings", "bind roles reads"], &[StepKind::Bind])]
#[case::binds_a_role_everywhere("", &["create rolebindings", "bind roles reads"], &[StepKind::Bind])]
#[case::binds_a_role_that_does_not_allow_it("shop", &["create rolebindings", "bind roles other"], &[])]
#[case::binds_a_missing_role("shop", &["create rolebindings", "bind roles gone"], &[])]
#[case::binds_a_role_of_another_namespace("ops", &["create rolebindings", "bind roles reads"], &[])]
#[case::binds_a_cluster_role("shop", &["create rolebindings", "bind clusterroles reader"], &[StepKind::Bind])]
#[case::binds_a_cluster_role_with_the_name_of_a_role("shop", &["create rolebindings", "bind clusterroles reads"], &[])]
#[case::changes_a_binding("shop", &["update rolebindings holds", "bind roles reads"], &[StepKind::Bind])]
#[case::changes_a_binding_of_any_role("shop", &["patch rolebindings holds", "bind roles"], &[StepKind::Bind])]
#[case::changes_a_binding_of_another_role("shop", &["update rolebindings others", "bind roles reads"], &[])]
#[case::changes_a_binding_without_bind("shop", &["update rolebindings holds", "bind roles other"], &[])]
#[case::applies_a_new_binding("shop", &["create,patch rolebindings new", "bind roles reads"], &[StepKind::Bind])]
#[case::posts_a_named_binding("shop", &["create rolebindings new", "bind roles reads"], &[])]
#[case::applies_another_binding("shop", &["create rolebindings new", "patch rolebindings x", "bind roles"], &[])]
#[case::escalates_a_role("shop", &["escalate,update roles other"], &[StepKind::Escalate])]
#[case::escalates_a_role_and_changes_all("shop", &["escalate roles other", "patch roles"], &[StepKind::Escalate])]
#[case::escalates_all_roles_and_changes_one("shop", &["escalate roles", "patch roles other"], &[StepKind::Escalate])]
#[case::escalates_one_and_changes_another("shop", &["escalate roles other", "update roles reads"], &[])]
#[case::escalates_a_missing_role("shop", &["escalate,update roles gone"], &[])]
#[case::binds_in_the_cluster("", &["create clusterrolebindings", "bind clusterroles reader"], &[StepKind::Bind])]
#[case::binds_another_one_in_the_cluster("", &["create clusterrolebindings", "bind clusterroles ann"], &[])]
#[case::changes_a_cluster_role_binding("", &["patch clusterrolebindings readers", "bind clusterroles reader"], &[StepKind::Bind])]
#[case::escalates_a_cluster_role("", &["escalate,patch clusterroles reader"], &[StepKind::Escalate])]
#[case::escalates_a_cluster_role_in_a_namespace("shop", &["escalate,patch clusterroles reader"], &[])]
fn permissions_are_limited_to_names_of_roles_and_bindings(
    #[case] namespace: &str,
    #[case] permissions: &[&str],
    #[case] expected: &[StepKind],
) {
    let mut rbac = Rbac::default();
    put_role(&mut rbac, "shop", "reads", &json!([read_rule()]));
    put_role(&mut rbac, "shop", "other", &json!([]));
    put_role(&mut rbac, "", "reader", &json!([read_rule()]));
    put_role(&mut rbac, "", "ann", &permissions.iter().copied().map(rule).collect());
    bind(&mut rbac, "shop", "holds", "Role/reads", &json!([{"kind": "User", "name": "bob"}]));
    bind(&mut rbac, "shop", "others", "Role/other", &json!([{"kind": "User", "name": "bob"}]));
    bind(&mut rbac, "", "readers", "ClusterRole/reader", &json!([{"kind": "User", "name": "bea"}]));
    bind(&mut rbac, namespace, "ann", "ClusterRole/ann", &json!([{"kind": "User", "name": "ann"}]));
    let (found, _) = paths(&rbac);
    let kinds: Vec<StepKind> = found.iter().flat_map(|path| path.steps.iter().map(|step| step.kind)).collect();
    assert_eq!(kinds, expected, "{found:?}");
    assert!(found.iter().all(|path| path.subject == Subject::user("ann")));
}

#[rstest]
#[case::all(MAX_NEW_BINDINGS, "", false)]
#[case::too_many(MAX_NEW_BINDINGS + 1, "", true)]
#[case::in_a_hidden_role(MAX_NEW_BINDINGS + 1, "many", false)]
fn the_number_of_new_bindings_is_limited(#[case] count: usize, #[case] hidden: &str, #[case] is_truncated: bool) {
    let names: Vec<String> = (0..count).map(|nth| format!("n{nth:03}")).collect();
    let mut rbac = Rbac::default();
    let creates =
        json!({"verbs": ["create"], "apiGroups": [RBAC], "resources": ["rolebindings"], "resourceNames": names});
    put_role(&mut rbac, "shop", "many", &json!([creates]));
    let is_visible = |_: ObjectKind, _: &str, name: &str| name != hidden;
    let searched = SearchedRules { cluster: VisibleRbac { rbac: &rbac, is_visible: &is_visible }, control_plane: None };
    for (namespace, expected) in [("shop", is_truncated), ("ops", false)] {
        let found = searched.paths_to(&read_in_shop(), &Scope::from_namespace(namespace), &[]);
        assert_eq!(found.is_truncated, expected, "{namespace}");
    }
}

#[rstest]
#[case::selected(json!({"clusterRoleSelectors": [{"matchLabels": {"to": "edit"}}]}), &[StepKind::Escalate])]
#[case::not_aggregated(Value::Null, &[])]
fn created_roles_can_be_aggregated(#[case] aggregation: Value, #[case] expected: &[StepKind]) {
    let mut rbac = Rbac::default();
    let edit = json!({"rules": [], "aggregationRule": aggregation});
    rbac.put_role("", "edit", serde_json::from_value(edit).expect("a role"));
    put_role(&mut rbac, "", "ann", &json!([rule("escalate,create clusterroles")]));
    bind(&mut rbac, "", "ann", "ClusterRole/ann", &json!([{"kind": "User", "name": "ann"}]));
    let (found, _) = paths(&rbac);
    let kinds: Vec<StepKind> = found.iter().flat_map(|path| path.steps.iter().map(|step| step.kind)).collect();
    assert_eq!(kinds, expected);
}

const NAMESPACES: [&str; 2] = ["", "shop"];
const ROLES: [&str; 2] = ["a", "b"];

fn word<const N: usize>(words: [&'static str; N]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(words.to_vec())
}

fn any_rule() -> impl Strategy<Value = Value> {
    let verbs = proptest::collection::vec(word(["create", "update", "patch", "bind", "escalate", "*"]), 1..4);
    let resources = word(["roles", "clusterroles", "rolebindings", "clusterrolebindings", "*"]);
    let names = proptest::collection::vec(word(["a", "b", "x"]), 0..2);
    let rbac_rule = (verbs, proptest::collection::vec(resources, 1..3), names).prop_map(|(verbs, resources, names)| {
        json!({"verbs": verbs, "apiGroups": [RBAC], "resources": resources, "resourceNames": names})
    });
    prop_oneof![4 => rbac_rule, 1 => Just(read_rule())]
}

fn any_subject() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"kind": "User", "name": "ann"})),
        Just(json!({"kind": "ServiceAccount", "namespace": "shop", "name": "ann"})),
        Just(json!({"kind": "Group", "name": AUTHENTICATED})),
    ]
}

fn any_rbac() -> impl Strategy<Value = Rbac> {
    let roles = (word(NAMESPACES), word(ROLES), proptest::collection::vec(any_rule(), 0..4));
    let role = (word(["Role", "ClusterRole"]), word(ROLES));
    let bindings = (word(NAMESPACES), word(["a", "x"]), role, proptest::collection::vec(any_subject(), 0..3));
    let all = (proptest::collection::vec(roles, 1..6), proptest::collection::vec(bindings, 1..6));
    all.prop_map(|(roles, bindings)| {
        let mut rbac = Rbac::default();
        for (namespace, name, rules) in roles {
            put_role(&mut rbac, namespace, name, &json!(rules));
        }
        for (namespace, name, (kind, role), subjects) in bindings {
            bind(&mut rbac, namespace, name, &format!("{kind}/{role}"), &json!(subjects));
        }
        rbac
    })
}

/// Rules of a cluster, and a user who writes roles and bindings.
struct Writer<'r> {
    rbac: &'r Rbac,
    user: &'r UserInfo,
    subject: &'r Subject,
}

impl Writer<'_> {
    fn may(&self, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let action = action(verb, RBAC, resource, namespace, name);
        matches!(self.rbac.authorize(self.user, &action), Decision::Allowed { .. })
    }

    fn may_change(&self, resource: &str, namespace: &str, name: &str) -> bool {
        ["update", "patch"].iter().any(|verb| self.may(verb, resource, namespace, name))
    }

    fn may_write_binding(&self, namespace: &str, name: &str, role: (&str, &str)) -> bool {
        let resource = if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
        let roles = if role.0 == "ClusterRole" { "clusterroles" } else { "roles" };
        let may_write = match self.rbac.bindings.get(namespace).and_then(|bindings| bindings.get(name)) {
            Some(binding) => {
                (binding.role.kind.as_str(), binding.role.name.as_str()) == role
                    && self.may_change(resource, namespace, name)
            }
            None => {
                self.may("create", resource, namespace, "")
                    || (self.may("create", resource, namespace, name) && self.may_change(resource, namespace, name))
            }
        };
        may_write && self.may("bind", roles, namespace, role.1)
    }

    /// The rules that result from each write that the user may make: a binding of a role to the user, or a new content of a
    /// role, which then allows the action.
    fn results_of_writes(&self) -> Vec<Rbac> {
        let mut results = Vec::new();
        for (namespace, role) in NAMESPACES.into_iter().flat_map(|namespace| ROLES.map(|role| (namespace, role))) {
            let kinds: &[&str] = if namespace.is_empty() { &["ClusterRole"] } else { &["Role", "ClusterRole"] };
            for (kind, name) in kinds.iter().flat_map(|kind| ["a", "b", "x", "y"].map(|name| (*kind, name))) {
                if self.may_write_binding(namespace, name, (kind, role)) {
                    let mut rbac = self.rbac.clone();
                    bind(&mut rbac, namespace, name, &format!("{kind}/{role}"), &json!([self.subject]));
                    results.push(rbac);
                }
            }
            let roles = if namespace.is_empty() { "clusterroles" } else { "roles" };
            let exists = self.rbac.roles.get(namespace).is_some_and(|roles| roles.contains_key(role));
            if exists && self.may("escalate", roles, namespace, role) && self.may_change(roles, namespace, role) {
                let mut rbac = self.rbac.clone();
                put_role(&mut rbac, namespace, role, &json!([read_rule()]));
                results.push(rbac);
            }
        }
        results
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// A subject that can get the permission by one write is listed.
    #[test]
    fn no_write_that_grants_the_action_is_missing(rbac in any_rbac(), subject in any_subject()) {
        let subject: Subject = serde_json::from_value(subject).unwrap();
        let user = identity_of(&subject);
        let writer = Writer { rbac: &rbac, user: &user, subject: &subject };
        let allows = |rbac: &Rbac| matches!(rbac.authorize(&user, &read_in_shop()), Decision::Allowed { .. });
        let (found, direct) = paths(&rbac);
        let mut listed = direct.iter().chain(found.iter().map(|path| &path.subject));
        let is_listed = listed.any(|listed_subject| listed_subject.matches_user(&user, ""));
        prop_assert!(is_listed || !writer.results_of_writes().iter().any(allows), "{:?}", rbac);
    }
}
