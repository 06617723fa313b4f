//! Tests of readiness over time: short failures, doubt, and agents that do not renew their Lease.

use k8s_openapi::jiff::SignedDuration;
use rstest::rstest;

use super::*;
use crate::clusters::{ObservedReadiness, Thresholds, apply_thresholds};
use crate::conditions;

const PERIOD: u64 = 10;
const SETTINGS: ReadinessSettings = ReadinessSettings {
    success: Duration::from_secs(30),
    failure: Duration::from_secs(30),
    period: Duration::from_secs(PERIOD),
};

fn at(seconds: u64) -> Moment {
    let started_at: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
    let wall = started_at + SignedDuration::from_secs(i64::try_from(seconds).expect("soon"));
    Moment { mono: Duration::from_secs(seconds), wall }
}

/// Signals of a probe, from the first letters of the failing sources: `r`eadyz, `a`pi, `w`atches and `t`unnel. `u`:
/// readyz responds with an error. `probe` is the number of the probe.
fn signals(failing: &str, probe: i64) -> Signals {
    let fails = |letter: char| failing.contains(letter);
    Signals {
        readyz: match (fails('r'), fails('u')) {
            (true, _) => Health::Unreachable("connection refused".to_owned()),
            (_, true) => Health::Unhealthy("500 Internal Server Error".to_owned()),
            _ => Health::Healthy,
        },
        api: if fails('a') { Err("connection refused".to_owned()) } else { Ok(()) },
        watches: match fails('w') {
            true => Watches { total: 4, interrupted: 4, last_event_at: 0, error: "gone".to_owned() },
            false => Watches { total: 4, interrupted: 1, last_event_at: probe + 1, error: "forbidden".to_owned() },
        },
        tunnel: fails('t').then_some(false),
    }
}

/// A simulated cluster.
#[derive(Default)]
struct Cluster {
    history: Option<HealthHistory>,
    conditions: Vec<Condition>,
    probes: i64,
    /// Number of changes of the condition `HealthSignals`.
    signal_changes: usize,
}

impl Cluster {
    fn ready() -> Self {
        Cluster { conditions: vec![ready_condition(&Health::Healthy, at(0).wall)], ..Cluster::default() }
    }

    fn probe(&mut self, failing: &str, now: Moment) -> &str {
        self.probes += 1;
        let signals = signals(failing, self.probes);
        let current = conditions::find(&self.conditions, condition_names::READY);
        let evaluation = evaluate(&signals, self.history.as_ref(), current, &SETTINGS, now);
        let before = conditions::find(&self.conditions, condition_names::HEALTH_SIGNALS);
        let condition = signals_condition(&signals, &evaluation.history, &evaluation.ready, None, before, now.wall);
        conditions::set(&mut self.conditions, evaluation.ready);
        self.signal_changes += usize::from(conditions::set(&mut self.conditions, condition));
        self.history = Some(evaluation.history);
        self.status()
    }

    fn status(&self) -> &str {
        &conditions::find(&self.conditions, condition_names::READY).expect("a probe").status
    }

    fn health_signals(&self) -> &Condition {
        conditions::find(&self.conditions, condition_names::HEALTH_SIGNALS).expect("a probe")
    }

    /// Probes until the second `until`. Returns the second at which the cluster was first not ready, if any.
    fn not_ready_at(&mut self, failing: impl Fn(u64) -> &'static str, until: u64) -> Option<u64> {
        (0..=until).step_by(PERIOD as usize).find(|second| self.probe(failing(*second), at(*second)) != "True")
    }
}

#[rstest]
#[case::healthy("", None)]
#[case::readyz_alone("r", None)]
#[case::readyz_without_ok_alone("u", None)]
#[case::api_alone("a", None)]
#[case::watches_alone("w", None)]
#[case::tunnel_alone("t", None)]
#[case::readyz_and_api("ra", Some(40))]
#[case::readyz_without_ok_and_watches("uw", Some(40))]
#[case::api_and_watches("aw", Some(40))]
#[case::all("rawt", Some(40))]
fn cluster_becomes_not_ready_when_two_signals_fail_long_enough(
    #[case] failing: &'static str,
    #[case] expected: Option<u64>,
) {
    // The first probe succeeds, because watches that never worked do not count as interrupted.
    let mut cluster = Cluster::ready();
    assert_eq!(cluster.not_ready_at(|second| if second == 0 { "" } else { failing }, 600), expected);
}

