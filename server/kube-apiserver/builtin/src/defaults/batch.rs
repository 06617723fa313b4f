//! Defaults of jobs and cron jobs.

use serde_json::Value;

use super::{at_mut, for_each_item, is_set, pod, set_default};

pub(super) fn set_job_defaults(object: &mut Value) {
    if let Some(spec) = at_mut(object, "spec") {
        set_job_spec_defaults(spec);
    }
}

fn set_job_spec_defaults(spec: &mut Value) {
    if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
        set_default(spec, "completions", 1);
        set_default(spec, "parallelism", 1);
    }
    set_default(spec, "parallelism", 1);
    let limit = if is_set(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    set_default(spec, "backoffLimit", limit);
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    set_default(spec, "manualSelector", false);
    let replacement = if is_set(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    set_default(spec, "podReplacementPolicy", replacement);
    if let Some(policy) = at_mut(spec, "podFailurePolicy") {
        for_each_item(policy, "rules", |rule| {
            for_each_item(rule, "onPodConditions", |pattern| set_default(pattern, "status", "True"));
        });
    }
    if let Some(template) = at_mut(spec, "template") {
        pod::set_template_defaults(template);
    }
}

pub(super) fn set_cron_job_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "concurrencyPolicy", "Allow");
    set_default(spec, "suspend", false);
    set_default(spec, "successfulJobsHistoryLimit", 3);
    set_default(spec, "failedJobsHistoryLimit", 1);
    // A job template gets only the defaults of its pods; those of the job are set when the job is created.
    if let Some(template) = at_mut(spec, "jobTemplate.spec.template") {
        pod::set_template_defaults(template);
    }
}
