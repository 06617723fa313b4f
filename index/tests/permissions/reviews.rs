//! Members whose RBAC objects the cache is not allowed to read. Their API servers decide what callers may list, by
//! SelfSubjectAccessReviews. A member that does not respond is reported and delays no other.

use crate::cases::{LABEL, NAMESPACES, objects};
use crate::members::{Member, TOKEN, config_maps, control_plane, create, name, start_on, within};
use crate::{RBAC, create_all};
use axum::Router;
use axum::routing::post;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use crowsnest_index::{CacheOptions, CollectionKey, GlobalCache, SearchRequest, SearchResponse};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_search::authorization::rbac_resources;
use crowsnest_store::{Clusters, Interest, InterestReason, Interests, Namespaces};
use kube::Client;
use serde_json::{Value, json};
use std::future::pending;
use std::time::Duration;
use tokio::net::TcpListener;

const COLLECTOR: &str = "collector-token";
/// Part of the message about a member that has not responded in time.
const REVIEWS_IN_PROGRESS: &str = "access reviews are in progress";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn binding(namespace: Option<&str>, role: &str, kind: &str, subject: &str) -> Value {
    let binding_kind = if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" };
    json!({"apiVersion": RBAC, "kind": binding_kind, "metadata": {"namespace": namespace, "name": format!("{subject}-{role}")},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}})
}

fn role(name: &str, rule: Value) -> Value {
    json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]})
}

async fn member(cluster: &str, extra_routes: fn(&ApiServer) -> Router) -> Member {
    let mut config = Config::new(cluster, Data::Memory);
    config.accept_token(COLLECTOR, UserInfo { name: "collector".to_owned(), ..UserInfo::default() });
    let member = start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), config, extra_routes).await;
    let objects = objects();
    let (namespaces, others) = objects.split_at(NAMESPACES.len());
    create_all(&member, namespaces).await;
    let config_maps = others.iter().filter(|object| object["kind"] == "ConfigMap").cloned();
    create_all(&member, &config_maps.collect::<Vec<_>>()).await;
    let rule = |verbs: &[&str]| json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs});
    let mut named = rule(&["list"]);
    named["resourceNames"] = json!(["app"]);
    let cache_rule = json!({"apiGroups": [""], "resources": ["configmaps", "namespaces"], "verbs": ["list", "watch"]});
    let everything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    create_all(
        &member,
        &[
            role("collects", cache_rule),
            role("lists", rule(&["list"])),
            role("gets", rule(&["get"])),
            role("lists-one", named),
            role("full-access", everything),
            binding(None, "collects", "User", "collector"),
            binding(Some("shop"), "lists", "User", "ann"),
            binding(Some("ops"), "lists", "Group", "operators"),
            binding(None, "lists", "User", "cyd"),
            binding(None, "full-access", "User", "dan"),
            binding(Some("shop"), "gets", "User", "fay"),
            binding(None, "lists-one", "User", "gus"),
        ],
    )
    .await;
    member
}

/// Registers a member: the cache's token may list only two resources, the impersonator's token may impersonate.
async fn register(control_plane: &Client, cluster: &str, member: &Member) {
    let impersonator = format!("{cluster}-impersonator");
    let secret = |name: &str, token: &str| {
        json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": "karmada-cluster", "name": name}, "stringData": {"token": token}})
    };
    create(control_plane, secret(cluster, COLLECTOR)).await;
    create(control_plane, secret(&impersonator, TOKEN)).await;
    let reference = |name: &str| json!({"namespace": "karmada-cluster", "name": name});
    create(
        control_plane,
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": cluster},
            "spec": {"syncMode": "Push", "apiEndpoint": member.config.cluster_url.to_string(),
                "insecureSkipTLSVerification": true, "secretRef": reference(cluster),
                "impersonatorSecretRef": reference(&impersonator)}}),
    )
    .await;
}

/// Cluster and namespace of each hit, sorted: `cluster/namespace`.
fn hit_namespaces(response: &SearchResponse) -> Vec<String> {
    let namespace_of = |hit: &crowsnest_index::Hit| {
        let key = &hit.object.record.key;
        format!("{}/{}", key.cluster(), key.namespace)
    };
    let mut namespaces: Vec<String> = response.hits.iter().map(namespace_of).collect();
    namespaces.sort();
    assert_eq!(response.summary.as_ref().unwrap().total, namespaces.len() as u64);
    namespaces
}

