//! Error responses to invalid requests, on a running server.

use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";

const CORE: &str = "/api/v1/namespaces/default";
const APPS: &str = "/apis/apps/v1/namespaces/default";

/// Sends a request; returns status code, warnings and response object.
async fn send(service: &InProcessService, line: &str, media: &str, body: &str) -> (u16, Vec<String>, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.replace("CORE", CORE).replace("APPS", APPS);
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let request = request.header("user-agent", "test/1").body(Body::from(body.to_owned())).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, warnings, serde_json::from_slice(&body).unwrap_or_default())
}

async fn start_server() -> (ApiServer, InProcessService) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec![crowsnest_apimachinery::user::MASTERS.to_owned()];
    let service = server.service(UserInfo { name: "admin".into(), groups, ..UserInfo::default() });
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    for (line, body) in [
        ("POST /api/v1/namespaces", json!({"metadata": {"name": "default"}})),
        ("POST CORE/configmaps", json!({"metadata": {"name": "c"}, "data": {"x": "1"}})),
        ("POST CORE/pods", json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})),
        ("POST APPS/deployments", deployment),
    ] {
        let (code, _, response) = send(&service, line, JSON, &body.to_string()).await;
        assert!(code < 300 || code == 409, "{line}: {response}");
    }
    (server, service)
}

/// Changes of times of deletion are refused, except where the kind's strategy ignores them.
#[tokio::test]
async fn times_of_deletion_are_immutable() {
    let (server, service) = start_server().await;
    for (path, field, value, code) in [
        ("CORE/configmaps/c", "deletionTimestamp", json!("2026-01-02T03:04:05Z"), 422),
        ("CORE/configmaps/c", "deletionGracePeriodSeconds", json!(30), 422),
        ("APPS/deployments/d/status", "deletionTimestamp", json!("2026-01-02T03:04:05Z"), 422),
        ("APPS/deployments/d/status", "deletionGracePeriodSeconds", json!(30), 422),
        ("APPS/deployments/d/scale", "deletionTimestamp", json!("2026-01-02T03:04:05Z"), 200),
        ("CORE/pods/p/status", "deletionTimestamp", json!("2026-01-02T03:04:05Z"), 200),
        ("CORE/pods/p/status", "deletionGracePeriodSeconds", json!(30), 422),
        ("CORE/pods/p/ephemeralcontainers", "deletionTimestamp", json!("2026-01-02T03:04:05Z"), 200),
    ] {
        let body = json!({"metadata": {field: value}}).to_string();
        let (actual, _, response) = send(&service, &format!("PATCH {path}"), MERGE, &body).await;
        assert_eq!(actual, code, "{path} {field}: {response}");
        let message = response["message"].as_str().unwrap_or_default();
        assert_eq!(
            message.contains(&format!("metadata.{field}: Invalid value: {value}: field is immutable")),
            code == 422
        );
    }
    server.stop().await.unwrap();
}

