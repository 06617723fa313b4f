//! Forms of responses that clients negotiate by `Accept`: complete objects, metadata and tables, in the fleet-wide proxy
//! and in `clusters/*`.

use std::collections::BTreeMap;

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::test_env::{CONFIG_MAPS, LABELLED, TestEnv, admin, events, names, read, request, test_env};

const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Lists the ConfigMaps, or gets the one with this name, through `clusters/*` or the fleet-wide proxy.
async fn fetch(env: &TestEnv, through_wildcard: bool, name: &str, accept: &str) -> (u16, Value) {
    let (path, query) = match name {
        "" => (CONFIG_MAPS.to_owned(), LABELLED),
        name => (format!("{CONFIG_MAPS}/{name}"), ""),
    };
    let request = request(Method::GET, query, accept, None);
    read(match through_wildcard {
        true => env.proxy.cluster("*", &admin(), &path, request).await,
        false => env.proxy.fleet_wide(&admin(), &path, request).await,
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_objects_have_the_first_form_that_can_be_served() {
    let env = test_env().await;
    let metadata_client = format!("{PROTOBUF},{LIST},application/json");
    let for_list =
        "you requested PartialObjectMetadata, but the requested object is a list (*unstructured.UnstructuredList)";
    let for_object =
        "you requested PartialObjectMetadataList, but the requested object is not a list (*unstructured.Unstructured)";
    let accepted = "only the following media types are accepted: application/json";
    for through_wildcard in [false, true] {
        for accept in [LIST, &metadata_client] {
            let (code, list) = fetch(&env, through_wildcard, "", accept).await;
            assert_eq!((code, &list["kind"]), (200, &json!("PartialObjectMetadataList")), "{list}");
            let is_metadata = |item: &Value| item["kind"] == "PartialObjectMetadata" && item.get("data").is_none();
            let items = list["items"].as_array().unwrap();
            assert!(items.len() == 4 && items.iter().all(is_metadata), "{list}");
        }
        for (accept, message) in [(OBJECT, for_list), (PROTOBUF, accepted), ("text/plain", accepted)] {
            let (code, status) = fetch(&env, through_wildcard, "", accept).await;
            assert_eq!((code, &status["message"]), (406, &json!(message)), "{accept}");
        }
    }
    for through_wildcard in [false, true] {
        let (code, object) = fetch(&env, through_wildcard, "only-m1", OBJECT).await;
        assert_eq!((code, &object["kind"], object.get("data")), (200, &json!("PartialObjectMetadata"), None));
        assert_eq!(names(&json!({"items": [object]})), ["m1/only-m1"]);
        let (code, status) = fetch(&env, through_wildcard, "only-m1", LIST).await;
        assert_eq!((code, &status["message"]), (406, &json!(for_object)));
        for name in ["", "only-m1"] {
            let (_, table) = fetch(&env, through_wildcard, name, TABLE).await;
            let cells = &table["rows"].as_array().unwrap().last().unwrap()["cells"];
            assert_eq!(
                (&table["columnDefinitions"][1]["name"], cells.as_array().unwrap().len()),
                (&json!("Cluster"), 4)
            );
            let cluster = if name.is_empty() { "m2" } else { "m1" };
            assert_eq!((&cells[0], &cells[1]), (&json!(format!("only-{cluster}")), &json!(cluster)));
        }
    }
    env.stop().await;
}

/// Bookmarks have the negotiated form, like the objects of events. The initial events have the same resourceVersions
/// as the items of a list.
#[rstest]
#[case::full("application/json", "ConfigMap", "ConfigMap")]
#[case::metadata(OBJECT, "PartialObjectMetadata", "PartialObjectMetadata")]
#[case::metadata_client(
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    "PartialObjectMetadata",
    "PartialObjectMetadata"
)]
#[case::table("application/json;as=Table;g=meta.k8s.io;v=v1", "Table", "Table")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_events_of_a_watch_have_the_negotiated_form(
    #[case] accept: &str,
    #[case] object: &str,
    #[case] bookmark: &str,
    #[values(false, true)] through_wildcard: bool,
) {
    let env = test_env().await;
    let (_, list) = fetch(&env, through_wildcard, "", "application/json").await;
    let watch = |query: &str, accept: &str| {
        let (proxy, request) = (env.proxy.clone(), request(Method::GET, query, accept, None));
        async move {
            match through_wildcard {
                true => proxy.cluster("*", &admin(), CONFIG_MAPS, request).await,
                false => proxy.fleet_wide(&admin(), CONFIG_MAPS, request).await,
            }
        }
    };
    let versions: BTreeMap<String, Value> = names(&list)
        .into_iter()
        .zip(list["items"].as_array().unwrap())
        .map(|(name, item)| (name, item["metadata"]["resourceVersion"].clone()))
        .collect();
    let query = format!(
        "{LABELLED}&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let response = watch(&query, accept).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    let (mut received, mut has_ended) = (BTreeMap::new(), false);
    while !has_ended {
        for event in events(&mut body).await {
            let shown_object = match object {
                "Table" => &event["object"]["rows"][0]["object"],
                _ => &event["object"],
            };
            has_ended = event["type"] == "BOOKMARK";
            let expected = if has_ended { bookmark } else { object };
            assert_eq!(
                (&event["object"]["kind"], shown_object.get("data").is_some()),
                (&json!(expected), !has_ended && object == "ConfigMap")
            );
            if !has_ended {
                let name = names(&json!({"items": [shown_object]})).remove(0);
                received.insert(name, shown_object["metadata"]["resourceVersion"].clone());
            }
        }
    }
    assert_eq!(received, versions);
    let response = watch(&query, PROTOBUF).await;
    let (code, status) = read(response).await;
    let message = "only the following media types are accepted: application/json;stream=watch";
    assert_eq!((code, &status["message"]), (406, &json!(message)));
    env.stop().await;
}
