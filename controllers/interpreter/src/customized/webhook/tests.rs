//! Selection of webhooks, and calls to a local HTTPS webhook.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use crowsnest_apiserver::authn::{Authority, ServingCertificates};
use crowsnest_apiserver::serve::serve;
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;

fn configuration(webhooks: Value) -> ResourceInterpreterWebhookConfiguration {
    serde_json::from_value(json!({"webhooks": webhooks})).expect("a configuration")
}

fn rule(operations: &[&str], groups: &[&str], versions: &[&str], kinds: &[&str]) -> Value {
    json!([{"operations": operations, "apiGroups": groups, "apiVersions": versions, "kinds": kinds}])
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"replicas": 2}})
}

#[rstest]
#[case::exactly(rule(&["Retain"], &["apps"], &["v1"], &["Deployment"]), true)]
#[case::anything(rule(&["*"], &["*"], &["*"], &["*"]), true)]
#[case::among_others(rule(&["Prune", "Retain"], &["", "apps"], &["v2", "v1"], &["Job", "Deployment"]), true)]
#[case::another_operation(rule(&["InterpretHealth"], &["*"], &["*"], &["*"]), false)]
#[case::another_group(rule(&["*"], &[""], &["*"], &["*"]), false)]
#[case::another_version(rule(&["*"], &["*"], &["v2"], &["*"]), false)]
#[case::another_kind(rule(&["*"], &["*"], &["*"], &["Job"]), false)]
fn rules_match_operations_on_kinds(#[case] rules: Value, #[case] expected: bool) {
    let webhooks = Webhooks::default();
    webhooks.set_configuration("c", Some(&configuration(json!([{"name": "a.b", "rules": rules}]))));
    assert_eq!(webhooks.find(&deployment(), &Operation::Retain).is_some(), expected);
}

#[test]
fn first_webhook_by_configuration_and_name_is_called() {
    let all = || rule(&["*"], &["*"], &["*"], &["*"]);
    let webhooks = Webhooks::default();
    let called = || webhooks.find(&deployment(), &Operation::Retain).map(|hook| hook.uid.clone());
    webhooks.set_configuration(
        "b",
        Some(&configuration(json!([{"name": "z.z", "rules": all()}, {"name": "a.z", "rules": all()}]))),
    );
    assert_eq!(called().as_deref(), Some("b/a.z"));
    // Compared as one string, in which a dash precedes a slash.
    webhooks.set_configuration("b-c", Some(&configuration(json!([{"name": "x.x", "rules": all()}]))));
    assert_eq!(called().as_deref(), Some("b-c/x.x"));
    webhooks.retain(|name| name != "b-c");
    assert_eq!(called().as_deref(), Some("b/a.z"));
    webhooks.set_configuration("b", Some(&configuration(json!([{"name": "z.z", "rules": all()}]))));
    assert_eq!(called().as_deref(), Some("b/z.z"));
    webhooks.set_configuration("b", None);
    assert_eq!(called(), None);
}

/// A webhook in this process, with configurable responses and recorded requests.
struct Server {
    address: SocketAddr,
    authority: Authority,
    requests: Arc<Mutex<Vec<(String, String, Value)>>>,
    stop: CancellationToken,
}

type Reply = fn(&Value) -> (StatusCode, Value);

#[derive(Clone)]
struct ServerState {
    requests: Arc<Mutex<Vec<(String, String, Value)>>>,
    reply: Reply,
}

async fn handle(
    State(state): State<ServerState>,
    uri: Uri,
    headers: HeaderMap,
    Json(review): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    let (code, body) = (state.reply)(&review);
    state.requests.lock().push((host, uri.to_string(), review));
    (code, Json(body))
}

