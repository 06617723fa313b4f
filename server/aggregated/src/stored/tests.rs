//! Translation of bodies, and patches of every type against a real API server.

use std::sync::Arc;

use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_UID};
use crowsnest_apiserver::outbound::OutboundClients;
use crowsnest_kube_apiserver::admission::WebhookClient;
use crowsnest_kube_apiserver::crd::controller::CrdController;
use crowsnest_kube_apiserver::services::ClusterServices;
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_process::reply::StatusResponse;
use serde_json::json;

use super::*;

const CLUSTERS: StoredGroup = StoredGroup { kind: &crowsnest_api::storage::CLUSTERS, columns: None };

#[path = "tests/representations.rs"]
mod representations;
#[path = "tests/status.rs"]
mod status;
#[path = "tests/writers.rs"]
mod writers;

#[test]
fn responses_are_translated_to_the_public_group() {
    let cases = [
        (
            json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster",
                   "metadata": {"managedFields": [{"apiVersion": "storage.crowsnest.io/v1alpha1"}]}}),
            json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
                   "metadata": {"managedFields": [{"apiVersion": "cluster.karmada.io/v1alpha1"}]}}),
        ),
        (
            json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "ClusterList",
                   "items": [{"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster"}]}),
            json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "ClusterList",
                   "items": [{"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster"}]}),
        ),
        (
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table",
                   "rows": [{"object": {"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": "StoredCluster"}}]}),
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table",
                   "rows": [{"object": {"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster"}}]}),
        ),
        (
            json!({"kind": "Status", "message": "storedclusters.storage.crowsnest.io \"x\" not found", "details": {"group": "storage.crowsnest.io", "kind": "storedclusters"}}),
            json!({"kind": "Status", "message": "clusters.cluster.karmada.io \"x\" not found", "details": {"group": "cluster.karmada.io", "kind": "clusters"}}),
        ),
        (
            json!({"kind": "Status", "message": "admission webhook \"a.storage.crowsnest.io\" denied the request: Cluster.cluster.karmada.io \"x\" is invalid"}),
            json!({"kind": "Status", "message": "Cluster.cluster.karmada.io \"x\" is invalid"}),
        ),
    ];
    for (mut response, expected) in cases {
        CLUSTERS.translate_response(&mut response);
        assert_eq!(response, expected);
    }
}

#[rstest::rstest]
#[case("/clusters/m1/status", Some("/clusters/m1"), "m1")]
#[case("/clusters/status/status", Some("/clusters/status"), "status")]
#[case::an_object_of_that_name("/clusters/status", None, "status")]
#[case("/clusters//status", None, "")]
#[case("//clusters/m1/status", None, "clusters")]
#[case("/clusters/m1/x/status", None, "m1")]
#[case("/clusters/m1%2Fstatus", None, "m1%2Fstatus")]
#[case("/clusters", None, "")]
fn status_paths_are_recognized(#[case] resource_path: &str, #[case] parent: Option<&str>, #[case] name: &str) {
    assert_eq!((parent_path(resource_path), name_of(resource_path)), (parent, name));
}

#[tokio::test]
async fn lines_may_span_chunks() {
    let chunks = ["{\"a\":1}\n{\"b\"", ":2}\n", "{\"cut"].map(|c| Ok(Bytes::from_static(c.as_bytes())));
    let lines: Vec<Bytes> = split_lines(futures::stream::iter(chunks)).try_collect().await.unwrap();
    assert_eq!(lines, ["{\"a\":1}", "{\"b\":2}"]);
}

/// Starts a control plane with the internal group.
pub(crate) async fn start_control_plane() -> ApiServer {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let registry = Arc::clone(server.registry());
    let outbound = Arc::new(OutboundClients::new(Arc::new(ClusterServices::new(&registry)), None));
    let controller = CrdController::start(registry, Arc::new(WebhookClient::new(outbound))).await.unwrap();
    server.spawn("CustomResourceDefinitions", controller.run(server.stop_token()));
    let mut definitions = crowsnest_api::crd::crds(None);
    definitions.retain(|definition| definition["spec"]["group"] == STORAGE_GROUP);
    assert_eq!(definitions.len(), 3);
    crowsnest_install::apply_all(&server.admin(), &definitions).await.unwrap();
    server
}

async fn call(server: &ApiServer, method: &str, resource_path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(format!("/apis/cluster.karmada.io/v1alpha1{resource_path}"))
        .header("content-type", content_type)
        .body(Body::from(body.to_string()));
    serve(CLUSTERS, server, resource_path, request.unwrap(), None).await
}

