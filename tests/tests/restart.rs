//! Starting the controllers on a consistent fleet writes nothing to the control plane, and sends no write request to
//! members, for each kind that Karmada supports natively, with all fields that members add.

#![expect(clippy::unwrap_used, reason = "a test fails where something is missing")]

use std::path::Path;
use std::time::Duration;

use crowsnest_controllers::cache::indexed_labels;
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crowsnest_controllers::runtime::{Config, Manager};
use crowsnest_index::{CacheOptions, GlobalCache};
use crowsnest_kube_apiserver::controllers::{self, Controllers};
use crowsnest_kube_apiserver::{ApiServer, Config as ServerConfig, Data};
use crowsnest_members::join::{JoinOptions, join};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_registry::storage::ResourceKey;
use crowsnest_sim::member::{Member, MemberConfig};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const TEMPLATES: &str = include_str!("restart/templates.yaml");
/// Timeout for any state.
const TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The controllers with their cache.
struct RunningControllers {
    cache: GlobalCache,
    manager: Manager,
}

impl RunningControllers {
    async fn start(control_plane: &ApiServer, cache: &Path) -> Self {
        let fleet = Fleet::start(control_plane.admin(), FleetOptions::on_loopback()).await.unwrap();
        let options = CacheOptions { indexed_labels: indexed_labels(), ..CacheOptions::new(cache) };
        let cache = GlobalCache::open(fleet, options).await.unwrap();
        let manager = Manager::start(cache.clone(), Config::conformance(), CancellationToken::new());
        manager.health().wait_for(Result::is_ok).await.unwrap();
        RunningControllers { cache, manager }
    }

    /// Waits until the controllers are idle and the cache receives no events.
    async fn wait_until_idle(&self) {
        let waiting = async {
            let mut unchanged_polls = 0;
            let mut seq = self.cache.seq();
            while unchanged_polls < 30 {
                self.manager.wait_until_idle().await;
                tokio::time::sleep(POLL_INTERVAL).await;
                unchanged_polls = if self.cache.seq() == seq { unchanged_polls + 1 } else { 0 };
                seq = self.cache.seq();
            }
        };
        tokio::time::timeout(TIMEOUT, waiting).await.expect("the controllers are idle in time");
    }

    async fn stop(self) {
        self.manager.stop().await;
        self.cache.stop().await;
        self.cache.fleet().stop().await;
    }
}

