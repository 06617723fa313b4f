//! Liveness of clusters that Karmada's own agent reports, determined from the cluster's Lease. The rule is that of
//! Karmada's `cluster-controller`, but measured in monotonic time: any change of the Lease counts as a renewal,
//! regardless of the agent's clock.

use std::time::Duration;

use crowsnest_api::constants::condition as condition_names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Moment;

/// Time without renewal after which an agent is considered lost.
#[derive(Debug, Clone, Copy)]
pub struct GracePeriods {
    /// Limit after the first report of the agent.
    pub monitor: Duration,
    /// Limit before the first report of the agent.
    pub startup: Duration,
}

/// Observations of an agent so far.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentLiveness {
    /// Last seen `renewTime` of the Lease.
    renew_time: Option<String>,
    /// The Ready condition at the last check, or written since.
    current: Option<Condition>,
    /// Monotonic time of the agent's last status report or Lease renewal.
    last_seen: SignedDuration,
    /// `last_seen`, once the agent has been silent for half of the grace period.
    lost_since: Option<Duration>,
}

impl AgentLiveness {
    /// Monotonic time of the agent's last status report or Lease renewal, if the agent has been silent for half of the
    /// grace period since then and the cluster was ready.
    pub fn lost_since(&self) -> Option<Duration> {
        self.lost_since
    }

    /// Records a condition that this process wrote itself, so that it does not count as a report of the agent.
    pub fn record_write(&mut self, ready: Condition) {
        self.current = Some(ready);
    }
}

/// Evaluates a Lease and the Cluster's Ready condition. `renew_time` is the Lease's `renewTime`, `created` the creation
/// time of the Cluster. Returns the condition to write, if any, and the new state.
pub fn evaluate_lease(
    last: Option<&AgentLiveness>,
    renew_time: Option<&str>,
    current: Option<&Condition>,
    created: Timestamp,
    grace: GracePeriods,
    now: Moment,
) -> (Option<Condition>, AgentLiveness) {
    let mono = SignedDuration::try_from(now.mono).unwrap_or(SignedDuration::MAX);
    let (before, mut last_seen) = match last {
        Some(last) if last.current.as_ref() == current => (last.renew_time.as_deref(), last.last_seen),
        // The condition was changed by a report of the agent, which counts like a renewal.
        Some(last) => (last.renew_time.as_deref(), mono),
        None if current.is_none() => {
            (None, mono.saturating_sub(now.wall.duration_since(created).max(SignedDuration::ZERO)))
        }
        None => (None, mono),
    };
    if renew_time.is_some() && renew_time != before {
        last_seen = mono;
    }
    let limit = if current.is_some() { grace.monitor } else { grace.startup };
    let silence = Duration::try_from(mono.saturating_sub(last_seen)).unwrap_or_default();
    let condition = (silence > limit).then(|| unknown_condition(current, now.wall)).flatten();
    let was_ready = current.is_some_and(|current| current.status == "True");
    // Agents renew their Lease several times per grace period, so a silence of half of it indicates a loss.
    let is_lost = silence > limit / 2 && (was_ready || last.is_some_and(|last| last.lost_since.is_some()));
    let liveness = AgentLiveness {
        renew_time: renew_time.or(before).map(str::to_owned),
        current: current.cloned(),
        last_seen,
        lost_since: is_lost.then(|| Duration::try_from(last_seen).unwrap_or_default()),
    };
    (condition, liveness)
}

/// Karmada's Ready condition for an agent that is lost. `None` if the condition is `Unknown` already.
pub(crate) fn unknown_condition(current: Option<&Condition>, now: Timestamp) -> Option<Condition> {
    let (reason, message) = match current {
        Some(current) if current.status == "Unknown" => return None,
        Some(_) => ("ClusterStatusUnknown", "Cluster status controller stopped posting cluster status."),
        None => ("ClusterStatusNeverUpdated", "Cluster status controller never posted cluster status."),
    };
    Some(Condition {
        type_: condition_names::READY.to_owned(),
        status: "Unknown".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    })
}
