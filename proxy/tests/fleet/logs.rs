//! Logs of pods in several members: merging, refusals, following across restarts, new pods.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use crowsnest_index::SearchRequest;
use crowsnest_proxy::logs::{LogEvent, LogRequest, LogSummary, SourceEvent};
use crowsnest_proxy::{Caller, Error};
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, admin, create, grant, test_env, user};

/// Start of the logs in these tests. It is recent, because old logs are not kept.
static START: LazyLock<Timestamp> = LazyLock::new(|| {
    let recently = Timestamp::now() - SignedDuration::from_mins(10);
    Timestamp::from_second(recently.as_second()).unwrap()
});

fn time(second: i64) -> String {
    (*START + SignedDuration::from_secs(second)).to_string()
}

/// Status of a container that was started at a second; `ended` is the second and exit code of its end.
fn status(restarts: u32, started: i64, ended: Option<(i64, i32)>) -> Value {
    let state = match ended {
        None => json!({"running": {"startedAt": time(started)}, "terminated": null}),
        Some((at, code)) => json!({"running": null, "terminated": {
            "exitCode": code, "reason": "Error", "startedAt": time(started), "finishedAt": time(at)}}),
    };
    json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "web", "image": "x", "imageID": "", "ready": ended.is_none(), "restartCount": restarts, "state": state,
    }]}})
}

async fn set_status(client: &Client, name: &str, status: &Value) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.patch_status(name, &Default::default(), &Patch::Merge(status)).await.unwrap();
}

/// Creates a pod whose container logs its start and `ready`.
async fn create_pod(env: &TestEnv, member: &str, name: &str, started: i64) {
    let client = env.members[member].admin();
    let metadata = json!({
        "name": name, "labels": {"app": "web"}, "annotations": {"sim.crowsnest.io/log-interval-seconds": "0"},
    });
    let spec = json!({"nodeName": "n", "containers": [{"name": "web", "image": "x"}]});
    create(&client, "v1", "Pod", Some("default"), json!({"metadata": metadata, "spec": spec})).await;
    set_status(&client, name, &status(0, started, None)).await;
}

