//! Life cycle of a CRD on a running server: serving, conversion by an in-process webhook, rejection by another one,
//! deletion.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use base64::Engine;
use crowsnest_apiserver::outbound::InProcessServer;
use futures::StreamExt;
use kube::api::{Api, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::{ApiServer, Config, Data};

const JSON: &str = "application/json";

/// A webhook whose response is computed by a function of the request.
pub(super) struct FunctionWebhook(pub(super) fn(&Value) -> Value);

#[async_trait]
impl InProcessServer for FunctionWebhook {
    async fn serve(&self, request: http::Request<Body>) -> http::Response<Body> {
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let mut response = (self.0)(&review["request"]);
        response["uid"] = review["request"]["uid"].clone();
        let review = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response});
        http::Response::new(Body::from(review.to_string()))
    }
}

pub(super) async fn create(
    client: &kube::Client,
    api_version: &str,
    kind: &str,
    plural: &str,
    object: Value,
) -> Result<Value, kube::Error> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let api: Api<DynamicObject> = match object.pointer("/metadata/namespace").and_then(Value::as_str) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let mut object: DynamicObject = serde_json::from_value(object).unwrap();
    object.types = Some(kube::core::TypeMeta { api_version: api_version.into(), kind: kind.into() });
    api.create(&PostParams::default(), &object).await.map(|o| serde_json::to_value(o).unwrap())
}

pub(super) fn definition(conversion: Value) -> Value {
    let version = |name: &str, storage: bool, field: &str| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {field: {"type": "integer", "maximum": 9}}}}}}})
    };
    json!({"metadata": {"name": "cars.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "cars", "kind": "Car"}, "conversion": conversion,
        "versions": [version("v1", true, "wheels"), version("v1beta1", false, "tyres")]}})
}

/// Waits until the catalog serves cars, or does not serve them.
pub(super) async fn wait_until_served(server: &ApiServer, is_served: bool) {
    let mut changed = server.registry().catalog.subscribe();
    while server.registry().catalog.snapshot().serves("example.com", "v1") != is_served {
        changed.changed().await.unwrap();
    }
}

/// Response of a conversion webhook that renames a field, and returns integers as floats.
pub(super) fn rename_wheels(request: &Value) -> Value {
    let to = request["desiredAPIVersion"].as_str().unwrap_or("");
    let convert = |object: &Value| {
        let mut object = object.clone();
        let (from, into) = if to.ends_with("/v1") { ("tyres", "wheels") } else { ("wheels", "tyres") };
        let moved = object["spec"].as_object_mut().and_then(|spec| spec.remove(from));
        object["spec"][into] = moved.and_then(|moved| moved.as_f64()).into();
        object["apiVersion"] = to.into();
        object
    };
    let objects: Vec<Value> = request["objects"].as_array().unwrap().iter().map(convert).collect();
    json!({"result": {"status": "Success"}, "convertedObjects": objects})
}

/// Serves cars whose versions are converted by a webhook.
pub(super) async fn serve_cars_with_webhook(server: &ApiServer) {
    server.services().in_process.mount("default", "convert", Arc::new(FunctionWebhook(rename_wheels)));
    let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "default", "name": "convert", "path": "/convert"}}}});
    let (crds, definitions) = ("apiextensions.k8s.io/v1", "customresourcedefinitions");
    create(&server.admin(), crds, "CustomResourceDefinition", definitions, definition(conversion)).await.unwrap();
    wait_until_served(server, true).await;
}

#[tokio::test]
async fn definitions_are_served_and_deleted() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    serve_cars_with_webhook(&server).await;

    let car = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": {"tyres": 4}});
    let created = create(&client, "example.com/v1beta1", "Car", "cars", car).await.unwrap();
    assert_eq!((&created["spec"], &created["apiVersion"]), (&json!({"tyres": 4}), &json!("example.com/v1beta1")));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Car"), "cars");
    let cars: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    assert_eq!(cars.get("a").await.unwrap().data["spec"], json!({"wheels": 4}));

    let too_many = json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"wheels": 10}});
    let error = create(&client, "example.com/v1", "Car", "cars", too_many).await.unwrap_err();
    assert!(error.to_string().contains("spec.wheels in body should be less than or equal to 9"), "{error}");

    let definitions =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &definitions);
    definitions.delete("cars.example.com", &Default::default()).await.unwrap();
    wait_until_served(&server, false).await;
    assert!(definitions.get_opt("cars.example.com").await.unwrap().is_none());
    server.stop().await.unwrap();
}

