//! Writes of custom resources with managers of several versions, with the results of kube-apiserver 1.36.

use serde_json::{Value, json};

use super::served_tests::{definition, send, wait_until_served};
use crate::{ApiServer, Config, Data};

const JSON: &str = "application/json";
const CARS: &str = "/apis/example.com/v1/namespaces/default/cars";
const BETA_CARS: &str = "/apis/example.com/v1beta1/namespaces/default/cars";

/// A server with a kind whose second version has a default that the stored version lacks.
async fn start_server() -> (ApiServer, kube::Client) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let mut definition = definition(json!({"strategy": "None"}));
    let version = |name: &str, is_stored: bool, more: Value| {
        let mut nested = json!({"a": {"type": "string"}});
        nested.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        json!({"name": name, "served": true, "storage": is_stored, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"nested": {"type": "object", "properties": nested}}},
            "status": {"type": "object", "properties": {"count": {"type": "integer"}, "state": {"type": "string"}}},
        }}}})
    };
    let with_default = json!({"c": {"type": "string", "default": "c"}});
    definition["spec"]["versions"] = json!([version("v1", true, json!({})), version("v1beta1", false, with_default)]);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, created) = send(&client, &format!("POST {definitions}"), JSON, definition).await;
    assert_eq!(code, 201, "{created}");
    wait_until_served(&server, true).await;
    (server, client)
}

fn car(version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Car",
        "metadata": {"name": "c", "labels": {"a": "b"}}, "spec": spec})
}

/// Only the version of the request has reset fields.
#[tokio::test]
async fn a_manager_of_another_version_loses_status_fields_of_a_main_write() {
    let (server, client) = start_server().await;
    let (code, created) = send(&client, &format!("POST {CARS}?fieldManager=m"), JSON, car("v1", json!({}))).await;
    assert_eq!(code, 201, "{created}");
    let status = json!({"status": {"count": 1, "state": "a"}});
    let merge = "application/merge-patch+json";
    let request = format!("PATCH {BETA_CARS}/c/status?fieldManager=status");
    let (code, updated) = send(&client, &request, merge, status.clone()).await;
    assert_eq!((code, &updated["status"]), (200, &status["status"]), "{updated}");
    let removal = json!([{"op": "remove", "path": "/status/count"}]);
    let request = format!("PATCH {CARS}/c?fieldManager=patcher");
    let (code, patched) = send(&client, &request, "application/json-patch+json", removal).await;
    assert_eq!((code, &patched["status"]), (200, &status["status"]), "{patched}");
    let entries = patched["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["manager"] == "status").unwrap();
    assert_eq!(entry["fieldsV1"], json!({"f:status": {".": {}, "f:state": {}}}));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_apply_that_changes_nothing_sets_no_defaults() {
    let (server, client) = start_server().await;
    let (code, created) =
        send(&client, &format!("POST {CARS}?fieldManager=m"), JSON, car("v1", json!({"nested": {"a": "x"}}))).await;
    assert_eq!((code, &created["metadata"]["generation"]), (201, &json!(1)), "{created}");
    let apply = "application/apply-patch+yaml";
    let request = format!("PATCH {BETA_CARS}/c?fieldManager=b");
    let mut config = json!({"apiVersion": "example.com/v1beta1", "kind": "Car", "metadata": {"name": "c"}});
    let (code, applied) = send(&client, &request, apply, config.clone()).await;
    assert_eq!((code, &applied["metadata"]["generation"]), (200, &json!(1)), "{applied}");
    assert_eq!(applied["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    // The default is a change as soon as another field changes.
    config["metadata"]["labels"] = json!({"new": "x"});
    let (code, applied) = send(&client, &request, apply, config).await;
    assert_eq!((code, &applied["metadata"]["generation"]), (200, &json!(2)), "{applied}");
    server.stop().await.unwrap();
}

/// Duplicates cannot be converted to the version of another manager. They are removed after that was tried.
#[tokio::test]
async fn patches_with_duplicate_owners_drop_managers_of_other_versions() {
    let (server, client) = start_server().await;
    let (code, created) =
        send(&client, &format!("POST {BETA_CARS}?fieldManager=m"), JSON, car("v1beta1", json!({}))).await;
    assert_eq!(code, 201, "{created}");
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Owner", "name": "owner", "uid": "u-2"});
    let owners = |count: usize| json!({"metadata": {"ownerReferences": vec![owner.clone(); count]}});
    let merge = "application/merge-patch+json";
    for (version, count, has_managers) in [(BETA_CARS, 2, true), (CARS, 1, true), (CARS, 2, false)] {
        let request = format!("PATCH {version}/c?fieldManager=patcher");
        let (code, patched) = send(&client, &request, merge, owners(count)).await;
        assert_eq!((code, &patched["metadata"]["ownerReferences"]), (200, &json!([owner])), "{patched}");
        assert_eq!(patched["metadata"].get("managedFields").is_some(), has_managers, "{version} {count}: {patched}");
    }
    server.stop().await.unwrap();
}
