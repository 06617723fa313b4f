//! The proxy in front of real API servers: a control plane with two members, all in this process, over TLS.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body as AxumBody;
use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_apiserver::{ApiServer, Config, Data};
use crowsnest_embedded::kubelet::Kubelet;
use crowsnest_embedded::kubelet::connect::{self, RegistryRuntime};
use crowsnest_fleet::{Clusters, Fleet, FleetOptions, Interest, InterestGuard, Namespaces, Why};
use crowsnest_index::{CollectionKey, Index, IndexOptions};
use crowsnest_proxy::{Body, BoxError, Caller, Proxy};
use futures::{SinkExt, StreamExt};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::sync::CancellationToken;

struct World {
    proxy: Proxy,
    members: BTreeMap<&'static str, ApiServer>,
    interest: InterestGuard,
    stopped: CancellationToken,
    /// The cache's files.
    _folder: tempfile::TempDir,
}

async fn create(client: &Client, api_version: &str, kind: &str, namespace: Option<&str>, mut object: Value) {
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

/// A member that listens; gives its URL.
async fn member(name: &'static str, stopped: &CancellationToken) -> (ApiServer, String) {
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

async fn grant(client: &Client, name: &str, rules: Value, mut subject: Value) {
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

async fn token(client: &Client, account: &str) -> String {
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

async fn register(control_plane: &Client, name: &str, member: &ApiServer, url: &str) {
    let admin = member.admin();
    for (secret, account) in [(name.to_owned(), "agent"), (format!("{name}-impersonator"), "karmada-impersonator")] {
        let data = json!({"metadata": {"name": secret}, "stringData": {"token": token(&admin, account).await}});
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

fn config_map(name: &str, data: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "x"}}, "data": {"v": data}})
}

async fn world() -> World {
    // Another test of this process may have been first; the provider is the same.
    drop(rustls::crypto::ring::default_provider().install_default());
    let stopped = CancellationToken::new();
    let control_plane = ApiServer::start(Config::new("cp", Data::Memory)).await.unwrap();
    let client = control_plane.admin();
    // The aggregated API server's kind, as a plain definition.
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
        let (server, url) = member(name, &stopped).await;
        let admin = server.admin();
        for (object, value) in [(format!("only-{name}"), name), ("both".to_owned(), name)] {
            create(&admin, "v1", "ConfigMap", Some("default"), config_map(&object, value)).await;
        }
        register(&client, name, &server, &url).await;
        members.insert(name, server);
    }
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(client, FleetOptions::default()).await.unwrap();
    let resource = Gvr::new("", "v1", "configmaps");
    let interest = fleet.interests().declare(Interest {
        clusters: Clusters::All,
        resource: resource.clone(),
        namespaces: Namespaces::All,
        why: Why::ResourceRegistry("all".into()),
    });
    let index = Index::open(fleet, IndexOptions::new(folder.path())).await.unwrap();
    for name in ["m1", "m2"] {
        index.complete(&CollectionKey::new(ClusterName::parse(name).unwrap(), resource.clone())).await;
    }
    World { proxy: Proxy::new(index), members, interest, stopped, _folder: folder }
}

fn admin() -> Caller {
    Caller { name: "root".into(), groups: vec!["system:masters".into()], ..Caller::default() }
}

fn user(name: &str) -> Caller {
    Caller { name: name.into(), ..Caller::default() }
}

fn request(method: Method, query: &str, accept: &str, body: Option<Value>) -> Request<Body> {
    let bytes = body.map(|body| body.to_string()).unwrap_or_default();
    let builder = Request::builder().method(method).uri(format!("/?{query}")).header("accept", accept);
    let builder = builder.header("content-type", "application/json").header("content-length", bytes.len());
    builder.body(Full::from(bytes).map_err(|never| match never {}).boxed_unsync()).unwrap()
}

async fn read(response: Response<Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()))
}

impl World {
    async fn fleet_wide(&self, method: Method, path: &str, query: &str, body: Option<Value>) -> (u16, Value) {
        read(self.proxy.fleet_wide(&admin(), path, request(method, query, "application/json", body)).await).await
    }

    async fn stop(self) {
        self.proxy.stop().await;
        drop(self.interest);
        self.stopped.cancel();
    }
}