/// Numbers, octal integers and duplicate keys are read as by Go.
#[rstest::rstest]
#[case::whole_float("application/json", r#"{"spec": {"wheels": 4.0}}"#, Ok(json!(4)))]
#[case::exponent("application/json", r#"{"spec": {"wheels": 4e0}}"#, Ok(json!(4)))]
#[case::octal("application/yaml", "spec: {wheels: 010}", Ok(json!(8)))]
#[case::yaml_float("application/yaml", "spec: {wheels: 4.0}", Ok(json!(4)))]
#[case::duplicate_key(
    "application/yaml",
    "spec:\n  wheels: 1\n  wheels: 2",
    Err("line 6: key \"wheels\" already set in map")
)]
#[tokio::test]
async fn bodies_are_decoded_as_by_go(
    #[case] media_type: &str,
    #[case] spec: &str,
    #[case] expected: Result<Value, &str>,
) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let (crds, definitions) = ("apiextensions.k8s.io/v1", "customresourcedefinitions");
    create(&client, crds, "CustomResourceDefinition", definitions, definition(json!({"strategy": "None"})))
        .await
        .unwrap();
    wait_until_served(&server, true).await;
    let body = match spec.strip_prefix('{') {
        Some(rest) => {
            format!(r#"{{"apiVersion": "example.com/v1", "kind": "Car", "metadata": {{"name": "a"}}, {rest}"#)
        }
        None => format!("apiVersion: example.com/v1\nkind: Car\nmetadata: {{name: a}}\n{spec}\n"),
    };
    let path = "/apis/example.com/v1/namespaces/default/cars?fieldValidation=Strict";
    let request = http::Request::post(path).header("content-type", media_type).body(body.into_bytes()).unwrap();
    match (client.request::<Value>(request).await, expected) {
        (Ok(created), Ok(wheels)) => assert_eq!(created["spec"]["wheels"], wheels),
        (Err(error), Err(finding)) => assert!(error.to_string().contains(finding), "{error}"),
        (result, expected) => panic!("{result:?} instead of {expected:?}"),
    }
    server.stop().await.unwrap();
}

