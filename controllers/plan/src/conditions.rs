//! `metav1.Condition` helpers. As in Kubernetes, the transition time changes only with the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// Builds a condition whose status changed at `now`.
pub fn condition(kind: &str, status: bool, reason: &str, message: impl Into<String>, now: Timestamp) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        last_transition_time: Time(now),
        observed_generation: None,
    }
}

pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// Sets a condition in the list. Returns true if anything changed.
pub fn set(conditions: &mut Vec<Condition>, new: Condition) -> bool {
    let Some(old) = conditions.iter_mut().find(|old| old.type_ == new.type_) else {
        conditions.push(new);
        return true;
    };
    let time = if old.status == new.status { old.last_transition_time.clone() } else { new.last_transition_time };
    let merged = Condition { last_transition_time: time, ..new };
    let changed = *old != merged;
    *old = merged;
    changed
}
