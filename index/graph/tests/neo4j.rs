//! Tests of sinks on a real Neo4j 5. Run them with `.ci/graph test`; `cargo test` alone skips them.
//!
//! At the end of each scenario the graph equals the cache: it has the nodes and edges of the objects that may be
//! written, and no others.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![expect(clippy::print_stderr, reason = "skipped tests are reported")]

#[path = "neo4j/cache.rs"]
mod cache;
#[path = "neo4j/database.rs"]
mod database;
#[path = "neo4j/graph.rs"]
mod graph;
#[path = "neo4j/kills.rs"]
mod kills;
#[path = "neo4j/recovery.rs"]
mod recovery;
#[path = "neo4j/relay.rs"]
mod relay;
#[path = "neo4j/running_sink.rs"]
mod running_sink;
#[path = "neo4j/selectors.rs"]
mod selectors;

use cache::{Cache, deployment, node, pod, pods, replica_set, secret, service, workload};
use crowsnest_graph::{SinkFailure, SinkState};
use crowsnest_query::path::PathPattern;
use database::Database;
use running_sink::{Access, RunningSink};
use serde_json::json;
use std::process::{Command, Stdio};

/// Environment variable: directory of the store for [`a_process_that_is_killed`].
const STORE_DIRECTORY: &str = "CROWSNEST_TEST_STORE";
/// Environment variable: port of the database for [`a_process_that_is_killed`].
const DATABASE_PORT: &str = "CROWSNEST_TEST_PORT";

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn the_graph_equals_the_cache_after_the_first_load() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &workload(name, 50)).await;
    }
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 1);
    sink.stop().await;
    // The next process resumes the generation.
    cache.put("m1", &[pod("m1", "late", "Running", 2)]).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 0);
    // The edges of other nodes were not written again.
    assert!(sink.progress().counters.nodes_relinked <= 1, "{:?}", sink.progress());
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn changes_and_deletions_are_followed() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 20)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    // A Pod changes its status; another moves to another node and gets labels that the Service does not select.
    cache.put("m1", &[pod("m1", "p1", "Failed", 2)]).await;
    let mut moved = pod("m1", "p2", "Running", 2);
    moved["spec"]["nodeName"] = json!("n2");
    moved["metadata"]["labels"] = json!({"app": "other"});
    cache.put("m1", &[moved.clone()]).await;
    // The Service selects other Pods, and the Deployment refers to a missing object.
    let mut changed_service = service("m1", "web", 2);
    changed_service["spec"]["selector"] = json!({"app": "other"});
    cache.put("m1", &[changed_service]).await;
    let mut changed_deployment = deployment("m1", 2);
    changed_deployment["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "v", "configMap": {"name": "missing"}}]);
    cache.put("m1", &[changed_deployment]).await;
    sink.wait_until_equal(&cache, &database).await;
    // Deleted objects become missing nodes while others refer to them.
    cache.delete("m1", &[secret("m1"), node("n1"), pod("m1", "p3", "Running", 1), moved.clone()]).await;
    sink.wait_until_equal(&cache, &database).await;
    let missing =
        database.query_keys("MATCH (n:Resource) WHERE n.exists = false RETURN n.key AS key ORDER BY key").await;
    assert!(missing.contains(&"m1//Secret/shop/db".to_owned()), "{missing:?}");
    assert!(!missing.contains(&"m1//Pod/shop/p3".to_owned()), "no object refers to it: {missing:?}");
    // Objects that are created again have their edges again.
    cache.put("m1", &[secret("m1"), node("n1"), moved]).await;
    sink.wait_until_equal(&cache, &database).await;
    cache.delete("m1", &workload("m1", 20)).await;
    sink.wait_until_equal(&cache, &database).await;
    let remaining = database.query_keys("MATCH (n:Resource) RETURN n.key AS key").await;
    assert_eq!(remaining, Vec::<String>::new());
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn an_object_created_again_with_another_uid_is_another_object() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 5)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    let mut recreated = replica_set("m1", 2);
    recreated["metadata"]["uid"] = json!("another");
    cache.put("m1", &[recreated]).await;
    sink.wait_until_equal(&cache, &database).await;
    let owned = "MATCH (:ReplicaSet {name: 'web'})-[:OWNS]->(p:Pod) RETURN p.key AS key";
    assert_eq!(database.query_keys(owned).await, Vec::<String>::new());
    let used = "MATCH (:Pod)-[:USES]->(s:Secret {name: 'db'}) RETURN DISTINCT s.key AS key";
    assert_eq!(database.query_keys(used).await, ["m1//Secret/shop/db"], "references by name are kept");
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_sink_continues_after_its_database_was_killed_and_started_again() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 600)).await;
    let access = Access { batch_size: 20, ..Access::default() };
    let sink = RunningSink::start(&cache, &database, access);
    sink.wait_until("some nodes", |progress| progress.counters.nodes_written > 100).await;
    database.kill();
    let is_waiting = |state: &SinkState| matches!(state, SinkState::Waiting { failure: SinkFailure::Unreachable, message } if message.contains("check that"));
    sink.wait_until("an error", |progress| is_waiting(&progress.state)).await;
    // While the database is stopped, objects are changed, deleted and created.
    cache.delete("m1", &[secret("m1"), pod("m1", "p7", "Running", 1)]).await;
    cache.put("m1", &[pod("m1", "p8", "Failed", 2), pod("m1", "new", "Running", 1)]).await;
    database.start();
    sink.wait_until_equal(&cache, &database).await;
    // The database is killed again while the sink follows changes.
    cache.put("m1", &pods("m1", 600..700)).await;
    database.kill();
    cache.delete("m1", &pods("m1", 0..50)).await;
    database.start();
    sink.wait_until_equal(&cache, &database).await;
    assert!(sink.progress().counters.failures >= 1);
    let generation = "MATCH (s:CrowsnestSink) RETURN toString(s.generation) AS key";
    assert_eq!(database.query_keys(generation).await, ["1"], "the load continued");
    sink.stop().await;
}

