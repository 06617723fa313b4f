//! A member that responds correctly except as scripted: requests for its ConfigMaps are passed to a script, which
//! may respond. It has no other objects.

use crate::members::{TOKEN, create};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use futures::StreamExt;
use futures::stream;
use kube::Client;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A request of a collector.
#[derive(Debug, Clone)]
pub struct CollectorRequest {
    pub watch: bool,
    /// The watch requests initial events.
    pub initial: bool,
    pub limit: usize,
    /// `continue` of a list.
    pub token: String,
    /// `resourceVersion` from which a watch starts.
    pub from: String,
    /// `timeoutSeconds` of a watch.
    pub seconds: u64,
    /// Number of earlier requests that were passed to the script.
    pub nth: usize,
}

/// A scripted response.
pub enum Reply {
    /// A status code and a JSON body.
    Json(u16, Value),
    /// A successful response with this content type and body.
    Text(&'static str, String),
    /// Lines of a watch, and how the stream ends.
    Lines(Vec<String>, StreamEnd),
    /// A stream that repeats the text until the client closes it.
    Endless(String),
    /// An error status with a `Retry-After` of an hour.
    RetryLater(u16),
    /// No response; the connection stays open.
    NoResponse,
}

pub enum StreamEnd {
    Close,
    /// Sends nothing more until the client closes.
    Hold,
    /// Interrupts the connection.
    Cut,
}

/// Chooses the response to a request; None for the correct one.
pub type Script = fn(&CollectorRequest) -> Option<Reply>;

#[derive(Debug, Clone)]
pub struct MemberState {
    pub version: u64,
    pub objects: Vec<Value>,
}

pub struct ScriptedMember {
    pub cluster: String,
    shared: Arc<Shared>,
    port: u16,
    serving: tokio::task::JoinHandle<()>,
}

struct Shared {
    state: Mutex<MemberState>,
    script: Mutex<Script>,
    scripted_requests: AtomicUsize,
    close_watches: watch::Sender<()>,
}

impl Drop for ScriptedMember {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ScriptedMember {
    pub async fn start(cluster: &str, state: MemberState, script: Script) -> Self {
        let (state, script) = (Mutex::new(state), Mutex::new(script));
        let shared =
            Shared { state, script, scripted_requests: AtomicUsize::new(0), close_watches: watch::Sender::new(()) };
        let shared = Arc::new(shared);
        let router = Router::new().fallback(handle_request).with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { cluster: cluster.to_owned(), shared, port, serving }
    }

    pub async fn register(&self, control_plane: &Client) {
        let cluster = &self.cluster;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster",
            "name": cluster}, "stringData": {"token": TOKEN}});
        create(control_plane, secret).await;
        let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": cluster}, "spec": {"syncMode": "Push",
            "apiEndpoint": format!("http://127.0.0.1:{}", self.port),
            "secretRef": {"namespace": "karmada-cluster", "name": cluster}}});
        create(control_plane, cluster).await;
    }

    /// Applies a script, and a state unless it is None, from now on. Open watches are closed, so that new requests are made.
    pub fn set_script(&self, state: Option<MemberState>, script: Script) {
        if let Some(state) = state {
            *self.shared.state.lock().unwrap() = state;
        }
        *self.shared.script.lock().unwrap() = script;
        self.shared.scripted_requests.store(0, Ordering::SeqCst);
        self.shared.close_watches.send_replace(());
    }
}

async fn handle_request(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
    http_request: Request,
) -> Response {
    let text = |name: &str| query.get(name).cloned().unwrap_or_default();
    let mut request = CollectorRequest {
        watch: text("watch") == "true",
        initial: text("sendInitialEvents") == "true",
        limit: text("limit").parse().unwrap_or(usize::MAX),
        token: text("continue"),
        from: text("resourceVersion"),
        seconds: text("timeoutSeconds").parse().unwrap_or(600),
        nth: 0,
    };
    let path = http_request.uri().path();
    if path.ends_with("/configmaps") {
        let script = *shared.script.lock().unwrap();
        request.nth = shared.scripted_requests.fetch_add(1, Ordering::SeqCst);
        return match script(&request) {
            Some(Reply::NoResponse) => std::future::pending().await,
            Some(reply) => respond(reply, &shared, None),
            None => {
                let state = shared.state.lock().unwrap().clone();
                respond(correct_reply(&state, &request), &shared, Some(request.seconds))
            }
        };
    }
    if path == "/api" || path == "/apis" || path == "/readyz" {
        return respond(Reply::Json(404, json!({"kind": "Status", "code": 404})), &shared, None);
    }
    respond(correct_reply(&MemberState { version: 1, objects: Vec::new() }, &request), &shared, Some(request.seconds))
}

