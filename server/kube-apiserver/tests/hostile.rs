//! Hostile clients on sockets: each invalid request gets a Status that names the problem, the server keeps running, and
//! its memory is bounded.
//!
//! The test of idle connections runs the test executable again as the server, to measure its memory separately.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use crowsnest_apiserver::serve::serve;
use crowsnest_kube_apiserver::http::InFlightLimits;
use crowsnest_kube_apiserver::{ApiServer, Config, Data, RequestOptions};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

const ADMIN_TOKEN: &str = "0123456789abcdef";
/// Tokens of two users who are not administrators.
const USER_TOKEN: &str = "ordinary-0123456789";
const OTHER_USER_TOKEN: &str = "other-0123456789ab";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Time limit of a response, also on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Environment variable that marks the server process.
const SERVER_PROCESS: &str = "CROWSNEST_HOSTILE_SERVER";

/// A server that listens without TLS.
struct TestServer {
    server: ApiServer,
    address: SocketAddr,
    stop: CancellationToken,
}

async fn start() -> TestServer {
    start_with(InFlightLimits::default()).await
}

async fn start_with(in_flight: InFlightLimits) -> TestServer {
    let requests = RequestOptions { in_flight, ..RequestOptions::default() };
    let mut config = Config { requests, ..Config::new("hostile", Data::Memory) };
    for token in [USER_TOKEN, OTHER_USER_TOKEN] {
        let groups = vec!["system:authenticated".to_owned()];
        config.accept_token(token, UserInfo { name: token.into(), groups, ..UserInfo::default() });
    }
    let admin = UserInfo { name: "admin".into(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
    config.accept_token(ADMIN_TOKEN, admin);
    let server = ApiServer::start(config).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    tokio::spawn(serve(listener, None, server.router(), stop.clone()));
    TestServer { server, address, stop }
}

impl TestServer {
    /// A complete request head of the administrator.
    fn head(line: &str, media: &str, length: usize) -> String {
        Self::head_of(ADMIN_TOKEN, line, media, length)
    }

    fn head_of(token: &str, line: &str, media: &str, length: usize) -> String {
        format!(
            "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n\r\n"
        )
    }

    /// Opens a connection and sends a part of a request.
    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request of the administrator; returns status code and response object.
    async fn request(&self, line: &str, media: &str, body: &[u8]) -> (u16, Value) {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(Self::head(line, media, body.len()).as_bytes()).await.unwrap();
            // The server may respond before it has read the whole body.
            let _ = stream.write_all(body).await;
            read_response(&mut stream).await
        };
        tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await.unwrap_or_else(|_| panic!("no response to {line}"))
    }

    /// Asserts that the server responds to other requests.
    async fn assert_responsive(&self) {
        let (code, _) = self.request(&format!("GET {CONFIG_MAPS}"), "application/json", b"").await;
        assert_eq!(code, 200);
    }

    async fn stop(self) {
        self.stop.cancel();
        self.server.stop().await.unwrap();
    }
}

/// Reads the status code and the response object.
async fn read_response(stream: &mut TcpStream) -> (u16, Value) {
    let (code, _, object) = read_full_response(stream).await;
    (code, object)
}

/// Reads the status code, the head in lower case, and the response object.
async fn read_full_response(stream: &mut (impl AsyncRead + Unpin)) -> (u16, String, Value) {
    let mut text = Vec::new();
    // The connection may be reset after the response.
    let _ = stream.read_to_end(&mut text).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    let code =
        text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no response: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    let object = body.find('{').and_then(|from| body.rfind('}').map(|to| &body[from..=to])).unwrap_or_default();
    (code, head.to_lowercase(), serde_json::from_str(object).unwrap_or_default())
}

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_and_deeply_nested_bodies_are_rejected() {
    let running = start().await;
    let map = json!({"metadata": {"name": "c"}, "data": {"x": "1"}}).to_string();
    assert_eq!(running.request(&format!("POST {CONFIG_MAPS}"), JSON, map.as_bytes()).await.0, 201);
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let definitions = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(running.request(definitions, JSON, definition.to_string().as_bytes()).await.0, 201);
    let (one, things) = (format!("{CONFIG_MAPS}/c"), "/apis/example.com/v1/namespaces/default/things");
    let large = vec![b' '; 3 * 1024 * 1024 + 1];
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000)).into_bytes();
    let (objects, lists) = (deep("{\"a\":", "}"), deep("[", "]"));
    let in_map = [br#"{"metadata":{"name":"d"},"data":"#.as_slice(), &objects, b"}"].concat();
    let in_thing =
        [br#"{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"d"},"x":"#.as_slice(), &objects, b"}"]
            .concat();
    let patch = [br#"[{"op":"add","path":"/data","value":"#.as_slice(), &objects, b"}]"].concat();
    let laughs: String =
        (1..9).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(","))).collect();
    let laughs =
        format!("a0: &a0 [x,x,x,x,x,x,x,x,x]\n{laughs}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n");
    let indented: String = (0..2_000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    let create = format!("POST {CONFIG_MAPS}");
    let cases: Vec<(String, &str, &[u8], &[u16])> = vec![
        (create.clone(), JSON, &large, &[413]),
        (create.clone(), YAML, &large, &[413]),
        (create.clone(), "application/vnd.kubernetes.protobuf", &large, &[413]),
        (format!("PATCH {one}"), MERGE, &large, &[413]),
        (format!("PUT {one}"), JSON, &large, &[413]),
        (format!("DELETE {one}"), JSON, &large, &[413]),
        (create.clone(), JSON, &objects, &[400]),
        (create.clone(), JSON, &lists, &[400]),
        (create.clone(), JSON, &in_map, &[400]),
        (create.clone(), YAML, &lists, &[400]),
        (create.clone(), YAML, indented.as_bytes(), &[400]),
        (create.clone(), YAML, laughs.as_bytes(), &[400]),
        (format!("POST {things}"), JSON, &in_thing, &[400]),
        (format!("POST {things}"), YAML, &in_thing, &[400]),
        (format!("PATCH {one}"), MERGE, &objects, &[400]),
        (format!("PATCH {one}"), STRATEGIC, &in_map, &[400]),
        (format!("PATCH {one}"), JSON_PATCH, &patch, &[400]),
        (format!("PATCH {one}?fieldManager=m"), APPLY, &in_map, &[400]),
        (format!("PATCH {one}?fieldManager=m"), APPLY, laughs.as_bytes(), &[400]),
        (format!("DELETE {one}"), JSON, &objects, &[400]),
        (format!("POST {CONFIG_MAPS}?fieldManager={}", "m".repeat(300)), JSON, map.as_bytes(), &[422]),
    ];
    for (line, media, body, codes) in cases {
        let (code, status) = running.request(&line, media, body).await;
        let start = String::from_utf8_lossy(&body[..body.len().min(30)]).into_owned();
        assert!(codes.contains(&code), "{line} {media} {start}: {code} {status}");
        assert_eq!(status["kind"], "Status", "{line} {media} {start}");
        assert!(status["message"].as_str().is_some_and(|message| message.len() < 20_000), "{line} {media} {start}");
    }
    let limit = running.request(&create, JSON, &large).await.1;
    assert_eq!(limit["message"], "Request entity too large: limit is 3145728");
    assert_eq!(limit["reason"], "RequestEntityTooLarge");
    running.assert_responsive().await;
    running.stop().await;
}

/// Such a client loses the response if the connection is closed before it has sent everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_send_an_oversized_body_before_they_read_receive_the_response() {
    let running = start().await;
    let body = vec![b' '; 12 << 20];
    let mut stream = running.send(&TestServer::head(&format!("POST {CONFIG_MAPS}"), JSON, body.len())).await;
    stream.write_all(&body).await.unwrap();
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, read_full_response(&mut stream)).await.unwrap();
    assert_eq!((response.0, response.2["reason"].as_str()), (413, Some("RequestEntityTooLarge")));
    running.assert_responsive().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_bodies_are_rejected() {
    let running = start().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reads, mut writes) = stream.into_split();
    let sending = tokio::spawn(async move {
        let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
        while writes.write_all(&chunk).await.is_ok() {}
    });
    let mut first = [0; 12];
    tokio::time::timeout(RESPONSE_TIMEOUT, reads.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
    drop(reads);
    sending.abort();
    running.assert_responsive().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_selectors_and_headers_are_answered() {
    let running = start().await;
    let many = |one: &str, count: usize| vec![one; count].join(",");
    let long = "x".repeat(60_000);
    for (query, codes) in [
        (format!("labelSelector={}", many("a%3Db", 6_000)), &[200][..]),
        (format!("labelSelector=a+in+({})", many("b", 20_000)), &[200]),
        (format!("labelSelector={}", "(".repeat(50_000)), &[400]),
        (format!("labelSelector={}", "!".repeat(50_000)), &[400]),
        (format!("labelSelector={long}"), &[400]),
        (format!("fieldSelector={}", many("metadata.name%3Da", 3_000)), &[200]),
        (format!("fieldSelector=metadata.name%3D{long}"), &[200, 400]),
        (format!("continue={long}"), &[400]),
        (format!("resourceVersion={long}"), &[400]),
        (format!("limit={long}"), &[400]),
        // As in kube-apiserver.
        (format!("watch=true&resourceVersion={}", "9".repeat(40)), &[500]),
        // Exceeds the limit of a request line.
        (format!("labelSelector={}", "x".repeat(100_000)), &[400, 414, 431]),
    ] {
        let (code, _) = running.request(&format!("GET {CONFIG_MAPS}?{query}"), JSON, b"").await;
        assert!(codes.contains(&code), "{}: {code}", &query[..60.min(query.len())]);
    }
    for accept in
        ["application/json;as=Table;v=v1;g=meta.k8s.io,".repeat(500), ";".repeat(20_000), "*/*;q=0.1,".repeat(2_000)]
    {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let head = format!(
            "GET {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\nAccept: {accept}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (code, _) = tokio::time::timeout(RESPONSE_TIMEOUT, read_response(&mut stream)).await.unwrap();
        assert!([200, 406].contains(&code), "{}: {code}", &accept[..20]);
    }
    running.assert_responsive().await;
    running.stop().await;
}

/// Hundreds of connections that send part of a body or head, or only request an upgrade, do not delay other
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_do_not_delay_others() {
    let running = start().await;
    let mut held = Vec::new();
    let upgrade = format!(
        "POST /api/v1/namespaces/default/pods/p/exec?command=ls HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    );
    let parts = [
        format!("{}{{\"meta", TestServer::head(&format!("POST {CONFIG_MAPS}"), JSON, 100)),
        format!("GET {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nAuthor"),
        upgrade,
        String::new(),
        // Not HTTP, as from a client that expects TLS.
        "\u{16}\u{3}\u{1}".to_owned(),
    ];
    for part in parts.iter().cycle().take(1_000) {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(part.as_bytes()).await.unwrap();
        held.push(stream);
    }
    for _ in 0..5 {
        running.assert_responsive().await;
        let name = json!({"metadata": {"generateName": "c-"}}).to_string();
        assert_eq!(running.request(&format!("POST {CONFIG_MAPS}"), JSON, name.as_bytes()).await.0, 201);
    }
    drop(held);
    running.assert_responsive().await;
    running.stop().await;
}

/// Requests above a user's limit wait in a bounded queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_requests_are_rejected_with_retry_after() {
    // One permit per user, and one waiting request.
    let running = start_with(InFlightLimits { writes: 2, ..InFlightLimits::default() }).await;
    let binding = json!({
        "metadata": {"name": "all-may-write"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
    });
    let bindings = "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(running.request(bindings, JSON, binding.to_string().as_bytes()).await.0, 201);
    let body = json!({"metadata": {"generateName": "c-"}}).to_string();
    let line = format!("POST {CONFIG_MAPS}");
    let whole_request = |token: &str| format!("{}{body}", TestServer::head_of(token, &line, JSON, body.len()));
    let (first_part, rest) = body.split_at(9);
    let part = format!("{}{first_part}", TestServer::head_of(USER_TOKEN, &line, JSON, body.len()));
    let (mut responses, mut senders) = (FuturesUnordered::new(), Vec::new());
    for nth in 0..5 {
        let (mut reads, writes) = running.send(&part).await.into_split();
        senders.push(writes);
        responses.push(async move { (nth, read_full_response(&mut reads).await) });
    }
    // Two of the requests are running or waiting.
    let mut held: Vec<_> = (0..5).collect();
    for _ in 0..3 {
        let (nth, (code, head, status)) =
            tokio::time::timeout(RESPONSE_TIMEOUT, responses.next()).await.unwrap().unwrap();
        held.retain(|other| *other != nth);
        assert_eq!(code, 429, "{status}");
        assert!(head.contains("\r\nretry-after: 1"), "{head}");
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 429,
            "reason": "TooManyRequests", "message": "Too many requests, please try again later.",
            "details": {"retryAfterSeconds": 1},
        });
        assert_eq!(status, expected);
    }
    // Other users and reads have their own permits.
    assert_eq!(read_response(&mut running.send(&whole_request(OTHER_USER_TOKEN)).await).await.0, 201);
    assert_eq!(read_response(&mut running.send(&whole_request(ADMIN_TOKEN)).await).await.0, 201);
    let read = TestServer::head_of(USER_TOKEN, &format!("GET {CONFIG_MAPS}"), JSON, 0);
    assert_eq!(read_response(&mut running.send(&read).await).await.0, 200);
    for nth in held {
        senders[nth].write_all(rest.as_bytes()).await.unwrap();
    }
    while let Some((_, (code, _, status))) = responses.next().await {
        assert_eq!(code, 201, "a queued request is served: {status}");
    }
    assert_eq!(read_response(&mut running.send(&whole_request(USER_TOKEN)).await).await.0, 201);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_bodies_time_out() {
    let running = start().await;
    for line in [
        format!("POST {CONFIG_MAPS}?timeout=300ms"),
        format!("PUT {CONFIG_MAPS}/c?timeout=300ms"),
        format!("DELETE {CONFIG_MAPS}/c?timeout=300ms"),
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews?timeout=300ms".to_owned(),
    ] {
        let mut stream = running.send(&format!("{}{{\"meta", TestServer::head(&line, JSON, 100))).await;
        let (code, status) = tokio::time::timeout(RESPONSE_TIMEOUT, read_response(&mut stream)).await.unwrap();
        assert_eq!((code, status["reason"].as_str()), (504, Some("Timeout")), "{line}: {status}");
        let text = "Timeout: request did not complete within the allotted timeout";
        assert_eq!(status["message"], text, "{line}");
    }
    running.assert_responsive().await;
    running.stop().await;
}

/// Entry point of the server process for the next test, which runs until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server() {
    if std::env::var_os(SERVER_PROCESS).is_none() {
        return;
    }
    let running = start().await;
    let secure = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // On one line; PEM contains no underscores.
    let authority = running.server.authority().certificate().replace('\n', "_");
    println!("listens {} {} {authority}", running.address, secure.local_addr().unwrap());
    running.server.serve(secure, running.stop.clone()).await.unwrap();
}

/// A child process that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Resident memory of a process in bytes.
fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// A server in a process of its own.
struct ServerProcess {
    process: KillOnDrop,
    plain: SocketAddr,
    secure: SocketAddr,
    tls: TlsConnector,
}

impl ServerProcess {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["server", "--exact", "--nocapture"])
            .env(SERVER_PROCESS, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let process = KillOnDrop(child);
        let listens = |line: String| line.split_once("listens ").map(|(_, addresses)| addresses.to_owned());
        let addresses = lines.map_while(Result::ok).find_map(listens).unwrap();
        let [plain, secure, authority] = addresses.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.replace('_', "\n").as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (plain, secure) = (plain.parse().unwrap(), secure.parse().unwrap());
        Self { process, plain, secure, tls: TlsConnector::from(Arc::new(config)) }
    }

    /// A connection that stays open after one request.
    async fn connect(&self, secure: bool) -> TcpStream {
        if !secure {
            let mut stream = TcpStream::connect(self.plain).await.unwrap();
            assert_success(&mut stream).await;
            return stream;
        }
        let stream = TcpStream::connect(self.secure).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = tokio::time::timeout(RESPONSE_TIMEOUT, self.tls.connect(name, stream)).await.unwrap().unwrap();
        assert_success(&mut stream).await;
        // The client's TLS state is dropped to save memory.
        stream.into_inner().0
    }

    async fn connect_many(&self, secure: bool, count: usize) -> Vec<TcpStream> {
        let connecting = (0..count).map(|_| self.connect(secure));
        futures::stream::iter(connecting).buffer_unordered(32).collect().await
    }
}

/// Sends a request and asserts that it is successful.
async fn assert_success(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let get = format!("GET {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n");
    stream.write_all(get.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut first = [0; 12];
    tokio::time::timeout(RESPONSE_TIMEOUT, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_use_little_memory() {
    const CONNECTIONS: usize = 10_000;
    // Sequentially, because of the limit of open sockets per process.
    for (secure, max_kib_per_connection) in [(false, 32), (true, 48)] {
        let server = ServerProcess::start();
        let mut held = server.connect_many(secure, 100).await;
        let before = resident_bytes(server.process.0.id());
        held.extend(server.connect_many(secure, CONNECTIONS).await);
        let bytes_per_connection = resident_bytes(server.process.0.id()).saturating_sub(before) / CONNECTIONS as u64;
        assert!(
            bytes_per_connection < max_kib_per_connection << 10,
            "{bytes_per_connection} bytes per connection, TLS: {secure}"
        );
        held.push(server.connect(secure).await);
    }
}
