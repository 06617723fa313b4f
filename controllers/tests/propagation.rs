//! From a policy to members and back, between real API servers in this process.

#![expect(clippy::unwrap_used, reason = "a test fails where something is missing")]

mod home;
mod rebalancing;

use home::{Home, builtin, custom};
use serde_json::{Value, json};

use crowsnest_api::names::ClusterName;
use crowsnest_controllers::act::objects::{Objects, Resource, Target};
use crowsnest_index::RecordKey;

fn policy(name: &str, kind: &str, api_version: &str, placement: Value) -> Value {
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": name, "namespace": "default", "labels": {
            "propagationpolicy.karmada.io/permanent-id": format!("id-of-{name}"),
        }},
        "spec": {"resourceSelectors": [{"apiVersion": api_version, "kind": kind, "namespace": "default"}],
            "placement": placement},
    })
}

fn propagation_policy() -> Resource {
    custom("policy.karmada.io", "v1alpha1", "propagationpolicies", "PropagationPolicy", true)
}

fn binding() -> Resource {
    custom("work.karmada.io", "v1alpha2", "resourcebindings", "ResourceBinding", true)
}

fn condition_is(object: &Value, kind: &str, status: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == kind && condition["status"] == status)
}

async fn merge(objects: &Objects, resource: &Resource, name: &str, patch: Value) {
    objects.merge(Target::new(resource, "default", name), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_map_goes_out_is_overridden_healed_and_taken_back() {
    let home = Home::start(&["m1", "m2"]).await;
    let control_plane = home.objects();
    let config_map = builtin("", "configmaps", "ConfigMap");
    let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "app", "namespace": "default"}, "data": {"a": "1", "b": "2"}});
    control_plane.create(&config_map, "default", &template).await.unwrap();
    let wanted = policy("p", "ConfigMap", "v1", json!({"clusterAffinity": {"clusterNames": ["m1", "m2"]}}));
    control_plane.create(&propagation_policy(), "default", &wanted).await.unwrap();
    for name in ["m1", "m2"] {
        let member = home.member(name);
        home.when(&member, &config_map, "default", "app", |object| object["data"]["a"] == "1").await;
    }
    let applied = |object: &Value| condition_is(object, "FullyApplied", "True");
    let bound = home.when(&control_plane, &binding(), "default", "app-configmap", applied).await;
    assert_eq!(bound["spec"]["clusters"], json!([{"name": "m1"}, {"name": "m2"}]));
    assert_eq!(bound["metadata"]["annotations"]["propagationpolicy.karmada.io/name"], "p");

    // An edit and a removed key reach every member; a member's own edit is taken back.
    merge(&control_plane, &config_map, "app", json!({"data": {"a": "9", "b": null}})).await;
    let m1 = home.member("m1");
    home.when(&m1, &config_map, "default", "app", |object| object["data"] == json!({"a": "9"})).await;
    merge(&m1, &config_map, "app", json!({"data": {"a": "drifted"}})).await;
    home.when(&m1, &config_map, "default", "app", |object| object["data"]["a"] == "9").await;
    m1.delete(Target::new(&config_map, "default", "app")).await.unwrap();
    home.when(&m1, &config_map, "default", "app", |object| object["data"]["a"] == "9").await;

    // An override changes one member only.
    let overrides = custom("policy.karmada.io", "v1alpha1", "overridepolicies", "OverridePolicy", true);
    let in_m2 = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
        "metadata": {"name": "o", "namespace": "default"},
        "spec": {"overrideRules": [{
            "targetCluster": {"clusterNames": ["m2"]},
            "overriders": {"plaintext": [{"path": "/data/a", "operator": "replace", "value": "m2"}]},
        }]},
    });
    control_plane.create(&overrides, "default", &in_m2).await.unwrap();
    let m2 = home.member("m2");
    home.when(&m2, &config_map, "default", "app", |object| object["data"]["a"] == "m2").await;
    home.when(&m1, &config_map, "default", "app", |object| object["data"]["a"] == "9").await;

    // Looking at everything again writes nothing.
    home.idle().await;
    let before = home.control_plane.registry().store.revision();
    home.manager.full_pass().await.unwrap();
    home.idle().await;
    let kept = home.control_plane.registry().store.revision();
    assert_eq!(before, kept, "a second pass wrote something");

    // Another placement takes the object out of m2; without a binding it leaves m1 as well.
    let narrowed = json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}}}});
    merge(&control_plane, &propagation_policy(), "p", narrowed).await;
    home.gone(&m2, &config_map, "default", "app").await;
    control_plane.delete(Target::new(&propagation_policy(), "default", "p")).await.unwrap();
    control_plane.delete(Target::new(&config_map, "default", "app")).await.unwrap();
    control_plane.delete(Target::new(&binding(), "default", "app-configmap")).await.unwrap();
    home.gone(&m1, &config_map, "default", "app").await;
    home.gone(&control_plane, &binding(), "default", "app-configmap").await;
    home.stop().await;
}

