//! Requests for the scale of a custom resource on a running server.

use serde_json::{Value, json};

use super::served_tests::{create, definition, send, wait_until_served};
use crate::{ApiServer, Config, Data};

const JSON: &str = "application/json";
const CARS: &str = "/apis/example.com/v1/namespaces/default/cars";

/// Serves cars whose `spec.wheels` is the number of replicas.
async fn serve_scalable_cars(server: &ApiServer) {
    let mut definition = definition(json!({"strategy": "None"}));
    definition["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.wheels", "statusReplicasPath": ".status.wheels"}});
    let definitions = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    create(&server.admin(), definitions.0, definitions.1, definitions.2, definition).await.unwrap();
    wait_until_served(server, true).await;
}

#[tokio::test]
async fn scales_that_cannot_be_decoded_are_refused_as_by_kube_apiserver() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_scalable_cars(&server).await;
    let car = json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": "c"}, "spec": {"wheels": 4}});
    let (code, car) = send(&client, &format!("POST {CARS}?fieldManager=m"), JSON, car).await;
    assert_eq!(code, 201, "{car}");

    let scale = |replicas: Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "c"}, "spec": {"replicas": replicas}});
    let reason = "no kind is registered for the type v1.Scale in scheme \"k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go:781\"";
    for (query, body) in [
        ("", scale(json!("many"))),
        ("", scale(json!(1.5))),
        ("", json!({"apiVersion": "example.com/v1", "kind": "Car"})),
        ("", json!([])),
        ("?fieldValidation=Strict", json!({"metadata": {"name": "c"}, "spec": {"replicas": 1, "other": 1}})),
    ] {
        let (code, status) = send(&client, &format!("PUT {CARS}/c/scale{query}"), JSON, body.clone()).await;
        assert_eq!((code, status["message"].as_str()), (400, Some(reason)), "{body}");
    }
    let (code, scaled) = send(&client, &format!("PUT {CARS}/c/scale?fieldManager=m"), JSON, scale(json!(3))).await;
    assert_eq!((code, &scaled["spec"], scaled["metadata"].get("managedFields")), (200, &json!({"replicas": 3}), None));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn errors_of_patched_scales_contain_the_managers_of_the_replicas() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_scalable_cars(&server).await;
    let car = json!({"apiVersion": "example.com/v1", "kind": "Car",
        "metadata": {"name": "c", "labels": {"a": "b"}}, "spec": {"wheels": 4}});
    let (code, car) = send(&client, &format!("POST {CARS}?fieldManager=m"), JSON, car).await;
    assert_eq!(code, 201, "{car}");
    let metadata = &car["metadata"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let displayed = format!(
        r#"{{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{{"name":"c","namespace":"default","uid":"{}","resourceVersion":"{}","creationTimestamp":"{}","managedFields":[{{"manager":"m","operation":"Update","apiVersion":"autoscaling/v1","time":"{}","fieldsType":"FieldsV1","fieldsV1":{{"f:spec":{{"f:replicas":{{}}}}}}}}]}},"spec":{{"replicas":"many"}},"status":{{"replicas":0}}}}"#,
        text(&metadata["uid"]),
        text(&metadata["resourceVersion"]),
        text(&metadata["creationTimestamp"]),
        text(&metadata["managedFields"][0]["time"]),
    );
    let expected = format!(
        " \"\" is invalid: patch: Invalid value: {}: json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32",
        Value::String(displayed)
    );
    let patch = json!([{"op": "replace", "path": "/spec/replicas", "value": "many"}]);
    let merge = json!({"spec": {"replicas": "many"}});
    for (media, body) in [("application/json-patch+json", patch), ("application/merge-patch+json", merge)] {
        let (code, status) = send(&client, &format!("PATCH {CARS}/c/scale"), media, body).await;
        assert_eq!((code, status["message"].as_str()), (422, Some(expected.as_str())), "{media}");
    }
    server.stop().await.unwrap();
}

/// kube-apiserver's Scale omits a zero. Replicas without an owner stay without one.
#[tokio::test]
async fn zero_replicas_of_a_scale_have_no_owner() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_scalable_cars(&server).await;
    let car = json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": "c"}, "spec": {"wheels": 4}});
    let (code, car) = send(&client, &format!("POST {CARS}?fieldManager=m"), JSON, car).await;
    assert_eq!(code, 201, "{car}");
    for (replicas, expected) in [(3, vec!["m", "scaler"]), (0, vec!["m"]), (2, vec!["m"])] {
        let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "c"},
            "spec": {"replicas": replicas}});
        let (code, scaled) = send(&client, &format!("PUT {CARS}/c/scale?fieldManager=scaler"), JSON, scale).await;
        assert_eq!(code, 200, "{scaled}");
        let (_, car) = send(&client, &format!("GET {CARS}/c"), JSON, Value::Null).await;
        let entries = car["metadata"]["managedFields"].as_array().unwrap();
        let mut managers: Vec<&str> = entries.iter().filter_map(|entry| entry["manager"].as_str()).collect();
        managers.sort_unstable();
        assert_eq!(managers, expected, "{car}");
    }
    server.stop().await.unwrap();
}