fn names(list: &Value) -> Vec<String> {
    let cluster = |item: &Value| {
        item["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"].as_str().unwrap().to_owned()
    };
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| format!("{}/{}", cluster(item), item["metadata"]["name"].as_str().unwrap())).collect()
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LABELLED: &str = "labelSelector=app%3Dx";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_is_asked_as_the_caller() {
    let world = world().await;
    let get = |caller: Caller, cluster: &'static str, path: &'static str| {
        let proxy = world.proxy.clone();
        async move {
            read(proxy.cluster(cluster, &caller, path, request(Method::GET, "", "application/json", None)).await).await
        }
    };
    let object = "/api/v1/namespaces/default/configmaps/only-m1";
    assert_eq!(get(admin(), "m1", object).await.1["data"], json!({"v": "m1"}));
    let (code, status) = get(user("alice"), "m1", object).await;
    assert_eq!(code, 403, "{status}");
    assert!(
        status["message"].as_str().unwrap().contains("User \"alice\" cannot get resource \"configmaps\""),
        "{status}"
    );
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    grant(&world.members["m1"].admin(), "alice", rules, json!({"kind": "User", "name": "alice"})).await;
    assert_eq!(get(user("alice"), "m1", object).await.0, 200);
    let (code, status) = get(admin(), "ghost", "/version").await;
    assert_eq!((code, status["message"].as_str()), (404, Some("clusters.cluster.karmada.io \"ghost\" not found")));
    let (code, list) = get(admin(), "*", CONFIG_MAPS).await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("ConfigMapList")));
    assert!(list["items"].as_array().unwrap().iter().filter(|item| item["metadata"]["name"] == "both").count() == 2);
    assert_eq!(get(admin(), "*", object).await.1["data"], json!({"v": "m1"}));
    assert_eq!(get(admin(), "*", "/api/v1/namespaces/default/configmaps/both").await.0, 409);
    assert_eq!(get(admin(), "*", "/api/v1/namespaces/default/configmaps/none").await.0, 404);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_reads_like_one_cluster() {
    let world = world().await;
    let (code, list) = world.fleet_wide(Method::GET, CONFIG_MAPS, LABELLED, None).await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("ConfigMapList")), "{list}");
    assert_eq!(names(&list), ["m1/both", "m1/only-m1", "m2/both", "m2/only-m2"]);
    // Page by page the same, however large pages are: none is larger than was asked for.
    for limit in 1..=5 {
        let (mut paged, mut query) = (Vec::new(), format!("{LABELLED}&limit={limit}"));
        loop {
            let (_, page) = world.fleet_wide(Method::GET, CONFIG_MAPS, &query, None).await;
            assert!(names(&page).len() <= limit, "{page}");
            paged.extend(names(&page));
            match page["metadata"]["continue"].as_str() {
                Some("") | None => break,
                Some(token) => query = format!("{LABELLED}&limit={limit}&continue={token}"),
            }
        }
        assert_eq!(paged, names(&list), "limit {limit}");
    }
    let (code, status) = world.fleet_wide(Method::GET, &format!("{CONFIG_MAPS}/both"), "", None).await;
    assert_eq!(code, 409);
    assert_eq!(
        status["message"],
        "Operation cannot be fulfilled on configmaps \"both\": ambiguous objects in clusters [m1, m2]"
    );
    let (code, status) = world.fleet_wide(Method::POST, CONFIG_MAPS, "", Some(config_map("new", "1"))).await;
    assert_eq!(
        (code, status["message"].as_str()),
        (405, Some("create is not supported on resources of kind \"configmaps\""))
    );
    // What nobody registered is the control plane's.
    let (code, secret) = world.fleet_wide(Method::GET, "/api/v1/namespaces/default/secrets/on-cp", "", None).await;
    assert_eq!((code, secret["metadata"]["name"].as_str()), (200, Some("on-cp")));
    let denied = world
        .proxy
        .fleet_wide(&user("alice"), "/api/v1/namespaces/default/secrets", request(Method::GET, "", "", None))
        .await;
    assert_eq!(read(denied).await.0, 403);
    // kubectl's table has a column for the cluster.
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) =
        read(world.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, LABELLED, table, None)).await).await;
    assert_eq!(table["columnDefinitions"][1]["name"], "Cluster");
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][1]), (&json!("both"), &json!("m1")));
    // search/cache
    let search = |path: &'static str| {
        let proxy = world.proxy.clone();
        async move { read(proxy.search_cache(path, request(Method::GET, "", "", None)).await).await.1 }
    };
    assert_eq!(search("/api/v1/namespaces/default/configmaps/only-m2").await["items"][0]["kind"], "ConfigMap");
    assert_eq!(names(&search("/api/v1/namespaces/default/configmaps/both").await).len(), 2);
    assert_eq!(
        search("/api/v1/namespaces/default/secrets").await,
        json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": []})
    );
    world.stop().await;
}

