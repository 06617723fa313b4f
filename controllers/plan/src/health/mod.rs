//! Readiness of a cluster, derived from several signals over time (docs/FAILOVER.md).
//! `controllers/src/cluster/cluster_status/mod.rs` probes a cluster, calls this module and writes its decision; the
//! taint manager and ClusterTaintPolicies read the conditions.
//!
//! A single failing signal never makes a cluster NotReady, nor does a short outage, a restart of this process or a jump
//! of the clock. Under Karmada's rules ([`super::eviction::Safety::Karmada`]) [`super::clusters::apply_thresholds`]
//! decides instead of this module.

pub mod doubt;
pub mod lease;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crowsnest_api::constants::condition as condition_names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::clusters::{Health, ready_condition};
use super::conditions::condition;
use doubt::Doubt;

/// Monotonic and wall-clock time of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub mono: Duration,
    pub wall: Timestamp,
}

impl Moment {
    fn since(self, earlier: Self) -> Duration {
        self.mono.saturating_sub(earlier.mono)
    }

    /// True if more time than `limit` passed on either clock since `earlier`: the process or the machine was suspended,
    /// or the clock was set.
    fn is_interrupted(self, earlier: Self, limit: Duration) -> bool {
        self.since(earlier) > limit || self.wall.duration_since(earlier.wall).unsigned_abs() > limit
    }
}

/// Minimum number of consecutive failed probes before a signal counts as failing, in addition to the failure threshold.
const MIN_FAILED_PROBES: u32 = 3;
/// Number of missed probe periods after which earlier observations are discarded.
const MAX_MISSED_PROBES: u32 = 3;

/// A source of health signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The health endpoint (`/readyz`).
    Readyz,
    /// Other API calls.
    Api,
    /// The watches of the cache.
    Watches,
    /// The tunnel of the cluster's agent.
    Tunnel,
}

impl Source {
    const ALL: [Source; 4] = [Source::Readyz, Source::Api, Source::Watches, Source::Tunnel];

    /// Part of the message of `HealthSignals` that states the failure of this source.
    fn failure_text(self) -> &'static str {
        match self {
            Source::Readyz => "readyz fails",
            Source::Api => "API calls fail",
            Source::Watches => "resources are interrupted",
            Source::Tunnel => "tunnel is closed",
        }
    }
}

/// State of the cache's watches of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watches {
    pub total: usize,
    pub interrupted: usize,
    /// Time of the last event on any of the watches. It is only compared with that of the previous probe, so its unit
    /// and epoch are irrelevant.
    pub last_event_at: i64,
    /// Error of one interrupted watch.
    pub error: String,
}

/// Result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signals {
    pub readyz: Health,
    /// Result of another API call.
    pub api: Result<(), String>,
    pub watches: Watches,
    /// True if the agent's tunnel is open. `None` for clusters that are not reached through a tunnel.
    pub tunnel: Option<bool>,
}

impl Signals {
    /// Failing sources with their errors. `last` are the observations before this probe.
    fn failures(&self, last: Option<&HealthHistory>) -> BTreeMap<Source, String> {
        let mut failing = BTreeMap::new();
        if let Health::Unhealthy(error) | Health::Unreachable(error) | Health::NoClient(error) = &self.readyz {
            failing.insert(Source::Readyz, error.clone());
        }
        if let Err(error) = &self.api {
            failing.insert(Source::Api, error.clone());
        }
        // Watches that have not worked since this process started do not count as interrupted, and an event since the
        // last probe shows that the cluster is alive.
        let has_no_new_event =
            last.is_some_and(|last| last.had_watches && self.watches.last_event_at <= last.last_event_at);
        if has_no_new_event && self.watches.interrupted * 2 > self.watches.total {
            failing.insert(Source::Watches, self.watches.error.clone());
        }
        if self.tunnel == Some(false) {
            failing.insert(Source::Tunnel, String::new());
        }
        failing
    }
}

/// An ongoing failure of a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OngoingFailure {
    since: Moment,
    failed_probes: u32,
    error: String,
}

