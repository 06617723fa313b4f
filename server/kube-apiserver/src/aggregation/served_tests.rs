//! An in-process extension API server: registration, requests, OpenAPI, removal.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::outbound::InProcessServer;
use serde_json::{Value, json};

use crate::{ApiServer, Config, Data};

/// An extension server with one resource and OpenAPI v2 only; other requests return user and path.
struct Extension;

#[async_trait]
impl InProcessServer for Extension {
    async fn serve(&self, request: http::Request<Body>) -> http::Response<Body> {
        let headers = request.headers();
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        let body = match request.uri().path() {
            "/apis/ext.example.com/v1" => {
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "ext.example.com/v1",
                "resources": [{"name": "bricks", "singularName": "brick", "namespaced": true, "kind": "Brick", "verbs": ["get", "list"]}]})
            }
            "/openapi/v2" => {
                json!({"swagger": "2.0", "info": {"title": "Bricks", "version": "v1"},
                    "paths": {"/version/": {"get": {"responses": {}}}, "/apis/ext.example.com/v1/bricks": {"get": {"produces": ["application/json"],
                        "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/com.example.Brick"}}}}}},
                    "definitions": {"com.example.Brick": {"type": "object", "properties": {"clay": {"type": "string", "description": "what it is made of"}}}}})
            }
            path if path.starts_with("/openapi/") => {
                return http::Response::builder().status(404).body(Body::empty()).unwrap_or_default();
            }
            path => {
                json!({"path": path, "user": all("x-remote-user"), "groups": all("x-remote-group"), "authorization": all("authorization")})
            }
        };
        http::Response::new(Body::from(body.to_string()))
    }
}

async fn get(client: &kube::Client, path: &str) -> Result<Value, kube::Error> {
    client.request(http::Request::get(path).body(Vec::new()).unwrap()).await
}

/// Repeats a request until the result is as expected, for at most 20 seconds.
async fn get_until(
    client: &kube::Client,
    path: &str,
    is_expected: impl Fn(&Result<Value, kube::Error>) -> bool,
) -> Result<Value, kube::Error> {
    let timeout = std::time::Duration::from_secs(20);
    tokio::time::timeout(timeout, async {
        loop {
            let result = get(client, path).await;
            if is_expected(&result) {
                return result;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("no response is as expected")
}

#[tokio::test]
async fn extension_servers_are_added_and_removed() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec!["system:masters".to_owned()];
    let client = server.client(UserInfo { name: "jane".into(), groups, ..UserInfo::default() });
    server.services().in_process.mount("default", "ext", Arc::new(Extension));
    let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.ext.example.com"},
        "spec": {"group": "ext.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "insecureSkipTLSVerify": true, "service": {"name": "ext", "namespace": "default"}}});
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let create = http::Request::post(services)
        .header("content-type", "application/json")
        .body(service.to_string().into_bytes())
        .unwrap();
    client.request::<Value>(create).await.unwrap();

    let bricks = "/apis/ext.example.com/v1/namespaces/default/bricks";
    let response = get_until(&client, bricks, Result::is_ok).await.unwrap();
    assert_eq!(
        response,
        json!({"path": bricks, "user": ["jane"], "groups": ["system:masters", "system:authenticated"], "authorization": []})
    );
    let object = get(&client, &format!("{services}/v1.ext.example.com")).await.unwrap();
    assert_eq!(object["status"]["conditions"][0]["reason"], "Passed");
    let group = get(&client, "/apis/ext.example.com").await.unwrap();
    assert_eq!(group["preferredVersion"]["groupVersion"], "ext.example.com/v1");
    let openapi = get(&client, "/openapi/v3/apis/ext.example.com/v1").await.unwrap();
    let brick =
        json!({"type": "object", "properties": {"clay": {"type": "string", "description": "what it is made of"}}});
    assert_eq!(openapi["components"]["schemas"]["com.example.Brick"], brick);
    let response = &openapi["paths"]["/apis/ext.example.com/v1/bricks"]["get"]["responses"]["200"];
    assert_eq!(
        response["content"]["application/json"]["schema"],
        json!({"$ref": "#/components/schemas/com.example.Brick"})
    );
    let index = get(&client, "/openapi/v3").await.unwrap();
    assert!(index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"].is_string(), "{index}");
    let openapi_v2 = get(&client, "/openapi/v2").await.unwrap();
    assert_eq!(openapi_v2["definitions"]["com.example.Brick"], brick);
    let version = &openapi_v2["paths"]["/version/"]["get"]["operationId"];
    assert_eq!(version, "getCodeVersion", "non-resource paths of extension servers are not published");
    assert!(openapi_v2["paths"]["/apis/ext.example.com/v1/bricks"].is_object());

    let local = get(&client, &format!("{services}/v1.apps")).await.unwrap();
    assert_eq!(local["status"]["conditions"][0]["reason"], "Local");

    let delete = http::Request::delete(format!("{services}/v1.ext.example.com")).body(Vec::new()).unwrap();
    client.request::<Value>(delete).await.unwrap();
    get_until(&client, bricks, Result::is_err).await.unwrap_err();
    server.stop().await.unwrap();
}
