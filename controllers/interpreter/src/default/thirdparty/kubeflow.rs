//! Kubeflow Notebooks.

use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{count, value_at};
use super::status::{only_member_status, set_or_remove, sum, with_times};
use super::{NO_RULES, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::text;

pub(super) static KINDS: [ThirdPartyKind; 1] = [ThirdPartyKind {
    api_version: "kubeflow.org/v1",
    kind: "Notebook",
    replicas: Some(|template, gates| pods::template_replicas(template, 1, gates)),
    reflect: Some(reflect),
    aggregate: Some(|template, members, now| Ok(aggregate(template, members, now))),
    health: Some(|member| Ok(is_healthy(member))),
    ..NO_RULES
}];

fn reflect(member: &Value) -> Value {
    let Some(status) = value_at(member, &["status"]) else { return json!({}) };
    json!({
        "readyReplicas": count(status, &["readyReplicas"]),
        "containerState": status.get("containerState"),
        "conditions": value_at(status, &["conditions"]).filter(|conditions| conditions.is_array()),
    })
}

/// True if the notebook runs, is about to run, or terminated successfully.
fn is_healthy(member: &Value) -> bool {
    let Some(state) = value_at(member, &["status", "containerState"]) else { return false };
    if value_at(state, &["running"]).is_some() {
        return true;
    }
    if let Some(waiting) = value_at(state, &["waiting"]) {
        return text(waiting, &["reason"]) == "ContainerCreating";
    }
    let Some(terminated) = value_at(state, &["terminated"]) else { return false };
    let has_failed = ["Error", "OOMKilled", "ContainerCannotRun"].contains(&text(terminated, &["reason"]));
    !has_failed && count(terminated, &["exitCode"]) == 0
}

/// Combined state of the containers of all members.
#[derive(Default)]
struct Containers<'a> {
    running_count: usize,
    failed_clusters: Vec<&'a str>,
    state: Option<Value>,
}

impl<'a> Containers<'a> {
    /// After a failure, members are no longer counted as running.
    fn add_member(&mut self, cluster: &'a str, status: &Value) {
        let state = value_at(status, &["containerState"])
            .filter(|state| state.as_object().is_none_or(|state| !state.is_empty()));
        let Some(state) = state else {
            self.failed_clusters.push(cluster);
            self.state = Some(json!({"waiting": {"reason": "Unschedulable"}}));
            return;
        };
        if value_at(state, &["terminated"]).is_some() || value_at(state, &["waiting"]).is_some() {
            self.failed_clusters.push(cluster);
            self.state = Some(state.clone());
        } else if let Some(running) = value_at(state, &["running"])
            && self.failed_clusters.is_empty()
        {
            self.running_count += 1;
            let started = text(running, &["startedAt"]);
            let latest = self.state.as_ref().map(|state| text(state, &["running", "startedAt"]));
            if latest.is_none_or(|latest| started > latest) {
                self.state = Some(json!({"running": {"startedAt": value_at(running, &["startedAt"])}}));
            }
        }
    }
}

fn aggregate(template: &Value, members: &[MemberStatus<'_>], now: &str) -> Map<String, Value> {
    if let Some(status) = only_member_status(members) {
        return status;
    }
    let mut containers = Containers::default();
    for member in members {
        if let Some(status) = member.status {
            containers.add_member(member.cluster, status);
        }
    }
    let condition = |kind: &str, reason: &str, message: String| {
        with_times(template, json!({"type": kind, "status": "True", "reason": reason, "message": message}), now)
    };
    let mut conditions = Vec::new();
    if !containers.failed_clusters.is_empty() {
        let message = format!("Notebook executed failed in member clusters: {}", containers.failed_clusters.join(", "));
        conditions.push(condition("Failed", "NotebookFailed", message));
    }
    if containers.running_count > 0 && containers.running_count == members.len() {
        conditions.push(condition("Ready", "Ready", "All notebooks are ready".to_owned()));
    }
    let mut status = Map::new();
    set_or_remove(&mut status, "readyReplicas", Some(sum(members, &["readyReplicas"])));
    set_or_remove(&mut status, "containerState", containers.state);
    set_or_remove(&mut status, "conditions", Some(conditions));
    status
}
