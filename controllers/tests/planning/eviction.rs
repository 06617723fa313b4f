//! When evictions end, wait or are cancelled, their rate, and the failback to the previous cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{Placement, PurgeMode};
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceBindingStatus};
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::eviction::failback::{FailbackOptions, FailbackStep, OriginalPlacement};
use crowsnest_plan::eviction::rate::{
    self, Bucket, ClusterEvictionState, EvictionRate, Halt, NotReadyThresholds, RateLimiter, Rates,
};
use crowsnest_plan::eviction::safety::cancel_tasks;
use crowsnest_plan::eviction::tasks::{EvictionInput, plan_tasks};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases;

/// Creation time of tasks, in Unix seconds. Their timeout is 60 seconds by default.
const BEGUN: i64 = 1000;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Member {
    not_ready: bool,
    leaving: bool,
    taints: Vec<Taint>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EvictionScenario {
    #[serde(default)]
    karmada: bool,
    /// Registered clusters. By default `m1` to `m3`, all ready.
    #[serde(default)]
    clusters: BTreeMap<String, Member>,
    #[serde(default)]
    gone: Vec<String>,
    #[serde(default)]
    replicas: i32,
    #[serde(default)]
    placement: Option<Placement>,
    #[serde(default)]
    affinity: String,
    /// Assigned replicas by cluster.
    #[serde(default)]
    targets: BTreeMap<String, i32>,
    /// Health of existing copies by cluster.
    #[serde(default)]
    health: BTreeMap<String, String>,
    /// True if the scheduler has not observed the generation.
    #[serde(default)]
    unobserved: bool,
    /// Message of a scheduling failure.
    #[serde(default)]
    unscheduled: Option<String>,
    #[serde(default)]
    tolerations: Vec<Toleration>,
    /// Fields of the task. By default it evicts from `m1` and was created by the taint manager.
    #[serde(default)]
    task: BTreeMap<String, Value>,
    #[serde(default)]
    others: Vec<GracefulEvictionTask>,
    /// Seconds since the creation of the tasks.
    #[serde(default)]
    after: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct EvictionOutcome {
    /// Clusters with an eviction in progress.
    leaving: Vec<String>,
    /// Messages of waiting tasks by cluster.
    waiting: BTreeMap<String, String>,
    /// Seconds until the next evaluation.
    next_check: Option<i64>,
    /// After a cancelled eviction: the targets, and the affinity term.
    restored_targets: Option<BTreeMap<String, i32>>,
    affinity: Option<String>,
}

#[derive(Deserialize)]
struct Case {
    input: EvictionScenario,
    #[serde(default)]
    expected: EvictionOutcome,
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("readable")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn cluster(name: &str, member: &Member) -> Arc<Cluster> {
    let deleted = member.leaving.then(|| at(BEGUN).to_string());
    let ready = if member.not_ready { "False" } else { "True" };
    Arc::new(read(json!({
        "metadata": {"name": name, "deletionTimestamp": deleted},
        "spec": {"syncMode": "Push", "taints": member.taints},
        "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "", "message": "",
            "lastTransitionTime": at(0).to_string()}]},
    })))
}

struct DecisionInput {
    clusters: BTreeMap<String, Arc<Cluster>>,
    spec: ResourceBindingSpec,
    status: ResourceBindingStatus,
}

