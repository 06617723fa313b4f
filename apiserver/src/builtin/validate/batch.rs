//! Jobs and cron jobs.

use super::selector::label_selector;
use super::{Errors, Value, at, cron, fields, go, job_policy as policy, json, number, pod, same, set, text};

const JOB_RESTART: [&str; 2] = ["OnFailure", "Never"];
/// Of an indexed job.
const MOST_PARALLEL: i64 = 100_000;
const TEMPLATE: &str = "io.k8s.api.core.v1.PodTemplateSpec";

pub(super) fn job(e: &mut Errors, object: &Value) {
    spec(e, at(object, "spec"), "spec");
    if at(object, "spec.manualSelector") == true && at(object, "spec.selector").is_null() {
        e.required("spec.selector", "");
    }
    let selector = at(object, "spec.selector");
    if !selector.is_null() {
        label_selector(e, selector, "spec.selector");
        let labels = fields(object, "spec.template.metadata.labels");
        if fields(selector, "matchLabels").iter().any(|(key, value)| labels.get(key) != Some(value)) {
            e.invalid(
                "spec.template.metadata.labels",
                at(object, "spec.template.metadata.labels"),
                "`selector` does not match template `labels`",
            );
        }
    }
}

fn spec(e: &mut Errors, spec: &Value, path: &str) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        e.non_negative(format!("{path}.{field}"), at(spec, field));
    }
    if set(spec, "maxFailedIndexes") && !set(spec, "backoffLimitPerIndex") {
        e.required(format!("{path}.backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = at(spec, "managedBy").as_str() {
        let field = format!("{path}.managedBy");
        super::ingress::domain_path(e, &field, manager);
        if manager.len() > 63 {
            e.push(super::FieldError::too_long(field, 63));
        }
    }
    completion(e, spec, path);
    if set(spec, "podFailurePolicy") {
        policy::failure(e, spec, &format!("{path}.podFailurePolicy"));
    }
    if set(spec, "successPolicy") {
        let field = format!("{path}.successPolicy");
        if at(spec, "completionMode") == "Indexed" {
            policy::success(e, spec, &field);
        } else {
            e.invalid(field, at(spec, "successPolicy"), "requires indexed completion mode");
        }
    }
    let replacement = at(spec, "podReplacementPolicy");
    let known: &[&str] = if set(spec, "podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    if !replacement.is_null() && !known.iter().any(|name| replacement == name) {
        e.unsupported(format!("{path}.podReplacementPolicy"), replacement, known);
    }
    template(e, spec, path);
}

fn completion(e: &mut Errors, spec: &Value, path: &str) {
    let mode = at(spec, "completionMode");
    if !mode.is_null() && mode != "NonIndexed" && mode != "Indexed" {
        e.unsupported(format!("{path}.completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    if mode == "Indexed" {
        let Some(completions) = number(spec, "completions") else {
            return e.required(format!("{path}.completions"), "when completion mode is Indexed");
        };
        let parallelism = number(spec, "parallelism").unwrap_or(0);
        if parallelism > MOST_PARALLEL {
            let why = format!("must be less than or equal to {MOST_PARALLEL} when completion mode is Indexed");
            e.invalid(format!("{path}.parallelism"), &json!(parallelism), why);
        }
        if let Some(failed) = number(spec, "maxFailedIndexes").filter(|failed| *failed > completions) {
            let why = "must be less than or equal to completions";
            e.invalid(format!("{path}.maxFailedIndexes"), &json!(failed), why);
        }
    } else if mode.is_null() || mode == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if set(spec, field) {
                e.invalid(format!("{path}.{field}"), at(spec, field), "requires indexed completion mode");
            }
        }
    }
}

fn template(e: &mut Errors, spec: &Value, path: &str) {
    let template = at(spec, "template");
    pod::template(e, template, &format!("{path}.template"));
    let field = format!("{path}.template.spec.restartPolicy");
    match text(template, "spec.restartPolicy") {
        "" | "Always" => e.required(field, "valid values: \"OnFailure\", \"Never\""),
        policy if !JOB_RESTART.contains(&policy) => e.unsupported(field, &json!(policy), &JOB_RESTART),
        "OnFailure" if set(spec, "podFailurePolicy") => {
            e.invalid(field, &json!("OnFailure"), "only \"Never\" is supported when podFailurePolicy is specified");
        }
        _ => {}
    }
}

pub(super) fn job_update(e: &mut Errors, old: &Value, new: &Value) {
    spec(e, at(new, "spec"), "spec");
    let fixed: &[&str] =
        &["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"];
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    if at(before, "completions") != at(after, "completions") {
        let elastic = at(after, "completionMode") == "Indexed" && at(after, "completions") == at(after, "parallelism");
        if !elastic {
            e.invalid("spec.completions", at(after, "completions"), "field is immutable");
        }
    }
    for field in &fixed[..1] {
        e.immutable(&format!("spec.{field}"), at(before, field), at(after, field));
    }
    // A suspended job that has not started may still be steered to other nodes.
    let mut wanted = at(after, "template").clone();
    if at(before, "suspend") == true && at(old, "status.startTime").is_null() {
        for field in ["nodeSelector", "affinity", "tolerations", "schedulingGates"] {
            super::super::object::copy(at(before, "template.spec"), &mut wanted["spec"], field);
        }
        for field in ["labels", "annotations"] {
            if let Some(metadata) = wanted.get_mut("metadata") {
                super::super::object::copy(at(before, "template.metadata"), metadata, field);
            }
        }
    }
    if !same(&wanted, at(before, "template")) {
        e.push(go::invalid("spec.template", at(after, "template"), TEMPLATE, "field is immutable"));
    }
    for field in &fixed[1..] {
        e.immutable(&format!("spec.{field}"), at(before, field), at(after, field));
    }
}

pub(super) fn cron_job(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        e.required("spec.schedule", "");
    } else {
        if let Err(why) = cron::parse(schedule) {
            e.invalid("spec.schedule", &json!(schedule), why);
        }
        if schedule.contains("TZ") {
            e.0.retain(|error| error.field != "spec.schedule");
            e.invalid(
                "spec.schedule",
                &json!(schedule),
                "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            );
        }
    }
    if set(spec, "timeZone") {
        time_zone(e, at(spec, "timeZone"));
    }
    e.non_negative("spec.startingDeadlineSeconds", at(spec, "startingDeadlineSeconds"));
    e.one_of("spec.concurrencyPolicy", at(spec, "concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    let job = at(spec, "jobTemplate.spec");
    self::spec(e, job, "spec.jobTemplate.spec");
    if set(job, "selector") {
        let (field, why) = ("spec.jobTemplate.spec.selector", "`selector` will be auto-generated");
        e.push(go::invalid(field, at(job, "selector"), "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", why));
    }
    if at(job, "manualSelector") == true {
        e.unsupported("spec.jobTemplate.spec.manualSelector", &json!(true), &["nil", "false"]);
    }
    for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        e.non_negative(format!("spec.{field}"), at(spec, field));
    }
    let name = text(object, "metadata.name");
    if name.len() > 52 {
        e.invalid("metadata.name", &json!(name), "must be no more than 52 characters");
    }
}

fn time_zone(e: &mut Errors, zone: &Value) {
    let name = zone.as_str().unwrap_or_default();
    if name.is_empty() {
        e.invalid("spec.timeZone", zone, "timeZone must be nil or non-empty string");
    } else if name.eq_ignore_ascii_case("local") {
        e.invalid(
            "spec.timeZone",
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    } else if jiff::tz::TimeZone::get(name).is_err() {
        e.invalid("spec.timeZone", zone, format!("unknown time zone {name}"));
    }
}
