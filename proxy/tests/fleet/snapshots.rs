//! Lists and initial events show the objects at their version, whatever changes before they are read. A watch then sends
//! exactly the changes since that version.

use crowsnest_index::ChangeKind;
use crowsnest_proxy::Body;
use http::{Method, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};

use crate::test_env::{CONFIG_MAPS, LABELLED, TestEnv, admin, config_map, create, read, request, test_env};
use crate::watches::{await_change, read_events};

/// The objects before [`change_objects`].
const OBJECTS: [&str; 4] = ["m1/both m1", "m1/only-m1 m1", "m2/both m2", "m2/only-m2 m2"];
/// The events of [`change_objects`].
const CHANGES: [&str; 6] = [
    "DELETED m1/both m1",
    "ADDED m1/late 1",
    "MODIFIED m1/only-m1 2",
    "DELETED m2/both m2",
    "ADDED m2/both again",
    "DELETED m2/only-m2 m2",
];

/// Deletes, adds, updates, recreates and deselects an object, and waits until the cache has each change.
async fn change_objects(env: &TestEnv) {
    let mut follower = env.cache.follow(env.cache.seq());
    let [m1, m2] = ["m1", "m2"].map(|name| env.members[name].admin());
    let objects_of_m1: Api<ConfigMap> = Api::namespaced(m1.clone(), "default");
    let objects_of_m2: Api<ConfigMap> = Api::namespaced(m2.clone(), "default");
    objects_of_m1.delete("both", &DeleteParams::default()).await.unwrap();
    await_change(&mut follower, ChangeKind::Deleted, "both").await;
    create(&m1, "v1", "ConfigMap", Some("default"), config_map("late", "1")).await;
    await_change(&mut follower, ChangeKind::Added, "late").await;
    let update = Patch::Merge(json!({"data": {"v": "2"}}));
    objects_of_m1.patch("only-m1", &PatchParams::default(), &update).await.unwrap();
    await_change(&mut follower, ChangeKind::Modified, "only-m1").await;
    objects_of_m2.delete("both", &DeleteParams::default()).await.unwrap();
    await_change(&mut follower, ChangeKind::Deleted, "both").await;
    create(&m2, "v1", "ConfigMap", Some("default"), config_map("both", "again")).await;
    await_change(&mut follower, ChangeKind::Added, "both").await;
    let other_label = Patch::Merge(json!({"metadata": {"labels": {"app": "y"}}}));
    objects_of_m2.patch("only-m2", &PatchParams::default(), &other_label).await.unwrap();
    await_change(&mut follower, ChangeKind::Modified, "only-m2").await;
}

/// The cluster, name and value of an object.
fn describe(object: &Value) -> String {
    let metadata = &object["metadata"];
    let cluster = &metadata["annotations"]["resource.karmada.io/cached-from-cluster"];
    let [cluster, name, value] = [cluster, &metadata["name"], &object["data"]["v"]].map(|text| text.as_str().unwrap());
    format!("{cluster}/{name} {value}")
}

/// At least `count` events in order, without bookmarks.
async fn describe_events(body: &mut Body, count: usize) -> Vec<String> {
    let mut described = Vec::new();
    while described.len() < count {
        let events = read_events(body, 1).await;
        let events = events.iter().filter(|event| event["type"] != "BOOKMARK");
        described
            .extend(events.map(|event| format!("{} {}", event["type"].as_str().unwrap(), describe(&event["object"]))));
    }
    described
}

async fn start_list(env: &TestEnv, query: &str) -> Response<Body> {
    env.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, query, "application/json", None)).await
}

#[rstest]
#[case::complete("")]
#[case::page_by_page("&limit=1")]
#[case::pages_across_clusters("&limit=3")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_a_list_sends_exactly_the_changes_since(#[case] limit: &str) {
    let env = test_env().await;
    // The list has its version, but its objects are not read until they have changed.
    let mut response = start_list(&env, &format!("{LABELLED}{limit}")).await;
    change_objects(&env).await;
    let mut listed = Vec::new();
    let version = loop {
        let (code, page) = read(response).await;
        assert_eq!(code, 200, "{page}");
        listed.extend(page["items"].as_array().unwrap().iter().map(describe));
        let token = page["metadata"]["continue"].as_str().unwrap();
        if token.is_empty() {
            break page["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        }
        response = start_list(&env, &format!("{LABELLED}{limit}&continue={token}")).await;
    };
    assert_eq!(listed, OBJECTS);
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={version}")).await;
    assert_eq!(describe_events(&mut body, CHANGES.len()).await, CHANGES);
    env.stop().await;
}

#[rstest]
#[case::without_version("")]
#[case::streaming_list("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_events_precede_all_later_changes(#[case] options: &str) {
    let env = test_env().await;
    // The body is not read until the objects have changed.
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}{options}")).await;
    change_objects(&env).await;
    let mut expected: Vec<String> = OBJECTS.iter().map(|object| format!("ADDED {object}")).collect();
    expected.extend(CHANGES.map(str::to_owned));
    assert_eq!(describe_events(&mut body, expected.len()).await, expected);
    env.stop().await;
}