impl EvictionScenario {
    fn decision_input(&self) -> DecisionInput {
        let names = ["m1", "m2", "m3"].into_iter().filter(|name| !self.gone.iter().any(|gone| gone == name));
        let standard = Member::default();
        let member = |name: &str| self.clusters.get(name).unwrap_or(&standard).clone();
        let clusters = names.map(|name| (name.to_owned(), cluster(name, &member(name)))).collect();
        let mut task = json!({"fromCluster": "m1", "reason": "TaintUntolerated", "producer": "TaintManager",
            "gracePeriodSeconds": 60, "creationTimestamp": at(BEGUN).to_string()});
        for (field, value) in &self.task {
            task[field] = value.clone();
        }
        let targets: Vec<Value> =
            self.targets.iter().map(|(name, replicas)| json!({"name": name, "replicas": replicas})).collect();
        let mut spec: ResourceBindingSpec = read(json!({
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "replicas": self.replicas,
            "placement": self.placement, "clusters": targets, "gracefulEvictionTasks": [task],
        }));
        spec.graceful_eviction_tasks.extend(self.others.clone());
        let items: Vec<Value> =
            self.health.iter().map(|(name, health)| json!({"clusterName": name, "health": health})).collect();
        let conditions: Vec<Value> = self
            .unscheduled
            .iter()
            .map(|message| {
                json!({"type": "Scheduled", "status": "False", "reason": "NoClusterFit", "message": message,
                    "lastTransitionTime": at(0).to_string()})
            })
            .collect();
        let status = read(json!({
            "schedulerObservedGeneration": if self.unobserved { 2 } else { 3 }, "conditions": conditions,
            "aggregatedStatus": items, "schedulerObservingAffinityName": self.affinity,
        }));
        DecisionInput { clusters, spec, status }
    }

    fn evaluate(&self) -> EvictionOutcome {
        let input = self.decision_input();
        let evicting = EvictionInput {
            safety: if self.karmada { Safety::Karmada } else { Safety::Safe },
            generation: 3,
            spec: &input.spec,
            status: &input.status,
            timeout: SignedDuration::from_secs(600),
            clusters: &input.clusters,
            tolerations: Some(&self.tolerations),
        };
        let now = at(BEGUN + self.after);
        let cancelled = cancel_tasks(&evicting, now);
        let plan = plan_tasks(&evicting, now);
        let waiting = plan.tasks.iter().filter(|task| !task.message.is_empty());
        let targets = |spec: &ResourceBindingSpec| {
            spec.clusters.iter().map(|target| (target.name.clone(), target.replicas)).collect()
        };
        EvictionOutcome {
            waiting: waiting.map(|task| (task.from_cluster.clone(), task.message.clone())).collect(),
            leaving: plan.tasks.iter().map(|task| task.from_cluster.clone()).collect(),
            next_check: plan.next_check.map(|time| time.as_second() - now.as_second()),
            restored_targets: cancelled.as_ref().map(|cancelled| targets(&cancelled.spec)),
            affinity: cancelled.and_then(|cancelled| cancelled.affinity),
        }
    }
}

#[test]
fn evictions_end_wait_or_are_cancelled() {
    for (name, case) in cases::<Case>(include_str!("fixtures/evictions.yaml")) {
        assert_eq!(case.input.evaluate(), case.expected, "{name}");
    }
}

fn any_scenario() -> impl Strategy<Value = EvictionScenario> {
    let health = prop::collection::btree_map("m[1-3]", "Healthy|Unhealthy|Unknown", 0..4);
    let targets = prop::collection::btree_map("m[2-3]", 0..4_i32, 0..3);
    let purge = prop::option::of(prop_oneof!["Directly", "Gracefully"]);
    let kept = prop::option::of(any::<bool>());
    let divided = any::<bool>();
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (health, targets, purge, kept, divided, flags, 0..6_i32, 0..100_i64).prop_map(
        |(health, targets, purge, kept, divided, (not_ready, unobserved, unscheduled), replicas, after)| {
            let kind = if divided { "Divided" } else { "Duplicated" };
            let placement = json!({"replicaScheduling": {"replicaSchedulingType": kind}});
            let task = json!({"replicas": replicas, "purgeMode": purge, "suppressDeletion": kept});
            EvictionScenario {
                karmada: false,
                clusters: BTreeMap::from([("m1".to_owned(), Member { not_ready, ..Member::default() })]),
                gone: Vec::new(),
                replicas,
                placement: Some(read(placement)),
                affinity: String::new(),
                targets,
                health,
                unobserved,
                unscheduled: unscheduled.then(|| "0/3 clusters are available".to_owned()),
                tolerations: Vec::new(),
                task: read(task),
                others: Vec::new(),
                after,
            }
        },
    )
}

