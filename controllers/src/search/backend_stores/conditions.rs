//! Conditions of a ResourceRegistry with a backend store, computed from the progress of its export.

use crowsnest_index::export::{ExportFailure, ExportProgress, ExportState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition: the engine responds and accepts the credentials.
pub(in crate::search) const CONNECTED: &str = "Connected";
/// Condition: the engine contains the selected objects as they are in the cache.
pub(in crate::search) const SYNCED: &str = "Synced";

/// Maximum lag, in changes, at which an export counts as synchronized.
const MAX_SYNCED_LAG: u64 = 1_000;
/// Maximum length of a message from the engine, in characters.
const MAX_MESSAGE_CHARS: usize = 600;

/// State of a registry's export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExportStatus {
    /// The client of the engine cannot be created: a reason of the condition, and a message.
    Unusable {
        reason: &'static str,
        message: String,
    },
    Exporting(Box<ExportProgress>),
}

/// Status, reason and message of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::search) struct ConditionState {
    pub is_true: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The new conditions of a registry whose conditions are `known`, or `None` if nothing changed. Other conditions are
/// kept. `export_status` is `None` if the registry has no backend store.
pub(super) fn conditions(
    known: &[Condition],
    export_status: Option<&ExportStatus>,
    generation: Option<i64>,
    now: &Time,
) -> Option<Vec<Condition>> {
    let states = export_status.map(condition_states).into_iter().flatten();
    replace_conditions(known, &[CONNECTED, SYNCED], states, generation, now)
}

