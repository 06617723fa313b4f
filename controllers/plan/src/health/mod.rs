//! Readiness of a cluster, derived from several signals over time (docs/FAILOVER.md).
//! `controllers/src/cluster/cluster_status/mod.rs` probes a cluster, calls this module and writes its decision; the taint manager and
//! ClusterTaintPolicies read the conditions.
//!
//! A single failing signal never makes a cluster NotReady, nor does a short outage, a restart of this process or a jump of the clock.
//! Under Karmada's rules ([`super::eviction::Safety::Karmada`]) [`super::clusters::with_thresholds`] decides instead of this module.

pub mod doubt;
pub mod lease;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crowsnest_api::constants::condition as words;
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

    /// True if more time than `longest` passed on either clock: the process or the machine was suspended, or the
    /// clock was set.
    fn is_apart(self, earlier: Self, longest: Duration) -> bool {
        self.since(earlier) > longest || self.wall.duration_since(earlier.wall).unsigned_abs() > longest
    }
}

/// Minimum number of consecutive failed probes, in addition to the failure threshold.
const LOOKS: u32 = 3;
/// Missed probes after which the observation starts again.
const MISSED: u32 = 3;

/// A source of health signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Readyz,
    Api,
    Watches,
    Tunnel,
}

impl Source {
    const ALL: [Source; 4] = [Source::Readyz, Source::Api, Source::Watches, Source::Tunnel];

    /// Part of the message that identifies the source's failure.
    fn mark(self) -> &'static str {
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
    pub all: usize,
    pub interrupted: usize,
    /// Time of the last event on any of the watches. Only its changes are evaluated, so its clock is irrelevant.
    pub heard_at: i64,
    /// Error of one interrupted watch.
    pub why: String,
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
    fn failing(&self, last: Option<&History>) -> BTreeMap<Source, String> {
        let mut failing = BTreeMap::new();
        if let Health::Unhealthy(why) | Health::Unreachable(why) | Health::NoClient(why) = &self.readyz {
            failing.insert(Source::Readyz, why.clone());
        }
        if let Err(why) = &self.api {
            failing.insert(Source::Api, why.clone());
        }
        // A watch that never worked since this process started does not count as interrupted. An event since the last
        // probe is a sign of life.
        let went_on = last.is_some_and(|last| last.watched && self.watches.heard_at <= last.heard_at);
        if went_on && self.watches.interrupted * 2 > self.watches.all {
            failing.insert(Source::Watches, self.watches.why.clone());
        }
        if self.tunnel == Some(false) {
            failing.insert(Source::Tunnel, String::new());
        }
        failing
    }
}

/// An ongoing failure of a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failing {
    since: Moment,
    looks: u32,
    why: String,
}

/// Observations of a cluster so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    at: Moment,
    heard_at: i64,
    /// True if most watches worked at least once.
    watched: bool,
    failing: BTreeMap<Source, Failing>,
    well_since: Option<Moment>,
    /// Time when two signals began to fail, if the cluster was ready then.
    lost: Option<Duration>,
}

impl History {
    /// Time when two signals began to fail while the cluster was ready.
    pub fn lost(&self) -> Option<Duration> {
        self.lost
    }

    /// Time of the last probe.
    pub fn looked_at(&self) -> Duration {
        self.at.mono
    }

    fn fails_by_two(&self) -> bool {
        self.failing.len() >= 2
    }
}

/// Thresholds for changing the Ready condition.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub success: Duration,
    pub failure: Duration,
    /// Time between two probes.
    pub period: Duration,
}

/// Result of evaluating a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The condition Ready, unless it is doubted.
    pub ready: Condition,
    pub history: History,
}

/// Evaluates a probe. `shown` is the Cluster's current Ready condition; without one, the first probe decides.
pub fn evaluate(
    signals: &Signals,
    last: Option<&History>,
    shown: Option<&Condition>,
    rules: &Rules,
    now: Moment,
) -> Judged {
    let history = remember(signals, last, shown, rules, now);
    let long = |failing: &&Failing| failing.looks >= LOOKS && now.since(failing.since) >= rules.failure;
    let is_down = history.failing.values().filter(long).count() >= 2;
    let is_up = history.well_since.is_some_and(|since| now.since(since) >= rules.success);
    let ready = match shown {
        None => ready_condition(&signals.readyz, now.wall),
        Some(shown) if shown.status == "True" => {
            if is_down {
                unready(signals, now.wall)
            } else {
                shown.clone()
            }
        }
        Some(_) if is_up => ready_condition(&Health::Healthy, now.wall),
        Some(shown) if history.well_since.is_some() => shown.clone(),
        Some(_) => unready(signals, now.wall),
    };
    Judged { ready, history }
}

