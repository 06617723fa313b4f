//! Clusters that Karmada's own agent reports of: their Lease says whether it still does. Karmada's rule (`cluster-controller`), but by
//! monotonic time, and a Lease counts whenever it is another one than before, however the agent's clock runs.

use std::time::Duration;

use crowsnest_api::constants::condition as words;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Moment;

/// How long an agent may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Grace {
    pub monitor: Duration,
    /// Before it has reported for the first time.
    pub startup: Duration,
}

/// What was seen of an agent so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    renewed: Option<String>,
    shown: Option<Condition>,
    /// When it was last heard of, on the monotonic clock.
    heard: SignedDuration,
    /// When that was, of one that has been silent for a while.
    lost: Option<Duration>,
}

impl Beat {
    /// When its agent was last heard of, if that was a while ago and the cluster counted as ready.
    pub fn lost(&self) -> Option<Duration> {
        self.lost
    }

    /// What the Cluster shows now is our own word, and no sign of life.
    pub fn wrote(&mut self, ready: Condition) {
        self.shown = Some(ready);
    }
}

/// One look at a Lease and the Cluster's Ready condition: the condition to write, if any, and what to remember.
pub fn look(
    last: Option<&Beat>,
    renewed: Option<&str>,
    shown: Option<&Condition>,
    created: Timestamp,
    grace: Grace,
    now: Moment,
) -> (Option<Condition>, Beat) {
    let mono = SignedDuration::try_from(now.mono).unwrap_or(SignedDuration::MAX);
    let (before, mut heard) = match last {
        Some(last) if last.shown.as_ref() == shown => (last.renewed.as_deref(), last.heard),
        // The agent reported something: that is a sign of life, too.
        Some(last) => (last.renewed.as_deref(), mono),
        None if shown.is_none() => {
            (None, mono.saturating_sub(now.wall.duration_since(created).max(SignedDuration::ZERO)))
        }
        None => (None, mono),
    };
    if renewed.is_some() && renewed != before {
        heard = mono;
    }
    let longest = if shown.is_some() { grace.monitor } else { grace.startup };
    let silent = Duration::try_from(mono.saturating_sub(heard)).unwrap_or_default();
    let word = (silent > longest).then(|| silence(shown, now.wall)).flatten();
    let was_ready = shown.is_some_and(|shown| shown.status == "True");
    // Agents renew their Leases several times within the grace: who has missed half of it is about to be lost.
    let is_lost = silent > longest / 2 && (was_ready || last.is_some_and(|last| last.lost.is_some()));
    let beat = Beat {
        renewed: renewed.or(before).map(str::to_owned),
        shown: shown.cloned(),
        heard,
        lost: is_lost.then(|| Duration::try_from(heard).unwrap_or_default()),
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
