//! What moves replicas after the first schedule: rebalancers.

use crowsnest_controllers::act::objects::{Resource, Target};
use serde_json::{Value, json};

use crate::home::{Home, builtin, custom};
use crate::{binding, policy, propagation_policy};

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
async fn a_rebalancer_triggers_bindings_reports_and_goes() {
    let home = Home::start(&["m1"]).await;
    let control_plane = home.objects();
    let config_map = builtin("", "configmaps", "ConfigMap");
    let wanted = policy("p", "ConfigMap", "v1", json!({"clusterAffinity": {"clusterNames": ["m1"]}}));
    control_plane.create(&propagation_policy(), "default", &wanted).await.unwrap();
    for name in ["a", "b"] {
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"}, "data": {"k": "v"}});
        control_plane.create(&config_map, "default", &template).await.unwrap();
        let scheduled = |object: &Value| object["spec"]["clusters"] == json!([{"name": "m1"}]);
        home.when(&control_plane, &binding(), "default", &format!("{name}-configmap"), scheduled).await;
    }

    let resource = rebalancer_resource();
    let rebalancer = json!({"apiVersion": "apps.karmada.io/v1alpha1", "kind": "WorkloadRebalancer",
        "metadata": {"name": "r"}, "spec": {"workloads": config_maps(&["none", "a"])}});
    control_plane.create(&resource, "", &rebalancer).await.unwrap();
    let finished = |generation: i64| {
        move |object: &Value| {
            object["status"]["observedGeneration"] == generation && object["status"]["finishTime"].is_string()
        }
    };
    let done = home.when(&control_plane, &resource, "", "r", finished(1)).await;
    assert_eq!(results(&done), [["a", "Successful", ""], ["none", "Failed", "ReferencedBindingNotFound"]]);
    let created = &done["metadata"]["creationTimestamp"];
    let triggered = |object: &Value| object["spec"]["rescheduleTriggeredAt"] == *created;
    home.when(&control_plane, &binding(), "default", "a-configmap", triggered).await;

    // What is asked for no more stays on record only where it was done.
    let edit = json!({"spec": {"workloads": config_maps(&["b"])}});
    control_plane.merge(Target::new(&resource, "", "r"), &edit).await.unwrap();
    let done = home.when(&control_plane, &resource, "", "r", finished(2)).await;
    assert_eq!(results(&done), [["a", "Successful", ""], ["b", "Successful", ""]]);

    // Looking at everything again writes nothing.
    home.idle().await;
    let before = home.control_plane.registry().store.revision();
    home.manager.full_pass().await.unwrap();
    home.idle().await;
    assert_eq!(before, home.control_plane.registry().store.revision(), "a second pass wrote something");

    let short_lived = json!({"spec": {"ttlSecondsAfterFinished": 0}});
    control_plane.merge(Target::new(&resource, "", "r"), &short_lived).await.unwrap();
    home.gone(&control_plane, &resource, "", "r").await;
    home.stop().await;
}
