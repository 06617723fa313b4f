//! Webhooks on custom resources of a running server: versions, match conditions, reinvocation, dry run, failed conversions.

use std::sync::Arc;

use base64::Engine;
use crowsnest_registry::storage::{ChangeKind, ResourceKey};
use serde_json::{Value, json};

use super::served_tests::{
    FunctionWebhook, create, definition, rename_wheels, send, serve_cars_with_webhook, wait_until_served,
};
use crate::{ApiServer, Config, Data};

const GROUP: &str = "admissionregistration.k8s.io/v1";
const JSON: &str = "application/json";
const CARS: &str = "/apis/example.com/v1/namespaces/default/cars";

/// A webhook for cars in version `v1beta1`. Requests in `v1` are converted for it.
fn webhook(name: &str, side_effects: &str, more: Value) -> Value {
    let mut webhook = json!({"name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"],
        "sideEffects": side_effects, "clientConfig": {"service": {"namespace": "default", "name": name}},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1beta1"], "operations": ["CREATE"], "resources": ["cars"]}]});
    webhook.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    webhook
}

fn patch_response(operations: &Value) -> Value {
    let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
}

fn car(name: &str, wheels: i64) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"wheels": wheels}})
}

#[tokio::test]
async fn match_conditions_use_the_version_of_the_webhook() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_cars_with_webhook(&server).await;
    let refuse = |request: &Value| json!({"allowed": false, "status": {"message": format!("{} tyres", request["object"]["spec"]["tyres"])}});
    server.services().in_process.mount("default", "refuse", Arc::new(FunctionWebhook(refuse)));
    let condition = "object.spec.tyres > 4 && request.kind.version == 'v1beta1' && request.resource.version == 'v1'";
    let webhook = webhook("refuse", "None", json!({"matchConditions": [{"name": "many", "expression": condition}]}));
    let configuration = json!({"metadata": {"name": "v"}, "webhooks": [webhook]});
    create(&client, GROUP, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", configuration)
        .await
        .unwrap();
    for (name, wheels, code) in [("four", 4, 201), ("six", 6, 400)] {
        let (status, response) = send(&client, &format!("POST {CARS}"), JSON, car(name, wheels)).await;
        assert_eq!(status, code, "{response}");
        if code == 400 {
            let message = "admission webhook \"refuse.example.com\" denied the request: 6 tyres";
            assert_eq!(response["message"], message);
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn webhooks_are_reinvoked_after_later_changes() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_cars_with_webhook(&server).await;
    // The first one reports whether it sees the label of the second one, and whether the request is a dry run.
    let first = |request: &Value| {
        let labels = &request["object"]["metadata"]["labels"];
        let seen = format!("{}-{}", labels.get("second").is_some(), request["dryRun"]);
        patch_response(&json!([{"op": "add", "path": "/metadata/labels/first", "value": seen}]))
    };
    let second = |_: &Value| patch_response(&json!([{"op": "add", "path": "/metadata/labels/second", "value": "x"}]));
    server.services().in_process.mount("default", "first", Arc::new(FunctionWebhook(first)));
    server.services().in_process.mount("default", "second", Arc::new(FunctionWebhook(second)));
    for (policy, query, expected) in
        [("Never", "", "false-false"), ("IfNeeded", "", "true-false"), ("IfNeeded", "?dryRun=All", "true-true")]
    {
        let first = webhook("first", "NoneOnDryRun", json!({"reinvocationPolicy": policy}));
        let webhooks = json!([first, webhook("second", "None", json!({}))]);
        let configuration = json!({"metadata": {"name": "m"}, "webhooks": webhooks});
        let configurations = format!("/apis/{GROUP}/mutatingwebhookconfigurations");
        let (code, response) = send(&client, &format!("POST {configurations}"), JSON, configuration).await;
        assert_eq!(code, 201, "{response}");
        let name = format!("{}{}", policy.to_lowercase(), query.len());
        let (code, response) = send(&client, &format!("POST {CARS}{query}"), JSON, car(&name, 4)).await;
        assert_eq!(
            (code, &response["metadata"]["labels"]["first"]),
            (201, &json!(expected)),
            "{policy} {query}: {response}"
        );
        assert_eq!(response["spec"], json!({"wheels": 4}));
        let (code, _) = send(&client, &format!("DELETE {configurations}/m"), JSON, json!({})).await;
        assert_eq!(code, 200);
    }
    server.stop().await.unwrap();
}

/// A denial whose message is the version in which the webhook received the object.
fn deny_with_version(request: &Value) -> Value {
    json!({"allowed": false, "status": {"message": request["kind"]["version"]}})
}

#[tokio::test]
async fn the_first_rule_that_matches_decides_on_the_version() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let mut definition = definition(json!({"strategy": "None"}));
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    let mut version = versions[1].clone();
    version["name"] = "v2".into();
    versions.push(version);
    let definitions = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    create(&client, definitions.0, definitions.1, definitions.2, definition).await.unwrap();
    wait_until_served(&server, true).await;
    server.services().in_process.mount("default", "deny", Arc::new(FunctionWebhook(deny_with_version)));
    let rule = |version: &str| json!({"apiGroups": ["example.com"], "apiVersions": [version], "operations": ["CREATE"], "resources": ["cars"]});
    let webhook = webhook("deny", "None", json!({"rules": [rule("v2"), rule("v1beta1")]}));
    let configuration = json!({"metadata": {"name": "v"}, "webhooks": [webhook]});
    create(&client, GROUP, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", configuration)
        .await
        .unwrap();
    let (code, response) = send(&client, &format!("POST {CARS}"), JSON, car("a", 4)).await;
    let message = "admission webhook \"deny.example.com\" denied the request: v2";
    assert_eq!((code, response["message"].as_str()), (400, Some(message)));
    server.stop().await.unwrap();
}

/// Like the cache of kube-apiserver, which has converted all objects once.
#[tokio::test]
async fn watches_can_start_during_an_outage_of_the_conversion_webhook() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_cars_with_webhook(&server).await;
    let (code, response) = send(&client, &format!("POST {CARS}"), JSON, car("a", 4)).await;
    assert_eq!(code, 201, "{response}");
    let old = server.registry().catalog.snapshot().by_kind("example.com/v1beta1", "Car").cloned().unwrap();
    let fail = |_: &Value| json!({"result": {"status": "Failure", "message": "no tyres"}});
    for (convert, is_ready, code) in
        [(fail as fn(&Value) -> Value, false, 429), (rename_wheels, true, 200), (fail, true, 429)]
    {
        server.services().in_process.mount("default", "convert", Arc::new(FunctionWebhook(convert)));
        assert_eq!(server.registry().check_cache_readiness(&old).await.is_ok(), is_ready);
        let list = "GET /apis/example.com/v1beta1/namespaces/default/cars";
        assert_eq!(send(&client, list, JSON, Value::Null).await.0, code);
    }
    server.stop().await.unwrap();
}

#[rstest::rstest]
#[case::another_version_is_served(true)]
#[case::no_version_is_served(false)]
#[tokio::test]
async fn objects_are_deleted_in_a_storage_version_that_is_not_served(#[case] serves_other: bool) {
    const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/cars.example.com";
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_cars_with_webhook(&server).await;
    let (code, response) = send(&client, &format!("POST {CARS}"), JSON, car("a", 4)).await;
    assert_eq!(code, 201, "{response}");
    let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false},
        {"op": "replace", "path": "/spec/versions/1/served", "value": serves_other}]);
    let (code, response) = send(&client, &format!("PATCH {DEFINITION}"), "application/json-patch+json", patch).await;
    assert_eq!(code, 200, "{response}");
    wait_until_served(&server, false).await;

    // Objects in the storage version are not converted.
    let fail = |_: &Value| json!({"result": {"status": "Failure", "message": "no tyres"}});
    server.services().in_process.mount("default", "convert", Arc::new(FunctionWebhook(fail)));
    let store = &server.registry().store;
    let table = ResourceKey::new("apiextensions.k8s.io", "customresourcedefinitions");
    let mut watcher = store.watch(&table, store.revision()).unwrap();
    assert_eq!(send(&client, &format!("DELETE {DEFINITION}"), JSON, json!({})).await.0, 200);
    let deletion =
        async { while watcher.next().await.unwrap().iter().all(|change| change.kind != ChangeKind::Deleted) {} };
    tokio::time::timeout(std::time::Duration::from_secs(30), deletion).await.expect("the definition is deleted");
    assert_eq!(store.count(&ResourceKey::new("example.com", "cars")), 0);
    server.stop().await.unwrap();
}

