//! Desired replicas from metrics, scaling behavior, and schedules of CronFederatedHPAs.

use std::collections::BTreeMap;

use crowsnest_api::autoscaling::{CronFederatedHPASpec, CronFederatedHPAStatus};
use crowsnest_plan::autoscaling::behavior::{Bounds, ScaleHistory, TimedReplicas};
use crowsnest_plan::autoscaling::cron::{Schedule, find_time_zone};
use crowsnest_plan::autoscaling::metrics::{CombinedProposal, MetricResult, combine, propose};
use crowsnest_plan::autoscaling::pods::{Container, Pod, PodKey, Readiness, Sample};
use crowsnest_plan::autoscaling::replicas::{ReplicaCalculator, ReplicaCount, Workload};
use crowsnest_plan::autoscaling::rules::{FinishedRun, Timers};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior, MetricSpec,
};
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use super::cases;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().expect("a time")
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A pod that has run for an hour, by default. Times are in seconds ago, amounts in thousandths.
#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct TestPod {
    cluster: String,
    phase: String,
    ready: String,
    started: i64,
    since: i64,
    terminating: bool,
    requests: BTreeMap<String, BTreeMap<String, i64>>,
}

impl Default for TestPod {
    fn default() -> Self {
        let cpu = BTreeMap::from([("cpu".to_owned(), 100)]);
        TestPod {
            cluster: "m1".to_owned(),
            phase: "Running".to_owned(),
            ready: "True".to_owned(),
            started: 3600,
            since: 3600,
            terminating: false,
            requests: BTreeMap::from([("web".to_owned(), cpu)]),
        }
    }
}

