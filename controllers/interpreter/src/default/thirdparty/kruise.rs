//! OpenKruise: workloads, jobs and sidecars of `apps.kruise.io`.

use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{count, list, replicas_or_one, require, require_integer, require_replicas, value_at};
use super::status::{
    self, is_true, last_text, last_value, member_statuses, set_or_remove, status_fields, sum, template_status,
    with_generations,
};
use super::{NO_RULES, ReplicasAndRequirements, RuleError, ThirdPartyKind, pods};
use crowsnest_apimachinery::unstructured::{namespace, set, text};
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::gates::Gates;

const V1ALPHA1: &str = "apps.kruise.io/v1alpha1";

pub(super) static KINDS: [ThirdPartyKind; 7] = [
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "AdvancedCronJob",
        aggregate: Some(|template, members, _| Ok(aggregate_cron_job(template, members))),
        dependencies: Some(cron_job_dependencies),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "BroadcastJob",
        replicas: Some(|template, gates| {
            pods::template_replicas(template, replicas_or_one(template, &["spec", "parallelism"])?, gates)
        }),
        revise: Some(pods::set_spec_parallelism),
        retain: Some(retain_pod_labels),
        reflect: Some(|member| Value::Object(status_fields(member, &JOB_FIELDS))),
        aggregate: Some(|template, members, _| Ok(aggregate_job(template, members))),
        health: Some(is_job_healthy),
        dependencies: Some(pods::template_dependencies),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "CloneSet",
        replicas: Some(replicas),
        revise: Some(pods::set_spec_replicas),
        reflect: Some(|member| CLONE_SET.reflect(member)),
        aggregate: Some(|template, members, _| Ok(CLONE_SET.aggregate(template, members))),
        health: Some(is_rolled_out),
        dependencies: Some(pods::template_dependencies),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "DaemonSet",
        reflect: Some(|member| DAEMON_SET.reflect(member)),
        aggregate: Some(|template, members, _| Ok(DAEMON_SET.aggregate(template, members))),
        health: Some(is_daemon_set_healthy),
        dependencies: Some(pods::template_dependencies),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "SidecarSet",
        // Its pods belong to other workloads.
        replicas: Some(|_, _| Ok((0, None))),
        retain: Some(|_, _| ()),
        reflect: Some(reflect_sidecars),
        aggregate: Some(|_, members, _| {
            Ok(SIDECAR_COUNTERS.into_iter().map(|field| (field.to_owned(), json!(sum(members, &[field])))).collect())
        }),
        health: Some(|member| Ok(are_sidecars_healthy(member))),
        dependencies: Some(sidecar_dependencies),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "UnitedDeployment",
        replicas: Some(replicas),
        revise: Some(pods::set_spec_replicas),
        reflect: Some(|member| UNITED_DEPLOYMENT.reflect(member)),
        aggregate: Some(|template, members, _| Ok(aggregate_united_deployment(template, members))),
        health: Some(|member| match ["spec", "status"].iter().all(|part| value_at(member, &[part]).is_some()) {
            true => is_rolled_out(member),
            false => Ok(false),
        }),
        dependencies: Some(pods::template_dependencies),
        ..NO_RULES
    },
    ThirdPartyKind {
        api_version: "apps.kruise.io/v1beta1",
        kind: "StatefulSet",
        replicas: Some(replicas),
        revise: Some(pods::set_spec_replicas),
        reflect: Some(|member| STATEFUL_SET.reflect(member)),
        aggregate: Some(|template, members, _| Ok(STATEFUL_SET.aggregate(template, members))),
        health: Some(is_rolled_out),
        dependencies: Some(pods::template_dependencies),
        ..NO_RULES
    },
];

/// Fields of a status that is aggregated from counters, which are summed, and texts, of which the last member's is
/// used.
struct CounterStatus {
    counters: &'static [&'static str],
    texts: &'static [&'static str],
    /// Fields that are reflected from members, but not aggregated here.
    reflected: &'static [&'static str],
    /// Value of a text that no member has.
    missing_text: fn() -> Value,
}

const CLONE_SET: CounterStatus = CounterStatus {
    counters: &[
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "updatedReadyReplicas",
        "expectedUpdatedReplicas",
    ],
    texts: &["updateRevision", "currentRevision", "labelSelector"],
    reflected: &[],
    missing_text: || json!(""),
};

