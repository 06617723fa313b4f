//! Kubelet loop: applies the steps that [`super::step`] computes to all pods on a member's nodes.

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
use crate::member::context::MemberContext;
use crate::member::node::{is_failed, is_managed};
use crate::member::pod::{ContainerPhase, ContainerSpec, PodState};
use crate::member::queue::{self, Queue};
use crate::member::recorder::{Source, Subject};
use crate::member::scheduler::fit::NodeView;
use crate::member::shape::UNKNOWN_ADDRESS;
use crate::member::store::{Index, Key, StoreObject};

use super::admission::{Rejection, admit};
use super::behaviour::Behaviour;
use super::container::Observations;
use super::step::{Step, compute_step};

/// Maximum number of pods that are processed concurrently.
const MAX_CONCURRENT_PODS: usize = 24;

/// Starts the kubelet loop. Must be called before the informers run, so that the handlers receive the initial lists.
pub fn start(context: &Arc<MemberContext>, kubelet: &Arc<Kubelet>) {
    let queue = Arc::new(Queue::<Key>::default());
    let observation_queue = queue.clone();
    kubelet.on_observation(move |pod| observation_queue.add(Key::new(&pod.namespace, &pod.name)));
    let pod_queue = queue.clone();
    let (pod_context, pod_kubelet) = (context.clone(), kubelet.clone());
    context.pods.on_change(move |old, new| match new {
        Some(pod) if pod.phase.is_terminal() && pod.deletion.is_none() => pod_context.ips.release(&pod.uid),
        Some(pod) => {
            pod_context.ips.record(pod);
            if pod.node.is_some() || pod.deletion.is_some() {
                pod_queue.add(pod.key.clone());
            }
        }
        None => {
            if let Some(pod) = old {
                pod_context.ips.release(&pod.uid);
                pod_kubelet.remove_pod(&pod.uid);
                pod_queue.forget(&pod.key);
            }
        }
    });
    let claim_kubelet = kubelet.clone();
    context.claims.on_change(move |old, new| {
        if let Some(claim) = old.filter(|claim| new.is_none_or(|new| new.uid() != claim.uid())) {
            claim_kubelet.remove_claim(claim.uid());
        }
    });
    let (node_queue, weak_context) = (queue.clone(), Arc::downgrade(context));
    context.nodes.on_change(move |old, new| {
        let is_up = |node: Option<&Arc<_>>| {
            node.is_some_and(|node: &Arc<crate::member::informer::Object<Node>>| is_working(node))
        };
        if let (Some(node), false, Some(context)) = (new, is_up(old), weak_context.upgrade())
            && is_up(new)
        {
            for pod in context.pods.by_index(&Index::Node(node.key().name)) {
                node_queue.add(pod.key.clone());
            }
        }
    });
    let (shared_context, shared_kubelet) = (context.clone(), kubelet.clone());
    let stop = context.stop.clone();
    context.spawn_when_synced("kubelet", async move {
        let sync = |key| sync_pod(&shared_context, &shared_kubelet, key);
        queue::run("kubelet", queue, MAX_CONCURRENT_PODS, stop, sync).await;
    });
}

/// True for a node of the simulation that has not failed.
fn is_working(node: &Node) -> bool {
    is_managed(node) && !is_failed(node)
}

/// Observes the running containers of a pod that the kubelet must observe, and returns their states.
fn observe(kubelet: &Arc<Kubelet>, pod: &PodState) -> Observations {
    let containers = || pod.spec.containers.iter().chain(&pod.spec.init_containers);
    if pod.deletion.is_some() || !containers().any(ContainerSpec::is_observed) {
        return Observations::new();
    }
    let views = pod
        .containers
        .iter()
        .chain(&pod.init_containers)
        .filter(|view| matches!(view.state, ContainerPhase::Running { .. }));
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

/// Applies the next step of a pod and returns the time until the one after it.
async fn sync_pod(context: &MemberContext, kubelet: &Arc<Kubelet>, key: Key) -> Result<Option<Duration>> {
    let Some(pod) = context.pods.get(&key) else { return Ok(None) };
    let now = Timestamp::now();
    let Some(name) = &pod.node else {
        if pod.deletion.is_some_and(|deletion| deletion.grace_seconds > 0) || pod.finalizers.is_empty() {
            context.delete_pod(&key, &pod.uid, Some(0)).await?;
        }
        return Ok(None);
    };
    let Some(node) = context.nodes.get(&Key::new("", name)) else { return Ok(None) };
    if !is_working(&node) {
        return Ok(None);
    }
    if pod.started.is_none()
        && pod.is_active()
        && let Err(rejection) = admit(&pod, NodeView::new(&node), &context.pods.by_index(&Index::Node(name.clone())))
    {
        return reject(context, &pod, name, rejection, now).await;
    }
    let behaviour = Behaviour::from_pod(&pod);
    let observations = observe(kubelet, &pod);
    let Step { status, events, next_step_at, should_delete } = compute_step(&pod, &behaviour, &observations, now);
    for event in events {
        let mut subject = Subject::pod(&key, &pod.uid);
        subject.field_path = event.container.map(|container| format!("spec.containers{{{container}}}"));
        let source = Source { component: "kubelet", host: Some(name.clone()) };
        context.recorder.record(subject, source, event.is_warning, event.reason, event.message);
    }
    if let Some(desired) = status {
        let ip = if pod.spec.host_network { None } else { context.ips.address_of(&pod, &node) };
        let patch = super::status::status_patch(&pod, &desired, host_ip(&node), ip.as_deref(), now);
        context.patch_pod_status(&pod, patch).await?;
    }
    if should_delete {
        context.delete_pod(&key, &pod.uid, Some(0)).await?;
    }
    Ok(next_step_at
        .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(1))))
}

