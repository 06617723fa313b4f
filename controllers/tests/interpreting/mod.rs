//! A kind that an interpreter webhook handles, from the template to a member and back.

use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use crowsnest_apiserver::authn::{Authority, ServingCertificates};
use crowsnest_apiserver::serve::serve;
use crowsnest_controllers::runtime::dynamic_client::{Resource, Target};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::test_env::{TestEnv, builtin, custom};
use crate::{binding, deployment, merge, policy, propagation_policy, web};

const OPERATIONS: [&str; 7] = [
    "InterpretReplica",
    "ReviseReplica",
    "Retain",
    "InterpretStatus",
    "InterpretHealth",
    "AggregateStatus",
    "InterpretDependency",
];

fn encode_base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn patch(operations: &Value) -> Value {
    json!({"patchType": "JSONPatch", "patch": encode_base64(&operations.to_string())})
}

/// Interprets Deployments differently from the built-in interpreter.
async fn interpret(Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let object = &request["object"];
    let mut response = match request["operation"].as_str().unwrap() {
        "InterpretReplica" => json!({
            "replicas": object["spec"]["replicas"], "replicaRequirements": {"resourceRequest": {"cpu": "5m"}}}),
        "ReviseReplica" => patch(&json!([
            {"op": "replace", "path": "/spec/replicas", "value": request["replicas"]},
            {"op": "add", "path": "/metadata/annotations/revised", "value": "by-webhook"},
        ])),
        "Retain" => {
            let retained = request["observedObject"]["spec"]["minReadySeconds"].as_i64().unwrap_or_default();
            patch(&json!([{"op": "add", "path": "/spec/minReadySeconds", "value": retained}]))
        }
        "InterpretStatus" => json!({"rawStatus": {"seen": object["spec"]["replicas"]}}),
        "InterpretHealth" => json!({"healthy": true}),
        "AggregateStatus" => {
            let items = request["aggregatedStatus"].as_array().into_iter().flatten();
            let seen: i64 = items.filter_map(|item| item["status"]["seen"].as_i64()).sum();
            patch(&json!([{"op": "add", "path": "/status", "value": {"replicas": seen, "readyReplicas": seen}}]))
        }
        "InterpretDependency" => json!({"dependencies": [
            {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "needed"}]}),
        other => panic!("unexpected operation {other}"),
    };
    response["uid"] = request["uid"].clone();
    response["successful"] = json!(true);
    Json(
        json!({"apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterContext", "response": response}),
    )
}

/// Starts a webhook. Returns its port and the certificate of its authority.
async fn start(stop: &CancellationToken) -> (u16, String) {
    let authority = Authority::generate("webhooks").unwrap();
    let own = authority.issue_serving_certificate(&["interpreter.default.svc".to_owned()]).unwrap();
    let tls = authority.tls(ServingCertificates::new(&own).unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/deployments", post(interpret));
    tokio::spawn(serve(listener, Some(tls), router, stop.clone()));
    (port, authority.certificate().to_owned())
}

fn configurations() -> Resource {
    custom(
        "config.karmada.io",
        "v1alpha1",
        "resourceinterpreterwebhookconfigurations",
        "ResourceInterpreterWebhookConfiguration",
        false,
    )
}

fn configuration(port: u16, authority: &str) -> Value {
    json!({
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterWebhookConfiguration",
        "metadata": {"name": "of-deployments"},
        "webhooks": [{
            "name": "deployments.example.com", "timeoutSeconds": 5, "interpreterContextVersions": ["v1alpha1"],
            "rules": [{"operations": OPERATIONS, "apiGroups": ["apps"], "apiVersions": ["v1"], "kinds": ["Deployment"]}],
            "clientConfig": {
                "caBundle": encode_base64(authority),
                "service": {"namespace": "default", "name": "interpreter", "port": port, "path": "/deployments"},
            },
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_interprets_a_kind() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let stop = CancellationToken::new();
    let (port, authority) = start(&stop).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "interpreter", "namespace": "default"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    control_plane.create(&builtin("", "services", "Service"), "default", &service).await.unwrap();
    control_plane.create(&configurations(), "", &configuration(port, &authority)).await.unwrap();
    let config_map = builtin("", "configmaps", "ConfigMap");
    let needed = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "needed", "namespace": "default"}, "data": {"a": "1"}});
    control_plane.create(&config_map, "default", &needed).await.unwrap();
    let mut manifest = policy("p", "Deployment", "apps/v1", json!({"clusterAffinity": {"clusterNames": ["m1"]}}));
    manifest["spec"]["propagateDeps"] = json!(true);
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&deployment(), "default", &web(3)).await.unwrap();

    let m1 = env.member("m1");
    let is_revised = |object: &Value| object["metadata"]["annotations"]["revised"] == "by-webhook";
    env.wait_for(&m1, &deployment(), "default", "web", is_revised).await;
    let needed_config_map = r#"[{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"needed"}]"#;
    let is_interpreted = |binding: &Value| {
        let item = &binding["status"]["aggregatedStatus"][0];
        binding["spec"]["replicaRequirements"]["resourceRequest"]["cpu"] == "5m"
            && binding["metadata"]["annotations"]["resourcebinding.karmada.io/dependencies"] == needed_config_map
            && item["health"] == "Healthy"
            && item["status"] == json!({"seen": 3})
    };
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_interpreted).await;
    env.wait_for(&m1, &config_map, "default", "needed", |object| object["data"]["a"] == "1").await;
    env.wait_for(&control_plane, &deployment(), "default", "web", |object| object["status"]["readyReplicas"] == 3)
        .await;

    // The webhook retains one of the member's values, and nothing retains the other.
    merge(&m1, &deployment(), "web", json!({"spec": {"minReadySeconds": 7, "paused": true}})).await;
    let is_reverted = |object: &Value| object["spec"]["minReadySeconds"] == 7 && object["spec"].get("paused").is_none();
    env.wait_for(&m1, &deployment(), "default", "web", is_reverted).await;

    // Without the webhook, the built-in interpreter handles the kind again.
    control_plane.delete(Target::new(&configurations(), "", "of-deployments")).await.unwrap();
    let is_unhealthy = |binding: &Value| binding["status"]["aggregatedStatus"][0]["health"] == "Unhealthy";
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_unhealthy).await;
    env.stop().await;
    stop.cancel();
}