/// Started by [`a_sink_continues_after_its_process_was_killed`] in a process of its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn a_process_that_is_killed() {
    let (Ok(store), Ok(port)) = (std::env::var(STORE_DIRECTORY), std::env::var(DATABASE_PORT)) else { return };
    let cache = Cache::open(store.into()).await;
    cache.complete_all().await;
    let database = Database::from_port(port.parse().unwrap());
    let access = Access { batch_size: 10, ..Access::default() };
    let sink = RunningSink::start(&cache, &database, access);
    sink.wait_until("the end of the process", |_| false).await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_sink_continues_after_its_process_was_killed() {
    let Some(database) = Database::start_empty().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::open(directory.path().to_owned()).await;
    cache.put("m1", &workload("m1", 600)).await;
    cache.close().await;
    for min_nodes in [100, 300] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_is_killed", "--ignored", "--nocapture"])
            .env(STORE_DIRECTORY, directory.path())
            .env(DATABASE_PORT, database.port().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let text = "MATCH (n:Resource) WHERE n.exists RETURN n.key AS key";
        database.wait_until("some nodes", async || database.query_keys(text).await.len() > min_nodes).await;
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let cache = Cache::open(directory.path().to_owned()).await;
    cache.complete_all().await;
    cache.delete("m1", &pods("m1", 0..10)).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn only_complete_collections_are_swept() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &workload(name, 20)).await;
    }
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    // The store was lost and is filled again: some Pods of m1 are listed, and m2 was removed from the fleet.
    let cache = Cache::new().await;
    cache.put_incomplete("m1", &pods("m1", 0..5)).await;
    let access = Access { clusters: vec!["m1"], ..Access::default() };
    let sink = RunningSink::start(&cache, &database, access);
    sink.wait_until("the load", |progress| progress.counters.loads == 1 && progress.state == SinkState::Following)
        .await;
    let nodes_of_m2 = "MATCH (n:Resource {cluster: 'm2', exists: true}) RETURN n.key AS key";
    database.wait_until("the removal of the cluster", async || database.query_keys(nodes_of_m2).await.is_empty()).await;
    let pods_of_m1 = "MATCH (n:Pod {cluster: 'm1', exists: true}) RETURN n.key AS key";
    assert_eq!(database.query_keys(pods_of_m1).await.len(), 20, "a partial list deletes nothing");
    assert_eq!(database.query_keys("MATCH (n:Secret {cluster: 'm1'}) RETURN n.key AS key").await.len(), 1);
    // The list is complete: Pods that it does not contain are removed.
    let mut rest = workload("m1", 20);
    rest.retain(|object| object["kind"] != "Pod");
    cache.put("m1", &rest).await;
    cache.put("m1", &pods("m1", 5..8)).await;
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys(pods_of_m1).await.len(), 8);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_sink_writes_only_objects_that_may_be_read() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &workload(name, 10)).await;
    }
    let mut access = Access { hidden_kinds: vec!["Secret"], ..Access::default() };
    let sink = RunningSink::start(&cache, &database, access.clone());
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys("MATCH (n:Secret) RETURN n.key AS key").await, Vec::<String>::new());
    // Permissions are revoked and granted.
    access.hidden_kinds = vec!["Pod"];
    sink.set_access(access.clone());
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys("MATCH (n:Pod) RETURN n.key AS key").await, Vec::<String>::new());
    // Permissions in a cluster become unknown: its nodes are not changed, those of other clusters are.
    access.undecided_clusters = vec!["m2"];
    sink.set_access(access.clone());
    sink.wait_until("the undecided cluster", |progress| progress.undecided_clusters == ["m2"]).await;
    cache.delete("m1", &[service("m1", "web", 1)]).await;
    cache.put("m2", &[service("m2", "other", 1)]).await;
    let services_of = |cluster: &str| format!("MATCH (n:Service {{cluster: '{cluster}'}}) RETURN n.name AS key");
    database.wait_until("the deletion", async || database.query_keys(&services_of("m1")).await.is_empty()).await;
    assert_eq!(database.query_keys(&services_of("m2")).await, ["web"]);
    access.undecided_clusters = Vec::new();
    sink.set_access(access);
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys(&services_of("m2")).await.len(), 2);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn changes_of_permissions_while_the_database_is_stopped_are_applied() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 10)).await;
    let mut access = Access::default();
    let sink = RunningSink::start(&cache, &database, access.clone());
    sink.wait_until_equal(&cache, &database).await;
    database.kill();
    sink.wait_until("an error", |progress| matches!(progress.state, SinkState::Waiting { .. })).await;
    access.hidden_kinds = vec!["Pod"];
    sink.set_access(access);
    database.start();
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(database.query_keys("MATCH (n:Pod) RETURN n.key AS key").await, Vec::<String>::new());
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_graph_has_one_writer() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 10)).await;
    let first = RunningSink::start(&cache, &database, Access::default());
    first.wait_until_equal(&cache, &database).await;
    // Another sink is rejected.
    let other = RunningSink::start_as(&cache, &database, Access::default(), |config| config.name = "other".to_owned());
    let is_rejected =
        |state: &SinkState| matches!(state, SinkState::Waiting { failure: SinkFailure::DuplicateSink, .. });
    other.wait_until("the rejection", |progress| is_rejected(&progress.state)).await;
    other.stop().await;
    // A second process of the same sink takes over.
    let second = RunningSink::start(&cache, &database, Access::default());
    second.wait_until("the second sink to follow", |progress| progress.state == SinkState::Following).await;
    cache.put("m1", &[pod("m1", "late", "Running", 1)]).await;
    first.wait_until("the first sink to be locked out", |progress| progress.counters.failures > 0).await;
    first.stop().await;
    second.wait_until_equal(&cache, &database).await;
    second.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_changed_selection_is_loaded_in_a_new_generation() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 10)).await;
    RunningSink::run_until_equal(&cache, &database, Access::default()).await;
    let access = Access { hidden_kinds: vec!["Pod", "Service"], ..Access::default() };
    let sink = RunningSink::start_as(&cache, &database, access, |config| config.selection = "-kind:pod".to_owned());
    sink.wait_until_equal(&cache, &database).await;
    assert_eq!(sink.progress().counters.loads, 1);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn errors_of_address_and_database_are_reported_with_the_next_step() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    for (address, failure) in
        [("bolt://127.0.0.1:1", SinkFailure::Unreachable), ("http://127.0.0.1:1", SinkFailure::InvalidAddress)]
    {
        let sink = RunningSink::start_as(&cache, &database, Access::default(), |config| {
            config.target.address = address.to_owned()
        });
        sink.wait_until("the error", |progress| {
            matches!(&progress.state, SinkState::Waiting { failure: found, message }
                if *found == failure && message.contains("spec.address"))
        })
        .await;
        sink.stop().await;
    }
    let sink =
        RunningSink::start_as(&cache, &database, Access::default(), |config| config.target.database = "none".into());
    sink.wait_until("the error", |progress| {
        matches!(progress.state, SinkState::Waiting { failure: SinkFailure::DatabaseNotFound, .. })
    })
    .await;
    sink.stop().await;
}

