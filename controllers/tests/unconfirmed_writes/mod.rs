//! Writes to a member that were applied without a response.

use crowsnest_api::names::work_name;
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom};
use crate::{condition_is, merge, policy, propagation_policy};

const PUT: &str = "m1 PUT /api/v1/namespaces/default/configmaps/app";
const GET: &str = "m1 GET /api/v1/namespaces/default/configmaps/app";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_read_from_the_member_after_a_write_without_a_response() {
    let env = TestEnv::start(&["m1"]).await;
    let (control_plane, m1) = (env.objects(), env.member("m1"));
    let config_map = builtin("", "configmaps", "ConfigMap");
    let placement = json!({"clusterAffinity": {"clusterNames": ["m1"]}});
    let policy = policy("p", "ConfigMap", "v1", placement);
    control_plane.create(&propagation_policy(), "default", &policy).await.unwrap();
    let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "app", "namespace": "default"}, "data": {"a": "1"}});
    control_plane.create(&config_map, "default", &template).await.unwrap();
    env.wait_for(&m1, &config_map, "default", "app", |_| true).await;
    env.wait_until_settled().await;

    env.requests.take();
    env.requests.lose_response(PUT);
    merge(&control_plane, &config_map, "app", json!({"data": {"a": "2"}})).await;
    env.wait_for(&m1, &config_map, "default", "app", |object: &Value| object["data"]["a"] == "2").await;
    env.wait_until_settled().await;
    let mut requests = env.requests.take();
    requests.retain(|request| request.ends_with("/configmaps/app"));
    assert_eq!(requests, [PUT, GET], "the object is read once, and is not written again");
    let works = custom("work.karmada.io", "v1alpha1", "works", "Work", true);
    let work = work_name("ConfigMap", "app", "default");
    let is_applied = |work: &Value| condition_is(work, "Applied", "True");
    env.wait_for(&control_plane, &works, "karmada-es-m1", &work, is_applied).await;
    env.stop().await;
}
