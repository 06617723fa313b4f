//! `crowsnest bench members`: a process that serves clusters of synthetic pods, which are generated when they are read.
//!
//! It serves what the cache requests from members: discovery, paged lists and watches with initial events of pods, the
//! related objects of [`topology`], which never change, and RBAC that allows the user `reader` to read all of these, and
//! `tenant` the pods of fifty namespaces. `POST /churn?rate=N` changes this many pods per second in all clusters together.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::pods::{Pods, Revision};
use super::topology;

/// Pods per chunk of a response.
const CHUNK_PODS: usize = 32;
/// Interval at which due changes are made.
const TICK: Duration = Duration::from_millis(5);

/// Clusters of synthetic pods.
pub(super) struct Members {
    pods: Pods,
    clusters: Vec<ClusterPods>,
    /// Changes per second.
    rate: watch::Sender<f64>,
}

/// The pods of one cluster: every `step`-th pod of the fleet, starting with `first`.
struct ClusterPods {
    first: usize,
    step: usize,
    count: usize,
    changes: Mutex<Changes>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Changes {
    /// resourceVersion and revision of changed pods, by index.
    current: HashMap<usize, (u64, Revision)>,
    /// All changes in order; versions start after those of the initial pods.
    log: Vec<(usize, Revision)>,
}

impl ClusterPods {
    fn new(first: usize, step: usize, count: usize) -> Self {
        let version = watch::Sender::new(count as u64);
        Self { first, step, count, changes: Mutex::default(), version }
    }

    /// resourceVersion and revision of a pod.
    fn state(&self, index: usize) -> (u64, Revision) {
        self.changes.lock().current.get(&index).copied().unwrap_or((index as u64 + 1, Revision::default()))
    }

    fn change(&self, index: usize, now_us: i64) {
        let mut changes = self.changes.lock();
        let version = *self.version.borrow() + 1;
        let (pod_version, revision) = changes.current.entry(index).or_default();
        *pod_version = version;
        *revision = Revision { number: revision.number + 1, changed_at: now_us };
        let revision = *revision;
        changes.log.push((index, revision));
        self.version.send_replace(version);
    }
}

impl Members {
    pub(super) fn new(clusters: usize, pods: usize, bytes: usize) -> Self {
        let clusters = clusters.max(1);
        let cluster_pods = |nth: usize| ClusterPods::new(nth, clusters, (pods + clusters - 1 - nth) / clusters);
        Self {
            pods: Pods { fleet_pods: pods, bytes },
            clusters: (0..clusters).map(cluster_pods).collect(),
            rate: watch::Sender::new(0.0),
        }
    }
}

/// Serves until the process is killed; the first line of output is the address.
pub(super) async fn run(members: Members) -> anyhow::Result<()> {
    let members = Arc::new(members);
    let router = Router::new()
        .route("/churn", post(set_churn_rate))
        .route("/c/{cluster}/api", get(core_group))
        .route("/c/{cluster}/apis", get(groups))
        .route("/c/{cluster}/api/v1/pods", get(pods))
        .route("/c/{cluster}/api/v1/{resource}", get(core_objects))
        .route("/c/{cluster}/apis/{group}/v1/{resource}", get(group_objects))
        .route("/c/{cluster}/apis/rbac.authorization.k8s.io/v1/{resource}", get(rbac_objects))
        .with_state(Arc::clone(&members));
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    tokio::select! {
        result = axum::serve(listener, router) => result.context("cannot serve the members"),
        () = run_churn(members) => Ok(()),
    }
}

#[derive(Deserialize)]
struct Rate {
    rate: f64,
}

/// Handles `POST /churn?rate=N`.
async fn set_churn_rate(State(members): State<Arc<Members>>, Query(Rate { rate }): Query<Rate>) -> StatusCode {
    members.rate.send_replace(rate);
    StatusCode::NO_CONTENT
}

/// Changes pods at the current rate, in all clusters in turn.
async fn run_churn(members: Arc<Members>) {
    let (mut rates, mut pending_changes, mut position) = (members.rate.subscribe(), 0.0, 0_usize);
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        pending_changes += *rates.borrow_and_update() * TICK.as_secs_f64();
        while pending_changes >= 1.0 {
            pending_changes -= 1.0;
            // Stepping by a large prime visits all pods.
            position = position.wrapping_add(1_000_003);
            let cluster_pods = &members.clusters[position % members.clusters.len()];
            if cluster_pods.count > 0 {
                cluster_pods.change(
                    (position / members.clusters.len()) % cluster_pods.count,
                    jiff::Timestamp::now().as_microsecond(),
                );
            }
        }
    }
}

fn resource(group: &str, name: &str, kind: &str, namespaced: bool) -> Value {
    json!({"resource": name, "responseKind": {"group": group, "version": "v1", "kind": kind}, "singularResource": "",
        "scope": if namespaced { "Namespaced" } else { "Cluster" }, "verbs": ["get", "list", "watch"]})
}

