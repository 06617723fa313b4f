//! OpenKruise: workloads, jobs and sidecars of `apps.kruise.io`.

use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::reading::{count, given, list, needed, needed_count, needed_replicas, replicas_or_one};
use super::status::{self, fields_of, is_true, last, last_text, put, reported, shown, sum, with_generations};
use super::{NOTHING, Needs, RuleError, ThirdPartyKind, pods};
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
        ..NOTHING
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "BroadcastJob",
        replicas: Some(|template, gates| {
            pods::of_template(template, replicas_or_one(template, &["spec", "parallelism"])?, gates)
        }),
        revise: Some(pods::parallelism_in_spec),
        retain: Some(retain_pod_labels),
        reflect: Some(|member| Value::Object(fields_of(member, &JOB_FIELDS))),
        aggregate: Some(|template, members, _| Ok(aggregate_job(template, members))),
        health: Some(is_job_healthy),
        dependencies: Some(pods::template_dependencies),
        ..NOTHING
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "CloneSet",
        replicas: Some(replicas),
        revise: Some(pods::replicas_in_spec),
        reflect: Some(|member| CLONE_SET.reflect(member)),
        aggregate: Some(|template, members, _| Ok(CLONE_SET.aggregate(template, members))),
        health: Some(is_rolled_out),
        dependencies: Some(pods::template_dependencies),
        ..NOTHING
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "DaemonSet",
        reflect: Some(|member| DAEMON_SET.reflect(member)),
        aggregate: Some(|template, members, _| Ok(DAEMON_SET.aggregate(template, members))),
        health: Some(is_on_every_node),
        dependencies: Some(pods::template_dependencies),
        ..NOTHING
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "SidecarSet",
        // Its pods belong to other workloads.
        replicas: Some(|_, _| Ok((0, None))),
        retain: Some(|_, _| ()),
        reflect: Some(reflect_sidecars),
        aggregate: Some(|_, members, _| {
            Ok(SIDECARS.into_iter().map(|field| (field.to_owned(), json!(sum(members, &[field])))).collect())
        }),
        health: Some(|member| Ok(are_sidecars_healthy(member))),
        dependencies: Some(sidecar_dependencies),
        ..NOTHING
    },
    ThirdPartyKind {
        api_version: V1ALPHA1,
        kind: "UnitedDeployment",
        replicas: Some(replicas),
        revise: Some(pods::replicas_in_spec),
        reflect: Some(|member| UNITED_DEPLOYMENT.reflect(member)),
        aggregate: Some(|template, members, _| Ok(aggregate_united_deployment(template, members))),
        health: Some(|member| match ["spec", "status"].iter().all(|part| given(member, &[part]).is_some()) {
            true => is_rolled_out(member),
            false => Ok(false),
        }),
        dependencies: Some(pods::template_dependencies),
        ..NOTHING
    },
    ThirdPartyKind {
        api_version: "apps.kruise.io/v1beta1",
        kind: "StatefulSet",
        replicas: Some(replicas),
        revise: Some(pods::replicas_in_spec),
        reflect: Some(|member| STATEFUL_SET.reflect(member)),
        aggregate: Some(|template, members, _| Ok(STATEFUL_SET.aggregate(template, members))),
        health: Some(is_rolled_out),
        dependencies: Some(pods::template_dependencies),
        ..NOTHING
    },
];

/// A kind whose status consists of summed counters and texts, of which the last one is used.
struct CounterStatus {
    counters: &'static [&'static str],
    texts: &'static [&'static str],
    /// Reflected from members, but not aggregated.
    reflected: &'static [&'static str],
    /// Value of a text that no member has.
    no_text: fn() -> Value,
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
    no_text: || json!(""),
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
    no_text: || json!(""),
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
    no_text: || json!(0),
};

const UNITED_DEPLOYMENT: CounterStatus = CounterStatus {
    counters: &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"],
    texts: &[],
    reflected: &["conditions"],
    no_text: || json!(""),
};

impl CounterStatus {
    fn reflect(&self, member: &Value) -> Value {
        let fields = [self.counters, self.texts, self.reflected, &["observedGeneration"]].concat();
        with_generations(member, &fields)
    }

    fn aggregate(&self, template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
        let mut status = shown(template);
        put(&mut status, "observedGeneration", Some(status::observed_generation(template, members)));
        for field in self.counters {
            put(&mut status, field, Some(sum(members, &[field])));
        }
        for field in self.texts {
            let text = last_text(members, field).cloned();
            put(&mut status, field, Some(text.unwrap_or_else(self.no_text)));
        }
        status
    }
}

/// Conditions of the last member per type, if any.
fn aggregate_united_deployment(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut status = UNITED_DEPLOYMENT.aggregate(template, members);
    let mut conditions = Vec::new();
    for condition in reported(members).flat_map(|status| list(status, &["conditions"])) {
        status::replace(&mut conditions, "type", condition);
    }
    if !conditions.is_empty() {
        put(&mut status, "conditions", Some(conditions));
    }
    status
}

fn replicas(template: &Value, gates: Gates) -> Result<Needs, RuleError> {
    pods::of_template(template, needed_replicas(template, &["spec", "replicas"])?, gates)
}

fn is_observed(member: &Value) -> bool {
    given(member, &["status", "observedGeneration"]) == given(member, &["metadata", "generation"])
}

