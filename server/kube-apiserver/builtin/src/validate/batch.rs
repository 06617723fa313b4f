//! Validation of jobs and cron jobs.

use super::selector::validate_label_selector;
use super::workload::selects;
use super::{
    Errors, Value, are_equal, at, cron, fields, go, is_set, items, job_policy, json, number, pod, text,
    validate_dns1123_label,
};
use crate::object;

const RESTART_POLICIES: [&str; 2] = ["OnFailure", "Never"];
/// Limits of indexed jobs.
const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// Number of completions above which the limit of failed indexes and parallelism is [`MAX_WITH_MANY_COMPLETIONS`].
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_WITH_MANY_COMPLETIONS: i64 = 10_000;

pub(super) fn validate_job(e: &mut Errors, object: &Value) {
    validate_generated_selector(e, object);
    validate_job_spec(e, at(object, "spec"), "spec");
    if at(object, "spec.manualSelector") == true && at(object, "spec.selector").is_null() {
        e.required("spec.selector", "");
    }
    let selector = at(object, "spec.selector");
    if !selector.is_null() {
        validate_label_selector(e, selector, "spec.selector");
        validate_selector_matches_template(e, at(object, "spec"));
    }
    // The hostname of the last pod contains the name of the job and its index.
    if let Some(last) = number(object, "spec.completions").filter(|count| *count > 0).map(|count| count - 1)
        && text(object, "spec.completionMode") == "Indexed"
    {
        let name = text(object, "metadata.name");
        let host = format!("{name}-{last}");
        if !validate_dns1123_label(&host).is_empty() {
            let reason = format!("will not able to create pod with invalid DNS label: {host}");
            e.invalid("metadata.name", &json!(name), reason);
        }
    }
}

fn validate_selector_matches_template(e: &mut Errors, spec: &Value) {
    let labels = fields(spec, "template.metadata.labels");
    if !selects(at(spec, "selector"), labels) {
        let reason = "`selector` does not match template `labels`";
        e.invalid("spec.template.metadata.labels", at(spec, "template.metadata.labels"), reason);
    }
}

/// Checks that a generated selector matches the generated labels of the job.
fn validate_generated_selector(e: &mut Errors, object: &Value) {
    let selector = at(object, "spec.selector");
    if at(object, "spec.manualSelector") == true || selector.is_null() {
        return;
    }
    let (uid, name) = (text(object, "metadata.uid"), text(object, "metadata.name"));
    let (labels, mut expected) = (fields(object, "spec.template.metadata.labels"), serde_json::Map::new());
    for (key, value) in [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ] {
        const LABELS: &str = "spec.template.metadata.labels";
        let field = format!("{LABELS}[{key}]");
        match labels.get(key) {
            None => e.required(field, &format!("must be '{value}'")),
            Some(other) if other != value => e.invalid(field, at(object, LABELS), format!("must be '{value}'")),
            Some(_) => {}
        }
        expected.insert(key.to_owned(), json!(value));
    }
    let is_valid = {
        let mut selector_errors = Errors::default();
        validate_label_selector(&mut selector_errors, selector, "");
        selector_errors.0.is_empty()
    };
    if is_valid && !selects(selector, &expected) {
        let kind = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector";
        e.push(go::invalid("spec.selector", selector, kind, "`selector` not auto-generated"));
    }
}

