//! Members that stall or break off in the middle of a response.

use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_proxy::Proxy;
use http::{Method, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::test_env::{CONFIG_MAPS, LABELLED, TestEnv, admin, read, register_with, request, test_env};

/// Behavior of a member.
#[derive(Clone, Copy)]
enum Behavior {
    /// It accepts connections and never responds.
    NoResponse,
    /// It sends a part of its list and then stalls.
    Stall,
    /// It sends a part of its list and closes the connection.
    BreakOff,
    /// It sends the head and the beginning of an object, then stalls.
    StallInObject,
    /// It switches protocols on any request.
    SwitchProtocols,
}

const PART_OF_LIST: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n\
    {\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"items\":[{\"metadata\":{\"name\":\"first\"}},{\"metadata\":{\"na";
const SWITCHING_PROTOCOLS: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
const PART_OF_OBJECT: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{\"metadata\":{";

async fn serve(mut connection: TcpStream, behavior: Behavior) {
    let mut head = [0; 4096];
    // Requests without a body arrive in one packet.
    let length = connection.read(&mut head).await.unwrap_or_default();
    if length == 0 {
        return;
    }
    let sent = match behavior {
        Behavior::NoResponse => Ok(()),
        Behavior::Stall | Behavior::BreakOff => connection.write_all(PART_OF_LIST.as_bytes()).await,
        Behavior::SwitchProtocols => connection.write_all(SWITCHING_PROTOCOLS.as_bytes()).await,
        Behavior::StallInObject => connection.write_all(PART_OF_OBJECT.as_bytes()).await,
    };
    if sent.is_ok() && !matches!(behavior, Behavior::BreakOff) {
        std::future::pending::<()>().await;
    }
}

/// Registers a member with this behavior. It accepts connections until the result is dropped.
async fn add_member(env: &TestEnv, name: &str, behavior: Behavior) -> JoinSet<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.spawn(serve(connection, behavior));
        }
    });
    register_with(&env.control_plane, name, &url, ["a".to_owned(), "b".to_owned()]).await;
    let (fleet, name) = (env.cache.fleet(), ClusterName::parse(name).unwrap());
    let mut changes = fleet.changes();
    while fleet.member(&name).is_none_or(|member| member.impersonator_token().is_err()) {
        changes.next().await.unwrap();
    }
    tasks
}

fn item_names(list: &Value) -> Vec<&str> {
    let mut names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_name_members_whose_part_is_incomplete() {
    let env = test_env().await;
    let _silent = add_member(&env, "silent", Behavior::NoResponse).await;
    let _stalls = add_member(&env, "stalls", Behavior::Stall).await;
    let _breaks = add_member(&env, "breaks", Behavior::BreakOff).await;
    let proxy = Proxy::with_response_timeout(env.cache.clone(), Duration::from_secs(2));
    let response = proxy.cluster("*", &admin(), CONFIG_MAPS, request(Method::GET, LABELLED, "", None)).await;
    let warnings: Vec<String> =
        response.headers().get_all(header::WARNING).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
    let [broken_warning, silent_warning, stalled_warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(broken_warning.contains("cluster breaks broke off in the middle of its list"), "{broken_warning}");
    assert!(silent_warning.contains("cluster silent: no response within 2 s"), "{silent_warning}");
    assert!(
        stalled_warning.contains("cluster stalls sent a part of its list, then nothing for 2 s"),
        "{stalled_warning}"
    );
    let (code, list) = read(response).await;
    assert_eq!((code, &list["kind"]), (200, &json!("ConfigMapList")), "{list}");
    assert_eq!(item_names(&list), ["both", "both", "only-m1", "only-m2"]);
    let missing = list["metadata"]["incompleteClusters"].as_array().unwrap();
    let reasons: Vec<(&str, &str)> =
        missing.iter().map(|entry| (entry["cluster"].as_str().unwrap(), entry["reason"].as_str().unwrap())).collect();
    let [(broken, broken_reason), (silent, silent_reason), (stalled, stalled_reason)] = reasons.as_slice() else {
        panic!("{reasons:?}")
    };
    assert_eq!([*broken, *silent, *stalled], ["breaks", "silent", "stalls"]);
    assert!(broken_reason.starts_with("broke off in the middle of its list"), "{broken_reason}");
    assert!(silent_reason.contains("no response within 2 s"), "{silent_reason}");
    assert_eq!(*stalled_reason, "sent a part of its list, then nothing for 2 s");
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stalls_after_its_status_counts_as_owner_of_the_object() {
    let env = test_env().await;
    let _stalls = add_member(&env, "stalls", Behavior::StallInObject).await;
    let path = format!("{CONFIG_MAPS}/only-m1");
    let (code, status) = read(env.proxy.cluster("*", &admin(), &path, request(Method::GET, "", "", None)).await).await;
    let text = "Operation cannot be fulfilled on configmaps \"only-m1\": ambiguous objects in clusters [m1, stalls]";
    assert_eq!((code, &status["message"]), (409, &json!(text)));
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switching_protocols_without_an_upgrade_request_is_refused() {
    let env = test_env().await;
    let _switches = add_member(&env, "switches", Behavior::SwitchProtocols).await;
    let path = format!("{CONFIG_MAPS}/c");
    for method in [Method::GET, Method::PUT] {
        let sent = request(method, "", "", None);
        let (code, status) = read(env.proxy.cluster("switches", &admin(), &path, sent).await).await;
        let message = status["message"].as_str().unwrap();
        assert_eq!(
            (code, message),
            (502, "cluster switches switched protocols without an upgrade request"),
            "{status}"
        );
    }
    env.stop().await;
}

/// A member must not receive a request whose prefix gives it another verb than its method.
#[rstest::rstest]
#[case("PATCH", "/apis/apps/v1/watch/namespaces/default/deployments/d/scale")]
#[case("PUT", "/apis/apps/v1/watch/namespaces/default/deployments/d")]
#[case("GET", "/api/v1/watch/namespaces/default/pods/p/exec")]
#[case("GET", "/api/v1/proxy/namespaces/default/pods/p")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deprecated_prefixes_do_not_change_the_verb(#[case] method: &str, #[case] path: &str) {
    let env = test_env().await;
    let sent = || request(method.parse().unwrap(), "", "", None);
    let proxy = &env.proxy;
    for response in [
        proxy.cluster("m1", &admin(), path, sent()).await,
        proxy.cluster("*", &admin(), path, sent()).await,
        proxy.fleet_wide(&admin(), path, sent()).await,
        proxy.search_cache(&admin(), path, sent()).await,
    ] {
        let (code, status) = read(response).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert!(code == 400 && message.contains("deprecated prefix"), "{code} {status}");
    }
    env.stop().await;
}
