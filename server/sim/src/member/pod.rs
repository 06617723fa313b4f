//! Compact form of pods: the fields that the simulation uses, with values that pods share.
//!
//! Used by the scheduler, the workload controllers, metrics and the kubelet. A member with 10,000 pods of 500 workloads
//! stores 500 label sets and specs, not 10,000.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Affinity, PodCondition, Toleration, TopologySpreadConstraint};

use super::Labels;
use super::resources::Resources;
use super::store::{Identity, Index, Key, StoreObject};

/// `Pod.status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    pub fn parse(text: &str) -> Self {
        match text {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            "Unknown" => Self::Unknown,
            _ => Self::Pending,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// True for Succeeded and Failed, in which no container runs.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub kind: Box<str>,
    pub name: Box<str>,
    pub uid: Arc<str>,
}

/// State of a container (`state` in its status).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerPhase {
    Waiting { reason: Arc<str> },
    Running { since: Timestamp },
    Terminated { exit_code: i32, reason: Arc<str>, started: Timestamp, finished: Timestamp },
}

/// Status of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    pub name: Arc<str>,
    pub state: ContainerPhase,
    pub ready: bool,
    pub restarts: i32,
    /// Previous run of the container, if there was one.
    pub last_run: Option<Box<LastRun>>,
}

/// `lastState.terminated`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRun {
    pub exit_code: i32,
    pub reason: Arc<str>,
    pub started: Timestamp,
    pub finished: Timestamp,
}

/// A container of the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    pub(crate) name: Arc<str>,
    pub(crate) image: Arc<str>,
    /// CPU request in millicores.
    pub(crate) cpu_milli: i64,
    /// Memory request.
    pub(crate) memory_bytes: i64,
    pub(crate) ports: Vec<ContainerPort>,
    pub(crate) process: Process,
    /// True if the container has a probe whose outcome can change ([`crowsnest_kubelet::probes`]).
    pub(crate) has_dynamic_probe: bool,
    /// Time from the start to the first startup and readiness probes, which succeed unless `has_dynamic_probe`.
    pub(crate) ready_delay_seconds: i64,
}

impl ContainerSpec {
    /// True if the kubelet must observe the container, because it runs a command or has probes whose outcome can
    /// change.
    pub fn is_observed(&self) -> bool {
        self.has_dynamic_probe || self.process == Process::Command
    }
}

/// Kind of a container's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// The program of its image, which runs indefinitely.
    Image,
    /// A command that the kubelet runs, or a container that ends with the session that attaches its stdin.
    Command,
    /// A program that the simulation does not know.
    Unknown,
}

/// A declared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    pub name: Option<Box<str>>,
    pub port: i32,
    pub host_port: Option<i32>,
    /// Address of the host port; `None` means all addresses.
    pub host_ip: Option<Box<str>>,
    pub protocol: Box<str>,
}

/// Fields of a pod's spec that the simulation uses. Pods with equal values share one instance.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSpecView {
    pub(crate) containers: Vec<ContainerSpec>,
    pub(crate) init_containers: Vec<ContainerSpec>,
    /// Init containers that keep running next to the others, by index into `init_containers`.
    pub(crate) sidecars: Vec<usize>,
    pub(crate) requests: Resources,
    /// Quality of service class; BestEffort if no container has requests or limits.
    pub(crate) qos: Qos,
    pub(crate) node_selector: Labels,
    pub(crate) affinity: Option<Box<Affinity>>,
    pub(crate) topology_spread: Vec<TopologySpreadConstraint>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) priority: i32,
    /// True for `preemptionPolicy: Never`.
    pub(crate) never_preempts: bool,
    pub(crate) restart_policy: RestartPolicy,
    pub(crate) host_network: bool,
    pub(crate) has_scheduling_gates: bool,
    pub(crate) scheduler_name: Box<str>,
    /// Names of the PersistentVolumeClaims.
    pub(crate) claims: Vec<Box<str>>,
    pub(crate) grace_seconds: i64,
}

/// `Pod.spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// `Pod.status.qosClass`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// Deletion state of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// End of the grace period (`deletionTimestamp`).
    pub at: Timestamp,
    pub grace_seconds: i64,
}

/// A pod.
#[derive(Debug, Clone)]
pub struct PodState {
    pub(crate) key: Key,
    pub(crate) uid: Arc<str>,
    /// The resourceVersion as a number.
    pub(crate) version: u64,
    pub(crate) generation: i64,
    pub(crate) created: Timestamp,
    pub(crate) labels: Arc<Labels>,
    /// Annotations that the simulation or a controller reads; see [`is_used_annotation`].
    pub(crate) annotations: Arc<Labels>,
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) finalizers: Vec<Box<str>>,
    pub(crate) deletion: Option<Deletion>,
    pub(crate) spec: Arc<PodSpecView>,
    pub(crate) node: Option<Arc<str>>,
    pub(crate) phase: Phase,
    pub(crate) ip: Option<Arc<str>>,
    pub(crate) started: Option<Timestamp>,
    /// Last transition of a true PodScheduled condition.
    pub(crate) scheduled: Option<Timestamp>,
    /// Message of a false PodScheduled condition.
    pub(crate) unschedulable_message: Option<Box<str>>,
    /// Last transition of a true Ready condition.
    pub(crate) ready_since: Option<Timestamp>,
    /// Last transition of a Ready condition that is not true.
    pub(crate) unready_since: Option<Timestamp>,
    pub(crate) containers: Box<[ContainerView]>,
    pub(crate) init_containers: Box<[ContainerView]>,
    /// Conditions that neither the kubelet nor the scheduler owns.
    pub(crate) foreign_conditions: Vec<PodCondition>,
}

impl PodState {
    pub fn is_ready(&self) -> bool {
        self.ready_since.is_some()
    }

    /// True if ready for at least `min_ready_seconds`.
    pub fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.ready_since
            .is_some_and(|since| min_ready_seconds == 0 || now.as_second() - since.as_second() >= min_ready_seconds)
    }

    /// True if neither finished nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.phase.is_terminal() && self.deletion.is_none()
    }

    /// True if the pod uses resources of its node.
    pub fn occupies_node(&self) -> bool {
        self.node.is_some() && !self.phase.is_terminal()
    }

    /// Number of restarts of all containers.
    pub fn restarts(&self) -> i32 {
        self.containers.iter().chain(&self.init_containers).map(|container| container.restarts).sum()
    }
}

impl StoreObject for PodState {
    fn identity(&self) -> Identity<'_> {
        Identity { key: &self.key, uid: &self.uid, version: self.version }
    }

    fn indexes(&self) -> Vec<Index> {
        let owner = self.owner.as_ref().map(|owner| Arc::clone(&owner.uid));
        let mut indexes = Index::by_owner_and_namespace(owner, Arc::clone(&self.key.namespace));
        indexes.extend(self.node.clone().map(Index::Node));
        indexes
    }
}

/// True for annotations that the simulation reads.
pub fn is_used_annotation(name: &str) -> bool {
    name.starts_with("fleet.test/")
        || name.starts_with(super::pod_lifecycle::ANNOTATION_PREFIX)
        || name.starts_with(super::custom_metrics::ANNOTATION_PREFIX)
        || matches!(
            name,
            "controller.kubernetes.io/pod-deletion-cost"
                | "batch.kubernetes.io/job-completion-index"
                | "batch.kubernetes.io/job-index-failure-count"
                | "batch.kubernetes.io/job-index-ignored-failure-count"
                | "statefulset.kubernetes.io/pod-name"
        )
}
