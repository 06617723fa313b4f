//! Liveness of clusters that Karmada's own agent reports, by the cluster's Lease. The rule is that of Karmada's
//! `cluster-controller`, but measured in monotonic time: any change of the Lease counts as a renewal, regardless of
//! the agent's clock.

use std::time::Duration;

use crowsnest_api::constants::condition as words;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Moment;

/// Time without renewal after which an agent is considered lost.
#[derive(Debug, Clone, Copy)]
pub struct Grace {
    pub monitor: Duration,
    /// Before its first report.
    pub startup: Duration,
}

/// Observations of an agent so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    renewed: Option<String>,
    shown: Option<Condition>,
    /// Monotonic time of the last sign of life.
    last_seen: SignedDuration,
    /// The same, once the agent has been silent for half of the grace period.
    lost: Option<Duration>,
}

impl Beat {
    /// Time of the last sign of life, if the agent has been silent for half of the grace period and the cluster was
    /// ready.
    pub fn lost(&self) -> Option<Duration> {
        self.lost
    }

    /// Records a condition that this process wrote itself, which is not a sign of life of the agent.
    pub fn wrote(&mut self, ready: Condition) {
        self.shown = Some(ready);
    }
}

/// Evaluates a Lease and the Cluster's Ready condition. Returns the condition to write, if any, and the new state.
pub fn look(
    last: Option<&Beat>,
    renewed: Option<&str>,
    shown: Option<&Condition>,
    created: Timestamp,
    grace: Grace,
    now: Moment,
) -> (Option<Condition>, Beat) {
    let mono = SignedDuration::try_from(now.mono).unwrap_or(SignedDuration::MAX);
    let (before, mut last_seen) = match last {
        Some(last) if last.shown.as_ref() == shown => (last.renewed.as_deref(), last.last_seen),
        // A status report of the agent is a sign of life, too.
        Some(last) => (last.renewed.as_deref(), mono),
        None if shown.is_none() => {
            (None, mono.saturating_sub(now.wall.duration_since(created).max(SignedDuration::ZERO)))
        }
        None => (None, mono),
    };
    if renewed.is_some() && renewed != before {
        last_seen = mono;
    }
    let longest = if shown.is_some() { grace.monitor } else { grace.startup };
    let silent = Duration::try_from(mono.saturating_sub(last_seen)).unwrap_or_default();
    let word = (silent > longest).then(|| silence(shown, now.wall)).flatten();
    let was_ready = shown.is_some_and(|shown| shown.status == "True");
    // Agents renew their Lease several times per grace period, so a silence of half of it indicates a loss.
    let is_lost = silent > longest / 2 && (was_ready || last.is_some_and(|last| last.lost.is_some()));
    let beat = Beat {
        renewed: renewed.or(before).map(str::to_owned),
        shown: shown.cloned(),
        last_seen,
        lost: is_lost.then(|| Duration::try_from(last_seen).unwrap_or_default()),
    };
    (word, beat)
}

fn silence(shown: Option<&Condition>, now: Timestamp) -> Option<Condition> {
    let (reason, message) = match shown {
        Some(shown) if shown.status == "Unknown" => return None,
        Some(_) => ("ClusterStatusUnknown", "Cluster status controller stopped posting cluster status."),
        None => ("ClusterStatusNeverUpdated", "Cluster status controller never posted cluster status."),
    };
    Some(Condition {
        type_: words::READY.to_owned(),
        status: "Unknown".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    })
}
