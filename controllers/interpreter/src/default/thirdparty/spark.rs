//! SparkApplications: a driver and executors, described by fields of the kind.

use crowsnest_api::work::{Component, ComponentReplicaRequirements};
use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{fields, number, replicas_or, require, value_at};
use super::status::{
    find_most_severe, member_statuses, only_member_status, rank, set_or_remove, status_fields, sum, template_status,
    times,
};
use super::{NO_RULES, RuleError, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::text;

pub(super) static KINDS: [ThirdPartyKind; 1] = [ThirdPartyKind {
    api_version: "sparkoperator.k8s.io/v1beta2",
    kind: "SparkApplication",
    components: Some(|template, _| components(template)),
    reflect: Some(|member| Value::Object(status_fields(member, &FIELDS))),
    aggregate: Some(|template, members, _| Ok(aggregate(template, members))),
    required_fields: &[("driverInfo", || json!({}))],
    health: Some(|member| {
        let state = value_at(member, &["status", "applicationState", "state"]);
        Ok(state.is_some_and(|state| state != "FAILED"))
    }),
    ..NO_RULES
}];

const FIELDS: [&str; 9] = [
    "applicationState",
    "driverInfo",
    "executorState",
    "sparkApplicationId",
    "lastSubmissionAttemptTime",
    "submissionAttempts",
    "executionAttempts",
    "submissionID",
    "terminationTime",
];

fn components(template: &Value) -> Result<Vec<Component>, RuleError> {
    let language = text(require(template, &["spec"])?, &["type"]);
    require(template, &["spec", "type"])?;
    let is_jvm = ["java", "scala"].iter().any(|name| language.eq_ignore_ascii_case(name));
    let default_factor = if is_jvm { 0.10 } else { 0.40 };
    let factor = number(value_at(template, &["spec", "memoryOverheadFactor"])).unwrap_or(default_factor);
    let component = |role: &str, replicas| -> Result<Component, RuleError> {
        let role_spec = value_at(template, &["spec", role]).unwrap_or(&Value::Null);
        Ok(Component { name: role.to_owned(), replicas, replica_requirements: Some(requirements(role_spec, factor)?) })
    };
    Ok(vec![component("driver", 1)?, component("executor", executors(template)?)?])
}

/// The requested number, or with dynamic allocation at least the initial and minimum number.
fn executors(template: &Value) -> Result<i32, RuleError> {
    let instances = replicas_or(template, &["spec", "executor", "instances"], 1)?;
    let allocation = |field| replicas_or(template, &["spec", "dynamicAllocation", field], 1);
    match value_at(template, &["spec", "dynamicAllocation", "enabled"]) {
        None | Some(Value::Bool(false)) => Ok(instances),
        Some(_) => Ok(instances.max(allocation("initialExecutors")?).max(allocation("minExecutors")?)),
    }
}

fn requirements(role: &Value, factor: f64) -> Result<ComponentReplicaRequirements, RuleError> {
    let cores = value_at(role, &["cores"]).cloned().unwrap_or_else(|| json!(1));
    let mut requests = vec![("cpu", cores), ("memory", json!(memory(role, factor)?))];
    let device = text(role, &["gpu", "name"]);
    let devices = number(value_at(role, &["gpu", "quantity"])).unwrap_or_default();
    if !device.is_empty() && devices > 0.0 {
        requests.push((device, json!(devices.to_string())));
    }
    Ok(ComponentReplicaRequirements {
        node_claim: pods::node_claim(role, true)?,
        resource_request: pods::requests(requests)?,
        priority_class_name: text(role, &["priorityClassName"]).to_owned(),
    })
}

/// Memory units in ascending order, each 1024 times the previous one: Kubernetes' name and Java's names.
const UNITS: [(&str, [&str; 2]); 6] = [
    ("", ["b", "b"]),
    ("Ki", ["k", "kb"]),
    ("Mi", ["m", "mb"]),
    ("Gi", ["g", "gb"]),
    ("Ti", ["t", "tb"]),
    ("Pi", ["p", "pb"]),
];

/// An amount in one of the [`UNITS`].
#[derive(Clone, Copy)]
struct Memory {
    amount: f64,
    unit: usize,
}

/// Minimum memory overhead.
const MIN_OVERHEAD: Memory = Memory { amount: 384.0, unit: 2 };

impl Memory {
    /// Parses an amount as Spark does (`JavaUtils.byteStringAs`): the unit is case-insensitive, and an amount without unit
    /// is in MiB. As in Karmada, the amount may have a fraction.
    fn parse(java: &str) -> Result<Self, RuleError> {
        let invalid = || RuleError::Memory(java.to_owned());
        let lower = java.trim().to_ascii_lowercase();
        let end = lower.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(lower.len());
        let (amount, unit) = lower.split_at(end);
        let unit = if unit.is_empty() { "m" } else { unit };
        let unit = UNITS.iter().position(|(_, names)| names.contains(&unit)).ok_or_else(invalid)?;
        let starts_with_digit = amount.starts_with(|letter: char| letter.is_ascii_digit());
        let amount = amount.parse().ok().filter(|_| starts_with_digit).ok_or_else(invalid)?;
        Ok(Memory { amount, unit })
    }

    fn to_unit(self, unit: usize) -> f64 {
        self.amount * 1024_f64.powi(self.unit as i32 - unit as i32)
    }
}

/// Requested memory plus overhead, in the smaller of the two units.
fn memory(role: &Value, factor: f64) -> Result<String, RuleError> {
    let requested =
        Memory::parse(value_at(role, &["memory"]).map_or("1g", |memory| memory.as_str().unwrap_or_default()))?;
    let overhead = match value_at(role, &["memoryOverhead"]) {
        Some(overhead) => Memory::parse(overhead.as_str().unwrap_or_default())?,
        None => {
            let unit = requested.unit.min(MIN_OVERHEAD.unit);
            let share = Memory { amount: requested.amount * factor, unit: requested.unit };
            Memory { amount: share.to_unit(unit).max(MIN_OVERHEAD.to_unit(unit)), unit }
        }
    };
    let unit = requested.unit.min(overhead.unit);
    Ok(format!("{:.6}{}", requested.to_unit(unit) + overhead.to_unit(unit), UNITS[unit].0))
}

/// Application states in increasing order of severity.
const STATES: [&[&str]; 7] = [
    &["", "UNKNOWN"],
    &["SUBMITTED", "PENDING_RERUN"],
    &["COMPLETED"],
    &["SUSPENDING", "SUSPENDED"],
    &["RUNNING", "RESUMING", "SUCCEEDING"],
    &["INVALIDATING"],
    &["FAILING", "FAILED", "SUBMISSION_FAILED"],
];

/// The worst application state of any member, with the attempts and executors of all. Times that no member has are
/// omitted, since the schema of Spark's operator refuses empty ones, which Karmada writes.
fn aggregate(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    if let Some(only) = only_member_status(members) {
        return only;
    }
    let mut status = template_status(template);
    let states = member_statuses(members).filter_map(|status| value_at(status, &["applicationState"]));
    let severity = |state: &Value| rank(&STATES, text(state, &["state"]));
    set_or_remove(&mut status, "applicationState", find_most_severe(states, severity).cloned());
    for field in ["executionAttempts", "submissionAttempts"] {
        set_or_remove(&mut status, field, Some(sum(members, &[field])));
    }
    for field in ["lastSubmissionAttemptTime", "terminationTime"] {
        set_or_remove(&mut status, field, times(members, field).max());
    }
    let executors = member_statuses(members).flat_map(|status| fields(status, &["executorState"]));
    let executors: Map<String, Value> = executors.map(|(name, state)| (name.clone(), state.clone())).collect();
    set_or_remove(&mut status, "executorState", Some(executors));
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::mebibytes("512m", Some("896.000000Mi"))]
    #[case::upper_case_with_two_letters("8GB", Some("9011.200000Mi"))]
    #[case::gibibytes("1g", Some("1408.000000Mi"))]
    #[case::without_unit("1024", Some("1408.000000Mi"))]
    #[case::with_blanks(" 1g ", Some("1408.000000Mi"))]
    #[case::kibibytes("1024k", Some("394240.000000Ki"))]
    #[case::bytes("1048576b", Some("403701760.000000"))]
    #[case::fraction("0.5g", Some("896.000000Mi"))]
    #[case::blank_before_the_unit("1 g", None)]
    #[case::kubernetes_unit("1Gi", None)]
    #[case::no_number("g", None)]
    #[case::empty("", None)]
    fn memory_with_overhead(#[case] requested: &str, #[case] expected: Option<&str>) {
        assert_eq!(memory(&json!({"memory": requested}), 0.1).ok().as_deref(), expected);
    }

    #[rstest]
    #[case::without_unit("512", "1536.000000Mi")]
    #[case::smaller_unit("1k", "1048577.000000Ki")]
    fn memory_with_requested_overhead(#[case] overhead: &str, #[case] expected: &str) {
        let role = json!({"memory": "1g", "memoryOverhead": overhead});
        assert_eq!(memory(&role, 0.1).expect("an amount"), expected);
    }
}
