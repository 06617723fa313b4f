//! Metrics of the scheduler, with Karmada's names: attempts, durations of decisions and their steps, and pending
//! bindings.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use crowsnest_api::keys::BindingKey;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{StaticLabelHistograms, StaticLabels};
use crate::runtime::workqueue::Queue;
use crowsnest_plan::scheduling::{Observer, Step, Trigger};

/// Event that adds a binding to the scheduling queue. A change of a policy is an update of its bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncomingEvent {
    BindingAdd,
    BindingUpdate,
    ScheduleAttemptFailure,
    ClusterChanged,
}

const INCOMING_EVENTS: [(IncomingEvent, &str); 4] = [
    (IncomingEvent::BindingAdd, "BindingAdd"),
    (IncomingEvent::BindingUpdate, "BindingUpdate"),
    (IncomingEvent::ScheduleAttemptFailure, "ScheduleAttemptFailure"),
    (IncomingEvent::ClusterChanged, "ClusterChanged"),
];

const STEPS: [(Step, &str); 4] = [
    (Step::Filter, "Filter"),
    (Step::Score, "Score"),
    (Step::Select, "Select"),
    (Step::AssignReplicas, "AssignReplicas"),
];

/// Metrics of the attempts of one type with one result.
#[derive(Clone)]
struct AttemptMetrics {
    total: Counter,
    duration: Histogram,
}

/// Metrics of scheduling attempts. All series exist from the start, so recording needs no lookups.
pub struct SchedulingMetrics {
    totals: Family<StaticLabels<2>, Counter>,
    durations: StaticLabelHistograms<2>,
    /// By result and type.
    by_result: [[AttemptMetrics; 2]; 2],
    all_steps: StaticLabelHistograms<1>,
    steps: [Histogram; STEPS.len()],
    all_incoming: Family<StaticLabels<1>, Counter>,
    incoming: [Counter; INCOMING_EVENTS.len()],
}

fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

impl SchedulingMetrics {
    pub(super) fn new() -> Self {
        let totals = Family::<StaticLabels<2>, Counter>::default();
        let durations = StaticLabelHistograms::<2>::new_with_constructor(buckets);
        let by_result = ["error", "scheduled"].map(|result| {
            ["ReconcileSchedule", "ScaleSchedule"].map(|kind| {
                let labels = [("result", result), ("schedule_type", kind)];
                AttemptMetrics {
                    total: totals.get_or_create_owned(&labels),
                    duration: durations.get_or_create_owned(&labels),
                }
            })
        });
        let all_steps = StaticLabelHistograms::<1>::new_with_constructor(buckets);
        let all_incoming = Family::<StaticLabels<1>, Counter>::default();
        SchedulingMetrics {
            by_result,
            totals,
            durations,
            steps: STEPS.map(|(_, step)| all_steps.get_or_create_owned(&[("schedule_step", step)])),
            all_steps,
            incoming: INCOMING_EVENTS.map(|(_, event)| all_incoming.get_or_create_owned(&[("event", event)])),
            all_incoming,
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let (name, help) = ("karmada_scheduler_schedule_attempts", "Number of scheduling attempts, by result");
        registry.register(name, help, self.totals.clone());
        let name = "karmada_scheduler_e2e_scheduling_duration_seconds";
        registry.register(name, "Duration of scheduling a binding, by result", self.durations.clone());
        let name = "karmada_scheduler_scheduling_algorithm_duration_seconds";
        registry.register(name, "Duration of a step of the scheduling algorithm", self.all_steps.clone());
        let name = "karmada_scheduler_queue_incoming_bindings";
        registry.register(
            name,
            "Number of bindings added to the scheduling queue, by event",
            self.all_incoming.clone(),
        );
    }

    /// Records a scheduling attempt.
    pub fn record_attempt(&self, trigger: Trigger, duration: Duration, is_success: bool) {
        let is_scaling = trigger == Trigger::ReplicasChanged;
        let metrics = &self.by_result[usize::from(is_success)][usize::from(is_scaling)];
        metrics.total.inc();
        metrics.duration.observe(duration.as_secs_f64());
    }

    pub fn record_incoming(&self, event: IncomingEvent) {
        if let Some(index) = INCOMING_EVENTS.iter().position(|(incoming, _)| *incoming == event) {
            self.incoming[index].inc();
        }
    }

    /// A stopwatch for one decision.
    pub fn stopwatch(&self) -> Stopwatch<'_> {
        Stopwatch { steps: &self.steps, started_at: Cell::new(Instant::now()) }
    }
}

/// Measures the steps of a decision.
pub struct Stopwatch<'a> {
    steps: &'a [Histogram; STEPS.len()],
    started_at: Cell<Instant>,
}

