//! A member: a real API server that can be restarted on its data, its network, and the writes to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::any_service;
use crowsnest_kube_apiserver::server::{ApiServer, Config, Data};
use crowsnest_registry::storage::Durability;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{RwLock, watch};

use crate::host::resources;
use crate::members::{Member, config_map, namespace, start_on};
use crate::network::Network;

/// Annotation with a word that is unique to one version of one object.
const WORD: &str = "test/word";
const FINALIZER: &str = "test/hold";
const NAMESPACES: [&str; 2] = ["ops", "shop"];
const BULK: usize = 15;

pub struct TestMember {
    pub name: String,
    pub network: Network,
    /// None only during a restart.
    member: RwLock<Option<Member>>,
    port: u16,
    directory: PathBuf,
    lacks_watch_list: bool,
}

/// State of everything written to one member: (has a finalizer, is being deleted) by object.
pub type Model = BTreeMap<Target, (bool, bool)>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub kind: &'static str,
    pub namespace: &'static str,
    pub name: String,
}

#[derive(Debug, Clone)]
pub enum Write {
    Create(Value),
    Update(Target, Value),
    Delete(Target),
    /// Two requests; the new object is created immediately after the deletion.
    Recreate(Target, Value),
    Release(Target),
    /// Many objects, which `Clear` deletes with one request.
    Fill(Vec<Value>),
    Clear(&'static str),
}

impl TestMember {
    /// `lacks_watch_list`: a server without support for streamed initial lists.
    pub async fn start(name: &str, directory: &Path, lacks_watch_list: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (network, directory) = (Network::start(port).await, directory.join(name));
        let member = RwLock::new(None);
        let this = Self { name: name.to_owned(), network, member, port, directory, lacks_watch_list };
        *this.member.write().await = Some(this.serve(listener).await);
        for name in NAMESPACES {
            this.member.read().await.as_ref().unwrap().create(namespace(name)).await;
        }
        this
    }

    async fn serve(&self, listener: TcpListener) -> Member {
        let data = Data::Directory { path: self.directory.clone(), durability: Durability::Process };
        let extra_routes =
            if self.lacks_watch_list { router_without_watch_list } else { |_: &ApiServer| Router::new() };
        let mut member = start_on(listener, Config::new(&self.name, data), extra_routes).await;
        member.config.cluster_url = format!("https://127.0.0.1:{}", self.network.port()).parse().unwrap();
        member
    }

    /// Restarts the server on its data; writers wait.
    pub async fn restart(&self) {
        let mut member = self.member.write().await;
        member.take().unwrap().shut_down().await;
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        *member = Some(self.serve(listener).await);
    }

    /// Drops the watch history.
    pub async fn compact(&self) {
        let member = self.member.read().await;
        let store = &member.as_ref().unwrap().server.registry().store;
        store.compact(store.revision());
    }

    pub async fn register(&self, control_plane: &Client) {
        crate::members::register(control_plane, &self.name, self.member.read().await.as_ref().unwrap()).await;
    }

    pub async fn shut_down(self) {
        self.member.into_inner().unwrap().shut_down().await;
    }

    pub async fn client(&self) -> Client {
        self.member.read().await.as_ref().unwrap().server.admin()
    }

    /// All objects of a resource, as the member holds them.
    pub async fn objects(&self, resource: &str) -> Vec<Value> {
        let resource = resources().into_iter().find(|known| &*known.resource == resource).unwrap();
        let request = axum::http::Request::get(resource.path(None)).body(Vec::new()).unwrap();
        let mut list: Value = self.client().await.request(request).await.unwrap();
        let kind = list["kind"].as_str().unwrap().strip_suffix("List").unwrap().to_owned();
        let mut objects = std::mem::take(list["items"].as_array_mut().unwrap());
        for object in &mut objects {
            object["apiVersion"] = json!(resource.api_version());
            object["kind"] = json!(kind);
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
        }
        objects
    }