fn is_rolled_out(member: &Value) -> Result<bool, RuleError> {
    needed(member, &["status"])?;
    if !is_observed(member) {
        return Ok(false);
    }
    needed(member, &["spec"])?;
    let counted = |field| needed_count(member, &["status", field]);
    if given(member, &["spec", "replicas"]).is_some()
        && counted("updatedReplicas")? < count(member, &["spec", "replicas"])
    {
        return Ok(false);
    }
    Ok(counted("availableReplicas")? >= counted("updatedReplicas")?)
}

fn is_on_every_node(member: &Value) -> Result<bool, RuleError> {
    needed(member, &["status"])?;
    if !is_observed(member) {
        return Ok(false);
    }
    let counted = |field| needed_count(member, &["status", field]);
    Ok(counted("updatedNumberScheduled")? >= counted("desiredNumberScheduled")?
        && counted("numberAvailable")? >= counted("updatedNumberScheduled")?)
}

/// Active jobs of all members; type and time of the last member that has them.
fn aggregate_cron_job(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut status = shown(template);
    let active: Vec<Value> = reported(members).flat_map(|status| list(status, &["active"])).cloned().collect();
    put(&mut status, "active", Some(active));
    put(&mut status, "type", Some(last(members, "type").cloned().unwrap_or_else(|| json!(""))));
    put(&mut status, "lastScheduleTime", last(members, "lastScheduleTime").cloned());
    status
}

fn cron_job_dependencies(template: &Value) -> Vec<Dependency> {
    let pod = ["broadcastJobTemplate", "jobTemplate"]
        .into_iter()
        .find(|job| given(template, &["spec", "template", job]).is_some())
        .and_then(|job| given(template, &["spec", "template", job, "spec", "template"]));
    pods::dependencies(pod, template)
}

const JOB_FIELDS: [&str; 8] =
    ["conditions", "startTime", "completionTime", "active", "succeeded", "failed", "desired", "phase"];

fn retain_pod_labels(desired: &mut Value, observed: &Value) {
    const LABELS: [&str; 4] = ["spec", "template", "metadata", "labels"];
    if let Some(labels) = given(observed, &LABELS) {
        set(desired, &LABELS, labels.clone());
    }
}

fn is_job_healthy(member: &Value) -> Result<bool, RuleError> {
    let status = needed(member, &["status"])?;
    let is_zero = |field| given(status, &[field]).is_some_and(|value| value.as_f64() == Some(0.0));
    Ok(!is_zero("desired") && is_zero("failed") && !(is_zero("succeeded") && is_zero("active")))
}

/// Counters and the last phase. As in Karmada, a member without a terminal condition counts like the previous one.
fn aggregate_job(template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let mut ended = None;
    let (mut complete, mut failed) = (0, Vec::new());
    for member in members {
        let ends = |condition: &&Value| is_true(condition, "Complete") || is_true(condition, "Failed");
        let end = member.status.and_then(|status| list(status, &["conditions"]).find(ends));
        ended = end.map(|condition| text(condition, &["type"])).or(ended);
        match ended {
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
    let mut status = shown(template);
    for field in ["active", "succeeded", "failed", "desired"] {
        put(&mut status, field, Some(sum(members, &[field])));
    }
    put(&mut status, "phase", Some(last(members, "phase").cloned().unwrap_or_else(|| json!(""))));
    put(&mut status, "conditions", Some(conditions));
    status
}

const SIDECARS: [&str; 3] = ["matchedPods", "updatedPods", "readyPods"];

fn reflect_sidecars(member: &Value) -> Value {
    match given(member, &["status"]) {
        None => json!({}),
        Some(status) => SIDECARS.into_iter().map(|field| (field.to_owned(), json!(count(status, &[field])))).collect(),
    }
}

/// True if all matched pods have their sidecars.
fn are_sidecars_healthy(member: &Value) -> bool {
    let counted = |field| count(member, &["status", field]);
    given(member, &["status"]).is_some()
        && (counted("matchedPods") == 0 || counted("updatedPods") == counted("matchedPods"))
}

/// Dependencies of the sidecars' containers and volumes. A SidecarSet is cluster-scoped.
fn sidecar_dependencies(template: &Value) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut note = |kind, source: &Value, reference: &[&str], field| {
        if let Some(reference) = given(source, reference) {
            found.push(Dependency::core(kind, namespace(template), text(reference, &[field])));
        }
    };
    for container in list(template, &["spec", "containers"]) {
        for variable in list(container, &["env"]) {
            note("ConfigMap", variable, &["valueFrom", "configMapKeyRef"], "name");
            note("Secret", variable, &["valueFrom", "secretKeyRef"], "name");
        }
        for source in list(container, &["envFrom"]) {
            note("ConfigMap", source, &["configMapRef"], "name");
            note("Secret", source, &["secretRef"], "name");
        }
    }
    for volume in list(template, &["spec", "volumes"]) {
        note("ConfigMap", volume, &["configMap"], "name");
        note("Secret", volume, &["secret"], "secretName");
        for source in list(volume, &["projected", "sources"]) {
            note("ConfigMap", source, &["configMap"], "name");
            note("Secret", source, &["secret"], "name");
        }
    }
    found
}
