//! Scenarios in which a sink starts again, loads everything again, or meets another sink.

use crate::cache::{Cache, pod, pods, service, workload};
use crate::database::Database;
use crate::running_sink::{Access, RunningSink};
use crowsnest_graph::{SinkFailure, SinkProgress, SinkState};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;

fn is_following(progress: &SinkProgress, loads: u64) -> bool {
    progress.state == SinkState::Following && progress.counters.loads == loads
}

fn is_duplicate(progress: &SinkProgress) -> bool {
    matches!(progress.state, SinkState::Waiting { failure: SinkFailure::DuplicateSink, .. })
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn clusters_with_unknown_permissions_are_written_after_a_restart() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &workload(name, 10)).await;
    }
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    // In the second generation, nothing of m2 is written.
    let access = Access { undecided_clusters: vec!["m2"], ..Access::default() };
    sink.set_access(access.clone());
    sink.wait_until("the second load", |progress| is_following(progress, 2)).await;
    cache.put("m2", &[pod("m2", "p1", "Failed", 2), pod("m2", "late", "Running", 1)]).await;
    cache.delete("m2", &[pod("m2", "p2", "Running", 1)]).await;
    let latest = cache.latest().0;
    sink.wait_until("the changes", |progress| progress.position >= latest).await;
    assert_eq!(sink.progress().undecided_clusters, ["m2"]);
    sink.stop().await;
    // A process to which the permissions are also unknown keeps the nodes.
    let sink = RunningSink::start(&cache, &database, access);
    sink.wait_until("the changes", |progress| is_following(progress, 0)).await;
    assert_eq!(sink.progress().undecided_clusters, ["m2"]);
    sink.stop().await;
    let nodes_of_m2 = "MATCH (n:Pod {cluster: 'm2', exists: true}) RETURN n.key AS key";
    assert_eq!(database.query_keys(nodes_of_m2).await.len(), 9, "without the deleted Pod");
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 1);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn permissions_that_are_revoked_while_no_process_runs_are_applied() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 10)).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    let access = Access { hidden_kinds: vec!["Secret"], ..Access::default() };
    for loads in [1, 0] {
        let sink = RunningSink::start(&cache, &database, access.clone());
        sink.wait_until_equal(&cache, &database).await;
        assert_eq!(sink.progress().counters.loads, loads);
        sink.stop().await;
    }
    let secrets = "MATCH (n:Secret) RETURN n.key AS key";
    assert_eq!(database.query_keys(secrets).await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_reload_keeps_the_edges_of_selectors_that_are_newer_than_the_pods() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &[service("m1", "web", 1)]).await;
    cache.put("m1", &pods("m1", 0..10)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    let mut labelled = service("m1", "web", 2);
    labelled["metadata"]["labels"] = json!({"team": "a"});
    cache.put("m1", &[labelled]).await;
    sink.wait_until_equal(&cache, &database).await;
    sink.set_access(Access::default());
    sink.wait_until("the second load", |progress| is_following(progress, 2)).await;
    sink.wait_until_equal(&cache, &database).await;
    let selected = "MATCH (:Service)-[:SELECTS]->(p:Pod) RETURN p.key AS key";
    assert_eq!(database.query_keys(selected).await.len(), 10);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_sink_stops_writing_if_another_one_has_written_to_its_database() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 5)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    // A backup was restored that contains the graph of another sink.
    database.run_auto_commit("CREATE (:CrowsnestSink {name: 'other', writer: 'x', generation: 1})").await;
    cache.put("m1", &[pod("m1", "late", "Running", 1)]).await;
    sink.wait_until("the rejection", is_duplicate).await;
    let late = "MATCH (n:Pod {name: 'late'}) RETURN n.key AS key";
    assert_eq!(database.query_keys(late).await, Vec::<String>::new());
    database.run_auto_commit("MATCH (s:CrowsnestSink {name: 'other'}) DELETE s").await;
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 1);
    sink.stop().await;
}

#[rstest]
#[case::ordered_before("a")]
#[case::ordered_after("z")]
#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_claim_of_a_process_that_was_killed_before_it_wrote_does_not_block_others(#[case] name: &str) {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 5)).await;
    database.run_auto_commit(&format!("CREATE (:CrowsnestSink {{name: '{name}', writer: 'x'}})")).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    let names = "MATCH (s:CrowsnestSink) RETURN s.name AS key";
    assert_eq!(database.query_keys(names).await, ["test"]);
    // The process of the other sink starts again: it does not write, and the first one continues.
    let other = RunningSink::start_as(&cache, &database, Access::default(), |config| config.name = name.to_owned());
    other.wait_until("the rejection", is_duplicate).await;
    cache.put("m1", &[pod("m1", "late", "Running", 1)]).await;
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 1);
    other.stop().await;
    sink.stop().await;
}

