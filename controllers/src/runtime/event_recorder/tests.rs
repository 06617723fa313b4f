//! Tests of the correlator with a fake clock.

use std::time::Duration;

use crowsnest_api::constants::event;
use rstest::rstest;

use super::*;

/// A correlator with a clock that the test advances.
struct Recorder {
    correlator: Correlator,
    now: Instant,
    is_busy: bool,
}

impl Recorder {
    fn new() -> Self {
        let now = Instant::now();
        Recorder { correlator: Correlator::new(now), now, is_busy: false }
    }

    fn advance(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn record(&mut self, api_version: &str, name: &str, severity: Severity, reason: &'static str, message: &str) {
        self.correlator.record(entry(api_version, name, severity, reason, message), self.now);
    }

    fn fail(&mut self, message: &str) {
        self.record("v1", "settings", Severity::Warning, event::SYNC_FAILED, message);
    }

    fn succeed(&mut self, message: &str) {
        self.record("v1", "settings", Severity::Normal, event::AGGREGATE_STATUS_SUCCEED, message);
    }

    /// Writes what is due. Returns `create` or `update`, count and message of each write.
    fn write(&mut self) -> Vec<String> {
        let due = self.correlator.take_due(self.now, self.is_busy, usize::MAX);
        let write = |write: DueWrite| {
            let name = EventName { namespace: "default".to_owned(), name: write.occurrences.entry.message.clone() };
            self.correlator.end(&write, Some(name), self.now);
            let verb = if write.written.is_some() { "update" } else { "create" };
            format!("{verb} {} {}", write.occurrences.count, write.occurrences.entry.message)
        };
        due.into_iter().map(write).collect()
    }
}

fn entry(api_version: &str, name: &str, severity: Severity, reason: &'static str, message: &str) -> Entry {
    let regarding = json!({"apiVersion": api_version, "kind": "Any", "name": name});
    let (regarding, message, at) = (Arc::new(regarding), message.to_owned(), Timestamp::UNIX_EPOCH);
    Entry { regarding, severity, reason, message, at }
}

#[test]
fn failures_are_written_immediately_and_repetitions_are_counted_at_intervals() {
    let mut recorder = Recorder::new();
    recorder.fail("refused");
    assert_eq!(recorder.write(), ["create 1 refused"]);
    for _ in 0..99 {
        recorder.advance(50);
        recorder.fail("refused");
        assert!(recorder.write().is_empty());
    }
    recorder.advance(5_100);
    assert_eq!(recorder.write(), ["update 100 refused"]);
    recorder.advance(60_000);
    assert!(recorder.write().is_empty(), "nothing was repeated");
    recorder.fail("refused");
    assert_eq!(recorder.write(), ["update 101 refused"]);
    assert!(recorder.correlator.is_flushed());
}

#[test]
fn successes_are_delayed_and_their_counts_are_updated_at_intervals() {
    let mut recorder = Recorder::new();
    recorder.succeed("done");
    recorder.succeed("done");
    assert!(recorder.write().is_empty() && !recorder.correlator.is_flushed());
    recorder.advance(1_000);
    assert_eq!(recorder.write(), ["create 2 done"]);
    recorder.succeed("done");
    assert!(recorder.correlator.is_flushed(), "the update of a count is not awaited");
    recorder.advance(299_000);
    assert!(recorder.write().is_empty());
    recorder.advance(1_000);
    assert_eq!(recorder.write(), ["update 3 done"]);
}

#[test]
fn similar_events_are_combined() {
    let mut recorder = Recorder::new();
    (0..30).for_each(|nth| recorder.fail(&format!("refused {nth}")));
    let written = recorder.write();
    assert_eq!(written.len(), 10);
    assert_eq!(written[8..], ["create 1 refused 8", "create 21 (combined from similar events): refused 29"]);
    recorder.advance(601_000);
    recorder.fail("refused 31");
    assert_eq!(recorder.write(), ["create 1 refused 31"]);
}

#[test]
fn events_about_one_object_are_limited() {
    let mut recorder = Recorder::new();
    let reasons = [event::SYNC_FAILED, event::SYNC_WORK_FAILED, event::APPLY_POLICY_FAILED, event::SCALE_FAILED];
    let mut written = 0;
    for round in 0..10 {
        for reason in reasons {
            for nth in 0..9 {
                recorder.record("v1", "settings", Severity::Warning, reason, &format!("{nth}"));
            }
        }
        written += recorder.write().len();
        recorder.record("v1", &format!("other {round}"), Severity::Warning, event::SYNC_FAILED, "refused");
        assert_eq!(recorder.write(), ["create 1 refused"], "of another object");
        recorder.advance(11_000);
    }
    assert_eq!(written, 50);
}

#[rstest]
#[case::idle(false, 60, 100)]
#[case::busy(true, 40, 0)]
fn under_load_successes_wait_and_failures_are_rate_limited(
    #[case] is_busy: bool,
    #[case] failures: usize,
    #[case] successes: usize,
) {
    let mut recorder = Recorder { is_busy, ..Recorder::new() };
    (0..60).for_each(|nth| recorder.record("v1", &format!("{nth}"), Severity::Warning, event::SYNC_FAILED, "refused"));
    assert_eq!(recorder.write().len(), failures);
    (0..100).for_each(|nth| recorder.record("v1", &format!("{nth}"), Severity::Normal, event::SYNC_SUCCEED, "done"));
    recorder.advance(1_000);
    let written = recorder.write().into_iter().filter(|write| write.ends_with("done")).count();
    assert_eq!(written, successes);
    recorder.is_busy = false;
    recorder.write();
    assert!(recorder.correlator.is_flushed(), "nothing was dropped");
}

/// Steps of a template, its binding and a Work, in Karmada's order.
const STEPS: [(&str, &str); 12] = [
    ("apps/v1", event::APPLY_POLICY_SUCCEED),
    ("apps/v1", event::GET_REPLICAS_SUCCEED),
    ("work.karmada.io/v1alpha2", event::SCHEDULE_BINDING_SUCCEED),
    ("apps/v1", event::SCHEDULE_BINDING_SUCCEED),
    ("work.karmada.io/v1alpha2", event::SYNC_WORK_SUCCEED),
    ("apps/v1", event::SYNC_WORK_SUCCEED),
    ("work.karmada.io/v1alpha1", event::WORK_DISPATCHING),
    ("apps/v1", event::SYNC_SUCCEED),
    ("work.karmada.io/v1alpha1", event::REFLECT_STATUS_SUCCEED),
    ("work.karmada.io/v1alpha1", event::INTERPRET_HEALTH_SUCCEED),
    ("work.karmada.io/v1alpha2", event::AGGREGATE_STATUS_SUCCEED),
    ("apps/v1", event::AGGREGATE_STATUS_SUCCEED),
];

fn propagate(recorder: &mut Recorder, templates: std::ops::Range<usize>) {
    for template in templates {
        for (api_version, reason) in STEPS {
            recorder.record(api_version, &format!("web-{template}"), Severity::Normal, reason, reason);
        }
    }
}

#[test]
fn every_step_of_a_few_templates_is_written_once() {
    let mut recorder = Recorder::new();
    for _ in 0..3 {
        propagate(&mut recorder, 0..10);
        recorder.advance(3_000);
    }
    assert_eq!(recorder.write().len(), 10 * STEPS.len());
}

#[test]
fn in_a_burst_each_template_gets_one_event_about_its_newest_step() {
    let mut recorder = Recorder::new();
    let mut written = Vec::new();
    for round in 0..10 {
        propagate(&mut recorder, round * 15..(round + 1) * 15);
        recorder.record("v1", "member1", Severity::Normal, event::TAINT_CLUSTER_SUCCEED, &format!("taint {round}"));
        recorder.advance(500);
        written.extend(recorder.write());
    }
    // Statuses change repeatedly while the burst lasts.
    for _ in 0..4 {
        propagate(&mut recorder, 0..150);
        recorder.advance(1_000);
        written.extend(recorder.write());
    }
    assert_eq!(written.len(), 10, "other successes are written: {written:?}");
    recorder.advance(6_000);
    let last = recorder.write();
    assert_eq!(last.len(), 150);
    assert!(last.iter().all(|write| write.ends_with(event::AGGREGATE_STATUS_SUCCEED)), "{last:?}");
    propagate(&mut recorder, 0..1);
    recorder.advance(1_000);
    assert_eq!(recorder.write().len(), STEPS.len() - 1, "after the burst all steps are written");
}

#[test]
fn in_each_burst_a_template_gets_an_event() {
    let mut recorder = Recorder::new();
    for _ in 0..2 {
        propagate(&mut recorder, 0..150);
        recorder.advance(1_000);
        assert!(recorder.write().is_empty());
        recorder.advance(6_000);
        assert_eq!(recorder.write().len(), 150);
        recorder.advance(10_000);
    }
}

#[test]
fn a_burst_without_end_delays_events_by_a_minute() {
    let mut recorder = Recorder::new();
    for second in 0..59 {
        propagate(&mut recorder, second * 20..(second + 1) * 20);
        recorder.advance(1_000);
        assert!(recorder.write().is_empty());
    }
    propagate(&mut recorder, 2_000..2_100);
    recorder.advance(1_000);
    assert_eq!(recorder.write().len(), 20);
}

#[test]
fn a_deleted_event_is_created_again() {
    let mut recorder = Recorder::new();
    recorder.fail("refused");
    recorder.write();
    recorder.fail("refused");
    recorder.advance(10_000);
    let due = recorder.correlator.take_due(recorder.now, false, usize::MAX);
    recorder.correlator.end(&due[0], None, recorder.now);
    assert_eq!(recorder.write(), ["create 2 refused"]);
}

#[test]
fn waiting_events_are_not_evicted() {
    let mut recorder = Recorder { is_busy: true, ..Recorder::new() };
    for (severity, reason) in
        [(Severity::Warning, event::SYNC_FAILED), (Severity::Normal, event::TAINT_CLUSTER_SUCCEED)]
    {
        (0..4_000).for_each(|nth| recorder.record("v1", &format!("{reason}-{nth}"), severity, reason, "any"));
    }
    recorder.is_busy = false;
    assert_eq!(recorder.write().len(), 4_000, "only failures are written");
    recorder.advance(1_000);
    assert_eq!(recorder.write().len(), 200, "successes at the limit of their rate");
}

#[test]
fn the_writer_is_woken_only_for_earlier_writes() {
    let mut recorder = Recorder::new();
    recorder.correlator.plan_wake(recorder.now);
    for (name, severity, millis, expected) in [
        ("a", Severity::Normal, 0, RecordOutcome::WakeWriter),
        ("a", Severity::Normal, 0, RecordOutcome::Scheduled),
        ("b", Severity::Normal, 100, RecordOutcome::Scheduled),
        ("c", Severity::Warning, 0, RecordOutcome::WakeWriter),
        ("d", Severity::Warning, 0, RecordOutcome::Scheduled),
    ] {
        recorder.advance(millis);
        let entry = entry("v1", name, severity, event::SYNC_SUCCEED, "any");
        assert_eq!(recorder.correlator.record(entry, recorder.now), expected, "{name}");
    }
}

#[test]
fn the_next_write_is_awaited_without_polling() {
    let mut recorder = Recorder::new();
    assert_eq!(recorder.correlator.plan_wake(recorder.now), None);
    recorder.succeed("done");
    assert_eq!(recorder.correlator.plan_wake(recorder.now), Some(Duration::from_secs(1)));
    recorder.advance(1_000);
    recorder.write();
    recorder.advance(1_000);
    recorder.succeed("done");
    assert_eq!(recorder.correlator.plan_wake(recorder.now), Some(Duration::from_secs(299)));
}
