//! Describes Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs. Has no side effects.

use serde_json::Value;

use super::containers::add_pod_template;
use super::{
    PODS, REPLICA_SETS, RelatedObjects, add_conditions, add_creation_timestamp, controlled_objects, controller,
    format_unknown,
};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{NONE, Sheet, join_or_none, list, number, or_none, selector, time, to_text};

/// Annotation with the revision of a Deployment or ReplicaSet.
const REVISION: &str = "deployment.kubernetes.io/revision";

pub(super) fn describe_deployment(sheet: &mut Sheet, deployment: &Value, related: &RelatedObjects) {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    add_creation_timestamp(sheet, deployment);
    add_labels_and_annotations(sheet, deployment);
    add_selector(sheet, spec);
    sheet.add_field(
        0,
        "Replicas",
        format!(
            "{} desired | {} updated | {} total | {} available | {} unavailable",
            desired_replicas(spec),
            number(&status["updatedReplicas"]),
            number(&status["replicas"]),
            number(&status["availableReplicas"]),
            number(&status["unavailableReplicas"])
        ),
    );
    sheet.add_field(0, "StrategyType", or_none(&spec["strategy"]["type"]));
    sheet.add_field(0, "MinReadySeconds", number(&spec["minReadySeconds"]).to_string());
    let rolling_update = &spec["strategy"]["rollingUpdate"];
    if rolling_update.is_object() {
        let (unavailable, surge) = (to_text(&rolling_update["maxUnavailable"]), to_text(&rolling_update["maxSurge"]));
        sheet.add_field(0, "RollingUpdateStrategy", format!("{unavailable} max unavailable, {surge} max surge"));
    }
    add_pod_template(sheet, &spec["template"]);
    add_conditions(sheet, deployment, &[("Type", "type"), ("Status", "status"), ("Reason", "reason")]);
    add_replica_sets(sheet, deployment, related);
}

/// Adds the ReplicaSets of a Deployment: those of older revisions, and the one of the current revision.
fn add_replica_sets(sheet: &mut Sheet, deployment: &Value, related: &RelatedObjects) {
    let revision = |object: &Value| object["metadata"]["annotations"][REVISION].as_str().unwrap_or_default().to_owned();
    let current = revision(deployment);
    let format_set = |set: &&Value| {
        let (created, desired) = (number(&set["status"]["replicas"]), desired_replicas(&set["spec"]));
        format!("{} ({created}/{desired} replicas created)", to_text(&set["metadata"]["name"]))
    };
    let (old, new) = match controlled_objects(related, REPLICA_SETS, deployment) {
        Ok(sets) => {
            let (new, old): (Vec<&Value>, Vec<&Value>) = sets.into_iter().partition(|set| revision(set) == current);
            let format_sets = |sets: &[&Value]| match sets {
                [] => NONE.to_owned(),
                sets => sets.iter().map(format_set).collect::<Vec<_>>().join(", "),
            };
            (format_sets(&old), format_sets(&new))
        }
        Err(cause) => (format_unknown(cause), format_unknown(cause)),
    };
    sheet.add_field(0, "OldReplicaSets", old);
    sheet.add_field(0, "NewReplicaSet", new);
}

pub(super) fn describe_replica_set(sheet: &mut Sheet, set: &Value, related: &RelatedObjects) {
    add_selector(sheet, &set["spec"]);
    add_labels_and_annotations(sheet, set);
    add_controller(sheet, set);
    sheet.add_field(
        0,
        "Replicas",
        format!("{} current / {} desired", number(&set["status"]["replicas"]), desired_replicas(&set["spec"])),
    );
    add_pod_counts(sheet, set, related);
    add_pod_template(sheet, &set["spec"]["template"]);
    add_conditions(sheet, set, &[("Type", "type"), ("Status", "status"), ("Reason", "reason")]);
}

