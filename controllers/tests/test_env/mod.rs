//! Test environment: a control plane, members and controllers in one process.

mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::outbound::OutboundClients;
use crowsnest_controllers::cache::indexed_labels;
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource};
use crowsnest_controllers::runtime::{Config, Manager};
use crowsnest_index::{CacheOptions, GlobalCache};
use crowsnest_kube_apiserver::admission::Plugin;
use crowsnest_kube_apiserver::admission::WebhookClient;
use crowsnest_kube_apiserver::crd::controller::CrdController;
use crowsnest_kube_apiserver::services::ClusterServices;
use crowsnest_kube_apiserver::{ApiServer, Config as ServerConfig, Data};
use crowsnest_members::{Fleet, FleetOptions};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Event;
use kube::runtime::WatchStreamExt;
use requests::Requests;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A running control plane with members and controllers.
pub struct TestEnv {
    pub control_plane: ApiServer,
    pub members: Vec<(String, ApiServer)>,
    pub manager: Manager,
    pub cache: GlobalCache,
    pub directory: tempfile::TempDir,
    /// Requests for objects that members received.
    pub requests: Requests,
    stop: CancellationToken,
}

const TOKEN: &str = "member-token";

pub fn builtin(group: &str, resource: &str, kind: &str) -> Resource {
    Resource::builtin(group, "v1", resource, kind, true)
}

pub fn custom(group: &str, version: &str, resource: &str, kind: &str, namespaced: bool) -> Resource {
    Resource::builtin(group, version, resource, kind, namespaced)
}

fn cluster_scoped(resource: &str, kind: &str) -> Resource {
    Resource::builtin("", "v1", resource, kind, false)
}

/// Time after which a wait fails the test. Long enough for a loaded two-core machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval for checking conditions without a notification.
const POLL: Duration = Duration::from_millis(10);

/// Watches an object until it satisfies a condition. Panics with the last seen object after a timeout.
async fn watch(
    what: &str,
    objects: &DynamicClient,
    resource: &Resource,
    namespace: &str,
    name: &str,
    is_expected: impl Fn(Option<&Value>) -> bool,
) -> Option<Value> {
    let gvr = &resource.gvr;
    let kind = kube::api::GroupVersionKind::gvk(&gvr.group, &gvr.version, &resource.kind);
    let kind = kube::api::ApiResource::from_gvk_with_plural(&kind, &gvr.resource);
    let client = objects.client().clone();
    let api: kube::Api<kube::api::DynamicObject> = match namespace {
        "" => kube::Api::all_with(client, &kind),
        namespace => kube::Api::namespaced_with(client, namespace, &kind),
    };
    let mut changes = std::pin::pin!(kube::runtime::watcher::watch_object(api, name).default_backoff());
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut last = Value::Null;
    loop {
        let Ok(next) = tokio::time::timeout_at(deadline, changes.next()).await else {
            panic!("timed out waiting for: {what}, last seen: {last}")
        };
        // A kind that is not served yet is retried.
        let Ok(object) = next.expect("a watch does not end") else { continue };
        let object = object.map(|object| serde_json::to_value(object).expect("JSON"));
        if is_expected(object.as_ref()) {
            return object;
        }
        last = object.unwrap_or_default();
    }
}

async fn serve(name: &str) -> ApiServer {
    let mut config = ServerConfig::new(name, Data::Memory);
    let admin = UserInfo { name: "admin".into(), groups: vec!["system:masters".into()], ..UserInfo::default() };
    config.accept_token(TOKEN, admin);
    // No node controller removes the taint of new nodes.
    config.requests.disabled_admission_plugins = vec![Plugin::TaintNodesByCondition];
    ApiServer::start(config).await.expect("a server")
}

async fn listen(server: &ApiServer, requests: &Requests, stop: &CancellationToken) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (serving, recorded, stop) = (server.clone(), requests.record(server), stop.clone());
    server.spawn("the listener", async move {
        serving.serve_with_routes(recorded, listener, stop).await.expect("served until stopped");
    });
    format!("https://{address}")
}

fn cluster_definition() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.karmada.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": "cluster.karmada.io", "scope": "Cluster",
            "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            }],
        },
    })
}

fn cluster_resource() -> Resource {
    custom("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", false)
}

