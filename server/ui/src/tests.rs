//! Tests of the UI's listener with requests of browsers and other clients. The control plane behind it records its
//! requests.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::*;

const TOKEN: &str = "a-good-bearer-token";
const KEY: &str = "a-key-of-more-than-thirty-two-characters";
const HOST: &str = "127.0.0.1:7080";

/// Requests that a control plane received.
type ReceivedRequests = Arc<Mutex<Vec<(Method, String, HeaderMap)>>>;

/// A control plane that accepts one token and otherwise sends hostile responses.
async fn control_plane(
    State(received): State<ReceivedRequests>,
    request: axum::extract::Request,
) -> axum::response::Response {
    let (parts, _) = request.into_parts();
    let is_authenticated =
        parts.headers.get(header::AUTHORIZATION).is_some_and(|value| value == &format!("Bearer {TOKEN}"));
    received.lock().push((parts.method, parts.uri.to_string(), parts.headers));
    if !is_authenticated {
        let status = json!({"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        return (StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic realm=\"x\"")], axum::Json(status))
            .into_response();
    }
    if parts.uri.path().ends_with("/selfsubjectreviews") {
        let user = json!({"username": "alice", "groups": ["crew"]});
        return axum::Json(json!({"metadata": {}, "status": {"userInfo": user}})).into_response();
    }
    let hostile_headers = [
        ("content-type", "text/html"),
        ("set-cookie", "crowsnest-session=stolen; Path=/"),
        ("clear-site-data", "\"*\""),
        ("content-security-policy", "default-src *"),
        ("strict-transport-security", "max-age=31536000"),
        ("refresh", "0; url=https://evil.example"),
        ("location", "https://evil.example"),
        ("service-worker-allowed", "/"),
        ("access-control-allow-origin", "https://evil.example"),
        ("access-control-allow-credentials", "true"),
        ("link", "<https://evil.example/a.css>; rel=stylesheet"),
        ("nel", "{}"),
        ("report-to", "{}"),
        ("x-frame-options", "ALLOWALL"),
        ("x-content-type-options", "none"),
        ("warning", "299 - \"kept\""),
        ("etag", "\"kept\""),
        ("audit-id", "kept"),
    ];
    (hostile_headers, "<script>alert(1)</script>").into_response()
}

struct TestUi {
    router: Router,
    received: ReceivedRequests,
    token_sessions: TokenSessions,
}

impl TestUi {
    async fn start() -> Self {
        let received = ReceivedRequests::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().fallback(control_plane).with_state(Arc::clone(&received));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let connections = UpgradedConnections { tasks: TaskTracker::new(), stop: CancellationToken::new() };
        let ui = Ui::new(config, Seal::new(KEY).unwrap(), false, &["fleet.example".to_owned()], connections).unwrap();
        let token_sessions = ui.token_sessions.clone();
        Self { router: router(ui), received, token_sessions }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", HOST);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
    }

    /// Signs in; returns the cookie of the new session.
    async fn sign_in(&self) -> String {
        let (status, headers, body) =
            self.send("POST", "/ui/session", PAGE_HEADERS, &json!({"token": TOKEN}).to_string()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let user: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(user["user"], "alice");
        cookie(&headers).unwrap()
    }

    fn request_count(&self) -> usize {
        self.received.lock().len()
    }
}

/// Headers of the UI's own page.
const PAGE_HEADERS: &[(&str, &str)] = &[
    ("x-crowsnest-client", "web"),
    ("content-type", "application/json"),
    ("origin", "http://127.0.0.1:7080"),
    ("sec-fetch-site", "same-origin"),
];

/// [`PAGE_HEADERS`] and a cookie.
fn headers_with(cookie: &str) -> Vec<(&str, &str)> {
    [PAGE_HEADERS, &[("cookie", cookie)]].concat()
}

/// Name and value of the single cookie that a response sets and does not delete.
fn cookie(headers: &HeaderMap) -> Option<String> {
    let set = headers.get_all(header::SET_COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut kept = set.filter(|cookie| !cookie.contains("Max-Age=0"));
    let pair = kept.next()?.split(';').next()?.to_owned();
    kept.next().is_none().then_some(pair)
}

#[tokio::test]
async fn responses_of_members_are_sandboxed() {
    let ui = TestUi::start().await;
    let cookie = ui.sign_in().await;
    let path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/a/services/s/proxy/";
    let (status, headers, body) = ui.send("GET", path, &headers_with(&cookie), "").await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "<script>alert(1)</script>"));
    for kept in ["warning", "etag", "audit-id"] {
        assert!(headers[kept].to_str().unwrap().contains("kept"), "{headers:?}");
    }
    let security_headers = [
        ("content-security-policy", FORWARDED_POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("vary", "cookie"),
    ];
    for (name, value) in security_headers {
        assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), [value], "{name}");
    }
    for dropped in [
        "set-cookie",
        "clear-site-data",
        "strict-transport-security",
        "refresh",
        "location",
        "service-worker-allowed",
        "access-control-allow-origin",
        "access-control-allow-credentials",
        "link",
        "nel",
        "report-to",
    ] {
        assert!(!headers.contains_key(dropped), "{dropped}");
    }
}