#[rstest]
#[case::every_probe(10)]
#[case::every_second_probe(20)]
#[case::every_third_probe(30)]
fn flapping_signals_do_not_change_readiness(#[case] every: u64) {
    let mut cluster = Cluster::ready();
    let flapping = |second: u64| if (second / every).is_multiple_of(2) { "" } else { "raw" };
    assert_eq!(cluster.not_ready_at(flapping, 3600), None);
    // Different signals that fail one after another do not change it either.
    let changing = |second: u64| ["r", "a", "w", "ra", "w", "r"][(second / 10) as usize % 6];
    assert_eq!(Cluster::ready().not_ready_at(changing, 3600), None);
}

#[test]
fn watch_events_between_probes_are_signs_of_life() {
    let mut cluster = Cluster::ready();
    cluster.probe("", at(0));
    for probe in 1..20 {
        let mut signals = signals("aw", 0);
        // Interrupted at each probe, with events in between.
        signals.watches.last_event_at = 100 + i64::try_from(probe).expect("few");
        let current = conditions::find(&cluster.conditions, condition_names::READY);
        let evaluation = evaluate(&signals, cluster.history.as_ref(), current, &SETTINGS, at(probe * PERIOD));
        assert_eq!(evaluation.ready.status, "True");
        cluster.history = Some(evaluation.history);
    }
}

#[test]
fn restart_resets_observations() {
    let mut cluster = Cluster::ready();
    cluster.probe("", at(0));
    for second in [10, 20, 30] {
        assert_eq!(cluster.probe("ra", at(second)), "True");
    }
    cluster.history = None;
    let signal_changes = cluster.signal_changes;
    for second in [40, 50, 60] {
        assert_eq!(cluster.probe("ra", at(second)), "True", "after {second} s");
    }
    assert_eq!(cluster.signal_changes, signal_changes, "the condition kept its times");
    assert_eq!(cluster.probe("ra", at(70)), "False");
    // A restart does not make the cluster ready either.
    cluster.history = None;
    for second in [80, 90, 100] {
        assert_eq!(cluster.probe("", at(second)), "False");
    }
    assert_eq!(cluster.probe("", at(110)), "True");
}

#[rstest]
#[case::suspended(at(90), "True")]
#[case::wall_ahead(Moment { wall: at(4000).wall, ..at(40) }, "True")]
#[case::wall_back(Moment { wall: "2026-01-01T10:00:00Z".parse().expect("a time"), ..at(40) }, "True")]
#[case::without_pause(at(40), "False")]
fn pauses_and_clock_jumps_reset_observations(#[case] then: Moment, #[case] expected: &str) {
    let mut cluster = Cluster::ready();
    cluster.probe("", at(0));
    for second in [10, 20, 30] {
        cluster.probe("ra", at(second));
    }
    assert_eq!(cluster.probe("ra", then), expected);
}

#[test]
fn first_probe_takes_effect_immediately() {
    assert_eq!(Cluster::default().probe("", at(0)), "True");
    assert_eq!(Cluster::default().probe("r", at(0)), "False");
    assert_eq!(Cluster::default().probe("a", at(0)), "True");
    let mut cluster = Cluster::default();
    cluster.probe("ra", at(0));
    assert_eq!(cluster.health_signals().reason, "SignalsAgree");
    let current = conditions::find(&cluster.conditions, condition_names::READY).expect("ready");
    assert_eq!(
        (current.reason.as_str(), current.message.as_str()),
        ("ClusterNotReachable", "cluster is not reachable")
    );
    cluster.probe("u", at(10));
    let current = conditions::find(&cluster.conditions, condition_names::READY).expect("ready");
    assert_eq!(current.reason, "ClusterNotReady");
}

