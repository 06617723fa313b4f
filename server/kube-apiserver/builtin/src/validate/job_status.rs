//! Validation of job status updates: finished jobs stay finished and have consistent times, reasons and indexes.
//! Only changed fields are validated, so that an invalid status can be corrected step by step. Pure.

use super::job_indexes::{overlap, total};
use super::{Errors, FieldError, FieldErrorKind, Value, at, flag, is_set, items, json, number, same, text};

/// Conditions that cannot change back from `True`.
const TERMINAL: [&str; 3] = ["Failed", "Complete", "FailureTarget"];

/// Accessors for the status of a job.
struct JobStatus<'a> {
    job: &'a Value,
}

impl JobStatus<'_> {
    fn is(&self, condition: &str) -> bool {
        self.condition(condition) == "True"
    }

    fn condition(&self, wanted: &str) -> &str {
        let conditions = items(self.job, "status.conditions").iter();
        let mut found = conditions.filter(|condition| text(condition, "type") == wanted).map(|one| text(one, "status"));
        found.next_back().unwrap_or_default()
    }

    fn finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn status(&self, field: &str) -> &Value {
        at(self.job, &format!("status.{field}"))
    }

    fn count(&self, field: &str) -> i64 {
        self.status(field).as_i64().unwrap_or(0)
    }
}

pub(super) fn update(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (JobStatus { job: old }, JobStatus { job: new });
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        e.non_negative(format!("status.{field}"), after.status(field));
    }
    uncounted_pods(e, new);
    terminal_conditions(e, &before, &after);
    times_and_pods(e, &before, &after);
    indexes(e, &before, &after);
    let changed = |field: &str| !same(before.status(field), after.status(field));
    let finishes = before.finished() != after.finished();
    if (finishes || changed("terminating")) && after.finished() && after.count("terminating") > 0 {
        e.invalid("status.terminating", after.status("terminating"), "terminating>0 is invalid for finished job");
    }
    if (changed("ready") || changed("active"))
        && is_set(new, "status.ready")
        && after.count("ready") > after.count("active")
    {
        e.invalid("status.ready", after.status("ready"), "cannot set more ready pods than active");
    }
    success_conditions(e, &after);
    irreversible_fields(e, &before, &after);
}

/// Adds an error for the conditions as a whole.
fn conditions_error(e: &mut Errors, why: &str) {
    e.push(FieldError::new(FieldErrorKind::Invalid, "status.conditions", None, why));
}