const STATEFUL_SET: CounterStatus = CounterStatus {
    counters: &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "updatedReadyReplicas",
    ],
    texts: &["updateRevision", "currentRevision"],
    reflected: &[],
    missing_text: || json!(""),
};

const DAEMON_SET: CounterStatus = CounterStatus {
    counters: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
    ],
    texts: &["daemonSetHash"],
    reflected: &[],
    missing_text: || json!(0),
};

const UNITED_DEPLOYMENT: CounterStatus = CounterStatus {
    counters: &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"],
    texts: &[],
    reflected: &["conditions"],
    missing_text: || json!(""),
};

impl CounterStatus {
    fn reflect(&self, member: &Value) -> Value {
        let fields = [self.counters, self.texts, self.reflected, &["observedGeneration"]].concat();
        with_generations(member, &fields)
    }

    fn aggregate(&self, template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
        let mut status = template_status(template);
        set_or_remove(&mut status, "observedGeneration", Some(status::observed_generation(template, members)));
        for field in self.counters {
            set_or_remove(&mut status, field, Some(sum(members, &[field])));
        }
        for field in self.texts {
            let text = last_text(members, field).cloned();
            set_or_remove(&mut status, field, Some(text.unwrap_or_else(self.missing_text)));
        }
        status
    }
}

/// The aggregated counters, and for each condition type the condition of the last member that has it.
fn aggregate_united_deployment(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut status = UNITED_DEPLOYMENT.aggregate(template, members);
    let mut conditions = Vec::new();
    for condition in member_statuses(members).flat_map(|status| list(status, &["conditions"])) {
        status::replace_or_append(&mut conditions, "type", condition);
    }
    if !conditions.is_empty() {
        set_or_remove(&mut status, "conditions", Some(conditions));
    }
    status
}

fn replicas(template: &Value, gates: Gates) -> Result<ReplicasAndRequirements, RuleError> {
    pods::template_replicas(template, require_replicas(template, &["spec", "replicas"])?, gates)
}

fn is_observed(member: &Value) -> bool {
    value_at(member, &["status", "observedGeneration"]) == value_at(member, &["metadata", "generation"])
}

fn is_rolled_out(member: &Value) -> Result<bool, RuleError> {
    require(member, &["status"])?;
    if !is_observed(member) {
        return Ok(false);
    }
    require(member, &["spec"])?;
    let counter = |field| require_integer(member, &["status", field]);
    if value_at(member, &["spec", "replicas"]).is_some()
        && counter("updatedReplicas")? < count(member, &["spec", "replicas"])
    {
        return Ok(false);
    }
    Ok(counter("availableReplicas")? >= counter("updatedReplicas")?)
}

fn is_daemon_set_healthy(member: &Value) -> Result<bool, RuleError> {
    require(member, &["status"])?;
    if !is_observed(member) {
        return Ok(false);
    }
    let counter = |field| require_integer(member, &["status", field]);
    Ok(counter("updatedNumberScheduled")? >= counter("desiredNumberScheduled")?
        && counter("numberAvailable")? >= counter("updatedNumberScheduled")?)
}

/// The active jobs of all members, and the type and schedule time of the last member that has them.
fn aggregate_cron_job(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut status = template_status(template);
    let active: Vec<Value> = member_statuses(members).flat_map(|status| list(status, &["active"])).cloned().collect();
    set_or_remove(&mut status, "active", Some(active));
    set_or_remove(&mut status, "type", Some(last_value(members, "type").cloned().unwrap_or_else(|| json!(""))));
    set_or_remove(&mut status, "lastScheduleTime", last_value(members, "lastScheduleTime").cloned());
    status
}

fn cron_job_dependencies(template: &Value) -> Vec<Dependency> {
    let pod = ["broadcastJobTemplate", "jobTemplate"]
        .into_iter()
        .find(|job| value_at(template, &["spec", "template", job]).is_some())
        .and_then(|job| value_at(template, &["spec", "template", job, "spec", "template"]));
    pods::dependencies(pod, template)
}

/// Fields that are reflected from a BroadcastJob.
const JOB_FIELDS: [&str; 8] =
    ["conditions", "startTime", "completionTime", "active", "succeeded", "failed", "desired", "phase"];

