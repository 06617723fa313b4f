//! Columns of pods and of the kinds that make them.

use crowsnest_api::print::human_duration;
use serde_json::{Value, json};

use super::read::{self, int, list, maybe_int, size, text};
use super::{AGE, CONTAINERS, Column, Doc, IMAGES, KindPrinter, NAME, Now, age, no_conditions, pod, printer};

const SELECTOR_LABEL: &str = "Selector";

pub(super) static KINDS: &[KindPrinter] = &[
    KindPrinter {
        group: "",
        kind: "Pod",
        columns: &[
            NAME,
            Column::text("Ready", Doc::Text("The aggregate readiness state of this pod for accepting traffic.")),
            Column::text("Status", Doc::Text("The aggregate status of the containers in this pod.")),
            Column::text(
                "Restarts",
                Doc::Text(
                    "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
                ),
            ),
            AGE,
            Column::text("IP", Doc::Field("api.core.v1.PodStatus", "podIP")).wide(),
            Column::text("Node", Doc::Field("api.core.v1.PodSpec", "nodeName")).wide(),
            Column::text("Nominated Node", Doc::Field("api.core.v1.PodStatus", "nominatedNodeName")).wide(),
            Column::text("Readiness Gates", Doc::Field("api.core.v1.PodSpec", "readinessGates")).wide(),
        ],
        cells: pod::cells,
        conditions: pod::row_conditions,
    },
    printer(
        "",
        "PodTemplate",
        &[
            NAME,
            Column::text("Containers", Doc::Text("Names of each container in the template.")),
            Column::text("Images", Doc::Text("Images referenced by each container in the template.")),
            Column::text("Pod Labels", Doc::Text("The labels for the pod template.")),
        ],
        |o, _| {
            let (names, images) = read::containers(o, "/template/spec/containers");
            vec![read::name(o), names, images, read::labels(o.pointer("/template/metadata/labels"))]
        },
    ),
    printer(
        "",
        "ReplicationController",
        &[
            NAME,
            Column::number("Desired", Doc::Field("api.core.v1.ReplicationControllerSpec", "replicas")),
            Column::number("Current", Doc::Field("api.core.v1.ReplicationControllerStatus", "replicas")),
            Column::number("Ready", Doc::Field("api.core.v1.ReplicationControllerStatus", "readyReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.core.v1.ReplicationControllerSpec", "selector")).wide(),
        ],
        |o, now| replicas(o, now, read::labels(o.pointer("/spec/selector"))),
    ),
    printer(
        "apps",
        "ReplicaSet",
        &[
            NAME,
            Column::number("Desired", Doc::Field("api.apps.v1.ReplicaSetSpec", "replicas")),
            Column::number("Current", Doc::Field("api.apps.v1.ReplicaSetStatus", "replicas")),
            Column::number("Ready", Doc::Field("api.apps.v1.ReplicaSetStatus", "readyReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.apps.v1.ReplicaSetSpec", "selector")).wide(),
        ],
        |o, now| replicas(o, now, read::selector(o.pointer("/spec/selector"))),
    ),
    printer(
        "apps",
        "Deployment",
        &[
            NAME,
            Column::text("Ready", Doc::Text("Number of the pod with ready state")),
            Column::text("Up-to-date", Doc::Field("api.apps.v1.DeploymentStatus", "updatedReplicas")),
            Column::text("Available", Doc::Field("api.apps.v1.DeploymentStatus", "availableReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.apps.v1.DeploymentSpec", "selector")).wide(),
        ],
        |o, now| {
            let (names, images) = read::containers(o, "/spec/template/spec/containers");
            vec![
                read::name(o),
                json!(format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"))),
                json!(int(o, "/status/updatedReplicas")),
                json!(int(o, "/status/availableReplicas")),
                read::age(o, now),
                names,
                images,
                json!(read::selector_text(o.pointer("/spec/selector"))),
            ]
        },
    ),
    printer(
        "autoscaling",
        "Scale",
        &[
            NAME,
            Column::number("Desired", Doc::Field("api.autoscaling.v1.ScaleSpec", "replicas")),
            Column::number("Available", Doc::Field("api.autoscaling.v1.ScaleStatus", "replicas")),
            AGE,
        ],
        |o, now| {
            let (wanted, found) = (int(o, "/spec/replicas"), int(o, "/status/replicas"));
            vec![read::name(o), json!(wanted), json!(found), read::age(o, now)]
        },
    ),
    printer(
        "apps",
        "StatefulSet",
        &[NAME, Column::text("Ready", Doc::Text("Number of the pod with ready state")), AGE, CONTAINERS, IMAGES],
        |o, now| {
            let (names, images) = read::containers(o, "/spec/template/spec/containers");
            let ready = format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"));
            vec![read::name(o), json!(ready), read::age(o, now), names, images]
        },
    ),
    printer(
        "apps",
        "DaemonSet",
        &[
            NAME,
            Column::number("Desired", Doc::Field("api.apps.v1.DaemonSetStatus", "desiredNumberScheduled")),
            Column::number("Current", Doc::Field("api.apps.v1.DaemonSetStatus", "currentNumberScheduled")),
            Column::number("Ready", Doc::Field("api.apps.v1.DaemonSetStatus", "numberReady")),
            Column::number("Up-to-date", Doc::Field("api.apps.v1.DaemonSetStatus", "updatedNumberScheduled")),
            Column::number("Available", Doc::Field("api.apps.v1.DaemonSetStatus", "numberAvailable")),
            Column::text("Node Selector", Doc::Field("api.core.v1.PodSpec", "nodeSelector")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.apps.v1.DaemonSetSpec", "selector")).wide(),
        ],
        |o, now| {
            let (names, images) = read::containers(o, "/spec/template/spec/containers");
            vec![
                read::name(o),
                json!(int(o, "/status/desiredNumberScheduled")),
                json!(int(o, "/status/currentNumberScheduled")),
                json!(int(o, "/status/numberReady")),
                json!(int(o, "/status/updatedNumberScheduled")),
                json!(int(o, "/status/numberAvailable")),
                read::labels(o.pointer("/spec/template/spec/nodeSelector")),
                read::age(o, now),
                names,
                images,
                read::selector(o.pointer("/spec/selector")),
            ]
        },
    ),
    printer(
        "apps",
        "ControllerRevision",
        &[
            NAME,
            Column::text("Controller", Doc::Text("Controller of the object")),
            Column::text("Revision", Doc::Field("api.apps.v1.ControllerRevision", "revision")),
            AGE,
        ],
        |o, now| {
            let owners = list(o, "/metadata/ownerReferences");
            let owner = owners.iter().find(|r| read::flag(r, "/controller")).map_or(read::NONE.to_owned(), |r| {
                let group = text(r, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
                let kind = text(r, "/kind").to_lowercase();
                let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
                format!("{kind}/{}", text(r, "/name"))
            });
            vec![read::name(o), json!(owner), json!(int(o, "/revision")), read::age(o, now)]
        },
    ),
    KindPrinter {
        group: "batch",
        kind: "Job",
        columns: &[
            NAME,
            Column::text("Status", Doc::Text("Status of the job.")),
            Column::text("Completions", Doc::Field("api.batch.v1.JobStatus", "succeeded")),
            Column::text("Duration", Doc::Text("Time required to complete the job.")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.batch.v1.JobSpec", "selector")).wide(),
        ],
        cells: job,
        conditions: no_conditions,
    },
    printer(
        "batch",
        "CronJob",
        &[
            NAME,
            Column::text("Schedule", Doc::Field("api.batch.v1.CronJobSpec", "schedule")),
            Column::text("Timezone", Doc::Field("api.batch.v1.CronJobSpec", "timeZone")),
            Column::new("Suspend", "boolean", Doc::Field("api.batch.v1.CronJobSpec", "suspend")),
            Column::number("Active", Doc::Field("api.batch.v1.CronJobStatus", "active")),
            Column::text("Last Schedule", Doc::Field("api.batch.v1.CronJobStatus", "lastScheduleTime")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.batch.v1.JobSpec", "selector")).wide(),
        ],
        |o, now| {
            let (names, images) = read::containers(o, "/spec/jobTemplate/spec/template/spec/containers");
            let last = age::since(text(o, "/status/lastScheduleTime"), now).unwrap_or_else(|| read::NONE.to_owned());
            vec![
                read::name(o),
                json!(text(o, "/spec/schedule")),
                read::text_or(o, "/spec/timeZone", read::NONE),
                read::bool_text(o.pointer("/spec/suspend")),
                json!(size(o, "/status/active")),
                json!(last),
                read::age(o, now),
                names,
                images,
                read::selector(o.pointer("/spec/jobTemplate/spec/selector")),
            ]
        },
    ),
    printer(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[
            NAME,
            Column::text("Reference", Doc::Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "scaleTargetRef")),
            Column::text("Targets", Doc::Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "metrics")),
            Column::text("MinPods", Doc::Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "minReplicas")),
            Column::text("MaxPods", Doc::Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "maxReplicas")),
            Column::text("Replicas", Doc::Field("api.autoscaling.v2.HorizontalPodAutoscalerStatus", "currentReplicas")),
            AGE,
        ],
        |o, now| {
            let reference =
                format!("{}/{}", text(o, "/spec/scaleTargetRef/kind"), text(o, "/spec/scaleTargetRef/name"));
            let min = maybe_int(o, "/spec/minReplicas").map_or(read::UNSET.to_owned(), |n| n.to_string());
            vec![
                read::name(o),
                json!(reference),
                json!(metrics(o)),
                json!(min),
                json!(int(o, "/spec/maxReplicas")),
                json!(int(o, "/status/currentReplicas")),
                read::age(o, now),
            ]
        },
    ),
    printer(
        "autoscaling",
        "Scale",
        &[
            NAME,
            Column::number("Desired", Doc::Field("api.autoscaling.v1.ScaleSpec", "replicas")),
            Column::number("Available", Doc::Field("api.autoscaling.v1.ScaleStatus", "replicas")),
            AGE,
        ],
        |o, now| {
            vec![read::name(o), json!(int(o, "/spec/replicas")), json!(int(o, "/status/replicas")), read::age(o, now)]
        },
    ),
    printer(
        "policy",
        "PodDisruptionBudget",
        &[
            NAME,
            Column::text("Min Available", Doc::Text("The minimum number of pods that must be available.")),
            Column::text("Max Unavailable", Doc::Text("The maximum number of pods that may be unavailable.")),
            Column::number(
                "Allowed Disruptions",
                Doc::Text("Calculated number of pods that may be disrupted at this time."),
            ),
            AGE,
        ],
        |o, now| {
            vec![
                read::name(o),
                read::int_or_string(o.pointer("/spec/minAvailable"), "N/A"),
                read::int_or_string(o.pointer("/spec/maxUnavailable"), "N/A"),
                json!(int(o, "/status/disruptionsAllowed")),
                read::age(o, now),
            ]
        },
    ),
];

fn replicas(o: &Value, now: Now, selector: Value) -> Vec<Value> {
    let (names, images) = read::containers(o, "/spec/template/spec/containers");
    vec![
        read::name(o),
        json!(int(o, "/spec/replicas")),
        json!(int(o, "/status/replicas")),
        json!(int(o, "/status/readyReplicas")),
        read::age(o, now),
        names,
        images,
        selector,
    ]
}

fn job(o: &Value, now: Now) -> Vec<Value> {
    let (names, images) = read::containers(o, "/spec/template/spec/containers");
    let succeeded = int(o, "/status/succeeded");
    let completions = match (maybe_int(o, "/spec/completions"), int(o, "/spec/parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let start: Option<jiff::Timestamp> = text(o, "/status/startTime").parse().ok();
    let end = text(o, "/status/completionTime").parse().unwrap_or(now);
    let duration = start.map_or(String::new(), |start| human_duration(age::seconds_between(start, end)));
    let is = |kind: &str| read::condition(o, kind) == "True";
    let status = if is("Complete") {
        "Complete"
    } else if is("Failed") {
        "Failed"
    } else if o.pointer("/metadata/deletionTimestamp").is_some() {
        "Terminating"
    } else if is("Suspended") {
        "Suspended"
    } else if is("FailureTarget") {
        "FailureTarget"
    } else if is("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    vec![
        read::name(o),
        json!(status),
        json!(completions),
        json!(duration),
        read::age(o, now),
        names,
        images,
        read::selector(o.pointer("/spec/selector")),
    ]
}

/// `current/target` of the first two metrics, then how many more there are.
fn metrics(o: &Value) -> String {
    const SHOWN: usize = 2;
    let specs = list(o, "/spec/metrics");
    if specs.is_empty() {
        // autoscaling/v1 knows only CPU.
        return match maybe_int(o, "/spec/targetCPUUtilizationPercentage") {
            Some(target) => {
                let current = maybe_int(o, "/status/currentCPUUtilizationPercentage");
                format!("cpu: {}/{target}%", current.map_or("<unknown>".to_owned(), |n| format!("{n}%")))
            }
            None => read::NONE.to_owned(),
        };
    }
    let statuses = list(o, "/status/currentMetrics");
    let shown: Vec<String> = specs
        .iter()
        .take(SHOWN)
        .enumerate()
        .map(|(i, spec)| metric(spec, statuses.get(i).unwrap_or(&Value::Null)))
        .collect();
    let joined = shown.join(", ");
    if specs.len() > SHOWN { format!("{joined} + {} more...", specs.len() - SHOWN) } else { joined }
}

fn metric(spec: &Value, status: &Value) -> String {
    let kind = text(spec, "/type");
    let field = match kind {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = |what: &str| text(spec, &format!("/{field}/target/{what}")).to_owned();
    let current = |what: &str| {
        let found = text(status, &format!("/{field}/current/{what}"));
        if found.is_empty() { "<unknown>".to_owned() } else { found.to_owned() }
    };
    let average = target("averageValue");
    match kind {
        "Pods" => format!("{}/{average}", current("averageValue")),
        "External" | "Object" if !average.is_empty() => format!("{}/{average} (avg)", current("averageValue")),
        "External" | "Object" => format!("{}/{}", current("value"), target("value")),
        _ => {
            let name = text(spec, &format!("/{field}/name"));
            if !average.is_empty() {
                return format!("{name}: {}/{average}", current("averageValue"));
            }
            let percent = |value: &Value, pointer: String, absent: &str| {
                maybe_int(value, &pointer).map_or(absent.to_owned(), |n| format!("{n}%"))
            };
            let now = percent(status, format!("/{field}/current/averageUtilization"), "<unknown>");
            format!("{name}: {now}/{}", percent(spec, format!("/{field}/target/averageUtilization"), "<auto>"))
        }
    }
}
