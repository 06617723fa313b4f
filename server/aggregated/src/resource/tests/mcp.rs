//! The Model Context Protocol over HTTP: status codes, limits, and the requests that a tool sends.

use crowsnest_process::serving;
use http::header;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use super::*;

/// Duration of a unit of work.
const UNIT: Duration = Duration::from_millis(10);
/// Maximum number of units that a request of a tool works after its client disconnects: a second of work. Work is counted, and
/// not time, because a busy machine slows down both the work and the detection of the disconnection.
const MAX_UNITS: usize = 100;

/// Progress of a request that a tool sends.
#[derive(Debug, PartialEq, Eq)]
enum ToolRequestProgress {
    /// A unit of work is done.
    Unit,
    Stopped,
}

/// Reports [`ToolRequestProgress::Stopped`] when it is dropped.
struct StopSignal(UnboundedSender<ToolRequestProgress>);

impl Drop for StopSignal {
    fn drop(&mut self) {
        self.0.send(ToolRequestProgress::Stopped).ok();
    }
}

/// A control plane that allows everything except searches, whose access reviews never finish.
fn busy_control_plane(progress: UnboundedSender<ToolRequestProgress>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<KubeBody>| {
        let progress = progress.clone();
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            let mut review: Value = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
            if review["spec"]["resourceAttributes"]["resource"] == "query" {
                let signal = StopSignal(progress);
                while signal.0.send(ToolRequestProgress::Unit).is_ok() {
                    tokio::time::sleep(UNIT).await;
                }
            }
            review["status"] = json!({"allowed": true});
            Ok::<_, kube::Error>(http::Response::new(KubeBody::from(review.to_string().into_bytes())))
        }
    });
    kube::Client::new(service, "default")
}

/// Number of units of work until the request stops, but at most one more than [`MAX_UNITS`].
async fn count_units_until_stopped(progress: &mut UnboundedReceiver<ToolRequestProgress>) -> usize {
    let mut units = 0;
    while units <= MAX_UNITS && progress.recv().await == Some(ToolRequestProgress::Unit) {
        units += 1;
    }
    units
}

#[tokio::test]
async fn a_client_that_disconnects_stops_the_request_of_its_call() {
    let (sender, mut progress) = unbounded_channel();
    let routes = router(aggregated(&REGISTRY, busy_control_plane(sender))).layer(axum::Extension(alice()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = tokio::spawn(serving::serve(listener, None, routes, stop.clone()));
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search"}}).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        message.len()
    );
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(format!("{head}{message}").as_bytes()).await.unwrap();
    assert_eq!(progress.recv().await, Some(ToolRequestProgress::Unit));
    drop(connection);
    assert!(count_units_until_stopped(&mut progress).await <= MAX_UNITS, "the request still works");
    stop.cancel();
    server.await.unwrap();
}

/// A message that states its version.
fn modern_message(version: &str) -> String {
    let meta =
        json!({"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}).to_string()
}

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
const MAX_BODY_BYTES: usize = crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;

#[rstest]
#[case::message("POST", &[], PING.to_owned(), 200, "\"result\":{}")]
#[case::get("GET", &[], String::new(), 405, "MethodNotAllowed")]
#[case::delete("DELETE", &[], String::new(), 405, "MethodNotAllowed")]
#[case::another_origin("POST", &[("origin", "https://evil.example")], PING.to_owned(), 403, "other origins")]
#[case::its_own_origin("POST", &[("origin", "https://crowsnest.example")], PING.to_owned(), 200, "\"result\":{}")]
#[case::version_in_header_only("POST", &[("mcp-protocol-version", "2026-07-28")], PING.to_owned(), 400, "-32602")]
#[case::header_mismatch("POST", &[("mcp-protocol-version", "2025-11-25")], modern_message("2026-07-28"), 400, "-32020")]
#[case::unknown_version("POST", &[("mcp-protocol-version", "1999-01-01")], modern_message("1999-01-01"), 400, "\"supported\":[\"2026-07-28\"")]
#[case::largest("POST", &[], " ".repeat(MAX_BODY_BYTES), 400, "-32700")]
#[case::larger("POST", &[], " ".repeat(MAX_BODY_BYTES + 1), 413, "RequestEntityTooLarge")]
#[case::much_larger("POST", &[], " ".repeat((4 << 20) + 1), 413, "RequestEntityTooLarge")]
#[tokio::test]
async fn messages_have_the_specified_status(
    #[case] method: &str,
    #[case] headers: &[(&str, &str)],
    #[case] body: String,
    #[case] code: u16,
    #[case] expected: &str,
) {
    let routes = router(aggregated(&REGISTRY, control_plane(&Reviews::default())));
    let request = Request::builder().method(method).uri("/mcp").header(header::HOST, "crowsnest.example");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = routes.oneshot(request.extension(alice()).body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert_eq!(status, code, "{text}");
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn messages_of_a_user_are_rate_limited() {
    let routes = router(aggregated(&REGISTRY, control_plane(&Reviews::default())));
    let ping = || {
        let body = Body::from(PING);
        Request::post("/mcp").header(header::HOST, "crowsnest.example").extension(alice()).body(body).unwrap()
    };
    let mut refused = None;
    // More messages than the rate permits in the time that it takes to send them.
    for _ in 0..10_000 {
        let response = routes.clone().oneshot(ping()).await.unwrap();
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            refused = Some(response);
            break;
        }
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(refused.expect("a refused message").headers()[header::RETRY_AFTER], "1");
}
