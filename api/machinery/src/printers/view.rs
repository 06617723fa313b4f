//! Borrowed views of supported kinds with the fields that are printed. Absent and null fields have default values.

use super::borrowed::{Str, null_as_default};
use super::{InvolvedObject, PrintedObject, unix_seconds};
use crate::quantity;
use crate::views;
use serde::Deserialize;
use std::borrow::Cow;

type Text<'a> = Option<Str<'a>>;

views! {
    Metadata {
        name: Str<'a>,
        namespace: Text<'a>,
        creation_timestamp: Text<'a>,
        deletion_timestamp: Text<'a>,
    }
    Condition {
        #[serde(rename = "type")] type_: Str<'a>,
        status: Str<'a>,
        reason: Text<'a>,
        message: Text<'a>,
    }
    Pod { metadata: Metadata<'a>, spec: PodSpec<'a>, status: PodStatus<'a> }
    PodSpec {
        containers: Vec<Container<'a>>,
        init_containers: Vec<Container<'a>>,
        ephemeral_containers: Vec<Container<'a>>,
        node_name: Text<'a>,
        readiness_gates: Vec<ReadinessGate<'a>>,
        restart_policy: Text<'a>,
        scheduler_name: Text<'a>,
        service_account_name: Text<'a>,
        host_network: bool,
        /// Requests and limits at the pod level, which replace those of its containers (KEP-2837).
        resources: ResourceRequirements<'a>,
        overhead: ResourceList<'a>,
    }
    ReadinessGate { condition_type: Str<'a> }
    Container {
        name: Str<'a>,
        image: Text<'a>,
        restart_policy: Text<'a>,
        resources: ResourceRequirements<'a>,
    }
    ResourceRequirements { requests: ResourceList<'a>, limits: ResourceList<'a> }
    ResourceList { cpu: Option<Quantity<'a>>, memory: Option<Quantity<'a>> }
    PodStatus {
        phase: Text<'a>,
        reason: Text<'a>,
        message: Text<'a>,
        conditions: Vec<Condition<'a>>,
        container_statuses: Vec<ContainerStatus<'a>>,
        init_container_statuses: Vec<ContainerStatus<'a>>,
        #[serde(rename = "podIP")] pod_ip: Text<'a>,
        #[serde(rename = "podIPs")] pod_ips: Vec<PodIp<'a>>,
        nominated_node_name: Text<'a>,
    }
    PodIp { ip: Str<'a> }
    ContainerStatus {
        name: Str<'a>,
        ready: bool,
        started: Option<bool>,
        restart_count: i64,
        state: ContainerState<'a>,
        last_state: ContainerState<'a>,
    }
    ContainerState { waiting: Option<Waiting<'a>>, running: Option<Running<'a>>, terminated: Option<Terminated<'a>> }
    Waiting { reason: Text<'a>, message: Text<'a> }
    Running { started_at: Text<'a> }
    Terminated { reason: Text<'a>, exit_code: i64, signal: i64, finished_at: Text<'a> }
    Event {
        metadata: Metadata<'a>,
        involved_object: ObjectReference<'a>,
        regarding: ObjectReference<'a>,
        related: ObjectReference<'a>,
        #[serde(rename = "type")] type_: Text<'a>,
        reason: Text<'a>,
        message: Text<'a>,
        note: Text<'a>,
        count: Option<i64>,
        deprecated_count: Option<i64>,
        last_timestamp: Text<'a>,
        deprecated_last_timestamp: Text<'a>,
        event_time: Text<'a>,
        series: Option<Series<'a>>,
        source: EventSource<'a>,
        reporting_component: Text<'a>,
        reporting_controller: Text<'a>,
    }
    Series { count: i64, last_observed_time: Text<'a> }
    EventSource { component: Text<'a> }
    ObjectReference {
        api_version: Text<'a>,
        kind: Str<'a>,
        namespace: Text<'a>,
        name: Str<'a>,
        uid: Text<'a>,
        resource_version: Text<'a>,
        field_path: Text<'a>,
    }
    Node { metadata: Metadata<'a>, spec: NodeSpec<'a>, status: NodeStatus<'a> }
    NodeSpec { unschedulable: bool }
    NodeStatus { conditions: Vec<Condition<'a>>, addresses: Vec<Address<'a>> }
    Address { #[serde(rename = "type")] type_: Str<'a>, address: Str<'a> }
    Service { spec: ServiceSpec<'a>, status: ServiceStatus<'a> }
    ServiceSpec {
        #[serde(rename = "type")] type_: Text<'a>,
        #[serde(rename = "clusterIP")] cluster_ip: Text<'a>,
        #[serde(rename = "externalIPs")] external_ips: Vec<Str<'a>>,
    }
    ServiceStatus { load_balancer: LoadBalancer<'a> }
    LoadBalancer { ingress: Vec<Ingress<'a>> }
    Ingress { ip: Text<'a>, hostname: Text<'a> }
    Workload { metadata: Metadata<'a>, spec: WorkloadSpec<'a>, status: WorkloadStatus<'a> }
    WorkloadSpec { replicas: Option<i64>, template: Template<'a> }
    Template { spec: PodSpec<'a> }
    WorkloadStatus {
        replicas: i64,
        ready_replicas: i64,
        desired_number_scheduled: i64,
        number_ready: i64,
        conditions: Vec<Condition<'a>>,
    }
    Job { metadata: Metadata<'a>, spec: JobSpec<'a>, status: JobStatus<'a> }
    JobSpec { completions: Option<i64>, parallelism: Option<i64>, suspend: bool, template: Template<'a> }
    JobStatus {
        succeeded: i64,
        conditions: Vec<Condition<'a>>,
    }
    CronJob { spec: CronJobSpec<'a> }
    CronJobSpec { suspend: bool, job_template: JobTemplate<'a> }
    JobTemplate { spec: JobSpec<'a> }
    Secret { #[serde(rename = "type")] type_: Text<'a> }
    /// An object of any other kind.
    Any { metadata: Metadata<'a>, status: AnyStatus<'a> }
    AnyStatus { phase: Text<'a>, conditions: Vec<Condition<'a>> }
}

/// A quantity written as a string or a number.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Quantity<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Number(f64),
}

impl Quantity<'_> {
    /// The exact value; None if the text is not a quantity.
    fn value(&self) -> Option<quantity::Quantity> {
        match self {
            Self::Number(number) => quantity::Quantity::parse(&number.to_string()).ok(),
            Self::Text(text) => quantity::Quantity::parse(text).ok(),
        }
    }
}

impl ResourceList<'_> {
    pub(super) fn cpu_milli(&self) -> Option<i64> {
        self.cpu.as_ref()?.value().map(|cores| cores.milli_value())
    }

    pub(super) fn memory_bytes(&self) -> Option<i64> {
        self.memory.as_ref()?.value().map(|bytes| bytes.value())
    }
}

impl Metadata<'_> {
    pub(super) fn creation_seconds(&self) -> Option<i64> {
        self.creation_timestamp.as_deref().and_then(unix_seconds)
    }
}

impl Terminated<'_> {
    /// The reason, or `Signal:N` or `ExitCode:N` without one.
    pub(super) fn status_text(&self) -> String {
        match self.reason.as_deref() {
            Some(reason) if !reason.is_empty() => reason.to_owned(),
            _ if self.signal != 0 => format!("Signal:{}", self.signal),
            _ => format!("ExitCode:{}", self.exit_code),
        }
    }
}

impl PodSpec<'_> {
    pub(super) fn all_containers(&self) -> impl Iterator<Item = &Container<'_>> {
        self.containers.iter().chain(&self.init_containers).chain(&self.ephemeral_containers)
    }

    pub(super) fn is_sidecar(&self, name: &str) -> bool {
        self.init_containers.iter().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
    }

    pub(super) fn images(&self) -> Vec<String> {
        self.all_containers().filter_map(|c| c.image.as_deref()).map(str::to_owned).collect()
    }
}

pub(super) fn add_conditions(conditions: &[Condition<'_>], printed: &mut PrintedObject) {
    printed.conditions = conditions.iter().map(|c| (c.type_.to_string(), c.status.to_string())).collect();
    let reasons = conditions.iter().filter_map(|c| c.reason.as_deref()).filter(|reason| !reason.is_empty());
    printed.reasons.extend(reasons.map(str::to_owned));
}

impl Service<'_> {
    pub(super) fn print(self) -> PrintedObject {
        let spec = &self.spec;
        let type_ = spec.type_.as_deref().unwrap_or("ClusterIP");
        let ingress = self.status.load_balancer.ingress.iter();
        let ingress = ingress.filter_map(|i| i.ip.as_deref().or(i.hostname.as_deref())).map(str::to_owned);
        let mut external: Vec<String> = spec.external_ips.iter().map(|ip| ip.to_string()).collect();
        external.extend(ingress);
        let is_pending = type_ == "LoadBalancer" && external.is_empty();
        let cluster_ip = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty());
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut ips: Vec<String> = cluster_ip.filter(|ip| *ip != "None").map(str::to_owned).into_iter().collect();
        ips.extend(external);
        PrintedObject {
            status: is_pending.then(|| "Pending".to_owned()),
            type_: Some(type_.to_owned()),
            fields: vec![field("spec.clusterIP", cluster_ip.unwrap_or_default()), field("spec.type", type_)],
            ips,
            ..PrintedObject::default()
        }
    }
}

impl Node<'_> {
    pub(super) fn print(self) -> PrintedObject {
        let ready = self.status.conditions.iter().find(|c| c.type_ == "Ready");
        let mut status = match ready.map(|c| c.status.as_ref()) {
            Some("True") => "Ready",
            Some("False") => "NotReady",
            _ => "Unknown",
        }
        .to_owned();
        if self.spec.unschedulable {
            status.push_str(",SchedulingDisabled");
        }
        let ips = self.status.addresses.iter().filter(|address| address.type_.ends_with("IP"));
        let unschedulable = if self.spec.unschedulable { "true" } else { "false" };
        let mut printed = PrintedObject {
            status: Some(status),
            node: Some(self.metadata.name.to_string()),
            ips: ips.map(|address| address.address.to_string()).collect(),
            fields: vec![("spec.unschedulable".to_owned(), unschedulable.to_owned())],
            ..PrintedObject::default()
        };
        add_conditions(&self.status.conditions, &mut printed);
        printed
    }
}

impl Event<'_> {
    pub(super) fn print(self) -> PrintedObject {
        let about = if self.regarding.name.is_empty() { &self.involved_object } else { &self.regarding };
        let time = |texts: &[&Text<'_>]| texts.iter().find_map(|t| t.as_deref().and_then(unix_seconds));
        let series_time =
            self.series.as_ref().and_then(|series| series.last_observed_time.as_deref().and_then(unix_seconds));
        let creation_seconds = self.metadata.creation_seconds();
        let last = series_time
            .or_else(|| time(&[&self.last_timestamp, &self.deprecated_last_timestamp, &self.event_time]))
            .or(creation_seconds);
        let count =
            self.series.as_ref().map(|series| series.count).or(self.count).or(self.deprecated_count).unwrap_or(1);
        let message = self.message.as_deref().or(self.note.as_deref()).unwrap_or_default().trim().to_owned();
        let component = [&self.source.component, &self.reporting_component, &self.reporting_controller];
        let component = component.into_iter().find_map(|c| c.as_deref().filter(|c| !c.is_empty())).unwrap_or_default();
        let text = |text: &Text<'_>| text.as_deref().unwrap_or_default().to_owned();
        let field = |name: &str, value: String| (name.to_owned(), value);
        let object_of = |object: &ObjectReference<'_>| InvolvedObject {
            api_version: text(&object.api_version),
            kind: object.kind.to_string(),
            namespace: text(&object.namespace),
            name: object.name.to_string(),
            uid: text(&object.uid),
        };
        PrintedObject {
            status: self.type_.as_deref().map(str::to_owned),
            type_: self.type_.as_deref().map(str::to_owned),
            reasons: self.reason.as_deref().map(str::to_owned).into_iter().collect(),
            about: Some(object_of(about)),
            related: (!self.related.name.is_empty()).then(|| object_of(&self.related)),
            count: Some(count),
            last_seen: last,
            fields: vec![
                field("involvedObject.apiVersion", text(&about.api_version)),
                field("involvedObject.kind", about.kind.to_string()),
                field("involvedObject.namespace", text(&about.namespace)),
                field("involvedObject.name", about.name.to_string()),
                field("involvedObject.uid", text(&about.uid)),
                field("involvedObject.resourceVersion", text(&about.resource_version)),
                field("involvedObject.fieldPath", text(&about.field_path)),
                field("reason", text(&self.reason)),
                field("type", text(&self.type_)),
                field("reportingComponent", component.to_owned()),
                field("source", component.to_owned()),
            ],
            message: (!message.is_empty()).then_some(message),
            ..PrintedObject::default()
        }
    }
}

impl Secret<'_> {
    pub(super) fn print(self) -> PrintedObject {
        let type_ = self.type_.as_deref().unwrap_or("Opaque").to_owned();
        PrintedObject {
            fields: vec![("type".to_owned(), type_.clone())],
            type_: Some(type_),
            ..PrintedObject::default()
        }
    }
}

impl Any<'_> {
    /// The status is `Terminating` during deletion, otherwise `status.phase`, otherwise the type of the first Ready,
    /// Available or Established condition, with the prefix `Not` unless the condition is true.
    pub(super) fn print(self) -> PrintedObject {
        let status = &self.status;
        let phase = status.phase.as_deref().filter(|phase| !phase.is_empty());
        let ready =
            status.conditions.iter().find(|c| matches!(c.type_.as_ref(), "Ready" | "Available" | "Established"));
        let status_text = match (phase, ready) {
            _ if self.metadata.deletion_timestamp.is_some() => Some("Terminating".to_owned()),
            (Some(phase), _) => Some(phase.to_owned()),
            (None, Some(c)) if c.status == "True" => Some(c.type_.to_string()),
            (None, Some(c)) => Some(format!("Not{}", c.type_)),
            (None, None) => None,
        };
        let mut printed = PrintedObject {
            phase: phase.map(str::to_owned),
            fields: phase.map(|phase| ("status.phase".to_owned(), phase.to_owned())).into_iter().collect(),
            message: ready.filter(|c| c.status != "True").and_then(|c| c.message.as_deref()).map(str::to_owned),
            status: status_text,
            ..PrintedObject::default()
        };
        add_conditions(&status.conditions, &mut printed);
        printed
    }
}