/// True if the Cluster is Ready, has no taints, and has its finalizer.
fn is_schedulable(cluster: &Value) -> bool {
    let conditions = cluster["status"]["conditions"].as_array();
    let ready =
        conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    ready
        && cluster["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
        && cluster["metadata"]["finalizers"].is_array()
}

impl TestEnv {
    pub async fn start(members: &[&str]) -> Self {
        TestEnv::start_with_config(members, Config::conformance()).await
    }

    pub async fn start_with_config(members: &[&str], config: Config) -> Self {
        // Another test may have installed it.
        drop(rustls::crypto::ring::default_provider().install_default());
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        drop(tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init());
        let stop = CancellationToken::new();
        let control_plane = serve("control-plane").await;
        create_definitions(&control_plane).await;
        let objects = DynamicClient::new(control_plane.admin());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-cluster"}});
        objects.create(&cluster_scoped("namespaces", "Namespace"), "", &namespace).await.expect("created");
        let requests = Requests::default();
        let mut running = Vec::new();
        for name in members {
            let member = serve(name).await;
            let endpoint = listen(&member, &requests, &stop).await;
            register_member(&objects, name, &endpoint, &member).await;
            running.push(((*name).to_owned(), member));
        }
        let fleet = Fleet::start(control_plane.admin(), FleetOptions::on_loopback()).await.expect("a fleet");
        let directory = tempfile::tempdir().expect("a directory");
        let mut options = CacheOptions::new(directory.path());
        options.indexed_labels = indexed_labels();
        let cache = GlobalCache::open(fleet, options).await.expect("a cache");
        let manager = Manager::start(cache.clone(), config, stop.clone());
        manager.health().wait_for(Result::is_ok).await.expect("healthy");
        let env = TestEnv { control_plane, members: running, manager, cache, directory, requests, stop };
        for name in members {
            env.wait_for(&objects, &cluster_resource(), "", name, is_schedulable).await;
        }
        env
    }

    pub fn objects(&self) -> DynamicClient {
        DynamicClient::new(self.control_plane.admin())
    }

    pub fn member(&self, name: &str) -> DynamicClient {
        let (_, server) = self.members.iter().find(|(member, _)| member == name).expect("a member");
        DynamicClient::new(server.admin())
    }

    /// Enables CustomResourceDefinitions in a member.
    pub async fn serve_definitions(&self, name: &str) {
        let (_, server) = self.members.iter().find(|(member, _)| member == name).expect("a member");
        serve_definitions(server).await;
    }

    /// Waits until the object satisfies `is_expected`.
    pub async fn wait_for(
        &self,
        objects: &DynamicClient,
        resource: &Resource,
        namespace: &str,
        name: &str,
        is_expected: impl Fn(&Value) -> bool,
    ) -> Value {
        let what = format!("{} {namespace}/{name}", resource.kind);
        let object = watch(&what, objects, resource, namespace, name, |object| object.is_some_and(&is_expected)).await;
        object.expect("the object exists")
    }

    /// Waits until the object does not exist.
    pub async fn wait_for_deletion(&self, objects: &DynamicClient, resource: &Resource, namespace: &str, name: &str) {
        let what = format!("no {} {namespace}/{name}", resource.kind);
        watch(&what, objects, resource, namespace, name, |object| object.is_none()).await;
    }

    /// The sum of all series with this prefix.
    pub fn metric_sum(&self, series: &str) -> f64 {
        let mut text = String::new();
        self.manager.metrics().write(&mut text).unwrap();
        let values = text.lines().filter(|line| line.starts_with(series)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }

    /// Waits for an event with this reason on an object in the namespace `default`. Returns its message.
    pub async fn event_message(&self, reason: &str, object: &str) -> String {
        self.event_message_in("default", reason, object).await
    }

    /// Waits until an object of this namespace has an event with this reason, and returns its message.
    pub async fn event_message_in(&self, namespace: &str, reason: &str, object: &str) -> String {
        self.find_event(namespace, reason, object, |_| true).await
    }

    /// Waits until an object in the namespace `default` has an event with this reason and message. Earlier events may have
    /// other messages.
    pub async fn wait_for_event(&self, reason: &str, object: &str, message: &str) {
        self.find_event("default", reason, object, |found| found == message).await;
    }

    async fn find_event(&self, namespace: &str, reason: &str, object: &str, accepts: impl Fn(&str) -> bool) -> String {
        let api: kube::Api<Event> = kube::Api::namespaced(self.control_plane.admin(), namespace);
        let config = kube::runtime::watcher::Config::default();
        let mut changes = std::pin::pin!(kube::runtime::watcher(api, config).default_backoff().touched_objects());
        let found = async {
            while let Some(event) = changes.next().await {
                // Errors are retried by the watcher.
                let Ok(event) = event else { continue };
                let is_regarding = event.involved_object.name.as_deref() == Some(object);
                let message = event.message.unwrap_or_default();
                if is_regarding && event.reason.as_deref() == Some(reason) && accepts(&message) {
                    return message;
                }
            }
            panic!("a watch does not end")
        };
        let what = format!("no event {reason} on {object}");
        tokio::time::timeout(TIMEOUT, found).await.expect(&what)
    }

    /// Runs a future while no controllers run.
    pub async fn without_controllers<W: Future<Output = ()>>(self, meanwhile: W) -> Self {
        self.manager.stop().await;
        meanwhile.await;
        let manager = Manager::start(self.cache.clone(), Config::conformance(), self.stop.clone());
        manager.health().wait_for(Result::is_ok).await.expect("healthy");
        TestEnv { manager, ..self }
    }

    /// Number of reconciles of a queue, once all controllers are idle.
    pub async fn reconciles(&self, queue: &str) -> u64 {
        self.wait_until_idle().await;
        self.manager.reconciles()[queue]
    }

    /// Waits until all controllers are idle.
    pub async fn wait_until_idle(&self) {
        tokio::time::timeout(TIMEOUT, self.manager.wait_until_idle()).await.expect("idle in time");
    }

    /// Waits until the cache is up to date, and all controllers are idle.
    pub async fn wait_until_settled(&self) {
        let settling = async {
            loop {
                self.manager.wait_until_idle().await;
                if self.is_collected() && self.manager.wait_until_idle().now_or_never().is_some() {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(TIMEOUT, settling).await.expect("settled in time");
    }

    /// True if the cache has the last change of every collection that it watches.
    fn is_collected(&self) -> bool {
        let server = |cluster: &ClusterName| match cluster.is_control_plane() {
            true => Some(&self.control_plane),
            false => self.members.iter().find(|(name, _)| name == cluster.as_str()).map(|(_, server)| server),
        };
        self.cache.states().iter().filter(|(_, state)| state.is_fresh()).all(|(key, state)| {
            let Some(store) = server(&key.cluster).map(|server| &server.registry().store) else { return true };
            let name = format!("{}/{}", key.resource.group, key.resource.resource);
            let table = store.tables().into_iter().find(|(table, _)| table.as_str() == name);
            let written = table.map_or(0, |(table, _)| store.last_change(&table));
            state.resource_version.parse().is_ok_and(|seen: u64| seen >= written)
        })
    }

    /// The revision of the last write of every resource in the control plane and in the members, with keys such as
    /// `m1 apps/deployments`. Events are excluded, because reconciles that change nothing may record them.
    pub fn last_writes(&self) -> BTreeMap<String, u64> {
        let members = self.members.iter().map(|(name, server)| (name.as_str(), server));
        let mut written = BTreeMap::new();
        for (name, server) in [("control plane", &self.control_plane)].into_iter().chain(members) {
            let store = &server.registry().store;
            for (table, _) in store.tables().into_iter().filter(|(table, _)| table.as_str() != "/events") {
                written.insert(format!("{name} {table}"), store.last_change(&table));
            }
        }
        written
    }

    /// Restarts the controllers without their in-memory state.
    pub async fn restart(self) -> Self {
        self.manager.stop().await;
        let manager = Manager::start(self.cache.clone(), Config::conformance(), self.stop.clone());
        let mut health = manager.health();
        health.wait_for(Result::is_ok).await.expect("healthy");
        TestEnv { manager, ..self }
    }

    /// Stops the controllers and starts others with `start`.
    pub async fn replace_controllers(self, start: impl FnOnce(GlobalCache, CancellationToken) -> Manager) -> Self {
        self.manager.stop().await;
        let manager = start(self.cache.clone(), self.stop.clone());
        manager.health().wait_for(Result::is_ok).await.expect("healthy");
        TestEnv { manager, ..self }
    }

    pub async fn stop(self) {
        self.manager.stop().await;
        self.cache.stop().await;
        self.stop.cancel();
        for (_, member) in self.members {
            member.stop().await.expect("stopped");
        }
        self.control_plane.stop().await.expect("stopped");
    }
}

/// Serves the resources that CustomResourceDefinitions define.
async fn serve_definitions(server: &ApiServer) {
    let registry = Arc::clone(server.registry());
    let outbound = Arc::new(OutboundClients::new(Arc::new(ClusterServices::new(&registry)), None));
    let client = Arc::new(WebhookClient::new(outbound));
    let controller = CrdController::start(registry, client).await.expect("definitions are served");
    server.spawn("CustomResourceDefinitions", controller.run(server.stop_token()));
}

pub fn definition() -> Resource {
    Resource::builtin("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false)
}

async fn create_definitions(server: &ApiServer) {
    serve_definitions(server).await;
    let objects = DynamicClient::new(server.admin());
    let mut definitions = crowsnest_api::crd::crds(None);
    definitions.push(cluster_definition());
    for manifest in &definitions {
        objects.create(&definition(), "", manifest).await.expect("a valid definition");
    }
    let cluster = cluster_resource();
    let policy = custom("policy.karmada.io", "v1alpha1", "propagationpolicies", "PropagationPolicy", true);
    for (resource, namespace) in [(&cluster, ""), (&policy, "default")] {
        // A kind can only be watched once it is served.
        let what = format!("{} is served", resource.kind);
        watch(&what, &objects, resource, namespace, "none", |object| object.is_none()).await;
    }
}

async fn register_member(objects: &DynamicClient, name: &str, endpoint: &str, member: &ApiServer) {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "karmada-cluster"},
        "data": {"token": encode(TOKEN), "caBundle": encode(member.authority().certificate())},
    });
    objects.create(&builtin("", "secrets", "Secret"), "karmada-cluster", &secret).await.expect("created");
    let reference = json!({"namespace": "karmada-cluster", "name": name});
    let cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
        "spec": {
            "syncMode": "Push", "apiEndpoint": endpoint, "secretRef": reference, "impersonatorSecretRef": reference,
        },
    });
    objects.create(&cluster_resource(), "", &cluster).await.expect("created");
}
