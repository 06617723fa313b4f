//! Objects and subresources on a running server, as a table of requests.

use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

async fn start_server() -> (ApiServer, InProcessService) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    (server, service)
}

async fn get(service: &InProcessService, path: &str) -> (u16, Value) {
    let response = service.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn paged_lists_continue_inconsistently_after_compaction() {
    let (server, service) = start_server().await;
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let (_, page) = get(&service, &format!("{ROLES}?limit=1")).await;
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    let version = page["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let (_, full_list) = get(&service, ROLES).await;
    let revision = server.registry().store.revision();
    let body = Body::from(r#"{"metadata": {"name": "zz"}}"#);
    let request = Request::post(ROLES).header("content-type", "application/json").body(body).unwrap();
    assert_eq!(service.clone().oneshot(request).await.unwrap().status().as_u16(), 201);
    server.registry().store.compact(revision + 1);
    let (code, refused) = get(&service, &format!("{ROLES}?limit=5&continue={token}")).await;
    assert_eq!((code, refused["reason"].as_str()), (410, Some("Expired")), "{refused}");
    let token = refused["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = get(&service, &format!("{ROLES}?continue={token}")).await;
    let names = |list: &Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|role| role["metadata"]["name"].to_string()).collect()
    };
    let mut expected = names(&full_list).split_off(1);
    expected.push("\"zz\"".to_owned());
    assert_eq!((code, names(&rest)), (200, expected));
    let (code, refused) = get(&service, &format!("{ROLES}?resourceVersion={version}&resourceVersionMatch=Exact")).await;
    assert_eq!(
        (code, refused["message"].as_str()),
        (410, Some("The resourceVersion for the provided list is too old."))
    );
    server.stop().await.unwrap();
}

async fn send(service: &InProcessService, line: &str, body: &Value) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let media = if method == "PATCH" { "application/apply-patch+yaml" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let response = service.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// The removal of a pod without grace period is preceded by an update, which watchers see.
#[tokio::test]
async fn pods_without_grace_period_are_marked_before_they_are_removed() {
    use crowsnest_registry::storage::{ChangeKind, ResourceKey};
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let (server, service) = start_server().await;
    let pod = |node: &str| {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        pod
    };
    let seconds = |seconds: i64| json!({"gracePeriodSeconds": seconds});
    for (node, options) in [("", json!({})), ("", seconds(20)), ("n", seconds(0))] {
        let (code, created) = send(&service, &format!("POST {PODS}"), &pod(node)).await;
        assert_eq!(code, 201, "{created}");
        let store = &server.registry().store;
        let mut watcher = store.watch(&ResourceKey::new("", "pods"), store.revision()).unwrap();
        let (code, deleted) = send(&service, &format!("DELETE {PODS}/p"), &options).await;
        let metadata = &deleted["metadata"];
        assert_eq!((code, &metadata["deletionGracePeriodSeconds"]), (200, &json!(0)), "{deleted}");
        let generation = created["metadata"]["generation"].as_i64().unwrap();
        assert_eq!(
            (&metadata["generation"], metadata["deletionTimestamp"].is_string()),
            (&json!(generation + 1), true)
        );
        let mut kinds = Vec::new();
        while kinds.len() < 2 {
            kinds.extend(watcher.next().await.unwrap().iter().map(|change| change.kind));
        }
        assert_eq!(kinds, [ChangeKind::Modified, ChangeKind::Deleted], "{node} {options}");
    }
    server.stop().await.unwrap();
}

/// A resourceVersion is a precondition for existing objects only; an object with the given uid must exist.
#[tokio::test]
async fn server_side_apply_creates_in_spite_of_a_resource_version() {
    let (server, service) = start_server().await;
    let config = |name: &str, metadata: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().cloned().unwrap_or_default());
        object
    };
    let uid = "6f1b2c3d-0000-4000-8000-000000000000";
    let missing = format!(
        "Operation cannot be fulfilled on configmaps \"c\": uid mismatch: the provided object specified uid {uid}, and no existing object was found"
    );
    let both = json!({"uid": uid, "resourceVersion": "1"});
    for (name, metadata, code, message) in [
        ("a", json!({"resourceVersion": "1"}), 201, None),
        ("b", json!({}), 201, None),
        ("c", json!({"uid": uid}), 409, Some(missing.as_str())),
        ("c", both, 409, Some(missing.as_str())),
    ] {
        let line = format!("PATCH /api/v1/namespaces/default/configmaps/{name}?fieldManager=m");
        let (actual, response) = send(&service, &line, &config(name, metadata)).await;
        assert_eq!((actual, response["message"].as_str()), (code, message), "{name}: {response}");
        assert_ne!(response["metadata"]["resourceVersion"], "1");
    }
    let line = "POST /api/v1/namespaces/default/configmaps";
    let (code, response) = send(&service, line, &config("d", json!({"resourceVersion": "1"}))).await;
    let message = "resourceVersion should not be set on objects to be created";
    assert_eq!((code, response["message"].as_str()), (500, Some(message)), "{response}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn responses_match_the_table() {
    let (server, service) = start_server().await;
    let steps: Vec<Value> = serde_saphyr::from_str(include_str!("fixtures/lifecycle.yaml")).unwrap();
    for step in &steps {
        let line = step["request"].as_str().unwrap();
        let (method, path) = line.split_once(' ').unwrap();
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = step.get("body").map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder().method(method).uri(path).header("content-type", media).body(body).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let warning = response.headers().get("warning").map(|text| text.to_str().unwrap().to_owned());
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let response: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        assert_eq!(Some(u64::from(code)), step["code"].as_u64(), "{line}: {response}");
        if let Some(message) = step["message"].as_str() {
            assert!(response["message"].as_str().unwrap().contains(message), "{line}: {response}");
        }
        if let Some(text) = step["warning"].as_str() {
            assert!(warning.unwrap_or_default().contains(text), "{line}");
        }
        for (pointer, expected) in step["expected"].as_object().into_iter().flatten() {
            assert_eq!(response.pointer(pointer), Some(expected), "{line}: {response}");
        }
    }
    server.stop().await.unwrap();
}
