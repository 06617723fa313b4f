//! Lists and watches of the fleet-wide proxy while objects and registrations change.

use base64::Engine;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_index::{ChangeKind, Follower};
use crowsnest_proxy::Body;
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Namespaces};
use http::Method;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::test_env::{
    CONFIG_MAPS, LABELLED, TestEnv, admin, config_map, create, events, named, names, registered, request, test_env,
};

fn config_maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

/// At least `count` events, including others that arrive in the same chunk.
pub async fn read_events(body: &mut Body, count: usize) -> Vec<Value> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(events(body).await);
    }
    received
}

/// At least `count` events as `ADDED m1/name`, sorted.
pub async fn event_summaries(body: &mut Body, count: usize) -> Vec<String> {
    let text = |event: &Value| {
        let metadata = &event["object"]["metadata"];
        let cluster = &metadata["annotations"]["resource.karmada.io/cached-from-cluster"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{} {}/{}", text(&event["type"]), text(cluster), text(&metadata["name"]))
    };
    let mut summaries: Vec<String> = read_events(body, count).await.iter().map(text).collect();
    summaries.sort();
    summaries
}

/// Updates the object `only-m1`, so that every watch receives an event.
pub async fn update_object(env: &TestEnv, value: &str) {
    let path = format!("{CONFIG_MAPS}/only-m1");
    let (_, mut object) = env.fleet_wide(Method::GET, &path, "", None).await;
    object["data"] = json!({"v": value});
    assert_eq!(env.fleet_wide(Method::PUT, &path, "", Some(object)).await.0, 200);
}

/// Declares another interest, so that the resource is collected independently of registrations.
pub fn keep_collecting(env: &TestEnv) -> InterestGuard {
    env.declare(Interest { reason: InterestReason::Search, ..registered(Clusters::All, config_maps()) })
}

/// Replaces the registration with one of these clusters.
pub fn register(env: &mut TestEnv, names: &[&str]) {
    let next = env.declare(registered(named(names), config_maps()));
    drop(std::mem::replace(&mut env.interest, next));
}

/// Waits until the cache has seen this change of an object.
pub async fn await_change(follower: &mut Follower, kind: ChangeKind, name: &str) {
    loop {
        let changes = follower.next().await.unwrap().unwrap();
        if changes.iter().any(|change| change.kind == kind && *change.object.record.key.name == *name) {
            return;
        }
    }
}

/// The resourceVersion of the current list.
pub async fn position(env: &TestEnv) -> String {
    let (_, list) = env.fleet_wide(Method::GET, CONFIG_MAPS, LABELLED, None).await;
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// All pages show the snapshot of the first page; the watch sends later changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_a_list_are_sent_once() {
    let env = test_env().await;
    let (_, first) = env.fleet_wide(Method::GET, CONFIG_MAPS, &format!("{LABELLED}&limit=1"), None).await;
    assert_eq!(names(&first), ["m1/both"]);
    let mut follower = env.cache.follow(env.cache.seq());
    update_object(&env, "1").await;
    await_change(&mut follower, ChangeKind::Modified, "only-m1").await;
    create(&env.members["m1"].admin(), "v1", "ConfigMap", Some("default"), config_map("late", "1")).await;
    await_change(&mut follower, ChangeKind::Added, "late").await;
    let m2_config_maps: Api<ConfigMap> = Api::namespaced(env.members["m2"].admin(), "default");
    m2_config_maps.delete("both", &DeleteParams::default()).await.unwrap();
    await_change(&mut follower, ChangeKind::Deleted, "both").await;
    let other_label = json!({"metadata": {"labels": {"app": "y"}}, "data": {"v": "2"}});
    m2_config_maps.patch("only-m2", &PatchParams::default(), &Patch::Merge(other_label)).await.unwrap();
    await_change(&mut follower, ChangeKind::Modified, "only-m2").await;

    let next_query = format!("{LABELLED}&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let (_, next_page) = env.fleet_wide(Method::GET, CONFIG_MAPS, &next_query, None).await;
    assert_eq!(names(&next_page), ["m1/only-m1", "m2/both", "m2/only-m2"]);
    let values: Vec<&Value> = next_page["items"].as_array().unwrap().iter().map(|item| &item["data"]["v"]).collect();
    assert_eq!(values, ["m1", "m2", "m2"]);
    let version = next_page["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(first["metadata"]["resourceVersion"], version);
    // A list of exactly this version, or with a limit, shows the snapshot; any other shows the current state.
    let (snapshot, current) =
        (["m1/both", "m1/only-m1", "m2/both", "m2/only-m2"], ["m1/both", "m1/late", "m1/only-m1"]);
    for (query, expected) in [
        ("&resourceVersionMatch=Exact", &snapshot[..]),
        ("&limit=9", &snapshot[..]),
        ("&limit=9&resourceVersionMatch=NotOlderThan", &current[..]),
        ("", &current[..]),
    ] {
        let query = format!("{LABELLED}&resourceVersion={version}{query}");
        let (_, list) = env.fleet_wide(Method::GET, CONFIG_MAPS, &query, None).await;
        assert_eq!(names(&list), expected, "{query}");
    }
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={version}")).await;
    let since = ["ADDED m1/late", "DELETED m2/both", "DELETED m2/only-m2", "MODIFIED m1/only-m1"];
    assert_eq!(event_summaries(&mut body, 4).await, since);
    env.stop().await;
}

/// DELETED for an object that no longer matches has its last matching state and the version of the change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_events_have_the_last_matching_state() {
    let env = test_env().await;
    let position = position(&env).await;
    let m2_config_maps: Api<ConfigMap> = Api::namespaced(env.members["m2"].admin(), "default");
    let mut version = String::new();
    for (label, value) in [("y", "2"), ("y", "3"), ("x", "4")] {
        let change = json!({"metadata": {"labels": {"app": label}}, "data": {"v": value}});
        let changed = m2_config_maps.patch("only-m2", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        if value == "2" {
            version = changed.metadata.resource_version.unwrap();
        }
    }
    let from = |position: &str| format!("{LABELLED}&resourceVersion={position}");
    let mut body = env.watch(CONFIG_MAPS, &from(&position)).await;
    let events = read_events(&mut body, 2).await;
    let shown = |events: &[Value]| -> Vec<Value> {
        let shown = |event: &Value| {
            let object = &event["object"];
            json!([event["type"], object["metadata"]["labels"]["app"], object["data"]["v"]])
        };
        events.iter().map(shown).collect()
    };
    assert_eq!(shown(&events), [json!(["DELETED", "x", "m2"]), json!(["ADDED", "x", "4"])]);
    let deleted_version = events[0]["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let versions = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(deleted_version).unwrap();
    let versions: Value = serde_json::from_slice(&versions).unwrap();
    assert!(versions["m2"].as_str().unwrap().starts_with(&format!("{version}.")), "{versions} {version}");
    // A watch from that version sends the events after it.
    let mut resumed = env.watch(CONFIG_MAPS, &from(deleted_version)).await;
    assert_eq!(shown(&read_events(&mut resumed, 1).await), [json!(["ADDED", "x", "4"])]);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continue_tokens_are_valid_for_one_list_and_its_clusters() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let (_, first) = env.fleet_wide(Method::GET, CONFIG_MAPS, &format!("{LABELLED}&limit=3"), None).await;
    assert_eq!(names(&first), ["m1/both", "m1/only-m1", "m2/both"]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let invalid_key = "invalid continue token: continue key is not valid";
    let version_and_token = "specifying resource version is not allowed when using continue";
    for (path, query, reason) in [
        (CONFIG_MAPS, format!("{LABELLED}&continue={}", &token[..20]), invalid_key),
        (CONFIG_MAPS, format!("{LABELLED}&continue={}", &token[..token.len() - 8]), invalid_key),
        (CONFIG_MAPS, format!("{LABELLED}&continue={token}AAAA"), invalid_key),
        (CONFIG_MAPS, format!("continue={token}"), invalid_key),
        ("/api/v1/configmaps", format!("{LABELLED}&continue={token}"), invalid_key),
        (CONFIG_MAPS, format!("{LABELLED}&continue={token}&resourceVersion={version}"), version_and_token),
        (CONFIG_MAPS, "resourceVersion=abc".to_owned(), "invalid resource version \"abc\""),
    ] {
        let (code, status) = env.fleet_wide(Method::GET, path, &query, None).await;
        assert_eq!(
            (code, &status["reason"], &status["message"]),
            (400, &json!("BadRequest"), &json!(reason)),
            "{query}"
        );
    }
    // If a cluster leaves between two pages, its remaining objects are not skipped silently.
    register(&mut env, &["m1"]);
    let next_query = format!("{LABELLED}&continue={token}");
    let (code, status) = env.fleet_wide(Method::GET, CONFIG_MAPS, &next_query, None).await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")), "{status}");
    let restart_query = format!("{LABELLED}&continue={}", status["metadata"]["continue"].as_str().unwrap());
    let (code, next_page) = env.fleet_wide(Method::GET, CONFIG_MAPS, &restart_query, None).await;
    assert_eq!((code, names(&next_page)), (200, Vec::new()), "{next_page}");
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_continues_after_a_cluster_left_whose_objects_were_all_sent() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let cases = [(1, None), (2, Some(vec!["m2/both", "m2/only-m2"])), (3, Some(vec!["m2/only-m2"]))];
    for (limit, expected) in cases {
        register(&mut env, &["m1", "m2"]);
        let (_, first) = env.fleet_wide(Method::GET, CONFIG_MAPS, &format!("{LABELLED}&limit={limit}"), None).await;
        assert_eq!(names(&first), &["m1/both", "m1/only-m1", "m2/both"][..limit]);
        register(&mut env, &["m2"]);
        let next_query = format!("{LABELLED}&continue={}", first["metadata"]["continue"].as_str().unwrap());
        let (code, next_page) = env.fleet_wide(Method::GET, CONFIG_MAPS, &next_query, None).await;
        match expected {
            Some(expected) => assert_eq!(names(&next_page), expected, "limit {limit}"),
            None => assert_eq!((code, &next_page["reason"]), (410, &json!("Expired")), "limit {limit}: {next_page}"),
        }
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_reports_objects_that_enter_and_leave_the_view() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    register(&mut env, &["m1"]);
    let m1_version = position(&env).await;
    let from_m1 = format!("{LABELLED}&resourceVersion={m1_version}");
    let mut body = env.watch(CONFIG_MAPS, &from_m1).await;

    register(&mut env, &["m1", "m2"]);
    let appeared = ["ADDED m2/both", "ADDED m2/only-m2"];
    assert_eq!(event_summaries(&mut body, 2).await, appeared);
    // A watch that resumes from a version without m2 sends the objects of m2.
    let mut resumed = env.watch(CONFIG_MAPS, &from_m1).await;
    assert_eq!(event_summaries(&mut resumed, 2).await, appeared);
    let both_version = position(&env).await;
    let from_both = format!("{LABELLED}&resourceVersion={both_version}");
    let mut with_both = env.watch(CONFIG_MAPS, &from_both).await;
    update_object(&env, "1").await;
    for body in [&mut body, &mut resumed, &mut with_both] {
        assert_eq!(event_summaries(body, 1).await, ["MODIFIED m1/only-m1"]);
    }

    register(&mut env, &["m1"]);
    for body in [&mut body, &mut resumed, &mut with_both] {
        assert_eq!(event_summaries(body, 2).await, ["DELETED m2/both", "DELETED m2/only-m2"]);
    }
    update_object(&env, "2").await;
    assert_eq!(event_summaries(&mut body, 1).await, ["MODIFIED m1/only-m1"]);
    // A watch from this version would not send that the objects of m2 left the view.
    let (code, status) = env.fleet_wide(Method::GET, CONFIG_MAPS, &format!("{from_both}&watch=true"), None).await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_left_sends_no_more_events() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let start = position(&env).await;
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={start}")).await;
    register(&mut env, &["m1"]);
    assert_eq!(event_summaries(&mut body, 2).await, ["DELETED m2/both", "DELETED m2/only-m2"]);
    let mut follower = env.cache.follow(env.cache.seq());
    let m2_client = env.members["m2"].admin();
    create(&m2_client, "v1", "ConfigMap", Some("default"), config_map("late", "1")).await;
    await_change(&mut follower, ChangeKind::Added, "late").await;
    let objects: Api<ConfigMap> = Api::namespaced(m2_client, "default");
    for name in ["late", "both"] {
        objects.delete(name, &DeleteParams::default()).await.unwrap();
        await_change(&mut follower, ChangeKind::Deleted, name).await;
    }
    update_object(&env, "1").await;
    assert_eq!(event_summaries(&mut body, 1).await, ["MODIFIED m1/only-m1"]);
    env.stop().await;
}

/// A watch from this version would treat the cluster as known and miss the objects that it has when it is added again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_of_a_leaving_cluster_is_expired() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let start = position(&env).await;
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={start}")).await;
    register(&mut env, &["m1"]);
    let mut left = Vec::new();
    while left.len() < 2 {
        left.extend(events(&mut body).await);
    }
    register(&mut env, &["m1", "m2"]);
    let version = left[1]["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let from_event = format!("{LABELLED}&resourceVersion={version}&watch=true");
    let (code, status) = env.fleet_wide(Method::GET, CONFIG_MAPS, &from_event, None).await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    env.stop().await;
}

/// The objects are deleted before the watch learns that their cluster was removed from the view. A watch from the version of
/// such an event must neither miss the other deletion nor repeat earlier changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_event_of_a_cluster_that_left_does_not_have_an_earlier_version() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let objects: Api<ConfigMap> = Api::namespaced(env.members["m2"].admin(), "default");
    let start = position(&env).await;
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={start}")).await;
    let mut follower = env.cache.follow(env.cache.seq());
    let patch = Patch::Merge(json!({"data": {"v": "2"}}));
    objects.patch("both", &PatchParams::default(), &patch).await.unwrap();
    await_change(&mut follower, ChangeKind::Modified, "both").await;
    assert_eq!(event_summaries(&mut body, 1).await, ["MODIFIED m2/both"]);
    register(&mut env, &["m1"]);
    for name in ["both", "only-m2"] {
        objects.delete(name, &DeleteParams::default()).await.unwrap();
        await_change(&mut follower, ChangeKind::Deleted, name).await;
    }
    let left = read_events(&mut body, 2).await;
    register(&mut env, &["m1", "m2"]);
    for (nth, event) in left.iter().enumerate() {
        assert_eq!(event["type"], "DELETED", "{event}");
        let version = event["object"]["metadata"]["resourceVersion"].as_str().unwrap();
        let query = format!("{LABELLED}&resourceVersion={version}&watch=true&timeoutSeconds=1");
        let request = request(Method::GET, &query, "application/json", None);
        let response = env.proxy.fleet_wide(&admin(), CONFIG_MAPS, request).await;
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body);
        assert!(body.matches("DELETED").count() == 1 - nth && !body.contains("MODIFIED"), "{body}");
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_without_clusters_continues_when_clusters_are_added() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    register(&mut env, &[]);
    let empty_version = position(&env).await;
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={empty_version}")).await;
    register(&mut env, &["m1", "m2"]);
    let mut appeared = Vec::new();
    while appeared.len() < 4 {
        appeared.extend(events(&mut body).await);
    }
    // A watch that resumes from the last event sends the objects of m2 only, because its version includes m1.
    let last = &appeared[3]["object"]["metadata"];
    assert_eq!(last["annotations"]["resource.karmada.io/cached-from-cluster"], "m2", "{last}");
    let from_last = format!("{LABELLED}&resourceVersion={}", last["resourceVersion"].as_str().unwrap());
    let mut resumed = env.watch(CONFIG_MAPS, &from_last).await;
    assert_eq!(event_summaries(&mut resumed, 2).await, ["ADDED m2/both", "ADDED m2/only-m2"]);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_from_a_future_version_or_a_version_of_another_cache_are_expired() {
    let env = test_env().await;
    let cache_id = env.cache.id();
    for (forged, listed) in [
        (format!(r#"{{"m1":"7.99999999.{cache_id}","m2":"7.1.{cache_id}"}}"#), 410),
        // A list needs no cache position.
        (r#"{"m1":"7.1.another","m2":"7.1.another"}"#.to_owned(), 200),
        (r#"{"m1":"7.1","m2":"7.1"}"#.to_owned(), 200),
    ] {
        let version = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&forged);
        let query = format!("{LABELLED}&resourceVersion={version}");
        assert_eq!(env.fleet_wide(Method::GET, CONFIG_MAPS, &query, None).await.0, listed, "{forged}");
        let query = format!("{query}&watch=true");
        let (code, status) = env.fleet_wide(Method::GET, CONFIG_MAPS, &query, None).await;
        assert_eq!((code, &status["reason"]), (410, &json!("Expired")), "{forged}");
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_events_are_sent_on_request_only() {
    let env = test_env().await;
    let initial = |sends_initial: bool| {
        format!("{LABELLED}&resourceVersionMatch=NotOlderThan&sendInitialEvents={sends_initial}&timeoutSeconds=0")
    };
    let mut with_initial = env.watch(CONFIG_MAPS, &initial(true)).await;
    assert_eq!(
        event_summaries(&mut with_initial, 4).await,
        ["ADDED m1/both", "ADDED m1/only-m1", "ADDED m2/both", "ADDED m2/only-m2"]
    );
    let mut without_initial = env.watch(CONFIG_MAPS, &initial(false)).await;
    update_object(&env, "1").await;
    for body in [&mut with_initial, &mut without_initial] {
        assert_eq!(event_summaries(body, 1).await, ["MODIFIED m1/only-m1"]);
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_widens_sends_its_new_objects() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let interest_in = |names: &[&str]| Interest {
        namespaces: Namespaces::Names(names.iter().map(|name| (*name).to_owned()).collect()),
        ..registered(Clusters::All, config_maps())
    };
    let replace_registration = |env: &mut TestEnv, interest: Interest| {
        let next = env.declare(interest);
        drop(std::mem::replace(&mut env.interest, next));
    };
    replace_registration(&mut env, interest_in(&["default"]));
    let mut follower = env.cache.follow(env.cache.seq());
    let admin = env.members["m1"].admin();
    create(&admin, "v1", "Namespace", None, json!({"metadata": {"name": "other"}})).await;
    create(&admin, "v1", "ConfigMap", Some("other"), config_map("in-other", "1")).await;
    await_change(&mut follower, ChangeKind::Added, "in-other").await;
    let all_namespaces = "/api/v1/configmaps";
    let mut body = env
        .watch(all_namespaces, &format!("{LABELLED}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"))
        .await;
    assert_eq!(event_summaries(&mut body, 4).await.len(), 4);
    replace_registration(&mut env, registered(Clusters::All, config_maps()));
    assert_eq!(event_summaries(&mut body, 1).await, ["ADDED m1/in-other"]);
    update_object(&env, "1").await;
    assert_eq!(event_summaries(&mut body, 1).await, ["MODIFIED m1/only-m1"]);
    replace_registration(&mut env, interest_in(&["default"]));
    assert_eq!(event_summaries(&mut body, 1).await, ["DELETED m1/in-other"]);
    env.stop().await;
}

/// A watch from such a version would not send the objects that entered or left the view in clusters that it includes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_of_other_namespaces_is_expired() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let replace_registration = |env: &mut TestEnv, namespaces: Namespaces| {
        let next = env.declare(Interest { namespaces, ..registered(Clusters::All, config_maps()) });
        drop(std::mem::replace(&mut env.interest, next));
    };
    let default_namespace = || Namespaces::Names(["default".to_owned()].into());
    replace_registration(&mut env, default_namespace());
    let mut follower = env.cache.follow(env.cache.seq());
    let admin = env.members["m1"].admin();
    create(&admin, "v1", "Namespace", None, json!({"metadata": {"name": "other"}})).await;
    create(&admin, "v1", "ConfigMap", Some("other"), config_map("in-other", "1")).await;
    await_change(&mut follower, ChangeKind::Added, "in-other").await;
    let narrow = position(&env).await;
    let all_namespaces = "/api/v1/configmaps";
    // The version of a list of one namespace is valid for a list of all registered namespaces.
    let mut live = env.watch(all_namespaces, &format!("{LABELLED}&resourceVersion={narrow}")).await;
    replace_registration(&mut env, Namespaces::All);
    let wide = position(&env).await;
    let appeared = events(&mut live).await.remove(0);
    assert_eq!(appeared["object"]["metadata"]["name"], "in-other");
    update_object(&env, "1").await;
    let event = events(&mut live).await.remove(0);
    let version = |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let later_version = version(&event);
    let mut resumed = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={later_version}")).await;
    update_object(&env, "2").await;
    for body in [&mut live, &mut resumed] {
        assert_eq!(event_summaries(body, 1).await, ["MODIFIED m1/only-m1"]);
    }
    async fn assert_expired(env: &TestEnv, version: &str) {
        let query = format!("{LABELLED}&resourceVersion={version}&watch=true");
        let (code, status) = env.fleet_wide(Method::GET, CONFIG_MAPS, &query, None).await;
        assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    }
    assert_expired(&env, &narrow).await;
    assert_expired(&env, &version(&appeared)).await;
    replace_registration(&mut env, default_namespace());
    assert_expired(&env, &wide).await;
    assert_expired(&env, &later_version).await;
    env.stop().await;
}

/// Informers expect all objects and then one bookmark, even if clusters are still being collected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_initial_events_waits_for_clusters_that_are_still_collected() {
    let mut env = test_env().await;
    register(&mut env, &["m1"]);
    // The other cluster was not collected before.
    register(&mut env, &["m1", "m2"]);
    let begin = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&{begin}")).await;
    let (mut added, mut bookmarks) = (Vec::new(), 0);
    while bookmarks == 0 {
        for event in events(&mut body).await {
            let metadata = &event["object"]["metadata"];
            match event["type"].as_str() {
                Some("BOOKMARK") => {
                    assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true", "{event}");
                    bookmarks += 1;
                }
                _ => added.push(format!(
                    "{} {}/{}",
                    event["type"].as_str().unwrap(),
                    metadata["annotations"]["resource.karmada.io/cached-from-cluster"].as_str().unwrap(),
                    metadata["name"].as_str().unwrap()
                )),
            }
        }
    }
    added.sort();
    assert_eq!(added, ["ADDED m1/both", "ADDED m1/only-m1", "ADDED m2/both", "ADDED m2/only-m2"]);
    update_object(&env, "1").await;
    assert_eq!(event_summaries(&mut body, 1).await, ["MODIFIED m1/only-m1"]);
    env.stop().await;
}
