//! A control plane with two members in this process, and a proxy for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::{CacheOptions, CollectionKey, GlobalCache};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use crowsnest_kubelet::Kubelet;
use crowsnest_kubelet::connect::{self, RegistryRuntime};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_proxy::{Body, Caller, Proxy};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Interests, Namespaces};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const LABELLED: &str = "labelSelector=app%3Dx";

/// A running control plane with its members, their cache and the proxy.
pub struct TestEnv {
    pub proxy: Proxy,
    pub control_plane: Client,
    /// Its watches end when it is dropped.
    _control_plane_server: ApiServer,
    pub cache: GlobalCache,
    pub members: BTreeMap<&'static str, ApiServer>,
    /// The registration of ConfigMaps for the fleet-wide proxy.
    pub interest: InterestGuard,
    stopped: CancellationToken,
    /// Directory of the cache.
    _directory: tempfile::TempDir,
}

pub async fn create(client: &Client, api_version: &str, kind: &str, namespace: Option<&str>, mut object: Value) {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    match api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(error) => panic!("{kind}: {error}"),
    }
}

/// Starts a member and returns its URL.
async fn start_member(name: &'static str, stopped: &CancellationToken) -> (ApiServer, String) {
    let server = ApiServer::start(Config::new(name, Data::Memory)).await.unwrap();
    let kubelet = Kubelet::new(Arc::new(RegistryRuntime::new(server.registry().clone())));
    connect::install(server.registry(), &kubelet);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (serving, stopped) = (server.clone(), stopped.clone());
    tokio::spawn(async move { serving.serve(listener, stopped).await });
    let client = server.admin();
    for namespace in ["default", "karmada-cluster"] {
        create(&client, "v1", "Namespace", None, json!({"metadata": {"name": namespace}})).await;
    }
    for account in ["agent", "karmada-impersonator"] {
        create(&client, "v1", "ServiceAccount", Some("karmada-cluster"), json!({"metadata": {"name": account}})).await;
    }
    let rules = json!([{"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]}]);
    grant(
        &client,
        "impersonator",
        rules,
        json!({"kind": "ServiceAccount", "name": "karmada-impersonator", "namespace": "karmada-cluster"}),
    )
    .await;
    let all =
        json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    grant(&client, "agent", all, json!({"kind": "ServiceAccount", "name": "agent", "namespace": "karmada-cluster"}))
        .await;
    (server, url)
}

pub async fn grant(client: &Client, name: &str, rules: Value, mut subject: Value) {
    if subject["kind"] != "ServiceAccount" {
        subject["apiGroup"] = "rbac.authorization.k8s.io".into();
    }
    let group = "rbac.authorization.k8s.io/v1";
    create(client, group, "ClusterRole", None, json!({"metadata": {"name": name}, "rules": rules})).await;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    create(
        client,
        group,
        "ClusterRoleBinding",
        None,
        json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}),
    )
    .await;
}

async fn create_token(client: &Client, account: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "karmada-cluster");
    let request = TokenRequest::default();
    accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .unwrap()
        .status
        .unwrap()
        .token
        .unwrap()
}

/// Starts a member with two objects and registers it.
async fn join(control_plane: &Client, name: &'static str, stopped: &CancellationToken) -> ApiServer {
    let (server, url) = start_member(name, stopped).await;
    let admin = server.admin();
    for (object, value) in [(format!("only-{name}"), name), ("both".to_owned(), name)] {
        create(&admin, "v1", "ConfigMap", Some("default"), config_map(&object, value)).await;
    }
    register(control_plane, name, &server, &url).await;
    server
}

async fn register(control_plane: &Client, name: &str, member: &ApiServer, url: &str) {
    let admin = member.admin();
    let tokens = [create_token(&admin, "agent").await, create_token(&admin, "karmada-impersonator").await];
    register_with(control_plane, name, url, tokens).await;
}

/// Creates a Cluster with the tokens of its agent and its impersonator.
pub async fn register_with(control_plane: &Client, name: &str, url: &str, tokens: [String; 2]) {
    for (secret, token) in [name.to_owned(), format!("{name}-impersonator")].into_iter().zip(tokens) {
        let data = json!({"metadata": {"name": secret}, "stringData": {"token": token}});
        create(control_plane, "v1", "Secret", Some("karmada-cluster"), data).await;
    }
    let reference = |name: String| json!({"namespace": "karmada-cluster", "name": name});
    let spec = json!({
        "syncMode": "Push", "apiEndpoint": url, "insecureSkipTLSVerification": true,
        "secretRef": reference(name.to_owned()), "impersonatorSecretRef": reference(format!("{name}-impersonator")),
    });
    create(
        control_plane,
        "cluster.karmada.io/v1alpha1",
        "Cluster",
        None,
        json!({"metadata": {"name": name}, "spec": spec}),
    )
    .await;
}

pub fn config_map(name: &str, data: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "x"}}, "data": {"v": data}})
}

