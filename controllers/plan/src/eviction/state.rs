//! State preservation on failover: values of the evicted copy's status become labels of the next copy.

use std::collections::BTreeMap;

use crowsnest_api::policy::StatePreservation;
use crowsnest_api::work::ResourceBindingStatus;
use crowsnest_apimachinery::jsonpath::{Template, TemplateError};
use serde_json::Value;

/// Reason why a value cannot be preserved. The eviction waits until all values can be preserved.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the application status has not yet been collected from Cluster({0})")]
    NotCollected(String),
    #[error("failed to parse jsonpath {path} for the status of Cluster({cluster}): {source}")]
    Path {
        path: String,
        cluster: String,
        #[source]
        source: TemplateError,
    },
    #[error("failed to execute jsonpath {path} on the status of Cluster({cluster}): no value is found")]
    Missing { path: String, cluster: String },
}

/// Labels for the next copy: the value of each rule in the status that the evicted cluster reported.
pub fn preserved_labels(
    rules: &StatePreservation,
    status: &ResourceBindingStatus,
    cluster: &str,
) -> Result<BTreeMap<String, String>, StateError> {
    let item = status.aggregated_status.iter().find(|item| item.cluster_name == cluster);
    let reported_status = item.and_then(|item| item.status.as_ref());
    let reported_status = reported_status.ok_or_else(|| StateError::NotCollected(cluster.to_owned()))?;
    let labels = rules.rules.iter().map(|rule| {
        Ok((rule.alias_label_name.clone(), evaluate_template(&rule.json_path, &reported_status.0, cluster)?))
    });
    labels.collect()
}

/// Evaluates a client-go JSONPath template on the status that a cluster reported. A path without a value is an error.
fn evaluate_template(template: &str, status: &Value, cluster: &str) -> Result<String, StateError> {
    let (path, cluster) = (|| template.to_owned(), || cluster.to_owned());
    let parsed =
        Template::parse(template).map_err(|source| StateError::Path { path: path(), cluster: cluster(), source })?;
    parsed.render_required(status).ok_or_else(|| StateError::Missing { path: path(), cluster: cluster() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::number("{ .replicas }", Ok("3"))]
    #[case::text("{.phase}", Ok("Running"))]
    #[case::path_within_text("job-{.id}-{.phase}", Ok("job-a1-Running"))]
    #[case::several_values("{.nodes[*].name}", Ok("n1 n2"))]
    #[case::quoted_text(r#"{.id}{"-"}{.phase}"#, Ok("a1-Running"))]
    #[case::range("{range .nodes[*]}{.name}{end}", Ok("n1n2"))]
    #[case::brace_in_filter(
        r#"{.nodes[?(@.name=="n}")].name}{.id}"#,
        Err(r#"failed to execute jsonpath {.nodes[?(@.name=="n}")].name}{.id} on the status of Cluster(m1): no value is found"#)
    )]
    #[case::object("{.nodes[0]}", Ok(r#"{"name":"n1"}"#))]
    #[case::missing(
        "{.none}",
        Err("failed to execute jsonpath {.none} on the status of Cluster(m1): no value is found")
    )]
    #[case::unclosed("{.phase", Err("failed to parse jsonpath {.phase for the status of Cluster(m1): unclosed action"))]
    fn templates_are_evaluated_like_client_go(#[case] template: &str, #[case] expected: Result<&str, &str>) {
        let status = json!({"replicas": 3, "phase": "Running", "id": "a1", "nodes": [{"name": "n1"}, {"name": "n2"}]});
        let result = evaluate_template(template, &status, "m1").map_err(|error| error.to_string());
        assert_eq!(result.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn missing_status_is_an_error() {
        let rules = StatePreservation { rules: Vec::new() };
        let error = preserved_labels(&rules, &ResourceBindingStatus::default(), "m1").expect_err("no status");
        assert_eq!(error.to_string(), "the application status has not yet been collected from Cluster(m1)");
    }
}