/// The conditions with those of the `managed` types replaced, or `None` if nothing changed.
pub(in crate::search) fn replace_conditions(
    known: &[Condition],
    managed: &[&str],
    states: impl IntoIterator<Item = (&'static str, ConditionState)>,
    generation: Option<i64>,
    now: &Time,
) -> Option<Vec<Condition>> {
    let is_managed = |condition: &Condition| managed.contains(&condition.type_.as_str());
    let mut next: Vec<Condition> = known.iter().filter(|condition| !is_managed(condition)).cloned().collect();
    for (kind, state) in states {
        let status = if state.is_true { "True" } else { "False" };
        let before = known.iter().find(|condition| condition.type_ == kind);
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
    let mut sorted = known.to_vec();
    sorted.sort_by(|a, b| a.type_.cmp(&b.type_));
    (next != sorted).then_some(next)
}

fn condition_states(export_status: &ExportStatus) -> [(&'static str, ConditionState); 2] {
    let [connected, synced] = match export_status {
        ExportStatus::Unusable { reason, message } => {
            let state = ConditionState { is_true: false, reason, message: truncate(message) };
            [state.clone(), state]
        }
        ExportStatus::Exporting(progress) => [connected_state(progress), synced_state(progress)],
    };
    [(CONNECTED, connected), (SYNCED, synced)]
}

fn connected_state(progress: &ExportProgress) -> ConditionState {
    match &progress.state {
        ExportState::Waiting { failure, reason } if !progress.is_connected => {
            ConditionState { is_true: false, reason: reason_of(*failure), message: truncate(reason) }
        }
        _ if progress.is_connected => ConditionState {
            is_true: true,
            reason: "EngineAnswers",
            message: format!("the engine is {}", progress.engine),
        },
        ExportState::Cleaned => ConditionState {
            is_true: false,
            reason: "NothingSelected",
            message: "no object is selected, so the engine is not used".to_owned(),
        },
        _ => ConditionState {
            is_true: false,
            reason: "Connecting",
            message: "the engine has not responded yet".to_owned(),
        },
    }
}

fn synced_state(progress: &ExportProgress) -> ConditionState {
    let new_state = |is_true, reason, message: &str| ConditionState { is_true, reason, message: truncate(message) };
    match &progress.state {
        ExportState::Connecting => new_state(false, "Connecting", "the engine has not responded yet"),
        ExportState::Cleaned => new_state(false, "NothingSelected", "no object is selected"),
        ExportState::Comparing { index } => {
            new_state(false, "Comparing", &format!("comparing the documents of {index} with the cache"))
        }
        ExportState::Waiting { failure, reason } => new_state(false, reason_of(*failure), reason),
        ExportState::Following if progress.lag() > MAX_SYNCED_LAG => {
            // Rounded, so that the message changes rarely; the metric has the exact number.
            let magnitude = 10_u64.saturating_pow(progress.lag().ilog10());
            new_state(false, "Lagging", &format!("more than {magnitude} changes are not written yet"))
        }
        ExportState::Following => match progress.dead_letters.last() {
            None => new_state(true, "UpToDate", "the engine contains the selected objects"),
            Some(letter) => {
                let count = progress.dead_letters.len();
                let message =
                    format!("the engine rejected {count} documents, for example {}: {}", letter.id, letter.reason);
                new_state(false, "DocumentsRefused", &message)
            }
        },
    }
}

pub(super) fn reason_of(failure: ExportFailure) -> &'static str {
    match failure {
        ExportFailure::Unreachable => "EngineUnreachable",
        ExportFailure::Credentials => "CredentialsRefused",
        ExportFailure::Certificate => "CertificateRefused",
        ExportFailure::Unsupported => "EngineUnsupported",
        ExportFailure::DuplicateEngine => "EngineNamedTwice",
        ExportFailure::Refused => "WritesRefused",
        ExportFailure::Internal => "InternalError",
    }
}

fn truncate(message: &str) -> String {
    let mut truncated: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
    if truncated.len() < message.len() {
        truncated.push('…');
    }
    truncated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_search::opensearch::writer::DeadLetter;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    fn time(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn exporting(state: ExportState, connected: bool, lag: u64, dead: usize) -> ExportStatus {
        let letter = || DeadLetter { id: "u".to_owned(), seq: 1, reason: "400 parsing".to_owned() };
        ExportStatus::Exporting(Box::new(ExportProgress {
            state,
            is_connected: connected,
            engine: "OpenSearch 2.19.6".to_owned(),
            position: 10,
            latest: 10 + lag,
            dead_letters: std::iter::repeat_with(letter).take(dead).collect(),
            ..ExportProgress::default()
        }))
    }

    fn waiting(failure: ExportFailure) -> ExportState {
        ExportState::Waiting { failure, reason: "why".to_owned() }
    }

    fn format_conditions(conditions: &[Condition]) -> Vec<String> {
        let format_condition = |condition: &Condition| {
            format!("{}={} {}: {}", condition.type_, condition.status, condition.reason, condition.message)
        };
        conditions.iter().map(format_condition).collect()
    }

    #[rstest]
    #[case::new(exporting(ExportState::Connecting, false, 0, 0),
        ["Connected=False Connecting: the engine has not responded yet", "Synced=False Connecting: the engine has not responded yet"])]
    #[case::comparing(exporting(ExportState::Comparing { index: "kubernetes-pod".to_owned() }, true, 0, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6",
         "Synced=False Comparing: comparing the documents of kubernetes-pod with the cache"])]
    #[case::synced(exporting(ExportState::Following, true, 1_000, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6", "Synced=True UpToDate: the engine contains the selected objects"])]
    #[case::lagging(exporting(ExportState::Following, true, 54_321, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6",
         "Synced=False Lagging: more than 10000 changes are not written yet"])]
    #[case::documents_rejected(exporting(ExportState::Following, true, 0, 2),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6",
         "Synced=False DocumentsRefused: the engine rejected 2 documents, for example u: 400 parsing"])]
    #[case::unreachable(exporting(waiting(ExportFailure::Unreachable), false, 0, 0),
        ["Connected=False EngineUnreachable: why", "Synced=False EngineUnreachable: why"])]
    #[case::writes_rejected(exporting(waiting(ExportFailure::Refused), true, 0, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6", "Synced=False WritesRefused: why"])]
    #[case::no_secret(ExportStatus::Unusable { reason: "SecretUnreadable", message: "no such Secret".to_owned() },
        ["Connected=False SecretUnreadable: no such Secret", "Synced=False SecretUnreadable: no such Secret"])]
    fn conditions_have_reasons(#[case] export_status: ExportStatus, #[case] expected: [&str; 2]) {
        let found = conditions(&[], Some(&export_status), Some(3), &time(5)).unwrap();
        assert_eq!(format_conditions(&found), expected);
        assert!(found.iter().all(|condition| condition.observed_generation == Some(3)));
        assert_eq!(
            conditions(&found, Some(&export_status), Some(3), &time(9)),
            None,
            "unchanged conditions are not written"
        );
    }

    #[test]
    fn transition_times_change_with_the_status_and_other_conditions_are_kept() {
        let (before, after) =
            (exporting(ExportState::Following, true, 0, 0), exporting(waiting(ExportFailure::Refused), true, 0, 0));
        let first = conditions(&[], Some(&before), None, &time(5)).unwrap();
        let second = conditions(&first, Some(&after), None, &time(9)).unwrap();
        assert_eq!(
            [&second[0], &second[1]].map(|condition| condition.last_transition_time.clone()),
            [time(5), time(9)]
        );
        let other = Condition { type_: "Other".to_owned(), ..first[0].clone() };
        let mixed = [second, vec![other.clone()]].concat();
        assert_eq!(conditions(&mixed, None, None, &time(9)), Some(vec![other.clone()]), "without a backend store");
        assert_eq!(conditions(&[other], None, None, &time(9)), None);
    }
}