#[test]
fn condition_is_written_once_per_change() {
    let mut cluster = Cluster::ready();
    cluster.probe("", at(0));
    assert_eq!(
        (cluster.health_signals().reason.as_str(), cluster.health_signals().message.as_str()),
        ("SignalsAgree", "all signals are healthy")
    );
    for second in [10, 20, 30, 40, 50] {
        cluster.probe("r", at(second));
    }
    assert_eq!(cluster.health_signals().reason, "Damped");
    assert_eq!(
        cluster.health_signals().message,
        "readyz fails since 2026-01-01T12:00:10Z (connection refused); API calls succeed; watches of 4 resources are running"
    );
    assert_eq!(cluster.signal_changes, 2);
    for second in [60, 70, 80, 90, 100, 110] {
        cluster.probe("rw", at(second));
    }
    // Two more changes: another set of failing signals, then the change of Ready.
    assert_eq!(
        (cluster.signal_changes, cluster.status(), cluster.health_signals().reason.as_str()),
        (4, "False", "SignalsAgree")
    );
    assert!(
        cluster
            .health_signals()
            .message
            .contains("watches of 4 of 4 resources are interrupted since 2026-01-01T12:01:00Z (gone)")
    );
}

#[rstest]
#[case::one_of_three(&[0], 3, None)]
#[case::two_of_three(&[0, 40], 3, Some(2))]
#[case::one_after_the_other(&[0, 61, 122], 3, None)]
#[case::two_of_four(&[0, 0], 4, None)]
#[case::single_cluster(&[0], 1, None)]
#[case::both(&[5, 5], 2, Some(2))]
#[case::some_much_earlier(&[0, 1000, 1010, 1020], 5, Some(3))]
#[case::empty_fleet(&[], 0, None)]
fn many_simultaneous_losses_are_doubted(#[case] lost: &[u64], #[case] all: usize, #[case] expected: Option<usize>) {
    let doubt = doubt::find_fleet_doubt(lost.iter().copied().map(Duration::from_secs), all, 0.55);
    assert_eq!(doubt, expected.map(|lost| Doubt::Fleet { lost, all }));
}

#[test]
fn loss_of_half_the_fleet_is_doubted_before_any_cluster_changes() {
    let mut fleet: Vec<Cluster> = (0..40).map(|_| Cluster::ready()).collect();
    let lost_clusters = 31;
    for second in (0..=40).step_by(10) {
        for (nth, cluster) in fleet.iter_mut().enumerate() {
            cluster.probe(if second > 0 && nth < lost_clusters { "raw" } else { "" }, at(second));
        }
        let lost = fleet.iter().filter_map(|cluster| cluster.history.as_ref()?.lost_since());
        let doubt = doubt::find_fleet_doubt(lost, fleet.len(), 0.55);
        assert_eq!(doubt.is_some(), second > 0);
        if let Some(doubt) = doubt {
            let message =
                "31 of 40 clusters stopped responding within 60 s: the fault is probably on the control plane's side";
            assert_eq!(doubt.to_string(), message);
            let (signals, history) = (signals("raw", 0), fleet[0].history.as_ref().expect("a probe"));
            let ready = ready_condition(&Health::Healthy, at(0).wall);
            let condition = signals_condition(&signals, history, &ready, Some(&doubt), None, at(second).wall);
            assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Doubted"));
            assert!(condition.message.starts_with(message), "{}", condition.message);
        }
    }
    // Clusters that were not ready at the start do not count as lost.
    let mut not_ready = Cluster {
        conditions: vec![ready_condition(&Health::Unreachable(String::new()), at(0).wall)],
        ..Cluster::default()
    };
    not_ready.probe("raw", at(0));
    assert_eq!(not_ready.history.as_ref().and_then(HealthHistory::lost_since), None);
}

