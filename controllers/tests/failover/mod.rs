//! Tests of failover: evictions, and the failback to the previous cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use crowsnest_api::names::work_name;
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crowsnest_controllers::runtime::{Config, Periods};
use crowsnest_plan::gates::Gates;
use kube::api::{ApiResource, DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom};
use crate::{binding, condition_is, deployment, merge, policy, propagation_policy, web};

fn clusters() -> Resource {
    custom("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", false)
}

fn work() -> Resource {
    custom("work.karmada.io", "v1alpha1", "works", "Work", true)
}

fn config_maps() -> Resource {
    builtin("", "configmaps", "ConfigMap")
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"k": "v"}})
}

/// The first cluster, or else the second.
fn one_or_other(first: &str, second: &str) -> Value {
    json!({"clusterAffinities": [
        {"affinityName": "one", "clusterNames": [first]}, {"affinityName": "two", "clusterNames": [second]},
    ]})
}

/// A policy that selects an object of this kind by the policy's name.
fn policy_for_object(name: &str, kind: &str, api_version: &str, placement: Value) -> Value {
    let mut policy = policy(name, kind, api_version, placement);
    policy["spec"]["resourceSelectors"][0]["name"] = json!(name);
    policy
}

async fn update_cluster(env: &TestEnv, cluster: &str, spec: Value) {
    let target = clusters();
    env.objects().merge(Target::new(&target, "", cluster), &json!({"spec": spec})).await.unwrap();
}

async fn drain(env: &TestEnv, cluster: &str) {
    update_cluster(env, cluster, json!({"taints": [{"key": "drain", "effect": "NoExecute"}]})).await;
}

fn is_in(cluster: &str) -> impl Fn(&Value) -> bool {
    move |binding| binding["spec"]["clusters"].as_array().is_some_and(|to| to.len() == 1 && to[0]["name"] == cluster)
}

/// Scheduled to one cluster, with no evictions in progress.
fn has_settled_in(cluster: &str) -> impl Fn(&Value) -> bool {
    move |binding| is_in(cluster)(binding) && binding["spec"].get("gracefulEvictionTasks").is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_without_replacement_waits_reports_why_and_is_cancelled() {
    let periods = Periods { graceful_eviction_timeout: Duration::from_secs(1), ..Config::conformance().periods };
    let env = TestEnv::start_with_config(&["m1", "m2"], Config { periods, ..Config::conformance() }).await;
    let control_plane = env.objects();
    let manifest = policy("p", "Deployment", "apps/v1", one_or_other("m1", "m2"));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&deployment(), "default", &web(2)).await.unwrap();
    let (m1, m2) = (env.member("m1"), env.member("m2"));
    let first = env.wait_for(&m1, &deployment(), "default", "web", |_| true).await;
    let status = json!({"status": {
        "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "observedGeneration": first["metadata"]["generation"],
    }});
    m1.merge(Target::new(&deployment(), "default", "web").status(), &status).await.unwrap();
    let is_healthy = |binding: &Value| binding["status"]["aggregatedStatus"][0]["health"] == "Healthy";
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_healthy).await;

    // Its replacement never becomes healthy, so the copy is kept beyond the timeout.
    drain(&env, "m1").await;
    env.wait_for(&m2, &deployment(), "default", "web", |_| true).await;
    let is_waiting = |binding: &Value| {
        let task = &binding["spec"]["gracefulEvictionTasks"][0];
        task["message"] == "no healthy replacement: it is not healthy in m2"
    };
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_waiting).await;
    let message = "Evict from cluster m1 waits: no healthy replacement: it is not healthy in m2.";
    env.wait_for_event("EvictionWaitsForReplacement", "web", message).await;

    update_cluster(&env, "m1", json!({"taints": null})).await;
    let restored = env.wait_for(&control_plane, &binding(), "default", "web-deployment", has_settled_in("m1")).await;
    assert_eq!(restored["spec"]["clusters"], json!([{"name": "m1", "replicas": 2}]));
    env.wait_for_deletion(&m2, &deployment(), "default", "web").await;
    let message = env.event_message("EvictionCancelled", "web").await;
    assert_eq!(message, "Evict from cluster m1 is cancelled: the copy has not been replaced.");
    let kept = env.wait_for(&m1, &deployment(), "default", "web", |_| true).await;
    assert_eq!(kept["metadata"]["uid"], first["metadata"]["uid"], "the copy was deleted meanwhile");

    // The scheduler keeps the cluster.
    env.wait_until_settled().await;
    env.manager.run_full_resync().await.unwrap();
    env.wait_until_settled().await;
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", has_settled_in("m1")).await;
    env.stop().await;
}

