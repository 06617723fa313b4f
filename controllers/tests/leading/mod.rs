//! Leader election: standbys write nothing, and neither does a leader whose fence has ended.

use std::time::Duration;

use crowsnest_controllers::runtime::dynamic_client::Target;
use crowsnest_controllers::runtime::write_fence::{ClockReading, Fence};
use crowsnest_controllers::runtime::{Config, Manager};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::test_env::{TIMEOUT, TestEnv, builtin};
use super::{binding, merge, policy, propagation_policy};

/// Number of reconciles that the fence must stop.
const TRIES: u64 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_leader_writes() {
    let env = TestEnv::start(&["m1"]).await;
    let env = env.replace_controllers(|cache, stop| Manager::observe(cache, Config::conformance(), stop)).await;
    let (control_plane, m1) = (env.objects(), env.member("m1"));
    let config_map = builtin("", "configmaps", "ConfigMap");
    let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "app", "namespace": "default"}, "data": {"a": "1"}});
    control_plane.create(&config_map, "default", &template).await.unwrap();
    let manifest = policy("p", "ConfigMap", "v1", json!({"clusterAffinity": {"clusterNames": ["m1"]}}));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    env.wait_until_settled().await;
    assert_eq!(env.manager.reconciles().values().sum::<u64>(), 0, "a standby reconciles nothing");
    assert_eq!(control_plane.get(Target::new(&binding(), "default", "app-configmap")).await.unwrap(), None);

    let fence = Fence::closed();
    fence.extend(ClockReading::now(), Duration::from_secs(3600));
    let config = Config { fence: fence.clone(), ..Config::conformance() };
    let env = env.replace_controllers(|cache, stop| Manager::start(cache, config, stop)).await;
    env.wait_for(&m1, &config_map, "default", "app", |object| object["data"]["a"] == "1").await;
    env.wait_until_idle().await;

    // As when the lease was not renewed: no decision is written from now on.
    fence.close();
    merge(&control_plane, &config_map, "app", json!({"data": {"a": "2"}})).await;
    tokio::time::timeout(TIMEOUT, env.manager.wait_for_reconciles(TRIES)).await.expect("controllers retry");
    let left = m1.get(Target::new(&config_map, "default", "app")).await.unwrap().unwrap();
    assert_eq!(left["data"]["a"], "1");

    let env = env.replace_controllers(|cache, stop| Manager::start(cache, Config::conformance(), stop)).await;
    env.wait_for(&m1, &config_map, "default", "app", |object| object["data"]["a"] == "2").await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controllers_stop_during_the_initial_sync() {
    let env = TestEnv::start(&["m1"]).await;
    // Stops after an increasing number of scheduler turns.
    for yields in (0..13).map(|power| 1 << power) {
        let manager = Manager::observe(env.cache.clone(), Config::conformance(), CancellationToken::new());
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(TIMEOUT, manager.stop()).await.expect("the controllers stop");
    }
    env.stop().await;
}
