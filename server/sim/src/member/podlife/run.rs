//! Applies the steps computed by [`super::step`] to all pods on a member's nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_kubelet::Kubelet;
use crowsnest_kubelet::pods::PodRef;
use crowsnest_kubelet::process::ContainerRun;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use crate::error::Result;
use crate::member::node::{is_failed, is_own};
use crate::member::pod::{ContainerPhase, ContainerSpec, PodState};
use crate::member::queue::{self, Queue};
use crate::member::recorder::{Source, Subject};
use crate::member::scheduler::fit::NodeView;
use crate::member::shape::UNKNOWN_ADDRESS;
use crate::member::store::{Index, Key, Stored};
use crate::member::world::World;

use super::admission::{Rejection, admit};
use super::behaviour::Behaviour;
use super::container::Observations;
use super::step::{Step, step};

/// Pods processed concurrently.
const AT_ONCE: usize = 24;

/// Starts the kubelet loop; handlers are registered first, so that they see the initial lists.
pub fn start(world: &Arc<World>, kubelet: &Arc<Kubelet>) {
    let queue = Arc::new(Queue::<Key>::default());
    let wanted = queue.clone();
    kubelet.on_observation(move |pod| wanted.add(Key::new(&pod.namespace, &pod.name)));
    let wanted = queue.clone();
    let (addresses, processes) = (world.clone(), kubelet.clone());
    world.pods.on_change(move |old, new| match new {
        Some(pod) if pod.phase.is_terminal() && pod.deletion.is_none() => addresses.ips.release(&pod.uid),
        Some(pod) => {
            addresses.ips.keep(pod);
            if pod.node.is_some() || pod.deletion.is_some() {
                wanted.add(pod.key.clone());
            }
        }
        None => {
            if let Some(pod) = old {
                addresses.ips.release(&pod.uid);
                processes.forget(&pod.uid);
                wanted.forget(&pod.key);
            }
        }
    });
    let volumes = kubelet.clone();
    world.claims.on_change(move |old, new| {
        if let Some(claim) = old.filter(|claim| new.is_none_or(|new| new.uid() != claim.uid())) {
            volumes.forget_claim(claim.uid());
        }
    });
    let (wanted, pods) = (queue.clone(), Arc::downgrade(world));
    world.nodes.on_change(move |old, new| {
        let worked =
            |node: Option<&Arc<_>>| node.is_some_and(|node: &Arc<crate::member::informer::Object<Node>>| works(node));
        if let (Some(node), false, Some(world)) = (new, worked(old), pods.upgrade())
            && worked(new)
        {
            for pod in world.pods.by(&Index::Node(node.key().name)) {
                wanted.add(pod.key.clone());
            }
        }
    });
    let (shared, processes) = (world.clone(), kubelet.clone());
    let stop = world.stop.clone();
    world.work("kubelet", async move {
        queue::run("kubelet", queue, AT_ONCE, stop, |key| live(&shared, &processes, key)).await;
    });
}

/// True for a node of the simulation that has not failed.
fn works(node: &Node) -> bool {
    is_own(node) && !is_failed(node)
}

/// Observed states of a pod's running containers with a process or probes.
fn observe(kubelet: &Arc<Kubelet>, pod: &PodState) -> Observations {
    let containers = || pod.spec.containers.iter().chain(&pod.spec.init);
    if pod.deletion.is_some() || !containers().any(ContainerSpec::is_observed) {
        return Observations::new();
    }
    let views =
        pod.containers.iter().chain(&pod.init).filter(|view| matches!(view.doing, ContainerPhase::Running { .. }));
    let observed = views.filter_map(|view| {
        containers().find(|spec| spec.name == view.name).filter(|spec| spec.is_observed())?;
        let run = ContainerRun {
            pod: PodRef { namespace: pod.key.namespace.to_string(), name: pod.key.name.to_string() },
            uid: pod.uid.to_string(),
            container: view.name.to_string(),
            restarts: i64::from(view.restarts),
        };
        Some(((view.name.clone(), view.restarts), kubelet.observe(run)))
    });
    observed.collect()
}

