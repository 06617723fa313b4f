//! Converts pods to their compact form, in which equal label sets, owners, specs and strings are shared.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use crowsnest_kubelet::image::Invocation;
use crowsnest_kubelet::probes::{Probe, ProbeKind};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod, PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;

use super::Labels;
use super::informer::{controller_of, key_of, version_of};
use super::pod::{
    ContainerPhase, ContainerPort, ContainerSpec, ContainerView, Deletion, LastRun, Owner, Phase, PodSpecView,
    PodState, Process, Qos, RestartPolicy, is_used_annotation,
};
use super::resources::{Resources, milli_value};
use super::store::Key;

/// Number of pods after which unused values are dropped.
const PODS_PER_SWEEP: usize = 5_000;

/// Shares equal values between pods.
#[derive(Default)]
pub struct Interner {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    strings: HashSet<Arc<str>>,
    labels: HashSet<Arc<Labels>>,
    owners: HashSet<Arc<Owner>>,
    specs: HashMap<u64, Vec<Weak<PodSpecView>>>,
    /// Number of pods since unused values were dropped.
    pods_since_sweep: usize,
}

impl Interner {
    /// Returns the shared instance of a string.
    pub fn intern_text(&self, text: &str) -> Arc<str> {
        self.tables.lock().intern_text(text)
    }

    /// Converts a pod to its compact form.
    pub fn intern_pod(&self, pod: Pod) -> PodState {
        let mut tables = self.tables.lock();
        tables.sweep_if_due();
        tables.intern_pod(pod)
    }
}

/// Returns the shared instance of a value.
fn intern<T: Eq + Hash>(interned: &mut HashSet<Arc<T>>, value: T) -> Arc<T> {
    if let Some(interned) = interned.get(&value) {
        return interned.clone();
    }
    let shared = Arc::new(value);
    interned.insert(shared.clone());
    shared
}

impl Tables {
    fn intern_text(&mut self, text: &str) -> Arc<str> {
        if let Some(interned) = self.strings.get(text) {
            return interned.clone();
        }
        let shared: Arc<str> = text.into();
        self.strings.insert(shared.clone());
        shared
    }

    fn intern_spec(&mut self, spec: PodSpecView) -> Arc<PodSpecView> {
        let mut hasher = DefaultHasher::new();
        for container in &spec.containers {
            (&container.name, &container.image, container.cpu_milli, container.memory_bytes).hash(&mut hasher);
        }
        spec.node_selector.hash(&mut hasher);
        let bucket = self.specs.entry(hasher.finish()).or_default();
        if let Some(interned) = bucket.iter().filter_map(Weak::upgrade).find(|interned| **interned == spec) {
            return interned;
        }
        bucket.retain(|weak| weak.strong_count() > 0);
        let shared = Arc::new(spec);
        bucket.push(Arc::downgrade(&shared));
        shared
    }

    /// Drops unused values from the tables after every [`PODS_PER_SWEEP`] pods.
    fn sweep_if_due(&mut self) {
        self.pods_since_sweep += 1;
        if self.pods_since_sweep < PODS_PER_SWEEP {
            return;
        }
        self.pods_since_sweep = 0;
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        self.owners.retain(|owner| Arc::strong_count(owner) > 1);
        self.strings.retain(|text| Arc::strong_count(text) > 1);
        self.specs.retain(|_, specs| specs.iter().any(|weak| weak.strong_count() > 0));
    }

    fn intern_pod(&mut self, pod: Pod) -> PodState {
        let key = key_of(&pod.metadata);
        let version = version_of(&pod.metadata);
        let owner = controller_of(&pod.metadata).map(|owner| Owner {
            kind: owner.kind.as_str().into(),
            name: owner.name.as_str().into(),
            uid: owner.uid.as_str().into(),
        });
        let meta = pod.metadata;
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let deletion = meta
            .deletion_timestamp
            .as_ref()
            .map(|time| Deletion { at: time.0, grace_seconds: meta.deletion_grace_period_seconds.unwrap_or_default() });
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.retain(|name, _| is_used_annotation(name));
        let conditions = Conditions::from_list(status.conditions.unwrap_or_default());
        PodState {
            key: Key { namespace: self.intern_text(&key.namespace), name: key.name },
            uid: meta.uid.unwrap_or_default().into(),
            version,
            generation: meta.generation.unwrap_or_default(),
            created: meta.creation_timestamp.map(|time| time.0).unwrap_or_default(),
            labels: intern(&mut self.labels, meta.labels.unwrap_or_default()),
            annotations: intern(&mut self.labels, annotations),
            owner: owner.map(|owner| intern(&mut self.owners, owner)),
            finalizers: meta.finalizers.unwrap_or_default().into_iter().map(Into::into).collect(),
            deletion,
            node: spec.node_name.as_deref().filter(|name| !name.is_empty()).map(|name| self.intern_text(name)),
            spec: {
                let view = self.spec_view(spec);
                self.intern_spec(view)
            },
            phase: Phase::parse(status.phase.as_deref().unwrap_or_default()),
            ip: status.pod_ip.map(Into::into),
            started: status.start_time.map(|time| time.0),
            scheduled: conditions.scheduled,
            unschedulable_message: conditions.unschedulable_message,
            ready_since: conditions.ready_since,
            unready_since: conditions.unready_since,
            containers: status
                .container_statuses
                .into_iter()
                .flatten()
                .map(|status| self.container_view(status))
                .collect(),
            init_containers: status
                .init_container_statuses
                .into_iter()
                .flatten()
                .map(|status| self.container_view(status))
                .collect(),
            foreign_conditions: conditions.foreign,
        }
    }

