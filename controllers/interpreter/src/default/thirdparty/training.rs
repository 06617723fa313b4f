//! Kubeflow training jobs.

use crowsnest_api::work::Component;
use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{count, fields, list, replicas_or, value_at, without_empty_values};
use super::status::{
    is_true, member_statuses, only_member_status, replace_or_append, set_or_remove, status_fields, sum,
    template_status, times, with_times,
};
use super::{NO_RULES, RuleError, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::text;
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::gates::Gates;

const V1: &str = "kubeflow.org/v1";

/// Fields that the schemas of PyTorchJobs and TFJobs require.
const REQUIRED_FIELDS: [(&str, fn() -> Value); 2] = [("conditions", || json!([])), ("replicaStatuses", || json!({}))];

pub(super) static KINDS: [ThirdPartyKind; 3] = [
    ThirdPartyKind {
        api_version: V1,
        kind: "PyTorchJob",
        components: Some(|template, gates| PY_TORCH.components(template, gates)),
        aggregate: Some(|template, members, _| Ok(aggregate_py_torch(template, members))),
        required_fields: &REQUIRED_FIELDS,
        health: Some(|member| Ok(value_at(member, &["status", "conditions"]).is_some() && !has_failed(member))),
        dependencies: Some(|template| PY_TORCH.dependencies(template)),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1,
        kind: "TFJob",
        components: Some(|template, gates| TENSOR_FLOW.components(template, gates)),
        aggregate: Some(|template, members, now| Ok(aggregate_tensor_flow(template, members, now))),
        required_fields: &REQUIRED_FIELDS,
        health: Some(|member| Ok(value_at(member, &["status", "conditions"]).is_some() && !has_failed(member))),
        dependencies: Some(|template| TENSOR_FLOW.dependencies(template)),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: "kubeflow.org/v2beta1",
        kind: "MPIJob",
        components: Some(mpi_components),
        reflect: Some(reflect_mpi),
        aggregate: Some(|template, members, _| Ok(aggregate_mpi(template, members))),
        health: Some(|member| Ok(list(member, &["status", "conditions"]).next().is_some() && !has_failed(member))),
        ..NO_RULES
    },
];

fn has_failed(member: &Value) -> bool {
    list(member, &["status", "conditions"]).any(|condition| is_true(condition, "Failed"))
}

/// Replica specs of a kind of job: its roles, each with its own pod template.
struct ReplicaSpecs {
    /// Field of `spec` that contains them.
    field: &'static str,
    /// Names of the roles, and of their components.
    roles: &'static [(&'static str, &'static str)],
}

const PY_TORCH: ReplicaSpecs =
    ReplicaSpecs { field: "pytorchReplicaSpecs", roles: &[("Master", "master"), ("Worker", "worker")] };

const TENSOR_FLOW: ReplicaSpecs = ReplicaSpecs {
    field: "tfReplicaSpecs",
    roles: &[("PS", "ps"), ("Worker", "worker"), ("Chief", "chief"), ("Master", "master"), ("Evaluator", "evaluator")],
};

impl ReplicaSpecs {
    fn specs<'a>(&self, template: &'a Value) -> impl Iterator<Item = (&'static str, &'a Value)> {
        let spec =
            move |(role, name): &(&str, &'static str)| Some((*name, value_at(template, &["spec", self.field, role])?));
        self.roles.iter().filter_map(spec)
    }

    fn components(&self, template: &Value, gates: Gates) -> Result<Vec<Component>, RuleError> {
        let component = |(name, spec)| {
            let replicas = replicas_or(spec, &["replicas"], 1)?;
            Ok(pods::component(name, replicas, value_at(spec, &["template"]), gates))
        };
        self.specs(template).map(component).collect()
    }

    fn dependencies(&self, template: &Value) -> Vec<Dependency> {
        self.specs(template).flat_map(|(_, spec)| pods::dependencies(value_at(spec, &["template"]), template)).collect()
    }

    /// Counts of pods of all members by role and state.
    fn replica_statuses(&self, members: &[MemberStatus<'_>]) -> Value {
        let counts_of_role = |role: &str| -> Value {
            let sum_state = |state: &str| (state.to_owned(), json!(sum(members, &["replicaStatuses", role, state])));
            ["active", "failed", "succeeded"].into_iter().map(sum_state).collect()
        };
        self.roles.iter().map(|(role, _)| ((*role).to_owned(), counts_of_role(role))).collect()
    }

    /// The template's status with the times and counts that PyTorchJobs and TFJobs have in common.
    fn aggregate_common_fields(&self, template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
        let mut status = template_status(template);
        set_or_remove(&mut status, "startTime", times(members, "startTime").min());
        set_or_remove(&mut status, "lastReconcileTime", times(members, "lastReconcileTime").max());
        set_or_remove(&mut status, "replicaStatuses", Some(self.replica_statuses(members)));
        status
    }
}

/// Removes empty fields as [`without_empty_values`] does.
fn without_empty_fields(status: Map<String, Value>, zeros: bool) -> Map<String, Value> {
    match without_empty_values(Value::Object(status), zeros) {
        Some(Value::Object(status)) => status,
        _ => Map::new(),
    }
}

fn conditions<'a>(member: &MemberStatus<'a>) -> impl Iterator<Item = &'a Value> {
    member.status.into_iter().flat_map(|status| list(status, &["conditions"]))
}

