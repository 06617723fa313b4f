//! Aggregated status of Jobs.
//!
//! The API server must accept the result (kubernetes/kubernetes pkg/apis/batch/validation, KEP-3329, KEP-3998): a
//! finished Job has no active pods and has a start time; `Failed` requires `FailureTarget`; `Complete` requires
//! `SuccessCriteriaMet` and a completion time; counters and terminal conditions are never reverted.

use crowsnest_apimachinery::unstructured;
use serde_json::{Map, Value, json};

use super::status::{MemberStatus, copy_fields, count, times};

/// Condition of a Job that will be complete when its pods have ended.
const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";

/// Progress of the Job across members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// The Job has failed in a member, and has not finished in all of them.
    Failing,
    Failed,
    Complete,
}

/// First minor version of Kubernetes that accepts `SuccessCriteriaMet` on Jobs without a success policy. From 1.32 on, it
/// is required on complete Jobs.
const SUCCESS_CRITERIA_MINOR_VERSION: u32 = 31;

/// True if not all supported API servers accept this status: kube-apiserver 1.30 refuses `SuccessCriteriaMet` on a Job
/// without a success policy.
pub fn depends_on_server_version(template: &Value, status: &Value) -> bool {
    unstructured::api_version(template) == "batch/v1"
        && unstructured::kind(template) == "Job"
        && unstructured::at(template, &["spec", "successPolicy"]).is_none_or(Value::is_null)
        && condition(status, SUCCESS_CRITERIA_MET).is_some()
}

/// Removes the conditions that an API server with this minor version refuses. A server whose version cannot be parsed is
/// assumed to be current.
pub fn adapt_to_server(status: &mut Value, minor_version: &str) {
    let digits = minor_version.trim_end_matches(|character: char| !character.is_ascii_digit());
    if digits.parse().is_ok_and(|minor: u32| minor < SUCCESS_CRITERIA_MINOR_VERSION)
        && let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut)
    {
        conditions.retain(|condition| unstructured::text(condition, &["type"]) != SUCCESS_CRITERIA_MET);
    }
}

/// Aggregates counters and times of all members. The Job finishes when it has finished in every member: `Failed` if
/// it failed in any, otherwise `Complete`. `now` is the time of new conditions, and replaces times that members do
/// not report.
pub fn aggregate(template: &Value, members: &[MemberStatus<'_>], now: &str) -> Value {
    let current = template.get("status").cloned().unwrap_or_else(|| json!({}));
    if is_finished(&current) {
        return current;
    }
    let reported: Vec<&Value> = members.iter().filter_map(|member| member.status).collect();
    let is_finished_everywhere =
        !members.is_empty() && reported.len() == members.len() && reported.iter().all(|status| is_finished(status));
    let failed_clusters =
        members.iter().filter(|member| member.status.is_some_and(has_failed)).map(|member| member.cluster);
    let failed_clusters: Vec<&str> = failed_clusters.collect();
    let progress = match (is_finished_everywhere, !failed_clusters.is_empty() || has_failed(&current)) {
        (false, false) => Progress::Running,
        (false, true) => Progress::Failing,
        (true, true) => Progress::Failed,
        (true, false) => Progress::Complete,
    };
    let mut status = copy_fields(&current, &["startTime"]);
    for (field, value) in counters(template, &current, &reported, progress) {
        if value != 0 {
            status.insert(field.to_owned(), json!(value));
        }
    }
    let conditions = conditions(&current, &failed_clusters, progress, now);
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), Value::Array(conditions));
    }
    set_times(&mut status, members.len(), &reported, progress, now);
    Value::Object(status)
}

/// True if a Job is `Complete` or `Failed`.
fn is_finished(status: &Value) -> bool {
    condition(status, "Complete").or(condition(status, "Failed")).is_some()
}

/// True if a Job is `Failed` or has `FailureTarget`.
fn has_failed(status: &Value) -> bool {
    condition(status, "Failed").or(condition(status, "FailureTarget")).is_some()
}

/// The condition of this type, if it is true.
fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status.get("conditions").and_then(Value::as_array).into_iter().flatten().find(|condition| {
        unstructured::text(condition, &["type"]) == kind && unstructured::text(condition, &["status"]) == "True"
    })
}

