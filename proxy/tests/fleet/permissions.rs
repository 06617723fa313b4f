//! Callers get only the cached objects that they may read in the member.

use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::{ChangeKind, CollectionKey};
use crowsnest_proxy::Caller;
use crowsnest_search::authorization::rbac_resources;
use http::Method;
use serde_json::{Value, json};

use crate::test_env::{
    CONFIG_MAPS, TestEnv, admin, config_map, create, events, grant, names, read, request, test_env, user,
};
use crate::watches::await_change;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Grants alice a rule in the namespace `default` of a member.
async fn grant_to_alice(env: &TestEnv, member: &str, rule: Value) {
    let client = env.members[member].admin();
    let metadata = json!({"name": "alice", "namespace": "default"});
    let version = format!("{GROUP}/v1");
    let role = json!({"metadata": metadata, "rules": [rule]});
    create(&client, &version, "Role", Some("default"), role).await;
    let binding = json!({
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "alice"},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": "alice"}],
    });
    create(&client, &version, "RoleBinding", Some("default"), binding).await;
}

async fn get(env: &TestEnv, caller: &Caller, path: &str, query: &str) -> (u16, Value) {
    read(env.proxy.fleet_wide(caller, path, request(Method::GET, query, "", None)).await).await
}

/// Waits until a list of the caller contains exactly these objects.
async fn wait_until_listed(env: &TestEnv, caller: &Caller, expected: &[&str]) {
    let mut applied_seq = env.cache.searcher().applied_seq();
    let until_listed = async {
        loop {
            let (code, list) = get(env, caller, CONFIG_MAPS, "labelSelector=app%3Dx").await;
            assert_eq!(code, 200, "{list}");
            if names(&list) == expected {
                return;
            }
            applied_seq.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until_listed).await.expect("the permissions take effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_limited_to_what_the_members_allow() {
    let env = test_env().await;
    for (member, rules) in ["m1", "m2"].into_iter().flat_map(|member| rbac_resources().map(|rules| (member, rules))) {
        env.cache.wait_until_complete(&CollectionKey::new(ClusterName::parse(member).unwrap(), rules)).await;
    }
    let alice = user("alice");
    wait_until_listed(&env, &alice, &[]).await;
    assert_eq!(get(&env, &alice, &format!("{CONFIG_MAPS}/only-m1"), "").await.0, 404);
    let everything = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]});
    grant_to_alice(&env, "m1", everything).await;
    wait_until_listed(&env, &alice, &["m1/both", "m1/only-m1"]).await;
    // The object of the same name in m2 is not visible.
    let (code, both) = get(&env, &alice, &format!("{CONFIG_MAPS}/both"), "").await;
    assert_eq!((code, &both["data"]), (200, &json!({"v": "m1"})), "{both}");
    assert_eq!(get(&env, &alice, &format!("{CONFIG_MAPS}/only-m2"), "").await.0, 404);
    assert_eq!(get(&env, &admin(), &format!("{CONFIG_MAPS}/only-m2"), "").await.0, 200);
    let (code, page) = get(&env, &alice, CONFIG_MAPS, "labelSelector=app%3Dx&limit=1").await;
    assert_eq!((code, names(&page)), (200, vec!["m1/both".to_owned()]));
    let token = page["metadata"]["continue"].as_str().unwrap();
    let next_query = format!("labelSelector=app%3Dx&limit=5&continue={token}");
    assert_eq!(names(&get(&env, &alice, CONFIG_MAPS, &next_query).await.1), ["m1/only-m1"]);
    for (path, expected) in [("both", vec!["m1/both"]), ("only-m2", vec![])] {
        let path = format!("{CONFIG_MAPS}/{path}");
        let cached = read(env.proxy.search_cache(&alice, &path, request(Method::GET, "", "", None)).await).await;
        assert_eq!((cached.0, names(&cached.1)), (200, expected.into_iter().map(str::to_owned).collect()), "{path}");
    }
    let listed = env.proxy.search_cache(&alice, CONFIG_MAPS, request(Method::GET, "labelSelector=app%3Dx", "", None));
    assert_eq!(names(&read(listed.await).await.1), ["m1/both", "m1/only-m1"]);

    // A watch sends only events of readable objects, and expires when the caller's permissions change.
    let watch = request(
        Method::GET,
        "labelSelector=app%3Dx&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "",
        None,
    );
    let mut watch = env.proxy.fleet_wide(&alice, CONFIG_MAPS, watch).await.into_body();
    let mut received = Vec::new();
    while received.len() < 2 {
        received.extend(events(&mut watch).await);
    }
    let mut follower = env.cache.follow(env.cache.seq());
    for (member, name) in [("m2", "hidden"), ("m1", "shown")] {
        create(&env.members[member].admin(), "v1", "ConfigMap", Some("default"), config_map(name, "1")).await;
        await_change(&mut follower, ChangeKind::Added, name).await;
    }
    while received.len() < 3 {
        received.extend(events(&mut watch).await);
    }
    let name = |event: &Value| event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    assert_eq!(received.iter().map(name).collect::<Vec<_>>(), ["both", "only-m1", "shown"]);
    let current_list = get(&env, &alice, CONFIG_MAPS, "labelSelector=app%3Dx").await.1;
    let watch_query =
        format!("watch=true&resourceVersion={}", current_list["metadata"]["resourceVersion"].as_str().unwrap());
    let watch_from_current = || env.proxy.fleet_wide(&alice, CONFIG_MAPS, request(Method::GET, &watch_query, "", None));
    assert_eq!(watch_from_current().await.status(), 200);
    let get_both = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["both"]});
    grant_to_alice(&env, "m2", get_both).await;
    wait_until_listed(&env, &alice, &["m1/both", "m1/only-m1", "m1/shown", "m2/both"]).await;
    create(&env.members["m1"].admin(), "v1", "ConfigMap", Some("default"), config_map("later", "1")).await;
    let last = loop {
        if let Some(event) = events(&mut watch).await.pop() {
            break event;
        }
    };
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)), "{last}");
    // A watch from an earlier version expires as well: it would miss objects that became readable.
    let (code, status) = read(watch_from_current().await).await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    env.stop().await;
}

