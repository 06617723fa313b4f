//! Writes of the OpenSearch backend to real engines, through a proxy that injects faults.
//!
//! Each test ends with a comparison of engine and source: the same documents in the same versions. The engines are
//! built and started by `.ci/engines test`; `cargo test` alone skips these tests.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![expect(clippy::print_stderr, reason = "a skipped test is reported")]

#[path = "opensearch/connections.rs"]
mod connections;
#[path = "opensearch/node.rs"]
mod node;
#[path = "opensearch/proxy.rs"]
mod proxy;
#[path = "opensearch/source.rs"]
mod source;
#[path = "opensearch/test_env.rs"]
mod test_env;

use crowsnest_search::opensearch::bulk::BulkLimits;
use crowsnest_search::opensearch::writer::{BatchBounds, Progress, State, WriterOptions};
use node::Node;
use proxy::{Fault, response};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use test_env::TestEnv;
use tokio::sync::watch;

/// Runs each test on each engine.
macro_rules! on_each_engine {
    ($($test:ident),* $(,)?) => {
        on_each_engine!(@ opensearch_2 "opensearch-2" $($test)*);
        on_each_engine!(@ opensearch_3 "opensearch-3" $($test)*);
        on_each_engine!(@ elasticsearch_7 "elasticsearch-7" $($test)*);
        on_each_engine!(@ elasticsearch_8 "elasticsearch-8" $($test)*);
        on_each_engine!(@ elasticsearch_9 "elasticsearch-9" $($test)*);
    };
    (@ $module:ident $engine:literal $($test:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "starts search engines: run .ci/engines test"]
                async fn $test() {
                    super::$test($engine).await;
                }
            )*
        }
    };
}

on_each_engine!(
    changes_arrive_and_the_position_survives,
    network_faults_are_retried,
    a_killed_node_loses_nothing,
    two_writers_and_replays_agree,
    only_the_elected_process_writes,
    changes_of_an_hour_are_caught_up,
    a_refused_document_does_not_stop_others,
    a_full_queue_is_waited_for,
    a_blocked_index_is_waited_for,
    a_lost_index_is_filled_again,
    a_closed_index_is_waited_for,
    an_alias_elsewhere_is_left_alone,
    another_template_is_built_beside_the_old_index,
    forgotten_deletions_and_a_new_source_lead_to_a_rebuild,
);

async fn changes_arrive_and_the_position_survives(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    env.put("a", 600);
    let running = env.start_writer().await;
    env.assert_equal(&running).await;
    env.put("a", 50);
    for number in 100..200 {
        env.source.set(&format!("a{number}"), None);
    }
    env.source.set("ü \"/%\n", Some(json!({"number": 1})));
    env.assert_equal(&running).await;
    running.stop().await;

    let running = env.start_writer().await;
    assert_eq!(running.wait_until_caught_up().await.written, 0, "nothing is written twice after a restart");
    env.put("b", 1);
    env.assert_equal(&running).await;
    assert_eq!(running.writer.progress().written, 1);
    let settings = env.node.request("GET", &format!("/{}/_settings?flat_settings=true", env.alias), None).await;
    let settings = &settings.as_object().unwrap().values().next().unwrap()["settings"];
    assert_eq!(settings["index.translog.durability"], "request");
    assert_eq!(settings["index.gc_deletes"], "1h");
    assert_eq!(settings["index.refresh_interval"], "1s");
}

async fn network_faults_are_retried(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let running = env.start_writer().await;
    env.put("first", 20);
    env.assert_equal(&running).await;
    let rejected = r#"{"error":{"type":"rejected_execution_exception","reason":"queue"},"status":429}"#;
    let redirect = "location: http://127.0.0.1:1/\r\n";
    let faults = [
        (Fault::Refuse, "connection to"),
        (Fault::TruncateRequest, "connection to"),
        (Fault::TruncateResponse(0), "connection to"),
        (Fault::TruncateResponse(150), "connection to"),
        (Fault::Silence, "did not respond within"),
        (Fault::Endless, "more than 4194304 bytes"),
        (response(429, "", rejected), "429 rejected_execution_exception: queue"),
        (response(503, "retry-after: 1\r\n", ""), "503"),
        (response(200, "", "<html>"), "cannot read the search engine's response"),
        (response(307, redirect, ""), "redirect (307)"),
        (Fault::Authorization("Basic b3RoZXI6cGFzcw==".to_owned()), "401"),
    ];
    for (number, (fault, reason)) in faults.into_iter().enumerate() {
        env.proxy.set(fault);
        env.put(&format!("fault{number}-"), 300);
        env.put("first", 20);
        running.wait_until_waiting(reason).await;
        let waiting = running.writer.progress();
        assert!(waiting.lag() >= 320, "{waiting:?}");
        env.proxy.set(Fault::Pass);
        env.assert_equal(&running).await;
    }
    env.proxy.set(Fault::Slow);
    env.put("slow", 5);
    env.assert_equal(&running).await;
    assert!(env.source.max_read() <= 250, "a batch is bounded however far the engine is behind");
    assert_eq!(running.writer.progress().dead_letters, 0);
}