/// Aggregated status of a PyTorchJob. The conditions are in the order created, running and finished, because kubectl
/// shows the last one.
fn aggregate_py_torch(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    if members.is_empty() {
        let mut status = template_status(template);
        for field in ["startTime", "completionTime", "replicaStatuses", "conditions"] {
            status.remove(field);
        }
        return status;
    }
    let has_condition = |member: &MemberStatus<'_>, kind| conditions(member).any(|condition| is_true(condition, kind));
    let failed: Vec<&str> =
        members.iter().filter(|member| has_condition(member, "Failed")).map(|member| member.cluster).collect();
    let succeeded =
        members.iter().filter(|member| !has_condition(member, "Failed") && has_condition(member, "Succeeded")).count();
    let mut status = PY_TORCH.aggregate_common_fields(template, members);
    let started = status.get("startTime").cloned();
    let completed = times(members, "completionTime").max().map(Value::from);
    let condition =
        |condition_type: &str, state: &str, updated: &Option<Value>, changed: &Option<Value>, message: String| {
            json!({"type": condition_type, "status": state, "reason": format!("PyTorchJob{condition_type}"),
               "message": message, "lastUpdateTime": updated, "lastTransitionTime": changed})
        };
    let mut aggregated = Vec::new();
    if members.iter().any(|member| has_condition(member, "Created")) {
        aggregated.push(condition("Created", "True", &started, &started, "PyTorchJob is created.".to_owned()));
    }
    if let Some(running) =
        members.iter().flat_map(conditions).filter(|condition| text(condition, &["type"]) == "Running").last()
    {
        let has_ended = !failed.is_empty() || succeeded == members.len();
        let time = |field| value_at(running, &[field]).cloned();
        let state = if has_ended { "False" } else { "True" };
        let message = "PyTorchJob is running.".to_owned();
        aggregated.push(condition("Running", state, &time("lastUpdateTime"), &time("lastTransitionTime"), message));
    }
    if !failed.is_empty() {
        let message = format!("PyTorchJob executed failed in member clusters: {}", failed.join(", "));
        aggregated.push(condition("Failed", "True", &completed, &completed, message));
    } else if succeeded == members.len() {
        let message = "PyTorchJob is successfully completed.".to_owned();
        aggregated.push(condition("Succeeded", "True", &completed, &completed, message));
        set_or_remove(&mut status, "completionTime", completed);
    }
    set_or_remove(&mut status, "conditions", Some(aggregated));
    without_empty_fields(status, true)
}