/// The failure policy concerns calls of the webhook itself.
#[tokio::test]
async fn objects_that_cannot_be_converted_for_a_webhook_are_refused() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_cars_with_webhook(&server).await;
    let fail = |_: &Value| json!({"result": {"status": "Failure", "message": "no tyres"}});
    server.services().in_process.mount("default", "convert", Arc::new(FunctionWebhook(fail)));
    let cause = "Internal error occurred: conversion webhook for example.com/v1, Kind=Car failed: no tyres";
    for (plural, conditions, expected) in [
        ("validatingwebhookconfigurations", json!([]), cause.to_owned()),
        ("mutatingwebhookconfigurations", json!([]), format!("Internal error occurred: {cause}")),
        (
            "mutatingwebhookconfigurations",
            json!([{"name": "any", "expression": "true"}]),
            format!("Internal error occurred: {cause}"),
        ),
    ] {
        let webhook = webhook("absent", "None", json!({"failurePolicy": "Ignore", "matchConditions": conditions}));
        let configuration = json!({"metadata": {"name": "w"}, "webhooks": [webhook]});
        let configurations = format!("/apis/{GROUP}/{plural}");
        let (code, response) = send(&client, &format!("POST {configurations}"), JSON, configuration).await;
        assert_eq!(code, 201, "{response}");
        let (code, response) = send(&client, &format!("POST {CARS}"), JSON, car("a", 4)).await;
        assert_eq!((code, response["message"].as_str()), (500, Some(expected.as_str())), "{plural} {conditions}");
        let (code, _) = send(&client, &format!("DELETE {configurations}/w"), JSON, json!({})).await;
        assert_eq!(code, 200);
    }
    server.stop().await.unwrap();
}