/// The version of a missing object is parsed, but compared with nothing.
#[tokio::test]
async fn malformed_resource_versions_are_refused() {
    let (server, service) = start_server().await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let malformed = |version: &str| format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
    let set = "resourceVersion should not be set on objects to be created".to_owned();
    for (line, media, version, code, message) in [
        ("PATCH CORE/configmaps/c".to_owned(), MERGE, "+1", 500, malformed("+1")),
        ("PATCH CORE/configmaps/new?fieldManager=a".to_owned(), APPLY, "x", 500, malformed("x")),
        ("PATCH CORE/configmaps/new?fieldManager=a".to_owned(), APPLY, "1", 201, String::new()),
        (format!("PUT {lease}/new"), JSON, "x", 500, malformed("x")),
        (format!("PUT {lease}/new"), JSON, "1", 201, String::new()),
        ("POST CORE/configmaps".to_owned(), JSON, "1", 500, set),
        ("POST CORE/configmaps".to_owned(), JSON, "+1", 201, String::new()),
    ] {
        let name = line.split(['/', '?']).find(|part| *part == "new" || *part == "c").unwrap_or("posted");
        let mut body = json!({"metadata": {"name": name, "resourceVersion": version}});
        if media == APPLY {
            (body["apiVersion"], body["kind"]) = (json!("v1"), json!("ConfigMap"));
        }
        let (actual, _, response) = send(&service, &line, media, &body.to_string()).await;
        assert_eq!(actual, code, "{line} {version}: {response}");
        assert!(response["message"].as_str().unwrap_or_default().contains(&message), "{response}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn errors_of_invalid_requests_match_kube_apiserver() {
    let (server, service) = start_server().await;
    const BUILTIN: &str = "in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\"";
    let cases: Vec<(&str, &str, &str, u16, String)> = vec![
        // Patches
        ("PATCH CORE/configmaps/none", MERGE, "{", 404, "configmaps \"none\" not found".into()),
        ("PATCH CORE/configmaps/c", MERGE, "null", 400, "Invalid JSON Patch".into()),
        ("PATCH CORE/configmaps/c", STRATEGIC, "{", 400, "unexpected end of JSON input".into()),
        (
            "PATCH CORE/configmaps/c",
            STRATEGIC,
            "[]",
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}".into(),
        ),
        (
            "PATCH CORE/configmaps/c",
            STRATEGIC,
            r#"{"data":{"x":5}}"#,
            422,
            " \"\" is invalid: patch: Invalid value: \"map[data:map[x:5]]\": cannot convert int64 to string".into(),
        ),
        (
            "PATCH CORE/configmaps/c?fieldValidation=Strict",
            STRATEGIC,
            r#"{"data":{"x":"1","x":"2"},"bogus":1}"#,
            422,
            " \"\" is invalid: patch: Invalid value: \"map[bogus:1 data:map[x:2]]\": strict decoding error: duplicate field \"data.x\", unknown field \"bogus\"".into(),
        ),
        (
            "PATCH CORE/configmaps/c",
            MERGE,
            r#"{"metadata":{"name":null}}"#,
            400,
            "the name of the object (c based on URL) was undeterminable: name must be provided".into(),
        ),
        (
            "PUT CORE/configmaps/c",
            JSON,
            "{}",
            400,
            "the name of the object (c based on URL) was undeterminable: name must be provided".into(),
        ),
        // Apply
        (
            "PATCH CORE/configmaps/c?fieldManager=a%0Ab",
            APPLY,
            "{}",
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Invalid value: \"a\\nb\": invalid character U+000A (at position 1)".into(),
        ),
        (
            "PATCH CORE/configmaps/c?fieldManager=a",
            APPLY,
            "[]",
            400,
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}".into(),
        ),
        (
            "PATCH CORE/configmaps/c?fieldManager=a&fieldValidation=Strict",
            APPLY,
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  x: '1'\n  x: '1'\n",
            400,
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 5: key \"x\" already set in map".into(),
        ),
        // Scale
        (
            "PATCH APPS/deployments/d/scale",
            MERGE,
            r#"{"metadata":{"name":"e"}}"#,
            400,
            "the name of the object (e) does not match the name on the URL (d)".into(),
        ),
        (
            "PUT APPS/deployments/d/scale",
            JSON,
            r#"{"kind":"Foo","apiVersion":"v1","metadata":{"name":"d"}}"#,
            400,
            format!("Foo in version \"v1\" cannot be handled as a Scale: no kind \"Foo\" is registered for version \"v1\" {BUILTIN}"),
        ),
        (
            "PATCH APPS/deployments/d/scale?fieldManager=hpa",
            APPLY,
            r#"{"kind":"Scale","apiVersion":"autoscaling/v1","spec":{"replicas":9}}"#,
            409,
            "Apply failed with 1 conflict: conflict with \"test\" using autoscaling/v1: .spec.replicas".into(),
        ),
        (
            "PUT /api/v1/namespaces/default/finalize",
            JSON,
            r#"{"metadata":{"name":"default"},"spec":{"finalizers":["foo"]}}"#,
            422,
            "Namespace \"default\" is invalid: spec.finalizers[0]: Invalid value: \"foo\": name is neither a standard finalizer name nor is it fully qualified".into(),
        ),
        // Deletes
        (
            "DELETE CORE/configmaps/c",
            JSON,
            "{x",
            400,
            "couldn't get version/kind; json parse error: invalid character 'x' looking for beginning of object key string".into(),
        ),
        (
            "DELETE CORE/configmaps/c",
            JSON,
            r#"{"gracePeriodSeconds":"x"}"#,
            400,
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64".into(),
        ),
        // Subresources that support only POST
        (
            "POST CORE/pods/p/eviction",
            JSON,
            r#"{"kind":"Foo","apiVersion":"policy/v1"}"#,
            400,
            format!("Foo in version \"v1\" cannot be handled as a Eviction: no kind \"Foo\" is registered for version \"policy/v1\" {BUILTIN}"),
        ),
        ("POST CORE/pods/p/eviction", JSON, "{}", 400, "name in URL does not match name in Eviction object".into()),
        (
            "POST CORE/pods/p/binding",
            JSON,
            r#"{"metadata":{"name":"p"},"target":{"kind":"Foo","name":"n"}}"#,
            500,
            "target.kind: Unsupported value: \"Foo\": supported values: \"Node\", \"<empty>\"".into(),
        ),
        ("POST CORE/pods/p/binding", JSON, r#"{"metadata":{"name":"p"}}"#, 500, "target.name: Required value".into()),
        // Lists
        (
            "GET CORE/configmaps?continue=!",
            JSON,
            "",
            400,
            "invalid continue token: continue key is not valid: illegal base64 data at input byte 0".into(),
        ),
        (
            "GET CORE/configmaps?continue=e30",
            JSON,
            "",
            400,
            "invalid continue token: continue key is not valid: server does not recognize this encoded version ".into(),
        ),
        (
            "GET CORE/configmaps?fieldSelector=metadata.name%3Da%3Db",
            JSON,
            "",
            400,
            "invalid field selector: unescaped character in value: 61".into(),
        ),
        (
            "GET CORE/configmaps?fieldSelector=metadata.name%3Da%5Cb",
            JSON,
            "",
            400,
            "invalid field selector: invalid escape sequence: \\b".into(),
        ),
    ];
    for (line, media, body, code, message) in cases {
        let (actual, _, response) = send(&service, line, media, body).await;
        assert_eq!(
            (actual, response["message"].as_str().unwrap_or_default()),
            (code, message.as_str()),
            "{line} {body}"
        );
    }
    let request = Request::get(format!("{CORE}/configmaps/none")).header("accept", "application/yaml");
    let response = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let media = response.headers()["content-type"].to_str().unwrap();
    assert_eq!((response.status().as_u16(), media), (404, "application/yaml"));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn unusual_requests_are_handled_like_in_kube_apiserver() {
    let (server, service) = start_server().await;
    for (line, media, body, code, warning, pointer, expected) in [
        ("PATCH CORE/configmaps/c", STRATEGIC, "null", 200, "", "/data", json!({"x": "1"})),
        ("PATCH CORE/configmaps/c", JSON_PATCH, "null", 200, "", "/data", json!({"x": "1"})),
        (
            "PATCH CORE/configmaps/c",
            JSON_PATCH,
            r#"[{"op":"copy","from":"/data/no","path":"/data/z"}]"#,
            200,
            "",
            "/data",
            json!({"x": "1", "z": ""}),
        ),
        (
            "PATCH CORE/configmaps/c",
            MERGE,
            r#"{"data":{"z":null,"x":"2","x":"3"}}"#,
            200,
            "299 - \"duplicate field \\\"data.x\\\"\"",
            "/data",
            json!({"x": "3"}),
        ),
        (
            "PATCH CORE/configmaps/c?fieldManager=a",
            APPLY,
            "apiVersion: v1\nkind: ConfigMap\ndata: {w: '1', w: '2', y: '3'}\n",
            200,
            "",
            "/data",
            // YAML 1.1, which kube-apiserver reads, takes `y` for a boolean.
            json!({"x": "3", "w": "2", "true": "3"}),
        ),
        (
            "PATCH APPS/deployments/d/scale?fieldManager=hpa&force=true",
            APPLY,
            r#"{"kind":"Scale","apiVersion":"autoscaling/v1","spec":{"replicas":9}}"#,
            200,
            "",
            "/spec/replicas",
            json!(9),
        ),
        (
            "PATCH APPS/deployments/d/scale",
            MERGE,
            r#"{"spec":{"replicas":3,"more":1}}"#,
            200,
            "299 - \"unknown field \\\"spec.more\\\"\"",
            "/spec/replicas",
            json!(3),
        ),
        (
            "POST CORE/pods/p/binding",
            JSON,
            r#"{"metadata":{"name":"p"},"target":{"name":"n"}}"#,
            201,
            "",
            "/status",
            json!("Success"),
        ),
        ("GET CORE/pods/p", JSON, "", 200, "", "/status/conditions/0/type", json!("PodScheduled")),
        (
            "PATCH CORE/configmaps/c",
            MERGE,
            r#"{"metadata":{"managedFields":[]}}"#,
            200,
            "",
            "/metadata/managedFields",
            Value::Null,
        ),
        (
            "GET CORE/endpoints",
            JSON,
            "",
            200,
            "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"",
            "/kind",
            json!("EndpointsList"),
        ),
        (
            "PATCH CORE/configmaps/c",
            MERGE,
            r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"y","uid":"2"},{"apiVersion":"v1","kind":"Pod","name":"y","uid":"2"}]}}"#,
            200,
            "299 - \".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: 2\"",
            "/metadata/ownerReferences/1/uid",
            json!("2"),
        ),
        (
            "DELETE CORE/pods/p?gracePeriodSeconds=20",
            JSON,
            "",
            200,
            "",
            "/metadata/deletionGracePeriodSeconds",
            json!(20),
        ),
        (
            "DELETE CORE/pods/p?gracePeriodSeconds=30",
            JSON,
            "",
            200,
            "",
            "/metadata/deletionGracePeriodSeconds",
            json!(20),
        ),
        (
            "DELETE CORE/pods/p?gracePeriodSeconds=-3",
            JSON,
            "",
            200,
            "",
            "/metadata/deletionGracePeriodSeconds",
            json!(1),
        ),
        ("HEAD CORE/configmaps", JSON, "", 405, "", "/nothing", Value::Null),
    ] {
        let (actual, warnings, response) = send(&service, line, media, body).await;
        assert_eq!(actual, code, "{line} {body}: {response}");
        assert_eq!(warnings.first().map_or("", String::as_str), warning, "{line} {body}");
        assert_eq!(response.pointer(pointer).unwrap_or(&Value::Null), &expected, "{line} {body}");
    }
    let (_, _, pod) = send(&service, "GET CORE/pods/p", JSON, "").await;
    let managers = pod["metadata"]["managedFields"].as_array().unwrap().len();
    assert_eq!(managers, 1, "a binding adds no field manager: {pod}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn bindings_check_uid_and_resource_version() {
    let (server, service) = start_server().await;
    let (_, _, pod) = send(&service, "GET CORE/pods/p", JSON, "").await;
    let live = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
    for (key, what, expected) in [("uid", "UID", "other"), ("resourceVersion", "ResourceVersion", "1")] {
        let body = json!({"metadata": {"name": "p", key: expected}, "target": {"name": "n"}});
        let (code, _, response) = send(&service, "POST CORE/pods/p/binding", JSON, &body.to_string()).await;
        let text = format!(
            "Operation cannot be fulfilled on pods \"p\": StorageError: invalid object, Code: 4, Key: /registry/pods/default/p, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {expected}, {what} in object meta: {}",
            live(key)
        );
        assert_eq!((code, response["message"].as_str().unwrap()), (409, text.as_str()));
    }
    let metadata = json!({"name": "p", "uid": live("uid"), "resourceVersion": live("resourceVersion")});
    let body = json!({"metadata": metadata, "target": {"name": "n"}});
    let (code, _, response) = send(&service, "POST CORE/pods/p/binding", JSON, &body.to_string()).await;
    assert_eq!(code, 201, "{response}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn responses_follow_the_accept_header() {
    let (server, _) = start_server().await;
    let admin = server.service(UserInfo {
        name: "admin".into(),
        groups: vec![crowsnest_apimachinery::user::MASTERS.to_owned()],
        ..UserInfo::default()
    });
    let nobody = server.service(UserInfo { name: "nobody".into(), ..UserInfo::default() });
    let table = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
    let partial = "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io";
    for (service, path, accept, code, media, expected) in [
        (&admin, "configmaps", table, 200, "application/json", "\"apiVersion\":\"meta.k8s.io/v1beta1\""),
        (&admin, "configmaps", partial, 200, "application/json", "\"apiVersion\":\"meta.k8s.io/v1beta1\""),
        (&nobody, "configmaps", "application/yaml", 403, "application/yaml", "reason: Forbidden"),
        (&nobody, "configmaps", "application/json", 403, "application/json", "\"reason\":\"Forbidden\""),
        (&nobody, "configmaps", "text/html", 403, "application/json", "\"reason\":\"Forbidden\""),
    ] {
        let request = Request::get(format!("{CORE}/{path}")).header("accept", accept).body(Body::empty()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let actual = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!((response.status().as_u16(), actual.as_str()), (code, media), "{accept}");
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains(expected), "{accept}: {body}");
        assert!(!body.contains("\"meta.k8s.io/v1\""), "{accept}: {body}");
    }
    server.stop().await.unwrap();
}