pub(super) fn describe_stateful_set(sheet: &mut Sheet, set: &Value, related: &RelatedObjects) {
    let spec = &set["spec"];
    add_creation_timestamp(sheet, set);
    add_selector(sheet, spec);
    add_labels_and_annotations(sheet, set);
    sheet.add_field(
        0,
        "Replicas",
        format!("{} desired | {} total", desired_replicas(spec), number(&set["status"]["replicas"])),
    );
    sheet.add_field(0, "Update Strategy", or_none(&spec["updateStrategy"]["type"]));
    if spec["updateStrategy"]["rollingUpdate"]["partition"].is_number() {
        sheet.add_field(2, "Partition", to_text(&spec["updateStrategy"]["rollingUpdate"]["partition"]));
    }
    add_pod_counts(sheet, set, related);
    add_pod_template(sheet, &spec["template"]);
    match list(&spec["volumeClaimTemplates"]) {
        [] => sheet.add_field(0, "Volume Claims", NONE),
        claims => {
            sheet.add_heading(0, "Volume Claims");
            claims.iter().for_each(|claim| add_volume_claim(sheet, claim));
        }
    }
}

fn add_volume_claim(sheet: &mut Sheet, claim: &Value) {
    let (metadata, spec) = (&claim["metadata"], &claim["spec"]);
    sheet.add_field(2, "Name", to_text(&metadata["name"]));
    sheet.add_field(2, "StorageClass", spec["storageClassName"].as_str().unwrap_or_default());
    sheet.add_pairs(2, "Labels", &metadata["labels"], "=");
    sheet.add_pairs(2, "Annotations", &metadata["annotations"], ": ");
    sheet.add_field(2, "Capacity", or_none(&spec["resources"]["requests"]["storage"]));
    sheet.add_field(2, "Access Modes", join_or_none(&spec["accessModes"], ","));
}

pub(super) fn describe_daemon_set(sheet: &mut Sheet, set: &Value, related: &RelatedObjects) {
    let (spec, status) = (&set["spec"], &set["status"]);
    add_selector(sheet, spec);
    sheet.add_pairs(0, "Node-Selector", &spec["template"]["spec"]["nodeSelector"], "=");
    add_labels_and_annotations(sheet, set);
    for (label, field) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        sheet.add_field(0, label, number(&status[field]).to_string());
    }
    add_pod_counts(sheet, set, related);
    add_pod_template(sheet, &spec["template"]);
}

pub(super) fn describe_job(sheet: &mut Sheet, job: &Value) {
    let (spec, status) = (&job["spec"], &job["status"]);
    add_selector(sheet, spec);
    add_labels_and_annotations(sheet, job);
    add_controller(sheet, job);
    add_parallelism(sheet, spec);
    sheet.add_field_if_set(0, "Completion Mode", &spec["completionMode"]);
    sheet.add_field_if_set(0, "Suspend", &spec["suspend"]);
    sheet.add_field_if_set(0, "Backoff Limit", &spec["backoffLimit"]);
    sheet.add_field_if_set(0, "TTL Seconds After Finished", &spec["ttlSecondsAfterFinished"]);
    if status["startTime"].is_string() {
        sheet.add_field(0, "Start Time", time(&status["startTime"]));
    }
    if status["completionTime"].is_string() {
        sheet.add_field(0, "Completed At", time(&status["completionTime"]));
        sheet.add_field(0, "Duration", format_duration(&status["startTime"], &status["completionTime"]));
    }
    if spec["activeDeadlineSeconds"].is_number() {
        sheet.add_field(0, "Active Deadline Seconds", format!("{}s", to_text(&spec["activeDeadlineSeconds"])));
    }
    let count = |field: &str| number(&status[field]);
    let ready = if status["ready"].is_number() { format!(" ({} Ready)", count("ready")) } else { String::new() };
    let counts =
        format!("{} Active{ready} / {} Succeeded / {} Failed", count("active"), count("succeeded"), count("failed"));
    sheet.add_field(0, "Pods Statuses", counts);
    if spec["completionMode"] == "Indexed" {
        sheet.add_field(0, "Completed Indexes", or_none(&status["completedIndexes"]));
    }
    add_pod_template(sheet, &spec["template"]);
    add_conditions(sheet, job, &[("Type", "type"), ("Status", "status"), ("Reason", "reason")]);
}