proptest! {
    #[test]
    fn the_only_healthy_copy_is_kept_unless_it_is_purged_directly(scenario in any_scenario()) {
        let outcome = scenario.evaluate();
        let healthy = |name: &str| scenario.health.get(name).is_some_and(|health| health == "Healthy");
        let elsewhere = scenario.targets.keys().any(|name| healthy(name));
        let is_requested = scenario.task["purgeMode"] == json!("Directly") || scenario.task["suppressDeletion"] == json!(false);
        if healthy("m1") && !elsewhere && !is_requested {
            prop_assert_eq!(&outcome.leaving, &["m1"]);
        }
    }

    /// A task's message changes the generation, which must not cause another message.
    #[test]
    fn the_message_of_a_waiting_task_is_stable(scenario in any_scenario()) {
        let outcome = scenario.evaluate();
        let later = EvictionScenario { unobserved: !scenario.unobserved, ..scenario }.evaluate();
        for (cluster, expected) in &outcome.waiting {
            prop_assert!(later.waiting.get(cluster).is_none_or(|message| message == expected));
        }
    }

    #[test]
    fn a_bucket_never_exceeds_its_rate(
        rate in 0.1..200.0_f64, burst in 1..50_u32, gaps in prop::collection::vec(0..400_u64, 1..200),
    ) {
        let mut bucket = Bucket::new(rate, burst);
        let mut now = Instant::now();
        let mut reserved = Vec::new();
        for gap in gaps {
            now += Duration::from_millis(gap);
            let at = bucket.reserve(now);
            prop_assert!(at >= now);
            reserved.push(at);
        }
        for (first, from) in reserved.iter().enumerate() {
            for (count, to) in reserved[first..].iter().enumerate() {
                let seconds = to.duration_since(*from).as_secs_f64();
                prop_assert!((count + 1) as f64 <= f64::from(burst) + rate * seconds + 0.01, "{count} in {seconds}");
            }
        }
    }

    #[test]
    fn evictions_halt_above_the_threshold_and_continue_below_it(clusters in 1..60_usize, not_ready in 0..60_usize, doubted in any::<bool>()) {
        let not_ready = not_ready.min(clusters);
        let fleet: Vec<ClusterEvictionState> =
            (0..clusters).map(|index| cluster_state(Some(index >= not_ready), doubted && index == 0)).collect();
        let eviction_rate = rate::eviction_rate(&fleet, &NotReadyThresholds::default());
        let over = |share: f64| not_ready >= 2 && not_ready as f64 / clusters as f64 > share;
        prop_assert_eq!(matches!(eviction_rate, EvictionRate::Halted(_)), doubted || over(0.55));
        prop_assert_eq!(eviction_rate == EvictionRate::Slow, !doubted && over(0.3) && !over(0.55));
        // Clusters that an administrator taints are ready, so their evictions are never halted.
        prop_assert!(fleet.iter().filter(|one| one.is_ready()).all(|one| !one.is_halted(&eviction_rate)));
    }
}

fn cluster_state(ready: Option<bool>, is_doubted: bool) -> ClusterEvictionState {
    let taints = vec![read(json!({"key": "drain", "effect": "NoExecute"}))];
    ClusterEvictionState { ready, is_doubted, taints, is_terminating: false, has_halt_condition: false }
}

