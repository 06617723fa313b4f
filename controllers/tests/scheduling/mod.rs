//! Scheduling by the free capacity of members: nodes, reservations and estimators.

use crowsnest_api::estimator as wire;
use crowsnest_controllers::estimator::{EstimatorOptions, Estimators};
use crowsnest_controllers::runtime::Config;
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use serde_json::{Value, json};
use tonic_prost::ProstCodec;

use crate::test_env::{TestEnv, builtin, custom};
use crate::{binding, condition_is, deployment, policy, propagation_policy};

fn nodes() -> Resource {
    custom("", "v1", "nodes", "Node", false)
}

/// Creates a node in a member and then sets its status, which the API server ignores in a create request.
pub async fn add_node(member: &DynamicClient, name: &str, cpu: &str) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    member.create(&nodes(), "", &node).await.unwrap();
    let status = json!({"status": {
        "allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    member.merge(Target::new(&nodes(), "", name).status(), &status).await.unwrap();
}

pub fn deployment_with_requests(name: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [
                {"name": "web", "image": "nginx:1.25", "resources": {"requests": {"cpu": "1"}}},
            ]},
        }},
    })
}

/// A placement that divides replicas by the available replicas of the clusters.
pub fn dynamic_weight() -> Value {
    json!({"replicaScheduling": {
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"},
    }})
}

/// Starts an environment with one member, whose Cluster reports this CPU capacity, and a policy for Deployments.
async fn start_with_cpu(cpu: &str) -> TestEnv {
    let env = TestEnv::start(&["m1"]).await;
    add_node(&env.member("m1"), "n1", cpu).await;
    env.wait_for(&env.objects(), &clusters(), "", "m1", reports_cpu(cpu)).await;
    let policy = policy("p", "Deployment", "apps/v1", dynamic_weight());
    env.objects().create(&propagation_policy(), "default", &policy).await.unwrap();
    env
}

pub fn clusters() -> Resource {
    custom("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", false)
}

pub fn reports_cpu(cpu: &str) -> impl Fn(&Value) -> bool {
    move |cluster| cluster["status"]["resourceSummary"]["allocatable"]["cpu"] == cpu
}

fn is_scheduled(binding: &Value) -> bool {
    condition_is(binding, "Scheduled", "True")
}

fn is_unschedulable(binding: &Value) -> bool {
    let conditions = binding["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["reason"] == "Unschedulable")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_that_does_not_fit_is_scheduled_once_there_is_capacity() {
    let env = start_with_cpu("2").await;
    let control_plane = env.objects();
    control_plane.create(&deployment(), "default", &deployment_with_requests("web", 3)).await.unwrap();
    env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_unschedulable).await;
    add_node(&env.member("m1"), "n2", "2").await;
    let scheduled = env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_scheduled).await;
    assert_eq!(scheduled["spec"]["clusters"], json!([{"name": "m1", "replicas": 3}]));
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_workloads_share_the_capacity() {
    let env = start_with_cpu("3").await;
    let control_plane = env.objects();
    // No pods are created, so only reservations show that the capacity is used.
    for name in ["a", "b", "c"] {
        control_plane.create(&deployment(), "default", &deployment_with_requests(name, 2)).await.unwrap();
    }
    let mut scheduled = 0;
    let is_decided = |binding: &Value| is_scheduled(binding) || is_unschedulable(binding);
    for name in ["a", "b", "c"] {
        let binding =
            env.wait_for(&control_plane, &binding(), "default", &format!("{name}-deployment"), is_decided).await;
        if is_scheduled(&binding) {
            scheduled += 1;
        }
    }
    assert_eq!(scheduled, 1, "only one workload with two replicas fits into three CPUs");
    env.stop().await;
}

type Codec = ProstCodec<wire::MaxAvailableReplicasResponse, wire::MaxAvailableReplicasRequest>;

/// Starts a scheduler estimator with a fixed result. Returns its port.
async fn start_estimator(max_replicas: i32) -> u16 {
    let handler = move |request: axum::extract::Request| async move {
        let service = tower::service_fn(move |_: tonic::Request<wire::MaxAvailableReplicasRequest>| async move {
            Ok::<_, tonic::Status>(tonic::Response::new(wire::MaxAvailableReplicasResponse { max_replicas }))
        });
        tonic::server::Grpc::new(Codec::default()).unary(service, request).await.map(axum::body::Body::new)
    };
    let routes = axum::Router::new().route(wire::MAX_AVAILABLE_REPLICAS, axum::routing::post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lower_estimates_of_estimators_take_effect() {
    let estimators = Some(Estimators::new(EstimatorOptions::default()).unwrap());
    let env = TestEnv::start_with_config(&["m1", "m2"], Config { estimators, ..Config::conformance() }).await;
    let control_plane = env.objects();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-system"}});
    control_plane.create(&custom("", "v1", "namespaces", "Namespace", false), "", &namespace).await.unwrap();
    // The estimator of m2 is unreachable, so m2 has only the built-in estimate.
    let reachable = json!({"type": "ExternalName", "externalName": "127.0.0.1",
        "ports": [{"port": 10352, "targetPort": start_estimator(1).await}]});
    let unreachable = json!({"type": "ClusterIP", "ports": [{"port": 10352}]});
    for (name, spec) in [("m1", reachable), ("m2", unreachable)] {
        let service = json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
            "metadata": {"name": format!("karmada-scheduler-estimator-{name}"), "namespace": "karmada-system"}});
        control_plane.create(&builtin("", "services", "Service"), "karmada-system", &service).await.unwrap();
        add_node(&env.member(name), "n1", "4").await;
        env.wait_for(&control_plane, &clusters(), "", name, reports_cpu("4")).await;
    }
    let policy = policy("p", "Deployment", "apps/v1", dynamic_weight());
    control_plane.create(&propagation_policy(), "default", &policy).await.unwrap();
    env.wait_until_settled().await;
    control_plane.create(&deployment(), "default", &deployment_with_requests("web", 4)).await.unwrap();
    let scheduled = env.wait_for(&control_plane, &binding(), "default", "web-deployment", is_scheduled).await;
    let expected = json!([{"name": "m1", "replicas": 1}, {"name": "m2", "replicas": 3}]);
    assert_eq!(scheduled["spec"]["clusters"], expected);
    env.stop().await;
}