/// Whether any file below holds the text.
fn is_anywhere_in(directory: &std::path::Path, text: &str) -> bool {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().any(|path| match (path.is_dir(), std::fs::read(&path)) {
        (true, _) => is_anywhere_in(&path, text),
        (false, Ok(bytes)) => bytes.windows(text.len()).any(|window| window == text.as_bytes()),
        // The text index writes and drops files all the time.
        (false, Err(error)) if error.kind() == std::io::ErrorKind::NotFound => false,
        (false, Err(error)) => panic!("{}: {error}", path.display()),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_members_with_its_values_and_the_cache_never() {
    let home = Home::start(&["m1"]).await;
    let control_plane = home.objects();
    let secret = builtin("", "secrets", "Secret");
    let (first, second) = ("aHVudGVyMS1maXJzdA==", "aHVudGVyMi1zZWNvbmQ=");
    let template = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "db", "namespace": "default"}, "data": {"password": first}});
    let wanted = policy("p", "Secret", "v1", json!({"clusterAffinity": {"clusterNames": ["m1"]}}));
    control_plane.create(&propagation_policy(), "default", &wanted).await.unwrap();
    control_plane.create(&secret, "default", &template).await.unwrap();
    let m1 = home.member("m1");
    let has = |value: &'static str| move |object: &Value| object["data"] == json!({"password": value});
    home.when(&m1, &secret, "default", "db", has(first)).await;

    // Only the value changes, which the cache cannot see; and a member's own change of it is taken back.
    merge(&control_plane, &secret, "db", json!({"data": {"password": second}})).await;
    home.when(&m1, &secret, "default", "db", has(second)).await;
    merge(&m1, &secret, "db", json!({"data": {"password": "ZHJpZnQ="}})).await;
    home.when(&m1, &secret, "default", "db", has(second)).await;

    let key = RecordKey::new(ClusterName::parse("m1").unwrap(), secret.gvr.clone(), "default", "db");
    assert!(home.index.get(&key).await.unwrap().unwrap().record.redacted);
    for value in [first, second] {
        assert!(!is_anywhere_in(home.directory.path(), value), "the cache keeps {value}");
    }
    home.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_is_divided_and_its_status_comes_back() {
    let home = Home::start(&["m1", "m2"]).await;
    let control_plane = home.objects();
    let deployment = builtin("apps", "deployments", "Deployment");
    let template = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 5, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1.25"}]},
        }},
    });
    let weighted = json!({"replicaScheduling": {
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": [
            {"targetCluster": {"clusterNames": ["m1"]}, "weight": 1},
            {"targetCluster": {"clusterNames": ["m2"]}, "weight": 4},
        ]},
    }});
    let wanted = policy("p", "Deployment", "apps/v1", weighted);
    control_plane.create(&propagation_policy(), "default", &wanted).await.unwrap();
    control_plane.create(&deployment, "default", &template).await.unwrap();
    for (name, replicas) in [("m1", 1), ("m2", 4)] {
        let member = home.member(name);
        let live =
            home.when(&member, &deployment, "default", "web", |object| object["spec"]["replicas"] == replicas).await;
        let status = json!({"status": {
            "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas,
            "availableReplicas": replicas, "observedGeneration": live["metadata"]["generation"],
        }});
        member.merge(Target::new(&deployment, "default", "web").status(), &status).await.unwrap();
    }
    let summed = |object: &Value| object["status"]["readyReplicas"] == 5;
    home.when(&control_plane, &deployment, "default", "web", summed).await;
    let healthy = |object: &Value| {
        let items = object["status"]["aggregatedStatus"].as_array().cloned().unwrap_or_default();
        items.len() == 2 && items.iter().all(|item| item["health"] == "Healthy")
    };
    home.when(&control_plane, &binding(), "default", "web-deployment", healthy).await;
    home.stop().await;
}