async fn a_killed_node_loses_nothing(engine: &'static str) {
    let Some(node) = Node::start(engine, &[]).await else { return };
    let env = TestEnv::on(Arc::new(node)).await;
    let running = env.start_writer().await;
    env.put("a", 3000);
    for killed in 1..=2 {
        let target = running.writer.progress().written + 700;
        running.wait_until("under way", |progress| progress.written >= target).await;
        env.node.kill();
        env.put("b", 300 * killed);
        for number in 0..100 {
            env.source.set(&format!("a{number}"), None);
        }
        running.wait_until_waiting("").await;
        let waiting = running.writer.progress();
        assert!(waiting.lag() > 0, "{waiting:?}");
        env.put(&format!("c{killed}-"), 2000);
        env.node.restart().await;
    }
    env.assert_equal(&running).await;
    assert_eq!(running.writer.progress().rebuilds, 0);
}

async fn two_writers_and_replays_agree(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    env.put("a", 1500);
    let (first, second) = tokio::join!(env.start_writer(), env.start_writer());
    for round in 0..5 {
        env.put("a", 200);
        env.put("b", 100);
        for number in 0..100 {
            env.source.set(&format!("a{}", number * 3 + round), None);
        }
        first.wait_until("further", |progress| progress.position > 0).await;
    }
    env.assert_equal(&first).await;
    env.assert_equal(&second).await;
    first.stop().await;
    second.stop().await;
    // A writer without a position sends everything again; older versions are rejected.
    env.node.request("DELETE", &format!("/{}/_doc/crowsnest-progress?refresh=true", env.alias), None).await;
    let third = env.start_writer().await;
    env.assert_equal(&third).await;
    let progress = third.writer.progress();
    assert!(progress.superseded > 500 && progress.rebuilds == 0, "{progress:?}");
}

async fn only_the_elected_process_writes(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let (electing, elected) = [true, false].map(watch::channel).into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    let with = |elected: &watch::Receiver<bool>| {
        let read_interval = Duration::from_millis(20);
        let takeover_timeout = Duration::from_secs(3);
        WriterOptions { elected: elected.clone(), read_interval, takeover_timeout, ..env.options() }
    };
    let first = env.start_writer_with(with(&elected[0])).await;
    let second = env.start_writer_with(with(&elected[1])).await;
    env.put("a", 400);
    env.assert_equal(&first).await;
    let standby = second.wait_until_standby().await;
    assert_eq!((standby.written, standby.rounds), (0, 0), "{standby:?}");
    assert_eq!(standby.index, first.writer.progress().index);

    for (former, next) in [(0, 1), (1, 0)] {
        electing[former].send_replace(false);
        env.put("b", 300);
        electing[next].send_replace(true);
        let (former, next) = if next == 1 { (&first, &second) } else { (&second, &first) };
        let written = next.writer.progress().written;
        env.assert_equal(next).await;
        assert_eq!(next.writer.progress().written, written + 300, "it continues at the other's position");
        former.wait_until_standby().await;
    }
    assert_eq!(second.writer.progress().rebuilds + first.writer.progress().rebuilds, 0);

    // The elected writer does not write, for example because of a network failure.
    electing[0].send_replace(false);
    first.wait_until_standby().await;
    second.wait_until_standby().await;
    env.put("c", 100);
    let writes = |progress: &Progress| progress.state == State::Following && progress.lag() == 0;
    tokio::select! {
        _ = first.wait_until("writing", writes) => {}
        _ = second.wait_until("writing", writes) => {}
    }
    let written = env.source.documents();
    assert_eq!(env.node.documents(&env.alias).await, written);

    // An index of another source is not read.
    first.stop().await;
    second.stop().await;
    env.source.restart();
    let third = env.start_writer_with(with(&elected[0])).await;
    third.wait_until_waiting("filled from another cache").await;
}