#[rstest]
#[case::no_clusters(&[], EvictionRate::Full)]
#[case::one_of_one(&["not"], EvictionRate::Full)]
#[case::one_of_three(&["not", "", ""], EvictionRate::Full)]
#[case::two_of_seven(&["not", "not", "", "", "", "", ""], EvictionRate::Full)]
#[case::two_of_six(&["not", "not", "", "", "", ""], EvictionRate::Slow)]
#[case::two_of_three(&["not", "not", ""], EvictionRate::Halted(Halt::NotReady { not_ready: 2, clusters: 3 }))]
#[case::new_ones_count_neither_way(&["not", "not", "", "new", "new", "new"], EvictionRate::Halted(Halt::NotReady { not_ready: 2, clusters: 3 }))]
#[case::doubt(&["", "", "doubted"], EvictionRate::Halted(Halt::Doubted))]
fn the_rate_depends_on_all_clusters(#[case] fleet: &[&str], #[case] expected: EvictionRate) {
    let of = |word: &&str| match *word {
        "not" => cluster_state(Some(false), false),
        "new" => cluster_state(None, false),
        "doubted" => cluster_state(Some(true), true),
        _ => cluster_state(Some(true), false),
    };
    let fleet: Vec<ClusterEvictionState> = fleet.iter().map(of).collect();
    assert_eq!(rate::eviction_rate(&fleet, &NotReadyThresholds::default()), expected);
}

#[test]
fn cluster_state_is_derived_from_conditions() {
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(0).to_string()});
    let cluster = json!({
        "metadata": {"name": "m1"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {"conditions": [condition("Ready", "Unknown", ""), condition("HealthSignals", "False", "Doubted")]},
    });
    let state = ClusterEvictionState::from_cluster(&cluster).expect("readable");
    assert_eq!((state.ready, state.is_doubted, state.has_no_execute_taint()), (Some(false), true, false));
    let unreported = ClusterEvictionState::from_cluster(&json!({"metadata": {"name": "m1"}})).expect("readable");
    assert_eq!((unreported.ready, unreported.is_doubted, unreported.is_terminating), (None, false, false));
}

/// Number of evictions, of 100, that are allowed within a number of seconds.
fn evictions_within(bucket: Bucket, seconds: u64) -> usize {
    let mut bucket = bucket;
    let start = Instant::now();
    let reserved = (0..100).map(|_| bucket.reserve(start));
    reserved.filter(|at| at.duration_since(start) <= Duration::from_millis(seconds * 1000 + 1)).count()
}

#[test]
fn rates_are_limited() {
    let rates = Rates { full: 0.5, slow: 0.1 };
    // Three workers, each of which pauses for two seconds after an eviction.
    assert_eq!([0, 2, 4].map(|seconds| evictions_within(rates.karmada_bucket(), seconds)), [3, 6, 9]);
    assert_eq!([0, 2, 4].map(|seconds| evictions_within(rates.safe_bucket(&EvictionRate::Full), seconds)), [1, 2, 3]);
    assert_eq!([0, 10, 20].map(|seconds| evictions_within(rates.safe_bucket(&EvictionRate::Slow), seconds)), [1, 2, 3]);
    let none = Rates { full: 0.0, slow: 1.0 };
    assert_eq!(
        [0, 1799, 1800].map(|seconds| evictions_within(none.safe_bucket(&EvictionRate::Full), seconds)),
        [1, 1, 2]
    );
    assert_eq!(evictions_within(Rates { full: 100.0, slow: 1.0 }.safe_bucket(&EvictionRate::Full), 0), 100);
}

#[test]
fn waiting_keys_keep_their_reservation() {
    let start = Instant::now();
    let second = |seconds: u64| start + Duration::from_secs(seconds);
    let wait = |seconds: u64| Err(Duration::from_secs(seconds));
    let mut limiter = RateLimiter::new(Bucket::new(0.5, 1));
    assert_eq!(["a", "b", "c"].map(|key| limiter.take(&key, start)), [Ok(()), wait(2), wait(4)]);
    assert_eq!((limiter.take(&"c", second(1)), limiter.take(&"b", second(1))), (wait(3), wait(1)));
    assert_eq!((limiter.take(&"b", second(2)), limiter.take(&"b", second(2))), (Ok(()), wait(4)));
    limiter.forget(&"c");
    assert_eq!(limiter.replace_bucket(Bucket::new(1.0, 1)), ["b"]);
    assert_eq!((limiter.take(&"b", second(3)), limiter.take(&"c", second(3))), (Ok(()), wait(1)));
}