impl Server {
    async fn start(names: &[&str], reply: Reply) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let authority = Authority::generate("webhooks").expect("an authority");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = authority.issue_serving_certificate(&names).expect("a certificate");
        let tls =
            ServingCertificates::new(&certificate).and_then(|serving| authority.tls(serving)).expect("a server's TLS");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (requests, stop) = (Arc::default(), CancellationToken::new());
        let state = ServerState { requests: Arc::clone(&requests), reply };
        let router = Router::new().route("/interpret", post(handle)).with_state(state);
        tokio::spawn(serve(listener, Some(tls), router, stop.clone()));
        Server { address, authority, requests, stop }
    }

    /// All operations handled by this webhook.
    fn webhooks(&self, services: Arc<dyn Services>, client_config: Value) -> Webhooks {
        let ca_bundle = base64::engine::general_purpose::STANDARD.encode(self.authority.certificate());
        let mut client = client_config;
        client["caBundle"] = json!(ca_bundle);
        let webhooks = Webhooks::new(services);
        let hook = json!({"name": "hook.example.com", "clientConfig": client, "timeoutSeconds": 5,
            "rules": rule(&["*"], &["*"], &["*"], &["*"]), "interpreterContextVersions": ["v1alpha1"]});
        webhooks.set_configuration("fleet", Some(&configuration(json!([hook]))));
        webhooks
    }

    fn by_url(&self) -> Webhooks {
        self.webhooks(Arc::new(services::NoServices), json!({"url": format!("https://{}/interpret/", self.address)}))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn hook(webhooks: &Webhooks) -> Arc<Webhook> {
    webhooks.find(&deployment(), &Operation::Retain).expect("a webhook")
}

fn successful(review: &Value) -> (StatusCode, Value) {
    let request = &review["request"];
    let patch = |patch: Value| base64::engine::general_purpose::STANDARD.encode(patch.to_string());
    let mut response = json!({"uid": request["uid"], "successful": true});
    let fields = match request["operation"].as_str().unwrap_or_default() {
        "InterpretReplica" => json!({"replicas": request["object"]["spec"]["replicas"]}),
        "InterpretComponent" => json!({"components": [{"name": "one", "replicas": 1}]}),
        "InterpretHealth" => json!({"healthy": true}),
        "InterpretStatus" => json!({"rawStatus": {"seen": true}}),
        "InterpretDependency" => json!({"dependencies": [{"apiVersion": "v1", "kind": "Secret", "name": "s"}]}),
        "ReviseReplica" => json!({"patchType": "JSONPatch", "patch": patch(json!([
            {"op": "replace", "path": "/spec/replicas", "value": request["replicas"]}]))}),
        "Retain" => json!({"patchType": "JSONPatch", "patch": patch(json!([
            {"op": "add", "path": "/spec/kept", "value": request["observedObject"]["spec"]["kept"]}]))}),
        "AggregateStatus" => json!({"patchType": "JSONPatch", "patch": patch(json!([
            {"op": "add", "path": "/status", "value": {"members": request["aggregatedStatus"]}}]))}),
        _ => json!({}),
    };
    for (key, value) in fields.as_object().expect("fields") {
        response[key] = value.clone();
    }
    (StatusCode::OK, json!({"response": response}))
}

#[tokio::test]
async fn every_operation_is_called_over_https() {
    let server = Server::start(&["127.0.0.1"], successful).await;
    let webhooks = server.by_url();
    let hook = hook(&webhooks);
    let object = deployment();
    assert_eq!(hook.replicas(&object).await.expect("replicas"), (2, None));
    assert_eq!(json!(hook.components(&object).await.expect("components")), json!([{"name": "one", "replicas": 1}]));
    assert!(hook.is_healthy(&object).await.expect("health"));
    assert_eq!(hook.reflect(&object).await.expect("a status"), json!({"seen": true}));
    let dependencies = hook.dependencies(&object).await.expect("dependencies");
    assert_eq!(json!(dependencies), json!([{"apiVersion": "v1", "kind": "Secret", "name": "s"}]));
    assert_eq!(hook.revise(&object, 7).await.expect("an object")["spec"]["replicas"], 7);
    let observed = json!({"spec": {"kept": "here"}});
    let retained = hook.retain(&object, &observed).await.expect("an object");
    assert_eq!(retained["spec"], json!({"replicas": 2, "kept": "here"}));
    let items: Vec<AggregatedStatusItem> = serde_json::from_value(json!([{"clusterName": "m1"}])).expect("items");
    let aggregated = hook.aggregate(&object, &items).await.expect("an object");
    assert_eq!(aggregated["status"], json!({"members": [{"clusterName": "m1"}]}));
    let requests = server.requests.lock();
    assert!(
        requests.iter().all(|(host, uri, _)| *host == server.address.to_string() && uri == "/interpret?timeout=5s")
    );
    assert_eq!(requests.len(), 8);
}

/// The only Service is `hooks/interpreter`, with this spec.
struct FixedService(Value);

#[async_trait]
impl Services for FixedService {
    async fn find(&self, namespace: &str, name: &str) -> Result<Option<Value>, LookupError> {
        Ok((namespace == "hooks" && name == "interpreter").then(|| json!({"spec": self.0})))
    }
}

#[tokio::test]
async fn webhook_is_resolved_by_service_and_verified_by_name() {
    let server = Server::start(&["interpreter.hooks.svc"], successful).await;
    let client_config = json!({"service": {
        "namespace": "hooks", "name": "interpreter", "port": server.address.port(), "path": "/interpret"}});
    let external = json!({"type": "ExternalName", "externalName": "127.0.0.1"});
    let webhooks = server.webhooks(Arc::new(FixedService(external)), client_config.clone());
    assert!(hook(&webhooks).is_healthy(&deployment()).await.expect("health"));
    let host = format!("interpreter.hooks.svc:{}", server.address.port());
    assert_eq!(server.requests.lock()[0].0, host);

    let headless = json!({"type": "ClusterIP", "clusterIP": "None"});
    let webhooks = server.webhooks(Arc::new(FixedService(headless)), client_config);
    let error = hook(&webhooks).is_healthy(&deployment()).await.expect_err("a headless Service").to_string();
    let url = format!("https://{host}/interpret?timeout=5s");
    assert_eq!(
        error,
        format!(
            "Internal error occurred: failed calling webhook \"fleet/hook.example.com\": failed to call webhook: \
             Post \"{url}\": cannot route to service with ClusterIP \"None\""
        )
    );
}

fn failed(review: &Value) -> (StatusCode, Value) {
    let status = json!({"code": 400, "message": "no"});
    (StatusCode::OK, json!({"response": {"uid": review["request"]["uid"], "status": status}}))
}

fn wrong_uid(_review: &Value) -> (StatusCode, Value) {
    (StatusCode::OK, json!({"response": {"uid": "", "successful": true}}))
}

fn server_error(_review: &Value) -> (StatusCode, Value) {
    (StatusCode::INTERNAL_SERVER_ERROR, json!({}))
}

fn malformed(_review: &Value) -> (StatusCode, Value) {
    (StatusCode::OK, json!({"response": {"uid": 7}}))
}

fn inapplicable_patch(review: &Value) -> (StatusCode, Value) {
    let patch = base64::engine::general_purpose::STANDARD.encode(r#"[{"op": "remove", "path": "/none"}]"#);
    let uid = &review["request"]["uid"];
    (StatusCode::OK, json!({"response": {"uid": uid, "successful": true, "patchType": "JSONPatch", "patch": patch}}))
}

#[rstest]
#[case::refused(failed, "webhook call failed, get status code: 400, msg: no")]
#[case::wrong_uid(wrong_uid, "received invalid webhook response: expected response.uid ")]
#[case::server_error(
    server_error,
    "failed to call webhook: an error on the server (\"unknown\") has prevented the request from succeeding"
)]
#[case::malformed(malformed, "failed to call webhook: invalid type: integer `7`, expected a string")]
#[case::inapplicable_patch(inapplicable_patch, "cannot apply the patch of the response: ")]
#[tokio::test]
async fn failures_are_reported(#[case] reply: Reply, #[case] expected: &str) {
    let server = Server::start(&["127.0.0.1"], reply).await;
    let webhooks = server.by_url();
    let error = hook(&webhooks).revise(&deployment(), 1).await.expect_err("no result").to_string();
    let head = "Internal error occurred: failed calling webhook \"fleet/hook.example.com\": ";
    assert!(error.starts_with(&format!("{head}{expected}")), "{error}");
}

