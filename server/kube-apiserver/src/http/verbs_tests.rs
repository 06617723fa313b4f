//! Requests whose authorized operation could differ from the executed one, on a running server: deprecated path
//! prefixes, field selectors, updates that create, sessions by GET.

use axum::body::Body;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use http::Request;
use rstest::rstest;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{ApiServer, Config, Data};

const RBAC: &str = "rbac.authorization.k8s.io";
const SHOP: &str = "/api/v1/namespaces/shop";
const NOT_FOUND: &str = "the server could not find the requested resource";
const NOT_ALLOWED: &str = "the server does not allow this method on the requested resource";
const OTHER_NAME: &str = "fieldSelector metadata.name doesn't match requested name";

/// Sends a request; returns the status code, and the message of a Status or the first event of a watch.
async fn call(server: &ApiServer, user: &str, line: &str, body: &str) -> (u16, String) {
    let groups: &[&str] = if user == "admin" { &[MASTERS] } else { &[] };
    let service = server.service(UserInfo::new(user, groups.iter().copied()));
    let (method, path) = line.split_once(' ').unwrap();
    let (method, media) = match method {
        "APPLY" => ("PATCH", "application/apply-patch+yaml"),
        "PATCH" => ("PATCH", "application/merge-patch+json"),
        method => (method, "application/json"),
    };
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let response = service.oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = http_body_util::BodyExt::frame(&mut body).await {
        bytes.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
        if bytes.starts_with(b"{\"type\":") {
            break;
        }
    }
    let response: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = response["message"].as_str().map_or_else(|| String::from_utf8_lossy(&bytes).into_owned(), str::to_owned);
    (code, text)
}

/// Rules by user; those of `keeper` are limited to the Secret `mine` and the CustomResourceDefinition `zz`.
fn rules() -> Vec<(&'static str, Value)> {
    let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    let mut mine = rule(&[""], &["secrets"], &["get", "list", "watch"]);
    mine["resourceNames"] = json!(["mine"]);
    let mut definitions = rule(&["apiextensions.k8s.io"], &["customresourcedefinitions"], &["watch"]);
    definitions["resourceNames"] = json!(["zz"]);
    let kinds = ["configmaps", "limitranges", "endpoints"];
    let writes = rule(&["", "coordination.k8s.io"], &[&kinds[..], &["leases"]].concat(), &["get", "update", "patch"]);
    let mut named_rule = rule(&[""], &["limitranges"], &["create"]);
    named_rule["resourceNames"] = json!(["allowed"]);
    vec![
        ("viewer", json!([rule(&["*"], &["*"], &["get", "list", "watch"])])),
        ("watcher", json!([rule(&["*"], &["*"], &["watch", "proxy"])])),
        ("keeper", json!([mine, definitions])),
        ("writer", json!([writes])),
        ("maker", json!([writes, rule(&["", "coordination.k8s.io"], &["*"], &["create"])])),
        ("namer", json!([writes, named_rule])),
        ("runner", json!([rule(&[""], &["pods/exec", "pods/attach", "pods/portforward"], &["create", "get"])])),
    ]
}

async fn start_server() -> ApiServer {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut objects = vec![
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": "shop"}})),
        (format!("{SHOP}/secrets"), json!({"metadata": {"name": "mine"}})),
        (format!("{SHOP}/secrets"), json!({"metadata": {"name": "other"}, "type": "Opaque"})),
        (format!("{SHOP}/pods"), pod),
        ("/apis/apps/v1/namespaces/shop/deployments".to_owned(), deployment),
    ];
    for (user, rules) in rules() {
        let role = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": user});
        let subjects = json!([{"apiGroup": RBAC, "kind": "User", "name": user}]);
        objects.push((format!("/apis/{RBAC}/v1/clusterroles"), json!({"metadata": {"name": user}, "rules": rules})));
        objects.push((
            format!("/apis/{RBAC}/v1/clusterrolebindings"),
            json!({"metadata": {"name": user}, "roleRef": role, "subjects": subjects}),
        ));
    }
    for (path, object) in objects {
        let (code, message) = call(&server, "admin", &format!("POST {path}"), &object.to_string()).await;
        assert_eq!(code, 201, "{path}: {message}");
    }
    server
}