    /// Performs the last write of a round to a resource; returns its resourceVersion.
    pub async fn write_marker(&self, resource: &str, word: &str) -> u64 {
        let (kind, namespace) = kinds().into_iter().find(|(_, plural)| *plural == resource).map(namespace_of).unwrap();
        let object = object(&Target { kind, namespace, name: "marker".to_owned() }, word, false, 0);
        let api = api_of(self.client().await, &object);
        let patch = PatchParams::apply("test").force();
        let written = api.patch("marker", &patch, &Patch::Apply(&object)).await.unwrap();
        written.metadata.resource_version.unwrap().parse().unwrap()
    }

    pub async fn write(&self, write: Write) {
        // Held until the write is done, so that a restart waits for it.
        let member = self.member.read().await;
        let client = || member.as_ref().unwrap().server.admin();
        match write {
            Write::Create(object) => create(client(), &object).await,
            Write::Update(target, patch) => {
                let api = api_of(client(), &skeleton(&target));
                api.patch(&target.name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            }
            Write::Delete(target) => {
                let api = api_of(client(), &skeleton(&target));
                api.delete(&target.name, &DeleteParams::default()).await.unwrap();
            }
            Write::Recreate(target, object) => {
                let api = api_of(client(), &skeleton(&target));
                api.delete(&target.name, &DeleteParams::default()).await.unwrap();
                create(client(), &object).await;
            }
            Write::Release(target) => {
                let api = api_of(client(), &skeleton(&target));
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                api.patch(&target.name, &PatchParams::default(), &patch).await.unwrap();
            }
            Write::Fill(objects) => {
                for object in &objects {
                    create(client(), object).await;
                }
            }
            Write::Clear(namespace) => {
                let target = Target { kind: "ConfigMap", namespace, name: String::new() };
                let bulk = ListParams::default().labels("bulk=yes");
                api_of(client(), &skeleton(&target)).delete_collection(&DeleteParams::default(), &bulk).await.unwrap();
            }
        }
    }
}

/// Generates unique words of equal length, so that none is a prefix of another.
#[derive(Default)]
pub struct Words {
    count: u32,
    before: Vec<String>,
    now: Vec<String>,
}

impl Words {
    pub fn next(&mut self) -> String {
        self.count += 1;
        let word = format!("word{:07}", self.count);
        self.now.push(word.clone());
        word
    }

