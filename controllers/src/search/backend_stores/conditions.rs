//! Conditions of a ResourceRegistry with a backend store, computed from the progress of its export.

use crowsnest_index::export::{ExportFailure, ExportProgress, ExportState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::search::conditions::{ConditionState, DestinationState, replace_conditions};

/// State of a registry's export.
pub(super) type ExportStatus = DestinationState<ExportProgress>;

/// The new conditions of a registry whose conditions are `existing`, or `None` if nothing changed. Other conditions are
/// kept. `export_status` is `None` if the registry has no backend store.
pub(super) fn conditions(
    existing: &[Condition],
    export_status: Option<&ExportStatus>,
    generation: Option<i64>,
    now: &Time,
) -> Option<Vec<Condition>> {
    let states = export_status.map(|status| status.conditions(connected_state, synced_state));
    replace_conditions(existing, states.into_iter().flatten(), generation, now)
}

fn connected_state(progress: &ExportProgress) -> ConditionState {
    match &progress.state {
        ExportState::Waiting { failure, reason } if !progress.is_connected => {
            ConditionState::unmet(reason_of(*failure), reason)
        }
        _ if progress.is_connected => {
            ConditionState::met("EngineAnswers", &format!("the backend is {}", progress.backend))
        }
        ExportState::Cleaned => {
            ConditionState::unmet("NothingSelected", "no object is selected, so the backend is not used")
        }
        _ => ConditionState::unmet("Connecting", "the backend has not responded yet"),
    }
}

fn synced_state(progress: &ExportProgress) -> ConditionState {
    match &progress.state {
        ExportState::Connecting => ConditionState::unmet("Connecting", "the backend has not responded yet"),
        ExportState::Cleaned => ConditionState::unmet("NothingSelected", "no object is selected"),
        ExportState::Comparing { index } => {
            ConditionState::unmet("Comparing", &format!("comparing the documents of {index} with the cache"))
        }
        ExportState::Waiting { failure, reason } => ConditionState::unmet(reason_of(*failure), reason),
        ExportState::Following => ConditionState::lagging(progress.lag()).unwrap_or_else(|| written_state(progress)),
    }
}

/// State of the condition `Synced` when all changes are written: a backend may have rejected documents.
fn written_state(progress: &ExportProgress) -> ConditionState {
    let Some(letter) = progress.dead_letters.last() else {
        return ConditionState::met("UpToDate", "the backend contains the selected objects");
    };
    let count = progress.dead_letters.len();
    let message = format!("the backend rejected {count} documents, for example {}: {}", letter.id, letter.reason);
    ConditionState::unmet("DocumentsRefused", &message)
}

pub(super) fn reason_of(failure: ExportFailure) -> &'static str {
    match failure {
        ExportFailure::Unreachable => "EngineUnreachable",
        ExportFailure::Credentials => "CredentialsRefused",
        ExportFailure::Certificate => "CertificateRefused",
        ExportFailure::Unsupported => "EngineUnsupported",
        ExportFailure::DuplicateBackend => "EngineNamedTwice",
        ExportFailure::Refused => "WritesRefused",
        ExportFailure::Internal => "InternalError",
    }
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
        ExportStatus::Running(Box::new(ExportProgress {
            state,
            is_connected: connected,
            backend: "OpenSearch 2.19.6".to_owned(),
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
        ["Connected=False Connecting: the backend has not responded yet", "Synced=False Connecting: the backend has not responded yet"])]
    #[case::comparing(exporting(ExportState::Comparing { index: "kubernetes-pod".to_owned() }, true, 0, 0),
        ["Connected=True EngineAnswers: the backend is OpenSearch 2.19.6",
         "Synced=False Comparing: comparing the documents of kubernetes-pod with the cache"])]
    #[case::synced(exporting(ExportState::Following, true, 1_000, 0),
        ["Connected=True EngineAnswers: the backend is OpenSearch 2.19.6", "Synced=True UpToDate: the backend contains the selected objects"])]
    #[case::lagging(exporting(ExportState::Following, true, 54_321, 0),
        ["Connected=True EngineAnswers: the backend is OpenSearch 2.19.6",
         "Synced=False Lagging: more than 10000 changes are not written yet"])]
    #[case::documents_rejected(exporting(ExportState::Following, true, 0, 2),
        ["Connected=True EngineAnswers: the backend is OpenSearch 2.19.6",
         "Synced=False DocumentsRefused: the backend rejected 2 documents, for example u: 400 parsing"])]
    #[case::unreachable(exporting(waiting(ExportFailure::Unreachable), false, 0, 0),
        ["Connected=False EngineUnreachable: why", "Synced=False EngineUnreachable: why"])]
    #[case::writes_rejected(exporting(waiting(ExportFailure::Refused), true, 0, 0),
        ["Connected=True EngineAnswers: the backend is OpenSearch 2.19.6", "Synced=False WritesRefused: why"])]
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
