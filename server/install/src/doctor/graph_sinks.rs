//! Checks the GraphSinks of the control plane by their conditions.

use http::Request;
use serde_json::Value;

use super::Finding;

/// Returns one finding for each GraphSink; none if GraphSinks are not served or must not be listed.
pub(super) async fn check_graph_sinks(client: &kube::Client) -> anyhow::Result<Vec<Finding>> {
    let request = Request::get("/apis/sink.crowsnest.io/v1alpha1/graphsinks").body(Vec::new())?;
    match client.request::<Value>(request).await {
        Ok(list) => Ok(list["items"].as_array().into_iter().flatten().map(check_sink).collect()),
        // A missing CustomResourceDefinition and missing rights are reported by other checks.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(Vec::new()),
        Err(error) => {
            let fix = "see the log of the control plane";
            Ok(vec![Finding::warning("graph sinks", format!("cannot list GraphSinks: {error}"), fix)])
        }
    }
}

fn check_sink(sink: &Value) -> Finding {
    let text = |pointer: &str| sink.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let subject = format!("GraphSink {}/{}", text("/metadata/namespace"), text("/metadata/name"));
    let conditions = || sink.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let condition = |kind: &str| conditions().find(|condition| condition["type"] == kind);
    let is_true = |kind: &str| condition(kind).is_some_and(|condition| condition["status"] == "True");
    let message = |kind: &str| condition(kind).and_then(|condition| condition["message"].as_str()).unwrap_or_default();
    let fix = "follow the message; see docs/GRAPH.md, Problems";
    if condition("Connected").is_none() {
        let fix = "check that a `crowsnest serve` with the role controllers runs";
        return Finding::warning(subject, "no process runs this sink", fix);
    }
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
        let sink =
            json!({"metadata": {"namespace": "team", "name": "graph"}, "status": {"lag": 3, "conditions": conditions}});
        let finding = check_sink(&sink);
        assert_eq!(
            (finding.subject.as_str(), finding.severity, finding.observation.as_str()),
            ("GraphSink team/graph", severity, observation)
        );
    }
}
