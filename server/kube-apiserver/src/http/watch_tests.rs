//! Watches on a running server: sharing of encoded events and lines, bookmarks of tables, and objects that leave a
//! selection.

use axum::body::Body;
use bytes::Bytes;
use crowsnest_apimachinery::user::UserInfo;
use futures::FutureExt;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const TABLE_V1BETA1: &str = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
const PARTIAL_OBJECT: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

async fn send(service: &InProcessService, method: &str, path: &str, accept: &str, body: &Value) -> Body {
    let request = Request::builder().method(method).uri(path).header("accept", accept);
    let request = request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let code = response.status();
    assert!(code.is_success() || code == 409, "{method} {path}: {code}");
    response.into_body()
}

/// The next event of a watch.
async fn next_event(watch: &mut Body) -> Value {
    let frame = http_body_util::BodyExt::frame(watch).await.unwrap().unwrap();
    serde_json::from_slice(frame.data_ref().unwrap()).unwrap()
}

/// Query, `Accept` header, number of watches, and the event's type and kind for a change of labels and for a delete.
const WATCHES: [(&str, &str, usize, &str, &str); 7] = [
    ("", "*/*", 1000, "MODIFIED ConfigMap", "DELETED ConfigMap"),
    ("", TABLE, 400, "MODIFIED Table", "DELETED Table"),
    ("&includeObject=Object", TABLE, 50, "MODIFIED Table", "DELETED Table"),
    ("", TABLE_V1BETA1, 50, "MODIFIED Table", "DELETED Table"),
    ("", PARTIAL_OBJECT, 200, "MODIFIED PartialObjectMetadata", "DELETED PartialObjectMetadata"),
    ("&labelSelector=to", "*/*", 150, "ADDED ConfigMap", "DELETED ConfigMap"),
    ("&fieldSelector=metadata.name%3Dc", "*/*", 150, "MODIFIED ConfigMap", "DELETED ConfigMap"),
];

