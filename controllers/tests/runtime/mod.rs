//! Runtime of the controllers: features that a controller gets by its registration, and the keys of a full resync.

use std::sync::Arc;

use crowsnest_controllers::Error;
use crowsnest_controllers::runtime::context::Context;
use crowsnest_controllers::runtime::registry::CONTROLLERS;
use crowsnest_controllers::runtime::workqueue::Outcome;
use crowsnest_controllers::runtime::{
    Config, Controller, Manager, Registration, Registry, Selection, Setup, Source, Switch, Watch, WellKnownKinds,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::test_env::{TestEnv, builtin, custom};

struct NamespaceGreeter(Arc<Context>);

#[rustfmt::skip]
impl Controller for NamespaceGreeter {
    type Key = String;
    const NAME: &'static str = "namespace-greeter";
    const SWITCH: Switch = Switch::OffByDefault(&["namespaceGreeter"]);
    fn new(setup: &Setup) -> Self { NamespaceGreeter(setup.context()) }
    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> { vec![Source::control_plane([&kinds.namespace]).map(|_, change| change.name().into())] }
    async fn keys(&self) -> Result<Vec<String>, Error> { self.0.names(&self.0.kinds.namespace).await }
    async fn reconcile(self: Arc<Self>, _: String) -> Result<Outcome, Error> { Ok(Outcome::Done) }
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registered_controller_has_a_queue_resyncs_and_metrics() {
    let registry = Registry::default().with(Registration::new::<NamespaceGreeter>());
    let namespaces = custom("", "v1", "namespaces", "Namespace", false);
    let mut env = TestEnv::start(&[]).await;
    for (list, runs) in [("*,namespaceGreeter", true), ("*", false)] {
        let config = Config { controllers: Selection::parse(&registry, list).unwrap(), ..Config::conformance() };
        env = env.replace_controllers(|cache, stop| Manager::start_with(&registry, cache, config, stop)).await;
        let before = env.reconciles("namespace-greeter").await;
        env.objects().create(&namespaces, "", &namespace(&format!("new-{runs}"))).await.unwrap();
        env.wait_for(&env.objects(), &namespaces, "", &format!("new-{runs}"), |_| true).await;
        env.wait_until_settled().await;
        let changed = env.reconciles("namespace-greeter").await;
        assert_eq!(changed > before, runs, "a change is reconciled with {list}");
        env.manager.run_full_resync().await.unwrap();
        assert_eq!(env.reconciles("namespace-greeter").await > changed, runs, "a full resync reconciles with {list}");
        let series = "controller_runtime_reconcile_total{controller=\"namespace-greeter\",result=\"success\"}";
        assert_eq!(env.metric_sum(series) > 0.0, runs, "it has metrics with {list}");
    }
    env.stop().await;
}

/// Controllers without keys for the objects of the test: nothing is evicted or descheduled, no Service is imported,
/// exported or provided to other clusters, and customized kinds are reconciled by the other controllers.
const WITHOUT_KEYS: [&str; 8] = [
    "descheduler",
    "endpointslice-collect-controller",
    "endpointslice-controller",
    "interpreter-configuration",
    "resource-binding-graceful-eviction-controller",
    "returning",
    "service-export-controller",
    "service-import-controller",
];

#[derive(Deserialize)]
struct Fixture {
    plural: String,
    object: Value,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_resync_enqueues_keys_of_every_controller() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let fixtures: Vec<Fixture> = serde_saphyr::from_str(include_str!("objects.yaml")).unwrap();
    for Fixture { plural, object } in &fixtures {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let [api_version, kind, namespace] =
            [&object["apiVersion"], &object["kind"], &object["metadata"]["namespace"]].map(text);
        let (group, version) = api_version.rsplit_once('/').unwrap();
        let resource = custom(group, version, plural, &kind, !namespace.is_empty());
        control_plane.create(&resource, &namespace, object).await.unwrap();
    }
    let deployments = builtin("apps", "deployments", "Deployment");
    let is_marked =
        |template: &Value| template["metadata"]["labels"]["resourcetemplate.karmada.io/retain-replicas"] == "true";
    env.wait_for(&control_plane, &deployments, "default", "web", is_marked).await;
    env.wait_for(&env.member("m1"), &deployments, "default", "web", |_| true).await;
    env.wait_until_settled().await;
    let before = env.manager.reconciles();
    env.manager.run_full_resync().await.unwrap();
    env.wait_until_idle().await;
    let after = env.manager.reconciles();
    let idle = CONTROLLERS.iter().map(|controller| controller.name).filter(|name| after[name] == before[name]);
    let mut idle: Vec<&str> = idle.collect();
    idle.sort_unstable();
    assert_eq!(idle, WITHOUT_KEYS);
    env.stop().await;
}
