//! FlinkDeployments: a job manager and task managers, described by fields of the kind.

use crowsnest_api::work::{Component, ComponentReplicaRequirements, ReplicaRequirements};
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{number, replicas_or, to_replica_count, value_at};
use super::status::{member_statuses, set_or_remove, status_fields, template_status};
use super::{NO_RULES, ReplicasAndRequirements, RuleError, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::{namespace, text};

pub(super) static KINDS: [ThirdPartyKind; 1] = [ThirdPartyKind {
    api_version: "flink.apache.org/v1beta1",
    kind: "FlinkDeployment",
    replicas: Some(|template, _| replicas(template)),
    components: Some(|template, _| components(template)),
    reflect: Some(|member| Value::Object(status_fields(member, &FIELDS))),
    aggregate: Some(|template, members, _| Ok(aggregate(template, members))),
    health: Some(|member| Ok(is_healthy(member))),
    ..NO_RULES
}];

const POD: [&str; 3] = ["spec", "podTemplate", "spec"];
const JOB_MANAGER: &str = "jobManager";
const TASK_MANAGER: &str = "taskManager";

const FIELDS: [&str; 8] = [
    "clusterInfo",
    "error",
    "jobManagerDeploymentStatus",
    "jobStatus",
    "lifecycleState",
    "observedGeneration",
    "reconciliationStatus",
    "taskManager",
];

fn job_managers(template: &Value) -> Result<i32, RuleError> {
    replicas_or(template, &["spec", JOB_MANAGER, "replicas"], 1)
}

/// The requested number, or as many as the job's parallelism needs at its slots per task manager.
fn task_managers(template: &Value) -> Result<i32, RuleError> {
    let requested = number(value_at(template, &["spec", TASK_MANAGER, "replicas"]));
    let parallelism = number(value_at(template, &["spec", "job", "parallelism"]));
    let slots = number(value_at(template, &["spec", "flinkConfiguration", "taskmanager.numberOfTaskSlots"]));
    let required = match (parallelism, slots.filter(|slots| *slots != 0.0)) {
        (Some(parallelism), Some(slots)) => (parallelism / slots).ceil(),
        _ => 1.0,
    };
    to_replica_count(requested.unwrap_or(required), &["spec", TASK_MANAGER, "replicas"])
}

/// Job managers and task managers in total. Each replica is assumed to need the larger requests of both.
fn replicas(template: &Value) -> Result<ReplicasAndRequirements, RuleError> {
    let pod = value_at(template, &POD);
    let mut requests = Vec::new();
    for (resource, read) in
        [("cpu", pods::quantity as fn(&Value) -> Result<Quantity, RuleError>), ("memory", parse_memory)]
    {
        let resource_of = |manager| value_at(template, &["spec", manager, "resource", resource]).map(read).transpose();
        let larger = match (resource_of(JOB_MANAGER)?, resource_of(TASK_MANAGER)?) {
            (Some(job), Some(task)) if job > task => Some(job),
            (job, task) => task.or(job),
        };
        requests.extend(larger.map(|amount| (resource, json!(amount.to_string()))));
    }
    let requirements = ReplicaRequirements {
        node_claim: pod.map_or(Ok(None), |pod| pods::node_claim(pod, false))?,
        resource_request: pods::requests(requests)?,
        namespace: namespace(template).to_owned(),
        priority_class_name: pod.map_or("", |pod| text(pod, &["priorityClassName"])).to_owned(),
    };
    Ok((job_managers(template)?.saturating_add(task_managers(template)?), Some(requirements)))
}

fn components(template: &Value) -> Result<Vec<Component>, RuleError> {
    let component = |name: &str, manager: &str, replicas| -> Result<Component, RuleError> {
        let resource_of = |resource| value_at(template, &["spec", manager, "resource", resource]).cloned();
        let pod = value_at(template, &POD);
        let memory = resource_of("memory").map(|amount| parse_memory(&amount)).transpose()?.map(to_plain_number);
        let requests = [("cpu", resource_of("cpu")), ("memory", memory)];
        let requests = requests.into_iter().filter_map(|(resource, amount)| Some((resource, amount?)));
        let requirements = ComponentReplicaRequirements {
            node_claim: pod.map_or(Ok(None), |pod| pods::node_claim(pod, false))?,
            resource_request: pods::requests(requests)?,
            priority_class_name: pod.map_or("", |pod| text(pod, &["priorityClassName"])).to_owned(),
        };
        Ok(Component { name: name.to_owned(), replicas, replica_requirements: Some(requirements) })
    };
    Ok(vec![
        component("jobmanager", JOB_MANAGER, job_managers(template)?)?,
        component("taskmanager", TASK_MANAGER, task_managers(template)?)?,
    ])
}

/// Parses a memory amount: as Flink's memory size ([`parse_memory_size`]), as Flink's operator does, otherwise as a
/// Kubernetes quantity. `2048m` and `2Gi` are both 2 GiB.
fn parse_memory(amount: &Value) -> Result<Quantity, RuleError> {
    match amount.as_str().and_then(parse_memory_size) {
        Some(bytes) => pods::quantity(&json!(bytes)),
        None => pods::quantity(amount),
    }
}

/// Parses a text as Flink's `MemorySize` and returns its bytes (org.apache.flink.configuration.MemorySize): an integer
/// with a case-insensitive unit, or without a unit for bytes.
fn parse_memory_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_lowercase();
    let exponent = MEMORY_UNITS.iter().position(|names| names.contains(&unit.as_str()))?;
    number.parse::<u64>().ok()?.checked_mul(1 << (10 * exponent))
}