#[tokio::test]
async fn events_are_encoded_once_per_representation() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    drop(send(&service, "POST", "/api/v1/namespaces", "*/*", &json!({"metadata": {"name": "default"}})).await);
    drop(send(&service, "POST", CONFIG_MAPS, "*/*", &json!({"metadata": {"name": "c"}})).await);
    let start_revision = server.registry().store.revision();
    let mut watches = Vec::new();
    for (query, accept, count, changed, deleted) in WATCHES {
        for _ in 0..count {
            let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={start_revision}{query}");
            watches.push((send(&service, "GET", &path, accept, &Value::Null).await, changed, deleted));
        }
    }
    assert_eq!(watches.len(), 2000);
    let encoded_line_count = || server.registry().event_cache.encoded_line_count();
    assert_eq!(encoded_line_count(), 0);
    let labeled = json!({"metadata": {"name": "c", "labels": {"to": "see"}}});
    // One line for plain objects, three for tables and one for partial objects. Watches with selectors share the line
    // of plain objects, except that the object enters the label selection with the write: its ADDED event is one more.
    for (method, body, lines) in [("PUT", labeled, 6), ("DELETE", Value::Null, 5)] {
        let before = encoded_line_count();
        drop(send(&service, method, &format!("{CONFIG_MAPS}/c"), "*/*", &body).await);
        for (watch, changed, deleted) in &mut watches {
            let event = next_event(watch).await;
            let kind = format!("{} {}", event["type"].as_str().unwrap(), event["object"]["kind"].as_str().unwrap());
            assert_eq!(kind, if method == "PUT" { *changed } else { *deleted });
        }
        assert_eq!(encoded_line_count() - before, lines, "{method}");
    }
    drop(watches);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn equal_watches_share_the_lines_of_several_changes() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    drop(send(&service, "POST", "/api/v1/namespaces", "*/*", &json!({"metadata": {"name": "default"}})).await);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let all = format!("{leases}?watch=true&resourceVersion={}", server.registry().store.revision());
    let labeled = format!("{all}&labelSelector=to");
    let elsewhere = all.replace("default", "elsewhere");
    let mut watches = Vec::new();
    for (path, accept) in [
        (&all, "*/*"),
        (&labeled, "*/*"),
        (&all, PARTIAL_OBJECT),
        (&all, "*/*"),
        (&labeled, "*/*"),
        (&elsewhere, "*/*"),
    ] {
        watches.push(send(&service, "GET", path, accept, &Value::Null).await);
    }
    for (name, labels) in [("a", json!({"to": "see"})), ("b", json!({})), ("c", json!({"to": "see"}))] {
        let object = json!({"metadata": {"name": name, "labels": labels}});
        drop(send(&service, "POST", leases, "*/*", &object).await);
    }
    let names = |lines: &Bytes| -> Vec<String> {
        let events = serde_json::Deserializer::from_slice(lines).into_iter::<Value>();
        events.map(|event| event.unwrap()["object"]["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut received = Vec::new();
    for (watch, expected) in watches.iter_mut().zip([
        vec!["a", "b", "c"],
        vec!["a", "c"],
        vec!["a", "b", "c"],
        vec!["a", "b", "c"],
        vec!["a", "c"],
    ]) {
        let lines = http_body_util::BodyExt::frame(watch).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(names(&lines), expected);
        received.push(lines.as_ptr());
    }
    assert!(received[0] == received[3] && received[1] == received[4], "the lines of equal watches are not copied");
    assert_ne!(received[0], received[2]);
    assert!(http_body_util::BodyExt::frame(&mut watches[5]).now_or_never().is_none(), "no change is in the namespace");
    drop(watches);
    server.stop().await.unwrap();
}

/// A bookmark has a row like any object. The bookmark at the end of the initial events is sent even without objects.
#[tokio::test]
async fn bookmarks_of_table_watches_have_a_row() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    for (include_object, kind) in
        [("None", "PartialObjectMetadata"), ("Metadata", "PartialObjectMetadata"), ("Object", "ConfigMap")]
    {
        let options = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let path = format!("/api/v1/namespaces/absent/configmaps?{options}&includeObject={include_object}");
        let event = next_event(&mut send(&service, "GET", &path, TABLE, &Value::Null).await).await;
        assert_eq!(event["type"], "BOOKMARK", "{event}");
        let row = &event["object"]["rows"][0];
        assert_eq!(row["cells"], json!(["", 0, "<unknown>"]));
        assert_eq!(row["object"]["kind"], kind, "{include_object}");
        assert_eq!(row["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_object_that_leaves_a_selection_is_sent_in_its_last_selected_state() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    let config_map = |tier: &str, value: &str| json!({"metadata": {"name": "c", "labels": {"tier": tier}}, "data": {"value": value}});
    drop(send(&service, "POST", "/api/v1/namespaces", "*/*", &json!({"metadata": {"name": "default"}})).await);
    drop(send(&service, "POST", CONFIG_MAPS, "*/*", &config_map("gold", "1")).await);
    let start_revision = server.registry().store.revision();
    let watch = async |resource_version: &str| {
        let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={resource_version}&labelSelector=tier%3Dgold");
        send(&service, "GET", &path, "*/*", &Value::Null).await
    };
    let write = async |tier: &str, value: &str| {
        drop(send(&service, "PUT", &format!("{CONFIG_MAPS}/c"), "*/*", &config_map(tier, value)).await);
    };
    let summarize = |event: &Value| {
        let object = &event["object"];
        [&event["type"], &object["metadata"]["labels"]["tier"], &object["data"]["value"]].map(Value::clone)
    };
    let mut events = watch(&start_revision.to_string()).await;
    write("silver", "2").await;
    let removal = next_event(&mut events).await;
    assert_eq!(summarize(&removal), ["DELETED", "gold", "1"]);
    // The resourceVersion is that of the write by which the object left the selection.
    let version = removal["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, (start_revision + 1).to_string());
    write("silver", "3").await;
    write("gold", "4").await;
    for mut events in [events, watch(version).await] {
        assert_eq!(summarize(&next_event(&mut events).await), ["ADDED", "gold", "4"]);
    }
    server.stop().await.unwrap();
}
