//! KubeRay: RayClusters, RayJobs and RayServices.

use crowsnest_api::work::{Component, ReplicaRequirements};
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::super::dependencies::from_pod_spec;
use super::super::status::MemberStatus;
use super::accessors::{count, fields, list, number, require_replicas, value_at};
use super::status::{
    find_most_severe, is_true, member_statuses, only_member_status, rank, set_or_remove, sum, template_status, times,
};
use super::{NO_RULES, ReplicasAndRequirements, RuleError, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::{namespace, set, text};
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::gates::Gates;

const V1: &str = "ray.io/v1";

pub(super) static KINDS: [ThirdPartyKind; 3] = [
    ThirdPartyKind {
        api_version: V1,
        kind: "RayCluster",
        components: Some(|template, gates| components(value_at(template, &["spec"]), gates)),
        aggregate: Some(|template, members, _| aggregate_cluster(template, members)),
        health: Some(|member| {
            let has = |kind| list(member, &["status", "conditions"]).any(|condition| is_true(condition, kind));
            Ok(has("HeadPodReady") && has("RayClusterProvisioned") && !has("RayClusterReplicaFailure"))
        }),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1,
        kind: "RayJob",
        components: Some(|template, gates| components(value_at(template, &["spec", "rayClusterSpec"]), gates)),
        aggregate: Some(|template, members, _| Ok(aggregate_job(template, members))),
        health: Some(|member| {
            let status_field = |field| text(member, &["status", field]);
            Ok(match status_field("jobDeploymentStatus") {
                "Running" => true,
                "Complete" => status_field("jobStatus") == "SUCCEEDED",
                _ => false,
            })
        }),
        dependencies: Some(|template| {
            let submitter = value_at(template, &["spec", "submitterPodTemplate"]);
            dependencies(template, value_at(template, &["spec", "rayClusterSpec"]), submitter)
        }),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1,
        kind: "RayService",
        replicas: Some(service_replicas),
        revise: Some(revise_service),
        aggregate: Some(|template, members, _| Ok(aggregate_service(template, members))),
        health: Some(|member| Ok(list(member, &["status", "conditions"]).any(|condition| is_true(condition, "Ready")))),
        dependencies: Some(|template| dependencies(template, value_at(template, &CONFIG), None)),
        ..NO_RULES
    },
];

const CONFIG: [&str; 2] = ["spec", "rayClusterConfig"];
const HEAD: [&str; 2] = ["headGroupSpec", "template"];

/// One head, and workers by group. Groups without a name are numbered.
fn components(cluster: Option<&Value>, gates: Gates) -> Result<Vec<Component>, RuleError> {
    let Some(cluster) = cluster else { return Ok(Vec::new()) };
    let head = value_at(cluster, &HEAD).map(|head| Ok(pods::component("ray-head", 1, Some(head), gates)));
    let workers = list(cluster, &["workerGroupSpecs"]).enumerate().map(|(index, group)| {
        let name = match text(group, &["groupName"]) {
            "" => format!("worker-{}", index + 1),
            name => name.to_owned(),
        };
        Ok(pods::component(&name, group_replicas(group)?, value_at(group, &["template"]), gates))
    });
    head.into_iter().chain(workers).collect()
}

fn group_replicas(group: &Value) -> Result<i32, RuleError> {
    match value_at(group, &["replicas"]) {
        Some(_) => require_replicas(group, &["replicas"]),
        None => Ok(0),
    }
}

fn dependencies(template: &Value, cluster: Option<&Value>, submitter: Option<&Value>) -> Vec<Dependency> {
    let groups = cluster.into_iter().flat_map(|cluster| list(cluster, &["workerGroupSpecs"]));
    let workers = groups.filter_map(|group| value_at(group, &["template"]));
    let head = cluster.and_then(|cluster| value_at(cluster, &HEAD));
    let templates = head.into_iter().chain(workers).chain(submitter);
    templates.flat_map(|pod| from_pod_spec(pod.get("spec"), namespace(template))).collect()
}

/// One head and all workers. Each is assumed to need the head's nodes, and the largest CPU and memory requests of any
/// of them.
fn service_replicas(template: &Value, gates: Gates) -> Result<ReplicasAndRequirements, RuleError> {
    let Some(cluster) = value_at(template, &CONFIG) else { return Ok((0, None)) };
    let Some(head) = value_at(cluster, &HEAD) else { return Ok((0, None)) };
    let mut replicas: i32 = 1;
    let mut requirements = pods::requirements(head, gates);
    for group in list(cluster, &["workerGroupSpecs"]) {
        replicas = replicas.saturating_add(group_replicas(group)?);
        let workers = value_at(group, &["template"]).and_then(|pod| pods::requirements(pod, gates));
        if let (Some(requirements), Some(workers)) = (&mut requirements, workers) {
            raise_requests(requirements, &workers);
        }
    }
    Ok((replicas, requirements))
}

/// Raises the CPU and memory requests to those of `other`, where these are larger.
fn raise_requests(requirements: &mut ReplicaRequirements, other: &ReplicaRequirements) {
    let amount = |requirements: &ReplicaRequirements, name: &str| {
        requirements.resource_request.get(name).and_then(|wire| Quantity::try_from(wire).ok()).unwrap_or_default()
    };
    for name in ["cpu", "memory"] {
        if amount(other, name) > amount(requirements, name)
            && let Some(larger) = other.resource_request.get(name)
        {
            requirements.resource_request.insert(name.to_owned(), larger.clone());
        }
    }
}

/// Distributes all but the head's replica to the worker groups: in proportion to their current replicas, or evenly if
/// there are none. The last group gets the remainder.
fn revise_service(manifest: &mut Value, replicas: i32) {
    let mut remaining = i64::from(replicas - 1).max(0);
    let groups = manifest
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("rayClusterConfig"))
        .and_then(|config| config.get_mut("workerGroupSpecs"))
        .and_then(Value::as_array_mut);
    let Some(groups) = groups else { return };
    let (workers, group_count) = (remaining, groups.len());
    let current: Vec<i64> = groups.iter().map(|group| count(group, &["replicas"])).collect();
    let total: i64 = current.iter().sum();
    for (index, (group, group_current)) in groups.iter_mut().zip(current).enumerate() {
        let even = workers / group_count as i64 + i64::from((index as i64) < workers % group_count as i64);
        let revised = match total {
            _ if index + 1 == group_count => remaining,
            0 => even,
            _ => (workers as f64 * (group_current as f64 / total as f64) + 0.5).floor() as i64,
        };
        let revised = revised.min(remaining);
        remaining -= revised;
        set(group, &["replicas"], json!(revised));
    }
}