/// A service account of the control plane is not the member's account of the same name, neither for cached nor for live
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_accounts_of_the_control_plane_have_no_identity_in_members() {
    let env = test_env().await;
    let control_plane = ClusterName::control_plane();
    for cluster in [control_plane, ClusterName::parse("m1").unwrap(), ClusterName::parse("m2").unwrap()] {
        for rules in rbac_resources() {
            env.cache.wait_until_complete(&CollectionKey::new(cluster.clone(), rules)).await;
        }
    }
    let name = "system:serviceaccount:default:robot";
    let everything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let cluster_role = |name: &str, rule: Value, subject: &str| {
        let metadata = json!({"name": name});
        let binding = json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": GROUP, "kind": "User", "name": subject}],
        });
        (json!({"metadata": metadata, "rules": [rule]}), binding)
    };
    let version = format!("{GROUP}/v1");
    for member in ["m1", "m2"] {
        let client = env.members[member].admin();
        // The member allows impersonating the account, so this permission is not the missing one.
        let rules = json!([{"apiGroups": [""], "resources": ["serviceaccounts", "groups"], "verbs": ["impersonate"]}]);
        let impersonator =
            json!({"kind": "ServiceAccount", "name": "karmada-impersonator", "namespace": "karmada-cluster"});
        grant(&client, "impersonates-robots", rules, impersonator).await;
        let (role, binding) = cluster_role("robot", everything.clone(), name);
        create(&client, &version, "ClusterRole", None, role).await;
        create(&client, &version, "ClusterRoleBinding", None, binding).await;
    }
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    let robot = Caller { groups: groups.map(str::to_owned).into(), ..user(name) };
    let read_live = |path: &'static str| {
        let (env, robot) = (&env, &robot);
        async move { read(env.proxy.cluster("*", robot, path, request(Method::GET, "", "", None)).await).await }
    };
    // No member is queried, because the control plane does not authorize the caller for any of them.
    let (code, list) = read_live(CONFIG_MAPS).await;
    assert_eq!((code, names(&list)), (200, Vec::new()), "{list}");
    wait_until_listed(&env, &robot, &[]).await;
    assert_eq!(get(&env, &robot, &format!("{CONFIG_MAPS}/only-m1"), "").await.0, 404);
    assert_eq!(get(&env, &robot, "/api/v1/namespaces/default/services", "cluster=m1").await.0, 404);

    let (role, binding) = cluster_role(
        "reaches-m1",
        json!({"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "resourceNames": ["m1"], "verbs": ["get"]}),
        name,
    );
    create(&env.control_plane, &version, "ClusterRole", None, role).await;
    create(&env.control_plane, &version, "ClusterRoleBinding", None, binding).await;
    wait_until_listed(&env, &robot, &["m1/both", "m1/only-m1"]).await;
    assert_eq!(get(&env, &robot, &format!("{CONFIG_MAPS}/only-m1"), "").await.0, 200);
    assert_eq!(get(&env, &robot, &format!("{CONFIG_MAPS}/only-m2"), "").await.0, 404);
    assert_eq!(get(&env, &robot, "/api/v1/namespaces/default/services", "cluster=m1").await.0, 200);
    let (code, list) = read_live(CONFIG_MAPS).await;
    let clusters = list.to_string();
    assert!(code == 200 && clusters.contains("only-m1") && !clusters.contains("only-m2"), "{list}");
    env.stop().await;
}

/// `get` does not include `list`: callers with `get` only do not learn names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_empty_with_only_get_permission() {
    let env = test_env().await;
    for (member, rules) in ["m1", "m2"].into_iter().flat_map(|member| rbac_resources().map(|rules| (member, rules))) {
        env.cache.wait_until_complete(&CollectionKey::new(ClusterName::parse(member).unwrap(), rules)).await;
    }
    let alice = user("alice");
    grant_to_alice(&env, "m1", json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]})).await;
    let mut applied_seq = env.cache.searcher().applied_seq();
    while get(&env, &alice, &format!("{CONFIG_MAPS}/only-m1"), "").await.0 != 200 {
        applied_seq.changed().await.unwrap();
    }
    let (code, list) = get(&env, &alice, CONFIG_MAPS, "").await;
    assert_eq!((code, names(&list)), (200, Vec::new()));
    let listed = env.proxy.search_cache(&alice, CONFIG_MAPS, request(Method::GET, "", "", None));
    assert_eq!(names(&read(listed.await).await.1), Vec::<String>::new());
    // The other cluster appears neither in results nor as incomplete.
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let version = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, version).unwrap();
    let version = String::from_utf8(version).unwrap();
    assert!(version.contains("\"m1\"") && !version.contains("m2"), "{version}");
    env.stop().await;
}