#[tokio::test]
async fn sessions_use_their_own_token_only() {
    let ui = TestUi::start().await;
    let cookie = ui.sign_in().await;
    assert!(!cookie.contains(TOKEN), "{cookie}");
    let more = [
        ("authorization", "Bearer another"),
        ("impersonate-user", "root"),
        ("x-remote-user", "root"),
        ("connection", "authorization"),
        ("x-crowsnest-audit-record", "1"),
    ];
    let headers = [&headers_with(&cookie)[..], &more].concat();
    ui.send("GET", "/api/v1/pods?limit=1", &headers, "").await;
    let (_, path, headers) = ui.received.lock().pop().unwrap();
    assert_eq!(path, "/api/v1/pods?limit=1");
    assert_eq!(headers.get_all("authorization").iter().collect::<Vec<_>>(), [&format!("Bearer {TOKEN}")]);
    for absent in ["cookie", "impersonate-user", "x-remote-user", "x-crowsnest-audit-record", "origin"] {
        assert!(!headers.contains_key(absent), "{absent}: {headers:?}");
    }
}

#[tokio::test]
async fn copied_cookies_end_with_the_session() {
    let ui = TestUi::start().await;
    let cookie = ui.sign_in().await;
    let (status, headers, _) = ui.send("DELETE", "/ui/session", &headers_with(&cookie), "").await;
    assert_eq!(status, StatusCode::OK);
    assert!(headers.get_all("set-cookie").iter().all(|set| set.to_str().unwrap().contains("Max-Age=0")), "{headers:?}");
    let before = ui.request_count();
    assert_eq!(ui.send("GET", "/api/v1/pods", &headers_with(&cookie), "").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ui.request_count(), before);
}

/// A new sign-in ends the browser's previous session, and never reuses an existing cookie value.
#[tokio::test]
async fn signing_in_begins_a_new_session() {
    let ui = TestUi::start().await;
    let first = ui.sign_in().await;
    let body = json!({"token": TOKEN}).to_string();
    let (_, headers, _) = ui.send("POST", "/ui/session", &headers_with(&first), &body).await;
    let second = cookie(&headers).unwrap();
    assert_ne!(first, second);
    assert_eq!(ui.send("GET", "/ui/session", &headers_with(&first), "").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ui.send("GET", "/ui/session", &headers_with(&second), "").await.0, StatusCode::OK);
}

