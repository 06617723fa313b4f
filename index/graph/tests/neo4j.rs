//! Sinks on a real Neo4j 5: run `.ci/graph test`; `cargo test` alone skips these tests.
//!
//! Each scenario ends with graph and cache equal: the nodes and edges of the objects that may be written, and nothing else.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![expect(clippy::print_stderr, reason = "skipped tests are reported")]

#[path = "neo4j/cache.rs"]
mod cache;
#[path = "neo4j/database.rs"]
mod database;
#[path = "neo4j/graph.rs"]
mod graph;
#[path = "neo4j/running.rs"]
mod running;

use cache::{Cache, deployment, node, pod, pods, replica_set, secret, service, world};
use crowsnest_graph::{SinkFailure, SinkState};
use database::Database;
use running::{Rules, Running};
use serde_json::json;
use std::process::{Command, Stdio};

/// Folder of the store for [`a_process_that_is_killed`].
const STORE: &str = "CROWSNEST_TEST_STORE";
const PORT: &str = "CROWSNEST_TEST_PORT";

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn the_graph_equals_the_cache_after_the_first_load() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &world(name, 50)).await;
    }
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    assert_eq!(sink.progress().loads, 1);
    sink.stop().await;
    // The next process continues.
    cache.put("m1", &[pod("m1", "late", "Running", 2)]).await;
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    assert_eq!(sink.progress().loads, 0);
    // The edges of other nodes were not written again.
    assert!(sink.progress().linked <= 1, "{:?}", sink.progress());
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn changes_and_deletions_are_followed() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &world("m1", 20)).await;
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    // Another status, another node, other labels, so that the Service selects it no longer.
    cache.put("m1", &[pod("m1", "p1", "Failed", 2)]).await;
    let mut moved = pod("m1", "p2", "Running", 2);
    moved["spec"]["nodeName"] = json!("n2");
    moved["metadata"]["labels"] = json!({"app": "other"});
    cache.put("m1", &[moved.clone()]).await;
    // The Service selects others, and a reference to a missing object appears.
    let mut other = service("m1", "web", 2);
    other["spec"]["selector"] = json!({"app": "other"});
    cache.put("m1", &[other]).await;
    let mut uses = deployment("m1", 2);
    uses["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "missing"}}]);
    cache.put("m1", &[uses]).await;
    sink.until_equal(&cache, &database).await;
    // Deleted objects stay as missing ones while others refer to them.
    cache.delete("m1", &[secret("m1"), node("n1"), pod("m1", "p3", "Running", 1), moved.clone()]).await;
    sink.until_equal(&cache, &database).await;
    let missing = database.keys("MATCH (n:Resource) WHERE n.exists = false RETURN n.key AS key ORDER BY key").await;
    assert!(missing.contains(&"m1//Secret/shop/db".to_owned()), "{missing:?}");
    assert!(!missing.contains(&"m1//Pod/shop/p3".to_owned()), "nothing refers to it: {missing:?}");
    // Missing and deleted objects return with their edges.
    cache.put("m1", &[secret("m1"), node("n1"), moved]).await;
    sink.until_equal(&cache, &database).await;
    cache.delete("m1", &world("m1", 20)).await;
    sink.until_equal(&cache, &database).await;
    let left = database.keys("MATCH (n:Resource) RETURN n.key AS key").await;
    assert_eq!(left, Vec::<String>::new());
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_name_that_returns_with_another_uid_is_another_object() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &world("m1", 5)).await;
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    let mut again = replica_set("m1", 2);
    again["metadata"]["uid"] = json!("another");
    cache.put("m1", &[again]).await;
    sink.until_equal(&cache, &database).await;
    let owned = "MATCH (:ReplicaSet {name: 'web'})-[:OWNS]->(p:Pod) RETURN p.key AS key";
    assert_eq!(database.keys(owned).await, Vec::<String>::new());
    let used = "MATCH (:Pod)-[:USES]->(s:Secret {name: 'db'}) RETURN DISTINCT s.key AS key";
    assert_eq!(database.keys(used).await, ["m1//Secret/shop/db"], "references by name stay");
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_database_is_killed_and_absent_for_a_while() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &world("m1", 600)).await;
    let rules = Rules { batch: 20, ..Rules::default() };
    let sink = Running::start(&cache, &database, rules);
    sink.until("some nodes", |progress| progress.written > 100).await;
    database.kill();
    let is_waiting = |state: &SinkState| matches!(state, SinkState::Waiting { failure: SinkFailure::Unreachable, message } if message.contains("check that"));
    sink.until("an error", |progress| is_waiting(&progress.state)).await;
    // While it is absent, objects change, end and appear.
    cache.delete("m1", &[secret("m1"), pod("m1", "p7", "Running", 1)]).await;
    cache.put("m1", &[pod("m1", "p8", "Failed", 2), pod("m1", "new", "Running", 1)]).await;
    database.start();
    sink.until_equal(&cache, &database).await;
    // Killed again while it follows.
    cache.put("m1", &pods("m1", 600..700)).await;
    database.kill();
    cache.delete("m1", &pods("m1", 0..50)).await;
    database.start();
    sink.until_equal(&cache, &database).await;
    assert!(sink.progress().failures >= 1);
    sink.stop().await;
}