/// The next event of a watch.
async fn event(body: &mut Body) -> Value {
    loop {
        let frame = body.frame().await.expect("the watch goes on").unwrap();
        if let Ok(data) = frame.into_data() {
            return serde_json::from_slice(data.split(|b| *b == b'\n').next().unwrap()).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_from_a_list_and_writes_find_their_cluster() {
    let world = world().await;
    let (_, list) = world.fleet_wide(Method::GET, CONFIG_MAPS, LABELLED, None).await;
    let position = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let watch = format!("{LABELLED}&watch=true&resourceVersion={position}");
    let mut body =
        world.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, &watch, "", None)).await.into_body();
    // An update through the proxy: the composite version becomes the owner's.
    let path = format!("{CONFIG_MAPS}/only-m2");
    let (_, mut object) = world.fleet_wide(Method::GET, &path, "", None).await;
    let stale = object.clone();
    object["data"] = json!({"v": "changed"});
    let (code, updated) = world.fleet_wide(Method::PUT, &path, "", Some(object)).await;
    assert_eq!((code, &updated["metadata"]["annotations"]), (200, &Value::Null), "{updated}");
    let seen = event(&mut body).await;
    assert_eq!((&seen["type"], &seen["object"]["data"]["v"]), (&json!("MODIFIED"), &json!("changed")));
    assert_eq!(seen["object"]["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"], "m2");
    assert_eq!(
        world.fleet_wide(Method::PUT, &path, "", Some(stale)).await.0,
        409,
        "an old version is refused by the owner"
    );
    // From an event's version a new watch tells only what follows.
    let later = seen["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = format!("{LABELLED}&watch=true&resourceVersion={later}");
    let mut resumed =
        world.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, &watch, "", None)).await.into_body();
    assert_eq!(world.fleet_wide(Method::DELETE, &format!("{CONFIG_MAPS}/only-m1"), "", None).await.0, 200);
    for body in [&mut body, &mut resumed] {
        let seen = event(body).await;
        assert_eq!((&seen["type"], &seen["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("only-m1")));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_passes_through_to_the_member() {
    let world = world().await;
    let client = world.members["m1"].admin();
    let spec = json!({"nodeName": "n", "containers": [{"name": "web", "image": "x"}]});
    create(&client, "v1", "Pod", Some("default"), json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, "default");
    let running = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "web", "image": "x", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }]}});
    pods.patch_status("web", &Default::default(), &kube::api::Patch::Merge(&running)).await.unwrap();

    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let proxy = world.proxy.clone();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let proxy = proxy.clone();
        Box::pin(async move {
            let request = request.map(|body| body.map_err(|error| -> BoxError { error.into() }).boxed_unsync());
            let path = request.uri().path().to_owned();
            let response = proxy.cluster("m1", &admin(), &path, request).await;
            Ok::<_, std::convert::Infallible>(response.map(AxumBody::new))
        }) as futures::future::BoxFuture<'static, _>
    });
    tokio::spawn(
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service).with_upgrades(),
    );
    let path = "ws://x/api/v1/namespaces/default/pods/web/exec?command=cat&stdin=true&stdout=true";
    let mut handshake = path.into_client_request().unwrap();
    handshake.headers_mut().insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().unwrap());
    let (mut socket, answer) = tokio_tungstenite::client_async(handshake, ours).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    socket.send(Message::binary(b"\0through".to_vec())).await.unwrap();
    socket.send(Message::binary(b"\xff\0".to_vec())).await.unwrap();
    let mut texts: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            texts.entry(bytes[0]).or_default().extend_from_slice(&bytes[1..]);
        }
    }
    assert_eq!(texts[&1], b"through");
    assert!(String::from_utf8_lossy(&texts[&3]).contains("Success"));
    world.stop().await;
}