    /// Starts a new round.
    pub fn start_round(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Words of this round and of the previous one, which are partly overwritten.
    pub fn recent(&self) -> impl Iterator<Item = &String> {
        self.before.iter().chain(&self.now)
    }
}

/// The word of an object.
pub fn word_of(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][WORD].as_str()
}

/// Generates writes in order, each valid after the ones before.
pub fn plan_writes(model: &mut Model, words: &mut Words, rng: &mut StdRng, count: usize) -> Vec<Write> {
    (0..count).map(|_| plan_write(model, words, rng)).collect()
}

fn plan_write(model: &mut Model, words: &mut Words, rng: &mut StdRng) -> Write {
    if rng.random_bool(0.04) {
        return plan_bulk_write(model, words, NAMESPACES[rng.random_range(0..NAMESPACES.len())]);
    }
    let (kind, namespace) = match rng.random_range(0..10) {
        0..5 => ("ConfigMap", NAMESPACES[rng.random_range(0..NAMESPACES.len())]),
        5..8 => ("Pod", NAMESPACES[rng.random_range(0..NAMESPACES.len())]),
        _ => ("PriorityClass", ""),
    };
    let target = Target { kind, namespace, name: format!("{}-{}", kind.to_lowercase(), rng.random_range(0..8)) };
    let size = if kind == "ConfigMap" && rng.random_bool(0.1) { rng.random_range(1..6_000) } else { 0 };
    match model.get(&target).copied() {
        None => {
            let has_finalizer = rng.random_bool(0.15);
            model.insert(target.clone(), (has_finalizer, false));
            Write::Create(object(&target, &words.next(), has_finalizer, size))
        }
        Some((_, true)) => {
            model.remove(&target);
            Write::Release(target)
        }
        Some((has_finalizer, false)) => match rng.random_range(0..10) {
            0..=2 if has_finalizer => {
                model.insert(target.clone(), (true, true));
                Write::Delete(target)
            }
            0 | 1 => {
                model.remove(&target);
                Write::Delete(target)
            }
            2 | 3 if !has_finalizer => Write::Recreate(target.clone(), object(&target, &words.next(), false, size)),
            _ => {
                let word = words.next();
                let mut patch = json!({"metadata": {"annotations": {WORD: word}, "labels": {"word": word}}});
                if kind == "ConfigMap" {
                    patch["data"] = json!({"text": text(&word, size)});
                }
                Write::Update(target, patch)
            }
        },
    }
}

fn plan_bulk_write(model: &mut Model, words: &mut Words, namespace: &'static str) -> Write {
    let target = |nth| Target { kind: "ConfigMap", namespace, name: format!("bulk-{nth}") };
    if model.contains_key(&target(0)) {
        model.retain(|known, _| !(known.namespace == namespace && known.name.starts_with("bulk-")));
        return Write::Clear(namespace);
    }
    let objects = (0..BULK).map(|nth| {
        model.insert(target(nth), (false, false));
        let mut object = object(&target(nth), &words.next(), false, 0);
        object["metadata"]["labels"]["bulk"] = json!("yes");
        object
    });
    // Only `Clear` may touch them: their names are outside those the other writes choose from.
    Write::Fill(objects.collect())
}

fn text(word: &str, size: usize) -> String {
    // More than one TLS record, so that a connection can be closed within a line.
    (0..size).fold(word.to_owned(), |text, nth| text + &format!(" filler{nth}"))
}

fn object(target: &Target, word: &str, has_finalizer: bool, size: usize) -> Value {
    let mut object = match target.kind {
        "ConfigMap" => config_map(target.namespace, &target.name, &text(word, size)),
        _ => skeleton(target),
    };
    object["metadata"]["annotations"] = json!({WORD: word});
    object["metadata"]["labels"]["word"] = json!(word);
    if has_finalizer {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    match target.kind {
        "Pod" => object["spec"] = json!({"containers": [{"name": "web", "image": "nginx:1.27"}]}),
        "PriorityClass" => object["value"] = json!(7),
        _ => {}
    }
    object
}

/// Kinds with their plurals.
pub fn kinds() -> [(&'static str, &'static str); 3] {
    [("ConfigMap", "configmaps"), ("Pod", "pods"), ("PriorityClass", "priorityclasses")]
}

fn namespace_of((kind, _): (&'static str, &'static str)) -> (&'static str, &'static str) {
    (kind, if kind == "PriorityClass" { "" } else { "shop" })
}

/// apiVersion, kind, namespace and name.
fn skeleton(target: &Target) -> Value {
    let version = if target.kind == "PriorityClass" { "scheduling.k8s.io/v1" } else { "v1" };
    let mut skeleton = json!({"apiVersion": version, "kind": target.kind, "metadata": {"name": target.name}});
    if !target.namespace.is_empty() {
        skeleton["metadata"]["namespace"] = json!(target.namespace);
    }
    skeleton
}

fn api_of(client: Client, object: &Value) -> Api<DynamicObject> {
    let kind = object["kind"].as_str().unwrap();
    let (_, plural) = kinds().into_iter().find(|(known, _)| *known == kind).unwrap();
    let resource = ApiResource { plural: plural.to_owned(), ..crate::members::resource(object) };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

async fn create(client: Client, object: &Value) {
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api_of(client, object).create(&PostParams::default(), &typed).await.unwrap();
}

/// Performs the writes of each member in order, with all members in parallel, and counts them.
pub async fn write_all(members: &[TestMember], writes: Vec<Vec<Write>>, done: &watch::Sender<usize>) {
    let each = members.iter().zip(writes).map(async |(member, writes)| {
        for write in writes {
            member.write(write).await;
            done.send_modify(|done| *done += 1);
        }
    });
    futures::future::join_all(each).await;
}

/// Responds like servers without streamed lists, which are then listed by pages.
fn router_without_watch_list(server: &ApiServer) -> Router {
    async fn refuse(request: Request, next: Next) -> Response {
        if request.uri().query().is_some_and(|query| query.contains("sendInitialEvents")) {
            return (StatusCode::BAD_REQUEST, "sendInitialEvents is forbidden").into_response();
        }
        next.run(request).await
    }
    Router::new().route("/{*path}", any_service(server.router())).layer(from_fn(refuse))
}
