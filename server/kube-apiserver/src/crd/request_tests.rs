//! Requests for custom resources that are unusual or wrong, with the responses of kube-apiserver 1.36.

use serde_json::{Value, json};

use super::served_tests::{definition, send, wait_until_served};
use crate::{ApiServer, Config, Data};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const CARS: &str = "/apis/example.com/v1/namespaces/default/cars";

/// A server with a kind that has a status, an embedded resource and open fields.
async fn start_server() -> (ApiServer, kube::Client) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let mut definition = definition(json!({"strategy": "None"}));
    definition["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "mode": {"type": "string"},
                "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
                "typed": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
                    "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                    "metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}},
            }},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        }}},
    }]);
    let (code, created) =
        send(&client, "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", JSON, definition).await;
    assert_eq!(code, 201, "{created}");
    wait_until_served(&server, true).await;
    (server, client)
}

fn car(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name}, "spec": {"mode": "a"}})
}

/// The object [`car`] with these members added or replaced.
fn car_with(name: &str, members: Value) -> Value {
    let mut car = car(name);
    json_merge(&mut car, members);
    car
}

/// Merges members like a merge patch, but keeps nulls.
fn json_merge(target: &mut Value, members: Value) {
    match (target, members) {
        (Value::Object(target), Value::Object(members)) => {
            for (key, member) in members {
                json_merge(target.entry(key).or_insert(Value::Null), member);
            }
        }
        (target, member) => *target = member,
    }
}

