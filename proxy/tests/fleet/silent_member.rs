//! A member that accepts connections and never responds.

use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_proxy::Proxy;
use http::{Method, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::test_env::{CONFIG_MAPS, LABELLED, TestEnv, admin, names, read, register_with, request, test_env};

const SILENT: &str = "silent";

/// Registers the member. It accepts connections until the result is dropped.
async fn add_silent_member(env: &TestEnv) -> JoinSet<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    });
    register_with(&env.control_plane, SILENT, &url, ["a".to_owned(), "b".to_owned()]).await;
    let (fleet, name) = (env.cache.fleet(), ClusterName::parse(SILENT).unwrap());
    let mut changes = fleet.changes();
    while fleet.member(&name).is_none_or(|member| member.impersonator_token().is_err()) {
        changes.next().await.unwrap();
    }
    tasks
}

async fn list(proxy: &Proxy, cluster: &str) -> (u16, Value) {
    read(proxy.cluster(cluster, &admin(), CONFIG_MAPS, request(Method::GET, LABELLED, "", None)).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_does_not_affect_others() {
    let env = test_env().await;
    let _silent = add_silent_member(&env).await;
    let proxy = Proxy::with_response_timeout(env.cache.clone(), Duration::from_millis(100));
    let (code, status) = list(&proxy, SILENT).await;
    let message = status["message"].as_str().unwrap();
    assert_eq!(
        (code, &status["details"]["name"], &status["reason"]),
        (503, &json!(SILENT), &json!("ServiceUnavailable"))
    );
    assert!(message.contains("cluster silent") && message.contains("no response within 0.1 s"), "{message}");
    // Further requests do not wait.
    let (code, status) = list(&proxy, SILENT).await;
    let message = status["message"].as_str().unwrap();
    assert_eq!((code, &status["details"]["name"]), (503, &json!(SILENT)));
    assert!(message.contains("are suspended") && status["details"]["retryAfterSeconds"].is_u64(), "{status}");
    assert_eq!(list(&proxy, "m1").await.0, 200);
    // Lists contain the items of the other members and report the missing one, on the first page if there are several.
    let has_warning =
        |response: &http::Response<_>| response.headers()[header::WARNING].to_str().unwrap().contains(SILENT);
    let (mut query, mut all) = (format!("{LABELLED}&limit=1"), Vec::new());
    loop {
        let page = proxy.cluster("*", &admin(), CONFIG_MAPS, request(Method::GET, &query, "", None)).await;
        assert!(!all.is_empty() || has_warning(&page));
        let page = read(page).await.1;
        all.extend(names(&page));
        match page["metadata"]["continue"].as_str() {
            Some("") | None => break,
            Some(token) => query = format!("{LABELLED}&limit=1&continue={token}"),
        }
    }
    assert_eq!(all, ["m1/both", "m1/only-m1", "m2/both", "m2/only-m2"]);
    let watch = format!("{LABELLED}&watch=true&timeoutSeconds=1");
    let watch = proxy.cluster("*", &admin(), CONFIG_MAPS, request(Method::GET, &watch, "", None)).await;
    assert!(watch.status() == 200 && has_warning(&watch));
    let cached = proxy.fleet_wide(&admin(), CONFIG_MAPS, request(Method::GET, LABELLED, "", None)).await;
    assert!(has_warning(&cached));
    assert_eq!(names(&read(cached).await.1).len(), 4);
    // It is unknown whether the member has the object.
    let missing = format!("{CONFIG_MAPS}/missing");
    let response = proxy.cluster("*", &admin(), &missing, request(Method::GET, "", "", None)).await;
    assert_eq!(read(response).await.0, 503);
    env.stop().await;
}