/// Types of conditions that are `True` while a cluster or service is not ready.
const NEGATIVE_CONDITIONS: [&str; 5] =
    ["RayClusterReplicaFailure", "RayClusterSuspended", "RayClusterSuspending", "ReplicaFailure", "UpgradeInProgress"];

/// One condition per type, since the schema of KubeRay refuses several: the first that shows a problem, or the first.
fn select_worst_conditions(members: &[MemberStatus<'_>]) -> Vec<Value> {
    let is_problem = |condition: &Value| {
        let kind = text(condition, &["type"]);
        (text(condition, &["status"]) == "True") == NEGATIVE_CONDITIONS.contains(&kind)
    };
    let mut worst: Vec<Value> = Vec::new();
    for condition in member_statuses(members).flat_map(|status| list(status, &["conditions"])) {
        match worst.iter_mut().find(|current| text(current, &["type"]) == text(condition, &["type"])) {
            Some(current) => {
                if is_problem(condition) && !is_problem(current) {
                    current.clone_from(condition);
                }
            }
            None => worst.push(condition.clone()),
        }
    }
    worst
}

fn first_value<'a>(members: &[MemberStatus<'a>], field: &str) -> Option<&'a Value> {
    member_statuses(members).find_map(|status| value_at(status, &[field]))
}

/// Sums of counters and amounts; address and state of the head from the first member that reports them.
fn aggregate_cluster(template: &Value, members: &[MemberStatus<'_>]) -> Result<Map<String, Value>, RuleError> {
    if let Some(only) = only_member_status(members) {
        return Ok(only);
    }
    let mut status = template_status(template);
    set_or_remove(&mut status, "conditions", Some(select_worst_conditions(members)));
    for kind in ["ready", "available", "max", "min", "desired"] {
        let field = format!("{kind}WorkerReplicas");
        set_or_remove(&mut status, &field, Some(sum(members, &[&field])));
    }
    for field in ["desiredCPU", "desiredMemory"] {
        set_or_remove(&mut status, field, Some(sum_quantities(members, field)?));
    }
    for field in ["desiredGPU", "desiredTPU"] {
        set_or_remove(&mut status, field, Some(sum_devices(members, field)?));
    }
    set_or_remove(&mut status, "lastUpdateTime", times(members, "lastUpdateTime").max());
    for field in ["endpoints", "head", "state"] {
        set_or_remove(&mut status, field, first_value(members, field).cloned());
    }
    let with_state = member_statuses(members).find(|status| value_at(status, &["state"]).is_some());
    set_or_remove(
        &mut status,
        "stateTransitionTimes",
        with_state.and_then(|status| value_at(status, &["stateTransitionTimes"])).cloned(),
    );
    Ok(status)
}

/// Sum of quantities. It is formatted after each addition, so precision can be lost.
fn sum_quantities(members: &[MemberStatus<'_>], field: &str) -> Result<String, RuleError> {
    let mut sum = "0".to_owned();
    for amount in texts(members, field) {
        sum = (pods::quantity(&json!(sum))? + pods::quantity(amount)?).to_string();
    }
    Ok(sum)
}

fn sum_devices(members: &[MemberStatus<'_>], field: &str) -> Result<String, RuleError> {
    let mut sum = 0.0;
    for devices in texts(members, field) {
        sum += number(Some(devices)).ok_or_else(|| RuleError::Number(field.to_owned()))?;
    }
    Ok(sum.to_string())
}

fn texts<'a>(members: &[MemberStatus<'a>], field: &str) -> impl Iterator<Item = &'a Value> {
    member_statuses(members).filter_map(move |status| value_at(status, &[field])).filter(|value| *value != "")
}

