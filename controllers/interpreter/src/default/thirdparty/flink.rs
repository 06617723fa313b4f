//! Flink's deployments: a job manager and task managers, described by the kind's own fields.

use crowsnest_api::work::{Component, ComponentReplicaRequirements, ReplicaRequirements};
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::reading::{given, number, replicas_or, whole};
use super::status::{fields_of, put, reported, shown};
use super::{NOTHING, Needs, NoAnswer, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::{namespace, text};

pub(super) static KINDS: [ThirdPartyKind; 1] = [ThirdPartyKind {
    api_version: "flink.apache.org/v1beta1",
    kind: "FlinkDeployment",
    replicas: Some(|template, _| replicas(template)),
    components: Some(|template, _| components(template)),
    reflect: Some(|member| Value::Object(fields_of(member, &FIELDS))),
    aggregate: Some(|template, members, _| Ok(aggregate(template, members))),
    health: Some(|member| Ok(is_healthy(member))),
    ..NOTHING
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

fn job_managers(template: &Value) -> Result<i32, NoAnswer> {
    replicas_or(template, &["spec", JOB_MANAGER, "replicas"], 1)
}

/// As many as are asked for, or as the job's parallelism fills with its slots.
fn task_managers(template: &Value) -> Result<i32, NoAnswer> {
    let asked = number(given(template, &["spec", TASK_MANAGER, "replicas"]));
    let parallelism = number(given(template, &["spec", "job", "parallelism"]));
    let slots = number(given(template, &["spec", "flinkConfiguration", "taskmanager.numberOfTaskSlots"]));
    let filled = match (parallelism, slots.filter(|slots| *slots != 0.0)) {
        (Some(parallelism), Some(slots)) => (parallelism / slots).ceil(),
        _ => 1.0,
    };
    whole(asked.unwrap_or(filled), &["spec", TASK_MANAGER, "replicas"])
}

/// Both together. Each replica is taken to need the larger amounts of the two.
fn replicas(template: &Value) -> Result<Needs, NoAnswer> {
    let pod = given(template, &POD);
    let mut requests = Vec::new();
    for resource in ["cpu", "memory"] {
        let of = |manager| given(template, &["spec", manager, "resource", resource]);
        let larger = match (of(JOB_MANAGER), of(TASK_MANAGER)) {
            (Some(job), Some(task)) if pods::quantity(job)? > pods::quantity(task)? => Some(job),
            (job, task) => task.or(job),
        };
        requests.extend(larger.map(|amount| (resource, amount.clone())));
    }
    let needs = ReplicaRequirements {
        node_claim: pod.map_or(Ok(None), |pod| pods::node_claim(pod, false))?,
        resource_request: pods::requests(requests)?,
        namespace: namespace(template).to_owned(),
        priority_class_name: pod.map_or("", |pod| text(pod, &["priorityClassName"])).to_owned(),
    };
    Ok((job_managers(template)?.saturating_add(task_managers(template)?), Some(needs)))
}

fn components(template: &Value) -> Result<Vec<Component>, NoAnswer> {
    let component = |name: &str, manager: &str, replicas| -> Result<Component, NoAnswer> {
        let of = |resource| given(template, &["spec", manager, "resource", resource]).cloned();
        let pod = given(template, &POD);
        let memory = of("memory").map(|memory| pods::quantity(&memory)).transpose()?.map(plain);
        let requests = [("cpu", of("cpu")), ("memory", memory)];
        let requests = requests.into_iter().filter_map(|(resource, amount)| Some((resource, amount?)));
        let needs = ComponentReplicaRequirements {
            node_claim: pod.map_or(Ok(None), |pod| pods::node_claim(pod, false))?,
            resource_request: pods::requests(requests)?,
            priority_class_name: pod.map_or("", |pod| text(pod, &["priorityClassName"])).to_owned(),
        };
        Ok(Component { name: name.to_owned(), replicas, replica_requirements: Some(needs) })
    };
    Ok(vec![
        component("jobmanager", JOB_MANAGER, job_managers(template)?)?,
        component("taskmanager", TASK_MANAGER, task_managers(template)?)?,
    ])
}

/// The amount as a number without a unit.
fn plain(quantity: Quantity) -> Value {
    json!(quantity.as_f64().to_string())
}

/// Errors of the user's, which no other cluster would mend.
const USERS_ERRORS: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff"];

/// Well are jobs that run, that have ended or are about to, and those whose beginning hangs by their user's error.
fn is_healthy(member: &Value) -> bool {
    let said = |field| text(member, &["status", field]);
    let Some(state) = given(member, &["status", "jobStatus", "state"]) else {
        return said("jobManagerDeploymentStatus") == "READY" && said("lifecycleState") == "STABLE";
    };
    match state.as_str().unwrap_or_default() {
        "RUNNING" | "FINISHED" | "FAILED" | "CANCELED" | "SUSPENDED" | "CANCELLING" | "FAILING" | "RESTARTING" => true,
        "CREATED" | "INITIALIZING" | "RECONCILING" => USERS_ERRORS.iter().any(|error| said("error").contains(error)),
        _ => false,
    }
}

/// The last member's, whole.
fn aggregate(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut status = shown(template);
    let last = reported(members).last();
    let nothing = |field| match field {
        "observedGeneration" => json!(0),
        "error" | "jobManagerDeploymentStatus" | "lifecycleState" => json!(""),
        _ => Value::Null,
    };
    for field in FIELDS {
        let value = last.map_or_else(|| nothing(field), |last| last.get(field).cloned().unwrap_or_default());
        put(&mut status, field, Some(value));
    }
    status
}