fn discovery(groups: impl IntoIterator<Item = (&'static str, Vec<Value>)>) -> Response {
    let group = |(name, resources): (&str, Vec<Value>)| {
        json!({"metadata": {"name": name}, "versions": [{"version": "v1", "freshness": "Current",
            "resources": resources}]})
    };
    let items: Vec<Value> = groups.into_iter().map(group).collect();
    let body = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items});
    let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    ([(axum::http::header::CONTENT_TYPE, kind)], body.to_string()).into_response()
}

/// Resources of the related objects in a group.
fn topology_resources(group: &str) -> Vec<Value> {
    let kinds = topology::KINDS.into_iter().filter(|(kind_group, _, _)| *kind_group == group);
    kinds.map(|(group, name, kind)| resource(group, name, kind, true)).collect()
}

async fn core_group() -> Response {
    let mut resources = topology_resources("");
    resources.push(resource("", "pods", "Pod", true));
    discovery([("", resources)])
}

async fn groups() -> Response {
    let rbac_kinds = [
        ("roles", "Role", true),
        ("rolebindings", "RoleBinding", true),
        ("clusterroles", "ClusterRole", false),
        ("clusterrolebindings", "ClusterRoleBinding", false),
    ];
    let rbac = "rbac.authorization.k8s.io";
    let rbac_resources = rbac_kinds.map(|(name, kind, namespaced)| resource(rbac, name, kind, namespaced)).to_vec();
    let others = ["apps", "discovery.k8s.io", "networking.k8s.io"].map(|group| (group, topology_resources(group)));
    discovery(others.into_iter().chain([(rbac, rbac_resources)]))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListQuery {
    watch: bool,
    send_initial_events: bool,
    limit: usize,
    #[serde(rename = "continue")]
    from: usize,
    resource_version: u64,
    timeout_seconds: u64,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self {
            watch: false,
            send_initial_events: false,
            limit: usize::MAX,
            from: 0,
            resource_version: 0,
            timeout_seconds: 300,
        }
    }
}

async fn pods(
    State(members): State<Arc<Members>>,
    Path(cluster): Path<usize>,
    Query(query): Query<ListQuery>,
) -> Response {
    let Some(cluster_pods) = members.clusters.get(cluster) else { return StatusCode::NOT_FOUND.into_response() };
    if query.watch {
        return watch_pods(&members, cluster, &query);
    }
    let (version, end) =
        (*cluster_pods.version.borrow(), cluster_pods.count.min(query.from.saturating_add(query.limit)));
    let next = if end < cluster_pods.count { end.to_string() } else { String::new() };
    let mut text = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":["#
    );
    for index in query.from..end {
        if index > query.from {
            text.push(',');
        }
        let (version, revision) = cluster_pods.state(index);
        members.pods.write(&mut text, cluster_pods.first + index * cluster_pods.step, version, revision);
    }
    text.push_str("]}");
    ([(axum::http::header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// State of a watch.
struct Watch {
    members: Arc<Members>,
    cluster: usize,
    /// Index of the next initial event; `None` when all are sent.
    initial: Option<usize>,
    /// resourceVersion of the last event that was sent.
    sent_version: u64,
    versions: watch::Receiver<u64>,
    deadline: tokio::time::Instant,
}

fn watch_pods(members: &Arc<Members>, cluster: usize, query: &ListQuery) -> Response {
    let cluster_pods = &members.clusters[cluster];
    let versions = cluster_pods.version.subscribe();
    let now = *versions.borrow();
    let watch = Watch {
        members: Arc::clone(members),
        cluster,
        initial: query.send_initial_events.then_some(0),
        sent_version: if query.send_initial_events {
            now
        } else {
            query.resource_version.max(cluster_pods.count as u64)
        },
        versions,
        deadline: tokio::time::Instant::now() + Duration::from_secs(query.timeout_seconds),
    };
    let chunks = stream::unfold(watch, |mut watch| async move {
        let chunk = watch.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(chunk)), watch))
    });
    Body::from_stream(chunks).into_response()
}

impl Watch {
    /// The next chunk; `None` after the timeout.
    async fn next(&mut self) -> Option<String> {
        let members = Arc::clone(&self.members);
        let cluster_pods = &members.clusters[self.cluster];
        let mut text = String::new();
        if let Some(from) = self.initial {
            let end = cluster_pods.count.min(from + CHUNK_PODS);
            for index in from..end {
                let (version, revision) = cluster_pods.state(index);
                self.write_event("ADDED", index, version, revision, &mut text);
            }
            self.initial = Some(end).filter(|end| *end < cluster_pods.count);
            if self.initial.is_none() {
                let version = self.sent_version;
                text.push_str(&end_of_initial_events("v1", "Pod", version));
            }
            return Some(text);
        }
        let sent_version = self.sent_version;
        let result =
            tokio::time::timeout_at(self.deadline, self.versions.wait_for(|version| *version > sent_version)).await;
        let version = *result.ok()?.ok()?;
        let first = (sent_version - cluster_pods.count as u64) as usize;
        let changes = cluster_pods.changes.lock().log[first..(version - cluster_pods.count as u64) as usize].to_vec();
        for (offset, (index, revision)) in changes.into_iter().enumerate() {
            self.write_event("MODIFIED", index, sent_version + offset as u64 + 1, revision, &mut text);
        }
        self.sent_version = version;
        Some(text)
    }

