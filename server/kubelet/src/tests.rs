//! The kubelet behind an HTTP connection, used by clients of each protocol.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::spdy::{Compressor, Frame, FrameReader, Headers};
use super::*;

const START: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-01T00:01:00Z";

/// A runtime with a fixed set of objects by resource and name.
struct ObjectMap(BTreeMap<(&'static str, String), Arc<Value>>);

#[async_trait]
impl PodRuntime for ObjectMap {
    async fn get(&self, resource: &str, _namespace: &str, name: &str) -> ApiResult<Option<Arc<Value>>> {
        Ok(self.0.iter().find(|((r, n), _)| *r == resource && n == name).map(|(_, object)| object.clone()))
    }

    async fn list_pods(&self, _namespace: &str) -> ApiResult<Vec<Arc<Value>>> {
        Ok(self.0.iter().filter(|((r, _), _)| *r == "pods").map(|(_, object)| object.clone()).collect())
    }

    fn now(&self) -> Timestamp {
        NOW.parse().unwrap()
    }
}

fn pod(name: &str, containers: Value, statuses: Value) -> Arc<Value> {
    Arc::new(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "node-1", "containers": containers, "volumes": [{"name": "conf", "configMap": {"name": "conf"}}]},
        "status": {"phase": "Running", "podIP": "10.1.0.5", "containerStatuses": statuses,
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn running(name: &str) -> Value {
    json!({"name": name, "restartCount": 1, "state": {"running": {"startedAt": START}},
           "lastState": {"terminated": {"startedAt": "2025-12-31T23:59:00Z", "finishedAt": "2025-12-31T23:59:30Z", "exitCode": 2, "reason": "Error"}}})
}

fn kubelet() -> Arc<Kubelet> {
    kubelet_with(StreamTimeouts::default())
}

fn kubelet_with(timeouts: StreamTimeouts) -> Arc<Kubelet> {
    let web = json!([{
        "name": "web", "image": "nginx:1.25", "ports": [{"containerPort": 80, "name": "http"}],
        "env": [{"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "colour"}}}, {"name": "TWO", "value": "$(COLOUR)-2"}],
        "volumeMounts": [{"name": "conf", "mountPath": "/conf"}],
    }]);
    let script = json!([{"name": "job", "image": "busybox", "command": ["sh", "-c", "i=0; while true; do i=$((i+1)); echo line $i; sleep 20; done"]}]);
    let two = json!([{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]);
    let service = json!({"spec": {"selector": {"app": "web"}, "ports": [{"port": 8080, "targetPort": "http"}]}});
    let objects = ObjectMap(BTreeMap::from([
        (("pods", "web".to_owned()), pod("web", web, json!([running("web")]))),
        (("pods", "job".to_owned()), pod("job", script, json!([running("job")]))),
        (
            ("pods", "two".to_owned()),
            pod(
                "two",
                two,
                json!([running("a"), {"name": "b", "state": {"waiting": {"reason": "ContainerCreating"}}}]),
            ),
        ),
        (("services", "front".to_owned()), Arc::new(service)),
        (("configmaps", "conf".to_owned()), Arc::new(json!({"data": {"colour": "green"}}))),
    ]));
    Kubelet::with_timeouts(Arc::new(objects), timeouts)
}

/// Returns a client connection to a server that serves `/{pod}/{subresource}?query` from the kubelet.
fn connect(kubelet: &Arc<Kubelet>) -> DuplexStream {
    let (client_io, server_io) = tokio::io::duplex(1 << 16);
    let kubelet = kubelet.clone();
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let kubelet = kubelet.clone();
        async move {
            let parts: Vec<String> = request.uri().path().split('/').map(str::to_owned).collect();
            let subresource = match parts[2].as_str() {
                "log" => Subresource::Log,
                "exec" => Subresource::Exec,
                "attach" => Subresource::Attach,
                _ => Subresource::PortForward,
            };
            let pod = PodRef { namespace: "default".into(), name: parts[1].clone() };
            let response = kubelet.connect(&pod, subresource, request.map(Body::new)).await;
            Ok::<_, Infallible>(response.unwrap_or_else(|error| {
                Response::builder().status(error.code).body(Body::from(error.to_status().to_string())).unwrap()
            }))
        }
    });
    tokio::spawn(async move {
        let server = hyper::server::conn::http1::Builder::new();
        server.serve_connection(TokioIo::new(server_io), service).with_upgrades().await
    });
    client_io
}

/// Returns status and body of a GET request.
async fn get(kubelet: &Arc<Kubelet>, path: &str) -> (u16, String) {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connect(kubelet))).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// A SPDY client, built from the server's frame encoding.
struct SpdyClient {
    io: tokio::io::WriteHalf<DuplexStream>,
    reader: FrameReader<tokio::io::ReadHalf<DuplexStream>>,
    compressor: Compressor,
    next: u32,
}

impl SpdyClient {
    async fn upgrade(kubelet: &Arc<Kubelet>, path: &str, protocol: &str) -> Self {
        let mut io = connect(kubelet);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
        );
        io.write_all(head.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            response.push(io.read_u8().await.unwrap());
        }
        let response = String::from_utf8(response).unwrap().to_lowercase();
        assert!(
            response.starts_with("http/1.1 101") && response.contains(&format!("version: {protocol}")),
            "{response}"
        );
        let (read, write) = tokio::io::split(io);
        Self { io: write, reader: FrameReader::new(read), compressor: Compressor::new().unwrap(), next: 1 }
    }

    async fn send(&mut self, frame: Frame) {
        let bytes = frame.encode(&mut self.compressor).unwrap();
        self.io.write_all(&bytes).await.unwrap();
    }

    async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let headers: Headers = headers.iter().map(|(k, v)| ((*k).to_owned(), vec![(*v).to_owned()])).collect();
        self.send(Frame::SynStream { stream, headers, fin: false, unidirectional: false }).await;
        stream
    }

    async fn data(&mut self, stream: u32, data: &[u8], fin: bool) {
        self.send(Frame::Data { stream, data: Bytes::copy_from_slice(data), fin }).await;
    }

    /// Reads until all of these streams have ended, without sending window updates, as kubectl does.
    async fn read(&mut self, streams: &[u32]) -> BTreeMap<u32, String> {
        let mut texts: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let mut open = streams.to_vec();
        while !open.is_empty() {
            match self.reader.next().await.unwrap().unwrap() {
                Frame::Data { stream, data, fin } => {
                    texts.entry(stream).or_default().extend_from_slice(&data);
                    open.retain(|s| !(fin && *s == stream));
                }
                Frame::SynReply { .. } | Frame::WindowUpdate { .. } | Frame::GoAway { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        texts.into_iter().map(|(stream, text)| (stream, String::from_utf8(text).unwrap())).collect()
    }
}

#[rstest::rstest]
#[case("v4.channel.k8s.io", r#"{"metadata":{},"status":"Success"}"#)]
#[case("channel.k8s.io", "")]
#[tokio::test]
async fn exec_over_spdy_transfers_all_streams(#[case] protocol: &str, #[case] status: &str) {
    let path = "/web/exec?command=sh&command=-c&command=cat;echo+$COLOUR+$TWO+%3E%262;cat+/conf/colour&stdin=true&stdout=true&stderr=true";
    let mut client = SpdyClient::upgrade(&kubelet(), path, protocol).await;
    let error = client.open(&[("streamtype", "error")]).await;
    let stdin = client.open(&[("streamtype", "stdin")]).await;
    let stdout = client.open(&[("streamtype", "stdout")]).await;
    let stderr = client.open(&[("streamtype", "stderr")]).await;
    client.data(stdin, b"typed ", false).await;
    client.data(stdin, b"in\n", true).await;
    let texts = client.read(&[stdout, stderr, error]).await;
    assert_eq!(texts[&stdout], "typed in\ngreen");
    assert_eq!(texts[&stderr], "green green-2\n");
    assert_eq!(texts[&error], status);
}

#[tokio::test]
async fn transfers_can_be_larger_than_the_default_window() {
    let mut client =
        SpdyClient::upgrade(&kubelet(), "/web/exec?command=cat&stdin=true&stdout=true", "v4.channel.k8s.io").await;
    let error = client.open(&[("streamtype", "error")]).await;
    let stdin = client.open(&[("streamtype", "stdin")]).await;
    let stdout = client.open(&[("streamtype", "stdout")]).await;
    let text = "0123456789abcdef".repeat(64 << 10 >> 4);
    let mut expected = String::new();
    for _ in 0..8 {
        client.data(stdin, text.as_bytes(), false).await;
        expected.push_str(&text);
        // The test client reads only at the end, so more data could fill all buffers and block.
        if expected.len() > 256 << 10 {
            break;
        }
    }
    client.data(stdin, b"", true).await;
    let texts = client.read(&[stdout, error]).await;
    assert_eq!(texts[&stdout].len(), expected.len());
}

#[rstest::rstest]
#[case("exit+3", "NonZeroExitCode", "\"message\":\"3\"")]
#[case("nosuch", "NonZeroExitCode", "\"message\":\"127\"")]
#[tokio::test]
async fn exit_codes_are_reported(#[case] script: &str, #[case] reason: &str, #[case] cause: &str) {
    let path = format!("/web/exec?command=sh&command=-c&command={script}&stdout=true");
    let mut client = SpdyClient::upgrade(&kubelet(), &path, "v4.channel.k8s.io").await;
    let error = client.open(&[("streamtype", "error")]).await;
    client.open(&[("streamtype", "stdout")]).await;
    let texts = client.read(&[error]).await;
    assert!(texts[&error].contains(reason) && texts[&error].contains(cause), "{texts:?}");
}

#[tokio::test]
async fn missing_programs_are_reported_as_by_a_container_runtime() {
    let mut client =
        SpdyClient::upgrade(&kubelet(), "/web/exec?command=nginx-debug&stdout=true", "v4.channel.k8s.io").await;
    let error = client.open(&[("streamtype", "error")]).await;
    client.open(&[("streamtype", "stdout")]).await;
    let texts = client.read(&[error]).await;
    assert!(
        texts[&error].contains(r#"exec: \"nginx-debug\": executable file not found in $PATH: unknown"#),
        "{texts:?}"
    );
}

async fn websocket(
    kubelet: &Arc<Kubelet>,
    path: &str,
    protocol: &str,
) -> tokio_tungstenite::WebSocketStream<DuplexStream> {
    let mut request = format!("ws://x{path}").into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    let (socket, response) = tokio_tungstenite::client_async(request, connect(kubelet)).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
    socket
}

/// Collects the text of each channel until the socket closes.
async fn read_channels<S>(socket: &mut S) -> BTreeMap<u8, String>
where
    S: futures::Stream<Item = Result<Message, tokio_tungstenite::tungstenite::Error>> + Unpin,
{
    let mut texts: BTreeMap<u8, String> = BTreeMap::new();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            texts.entry(bytes[0]).or_default().push_str(std::str::from_utf8(&bytes[1..]).unwrap());
        }
    }
    texts
}

#[tokio::test]
async fn exec_over_websocket_v5_closes_stdin() {
    let mut socket =
        websocket(&kubelet(), "/web/exec?command=cat&stdin=true&stdout=true&stderr=true", "v5.channel.k8s.io").await;
    socket.send(Message::binary(b"\0typed".to_vec())).await.unwrap();
    socket.send(Message::binary(b"\xff\0".to_vec())).await.unwrap();
    let texts = read_channels(&mut socket).await;
    assert_eq!(texts[&1], "typed");
    assert_eq!(texts[&3], r#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test]
async fn terminal_supports_echo_editing_and_interrupt() {
    let mut socket =
        websocket(&kubelet(), "/web/exec?command=sh&stdin=true&stdout=true&tty=true", "v5.channel.k8s.io").await;
    socket.send(Message::binary(b"\x04{\"Width\":100,\"Height\":40}".to_vec())).await.unwrap();
    for keys in ["ecko\x7f\x7fho hi\r", "sleep 1000\r", "\x03", "\x15exit 5\r"] {
        let mut message = vec![0];
        message.extend_from_slice(keys.as_bytes());
        socket.send(Message::binary(message)).await.unwrap();
        // Each line is answered by a prompt, or by nothing while its command runs.
        if keys.starts_with("ecko") || keys == "\x03" {
            let mut seen = String::new();
            while !seen.ends_with("web:/ # ") || (keys.starts_with("ecko") && !seen.contains("\r\nhi\r\n")) {
                let Some(Ok(Message::Binary(bytes))) = socket.next().await else { panic!("closed after {seen}") };
                seen.push_str(std::str::from_utf8(&bytes[1..]).unwrap());
            }
        }
        if keys.starts_with("sleep") {
            let mut seen = String::new();
            while !seen.contains("sleep 1000\r\n") {
                let Some(Ok(Message::Binary(bytes))) = socket.next().await else { panic!("closed after {seen}") };
                seen.push_str(std::str::from_utf8(&bytes[1..]).unwrap());
            }
        }
    }
    assert!(read_channels(&mut socket).await[&3].contains(r#""message":"5""#));
}

const HTTP: &[u8] = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn port_forward_over_spdy_connects_or_reports_refusal() {
    let mut client = SpdyClient::upgrade(&kubelet(), "/web/portforward", "portforward.k8s.io").await;
    for (request, port, expected) in [("0", "80", "Hello from pod default/web"), ("1", "81", "")] {
        let error = client.open(&[("streamtype", "error"), ("port", port), ("requestid", request)]).await;
        let data = client.open(&[("streamtype", "data"), ("port", port), ("requestid", request)]).await;
        client.data(error, b"", true).await;
        if port == "80" {
            client.data(data, HTTP, false).await;
        }
        let texts = client.read(&[data, error]).await;
        assert!(texts[&data].contains(expected), "{texts:?}");
        assert_eq!(texts[&error].contains("connection refused"), port == "81", "{texts:?}");
    }
}

/// Timeout of the tests below, in place of seconds or hours.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

#[rstest::rstest]
#[case("error", "(request=7) timed out waiting for streams")]
#[case("data", "")]
#[tokio::test]
async fn unpaired_streams_are_reset_after_the_timeout(#[case] kind: &str, #[case] expected: &str) {
    let kubelet = kubelet_with(StreamTimeouts { stream_creation: SHORT_TIMEOUT, ..StreamTimeouts::default() });
    let mut client = SpdyClient::upgrade(&kubelet, "/web/portforward", "portforward.k8s.io").await;
    let unpaired = client.open(&[("streamtype", kind), ("port", "80"), ("requestid", "7")]).await;
    let mut text = Vec::new();
    loop {
        match client.reader.next().await.unwrap().unwrap() {
            Frame::Data { stream, data, .. } if stream == unpaired => text.extend_from_slice(&data),
            Frame::RstStream { stream, .. } if stream == unpaired => break,
            _ => {}
        }
    }
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    // The connection remains usable.
    let error = client.open(&[("streamtype", "error"), ("port", "80"), ("requestid", "8")]).await;
    let data = client.open(&[("streamtype", "data"), ("port", "80"), ("requestid", "8")]).await;
    client.data(data, HTTP, false).await;
    assert!(client.read(&[data, error]).await[&data].contains("Hello from pod default/web"));
}

#[rstest::rstest]
#[case::exec("/web/exec?command=cat&stdin=true&stdout=true", "v4.channel.k8s.io")]
#[case::port_forward("/web/portforward", "portforward.k8s.io")]
#[tokio::test]
async fn idle_spdy_sessions_end(#[case] path: &str, #[case] protocol: &str) {
    let kubelet = kubelet_with(StreamTimeouts { idle: SHORT_TIMEOUT, ..StreamTimeouts::default() });
    let mut client = SpdyClient::upgrade(&kubelet, path, protocol).await;
    assert!(client.reader.next().await.unwrap().is_none(), "the connection is closed");
    kubelet.sessions.close();
    kubelet.sessions.wait().await;
}

#[tokio::test]
async fn idle_websockets_end_and_active_ones_continue() {
    let kubelet = kubelet_with(StreamTimeouts { idle: SHORT_TIMEOUT, ..StreamTimeouts::default() });
    let path = "/web/exec?command=cat&stdin=true&stdout=true";
    let mut idle = websocket(&kubelet, path, "v5.channel.k8s.io").await;
    let mut active = websocket(&kubelet, path, "v5.channel.k8s.io").await;
    let start = tokio::time::Instant::now();
    while start.elapsed() < 3 * SHORT_TIMEOUT {
        active.send(Message::binary(b"\0x".to_vec())).await.unwrap();
        // Empty messages open the channels.
        while active.next().await.unwrap().unwrap() != Message::binary(b"\x01x".to_vec()) {}
    }
    let received = read_channels(&mut idle).await;
    assert!(received.values().all(String::is_empty), "{received:?}");
    drop(active);
    kubelet.sessions.close();
    kubelet.sessions.wait().await;
}

#[tokio::test]
async fn port_forward_works_over_websocket_channels() {
    let mut socket = websocket(&kubelet(), "/web/portforward?ports=80", "v4.channel.k8s.io").await;
    for channel in [0, 1] {
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary(vec![channel, 80, 0]));
    }
    let mut message = vec![0];
    message.extend_from_slice(HTTP);
    socket.send(Message::binary(message)).await.unwrap();
    assert!(read_channels(&mut socket).await[&0].contains("request: GET /hello"));
}

#[tokio::test]
async fn port_forward_works_with_spdy_inside_a_websocket() {
    let mut socket = websocket(&kubelet(), "/web/portforward", portforward::TUNNEL_PROTOCOL).await;
    let mut compressor = Compressor::new().unwrap();
    let headers = |kind: &str| -> Headers {
        [("streamtype", kind), ("port", "80"), ("requestid", "0")]
            .map(|(k, v)| (k.to_owned(), vec![v.to_owned()]))
            .into()
    };
    for frame in [
        Frame::SynStream { stream: 1, headers: headers("error"), fin: false, unidirectional: false },
        Frame::SynStream { stream: 3, headers: headers("data"), fin: false, unidirectional: false },
        Frame::Data { stream: 3, data: Bytes::from_static(HTTP), fin: false },
    ] {
        let bytes = frame.encode(&mut compressor).unwrap();
        socket.send(Message::binary(bytes.freeze())).await.unwrap();
    }
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("Hello from pod default/web on node node-1") {
        let Some(Ok(Message::Binary(bytes))) = socket.next().await else { panic!("closed early") };
        seen.extend_from_slice(&bytes);
    }
}

#[rstest::rstest]
#[case::generated("/web/log?tailLines=2", 200, "request 5: GET /healthz 200 13ms\nrequest 6: GET /healthz 200 20ms\n")]
#[case::byte_limit("/web/log?limitBytes=12", 200, "web starting")]
#[case::replayed("/job/log", 200, "line 1\nline 2\nline 3\n")]
#[case::timestamps("/job/log?timestamps=true&sinceSeconds=50&tailLines=1", 200, "2026-01-01T00:00:40.00")]
#[case::previous("/job/log?previous=true&tailLines=1", 200, "line 2\n")]
#[case::ambiguous_container("/two/log", 400, "a container name must be specified for pod two, choose one of: [a b]")]
#[case::unknown_container("/two/log?container=c", 400, "container c is not valid for pod two")]
#[case::waiting(
    "/two/log?container=b",
    400,
    r#"container \"b\" in pod \"two\" is waiting to start: ContainerCreating"#
)]
#[case::no_previous(
    "/two/log?container=b&previous=true",
    400,
    r#"previous terminated container \"b\" in pod \"two\" not found"#
)]
#[case::missing_pod("/none/log", 404, r#"pods \"none\" not found"#)]
#[case::negative_tail("/web/log?tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0")]
#[case::not_running("/two/exec?command=ls&stdout=true&container=b", 500, "container not found (\"b\")")]
#[case::no_streams("/web/exec?command=ls", 400, "you must specify at least 1 of stdin, stdout, stderr")]
#[case::no_upgrade("/web/exec?command=ls&stdout=true", 400, "Upgrade request required")]
#[tokio::test]
async fn requests_without_upgrade_are_answered(#[case] path: &str, #[case] status: u16, #[case] expected: &str) {
    let (code, body) = get(&kubelet(), path).await;
    assert_eq!(code, status, "{body}");
    assert!(body.contains(expected), "{body}");
}

#[tokio::test]
async fn exec_output_to_the_log_is_logged() {
    let kubelet = kubelet();
    let path = "/web/exec?command=sh&command=-c&command=echo+from+exec+%3E/proc/1/fd/1&stdout=true";
    let mut client = SpdyClient::upgrade(&kubelet, path, "v4.channel.k8s.io").await;
    let error = client.open(&[("streamtype", "error")]).await;
    client.open(&[("streamtype", "stdout")]).await;
    client.read(&[error]).await;
    assert_eq!(get(&kubelet, "/web/log?tailLines=1").await.1, "from exec\n");
    kubelet.stop().await;
}

#[rstest::rstest]
#[case("web", true)]
#[case("web:80", true)]
#[case("web:http", true)]
#[case("http:web:80", true)]
#[case("web:81", false)]
#[tokio::test]
async fn pods_are_proxied_by_name_and_port(#[case] target: &str, #[case] is_reachable: bool) {
    let request = Request::get("/x").body(Body::empty()).unwrap();
    let response = kubelet().proxy_pod("default", target, request).await;
    assert_eq!(
        response.map_err(|e| e.code).map(|r| r.status().as_u16()),
        if is_reachable { Ok(200) } else { Err(503) }
    );
}

#[tokio::test]
async fn service_proxy_uses_a_ready_pod() {
    let request = || Request::get("/x").body(Body::empty()).unwrap();
    assert!(kubelet().proxy_service("default", "front:8080", request()).await.is_ok());
    assert_eq!(kubelet().proxy_service("default", "front:9", request()).await.unwrap_err().code, 503);
}