/// Upgrades of operators remove old versions from their CRDs.
#[tokio::test]
async fn only_watches_of_removed_versions_end() {
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let (crds, definitions) = ("apiextensions.k8s.io/v1", "customresourcedefinitions");
    create(&client, crds, "CustomResourceDefinition", definitions, definition(json!({"strategy": "None"})))
        .await
        .unwrap();
    wait_until_served(&server, true).await;
    let cars = |version: &str| {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", version, "Car"), "cars");
        Api::<DynamicObject>::namespaced_with(client.clone(), "default", &resource)
    };
    let [old, new] = [cars("v1beta1"), cars("v1")];
    let mut old_watch = old.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let mut new_watch = new.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let car = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"wheels": 4}});
    create(&client, "example.com/v1", "Car", "cars", car("before")).await.unwrap();
    for watch in [&mut old_watch, &mut new_watch] {
        let event = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap();
        assert!(matches!(event, Some(Ok(WatchEvent::Added(car))) if car.metadata.name.as_deref() == Some("before")));
    }

    let versions = definition(Value::Null)["spec"]["versions"][0].clone();
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "x"), definitions);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let patch = Patch::Merge(json!({"spec": {"versions": [versions]}}));
    api.patch("cars.example.com", &PatchParams::default(), &patch).await.unwrap();
    let end = tokio::time::timeout(TIMEOUT, old_watch.next()).await.expect("the watch ends");
    assert!(end.is_none(), "{end:?}");
    create(&client, "example.com/v1", "Car", "cars", car("after")).await.unwrap();
    let event = tokio::time::timeout(TIMEOUT, new_watch.next()).await.unwrap();
    assert!(matches!(event, Some(Ok(WatchEvent::Added(car))) if car.metadata.name.as_deref() == Some("after")));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn admission_webhooks_change_and_reject_objects() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let label = |_: &Value| {
        let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]).to_string();
        let patch = base64::engine::general_purpose::STANDARD.encode(patch);
        json!({"allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["labelled"]})
    };
    let refuse = |request: &Value| {
        let labelled = request["object"]["metadata"]["labels"]["seen"] == "yes";
        json!({"allowed": labelled && request["name"] != "bad", "status": {"message": "no bad ones", "code": 403}})
    };
    server.services().in_process.mount("default", "label", Arc::new(FunctionWebhook(label)));
    server.services().in_process.mount("default", "refuse", Arc::new(FunctionWebhook(refuse)));
    let webhook = |name: &str, condition: &str| {
        json!({"name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"namespace": "default", "name": name}},
            "matchConditions": [{"name": "c", "expression": condition}],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]})
    };
    let group = "admissionregistration.k8s.io/v1";
    let mutating =
        json!({"metadata": {"name": "m"}, "webhooks": [webhook("label", "object.metadata.name != 'plain'")]});
    create(&client, group, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", mutating).await.unwrap();
    let validating = json!({"metadata": {"name": "v"}, "webhooks": [webhook("refuse", "request.userInfo.username == 'system:admin'")]});
    create(&client, group, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", validating)
        .await
        .unwrap();

    let config_map = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}});
    let created = create(&client, "v1", "ConfigMap", "configmaps", config_map("good")).await.unwrap();
    assert_eq!(created["metadata"]["labels"], json!({"seen": "yes"}));
    for name in ["bad", "plain"] {
        let error = create(&client, "v1", "ConfigMap", "configmaps", config_map(name)).await.unwrap_err();
        assert!(
            error.to_string().contains("admission webhook \"refuse.example.com\" denied the request: no bad ones"),
            "{error}"
        );
    }
    let config_maps: Api<DynamicObject> =
        Api::namespaced_with(client, "default", &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap")));
    let names: Vec<ObjectMeta> =
        config_maps.list(&ListParams::default()).await.unwrap().items.into_iter().map(|o| o.metadata).collect();
    assert!(!names.iter().any(|m| m.name.as_deref() == Some("bad")));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn patches_cannot_change_the_version_and_a_scale_needs_replicas() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let mut definition = definition(json!({"strategy": "None"}));
    definition["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.wheels", "statusReplicasPath": ".status.wheels"}});
    let definitions = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    create(&client, definitions.0, definitions.1, definitions.2, definition).await.unwrap();
    wait_until_served(&server, true).await;
    let car = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {}});
    create(&client, "example.com/v1", "Car", "cars", car).await.unwrap();
    for (path, body, expected_error) in [
        (
            "",
            json!({"apiVersion": "example.com/v1beta1"}),
            Some((
                422,
                "Car.example.com \"c\" is invalid: apiVersion: Invalid value: \"example.com/v1beta1\": must be example.com/v1",
            )),
        ),
        (
            "",
            json!({"apiVersion": "other.com/v1", "kind": "Truck"}),
            Some((
                422,
                "Truck.other.com \"c\" is invalid: [kind: Invalid value: \"Truck\": must be Car, apiVersion: Invalid value: \"other.com/v1\": must be example.com/v1]",
            )),
        ),
        ("/scale", json!({}), Some((400, "the spec replicas field \".spec.wheels\" cannot be empty"))),
        ("/scale", json!({"spec": {"replicas": 3}}), None),
        ("/scale", json!({}), None),
    ] {
        let url = format!("/apis/example.com/v1/namespaces/default/cars/c{path}");
        let request = http::Request::patch(url).header("content-type", "application/merge-patch+json");
        let response = client.request_text(request.body(body.to_string().into_bytes()).unwrap()).await;
        let error = match &response {
            Ok(_) => None,
            Err(kube::Error::Api(status)) => Some((status.code, status.message.as_str())),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(error, expected_error, "{path} {body}");
    }
    server.stop().await.unwrap();
}

