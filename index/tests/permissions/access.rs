//! The rules of access reviews follow the member's RBAC objects, and are limited to those that the caller may list.

use crate::cases::{NAMESPACES, objects};
use crate::members::{api, start};
use crate::{RBAC, TestEnv, create_all, wait_for_change};
use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::rbac::access::{Scope, VisibleRbac};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::ChangeKind;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

/// Subjects of the binding `bob-reads` that may get Secrets in the namespace shop, as shown to a caller.
async fn review(env: &TestEnv, caller: &UserInfo) -> Vec<String> {
    let action = Action::Resource {
        verb: "get".into(),
        group: String::new(),
        resource: "secrets".into(),
        subresource: String::new(),
        namespace: String::new(),
        name: String::new(),
    };
    let clusters = env.cache.searcher().cluster_rules(caller).await;
    let Some(rules) = clusters.iter().find(|rules| rules.cluster.as_str() == "member1") else { return Vec::new() };
    let is_visible = rules.visibility();
    let view = VisibleRbac { rbac: &rules.rbac, is_visible: &is_visible };
    let proofs = view.who_can(&action, &Scope::from_namespace("shop")).proofs;
    proofs.iter().filter(|proof| proof.binding.name == "bob-reads").map(|proof| proof.subject.to_string()).collect()
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    let metadata = json!({"namespace": (kind == "RoleBinding").then_some("shop"), "name": name});
    json!({"apiVersion": RBAC, "kind": kind, "metadata": metadata,
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}})
}

fn role(name: &str, rules: &Value) -> Value {
    json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_follow_the_rules_of_the_member() {
    let member = start("member1").await;
    let objects = objects();
    create_all(&member, &objects[..NAMESPACES.len()]).await;
    let reads = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    let audits = |resources: &[&str]| json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": resources, "verbs": ["list"]}]);
    let prepared = [
        role("reads-secrets", &reads),
        role("audits", &audits(&["rolebindings", "clusterroles"])),
        role("audits-bindings", &audits(&["rolebindings"])),
        binding("auditor", "ClusterRoleBinding", "audits", "ann"),
        binding("half-auditor", "ClusterRoleBinding", "audits-bindings", "cyd"),
    ];
    create_all(&member, &prepared).await;
    let env = TestEnv::new(member).await;
    let callers = [UserInfo::system(), UserInfo::new("ann", ["staff"]), UserInfo::new("cyd", ["staff"])];
    // The binding and its role must be visible.
    let assert_shown = async |round: &str, subjects: &[&str]| {
        for (caller, expected) in callers.iter().zip([subjects, subjects, &[]]) {
            assert_eq!(review(&env, caller).await, expected, "{round}: {}", caller.name);
        }
    };
    assert_shown("at first", &[]).await;
    let mut follower = env.cache.follow(env.cache.seq());
    let granted = binding("bob-reads", "RoleBinding", "reads-secrets", "bob");
    env.member.create(granted.clone()).await;
    env.assert_applied_soon(wait_for_change(&mut follower, "bob-reads", ChangeKind::Added).await).await;
    assert_shown("bound", &["User bob"]).await;

    let admin = env.member.server.admin();
    for (rules, round, subjects) in [(json!([]), "without rules", Vec::new()), (reads, "with rules", vec!["User bob"])]
    {
        let changed = role("reads-secrets", &rules);
        let request = serde_json::from_value(changed.clone()).unwrap();
        api(&admin, &changed).replace("reads-secrets", &PostParams::default(), &request).await.unwrap();
        env.assert_applied_soon(wait_for_change(&mut follower, "reads-secrets", ChangeKind::Modified).await).await;
        assert_shown(round, &subjects).await;
    }
    api(&admin, &granted).delete("bob-reads", &DeleteParams::default()).await.unwrap();
    env.assert_applied_soon(wait_for_change(&mut follower, "bob-reads", ChangeKind::Deleted).await).await;
    assert_shown("deleted", &[]).await;
    env.stop().await;
}