fn correct_reply(state: &MemberState, request: &CollectorRequest) -> Reply {
    let MemberState { version, objects } = state;
    if request.watch {
        if request.initial {
            let mut lines: Vec<String> = objects.iter().map(|object| event("ADDED", object)).collect();
            lines.push(bookmark(*version, true));
            return Reply::Lines(lines, StreamEnd::Hold);
        }
        return match request.from.parse::<u64>().unwrap() {
            from if from < *version => gone(),
            // A server sends nothing before a watch's start.
            from if from > *version => Reply::Lines(Vec::new(), StreamEnd::Hold),
            _ => Reply::Lines(vec![bookmark(*version, false)], StreamEnd::Hold),
        };
    }
    // Each page shows the current objects; a real server would use one snapshot.
    let start: usize = request.token.parse().unwrap_or(0).min(objects.len());
    let end = start.saturating_add(request.limit).min(objects.len());
    let token = if end < objects.len() { end.to_string() } else { String::new() };
    list("ConfigMapList", *version, &token, &objects[start..end])
}

fn respond(reply: Reply, shared: &Shared, seconds: Option<u64>) -> Response {
    let json = |status: u16| Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    let line = |text: String| Ok::<_, std::io::Error>(Bytes::from(text));
    let mut closed = shared.close_watches.subscribe();
    match reply {
        Reply::Json(status, value) => json(status).body(Body::from(value.to_string())),
        Reply::Text(kind, text) => Response::builder().header(CONTENT_TYPE, kind).body(Body::from(text)),
        Reply::RetryLater(status) => {
            let status_body = json!({"kind": "Status", "code": status, "message": "too busy"});
            json(status).header("Retry-After", "3600").body(Body::from(status_body.to_string()))
        }
        Reply::Lines(lines, end) => {
            let lines = stream::iter(lines).map(line);
            let rest = stream::once(async move {
                match end {
                    StreamEnd::Close => {}
                    StreamEnd::Hold => {
                        let limit = Duration::from_secs(seconds.unwrap_or(3600));
                        drop(tokio::time::timeout(limit, closed.changed()).await);
                    }
                    StreamEnd::Cut => return Err(std::io::Error::other("cut")),
                }
                Ok(Bytes::new())
            });
            json(200).body(Body::from_stream(lines.chain(rest)))
        }
        Reply::Endless(text) => {
            let interval = tokio::time::interval(Duration::from_millis(5));
            let again = stream::unfold((interval, text), async |(mut interval, text)| {
                interval.tick().await;
                Some((Ok::<_, std::io::Error>(Bytes::from(text.clone())), (interval, text)))
            });
            json(200).body(Body::from_stream(again))
        }
        Reply::NoResponse => unreachable!("no response is sent"),
    }
    .unwrap()
}

pub fn list(kind: &str, version: u64, token: &str, items: &[Value]) -> Reply {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
    Reply::Json(200, json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}))
}

pub fn gone() -> Reply {
    Reply::Json(410, status(410, "too old resource version"))
}

pub fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "message": message})
}

pub fn event(event_type: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": event_type, "object": object}))
}

pub fn bookmark(version: u64, ends_initial_events: bool) -> String {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if ends_initial_events {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    event("BOOKMARK", &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}))
}

/// A ConfigMap at a version.
pub fn object(name: &str, version: u64) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": name,
        "uid": name, "resourceVersion": version.to_string()}, "data": {"at": version.to_string()}})
}