/// Sends a request with a JSON body; returns status code and response.
pub(super) async fn send(client: &kube::Client, line: &str, media: &str, body: Value) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let request = http::Request::builder().method(method).uri(path).header("content-type", media);
    let response = client.send(request.body(body.to_string().into_bytes().into()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn terminating_definitions_allow_updates_but_no_creates() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let (json, merge, apply) = ("application/json", "application/merge-patch+json", "application/apply-patch+yaml");
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let cars = "/apis/example.com/v1/namespaces/default/cars";
    assert_eq!(send(&client, &format!("POST {definitions}"), json, definition(Value::Null)).await.0, 201);
    wait_until_served(&server, true).await;
    let car = |name: &str, finalizers: &[&str]| json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name, "finalizers": finalizers}});
    assert_eq!(send(&client, &format!("POST {cars}"), json, car("held", &["example.com/held"])).await.0, 201);
    let foreground = json!({"propagationPolicy": "Foreground"});
    let (code, marked) = send(&client, &format!("DELETE {definitions}/cars.example.com"), json, foreground).await;
    let metadata = &marked["metadata"];
    assert_eq!((code, &metadata["generation"]), (200, &json!(1)));
    assert_eq!((metadata.get("deletionGracePeriodSeconds"), metadata["deletionTimestamp"].is_string()), (None, true));
    assert_eq!(metadata["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let verbs = |resources: &Value| resources["resources"][0]["verbs"].clone();
    let mut changed = server.registry().catalog.subscribe();
    loop {
        let (_, resources) = send(&client, "GET /apis/example.com/v1", json, Value::Null).await;
        if verbs(&resources) == json!(["delete", "deletecollection", "get", "list", "watch"]) {
            break;
        }
        changed.changed().await.unwrap();
    }
    let reason =
        "cars.example.com \"new\" is forbidden: create not allowed while custom resource definition is terminating";
    for (line, media) in [(format!("POST {cars}"), json), (format!("PATCH {cars}/new?fieldManager=m"), apply)] {
        let (code, status) = send(&client, &line, media, car("new", &[])).await;
        assert_eq!((code, status["message"].as_str()), (403, Some(reason)), "{line}");
    }
    let release = json!({"metadata": {"finalizers": null}});
    assert_eq!(send(&client, &format!("PATCH {cars}/held"), merge, release).await.0, 200);
    wait_until_served(&server, false).await;
    server.stop().await.unwrap();
}

/// As in Kubernetes, the deletion of custom resources with their CRD skips admission.
#[tokio::test]
async fn policies_cannot_block_deletion_of_a_definition() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let json = "application/json";
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let cars = "/apis/example.com/v1/namespaces/default/cars";
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let policy = json!({"metadata": {"name": "keep"}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["cars"]}]},
        "validations": [{"expression": "false"}]}});
    let binding = json!({"metadata": {"name": "keep"}, "spec": {"policyName": "keep", "validationActions": ["Deny"]}});
    let car = json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": "a"}});
    assert_eq!(send(&client, &format!("POST {definitions}"), json, definition(Value::Null)).await.0, 201);
    wait_until_served(&server, true).await;
    for (path, object) in [(cars, car), (policies, policy), (bindings, binding)] {
        assert_eq!(send(&client, &format!("POST {path}"), json, object).await.0, 201, "{path}");
    }
    assert_eq!(send(&client, &format!("DELETE {cars}/a"), json, json!({})).await.0, 422);
    assert_eq!(send(&client, &format!("DELETE {definitions}/cars.example.com"), json, json!({})).await.0, 200);
    wait_until_served(&server, false).await;
    assert_eq!(send(&client, &format!("GET {definitions}/cars.example.com"), json, Value::Null).await.0, 404);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn values_of_custom_resources_are_validated() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let mut definition = definition(json!({"strategy": "None"}));
    definition["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "mode": {"type": "string", "nullable": true, "enum": ["a", "b"]},
                "replicas": {"type": "integer"},
                "tokens": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
            }},
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        }}},
    }]);
    let crds = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    create(&client, crds.0, crds.1, crds.2, definition).await.unwrap();
    wait_until_served(&server, true).await;
    let car = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    let null = car("null", json!({"mode": null}));
    let error = create(&client, "example.com/v1", "Car", "cars", null).await.unwrap_err().to_string();
    assert!(error.contains("spec.mode: Unsupported value: null: supported values: \"a\", \"b\""), "{error}");

    let tokens = json!({"tokens": [{"name": "a"}, {"name": "b"}]});
    create(&client, "example.com/v1", "Car", "cars", car("list", tokens)).await.unwrap();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Car"), "cars");
    let cars: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let parameters = PatchParams::default();
    let twice = Patch::Merge(json!({"spec": {"tokens": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}}));
    let error = cars.patch("list", &parameters, &twice).await.unwrap_err().to_string();
    assert!(error.contains("spec.tokens[2]: Duplicate value: {\"name\":\"a\"}"), "{error}");
    let text = Patch::Merge(json!({"status": {"replicas": "x"}}));
    let error = cars.patch_status("list", &parameters, &text).await.unwrap_err().to_string();
    let type_message =
        "status.replicas: Invalid value: \"string\": replicas in body must be of type integer: \"string\"";
    assert!(error.contains(type_message), "{error}");
    let negative = Patch::Merge(json!({"status": {"replicas": -1}}));
    let error = cars.patch_status("list", &parameters, &negative).await.unwrap_err().to_string();
    assert!(error.contains(".status.replicas: Invalid value: -1: should be a non-negative integer"), "{error}");
    server.stop().await.unwrap();
}

