//! Jobs and cron jobs.

use super::selector::label_selector;
use super::{Errors, Value, at, fields, go, json, pod, set, text};

const JOB_RESTART: [&str; 2] = ["OnFailure", "Never"];
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
    let mode = at(spec, "completionMode");
    if !mode.is_null() && mode != "NonIndexed" && mode != "Indexed" {
        e.unsupported(format!("{path}.completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    if mode == "Indexed" && !set(spec, "completions") {
        e.required(format!("{path}.completions"), "when completion mode is Indexed");
    }
    e.optional_one_of(
        &format!("{path}.podReplacementPolicy"),
        at(spec, "podReplacementPolicy"),
        &["Failed", "TerminatingOrFailed"],
    );
    template(e, spec, path);
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
    if &wanted != at(before, "template") {
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
        if let Err(why) = cron(schedule) {
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
    if at(job, "manualSelector") == true {
        e.unsupported("spec.jobTemplate.spec.manualSelector", &json!(true), &["nil", "false"]);
    }
    self::spec(e, job, "spec.jobTemplate.spec");
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

/// Bounds of the five fields, and names that stand for numbers.
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// `cron.ParseStandard`: five fields or a descriptor.
fn cron(schedule: &str) -> Result<(), String> {
    if let Some(descriptor) = schedule.strip_prefix('@') {
        if let Some(duration) = descriptor.strip_prefix("every ") {
            let ok = duration.ends_with(['s', 'm', 'h']) && duration.starts_with(|c: char| c.is_ascii_digit());
            return if ok {
                Ok(())
            } else {
                Err(format!("failed to parse duration {schedule}: time: invalid duration {duration:?}"))
            };
        }
        return match descriptor {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => Ok(()),
            _ => Err(format!("unrecognized descriptor: {schedule}")),
        };
    }
    let parts: Vec<&str> = schedule.split_whitespace().collect();
    if parts.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
    }
    for (part, (low, high, names)) in parts.iter().zip(FIELDS) {
        for range in part.split(',') {
            cron_range(range, low, high, names)?;
        }
    }
    Ok(())
}

fn cron_range(range: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let number = |text: &str| -> Result<u32, String> {
        let lower = text.to_lowercase();
        if let Some(index) = names.iter().position(|name| *name == lower) {
            return Ok(low + u32::try_from(index).unwrap_or(0));
        }
        text.parse::<u32>()
            .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
    };
    let steps: Vec<&str> = range.split('/').collect();
    let bounds: Vec<&str> = steps[0].split('-').collect();
    let (start, end) = match bounds.as_slice() {
        ["*" | "?"] => (low, high),
        [one] => {
            let start = number(one)?;
            (start, if steps.len() == 2 { high } else { start })
        }
        [from, to] => (number(from)?, number(to)?),
        _ => return Err(format!("too many hyphens: {range}")),
    };
    match steps.as_slice() {
        [_] => {}
        [_, step] => {
            if number(step)? == 0 {
                return Err(format!("step of range should be a positive number: {range}"));
            }
        }
        _ => return Err(format!("too many slashes: {range}")),
    }
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {range}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    Ok(())
}
