//! Columns of pods and workloads.

use serde_json::Value;

use super::ColumnDescription::{Field, Text};
use super::fields::{self, int, list, maybe_int, size, text};
use super::{AGE, CONTAINERS, Column, IMAGES, KindPrinter, NAME};
use crate::printers::view::Pod;
use crate::printers::{Cell, JsonSource, human_duration, pod};

pub(super) const KINDS: &[KindPrinter] = &[
    KindPrinter::new(
        "",
        "Pod",
        &[
            NAME,
            Column::text("Ready", Text("The aggregate readiness state of this pod for accepting traffic.")),
            Column::text("Status", Text("The aggregate status of the containers in this pod.")),
            Column::text(
                "Restarts",
                Text(
                    "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
                ),
            ),
            AGE,
            Column::text("IP", Field("api.core.v1.PodStatus", "podIP")).wide(),
            Column::text("Node", Field("api.core.v1.PodSpec", "nodeName")).wide(),
            Column::text("Nominated Node", Field("api.core.v1.PodStatus", "nominatedNodeName")).wide(),
            Column::text("Readiness Gates", Field("api.core.v1.PodSpec", "readinessGates")).wide(),
        ],
        |o| o.read::<Pod<'_>>().map(|pod| pod::print(pod).cells).unwrap_or_default(),
    ),
    KindPrinter::new(
        "",
        "PodTemplate",
        &[
            NAME,
            Column::text("Containers", Text("Names of each container in the template.")),
            Column::text("Images", Text("Images referenced by each container in the template.")),
            Column::text("Pod Labels", Text("The labels for the pod template.")),
        ],
        |o| {
            let (names, images) = fields::containers(o, "/template/spec/containers");
            vec![fields::name(o), names, images, fields::labels(o.pointer("/template/metadata/labels"))]
        },
    ),
    KindPrinter::new(
        "",
        "ReplicationController",
        &replica_columns("api.core.v1.ReplicationControllerSpec", "api.core.v1.ReplicationControllerStatus"),
        |o| replica_cells(o, fields::labels(o.pointer("/spec/selector"))),
    ),
    KindPrinter::new(
        "apps",
        "ReplicaSet",
        &replica_columns("api.apps.v1.ReplicaSetSpec", "api.apps.v1.ReplicaSetStatus"),
        |o| replica_cells(o, fields::selector(o.pointer("/spec/selector"))),
    ),
    KindPrinter::new(
        "apps",
        "Deployment",
        &[
            NAME,
            Column::text("Ready", Text("Number of the pod with ready state")),
            Column::text("Up-to-date", Field("api.apps.v1.DeploymentStatus", "updatedReplicas")),
            Column::text("Available", Field("api.apps.v1.DeploymentStatus", "availableReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            selector_column("api.apps.v1.DeploymentSpec"),
        ],
        |o| {
            let (names, images) = fields::containers(o, "/spec/template/spec/containers");
            vec![
                fields::name(o),
                Cell::from(format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"))),
                Cell::from(int(o, "/status/updatedReplicas")),
                Cell::from(int(o, "/status/availableReplicas")),
                fields::age(o),
                names,
                images,
                Cell::from(fields::selector_text(o.pointer("/spec/selector"))),
            ]
        },
    ),
    KindPrinter::new(
        "autoscaling",
        "Scale",
        &[
            // Unlike other name columns, kube-apiserver prints this one without a format.
            Column::text("Name", NAME.description),
            Column::number("Desired", Field("api.autoscaling.v1.ScaleSpec", "replicas")),
            Column::number("Available", Field("api.autoscaling.v1.ScaleStatus", "replicas")),
            AGE,
        ],
        |o| {
            let (desired, current) = (int(o, "/spec/replicas"), int(o, "/status/replicas"));
            vec![fields::name(o), Cell::from(desired), Cell::from(current), fields::age(o)]
        },
    ),
    KindPrinter::new(
        "apps",
        "StatefulSet",
        &[NAME, Column::text("Ready", Text("Number of the pod with ready state")), AGE, CONTAINERS, IMAGES],
        |o| {
            let (names, images) = fields::containers(o, "/spec/template/spec/containers");
            let ready = format!("{}/{}", int(o, "/status/readyReplicas"), int(o, "/spec/replicas"));
            vec![fields::name(o), Cell::from(ready), fields::age(o), names, images]
        },
    ),
    KindPrinter::new(
        "apps",
        "DaemonSet",
        &[
            NAME,
            Column::number("Desired", Field("api.apps.v1.DaemonSetStatus", "desiredNumberScheduled")),
            Column::number("Current", Field("api.apps.v1.DaemonSetStatus", "currentNumberScheduled")),
            Column::number("Ready", Field("api.apps.v1.DaemonSetStatus", "numberReady")),
            Column::number("Up-to-date", Field("api.apps.v1.DaemonSetStatus", "updatedNumberScheduled")),
            Column::number("Available", Field("api.apps.v1.DaemonSetStatus", "numberAvailable")),
            Column::text("Node Selector", Field("api.core.v1.PodSpec", "nodeSelector")),
            AGE,
            CONTAINERS,
            IMAGES,
            selector_column("api.apps.v1.DaemonSetSpec"),
        ],
        |o| {
            let (names, images) = fields::containers(o, "/spec/template/spec/containers");
            vec![
                fields::name(o),
                Cell::from(int(o, "/status/desiredNumberScheduled")),
                Cell::from(int(o, "/status/currentNumberScheduled")),
                Cell::from(int(o, "/status/numberReady")),
                Cell::from(int(o, "/status/updatedNumberScheduled")),
                Cell::from(int(o, "/status/numberAvailable")),
                fields::labels(o.pointer("/spec/template/spec/nodeSelector")),
                fields::age(o),
                names,
                images,
                fields::selector(o.pointer("/spec/selector")),
            ]
        },
    ),
    KindPrinter::new(
        "apps",
        "ControllerRevision",
        &[
            NAME,
            Column::text("Controller", Text("Controller of the object")),
            Column::text("Revision", Field("api.apps.v1.ControllerRevision", "revision")),
            AGE,
        ],
        |o| {
            let owners = list(o, "/metadata/ownerReferences");
            let owner = owners.iter().find(|r| fields::flag(r, "/controller")).map_or(fields::NONE.to_owned(), |r| {
                let group = text(r, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
                let kind = text(r, "/kind").to_lowercase();
                let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
                format!("{kind}/{}", text(r, "/name"))
            });
            vec![fields::name(o), Cell::from(owner), Cell::from(int(o, "/revision")), fields::age(o)]
        },
    ),
    KindPrinter::new(
        "batch",
        "Job",
        &[
            NAME,
            Column::text("Status", Text("Status of the job.")),
            Column::text("Completions", Field("api.batch.v1.JobStatus", "succeeded")),
            Column::text("Duration", Text("Time required to complete the job.")),
            AGE,
            CONTAINERS,
            IMAGES,
            selector_column("api.batch.v1.JobSpec"),
        ],
        job_cells,
    ),
    KindPrinter::new(
        "batch",
        "CronJob",
        &[
            NAME,
            Column::text("Schedule", Field("api.batch.v1.CronJobSpec", "schedule")),
            Column::text("Timezone", Field("api.batch.v1.CronJobSpec", "timeZone")),
            Column::boolean("Suspend", Field("api.batch.v1.CronJobSpec", "suspend")),
            Column::number("Active", Field("api.batch.v1.CronJobStatus", "active")),
            Column::text("Last Schedule", Field("api.batch.v1.CronJobStatus", "lastScheduleTime")),
            AGE,
            CONTAINERS,
            IMAGES,
            selector_column("api.batch.v1.JobSpec"),
        ],
        |o| {
            let (names, images) = fields::containers(o, "/spec/jobTemplate/spec/template/spec/containers");
            let last = fields::time(o, "/status/lastScheduleTime")
                .map_or_else(|| Cell::from(fields::NONE), |since| Cell::Since { since });
            vec![
                fields::name(o),
                Cell::from(text(o, "/spec/schedule")),
                fields::text_or(o, "/spec/timeZone", fields::NONE),
                fields::bool_text(o.pointer("/spec/suspend")),
                Cell::from(size(o, "/status/active")),
                last,
                fields::age(o),
                names,
                images,
                fields::selector(o.pointer("/spec/jobTemplate/spec/selector")),
            ]
        },
    ),
    KindPrinter::new(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[
            NAME,
            Column::text("Reference", Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "scaleTargetRef")),
            Column::text("Targets", Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "metrics")),
            Column::text("MinPods", Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "minReplicas")),
            Column::text("MaxPods", Field("api.autoscaling.v2.HorizontalPodAutoscalerSpec", "maxReplicas")),
            Column::text("Replicas", Field("api.autoscaling.v2.HorizontalPodAutoscalerStatus", "currentReplicas")),
            AGE,
        ],
        |o| {
            let reference =
                format!("{}/{}", text(o, "/spec/scaleTargetRef/kind"), text(o, "/spec/scaleTargetRef/name"));
            let min = maybe_int(o, "/spec/minReplicas").map_or(fields::UNSET.to_owned(), |n| n.to_string());
            vec![
                fields::name(o),
                Cell::from(reference),
                Cell::from(format_metrics(o)),
                Cell::from(min),
                Cell::from(int(o, "/spec/maxReplicas")),
                Cell::from(int(o, "/status/currentReplicas")),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(
        "policy",
        "PodDisruptionBudget",
        &[
            NAME,
            Column::text("Min Available", Text("The minimum number of pods that must be available.")),
            Column::text("Max Unavailable", Text("The maximum number of pods that may be unavailable.")),
            Column::number(
                "Allowed Disruptions",
                Text("Calculated number of pods that may be disrupted at this time."),
            ),
            AGE,
        ],
        |o| {
            vec![
                fields::name(o),
                fields::int_or_string(o.pointer("/spec/minAvailable"), "N/A"),
                fields::int_or_string(o.pointer("/spec/maxUnavailable"), "N/A"),
                Cell::from(int(o, "/status/disruptionsAllowed")),
                fields::age(o),
            ]
        },
    ),
];

/// Columns of ReplicaSets and ReplicationControllers, with the OpenAPI schemas of their `spec` and `status`.
const fn replica_columns(spec: &'static str, status: &'static str) -> [Column; 8] {
    [
        NAME,
        Column::number("Desired", Field(spec, "replicas")),
        Column::number("Current", Field(status, "replicas")),
        Column::number("Ready", Field(status, "readyReplicas")),
        AGE,
        CONTAINERS,
        IMAGES,
        selector_column(spec),
    ]
}

/// Column of the `selector` in an OpenAPI schema.
const fn selector_column(schema: &'static str) -> Column {
    Column::text("Selector", Field(schema, "selector")).wide()
}

fn replica_cells(o: &Value, selector: Cell) -> Vec<Cell> {
    let (names, images) = fields::containers(o, "/spec/template/spec/containers");
    vec![
        fields::name(o),
        Cell::from(int(o, "/spec/replicas")),
        Cell::from(int(o, "/status/replicas")),
        Cell::from(int(o, "/status/readyReplicas")),
        fields::age(o),
        names,
        images,
        selector,
    ]
}

fn job_cells(o: &Value) -> Vec<Cell> {
    let (names, images) = fields::containers(o, "/spec/template/spec/containers");
    let succeeded = int(o, "/status/succeeded");
    let completions = match (maybe_int(o, "/spec/completions"), int(o, "/spec/parallelism")) {
        (Some(completions), _) => format!("{succeeded}/{completions}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let duration = match (fields::time(o, "/status/startTime"), fields::time(o, "/status/completionTime")) {
        (None, _) => Cell::from(""),
        (Some(since), None) => Cell::Since { since },
        (Some(start), Some(end)) => Cell::from(human_duration(end - start)),
    };
    let has_condition = |kind: &str| fields::condition(o, kind) == "True";
    let status = if has_condition("Complete") {
        "Complete"
    } else if has_condition("Failed") {
        "Failed"
    } else if o.pointer("/metadata/deletionTimestamp").is_some() {
        "Terminating"
    } else if has_condition("Suspended") {
        "Suspended"
    } else if has_condition("FailureTarget") {
        "FailureTarget"
    } else if has_condition("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    };
    vec![
        fields::name(o),
        Cell::from(status),
        Cell::from(completions),
        duration,
        fields::age(o),
        names,
        images,
        fields::selector(o.pointer("/spec/selector")),
    ]
}

/// `current/target` of the first two metrics, with the number of further metrics.
fn format_metrics(o: &Value) -> String {
    const SHOWN: usize = 2;
    let specs = list(o, "/spec/metrics");
    if specs.is_empty() {
        // autoscaling/v1 only supports CPU.
        return match maybe_int(o, "/spec/targetCPUUtilizationPercentage") {
            Some(target) => {
                let current = maybe_int(o, "/status/currentCPUUtilizationPercentage");
                format!("cpu: {}/{target}%", current.map_or("<unknown>".to_owned(), |n| format!("{n}%")))
            }
            None => fields::NONE.to_owned(),
        };
    }
    let statuses = list(o, "/status/currentMetrics");
    let shown: Vec<String> = specs
        .iter()
        .take(SHOWN)
        .enumerate()
        .map(|(i, spec)| format_metric(spec, statuses.get(i).unwrap_or(&Value::Null)))
        .collect();
    let joined = shown.join(", ");
    if specs.len() > SHOWN { format!("{joined} + {} more...", specs.len() - SHOWN) } else { joined }
}

fn format_metric(spec: &Value, status: &Value) -> String {
    let kind = text(spec, "/type");
    let field = match kind {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = |name: &str| text(spec, &format!("/{field}/target/{name}")).to_owned();
    let current = |name: &str| {
        let found = text(status, &format!("/{field}/current/{name}"));
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
            let current_percent = percent(status, format!("/{field}/current/averageUtilization"), "<unknown>");
            format!(
                "{name}: {current_percent}/{}",
                percent(spec, format!("/{field}/target/averageUtilization"), "<auto>")
            )
        }
    }
}