/// An environment whose workload runs in m1 with collected status, and preserves the value of this path at failover.
async fn start_with_preserved_state(json_path: &str) -> TestEnv {
    let gates = Gates { stateful_failover_injection: true, ..Config::conformance().gates };
    let env = TestEnv::start_with_config(&["m1", "m2"], Config { gates, ..Config::conformance() }).await;
    let control_plane = env.objects();
    let mut manifest = policy("p", "Deployment", "apps/v1", one_or_other("m1", "m2"));
    let rules = json!([{"aliasLabelName": "example.com/was-ready", "jsonPath": json_path}]);
    manifest["spec"]["failover"] = json!({"cluster": {"purgeMode": "Directly", "statePreservation": {"rules": rules}}});
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&deployment(), "default", &web(2)).await.unwrap();
    let m1 = env.member("m1");
    let first = env.wait_for(&m1, &deployment(), "default", "web", |_| true).await;
    let status = json!({"status": {
        "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "observedGeneration": first["metadata"]["generation"],
    }});
    m1.merge(Target::new(&deployment(), "default", "web").status(), &status).await.unwrap();
    let is_collected = |binding: &Value| binding["status"]["aggregatedStatus"][0]["status"]["readyReplicas"] == 2;
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_collected).await;
    env
}

/// `spec.failover.cluster.statePreservation`: values of the status in the previous cluster are labels in the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_an_evicted_workload_is_given_to_its_replacement() {
    let env = start_with_preserved_state("{ .readyReplicas }").await;
    let (m1, m2) = (env.member("m1"), env.member("m2"));
    // The copy is deleted after its pods. Members of this test have no garbage collector.
    drain(&env, "m1").await;
    let is_terminating = |copy: &Value| !copy["metadata"]["deletionTimestamp"].is_null();
    env.wait_for(&m1, &deployment(), "default", "web", is_terminating).await;
    merge(&m1, &deployment(), "web", json!({"metadata": {"finalizers": null}})).await;
    let has_label = |copy: &Value| copy["metadata"]["labels"]["example.com/was-ready"] == "2";
    env.wait_for(&m2, &deployment(), "default", "web", has_label).await;
    env.stop().await;
}

/// The eviction waits, and an event names the path without a value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_whose_state_cannot_be_preserved_is_not_evicted() {
    let env = start_with_preserved_state("{ .lastCheckpoint }").await;
    drain(&env, "m1").await;
    let message = env.event_message("EvictWorkloadFromClusterFailed", "web").await;
    let reason = "failed to execute jsonpath { .lastCheckpoint } on the status of Cluster(m1): no value is found";
    assert_eq!(message, format!("Evict from cluster m1 failed: {reason}."));
    env.wait_for(&env.objects(), &binding(), "default", "web-deployment", has_settled_in("m1")).await;
    env.stop().await;
}