async fn changes_of_an_hour_are_caught_up(engine: &'static str) {
    const CHANGES: u64 = 3600 * 100;
    const RECORDS: u64 = 9_000;
    let Some(env) = TestEnv::shared(engine).await else { return };
    let mut options = env.options();
    options.limits = BulkLimits { bytes: 1 << 20, items: 500 };
    options.batch = BatchBounds { changes: 1000, bytes: 1 << 20 };
    let running = env.start_writer_with(options).await;
    env.put("a", 500);
    env.assert_equal(&running).await;
    env.proxy.set(Fault::Refuse);
    for _ in 0..CHANGES / RECORDS {
        env.put("a", RECORDS);
    }
    env.put("gone", 100);
    (0..100).for_each(|number| env.source.set(&format!("gone{number}"), None));
    running.wait_until_waiting("connection to").await;
    let delayed = running.writer.progress();
    assert!(delayed.lag() >= CHANGES, "{delayed:?}");
    env.proxy.set(Fault::Pass);
    env.assert_equal(&running).await;
    let caught_up = running.writer.progress();
    assert_eq!((caught_up.rebuilds, caught_up.dead_letters, caught_up.lag()), (0, 0, 0), "{caught_up:?}");
    assert!(env.source.max_read() <= 1000, "a batch is bounded however far the engine is behind");
    assert!(caught_up.written <= 500 + RECORDS + 200, "only the last state of each record is sent: {caught_up:?}");
}

async fn a_refused_document_does_not_stop_others(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let running = env.start_writer().await;
    env.put("a", 100);
    env.source.set("conflict", Some(json!({"number": "a word"})));
    env.source.set(&"long".repeat(200), Some(json!({"number": 1})));
    env.put("b", 100);
    running.wait_until_caught_up().await;
    let letters = running.writer.dead_letters();
    let reasons: Vec<_> = letters.iter().map(|letter| letter.reason.as_str()).collect();
    assert_eq!(letters.len(), 2, "{reasons:?}");
    assert!(
        letters.iter().any(|l| l.id == "conflict" && l.reason.contains("failed to parse field [number]")),
        "{reasons:?}"
    );
    assert!(reasons.iter().any(|reason| reason.contains("512 bytes")), "{reasons:?}");
    assert_eq!(env.node.documents(&env.alias).await.len(), 200);

    env.source.set("conflict", Some(json!({"number": 7})));
    env.source.set(&"long".repeat(200), None);
    running.wait_until_caught_up().await;
    assert_eq!(running.writer.dead_letters().len(), 1, "a document that is written is no dead letter");
    env.assert_equal(&running).await;
}

async fn a_full_queue_is_waited_for(engine: &'static str) {
    let settings = &["thread_pool.write.size=1", "thread_pool.write.queue_size=1"];
    let Some(node) = Node::start(engine, settings).await else { return };
    let env = TestEnv::on(Arc::new(node)).await;
    env.put("a", 500);
    let mut options = env.options();
    options.limits.items = 2;
    options.max_concurrent_requests = 24;
    let running = env.start_writer_with(options).await;
    env.assert_equal(&running).await;
    let progress = running.writer.progress();
    assert!(progress.retried > 0 && progress.dead_letters == 0, "{progress:?}");
}

async fn a_blocked_index_is_waited_for(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let running = env.start_writer().await;
    env.put("a", 100);
    env.assert_equal(&running).await;
    for (block, reason) in [("read_only_allow_delete", "429 cluster_block_exception"), ("write", "FORBIDDEN/8")] {
        let setting = format!("index.blocks.{block}");
        let path = format!("/{}/_settings", env.alias);
        env.node.request("PUT", &path, Some(json!({ &setting: true }))).await;
        env.put(block, 100);
        env.source.set("a1", None);
        running.wait_until_waiting(reason).await;
        env.node.request("PUT", &path, Some(json!({ &setting: null }))).await;
        env.assert_equal(&running).await;
    }
    assert_eq!(running.writer.progress().dead_letters, 0);
}

async fn a_lost_index_is_filled_again(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let running = env.start_writer().await;
    env.put("a", 300);
    env.source.set("a7", None);
    env.assert_equal(&running).await;
    // Without changes, the index is checked at intervals.
    let index = env.node.indices_behind(&env.alias).await.remove(0);
    env.node.request("DELETE", &format!("/{index}"), None).await;
    running.wait_until("filled again", |progress| progress.written >= 598).await;
    env.assert_equal(&running).await;
    running.stop().await;

    // Detected by a request with only deletions, for which engines would create an index.
    let mut options = env.options();
    options.check_interval = Duration::from_secs(3600);
    let running = env.start_writer_with(options).await;
    running.wait_until_caught_up().await;
    let index = env.node.indices_behind(&env.alias).await.remove(0);
    env.node.request("DELETE", &format!("/{index}"), None).await;
    for number in 100..200 {
        env.source.set(&format!("a{number}"), None);
    }
    running.wait_until("filled once more", |progress| progress.written >= 300).await;
    env.assert_equal(&running).await;
    assert_eq!(env.node.indices_behind(&env.alias).await.len(), 1);
}