    fn write_event(&self, event_type: &str, index: usize, version: u64, revision: Revision, text: &mut String) {
        let cluster_pods = &self.members.clusters[self.cluster];
        text.push_str(&format!(r#"{{"type":"{event_type}","object":"#));
        self.members.pods.write(text, cluster_pods.first + index * cluster_pods.step, version, revision);
        text.push_str("}\n");
    }
}

/// Number of namespaces in which `tenant` can read pods.
const TENANT_NAMESPACES: usize = 50;

/// RBAC objects: `reader` can read all pods and their related objects, `tenant` the pods of some namespaces.
async fn rbac_objects(Path((_, resource)): Path<(usize, String)>, Query(query): Query<ListQuery>) -> Response {
    let group = "rbac.authorization.k8s.io";
    let items = match resource.as_str() {
        "clusterroles" => json!([{"metadata": {"name": "reader", "uid": "role", "resourceVersion": "1"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": topology::KINDS.map(|kind| kind.0), "resources": topology::KINDS.map(|kind| kind.1),
                    "verbs": ["get", "list", "watch"]}]}]),
        "clusterrolebindings" => json!([{"metadata": {"name": "reader", "uid": "binding", "resourceVersion": "1"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "reader"}]}]),
        "roles" => tenant_objects(|name, namespace| {
            json!({"metadata": {"name": "tenant", "namespace": namespace, "uid": name, "resourceVersion": "1"},
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]})
        }),
        "rolebindings" => tenant_objects(|name, namespace| {
            json!({"metadata": {"name": "tenant", "namespace": namespace, "uid": name, "resourceVersion": "1"},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "tenant"},
                "subjects": [{"apiGroup": group, "kind": "User", "name": "tenant"}]})
        }),
        _ => json!([]),
    };
    serve_constant(&items, &format!("{group}/v1"), "", &query)
}

/// Handles requests for the related objects in the core group.
async fn core_objects(
    State(members): State<Arc<Members>>,
    Path((cluster, resource)): Path<(usize, String)>,
    Query(query): Query<ListQuery>,
) -> Response {
    topology_objects(&members, cluster, ("", &resource), &query)
}

/// Handles requests for the related objects in other groups.
async fn group_objects(
    State(members): State<Arc<Members>>,
    Path((cluster, group, resource)): Path<(usize, String, String)>,
    Query(query): Query<ListQuery>,
) -> Response {
    topology_objects(&members, cluster, (&group, &resource), &query)
}

fn topology_objects(members: &Members, cluster: usize, resource: (&str, &str), query: &ListQuery) -> Response {
    let found = topology::KINDS.into_iter().find(|(group, name, _)| (*group, *name) == resource);
    let Some((group, _, kind)) = found.filter(|_| cluster < members.clusters.len()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let objects = topology::objects(members.pods, cluster, members.clusters.len(), kind);
    let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    serve_constant(&Value::Array(objects), &api_version, kind, query)
}

/// Response to a list or watch of objects that never change.
fn serve_constant(items: &Value, api_version: &str, kind: &str, query: &ListQuery) -> Response {
    if query.watch {
        let mut text = String::new();
        if query.send_initial_events {
            for item in items.as_array().into_iter().flatten() {
                text.push_str(&format!("{}\n", json!({"type": "ADDED", "object": item})));
            }
            text.push_str(&end_of_initial_events(api_version, kind, 1));
        }
        let rest = stream::once(tokio::time::sleep(Duration::from_secs(query.timeout_seconds))).map(|()| String::new());
        let chunks = stream::iter([text]).chain(rest).map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk)));
        return Body::from_stream(chunks).into_response();
    }
    axum::Json(json!({"kind": format!("{kind}List"), "apiVersion": api_version, "metadata": {"resourceVersion": "1"},
        "items": items}))
    .into_response()
}

/// Builds one object for each namespace of `tenant`.
fn tenant_objects(object: impl Fn(&str, &str) -> Value) -> Value {
    let namespaces = (0..TENANT_NAMESPACES).map(super::pods::namespace);
    namespaces.map(|namespace| object(&format!("tenant-{namespace}"), &namespace)).collect()
}

fn end_of_initial_events(api_version: &str, kind: &str, version: u64) -> String {
    let metadata =
        json!({"resourceVersion": version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
    let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
}
