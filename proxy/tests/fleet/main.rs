//! The proxy in front of real API servers: a control plane with two members, all in this process, over TLS.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod all_clusters;
mod content_negotiation;
mod logs;
mod member_admission;
mod permissions;
mod read_after_write;
mod registered_resources;
mod returning_clusters;
mod sessions;
mod silent_member;
mod snapshots;
mod stalling_members;
mod test_env;
mod watches;

use std::collections::BTreeMap;

use axum::body::Body as AxumBody;
use crowsnest_proxy::{BoxError, Caller};
use futures::{SinkExt, StreamExt};
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use kube::Api;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use test_env::{CONFIG_MAPS, LABELLED, admin, config_map, create, event, grant, names, read, request, test_env, user};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_a_member_impersonate_the_caller() {
    let env = test_env().await;
    let get = |caller: Caller, cluster: &'static str, path: &'static str| {
        let proxy = env.proxy.clone();
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
    grant(&env.members["m1"].admin(), "alice", rules, json!({"kind": "User", "name": "alice"})).await;
    assert_eq!(get(user("alice"), "m1", object).await.0, 200);
    let (code, status) = get(admin(), "ghost", "/version").await;
    assert_eq!((code, status["message"].as_str()), (404, Some("clusters.cluster.karmada.io \"ghost\" not found")));
    let (code, list) = get(admin(), "*", CONFIG_MAPS).await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("ConfigMapList")));
    assert!(list["items"].as_array().unwrap().iter().filter(|item| item["metadata"]["name"] == "both").count() == 2);
    assert_eq!(get(admin(), "*", object).await.1["data"], json!({"v": "m1"}));
    for (name, code, reason, message) in [
        ("none", 404, "NotFound", "configmaps \"none\" not found"),
        (
            "both",
            409,
            "Conflict",
            "Operation cannot be fulfilled on configmaps \"both\": ambiguous objects in clusters [m1, m2]",
        ),
    ] {
        let details = json!({"name": name, "kind": "configmaps"});
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        });
        let path = format!("{CONFIG_MAPS}/{name}");
        assert_eq!(env.read_all_clusters(&admin(), &path, "", "").await, (code, expected));
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_is_read_like_one_cluster() {
    let env = test_env().await;
    let (code, list) = env.fleet_wide(Method::GET, CONFIG_MAPS, LABELLED, None).await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("ConfigMapList")), "{list}");
    assert_eq!(names(&list), ["m1/both", "m1/only-m1", "m2/both", "m2/only-m2"]);
    // Pages of any size contain the same items and do not exceed the limit.
    for limit in 1..=5 {
        let (mut paged, mut query) = (Vec::new(), format!("{LABELLED}&limit={limit}"));
        loop {
            let (_, page) = env.fleet_wide(Method::GET, CONFIG_MAPS, &query, None).await;
            assert!(names(&page).len() <= limit, "{page}");
            paged.extend(names(&page));
            match page["metadata"]["continue"].as_str() {
                Some("") | None => break,
                Some(token) => query = format!("{LABELLED}&limit={limit}&continue={token}"),
            }
        }
        assert_eq!(paged, names(&list), "limit {limit}");
    }
    let (code, status) = env.fleet_wide(Method::GET, &format!("{CONFIG_MAPS}/both"), "", None).await;
    assert_eq!(code, 409);
    assert_eq!(
        status["message"],
        "Operation cannot be fulfilled on configmaps \"both\": ambiguous objects in clusters [m1, m2]"
    );
    // The query parameter `cluster` selects one of them.
    let both = format!("{CONFIG_MAPS}/both");
    let (code, m2_object) = env.fleet_wide(Method::GET, &both, "cluster=m2", None).await;
    assert_eq!((code, &m2_object["data"]), (200, &json!({"v": "m2"})), "{m2_object}");
    let (code, updated) = env.fleet_wide(Method::PUT, &both, "cluster=m2", Some(m2_object)).await;
    assert_eq!((code, &updated["data"]), (200, &json!({"v": "m2"})), "{updated}");
    let mut named = request(Method::GET, LABELLED, "", None);
    named.headers_mut().insert("x-crowsnest-cluster", "m1".parse().unwrap());
    let (_, m1_list) = read(env.proxy.fleet_wide(&admin(), CONFIG_MAPS, named).await).await;
    assert_eq!(names(&m1_list), ["m1/both", "m1/only-m1"]);
    let (code, status) = env.fleet_wide(Method::GET, &both, "cluster=m3", None).await;
    assert_eq!((code, &status["details"]["name"]), (404, &json!("m3")));
    let (code, own) = env.fleet_wide(Method::GET, "/api/v1/namespaces/karmada-cluster", "cluster=m1", None).await;
    assert_eq!((code, &own["kind"]), (200, &json!("Namespace")), "it is not registered");
    let (code, status) = env.fleet_wide(Method::POST, CONFIG_MAPS, "", Some(config_map("new", "1"))).await;
    assert_eq!(
        (code, status["message"].as_str()),
        (405, Some("create is not supported on resources of kind \"configmaps\""))
    );
    // Resources that are not registered are served by the control plane.
    let (code, secret) = env.fleet_wide(Method::GET, "/api/v1/namespaces/default/secrets/on-cp", "", None).await;
    assert_eq!((code, secret["metadata"]["name"].as_str()), (200, Some("on-cp")));
    let denied = env
        .proxy
        .fleet_wide(&user("alice"), "/api/v1/namespaces/default/secrets", request(Method::GET, "", "", None))
        .await;
    assert_eq!(read(denied).await.0, 403);
    // kubectl's table has a column for the cluster.
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) =
        read(env.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, LABELLED, table, None)).await).await;
    assert_eq!(table["columnDefinitions"][1]["name"], "Cluster");
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][1]), (&json!("both"), &json!("m1")));
    // search/cache
    let search = |path: &'static str| {
        let proxy = env.proxy.clone();
        async move { read(proxy.search_cache(&admin(), path, request(Method::GET, "", "", None)).await).await.1 }
    };
    assert_eq!(search("/api/v1/namespaces/default/configmaps/only-m2").await["items"][0]["kind"], "ConfigMap");
    assert_eq!(names(&search("/api/v1/namespaces/default/configmaps/both").await).len(), 2);
    assert_eq!(
        search("/api/v1/namespaces/default/secrets").await,
        json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": []})
    );
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_continues_from_a_list_and_writes_are_sent_to_the_owning_cluster() {
    let env = test_env().await;
    let (_, list) = env.fleet_wide(Method::GET, CONFIG_MAPS, LABELLED, None).await;
    let position = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let watch = format!("{LABELLED}&watch=true&resourceVersion={position}");
    let mut body =
        env.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, &watch, "", None)).await.into_body();
    // The composite version of an update is replaced by the owner's version.
    let path = format!("{CONFIG_MAPS}/only-m2");
    let (_, mut object) = env.fleet_wide(Method::GET, &path, "", None).await;
    let stale = object.clone();
    object["data"] = json!({"v": "changed"});
    let (code, updated) = env.fleet_wide(Method::PUT, &path, "", Some(object)).await;
    assert_eq!((code, &updated["metadata"]["annotations"]), (200, &Value::Null), "{updated}");
    let seen = event(&mut body).await;
    assert_eq!((&seen["type"], &seen["object"]["data"]["v"]), (&json!("MODIFIED"), &json!("changed")));
    assert_eq!(seen["object"]["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"], "m2");
    assert_eq!(env.fleet_wide(Method::PUT, &path, "", Some(stale)).await.0, 409, "the owner rejects an old version");
    // A watch from an event's version sends only later events.
    let later = seen["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = format!("{LABELLED}&watch=true&resourceVersion={later}");
    let mut resumed =
        env.proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, &watch, "", None)).await.into_body();
    assert_eq!(env.fleet_wide(Method::DELETE, &format!("{CONFIG_MAPS}/only-m1"), "", None).await.0, 200);
    for body in [&mut body, &mut resumed] {
        let seen = event(body).await;
        assert_eq!((&seen["type"], &seen["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("only-m1")));
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_passes_through_to_the_member() {
    let env = test_env().await;
    let client = env.members["m1"].admin();
    let spec = json!({"nodeName": "n", "containers": [{"name": "web", "image": "x"}]});
    create(&client, "v1", "Pod", Some("default"), json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, "default");
    let running = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "web", "image": "x", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }]}});
    pods.patch_status("web", &Default::default(), &kube::api::Patch::Merge(&running)).await.unwrap();

    let (client_end, server_end) = tokio::io::duplex(1 << 16);
    let proxy = env.proxy.clone();
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
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server_end), service).with_upgrades(),
    );
    let path = "ws://x/api/v1/namespaces/default/pods/web/exec?command=cat&stdin=true&stdout=true";
    let mut handshake = path.into_client_request().unwrap();
    handshake.headers_mut().insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().unwrap());
    let (mut socket, response) = tokio_tungstenite::client_async(handshake, client_end).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    socket.send(Message::binary(b"\0through".to_vec())).await.unwrap();
    socket.send(Message::binary(b"\xff\0".to_vec())).await.unwrap();
    let mut output: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            output.entry(bytes[0]).or_default().extend_from_slice(&bytes[1..]);
        }
    }
    assert_eq!(output[&1], b"through");
    assert!(String::from_utf8_lossy(&output[&3]).contains("Success"));
    env.stop().await;
}
