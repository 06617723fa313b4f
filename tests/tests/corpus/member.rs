//! A read-only API server of a member, with a self-signed certificate. It serves discovery, lists and watches of given
//! objects, and replays their changes one by one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use rustls::ServerConfig;
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A served kind.
#[derive(Debug, Clone)]
pub struct Resource {
    pub api_version: String,
    pub kind: String,
    pub plural: String,
    pub short_names: Vec<String>,
    pub namespaced: bool,
}

impl Resource {
    fn path(&self) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{}/{}", self.api_version, self.plural)
    }

    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    fn is_of(&self, object: &Value) -> bool {
        object["kind"] == self.kind.as_str() && object["apiVersion"] == self.api_version.as_str()
    }
}

/// A change of an object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Type of the watch event, such as `MODIFIED`.
    pub event_type: &'static str,
    pub object: Value,
}

/// A running API server. Stopped when dropped.
pub struct Member {
    state: Arc<MemberState>,
    pub port: u16,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

struct MemberState {
    resources: Vec<Resource>,
    initial_objects: Vec<Value>,
    /// All changes, in the order of their resourceVersions.
    changes: Vec<Change>,
    progress: watch::Sender<Progress>,
}

/// Changing part of a member's state.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Number of changes applied so far.
    applied: usize,
    /// True while lists and watches are served.
    is_serving: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Member {
    /// Starts the server with the initial objects. Changes are applied by [`Member::apply_next_change`].
    pub async fn start(resources: Vec<Resource>, initial_objects: Vec<Value>, changes: Vec<Change>) -> Result<Self> {
        let versions: Vec<u64> = changes.iter().map(|change| version(&change.object)).collect();
        let first = initial_objects.iter().map(version).max().context("the member has no objects")?;
        ensure!(versions.is_sorted_by(|a, b| a < b), "the changes are not in the order of their resourceVersions");
        ensure!(versions.first().is_none_or(|version| *version > first), "a change is older than an initial object");
        let progress = watch::Sender::new(Progress { applied: 0, is_serving: true });
        let state = Arc::new(MemberState { resources, initial_objects, changes, progress });
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let listener = TlsListener { listener, acceptor: acceptor()? };
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { state, port, task })
    }

    /// Applies the next change and returns it with its resource.
    pub fn apply_next_change(&self) -> Result<(&Change, &Resource)> {
        let applied = self.state.progress.borrow().applied;
        let change = self.state.changes.get(applied).context("all changes have been applied")?;
        let resource = self.state.resources.iter().find(|resource| resource.is_of(&change.object));
        self.state.progress.send_modify(|progress| progress.applied += 1);
        Ok((change, resource.context("the kind of the object is not served")?))
    }

    /// Stops serving lists and watches.
    pub fn stop_serving(&self) {
        self.state.progress.send_modify(|progress| progress.is_serving = false);
    }
}

/// TLS listener. The control plane sends tokens over TLS only.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

