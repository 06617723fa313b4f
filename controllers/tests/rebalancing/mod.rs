//! Moving replicas after the first scheduling: WorkloadRebalancers, and autoscalers in members.

use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom};
use crate::{binding, merge, policy, propagation_policy};

const RETAIN: &str = "resourcetemplate.karmada.io/retain-replicas";

fn rebalancer_resource() -> Resource {
    custom("apps.karmada.io", "v1alpha1", "workloadrebalancers", "WorkloadRebalancer", false)
}

fn config_maps(names: &[&str]) -> Value {
    let workload = |name: &&str| json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": name});
    names.iter().map(workload).collect()
}

/// Name, result and reason of every observed workload.
fn results(rebalancer: &Value) -> Vec<[&str; 3]> {
    let observed = rebalancer["status"]["observedWorkloads"].as_array();
    observed
        .into_iter()
        .flatten()
        .map(|item| [&item["workload"]["name"], &item["result"], &item["reason"]].map(|v| v.as_str().unwrap_or("")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebalancer_triggers_bindings_reports_results_and_is_deleted() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let config_map = builtin("", "configmaps", "ConfigMap");
    let manifest = policy("p", "ConfigMap", "v1", json!({"clusterAffinity": {"clusterNames": ["m1"]}}));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    for name in ["a", "b"] {
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"}, "data": {"k": "v"}});
        control_plane.create(&config_map, "default", &template).await.unwrap();
        let scheduled = |object: &Value| object["spec"]["clusters"] == json!([{"name": "m1"}]);
        env.wait_for(&control_plane, &binding(), "default", &format!("{name}-configmap"), scheduled).await;
    }

    let resource = rebalancer_resource();
    let rebalancer = json!({"apiVersion": "apps.karmada.io/v1alpha1", "kind": "WorkloadRebalancer",
        "metadata": {"name": "r"}, "spec": {"workloads": config_maps(&["none", "a"])}});
    control_plane.create(&resource, "", &rebalancer).await.unwrap();
    let finished = |generation: i64| {
        move |object: &Value| {
            // The finish time is kept until the next one.
            object["status"]["observedGeneration"] == generation
                && object["status"]["finishTime"].is_string()
                && results(object).iter().all(|[_, result, _]| !result.is_empty())
        }
    };
    let done = env.wait_for(&control_plane, &resource, "", "r", finished(1)).await;
    assert_eq!(results(&done), [["a", "Successful", ""], ["none", "Failed", "ReferencedBindingNotFound"]]);
    let created = &done["metadata"]["creationTimestamp"];
    let triggered = |object: &Value| object["spec"]["rescheduleTriggeredAt"] == *created;
    env.wait_for(&control_plane, &binding(), "default", "a-configmap", triggered).await;

    // Workloads that are removed from the spec keep their result only if they were rescheduled.
    let edit = json!({"spec": {"workloads": config_maps(&["b"])}});
    control_plane.merge(Target::new(&resource, "", "r"), &edit).await.unwrap();
    let done = env.wait_for(&control_plane, &resource, "", "r", finished(2)).await;
    assert_eq!(results(&done), [["a", "Successful", ""], ["b", "Successful", ""]]);

    // A full resync writes nothing.
    env.wait_until_settled().await;
    let before = env.last_writes();
    env.manager.run_full_resync().await.unwrap();
    env.wait_until_settled().await;
    assert_eq!(before, env.last_writes(), "a full resync wrote something");

    let short_lived = json!({"spec": {"ttlSecondsAfterFinished": 0}});
    control_plane.merge(Target::new(&resource, "", "r"), &short_lived).await.unwrap();
    env.wait_for_deletion(&control_plane, &resource, "", "r").await;
    env.stop().await;
}

fn deployment(replicas: i64, labels: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "labels": labels},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1.25"}]},
        }},
    })
}