#[rstest]
#[case("after=10m,rate=1/m", Ok((600, 60)))]
#[case("after=1h30m", Ok((5400, 60)))]
#[case("rate=4/m, after=0s", Ok((0, 15)))]
#[case("rate=2/h", Ok((600, 1800)))]
#[case("", Err("invalid failback setting \"\": must be after=DURATION or rate=NUMBER/UNIT, as in after=10m,rate=1/m"))]
#[case("after=soon", Err("invalid duration after=soon: must be such as 10m or 1h30m, and at most a year (8784h)"))]
#[case("after=9999h", Err("invalid duration after=9999h: must be such as 10m or 1h30m, and at most a year (8784h)"))]
#[case("rate=0/m", Err("invalid rate rate=0/m: must be such as 1/m, that is a number of at least 1 and s, m or h"))]
#[case("rate=1/d", Err("invalid rate rate=1/d: must be such as 1/m, that is a number of at least 1 and s, m or h"))]
fn failback_settings_are_parsed(#[case] text: &str, #[case] expected: Result<(u64, u64), &str>) {
    let read = text.parse::<FailbackOptions>().map(|read| (read.after.as_secs(), read.interval.as_secs()));
    assert_eq!(read.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
}

fn binding_spec(targets: &[&str], tasks: Value) -> ResourceBindingSpec {
    let targets: Vec<Value> = targets.iter().map(|name| json!({"name": name, "replicas": 2})).collect();
    read(json!({"resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "replicas": 2,
        "clusters": targets, "gracefulEvictionTasks": tasks}))
}

#[rstest]
#[case::in_another_cluster(&["m2"], json!([]), FailbackStep::MoveBack)]
#[case::unscheduled(&[], json!([]), FailbackStep::MoveBack)]
#[case::eviction_in_progress(&["m2"], json!([{"fromCluster": "m1", "reason": "TaintUntolerated", "producer": "TaintManager"}]), FailbackStep::Wait)]
#[case::failback_in_progress(&["m1"], json!([{"fromCluster": "m2", "reason": "ReturnHome", "producer": "GoingHome"}]), FailbackStep::Wait)]
#[case::in_the_original_cluster(&["m1"], json!([]), FailbackStep::Complete)]
fn failback_steps(#[case] targets: &[&str], #[case] tasks: Value, #[case] expected: FailbackStep) {
    let original =
        OriginalPlacement::from_binding(&binding_spec(&["m1"], json!([])), &ResourceBindingStatus::default());
    let original: OriginalPlacement =
        serde_json::from_str(&serde_json::to_string(&original).expect("JSON")).expect("readable");
    assert_eq!(original.next_step(&binding_spec(targets, tasks)), expected);
}

#[test]
fn the_replacement_is_kept_until_the_previous_cluster_is_healthy() {
    let original =
        OriginalPlacement::from_binding(&binding_spec(&["m1"], json!([])), &ResourceBindingStatus::default());
    let failback = original.start_failback(&binding_spec(&["m2"], json!([])), &PurgeMode::Gracefully, at(BEGUN));
    assert!(failback.clusters.is_empty() && failback.reschedule_triggered_at.is_some());
    assert_eq!(
        json!(failback.graceful_eviction_tasks),
        json!([{"fromCluster": "m2", "purgeMode": "Gracefully", "replicas": 2, "reason": "ReturnHome",
            "producer": "GoingHome", "creationTimestamp": at(BEGUN).to_string()}])
    );
}
