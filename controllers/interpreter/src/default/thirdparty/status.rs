//! Status aggregation shared by several kinds.

use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{count, list, number, value_at};
use crowsnest_apimachinery::unstructured::{self, text};

/// Annotation with the template's generation on a member object.
const TEMPLATE_GENERATION: &str = "resourcetemplate.karmada.io/generation";

/// Fields of a member object's status by name. Empty without a status.
pub(super) fn status_fields(member: &Value, fields: &[&str]) -> Map<String, Value> {
    let picked = |field: &&str| Some(((*field).to_owned(), value_at(member, &["status", field])?.clone()));
    fields.iter().filter_map(picked).collect()
}

/// The named fields, with the generations of the member object and the template.
pub(super) fn with_generations(member: &Value, fields: &[&str]) -> Value {
    let mut status = status_fields(member, fields);
    if value_at(member, &["status"]).is_some() {
        let generation = value_at(member, &["metadata", "generation"]).cloned();
        status.extend(generation.map(|generation| ("generation".to_owned(), generation)));
        let template_generation = number(value_at(member, &["metadata", "annotations", TEMPLATE_GENERATION]));
        status.extend(
            template_generation.map(|generation| ("resourceTemplateGeneration".to_owned(), json!(generation as i64))),
        );
    }
    Value::Object(status)
}

/// The template's current status, to be updated.
pub(super) fn template_status(template: &Value) -> Map<String, Value> {
    template.get("status").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// The statuses of the members that have reported one.
pub(super) fn member_statuses<'a>(members: &[MemberStatus<'a>]) -> impl Iterator<Item = &'a Value> {
    members.iter().filter_map(|member| member.status).filter(|status| !status.is_null())
}

/// The status of the only member, which becomes that of the template.
pub(super) fn only_member_status(members: &[MemberStatus<'_>]) -> Option<Map<String, Value>> {
    let [only] = members else { return None };
    Some(only.status.and_then(Value::as_object).cloned().unwrap_or_default())
}

pub(super) fn sum(members: &[MemberStatus<'_>], path: &[&str]) -> i64 {
    member_statuses(members).map(|status| count(status, path)).sum()
}

/// The value of the last member that has one.
pub(super) fn last_value<'a>(members: &[MemberStatus<'a>], field: &str) -> Option<&'a Value> {
    member_statuses(members).filter_map(|status| value_at(status, &[field])).last()
}

/// The non-empty text of the last member that has one.
pub(super) fn last_text<'a>(members: &[MemberStatus<'a>], field: &str) -> Option<&'a Value> {
    member_statuses(members).filter_map(|status| value_at(status, &[field])).filter(|value| *value != "").last()
}

/// Values of a time field. RFC 3339 UTC times sort as text.
pub(super) fn times<'a>(members: &[MemberStatus<'a>], field: &str) -> impl Iterator<Item = &'a str> {
    member_statuses(members).map(move |status| text(status, &[field])).filter(|time| !time.is_empty())
}

/// Sets a field, or removes it without a value.
pub(super) fn set_or_remove(status: &mut Map<String, Value>, field: &str, value: Option<impl Into<Value>>) {
    match value {
        Some(value) => drop(status.insert(field.to_owned(), value.into())),
        None => drop(status.remove(field)),
    }
}

/// The template's generation if all members have observed it, otherwise the template's previous observed generation.
pub(super) fn observed_generation(template: &Value, members: &[MemberStatus<'_>]) -> i64 {
    let generation = unstructured::generation(template);
    let is_up_to_date = |member: &MemberStatus<'_>| {
        let count_of = |field| member.status.map_or(0, |status| count(status, &[field]));
        count_of("resourceTemplateGeneration") == generation && count_of("generation") == count_of("observedGeneration")
    };
    match members.iter().all(is_up_to_date) {
        true => generation,
        false => count(template, &["status", "observedGeneration"]),
    }
}

/// Conditions of all members. Those with equal type, status and reason are merged, with a message per cluster.
pub(super) fn merge_conditions(members: &[MemberStatus<'_>]) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for member in members {
        for condition in member.status.into_iter().flat_map(|status| list(status, &["conditions"])) {
            let message = format!("{}={}", member.cluster, text(condition, &["message"]));
            let is_same = |other: &&mut Value| {
                ["type", "status", "reason"]
                    .iter()
                    .all(|field| value_at(other, &[field]) == value_at(condition, &[field]))
            };
            match merged.iter_mut().find(is_same) {
                Some(existing) => {
                    let all = format!("{}, {message}", text(existing, &["message"]));
                    unstructured::set(existing, &["message"], json!(all));
                }
                None => {
                    let mut first = condition.clone();
                    unstructured::set(&mut first, &["message"], json!(message));
                    merged.push(first);
                }
            }
        }
    }
    merged
}

/// Replaces the entry with the same `key`, or appends a new one.
pub(super) fn replace_or_append(conditions: &mut Vec<Value>, key: &str, condition: &Value) {
    match conditions.iter_mut().find(|existing| value_at(existing, &[key]) == value_at(condition, &[key])) {
        Some(existing) => *existing = condition.clone(),
        None => conditions.push(condition.clone()),
    }
}

pub(super) fn is_true(condition: &Value, kind: &str) -> bool {
    text(condition, &["type"]) == kind && text(condition, &["status"]) == "True"
}

/// A condition with its times. If the template has the same condition already, the times are kept.
pub(super) fn with_times(template: &Value, mut condition: Value, now: &str) -> Value {
    const TIMES: [&str; 2] = ["lastProbeTime", "lastTransitionTime"];
    let is_same = |current: &&Value| {
        ["type", "status", "reason", "message"].iter().all(|field| current.get(field) == condition.get(field))
    };
    let current = list(template, &["status", "conditions"]).find(is_same);
    let times =
        TIMES.map(|field| current.and_then(|current| current.get(field)).cloned().unwrap_or_else(|| json!(now)));
    for (field, time) in TIMES.into_iter().zip(times) {
        unstructured::set(&mut condition, &[field], time);
    }
    condition
}

/// Severity of a state: the index of its group in `order`, or 0 if it is unknown.
pub(super) fn rank(order: &[&[&str]], state: &str) -> usize {
    order.iter().position(|group| group.contains(&state)).unwrap_or_default()
}

/// The first candidate with the highest severity.
pub(super) fn find_most_severe<'a>(
    candidates: impl Iterator<Item = &'a Value>,
    severity: impl Fn(&Value) -> usize,
) -> Option<&'a Value> {
    candidates.fold(None, |worst, candidate| match worst {
        Some(worst) if severity(candidate) <= severity(worst) => Some(worst),
        _ => Some(candidate),
    })
}