#[tokio::test]
async fn wrong_bodies_have_the_messages_of_kube_apiserver() {
    let (server, client) = start_server().await;
    let missing = |excerpt: &str| format!("the object provided is unrecognized (must be of type Car): {excerpt}");
    let mut without_kind = car("a");
    without_kind.as_object_mut().unwrap().remove("kind");
    let mut without_version = car("a");
    without_version.as_object_mut().unwrap().remove("apiVersion");
    for (query, body, expected) in [
        ("", car_with("a", json!({"apiVersion": "a/b/c"})), missing("unexpected GroupVersion string: a/b/c ({")),
        ("", without_kind.clone(), missing("Object 'Kind' is missing in '{")),
        (
            "?fieldValidation=Ignore",
            without_kind,
            "Car in version \"v1\" cannot be handled as a Car: Object 'Kind' is missing in '{".to_owned(),
        ),
        (
            "",
            without_version,
            "the API version in the data () does not match the expected API version (example.com/v1)".to_owned(),
        ),
        // Metadata is decoded before the version is compared, an embedded resource only in an object of the kind.
        (
            "",
            car_with("a", json!({"apiVersion": "v1", "metadata": {"name": 5}})),
            "Car in version \"v1\" cannot be handled as a Car: json: cannot unmarshal number into Go struct field"
                .to_owned(),
        ),
        (
            "",
            car_with("a", json!({"apiVersion": "v1", "spec": {"template": {"kind": 5}}})),
            "the API version in the data (v1) does not match the expected API version (example.com/v1)".to_owned(),
        ),
    ] {
        let (code, response) = send(&client, &format!("POST {CARS}{query}"), JSON, body).await;
        let message = response["message"].as_str().unwrap_or_default();
        assert!(code == 400 && message.starts_with(&expected), "{code} {message}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn system_metadata_is_ignored_or_immutable() {
    let (server, client) = start_server().await;
    // Text that is not a version is ignored.
    let body =
        car_with("a", json!({"metadata": {"resourceVersion": "x", "deletionTimestamp": "2026-01-02T03:04:05Z"}}));
    let (code, created) = send(&client, &format!("POST {CARS}"), JSON, body).await;
    assert_eq!((code, &created["metadata"]["deletionTimestamp"]), (201, &Value::Null), "{created}");
    let owned = created["metadata"]["managedFields"][0]["fieldsV1"].as_object().unwrap();
    assert!(!owned.contains_key("f:metadata"), "{created}");
    // Only `[{}]` resets the owners of custom resources.
    for (list, expected) in [(json!([]), true), (json!([{}]), false)] {
        let patch = json!({"metadata": {"managedFields": list}});
        let (_, patched) = send(&client, &format!("PATCH {CARS}/a"), MERGE, patch).await;
        assert_eq!(patched["metadata"].get("managedFields").is_some(), expected, "{patched}");
    }
    for (field, value, code, message) in [
        (
            "deletionTimestamp",
            json!("2026-01-02T03:04:05Z"),
            422,
            "metadata.deletionTimestamp: Invalid value: \"2026-01-02T03:04:05Z\": field is immutable",
        ),
        (
            "deletionGracePeriodSeconds",
            json!(30),
            422,
            "metadata.deletionGracePeriodSeconds: Invalid value: 30: field is immutable",
        ),
        ("resourceVersion", json!("x"), 500, "strconv.ParseUint: parsing \"x\": invalid syntax"),
    ] {
        let patch = json!({"metadata": {field: value}});
        let (actual, response) = send(&client, &format!("PATCH {CARS}/a"), MERGE, patch).await;
        let actual_message = response["message"].as_str().unwrap_or_default();
        assert!(actual == code && actual_message.contains(message), "{actual} {actual_message}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_update_without_a_status_removes_it() {
    let (server, client) = start_server().await;
    send(&client, &format!("POST {CARS}"), JSON, car("a")).await;
    let status = json!({"status": {"phase": "Ready"}});
    let (code, written) = send(&client, &format!("PATCH {CARS}/a/status"), MERGE, status).await;
    assert_eq!((code, &written["status"]["phase"]), (200, &json!("Ready")), "{written}");
    let mut body = car("a");
    body["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"].clone();
    let (code, replaced) = send(&client, &format!("PUT {CARS}/a/status"), JSON, body).await;
    assert_eq!((code, replaced.get("status")), (200, None), "{replaced}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn embedded_metadata_is_decoded() {
    let (server, client) = start_server().await;
    let template =
        |metadata: Value| json!({"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}}});
    let body = car_with("a", template(json!({"name": "b", "labels": {}})));
    let (code, created) = send(&client, &format!("POST {CARS}"), JSON, body).await;
    assert_eq!((code, &created["spec"]["template"]["metadata"]), (201, &json!({"name": "b"})), "{created}");
    let invalid_template = template(json!({"labels": 7}));
    let (code, response) = send(&client, &format!("PATCH {CARS}/a"), MERGE, invalid_template).await;
    assert_eq!((code, &response["details"]["causes"][0]["field"]), (422, &json!("patch")), "{response}");
    let message = response["message"].as_str().unwrap_or_default();
    assert!(message.contains("spec.template.metadata: Invalid value: {\"labels\":7,\"name\":\"b\"}"), "{message}");
    let (code, response) = send(&client, &format!("PATCH {CARS}/a"), MERGE, json!({"apiVersion": "a/b/c"})).await;
    let message = response["message"].as_str().unwrap_or_default();
    assert!(code == 422 && message.ends_with(": unexpected GroupVersion string: a/b/c"), "{code} {message}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn objects_of_another_kind_are_validated_without_the_schema() {
    let (server, client) = start_server().await;
    send(&client, &format!("POST {CARS}"), JSON, car("a")).await;
    let annotated = json!({"annotations": {"a b": "c"}});
    for (patch, expected_name, expected_fields) in [
        (json!({"kind": "Other"}), "Other.example.com \"a\" is invalid", vec!["kind"]),
        (json!({"apiVersion": "v1"}), "Car \"a\" is invalid", vec!["apiVersion"]),
        (
            json!({"kind": "Other", "spec": {"mode": 5, "bogus": 1}, "metadata": annotated}),
            "Other.example.com \"a\" is invalid",
            vec!["metadata.annotations", "metadata.annotations", "kind"],
        ),
    ] {
        let (code, response) =
            send(&client, &format!("PATCH {CARS}/a?fieldValidation=Strict"), MERGE, patch.clone()).await;
        let causes = response["details"]["causes"].as_array().unwrap();
        let fields: Vec<&str> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
        assert_eq!((code, fields), (422, expected_fields), "{response}");
        let message = response["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(expected_name), "{patch}: {message}");
    }
    let body = car_with("b", json!({"kind": "Other", "spec": {"bogus": 1}}));
    let (code, response) = send(&client, &format!("POST {CARS}?fieldValidation=Strict"), JSON, body).await;
    assert_eq!((code, &response["details"]["causes"][0]["field"]), (422, &json!("kind")), "{response}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn replacements_are_identified_before_the_object_is_looked_up() {
    let (server, client) = start_server().await;
    let other_namespace = car_with("absent", json!({"metadata": {"namespace": "other"}}));
    for (body, expected) in [
        (other_namespace, "the namespace of the provided object does not match the namespace sent on the request"),
        (car("b"), "the name of the object (b) does not match the name on the URL (absent)"),
    ] {
        let (code, response) = send(&client, &format!("PUT {CARS}/absent"), JSON, body).await;
        assert_eq!((code, response["message"].as_str()), (400, Some(expected)));
    }
    let (code, _) = send(&client, &format!("PUT {CARS}/absent"), JSON, car("absent")).await;
    assert_eq!(code, 404);
    server.stop().await.unwrap();
}

/// The spec of a status update is not stored, but its fields are compared.
#[tokio::test]
async fn a_status_update_that_does_not_fit_the_schema_drops_the_managers() {
    let (server, client) = start_server().await;
    let (_, created) = send(&client, &format!("POST {CARS}"), JSON, car("a")).await;
    assert!(created["metadata"]["managedFields"].is_array(), "{created}");
    let patch = json!({"spec": {"mode": 5}, "status": {"phase": "Ready"}});
    let (code, written) = send(&client, &format!("PATCH {CARS}/a/status"), MERGE, patch).await;
    assert_eq!((code, &written["spec"], &written["status"]["phase"]), (200, &json!({"mode": "a"}), &json!("Ready")));
    assert_eq!(written["metadata"].get("managedFields"), None, "{written}");
    server.stop().await.unwrap();
}

/// Nulls of declared fields are dropped before an embedded resource is decoded.
#[tokio::test]
async fn nulls_in_embedded_resources_are_dropped() {
    let (server, client) = start_server().await;
    let typed = json!({"apiVersion": "v1", "kind": "Pod", "metadata": null});
    let (code, created) =
        send(&client, &format!("POST {CARS}"), JSON, car_with("a", json!({"spec": {"typed": typed}}))).await;
    let expected = json!({"apiVersion": "v1", "kind": "Pod"});
    assert_eq!((code, &created["spec"]["typed"]), (201, &expected), "{created}");
    let typed = json!({"apiVersion": "v1", "kind": null});
    let (code, response) =
        send(&client, &format!("POST {CARS}"), JSON, car_with("b", json!({"spec": {"typed": typed}}))).await;
    let message = response["message"].as_str().unwrap_or_default();
    assert!(code == 422 && message.contains("spec.typed.kind: Required value"), "{code} {message}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn applied_configurations_are_checked_in_the_order_of_kube_apiserver() {
    let (server, client) = start_server().await;
    for (members, expected) in [
        (json!({"apiVersion": "v1", "metadata": {"managedFields": []}}), "invalid object type: /v1, Kind=Car"),
        (json!({"metadata": {"managedFields": []}}), "metadata.managedFields must be nil"),
        (json!({"spec": {"mode": "\u{7f}"}}), "yaml: control characters are not allowed"),
    ] {
        let request = format!("PATCH {CARS}/a?fieldManager=m");
        let (code, response) = send(&client, &request, "application/apply-patch+yaml", car_with("a", members)).await;
        let message = response["message"].as_str().unwrap_or_default();
        assert!(code == 400 && message.ends_with(expected), "{code} {message}");
    }
    server.stop().await.unwrap();
}

/// The generation is computed before pruning: an applied configuration is not decoded by the schema, other bodies are.
#[tokio::test]
async fn each_apply_of_an_unknown_field_increments_the_generation() {
    let (server, client) = start_server().await;
    let object = car_with("a", json!({"spec": {"open": {"metadata": {"x": 1}}}}));
    for (request, media, generation) in [
        (format!("POST {CARS}"), JSON, 1),
        (format!("PATCH {CARS}/a"), MERGE, 1),
        (format!("PATCH {CARS}/a?fieldManager=m"), "application/apply-patch+yaml", 2),
        (format!("PATCH {CARS}/a?fieldManager=m"), "application/apply-patch+yaml", 3),
        (format!("PATCH {CARS}/a"), MERGE, 3),
    ] {
        let (code, response) = send(&client, &request, media, object.clone()).await;
        assert!(code < 300, "{request}: {code} {response}");
        assert_eq!(response["metadata"]["generation"], generation, "{request}: {response}");
        assert_eq!(response["spec"]["open"], json!({"metadata": {}}), "{request}: {response}");
    }
    server.stop().await.unwrap();
}

/// Rules assume valid types and sizes, also of metadata.
#[tokio::test]
async fn rules_are_not_checked_if_the_metadata_is_incomplete() {
    const NOT_CHECKED: &str = "some validation rules were not checked because the object was invalid";
    const RULE: &str = "failed rule: self.metadata.name.startsWith('car')";
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let mut definition = definition(json!({"strategy": "None"}));
    for version in [0, 1] {
        definition["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
            json!([{"rule": "self.metadata.name.startsWith('car')"}]);
    }
    let path = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, created) = send(&client, path, JSON, definition).await;
    assert_eq!(code, 201, "{created}");
    wait_until_served(&server, true).await;
    let note = |bytes: usize| json!({"annotations": {"note": "a".repeat(bytes)}});
    for (method, name, metadata, expected, unexpected) in [
        ("POST", "", json!({}), NOT_CHECKED, RULE),
        ("POST", "bike", json!({}), RULE, NOT_CHECKED),
        ("POST", "bike", json!({"labels": {"a b": "c"}}), RULE, NOT_CHECKED),
        ("POST", "bike", note(1 << 18), NOT_CHECKED, RULE),
        ("POST", "car", json!({}), "", NOT_CHECKED),
        ("PUT", "car", note(1 << 18), NOT_CHECKED, RULE),
    ] {
        let mut object = json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name}, "spec": {}});
        json_merge(&mut object, json!({"metadata": metadata}));
        if method == "PUT" {
            let (_, stored) = send(&client, &format!("GET {CARS}/{name}"), JSON, Value::Null).await;
            object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        }
        let path = if method == "PUT" { format!("{CARS}/{name}") } else { CARS.to_owned() };
        let (code, response) = send(&client, &format!("{method} {path}"), JSON, object).await;
        let message = response["message"].as_str().unwrap_or_default();
        assert_eq!(code == 422, !expected.is_empty(), "{method} {name:?}: {response}");
        assert!(message.contains(expected) && !message.contains(unexpected), "{method} {name:?}: {message}");
    }
    server.stop().await.unwrap();
}

/// An update may keep a value that violates a new rule. The warning about it is also in the response to a refused update.
#[tokio::test]
async fn violations_of_unchanged_values_are_warnings() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = definition(json!({"strategy": "None"}));
    assert_eq!(send(&client, &format!("POST {definitions}"), JSON, definition).await.0, 201);
    wait_until_served(&server, true).await;
    let car = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name}, "spec": {"wheels": 5}});
    assert_eq!(send(&client, &format!("POST {CARS}"), JSON, car("a")).await.0, 201);

    let mut catalog = server.registry().catalog.subscribe();
    let properties = json!({"doors": {"type": "integer", "maximum": 9},
        "wheels": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 5", "message": "too many"}]}});
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([{"op": "replace", "path": path, "value": properties}]);
    let request = format!("PATCH {definitions}/cars.example.com");
    let (code, changed) = send(&client, &request, "application/json-patch+json", patch).await;
    assert_eq!(code, 200, "{changed}");
    while send(&client, &format!("POST {CARS}?dryRun=All"), JSON, car("b")).await.0 != 422 {
        catalog.changed().await.unwrap();
    }

    for (doors, expected) in [(10, 422), (9, 200)] {
        let request = http::Request::patch(format!("{CARS}/a")).header("content-type", MERGE);
        let body = json!({"spec": {"doors": doors}}).to_string().into_bytes();
        let response = client.send(request.body(body.into()).unwrap()).await.unwrap();
        let warnings: Vec<&str> =
            response.headers().get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
        let warning = r#"299 - "spec.wheels: Invalid value: 5: too many""#;
        assert_eq!((response.status().as_u16(), warnings), (expected, vec![warning]));
    }
    server.stop().await.unwrap();
}
