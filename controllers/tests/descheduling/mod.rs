//! The descheduler moves unschedulable replicas to another cluster.

use std::time::Duration;

use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crowsnest_controllers::runtime::{Config, Periods};
use serde_json::{Value, json};

use crate::scheduling::{add_node, clusters, deployment_with_requests, dynamic_weight, reports_cpu};
use crate::test_env::{TestEnv, builtin, custom};
use crate::{binding, deployment, policy, propagation_policy};

fn replica_sets() -> Resource {
    builtin("apps", "replicasets", "ReplicaSet")
}

fn pods() -> Resource {
    custom("", "v1", "pods", "Pod", true)
}

/// Replicas that the scheduler assigned, by cluster.
fn assigned_replicas(binding: &Value) -> Vec<(&str, i64)> {
    let targets = binding["spec"]["clusters"].as_array();
    targets
        .into_iter()
        .flatten()
        .filter_map(|target| Some((target["name"].as_str()?, target["replicas"].as_i64()?)))
        .collect()
}

/// Ready replicas that a cluster reported.
fn ready_replicas(binding: &Value, cluster: &str) -> Option<i64> {
    let mut items = binding["status"]["aggregatedStatus"].as_array()?.iter();
    items.find(|item| item["clusterName"] == cluster)?["status"]["readyReplicas"].as_i64()
}

/// Creates a pod in a member, with a status.
async fn add_pod(member: &DynamicClient, name: &str, node: &str, cpu: &str, owner: Option<&Value>, status: Value) {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "web", "image": "nginx:1.25", "resources": {"requests": {"cpu": cpu}}}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        }]);
    }
    member.create(&pods(), "default", &pod).await.unwrap();
    member.merge(Target::new(&pods(), "default", name).status(), &json!({"status": status})).await.unwrap();
}

/// Creates the ReplicaSet that the Deployment controller would create.
async fn add_replica_set(member: &DynamicClient, deployment: &Value) -> Value {
    let mut template = deployment["spec"]["template"].clone();
    template["metadata"]["labels"]["pod-template-hash"] = json!("1");
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"app": "web", "pod-template-hash": "1"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "controller": true,
                "name": "web", "uid": deployment["metadata"]["uid"],
            }]},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web", "pod-template-hash": "1"}}, "template": template},
    });
    member.create(&replica_sets(), "default", &set).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unschedulable_replicas_move_to_another_cluster() {
    let periods = Periods {
        descheduling: Duration::from_millis(200),
        unschedulable_threshold: Duration::ZERO,
        ..Config::conformance().periods
    };
    let env = TestEnv::start_with_config(&["m1", "m2"], Config { periods, ..Config::conformance() }).await;
    let control_plane = env.objects();
    for name in ["m1", "m2"] {
        add_node(&env.member(name), "n1", "4").await;
        env.wait_for(&control_plane, &clusters(), "", name, reports_cpu("4")).await;
    }
    control_plane
        .create(&propagation_policy(), "default", &policy("p", "Deployment", "apps/v1", dynamic_weight()))
        .await
        .unwrap();
    control_plane.create(&deployment(), "default", &deployment_with_requests("web", 4)).await.unwrap();
    let is_divided = |binding: &Value| assigned_replicas(binding) == [("m1", 2), ("m2", 2)];
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_divided).await;

    // Another pod uses most of the node, so that one of two pods is unschedulable.
    let member = env.member("m1");
    add_pod(&member, "other", "n1", "3", None, json!({"phase": "Running"})).await;
    let applied = env.wait_for(&member, &deployment(), "default", "web", |_| true).await;
    let set = add_replica_set(&member, &applied).await;
    add_pod(&member, "web-1-a", "n1", "1", Some(&set), json!({"phase": "Running"})).await;
    let status = json!({"status": {"replicas": 2, "readyReplicas": 1, "unavailableReplicas": 1}});
    member.merge(Target::new(&deployment(), "default", "web").status(), &status).await.unwrap();
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", |binding| {
        ready_replicas(binding, "m1") == Some(1)
    })
    .await;
    let unschedulable = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]});
    add_pod(&member, "web-1-b", "", "1", Some(&set), unschedulable).await;

    let has_moved = |binding: &Value| assigned_replicas(binding) == [("m1", 1), ("m2", 3)];
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", has_moved).await;
    env.wait_for(&member, &deployment(), "default", "web", |web| web["spec"]["replicas"] == 1).await;
    env.wait_for(&env.member("m2"), &deployment(), "default", "web", |web| web["spec"]["replicas"] == 3).await;
    env.stop().await;
}