impl Observer for Stopwatch<'_> {
    fn step_started(&self, _: Step) {
        self.started_at.set(Instant::now());
    }

    fn step_ended(&self, step: Step) {
        if let Some(index) = STEPS.iter().position(|(candidate, _)| *candidate == step) {
            self.steps[index].observe(self.started_at.get().elapsed().as_secs_f64());
        }
    }
}

/// Collector of pending bindings.
pub(super) struct PendingCollector(pub(super) Queue<BindingKey>);

impl fmt::Debug for PendingCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingCollector")
    }
}

impl Collector for PendingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(pending) = self.0.pending() else { return Ok(()) };
        let help = "Number of pending bindings by queue: active, backoff or unschedulable";
        let mut metric = encoder.encode_descriptor("scheduler_pending_bindings", help, None, MetricType::Gauge)?;
        let queues =
            [("active", pending.active), ("backoff", pending.backoff), ("unschedulable", pending.unschedulable)];
        for (queue, bindings) in queues {
            metric.encode_family(&[("queue", queue)])?.encode_gauge(&bindings)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::metrics::tests::text;
    use crate::runtime::workqueue::Outcome;
    use prometheus_client::encoding::text::encode_registry;
    use tokio_util::sync::CancellationToken;

    #[test]
    fn attempts_and_steps_have_karmadas_metric_names() {
        let attempts = SchedulingMetrics::new();
        let mut registry = Registry::default();
        attempts.register(&mut registry);
        attempts.record_attempt(Trigger::PlacementChanged, Duration::from_millis(3), true);
        attempts.record_attempt(Trigger::ReplicasChanged, Duration::from_millis(3), true);
        attempts.record_attempt(Trigger::ReplicasChanged, Duration::from_millis(3), false);
        attempts.record_incoming(IncomingEvent::ClusterChanged);
        let stopwatch = attempts.stopwatch();
        stopwatch.step_started(Step::Select);
        stopwatch.step_ended(Step::Select);
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("text");
        for line in [
            "schedule_attempts_total{result=\"scheduled\",schedule_type=\"ReconcileSchedule\"} 1",
            "schedule_attempts_total{result=\"scheduled\",schedule_type=\"ScaleSchedule\"} 1",
            "schedule_attempts_total{result=\"error\",schedule_type=\"ReconcileSchedule\"} 0",
            "schedule_attempts_total{result=\"error\",schedule_type=\"ScaleSchedule\"} 1",
            "e2e_scheduling_duration_seconds_sum{result=\"error\",schedule_type=\"ScaleSchedule\"} 0.003",
            "scheduling_algorithm_duration_seconds_count{schedule_step=\"Filter\"} 0",
            "scheduling_algorithm_duration_seconds_count{schedule_step=\"Select\"} 1",
            "scheduling_algorithm_duration_seconds_bucket{le=\"16.384\",schedule_step=\"Select\"} 1",
            "queue_incoming_bindings_total{event=\"BindingAdd\"} 0",
            "queue_incoming_bindings_total{event=\"ClusterChanged\"} 1",
        ] {
            assert!(text.lines().any(|actual| actual == format!("karmada_scheduler_{line}")), "no {line} in\n{text}");
        }
    }

    #[tokio::test]
    async fn pending_bindings_are_counted_by_queue() {
        let queue: Queue<BindingKey> = Queue::new("scheduling");
        let key = |name: &str| BindingKey::new("shop", name);
        ["failed", "tight", "later"].into_iter().for_each(|name| queue.add(key(name)));
        let stop = CancellationToken::new();
        let (end, again) = (stop.clone(), queue.clone());
        let reconcile = move |key: BindingKey| {
            let (end, again) = (end.clone(), again.clone());
            async move {
                match key.name.as_str() {
                    "failed" => Err(Error::Waiting("not yet".to_owned())),
                    "tight" => Ok(Outcome::AwaitChange),
                    _ => {
                        end.cancel();
                        again.add(BindingKey::new("shop", "new"));
                        // A requeue is not a failure.
                        Ok(Outcome::RequeueAfter(Duration::from_secs(1)))
                    }
                }
            }
        };
        queue.clone().run(3, stop, reconcile).await.expect("no worker fails");
        let expected = "# TYPE scheduler_pending_bindings gauge\nscheduler_pending_bindings{queue=\"active\"} 1\n\
            scheduler_pending_bindings{queue=\"backoff\"} 1\nscheduler_pending_bindings{queue=\"unschedulable\"} 1\n";
        assert_eq!(text(PendingCollector(queue)), expected);
    }
}
