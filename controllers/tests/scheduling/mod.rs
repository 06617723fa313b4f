//! Who gets a member's room, and who waits for it.

use crowsnest_controllers::act::objects::{Objects, Resource, Target};
use serde_json::{Value, json};

use crate::home::{Home, custom};
use crate::{binding, condition_is, deployment, policy, propagation_policy};

fn nodes() -> Resource {
    custom("", "v1", "nodes", "Node", false)
}

/// A node of a member; its status is not kept when it is created.
pub async fn add_node(member: &Objects, name: &str, cpu: &str) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    member.create(&nodes(), "", &node).await.unwrap();
    let status = json!({"status": {
        "allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    member.merge(Target::new(&nodes(), "", name).status(), &status).await.unwrap();
}

pub fn asking(name: &str, replicas: i32) -> Value {
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

pub fn dynamic() -> Value {
    json!({"replicaScheduling": {
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"},
    }})
}

/// A member whose cluster tells of so much cpu.
async fn with_cpu(cpu: &str) -> Home {
    let home = Home::start(&["m1"]).await;
    add_node(&home.member("m1"), "n1", cpu).await;
    home.when(&home.objects(), &clusters(), "", "m1", tells(cpu)).await;
    let wanted = policy("p", "Deployment", "apps/v1", dynamic());
    home.objects().create(&propagation_policy(), "default", &wanted).await.unwrap();
    home
}

pub fn clusters() -> Resource {
    custom("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", false)
}

pub fn tells(cpu: &str) -> impl Fn(&Value) -> bool {
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
async fn what_fits_nowhere_goes_out_once_there_is_room() {
    let home = with_cpu("2").await;
    let control_plane = home.objects();
    control_plane.create(&deployment(), "default", &asking("web", 3)).await.unwrap();
    home.when(&control_plane, &binding(), "default", "web-deployment", is_unschedulable).await;
    add_node(&home.member("m1"), "n2", "2").await;
    let scheduled = home.when(&control_plane, &binding(), "default", "web-deployment", is_scheduled).await;
    assert_eq!(scheduled["spec"]["clusters"], json!([{"name": "m1", "replicas": 3}]));
    home.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_shares_the_room_there_is() {
    let home = with_cpu("3").await;
    let control_plane = home.objects();
    // Nobody runs their pods, so nothing but promises tells that the room is taken.
    for name in ["a", "b", "c"] {
        control_plane.create(&deployment(), "default", &asking(name, 2)).await.unwrap();
    }
    let mut got = 0;
    let decided = |binding: &Value| is_scheduled(binding) || is_unschedulable(binding);
    for name in ["a", "b", "c"] {
        let binding = home.when(&control_plane, &binding(), "default", &format!("{name}-deployment"), decided).await;
        if is_scheduled(&binding) {
            got += 1;
        }
    }
    assert_eq!(got, 1, "two of three cpus are promised once");
    home.stop().await;
}
