//! Lists and watches of `clusters/*`, which reads the members live.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, StatusCode, header};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::test_env::{
    CONFIG_MAPS, LABELLED, TestEnv, admin, config_map, create, events, grant, names, read, request, test_env, user,
};

const ALL: [&str; 4] = ["m1/both", "m1/only-m1", "m2/both", "m2/only-m2"];

async fn list(env: &TestEnv, query: &str) -> Value {
    let (code, list) = env.read_all_clusters(&admin(), CONFIG_MAPS, query, "application/json").await;
    assert_eq!(code, 200, "{list}");
    list
}

fn config_maps(env: &TestEnv, member: &str) -> Api<ConfigMap> {
    Api::namespaced(env.members[member].admin(), "default")
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The members' own versions in a merged resourceVersion.
fn own_versions(version: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(version).unwrap()).unwrap()
}

/// Types, names and values of events.
fn summaries(events: &[Value]) -> Vec<String> {
    let text = |event: &Value| {
        let object = &event["object"];
        let name = names(&json!({"items": [object]})).remove(0);
        format!("{} {name} {}", event["type"].as_str().unwrap(), object["data"]["v"].as_str().unwrap_or_default())
    };
    events.iter().map(text).collect()
}

/// At least `count` events, including others that arrive in the same chunk.
async fn read_events(body: &mut crowsnest_proxy::Body, count: usize) -> Vec<Value> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(events(body).await);
    }
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_show_the_snapshot_of_the_first_one() {
    let env = test_env().await;
    let all = list(&env, LABELLED).await;
    assert_eq!((names(&all), &all["kind"]), (ALL.map(str::to_owned).to_vec(), &json!("ConfigMapList")));
    let own_version = config_maps(&env, "m2").get("both").await.unwrap().metadata.resource_version;
    assert_eq!(own_versions(&version(&all["items"][2])), json!({"m2": own_version}));
    for limit in 1..=5 {
        let (mut paged, mut query, mut versions) = (Vec::new(), format!("{LABELLED}&limit={limit}"), Vec::new());
        loop {
            let page = list(&env, &query).await;
            paged.extend(names(&page));
            versions.push(version(&page));
            match page["metadata"]["continue"].as_str() {
                Some("") | None => break,
                Some(token) => query = format!("{LABELLED}&limit={limit}&continue={token}"),
            }
        }
        versions.dedup();
        assert_eq!((paged, versions.len()), (names(&all), 1), "limit {limit}");
    }
    // Changes between two pages are not shown.
    let first = list(&env, &format!("{LABELLED}&limit=1")).await;
    let m2_config_maps = config_maps(&env, "m2");
    m2_config_maps.delete("both", &DeleteParams::default()).await.unwrap();
    create(&env.members["m1"].admin(), "v1", "ConfigMap", Some("default"), config_map("late", "1")).await;
    let next_query = format!("{LABELLED}&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let next_page = list(&env, &next_query).await;
    assert_eq!(
        (names(&next_page), version(&next_page)),
        (ALL[1..].iter().map(|n| (*n).to_owned()).collect(), version(&first))
    );
    // A list of exactly this version, or with a limit, shows the snapshot; any other shows the current state.
    for (query, is_snapshot) in [
        ("&resourceVersionMatch=Exact", true),
        ("&limit=9", true),
        ("&limit=9&resourceVersionMatch=NotOlderThan", false),
        ("", false),
    ] {
        let listed = list(&env, &format!("{LABELLED}&resourceVersion={}{query}", version(&first))).await;
        let has_late = names(&listed).contains(&"m1/late".to_owned());
        assert_eq!((version(&listed) == version(&first), has_late), (is_snapshot, !is_snapshot), "{query}");
        assert_eq!(names(&listed).len(), 4, "{query}");
    }
    // A watch from the list sends the changes.
    let watch = format!("{LABELLED}&resourceVersion={}", version(&first));
    let mut body = env.watch_all_clusters(&admin(), CONFIG_MAPS, &watch).await.into_body();
    let mut changes = summaries(&read_events(&mut body, 2).await);
    changes.sort();
    assert_eq!(changes, ["ADDED m1/late 1", "DELETED m2/both m2"]);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_valid_for_one_list_and_its_members() {
    let env = test_env().await;
    let first = list(&env, &format!("{LABELLED}&limit=3")).await;
    assert_eq!(names(&first), ["m1/both", "m1/only-m1", "m2/both"]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, fleet_wide_list) = env.fleet_wide(Method::GET, CONFIG_MAPS, &format!("{LABELLED}&limit=3"), None).await;
    let invalid_key = "invalid continue token: continue key is not valid";
    let version_and_token = "specifying resource version is not allowed when using continue";
    for (path, query, reason) in [
        (CONFIG_MAPS, format!("{LABELLED}&continue=xyz"), invalid_key),
        (CONFIG_MAPS, format!("{LABELLED}&continue={}", &token[..token.len() - 8]), invalid_key),
        (CONFIG_MAPS, format!("{LABELLED}&continue={token}AAAA"), invalid_key),
        (
            CONFIG_MAPS,
            format!("{LABELLED}&continue={}", fleet_wide_list["metadata"]["continue"].as_str().unwrap()),
            invalid_key,
        ),
        (CONFIG_MAPS, format!("continue={token}"), invalid_key),
        ("/api/v1/configmaps", format!("{LABELLED}&continue={token}"), invalid_key),
        (CONFIG_MAPS, format!("{LABELLED}&continue={token}&resourceVersion={}", version(&first)), version_and_token),
        (CONFIG_MAPS, "resourceVersion=abc".to_owned(), "invalid resource version \"abc\""),
    ] {
        let (code, status) = env.read_all_clusters(&admin(), path, &query, "").await;
        assert_eq!(
            (code, &status["reason"], &status["message"]),
            (400, &json!("BadRequest"), &json!(reason)),
            "{query}"
        );
    }
    // Objects of a member that leaves between two pages are not skipped silently.
    let mut watch =
        env.watch_all_clusters(&admin(), CONFIG_MAPS, &format!("resourceVersion={}", version(&first))).await;
    let exact = format!("{LABELLED}&resourceVersion={}&resourceVersionMatch=Exact", version(&first));
    assert_eq!(list(&env, &exact).await["items"].as_array().unwrap().len(), 4);
    env.leave("m2").await;
    let (code, status) =
        env.read_all_clusters(&admin(), CONFIG_MAPS, &format!("{LABELLED}&continue={token}"), "").await;
    assert_eq!((code, &status["reason"], status["metadata"].get("continue")), (410, &json!("Expired"), None));
    let (code, status) = env.read_all_clusters(&admin(), CONFIG_MAPS, &exact, "").await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")), "{status}");
    let last = read_events(watch.body_mut(), 1).await.pop().unwrap();
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)), "{last}");
    let since = format!("resourceVersion={}", version(&first));
    assert_eq!(env.watch_all_clusters(&admin(), CONFIG_MAPS, &since).await.status(), StatusCode::GONE);
    env.stop().await;
}

