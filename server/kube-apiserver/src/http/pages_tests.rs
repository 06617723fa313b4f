//! Lists and initial watch events of many objects on a running server, with and without selectors.

use std::io::Read;

use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use flate2::read::GzDecoder;
use http::Request;
use http_body::Body as _;
use http_body_util::BodyExt;
use rstest::rstest;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::Response;
use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Number of ConfigMaps of 4 KB each: more than one chunk of a list and of a watch's initial events.
const CONFIG_MAP_COUNT: usize = 600;

async fn send(service: &InProcessService, method: &str, path: &str, body: &Value) -> Response {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let response = service.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let code = response.status();
    // The namespace may exist already.
    assert!(code.is_success() || code == 409, "{method} {path}: {code}");
    response
}

async fn get(service: &InProcessService, path: &str) -> Value {
    let body = send(service, "GET", path, &Value::Null).await.into_body().collect().await.unwrap();
    serde_json::from_slice(&body.to_bytes()).unwrap()
}

fn name(nth: usize) -> String {
    format!("map-{nth:04}")
}

/// Starts a server with ConfigMaps; every third one has the label `marked`.
async fn start_server_with_config_maps() -> (ApiServer, InProcessService) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    send(&service, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
    for nth in 0..CONFIG_MAP_COUNT {
        let labels = if nth % 3 == 0 { json!({"marked": "yes"}) } else { json!({}) };
        // The text compresses poorly.
        let text: String = (0..450).map(|i| format!("{:x},", (nth + 1) * 7_919 * (i + 1))).collect();
        let map = json!({"metadata": {"name": name(nth), "labels": labels}, "data": {"text": text}});
        send(&service, "POST", CONFIG_MAPS, &map).await;
    }
    (server, service)
}

#[tokio::test]
async fn large_lists_are_chunked_and_compressed_on_request() {
    let (server, service) = start_server_with_config_maps().await;
    let response = send(&service, "GET", CONFIG_MAPS, &Value::Null).await;
    assert_eq!(response.body().size_hint().exact(), None);
    let (mut body, mut list_bytes) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let chunk = frame.unwrap().into_data().unwrap();
        assert!(chunk.len() < 128 * 1024, "a chunk has {} bytes", chunk.len());
        list_bytes.extend_from_slice(&chunk);
    }
    let list: Value = serde_json::from_slice(&list_bytes).unwrap();
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|map| map["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, (0..CONFIG_MAP_COUNT).map(name).collect::<Vec<_>>());
    assert_eq!(list["items"][7], as_item(get(&service, &format!("{CONFIG_MAPS}/{}", name(7))).await));

    let request = Request::get(CONFIG_MAPS).header("accept-encoding", "gzip").body(Body::empty()).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let compressed = response.into_body().collect().await.unwrap().to_bytes();
    let mut decompressed = Vec::new();
    GzDecoder::new(&compressed[..]).read_to_end(&mut decompressed).unwrap();
    assert!(decompressed == list_bytes, "the decompressed list differs");

    // A small list is sent at once.
    let response = send(&service, "GET", &format!("{CONFIG_MAPS}?limit=3"), &Value::Null).await;
    assert!(response.body().size_hint().exact().is_some());
    server.stop().await.unwrap();
}

/// The object as a list item, which has no kind.
fn as_item(mut object: Value) -> Value {
    let members = object.as_object_mut().unwrap();
    members.remove("kind");
    members.remove("apiVersion");
    object
}

#[rstest]
#[case::labels("labelSelector=marked%3Dyes", (0..CONFIG_MAP_COUNT).step_by(3).collect())]
#[case::without_a_label("labelSelector=!marked", (0..CONFIG_MAP_COUNT).filter(|nth| nth % 3 > 0).collect())]
#[case::a_name("fieldSelector=metadata.name%3Dmap-0412", vec![412])]
#[case::a_name_and_a_label("fieldSelector=metadata.name%3Dmap-0412&labelSelector=marked", vec![])]
#[case::another_name("fieldSelector=metadata.name!%3Dmap-0000&labelSelector=marked", (3..CONFIG_MAP_COUNT).step_by(3).collect())]
#[case::a_namespace("fieldSelector=metadata.namespace%3Dkube-system", vec![])]
#[tokio::test]
async fn selectors_are_consistent_in_lists_pages_and_watches(#[case] query: &str, #[case] expected: Vec<usize>) {
    let (server, service) = start_server_with_config_maps().await;
    let expected: Vec<String> = expected.into_iter().map(name).collect();
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|map| map["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let list = get(&service, &format!("{CONFIG_MAPS}?{query}")).await;
    assert_eq!(names(&list), expected);
    assert_eq!(list["metadata"].get("remainingItemCount"), None);

    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = get(&service, &format!("{CONFIG_MAPS}?{query}&limit=70&continue={token}")).await;
        let on_page = names(&page);
        assert!(on_page.len() <= 70);
        paged.extend(on_page);
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, expected);

    // The initial events end with a bookmark.
    let path = format!(
        "{CONFIG_MAPS}?{query}&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut watch = send(&service, "GET", &path, &Value::Null).await.into_body();
    let mut event_names = Vec::new();
    'events: while let Some(frame) = watch.frame().await {
        let lines = frame.unwrap().into_data().unwrap();
        for event in serde_json::Deserializer::from_slice(&lines).into_iter::<Value>() {
            let event = event.unwrap();
            if event["type"] == "BOOKMARK" {
                break 'events;
            }
            event_names.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(event_names, expected);
    drop(watch);
    server.stop().await.unwrap();
}
