//! Churn of a synthetic load at a fixed rate: container restarts, label changes, events, pod replacements, scaling.
//! Uses the member's API, like kubelets and users.
//!
//! One task per load draws random changes and runs a bounded number of them concurrently.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::member::context::{FIELD_MANAGER, MemberContext};
use crate::member::pod::{ContainerPhase, LastRun, PodState};
use crate::member::pod_lifecycle::{self, DesiredStatus, host_ip};
use crate::member::recorder::{Source, Subject};
use crate::member::store::{Key, StoreObject};

/// Maximum number of concurrent changes.
const MAX_CONCURRENT_CHANGES: usize = 32;
/// Maximum delay of a change. Changes that would be delayed longer are skipped.
const MAX_LAG: Duration = Duration::from_secs(1);
/// Maximum number of workloads that are scaled down at a time.
const MAX_SCALED_DOWN: usize = 20;
/// Maximum number of workloads that are searched for a suitable pod.
const MAX_SEARCHED_WORKLOADS: usize = 8;
/// Label that churn changes; no selector uses it.
const TRACK_LABEL: &str = "release-track";

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    Restart,
    Label,
    Event,
    Replace,
    Scale,
}

/// Share of each kind in percent.
const KIND_PERCENTAGES: [(ChangeKind, u32); 5] = [
    (ChangeKind::Restart, 35),
    (ChangeKind::Label, 25),
    (ChangeKind::Event, 20),
    (ChangeKind::Replace, 10),
    (ChangeKind::Scale, 10),
];

/// A random change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RandomChange {
    kind: ChangeKind,
    /// Index of the workload at which the search for a suitable one starts.
    first_workload: usize,
    /// Random number for further choices.
    random: u32,
}

fn draw_change(random: &mut StdRng, workloads: usize) -> RandomChange {
    let mut remaining = random.random_range(0..100);
    let mut kind = ChangeKind::Restart;
    for (candidate, share) in KIND_PERCENTAGES {
        kind = candidate;
        if remaining < share {
            break;
        }
        remaining -= share;
    }
    RandomChange { kind, first_workload: random.random_range(0..workloads), random: random.random() }
}

/// A workload of the load.
#[derive(Debug, Clone)]
pub struct LoadWorkload {
    pub deployment: Key,
    /// Number of replicas in the load.
    pub replicas: i32,
}

/// Churn of a load.
pub struct Churn {
    context: Arc<MemberContext>,
    workloads: Vec<LoadWorkload>,
    /// Indexes of the workloads that are scaled down by one pod, oldest first.
    scaled_down: Mutex<VecDeque<usize>>,
    /// Number of changes so far.
    changes: Arc<AtomicU64>,
}

impl Churn {
    /// Creates the churn of a load; `changes` is incremented with each change.
    pub fn new(context: Arc<MemberContext>, workloads: Vec<LoadWorkload>, changes: Arc<AtomicU64>) -> Self {
        Self { context, workloads, scaled_down: Mutex::default(), changes }
    }

    /// Applies `changes_per_second` changes until `stop` is cancelled, and completes those in progress.
    pub async fn run(self, changes_per_second: f64, seed: u64, stop: CancellationToken) {
        if self.workloads.is_empty() {
            return;
        }
        let (mut random, workloads) = (StdRng::seed_from_u64(seed), self.workloads.len());
        let changes =
            ticks(changes_per_second).map(|()| draw_change(&mut random, workloads)).take_until(stop.cancelled_owned());
        changes.for_each_concurrent(MAX_CONCURRENT_CHANGES, |change| self.apply_and_count(change)).await;
    }