async fn live(world: &World, kubelet: &Arc<Kubelet>, key: Key) -> Result<Option<Duration>> {
    let Some(pod) = world.pods.get(&key) else { return Ok(None) };
    let now = Timestamp::now();
    let Some(name) = &pod.node else {
        if pod.deletion.is_some_and(|deletion| deletion.grace > 0) || pod.finalizers.is_empty() {
            world.delete_pod(&key, &pod.uid, Some(0)).await?;
        }
        return Ok(None);
    };
    let Some(node) = world.nodes.get(&Key::new("", name)) else { return Ok(None) };
    if !works(&node) {
        return Ok(None);
    }
    if pod.started.is_none()
        && pod.is_active()
        && let Err(rejection) = admit(&pod, NodeView::new(&node), &world.pods.by(&Index::Node(name.clone())))
    {
        return reject(world, &pod, name, rejection, now).await;
    }
    let behaviour = Behaviour::of(&pod);
    let seen = observe(kubelet, &pod);
    let Step { status, notes, wake, delete } = step(&pod, &behaviour, &seen, now);
    for note in notes {
        let mut subject = Subject::pod(&key, &pod.uid);
        subject.field = note.container.map(|container| format!("spec.containers{{{container}}}"));
        let source = Source { component: "kubelet", host: Some(name.clone()) };
        world.recorder.record(subject, source, note.warning, note.reason, note.message);
    }
    if let Some(desired) = status {
        let ip = if pod.spec.host_network { None } else { world.ips.address(&pod, &node) };
        let patch = super::status::status(&pod, &desired, host_ip(&node), ip.as_deref(), now);
        world.patch_pod_status(&pod, patch).await?;
    }
    if delete {
        world.delete_pod(&key, &pod.uid, Some(0)).await?;
    }
    Ok(wake.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(1))))
}

/// Writes the status of a pod that its node rejects.
async fn reject(
    world: &World,
    pod: &PodState,
    node: &Arc<str>,
    rejection: Rejection,
    now: Timestamp,
) -> Result<Option<Duration>> {
    let Rejection { reason, message } = rejection;
    let source = Source { component: "kubelet", host: Some(node.clone()) };
    world.recorder.record(Subject::pod(&pod.key, &pod.uid), source, true, "FailedAdmission", message.clone());
    let status =
        json!({"phase": "Failed", "reason": reason, "message": message, "startTime": super::status::time(now)});
    world.patch_pod_status(pod, json!({"status": status})).await?;
    Ok(None)
}

/// The node's internal address.
pub fn host_ip(node: &Node) -> &str {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    addresses.iter().find(|address| address.type_ == "InternalIP").map_or(UNKNOWN_ADDRESS, |address| &address.address)
}

/// Allocator of pod addresses.
#[derive(Default)]
pub struct PodIps {
    inner: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    by_pod: HashMap<Arc<str>, Arc<str>>,
    /// By node prefix (`10.1.2.`): last byte → UID of the pod.
    by_prefix: HashMap<Box<str>, HashMap<u8, Arc<str>>>,
}

impl PodIps {
    /// The pod's address: the existing one, or a free one of its node's range. `None` if the range is exhausted.
    pub fn address(&self, pod: &PodState, node: &Node) -> Option<Arc<str>> {
        if let Some(ip) = &pod.ip {
            return Some(ip.clone());
        }
        let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref())?;
        self.take(&pod.uid, cidr)
    }

    /// Allocates a free address of a range (`10.1.2.0/24`) for a pod.
    pub fn take(&self, uid: &str, cidr: &str) -> Option<Arc<str>> {
        let prefix: Box<str> = cidr.rsplit_once('.')?.0.into();
        let uid: Arc<str> = uid.into();
        let mut given = self.inner.lock();
        if let Some(ip) = given.by_pod.get(&uid) {
            return Some(ip.clone());
        }
        let used = given.by_prefix.entry(prefix.clone()).or_default();
        let last = (2..=254u8).find(|last| !used.contains_key(last))?;
        used.insert(last, uid.clone());
        let ip: Arc<str> = format!("{prefix}.{last}").into();
        given.by_pod.insert(uid, ip.clone());
        Some(ip)
    }

    fn keep(&self, pod: &PodState) {
        let Some(ip) = pod.ip.as_ref().filter(|_| !pod.spec.host_network) else { return };
        let mut given = self.inner.lock();
        if given.by_pod.contains_key(&pod.uid) {
            return;
        }
        let Some((prefix, last)) = ip.rsplit_once('.') else { return };
        let Ok(last) = last.parse() else { return };
        given.by_prefix.entry(prefix.into()).or_default().insert(last, pod.uid.clone());
        given.by_pod.insert(pod.uid.clone(), ip.clone());
    }

    fn release(&self, uid: &str) {
        let mut given = self.inner.lock();
        let Some(ip) = given.by_pod.remove(uid) else { return };
        let Some((prefix, last)) = ip.rsplit_once('.') else { return };
        let (Some(used), Ok(last)) = (given.by_prefix.get_mut(prefix), last.parse::<u8>()) else { return };
        if used.get(&last).is_some_and(|holder| &**holder == uid) {
            used.remove(&last);
        }
    }
}