/// Run by [`a_process_is_killed`] in a process of its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn a_process_that_is_killed() {
    let (Ok(store), Ok(port)) = (std::env::var(STORE), std::env::var(PORT)) else { return };
    let cache = Cache::open(store.into()).await;
    cache.complete_all().await;
    let database = Database::running_at(port.parse().unwrap());
    let rules = Rules { batch: 10, ..Rules::default() };
    let sink = Running::start(&cache, &database, rules);
    sink.until("the end of the process", |_| false).await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_process_is_killed() {
    let Some(database) = Database::empty().await else { return };
    let home = tempfile::tempdir().unwrap();
    let cache = Cache::open(home.path().to_owned()).await;
    cache.put("m1", &world("m1", 600)).await;
    cache.close().await;
    for least in [100, 300] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_is_killed", "--ignored", "--nocapture"])
            .env(STORE, home.path())
            .env(PORT, database.port().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let text = "MATCH (n:Resource) WHERE n.exists RETURN n.key AS key";
        database.until("some nodes", async || database.keys(text).await.len() > least).await;
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let cache = Cache::open(home.path().to_owned()).await;
    cache.complete_all().await;
    cache.delete("m1", &pods("m1", 0..10)).await;
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn only_complete_lists_are_swept() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &world(name, 20)).await;
    }
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    sink.stop().await;
    // The store was lost and fills again: some Pods of m1 are listed, and m2 has left.
    let cache = Cache::new().await;
    cache.put_incomplete("m1", &pods("m1", 0..5)).await;
    let rules = Rules { clusters: vec!["m1"], ..Rules::default() };
    let sink = Running::start(&cache, &database, rules);
    sink.until("the load", |progress| progress.loads == 1 && progress.state == SinkState::Following).await;
    let of_m2 = "MATCH (n:Resource {cluster: 'm2', exists: true}) RETURN n.key AS key";
    database.until("the end of the cluster that left", async || database.keys(of_m2).await.is_empty()).await;
    let pods_of_m1 = "MATCH (n:Pod {cluster: 'm1', exists: true}) RETURN n.key AS key";
    assert_eq!(database.keys(pods_of_m1).await.len(), 20, "a partial list deletes nothing");
    assert_eq!(database.keys("MATCH (n:Secret {cluster: 'm1'}) RETURN n.key AS key").await.len(), 1);
    // The list ends: Pods that it does not have are gone.
    let mut rest = world("m1", 20);
    rest.retain(|object| object["kind"] != "Pod");
    cache.put("m1", &rest).await;
    cache.put("m1", &pods("m1", 5..8)).await;
    sink.until_equal(&cache, &database).await;
    assert_eq!(database.keys(pods_of_m1).await.len(), 8);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_sink_writes_what_may_be_read() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    for name in ["m1", "m2"] {
        cache.put(name, &world(name, 10)).await;
    }
    let mut rules = Rules { hidden_kinds: vec!["Secret"], ..Rules::default() };
    let sink = Running::start(&cache, &database, rules.clone());
    sink.until_equal(&cache, &database).await;
    assert_eq!(database.keys("MATCH (n:Secret) RETURN n.key AS key").await, Vec::<String>::new());
    // Permissions are withdrawn and granted.
    rules.hidden_kinds = vec!["Pod"];
    sink.set_rules(rules.clone());
    sink.until_equal(&cache, &database).await;
    assert_eq!(database.keys("MATCH (n:Pod) RETURN n.key AS key").await, Vec::<String>::new());
    // Permissions in a cluster become unknown: its nodes stay as they are, the others are followed.
    rules.undecided = vec!["m2"];
    sink.set_rules(rules.clone());
    sink.until("the cluster", |progress| progress.undecided == ["m2"]).await;
    cache.delete("m1", &[service("m1", "web", 1)]).await;
    cache.put("m2", &[service("m2", "other", 1)]).await;
    let of = |cluster: &str| format!("MATCH (n:Service {{cluster: '{cluster}'}}) RETURN n.name AS key");
    database.until("the deletion", async || database.keys(&of("m1")).await.is_empty()).await;
    assert_eq!(database.keys(&of("m2")).await, ["web"]);
    rules.undecided = Vec::new();
    sink.set_rules(rules);
    sink.until_equal(&cache, &database).await;
    assert_eq!(database.keys(&of("m2")).await.len(), 2);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn permissions_that_change_while_the_database_is_absent_are_followed() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &world("m1", 10)).await;
    let mut rules = Rules::default();
    let sink = Running::start(&cache, &database, rules.clone());
    sink.until_equal(&cache, &database).await;
    database.kill();
    sink.until("an error", |progress| matches!(progress.state, SinkState::Waiting { .. })).await;
    rules.hidden_kinds = vec!["Pod"];
    sink.set_rules(rules);
    database.start();
    sink.until_equal(&cache, &database).await;
    assert_eq!(database.keys("MATCH (n:Pod) RETURN n.key AS key").await, Vec::<String>::new());
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn a_graph_has_one_writer() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &world("m1", 10)).await;
    let first = Running::start(&cache, &database, Rules::default());
    first.until_equal(&cache, &database).await;
    // Another sink is refused.
    let other = Running::start_as(&cache, &database, Rules::default(), |config| config.name = "other".to_owned());
    let refused = |state: &SinkState| matches!(state, SinkState::Waiting { failure: SinkFailure::DuplicateSink, .. });
    other.until("the refusal", |progress| refused(&progress.state)).await;
    other.stop().await;
    // A second process of the same sink takes over.
    let second = Running::start(&cache, &database, Rules::default());
    second.until("it follows", |progress| progress.state == SinkState::Following).await;
    cache.put("m1", &[pod("m1", "late", "Running", 1)]).await;
    first.until("it is locked out", |progress| progress.failures > 0).await;
    first.stop().await;
    second.until_equal(&cache, &database).await;
    second.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn another_selection_is_written_anew() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    cache.put("m1", &world("m1", 10)).await;
    let sink = Running::start(&cache, &database, Rules::default());
    sink.until_equal(&cache, &database).await;
    sink.stop().await;
    let rules = Rules { hidden_kinds: vec!["Pod", "Service"], ..Rules::default() };
    let sink = Running::start_as(&cache, &database, rules, |config| config.selection = "-kind:pod".to_owned());
    sink.until_equal(&cache, &database).await;
    assert_eq!(sink.progress().loads, 1);
    sink.stop().await;
}

#[tokio::test]
#[ignore = "starts a graph database: run .ci/graph test"]
async fn unreachable_addresses_are_reported_with_the_next_step() {
    let Some(database) = Database::empty().await else { return };
    let cache = Cache::new().await;
    for (address, failure) in
        [("bolt://127.0.0.1:1", SinkFailure::Unreachable), ("http://127.0.0.1:1", SinkFailure::InvalidAddress)]
    {
        let sink =
            Running::start_as(&cache, &database, Rules::default(), |config| config.target.address = address.to_owned());
        sink.until("the error", |progress| {
            matches!(&progress.state, SinkState::Waiting { failure: found, message }
                if *found == failure && message.contains("spec.address"))
        })
        .await;
        sink.stop().await;
    }
    let sink = Running::start_as(&cache, &database, Rules::default(), |config| config.target.database = "none".into());
    sink.until("the error", |progress| {
        matches!(progress.state, SinkState::Waiting { failure: SinkFailure::DatabaseNotFound, .. })
    })
    .await;
    sink.stop().await;
}
