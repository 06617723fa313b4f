//! Describes Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs. Pure.

use serde_json::Value;

use super::containers::template;
use super::{PODS, REPLICA_SETS, Related, conditions, controller, created, owned, unknown};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{NONE, Sheet, joined, list, number, or_none, plain, selector, time};

const REVISION: &str = "deployment.kubernetes.io/revision";

pub(super) fn deployment(sheet: &mut Sheet, deployment: &Value, related: &Related) {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    created(sheet, deployment);
    marks(sheet, deployment);
    selected(sheet, spec);
    sheet.say(
        0,
        "Replicas",
        format!(
            "{} desired | {} updated | {} total | {} available | {} unavailable",
            wanted(spec),
            number(&status["updatedReplicas"]),
            number(&status["replicas"]),
            number(&status["availableReplicas"]),
            number(&status["unavailableReplicas"])
        ),
    );
    sheet.say(0, "StrategyType", or_none(&spec["strategy"]["type"]));
    sheet.say(0, "MinReadySeconds", number(&spec["minReadySeconds"]).to_string());
    let rolling = &spec["strategy"]["rollingUpdate"];
    if rolling.is_object() {
        let (unavailable, surge) = (plain(&rolling["maxUnavailable"]), plain(&rolling["maxSurge"]));
        sheet.say(0, "RollingUpdateStrategy", format!("{unavailable} max unavailable, {surge} max surge"));
    }
    template(sheet, &spec["template"]);
    conditions(sheet, deployment, &[("Type", "type"), ("Status", "status"), ("Reason", "reason")]);
    revisions(sheet, deployment, related);
}

/// Adds the ReplicaSets: the one of the current revision, and old ones with pods.
fn revisions(sheet: &mut Sheet, deployment: &Value, related: &Related) {
    let revision = |object: &Value| object["metadata"]["annotations"][REVISION].as_str().unwrap_or_default().to_owned();
    let current = revision(deployment);
    let format_set = |set: &&Value| {
        let (own, wanted) = (number(&set["status"]["replicas"]), wanted(&set["spec"]));
        format!("{} ({own}/{wanted} replicas created)", plain(&set["metadata"]["name"]))
    };
    let (old, new) = match owned(related, REPLICA_SETS, deployment) {
        Ok(sets) => {
            let (new, old): (Vec<&Value>, Vec<&Value>) = sets.into_iter().partition(|set| revision(set) == current);
            let format_sets = |sets: &[&Value]| match sets {
                [] => NONE.to_owned(),
                sets => sets.iter().map(format_set).collect::<Vec<_>>().join(", "),
            };
            (format_sets(&old), format_sets(&new))
        }
        Err(why) => (unknown(why), unknown(why)),
    };
    sheet.say(0, "OldReplicaSets", old);
    sheet.say(0, "NewReplicaSet", new);
}

pub(super) fn replica_set(sheet: &mut Sheet, set: &Value, related: &Related) {
    selected(sheet, &set["spec"]);
    marks(sheet, set);
    controlled(sheet, set);
    sheet.say(
        0,
        "Replicas",
        format!("{} current / {} desired", number(&set["status"]["replicas"]), wanted(&set["spec"])),
    );
    pods(sheet, set, related);
    template(sheet, &set["spec"]["template"]);
    conditions(sheet, set, &[("Type", "type"), ("Status", "status"), ("Reason", "reason")]);
}

pub(super) fn stateful_set(sheet: &mut Sheet, set: &Value, related: &Related) {
    let spec = &set["spec"];
    created(sheet, set);
    selected(sheet, spec);
    marks(sheet, set);
    sheet.say(0, "Replicas", format!("{} desired | {} total", wanted(spec), number(&set["status"]["replicas"])));
    sheet.say(0, "Update Strategy", or_none(&spec["updateStrategy"]["type"]));
    if spec["updateStrategy"]["rollingUpdate"]["partition"].is_number() {
        sheet.say(2, "Partition", plain(&spec["updateStrategy"]["rollingUpdate"]["partition"]));
    }
    pods(sheet, set, related);
    template(sheet, &spec["template"]);
    match list(&spec["volumeClaimTemplates"]) {
        [] => sheet.say(0, "Volume Claims", NONE),
        claims => {
            sheet.head(0, "Volume Claims");
            claims.iter().for_each(|claim| volume_claim(sheet, claim));
        }
    }
}

fn volume_claim(sheet: &mut Sheet, claim: &Value) {
    let (metadata, spec) = (&claim["metadata"], &claim["spec"]);
    sheet.say(2, "Name", plain(&metadata["name"]));
    sheet.say(2, "StorageClass", spec["storageClassName"].as_str().unwrap_or_default());
    sheet.pairs(2, "Labels", &metadata["labels"], "=");
    sheet.pairs(2, "Annotations", &metadata["annotations"], ": ");
    sheet.say(2, "Capacity", or_none(&spec["resources"]["requests"]["storage"]));
    sheet.say(2, "Access Modes", joined(&spec["accessModes"], ","));
}

pub(super) fn daemon_set(sheet: &mut Sheet, set: &Value, related: &Related) {
    let (spec, status) = (&set["spec"], &set["status"]);
    selected(sheet, spec);
    sheet.pairs(0, "Node-Selector", &spec["template"]["spec"]["nodeSelector"], "=");
    marks(sheet, set);
    for (label, field) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        sheet.say(0, label, number(&status[field]).to_string());
    }
    pods(sheet, set, related);
    template(sheet, &spec["template"]);
}

