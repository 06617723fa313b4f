//! Scheduling loop: binds pods as [`super::plan`] decides.

use crate::member::context::create_params;
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
use crate::member::context::{MemberContext, SharedObject};
use crate::member::pod::PodState;
use crate::member::pod_lifecycle::format_time;
use crate::member::recorder::{Source, Subject};
use crate::member::store::{Key, StoreObject};

use super::fit::NodeView;
use super::plan::{Budget, Decision, Planner};

/// Maximum number of decisions per batch of writes.
const MAX_BATCH_DECISIONS: usize = 512;
/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 32;
/// Interval at which unschedulable pods are retried even if nothing has changed, as in kube-scheduler.
const UNSCHEDULABLE_RETRY_INTERVAL: Duration = Duration::from_secs(300);
/// Delay before a pod that could not be bound is retried.
const BIND_RETRY_DELAY: Duration = Duration::from_millis(200);

const SOURCE: Source = Source { component: "default-scheduler", host: None };

/// Order of pods: by priority, then age.
type Rank = (Reverse<i32>, Timestamp, Key);

/// State of the scheduler: the planner and the pods without a node.
#[derive(Default)]
struct SchedulerState {
    planner: Planner,
    pending: BTreeMap<Rank, Arc<PodState>>,
    /// Pods that currently fit on no node.
    unschedulable: HashMap<Key, Arc<PodState>>,
    /// Nodes on which pods have preempted others.
    nominated: HashMap<Key, Arc<str>>,
}

impl SchedulerState {
    fn remove(&mut self, pod: &PodState) {
        self.pending.remove(&rank(pod));
        self.unschedulable.remove(&pod.key);
        self.nominated.remove(&pod.key);
    }

    fn retry_unschedulable(&mut self) {
        for (_, pod) in std::mem::take(&mut self.unschedulable) {
            self.pending.insert(rank(&pod), pod);
        }
    }
}

fn rank(pod: &PodState) -> Rank {
    (Reverse(pod.spec.priority), pod.created, pod.key.clone())
}

struct Scheduler {
    context: Arc<MemberContext>,
    state: Mutex<SchedulerState>,
    wake: Notify,
}

/// Starts the scheduler. Must be called before the informers run, so that the handlers receive the initial lists.
pub fn start(context: &Arc<MemberContext>) {
    let scheduler = Arc::new(Scheduler { context: context.clone(), state: Mutex::default(), wake: Notify::new() });
    let pods = scheduler.clone();
    context.pods.on_change(move |old, new| pods.handle_pod_change(old, new));
    let nodes = scheduler.clone();
    context.nodes.on_change(move |old, new| {
        let mut state = nodes.state.lock();
        match (old, new) {
            (Some(old), None) => state.planner.remove_node(&old.key().name),
            (_, Some(new)) => {
                let is_unchanged = old.is_some_and(|old| {
                    old.spec == new.spec
                        && old.metadata.labels == new.metadata.labels
                        && old.status.as_ref().map(|status| &status.allocatable)
                            == new.status.as_ref().map(|status| &status.allocatable)
                });
                if is_unchanged {
                    return;
                }
                state.planner.set_node(NodeView::new(new));
                state.retry_unschedulable();
            }
            (None, None) => {}
        }
        drop(state);
        nodes.wake.notify_one();
    });
    let claims = scheduler.clone();
    context.claims.on_change(move |_, _| {
        claims.state.lock().retry_unschedulable();
        claims.wake.notify_one();
    });
    context.spawn_when_synced("scheduler", scheduler.run());
}