#[tokio::test]
async fn preview_opens_no_session() {
    let ui = TestUi::start().await;
    let (status, headers, body) =
        ui.send("POST", "/ui/sign-in", PAGE_HEADERS, &json!({"token": TOKEN}).to_string()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("alice") && !headers.contains_key("set-cookie"), "{headers:?} {body}");
    let (status, headers, _) = ui.send("POST", "/ui/sign-in", PAGE_HEADERS, r#"{"token":"unknown-token"}"#).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(!headers.contains_key("www-authenticate"), "{headers:?}");
}

/// Many forged cookies cause no request to the control plane and allocate no lasting state.
#[tokio::test]
async fn forged_cookies_are_rejected_locally() {
    let ui = TestUi::start().await;
    let valid = ui.sign_in().await;
    let count_before = ui.request_count();
    ui.send("GET", "/api/v1/secrets", &headers_with(&valid), "").await;
    let requests_per_call = ui.request_count() - count_before;
    assert!(requests_per_call > 0);
    for n in 0..2_000 {
        let forged = match n % 4 {
            0 => format!("crowsnest-session=made-up-{n}"),
            1 => format!("crowsnest-identity=made-up-{n}"),
            2 => format!("crowsnest-session={TOKEN}{n}"),
            _ => format!("{}{}", &valid[..valid.len() - 4], 1000 + n),
        };
        let (status, _, _) = ui.send("GET", "/api/v1/secrets", &headers_with(&forged), "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{forged}");
        ui.send("DELETE", "/ui/session", &headers_with(&forged), "").await;
    }
    // The control plane receives only the requests of the valid session.
    ui.send("GET", "/api/v1/secrets", &headers_with(&valid), "").await;
    assert_eq!(ui.request_count(), count_before + 2 * requests_per_call);
    assert!(
        ui.token_sessions.token(&HeaderMap::from_iter([(header::COOKIE, valid.parse().unwrap())])).unwrap().is_some()
    );
}

#[rstest]
#[case::own_page("POST", "/ui/session", &[], StatusCode::OK)]
#[case::by_the_proxys_name("POST", "/ui/session", &[("host", "fleet.example"), ("origin", "https://fleet.example")], StatusCode::OK)]
#[case::a_form("POST", "/ui/session", &[("x-crowsnest-client", "")], StatusCode::FORBIDDEN)]
#[case::another_site("POST", "/ui/session", &[("sec-fetch-site", "cross-site")], StatusCode::FORBIDDEN)]
#[case::another_site_signs_out("DELETE", "/ui/session", &[("sec-fetch-site", "cross-site")], StatusCode::FORBIDDEN)]
#[case::another_port("POST", "/ui/session", &[("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "")], StatusCode::FORBIDDEN)]
#[case::another_port_previews("POST", "/ui/sign-in", &[("origin", "http://127.0.0.1:8080")], StatusCode::FORBIDDEN)]
#[case::a_file("POST", "/ui/session", &[("origin", "null")], StatusCode::FORBIDDEN)]
#[case::rebound("POST", "/ui/session", &[("host", "evil.example:7080"), ("origin", "http://evil.example:7080")], StatusCode::MISDIRECTED_REQUEST)]
#[case::rebound_page("GET", "/", &[("host", "evil.example:7080")], StatusCode::MISDIRECTED_REQUEST)]
#[case::rebound_api("GET", "/api/v1/pods", &[("host", "evil.example:7080")], StatusCode::MISDIRECTED_REQUEST)]
#[case::preflight("OPTIONS", "/api/v1/pods", &[("x-crowsnest-client", ""), ("origin", "https://evil.example"), ("access-control-request-method", "GET")], StatusCode::FORBIDDEN)]
#[tokio::test]
async fn pages_of_other_origins_are_rejected(
    #[case] method: &str,
    #[case] path: &str,
    #[case] changed: &[(&str, &str)],
    #[case] expected: StatusCode,
) {
    let ui = TestUi::start().await;
    let mut headers: Vec<_> =
        PAGE_HEADERS.iter().filter(|(name, _)| !changed.iter().any(|(other, _)| name == other)).copied().collect();
    headers.extend(changed.iter().filter(|(_, value)| !value.is_empty()));
    let (status, response_headers, body) = ui.send(method, path, &headers, &json!({"token": TOKEN}).to_string()).await;
    assert_eq!(status, expected, "{body}");
    assert_eq!(cookie(&response_headers).is_some(), expected == StatusCode::OK, "{response_headers:?}");
    assert!(!response_headers.contains_key("access-control-allow-origin"), "{response_headers:?}");
    assert_eq!(ui.request_count() > 0, expected == StatusCode::OK);
}

/// A page of another origin cannot open a WebSocket with the user's cookie.
#[rstest]
#[case::own_page("http://127.0.0.1:7080", false)]
#[case::another_site("https://evil.example", true)]
#[case::another_port("http://127.0.0.1:9090", true)]
#[case::a_file("null", true)]
#[tokio::test]
async fn websockets_require_the_same_origin(#[case] origin: &str, #[case] refused: bool) {
    let ui = TestUi::start().await;
    let cookie = ui.sign_in().await;
    let before = ui.request_count();
    let headers = [
        ("cookie", cookie.as_str()),
        ("origin", origin),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    ];
    let (status, _, _) = ui.send("GET", "/api/v1/namespaces/a/pods/p/exec?command=sh", &headers, "").await;
    assert_eq!(status == StatusCode::FORBIDDEN, refused, "{status}");
    assert_eq!(ui.request_count() == before, refused);
}

#[rstest]
#[case::token("POST", &[("authorization", "Bearer a-good-bearer-token")], "", StatusCode::OK)]
#[case::own_origin("POST", &[("authorization", "Bearer a-good-bearer-token"), ("origin", "http://127.0.0.1:7080")], "", StatusCode::OK)]
#[case::unknown_token("POST", &[("authorization", "Bearer unknown")], "", StatusCode::UNAUTHORIZED)]
#[case::no_token("POST", &[], "", StatusCode::UNAUTHORIZED)]
#[case::session("POST", PAGE_HEADERS, "session", StatusCode::UNAUTHORIZED)]
#[case::another_origin("POST", &[("authorization", "Bearer a-good-bearer-token"), ("origin", "https://evil.example")], "", StatusCode::FORBIDDEN)]
#[case::rebound("POST", &[("authorization", "Bearer a-good-bearer-token"), ("host", "evil.example")], "", StatusCode::MISDIRECTED_REQUEST)]
#[case::get("GET", &[("authorization", "Bearer a-good-bearer-token")], "", StatusCode::METHOD_NOT_ALLOWED)]
#[case::delete("DELETE", &[("authorization", "Bearer a-good-bearer-token")], "", StatusCode::METHOD_NOT_ALLOWED)]
#[tokio::test]
async fn assistants_use_their_own_token(
    #[case] method: &str,
    #[case] headers: &[(&str, &str)],
    #[case] session: &str,
    #[case] expected: StatusCode,
) {
    let ui = TestUi::start().await;
    let cookie = if session.is_empty() { String::new() } else { ui.sign_in().await };
    let before = ui.request_count();
    let more =
        [("cookie", cookie.as_str()), ("content-type", "application/json"), ("mcp-protocol-version", "2026-07-28")];
    let (status, response_headers, body) = ui.send(method, "/mcp", &[headers, &more].concat(), "{}").await;
    assert_eq!(status, expected, "{body}");
    assert_eq!(response_headers.contains_key("www-authenticate"), expected == StatusCode::UNAUTHORIZED);
    let is_forwarded = headers.iter().any(|(name, value)| *name == "authorization" && value.ends_with("unknown"));
    assert_eq!(ui.request_count() > before, expected == StatusCode::OK || is_forwarded);
    if expected == StatusCode::OK {
        let (_, path, headers) = ui.received.lock().pop().unwrap();
        assert_eq!((path.as_str(), &headers["mcp-protocol-version"]), (mcp::UPSTREAM, &"2026-07-28".parse().unwrap()));
        assert!(!headers.contains_key("cookie"));
    }
    assert_eq!(ui.send("GET", mcp::METADATA_PATH, &[], "").await.0, StatusCode::NOT_FOUND, "there is no issuer");
}

/// A token too large for a cookie stays in this process.
#[tokio::test]
async fn large_tokens_are_kept_in_the_process() {
    let sessions = TokenSessions::new(Seal::new(KEY).unwrap(), false);
    assert!(sessions.open(&"a".repeat(5_000), super::token_sessions::SessionRandom::new()).is_none());
}