impl TestPod {
    fn facts(self, name: &str) -> Pod {
        let container = |(name, requests)| Container { name, requests };
        Pod {
            key: PodKey { cluster: self.cluster, name: name.to_owned() },
            labels: BTreeMap::new(),
            phase: self.phase,
            is_terminating: self.terminating,
            readiness: (!self.ready.is_empty()).then(|| Readiness { status: self.ready, since: ago(self.since) }),
            started_at: Some(ago(self.started)),
            containers: self.requests.into_iter().map(container).collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplicaCountCase {
    /// The target: exactly one of these.
    percent: Option<i32>,
    usage: Option<i64>,
    value: Option<i64>,
    per_pod: Option<i64>,
    /// Value of an object's metric.
    #[serde(default)]
    metric_value: i64,
    #[serde(default = "cpu")]
    resource: String,
    container: Option<String>,
    replicas: i32,
    #[serde(default)]
    running: i32,
    #[serde(default = "one")]
    calibration: f64,
    #[serde(default)]
    pods: BTreeMap<String, TestPod>,
    #[serde(default)]
    usages: BTreeMap<String, i64>,
    /// Age and window of the pods' metrics, in seconds.
    #[serde(default)]
    measured: (i64, i64),
    /// Replicas, utilization and usage, or the error.
    expected: ExpectedCount,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ExpectedCount {
    ReplicaCount { replicas: i32, utilization: Option<i32>, usage: i64 },
    Error(String),
}

fn cpu() -> String {
    "cpu".to_owned()
}

fn one() -> f64 {
    1.0
}

#[test]
fn replicas_are_counted() {
    let mut failures = Vec::new();
    for (name, case) in cases::<ReplicaCountCase>(include_str!("fixtures/autoscaling-replicas.yaml")) {
        let pods: Vec<Pod> = case.pods.into_iter().map(|(name, pod)| pod.facts(&name)).collect();
        let sample = |(pod, value): (String, i64)| Sample {
            cluster: Some("m1".to_owned()),
            name: pod,
            value,
            at: ago(case.measured.0),
            window: SignedDuration::from_secs(case.measured.1),
        };
        let samples: Vec<Sample> = case.usages.into_iter().map(sample).collect();
        let workload = Workload {
            replicas: case.replicas,
            status_replicas: case.running,
            calibration: case.calibration,
            pods: &pods,
        };
        let calculator = ReplicaCalculator::default();
        let container = case.container.as_deref();
        let found = match (case.percent, case.usage, case.value, case.per_pod) {
            (Some(percent), ..) => {
                calculator.for_utilization(&samples, &case.resource, container, percent, &workload, now())
            }
            (_, Some(usage), ..) => calculator.for_usage(&samples, &case.resource, usage, &workload, now()),
            (_, _, Some(value), _) => calculator.for_value(case.metric_value, value, &workload),
            (_, _, _, Some(value)) => Ok(calculator.for_value_per_pod(case.metric_value, value, &workload)),
            _ => panic!("{name}: no target"),
        };
        let found = found.map_err(|error| error.to_string());
        let expected = match case.expected {
            ExpectedCount::ReplicaCount { replicas, utilization, usage } => {
                Ok(ReplicaCount { replicas, utilization, usage })
            }
            ExpectedCount::Error(error) => Err(error),
        };
        if found != expected {
            failures.push(format!("{name}: is {found:?}, should be {expected:?}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BehaviorCase {
    current: i32,
    recommendation: i32,
    #[serde(default)]
    min: i32,
    #[serde(default = "many")]
    max: i32,
    /// Stabilization window, in seconds.
    #[serde(default = "five_minutes")]
    window: i64,
    #[serde(default)]
    behavior: Option<HorizontalPodAutoscalerBehavior>,
    /// Events as seconds ago and number of replicas.
    #[serde(default)]
    recommended: Vec<(i64, i32)>,
    #[serde(default)]
    scaled_up: Vec<(i64, i32)>,
    #[serde(default)]
    scaled_down: Vec<(i64, i32)>,
    expected: ExpectedLimit,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedLimit {
    replicas: i32,
    able: String,
    limited: bool,
    limit: String,
}

fn many() -> i32 {
    1000
}

fn five_minutes() -> i64 {
    300
}

fn timed_replicas(all: Vec<(i64, i32)>) -> Vec<TimedReplicas> {
    all.into_iter().map(|(seconds, replicas)| (ago(seconds), replicas)).collect()
}

#[test]
fn recommendations_are_limited() {
    let mut failures = Vec::new();
    for (name, case) in cases::<BehaviorCase>(include_str!("fixtures/autoscaling-behavior.yaml")) {
        let mut history = ScaleHistory {
            recommendations: timed_replicas(case.recommended),
            scale_up_events: timed_replicas(case.scaled_up),
            scale_down_events: timed_replicas(case.scaled_down),
        };
        let bounds = Bounds { current: case.current, min: case.min, max: case.max };
        let window = SignedDuration::from_secs(case.window);
        let found = history.limit_recommendation(case.behavior.as_ref(), bounds, case.recommendation, window, now());
        let (replicas, limited) = (found.replicas, found.is_limited);
        let found = ExpectedLimit {
            replicas,
            able: found.able_to_scale.0.to_owned(),
            limited,
            limit: found.limit.0.to_owned(),
        };
        if found != case.expected {
            failures.push(format!("{name}: is {found:?}, should be {:?}", case.expected));
        }
        assert_eq!(history.recommendations.last(), Some(&(now(), case.recommendation)), "{name}: it is recorded");
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn old_scale_events_are_removed() {
    let behavior = |seconds| HorizontalPodAutoscalerBehavior {
        scale_up: Some(HPAScalingRules {
            policies: Some(vec![HPAScalingPolicy { type_: "Pods".to_owned(), value: 1, period_seconds: seconds }]),
            ..HPAScalingRules::default()
        }),
        scale_down: None,
    };
    let mut history = ScaleHistory::default();
    history.record_initial(4, ago(200));
    history.record_initial(9, ago(190));
    assert_eq!(history.recommendations, [(ago(200), 4)], "only the first call records");
    history.record_scale_event(Some(&behavior(60)), 2, 5, ago(90));
    history.record_scale_event(Some(&behavior(60)), 5, 7, now());
    history.record_scale_event(Some(&behavior(60)), 7, 6, now());
    history.record_scale_event(None, 6, 9, now());
    assert_eq!((history.scale_up_events, history.scale_down_events), (vec![(now(), 2)], vec![(now(), 1)]));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScheduleCase {
    schedule: String,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    from: Option<Timestamp>,
    /// The next times in order. If fewer are given than requested, there are no more.
    #[serde(default)]
    next: Vec<Timestamp>,
    #[serde(default)]
    error: Option<String>,
}

#[test]
fn schedules() {
    let mut failures = Vec::new();
    for (name, case) in cases::<ScheduleCase>(include_str!("fixtures/autoscaling-schedules.yaml")) {
        let zone =
            find_time_zone(&case.zone, &TimeZone::UTC).unwrap_or_else(|| panic!("{name}: no zone {}", case.zone));
        let schedule = Schedule::parse(&case.schedule, zone, &TimeZone::UTC);
        let found = schedule.map_err(|error| error.to_string()).map(|schedule| {
            let mut at = case.from.unwrap_or_else(now);
            let mut found = Vec::new();
            for _ in 0..case.next.len().max(1) {
                let Some(next) = schedule.next(at) else { break };
                found.push(next);
                at = next;
            }
            found
        });
        let expected = case.error.map_or(Ok(case.next), Err);
        if found != expected {
            failures.push(format!("{name}: {} is {found:?}, should be {expected:?}", case.schedule));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn cron_spec(rules: serde_json::Value) -> CronFederatedHPASpec {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    serde_json::from_value(json!({"scaleTargetRef": target, "rules": rules})).expect("a spec")
}

/// Evaluates schedules at a time. Returns the due rules with the time for which they were due.
fn evaluate(
    timers: &mut Timers,
    spec: &CronFederatedHPASpec,
    status: &mut CronFederatedHPAStatus,
    at: &str,
    failed: Option<&str>,
) -> Vec<(String, String)> {
    let at: Timestamp = at.parse().expect("a time");
    timers.synchronize(spec, status, &TimeZone::UTC, at);
    let due = timers.take_due(at);
    let due_rules = due.iter().map(|due| (due.rule.name.clone(), due.at.to_string())).collect();
    for due in due {
        timers.add_run(FinishedRun { due, finished_at: at, error: failed.map(str::to_owned) });
    }
    *status = timers.status(spec, status);
    timers.clear_recorded();
    due_rules
}

const NOTHING: [(String, String); 0] = [];

fn due(rule: &str, at: &str) -> (String, String) {
    (rule.to_owned(), at.to_owned())
}

#[test]
fn timers_follow_the_clock() {
    let spec = cron_spec(json!([
        {"name": "day", "schedule": "0 9 * * *", "targetReplicas": 9},
        {"name": "hour", "schedule": "0 * * * *", "targetReplicas": 1},
        {"name": "off", "schedule": "* * * * *", "targetReplicas": 5, "suspend": true},
    ]));
    let (mut timers, mut status) = (Timers::default(), CronFederatedHPAStatus::default());
    let mut at = |timers: &mut Timers, time: &str| evaluate(timers, &spec, &mut status, time, None);
    assert_eq!(at(&mut timers, "2026-03-01T07:30:00Z"), NOTHING);
    assert_eq!(timers.next().map(|next| next.to_string()).as_deref(), Some("2026-03-01T08:00:00Z"));
    assert_eq!(at(&mut timers, "2026-03-01T07:59:59Z"), NOTHING);
    assert_eq!(at(&mut timers, "2026-03-01T08:00:00.2Z"), [due("hour", "2026-03-01T08:00:00Z")]);
    assert_eq!(at(&mut timers, "2026-03-01T08:00:01Z"), NOTHING, "a run is not repeated");
    // Late by less than a period: run once each. The hourly rule has missed several, and its next time is near.
    assert_eq!(at(&mut timers, "2026-03-01T12:30:00Z"), [due("day", "2026-03-01T09:00:00Z")]);
    // Late by several days: missed runs are skipped.
    assert_eq!(at(&mut timers, "2026-03-09T12:30:00Z"), NOTHING);
    // After the clock was set back, the next times are due again.
    assert_eq!(at(&mut timers, "2026-03-01T08:50:00Z"), NOTHING);
    let both = [due("day", "2026-03-01T09:00:00Z"), due("hour", "2026-03-01T09:00:00Z")];
    assert_eq!(at(&mut timers, "2026-03-01T09:00:05Z"), both);
    // After a restart, missed runs are derived from the status.
    let mut restarted_timers = Timers::default();
    assert_eq!(at(&mut restarted_timers, "2026-03-01T10:20:00Z"), [due("hour", "2026-03-01T10:00:00Z")]);
}

#[test]
fn histories_have_the_limits_of_the_rule() {
    let spec = cron_spec(json!([
        {"name": "a", "schedule": "* * * * *", "targetReplicas": 2, "successfulHistoryLimit": 1, "failedHistoryLimit": 0},
        {"name": "bad", "schedule": "0 0 L * *", "targetReplicas": 2},
        {"name": "off", "schedule": "* * * * *", "targetReplicas": 5, "suspend": true},
    ]));
    let mut timers = Timers::default();
    let mut status: CronFederatedHPAStatus =
        serde_json::from_value(json!({"executionHistories": [{"ruleName": "gone"}]})).expect("a status");
    let minute = |minute| format!("2026-03-01T07:{minute:02}:00Z");
    for at in 0..4 {
        let failed = (at == 3).then_some("no");
        evaluate(&mut timers, &spec, &mut status, &minute(at), failed);
    }
    let expected = json!({"executionHistories": [
        {"ruleName": "a", "nextExecutionTime": minute(4), "successfulExecutions": [
            {"scheduleTime": minute(2), "executionTime": minute(2), "appliedReplicas": 2}]},
        {"ruleName": "off"},
    ]});
    assert_eq!(json!(status), expected);
    assert!(timers.has_invalid_rules());

    // Another target: all rules start again, and invalid ones are reported again.
    let mut other = spec.clone();
    other.scale_target_ref.name = "other".to_owned();
    let refused = |timers: &mut Timers, spec| timers.synchronize(spec, &status, &TimeZone::UTC, now());
    assert_eq!(refused(&mut timers, &spec), Vec::<String>::new());
    assert_eq!(
        refused(&mut timers, &other),
        [
            "cron expression failed to be parsed: failed to parse int from L: strconv.Atoi: parsing \"L\": invalid syntax"
        ]
    );
}

fn metric(source: serde_json::Value) -> MetricSpec {
    serde_json::from_value(source).expect("a metric")
}

#[test]
fn errors_of_metrics_have_a_cause() {
    let pods = [TestPod::default().facts("a")];
    let workload = Workload { replicas: 1, status_replicas: 1, calibration: 1.0, pods: &pods };
    let of = |spec: &MetricSpec, metric: Result<MetricResult, String>| {
        propose(spec, metric, &workload, &ReplicaCalculator::default(), "shop", now())
    };
    let cpu = metric(json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 50}}}));
    let queue = metric(json!({"type": "Object", "object": {"metric": {"name": "length"},
        "describedObject": {"kind": "Service", "name": "queue"}, "target": {"type": "Value", "value": "10"}}}));
    let sample = Sample {
        cluster: Some("m1".to_owned()),
        name: "a".to_owned(),
        value: 200,
        at: now(),
        window: SignedDuration::ZERO,
    };
    let counted = of(&cpu, Ok(MetricResult::Samples(vec![sample])));
    let missing = of(&queue, Err("no data".to_owned()));
    let message = "invalid metrics (1 invalid out of 2), first error is: failed to get object metric value: \
                unable to get metric length: Service on shop queue/no data";
    // Scaling up is allowed although one metric is missing.
    let CombinedProposal::Replicas { replicas, metric: called, statuses, failed } =
        combine(vec![missing.clone(), counted.clone()], 1)
    else {
        panic!("replicas")
    };
    assert_eq!((replicas, called.as_str()), (4, "cpu resource utilization (percentage of request)"));
    assert_eq!((statuses.len(), failed.as_deref()), (1, Some(message)));
    // Scaling down is not.
    let CombinedProposal::Unknown { first, failed } = combine(vec![missing, counted], 5) else { panic!("unknown") };
    assert_eq!((first.reason, failed.as_str()), ("FailedGetObjectMetric", message));
    let external = metric(json!({"type": "External", "external": {"metric": {"name": "x"},
        "target": {"type": "Value", "value": "1"}}}));
    let refused = of(&external, Err(String::new())).expect_err("no external metrics");
    assert_eq!(
        (refused.reason, refused.cause.as_str()),
        ("InvalidMetricSourceType", "unknown metric source type \"External\"")
    );
}

fn policy() -> impl Strategy<Value = HPAScalingPolicy> {
    (prop_oneof![Just("Pods"), Just("Percent")], 1..150, 1..600)
        .prop_map(|(type_, value, period_seconds)| HPAScalingPolicy { type_: type_.to_owned(), value, period_seconds })
}

fn rules() -> impl Strategy<Value = HPAScalingRules> {
    let select = prop_oneof![Just(None), Just(Some("Min")), Just(Some("Max")), Just(Some("Disabled"))];
    (proptest::option::of(prop::collection::vec(policy(), 0..3)), select, proptest::option::of(0..600)).prop_map(
        |(policies, select, stabilization_window_seconds)| HPAScalingRules {
            policies,
            select_policy: select.map(str::to_owned),
            stabilization_window_seconds,
            ..HPAScalingRules::default()
        },
    )
}

fn times() -> impl Strategy<Value = Vec<(i64, i32)>> {
    prop::collection::vec((0_i64..700, 0..60), 0..5)
}

proptest! {
    #[test]
    fn replicas_stay_within_their_bounds(
        (min, current, max) in (0..50, 0..50, 0..50).prop_map(|(a, b, c)| (a, a + b, a + b + c)),
        recommendation in 0..500,
        behavior in proptest::option::of((proptest::option::of(rules()), proptest::option::of(rules()))),
        (recommended, scaled_up, scaled_down) in (times(), times(), times()),
    ) {
        let behavior = behavior.map(|(scale_up, scale_down)| HorizontalPodAutoscalerBehavior { scale_up, scale_down });
        let mut history = ScaleHistory { recommendations: timed_replicas(recommended), scale_up_events: timed_replicas(scaled_up), scale_down_events: timed_replicas(scaled_down) };
        let bounds = Bounds { current, min, max };
        let window = SignedDuration::from_mins(5);
        let found = history.limit_recommendation(behavior.as_ref(), bounds, recommendation, window, now());
        prop_assert!((min..=max).contains(&found.replicas), "{found:?}");
    }

    #[test]
    fn the_next_time_is_later_and_at_a_full_minute(
        fields in prop::array::uniform5(prop_oneof![
            Just("*".to_owned()), Just("*/2".to_owned()), (1_u32..6).prop_map(|value| value.to_string()),
            (1_u32..4, 4_u32..6).prop_map(|(low, high)| format!("{low}-{high}")),
        ]),
        from in 0_i64..4_000_000_000,
        zone_name in prop_oneof![Just("UTC"), Just("America/New_York"), Just("Australia/Lord_Howe")],
    ) {
        let zone = find_time_zone(zone_name, &TimeZone::UTC).expect("a zone");
        let schedule = Schedule::parse(&fields.join(" "), zone, &TimeZone::UTC).expect("a schedule");
        let from = Timestamp::from_second(from).expect("a time");
        if let Some(next) = schedule.next(from) {
            prop_assert!(next > from);
            prop_assert_eq!(next.as_second() % 60, 0);
            // No time is skipped.
            let before = next - SignedDuration::from_secs(1);
            prop_assert_eq!(schedule.next(before.max(from)), Some(next));
        }
    }
}
