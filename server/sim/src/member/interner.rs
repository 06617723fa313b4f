//! Compact storage of pods: equal label sets, owners, specs and strings are shared.

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
    ContainerPhase, ContainerPort, ContainerSpec, ContainerView, Deletion, LastRun, Owner, Phase, PodState, Process,
    Qos, RestartPolicy, SpecView, keeps_annotation,
};
use super::resources::{Resources, milli};
use super::store::Key;

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
    specs: HashMap<u64, Vec<Weak<SpecView>>>,
    since_sweep: usize,
}

impl Interner {
    pub fn text(&self, text: &str) -> Arc<str> {
        self.tables.lock().text(text)
    }

    /// Converts a pod to its compact form.
    pub fn pod(&self, pod: Pod) -> PodState {
        let mut tables = self.tables.lock();
        tables.sweep_sometimes();
        tables.pod(pod)
    }
}

impl Tables {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.strings.get(text) {
            return known.clone();
        }
        let shared: Arc<str> = text.into();
        self.strings.insert(shared.clone());
        shared
    }

    fn labels(&mut self, labels: Labels) -> Arc<Labels> {
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        let shared = Arc::new(labels);
        self.labels.insert(shared.clone());
        shared
    }

    fn spec(&mut self, spec: SpecView) -> Arc<SpecView> {
        let mut hasher = DefaultHasher::new();
        for container in &spec.containers {
            (&container.name, &container.image, container.cpu_milli, container.memory).hash(&mut hasher);
        }
        spec.node_selector.hash(&mut hasher);
        let bucket = self.specs.entry(hasher.finish()).or_default();
        if let Some(known) = bucket.iter().filter_map(Weak::upgrade).find(|known| **known == spec) {
            return known;
        }
        bucket.retain(|weak| weak.strong_count() > 0);
        let shared = Arc::new(spec);
        bucket.push(Arc::downgrade(&shared));
        shared
    }

    /// Drops unused values from the tables every few thousand pods.
    fn sweep_sometimes(&mut self) {
        self.since_sweep += 1;
        if self.since_sweep < 5_000 {
            return;
        }
        self.since_sweep = 0;
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        self.owners.retain(|owner| Arc::strong_count(owner) > 1);
        self.strings.retain(|text| Arc::strong_count(text) > 1);
        self.specs.retain(|_, specs| specs.iter().any(|weak| weak.strong_count() > 0));
    }

    fn pod(&mut self, pod: Pod) -> PodState {
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
            .map(|time| Deletion { at: time.0, grace: meta.deletion_grace_period_seconds.unwrap_or_default() });
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.retain(|name, _| keeps_annotation(name));
        let conditions = Conditions::split(status.conditions.unwrap_or_default());
        PodState {
            key: Key { namespace: self.text(&key.namespace), name: key.name },
            uid: meta.uid.unwrap_or_default().into(),
            version,
            generation: meta.generation.unwrap_or_default(),
            created: meta.creation_timestamp.map(|time| time.0).unwrap_or_default(),
            labels: self.labels(meta.labels.unwrap_or_default()),
            annotations: self.labels(annotations),
            owner: owner.map(|owner| self.owner(owner)),
            finalizers: meta.finalizers.unwrap_or_default().into_iter().map(Into::into).collect(),
            deletion,
            node: spec.node_name.as_deref().filter(|name| !name.is_empty()).map(|name| self.text(name)),
            spec: {
                let view = self.spec_view(spec);
                self.spec(view)
            },
            phase: Phase::parse(status.phase.as_deref().unwrap_or_default()),
            reason: status.reason.as_deref().map(|reason| self.text(reason)),
            ip: status.pod_ip.map(Into::into),
            started: status.start_time.map(|time| time.0),
            scheduled: conditions.scheduled,
            unschedulable: conditions.unschedulable,
            ready_since: conditions.ready_since,
            unready_since: conditions.unready_since,
            containers: status.container_statuses.into_iter().flatten().map(|status| self.container(status)).collect(),
            init: status.init_container_statuses.into_iter().flatten().map(|status| self.container(status)).collect(),
            foreign_conditions: conditions.foreign,
        }
    }

    fn owner(&mut self, owner: Owner) -> Arc<Owner> {
        if let Some(known) = self.owners.get(&owner) {
            return known.clone();
        }
        let shared = Arc::new(owner);
        self.owners.insert(shared.clone());
        shared
    }

    fn container(&mut self, status: ContainerStatus) -> ContainerView {
        let terminated = |state: Option<ContainerState>| state.and_then(|state| state.terminated);
        let last = terminated(status.last_state).map(|run| {
            Box::new(LastRun {
                exit_code: run.exit_code,
                reason: self.text(run.reason.as_deref().unwrap_or_default()),
                started: run.started_at.map(|time| time.0).unwrap_or_default(),
                finished: run.finished_at.map(|time| time.0).unwrap_or_default(),
            })
        });
        let state = status.state.unwrap_or_default();
        let doing = if let Some(running) = state.running {
            ContainerPhase::Running { since: running.started_at.map(|time| time.0).unwrap_or_default() }
        } else if let Some(run) = state.terminated {
            ContainerPhase::Terminated {
                exit_code: run.exit_code,
                reason: self.text(run.reason.as_deref().unwrap_or_default()),
                started: run.started_at.map(|time| time.0).unwrap_or_default(),
                finished: run.finished_at.map(|time| time.0).unwrap_or_default(),
            }
        } else {
            let reason = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_default();
            ContainerPhase::Waiting { reason: self.text(&reason) }
        };
        ContainerView {
            name: self.text(&status.name),
            doing,
            ready: status.ready,
            restarts: status.restart_count,
            last,
        }
    }

    fn container_spec(&mut self, container: &Container, restarts_always: bool) -> ContainerSpec {
        let invocation = Invocation {
            image: container.image.as_deref().unwrap_or_default(),
            command: container.command.as_deref().unwrap_or_default(),
            args: container.args.as_deref().unwrap_or_default(),
            interactive: container.stdin.unwrap_or_default(),
            restarts_always,
        };
        // The container ends with the session that attaches its stdin.
        let ends_with_stdin = invocation.interactive && container.stdin_once == Some(true) && !restarts_always;
        let process = if ends_with_stdin || invocation.command_line().is_some() {
            Process::Command
        } else if invocation.runs_unknown_program() {
            Process::Unknown
        } else {
            Process::Image
        };
        let (probed, ready_delay) = probes(container);
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
            name: self.text(&container.name),
            image: self.text(container.image.as_deref().unwrap_or_default()),
            cpu_milli: requests.cpu_milli,
            memory: requests.memory,
            ports: ports.collect(),
            process,
            probed,
            ready_delay,
        }
    }

    fn spec_view(&mut self, spec: PodSpec) -> SpecView {
        let init = spec.init_containers.as_deref().unwrap_or_default();
        let always = !matches!(spec.restart_policy.as_deref(), Some("Never" | "OnFailure"));
        let sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
        let claims = spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        SpecView {
            containers: spec.containers.iter().map(|container| self.container_spec(container, always)).collect(),
            init: init.iter().map(|container| self.container_spec(container, sidecar(container))).collect(),
            sidecars: (0..init.len()).filter(|index| sidecar(&init[*index])).collect(),
            requests: Resources::of_pod(&spec),
            qos: qos(&spec),
            claims: claims.map(|claim| claim.claim_name.as_str().into()).collect(),
            node_selector: spec.node_selector.unwrap_or_default(),
            affinity: spec.affinity.map(Box::new),
            spread: spec.topology_spread_constraints.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_default(),
            priority: spec.priority.unwrap_or_default(),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            restart_policy: match spec.restart_policy.as_deref() {
                Some("Never") => RestartPolicy::Never,
                Some("OnFailure") => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            host_network: spec.host_network.unwrap_or_default(),
            gated: spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
            scheduler: spec.scheduler_name.as_deref().unwrap_or("default-scheduler").into(),
            grace: spec.termination_grace_period_seconds.unwrap_or(30),
        }
    }
}