/// Patterns of paths run in the graph as they are printed, and match the same paths.
#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn printed_patterns_run_in_the_graph() {
    let Some(database) = Database::start_empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &workload("m1", 4)).await;
    let sink = RunningSink::start(&cache, &database, Access::default());
    sink.wait_until_equal(&cache, &database).await;
    for (text, before, after) in [
        ("(:Secret {name: 'db', namespace: 'shop'}) <-USES- (:Pod)", "Secret/db ", ""),
        ("(:Deployment) -OWNS*-> (:Pod)", "Deployment/web ReplicaSet/web ", ""),
        (
            "(:Service {cluster: 'm1'}) -SELECTS-> (:Pod {status: 'Running'}) -RUNS_ON-> (:Node)",
            "Service/web ",
            " Node/n1",
        ),
        // A hop without types follows no hubs.
        ("(:Secret) -*3- (:Deployment {apiGroup: 'apps'})", "Secret/db ", " ReplicaSet/web Deployment/web"),
        ("(:Node)--(:Pod)", "none", ""),
    ] {
        let pattern = text.parse::<PathPattern>().unwrap().with_stated_types();
        let steps = "reduce(text = '', n IN nodes(p) | text + n.kind + '/' + n.name + ' ')";
        let mut found = database.query_keys(&format!("MATCH p = {pattern} RETURN trim({steps}) AS key")).await;
        found.sort();
        let pods = if before == "none" { 0..0 } else { 0..4 };
        let expected: Vec<String> = pods.map(|pod| format!("{before}Pod/p{pod}{after}")).collect();
        assert_eq!(found, expected, "{pattern}");
    }
    sink.stop().await;
}
