//! Tests of the plans and statuses of Jobs.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::indexes::format_indexes;
use super::*;
use crate::member::interner::Interner;

const START: &str = "2026-01-01T00:00:00Z";

/// Parses pods, one per word: `r` running, `s` succeeded, `f` failed at second 0, `t` running and terminating.
/// Suffixes: `-` counted (no finalizer), `@2` index 2, `#1` one earlier failure, `!3` exit code 3, `^2` two restarts.
fn pods(text: &str) -> Vec<Arc<PodState>> {
    let value = |word: &str, mark: char| {
        let (_, rest) = word.split_once(mark)?;
        rest.split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned)
    };
    text.split_whitespace()
        .enumerate()
        .map(|(number, word)| {
            let phase = match &word[..1] {
                "s" => "Succeeded",
                "f" => "Failed",
                _ => "Running",
            };
            let code: i32 = value(word, '!').map_or(1, |code| code.parse().unwrap());
            let restarts: i32 = value(word, '^').map_or(0, |count| count.parse().unwrap());
            let mut annotations = json!({});
            for (mark, name) in [('@', INDEX_ANNOTATION), ('#', FAILURES_ANNOTATION)] {
                if let Some(value) = value(word, mark) {
                    annotations[name] = json!(value);
                }
            }
            let state = match phase {
                "Running" => json!({"running": {"startedAt": START}}),
                phase => json!({"terminated": {"exitCode": if phase == "Failed" { code } else { 0 }, "finishedAt": START}}),
            };
            let pod = json!({
                "metadata": {"name": format!("p{number}"), "uid": format!("p{number}"), "annotations": annotations,
                    "deletionTimestamp": word.starts_with('t').then_some(START),
                    "finalizers": if word.contains('-') { json!([]) } else { json!([FINALIZER]) }},
                "spec": {"containers": [], "restartPolicy": if restarts > 0 { "OnFailure" } else { "Never" }},
                "status": {"phase": phase, "containerStatuses": [
                    {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state}]},
            });
            Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()))
        })
        .collect()
}

fn names(pods: &[Arc<PodState>]) -> String {
    pods.iter().map(|pod| &pod.key.name[1..]).collect::<Vec<_>>().join(" ")
}

/// Formats a plan in one line: created pods (`+@INDEX#FAILURES`), pods deleted with and without being counted
/// (`delete`, `discard`), counted pods, reason of the outcome, and seconds until the requeue. Pods are named by their
/// position.
fn describe(plan: &Plan) -> String {
    let mut parts = Vec::new();
    if !plan.create.is_empty() {
        let describe_new_pod = |new: &NewPod| {
            let index = new.index.map(|index| format!("@{index}")).unwrap_or_default();
            format!("+{index}{}", new.failures.map(|(count, _)| format!("#{count}")).unwrap_or_default())
        };
        parts.push(plan.create.iter().map(describe_new_pod).collect::<Vec<_>>().join(" "));
    }
    for (action, pods) in [("delete", &plan.delete), ("discard", &plan.discard), ("count", &plan.pods_to_count)] {
        if !pods.is_empty() {
            parts.push(format!("{action} {}", names(pods)));
        }
    }
    if let Some(outcome) = &plan.outcome {
        parts.push(outcome.reason.clone());
    }
    if let Some(wait) = plan.requeue_after {
        parts.push(format!("wait {}", wait.as_secs()));
    }
    parts.join(", ")
}

fn at(second: i64) -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

fn job_spec(spec: Value) -> JobSpec {
    let mut spec = spec;
    spec["template"] = json!({});
    serde_json::from_value(spec).unwrap()
}

