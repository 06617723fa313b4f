//! Real API servers for the cache's tests: a control plane and members, in this process.

#![allow(dead_code, reason = "each test uses its part")]

use axum::Router;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_kube_apiserver::server::{ApiServer, Config, Data};
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// One server of the test, reachable over TLS with a static token.
pub struct Member {
    pub server: ApiServer,
    pub config: kube::Config,
    serving: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

pub const TOKEN: &str = "master-token";

pub async fn start(name: &str) -> Member {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(listener, Config::new(name, Data::Memory), |_| Router::new()).await
}

/// Like [`start`], with a listener and a data store that the caller can reuse after a shutdown. `extra_routes` take
/// precedence.
pub async fn start_on(listener: TcpListener, mut config: Config, extra_routes: fn(&ApiServer) -> Router) -> Member {
    let groups = vec!["system:masters".to_owned()];
    config.accept_token(TOKEN, UserInfo { name: "admin".to_owned(), groups, ..UserInfo::default() });
    let server = ApiServer::start(config).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (own_server, stop_server) = (server.clone(), stop.clone());
    let serving = tokio::spawn(async move {
        own_server.serve_with_routes(extra_routes(&own_server), listener, stop_server).await.unwrap()
    });
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(TOKEN.to_owned().into());
    Member { server, config, serving, stop }
}

/// A control plane that serves Clusters.
pub async fn control_plane() -> Member {
    let control_plane = start("control-plane").await;
    control_plane.create(namespace("karmada-cluster")).await;
    control_plane.create(cluster_definition()).await;
    let admin = control_plane.server.admin();
    let clusters = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {}});
    within("the definition", async {
        while api(&admin, &clusters).list(&ListParams::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    control_plane
}

impl Member {
    pub async fn create(&self, value: Value) {
        create(&self.server.admin(), value).await;
    }

    pub async fn shut_down(self) {
        self.stop.cancel();
        self.server.stop().await.unwrap();
        self.serving.await.unwrap();
    }
}

pub fn resource(value: &Value) -> ApiResource {
    let api_version = value["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = value["kind"].as_str().unwrap();
    ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind))
}

pub fn api(client: &Client, value: &Value) -> Api<DynamicObject> {
    match value["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource(value)),
        None => Api::all_with(client.clone(), &resource(value)),
    }
}

pub async fn create(client: &Client, value: Value) {
    let object: DynamicObject = serde_json::from_value(value.clone()).unwrap();
    api(client, &value).create(&PostParams::default(), &object).await.unwrap();
}

pub fn config_map(namespace: &str, name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name,
        "labels": {"app": name}}, "data": {"text": text}})
}

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub fn cluster_definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "scope": "Cluster",
            "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

pub fn config_maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

pub fn name(cluster: &str) -> ClusterName {
    ClusterName::parse(cluster).unwrap()
}

/// Registers a member with a token Secret and a Cluster object.
pub async fn register(control_plane: &Client, cluster: &str, member: &Member) {
    let endpoint = member.config.cluster_url.to_string();
    create(
        control_plane,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster",
        "name": cluster}, "stringData": {"token": TOKEN}}),
    )
    .await;
    create(
        control_plane,
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": cluster}, "spec": {"syncMode": "Push", "apiEndpoint": endpoint, "region": "eu-west",
        "insecureSkipTLSVerification": true, "secretRef": {"namespace": "karmada-cluster", "name": cluster}}}),
    )
    .await;
}

/// Awaits `work`; panics with its description after a minute.
pub async fn within<T>(description: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), work).await {
        Ok(result) => result,
        Err(_) => panic!("{description} took more than a minute"),
    }
}
