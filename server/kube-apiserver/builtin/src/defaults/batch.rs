//! Defaults of jobs and cron jobs.

use serde_json::Value;

use super::{default, each, inside, is_set, is_unset, pod};

pub(super) fn job(object: &mut Value) {
    if let Some(spec) = inside(object, "spec") {
        job_spec(spec);
    }
}

fn job_spec(spec: &mut Value) {
    if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
        default(spec, "completions", 1);
        default(spec, "parallelism", 1);
    }
    default(spec, "parallelism", 1);
    let limit = if is_set(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    default(spec, "backoffLimit", limit);
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    default(spec, "manualSelector", false);
    let replacement = if is_set(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default(spec, "podReplacementPolicy", replacement);
    if let Some(policy) = inside(spec, "podFailurePolicy") {
        each(policy, "rules", |rule| {
            each(rule, "onPodConditions", |pattern| {
                if is_unset(pattern, "status") {
                    default(pattern, "status", "True");
                }
            });
        });
    }
    if let Some(template) = inside(spec, "template") {
        pod::template(template);
    }
}

pub(super) fn cron_job(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "concurrencyPolicy", "Allow");
    default(spec, "suspend", false);
    default(spec, "successfulJobsHistoryLimit", 3);
    default(spec, "failedJobsHistoryLimit", 1);
    // A job template gets only the defaults of its pods; those of the job are set when the job is created.
    if let Some(template) = inside(spec, "jobTemplate.spec.template") {
        pod::template(template);
    }
}