/// True if the outcome of probes can change, and the seconds until the container can be ready.
fn probes(container: &Container) -> (bool, i64) {
    let probes = [&container.startup_probe, &container.readiness_probe, &container.liveness_probe];
    if probes.iter().all(|probe| probe.is_none()) {
        return (false, 0);
    }
    // Encoding of the container's types cannot fail.
    let spec = serde_json::to_value(container).unwrap_or_default();
    let probed = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness]
        .into_iter()
        .any(|kind| Probe::of(&spec, kind).is_some_and(|probe| probe.is_known()));
    let delay = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
        probe.as_ref().and_then(|probe| probe.initial_delay_seconds).map_or(0, i64::from)
    };
    // Readiness probes count from the container's start, once the startup probe has succeeded.
    (probed, delay(&container.startup_probe).max(delay(&container.readiness_probe)))
}

/// The QoS class of a pod (`kubectl explain pod.status.qosClass`).
fn qos(spec: &PodSpec) -> Qos {
    let empty = BTreeMap::new();
    let mut guaranteed = true;
    let mut anything = false;
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|resources| resources.requests.as_ref()).unwrap_or(&empty);
        let limits = resources.and_then(|resources| resources.limits.as_ref()).unwrap_or(&empty);
        for name in ["cpu", "memory"] {
            let (request, limit) = (requests.get(name), limits.get(name));
            anything |= request.is_some() || limit.is_some();
            guaranteed &=
                limit.is_some() && request.is_none_or(|request| limit.is_some_and(|limit| same(request, limit)));
        }
    }
    match (anything, guaranteed) {
        (false, _) => Qos::BestEffort,
        (true, true) => Qos::Guaranteed,
        (true, false) => Qos::Burstable,
    }
}

fn same(a: &Quantity, b: &Quantity) -> bool {
    milli(a) == milli(b)
}

/// The conditions of a pod by type.
#[derive(Default)]
struct Conditions {
    scheduled: Option<Timestamp>,
    unschedulable: Option<Box<str>>,
    ready_since: Option<Timestamp>,
    unready_since: Option<Timestamp>,
    foreign: Vec<PodCondition>,
}

impl Conditions {
    fn split(conditions: Vec<PodCondition>) -> Self {
        let mut split = Self::default();
        for condition in conditions {
            let since = condition.last_transition_time.as_ref().map(|time| time.0);
            let holds = condition.status == "True";
            match (condition.type_.as_str(), holds) {
                ("PodScheduled", true) => split.scheduled = since,
                ("PodScheduled", false) => split.unschedulable = Some(condition.message.unwrap_or_default().into()),
                ("Ready", true) => split.ready_since = since.or(Some(Timestamp::UNIX_EPOCH)),
                ("Ready", false) => split.unready_since = since,
                ("Initialized" | "ContainersReady" | "PodReadyToStartContainers", _) => {}
                _ => split.foreign.push(condition),
            }
        }
        split
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
    fn pods_of_a_workload_share_values() {
        let interner = Interner::default();
        let (a, b) = (interner.pod(pod("a")), interner.pod(pod("b")));
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
