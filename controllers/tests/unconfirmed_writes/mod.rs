//! Writes to a member that were applied without a response.

use crowsnest_api::names::work_name;
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom};
use crate::{condition_is, merge, policy, propagation_policy};
use crowsnest_controllers::runtime::dynamic_client::Resource;

const PUT: &str = "m1 PUT /api/v1/namespaces/default/configmaps/app";
const GET: &str = "m1 GET /api/v1/namespaces/default/configmaps/app";

/// An environment in which the ConfigMap `app` is propagated to `m1`.
async fn start() -> TestEnv {
    let env = TestEnv::start(&["m1"]).await;
    let (control_plane, m1, config_map) = (env.objects(), env.member("m1"), config_map());
    let placement = json!({"clusterAffinity": {"clusterNames": ["m1"]}});
    let policy = policy("p", "ConfigMap", "v1", placement);
    control_plane.create(&propagation_policy(), "default", &policy).await.unwrap();
    let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "app", "namespace": "default"}, "data": {"a": "1"}});
    control_plane.create(&config_map, "default", &template).await.unwrap();
    env.wait_for(&m1, &config_map, "default", "app", |_| true).await;
    env.wait_until_settled().await;
    env.requests.take();
    env
}

fn config_map() -> Resource {
    builtin("", "configmaps", "ConfigMap")
}

/// Requests for the ConfigMap since the last call.
fn take_requests(env: &TestEnv) -> Vec<String> {
    let mut requests = env.requests.take();
    requests.retain(|request| request.ends_with("/configmaps/app"));
    requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_read_from_the_member_after_a_write_without_a_response() {
    let env = start().await;
    let (control_plane, m1, config_map) = (env.objects(), env.member("m1"), config_map());
    env.requests.lose_response(PUT);
    merge(&control_plane, &config_map, "app", json!({"data": {"a": "2"}})).await;
    env.wait_for(&m1, &config_map, "default", "app", |object: &Value| object["data"]["a"] == "2").await;
    env.wait_until_settled().await;
    assert_eq!(take_requests(&env), [PUT, GET], "the object is read once, and is not written again");
    let works = custom("work.karmada.io", "v1alpha1", "works", "Work", true);
    let work = work_name("ConfigMap", "app", "default");
    let is_applied = |work: &Value| condition_is(work, "Applied", "True");
    env.wait_for(&control_plane, &works, "karmada-es-m1", &work, is_applied).await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_write_is_based_on_the_object_that_was_read() {
    let env = start().await;
    let (control_plane, m1, config_map) = (env.objects(), env.member("m1"), config_map());
    // The cache keeps the version before the write whose response is lost.
    env.requests.pause_watches(true);
    env.requests.lose_response(PUT);
    merge(&control_plane, &config_map, "app", json!({"data": {"a": "2"}})).await;
    env.requests.wait_for(GET).await;
    assert_eq!(take_requests(&env), [PUT, GET]);
    merge(&control_plane, &config_map, "app", json!({"data": {"a": "3"}})).await;
    env.wait_for(&m1, &config_map, "default", "app", |object: &Value| object["data"]["a"] == "3").await;
    assert_eq!(take_requests(&env), [PUT], "the write has no conflict");
    env.requests.pause_watches(false);
    env.stop().await;
}
