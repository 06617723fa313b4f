//! A service account of the control plane is not the member's account of the same name: the member's rules apply to it
//! only while the control plane grants it access to the member. Without that access it does not learn that the member
//! exists.

use crate::cases::{LABEL, NAMESPACES, objects};
use crate::members::{api, config_maps, start};
use crate::{MEMBER_ACCESS, RBAC, TestEnv, create_all, member_access_binding, wait_for_change};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{ChangeKind, SearchRequest};
use crowsnest_search::{LiveEvent, SuggestRequest};
use futures::StreamExt;
use kube::api::DeleteParams;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Numbers of results that a caller gets from each kind of request: hits, facet values, suggested names, similar names,
/// exported objects, visible members.
async fn count_results(env: &TestEnv, caller: &UserInfo) -> [usize; 6] {
    let everything = format!("label:{LABEL}=yes");
    let response = env.search(&everything, caller).await;
    let facets = response.facets.iter().map(|facet| facet.values.len()).sum();
    let similar = env.search("name:appp", caller).await.summary.unwrap().did_you_mean.len();
    let request =
        |query: &str| SuggestRequest { query: query.to_owned(), cursor: usize::MAX, caller: caller.clone(), limit: 50 };
    let names = env.cache.searcher().suggest(&request("name:")).await.unwrap().items.len();
    let exported = env.cache.searcher().export(SearchRequest::new(everything.clone(), caller.clone())).await.unwrap();
    let exported: Vec<_> = exported.map(|hits| hits.unwrap().len()).collect().await;
    let explanation = env.cache.searcher().explain(&SearchRequest::new(everything, caller.clone())).await.unwrap();
    assert_eq!(explanation.plan.hits, Some(response.hits.len() as u64), "{}", caller.name);
    let members = env.cache.searcher().visible_members(caller).await.len();
    assert_eq!(response.skipped, [], "{}", caller.name);
    [response.hits.len(), facets, names, similar, exported.into_iter().sum(), members]
}

/// True if a caller is notified of a change of an object that a reader with all permissions is notified of.
async fn is_notified(env: &TestEnv, caller: &UserInfo, round: &str) -> bool {
    let live = env.cache.searcher().live(SearchRequest::new("kind:configmap", caller.clone()));
    let mut live = Box::pin(live.filter(|event| {
        let counts = matches!(event, Ok(LiveEvent::Changed(_) | LiveEvent::Counts(_)));
        futures::future::ready(counts)
    }));
    let (created, first) = tokio::join!(
        env.member.create(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "shop", "name": format!("new-{round}")}})),
        tokio::time::timeout(Duration::from_secs(30), live.next()),
    );
    let () = created;
    matches!(first.unwrap(), Some(Ok(LiveEvent::Changed(_))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_named_like_members_accounts_have_no_permissions_in_members() {
    let member = start("member1").await;
    let objects = objects();
    let (namespaces, others) = objects.split_at(NAMESPACES.len());
    create_all(&member, namespaces).await;
    create_all(&member, others).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    let subjects = json!([{"kind": "ServiceAccount", "namespace": "ops", "name": "robot"},
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:ops"},
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"});
    let named = json!({"name": "reader"});
    member.create(json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": named, "rules": rules})).await;
    let binding = json!({"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": named, "subjects": subjects, "roleRef": role});
    member.create(binding).await;
    let env = TestEnv::new(member).await;
    let groups = ["system:serviceaccounts", "system:serviceaccounts:ops"];
    let account = UserInfo::new("system:serviceaccount:ops:robot", groups);
    // A user with the groups of the account is not the member's account either.
    let grouped = UserInfo::new("bob", groups);
    let ann = UserInfo::new("ann", ["staff"]);
    let ann_counts = count_results(&env, &ann).await;
    assert_eq!((ann_counts[0], ann_counts[4], ann_counts[5]), (6, 6, 1), "{ann_counts:?}");
    let admin = env.control_plane.server.admin();
    let member1 = ClusterName::parse("member1").unwrap();
    for round in ["first", "second"] {
        for caller in [&account, &grouped] {
            let counts = count_results(&env, caller).await;
            assert_eq!((counts[0], counts[4], counts[5]), (6, 6, 1), "{round} {}", caller.name);
            assert!(env.cache.searcher().rules_apply_in(caller, &member1));
            assert!(
                env.cache
                    .searcher()
                    .read_permissions(caller, &config_maps(), ReadKind::ByName)
                    .await
                    .readable_objects(&member1)
                    .unwrap()
                    .is_everything()
            );
        }
        let mut follower = env.cache.follow(env.cache.seq());
        api(&admin, &member_access_binding()).delete(MEMBER_ACCESS, &DeleteParams::default()).await.unwrap();
        env.assert_applied_soon(wait_for_change(&mut follower, MEMBER_ACCESS, ChangeKind::Deleted).await).await;
        for caller in [&account, &grouped] {
            assert_eq!(count_results(&env, caller).await, [0; 6], "{round} {}", caller.name);
            assert!(!env.cache.searcher().rules_apply_in(caller, &member1));
            for reading in [ReadKind::ByName, ReadKind::Listing] {
                let read_permissions = env.cache.searcher().read_permissions(caller, &config_maps(), reading).await;
                assert_eq!(read_permissions.namespace_limit(&member1), Some(BTreeSet::new()), "{reading:?}");
            }
        }
        assert!(!is_notified(&env, &account, round).await, "an unauthorized caller was notified");
        assert!(count_results(&env, &ann).await[0] >= 6, "other callers' permissions are unchanged");
        env.control_plane.create(member_access_binding()).await;
        env.assert_applied_soon(wait_for_change(&mut follower, MEMBER_ACCESS, ChangeKind::Added).await).await;
    }
    assert!(is_notified(&env, &account, "last").await);
    assert_eq!(env.cache.metrics().access_reviews.get(), 0, "the rules in the cache decide");
    env.stop().await;
}
