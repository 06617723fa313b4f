//! Checks the GraphSinks of the control plane by their conditions.

use crowsnest_api::sink::GROUP;
use http::Request;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Finding;

/// Age of `status.lastCheckedAt` above which no process is assumed to run the sink. The controller writes it every 30
/// seconds.
const MAX_STATUS_AGE: SignedDuration = SignedDuration::from_mins(2);

/// Returns one finding for each GraphSink; none if GraphSinks are not served or this user cannot list them.
pub(super) async fn check_graph_sinks(client: &kube::Client) -> anyhow::Result<Vec<Finding>> {
    let request = Request::get(format!("/apis/{GROUP}/v1alpha1/graphsinks")).body(Vec::new())?;
    match client.request::<Value>(request).await {
        Ok(list) => {
            let now = Timestamp::now();
            Ok(list["items"].as_array().into_iter().flatten().map(|sink| check_sink(sink, now)).collect())
        }
        // A missing CustomResourceDefinition and missing permissions are reported by other checks.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(Vec::new()),
        Err(error) => {
            let fix = "see the log of the control plane";
            Ok(vec![Finding::warning("graph sinks", format!("cannot list GraphSinks: {error}"), fix)])
        }
    }
}

fn check_sink(sink: &Value, now: Timestamp) -> Finding {
    let text = |pointer: &str| sink.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let subject = format!("GraphSink {}/{}", text("/metadata/namespace"), text("/metadata/name"));
    let conditions = || sink.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let condition = |kind: &str| conditions().find(|condition| condition["type"] == kind);
    let is_true = |kind: &str| condition(kind).is_some_and(|condition| condition["status"] == "True");
    let message = |kind: &str| condition(kind).and_then(|condition| condition["message"].as_str()).unwrap_or_default();
    let start_fix = "check that a `crowsnest serve` with the role controllers runs";
    if condition("Connected").is_none() {
        return Finding::warning(subject, "no process runs this sink", start_fix);
    }
    let last_checked_at = text("/status/lastCheckedAt");
    // Conditions remain when their process ends.
    match last_checked_at.parse::<Timestamp>() {
        Ok(time) if now.duration_since(time) <= MAX_STATUS_AGE => {}
        Ok(_) => {
            let observation = format!("no process has checked this sink since {last_checked_at}");
            return Finding::warning(subject, observation, start_fix);
        }
        Err(_) => return Finding::warning(subject, "the age of its status is unknown", start_fix),
    }
    let fix = "follow the message; see docs/GRAPH.md, Problems";
    let lag = sink.pointer("/status/lag").and_then(Value::as_u64).unwrap_or_default();
    match (is_true("Connected"), is_true("Synced")) {
        (true, true) => Finding::good(subject, format!("up to date, {lag} changes behind")),
        (true, false) => Finding::warning(subject, message("Synced"), fix),
        (false, _) => Finding::broken(subject, message("Connected"), fix),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    /// Time of the checks, and of the status unless a test sets another.
    const NOW: &str = "2026-01-02T03:04:05Z";

    fn sink(status: Value) -> Value {
        json!({"metadata": {"namespace": "team", "name": "graph"}, "status": status})
    }

    fn assert_finding(sink: &Value, severity: Severity, observation: &str) {
        let finding = check_sink(sink, NOW.parse().unwrap());
        assert_eq!(
            (finding.subject.as_str(), finding.severity, finding.observation.as_str()),
            ("GraphSink team/graph", severity, observation)
        );
    }

    #[rstest]
    #[case::up_to_date(json!([{"type": "Connected", "status": "True"}, {"type": "Synced", "status": "True"}]),
        Severity::Good, "up to date, 3 changes behind")]
    #[case::loading(json!([{"type": "Connected", "status": "True"}, {"type": "Synced", "status": "False", "message": "loading"}]),
        Severity::Warning, "loading")]
    #[case::unreachable(json!([{"type": "Connected", "status": "False", "message": "refused"},
        {"type": "Synced", "status": "False", "message": "refused"}]), Severity::Broken, "refused")]
    #[case::not_started(json!(null), Severity::Warning, "no process runs this sink")]
    fn sinks_are_checked_by_their_conditions(
        #[case] conditions: Value,
        #[case] severity: Severity,
        #[case] observation: &str,
    ) {
        let status = json!({"lag": 3, "lastCheckedAt": NOW, "conditions": conditions});
        assert_finding(&sink(status), severity, observation);
    }

    #[rstest]
    #[case::recent(json!("2026-01-02T03:02:05Z"), Severity::Good, "up to date, 0 changes behind")]
    #[case::by_a_clock_ahead(json!("2026-01-02T03:05:05Z"), Severity::Good, "up to date, 0 changes behind")]
    #[case::old(json!("2026-01-02T03:02:04Z"), Severity::Warning,
        "no process has checked this sink since 2026-01-02T03:02:04Z")]
    #[case::missing(json!(null), Severity::Warning, "the age of its status is unknown")]
    fn old_conditions_are_not_trusted(
        #[case] last_checked_at: Value,
        #[case] severity: Severity,
        #[case] observation: &str,
    ) {
        let conditions = json!([{"type": "Connected", "status": "True"}, {"type": "Synced", "status": "True"}]);
        let status = json!({"lastCheckedAt": last_checked_at, "conditions": conditions});
        assert_finding(&sink(status), severity, observation);
    }
}