impl Scheduler {
    fn handle_pod_change(&self, old: Option<&Arc<PodState>>, new: Option<&Arc<PodState>>) {
        let mut state = self.state.lock();
        match new {
            Some(pod) if pod.occupies_node() => {
                state.remove(pod);
                if let Some(node) = &pod.node {
                    state.planner.assign(node, pod);
                }
                return;
            }
            Some(pod)
                if pod.node.is_none() && pod.is_active() && pod.spec.scheduler_name.as_ref() == "default-scheduler" =>
            {
                if pod.spec.has_scheduling_gates {
                    return;
                }
                match state.unschedulable.get_mut(&pod.key) {
                    // Only the status has changed, probably by this scheduler: no retry.
                    Some(waiting_pod) if waiting_pod.uid == pod.uid && waiting_pod.spec == pod.spec => {
                        *waiting_pod = pod.clone();
                        return;
                    }
                    Some(_) => {
                        state.unschedulable.remove(&pod.key);
                    }
                    None => {}
                }
                state.pending.insert(rank(pod), pod.clone());
            }
            _ => {
                let Some(pod) = new.or(old) else { return };
                state.remove(pod);
                state.planner.unassign(&pod.uid);
                state.retry_unschedulable();
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    async fn run(self: Arc<Self>) {
        let stop = self.context.stop.clone();
        loop {
            let has_unschedulable = !self.state.lock().unschedulable.is_empty();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(UNSCHEDULABLE_RETRY_INTERVAL), if has_unschedulable => self.state.lock().retry_unschedulable(),
            }
            self.drain().await;
        }
    }

    async fn drain(&self) {
        loop {
            let decisions = self.decide();
            if decisions.is_empty() || self.context.stop.is_cancelled() {
                return;
            }
            futures::stream::iter(decisions)
                .for_each_concurrent(MAX_CONCURRENT_WRITES, |(pod, decision)| async move {
                    if let Err(error) = self.apply_decision(&pod, decision).await {
                        tracing::debug!(pod = %pod.key, %error, "cannot write a scheduling decision; retrying");
                        self.retry(&pod).await;
                    }
                })
                .await;
        }
    }

    fn decide(&self) -> Vec<(Arc<PodState>, Decision)> {
        let mut state = self.state.lock();
        let mut decisions = Vec::new();
        while decisions.len() < MAX_BATCH_DECISIONS
            && let Some((_, pod)) = state.pending.pop_first()
        {
            let decision = match self.unbound_claim_message(&pod) {
                Some(message) => Decision::Unschedulable { message, preemption: None },
                None => state.planner.schedule(&pod, || self.budgets()),
            };
            if matches!(decision, Decision::Unschedulable { .. }) {
                state.unschedulable.insert(pod.key.clone(), pod.clone());
            }
            decisions.push((pod, decision));
        }
        decisions
    }

    fn budgets(&self) -> Vec<Budget> {
        let to_budget = |budget: &SharedObject<PodDisruptionBudget>| {
            let selector = Selector::from_label_selector_or_nothing(budget.spec.as_ref()?.selector.as_ref()?);
            let allowed_disruptions =
                budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or_default();
            Some(Budget { namespace: budget.key().namespace, selector, allowed_disruptions })
        };
        self.context.budgets.all().iter().filter_map(to_budget).collect()
    }

    /// kube-scheduler's message for a pod whose claims are missing or not bound.
    fn unbound_claim_message(&self, pod: &PodState) -> Option<String> {
        let nodes = self.context.nodes.len();
        for name in &pod.spec.claims {
            let Some(claim) = self.context.claims.get(&Key::new(&pod.key.namespace, name)) else {
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

    async fn retry(&self, pod: &Arc<PodState>) {
        tokio::time::sleep(BIND_RETRY_DELAY).await;
        let mut state = self.state.lock();
        state.planner.unassign(&pod.uid);
        let Some(current) = self.context.pods.get(&pod.key).filter(|current| current.uid == pod.uid) else { return };
        match &current.node {
            Some(node) => state.planner.assign(node, &current),
            None if current.is_active() => {
                state.unschedulable.remove(&pod.key);
                state.pending.insert(rank(&current), current);
            }
            None => {}
        }
    }

    async fn apply_decision(&self, pod: &Arc<PodState>, decision: Decision) -> Result<()> {
        match decision {
            Decision::Node(node) => self.bind(pod, &node).await,
            Decision::Unschedulable { message, preemption } => {
                if let Some((node, victims)) = preemption {
                    self.preempt(pod, &node, victims).await?;
                }
                self.write_unschedulable(pod, &message).await
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
        let api: Api<Pod> = self.context.api(&pod.key.namespace);
        let _: serde_json::Value = api
            .create_subresource("binding", &name, &create_params(), &binding)
            .await
            .map_err(Error::api(format!("bind pod {} to {node}", pod.key)))?;
        let message = format!("Successfully assigned {} to {node}", pod.key);
        self.context.recorder.record(Subject::pod(&pod.key, &pod.uid), SOURCE, false, "Scheduled", message);
        Ok(())
    }

    async fn preempt(&self, pod: &PodState, node: &str, victims: Vec<Arc<PodState>>) -> Result<()> {
        // A pod preempts once; it is retried when the victims are deleted.
        if self.state.lock().nominated.insert(pod.key.clone(), node.into()).is_some() {
            return Ok(());
        }
        for victim in victims {
            let message = format!("Preempted by pod {} on node {node}", pod.uid);
            self.context.recorder.record(Subject::pod(&victim.key, &victim.uid), SOURCE, false, "Preempted", message);
            let mut conditions = self.context.read_pod_conditions(&victim).await?;
            conditions.retain(|condition| condition["type"] != "DisruptionTarget");
            conditions.push(json!({
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": "default-scheduler: preempting to accommodate a higher priority pod",
                "lastProbeTime": null, "lastTransitionTime": format_time(Timestamp::now()), "observedGeneration": victim.generation,
            }));
            match self.context.patch_pod_status(&victim, json!({"status": {"conditions": conditions}})).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
            self.context.delete_pod(&victim.key, &victim.uid, None).await?;
        }
        self.context.patch_pod_status(pod, json!({"status": {"nominatedNodeName": node}})).await?;
        Ok(())
    }

    async fn write_unschedulable(&self, pod: &PodState, message: &str) -> Result<()> {
        if pod.unschedulable_message.as_deref() == Some(message) {
            return Ok(());
        }
        self.context.recorder.record(Subject::pod(&pod.key, &pod.uid), SOURCE, true, "FailedScheduling", message);
        let mut conditions = vec![json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastProbeTime": null,
            "lastTransitionTime": format_time(Timestamp::now()), "observedGeneration": pod.generation,
        })];
        conditions.extend(pod.foreign_conditions.iter().filter_map(|condition| serde_json::to_value(condition).ok()));
        self.context.patch_pod_status(pod, json!({"status": {"phase": "Pending", "conditions": conditions}})).await?;
        Ok(())
    }
}
