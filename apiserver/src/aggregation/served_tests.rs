//! An extension server inside the process, registered, read through this server, unregistered.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_api::user::UserInfo;
use serde_json::{Value, json};

use crate::outbound::InProcess;
use crate::{ApiServer, Config, Data};

/// Lists its one resource, and otherwise tells who asked for what.
struct Extension;

#[async_trait]
impl InProcess for Extension {
    async fn serve(&self, request: http::Request<Body>) -> http::Response<Body> {
        let headers = request.headers();
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        let body = match request.uri().path() {
            "/apis/ext.example.com/v1" => {
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "ext.example.com/v1",
                "resources": [{"name": "bricks", "singularName": "brick", "namespaced": true, "kind": "Brick", "verbs": ["get", "list"]}]})
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

/// Asks until the answer is as wanted; every try runs the server's own loops.
async fn until(
    client: &kube::Client,
    path: &str,
    wanted: impl Fn(&Result<Value, kube::Error>) -> bool,
) -> Result<Value, kube::Error> {
    let patience = std::time::Duration::from_secs(20);
    tokio::time::timeout(patience, async {
        loop {
            let answer = get(client, path).await;
            if wanted(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the server never answered as wanted")
}

#[tokio::test]
async fn an_extension_server_comes_and_goes() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let groups = vec!["system:masters".to_owned()];
    let client = server.client(UserInfo { name: "jane".into(), groups, ..UserInfo::default() });
    server.services().local.mount("default", "ext", Arc::new(Extension));
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
    let answer = until(&client, bricks, Result::is_ok).await.unwrap();
    assert_eq!(
        answer,
        json!({"path": bricks, "user": ["jane"], "groups": ["system:masters", "system:authenticated"], "authorization": []})
    );
    let object = get(&client, &format!("{services}/v1.ext.example.com")).await.unwrap();
    assert_eq!(object["status"]["conditions"][0]["reason"], "Passed");
    let group = get(&client, "/apis/ext.example.com").await.unwrap();
    assert_eq!(group["preferredVersion"]["groupVersion"], "ext.example.com/v1");
    let local = get(&client, &format!("{services}/v1.apps")).await.unwrap();
    assert_eq!(local["status"]["conditions"][0]["reason"], "Local");

    let delete = http::Request::delete(format!("{services}/v1.ext.example.com")).body(Vec::new()).unwrap();
    client.request::<Value>(delete).await.unwrap();
    until(&client, bricks, Result::is_err).await.unwrap_err();
    server.stop().await.unwrap();
}