/// Names of memory units, each 1024 times the previous one.
const MEMORY_UNITS: [&[&str]; 5] = [
    &["", "b", "bytes"],
    &["k", "kb", "kibibytes"],
    &["m", "mb", "mebibytes"],
    &["g", "gb", "gibibytes"],
    &["t", "tb", "tebibytes"],
];

/// The amount as a number without unit.
fn to_plain_number(quantity: Quantity) -> Value {
    json!(quantity.as_f64().to_string())
}

/// User errors, which would occur in any other cluster as well.
const USER_ERRORS: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff"];

/// True for jobs that run, finish or have finished, and for those that cannot start because of a user error.
fn is_healthy(member: &Value) -> bool {
    let status_field = |field| text(member, &["status", field]);
    let Some(state) = value_at(member, &["status", "jobStatus", "state"]) else {
        return status_field("jobManagerDeploymentStatus") == "READY" && status_field("lifecycleState") == "STABLE";
    };
    match state.as_str().unwrap_or_default() {
        "RUNNING" | "FINISHED" | "FAILED" | "CANCELED" | "SUSPENDED" | "CANCELLING" | "FAILING" | "RESTARTING" => true,
        "CREATED" | "INITIALIZING" | "RECONCILING" => {
            USER_ERRORS.iter().any(|error| status_field("error").contains(error))
        }
        _ => false,
    }
}

/// The fields of the last member's status. Without one they are omitted, since the schema of Flink's operator refuses
/// empty values of its enumerations, which Karmada writes.
fn aggregate(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut status = template_status(template);
    let last = member_statuses(members).last();
    for field in FIELDS {
        set_or_remove(&mut status, field, last.and_then(|last| value_at(last, &[field])).cloned());
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::mebibytes("2048m", Some("2147483648"))]
    #[case::with_blanks(" 2048 MB ", Some("2147483648"))]
    #[case::gibibytes("1g", Some("1073741824"))]
    #[case::case_does_not_matter("1G", Some("1073741824"))]
    #[case::named("1 gibibytes", Some("1073741824"))]
    #[case::tebibytes("2tb", Some("2199023255552"))]
    #[case::kibibytes("512K", Some("524288"))]
    #[case::bytes("1024", Some("1024"))]
    #[case::quantity("1Gi", Some("1Gi"))]
    #[case::quantity_with_exponent("1e9", Some("1e9"))]
    #[case::fraction_of_quantity("1.5Gi", Some("1536Mi"))]
    #[case::fraction("1.5g", None)]
    #[case::too_large("99999999999999t", None)]
    #[case::neither("lots", None)]
    #[case::empty("", None)]
    fn memory_in_either_syntax(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(parse_memory(&json!(text)).ok().map(|amount| amount.to_string()).as_deref(), expected);
    }
}