fn validate_job_spec(e: &mut Errors, spec: &Value, path: &str) {
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
    if is_set(spec, "maxFailedIndexes") && !is_set(spec, "backoffLimitPerIndex") {
        e.required(format!("{path}.backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(manager) = at(spec, "managedBy").as_str() {
        let field = format!("{path}.managedBy");
        super::ingress::validate_domain_prefixed_path(e, &field, manager);
        if manager.len() > 63 {
            e.push(super::FieldError::too_long(field, 63));
        }
    }
    validate_completion_mode(e, spec, path);
    if is_set(spec, "podFailurePolicy") {
        job_policy::validate_failure_policy(e, spec, &format!("{path}.podFailurePolicy"));
    }
    if is_set(spec, "successPolicy") {
        let field = format!("{path}.successPolicy");
        if at(spec, "completionMode") == "Indexed" {
            job_policy::validate_success_policy(e, spec, &field);
        } else {
            let reason = "requires indexed completion mode";
            e.push(go::invalid_struct(&field, at(spec, "successPolicy"), "batch.SuccessPolicy", reason));
        }
    }
    let replacement = at(spec, "podReplacementPolicy");
    let supported: &[&str] =
        if is_set(spec, "podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    if !replacement.is_null() && !supported.iter().any(|name| replacement == name) {
        e.unsupported(format!("{path}.podReplacementPolicy"), replacement, supported);
    }
    validate_pod_template(e, spec, path);
}

fn validate_completion_mode(e: &mut Errors, spec: &Value, path: &str) {
    let mode = at(spec, "completionMode");
    if !mode.is_null() && mode != "NonIndexed" && mode != "Indexed" {
        e.unsupported(format!("{path}.completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    if mode == "Indexed" {
        let completions = number(spec, "completions");
        if completions.is_none() {
            e.required(format!("{path}.completions"), "when completion mode is Indexed");
        }
        let parallelism = number(spec, "parallelism").unwrap_or(0);
        if parallelism > MAX_PARALLELISM {
            let reason = format!("must be less than or equal to {MAX_PARALLELISM} when completion mode is Indexed");
            e.invalid(format!("{path}.parallelism"), &json!(parallelism), reason);
        }
        validate_max_failed_indexes(e, spec, completions, parallelism, path);
    } else if mode.is_null() || mode == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if is_set(spec, field) {
                e.invalid(format!("{path}.{field}"), at(spec, field), "requires indexed completion mode");
            }
        }
    }
}

/// Validates `maxFailedIndexes`, whose limit is lower for very many completions.
fn validate_max_failed_indexes(e: &mut Errors, spec: &Value, completions: Option<i64>, parallelism: i64, path: &str) {
    let (field, failed) = (format!("{path}.maxFailedIndexes"), number(spec, "maxFailedIndexes"));
    if let (Some(completions), Some(failed)) = (completions, failed)
        && failed > completions
    {
        e.invalid(&field, &json!(failed), "must be less than or equal to completions");
    }
    if let Some(failed) = failed.filter(|failed| *failed > MAX_FAILED_INDEXES) {
        e.invalid(&field, &json!(failed), format!("must be less than or equal to {MAX_FAILED_INDEXES}"));
    }
    if completions.is_none_or(|completions| completions <= MANY_COMPLETIONS) || !is_set(spec, "backoffLimitPerIndex") {
        return;
    }
    let reason = format!(
        "must be less than or equal to {MAX_WITH_MANY_COMPLETIONS} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
    );
    if failed.is_none() {
        e.required(&field, &format!("must be specified when completions is above {MANY_COMPLETIONS}"));
    }
    if parallelism > MAX_WITH_MANY_COMPLETIONS {
        e.invalid(format!("{path}.parallelism"), &json!(parallelism), &reason);
    }
    if let Some(failed) = failed.filter(|failed| *failed > MAX_WITH_MANY_COMPLETIONS) {
        e.invalid(field, &json!(failed), reason);
    }
}

fn validate_pod_template(e: &mut Errors, spec: &Value, path: &str) {
    let template = at(spec, "template");
    pod::validate_pod_template(e, template, &format!("{path}.template"));
    let field = format!("{path}.template.spec.restartPolicy");
    match text(template, "spec.restartPolicy") {
        "" | "Always" => e.required(field, "valid values: \"OnFailure\", \"Never\""),
        policy if !RESTART_POLICIES.contains(&policy) => e.unsupported(field, &json!(policy), &RESTART_POLICIES),
        "OnFailure" if is_set(spec, "podFailurePolicy") => {
            e.invalid(field, &json!("OnFailure"), "only \"Never\" is supported when podFailurePolicy is specified");
        }
        _ => {}
    }
}

pub(super) fn validate_job_update(e: &mut Errors, old: &Value, new: &Value) {
    // kube-apiserver validates a changed job like a new one, and then its spec again.
    validate_job(e, new);
    validate_job_spec(e, at(new, "spec"), "spec");
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    let selector = at(after, "selector");
    if selector.is_null() {
        e.required("spec.selector", "");
    } else {
        validate_label_selector(e, selector, "spec.selector");
    }
    validate_selector_matches_template(e, after);
    let completions = at(after, "completions");
    let changed = at(before, "completions") != completions;
    if changed && at(after, "completionMode") != "Indexed" {
        e.invalid("spec.completions", completions, "field is immutable");
    } else if changed && !completions.is_null() && completions != at(after, "parallelism") {
        e.invalid("spec.completions", completions, "can only be modified in tandem with spec.parallelism");
    }
    e.immutable("spec.selector", at(before, "selector"), selector);
    validate_template_update(e, old, new);
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        let (old_value, new_value, path) = (at(before, field), at(after, field), format!("spec.{field}"));
        match field {
            "podFailurePolicy" | "successPolicy" if !are_equal(old_value, new_value) && !new_value.is_null() => {
                let go_struct = if field == "successPolicy" { "batch.SuccessPolicy" } else { "batch.PodFailurePolicy" };
                e.push(go::invalid_struct(&path, new_value, go_struct, "field is immutable"));
            }
            _ => e.immutable(&path, old_value, new_value),
        }
    }
}

pub(super) fn validate_cron_job(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        e.required("spec.schedule", "");
    } else if schedule.contains("TZ") {
        e.invalid(
            "spec.schedule",
            &json!(schedule),
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        );
    } else if let Err(reason) = cron::parse(schedule) {
        e.invalid("spec.schedule", &json!(schedule), reason);
    }
    if is_set(spec, "timeZone") {
        validate_time_zone(e, at(spec, "timeZone"));
    }
    e.non_negative("spec.startingDeadlineSeconds", at(spec, "startingDeadlineSeconds"));
    e.one_of("spec.concurrencyPolicy", at(spec, "concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    let job = at(spec, "jobTemplate.spec");
    validate_job_spec(e, job, "spec.jobTemplate.spec");
    if is_set(job, "selector") {
        let (field, reason) = ("spec.jobTemplate.spec.selector", "`selector` will be auto-generated");
        e.push(go::invalid(field, at(job, "selector"), "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", reason));
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

fn validate_time_zone(e: &mut Errors, zone: &Value) {
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

/// The template's scheduling directives and resources can change while the job is suspended and has no pods.
fn validate_template_update(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (at(old, "spec.template"), at(new, "spec.template"));
    let is_suspended = at(old, "spec.suspend") == true;
    let has_condition =
        items(old, "status.conditions").iter().any(|c| text(c, "type") == "Suspended" && text(c, "status") == "True");
    let has_started = !at(old, "status.startTime").is_null();
    let is_mutable = is_suspended && (!has_started || has_condition) && number(old, "status.active").unwrap_or(0) == 0;
    let mut expected = before.clone();
    if is_mutable {
        copy_scheduling_directives(at(after, "spec"), &mut expected["spec"]);
        for field in ["labels", "annotations"] {
            if let Some(metadata) = expected.get_mut("metadata") {
                object::copy_field(at(after, "metadata"), metadata, field);
            }
        }
    }
    let reason = "field is immutable";
    if !is_mutable {
        if !are_equal(&expected, after) {
            e.push(go::invalid_struct("spec.template", after, "core.PodTemplateSpec", reason));
        }
        return;
    }
    for list in ["containers", "initContainers"] {
        let new_containers = items(at(after, "spec"), list);
        let Some(expected_containers) = expected["spec"].get_mut(list).and_then(Value::as_array_mut) else { continue };
        if expected_containers.len() != new_containers.len() {
            continue;
        }
        let same_name = |pair: &(&mut Value, &Value)| pair.0["name"] == pair.1["name"];
        for (expected, new) in expected_containers.iter_mut().zip(new_containers).filter(same_name) {
            object::copy_field(new, expected, "resources");
        }
    }
    if !are_equal(&expected["spec"], at(after, "spec")) {
        e.push(go::invalid_struct("spec.template.spec", at(after, "spec"), "core.PodSpec", reason));
    }
}

/// Copies the scheduling directives that a suspended job may change: node selector, tolerations, scheduling gates and
/// node affinity.
fn copy_scheduling_directives(from: &Value, to: &mut Value) {
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        object::copy_field(from, to, field);
    }
    const NODE_AFFINITY: &str = "nodeAffinity";
    let expected = at(from, "affinity");
    match (expected.is_null(), is_set(to, "affinity")) {
        (false, true) => object::copy_field(expected, &mut to["affinity"], NODE_AFFINITY),
        (false, false) if !at(expected, NODE_AFFINITY).is_null() => {
            object::set_field(to, "affinity", json!({NODE_AFFINITY: at(expected, NODE_AFFINITY)}))
        }
        (false, false) => object::set_field(to, "affinity", json!({})),
        (true, true) => {
            object::remove_field(&mut to["affinity"], NODE_AFFINITY);
            if to["affinity"].as_object().is_some_and(serde_json::Map::is_empty) {
                object::remove_field(to, "affinity");
            }
        }
        (true, false) => {}
    }
}
