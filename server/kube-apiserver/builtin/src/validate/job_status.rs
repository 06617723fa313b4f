//! Validation of job status updates: finished jobs stay finished and have consistent times, reasons and indexes.
//! Only changed fields are validated, so that an invalid status can be corrected step by step. Has no side effects.

use super::job_indexes::{count_indexes, find_overlap};
use super::{Errors, FieldError, FieldErrorKind, Value, are_equal, at, flag, is_set, items, json, number, text};

/// Conditions that cannot change back from `True`.
const TERMINAL: [&str; 3] = ["Failed", "Complete", "FailureTarget"];

/// Accessors for the status of a job.
struct JobStatus<'a> {
    job: &'a Value,
}

impl JobStatus<'_> {
    fn has_condition(&self, condition: &str) -> bool {
        self.condition_status(condition) == "True"
    }

    fn condition_status(&self, kind: &str) -> &str {
        let conditions = items(self.job, "status.conditions").iter();
        let mut found = conditions.filter(|condition| text(condition, "type") == kind).map(|one| text(one, "status"));
        found.next_back().unwrap_or_default()
    }

    fn is_finished(&self) -> bool {
        self.has_condition("Complete") || self.has_condition("Failed")
    }

    fn field(&self, field: &str) -> &Value {
        at(self.job, &format!("status.{field}"))
    }

    fn counter(&self, field: &str) -> i64 {
        self.field(field).as_i64().unwrap_or(0)
    }
}

pub(super) fn validate_update(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (JobStatus { job: old }, JobStatus { job: new });
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        e.non_negative(format!("status.{field}"), after.field(field));
    }
    validate_uncounted_pods(e, new);
    validate_terminal_conditions(e, &before, &after);
    validate_times_and_pods(e, &before, &after);
    validate_indexes(e, &before, &after);
    let changed = |field: &str| !are_equal(before.field(field), after.field(field));
    let finishes = before.is_finished() != after.is_finished();
    if (finishes || changed("terminating")) && after.is_finished() && after.counter("terminating") > 0 {
        e.invalid("status.terminating", after.field("terminating"), "terminating>0 is invalid for finished job");
    }
    if (changed("ready") || changed("active"))
        && is_set(new, "status.ready")
        && after.counter("ready") > after.counter("active")
    {
        e.invalid("status.ready", after.field("ready"), "cannot set more ready pods than active");
    }
    validate_success_conditions(e, &after);
    validate_irreversible_fields(e, &before, &after);
}

/// Adds an error for the conditions as a whole.
fn push_conditions_error(e: &mut Errors, reason: &str) {
    e.push(FieldError::new(FieldErrorKind::Invalid, "status.conditions", None, reason));
}

fn validate_uncounted_pods(e: &mut Errors, new: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    for list in ["succeeded", "failed"] {
        let path = format!("status.uncountedTerminatedPods.{list}");
        for (index, uid) in items(new, &path).iter().enumerate() {
            let (field, uid) = (format!("{path}[{index}]"), uid.as_str().unwrap_or_default());
            if uid.is_empty() {
                e.invalid(field, &json!(uid), "must not be empty");
            } else if seen.contains(&uid) {
                e.duplicate(field, &json!(uid));
            } else {
                seen.push(uid);
            }
        }
    }
}

