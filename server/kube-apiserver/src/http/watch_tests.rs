//! Sharing of encoded events by many watches of one resource, on a running server.

use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const BETA: &str = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

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
    ("", BETA, 50, "MODIFIED Table", "DELETED Table"),
    ("", PARTIAL, 200, "MODIFIED PartialObjectMetadata", "DELETED PartialObjectMetadata"),
    ("&labelSelector=to", "*/*", 150, "ADDED ConfigMap", "DELETED ConfigMap"),
    ("&fieldSelector=metadata.name%3Dc", "*/*", 150, "MODIFIED ConfigMap", "DELETED ConfigMap"),
];

#[tokio::test]
async fn events_are_encoded_once_per_representation() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    drop(send(&service, "POST", "/api/v1/namespaces", "*/*", &json!({"metadata": {"name": "default"}})).await);
    drop(send(&service, "POST", MAPS, "*/*", &json!({"metadata": {"name": "c"}})).await);
    let since = server.registry().store.revision();
    let mut watches = Vec::new();
    for (query, accept, count, changed, deleted) in WATCHES {
        for _ in 0..count {
            let path = format!("{MAPS}?watch=true&resourceVersion={since}{query}");
            watches.push((send(&service, "GET", &path, accept, &Value::Null).await, changed, deleted));
        }
    }
    assert_eq!(watches.len(), 2000);
    let encoded_line_count = || server.registry().event_cache.encoded_line_count();
    assert_eq!(encoded_line_count(), 0);
    let labelled = json!({"metadata": {"name": "c", "labels": {"to": "see"}}});
    // One line for plain objects, three for tables and one for partial objects; watches with selectors share the
    // plain ones, and the object enters one selection.
    for (method, body, lines) in [("PUT", labelled, 6), ("DELETE", Value::Null, 5)] {
        let before = encoded_line_count();
        drop(send(&service, method, &format!("{MAPS}/c"), "*/*", &body).await);
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