/// Sets the Ready condition of a cluster as Karmada's agent would.
async fn report_ready(env: &TestEnv, cluster: &str, ready: &str) {
    let condition = json!({"type": "Ready", "status": ready, "reason": "TestReport", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let (objects, clusters) = (env.objects(), clusters());
    let target = Target::new(&clusters, "", cluster).status();
    objects.merge(target, &json!({"status": {"conditions": [condition]}})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evictions_from_clusters_that_are_not_ready_halt_while_most_are_not() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    for (name, first, second) in [("app", "m1", "m2"), ("drained", "m2", "p1")] {
        control_plane.create(&config_maps(), "default", &config_map(name)).await.unwrap();
        let manifest = policy_for_object(name, "ConfigMap", "v1", one_or_other(first, second));
        control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
        env.wait_for(&env.member(first), &config_maps(), "default", name, |_| true).await;
    }
    update_cluster(&env, "m1", json!({"apiEndpoint": "https://127.0.0.1:1"})).await;
    env.wait_for(&control_plane, &clusters(), "", "m1", |cluster| condition_is(cluster, "Ready", "False")).await;
    for name in ["p1", "p2"] {
        let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name}, "spec": {"syncMode": "Pull"}});
        control_plane.create(&clusters(), "", &cluster).await.unwrap();
        report_ready(&env, name, "False").await;
    }
    drain(&env, "m1").await;
    let is_halted = |cluster: &Value| condition_is(cluster, "EvictionsHalted", "True");
    env.wait_for(&control_plane, &clusters(), "", "m1", is_halted).await;
    let message = env.event_message("EvictionsHalted", "m1").await;
    assert!(message.starts_with("evictions from clusters that are not ready are halted: "), "{message}");
    env.wait_until_settled().await;
    env.wait_for(&control_plane, &binding(), "default", "app-configmap", has_settled_in("m1")).await;

    // The cluster that an administrator drains is ready, so evictions from it continue.
    drain(&env, "m2").await;
    let is_evicting = |binding: &Value| binding["spec"]["gracefulEvictionTasks"][0]["fromCluster"] == "m2";
    env.wait_for(&control_plane, &binding(), "default", "drained-configmap", is_evicting).await;
    update_cluster(&env, "m2", json!({"taints": null})).await;
    env.wait_for(&control_plane, &binding(), "default", "drained-configmap", has_settled_in("m2")).await;
    env.wait_for(&control_plane, &binding(), "default", "app-configmap", has_settled_in("m1")).await;

    for name in ["p1", "p2"] {
        report_ready(&env, name, "True").await;
    }
    env.wait_for(&control_plane, &binding(), "default", "app-configmap", is_in("m2")).await;
    let is_resumed = |cluster: &Value| !condition_is(cluster, "EvictionsHalted", "True");
    env.wait_for(&control_plane, &clusters(), "", "m1", is_resumed).await;
    env.stop().await;
}

/// Creates a ConfigMap, and a policy with the same name that requests failback.
async fn create_with_failback(env: &TestEnv, name: &str, when: &str) {
    let control_plane = env.objects();
    control_plane.create(&config_maps(), "default", &config_map(name)).await.unwrap();
    let mut manifest = policy_for_object(name, "ConfigMap", "v1", one_or_other("m1", "m2"));
    manifest["metadata"]["annotations"] = json!({"failover.crowsnest.io/return": when});
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    env.wait_for(&env.member("m1"), &config_maps(), "default", name, |_| true).await;
}