#[rstest::rstest]
#[case(json!({"completions": 4, "parallelism": 2}), json!({}), "", 100, "+ +")]
#[case(json!({"completions": 4, "parallelism": 2}), json!({}), "s s s r", 100, "count 0 1 2")]
#[case(json!({"completions": 4, "parallelism": 2}), json!({}), "s s s s", 100, "count 0 1 2 3, CompletionsReached")]
#[case(json!({"completions": 4, "parallelism": 2}), json!({"succeeded": 3}), "s- s- s- s", 100, "count 3, CompletionsReached")]
// Pods in `uncountedTerminatedPods` are counted.
#[case(json!({"completions": 2}), json!({"uncountedTerminatedPods": {"succeeded": ["p0"]}}), "s", 100, "+, count 0")]
#[case(json!({"completions": 1}), json!({}), "f", 5, "count 0, wait 5")]
#[case(json!({"completions": 1}), json!({}), "f", 100, "+, count 0")]
#[case(json!({"completions": 1}), json!({"failed": 1}), "f- f", 5, "count 1, wait 15")]
#[case(json!({"completions": 1, "backoffLimit": 1}), json!({"failed": 1}), "f- f", 5, "count 1, BackoffLimitExceeded")]
#[case(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0}), json!({}), "f r", 5, "delete 1, count 0 1, BackoffLimitExceeded")]
#[case(json!({"completions": 1, "backoffLimit": 3}), json!({}), "r^2", 5, "")]
#[case(json!({"completions": 1, "backoffLimit": 3}), json!({}), "r^3", 5, "delete 0, count 0, BackoffLimitExceeded")]
#[case(json!({"parallelism": 3}), json!({}), "r r s", 100, "count 2")]
#[case(json!({"parallelism": 3}), json!({}), "s s s", 100, "count 0 1 2, CompletionsReached")]
#[case(json!({"completions": 3, "parallelism": 3, "suspend": true}), json!({}), "r r", 100, "discard 0 1")]
#[case(json!({"completions": 9, "parallelism": 1}), json!({}), "r r", 100, "discard 0")]
#[case(json!({"activeDeadlineSeconds": 60}), json!({"startTime": START}), "r", 20, "wait 40")]
#[case(json!({"activeDeadlineSeconds": 60}), json!({"startTime": START}), "r", 60, "delete 0, count 0, DeadlineExceeded")]
// A terminating pod counts as failed, unless `podReplacementPolicy` is `Failed`.
#[case(json!({"completions": 1}), json!({}), "t", 100, "+, count 0")]
#[case(json!({"completions": 1, "podReplacementPolicy": "Failed"}), json!({}), "t", 100, "")]
fn pods_are_created_deleted_and_counted(
    #[case] spec: Value,
    #[case] status: Value,
    #[case] pods_text: &str,
    #[case] second: i64,
    #[case] expected: &str,
) {
    let status = serde_json::from_value(status).unwrap();
    assert_eq!(describe(&plan(&job_spec(spec), &status, &pods(pods_text), at(second))), expected);
}

#[rstest::rstest]
#[case(json!({"completions": 3, "parallelism": 3}), json!({}), "s@0 r@2", 100, "+@1, count 0")]
#[case(json!({"completions": 3, "parallelism": 3}), json!({"completedIndexes": "0"}), "s-@0 r@1 r@1", 100, "discard 2")]
#[case(json!({"completions": 5, "parallelism": 2, "successPolicy": {"rules": [{"succeededIndexes": "0"}]}}), json!({}), "s@0 r@1", 100,
    "delete 1, count 0 1, SuccessPolicy")]
// The last failed pod of an index is counted only after a replacement with its failure count was created.
#[case(json!({"completions": 2, "parallelism": 2, "backoffLimitPerIndex": 1}), json!({}), "s@0 f@1#0", 5, "count 0, wait 5")]
#[case(json!({"completions": 2, "parallelism": 2, "backoffLimitPerIndex": 1}), json!({}), "s@0 f@1#0", 100, "+@1#1, count 0")]
#[case(json!({"completions": 2, "parallelism": 2, "backoffLimitPerIndex": 1}), json!({"completedIndexes": "0"}), "s-@0 f@1#0 r@1#1", 100, "count 1")]
#[case(json!({"completions": 2, "parallelism": 2, "backoffLimitPerIndex": 1}), json!({"completedIndexes": "0", "failed": 1}), "s-@0 f-@1#0 f@1#1", 100,
    "count 2, FailedIndexes")]
#[case(json!({"completions": 4, "parallelism": 1, "backoffLimitPerIndex": 0, "maxFailedIndexes": 0}), json!({}), "f@0#0", 100,
    "count 0, MaxFailedIndexesExceeded")]
#[case(json!({"completions": 2, "parallelism": 2, "backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [
    {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}]}}), json!({}), "s@0 f@1#0", 100, "count 0 1, FailedIndexes")]