/// Deployment statuses in increasing order of severity.
const DEPLOYMENT_STATUSES: [&[&str]; 9] = [
    &[""],
    &["Initializing"],
    &["Waiting"],
    &["Suspending", "Suspended"],
    &["Retrying"],
    &["Running"],
    &["Complete"],
    &["ValidationFailed"],
    &["Failed"],
];

/// Job statuses in increasing order of severity.
const JOB_STATUSES: [&[&str]; 6] = [&[""], &["PENDING"], &["RUNNING"], &["SUCCEEDED"], &["STOPPED"], &["FAILED"]];

/// The worst status of the job in any member.
fn aggregate_job(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    if let Some(only) = only_member_status(members) {
        return only;
    }
    let mut status = template_status(template);
    let deployed = member_statuses(members).filter(|status| value_at(status, &["jobDeploymentStatus"]).is_some());
    let deployed =
        find_most_severe(deployed, |status| rank(&DEPLOYMENT_STATUSES, text(status, &["jobDeploymentStatus"])));
    for field in ["jobDeploymentStatus", "reason", "message"] {
        set_or_remove(&mut status, field, deployed.and_then(|status| value_at(status, &[field])).cloned());
    }
    let run = member_statuses(members).filter(|status| !text(status, &["jobStatus"]).is_empty());
    let run = find_most_severe(run, |status| rank(&JOB_STATUSES, text(status, &["jobStatus"])));
    set_or_remove(&mut status, "jobStatus", run.and_then(|status| value_at(status, &["jobStatus"])).cloned());
    status
}

/// Application statuses in increasing order of severity.
const APPLICATION_STATUSES: [&[&str]; 6] =
    [&["RUNNING"], &["NOT_STARTED"], &["DEPLOYING"], &["DELETING"], &["UNHEALTHY"], &["DEPLOY_FAILED"]];

/// Aggregated status of a RayService: the first `activeServiceStatus`, with the worst status of each application.
fn aggregate_service(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    if let Some(only) = only_member_status(members) {
        return only;
    }
    let mut status = template_status(template);
    set_or_remove(&mut status, "conditions", Some(select_worst_conditions(members)));
    set_or_remove(&mut status, "numServeEndpoints", Some(sum(members, &["numServeEndpoints"])));
    set_or_remove(&mut status, "lastUpdateTime", times(members, "lastUpdateTime").max());
    let generations = member_statuses(members).map(|status| count(status, &["observedGeneration"]));
    set_or_remove(&mut status, "observedGeneration", Some(generations.max().unwrap_or_default().max(0)));
    let is_down = member_statuses(members).any(|status| status.get("serviceStatus").is_some_and(|status| status == ""));
    set_or_remove(&mut status, "serviceStatus", Some(if is_down { "" } else { "Running" }));
    if let Some(mut active) = first_value(members, "activeServiceStatus").cloned() {
        set(&mut active, &["applicationStatuses"], select_worst_applications(members));
        set_or_remove(&mut status, "activeServiceStatus", Some(active));
    }
    if let Some(pending) = first_value(members, "pendingServiceStatus") {
        set_or_remove(&mut status, "pendingServiceStatus", Some(pending.clone()));
    }
    status
}

fn select_worst_applications(members: &[MemberStatus<'_>]) -> Value {
    let mut worst: Map<String, Value> = Map::new();
    let severity = |application: &Value| rank(&APPLICATION_STATUSES, text(application, &["status"]));
    let all =
        member_statuses(members).flat_map(|status| fields(status, &["activeServiceStatus", "applicationStatuses"]));
    for (name, application) in all {
        if worst.get(name).is_none_or(|current| severity(application) > severity(current)) {
            worst.insert(name.clone(), application.clone());
        }
    }
    Value::Object(worst)
}
