//! Admission webhooks on custom resources of a running server: versions, match conditions, reinvocation, dry run.

use std::sync::Arc;

use base64::Engine;
use serde_json::{Value, json};

use super::served_tests::{Answering, put, send, serve_converted};
use crate::{ApiServer, Config, Data};

const GROUP: &str = "admissionregistration.k8s.io/v1";
const JSON: &str = "application/json";
const CARS: &str = "/apis/example.com/v1/namespaces/default/cars";

/// A webhook of this name for cars in `v1beta1`, which are served in `v1`, too.
fn webhook(name: &str, side_effects: &str, more: Value) -> Value {
    let mut webhook = json!({"name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"],
        "sideEffects": side_effects, "clientConfig": {"service": {"namespace": "default", "name": name}},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1beta1"], "operations": ["CREATE"], "resources": ["cars"]}]});
    webhook.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    webhook
}

fn patched(operations: &Value) -> Value {
    let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
}

fn car(name: &str, wheels: i64) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"wheels": wheels}})
}

#[tokio::test]
async fn match_conditions_see_the_version_of_the_webhook() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_converted(&server).await;
    let refuse = |request: &Value| json!({"allowed": false, "status": {"message": format!("{} tyres", request["object"]["spec"]["tyres"])}});
    server.services().local.mount("default", "refuse", Arc::new(Answering(refuse)));
    let condition = "object.spec.tyres > 4 && request.kind.version == 'v1beta1' && request.resource.version == 'v1'";
    let webhook = webhook("refuse", "None", json!({"matchConditions": [{"name": "many", "expression": condition}]}));
    let configuration = json!({"metadata": {"name": "v"}, "webhooks": [webhook]});
    put(&client, GROUP, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", configuration)
        .await
        .unwrap();
    for (name, wheels, code) in [("four", 4, 201), ("six", 6, 400)] {
        let (given, answer) = send(&client, &format!("POST {CARS}"), JSON, car(name, wheels)).await;
        assert_eq!(given, code, "{answer}");
        if code == 400 {
            let message = "admission webhook \"refuse.example.com\" denied the request: 6 tyres";
            assert_eq!(answer["message"], message);
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn changed_custom_resources_are_sent_again() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_converted(&server).await;
    // The first one reports whether it sees the label of the second one, and whether the request is a dry run.
    let first = |request: &Value| {
        let labels = &request["object"]["metadata"]["labels"];
        let seen = format!("{}-{}", labels.get("second").is_some(), request["dryRun"]);
        patched(&json!([{"op": "add", "path": "/metadata/labels/first", "value": seen}]))
    };
    let second = |_: &Value| patched(&json!([{"op": "add", "path": "/metadata/labels/second", "value": "x"}]));
    server.services().local.mount("default", "first", Arc::new(Answering(first)));
    server.services().local.mount("default", "second", Arc::new(Answering(second)));
    for (policy, query, expected) in
        [("Never", "", "false-false"), ("IfNeeded", "", "true-false"), ("IfNeeded", "?dryRun=All", "true-true")]
    {
        let first = webhook("first", "NoneOnDryRun", json!({"reinvocationPolicy": policy}));
        let webhooks = json!([first, webhook("second", "None", json!({}))]);
        let configuration = json!({"metadata": {"name": "m"}, "webhooks": webhooks});
        let configurations = format!("/apis/{GROUP}/mutatingwebhookconfigurations");
        let (code, answer) = send(&client, &format!("POST {configurations}"), JSON, configuration).await;
        assert_eq!(code, 201, "{answer}");
        let name = format!("{}{}", policy.to_lowercase(), query.len());
        let (code, answer) = send(&client, &format!("POST {CARS}{query}"), JSON, car(&name, 4)).await;
        assert_eq!(
            (code, &answer["metadata"]["labels"]["first"]),
            (201, &json!(expected)),
            "{policy} {query}: {answer}"
        );
        assert_eq!(answer["spec"], json!({"wheels": 4}));
        let (code, _) = send(&client, &format!("DELETE {configurations}/m"), JSON, json!({})).await;
        assert_eq!(code, 200);
    }
    server.stop().await.unwrap();
}