#[case(json!({"completions": 2, "parallelism": 2, "podFailurePolicy": {"rules": [
    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [7]}}]}}), json!({}), "r@0 f@1!7", 100, "delete 0, count 0 1, PodFailurePolicy")]
#[case(json!({"completions": 1, "backoffLimit": 0, "podFailurePolicy": {"rules": [
    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}}]}}), json!({}), "f@0!7", 100, "+@0, count 0")]
fn pods_of_indexed_jobs_are_created_deleted_and_counted(
    #[case] spec: Value,
    #[case] status: Value,
    #[case] pods_text: &str,
    #[case] second: i64,
    #[case] expected: &str,
) {
    let mut spec = spec;
    spec["completionMode"] = json!("Indexed");
    let status = serde_json::from_value(status).unwrap();
    assert_eq!(describe(&plan(&job_spec(spec), &status, &pods(pods_text), at(second))), expected);
}

/// Formats a status: counters of succeeded and failed pods, completed/failed indexes, number of uncounted pods, and
/// true conditions.
fn describe_status(status: &JobStatus) -> String {
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let uncounted_pods = [uncounted.succeeded, uncounted.failed].into_iter().flatten().flatten().count();
    let conditions: Vec<&str> =
        status.conditions.iter().flatten().filter(|c| c.status == "True").map(|c| c.type_.as_str()).collect();
    format!(
        "s{} f{} {}/{} u{uncounted_pods} {}",
        status.succeeded.unwrap_or_default(),
        status.failed.unwrap_or_default(),
        status.completed_indexes.clone().unwrap_or_default(),
        status.failed_indexes.clone().unwrap_or_default(),
        conditions.join(" ")
    )
}

#[rstest::rstest]
#[case(json!({"completions": 2}), json!({}), "s f", "s0 f0 / u2 ", "s1 f1 / u0 ")]
#[case(json!({"completions": 1}), json!({"failed": 1}), "f- s", "s0 f1 / u1 SuccessCriteriaMet", "s1 f1 / u0 SuccessCriteriaMet Complete")]
#[case(json!({"completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0}), json!({}), "s@0 f@1#0",
    "s1 f0 0/1 u1 FailureTarget", "s1 f1 0/1 u0 FailureTarget Failed")]
// A Job with a terminating pod has not finished.
#[case(json!({"completions": 9, "parallelism": 2, "backoffLimit": 0}), json!({}), "f t", "s0 f0 / u2 FailureTarget", "s0 f2 / u0 FailureTarget")]
#[case(json!({"suspend": true}), json!({}), "", "s0 f0 / u0 Suspended", "s0 f0 / u0 Suspended")]
fn terminated_pods_are_counted_once(
    #[case] spec: Value,
    #[case] status: Value,
    #[case] pods_text: &str,
    #[case] before: &str,
    #[case] after: &str,
) {
    let (spec, status, pods) = (job_spec(spec), serde_json::from_value(status).unwrap(), pods(pods_text));
    let plan = plan(&spec, &status, &pods, at(100));
    let before_counting = status_before_counting(&spec, &status, &plan, &pods, at(100));
    assert_eq!(describe_status(&before_counting), before);
    assert_eq!(describe_status(&status_after_counting(before_counting, &plan, &pods, at(100))), after);
}

#[test]
fn new_pods_have_index_and_failure_annotations() {
    let owner = WorkloadOwner {
        subject: crate::member::recorder::Subject::new("batch/v1", "Job", Key::new("ns", "sums"), "u"),
        source: crate::member::recorder::Source { component: "job-controller", host: None },
    };
    let spec = job_spec(json!({"completionMode": "Indexed"}));
    let pod = new_pod(&owner, &spec, NewPod { index: Some(3), failures: Some((1, 2)) });
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(
        [INDEX_ANNOTATION, FAILURES_ANNOTATION, IGNORED_FAILURES_ANNOTATION].map(|name| annotations[name].as_str()),
        ["3", "1", "2"]
    );
    assert_eq!(pod.metadata.finalizers.unwrap(), [FINALIZER]);
    assert_eq!(format_indexes(&[3].into()), "3");
}
