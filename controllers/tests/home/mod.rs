//! A control plane and members in this process, with the controllers between them.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::user::UserInfo;
use crowsnest_apiserver::admission::webhook::client::WebhookClient;
use crowsnest_apiserver::crd::controller::Controller;
use crowsnest_apiserver::outbound::{ClusterServices, Outbound};
use crowsnest_apiserver::{ApiServer, Config as ServerConfig, Data};
use crowsnest_controllers::act::objects::{Objects, Resource, Target};
use crowsnest_controllers::act::{Config, Manager};
use crowsnest_fleet::{Fleet, FleetOptions};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub struct Home {
    pub control_plane: ApiServer,
    pub members: Vec<(String, ApiServer)>,
    pub manager: Manager,
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

/// Looks until `look` has an answer; the test fails when that takes unreasonably long.
pub async fn eventually<T, L, R>(what: &str, look: L) -> T
where
    L: Fn() -> R,
    R: Future<Output = Option<T>>,
{
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// Prints what was last seen when a wait fails.
struct LastSeen<'a>(Option<&'a std::sync::Mutex<Value>>);

fn last_seen(last: &std::sync::Mutex<Value>) -> LastSeen<'_> {
    LastSeen(Some(last))
}

impl LastSeen<'_> {
    fn dismiss(mut self) {
        self.0 = None;
    }
}

impl Drop for LastSeen<'_> {
    fn drop(&mut self) {
        if let Some(last) = self.0 {
            #[expect(clippy::print_stderr, reason = "a failing test says what it saw")]
            {
                eprintln!("last seen: {}", last.lock().expect("no other thread"));
            }
        }
    }
}

async fn serve(name: &str) -> ApiServer {
    let mut config = ServerConfig::new(name, Data::Memory);
    let admin = UserInfo { name: "admin".into(), groups: vec!["system:masters".into()], ..UserInfo::default() };
    config.tokens.insert(TOKEN.to_owned(), admin);
    ApiServer::start(config).await.expect("a server")
}

async fn listen(server: &ApiServer, stop: &CancellationToken) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (serving, stop) = (server.clone(), stop.clone());
    server.spawn(async move {
        serving.serve(listener, stop).await.expect("served until stopped");
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

/// Ready, and seen as such by the loop that taints.
fn takes_workloads(cluster: &Value) -> bool {
    let conditions = cluster["status"]["conditions"].as_array();
    let ready =
        conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    ready
        && cluster["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
        && cluster["metadata"]["finalizers"].is_array()
}

impl Home {
    pub async fn start(members: &[&str]) -> Self {
        // A second test of this process finds the provider installed already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        drop(tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init());
        let stop = CancellationToken::new();
        let control_plane = serve("control-plane").await;
        define(&control_plane).await;
        let objects = Objects::new(control_plane.admin());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-cluster"}});
        objects.create(&cluster_scoped("namespaces", "Namespace"), "", &namespace).await.expect("created");
        let mut running = Vec::new();
        for name in members {
            let member = serve(name).await;
            let endpoint = listen(&member, &stop).await;
            register(&objects, name, &endpoint, &member).await;
            running.push(((*name).to_owned(), member));
        }
        let fleet = Fleet::start(control_plane.admin(), FleetOptions::default()).await.expect("a fleet");
        let manager = Manager::start(fleet, Config::conformance(), stop.clone());
        let mut health = manager.health();
        health.wait_for(Result::is_ok).await.expect("healthy");
        let home = Home { control_plane, members: running, manager, stop };
        for name in members {
            home.when(&objects, &cluster_resource(), "", name, takes_workloads).await;
        }
        home
    }

    pub fn objects(&self) -> Objects {
        Objects::new(self.control_plane.admin())
    }

    pub fn member(&self, name: &str) -> Objects {
        let (_, server) = self.members.iter().find(|(member, _)| member == name).expect("a member");
        Objects::new(server.admin())
    }

    /// Waits until the object satisfies `holds`.
    pub async fn when(
        &self,
        objects: &Objects,
        resource: &Resource,
        namespace: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let (holds, last) = (&holds, &std::sync::Mutex::new(Value::Null));
        let what = format!("{} {namespace}/{name}", resource.kind);
        let looking = eventually(&what, || async move {
            let object = objects.get(Target::new(resource, namespace, name)).await.ok().flatten()?;
            *last.lock().expect("one look at a time") = object.clone();
            holds(&object).then_some(object)
        });
        let shown = last_seen(last);
        let object = looking.await;
        shown.dismiss();
        object
    }

    pub async fn gone(&self, objects: &Objects, resource: &Resource, namespace: &str, name: &str) {
        eventually(&format!("no {} {namespace}/{name}", resource.kind), || async move {
            objects.get(Target::new(resource, namespace, name)).await.ok()?.is_none().then_some(())
        })
        .await;
    }

    pub async fn stop(self) {
        self.manager.stop().await;
        self.stop.cancel();
        for (_, member) in self.members {
            member.stop().await.expect("stopped");
        }
        self.control_plane.stop().await.expect("stopped");
    }
}

async fn define(server: &ApiServer) {
    let registry = Arc::clone(server.registry());
    let outbound = Arc::new(Outbound::new(Arc::new(ClusterServices::new(&registry)), None));
    let client = Arc::new(WebhookClient::new(outbound));
    let controller = Controller::start(registry, client).await.expect("definitions are served");
    server.spawn(controller.run(server.stopped()));
    let objects = Objects::new(server.admin());
    let definition =
        Resource::builtin("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false);
    let mut definitions = crowsnest_api::crd::crds(None);
    definitions.push(cluster_definition());
    for manifest in &definitions {
        objects.create(&definition, "", manifest).await.expect("a valid definition");
    }
    let cluster = cluster_resource();
    let policy = custom("policy.karmada.io", "v1alpha1", "propagationpolicies", "PropagationPolicy", true);
    for (resource, namespace) in [(&cluster, ""), (&policy, "default")] {
        let objects = &objects;
        eventually(&format!("{} is served", resource.kind), || async move {
            // An unknown resource is an error other than a missing object only in its message.
            let probe = json!({"apiVersion": resource.gvr.api_version(), "kind": resource.kind, "metadata": {}});
            let refused = objects.create(resource, namespace, &probe).await.err()?;
            (!refused.is_not_found()).then_some(())
        })
        .await;
    }
}

async fn register(objects: &Objects, name: &str, endpoint: &str, member: &ApiServer) {
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
