//! Columns of pods and workloads.

use serde_json::Value;

use super::read::{self, int, list, maybe_int, size, text};
use super::{AGE, CONTAINERS, Column, Doc, IMAGES, KindPrinter, NAME};
use crate::printers::view::Pod;
use crate::printers::{Cell, JsonSource, human_duration, pod};

const SELECTOR_LABEL: &str = "Selector";

pub(super) const KINDS: &[KindPrinter] = &[
    KindPrinter::new(
        "",
        "Pod",
        &[
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
        |o| o.read::<Pod<'_>>().map(|pod| pod::print(pod).cells).unwrap_or_default(),
    ),
    KindPrinter::new(
        "",
        "PodTemplate",
        &[
            NAME,
            Column::text("Containers", Doc::Text("Names of each container in the template.")),
            Column::text("Images", Doc::Text("Images referenced by each container in the template.")),
            Column::text("Pod Labels", Doc::Text("The labels for the pod template.")),
        ],
        |o| {
            let (names, images) = read::containers(o, "/template/spec/containers");
            vec![read::name(o), names, images, read::labels(o.pointer("/template/metadata/labels"))]
        },
    ),
    KindPrinter::new(
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
        |o| replicas(o, read::labels(o.pointer("/spec/selector"))),
    ),
    KindPrinter::new(
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
        |o| replicas(o, read::selector(o.pointer("/spec/selector"))),
    ),
    KindPrinter::new(
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
        |o| {
            let (names, images) = read::containers(o, "/spec/template/spec/containers");
            vec![
                read::name(o),
                Cell::from(format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"))),
                Cell::from(int(o, "/status/updatedReplicas")),
                Cell::from(int(o, "/status/availableReplicas")),
                read::age(o),
                names,
                images,
                Cell::from(read::selector_text(o.pointer("/spec/selector"))),
            ]
        },
    ),
    KindPrinter::new(
        "autoscaling",
        "Scale",
        &[
            // Unlike other name columns, kube-apiserver prints this one without a format.
            Column::text("Name", NAME.doc),
            Column::number("Desired", Doc::Field("api.autoscaling.v1.ScaleSpec", "replicas")),
            Column::number("Available", Doc::Field("api.autoscaling.v1.ScaleStatus", "replicas")),
            AGE,
        ],
        |o| {
            let (desired, current) = (int(o, "/spec/replicas"), int(o, "/status/replicas"));
            vec![read::name(o), Cell::from(desired), Cell::from(current), read::age(o)]
        },
    ),
    KindPrinter::new(
        "apps",
        "StatefulSet",
        &[NAME, Column::text("Ready", Doc::Text("Number of the pod with ready state")), AGE, CONTAINERS, IMAGES],
        |o| {
            let (names, images) = read::containers(o, "/spec/template/spec/containers");
            let ready = format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"));
            vec![read::name(o), Cell::from(ready), read::age(o), names, images]
        },
    ),
    KindPrinter::new(
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
        |o| {
            let (names, images) = read::containers(o, "/spec/template/spec/containers");
            vec![
                read::name(o),
                Cell::from(int(o, "/status/desiredNumberScheduled")),
                Cell::from(int(o, "/status/currentNumberScheduled")),
                Cell::from(int(o, "/status/numberReady")),
                Cell::from(int(o, "/status/updatedNumberScheduled")),
                Cell::from(int(o, "/status/numberAvailable")),
                read::labels(o.pointer("/spec/template/spec/nodeSelector")),
                read::age(o),
                names,
                images,
                read::selector(o.pointer("/spec/selector")),
            ]
        },
    ),
    KindPrinter::new(
        "apps",
        "ControllerRevision",
        &[
            NAME,
            Column::text("Controller", Doc::Text("Controller of the object")),
            Column::text("Revision", Doc::Field("api.apps.v1.ControllerRevision", "revision")),
            AGE,
        ],
        |o| {
            let owners = list(o, "/metadata/ownerReferences");
            let owner = owners.iter().find(|r| read::flag(r, "/controller")).map_or(read::NONE.to_owned(), |r| {
                let group = text(r, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
                let kind = text(r, "/kind").to_lowercase();
                let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
                format!("{kind}/{}", text(r, "/name"))
            });
            vec![read::name(o), Cell::from(owner), Cell::from(int(o, "/revision")), read::age(o)]
        },
    ),
    KindPrinter::new(
        "batch",
        "Job",
        &[
            NAME,
            Column::text("Status", Doc::Text("Status of the job.")),
            Column::text("Completions", Doc::Field("api.batch.v1.JobStatus", "succeeded")),
            Column::text("Duration", Doc::Text("Time required to complete the job.")),
            AGE,
            CONTAINERS,
            IMAGES,
            Column::text(SELECTOR_LABEL, Doc::Field("api.batch.v1.JobSpec", "selector")).wide(),
        ],
        job,
    ),
    KindPrinter::new(
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
        |o| {
            let (names, images) = read::containers(o, "/spec/jobTemplate/spec/template/spec/containers");
            let last = read::time(o, "/status/lastScheduleTime")
                .map_or_else(|| Cell::from(read::NONE), |since| Cell::Since { since });
            vec![
                read::name(o),
                Cell::from(text(o, "/spec/schedule")),
                read::text_or(o, "/spec/timeZone", read::NONE),
                read::bool_text(o.pointer("/spec/suspend")),
                Cell::from(size(o, "/status/active")),
                last,
                read::age(o),
                names,
                images,
                read::selector(o.pointer("/spec/jobTemplate/spec/selector")),
            ]
        },
    ),
    KindPrinter::new(
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
        |o| {
            let reference =
                format!("{}/{}", text(o, "/spec/scaleTargetRef/kind"), text(o, "/spec/scaleTargetRef/name"));
            let min = maybe_int(o, "/spec/minReplicas").map_or(read::UNSET.to_owned(), |n| n.to_string());
            vec![
                read::name(o),
                Cell::from(reference),
                Cell::from(metrics(o)),
                Cell::from(min),
                Cell::from(int(o, "/spec/maxReplicas")),
                Cell::from(int(o, "/status/currentReplicas")),
                read::age(o),
            ]
        },
    ),
    KindPrinter::new(
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
        |o| {
            vec![
                read::name(o),
                read::int_or_string(o.pointer("/spec/minAvailable"), "N/A"),
                read::int_or_string(o.pointer("/spec/maxUnavailable"), "N/A"),
                Cell::from(int(o, "/status/disruptionsAllowed")),
                read::age(o),
            ]
        },
    ),
];

fn replicas(o: &Value, selector: Cell) -> Vec<Cell> {
    let (names, images) = read::containers(o, "/spec/template/spec/containers");
    vec![
        read::name(o),
        Cell::from(int(o, "/spec/replicas")),
        Cell::from(int(o, "/status/replicas")),
        Cell::from(int(o, "/status/readyReplicas")),
        read::age(o),
        names,
        images,
        selector,
    ]
}

fn job(o: &Value) -> Vec<Cell> {
    let (names, images) = read::containers(o, "/spec/template/spec/containers");
    let succeeded = int(o, "/status/succeeded");
    let completions = match (maybe_int(o, "/spec/completions"), int(o, "/spec/parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let duration = match (read::time(o, "/status/startTime"), read::time(o, "/status/completionTime")) {
        (None, _) => Cell::from(""),
        (Some(since), None) => Cell::Since { since },
        (Some(start), Some(end)) => Cell::from(human_duration(end - start)),
    };
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
        Cell::from(status),
        Cell::from(completions),
        duration,
        read::age(o),
        names,
        images,
        read::selector(o.pointer("/spec/selector")),
    ]
}

/// `current/target` of the first two metrics, with the number of further metrics.
fn metrics(o: &Value) -> String {
    const SHOWN: usize = 2;
    let specs = list(o, "/spec/metrics");
    if specs.is_empty() {
        // autoscaling/v1 only supports CPU.
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
