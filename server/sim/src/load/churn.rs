//! Churn of a synthetic load at a fixed rate: container restarts, label changes, events, pod replacements, scaling.
//! Uses the member's API, like kubelets and users.
//!
//! One task per load draws the changes and runs a bounded number concurrently. Each draw considers a single
//! workload's pods.

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
use crate::member::pod::{ContainerPhase, LastRun, PodState};
use crate::member::podlife::{self, Desired, host_ip};
use crate::member::recorder::{Source, Subject};
use crate::member::store::{Key, Stored};
use crate::member::world::{MANAGER, World};

/// Concurrent changes.
const AT_ONCE: usize = 32;
/// Maximum delay that is caught up: changes missed beyond it are skipped.
const LAG: Duration = Duration::from_secs(1);
/// Most workloads scaled down at a time.
const LOWERED: usize = 20;
/// Workloads searched for a suitable pod.
const TRIES: usize = 8;
/// A label that no selector uses.
const TRACK: &str = "release-track";

/// Kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Restart,
    Label,
    Event,
    Replace,
    Scale,
}

/// Frequency of each kind in percent.
const MIX: [(Kind, u32); 5] =
    [(Kind::Restart, 35), (Kind::Label, 25), (Kind::Event, 20), (Kind::Replace, 10), (Kind::Scale, 10)];

/// A random change: its kind, the workload at which the search for a pod starts, and a number for further choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Draw {
    kind: Kind,
    target: usize,
    dice: u32,
}

fn draw(random: &mut StdRng, targets: usize) -> Draw {
    let mut left = random.random_range(0..100);
    let mut kind = Kind::Restart;
    for (candidate, share) in MIX {
        kind = candidate;
        if left < share {
            break;
        }
        left -= share;
    }
    Draw { kind, target: random.random_range(0..targets), dice: random.random() }
}

/// A workload of the load.
#[derive(Debug, Clone)]
pub struct Target {
    pub deployment: Key,
    pub replicas: i32,
}

/// Churn of a load.
pub struct Churn {
    world: Arc<World>,
    targets: Vec<Target>,
    /// Targets that are scaled down by one pod, oldest first.
    lowered: Mutex<VecDeque<usize>>,
    made: Arc<AtomicU64>,
}

impl Churn {
    /// Creates the churn; `made` counts changes.
    pub fn new(world: Arc<World>, targets: Vec<Target>, made: Arc<AtomicU64>) -> Self {
        Self { world, targets, lowered: Mutex::default(), made }
    }

    /// Makes `rate` changes per second until `quit`; running changes are completed.
    pub async fn run(self, rate: f64, seed: u64, quit: CancellationToken) {
        if self.targets.is_empty() {
            return;
        }
        let (mut random, targets) = (StdRng::seed_from_u64(seed), self.targets.len());
        let draws = ticks(rate).map(|()| draw(&mut random, targets)).take_until(quit.cancelled_owned());
        draws.for_each_concurrent(AT_ONCE, |draw| self.carry_out(draw)).await;
    }