fn reason<'a>(response: &'a SearchResponse, cluster: &str) -> &'a str {
    &response.skipped.iter().find(|skipped| skipped.cluster.as_str() == cluster).unwrap().reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_whose_rules_are_not_cached_are_sent_reviews() {
    let control_plane = control_plane().await;
    let client = control_plane.server.admin();
    let responding = member("member1", |_| Router::new()).await;
    let hanging = member("member2", |_| Router::new().route(REVIEWS, post(pending::<()>))).await;
    register(&client, "member1", &responding).await;
    register(&client, "member2", &hanging).await;
    // All users may see the members: results name an incomplete member only to users who may see it.
    let clusters = json!({"apiGroups": ["cluster.karmada.io"], "resources": ["clusters"], "verbs": ["list"]});
    create(&client, role("lists-clusters", clusters)).await;
    create(&client, binding(None, "lists-clusters", "Group", "system:authenticated")).await;
    let fleet = Fleet::start(client, FleetOptions::on_loopback()).await.unwrap();
    let resources = [config_maps(), Gvr::new("", "v1", "namespaces")];
    let directory = tempfile::tempdir().unwrap();
    let options = CacheOptions {
        collect_everything: false,
        collect_control_plane: false,
        text_commit_interval: Duration::from_millis(20),
        ..CacheOptions::new(directory.path())
    };
    let declared = Interests::default();
    let interests = resources.clone().map(|resource| {
        let (clusters, namespaces) = (Clusters::All, Namespaces::All);
        declared.declare(Interest { clusters, resource, namespaces, reason: InterestReason::Other("test".to_owned()) })
    });
    let cache = GlobalCache::open_with(fleet.clone(), options, declared).await.unwrap();
    for cluster in ["member1", "member2"] {
        for resource in resources.clone() {
            within("the first list", cache.wait_until_complete(&CollectionKey::new(name(cluster), resource))).await;
        }
    }
    for resource in rbac_resources() {
        let own = CollectionKey::new(ClusterName::control_plane(), resource);
        within("the control plane's rules", cache.wait_until_complete(&own)).await;
    }
    let seq = cache.seq();
    within("the text index", cache.searcher().searchable().wait_for(|reached| *reached >= seq)).await.unwrap();
    within("the rules", cache.searcher().applied_seq().wait_for(|reached| *reached >= seq)).await.unwrap();

    let everything = |cluster: &str| {
        let counts = [(2, "lab"), (2, "ops"), (2, "shop")];
        let namespaces = std::iter::repeat_n(format!("{cluster}/"), NAMESPACES.len());
        let config_maps = counts.iter().flat_map(|(count, ns)| std::iter::repeat_n(format!("{cluster}/{ns}"), *count));
        namespaces.chain(config_maps).collect::<Vec<_>>()
    };
    let (ann, eve) = (UserInfo::new("ann", ["staff"]), UserInfo::new("eve", ["staff"]));
    let config_maps_in = |namespace: &str| std::iter::repeat_n(format!("member1/{namespace}"), 2).collect::<Vec<_>>();
    let all = everything("member1");
    let cases = [
        (ann.clone(), config_maps_in("shop")),
        (UserInfo::new("bob", ["operators", "system:authenticated"]), config_maps_in("ops")),
        (UserInfo::new("cyd", ["staff"]), all[NAMESPACES.len()..].to_vec()),
        (UserInfo::new("dan", ["staff"]), all.clone()),
        (eve.clone(), Vec::new()),
        // Only the permission to list is reviewed.
        (UserInfo::new("fay", ["staff"]), Vec::new()),
        (UserInfo::new("gus", ["staff"]), Vec::new()),
        // An empty name would be reviewed with the permissions of the requesting account.
        (UserInfo::new("", ["system:authenticated"]), Vec::new()),
        (UserInfo::new("root", [MASTERS]), [all, everything("member2")].concat()),
    ];
    let search = async |caller: &UserInfo| {
        cache.searcher().search_all(SearchRequest::new(format!("label:{LABEL}=yes"), caller.clone())).await.unwrap()
    };
    // Searches until the reviews of member1 are complete.
    let search_with_reviews = async |caller: &UserInfo| loop {
        let response = search(caller).await;
        if caller.is_master() || !reason(&response, "member1").contains(REVIEWS_IN_PROGRESS) {
            return response;
        }
    };
    let reviews = || cache.metrics().access_reviews.get();
    for (caller, expected) in cases {
        let before = reviews();
        // The hanging member delays no other: `within` fails long before the requests to that member do.
        within("an answer without the hanging member", search(&caller)).await;
        let response = within("complete reviews of member1", search_with_reviews(&caller)).await;
        assert_eq!(hit_namespaces(&response), expected, "{}", caller.name);
        let sent = reviews() - before;
        match caller.name.as_str() {
            "root" => assert_eq!(sent, 0, "masters need no reviews"),
            "" => assert!(sent == 0 && reason(&response, "member1").contains("empty"), "{:?}", response.skipped),
            // Reviews of member1: all resources; each of the two resources; ConfigMaps in three namespaces and in
            // kube-system. And the first review of the hanging member.
            "eve" => assert_eq!(sent, 1 + 2 + 4 + 1),
            _ => assert!(reason(&response, "member2").contains("access reviews"), "{:?}", response.skipped),
        }
    }
    // Results are cached: no review is sent again, including to the hanging member.
    let before = reviews();
    assert_eq!(hit_namespaces(&search(&eve).await), Vec::<String>::new());
    assert_eq!(reviews(), before);
    drop(interests);
    cache.stop().await;
    fleet.stop().await;
    responding.shut_down().await;
    hanging.shut_down().await;
    control_plane.shut_down().await;
}
