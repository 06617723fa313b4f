//! Watches while a cluster leaves the view and returns to it.

use crowsnest_index::ChangeKind;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DeleteParams;

use crate::test_env::{CONFIG_MAPS, LABELLED, config_map, create, test_env};
use crate::watches::{await_change, event_summaries, keep_collecting, position, register, update_object};

/// The object is deleted in the member while its cluster is out of view, and the watch reaches that change after the cluster
/// has returned. The client was already sent the deletion when the cluster left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_is_sent_once_if_the_cluster_returns() {
    let mut env = test_env().await;
    let _collected = keep_collecting(&env);
    let member = env.members["m2"].admin();
    let objects: Api<ConfigMap> = Api::namespaced(member.clone(), "default");
    let start = position(&env).await;
    let mut body = env.watch(CONFIG_MAPS, &format!("{LABELLED}&resourceVersion={start}")).await;
    register(&mut env, &["m1"]);
    assert_eq!(event_summaries(&mut body, 2).await, ["DELETED m2/both", "DELETED m2/only-m2"]);
    // The body is not read until the object has been deleted and the cluster has returned.
    let mut follower = env.cache.follow(env.cache.seq());
    objects.delete("both", &DeleteParams::default()).await.unwrap();
    await_change(&mut follower, ChangeKind::Deleted, "both").await;
    register(&mut env, &["m1", "m2"]);
    assert_eq!(event_summaries(&mut body, 1).await, ["ADDED m2/only-m2"]);
    update_object(&env, "1").await;
    assert_eq!(event_summaries(&mut body, 1).await, ["MODIFIED m1/only-m1"]);
    create(&member, "v1", "ConfigMap", Some("default"), config_map("both", "1")).await;
    assert_eq!(event_summaries(&mut body, 1).await, ["ADDED m2/both"]);
    env.stop().await;
}