/// Writes the status of a pod that its node rejects.
async fn reject(
    context: &MemberContext,
    pod: &PodState,
    node: &Arc<str>,
    rejection: Rejection,
    now: Timestamp,
) -> Result<Option<Duration>> {
    let Rejection { reason, message } = rejection;
    let source = Source { component: "kubelet", host: Some(node.clone()) };
    context.recorder.record(Subject::pod(&pod.key, &pod.uid), source, true, "FailedAdmission", message.clone());
    let status =
        json!({"phase": "Failed", "reason": reason, "message": message, "startTime": super::status::format_time(now)});
    context.patch_pod_status(pod, json!({"status": status})).await?;
    Ok(None)
}

/// Internal address of a node, or [`UNKNOWN_ADDRESS`].
pub fn host_ip(node: &Node) -> &str {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    addresses.iter().find(|address| address.type_ == "InternalIP").map_or(UNKNOWN_ADDRESS, |address| &address.address)
}

/// Allocator of pod addresses.
#[derive(Default)]
pub struct PodIps {
    inner: Mutex<Allocations>,
}

#[derive(Default)]
struct Allocations {
    /// Address of each pod by UID.
    by_pod: HashMap<Arc<str>, Arc<str>>,
    /// UID of the pod by prefix (`10.1.2`) and last byte of the address.
    by_prefix: HashMap<Box<str>, HashMap<u8, Arc<str>>>,
}

impl PodIps {
    /// Returns the pod's address: the existing one, or a free one of its node's range. `None` if the range is
    /// exhausted.
    pub fn address_of(&self, pod: &PodState, node: &Node) -> Option<Arc<str>> {
        if let Some(ip) = &pod.ip {
            return Some(ip.clone());
        }
        let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref())?;
        self.allocate(&pod.uid, cidr)
    }

    /// Allocates a free address of a range (`10.1.2.0/24`) for a pod.
    pub fn allocate(&self, uid: &str, cidr: &str) -> Option<Arc<str>> {
        let prefix: Box<str> = cidr.rsplit_once('.')?.0.into();
        let uid: Arc<str> = uid.into();
        let mut allocations = self.inner.lock();
        if let Some(ip) = allocations.by_pod.get(&uid) {
            return Some(ip.clone());
        }
        let used = allocations.by_prefix.entry(prefix.clone()).or_default();
        let last = (2..=254u8).find(|last| !used.contains_key(last))?;
        used.insert(last, uid.clone());
        let ip: Arc<str> = format!("{prefix}.{last}").into();
        allocations.by_pod.insert(uid, ip.clone());
        Some(ip)
    }

    /// Records the existing address of a pod.
    fn record(&self, pod: &PodState) {
        let Some(ip) = pod.ip.as_ref().filter(|_| !pod.spec.host_network) else { return };
        let mut allocations = self.inner.lock();
        if allocations.by_pod.contains_key(&pod.uid) {
            return;
        }
        let Some((prefix, last)) = ip.rsplit_once('.') else { return };
        let Ok(last) = last.parse() else { return };
        allocations.by_prefix.entry(prefix.into()).or_default().insert(last, pod.uid.clone());
        allocations.by_pod.insert(pod.uid.clone(), ip.clone());
    }

    fn release(&self, uid: &str) {
        let mut allocations = self.inner.lock();
        let Some(ip) = allocations.by_pod.remove(uid) else { return };
        let Some((prefix, last)) = ip.rsplit_once('.') else { return };
        let (Some(used), Ok(last)) = (allocations.by_prefix.get_mut(prefix), last.parse::<u8>()) else { return };
        if used.get(&last).is_some_and(|holder| &**holder == uid) {
            used.remove(&last);
        }
    }
}