fn format_duration(from: &Value, until: &Value) -> String {
    match until.as_str().and_then(|text| text.parse().ok()) {
        Some(until) => super::age_since(from, until),
        None => "<unknown>".to_owned(),
    }
}

pub(super) fn describe_cron_job(sheet: &mut Sheet, cron_job: &Value) {
    let (spec, status) = (&cron_job["spec"], &cron_job["status"]);
    let job_spec = &spec["jobTemplate"]["spec"];
    let or_unset = |value: &Value| if value.is_null() { "<unset>".to_owned() } else { to_text(value) };
    add_labels_and_annotations(sheet, cron_job);
    sheet.add_field(0, "Schedule", to_text(&spec["schedule"]));
    sheet.add_field_if_set(0, "Time Zone", &spec["timeZone"]);
    sheet.add_field(0, "Concurrency Policy", or_none(&spec["concurrencyPolicy"]));
    sheet.add_field(0, "Suspend", if spec["suspend"] == true { "True" } else { "False" });
    sheet.add_field(0, "Successful Job History Limit", or_unset(&spec["successfulJobsHistoryLimit"]));
    sheet.add_field(0, "Failed Job History Limit", or_unset(&spec["failedJobsHistoryLimit"]));
    match spec["startingDeadlineSeconds"].as_i64() {
        Some(seconds) => sheet.add_field(0, "Starting Deadline Seconds", format!("{seconds}s")),
        None => sheet.add_field(0, "Starting Deadline Seconds", "<unset>"),
    }
    let selector = selector(&job_spec["selector"]);
    sheet.add_field(0, "Selector", if selector.is_empty() { "<unset>" } else { selector.as_str() });
    sheet.add_field(0, "Parallelism", or_unset(&job_spec["parallelism"]));
    sheet.add_field(0, "Completions", or_unset(&job_spec["completions"]));
    add_pod_template(sheet, &job_spec["template"]);
    match status["lastScheduleTime"].is_string() {
        true => sheet.add_field(0, "Last Schedule Time", time(&status["lastScheduleTime"])),
        false => sheet.add_field(0, "Last Schedule Time", "<unset>"),
    }
    let active: Vec<String> = list(&status["active"]).iter().map(|job| to_text(&job["name"])).collect();
    sheet.add_field(0, "Active Jobs", if active.is_empty() { NONE.to_owned() } else { active.join(", ") });
}

fn add_parallelism(sheet: &mut Sheet, spec: &Value) {
    sheet.add_field_if_set(0, "Parallelism", &spec["parallelism"]);
    match spec["completions"].is_number() {
        true => sheet.add_field(0, "Completions", to_text(&spec["completions"])),
        false => sheet.add_field(0, "Completions", "<unset>"),
    }
}

/// Desired replicas; defaults to 1.
fn desired_replicas(spec: &Value) -> i64 {
    spec["replicas"].as_i64().unwrap_or(1)
}

fn add_selector(sheet: &mut Sheet, spec: &Value) {
    let selector = selector(&spec["selector"]);
    sheet.add_field(0, "Selector", if selector.is_empty() { NONE } else { selector.as_str() });
}

fn add_controller(sheet: &mut Sheet, object: &Value) {
    if let Some(controller) = controller(object) {
        sheet.add_field(0, "Controlled By", controller);
    }
}

/// Adds the number of pods per phase.
fn add_pod_counts(sheet: &mut Sheet, object: &Value, related: &RelatedObjects) {
    let counts = match controlled_objects(related, PODS, object) {
        Ok(pods) => {
            let count = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
            let (running, waiting) = (count("Running"), count("Pending"));
            format!(
                "{running} Running / {waiting} Waiting / {} Succeeded / {} Failed",
                count("Succeeded"),
                count("Failed")
            )
        }
        Err(cause) => format_unknown(cause),
    };
    sheet.add_field(0, "Pods Status", counts);
}