async fn serve(
    group: StoredGroup,
    server: &ApiServer,
    resource_path: &str,
    request: Request<Body>,
    writer: Option<Writer<'_>>,
) -> (u16, Value) {
    let query = Query::parse(request.uri().query());
    let target = Target { resource_path: resource_path.split('?').next().unwrap(), query: &query, status_only: false };
    let response = match group.serve(&server.admin(), target, request, writer).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    };
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

async fn start_with_cluster() -> ApiServer {
    let server = start_control_plane().await;
    let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
    let cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1", "labels": {"a": "1"}, "finalizers": ["x.io/one"],
            "ownerReferences": [owner("1", "one")]},
        "spec": {"syncMode": "Push", "region": "east", "zones": ["e1", "e2"], "taints": [{"key": "a", "effect": "NoSchedule"}]},
    });
    let (code, created) = call(&server, "POST", "/clusters", "application/json", &cluster).await;
    assert_eq!(code, 201, "{created}");
    server
}

#[tokio::test]
async fn strategic_patches_merge_shared_lists() {
    let server = start_with_cluster().await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "two", "uid": "2"});
    let patch = json!({
        "metadata": {"labels": {"a": null, "b": "2"}, "finalizers": ["x.io/two"], "ownerReferences": [owner]},
        "spec": {"region": "west", "zones": ["w1"], "taints": []},
    });
    let (code, patched) = call(&server, "PATCH", "/clusters/m1", STRATEGIC, &patch).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched["apiVersion"], "cluster.karmada.io/v1alpha1");
    let metadata = &patched["metadata"];
    assert_eq!(metadata["labels"], json!({"b": "2"}));
    let all = |list: &Value, read: fn(&Value) -> &Value| -> std::collections::BTreeSet<String> {
        list.as_array().unwrap().iter().map(|item| read(item).as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(all(&metadata["finalizers"], |item| item), ["x.io/one", "x.io/two"].map(str::to_owned).into());
    assert_eq!(all(&metadata["ownerReferences"], |owner| &owner["uid"]), ["1", "2"].map(str::to_owned).into());
    // The kind's own lists have no merge keys.
    assert_eq!(patched["spec"], json!({"syncMode": "Push", "region": "west", "zones": ["w1"], "taints": []}));

    let remove = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/one"],
        "ownerReferences": [{"uid": "1", "$patch": "delete"}]}});
    let (_, patched) = call(&server, "PATCH", "/clusters/m1", STRATEGIC, &remove).await;
    assert_eq!(patched["metadata"]["finalizers"], json!(["x.io/two"]));
    assert_eq!(patched["metadata"]["ownerReferences"][0]["uid"], "2");

    let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"c": "3"}}});
    let (code, refused) = call(&server, "PATCH", "/clusters/m1", STRATEGIC, &stale).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));
    let (code, refused) = call(&server, "PATCH", "/clusters/none", STRATEGIC, &json!({})).await;
    assert_eq!((code, &refused["message"]), (404, &json!("clusters.cluster.karmada.io \"none\" not found")));
    let (code, _) = call(&server, "PATCH", "/clusters/m1", STRATEGIC, &json!(["no", "object"])).await;
    assert_eq!(code, 400);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn concurrent_strategic_patches_are_all_applied() {
    let server = start_with_cluster().await;
    let patches: Vec<Value> = (0..4).map(|n| json!({"metadata": {"finalizers": [format!("x.io/n{n}")]}})).collect();
    let answers =
        futures::future::join_all(patches.iter().map(|patch| call(&server, "PATCH", "/clusters/m1", STRATEGIC, patch)));
    for (code, response) in answers.await {
        assert_eq!(code, 200, "{response}");
    }
    let (_, cluster) = call(&server, "GET", "/clusters/m1", "application/json", &Value::Null).await;
    assert_eq!(cluster["metadata"]["finalizers"].as_array().unwrap().len(), 5);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn replacements_without_resource_version_are_unconditional() {
    let server = start_with_cluster().await;
    let json = "application/json";
    let (_, before) = call(&server, "GET", "/clusters/m1", json, &Value::Null).await;
    let mut replacement = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1"}, "spec": {"syncMode": "Push", "region": "west"}});
    let (code, written) = call(&server, "PUT", "/clusters/m1", json, &replacement).await;
    assert_eq!((code, &written["spec"]["region"]), (200, &json!("west")), "{written}");
    assert!(written["metadata"]["labels"].is_null() && written["metadata"]["uid"] == before["metadata"]["uid"]);
    replacement["status"] = json!({"kubernetesVersion": "v1.36.0"});
    let (code, written) = call(&server, "PUT", "/clusters/m1/status", json, &replacement).await;
    assert_eq!((code, &written["status"]["kubernetesVersion"]), (200, &json!("v1.36.0")), "{written}");
    // A replacement with the previous resourceVersion conflicts.
    replacement["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    let (code, refused) = call(&server, "PUT", "/clusters/m1", json, &replacement).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));
    let mut other = replacement.clone();
    other["metadata"] = json!({"name": "none"});
    let (code, refused) = call(&server, "PUT", "/clusters/none", json, &other).await;
    assert_eq!((code, &refused["message"]), (404, &json!("clusters.cluster.karmada.io \"none\" not found")));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn merge_json_and_apply_patches_are_applied() {
    let server = start_with_cluster().await;
    let merge = json!({"metadata": {"finalizers": ["x.io/two"]}, "spec": {"region": null}});
    let (code, patched) = call(&server, "PATCH", "/clusters/m1", "application/merge-patch+json", &merge).await;
    assert_eq!((code, &patched["metadata"]["finalizers"]), (200, &json!(["x.io/two"])));
    assert_eq!(patched["spec"].get("region"), None);

    let json_patch = json!([
        {"op": "test", "path": "/apiVersion", "value": "cluster.karmada.io/v1alpha1"},
        {"op": "add", "path": "/spec/zones/-", "value": "e3"},
        {"op": "remove", "path": "/metadata/labels/a"},
    ]);
    let (code, patched) = call(&server, "PATCH", "/clusters/m1", "application/json-patch+json", &json_patch).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched["spec"]["zones"], json!(["e1", "e2", "e3"]));
    let wrong = json!([{"op": "test", "path": "/spec/zones/0", "value": "elsewhere"}]);
    let (code, _) = call(&server, "PATCH", "/clusters/m1", "application/json-patch+json", &wrong).await;
    assert_eq!(code, 422);

    let applied = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1"},
        "spec": {"provider": "alpha"}});
    let resource_path = "/clusters/m1?fieldManager=me";
    let (code, patched) = call(&server, "PATCH", resource_path, "application/apply-patch+yaml", &applied).await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched["spec"]["provider"], "alpha");
    assert_eq!(patched["metadata"]["finalizers"], json!(["x.io/two"]));
    let managers = patched["metadata"]["managedFields"].as_array().unwrap();
    let mine = managers.iter().find(|entry| entry["manager"] == "me").unwrap();
    assert_eq!((&mine["operation"], &mine["apiVersion"]), (&json!("Apply"), &json!("cluster.karmada.io/v1alpha1")));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn strategic_status_patches_change_the_spec_too() {
    let server = start_with_cluster().await;
    let status = json!({"status": {"kubernetesVersion": "v1.36.0"}});
    let (code, patched) = call(&server, "PATCH", "/clusters/m1/status", STRATEGIC, &status).await;
    assert_eq!((code, &patched["status"]), (200, &status["status"]));
    let both = json!({"spec": {"region": "north"}, "status": {"apiEnablements": []}});
    let (_, patched) = call(&server, "PATCH", "/clusters/m1/status", STRATEGIC, &both).await;
    assert_eq!(patched["spec"]["region"], "north");
    assert_eq!(patched["status"]["kubernetesVersion"], "v1.36.0");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn objects_migrated_from_karmada_keep_their_uid() {
    let server = start_control_plane().await;
    let cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1", "annotations": {MIGRATED_UID: "theirs", MIGRATED_CREATED: "2024-01-01T00:00:00Z"}},
        "spec": {"syncMode": "Push"},
    });
    let json = "application/json";
    let (code, mut created) = call(&server, "POST", "/clusters", json, &cluster).await;
    assert_eq!((code, &created["metadata"]["uid"]), (201, &json!("theirs")), "{created}");
    assert_eq!(created["metadata"]["creationTimestamp"], "2024-01-01T00:00:00Z");
    let (_, listed) = call(&server, "GET", "/clusters", json, &Value::Null).await;
    assert_eq!(listed["items"][0]["metadata"]["uid"], "theirs");
    created["spec"]["region"] = "east".into();
    let (code, written) = call(&server, "PUT", "/clusters/m1", json, &created).await;
    assert_eq!((code, &written["metadata"]["uid"]), (200, &json!("theirs")), "{written}");
    assert_eq!(written["metadata"]["creationTimestamp"], "2024-01-01T00:00:00Z");
    let delete = |uid: &str| json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}});
    assert_eq!(call(&server, "DELETE", "/clusters/m1", json, &delete("another")).await.0, 409);
    assert_eq!(call(&server, "DELETE", "/clusters/m1", json, &delete("theirs")).await.0, 200);
}