fn counters(template: &Value, old: &Value, reported: &[&Value], progress: Progress) -> [(&'static str, i64); 3] {
    let sum = |field: &str| reported.iter().map(|status| count(status, field)).sum::<i64>();
    // Pods of a removed member are no longer counted, but counters must not decrease, except for an elastic
    // indexed Job that is scaled down.
    let not_decreasing = |field: &str| sum(field).max(count(old, field));
    let spec = template.get("spec").unwrap_or(&Value::Null);
    let is_elastic = unstructured::text(spec, &["completionMode"]) == "Indexed"
        && spec.get("completions") == spec.get("parallelism");
    [
        ("active", if matches!(progress, Progress::Running | Progress::Failing) { sum("active") } else { 0 }),
        ("succeeded", if is_elastic { sum("succeeded") } else { not_decreasing("succeeded") }),
        ("failed", not_decreasing("failed")),
    ]
}

fn conditions(old: &Value, failed: &[&str], progress: Progress, now: &str) -> Vec<Value> {
    // A condition that is already true keeps its times.
    let set = |kind: &str, reason: &str, message: &str| {
        condition(old, kind).cloned().unwrap_or_else(|| {
            json!({"type": kind, "status": "True", "reason": reason, "message": message,
                   "lastProbeTime": now, "lastTransitionTime": now})
        })
    };
    let failure = format!("Job executed failed in member clusters {}", failed.join(","));
    match progress {
        Progress::Running => Vec::new(),
        Progress::Failing => vec![set("FailureTarget", "JobFailed", &failure)],
        Progress::Failed => ["FailureTarget", "Failed"].map(|kind| set(kind, "JobFailed", &failure)).to_vec(),
        Progress::Complete => vec![
            set("Complete", "Completed", "Job completed"),
            set(SUCCESS_CRITERIA_MET, "CompletionsReached", "All member clusters have met success criteria"),
        ],
    }
}

/// Sets the first start and the last completion. The start time is set once all members have one or the Job has
/// finished, and never changes.
fn set_times(status: &mut Map<String, Value>, members: usize, reported: &[&Value], progress: Progress, now: &str) {
    let ended = matches!(progress, Progress::Failed | Progress::Complete);
    let starts = times(reported, "startTime");
    if !status.contains_key("startTime") && (ended || members > 0 && starts.len() == members) {
        let first = starts.into_iter().min().unwrap_or(now);
        status.insert("startTime".to_owned(), json!(first));
    }
    if progress == Progress::Complete {
        let last = times(reported, "completionTime").into_iter().max().unwrap_or(now);
        let start = status.get("startTime").and_then(Value::as_str).unwrap_or_default();
        // Clocks of members differ.
        let last = last.max(start);
        status.insert("completionTime".to_owned(), json!(last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::without_the_condition("27", &["Complete"])]
    #[case::refuses_it("30", &["Complete"])]
    #[case::accepts_it("31", &["Complete", "SuccessCriteriaMet"])]
    #[case::requires_it("36+", &["Complete", "SuccessCriteriaMet"])]
    #[case::of_a_provider("30+", &["Complete"])]
    #[case::unknown("", &["Complete", "SuccessCriteriaMet"])]
    fn complete_jobs_are_accepted_by_old_and_new_servers(#[case] minor: &str, #[case] expected: &[&str]) {
        let template = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {}});
        let member = json!({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]});
        let members = [MemberStatus { cluster: "m1", status: Some(&member) }];
        let mut status = aggregate(&template, &members, "2026-01-01T00:00:00Z");
        assert!(depends_on_server_version(&template, &status));
        adapt_to_server(&mut status, minor);
        let conditions = status["conditions"].as_array().expect("conditions");
        let kinds: Vec<&str> = conditions.iter().map(|condition| unstructured::text(condition, &["type"])).collect();
        assert_eq!(kinds, expected);
        // The Job is finished, so that the next aggregation changes nothing.
        let stored = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {}, "status": status});
        assert_eq!(aggregate(&stored, &members, "2026-01-02T00:00:00Z"), stored["status"]);
    }

    #[rstest]
    #[case::success_policy(json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"successPolicy": {"rules": []}}}), "SuccessCriteriaMet")]
    #[case::failed(json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {}}), "FailureTarget")]
    #[case::other_kind(json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}), "SuccessCriteriaMet")]
    fn other_statuses_are_the_same_for_all_servers(#[case] template: Value, #[case] kind: &str) {
        let status = json!({"conditions": [{"type": kind, "status": "True"}]});
        assert!(!depends_on_server_version(&template, &status));
    }
}