/// Waits until searches of the caller find this many pods with running containers.
async fn wait_until_found(env: &TestEnv, caller: &Caller, expected: u64) {
    let until_found = async {
        let (mut searchable, mut applied_seq) = (env.cache.searcher().searchable(), env.cache.searcher().applied_seq());
        loop {
            let search = SearchRequest::new("kind:pod label:app=web ready:>0", caller.clone());
            if env.cache.searcher().search_all(search).await.unwrap().summary.unwrap().total == expected {
                return;
            }
            tokio::select! {
                changed = searchable.changed() => changed.unwrap(),
                changed = applied_seq.changed() => changed.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until_found).await.expect("the pods are found");
}

async fn request_logs(env: &TestEnv, caller: &Caller, query: &str) -> Result<BoxStream<'static, LogEvent>, Error> {
    let query = format!("labelSelector=app%3Dweb&{query}");
    let request = LogRequest::parse(Some(&query), Timestamp::now())?;
    env.proxy.logs(caller, request, BTreeMap::new()).await
}

/// An event as one line.
fn format_event(event: &LogEvent) -> String {
    let LogEvent::Source(source, event) = event else { return format!("{event:?}") };
    let text = match event {
        SourceEvent::Started => "joined".to_owned(),
        SourceEvent::Line(line) => line.text.clone(),
        SourceEvent::Refused(refusal) => format!("{}: {}", refusal.code, refusal.message),
        SourceEvent::Ended(reason) => format!("left: {reason}"),
    };
    format!("{}/{} {text}", source.cluster, source.pod)
}

/// All lines and refusals of a request.
async fn read_logs(env: &TestEnv, caller: &Caller, query: &str) -> Vec<String> {
    let events: Vec<LogEvent> = request_logs(env, caller, query).await.unwrap().collect().await;
    let shown =
        events.iter().filter(|event| matches!(event, LogEvent::Source(_, event) if *event != SourceEvent::Started));
    assert!(matches!(events.last(), Some(LogEvent::Done(_))), "{events:?}");
    shown.map(format_event).collect()
}

/// The next events of followed logs up to this line.
async fn read_until(logs: &mut BoxStream<'static, LogEvent>, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let reached = async {
        while seen.last().is_none_or(|seen| seen != last) {
            let event = logs.next().await.expect("logs are followed");
            if matches!(event, LogEvent::Source(..)) {
                seen.push(format_event(&event));
            }
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(reached.is_ok(), "{last:?} was not sent: {seen:?}");
    seen
}

fn start_line(cluster: &str, pod: &str) -> String {
    format!("{cluster}/{pod} web starting: image x, pod default/{pod}, node n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_several_members_are_merged() {
    let env = test_env().await;
    for (member, name, started) in [("m1", "c", 3), ("m2", "b", 2), ("m1", "a", 1)] {
        create_pod(&env, member, name, started).await;
    }
    wait_until_found(&env, &admin(), 3).await;
    let expected: Vec<String> = [("m1", "a"), ("m2", "b"), ("m1", "c")]
        .into_iter()
        .flat_map(|(cluster, pod)| [start_line(cluster, pod), format!("{cluster}/{pod} ready")])
        .collect();
    assert_eq!(read_logs(&env, &admin(), "").await, expected);
    // Filters.
    assert_eq!(read_logs(&env, &admin(), "tail=1&pod=^(a|b)$").await, ["m1/a ready", "m2/b ready"]);
    assert_eq!(read_logs(&env, &admin(), "exclude=ready&include=web&cluster=m2").await, [start_line("m2", "b")]);
    let since = format!("sinceTime={}", time(3));
    assert_eq!(read_logs(&env, &admin(), &since).await, [start_line("m1", "c"), "m1/c ready".to_owned()]);
    assert!(read_logs(&env, &admin(), "namespace=other").await.is_empty());
    let previous = read_logs(&env, &admin(), "previous=true&q=name:b").await;
    assert_eq!(previous, ["m2/b 400: previous terminated container \"web\" in pod \"b\" not found"]);

    // Requests for more logs than the limit are refused.
    let error = request_logs(&env, &admin(), "maxStreams=2").await.err().unwrap();
    assert_eq!(error.code_and_reason().0, 400);
    assert!(
        error.to_string().starts_with("3 pods with 3 logs were found, and at most 2 can be read at once"),
        "{error}"
    );
    let error = request_logs(&env, &admin(), "tail=many&include=[").await.err().unwrap();
    assert_eq!(
        (error.code_and_reason().0.as_u16(), error.status()["details"]["causes"].as_array().unwrap().len()),
        (422, 2)
    );
    let error = request_logs(&env, &admin(), "q=scope:nosuch").await.err().unwrap();
    assert!(error.to_string().contains("there is no saved search"), "{error}");

    // A refusal of one member does not affect others; pods that the caller may not see are not reported.
    assert!(read_logs(&env, &user("alice"), "").await.is_empty());
    let rule = |resource: &str, verb: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": [verb]});
    let alice = json!({"kind": "User", "name": "alice"});
    let m1 = json!([rule("pods", "list"), rule("pods/log", "get")]);
    grant(&env.members["m1"].admin(), "alice", m1, alice.clone()).await;
    grant(&env.members["m2"].admin(), "alice", json!([rule("pods", "list")]), alice).await;
    wait_until_found(&env, &user("alice"), 3).await;
    let refused = "m2/b 403: pods \"b\" is forbidden: User \"alice\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"default\"";
    let mut expected = expected;
    expected.retain(|line| !line.starts_with("m2"));
    expected.insert(0, refused.to_owned());
    assert_eq!(read_logs(&env, &user("alice"), "").await, expected);
    let events: Vec<LogEvent> = request_logs(&env, &user("alice"), "").await.unwrap().collect().await;
    let done = LogSummary { lines: 4, logs: 3, refused: 1, end_reason: None };
    assert!(matches!(events.last(), Some(LogEvent::Done(summary)) if *summary == done), "{events:?}");
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_followed() {
    let env = test_env().await;
    create_pod(&env, "m1", "a", 1).await;
    wait_until_found(&env, &admin(), 1).await;
    let mut logs = request_logs(&env, &admin(), "follow=true").await.unwrap();
    let mut limited = request_logs(&env, &admin(), "follow=true&maxStreams=1&tail=1").await.unwrap();
    assert_eq!(
        read_until(&mut logs, "m1/a ready").await,
        ["m1/a joined".to_owned(), start_line("m1", "a"), "m1/a ready".into()]
    );
    assert_eq!(read_until(&mut limited, "m1/a ready").await, ["m1/a joined", "m1/a ready"]);

    // A new pod is read from its beginning, up to the limit of open logs.
    create_pod(&env, "m2", "b", 2).await;
    assert_eq!(
        read_until(&mut logs, "m2/b ready").await,
        ["m2/b joined".to_owned(), start_line("m2", "b"), "m2/b ready".into()]
    );
    let full = "m2/b 429: 1 logs are already open, the limit set by maxStreams";
    assert_eq!(read_until(&mut limited, full).await, ["m2/b joined", full]);
    drop(limited);

    // Lines before and after a container restart are sent once.
    let m1 = env.members["m1"].admin();
    set_status(&m1, "a", &status(0, 1, Some((5, 1)))).await;
    assert_eq!(read_until(&mut logs, "m1/a exiting with code 1 (Error)").await, ["m1/a exiting with code 1 (Error)"]);
    set_status(&m1, "a", &status(1, 9, None)).await;
    assert_eq!(read_until(&mut logs, "m1/a ready").await, [start_line("m1", "a"), "m1/a ready".into()]);

    // A deleted pod is reported, and a new pod of the same name is followed separately.
    let pods: Api<Pod> = Api::namespaced(m1.clone(), "default");
    let immediately = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete("a", &immediately).await.unwrap();
    let deleted = "m1/a left: the pod was deleted, no longer matches, or may no longer be read";
    assert_eq!(read_until(&mut logs, deleted).await, [deleted]);
    create_pod(&env, "m1", "a", 20).await;
    assert_eq!(
        read_until(&mut logs, "m1/a ready").await,
        ["m1/a joined".to_owned(), start_line("m1", "a"), "m1/a ready".into()]
    );
    drop(logs);
    env.stop().await;
}