    fn container_view(&mut self, status: ContainerStatus) -> ContainerView {
        let terminated = |state: Option<ContainerState>| state.and_then(|state| state.terminated);
        let last_run = terminated(status.last_state).map(|run| {
            Box::new(LastRun {
                exit_code: run.exit_code,
                reason: self.intern_text(run.reason.as_deref().unwrap_or_default()),
                started: run.started_at.map(|time| time.0).unwrap_or_default(),
                finished: run.finished_at.map(|time| time.0).unwrap_or_default(),
            })
        });
        let state = status.state.unwrap_or_default();
        let state = if let Some(running) = state.running {
            ContainerPhase::Running { since: running.started_at.map(|time| time.0).unwrap_or_default() }
        } else if let Some(run) = state.terminated {
            ContainerPhase::Terminated {
                exit_code: run.exit_code,
                reason: self.intern_text(run.reason.as_deref().unwrap_or_default()),
                started: run.started_at.map(|time| time.0).unwrap_or_default(),
                finished: run.finished_at.map(|time| time.0).unwrap_or_default(),
            }
        } else {
            let reason = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_default();
            ContainerPhase::Waiting { reason: self.intern_text(&reason) }
        };
        ContainerView {
            name: self.intern_text(&status.name),
            state,
            ready: status.ready,
            restarts: status.restart_count,
            last_run,
        }
    }

    fn container_spec(&mut self, container: &Container, restarts_always: bool) -> ContainerSpec {
        let invocation = Invocation {
            image: container.image.as_deref().unwrap_or_default(),
            command: container.command.as_deref().unwrap_or_default(),
            args: container.args.as_deref().unwrap_or_default(),
            has_stdin: container.stdin.unwrap_or_default(),
            restarts_always,
        };
        // The container ends with the session that attaches its stdin.
        let ends_with_stdin = invocation.has_stdin && container.stdin_once == Some(true) && !restarts_always;
        let process = if ends_with_stdin || invocation.command_line().is_some() {
            Process::Command
        } else if invocation.runs_unknown_program() {
            Process::Unknown
        } else {
            Process::Image
        };
        let (has_dynamic_probe, ready_delay_seconds) = probe_properties(container);
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let requests = requests.map(Resources::from_list).unwrap_or_default();
        let ports = container.ports.iter().flatten().map(|port| ContainerPort {
            name: port.name.as_deref().map(Into::into),
            port: port.container_port,
            host_port: port.host_port.filter(|port| *port > 0),
            host_ip: port.host_ip.as_deref().filter(|ip| !ip.is_empty()).map(Into::into),
            protocol: port.protocol.as_deref().unwrap_or("TCP").into(),
        });
        ContainerSpec {
            name: self.intern_text(&container.name),
            image: self.intern_text(container.image.as_deref().unwrap_or_default()),
            cpu_milli: requests.cpu_milli,
            memory_bytes: requests.memory_bytes,
            ports: ports.collect(),
            process,
            has_dynamic_probe,
            ready_delay_seconds,
        }
    }