#[tokio::test]
async fn path_prefixes_do_not_change_the_verb() {
    let server = start_server().await;
    let deployment = "namespaces/shop/deployments/web";
    let scale = r#"{"spec":{"replicas":9}}"#;
    for user in ["viewer", "watcher", "admin"] {
        for (path, code, message) in [
            (format!("watch/{deployment}/scale"), 404, NOT_FOUND),
            (format!("watch/{deployment}/status"), 404, NOT_FOUND),
            (format!("watch/{deployment}"), 405, NOT_ALLOWED),
            ("watch/namespaces/shop/deployments".to_owned(), 405, NOT_ALLOWED),
        ] {
            for method in ["PATCH", "PUT", "POST", "DELETE"] {
                let response = call(&server, user, &format!("{method} /apis/apps/v1/{path}"), scale).await;
                assert_eq!(response, (code, message.to_owned()), "{user} {method} {path}");
            }
        }
        for subresource in ["exec?command=id", "attach", "portforward", "log", "proxy/x", "status", "eviction"] {
            for method in ["GET", "POST"] {
                let line = format!("{method} /api/v1/watch/namespaces/shop/pods/p/{subresource}");
                assert_eq!(call(&server, user, &line, "").await, (404, NOT_FOUND.to_owned()), "{user} {line}");
            }
        }
    }
    for line in
        ["GET /api/v1/proxy/namespaces/shop/pods/p", "PATCH /apis/apps/v1/proxy/namespaces/shop/deployments/web/scale"]
    {
        assert_eq!(call(&server, "watcher", line, scale).await, (404, NOT_FOUND.to_owned()), "{line}");
        assert_eq!(call(&server, "viewer", line, scale).await.0, 403, "{line}");
    }
    let (_, web) = call(&server, "admin", &format!("GET /apis/apps/v1/{deployment}"), "").await;
    assert!(web.contains(r#""replicas":2"#), "{web}");
    let line = format!("GET /apis/apps/v1/watch/{deployment}");
    let (code, event) = call(&server, "viewer", &line, "").await;
    assert!(code == 200 && event.contains(r#""ADDED""#) && event.contains(r#""name":"web""#), "{event}");
    server.stop().await.unwrap();
}

/// The authorized name is the one that is read, regardless of the selector.
#[rstest]
#[case("watch/namespaces/shop/secrets/mine", 200, "mine")]
#[case("watch/namespaces/shop/secrets/mine?fieldSelector=metadata.name%3Dmine", 200, "mine")]
#[case("watch/namespaces/shop/secrets/mine?fieldSelector=metadata.name%3Dmine,type%3DOpaque", 200, "mine")]
#[case("watch/namespaces/shop/secrets/mine?fieldSelector=metadata.name%3Dother", 400, OTHER_NAME)]
#[case("watch/namespaces/shop/secrets/mine?fieldSelector=metadata.name!%3Dzzz", 400, OTHER_NAME)]
#[case("watch/namespaces/shop/secrets/mine?fieldSelector=type%3DOpaque", 400, OTHER_NAME)]
#[case("watch/namespaces/shop/secrets/mine?fieldSelector=%2C", 200, "mine")]
#[case("watch/namespaces/shop/secrets?fieldSelector=metadata.name%3Dmine", 403, "cannot watch resource")]
#[case("watch/namespaces/shop/secrets", 403, "cannot watch resource")]
#[case("namespaces/shop/secrets/mine?watch=true&fieldSelector=metadata.name%3Dother", 200, "mine")]
#[case("namespaces/shop/secrets?watch=true&fieldSelector=metadata.name%3Dmine", 200, "mine")]
#[case("namespaces/shop/secrets?watch=true&fieldSelector=metadata.name%3Dother", 403, "cannot watch resource")]
#[case("namespaces/shop/secrets?fieldSelector=metadata.name%3Dmine", 200, "mine")]
#[case("namespaces/shop/secrets?fieldSelector=metadata.name%3Dmine&fieldSelector=metadata.name%3Dother", 200, "mine")]
#[case(
    "namespaces/shop/secrets?fieldSelector=metadata.name%3Dother&fieldSelector=metadata.name%3Dmine",
    403,
    "cannot list resource"
)]
#[case("namespaces/shop/secrets?fieldSelector=metadata.name!%3Dother", 403, "cannot list resource")]
#[case("namespaces/shop/secrets?fieldSelector=&fieldSelector=metadata.name%3Dmine", 403, "cannot list resource")]
#[case("namespaces/shop/secrets?FieldSelector=metadata.name%3Dmine", 403, "cannot list resource")]
#[tokio::test]
async fn the_authorized_name_is_read(#[case] path: &str, #[case] expected: u16, #[case] expected_text: &str) {
    let server = start_server().await;
    let (code, text) = call(&server, "keeper", &format!("GET /api/v1/{path}"), "").await;
    assert!(code == expected && text.contains(expected_text) && !text.contains(r#""name":"other""#), "{code} {text}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn definitions_are_watched_by_name() {
    let server = start_server().await;
    let line =
        "GET /apis/apiextensions.k8s.io/v1/watch/customresourcedefinitions/zz?fieldSelector=metadata.name%21%3Dq";
    assert_eq!(call(&server, "keeper", line, "").await, (400, OTHER_NAME.to_owned()));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn updates_that_create_need_the_right_to_create() {
    let server = start_server().await;
    let object = |version: &str, kind: &str, name: &str| {
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}}).to_string()
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
    for (line, body) in [
        (format!("APPLY {SHOP}/configmaps/new?fieldManager=m"), object("v1", "ConfigMap", "new")),
        (format!("APPLY {SHOP}/configmaps/new?fieldManager=m&dryRun=All"), object("v1", "ConfigMap", "new")),
        (format!("PUT {SHOP}/limitranges/new"), object("v1", "LimitRange", "new")),
        (format!("PUT {SHOP}/endpoints/new"), object("v1", "Endpoints", "new")),
        (format!("PUT {leases}/new"), object("coordination.k8s.io/v1", "Lease", "new")),
    ] {
        let (code, message) = call(&server, "writer", &line, &body).await;
        assert!(code == 403 && message.contains(r#"User "writer" cannot create resource"#), "{line}: {code} {message}");
        // The rejected request created nothing, since this one creates the object.
        let (code, message) = call(&server, "maker", &line, &body).await;
        assert_eq!(code, 201, "{line}: {message}");
        if !line.contains("dryRun") {
            let (code, message) = call(&server, "writer", &line, &body).await;
            // A Lease cannot be replaced without a resourceVersion.
            assert_eq!(
                code,
                if line.starts_with("PUT") && line.contains("leases") { 422 } else { 200 },
                "{line}: {message}"
            );
        }
        let path = line.split([' ', '?']).nth(1).unwrap();
        let (code, message) = call(&server, "admin", &format!("DELETE {path}"), "").await;
        assert!([200, 404].contains(&code), "{line}: {message}");
    }
    for (name, expected) in [("allowed", 201), ("another", 403)] {
        let line = format!("PUT {SHOP}/limitranges/{name}");
        assert_eq!(call(&server, "namer", &line, &object("v1", "LimitRange", name)).await.0, expected, "{name}");
    }
    let expected = r#"configmaps "x" is forbidden: User "writer" cannot create resource "configmaps" in API group "" in the namespace "shop""#;
    let line = format!("APPLY {SHOP}/configmaps/x?fieldManager=m");
    assert_eq!(call(&server, "writer", &line, &object("v1", "ConfigMap", "x")).await, (403, expected.to_owned()));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn sessions_by_get_need_the_right_to_create() {
    let server = start_server().await;
    for subresource in ["exec?command=id", "attach", "portforward"] {
        let line = format!("GET {SHOP}/pods/p/{subresource}");
        let (code, message) = call(&server, "viewer", &line, "").await;
        assert!(code == 403 && message.contains("cannot create resource \"pods/"), "{line}: {code} {message}");
        assert_ne!(call(&server, "runner", &line, "").await.0, 403, "{line}");
    }
    assert_ne!(call(&server, "viewer", &format!("GET {SHOP}/pods/p/log"), "").await.0, 403);
    server.stop().await.unwrap();
}