    async fn carry_out(&self, draw: Draw) {
        match self.change(draw).await {
            Ok(true) => {
                self.made.fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => tracing::debug!(?draw, "no object to change"),
            Err(error) => tracing::debug!(?draw, %error, "cannot apply a churn change"),
        }
    }

    /// Applies a change; false if there was no suitable object.
    async fn change(&self, draw: Draw) -> Result<bool> {
        if draw.kind == Kind::Scale {
            return self.scale(draw).await;
        }
        let mut nearby = (0..TRIES.min(self.targets.len())).map(|step| (draw.target + step) % self.targets.len());
        let found = nearby.find_map(|at| self.pod_of(&self.targets[at], draw.dice));
        let Some(pod) = found else { return Ok(false) };
        match draw.kind {
            Kind::Restart => self.restart(&pod).await,
            Kind::Label => self.label(&pod, draw.dice).await,
            Kind::Event => Ok(self.event(&pod, draw.dice)),
            _ => self.world.delete_pod(&pod.key, &pod.uid, None).await.map(|()| true),
        }
    }

    /// A ready pod of a workload.
    fn pod_of(&self, target: &Target, dice: u32) -> Option<Arc<PodState>> {
        let deployment = self.world.deployments.get(&target.deployment)?;
        let sets = self.world.replica_sets.owned(deployment.uid());
        let mut pods: Vec<_> = sets.iter().flat_map(|set| self.world.pods.owned(set.uid())).collect();
        pods.retain(|pod| pod.is_active() && pod.is_ready() && pod.node.is_some());
        (!pods.is_empty()).then(|| pods.swap_remove(dice as usize % pods.len()))
    }

    /// Simulates a restart of the pod's first container.
    async fn restart(&self, pod: &PodState) -> Result<bool> {
        let now = Timestamp::now();
        let mut containers = pod.containers.to_vec();
        let Some(view) = containers.first_mut() else { return Ok(false) };
        let ContainerPhase::Running { since } = view.doing else { return Ok(false) };
        let last = LastRun { exit_code: 1, reason: "Error".into(), started: since, finished: now };
        view.last = Some(Box::new(last));
        view.restarts += 1;
        view.doing = ContainerPhase::Running { since: now };
        let node = pod.node.as_deref().and_then(|node| self.world.nodes.get(&Key::new("", node)));
        let Some(node) = node else { return Ok(false) };
        let desired = Desired { phase: pod.phase, containers, init: pod.init.to_vec() };
        let patch = podlife::status(pod, &desired, host_ip(&node), pod.ip.as_deref(), now);
        self.world.patch_pod_status(pod, patch).await.map(|_| true)
    }

    async fn label(&self, pod: &PodState, dice: u32) -> Result<bool> {
        let shown = pod.labels.get(TRACK).map(String::as_str);
        let tracks = ["stable", "canary", "beta"].into_iter().filter(|track| Some(*track) != shown);
        let Some(track) = tracks.cycle().nth(dice as usize % 2) else { return Ok(false) };
        let patch = json!({"metadata": {"uid": &*pod.uid, "labels": {TRACK: track}}});
        let api = self.world.api::<Pod>(&pod.key.namespace);
        let patched = api.patch(&pod.key.name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await;
        self.world.saw_pod(patched.map_err(Error::api(format!("label pod {}", pod.key)))?);
        Ok(true)
    }

    fn event(&self, pod: &PodState, dice: u32) -> bool {
        let code = [500, 502, 503, 504][dice as usize % 4];
        let mut subject = Subject::pod(&pod.key, &pod.uid);
        subject.field = pod.containers.first().map(|view| format!("spec.containers{{{}}}", view.name));
        let source = Source { component: "kubelet", host: pod.node.clone() };
        let message = format!("Readiness probe failed: HTTP probe failed with statuscode: {code}");
        self.world.recorder.record(subject, source, true, "Unhealthy", message);
        true
    }

    /// Scales a workload down by one pod, or back up, so that the size of the load is constant.
    async fn scale(&self, draw: Draw) -> Result<bool> {
        let Some((at, replicas)) = self.resize(draw) else { return Ok(false) };
        let patch = json!({"spec": {"replicas": replicas}});
        self.world.patch(&self.world.deployments, &self.targets[at].deployment, None, &patch).await.map(|_| true)
    }

    fn resize(&self, draw: Draw) -> Option<(usize, i32)> {
        let mut lowered = self.lowered.lock();
        if lowered.len() >= LOWERED || (draw.dice.is_multiple_of(2) && !lowered.is_empty()) {
            return lowered.pop_front().map(|at| (at, self.targets[at].replicas));
        }
        let larger = (0..self.targets.len())
            .map(|step| (draw.target + step) % self.targets.len())
            .take(TRIES * TRIES)
            .find(|at| self.targets[*at].replicas > 1 && !lowered.contains(at));
        match larger {
            Some(at) => {
                lowered.push_back(at);
                Some((at, self.targets[at].replicas - 1))
            }
            None => lowered.pop_front().map(|at| (at, self.targets[at].replicas)),
        }
    }
}

/// A stream with `rate` items per second.
fn ticks(rate: f64) -> impl Stream<Item = ()> {
    let period = Duration::from_secs_f64(1.0 / rate);
    futures::stream::unfold(Instant::now(), move |due| async move {
        tokio::time::sleep_until(due).await;
        Some(((), due_after(due, Instant::now(), period)))
    })
}

/// Time of the next change, after the one that was due at `due` started at `now`.
fn due_after(due: Instant, now: Instant, period: Duration) -> Instant {
    let next = due + period;
    now.checked_sub(LAG).map_or(next, |earliest| next.max(earliest))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn kinds_have_their_frequency() {
        assert_eq!(MIX.iter().map(|(_, share)| share).sum::<u32>(), 100);
        let mut random = StdRng::seed_from_u64(1);
        let mut drawn: HashMap<Kind, u32> = HashMap::new();
        for _ in 0..10_000 {
            *drawn.entry(draw(&mut random, 7).kind).or_default() += 1;
        }
        for (kind, share) in MIX {
            let got = drawn.get(&kind).copied().unwrap_or_default();
            assert!(got.abs_diff(share * 100) < 300, "{kind:?}: {got}");
        }
    }

    #[test]
    fn rate_is_kept_without_catching_up() {
        let period = Duration::from_millis(20);
        let begun = Instant::now() + 2 * LAG;
        let on_time = (0..500).fold(begun, |due, _| due_after(due, due, period));
        assert_eq!(on_time - begun, Duration::from_secs(10));
        let late = on_time + Duration::from_secs(60);
        let mut due = due_after(on_time, late, period);
        let mut at_once = 0;
        while due <= late {
            due = due_after(due, late, period);
            at_once += 1;
        }
        assert_eq!(at_once, 51);
    }
}