/// The tail of the cache has 100 changes, and the store returns 200 at a time.
#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_sink_that_is_behind_writes_full_batches() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 10)).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    cache.put("m1", &pods("m1", 10..1_510)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    let progress = sink.progress();
    assert_eq!((progress.counters.loads, progress.counters.transactions), (0, 2), "1,000 and 500 changes");
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn the_time_of_the_last_load_survives_a_restart() {
    const START: i64 = 1_790_000_000_000;
    let Some(database) = Database::start_empty().await else { return };
    let mut cache = Cache::new().await;
    cache.put("m1", &workload("m1", 5)).await;
    // The third process starts an hour after the first load began.
    let clocks: [(fn() -> i64, u64); 4] =
        [(|| START, 1), (|| START + 3_540_000, 0), (|| START + 3_600_000, 1), (|| START + 3_700_000, 0)];
    for (now_ms, loads) in clocks {
        cache.now_ms = now_ms;
        let sink = RunningSink::start_as(&cache, &database, Access::default(), |config| config.is_stable = false);
        sink.wait_until("the loads", |progress| is_following(progress, loads)).await;
        sink.wait_until_equal(&cache, &database).await;
        assert_eq!(sink.progress().counters.loads, loads);
        sink.stop().await;
    }
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn one_of_two_sinks_that_start_at_the_same_time_writes() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 5)).await;
    let start = |name: &str| {
        let name = name.to_owned();
        RunningSink::start_as(&cache, &database, Access::default(), |config| config.name = name)
    };
    let (first, second) = (start("first"), start("second"));
    let one_follows = async || {
        let states = [first.progress(), second.progress()];
        states.iter().any(|progress| is_following(progress, 1)) && states.iter().any(is_duplicate)
    };
    database.wait_until("one sink to write and the other to be rejected", one_follows).await;
    let names = "MATCH (s:CrowsnestSink) RETURN s.name AS key";
    database.wait_until("the other claim to end", async || database.query_keys(names).await.len() == 1).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn an_object_that_cannot_be_decoded_does_not_block_the_others() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    let mut broken: Value = service("m1", "broken", 1);
    broken["broken"] = json!(true);
    cache.put("m1", &workload("m1", 5)).await;
    cache.put("m1", &[broken.clone()]).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until("the load", |progress| is_following(progress, 1)).await;
    assert!(sink.progress().counters.objects_skipped > 0);
    let services = "MATCH (n:Service) RETURN n.name AS key";
    assert_eq!(database.query_keys(services).await, ["web"]);
    cache.delete("m1", &[broken]).await;
    sink.wait_until_equal(&cache, &database).await;
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn rules_of_references_do_not_write_values_of_secrets() {
    let Some(database) = Database::start_empty().await else { return };
    let mut cache = Cache::new().await;
    cache.keeps_secret_values = true;
    let rule = |path: &str| json!({"kind": "Secret", "path": path, "target": {"kind": "ConfigMap"}});
    cache.rules = serde_json::from_value(json!([rule("data.settings"), rule("type")])).unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "example",
        "metadata": {"namespace": "shop", "name": "db", "uid": "s", "resourceVersion": "1"}, "data": {"settings": "hunters2"}});
    cache.put("m1", &[secret]).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until("the load", |progress| is_following(progress, 1)).await;
    let used = "MATCH (:Secret)-[:USES]->(n) RETURN n.name AS key";
    assert_eq!(database.query_keys(used).await, ["example"], "the type is not a secret value");
    let nodes = "MATCH (n:Resource) RETURN n.name AS key ORDER BY key";
    assert_eq!(database.query_keys(nodes).await, ["db", "example"]);
    sink.stop().await;
}

/// The load fails after 300 of 506 objects. The graph has a node of an earlier generation whose object the store does not have.
#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_load_continues_after_errors() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &pods("m1", 0..500)).await;
    cache.put("m1", &workload("m1", 0)).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    let stale = "CREATE (:Resource:Pod {key: 'm1//Pod/shop/stale', cluster: 'm1', apiGroup: '', kind: 'Pod', namespace: 'shop', \
        name: 'stale', uid: 'stale', exists: true, generation: 1, seq: 1})";
    database.run_auto_commit(stale).await;
    let access = Access { batch_size: 100, decidable_until: Some(300), ..Access::default() };
    let sink = RunningSink::start_as(&cache, &database, access, |config| config.selection = "other".to_owned());
    let has_failed_twice = |progress: &SinkProgress| {
        let is_behind = matches!(progress.state, SinkState::Waiting { failure: SinkFailure::CacheBehind, .. });
        is_behind && progress.counters.failures >= 2
    };
    sink.wait_until("two errors", has_failed_twice).await;
    assert_eq!(sink.progress().counters.nodes_written, 300);
    let existing_pods = "MATCH (n:Pod {exists: true}) RETURN n.key AS key";
    assert_eq!(database.query_keys(existing_pods).await.len(), 501, "nothing is removed before the load is complete");
    // Objects that the load has written change.
    cache.delete("m1", &[pod("m1", "p7", "Running", 1)]).await;
    cache.put("m1", &[pod("m1", "p8", "Failed", 2), pod("m1", "new", "Running", 1)]).await;
    sink.allow_all_decisions();
    sink.wait_until_equal(&cache, &database).await;
    let progress = sink.progress();
    assert_eq!((progress.counters.loads, progress.counters.nodes_written), (1, 508), "506 objects and 2 changes");
    let generation = "MATCH (s:CrowsnestSink) RETURN toString(s.generation) AS key";
    assert_eq!(database.query_keys(generation).await, ["2"]);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn everything_is_written_again_if_deletions_are_no_longer_kept() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 10)).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    cache.delete("m1", &[pod("m1", "p1", "Running", 1)]).await;
    cache.prune().await;
    let sink = RunningSink::start_as(&cache, &database, Access::default(), |config| {
        config.options.min_reload_interval = Duration::from_secs(1);
    });
    let is_too_short = |progress: &SinkProgress| {
        matches!(&progress.state, SinkState::Waiting { failure: SinkFailure::HistoryTooShort, message }
            if message.contains("--cache-history"))
    };
    sink.wait_until("the reason", is_too_short).await;
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!((sink.progress().counters.loads, sink.progress().counters.failures), (1, 1));
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn thirty_thousand_pods_are_loaded() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 30_000)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until("the load", |progress| is_following(progress, 1)).await;
    sink.wait_until_equal(&cache, &database).await;
    sink.stop().await;
}