fn acceptor() -> Result<TlsAcceptor> {
    let certified_key = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(certified_key.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = tls.with_no_client_auth().with_single_cert(vec![certified_key.cert.der().clone()], key.into())?;
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

pub fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or_default()
}

async fn handle(
    State(state): State<Arc<MemberState>>,
    Query(query): Query<HashMap<String, String>>,
    request: Request,
) -> Response {
    let path = request.uri().path();
    let error_response = |status: StatusCode| {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
            "message": status.canonical_reason()});
        (status, axum::Json(body)).into_response()
    };
    if request.method() != Method::GET {
        return error_response(StatusCode::METHOD_NOT_ALLOWED);
    }
    match path {
        "/readyz" | "/livez" | "/healthz" => return "ok".into_response(),
        "/version" => return axum::Json(json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1"})).into_response(),
        "/api" | "/apis" => return axum::Json(state.discovery(path)).into_response(),
        _ => {}
    }
    let Some(resource) = state.resources.iter().find(|resource| resource.path() == path).cloned() else {
        return error_response(StatusCode::NOT_FOUND);
    };
    if !state.progress.borrow().is_serving {
        return error_response(StatusCode::SERVICE_UNAVAILABLE);
    }
    let parameter = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
    if parameter("watch") != "true" {
        return axum::Json(state.list(&resource)).into_response();
    }
    let seconds = Duration::from_secs(parameter("timeoutSeconds").parse().unwrap_or(600));
    let from = parameter("resourceVersion").parse().unwrap_or_default();
    let lines = state.watch(resource, from, parameter("sendInitialEvents") == "true", Instant::now() + seconds);
    let lines = lines.map(|line| Ok::<_, std::io::Error>(format!("{line}\n")));
    ([(CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
}

impl MemberState {
    /// Aggregated discovery of `/api` or `/apis`.
    fn discovery(&self, root: &str) -> Value {
        let is_in_root = |resource: &&Resource| resource.group().is_empty() == (root == "/api");
        let mut groups: BTreeMap<&str, BTreeMap<&str, Vec<Value>>> = BTreeMap::new();
        for resource in self.resources.iter().filter(is_in_root) {
            let version = resource.api_version.rsplit('/').next().unwrap_or_default();
            let group = resource.group();
            let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
            groups.entry(group).or_default().entry(version).or_default().push(json!({
                "resource": resource.plural, "singularResource": resource.kind.to_lowercase(), "scope": scope,
                "responseKind": {"group": group, "version": version, "kind": resource.kind},
                "shortNames": resource.short_names, "verbs": ["get", "list", "watch"],
            }));
        }
        let mut items = Vec::new();
        for (name, versions) in groups {
            let version =
                |(version, resources)| json!({"version": version, "resources": resources, "freshness": "Current"});
            let versions: Vec<Value> = versions.into_iter().map(version).collect();
            items.push(json!({"metadata": {"name": name}, "versions": versions}));
        }
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
            "items": items})
    }

    /// Objects of a kind after a number of changes, and the newest resourceVersion.
    fn objects_after(&self, resource: &Resource, applied: usize) -> (Vec<&Value>, u64) {
        let changes = &self.changes[..applied];
        let deleted: BTreeSet<&str> =
            changes.iter().filter(|change| change.event_type == "DELETED").map(|change| uid(&change.object)).collect();
        let mut objects: BTreeMap<&str, &Value> = BTreeMap::new();
        for object in self.initial_objects.iter().chain(changes.iter().map(|change| &change.object)) {
            if resource.is_of(object) && !deleted.contains(uid(object)) {
                objects.insert(uid(object), object);
            }
        }
        let newest = self.initial_objects.iter().chain(changes.iter().map(|change| &change.object)).map(version).max();
        (objects.into_values().collect(), newest.unwrap_or_default())
    }

    fn list(&self, resource: &Resource) -> Value {
        let applied = self.progress.borrow().applied;
        let (items, version) = self.objects_after(resource, applied);
        json!({"kind": format!("{}List", resource.kind), "apiVersion": resource.api_version, "items": items,
            "metadata": {"resourceVersion": version.to_string()}})
    }

    /// The initial objects, if requested, and changes until the deadline.
    fn watch(
        self: &Arc<Self>,
        resource: Resource,
        from: u64,
        send_initial: bool,
        deadline: Instant,
    ) -> impl Stream<Item = Value> + use<> {
        let mut progress_updates = self.progress.subscribe();
        let applied = progress_updates.borrow_and_update().applied;
        let mut first = Vec::new();
        let mut next = self.changes.partition_point(|change| version(&change.object) <= from);
        if send_initial {
            let (objects, version) = self.objects_after(&resource, applied);
            first.extend(objects.into_iter().map(|object| json!({"type": "ADDED", "object": object})));
            first.push(
                json!({"type": "BOOKMARK", "object": {"kind": resource.kind, "apiVersion": resource.api_version,
                "metadata": {"resourceVersion": version.to_string(),
                    "annotations": {"k8s.io/initial-events-end": "true"}}}}),
            );
            next = applied;
        }
        let rest = stream::unfold(
            (Arc::clone(self), progress_updates, next),
            move |(state, mut progress_updates, mut next)| {
                let resource = resource.clone();
                async move {
                    loop {
                        let progress = *progress_updates.borrow_and_update();
                        if !progress.is_serving {
                            return None;
                        }
                        while next < progress.applied {
                            let change = &state.changes[next];
                            next += 1;
                            if resource.is_of(&change.object) {
                                let line = json!({"type": change.event_type, "object": change.object});
                                return Some((line, (state, progress_updates, next)));
                            }
                        }
                        timeout_at(deadline, progress_updates.changed()).await.ok()?.ok()?;
                    }
                }
            },
        );
        stream::iter(first).chain(rest)
    }
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}