    fn spec_view(&mut self, spec: PodSpec) -> PodSpecView {
        let init_containers = spec.init_containers.as_deref().unwrap_or_default();
        let restarts_always = !matches!(spec.restart_policy.as_deref(), Some("Never" | "OnFailure"));
        let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
        let claims = spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        PodSpecView {
            containers: spec
                .containers
                .iter()
                .map(|container| self.container_spec(container, restarts_always))
                .collect(),
            init_containers: init_containers
                .iter()
                .map(|container| self.container_spec(container, is_sidecar(container)))
                .collect(),
            sidecars: (0..init_containers.len()).filter(|index| is_sidecar(&init_containers[*index])).collect(),
            requests: Resources::from_pod_spec(&spec),
            qos: qos_class(&spec),
            claims: claims.map(|claim| claim.claim_name.as_str().into()).collect(),
            node_selector: spec.node_selector.unwrap_or_default(),
            affinity: spec.affinity.map(Box::new),
            topology_spread: spec.topology_spread_constraints.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_default(),
            priority: spec.priority.unwrap_or_default(),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            restart_policy: match spec.restart_policy.as_deref() {
                Some("Never") => RestartPolicy::Never,
                Some("OnFailure") => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            host_network: spec.host_network.unwrap_or_default(),
            has_scheduling_gates: spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
            scheduler_name: spec.scheduler_name.as_deref().unwrap_or("default-scheduler").into(),
            grace_seconds: spec.termination_grace_period_seconds.unwrap_or(30),
        }
    }
}

/// True if the outcome of a probe can change, and the number of seconds until the container can be ready.
fn probe_properties(container: &Container) -> (bool, i64) {
    let probes = [&container.startup_probe, &container.readiness_probe, &container.liveness_probe];
    if probes.iter().all(|probe| probe.is_none()) {
        return (false, 0);
    }
    // Containers can always be encoded.
    let spec = serde_json::to_value(container).unwrap_or_default();
    let has_dynamic_probe = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness]
        .into_iter()
        .any(|kind| Probe::from_container(&spec, kind).is_some_and(|probe| probe.is_simulated()));
    let delay = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
        probe.as_ref().and_then(|probe| probe.initial_delay_seconds).map_or(0, i64::from)
    };
    // Delays of readiness probes count from the start of the container, but the startup probe must succeed first.
    (has_dynamic_probe, delay(&container.startup_probe).max(delay(&container.readiness_probe)))
}

/// QoS class of a pod, as defined for `Pod.status.qosClass`.
fn qos_class(spec: &PodSpec) -> Qos {
    let empty = BTreeMap::new();
    let mut is_guaranteed = true;
    let mut has_resources = false;
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|resources| resources.requests.as_ref()).unwrap_or(&empty);
        let limits = resources.and_then(|resources| resources.limits.as_ref()).unwrap_or(&empty);
        for name in ["cpu", "memory"] {
            let (request, limit) = (requests.get(name), limits.get(name));
            has_resources |= request.is_some() || limit.is_some();
            is_guaranteed &=
                limit.is_some() && request.is_none_or(|request| limit.is_some_and(|limit| are_equal(request, limit)));
        }
    }
    match (has_resources, is_guaranteed) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

fn are_equal(a: &Quantity, b: &Quantity) -> bool {
    milli_value(a) == milli_value(b)
}

/// The conditions of a pod by type.
#[derive(Default)]
struct Conditions {
    scheduled: Option<Timestamp>,
    unschedulable_message: Option<Box<str>>,
    ready_since: Option<Timestamp>,
    unready_since: Option<Timestamp>,
    foreign: Vec<PodCondition>,
}

impl Conditions {
    fn from_list(conditions: Vec<PodCondition>) -> Self {
        let mut conditions_by_type = Self::default();
        for condition in conditions {
            let since = condition.last_transition_time.as_ref().map(|time| time.0);
            let is_true = condition.status == "True";
            match (condition.type_.as_str(), is_true) {
                ("PodScheduled", true) => conditions_by_type.scheduled = since,
                ("PodScheduled", false) => {
                    conditions_by_type.unschedulable_message = Some(condition.message.unwrap_or_default().into())
                }
                ("Ready", true) => conditions_by_type.ready_since = since.or(Some(Timestamp::UNIX_EPOCH)),
                ("Ready", false) => conditions_by_type.unready_since = since,
                ("Initialized" | "ContainersReady" | "PodReadyToStartContainers", _) => {}
                _ => conditions_by_type.foreign.push(condition),
            }
        }
        conditions_by_type
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7", "labels": {"app": "web"},
                "annotations": {"fleet.test/phase": "NotReady", "long": "text"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs", "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "nginx",
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1000m", "memory": "1Gi"}}}]},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"},
                {"type": "DisruptionTarget", "status": "True"}],
                "containerStatuses": [{"name": "web", "image": "nginx", "imageID": "", "ready": true, "restartCount": 2,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}}]}
        }))
        .unwrap()
    }

    #[test]
    fn pods_of_a_workload_share_specs_and_labels() {
        let interner = Interner::default();
        let (a, b) = (interner.intern_pod(pod("a")), interner.intern_pod(pod("b")));
        assert!(Arc::ptr_eq(&a.spec, &b.spec) && Arc::ptr_eq(&a.labels, &b.labels));
        assert_eq!(a.annotations.keys().collect::<Vec<_>>(), ["fleet.test/phase"]);
        assert_eq!(a.spec.qos, Qos::Guaranteed);
        assert_eq!(a.foreign_conditions.len(), 1);
        assert_eq!((a.restarts(), a.version, a.is_active()), (2, 7, true));
        let ready_at: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        assert!(!a.is_available(5, ready_at + jiff::SignedDuration::from_secs(4)));
        assert!(a.is_available(5, ready_at + jiff::SignedDuration::from_secs(5)));
    }
}