pub(super) fn job(sheet: &mut Sheet, job: &Value) {
    let (spec, status) = (&job["spec"], &job["status"]);
    selected(sheet, spec);
    marks(sheet, job);
    controlled(sheet, job);
    runs(sheet, spec);
    sheet.maybe(0, "Completion Mode", &spec["completionMode"]);
    sheet.maybe(0, "Suspend", &spec["suspend"]);
    sheet.maybe(0, "Backoff Limit", &spec["backoffLimit"]);
    sheet.maybe(0, "TTL Seconds After Finished", &spec["ttlSecondsAfterFinished"]);
    if status["startTime"].is_string() {
        sheet.say(0, "Start Time", time(&status["startTime"]));
    }
    if status["completionTime"].is_string() {
        sheet.say(0, "Completed At", time(&status["completionTime"]));
        sheet.say(0, "Duration", lasted(&status["startTime"], &status["completionTime"]));
    }
    if spec["activeDeadlineSeconds"].is_number() {
        sheet.say(0, "Active Deadline Seconds", format!("{}s", plain(&spec["activeDeadlineSeconds"])));
    }
    let of = |field: &str| number(&status[field]);
    let ready = if status["ready"].is_number() { format!(" ({} Ready)", of("ready")) } else { String::new() };
    let counts = format!("{} Active{ready} / {} Succeeded / {} Failed", of("active"), of("succeeded"), of("failed"));
    sheet.say(0, "Pods Statuses", counts);
    if spec["completionMode"] == "Indexed" {
        sheet.say(0, "Completed Indexes", or_none(&status["completedIndexes"]));
    }
    template(sheet, &spec["template"]);
    conditions(sheet, job, &[("Type", "type"), ("Status", "status"), ("Reason", "reason")]);
}

fn lasted(from: &Value, until: &Value) -> String {
    match until.as_str().and_then(|text| text.parse().ok()) {
        Some(until) => super::since(from, until),
        None => "<unknown>".to_owned(),
    }
}

pub(super) fn cron_job(sheet: &mut Sheet, job: &Value) {
    let (spec, status) = (&job["spec"], &job["status"]);
    let jobs = &spec["jobTemplate"]["spec"];
    let or_unset = |value: &Value| if value.is_null() { "<unset>".to_owned() } else { plain(value) };
    marks(sheet, job);
    sheet.say(0, "Schedule", plain(&spec["schedule"]));
    sheet.maybe(0, "Time Zone", &spec["timeZone"]);
    sheet.say(0, "Concurrency Policy", or_none(&spec["concurrencyPolicy"]));
    sheet.say(0, "Suspend", if spec["suspend"] == true { "True" } else { "False" });
    sheet.say(0, "Successful Job History Limit", or_unset(&spec["successfulJobsHistoryLimit"]));
    sheet.say(0, "Failed Job History Limit", or_unset(&spec["failedJobsHistoryLimit"]));
    match spec["startingDeadlineSeconds"].as_i64() {
        Some(seconds) => sheet.say(0, "Starting Deadline Seconds", format!("{seconds}s")),
        None => sheet.say(0, "Starting Deadline Seconds", "<unset>"),
    }
    let selector = selector(&jobs["selector"]);
    sheet.say(0, "Selector", if selector.is_empty() { "<unset>" } else { selector.as_str() });
    sheet.say(0, "Parallelism", or_unset(&jobs["parallelism"]));
    sheet.say(0, "Completions", or_unset(&jobs["completions"]));
    template(sheet, &jobs["template"]);
    match status["lastScheduleTime"].is_string() {
        true => sheet.say(0, "Last Schedule Time", time(&status["lastScheduleTime"])),
        false => sheet.say(0, "Last Schedule Time", "<unset>"),
    }
    let active: Vec<String> = list(&status["active"]).iter().map(|job| plain(&job["name"])).collect();
    sheet.say(0, "Active Jobs", if active.is_empty() { NONE.to_owned() } else { active.join(", ") });
}

fn runs(sheet: &mut Sheet, spec: &Value) {
    sheet.maybe(0, "Parallelism", &spec["parallelism"]);
    match spec["completions"].is_number() {
        true => sheet.say(0, "Completions", plain(&spec["completions"])),
        false => sheet.say(0, "Completions", "<unset>"),
    }
}

/// Desired replicas; defaults to 1.
fn wanted(spec: &Value) -> i64 {
    spec["replicas"].as_i64().unwrap_or(1)
}

fn selected(sheet: &mut Sheet, spec: &Value) {
    let selector = selector(&spec["selector"]);
    sheet.say(0, "Selector", if selector.is_empty() { NONE } else { selector.as_str() });
}

fn controlled(sheet: &mut Sheet, object: &Value) {
    if let Some(controller) = controller(object) {
        sheet.say(0, "Controlled By", controller);
    }
}

/// Adds the number of pods per phase.
fn pods(sheet: &mut Sheet, object: &Value, related: &Related) {
    let counts = match owned(related, PODS, object) {
        Ok(pods) => {
            let of = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
            let (running, waiting) = (of("Running"), of("Pending"));
            format!("{running} Running / {waiting} Waiting / {} Succeeded / {} Failed", of("Succeeded"), of("Failed"))
        }
        Err(why) => unknown(why),
    };
    sheet.say(0, "Pods Status", counts);
}