/// Validates conditions that exclude or require each other, and the completion time.
fn validate_terminal_conditions(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    let condition_changed = |condition: &str| before.has_condition(condition) != after.has_condition(condition);
    let field_changed = |field: &str| !are_equal(before.field(field), after.field(field));
    let complete = after.has_condition("Complete");
    if (condition_changed("Complete") || condition_changed("Failed")) && complete && after.has_condition("Failed") {
        push_conditions_error(e, "cannot set Complete=True and Failed=true conditions");
    }
    if (condition_changed("Complete") || condition_changed("FailureTarget"))
        && complete
        && after.has_condition("FailureTarget")
    {
        push_conditions_error(e, "cannot set Complete=True and FailureTarget=true conditions");
    }
    let completion = after.field("completionTime");
    if condition_changed("Complete") || field_changed("completionTime") {
        if !completion.is_null() && !complete {
            let reason = "cannot set completionTime when there is no Complete=True condition";
            e.invalid("status.completionTime", completion, reason);
        }
        if completion.is_null() && complete {
            e.required("status.completionTime", "completionTime is required for Complete jobs");
        }
    }
    let (start, end) = (text(after.job, "status.startTime"), text(after.job, "status.completionTime"));
    if (field_changed("startTime") || field_changed("completionTime"))
        && !start.is_empty()
        && !end.is_empty()
        && end < start
    {
        e.invalid("status.completionTime", completion, "must be equal to or after `startTime`");
    }
    if (condition_changed("Failed") || field_changed("failedIndexes"))
        && after.has_condition("Failed")
        && !after.has_condition("FailureTarget")
    {
        push_conditions_error(e, "cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (condition_changed("Complete") || condition_changed("SuccessCriteriaMet"))
        && complete
        && !after.has_condition("SuccessCriteriaMet")
    {
        push_conditions_error(e, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
}

/// Validates times and pod counters of a finished job.
fn validate_times_and_pods(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    let field_changed = |field: &str| !are_equal(before.field(field), after.field(field));
    let finishes = before.is_finished() != after.is_finished();
    if !after.is_finished() {
        return;
    }
    if (finishes || field_changed("active")) && after.counter("active") > 0 {
        e.invalid("status.active", after.field("active"), "active>0 is invalid for finished job");
    }
    let never_started = flag(after.job, "spec.suspend") && number(after.job, "spec.completions") == Some(0);
    if (finishes || field_changed("startTime")) && !never_started && after.field("startTime").is_null() {
        e.required("status.startTime", "startTime is required for finished job");
    }
    let has_uncounted = ["succeeded", "failed"]
        .iter()
        .any(|list| !items(after.job, &format!("status.uncountedTerminatedPods.{list}")).is_empty());
    if (finishes || field_changed("uncountedTerminatedPods")) && has_uncounted {
        let uncounted = after.field("uncountedTerminatedPods");
        e.invalid("status.uncountedTerminatedPods", uncounted, "must be empty for finished job");
    }
}

fn validate_indexes(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    let field_changed = |field: &str| !are_equal(before.field(field), after.field(field));
    let (completed, failed) = (text(after.job, "status.completedIndexes"), after.field("failedIndexes"));
    let completions = number(after.job, "spec.completions");
    let per_index = is_set(after.job, "spec.backoffLimitPerIndex");
    let check = |e: &mut Errors, field: &str, indexes: &str, completions: i64| {
        if let Err(reason) = count_indexes(indexes, completions) {
            e.invalid(format!("status.{field}"), &json!(indexes), format!("error parsing {field}: {reason}"));
        }
    };
    if let Some(completions) = completions.filter(|_| field_changed("completedIndexes")) {
        check(e, "completedIndexes", completed, completions);
    }
    if let (Some(completions), Some(failed)) =
        (completions.filter(|_| per_index && field_changed("failedIndexes")), failed.as_str())
    {
        check(e, "failedIndexes", failed, completions);
    }
    if field_changed("completedIndexes") && !completed.is_empty() && text(after.job, "spec.completionMode") != "Indexed"
    {
        let reason = "cannot set non-empty completedIndexes when non-indexed completion mode";
        e.invalid("status.completedIndexes", &json!(completed), reason);
    }
    if field_changed("failedIndexes") && !per_index && !failed.is_null() {
        e.invalid(
            "status.failedIndexes",
            failed,
            "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
        );
    }
    if (field_changed("failedIndexes") || field_changed("completedIndexes"))
        && let (Some(completions), Some(indexes)) = (completions, failed.as_str())
        && let Some(index) = find_overlap(completed, indexes, completions)
    {
        let reason = format!("failedIndexes and completedIndexes overlap at index: {index}");
        e.invalid("status.failedIndexes", failed, reason);
    }
}

fn validate_success_conditions(e: &mut Errors, after: &JobStatus<'_>) {
    if after.has_condition("SuccessCriteriaMet") {
        for other in ["Failed", "FailureTarget"] {
            if after.has_condition(other) {
                push_conditions_error(e, &format!("cannot set SuccessCriteriaMet=True and {other}=true conditions"));
            }
        }
    } else if is_set(after.job, "spec.successPolicy") && after.has_condition("Complete") {
        let reason = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        push_conditions_error(e, reason);
    }
}

/// Validates fields that cannot be reverted.
fn validate_irreversible_fields(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    for condition in TERMINAL {
        if before.has_condition(condition) && !after.has_condition(condition) {
            push_conditions_error(e, &format!("cannot disable the terminal {condition}=True condition"));
        }
    }
    if after.counter("failed") < before.counter("failed") {
        e.invalid("status.failed", &json!(after.counter("failed")), "cannot decrease the failed counter");
    }
    // An elastic indexed job can be scaled down.
    let spec = at(after.job, "spec");
    let elastic =
        text(spec, "completionMode") == "Indexed" && are_equal(at(spec, "completions"), at(spec, "parallelism"));
    if !elastic && after.counter("succeeded") < before.counter("succeeded") {
        e.invalid("status.succeeded", &json!(after.counter("succeeded")), "cannot decrease the succeeded counter");
    }
    let (old_time, new_time) = (before.field("completionTime"), after.field("completionTime"));
    if !old_time.is_null() && !new_time.is_null() && old_time != new_time {
        e.invalid("status.completionTime", new_time, "field is immutable");
    }
    let (old_time, new_time) = (before.field("startTime"), after.field("startTime"));
    let resumes = before.has_condition("Suspended") && after.condition_status("Suspended") == "False";
    if !old_time.is_null() && old_time != new_time && !resumes && !flag(spec, "suspend") {
        e.invalid("status.startTime", new_time, "field is immutable for unsuspended job once set");
    }
    if before.has_condition("SuccessCriteriaMet") && !after.has_condition("SuccessCriteriaMet") {
        push_conditions_error(e, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if before.has_condition("Complete")
        && !before.has_condition("SuccessCriteriaMet")
        && after.has_condition("SuccessCriteriaMet")
    {
        push_conditions_error(e, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
}
