//! Conditions of a ResourceRegistry with a backend store, computed from the progress of its export.

use crowsnest_index::export::{ExportFailure, ExportProgress, ExportState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The engine responds and accepts the credentials.
pub(super) const CONNECTED: &str = "Connected";
/// The engine contains the selected objects as they are in the cache.
pub(super) const SYNCED: &str = "Synced";

/// Maximum lag, in changes, at which an export counts as synchronized.
const SYNCED_WITHIN: u64 = 1_000;
/// Maximum length of a message from the engine, in characters.
const MAX_MESSAGE: usize = 600;

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
struct Verdict {
    holds: bool,
    reason: &'static str,
    message: String,
}

/// The new conditions of a registry whose conditions are `known`, or `None` if nothing changed. Other conditions are
/// kept. `standing` is `None` if the registry has no backend store.
pub(super) fn conditions(
    known: &[Condition],
    standing: Option<&ExportStatus>,
    generation: Option<i64>,
    now: &Time,
) -> Option<Vec<Condition>> {
    let is_ours = |condition: &Condition| [CONNECTED, SYNCED].contains(&condition.type_.as_str());
    let mut next: Vec<Condition> = known.iter().filter(|condition| !is_ours(condition)).cloned().collect();
    for (kind, verdict) in standing.map(conditions_of).into_iter().flatten() {
        let status = if verdict.holds { "True" } else { "False" };
        let before = known.iter().find(|condition| condition.type_ == kind);
        let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
        next.push(Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message,
            observed_generation: generation,
            last_transition_time: since.unwrap_or_else(|| now.clone()),
        });
    }
    next.sort_by(|a, b| a.type_.cmp(&b.type_));
    let mut sorted = known.to_vec();
    sorted.sort_by(|a, b| a.type_.cmp(&b.type_));
    (next != sorted).then_some(next)
}

fn conditions_of(standing: &ExportStatus) -> [(&'static str, Verdict); 2] {
    let [connected, synced] = match standing {
        ExportStatus::Unusable { reason, message } => {
            let verdict = Verdict { holds: false, reason, message: cut(message) };
            [verdict.clone(), verdict]
        }
        ExportStatus::Exporting(progress) => [connected(progress), synced(progress)],
    };
    [(CONNECTED, connected), (SYNCED, synced)]
}

fn connected(progress: &ExportProgress) -> Verdict {
    match &progress.state {
        ExportState::Waiting { trouble, reason } if !progress.connected => {
            Verdict { holds: false, reason: reason_of(*trouble), message: cut(reason) }
        }
        _ if progress.connected => {
            Verdict { holds: true, reason: "EngineAnswers", message: format!("the engine is {}", progress.engine) }
        }
        ExportState::Cleaned => Verdict {
            holds: false,
            reason: "NothingSelected",
            message: "no object is selected, so the engine is not used".to_owned(),
        },
        _ => Verdict { holds: false, reason: "Connecting", message: "the engine has not responded yet".to_owned() },
    }
}

fn synced(progress: &ExportProgress) -> Verdict {
    let verdict = |holds, reason, message: &str| Verdict { holds, reason, message: cut(message) };
    match &progress.state {
        ExportState::Connecting => verdict(false, "Connecting", "the engine has not responded yet"),
        ExportState::Cleaned => verdict(false, "NothingSelected", "no object is selected"),
        ExportState::Comparing { index } => {
            verdict(false, "Comparing", &format!("comparing the documents of {index} with the cache"))
        }
        ExportState::Waiting { trouble, reason } => verdict(false, reason_of(*trouble), reason),
        ExportState::Following if progress.lag() > SYNCED_WITHIN => {
            // Rounded, so that the message changes rarely; the metric has the exact number.
            let magnitude = 10_u64.saturating_pow(progress.lag().ilog10());
            verdict(false, "Lagging", &format!("more than {magnitude} changes are not written yet"))
        }
        ExportState::Following => match progress.dead_letters.last() {
            None => verdict(true, "UpToDate", "the engine contains the selected objects"),
            Some(letter) => {
                let count = progress.dead_letters.len();
                let message =
                    format!("the engine rejected {count} documents, for example {}: {}", letter.id, letter.reason);
                verdict(false, "DocumentsRefused", &message)
            }
        },
    }
}

pub(super) fn reason_of(trouble: ExportFailure) -> &'static str {
    match trouble {
        ExportFailure::Unreachable => "EngineUnreachable",
        ExportFailure::Credentials => "CredentialsRefused",
        ExportFailure::Certificate => "CertificateRefused",
        ExportFailure::Unsupported => "EngineUnsupported",
        ExportFailure::NamedTwice => "EngineNamedTwice",
        ExportFailure::Refused => "WritesRefused",
        ExportFailure::Internal => "InternalError",
    }
}

fn cut(message: &str) -> String {
    let mut kept: String = message.chars().take(MAX_MESSAGE).collect();
    if kept.len() < message.len() {
        kept.push('…');
    }
    kept
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
            connected,
            engine: "OpenSearch 2.19.6".to_owned(),
            position: 10,
            latest: 10 + lag,
            dead_letters: std::iter::repeat_with(letter).take(dead).collect(),
            ..ExportProgress::default()
        }))
    }

    fn waiting(trouble: ExportFailure) -> ExportState {
        ExportState::Waiting { trouble, reason: "why".to_owned() }
    }

    fn shown(conditions: &[Condition]) -> Vec<String> {
        let show = |condition: &Condition| {
            format!("{}={} {}: {}", condition.type_, condition.status, condition.reason, condition.message)
        };
        conditions.iter().map(show).collect()
    }

    #[rstest]
    #[case::new(exporting(ExportState::Connecting, false, 0, 0),
        ["Connected=False Connecting: the engine has not responded yet", "Synced=False Connecting: the engine has not responded yet"])]
    #[case::comparing(exporting(ExportState::Comparing { index: "kubernetes-pod".to_owned() }, true, 0, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6",
         "Synced=False Comparing: comparing the documents of kubernetes-pod with the cache"])]
    #[case::equal(exporting(ExportState::Following, true, 1_000, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6", "Synced=True UpToDate: the engine contains the selected objects"])]
    #[case::behind(exporting(ExportState::Following, true, 54_321, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6",
         "Synced=False Lagging: more than 10000 changes are not written yet"])]
    #[case::refused(exporting(ExportState::Following, true, 0, 2),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6",
         "Synced=False DocumentsRefused: the engine rejected 2 documents, for example u: 400 parsing"])]
    #[case::away(exporting(waiting(ExportFailure::Unreachable), false, 0, 0),
        ["Connected=False EngineUnreachable: why", "Synced=False EngineUnreachable: why"])]
    #[case::full(exporting(waiting(ExportFailure::Refused), true, 0, 0),
        ["Connected=True EngineAnswers: the engine is OpenSearch 2.19.6", "Synced=False WritesRefused: why"])]
    #[case::no_secret(ExportStatus::Unusable { reason: "SecretUnreadable", message: "no such Secret".to_owned() },
        ["Connected=False SecretUnreadable: no such Secret", "Synced=False SecretUnreadable: no such Secret"])]
    fn conditions_have_reasons(#[case] standing: ExportStatus, #[case] expected: [&str; 2]) {
        let found = conditions(&[], Some(&standing), Some(3), &time(5)).unwrap();
        assert_eq!(shown(&found), expected);
        assert!(found.iter().all(|condition| condition.observed_generation == Some(3)));
        assert_eq!(
            conditions(&found, Some(&standing), Some(3), &time(9)),
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