/// The response to a token whose snapshot a member no longer keeps contains a token for the current state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_a_member_no_longer_keeps_expires() {
    let env = test_env().await;
    let first = list(&env, &format!("{LABELLED}&limit=1")).await;
    let next_query = |list: &Value| format!("{LABELLED}&continue={}", list["metadata"]["continue"].as_str().unwrap());
    let member = &env.members["m1"];
    create(&member.admin(), "v1", "ConfigMap", Some("default"), config_map("late", "1")).await;
    let store = &member.registry().store;
    store.compact(store.revision());
    let (code, status) = env.read_all_clusters(&admin(), CONFIG_MAPS, &next_query(&first), "").await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")), "{status}");
    let list = list(&env, &next_query(&status)).await;
    assert_eq!(names(&list), ["m1/late", "m1/only-m1", "m2/both", "m2/only-m2"]);
    let since = format!("{LABELLED}&resourceVersion={}", version(&first));
    let response = env.watch_all_clusters(&admin(), CONFIG_MAPS, &since).await;
    let is_gone = response.status() == StatusCode::GONE;
    assert!(is_gone || read_events(&mut response.into_body(), 1).await[0]["object"]["code"] == 410);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_leaves_the_selection_is_sent_in_its_last_matching_state() {
    let env = test_env().await;
    let start = version(&list(&env, LABELLED).await);
    let m2_config_maps = config_maps(&env, "m2");
    let mut left_at = String::new();
    for (label, value) in [("y", "2"), ("y", "3"), ("x", "4")] {
        let change = json!({"metadata": {"labels": {"app": label}}, "data": {"v": value}});
        let changed = m2_config_maps.patch("only-m2", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        if value == "2" {
            left_at = changed.metadata.resource_version.unwrap();
        }
    }
    let from = |version: &str| format!("{LABELLED}&resourceVersion={version}");
    let mut body = env.watch_all_clusters(&admin(), CONFIG_MAPS, &from(&start)).await.into_body();
    let events = read_events(&mut body, 2).await;
    assert_eq!(summaries(&events), ["DELETED m2/only-m2 m2", "ADDED m2/only-m2 4"]);
    let versions = own_versions(&version(&events[0]["object"]));
    assert_eq!((&versions["m2"], &versions["m1"]), (&json!(left_at), &own_versions(&start)["m1"]));
    let resumed = from(&version(&events[0]["object"]));
    let mut resumed = env.watch_all_clusters(&admin(), CONFIG_MAPS, &resumed).await.into_body();
    assert_eq!(summaries(&read_events(&mut resumed, 1).await), ["ADDED m2/only-m2 4"]);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_begins_with_the_objects_and_includes_members_that_join() {
    let mut env = test_env().await;
    let mut body = env.watch_all_clusters(&admin(), CONFIG_MAPS, LABELLED).await.into_body();
    let mut initial = summaries(&read_events(&mut body, 4).await);
    initial.sort();
    assert_eq!(initial, ["ADDED m1/both m1", "ADDED m1/only-m1 m1", "ADDED m2/both m2", "ADDED m2/only-m2 m2"]);
    let later = format!("{LABELLED}&sendInitialEvents=false&resourceVersionMatch=NotOlderThan");
    let mut without_initial = env.watch_all_clusters(&admin(), CONFIG_MAPS, &later).await.into_body();
    let name = "/api/v1/watch/namespaces/default/configmaps/only-m2";
    let mut named = env.watch_all_clusters(&admin(), name, "").await.into_body();
    assert_eq!(summaries(&read_events(&mut named, 1).await), ["ADDED m2/only-m2 m2"]);
    let change = json!({"data": {"v": "2"}});
    config_maps(&env, "m2").patch("only-m2", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    for body in [&mut body, &mut without_initial, &mut named] {
        assert_eq!(summaries(&read_events(body, 1).await), ["MODIFIED m2/only-m2 2"]);
    }
    env.join("m3").await;
    let joined = read_events(&mut body, 2).await;
    assert_eq!(summaries(&joined), ["ADDED m3/both m3", "ADDED m3/only-m3 m3"]);
    assert_eq!(joined[0]["object"]["kind"], "ConfigMap");
    env.stop().await;
}

/// Members that refuse the caller are named, and requests that all of them refuse are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_member_applies_its_own_permissions() {
    let env = test_env().await;
    let alice = user("alice");
    for query in [LABELLED.to_owned(), format!("{LABELLED}&watch=true")] {
        let (code, status) = env.read_all_clusters(&alice, CONFIG_MAPS, &query, "").await;
        assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{query}");
    }
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    grant(&env.members["m1"].admin(), "alice", rules, json!({"kind": "User", "name": "alice"})).await;
    let response = env.proxy.cluster("*", &alice, CONFIG_MAPS, request(Method::GET, LABELLED, "", None)).await;
    assert!(response.headers()[header::WARNING].to_str().unwrap().contains("cluster m2 responded 403 Forbidden"));
    let (_, list) = read(response).await;
    assert_eq!(
        (names(&list), &list["metadata"]["incompleteClusters"][0]["cluster"]),
        (vec!["m1/both".to_owned(), "m1/only-m1".to_owned()], &json!("m2"),)
    );
    let response = env.watch_all_clusters(&alice, CONFIG_MAPS, LABELLED).await;
    assert!(response.headers()[header::WARNING].to_str().unwrap().contains("cluster m2 responded 403 Forbidden"));
    assert_eq!(read_events(&mut response.into_body(), 2).await.len(), 2);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_can_be_read_and_written_back() {
    let env = test_env().await;
    let path = format!("{CONFIG_MAPS}/only-m2");
    let (code, mut object) = env.read_all_clusters(&admin(), &path, "", "application/json").await;
    assert_eq!((code, names(&json!({"items": [object]}))), (200, vec!["m2/only-m2".to_owned()]));
    object["data"] = json!({"v": "changed"});
    let put = request(Method::PUT, "", "", Some(object));
    let (code, updated) = read(env.proxy.cluster("*", &admin(), &path, put).await).await;
    assert_eq!(
        (code, &updated["data"], &updated["metadata"]["annotations"]),
        (200, &json!({"v": "changed"}), &json!(null))
    );
    env.stop().await;
}

/// A version that is no longer served ends the watches of it, in both proxies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_its_version() {
    use crowsnest_apimachinery::names::{ClusterName, Gvr};
    use crowsnest_index::CollectionKey;
    use crowsnest_store::Clusters;
    use http_body_util::BodyExt;

    let env = test_env().await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let spec = |versions: Value| json!({"group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"}, "versions": versions});
    let old = Gvr::new("example.com", "v1alpha1", "gadgets");
    let _interest = env.declare(crate::test_env::registered(Clusters::All, old.clone()));
    for member in ["m1", "m2"] {
        let definition = json!({
            "metadata": {"name": "gadgets.example.com"}, "spec": spec(json!([version("v1alpha1", false), version("v1", true)])),
        });
        let client = env.members[member].admin();
        create(&client, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None, definition).await;
    }
    let mut served = env.cache.served_version();
    for member in ["m1", "m2"].map(|name| ClusterName::parse(name).unwrap()) {
        while env.cache.served_resources(&member).is_none_or(|served| served.get(&old).is_none()) {
            served.changed().await.unwrap();
        }
        env.cache.wait_until_complete(&CollectionKey::new(member, old.clone())).await;
    }
    let path = "/apis/example.com/v1alpha1/gadgets";
    let mut bodies = Vec::new();
    for all_clusters in [true, false] {
        let watch = request(Method::GET, "watch=true&timeoutSeconds=60", "", None);
        let response = match all_clusters {
            true => env.proxy.cluster("*", &admin(), path, watch).await,
            false => env.proxy.fleet_wide(&admin(), path, watch).await,
        };
        assert_eq!(response.status(), 200);
        bodies.push(response.into_body());
    }
    for member in ["m1", "m2"] {
        let definitions: Api<kube::api::DynamicObject> = Api::all_with(
            env.members[member].admin(),
            &kube::api::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
                "apiextensions.k8s.io",
                "v1",
                "CustomResourceDefinition",
            )),
        );
        let change = json!({"spec": {"versions": [version("v1", true)]}});
        definitions.patch("gadgets.example.com", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }
    let all_end = async {
        for body in bodies {
            body.collect().await.unwrap();
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), all_end)
        .await
        .expect("the watches end before their timeout");
    env.stop().await;
}
