//! Tests of cluster health: failures of one and of several signals, simultaneous failures, removal of clusters, and
//! clusters whose agent reports.

use std::time::Duration;

use crowsnest_controllers::runtime::Config;
use crowsnest_controllers::runtime::dynamic_client::{Resource, Target};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom, definition};
use crate::{binding, condition_is};

fn cluster_resource() -> Resource {
    custom("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", false)
}

fn work() -> Resource {
    custom("work.karmada.io", "v1alpha1", "works", "Work", true)
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

fn has_reason(kind: &'static str, reason: &'static str) -> impl Fn(&Value) -> bool {
    move |cluster| condition(cluster, kind)["reason"] == reason
}

fn taints(cluster: &Value) -> Vec<&str> {
    let taints = cluster["spec"]["taints"].as_array();
    taints.into_iter().flatten().filter_map(|taint| taint["key"].as_str()).collect()
}

/// Changes the address of a cluster. Returns the previous one.
async fn set_endpoint(env: &TestEnv, name: &str, endpoint: &str) -> String {
    let control_plane = env.objects();
    let resource = cluster_resource();
    let target = Target::new(&resource, "", name);
    let before = control_plane.get(target).await.unwrap().unwrap();
    control_plane.merge(target, &json!({"spec": {"apiEndpoint": endpoint}})).await.unwrap();
    before["spec"]["apiEndpoint"].as_str().unwrap().to_owned()
}

const UNREACHABLE: &str = "https://127.0.0.1:1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_signal_is_damped_two_count_and_simultaneous_failures_are_doubted() {
    let env = TestEnv::start(&["m1", "m2", "m3"]).await;
    let control_plane = env.objects();
    let cluster = cluster_resource();
    env.wait_for(&control_plane, &cluster, "", "m1", has_reason("HealthSignals", "SignalsAgree")).await;

    // The health endpoint of one fails; another is unreachable. When that is recognized, the first is still ready.
    env.requests.set_healthy("m1", false);
    let damped = env.wait_for(&control_plane, &cluster, "", "m1", has_reason("HealthSignals", "Damped")).await;
    let message = condition(&damped, "HealthSignals")["message"].as_str().unwrap();
    assert!(message.starts_with("readyz fails since ") && message.contains("(500 Internal Server Error"), "{message}");
    assert!(message.contains("; API calls succeed; watches of "), "{message}");
    let endpoint = set_endpoint(&env, "m2", UNREACHABLE).await;
    let unreachable_cluster =
        env.wait_for(&control_plane, &cluster, "", "m2", |m2| condition_is(m2, "Ready", "False")).await;
    assert_eq!(condition(&unreachable_cluster, "Ready")["reason"], "ClusterNotReachable");
    assert_eq!(condition(&unreachable_cluster, "HealthSignals")["reason"], "SignalsAgree");
    let not_ready = |m2: &Value| taints(m2) == ["cluster.karmada.io/not-ready"];
    env.wait_for(&control_plane, &cluster, "", "m2", not_ready).await;
    assert!(env.event_message("ClusterFlipped", "m2").await.starts_with("Ready is False now: readyz fails since "));
    let m1 = control_plane.get(Target::new(&cluster, "", "m1")).await.unwrap().unwrap();
    assert!(condition_is(&m1, "Ready", "True") && taints(&m1).is_empty(), "{m1}");

    env.requests.set_healthy("m1", true);
    env.wait_for(&control_plane, &cluster, "", "m1", has_reason("HealthSignals", "SignalsAgree")).await;
    set_endpoint(&env, "m2", &endpoint).await;
    let is_recovered = |m2: &Value| condition_is(m2, "Ready", "True") && taints(m2).is_empty();
    env.wait_for(&control_plane, &cluster, "", "m2", is_recovered).await;

    // Two of three at once are doubted, until an administrator confirms that one of them is down.
    for name in ["m2", "m3"] {
        set_endpoint(&env, name, UNREACHABLE).await;
    }
    for name in ["m2", "m3"] {
        let doubted = env.wait_for(&control_plane, &cluster, "", name, has_reason("HealthSignals", "Doubted")).await;
        assert!(condition_is(&doubted, "Ready", "True") && taints(&doubted).is_empty(), "{doubted}");
        let message = condition(&doubted, "HealthSignals")["message"].as_str().unwrap();
        assert!(message.starts_with("2 of 3 clusters stopped responding within 60 s"), "{message}");
    }
    let confirmed = json!({"metadata": {"annotations": {"failover.crowsnest.io/confirmed-down": "true"}}});
    control_plane.merge(Target::new(&cluster, "", "m2"), &confirmed).await.unwrap();
    env.wait_for(&control_plane, &cluster, "", "m2", not_ready).await;
    env.wait_for(&control_plane, &cluster, "", "m3", not_ready).await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_a_cluster_reports_what_it_waits_for() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let by_hand = json!({
        "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": "mine", "namespace": "default"},
        "spec": {"clusters": [{"name": "m1"}],
            "resource": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "none"}},
    });
    control_plane.create(&binding(), "default", &by_hand).await.unwrap();
    let blocked_work = json!({
        "apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
        "metadata": {"name": "blocked", "namespace": "karmada-es-m1", "finalizers": ["example.com/keep"]},
        "spec": {"workload": {"manifests": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}},
        ]}},
    });
    control_plane.create(&work(), "karmada-es-m1", &blocked_work).await.unwrap();

    let (cluster, namespace) = (cluster_resource(), Resource::builtin("", "v1", "namespaces", "Namespace", false));
    control_plane.delete(Target::new(&cluster, "", "m1")).await.unwrap();
    let execution = Target::new(&namespace, "", "karmada-es-m1");
    let is_terminating = |space: &Value| space["metadata"]["deletionTimestamp"].is_string();
    let mut space = env.wait_for(&control_plane, &namespace, "", "karmada-es-m1", is_terminating).await;
    let waiting =
        env.wait_for(&control_plane, &cluster, "", "m1", has_reason("Removing", "WaitingForExecutionSpace")).await;
    let message = condition(&waiting, "Removing")["message"].as_str().unwrap();
    // The Works with RBAC rules for members are there as well, until the namespace is emptied.
    assert!(
        message.starts_with("waits for ") && message.contains("Works: blocked (blocked by finalizer example.com/keep)")
    );

    // There is no namespace controller in this test.
    let without_finalizers = json!({"metadata": {"finalizers": null}});
    control_plane.merge(Target::new(&work(), "karmada-es-m1", "blocked"), &without_finalizers).await.unwrap();
    control_plane.delete(Target::new(&work(), "karmada-es-m1", "blocked")).await.unwrap();
    space["spec"]["finalizers"] = json!([]);
    control_plane.replace(Target { subresource: Some("finalize"), ..execution }, &space).await.unwrap();
    let waiting = env.wait_for(&control_plane, &cluster, "", "m1", has_reason("Removing", "WaitingForBindings")).await;
    let message = condition(&waiting, "Removing")["message"].as_str().unwrap();
    assert_eq!(message, "waits for 1 bindings: default/mine (it has no placement)");
    assert_eq!(
        env.event_message("RemoveExecutionSpaceSucceed", "m1").await,
        "Removed execution space for cluster(m1)."
    );
    control_plane.delete(Target::new(&binding(), "default", "mine")).await.unwrap();
    env.wait_for_deletion(&control_plane, &cluster, "", "m1").await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_kind_of_a_member_is_reported_before_the_next_period() {
    let mut config = Config::conformance();
    config.periods.cluster_status = Duration::from_secs(600);
    let env = TestEnv::start_with_config(&["m1"], config).await;
    env.serve_definitions("m1").await;
    let gadgets = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]},
    });
    env.member("m1").create(&definition(), "", &gadgets).await.unwrap();
    let serves_kind = |cluster: &Value| {
        let groups = cluster["status"]["apiEnablements"].as_array();
        groups.into_iter().flatten().any(|group| group["groupVersion"] == "example.com/v1")
    };
    env.wait_for(&env.objects(), &cluster_resource(), "", "m1", serves_kind).await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_of_an_agent_are_left_to_it_until_its_lease_expires() {
    let mut config = Config::conformance();
    config.periods.cluster_monitor = Duration::from_millis(200);
    // Long enough for the taint to be removed after the agent's only report.
    config.periods.cluster_monitor_grace = Duration::from_secs(15);
    config.periods.cluster_startup_grace = Duration::from_secs(1);
    let env = TestEnv::start_with_config(&["m1"], config).await;
    let control_plane = env.objects();
    let cluster = cluster_resource();
    let pull_cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "p1"},
        "spec": {"syncMode": "Pull", "apiEndpoint": UNREACHABLE}});
    control_plane.create(&cluster, "", &pull_cluster).await.unwrap();
    let never_reported =
        env.wait_for(&control_plane, &cluster, "", "p1", |p1| condition_is(p1, "Ready", "Unknown")).await;
    let ready = condition(&never_reported, "Ready");
    assert_eq!(ready["reason"], "ClusterStatusNeverUpdated");
    assert_eq!(ready["message"], "Cluster status controller never posted cluster status.");
    let is_unreachable = |p1: &Value| taints(p1) == ["cluster.karmada.io/unreachable"];
    env.wait_for(&control_plane, &cluster, "", "p1", |p1| taints(p1).contains(&"cluster.karmada.io/unreachable")).await;

    // The agent reports. Works of its cluster are not applied by this process.
    let reported = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "ClusterReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    control_plane.merge(Target::new(&cluster, "", "p1").status(), &reported).await.unwrap();
    env.wait_for(&control_plane, &cluster, "", "p1", |p1| taints(p1).is_empty()).await;
    let work_in = |name: &str| {
        json!({
            "apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
            "metadata": {"name": "w", "namespace": name, "finalizers": ["karmada.io/execution-controller"]},
            "spec": {"workload": {"manifests": [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}},
            ]}},
        })
    };
    for namespace in ["karmada-es-p1", "karmada-es-m1"] {
        control_plane.create(&work(), namespace, &work_in(namespace)).await.unwrap();
    }
    env.wait_for(&control_plane, &work(), "karmada-es-m1", "w", |work| condition_is(work, "Applied", "True")).await;
    control_plane.delete(Target::new(&work(), "karmada-es-p1", "w")).await.unwrap();
    env.wait_until_settled().await;
    let remaining = control_plane.get(Target::new(&work(), "karmada-es-p1", "w")).await.unwrap().unwrap();
    assert!(remaining["status"].get("conditions").is_none(), "{remaining}");

    // Its Lease keeps it alive, until it is no longer renewed.
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "p1", "namespace": "karmada-cluster"},
        "spec": {"holderIdentity": "p1", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    control_plane.create(&builtin("coordination.k8s.io", "leases", "Lease"), "karmada-cluster", &lease).await.unwrap();
    let expired = env.wait_for(&control_plane, &cluster, "", "p1", |p1| condition_is(p1, "Ready", "Unknown")).await;
    assert_eq!(condition(&expired, "Ready")["reason"], "ClusterStatusUnknown");
    env.wait_for(&control_plane, &cluster, "", "p1", is_unreachable).await;

    // Removing a cluster whose agent does not run deletes its Works.
    control_plane.delete(Target::new(&cluster, "", "p1")).await.unwrap();
    env.wait_for_deletion(&control_plane, &work(), "karmada-es-p1", "w").await;
    assert_eq!(
        env.event_message("ResourcesLeftBehind", "p1").await,
        "cluster(p1) is not ready, so these objects remain in it: 1 objects: ConfigMap/default/c"
    );
    env.stop().await;
}