/// Observations of a cluster so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthHistory {
    at: Moment,
    last_event_at: i64,
    /// True if most watches worked during any of the probes so far.
    had_watches: bool,
    failing: BTreeMap<Source, OngoingFailure>,
    healthy_since: Option<Moment>,
    /// Monotonic time at which two signals began to fail, if the cluster was ready then.
    lost_since: Option<Duration>,
}

impl HealthHistory {
    /// Monotonic time at which two signals began to fail while the cluster was ready. `None` while fewer than two fail.
    pub fn lost_since(&self) -> Option<Duration> {
        self.lost_since
    }

    /// Monotonic time of the last probe.
    pub fn last_probe(&self) -> Duration {
        self.at.mono
    }

    fn has_two_failures(&self) -> bool {
        self.failing.len() >= 2
    }
}

/// Settings for changing the Ready condition: thresholds, and the period of probes.
#[derive(Debug, Clone, Copy)]
pub struct ReadinessSettings {
    /// Time for which a cluster must be healthy to become Ready.
    pub success: Duration,
    /// Time for which two signals must fail for the cluster to become not ready.
    pub failure: Duration,
    /// Time between two probes.
    pub period: Duration,
}

/// Result of evaluating a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The Ready condition to be published, unless it is doubted.
    pub ready: Condition,
    pub history: HealthHistory,
}

/// Evaluates a probe. `current` is the Cluster's Ready condition. Without one, this probe decides alone.
pub fn evaluate(
    signals: &Signals,
    last: Option<&HealthHistory>,
    current: Option<&Condition>,
    settings: &ReadinessSettings,
    now: Moment,
) -> Evaluation {
    let was_ready = current.is_some_and(|current| current.status == "True");
    let history = update_history(signals, last, was_ready, settings, now);
    let is_long = |failing: &&OngoingFailure| {
        failing.failed_probes >= MIN_FAILED_PROBES && now.since(failing.since) >= settings.failure
    };
    let is_down = history.failing.values().filter(is_long).count() >= 2;
    let is_up = history.healthy_since.is_some_and(|since| now.since(since) >= settings.success);
    let ready = match current {
        None => ready_condition(&signals.readyz, now.wall),
        Some(current) if current.status == "True" => {
            if is_down {
                not_ready_condition(signals, now.wall)
            } else {
                current.clone()
            }
        }
        Some(_) if is_up => ready_condition(&Health::Healthy, now.wall),
        Some(current) if history.healthy_since.is_some() => current.clone(),
        Some(_) => not_ready_condition(signals, now.wall),
    };
    Evaluation { ready, history }
}

fn update_history(
    signals: &Signals,
    last: Option<&HealthHistory>,
    was_ready: bool,
    settings: &ReadinessSettings,
    now: Moment,
) -> HealthHistory {
    let failing_now = signals.failures(last);
    // After a long pause the previous observations are invalid.
    let before = last.filter(|last| !now.is_interrupted(last.at, settings.period.saturating_mul(MAX_MISSED_PROBES)));
    let continue_failure = |(source, error): (Source, String)| {
        let failing = match before.and_then(|before| before.failing.get(&source)) {
            Some(previous) => {
                OngoingFailure { since: previous.since, failed_probes: previous.failed_probes + 1, error }
            }
            None => OngoingFailure { since: now, failed_probes: 1, error },
        };
        (source, failing)
    };
    let failing: BTreeMap<Source, OngoingFailure> = failing_now.into_iter().map(continue_failure).collect();
    let is_healthy = signals.readyz == Health::Healthy && failing.len() < 2;
    let lost_since = match before.and_then(|before| before.lost_since) {
        _ if failing.len() < 2 => None,
        Some(since) => Some(since),
        None => was_ready.then_some(now.mono),
    };
    let are_watches_running = signals.watches.total > 0 && signals.watches.interrupted * 2 <= signals.watches.total;
    HealthHistory {
        at: now,
        last_event_at: signals.watches.last_event_at,
        had_watches: are_watches_running || last.is_some_and(|last| last.had_watches),
        healthy_since: is_healthy.then(|| before.and_then(|before| before.healthy_since).unwrap_or(now)),
        failing,
        lost_since,
    }
}

