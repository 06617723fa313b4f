//! Status of a GraphSink, computed from the progress of its sink. Has no side effects.

use crowsnest_api::sink::{GraphSink, GraphSinkStatus};
use crowsnest_graph::{SinkProgress, SinkState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::search::conditions::{ConditionState, DestinationState, replace_conditions, truncate};

/// State of a sink, from which its status is computed.
pub(super) type SinkStatus = DestinationState<SinkProgress>;

/// The new status, or `None` if there is nothing to write. Without a change of the conditions, the status is written
/// only if `is_heartbeat` is true.
pub(super) fn next_status(
    sink: &GraphSink,
    sink_status: &SinkStatus,
    is_heartbeat: bool,
    now: &Time,
) -> Option<GraphSinkStatus> {
    let (before, generation) = (&sink.status, sink.metadata.generation);
    let states = sink_status.conditions(connected_state, synced_state);
    let conditions = replace_conditions(&before.conditions, states, generation, now);
    let is_significant = conditions.is_some() || before.observed_generation != generation.unwrap_or_default();
    let conditions = conditions.unwrap_or_else(|| before.conditions.clone());
    let observed_generation = generation.unwrap_or_default();
    let last_checked_at = Some(now.clone());
    let status = match sink_status {
        SinkStatus::Unusable { message, .. } => GraphSinkStatus {
            observed_generation,
            conditions,
            last_checked_at,
            last_error: truncate(message),
            ..before.clone()
        },
        SinkStatus::Running(progress) => GraphSinkStatus {
            observed_generation,
            conditions,
            last_checked_at,
            lag: saturating_i64(progress.lag()),
            nodes_written: saturating_i64(progress.counters.nodes_written),
            nodes_removed: saturating_i64(progress.counters.nodes_removed + progress.counters.nodes_swept),
            objects_skipped: saturating_i64(progress.counters.objects_skipped),
            undecided_clusters: progress.undecided_clusters.clone(),
            last_error: match &progress.state {
                SinkState::Waiting { message, .. } => truncate(message),
                // The last error is kept until the sink writes again.
                SinkState::Following => String::new(),
                SinkState::Connecting | SinkState::Loading => before.last_error.clone(),
            },
        },
    };
    let has_changed = status != *before;
    (has_changed && (is_significant || is_heartbeat)).then_some(status)
}

/// The merge patch that writes a status. Fields that the status omits are deleted.
pub(super) fn status_patch(status: &GraphSinkStatus) -> Value {
    let mut fields = json!({"observedGeneration": null, "conditions": null, "lastCheckedAt": null, "nodesWritten": null,
        "nodesRemoved": null, "objectsSkipped": null, "undecidedClusters": null, "lastError": null});
    if let (Value::Object(present), Value::Object(all)) = (json!(status), &mut fields) {
        all.extend(present);
    }
    json!({"status": fields})
}

fn connected_state(progress: &SinkProgress) -> ConditionState {
    match &progress.state {
        SinkState::Waiting { failure, message } if !progress.is_connected => {
            ConditionState::unmet(failure.reason(), message)
        }
        _ if progress.is_connected => ConditionState::met("DatabaseAnswers", "the database responds"),
        _ => ConditionState::unmet("Connecting", "the database has not responded yet"),
    }
}

fn synced_state(progress: &SinkProgress) -> ConditionState {
    match &progress.state {
        SinkState::Connecting => ConditionState::unmet("Connecting", "the database has not responded yet"),
        SinkState::Loading => ConditionState::unmet("Loading", "all objects are being written"),
        SinkState::Waiting { failure, message } => ConditionState::unmet(failure.reason(), message),
        SinkState::Following => ConditionState::lagging(progress.lag()).unwrap_or_else(|| written_state(progress)),
    }
}

/// State of the condition `Synced` when all changes are written: some objects may not be in the graph.
fn written_state(progress: &SinkProgress) -> ConditionState {
    if !progress.undecided_clusters.is_empty() {
        let clusters = progress.undecided_clusters.join(", ");
        return ConditionState::unmet(
            "PermissionsUnknown",
            &format!("the permissions of the ServiceAccount in {clusters} are unknown: their nodes stay as they are"),
        );
    }
    // The graph lacks them, so it is not synchronized, like an engine that rejected documents.
    if progress.counters.objects_skipped > 0 {
        return ConditionState::unmet(
            "ObjectsSkipped",
            "objects that cannot be read from the cache were skipped since the sink started; \
             the log of Crowsnest has the errors, and status.objectsSkipped their number",
        );
    }
    ConditionState::met("UpToDate", "the graph has the selected objects")
}

fn saturating_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_graph::{SinkCounters, SinkFailure};
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    fn now() -> Time {
        Time(Timestamp::from_second(5).unwrap())
    }

    fn running(state: SinkState, is_connected: bool, lag: u64, undecided_clusters: &[&str]) -> SinkStatus {
        SinkStatus::Running(Box::new(SinkProgress {
            state,
            is_connected,
            position: 10,
            latest: 10 + lag,
            counters: SinkCounters { nodes_written: 7, ..SinkCounters::default() },
            undecided_clusters: undecided_clusters.iter().map(|name| (*name).to_owned()).collect(),
            ..SinkProgress::default()
        }))
    }

    fn skipping(objects_skipped: u64) -> SinkStatus {
        SinkStatus::Running(Box::new(SinkProgress {
            state: SinkState::Following,
            is_connected: true,
            counters: SinkCounters { objects_skipped, ..SinkCounters::default() },
            ..SinkProgress::default()
        }))
    }

    fn unreachable() -> SinkState {
        SinkState::Waiting { failure: SinkFailure::Unreachable, message: "refused; check it".to_owned() }
    }

    #[rstest]
    #[case::new(running(SinkState::Connecting, false, 0, &[]), ["Connected=False Connecting", "Synced=False Connecting"], "")]
    #[case::loading(running(SinkState::Loading, true, 9, &[]), ["Connected=True DatabaseAnswers", "Synced=False Loading"], "")]
    #[case::up_to_date(running(SinkState::Following, true, 1_000, &[]), ["Connected=True DatabaseAnswers", "Synced=True UpToDate"], "")]
    #[case::lagging(running(SinkState::Following, true, 54_321, &[]), ["Connected=True DatabaseAnswers", "Synced=False Lagging"], "")]
    #[case::undecided(running(SinkState::Following, true, 0, &["m1"]),
        ["Connected=True DatabaseAnswers", "Synced=False PermissionsUnknown"], "")]
    #[case::skipping(skipping(2), ["Connected=True DatabaseAnswers", "Synced=False ObjectsSkipped"], "")]
    #[case::unreachable(running(unreachable(), false, 0, &[]), ["Connected=False Unreachable", "Synced=False Unreachable"], "refused; check it")]
    #[case::unusable(SinkStatus::Unusable { reason: "InvalidQuery", message: "why".to_owned() },
        ["Connected=False InvalidQuery", "Synced=False InvalidQuery"], "why")]
    fn conditions_and_last_error_show_the_state_of_the_sink(
        #[case] sink_status: SinkStatus,
        #[case] expected: [&str; 2],
        #[case] last_error: &str,
    ) {
        let mut sink = GraphSink::default();
        sink.metadata.generation = Some(3);
        let status = next_status(&sink, &sink_status, false, &now()).unwrap();
        let reported = status
            .conditions
            .iter()
            .map(|condition| format!("{}={} {}", condition.type_, condition.status, condition.reason));
        assert_eq!(reported.collect::<Vec<_>>(), expected);
        assert_eq!((status.observed_generation, status.last_error.as_str()), (3, last_error));
        sink.status = status;
        assert_eq!(next_status(&sink, &sink_status, true, &now()), None, "unchanged statuses are not written");
    }

    #[test]
    fn changes_of_counters_alone_are_written_with_the_heartbeat() {
        let mut sink = GraphSink::default();
        sink.status = next_status(&sink, &running(SinkState::Following, true, 0, &[]), false, &now()).unwrap();
        let later = running(SinkState::Following, true, 5, &[]);
        assert_eq!(next_status(&sink, &later, false, &now()), None);
        assert_eq!(next_status(&sink, &later, true, &now()).map(|status| status.lag), Some(5));
    }

    #[rstest]
    #[case::running(running(SinkState::Following, true, 0, &[]))]
    #[case::unusable(SinkStatus::Unusable { reason: "InvalidQuery", message: "why".to_owned() })]
    fn the_heartbeat_is_written_without_other_changes(#[case] sink_status: SinkStatus) {
        let mut sink = GraphSink::default();
        sink.status = next_status(&sink, &sink_status, false, &now()).unwrap();
        assert_eq!(sink.status.last_checked_at, Some(now()));
        let later = Time(Timestamp::from_second(35).unwrap());
        assert_eq!(next_status(&sink, &sink_status, false, &later), None);
        let heartbeat = next_status(&sink, &sink_status, true, &later).unwrap();
        assert_eq!(heartbeat, GraphSinkStatus { last_checked_at: Some(later), ..sink.status });
    }

    #[test]
    fn the_number_of_skipped_objects_is_in_the_status() {
        let status = next_status(&GraphSink::default(), &skipping(2), false, &now()).unwrap();
        assert_eq!(status.objects_skipped, 2);
    }

    #[test]
    fn a_patch_deletes_fields_that_the_status_omits() {
        let patch = status_patch(&GraphSinkStatus { lag: 2, ..GraphSinkStatus::default() });
        assert_eq!(patch["status"]["lastError"], Value::Null);
        assert!(patch["status"].as_object().is_some_and(|status| status.contains_key("lastError")));
        assert_eq!(patch["status"]["lag"], 2);
    }
}