fn retain_pod_labels(desired: &mut Value, observed: &Value) {
    const LABELS: [&str; 4] = ["spec", "template", "metadata", "labels"];
    if let Some(labels) = value_at(observed, &LABELS) {
        set(desired, &LABELS, labels.clone());
    }
}

fn is_job_healthy(member: &Value) -> Result<bool, RuleError> {
    let status = require(member, &["status"])?;
    let is_zero = |field| value_at(status, &[field]).is_some_and(|value| value.as_f64() == Some(0.0));
    Ok(!is_zero("desired") && is_zero("failed") && !(is_zero("succeeded") && is_zero("active")))
}

/// Summed counters, and the phase of the last member that has one. As in Karmada, a member without a terminal condition
/// counts like the member before it.
fn aggregate_job(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut terminal_condition = None;
    let (mut complete, mut failed) = (0, Vec::new());
    for member in members {
        let is_terminal = |condition: &&Value| is_true(condition, "Complete") || is_true(condition, "Failed");
        let end = member.status.and_then(|status| list(status, &["conditions"]).find(is_terminal));
        terminal_condition = end.map(|condition| text(condition, &["type"])).or(terminal_condition);
        match terminal_condition {
            Some("Complete") => complete += 1,
            Some(_) => failed.push(member.cluster),
            None => {}
        }
    }
    let condition =
        |kind, reason, message: String| json!({"type": kind, "status": "True", "reason": reason, "message": message});
    let mut conditions = Vec::new();
    if !failed.is_empty() {
        let message = format!("Job executed failed in member clusters: {}", failed.join(", "));
        conditions.push(condition("Failed", "JobFailed", message));
    }
    if complete > 0 && complete == members.len() {
        conditions.push(condition("Completed", "Completed", "Job completed".to_owned()));
    }
    let mut status = template_status(template);
    for field in ["active", "succeeded", "failed", "desired"] {
        set_or_remove(&mut status, field, Some(sum(members, &[field])));
    }
    set_or_remove(&mut status, "phase", Some(last_value(members, "phase").cloned().unwrap_or_else(|| json!(""))));
    set_or_remove(&mut status, "conditions", Some(conditions));
    status
}

/// Counters in the status of a SidecarSet.
const SIDECAR_COUNTERS: [&str; 3] = ["matchedPods", "updatedPods", "readyPods"];

fn reflect_sidecars(member: &Value) -> Value {
    match value_at(member, &["status"]) {
        None => json!({}),
        Some(status) => {
            SIDECAR_COUNTERS.into_iter().map(|field| (field.to_owned(), json!(count(status, &[field])))).collect()
        }
    }
}

/// True if all matched pods have their sidecars.
fn are_sidecars_healthy(member: &Value) -> bool {
    let counter = |field| count(member, &["status", field]);
    value_at(member, &["status"]).is_some()
        && (counter("matchedPods") == 0 || counter("updatedPods") == counter("matchedPods"))
}

/// Dependencies of the sidecars' containers and volumes. A SidecarSet is cluster-scoped.
fn sidecar_dependencies(template: &Value) -> Vec<Dependency> {
    let mut dependencies = Vec::new();
    let mut add = |kind, source: &Value, reference: &[&str], field| {
        if let Some(reference) = value_at(source, reference) {
            dependencies.push(Dependency::core(kind, namespace(template), text(reference, &[field])));
        }
    };
    for container in list(template, &["spec", "containers"]) {
        for variable in list(container, &["env"]) {
            add("ConfigMap", variable, &["valueFrom", "configMapKeyRef"], "name");
            add("Secret", variable, &["valueFrom", "secretKeyRef"], "name");
        }
        for source in list(container, &["envFrom"]) {
            add("ConfigMap", source, &["configMapRef"], "name");
            add("Secret", source, &["secretRef"], "name");
        }
    }
    for volume in list(template, &["spec", "volumes"]) {
        add("ConfigMap", volume, &["configMap"], "name");
        add("Secret", volume, &["secret"], "secretName");
        for source in list(volume, &["projected", "sources"]) {
            add("ConfigMap", source, &["configMap"], "name");
            add("Secret", source, &["secret"], "name");
        }
    }
    dependencies
}