fn uncounted_pods(e: &mut Errors, new: &Value) {
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
fn terminal_conditions(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    let condition_changed = |condition: &str| before.is(condition) != after.is(condition);
    let changed = |field: &str| !same(before.status(field), after.status(field));
    let complete = after.is("Complete");
    if (condition_changed("Complete") || condition_changed("Failed")) && complete && after.is("Failed") {
        conditions_error(e, "cannot set Complete=True and Failed=true conditions");
    }
    if (condition_changed("Complete") || condition_changed("FailureTarget")) && complete && after.is("FailureTarget") {
        conditions_error(e, "cannot set Complete=True and FailureTarget=true conditions");
    }
    let completion = after.status("completionTime");
    if condition_changed("Complete") || changed("completionTime") {
        if !completion.is_null() && !complete {
            let why = "cannot set completionTime when there is no Complete=True condition";
            e.invalid("status.completionTime", completion, why);
        }
        if completion.is_null() && complete {
            e.required("status.completionTime", "completionTime is required for Complete jobs");
        }
    }
    let (start, end) = (text(after.job, "status.startTime"), text(after.job, "status.completionTime"));
    if (changed("startTime") || changed("completionTime")) && !start.is_empty() && !end.is_empty() && end < start {
        e.invalid("status.completionTime", completion, "must be equal to or after `startTime`");
    }
    if (condition_changed("Failed") || changed("failedIndexes")) && after.is("Failed") && !after.is("FailureTarget") {
        conditions_error(e, "cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (condition_changed("Complete") || condition_changed("SuccessCriteriaMet"))
        && complete
        && !after.is("SuccessCriteriaMet")
    {
        conditions_error(e, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
}

/// Validates times and pod counters of a finished job.
fn times_and_pods(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    let changed = |field: &str| !same(before.status(field), after.status(field));
    let finishes = before.finished() != after.finished();
    if !after.finished() {
        return;
    }
    if (finishes || changed("active")) && after.count("active") > 0 {
        e.invalid("status.active", after.status("active"), "active>0 is invalid for finished job");
    }
    let never_started = flag(after.job, "spec.suspend") && number(after.job, "spec.completions") == Some(0);
    if (finishes || changed("startTime")) && !never_started && after.status("startTime").is_null() {
        e.required("status.startTime", "startTime is required for finished job");
    }
    let has_uncounted = ["succeeded", "failed"]
        .iter()
        .any(|list| !items(after.job, &format!("status.uncountedTerminatedPods.{list}")).is_empty());
    if (finishes || changed("uncountedTerminatedPods")) && has_uncounted {
        let uncounted = after.status("uncountedTerminatedPods");
        e.invalid("status.uncountedTerminatedPods", uncounted, "must be empty for finished job");
    }
}

fn indexes(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    let changed = |field: &str| !same(before.status(field), after.status(field));
    let (completed, failed) = (text(after.job, "status.completedIndexes"), after.status("failedIndexes"));
    let completions = number(after.job, "spec.completions");
    let per_index = is_set(after.job, "spec.backoffLimitPerIndex");
    let check = |e: &mut Errors, field: &str, indexes: &str, completions: i64| {
        if let Err(why) = total(indexes, completions) {
            e.invalid(format!("status.{field}"), &json!(indexes), format!("error parsing {field}: {why}"));
        }
    };
    if let Some(completions) = completions.filter(|_| changed("completedIndexes")) {
        check(e, "completedIndexes", completed, completions);
    }
    if let (Some(completions), Some(failed)) =
        (completions.filter(|_| per_index && changed("failedIndexes")), failed.as_str())
    {
        check(e, "failedIndexes", failed, completions);
    }
    if changed("completedIndexes") && !completed.is_empty() && text(after.job, "spec.completionMode") != "Indexed" {
        let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
        e.invalid("status.completedIndexes", &json!(completed), why);
    }
    if changed("failedIndexes") && !per_index && !failed.is_null() {
        e.invalid(
            "status.failedIndexes",
            failed,
            "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
        );
    }
    if (changed("failedIndexes") || changed("completedIndexes"))
        && let (Some(completions), Some(indexes)) = (completions, failed.as_str())
        && let Some(index) = overlap(completed, indexes, completions)
    {
        let why = format!("failedIndexes and completedIndexes overlap at index: {index}");
        e.invalid("status.failedIndexes", failed, why);
    }
}

fn success_conditions(e: &mut Errors, after: &JobStatus<'_>) {
    if after.is("SuccessCriteriaMet") {
        for other in ["Failed", "FailureTarget"] {
            if after.is(other) {
                conditions_error(e, &format!("cannot set SuccessCriteriaMet=True and {other}=true conditions"));
            }
        }
    } else if is_set(after.job, "spec.successPolicy") && after.is("Complete") {
        let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        conditions_error(e, why);
    }
}

/// Validates fields that cannot be reverted.
fn irreversible_fields(e: &mut Errors, before: &JobStatus<'_>, after: &JobStatus<'_>) {
    for condition in TERMINAL {
        if before.is(condition) && !after.is(condition) {
            conditions_error(e, &format!("cannot disable the terminal {condition}=True condition"));
        }
    }
    if after.count("failed") < before.count("failed") {
        e.invalid("status.failed", &json!(after.count("failed")), "cannot decrease the failed counter");
    }
    // An elastic indexed job can be scaled down.
    let spec = at(after.job, "spec");
    let elastic = text(spec, "completionMode") == "Indexed" && same(at(spec, "completions"), at(spec, "parallelism"));
    if !elastic && after.count("succeeded") < before.count("succeeded") {
        e.invalid("status.succeeded", &json!(after.count("succeeded")), "cannot decrease the succeeded counter");
    }
    let (was, is) = (before.status("completionTime"), after.status("completionTime"));
    if !was.is_null() && !is.is_null() && was != is {
        e.invalid("status.completionTime", is, "field is immutable");
    }
    let (was, is) = (before.status("startTime"), after.status("startTime"));
    let resumes = before.is("Suspended") && after.condition("Suspended") == "False";
    if !was.is_null() && was != is && !resumes && !flag(spec, "suspend") {
        e.invalid("status.startTime", is, "field is immutable for unsuspended job once set");
    }
    if before.is("SuccessCriteriaMet") && !after.is("SuccessCriteriaMet") {
        conditions_error(e, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if before.is("Complete") && !before.is("SuccessCriteriaMet") && after.is("SuccessCriteriaMet") {
        conditions_error(e, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
}