pub async fn test_env() -> TestEnv {
    // Fails if another test of this process installed the same provider.
    drop(rustls::crypto::ring::default_provider().install_default());
    let stopped = CancellationToken::new();
    let control_plane = ApiServer::start(Config::new("cp", Data::Memory)).await.unwrap();
    let client = control_plane.admin();
    // The CRD of the kind that the aggregated API server serves.
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let clusters = json!({
        "metadata": {"name": "clusters.cluster.karmada.io"},
        "spec": {
            "group": "cluster.karmada.io", "scope": "Cluster", "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}}}],
        },
    });
    create(&client, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None, clusters).await;
    let api: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster")),
    );
    while api.list(&Default::default()).await.is_err() {
        tokio::task::yield_now().await;
    }
    for namespace in ["default", "karmada-cluster"] {
        create(&client, "v1", "Namespace", None, json!({"metadata": {"name": namespace}})).await;
    }
    create(&client, "v1", "Secret", Some("default"), json!({"metadata": {"name": "on-cp"}})).await;
    let mut members = BTreeMap::new();
    for name in ["m1", "m2"] {
        members.insert(name, join(&client, name, &stopped).await);
    }
    let directory = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(client.clone(), FleetOptions::on_loopback()).await.unwrap();
    let resource = Gvr::new("", "v1", "configmaps");
    let options = CacheOptions::new(directory.path());
    let declared = Interests::default();
    let interest = declared.declare(registered(Clusters::All, resource.clone()));
    let cache = GlobalCache::open_with(fleet, options, declared).await.unwrap();
    for name in ["m1", "m2"] {
        cache.wait_until_complete(&CollectionKey::new(ClusterName::parse(name).unwrap(), resource.clone())).await;
    }
    TestEnv {
        proxy: Proxy::new(cache.clone()),
        control_plane: client,
        _control_plane_server: control_plane,
        cache,
        members,
        interest,
        stopped,
        _directory: directory,
    }
}

pub fn admin() -> Caller {
    Caller { name: "root".into(), groups: vec!["system:masters".into()], ..Caller::default() }
}

pub fn user(name: &str) -> Caller {
    Caller { name: name.into(), ..Caller::default() }
}

pub fn request(method: Method, query: &str, accept: &str, body: Option<Value>) -> Request<Body> {
    let bytes = body.map(|body| body.to_string()).unwrap_or_default();
    let builder = Request::builder().method(method).uri(format!("/?{query}")).header("accept", accept);
    let builder = builder.header("content-type", "application/json").header("content-length", bytes.len());
    builder.body(Full::from(bytes).map_err(|never| match never {}).boxed_unsync()).unwrap()
}

pub async fn read(response: Response<Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()))
}

/// The interest that a ResourceRegistry declares.
pub fn registered(clusters: Clusters, resource: Gvr) -> Interest {
    Interest { clusters, resource, namespaces: Namespaces::All, reason: InterestReason::ResourceRegistry("r".into()) }
}

/// Clusters by name.
pub fn named(names: &[&str]) -> Clusters {
    Clusters::Names(names.iter().map(|name| ClusterName::parse(name).unwrap()).collect())
}

impl TestEnv {
    pub fn declare(&self, interest: Interest) -> InterestGuard {
        self.cache.interests().declare(interest)
    }

    /// Starts a further member and waits until requests can be sent to it.
    pub async fn join(&mut self, name: &'static str) {
        let server = join(&self.control_plane, name, &self.stopped).await;
        self.members.insert(name, server);
        let (fleet, name) = (self.cache.fleet(), ClusterName::parse(name).unwrap());
        let mut changes = fleet.changes();
        while fleet.member(&name).is_none_or(|member| member.impersonator_token().is_err()) {
            changes.next().await.unwrap();
        }
    }

    /// Deletes the Cluster of a member and waits until it has left the fleet.
    pub async fn leave(&self, name: &str) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster"));
        let clusters: Api<DynamicObject> = Api::all_with(self.control_plane.clone(), &resource);
        let (fleet, cluster) = (self.cache.fleet(), ClusterName::parse(name).unwrap());
        let mut changes = fleet.changes();
        clusters.delete(name, &Default::default()).await.unwrap();
        while fleet.member(&cluster).is_some() {
            changes.next().await.unwrap();
        }
    }

    /// A list or object of `clusters/*`.
    pub async fn read_all_clusters(&self, caller: &Caller, path: &str, query: &str, accept: &str) -> (u16, Value) {
        read(self.proxy.cluster("*", caller, path, request(Method::GET, query, accept, None)).await).await
    }

    /// The response to a watch of `clusters/*`.
    pub async fn watch_all_clusters(&self, caller: &Caller, path: &str, query: &str) -> Response<Body> {
        let query = format!("{query}&watch=true");
        self.proxy.cluster("*", caller, path, request(Method::GET, &query, "", None)).await
    }

    /// The body of a watch.
    pub async fn watch(&self, path: &str, query: &str) -> Body {
        let query = format!("{query}&watch=true");
        self.proxy.fleet_wide(&admin(), path, request(Method::GET, &query, "", None)).await.into_body()
    }

    pub async fn search(&self, path: &str, query: &str) -> (u16, Value) {
        read(self.proxy.search_cache(&admin(), path, request(Method::GET, query, "", None)).await).await
    }

    pub async fn fleet_wide(&self, method: Method, path: &str, query: &str, body: Option<Value>) -> (u16, Value) {
        read(self.proxy.fleet_wide(&admin(), path, request(method, query, "application/json", body)).await).await
    }

    pub async fn stop(self) {
        self.proxy.stop().await;
        drop(self.interest);
        self.stopped.cancel();
    }
}

/// The items of a list as `cluster/name`.
pub fn names(list: &Value) -> Vec<String> {
    let cluster = |item: &Value| {
        item["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"].as_str().unwrap().to_owned()
    };
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| format!("{}/{}", cluster(item), item["metadata"]["name"].as_str().unwrap())).collect()
}

/// The next event of a watch that sends one event per chunk.
pub async fn event(body: &mut Body) -> Value {
    events(body).await.remove(0)
}

/// The next events of a watch.
pub async fn events(body: &mut Body) -> Vec<Value> {
    loop {
        let frame = body.frame().await.expect("the watch continues").unwrap();
        if let Ok(data) = frame.into_data() {
            let lines = data.split(|b| *b == b'\n').filter(|line| !line.is_empty());
            return lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        }
    }
}

pub fn body(text: String) -> Body {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}
