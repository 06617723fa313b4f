//! Scenarios of selectors: edges match selectors and labels even if the store already has a later state of them while the
//! graph is written, and returns to the earlier state afterwards.

use crate::cache::{Cache, pod, pods, service};
use crate::database::Database;
use crate::running_sink::{Access, RunningSink};
use rstest::rstest;
use serde_json::{Value, json};

const SELECTED_PODS: &str = "MATCH (:Service)-[:SELECTS]->(p:Pod) RETURN p.name AS key ORDER BY key";

/// A Pod with this value of the label of the selector.
fn labelled_pod(name: &str, app: &str, version: u64) -> Value {
    let mut object = pod("m1", name, "Running", version);
    object["metadata"]["labels"] = json!({"app": app});
    object
}

/// The Service with a selector of this value.
fn selecting_service(app: Option<&str>, version: u64) -> Value {
    let mut object = service("m1", "web", version);
    object["spec"]["selector"] = app.map_or(Value::Null, |app| json!({"app": app}));
    object
}

/// A sink that writes one object at a time, and cannot write objects that were changed after this seq.
fn one_by_one_until(seq: u64) -> Access {
    Access { batch_size: 1, decidable_until: Some(seq), ..Access::default() }
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn edges_of_selectors_follow_the_labels_of_pods() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    // The Pods are written before the Service.
    cache.put("m1", &pods("m1", 0..5)).await;
    sink.wait_until_equal(&cache, &database).await;
    cache.put("m1", &[service("m1", "web", 1)]).await;
    sink.wait_until_equal(&cache, &database).await;
    cache.put("m1", &[labelled_pod("p1", "other", 2)]).await;
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys(SELECTED_PODS).await, ["p0", "p2", "p3", "p4"]);
    cache.put("m1", &[pod("m1", "p1", "Running", 3)]).await;
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys(SELECTED_PODS).await.len(), 5);
    sink.stop().await;
}

#[rstest]
#[case::selector(Some("web"), &["p0", "p1"])]
#[case::no_selector(None, &[])]
#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn edges_of_a_selector_that_was_replaced_before_it_was_written_are_deleted(
    #[case] selected: Option<&str>,
    #[case] selected_pods: &[&str],
) {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &[selecting_service(selected, 1)]).await;
    cache.put("m1", &pods("m1", 0..2)).await;
    cache.put("m1", &[labelled_pod("other", "other", 1)]).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    // The Pod changes, then the selector. Only the Pod is written, with the selector in memory.
    cache.put("m1", &[labelled_pod("other", "other", 2)]).await;
    let pod_seq = cache.latest().0;
    cache.put("m1", &[selecting_service(Some("other"), 2)]).await;
    let sink = RunningSink::start(&cache, &database, one_by_one_until(pod_seq));
    sink.wait_for_failures().await;
    assert_eq!(database.query_keys(SELECTED_PODS).await, [&["other"][..], selected_pods].concat());
    cache.put("m1", &[selecting_service(selected, 3)]).await;
    sink.allow_all_decisions();
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 0);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_load_that_continues_deletes_edges_of_a_selector_that_was_replaced() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &[selecting_service(Some("web"), 1)]).await;
    let service_seq = cache.latest().0;
    cache.put("m1", &[labelled_pod("other", "other", 1)]).await;
    cache.put("m1", &pods("m1", 0..1)).await;
    let load_end = cache.latest().0;
    let sink = RunningSink::start(&cache, &database, one_by_one_until(service_seq));
    sink.wait_for_failures().await;
    assert_eq!(sink.progress().counters.nodes_written, 1);
    // The load writes the Pods with the second selector, and the Service only after the load.
    cache.put("m1", &[selecting_service(Some("other"), 2)]).await;
    sink.wait_for_failures().await;
    sink.set_decidable_until(Some(load_end));
    sink.wait_until("the load", |progress| progress.counters.loads == 1).await;
    sink.wait_for_failures().await;
    assert_eq!(database.query_keys(SELECTED_PODS).await, ["other"]);
    cache.put("m1", &[selecting_service(Some("web"), 3)]).await;
    sink.allow_all_decisions();
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 1);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn edges_follow_labels_that_were_restored_before_they_were_written() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &[selecting_service(Some("web"), 1)]).await;
    cache.put("m1", &[labelled_pod("left", "web", 1), labelled_pod("joined", "other", 1)]).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    // Only the Service is written, when the store has other labels of the Pods.
    cache.put("m1", &[selecting_service(Some("web"), 2)]).await;
    let service_seq = cache.latest().0;
    cache.put("m1", &[labelled_pod("left", "other", 2), labelled_pod("joined", "web", 2)]).await;
    let sink = RunningSink::start(&cache, &database, one_by_one_until(service_seq));
    sink.wait_for_failures().await;
    assert_eq!(database.query_keys(SELECTED_PODS).await, ["joined"]);
    cache.put("m1", &[labelled_pod("left", "web", 3), labelled_pod("joined", "other", 3)]).await;
    sink.allow_all_decisions();
    sink.wait_until_equal(&cache, &database).await;
    sink.stop().await;
}
