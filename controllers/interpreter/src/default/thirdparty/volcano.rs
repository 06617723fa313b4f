//! Volcano Jobs.

use crowsnest_api::work::Component;
use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{count, fields, list, replicas_or, require, value_at, without_empty_values};
use super::status::{member_statuses, only_member_status, replace_or_append, set_or_remove, status_fields, sum};
use super::{NO_RULES, RuleError, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::text;
use crowsnest_plan::gates::Gates;

pub(super) static KINDS: [ThirdPartyKind; 1] = [ThirdPartyKind {
    api_version: "batch.volcano.sh/v1alpha1",
    kind: "Job",
    components: Some(components),
    reflect: Some(|member| Value::Object(status_fields(member, &FIELDS))),
    aggregate: Some(|template, members, now| Ok(aggregate(template, members, now))),
    health: Some(|member| Ok(HEALTHY_PHASES.contains(&text(member, &["status", "state", "phase"])))),
    ..NO_RULES
}];

const FIELDS: [&str; 14] = [
    "minAvailable",
    "pending",
    "running",
    "succeeded",
    "failed",
    "terminating",
    "unknown",
    "version",
    "retryCount",
    "runningDuration",
    "taskStatusCount",
    "controlledResources",
    "state",
    "conditions",
];

/// All phases except Failed.
const HEALTHY_PHASES: [&str; 9] =
    ["Pending", "Running", "Completing", "Completed", "Restarting", "Aborting", "Aborted", "Terminating", "Terminated"];

/// If a condition has one of these statuses, only its member's conditions are used.
const FAILED_STATUSES: [&str; 5] = ["Failed", "Aborted", "Aborting", "Terminated", "Terminating"];

/// Tasks without a name are numbered.
fn components(template: &Value, gates: Gates) -> Result<Vec<Component>, RuleError> {
    let component = |(index, task): (usize, &Value)| {
        let name = match text(task, &["name"]) {
            "" => format!("task-{index}"),
            name => name.to_owned(),
        };
        let pod = require(task, &["template"])?;
        Ok(pods::component(&name, replicas_or(task, &["minAvailable"], 1)?, Some(pod), gates))
    };
    list(template, &["spec", "tasks"]).enumerate().map(component).collect()
}

fn aggregate(template: &Value, members: &[MemberStatus<'_>], now: &str) -> Map<String, Value> {
    if let Some(only) = only_member_status(members) {
        return only;
    }
    let mut status = Map::new();
    for field in ["minAvailable", "pending", "running", "succeeded", "failed", "terminating", "unknown", "retryCount"] {
        set_or_remove(&mut status, field, Some(sum(members, &[field])));
    }
    set_or_remove(&mut status, "version", member_statuses(members).map(|status| count(status, &["version"])).max());
    set_or_remove(&mut status, "runningDuration", longest_duration(members).cloned());
    set_or_remove(&mut status, "taskStatusCount", Some(sum_tasks(members)));
    let resources = member_statuses(members).flat_map(|status| fields(status, &["controlledResources"]));
    let resources: Map<String, Value> = resources.map(|(name, value)| (name.clone(), value.clone())).collect();
    set_or_remove(&mut status, "controlledResources", Some(resources));
    set_or_remove(&mut status, "state", state(template, members, now));
    set_or_remove(&mut status, "conditions", Some(conditions(members)));
    match without_empty_values(Value::Object(status), true) {
        Some(Value::Object(status)) => status,
        _ => Map::new(),
    }
}

/// Pods per task and phase.
fn sum_tasks(members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut tasks: Map<String, Value> = Map::new();
    for (task, status) in member_statuses(members).flat_map(|status| fields(status, &["taskStatusCount"])) {
        let total = tasks.entry(task.clone()).or_insert_with(|| json!({"phase": {}}));
        for (phase, _) in fields(status, &["phase"]) {
            let path = ["phase", phase.as_str()];
            total["phase"][phase] = json!(count(total, &path) + count(status, &path));
        }
    }
    tasks
}

/// `Completed` if the Job completed in all members, `Failed` if it failed or was aborted in any, else `None`. An
/// unchanged state keeps its time.
fn state(template: &Value, members: &[MemberStatus<'_>], now: &str) -> Option<Value> {
    let phase =
        |member: &MemberStatus<'_>| member.status.map_or("", |status| text(status, &["state", "phase"])).to_owned();
    let failed = members.iter().filter(|member| ["Failed", "Aborted"].contains(&phase(member).as_str()));
    let failed: Vec<&str> = failed.map(|member| member.cluster).collect();
    let is_complete = !members.is_empty() && members.iter().all(|member| phase(member) == "Completed");
    let (phase, reason, message) = match (is_complete, failed.as_slice()) {
        (true, _) => ("Completed", "Completed", "Job completed successfully".to_owned()),
        (false, []) => return None,
        (false, failed) => ("Failed", "VolcanoJobFailed", format!("Job failed in clusters: {}", failed.join(","))),
    };
    let current = value_at(template, &["status", "state"]).filter(|current| {
        [("phase", phase), ("reason", reason), ("message", message.as_str())]
            .into_iter()
            .all(|(field, expected)| text(current, &[field]) == expected)
    });
    let time = current.and_then(|current| current.get("lastTransitionTime")).cloned().unwrap_or_else(|| json!(now));
    Some(json!({"phase": phase, "reason": reason, "message": message, "lastTransitionTime": time}))
}

/// The conditions of the first member that has a failed one ([`FAILED_STATUSES`]), otherwise the newest of each status.
fn conditions(members: &[MemberStatus<'_>]) -> Vec<Value> {
    let is_failed = |condition: &Value| FAILED_STATUSES.contains(&text(condition, &["status"]));
    let failed = member_statuses(members).find(|status| list(status, &["conditions"]).any(is_failed));
    if let Some(failed) = failed {
        return list(failed, &["conditions"]).cloned().collect();
    }
    let mut newest: Vec<Value> = Vec::new();
    for condition in member_statuses(members).flat_map(|status| list(status, &["conditions"])) {
        let time = |condition| text(condition, &["lastTransitionTime"]);
        let existing =
            newest.iter().find(|existing| value_at(existing, &["status"]) == value_at(condition, &["status"]));
        if existing.is_none_or(|existing| time(condition) > time(existing)) {
            replace_or_append(&mut newest, "status", condition);
        }
    }
    newest
}

fn longest_duration<'a>(members: &[MemberStatus<'a>]) -> Option<&'a Value> {
    let mut longest = None;
    for duration in member_statuses(members).filter_map(|status| value_at(status, &["runningDuration"])) {
        if seconds(duration) > longest.map_or(0.0, seconds) {
            longest = Some(duration);
        }
    }
    longest
}

/// Seconds of a Go duration, or of a number.
fn seconds(duration: &Value) -> f64 {
    let Some(duration) = duration.as_str() else { return duration.as_f64().unwrap_or_default() };
    let (mut total, mut number) = (0.0, String::new());
    for letter in duration.chars() {
        let unit = match letter {
            'h' => 3600.0,
            'm' => 60.0,
            's' => 1.0,
            '0'..='9' | '.' => {
                number.push(letter);
                continue;
            }
            _ => 0.0,
        };
        total += unit * number.parse::<f64>().unwrap_or_default();
        number.clear();
    }
    if total > 0.0 { total } else { number.parse().unwrap_or_default() }
}