fn has_original_placement(binding: &Value) -> bool {
    let original = binding["metadata"]["annotations"]["failover.crowsnest.io/home"].as_str();
    let original = original.map(|original| serde_json::from_str::<Value>(original).unwrap());
    original.is_some_and(|original| original == json!({"clusters": [{"name": "m1"}], "affinityName": "one"}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_fail_back_one_by_one() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    create_with_failback(&env, "a", "after=0s,rate=1/h").await;
    create_with_failback(&env, "b", "after=1h").await;
    drain(&env, "m1").await;
    let has_moved = |binding: &Value| has_settled_in("m2")(binding) && has_original_placement(binding);
    for name in ["a-configmap", "b-configmap"] {
        env.wait_for(&control_plane, &binding(), "default", name, has_moved).await;
    }
    let m2 = env.member("m2");
    env.wait_for(&m2, &config_maps(), "default", "a", |_| true).await;

    update_cluster(&env, "m1", json!({"taints": null})).await;
    let is_home = |binding: &Value| {
        let annotations = &binding["metadata"]["annotations"];
        has_settled_in("m1")(binding) && annotations.get("failover.crowsnest.io/home").is_none()
    };
    env.wait_for(&control_plane, &binding(), "default", "a-configmap", is_home).await;
    env.wait_for_deletion(&m2, &config_maps(), "default", "a").await;
    env.wait_for(&env.member("m1"), &config_maps(), "default", "a", |_| true).await;
    let message = env.event_message("ReturnHome", "a").await;
    assert_eq!(message, "Failing back to m1: healthy again for long enough.");

    // One has failed back, so the next one waits for the rate, even if its delay has passed.
    let request = |when: &str| json!({"metadata": {"annotations": {"failover.crowsnest.io/return": when}}});
    merge(&control_plane, &propagation_policy(), "b", request("after=0s,rate=1/h")).await;
    env.wait_until_settled().await;
    env.manager.run_full_resync().await.unwrap();
    env.wait_until_settled().await;
    env.wait_for(&control_plane, &binding(), "default", "b-configmap", has_moved).await;
    merge(&control_plane, &propagation_policy(), "b", request("after=0s,rate=100/s")).await;
    env.wait_until_settled().await;
    env.manager.run_full_resync().await.unwrap();
    env.wait_for(&control_plane, &binding(), "default", "b-configmap", is_home).await;
    env.stop().await;
}

/// In Karmada, application failover has no feature gate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unhealthy_workload_fails_over_with_default_feature_gates() {
    let env =
        TestEnv::start_with_config(&["m1", "m2"], Config { gates: Gates::default(), ..Config::conformance() }).await;
    let control_plane = env.objects();
    let mut manifest = policy("p", "Deployment", "apps/v1", one_or_other("m1", "m2"));
    manifest["spec"]["propagateDeps"] = true.into();
    let application = json!({"decisionConditions": {"tolerationSeconds": 0}, "purgeMode": "Gracefully"});
    manifest["spec"]["failover"] = json!({"application": application});
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&deployment(), "default", &web(1)).await.unwrap();
    let (m1, m2) = (env.member("m1"), env.member("m2"));
    let copy = env.wait_for(&m1, &deployment(), "default", "web", |_| true).await;
    let status = |ready: i32, copy: &Value| {
        json!({"status": {"replicas": 1, "updatedReplicas": 1, "readyReplicas": ready, "availableReplicas": ready,
            "observedGeneration": copy["metadata"]["generation"]}})
    };
    m1.merge(Target::new(&deployment(), "default", "web").status(), &status(1, &copy)).await.unwrap();
    let is_healthy = |binding: &Value| binding["status"]["aggregatedStatus"][0]["health"] == "Healthy";
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_healthy).await;
    m1.merge(Target::new(&deployment(), "default", "web").status(), &status(0, &copy)).await.unwrap();
    let replacement = env.wait_for(&m2, &deployment(), "default", "web", |_| true).await;
    let is_evicting = |binding: &Value| {
        let task = &binding["spec"]["gracefulEvictionTasks"][0];
        is_in("m2")(binding) && task["fromCluster"] == "m1" && task["reason"] == "ApplicationFailure"
    };
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_evicting).await;
    m2.merge(Target::new(&deployment(), "default", "web").status(), &status(1, &replacement)).await.unwrap();
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", has_settled_in("m2")).await;
    env.wait_for_deletion(&m1, &deployment(), "default", "web").await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exclusive_workload_starts_only_where_no_other_copy_runs() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    let mut template = web(1);
    template["metadata"]["annotations"] = json!({"failover.crowsnest.io/exclusive": "true"});
    let manifest = policy("p", "Deployment", "apps/v1", one_or_other("m1", "m2"));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&deployment(), "default", &template).await.unwrap();
    let (m1, m2) = (env.member("m1"), env.member("m2"));
    env.wait_for(&m1, &deployment(), "default", "web", |_| true).await;
    let pods = builtin("", "pods", "Pod");
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx:1.25"}]}});
    m1.create(&pods, "default", &pod).await.unwrap();

    // It waits for its dependents. The test acts as the garbage collector of the member.
    drain(&env, "m1").await;
    let is_waiting_for_dependents = |object: &Value| object["metadata"]["finalizers"] == json!(["foregroundDeletion"]);
    env.wait_for(&m1, &deployment(), "default", "web", is_waiting_for_dependents).await;
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_in("m2")).await;
    env.wait_until_settled().await;
    let exists = |member: DynamicClient| async move {
        member.get(Target::new(&deployment(), "default", "web")).await.unwrap().is_some()
    };
    assert!(!exists(m2.clone()).await, "the workload runs in both clusters");
    merge(&m1, &deployment(), "web", json!({"metadata": {"finalizers": null}})).await;
    env.wait_for_deletion(&m1, &deployment(), "default", "web").await;
    env.wait_until_settled().await;
    assert!(!exists(m2.clone()).await, "it runs beside a pod that has not stopped");
    m1.delete(Target::new(&pods, "default", "web-1")).await.unwrap();
    env.wait_for(&m2, &deployment(), "default", "web", |_| true).await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_annotations_of_policies_and_bindings_take_effect_immediately() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    let manifest = policy("p", "ConfigMap", "v1", one_or_other("m1", "m2"));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&config_maps(), "default", &config_map("a")).await.unwrap();
    let name = work_name("ConfigMap", "a", "default");
    let has_annotation = |expected: bool| {
        move |work: &Value| work["metadata"]["annotations"].get("failover.crowsnest.io/exclusive").is_some() == expected
    };
    env.wait_for(&control_plane, &work(), "karmada-es-m1", &name, has_annotation(false)).await;
    env.wait_until_settled().await;
    let annotate = |value: Value| json!({"metadata": {"annotations": {"failover.crowsnest.io/exclusive": value}}});
    for (resource, object) in [(propagation_policy(), "p"), (binding(), "a-configmap")] {
        for value in [json!("true"), Value::Null] {
            let expected = !value.is_null();
            control_plane.merge(Target::new(&resource, "default", object), &annotate(value)).await.unwrap();
            env.wait_for(&control_plane, &work(), "karmada-es-m1", &name, has_annotation(expected)).await;
        }
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_evictions_are_karmadas() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    let manifest = policy("p", "ConfigMap", "v1", one_or_other("m1", "m2"));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&config_maps(), "default", &config_map("a")).await.unwrap();
    env.wait_for(&control_plane, &binding(), "default", "a-configmap", is_in("m1")).await;
    env.wait_until_settled().await;
    drain(&env, "m1").await;
    env.wait_for(&control_plane, &binding(), "default", "a-configmap", has_settled_in("m2")).await;
    env.wait_until_settled().await;
    let mut text = String::new();
    env.manager.metrics().write(&mut text).unwrap();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok())
    };
    assert!(value("eviction_processing_total{name=\"binding-eviction\",result=\"success\"}") >= Some(1.0), "{text}");
    assert!(value("eviction_processing_latency_seconds_count{name=\"binding-eviction\"}") >= Some(1.0), "{text}");
    assert_eq!(value("eviction_queue_depth{name=\"binding-eviction\"}"), Some(0.0), "{text}");
    assert!(value("policy_apply_attempts_total{result=\"success\"}") >= Some(1.0), "{text}");
    assert!(value("work_sync_workload_duration_seconds_count{result=\"success\"}") >= Some(2.0), "{text}");
    for member in ["m1", "m2"] {
        assert_eq!(value(&format!("cluster_ready_state{{member_cluster=\"{member}\"}}")), Some(1.0), "{text}");
        let kind = format!("result=\"success\",apiversion=\"v1\",kind=\"ConfigMap\",member_cluster=\"{member}\"");
        let created = format!("create_resource_to_cluster{{{kind},recreate=\"false\"}}");
        assert!(value(&created) >= Some(1.0), "{created} in {text}");
        let deleted = value(&format!("delete_resource_from_cluster{{{kind}}}"));
        assert_eq!(deleted.is_some(), member == "m1", "of {member} in {text}");
    }
    let changed = json!({"data": {"a": "another"}});
    control_plane.merge(Target::new(&config_maps(), "default", "a"), &changed).await.unwrap();
    let is_updated = |object: &Value| object["data"]["a"] == "another";
    env.wait_for(&env.member("m2"), &config_maps(), "default", "a", is_updated).await;
    env.wait_until_idle().await;
    let updated = "update_resource_to_cluster{result=\"success\",apiversion=\"v1\",kind=\"ConfigMap\",\
        member_cluster=\"m2\",operationResult=\"updated\"}";
    assert!(env.metric_sum(updated) >= 1.0);
    env.stop().await;
}