    async fn apply_and_count(&self, change: RandomChange) {
        match self.apply(change).await {
            Ok(true) => {
                self.changes.fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => tracing::debug!(?change, "no object to change"),
            Err(error) => tracing::debug!(?change, %error, "cannot apply a churn change"),
        }
    }

    /// Applies a change; false if there was no suitable object.
    async fn apply(&self, change: RandomChange) -> Result<bool> {
        if change.kind == ChangeKind::Scale {
            return self.scale(change).await;
        }
        let mut indexes = (0..MAX_SEARCHED_WORKLOADS.min(self.workloads.len()))
            .map(|step| (change.first_workload + step) % self.workloads.len());
        let pod = indexes.find_map(|index| self.find_ready_pod(&self.workloads[index], change.random));
        let Some(pod) = pod else { return Ok(false) };
        match change.kind {
            ChangeKind::Restart => self.restart(&pod).await,
            ChangeKind::Label => self.change_label(&pod, change.random).await,
            ChangeKind::Event => Ok(self.record_event(&pod, change.random)),
            _ => self.context.delete_pod(&pod.key, &pod.uid, None).await.map(|()| true),
        }
    }

    /// Finds a random ready pod of a workload.
    fn find_ready_pod(&self, workload: &LoadWorkload, random: u32) -> Option<Arc<PodState>> {
        let deployment = self.context.deployments.get(&workload.deployment)?;
        let sets = self.context.replica_sets.owned_by(deployment.uid());
        let mut pods: Vec<_> = sets.iter().flat_map(|set| self.context.pods.owned_by(set.uid())).collect();
        pods.retain(|pod| pod.is_active() && pod.is_ready() && pod.node.is_some());
        (!pods.is_empty()).then(|| pods.swap_remove(random as usize % pods.len()))
    }

    /// Simulates a restart of the pod's first container.
    async fn restart(&self, pod: &PodState) -> Result<bool> {
        let now = Timestamp::now();
        let mut containers = pod.containers.to_vec();
        let Some(view) = containers.first_mut() else { return Ok(false) };
        let ContainerPhase::Running { since } = view.state else { return Ok(false) };
        let last_run = LastRun { exit_code: 1, reason: "Error".into(), started: since, finished: now };
        view.last_run = Some(Box::new(last_run));
        view.restarts += 1;
        view.state = ContainerPhase::Running { since: now };
        let node = pod.node.as_deref().and_then(|node| self.context.nodes.get(&Key::new("", node)));
        let Some(node) = node else { return Ok(false) };
        let desired = DesiredStatus { phase: pod.phase, containers, init_containers: pod.init_containers.to_vec() };
        let patch = pod_lifecycle::status_patch(pod, &desired, host_ip(&node), pod.ip.as_deref(), now);
        self.context.patch_pod_status(pod, patch).await.map(|_| true)
    }

    async fn change_label(&self, pod: &PodState, random: u32) -> Result<bool> {
        let current = pod.labels.get(TRACK_LABEL).map(String::as_str);
        let tracks = ["stable", "canary", "beta"].into_iter().filter(|track| Some(*track) != current);
        let Some(track) = tracks.cycle().nth(random as usize % 2) else { return Ok(false) };
        let patch = json!({"metadata": {"uid": &*pod.uid, "labels": {TRACK_LABEL: track}}});
        let api = self.context.api::<Pod>(&pod.key.namespace);
        let patched = api.patch(&pod.key.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
        self.context.apply_pod(patched.map_err(Error::api(format!("label pod {}", pod.key)))?);
        Ok(true)
    }

    fn record_event(&self, pod: &PodState, random: u32) -> bool {
        let code = [500, 502, 503, 504][random as usize % 4];
        let mut subject = Subject::pod(&pod.key, &pod.uid);
        subject.field_path = pod.containers.first().map(|view| format!("spec.containers{{{}}}", view.name));
        let source = Source { component: "kubelet", host: pod.node.clone() };
        let message = format!("Readiness probe failed: HTTP probe failed with statuscode: {code}");
        self.context.recorder.record(subject, source, true, "Unhealthy", message);
        true
    }

    /// Scales a workload down by one pod, or back up, so that the size of the load is constant.
    async fn scale(&self, change: RandomChange) -> Result<bool> {
        let Some((index, replicas)) = self.choose_resize(change) else { return Ok(false) };
        let patch = json!({"spec": {"replicas": replicas}});
        self.context
            .patch(&self.context.deployments, &self.workloads[index].deployment, None, &patch)
            .await
            .map(|_| true)
    }

    /// Index and new number of replicas of a workload to scale.
    fn choose_resize(&self, change: RandomChange) -> Option<(usize, i32)> {
        let mut scaled_down = self.scaled_down.lock();
        if scaled_down.len() >= MAX_SCALED_DOWN || (change.random.is_multiple_of(2) && !scaled_down.is_empty()) {
            return scaled_down.pop_front().map(|index| (index, self.workloads[index].replicas));
        }
        let candidate = (0..self.workloads.len())
            .map(|step| (change.first_workload + step) % self.workloads.len())
            .take(MAX_SEARCHED_WORKLOADS * MAX_SEARCHED_WORKLOADS)
            .find(|index| self.workloads[*index].replicas > 1 && !scaled_down.contains(index));
        match candidate {
            Some(index) => {
                scaled_down.push_back(index);
                Some((index, self.workloads[index].replicas - 1))
            }
            None => scaled_down.pop_front().map(|index| (index, self.workloads[index].replicas)),
        }
    }
}

/// A stream with `items_per_second` items per second.
fn ticks(items_per_second: f64) -> impl Stream<Item = ()> {
    let period = Duration::from_secs_f64(1.0 / items_per_second);
    futures::stream::unfold(Instant::now(), move |due| async move {
        tokio::time::sleep_until(due).await;
        Some(((), next_due(due, Instant::now(), period)))
    })
}

/// Time at which the next change is due, after the change that was due at `due` was started at `now`.
fn next_due(due: Instant, now: Instant, period: Duration) -> Instant {
    let next = due + period;
    now.checked_sub(MAX_LAG).map_or(next, |earliest| next.max(earliest))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn each_kind_is_drawn_with_its_percentage() {
        assert_eq!(KIND_PERCENTAGES.iter().map(|(_, share)| share).sum::<u32>(), 100);
        let mut random = StdRng::seed_from_u64(1);
        let mut counts: HashMap<ChangeKind, u32> = HashMap::new();
        for _ in 0..10_000 {
            *counts.entry(draw_change(&mut random, 7).kind).or_default() += 1;
        }
        for (kind, share) in KIND_PERCENTAGES {
            let count = counts.get(&kind).copied().unwrap_or_default();
            assert!(count.abs_diff(share * 100) < 300, "{kind:?}: {count}");
        }
    }

    #[test]
    fn the_rate_is_kept_and_long_delays_are_not_caught_up() {
        let period = Duration::from_millis(20);
        let start = Instant::now() + 2 * MAX_LAG;
        let on_time = (0..500).fold(start, |due, _| next_due(due, due, period));
        assert_eq!(on_time - start, Duration::from_secs(10));
        let late = on_time + Duration::from_secs(60);
        let mut due = next_due(on_time, late, period);
        let mut immediate = 0;
        while due <= late {
            due = next_due(due, late, period);
            immediate += 1;
        }
        assert_eq!(immediate, 51);
    }
}
