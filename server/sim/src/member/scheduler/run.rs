//! Scheduling loop: binds pods as [`super::plan`] decides.

use crate::member::world::creation;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ObjectMeta};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::member::pod::PodState;
use crate::member::podlife::time;
use crate::member::recorder::{Source, Subject};
use crate::member::store::{Key, Stored};
use crate::member::world::{SharedObject, World};

use super::fit::NodeView;
use super::plan::{Decision, Guard, Planner};

/// Decisions per batch of writes.
const BATCH: usize = 512;
/// Concurrent writes.
const AT_ONCE: usize = 32;
/// Interval at which unschedulable pods are retried without an event, as in kube-scheduler.
const FLUSH: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_millis(200);

const SOURCE: Source = Source { component: "default-scheduler", host: None };

/// Order of pods: by priority, then age.
type Rank = (Reverse<i32>, Timestamp, Key);

#[derive(Default)]
struct Board {
    planner: Planner,
    pending: BTreeMap<Rank, Arc<PodState>>,
    /// Pods that currently fit on no node.
    stuck: HashMap<Key, Arc<PodState>>,
    nominated: HashMap<Key, Arc<str>>,
}

impl Board {
    fn forget(&mut self, pod: &PodState) {
        self.pending.remove(&rank(pod));
        self.stuck.remove(&pod.key);
        self.nominated.remove(&pod.key);
    }

    fn retry_stuck(&mut self) {
        for (_, pod) in std::mem::take(&mut self.stuck) {
            self.pending.insert(rank(&pod), pod);
        }
    }
}

fn rank(pod: &PodState) -> Rank {
    (Reverse(pod.spec.priority), pod.created, pod.key.clone())
}

struct Scheduler {
    world: Arc<World>,
    board: Mutex<Board>,
    wake: Notify,
}

/// Starts the scheduler; handlers are registered first, so that they see the initial lists.
pub fn start(world: &Arc<World>) {
    let scheduler = Arc::new(Scheduler { world: world.clone(), board: Mutex::default(), wake: Notify::new() });
    let pods = scheduler.clone();
    world.pods.on_change(move |old, new| pods.pod_changed(old, new));
    let nodes = scheduler.clone();
    world.nodes.on_change(move |old, new| {
        let mut board = nodes.board.lock();
        match (old, new) {
            (Some(old), None) => board.planner.remove_node(&old.key().name),
            (_, Some(new)) => {
                let unchanged = old.is_some_and(|old| {
                    old.spec == new.spec
                        && old.metadata.labels == new.metadata.labels
                        && old.status.as_ref().map(|status| &status.allocatable)
                            == new.status.as_ref().map(|status| &status.allocatable)
                });
                if unchanged {
                    return;
                }
                board.planner.set_node(NodeView::new(new));
                board.retry_stuck();
            }
            (None, None) => {}
        }
        drop(board);
        nodes.wake.notify_one();
    });
    let claims = scheduler.clone();
    world.claims.on_change(move |_, _| {
        claims.board.lock().retry_stuck();
        claims.wake.notify_one();
    });
    world.work("scheduler", scheduler.run());
}

impl Scheduler {
    fn pod_changed(&self, old: Option<&Arc<PodState>>, new: Option<&Arc<PodState>>) {
        let mut board = self.board.lock();
        match new {
            Some(pod) if pod.occupies() => {
                board.forget(pod);
                if let Some(node) = &pod.node {
                    board.planner.occupy(node, pod);
                }
                return;
            }
            Some(pod)
                if pod.node.is_none() && pod.is_active() && pod.spec.scheduler.as_ref() == "default-scheduler" =>
            {
                if pod.spec.gated {
                    return;
                }
                match board.stuck.get_mut(&pod.key) {
                    // The status written by this scheduler does not trigger a retry.
                    Some(stuck) if stuck.uid == pod.uid && stuck.spec == pod.spec => {
                        *stuck = pod.clone();
                        return;
                    }
                    Some(_) => {
                        board.stuck.remove(&pod.key);
                    }
                    None => {}
                }
                board.pending.insert(rank(pod), pod.clone());
            }
            _ => {
                let Some(pod) = new.or(old) else { return };
                board.forget(pod);
                board.planner.vacate(&pod.uid);
                board.retry_stuck();
            }
        }
        drop(board);
        self.wake.notify_one();
    }