/// The resourceVersions of all bindings.
async fn resource_versions(env: &TestEnv) -> BTreeMap<String, String> {
    let kind = kube::api::GroupVersionKind::gvk("work.karmada.io", "v1alpha2", "ResourceBinding");
    let kind = ApiResource::from_gvk_with_plural(&kind, "resourcebindings");
    let api: kube::Api<DynamicObject> = kube::Api::namespaced_with(env.control_plane.admin(), "default", &kind);
    let all = api.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().map(|one| (one.metadata.name.unwrap(), one.metadata.resource_version.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taint_affects_only_bindings_that_do_not_tolerate_it() {
    const EACH: usize = 70;
    let env = TestEnv::start(&["m1", "m2", "m3"]).await;
    let control_plane = env.objects();
    let tolerating =
        json!({"clusterAffinity": {"clusterNames": ["m1"]}, "clusterTolerations": [{"operator": "Exists"}]});
    let elsewhere = json!({"clusterAffinity": {"clusterNames": ["m3"]}});
    for (group, placement) in
        [("moving", one_or_other("m1", "m2")), ("tolerating", tolerating), ("elsewhere", elsewhere)]
    {
        let mut manifest = policy(group, "ConfigMap", "v1", placement);
        manifest["spec"]["resourceSelectors"][0]["labelSelector"] = json!({"matchLabels": {"group": group}});
        control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
        for number in 0..EACH {
            let mut template = config_map(&format!("{group}-{number}"));
            template["metadata"]["labels"] = json!({"group": group});
            control_plane.create(&config_maps(), "default", &template).await.unwrap();
        }
    }
    for group in ["moving", "tolerating", "elsewhere"] {
        for number in 0..EACH {
            let name = format!("{group}-{number}-configmap");
            let applied = |binding: &Value| condition_is(binding, "FullyApplied", "True");
            env.wait_for(&control_plane, &binding(), "default", &name, applied).await;
        }
    }
    env.wait_until_settled().await;
    let before = resource_versions(&env).await;
    assert_eq!(before.len(), 3 * EACH);
    drain(&env, "m1").await;
    for number in 0..EACH {
        let name = format!("moving-{number}-configmap");
        env.wait_for(&control_plane, &binding(), "default", &name, has_settled_in("m2")).await;
    }
    env.wait_until_settled().await;
    let after = resource_versions(&env).await;
    let written = before.iter().filter(|(name, version)| after.get(*name) != Some(*version));
    let written: Vec<&String> = written.map(|(name, _)| name).filter(|name| !name.starts_with("moving")).collect();
    assert!(written.is_empty(), "written: {written:?}");
    env.stop().await;
}