#[tokio::test]
async fn untrusted_or_unreachable_webhooks_are_errors() {
    let server = Server::start(&["other.example.com"], successful).await;
    let misnamed = server.by_url();
    let error = hook(&misnamed).is_healthy(&deployment()).await.expect_err("another name").to_string();
    assert!(error.contains("tls: failed to verify certificate: x509: "), "{error}");
    let other_authority = Server::start(&["127.0.0.1"], successful).await;
    let client_config = json!({"url": format!("https://{}/interpret", other_authority.address)});
    let untrusted = server.webhooks(Arc::new(services::NoServices), client_config);
    let error = hook(&untrusted).is_healthy(&deployment()).await.expect_err("another authority").to_string();
    assert!(error.contains("x509: "), "{error}");
    assert!(other_authority.requests.lock().is_empty() && server.requests.lock().is_empty());

    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let closed = server.webhooks(Arc::new(services::NoServices), json!({"url": format!("https://{free}/x")}));
    let error = hook(&closed).is_healthy(&deployment()).await.expect_err("no listener").to_string();
    let expected_end = format!("Post \"https://{free}/x?timeout=5s\": dial tcp {free}: connect: connection refused");
    assert!(error.ends_with(&expected_end), "{error}");
}

#[tokio::test]
async fn calls_time_out() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let webhooks = Webhooks::default();
    let webhook = json!({"name": "a.b", "clientConfig": {"url": format!("https://{address}/x")}, "timeoutSeconds": 1,
        "rules": rule(&["*"], &["*"], &["*"], &["*"]), "interpreterContextVersions": ["v1alpha1"]});
    drop(rustls::crypto::ring::default_provider().install_default());
    webhooks.set_configuration("c", Some(&configuration(json!([webhook]))));
    let error = hook(&webhooks).is_healthy(&deployment()).await.expect_err("silence").to_string();
    assert!(error.ends_with(&format!("Post \"https://{address}/x?timeout=1s\": context deadline exceeded")), "{error}");
}