/// Karmada's rule: the first probe takes effect immediately, later ones after thresholds in monotonic time.
#[rstest]
#[case::first_probe(&[(0, false)], "False")]
#[case::short_failures(&[(0, true), (10, false), (20, true), (30, false), (50, false)], "True")]
#[case::failure(&[(0, true), (10, false), (40, false)], "False")]
#[case::recovery_too_short(&[(0, false), (10, true), (30, true)], "False")]
#[case::recovery(&[(0, false), (10, true), (40, true)], "True")]
fn karmadas_thresholds_delay_changes(#[case] probes: &[(u64, bool)], #[case] expected: &str) {
    let thresholds = Thresholds { success: Duration::from_secs(30), failure: Duration::from_secs(30) };
    let mut current = ready_condition(&Health::Healthy, at(0).wall);
    let mut last: Option<ObservedReadiness> = None;
    for (second, is_healthy) in probes {
        let health = if *is_healthy { Health::Healthy } else { Health::Unreachable(String::new()) };
        let condition = ready_condition(&health, at(*second).wall);
        let (ready, observed) = apply_thresholds(condition, Some(&current), last, thresholds, at(*second).mono);
        (current, last) = (ready, Some(observed));
    }
    assert_eq!(current.status, expected);
}

const GRACE: lease::GracePeriods =
    lease::GracePeriods { monitor: Duration::from_secs(40), startup: Duration::from_secs(60) };

/// Checks a Lease every 5 s, which is renewed every 10 s until `silent`. Returns the time at which the cluster became
/// Unknown, and the reason.
fn unknown_at(current: Option<&Condition>, created: u64, silent: u64) -> Option<(u64, String)> {
    let (mut liveness, mut leases) = (None, 0);
    for second in (100..=300).step_by(5) {
        if second < silent && second % 10 == 0 {
            leases += 1;
        }
        let renewed = (leases > 0).then(|| leases.to_string());
        let (condition, next) =
            lease::evaluate_lease(liveness.as_ref(), renewed.as_deref(), current, at(created).wall, GRACE, at(second));
        if let Some(condition) = condition {
            return Some((second, condition.reason));
        }
        liveness = Some(next);
    }
    None
}

#[rstest]
#[case::renewed(true, 0, 1000, None)]
#[case::silent(true, 0, 150, Some((185, "ClusterStatusUnknown")))]
#[case::silent_before_the_start(true, 0, 0, Some((145, "ClusterStatusUnknown")))]
#[case::just_registered(false, 100, 0, Some((165, "ClusterStatusNeverUpdated")))]
#[case::registered_long_ago(false, 0, 0, Some((100, "ClusterStatusNeverUpdated")))]
#[case::renews_without_a_report(false, 0, 1000, None)]
fn clusters_of_silent_agents_become_unknown(
    #[case] has_reported: bool,
    #[case] created: u64,
    #[case] silent: u64,
    #[case] expected: Option<(u64, &str)>,
) {
    let current = ready_condition(&Health::Healthy, at(0).wall);
    let unknown = unknown_at(has_reported.then_some(&current), created, silent);
    assert_eq!(unknown, expected.map(|(second, reason)| (second, reason.to_owned())));
}

#[test]
fn only_reports_of_the_agent_are_signs_of_life() {
    let current = ready_condition(&Health::Healthy, at(0).wall);
    let check = |liveness: Option<&lease::AgentLiveness>, current: &Condition, second| {
        lease::evaluate_lease(liveness, Some("same"), Some(current), at(0).wall, GRACE, at(second))
    };
    let (_, liveness) = check(None, &current, 0);
    let (_, liveness) = check(Some(&liveness), &current, 25);
    assert_eq!(liveness.lost_since(), Some(Duration::ZERO), "half of its grace period is over");
    let (condition, mut liveness) = check(Some(&liveness), &current, 45);
    let condition = condition.expect("silent");
    liveness.record_write(condition.clone());
    let (again, liveness) = check(Some(&liveness), &condition, 50);
    assert!(again.is_none() && liveness.lost_since().is_some());
    // The agent reports status before it renews its Lease.
    let (condition, liveness) = check(Some(&liveness), &current, 55);
    assert!(condition.is_none() && liveness.lost_since().is_none());
}