fn remember(
    signals: &Signals,
    last: Option<&History>,
    shown: Option<&Condition>,
    rules: &Rules,
    now: Moment,
) -> History {
    let failing_now = signals.failing(last);
    // After a long pause the previous observations are invalid.
    let before = last.filter(|last| !now.is_apart(last.at, rules.period.saturating_mul(MISSED)));
    let window = |(source, why): (Source, String)| {
        let failing = match before.and_then(|before| before.failing.get(&source)) {
            Some(known) => Failing { since: known.since, looks: known.looks + 1, why },
            None => Failing { since: now, looks: 1, why },
        };
        (source, failing)
    };
    let failing: BTreeMap<Source, Failing> = failing_now.into_iter().map(window).collect();
    let is_well = signals.readyz == Health::Healthy && failing.len() < 2;
    let was_ready = shown.is_some_and(|shown| shown.status == "True");
    let lost = match before.and_then(|before| before.lost) {
        _ if failing.len() < 2 => None,
        Some(since) => Some(since),
        None => was_ready.then_some(now.mono),
    };
    let most_running = signals.watches.all > 0 && signals.watches.interrupted * 2 <= signals.watches.all;
    History {
        at: now,
        heard_at: signals.watches.heard_at,
        watched: most_running || last.is_some_and(|last| last.watched),
        well_since: is_well.then(|| before.and_then(|before| before.well_since).unwrap_or(now)),
        failing,
        lost,
    }
}

/// Karmada's condition for an unready cluster, which only distinguishes failures of the health endpoint.
fn unready(signals: &Signals, now: Timestamp) -> Condition {
    match &signals.readyz {
        Health::Healthy => ready_condition(&Health::Unreachable(String::new()), now),
        health => ready_condition(health, now),
    }
}

/// True if the condition would change from Ready to NotReady.
pub fn takes_away(shown: Option<&Condition>, ready: &Condition) -> bool {
    ready.status != "True" && shown.is_some_and(|shown| shown.status == "True")
}

/// The condition `HealthSignals` for the Ready condition to be published. It is unchanged while the same signals fail
/// with the same outcome, so that a restart does not reset the times in its message.
pub fn signals_condition(
    signals: &Signals,
    history: &History,
    ready: &Condition,
    doubt: Option<&Doubt>,
    shown: Option<&Condition>,
    now: Timestamp,
) -> Condition {
    let is_ready = ready.status == "True";
    let doubt = doubt.filter(|_| history.fails_by_two());
    let agree = match history.failing.len() {
        0 => is_ready,
        1 => false,
        _ => !is_ready,
    };
    let (status, reason) = match (doubt, agree) {
        (Some(_), _) => (false, words::HEALTH_SIGNALS_DOUBTED),
        (None, true) => (true, words::HEALTH_SIGNALS_AGREE),
        (None, false) => (false, words::HEALTH_SIGNALS_DAMPED),
    };
    if let Some(shown) = shown
        && shown.reason == reason
        && Source::ALL
            .iter()
            .all(|source| shown.message.contains(source.mark()) == history.failing.contains_key(source))
    {
        return shown.clone();
    }
    let message = tell(signals, history);
    let message = match doubt {
        Some(doubt) => format!("{doubt}; {message}"),
        None => message,
    };
    condition(words::HEALTH_SIGNALS, status, reason, message, now)
}

/// Describes the failing signals, with the time since when they fail, and the healthy ones.
pub fn tell(signals: &Signals, history: &History) -> String {
    if history.failing.is_empty() {
        return "all signals are healthy".to_owned();
    }
    let descriptions = Source::ALL.iter().filter_map(|source| match history.failing.get(source) {
        Some(failing) => Some(fails(*source, signals, failing)),
        None => healthy_text(*source, signals),
    });
    descriptions.collect::<Vec<_>>().join("; ")
}

fn fails(source: Source, signals: &Signals, failing: &Failing) -> String {
    /// Maximum length of an error in the message.
    const REASON: usize = 200;
    let since = failing.since.wall;
    let why: String = failing.why.chars().take(REASON).collect();
    let why = if why.is_empty() { why } else { format!(" ({why})") };
    match source {
        Source::Readyz | Source::Api => format!("{} since {since}{why}", source.mark()),
        Source::Watches => {
            let Watches { all, interrupted, .. } = signals.watches;
            format!("watches of {interrupted} of {all} {} since {since}{why}", source.mark())
        }
        Source::Tunnel => format!("the agent's {} since {since}", source.mark()),
    }
}

fn healthy_text(source: Source, signals: &Signals) -> Option<String> {
    match source {
        Source::Readyz => Some("readyz is ok".to_owned()),
        Source::Api => Some("API calls succeed".to_owned()),
        Source::Watches if signals.watches.all == 0 => None,
        Source::Watches => Some(format!("watches of {} resources are running", signals.watches.all)),
        Source::Tunnel => signals.tunnel.map(|_| "the agent's tunnel is open".to_owned()),
    }
}