    async fn run(self: Arc<Self>) {
        let stop = self.world.stop.clone();
        loop {
            let stuck = !self.board.lock().stuck.is_empty();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(FLUSH), if stuck => self.board.lock().retry_stuck(),
            }
            self.drain().await;
        }
    }

    async fn drain(&self) {
        loop {
            let decisions = self.decide();
            if decisions.is_empty() || self.world.stop.is_cancelled() {
                return;
            }
            futures::stream::iter(decisions)
                .for_each_concurrent(AT_ONCE, |(pod, decision)| async move {
                    if let Err(error) = self.carry_out(&pod, decision).await {
                        tracing::debug!(pod = %pod.key, %error, "cannot bind a pod, retrying");
                        self.again(&pod).await;
                    }
                })
                .await;
        }
    }

    fn decide(&self) -> Vec<(Arc<PodState>, Decision)> {
        let mut board = self.board.lock();
        let mut decisions = Vec::new();
        while decisions.len() < BATCH
            && let Some((_, pod)) = board.pending.pop_first()
        {
            let decision = match self.claims_missing(&pod) {
                Some(message) => Decision::Nowhere { message, preempt: None },
                None => board.planner.place(&pod, || self.guards()),
            };
            if matches!(decision, Decision::Nowhere { .. }) {
                board.stuck.insert(pod.key.clone(), pod.clone());
            }
            decisions.push((pod, decision));
        }
        decisions
    }

    fn guards(&self) -> Vec<Guard> {
        let guard = |budget: &SharedObject<PodDisruptionBudget>| {
            let selector = Selector::valid_or_nothing(budget.spec.as_ref()?.selector.as_ref()?);
            let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or_default();
            Some(Guard { namespace: budget.key().namespace, selector, allowed })
        };
        self.world.budgets.all().iter().filter_map(guard).collect()
    }

    /// Reason for which a pod must wait for its volumes.
    fn claims_missing(&self, pod: &PodState) -> Option<String> {
        let nodes = self.world.nodes.len();
        for name in &pod.spec.claims {
            let Some(claim) = self.world.claims.get(&Key::new(&pod.key.namespace, name)) else {
                return Some(format!("persistentvolumeclaim \"{name}\" not found"));
            };
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase != Some("Bound") {
                return Some(format!(
                    "0/{nodes} nodes are available: pod has unbound immediate PersistentVolumeClaims. not found, preemption: \
                     0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
                ));
            }
        }
        None
    }

    async fn again(&self, pod: &Arc<PodState>) {
        tokio::time::sleep(RETRY).await;
        let mut board = self.board.lock();
        board.planner.vacate(&pod.uid);
        let Some(current) = self.world.pods.get(&pod.key).filter(|current| current.uid == pod.uid) else { return };
        match &current.node {
            Some(node) => board.planner.occupy(node, &current),
            None if current.is_active() => {
                board.stuck.remove(&pod.key);
                board.pending.insert(rank(&current), current);
            }
            None => {}
        }
    }

    async fn carry_out(&self, pod: &Arc<PodState>, decision: Decision) -> Result<()> {
        match decision {
            Decision::Node(node) => self.bind(pod, &node).await,
            Decision::Nowhere { message, preempt } => {
                if let Some((node, victims)) = preempt {
                    self.preempt(pod, &node, victims).await?;
                }
                self.unschedulable(pod, &message).await
            }
        }
    }

    async fn bind(&self, pod: &PodState, node: &Arc<str>) -> Result<()> {
        let (namespace, name) = (pod.key.namespace.to_string(), pod.key.name.to_string());
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                uid: Some(pod.uid.to_string()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".into()),
                name: Some(node.to_string()),
                ..ObjectReference::default()
            },
        };
        let api: Api<Pod> = self.world.api(&pod.key.namespace);
        let _: serde_json::Value = api
            .create_subresource("binding", &name, &creation(), &binding)
            .await
            .map_err(Error::api(format!("bind pod {} to {node}", pod.key)))?;
        let message = format!("Successfully assigned {} to {node}", pod.key);
        self.world.recorder.record(Subject::pod(&pod.key, &pod.uid), SOURCE, false, "Scheduled", message);
        Ok(())
    }

    async fn preempt(&self, pod: &PodState, node: &str, victims: Vec<Arc<PodState>>) -> Result<()> {
        // A pod preempts once; it is retried when the victims are deleted.
        if self.board.lock().nominated.insert(pod.key.clone(), node.into()).is_some() {
            return Ok(());
        }
        for victim in victims {
            let message = format!("Preempted by pod {} on node {node}", pod.uid);
            self.world.recorder.record(Subject::pod(&victim.key, &victim.uid), SOURCE, false, "Preempted", message);
            let mut conditions = self.world.conditions(&victim).await?;
            conditions.retain(|condition| condition["type"] != "DisruptionTarget");
            conditions.push(json!({
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": "default-scheduler: preempting to accommodate a higher priority pod",
                "lastProbeTime": null, "lastTransitionTime": time(Timestamp::now()), "observedGeneration": victim.generation,
            }));
            match self.world.patch_pod_status(&victim, json!({"status": {"conditions": conditions}})).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
            self.world.delete_pod(&victim.key, &victim.uid, None).await?;
        }
        self.world.patch_pod_status(pod, json!({"status": {"nominatedNodeName": node}})).await?;
        Ok(())
    }

    async fn unschedulable(&self, pod: &PodState, message: &str) -> Result<()> {
        if pod.unschedulable.as_deref() == Some(message) {
            return Ok(());
        }
        self.world.recorder.record(Subject::pod(&pod.key, &pod.uid), SOURCE, true, "FailedScheduling", message);
        let mut conditions = vec![json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastProbeTime": null,
            "lastTransitionTime": time(Timestamp::now()), "observedGeneration": pod.generation,
        })];
        conditions.extend(pod.foreign_conditions.iter().filter_map(|condition| serde_json::to_value(condition).ok()));
        self.world.patch_pod_status(pod, json!({"status": {"phase": "Pending", "conditions": conditions}})).await?;
        Ok(())
    }
}