async fn a_closed_index_is_waited_for(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let running = env.start_writer().await;
    env.put("a", 100);
    env.assert_equal(&running).await;
    let index = env.node.indices_behind(&env.alias).await.remove(0);
    env.node.request("POST", &format!("/{index}/_close"), None).await;
    env.put("b", 100);
    running.wait_until_waiting("index_closed_exception").await;
    env.node.request("POST", &format!("/{index}/_open"), None).await;
    env.assert_equal(&running).await;
    assert_eq!(running.writer.progress().dead_letters, 0);
}

async fn an_alias_elsewhere_is_left_alone(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    let running = env.start_writer().await;
    env.put("a", 100);
    env.assert_equal(&running).await;
    let (alias, index) = (&env.alias, env.node.indices_behind(&env.alias).await.remove(0));
    let other = format!("other-{alias}");
    env.node.request("PUT", &format!("/{other}"), Some(env.template.clone())).await;
    let actions = |actions: serde_json::Value| Some(json!({ "actions": actions }));
    let add = json!({"add": {"index": other, "alias": alias}});
    env.node.request("POST", "/_aliases", actions(json!([add]))).await;
    env.put("b", 100);
    running.wait_until_waiting("points at 2 indices").await;
    let remove = json!({"remove": {"index": index, "alias": alias}});
    env.node.request("POST", "/_aliases", actions(json!([remove]))).await;
    running.wait_until_waiting("which Crowsnest did not create").await;
    assert_eq!(env.node.documents(alias).await.len(), 0, "nothing is written to an index of others");
    let back = json!([
        {"add": {"index": index, "alias": alias}},
        {"remove_index": {"index": other}},
    ]);
    env.node.request("POST", "/_aliases", actions(back)).await;
    env.assert_equal(&running).await;
}

async fn another_template_is_built_beside_the_old_index(engine: &'static str) {
    let Some(mut env) = TestEnv::shared(engine).await else { return };
    env.put("a", 1000);
    let running = env.start_writer().await;
    env.assert_equal(&running).await;
    running.stop().await;

    env.template["mappings"]["properties"]["text"] = json!({"type": "keyword"});
    env.source.set("a1", None);
    let old = env.node.indices_behind(&env.alias).await;
    // In small steps, so that the old index can be observed meanwhile.
    let mut options = env.options();
    options.batch.changes = 10;
    let running = env.start_writer_with(options).await;
    let half = running.wait_until("half built", |progress| progress.position >= 500).await;
    assert_eq!((half.state, half.rebuilds), (State::Rebuilding, 0));
    assert_eq!(env.node.indices_behind(&env.alias).await, old, "the old index is searched meanwhile");
    // The process ends during the rebuild, and another one completes it.
    running.stop().await;
    let running = env.start_writer().await;
    env.put("b", 100);
    running.wait_until("rebuilt", |progress| progress.rebuilds == 1).await;
    env.assert_equal(&running).await;
    let new = env.node.indices_behind(&env.alias).await;
    assert!(new.len() == 1 && new != old, "{new:?}");
    let left = env.node.request("GET", &format!("/{}-*/_alias", env.alias), None).await;
    assert_eq!(left.as_object().unwrap().len(), 1, "the old index is deleted: {left}");

    // On request, while changes arrive.
    running.writer.rebuild().await.unwrap();
    env.put("c", 100);
    running.wait_until("rebuilt again", |progress| progress.rebuilds == 2).await;
    env.assert_equal(&running).await;
    assert_ne!(env.node.indices_behind(&env.alias).await, new);
}

async fn forgotten_deletions_and_a_new_source_lead_to_a_rebuild(engine: &'static str) {
    let Some(env) = TestEnv::shared(engine).await else { return };
    env.put("a", 300);
    env.source.set("gone before", Some(json!({})));
    env.source.set("gone before", None);
    env.source.prune();
    let running = env.start_writer().await;
    env.assert_equal(&running).await;
    assert_eq!(running.writer.progress().rebuilds, 0, "an index that was empty needs no older deletions");
    running.stop().await;

    env.source.set("a7", None);
    env.source.prune();
    let running = env.start_writer().await;
    running.wait_until("rebuilt", |progress| progress.rebuilds == 1).await;
    env.assert_equal(&running).await;
    running.stop().await;

    env.source.restart();
    let running = env.start_writer().await;
    running.wait_until("rebuilt", |progress| progress.rebuilds == 1).await;
    env.assert_equal(&running).await;
}
