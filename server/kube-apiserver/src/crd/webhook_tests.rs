//! Admission webhooks on custom resources of a running server: versions, match conditions, reinvocation, dry run.

use std::sync::Arc;

use base64::Engine;
use serde_json::{Value, json};

use super::served_tests::{FunctionWebhook, create, send, serve_cars_with_webhook};
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