/// Resource of an object's kind.
fn resource_of(object: &Value) -> Resource {
    let (group, version) = match object["apiVersion"].as_str().unwrap().split_once('/') {
        Some((group, version)) => (group, version),
        None => ("", object["apiVersion"].as_str().unwrap()),
    };
    let kind = object["kind"].as_str().unwrap();
    let plural = match kind {
        "Ingress" => "ingresses".to_owned(),
        "PropagationPolicy" => "propagationpolicies".to_owned(),
        "ClusterPropagationPolicy" => "clusterpropagationpolicies".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    Resource::builtin(group, version, &plural, kind, object["metadata"].get("namespace").is_some())
}

/// Creates an object; repeats the request until its kind is served.
async fn create(objects: &DynamicClient, object: &Value) {
    let resource = resource_of(object);
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let creating = async {
        while let Err(error) = objects.create(&resource, namespace, object).await {
            assert!(error.is_not_found(), "{error}: {object}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(TIMEOUT, creating).await.expect("the object is created in time");
}

fn crd(group: &str, names: (&str, &str), scope: &str, version: &str, schema: Value) -> Value {
    let (plural, kind) = names;
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {"group": group, "scope": scope, "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    })
}

fn gadget_definition(spec: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}});
    crd("example.io", ("gadgets", "Gadget"), "Namespaced", "v1", schema)
}

async fn control_plane() -> ApiServer {
    let server = ApiServer::start(ServerConfig::new("control-plane", Data::Memory)).await.unwrap();
    controllers::start(&server, Controllers::default());
    let objects = DynamicClient::new(server.admin());
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": open, "status": open}});
    let mut definitions = crowsnest_api::crd::crds(None);
    definitions.push(crd("cluster.karmada.io", ("clusters", "Cluster"), "Cluster", "v1alpha1", schema));
    definitions.push(gadget_definition(json!({"size": {"type": "integer"}, "color": {"type": "string"}})));
    for definition in &definitions {
        create(&objects, definition).await;
    }
    for name in ["karmada-cluster", "karmada-system"] {
        create(&objects, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    let listing = async {
        let list = || http::Request::get("/apis/cluster.karmada.io/v1alpha1/clusters").body(Vec::new()).unwrap();
        while server.admin().request_text(list()).await.is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(TIMEOUT, listing).await.expect("Clusters are served in time");
    server
}

fn policy(kind: &str, metadata: Value, templates: &[Value]) -> Value {
    let selectors: Vec<Value> = templates
        .iter()
        .filter(|template| template["metadata"].get("namespace").is_some() == (kind == "PropagationPolicy"))
        .map(|template| {
            json!({"apiVersion": template["apiVersion"], "kind": template["kind"], "name": template["metadata"]["name"]})
        })
        .collect();
    json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": kind, "metadata": metadata,
        "spec": {"resourceSelectors": selectors, "placement": {"clusterAffinity": {}}}})
}

/// Waits until the binding of a template has the condition FullyApplied.
async fn wait_until_applied(objects: &DynamicClient, template: &Value) {
    let (kind, name) = (template["kind"].as_str().unwrap().to_lowercase(), template["metadata"]["name"].as_str());
    let name = format!("{}-{kind}", name.unwrap());
    let namespace = template["metadata"]["namespace"].as_str().unwrap_or_default();
    let (plural, binding_kind) = match namespace {
        "" => ("clusterresourcebindings", "ClusterResourceBinding"),
        _ => ("resourcebindings", "ResourceBinding"),
    };
    let resource = Resource::builtin("work.karmada.io", "v1alpha2", plural, binding_kind, !namespace.is_empty());
    let mut binding = None;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while tokio::time::Instant::now() < deadline {
        binding = objects.get(Target::new(&resource, namespace, &name)).await.unwrap();
        let conditions = binding.as_ref().and_then(|binding| binding["status"]["conditions"].as_array());
        let is_applied = |condition: &Value| condition["type"] == "FullyApplied" && condition["status"] == "True";
        if conditions.is_some_and(|conditions| conditions.iter().any(is_applied)) {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    panic!("{name} is not applied: {binding:?}");
}

/// Waits until the autoscaler's status counts its pod. Members reconcile autoscalers every 15 s.
async fn wait_until_autoscaled(objects: &DynamicClient, templates: &[Value]) {
    let scaler = templates.iter().find(|template| template["kind"] == "HorizontalPodAutoscaler").unwrap();
    let (resource, name) = (resource_of(scaler), scaler["metadata"]["name"].as_str().unwrap());
    let waiting = async {
        while objects.get(Target::new(&resource, "default", name)).await.unwrap().unwrap()["status"]["currentReplicas"]
            != 1
        {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("the autoscaler sees its pod in time");
}

/// The last change of each resource that propagation writes, the number of Events, and the number of write requests to
/// the member. [`Manager::wait_until_idle`] awaits new Events, but not updates of their counts, so the time of their last write is
/// not compared.
fn count_writes(control_plane: &ApiServer, member: &Member, templates: &[Value]) -> Vec<(String, u64)> {
    let mut tables: Vec<(String, String)> = ["works", "resourcebindings", "clusterresourcebindings"]
        .map(|plural| ("work.karmada.io".to_owned(), plural.to_owned()))
        .into();
    tables.extend(templates.iter().map(|template| {
        let gvr = resource_of(template).gvr;
        (gvr.group.to_string(), gvr.resource.to_string())
    }));
    tables.sort();
    tables.dedup();
    let store = &control_plane.registry().store;
    let last_change = |(group, plural): (String, String)| {
        let change = store.last_change(&ResourceKey::new(&group, &plural));
        (format!("{plural}.{group}"), change)
    };
    let mut counts: Vec<(String, u64)> = tables.into_iter().map(last_change).collect();
    let events = store.count(&ResourceKey::new("", "events"));
    counts.push(("events".to_owned(), events.try_into().unwrap()));
    counts.push(("writes to the member".to_owned(), member.faults().writes()));
    counts
}

/// Reasons, counts and messages of the three events that were written last.
async fn last_events(objects: &DynamicClient) -> String {
    let list = objects.read("/api/v1/events").await.unwrap();
    let version = |event: &Value| event["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let mut events: Vec<(u64, String)> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (version(event), format!("{} {} {}", event["reason"], event["count"], event["message"])))
        .collect();
    events.sort();
    format!("{:#?}", events.iter().rev().take(3).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_writes_nothing() {
    crate::use_ring();
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    drop(tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init());
    let directory = tempfile::tempdir().unwrap();
    let templates: Vec<Value> = serde_saphyr::from_multiple::<Value>(TEMPLATES).unwrap();
    let control_plane = control_plane().await;
    let objects = DynamicClient::new(control_plane.admin());
    let member = Member::start(MemberConfig::new("m1")).await.unwrap();
    let member_schema = json!({"size": {"type": "integer"}, "color": {"type": "string", "default": "red"}});
    create(&DynamicClient::new(member.server().admin()), &gadget_definition(member_schema)).await;
    let kubeconfig = Kubeconfig::from_yaml(&member.kubeconfig().unwrap()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    join(&control_plane.admin(), &config, &JoinOptions::new("m1".parse().unwrap())).await.unwrap();

    let running = RunningControllers::start(&control_plane, directory.path()).await;
    for template in &templates {
        create(&objects, template).await;
    }
    let metadata = json!({"name": "p", "namespace": "default",
        "labels": {"propagationpolicy.karmada.io/permanent-id": "p"}});
    create(&objects, &policy("PropagationPolicy", metadata, &templates)).await;
    let metadata = json!({"name": "p", "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": "cp"}});
    create(&objects, &policy("ClusterPropagationPolicy", metadata, &templates)).await;
    for template in &templates {
        wait_until_applied(&objects, template).await;
    }
    wait_until_autoscaled(&objects, &templates).await;
    running.wait_until_idle().await;
    let before = count_writes(&control_plane, &member, &templates);

    running.manager.run_full_resync().await.unwrap();
    running.wait_until_idle().await;
    assert_eq!(count_writes(&control_plane, &member, &templates), before, "a full resync wrote something");
    running.stop().await;

    let running = RunningControllers::start(&control_plane, directory.path()).await;
    running.wait_until_idle().await;
    let after = count_writes(&control_plane, &member, &templates);
    assert_eq!(after, before, "a restart wrote something; last events: {}", last_events(&objects).await);

    // Fields that the member added are not reverted, and other changes still are.
    let gadget = resource_of(templates.last().unwrap());
    let member_objects = DynamicClient::new(member.server().admin());
    member_objects.merge(Target::new(&gadget, "default", "plain"), &json!({"spec": {"color": "blue"}})).await.unwrap();
    running.wait_until_idle().await;
    let reverted = member_objects.get(Target::new(&gadget, "default", "plain")).await.unwrap().unwrap();
    assert_eq!(reverted["spec"], json!({"size": 3, "color": "red"}));
    running.stop().await;
    member.stop().await.unwrap();
    control_plane.stop().await.unwrap();
}

#[test]
fn each_native_kind_is_covered() {
    #[derive(Deserialize)]
    struct Kind {
        kind: String,
    }
    let templates: Vec<Kind> = serde_saphyr::from_multiple(TEMPLATES).unwrap();
    let native = "Deployment ReplicaSet StatefulSet DaemonSet Job CronJob Pod Service ServiceAccount PersistentVolumeClaim \
                  PersistentVolume Secret Ingress PodDisruptionBudget HorizontalPodAutoscaler";
    for kind in native.split_whitespace() {
        assert!(templates.iter().any(|template| template.kind == kind), "{kind} is missing");
    }
}