#[rstest]
#[case::no_address(json!({}), "could not get REST client: webhook configuration must have either service or URL")]
#[case::bundle(
    json!({"url": "https://a.b/", "caBundle": "bm9uZQ=="}),
    "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block"
)]
#[tokio::test]
async fn invalid_configurations_are_reported(#[case] client: Value, #[case] expected: &str) {
    drop(rustls::crypto::ring::default_provider().install_default());
    let webhooks = Webhooks::default();
    let rules = rule(&["*"], &["*"], &["*"], &["*"]);
    let webhook =
        json!({"name": "a.b", "clientConfig": client, "rules": rules, "interpreterContextVersions": ["v1alpha1"]});
    webhooks.set_configuration("c", Some(&configuration(json!([webhook]))));
    let error = hook(&webhooks).is_healthy(&deployment()).await.expect_err("no client").to_string();
    assert_eq!(error, format!("Internal error occurred: failed calling webhook \"c/a.b\": {expected}"));
    let unknown = json!({"name": "a.b", "clientConfig": client, "rules": rule(&["*"], &["*"], &["*"], &["*"]),
        "interpreterContextVersions": ["v2"]});
    webhooks.set_configuration("c", Some(&configuration(json!([unknown]))));
    let error = hook(&webhooks).is_healthy(&deployment()).await.expect_err("no version").to_string();
    assert!(error.ends_with("webhook does not accept known ResourceInterpreterContext versions (v1alpha1)"), "{error}");
}