/// Objects that are stored in a removed version cannot be read, as in kube-apiserver.
#[tokio::test]
async fn objects_of_removed_versions_are_not_converted() {
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let (crds, definitions) = ("apiextensions.k8s.io/v1", "customresourcedefinitions");
    let definition = definition(json!({"strategy": "None"}));
    create(&client, crds, "CustomResourceDefinition", definitions, definition.clone()).await.unwrap();
    wait_until_served(&server, true).await;
    let car = json!({"metadata": {"name": "old", "namespace": "default"}, "spec": {"wheels": 4}});
    create(&client, "example.com/v1", "Car", "cars", car).await.unwrap();

    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "x"), definitions);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut versions = definition["spec"]["versions"].clone();
    (versions[0]["storage"], versions[1]["storage"]) = (json!(false), json!(true));
    let parameters = PatchParams::default();
    let moved = Patch::Merge(json!({"spec": {"versions": versions}}));
    api.patch("cars.example.com", &parameters, &moved).await.unwrap();
    let stored = Patch::Merge(json!({"status": {"storedVersions": ["v1beta1"]}}));
    api.patch_status("cars.example.com", &parameters, &stored).await.unwrap();
    let removed = Patch::Merge(json!({"spec": {"versions": [versions[1]]}}));
    api.patch("cars.example.com", &parameters, &removed).await.unwrap();

    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1beta1", "Car"), "cars");
    let cars: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    let read = async {
        let mut changed = server.registry().catalog.subscribe();
        while server.registry().catalog.snapshot().serves("example.com", "v1") {
            changed.changed().await.unwrap();
        }
        cars.get("old").await.unwrap_err().to_string()
    };
    let error = tokio::time::timeout(TIMEOUT, read).await.unwrap();
    assert!(error.contains("request to convert CR from an invalid group/version: example.com/v1"), "{error}");
    let path = "GET /apis/example.com/v1beta1/namespaces";
    let (not_ready, not_convertible) =
        ("storage is (re)initializing", "request to convert CR from an invalid group/version: example.com/v1");
    // The cache of the version never becomes ready. Pages without selectors are read from the storage.
    for (request, code, message, retry_after) in [
        ("default/cars", 429, not_ready, json!(1)),
        ("default/cars?fieldSelector=metadata.name%3Dold", 429, not_ready, json!(1)),
        ("default/cars?limit=1&labelSelector=a", 429, not_ready, json!(1)),
        ("other/cars", 429, not_ready, json!(1)),
        ("default/cars?watch=1", 429, not_ready, json!(1)),
        ("default/cars?watch=1&resourceVersion=1", 429, not_ready, json!(1)),
        ("default/cars?limit=1", 500, not_convertible, Value::Null),
        ("default/cars/old", 500, not_convertible, Value::Null),
    ] {
        let (status, response) = send(&client, &format!("{path}/{request}"), "application/json", Value::Null).await;
        let details = &response["details"]["retryAfterSeconds"];
        assert_eq!((status, response["message"].as_str(), details), (code, Some(message), &retry_after), "{request}");
    }
    // Nor can the definition be deleted.
    let (code, _) =
        send(&client, &format!("DELETE /apis/{crds}/{definitions}/cars.example.com"), JSON, json!({})).await;
    assert_eq!(code, 200);
    let mut watch = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let failure = async {
        loop {
            let event = watch.next().await.expect("the watch continues").unwrap();
            let (WatchEvent::Added(definition) | WatchEvent::Modified(definition)) = event else { continue };
            let conditions = definition.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if let Some(failure) = conditions.into_iter().find(|c| c["reason"] == "InstanceDeletionFailed") {
                return failure;
            }
        }
    };
    let failure = tokio::time::timeout(TIMEOUT, failure).await.unwrap();
    let actual = ["type", "status", "message"].map(|key| failure[key].as_str().unwrap());
    assert_eq!(actual, ["Terminating", "True", "could not list instances: storage is (re)initializing"]);
    server.stop().await.unwrap();
}