/// Karmada's Ready condition for a cluster that is not ready. Its reasons only distinguish failures of the health
/// endpoint, so a cluster whose other signals fail is reported as unreachable.
fn not_ready_condition(signals: &Signals, now: Timestamp) -> Condition {
    match &signals.readyz {
        Health::Healthy => ready_condition(&Health::Unreachable(String::new()), now),
        health => ready_condition(health, now),
    }
}

/// True if the condition would change from Ready to not ready.
pub fn becomes_unready(current: Option<&Condition>, ready: &Condition) -> bool {
    ready.status != "True" && current.is_some_and(|current| current.status == "True")
}

/// The condition `HealthSignals` for the Ready condition to be published. It is unchanged while the same signals fail
/// with the same outcome, so that a restart does not reset the times in its message.
pub fn signals_condition(
    signals: &Signals,
    history: &HealthHistory,
    ready: &Condition,
    doubt: Option<&Doubt>,
    current: Option<&Condition>,
    now: Timestamp,
) -> Condition {
    let is_ready = ready.status == "True";
    let doubt = doubt.filter(|_| history.has_two_failures());
    let signals_agree = match history.failing.len() {
        0 => is_ready,
        1 => false,
        _ => !is_ready,
    };
    let (status, reason) = match (doubt, signals_agree) {
        (Some(_), _) => (false, condition_names::HEALTH_SIGNALS_DOUBTED),
        (None, true) => (true, condition_names::HEALTH_SIGNALS_AGREE),
        (None, false) => (false, condition_names::HEALTH_SIGNALS_DAMPED),
    };
    if let Some(current) = current
        && current.reason == reason
        && Source::ALL
            .iter()
            .all(|source| current.message.contains(source.failure_text()) == history.failing.contains_key(source))
    {
        return current.clone();
    }
    let message = describe(signals, history);
    let message = match doubt {
        Some(doubt) => format!("{doubt}; {message}"),
        None => message,
    };
    condition(condition_names::HEALTH_SIGNALS, status, reason, message, now)
}

/// Describes the failing signals with the time at which they began to fail, and the healthy signals.
pub fn describe(signals: &Signals, history: &HealthHistory) -> String {
    if history.failing.is_empty() {
        return "all signals are healthy".to_owned();
    }
    let descriptions = Source::ALL.iter().filter_map(|source| match history.failing.get(source) {
        Some(failing) => Some(describe_failure(*source, signals, failing)),
        None => describe_healthy(*source, signals),
    });
    descriptions.collect::<Vec<_>>().join("; ")
}

fn describe_failure(source: Source, signals: &Signals, failing: &OngoingFailure) -> String {
    /// Maximum length of an error in the message.
    const MAX_ERROR_LENGTH: usize = 200;
    let since = failing.since.wall;
    let error: String = failing.error.chars().take(MAX_ERROR_LENGTH).collect();
    let error = if error.is_empty() { error } else { format!(" ({error})") };
    match source {
        Source::Readyz | Source::Api => format!("{} since {since}{error}", source.failure_text()),
        Source::Watches => {
            let Watches { total, interrupted, .. } = signals.watches;
            format!("watches of {interrupted} of {total} {} since {since}{error}", source.failure_text())
        }
        Source::Tunnel => format!("the agent's {} since {since}", source.failure_text()),
    }
}

fn describe_healthy(source: Source, signals: &Signals) -> Option<String> {
    match source {
        Source::Readyz => Some("readyz is ok".to_owned()),
        Source::Api => Some("API calls succeed".to_owned()),
        Source::Watches if signals.watches.total == 0 => None,
        Source::Watches => Some(format!("watches of {} resources are running", signals.watches.total)),
        Source::Tunnel => signals.tunnel.map(|_| "the agent's tunnel is open".to_owned()),
    }
}