fn is_retained(object: &Value) -> bool {
    object["metadata"]["labels"][RETAIN] == "true"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_an_autoscalers_target_are_retained_in_the_member() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let m1 = env.member("m1");
    let deployments = builtin("apps", "deployments", "Deployment");
    let autoscalers = custom("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true);
    for (name, kind, api_version) in
        [("p", "Deployment", "apps/v1"), ("h", "HorizontalPodAutoscaler", "autoscaling/v2")]
    {
        let manifest = policy(name, kind, api_version, json!({"clusterAffinity": {"clusterNames": ["m1"]}}));
        control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    }
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h", "namespace": "default"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 9},
    });
    control_plane.create(&autoscalers, "default", &autoscaler).await.unwrap();
    env.wait_for(&m1, &autoscalers, "default", "h", |_| true).await;

    // The target is created after its autoscaler.
    control_plane.create(&deployments, "default", &deployment(2, json!({}))).await.unwrap();
    env.wait_for(&control_plane, &deployments, "default", "web", is_retained).await;
    env.wait_for(&m1, &deployments, "default", "web", is_retained).await;
    merge(&m1, &deployments, "web", json!({"spec": {"replicas": 4}})).await;
    merge(&control_plane, &deployments, "web", json!({"spec": {"minReadySeconds": 1}})).await;
    let edited = |object: &Value| object["spec"]["minReadySeconds"] == 1;
    let member = env.wait_for(&m1, &deployments, "default", "web", edited).await;
    assert_eq!(member["spec"]["replicas"], 4);

    let scale = |name: &str| json!({"spec": {"scaleTargetRef": {"name": name}}});
    merge(&control_plane, &autoscalers, "h", scale("other")).await;
    env.wait_for(&control_plane, &deployments, "default", "web", |object| !is_retained(object)).await;
    merge(&control_plane, &autoscalers, "h", scale("web")).await;
    env.wait_for(&control_plane, &deployments, "default", "web", is_retained).await;
    control_plane.delete(Target::new(&autoscalers, "default", "h")).await.unwrap();
    env.wait_for(&control_plane, &deployments, "default", "web", |object| !is_retained(object)).await;
    env.stop().await;
}

/// Sets the replicas and status in a member, as an autoscaler and the Deployment controller would.
async fn scale(member: &DynamicClient, deployments: &Resource, replicas: i64) {
    let target = Target::new(deployments, "default", "web");
    let scaled = member.merge(target, &json!({"spec": {"replicas": replicas}})).await.unwrap();
    let status = json!({"status": {
        "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        "observedGeneration": scaled["metadata"]["generation"],
    }});
    member.merge(target.status(), &status).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_divided_deployment_takes_over_the_replicas_of_its_members() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    let deployments = builtin("apps", "deployments", "Deployment");
    let weight = |name: &str| json!({"targetCluster": {"clusterNames": [name]}, "weight": 1});
    let divided = json!({"replicaScheduling": {
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": [weight("m1"), weight("m2")]},
    }});
    control_plane
        .create(&propagation_policy(), "default", &policy("p", "Deployment", "apps/v1", divided))
        .await
        .unwrap();
    control_plane.create(&deployments, "default", &deployment(4, json!({RETAIN: "true"}))).await.unwrap();
    for (name, replicas) in [("m1", 3), ("m2", 5)] {
        let member = env.member(name);
        env.wait_for(&member, &deployments, "default", "web", |object| object["spec"]["replicas"] == 2).await;
        scale(&member, &deployments, replicas).await;
    }
    let followed = |object: &Value| object["spec"]["replicas"] == 8 && object["status"]["replicas"] == 8;
    env.wait_for(&control_plane, &deployments, "default", "web", followed).await;
    let known = |object: &Value| object["spec"]["replicas"] == 8;
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", known).await;
    env.wait_until_idle().await;
    for (name, replicas) in [("m1", 3), ("m2", 5)] {
        let member = env.member(name);
        env.wait_for(&member, &deployments, "default", "web", |object| object["spec"]["replicas"] == replicas).await;
    }
    env.stop().await;
}