/// Aggregated status of a TFJob. The job has failed if it failed in any member, and succeeded if it did in all. Other
/// conditions of members are ignored.
fn aggregate_tensor_flow(template: &Value, members: &[MemberStatus<'_>], now: &str) -> Map<String, Value> {
    let is_final = |condition: &&Value| is_true(condition, "Succeeded") || is_true(condition, "Failed");
    let final_condition = |member: &MemberStatus<'_>| {
        conditions(member).filter(is_final).last().map_or("", |condition| text(condition, &["type"])).to_owned()
    };
    let failed: Vec<&str> =
        members.iter().filter(|member| final_condition(member) == "Failed").map(|member| member.cluster).collect();
    let succeeded = members.iter().filter(|member| final_condition(member) == "Succeeded").count();
    let mut status = TENSOR_FLOW.aggregate_common_fields(template, members);
    let condition = |condition_type: &str, reason: &str, message: String| {
        with_times(
            template,
            json!({"type": condition_type, "status": "True", "reason": reason, "message": message}),
            now,
        )
    };
    let mut aggregated = Vec::new();
    if !failed.is_empty() {
        let message = format!("TFJob executed failed in member clusters: {}", failed.join(", "));
        aggregated.push(condition("Failed", "TFJobFailed", message));
    }
    if succeeded > 0 && succeeded == members.len() {
        aggregated.push(condition("Succeeded", "Completed", "TFJob completed successfully".to_owned()));
        set_or_remove(&mut status, "completionTime", times(members, "completionTime").max());
    }
    set_or_remove(&mut status, "conditions", Some(aggregated));
    without_empty_fields(status, true)
}

/// One component per role. Roles have user-defined names. The default is one replica, and none for the role `worker`.
fn mpi_components(template: &Value, gates: Gates) -> Result<Vec<Component>, RuleError> {
    let component = |(role, spec): (&String, &Value)| {
        let pod = value_at(spec, &["template"])?;
        let default_replicas = if role.eq_ignore_ascii_case("worker") { 0 } else { 1 };
        let replicas = replicas_or(spec, &["replicas"], default_replicas);
        Some(replicas.map(|replicas| pods::component(role, replicas, Some(pod), gates)))
    };
    fields(template, &["spec", "mpiReplicaSpecs"]).filter_map(component).collect()
}

fn reflect_mpi(member: &Value) -> Value {
    if value_at(member, &["status"]).is_none() {
        return json!({});
    }
    let role = |(role, status): (&String, &Value)| {
        let fields_of_role =
            ["active", "succeeded", "failed", "selector"].map(|field| (field.to_owned(), status.get(field)));
        let fields_of_role: Map<String, Value> =
            fields_of_role.into_iter().filter_map(|(field, value)| Some((field, value?.clone()))).collect();
        (role.clone(), Value::Object(fields_of_role))
    };
    let roles: Map<String, Value> = fields(member, &["status", "replicaStatuses"]).map(role).collect();
    let mut status = status_fields(member, &["conditions", "startTime", "completionTime", "lastReconcileTime"]);
    set_or_remove(&mut status, "replicaStatuses", Some(roles));
    Value::Object(status)
}

/// Aggregated status of an MPIJob: counts are summed, and the newest condition of each type is kept.
fn aggregate_mpi(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    if members.is_empty() {
        return template_status(template);
    }
    if let Some(only) = only_member_status(members) {
        return only;
    }
    let mut roles: Map<String, Value> = Map::new();
    for (role, pods) in member_statuses(members).flat_map(|status| fields(status, &["replicaStatuses"])) {
        let total = roles.entry(role.clone()).or_insert_with(|| json!({}));
        for state in ["active", "succeeded", "failed"] {
            total[state] = json!(count(total, &[state]) + count(pods, &[state]));
        }
    }
    let mut newest: Vec<Value> = Vec::new();
    for condition in members.iter().flat_map(conditions) {
        let time = |condition: &Value| {
            value_at(condition, &["lastUpdateTime"]).or(value_at(condition, &["lastTransitionTime"])).cloned()
        };
        let Some(Value::String(at)) = time(condition).filter(|at| *at != "") else { continue };
        let existing = newest.iter().find(|existing| value_at(existing, &["type"]) == value_at(condition, &["type"]));
        if existing.and_then(time).is_none_or(|time| time.as_str() < Some(at.as_str())) {
            replace_or_append(&mut newest, "type", condition);
        }
    }
    let mut status = Map::new();
    set_or_remove(&mut status, "replicaStatuses", Some(roles));
    set_or_remove(&mut status, "startTime", times(members, "startTime").min());
    set_or_remove(&mut status, "completionTime", times(members, "completionTime").max());
    set_or_remove(&mut status, "lastReconcileTime", times(members, "lastReconcileTime").max());
    set_or_remove(&mut status, "conditions", Some(newest));
    without_empty_fields(status, false)
}
