//! Conditions of a ResourceRegistry or GraphSink, whose destination (a search backend or a graph database) receives
//! objects of the cache.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition: the destination responds and accepts the credentials.
pub(super) const CONNECTED: &str = "Connected";
/// Condition: the destination contains the selected objects as they are in the cache.
pub(super) const SYNCED: &str = "Synced";

/// Maximum lag, in changes, at which a destination counts as synchronized.
const MAX_SYNCED_LAG: u64 = 1_000;
/// Maximum length of a message, in characters.
const MAX_MESSAGE_CHARS: usize = 600;

/// State of a destination. `P` is the progress of writes to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DestinationState<P> {
    /// The destination accepts no writes. Both conditions have the reason and the message.
    Unusable {
        reason: &'static str,
        message: String,
    },
    Running(Box<P>),
}

impl<P> DestinationState<P> {
    /// The conditions [`CONNECTED`] and [`SYNCED`], computed from the progress.
    pub(super) fn conditions(
        &self,
        connected: impl FnOnce(&P) -> ConditionState,
        synced: impl FnOnce(&P) -> ConditionState,
    ) -> [(&'static str, ConditionState); 2] {
        let [connected, synced] = match self {
            DestinationState::Unusable { reason, message } => {
                let state = ConditionState::unmet(reason, message);
                [state.clone(), state]
            }
            DestinationState::Running(progress) => [connected(progress), synced(progress)],
        };
        [(CONNECTED, connected), (SYNCED, synced)]
    }
}

/// Status, reason and truncated message of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionState {
    is_true: bool,
    reason: &'static str,
    message: String,
}

impl ConditionState {
    pub(super) fn met(reason: &'static str, message: &str) -> Self {
        Self { is_true: true, reason, message: truncate(message) }
    }

    pub(super) fn unmet(reason: &'static str, message: &str) -> Self {
        Self { is_true: false, reason, message: truncate(message) }
    }

    /// State of [`SYNCED`] while more than [`MAX_SYNCED_LAG`] changes are not written yet.
    pub(super) fn lagging(lag: u64) -> Option<Self> {
        (lag > MAX_SYNCED_LAG).then(|| {
            // Rounded, so that the message changes rarely; the metric has the exact number.
            let magnitude = 10_u64.saturating_pow(lag.ilog10());
            Self::unmet("Lagging", &format!("more than {magnitude} changes are not written yet"))
        })
    }
}

/// The conditions `existing`, sorted by type, with [`CONNECTED`] and [`SYNCED`] replaced by `states` or removed, or
/// `None` if nothing changed.
pub(super) fn replace_conditions(
    existing: &[Condition],
    states: impl IntoIterator<Item = (&'static str, ConditionState)>,
    generation: Option<i64>,
    now: &Time,
) -> Option<Vec<Condition>> {
    let is_managed = |condition: &Condition| [CONNECTED, SYNCED].contains(&condition.type_.as_str());
    let mut next: Vec<Condition> = existing.iter().filter(|condition| !is_managed(condition)).cloned().collect();
    for (kind, state) in states {
        let status = if state.is_true { "True" } else { "False" };
        let before = existing.iter().find(|condition| condition.type_ == kind);
        let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
        next.push(Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: state.reason.to_owned(),
            message: state.message,
            observed_generation: generation,
            last_transition_time: since.unwrap_or_else(|| now.clone()),
        });
    }
    next.sort_by(|a, b| a.type_.cmp(&b.type_));
    let mut sorted = existing.to_vec();
    sorted.sort_by(|a, b| a.type_.cmp(&b.type_));
    (next != sorted).then_some(next)
}

/// The first [`MAX_MESSAGE_CHARS`] characters of a message, which may be a server's response.
pub(super) fn truncate(message: &str) -> String {
    let mut truncated: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
    if truncated.len() < message.len() {
        truncated.push('…');
    }
    truncated
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::up_to_date(0, None)]
    #[case::within_the_limit(1_000, None)]
    #[case::above_the_limit(1_001, Some("more than 1000 changes are not written yet"))]
    #[case::rounded(54_321, Some("more than 10000 changes are not written yet"))]
    fn a_lag_above_the_limit_is_reported_by_its_magnitude(#[case] lag: u64, #[case] expected: Option<&str>) {
        assert_eq!(ConditionState::lagging(lag), expected.map(|message| ConditionState::unmet("Lagging", message)));
    }

    #[test]
    fn long_messages_are_truncated() {
        assert_eq!(truncate(&"é".repeat(600)), "é".repeat(600));
        assert_eq!(truncate(&"é".repeat(601)), format!("{}…", "é".repeat(600)));
    }
}
