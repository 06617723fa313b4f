//! What a pod's kubelet does next, as a pure function of the pod and the time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::member::Labels;
use crate::member::pod::{ContainerView, Doing, LastRun, Phase, PodState, RestartPolicy};
use crate::member::resources;
use crate::member::store::Key;

use super::PREFIX;

/// How long the containers of Jobs run.
const JOB_RUN: SignedDuration = SignedDuration::from_secs(1);
/// How long a failed pull is reported as such before it is a back-off.
const PULL_RETRY: SignedDuration = SignedDuration::from_secs(2);
/// kubelet's container restart back-off: first, doubled each time, at most.
const BACKOFF_FIRST: i64 = 10;
const BACKOFF_LAST: i64 = 300;

/// A state asked for by `fleet.test/phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forced {
    NotReady,
    Failed,
    Pending,
}

/// What a pod's annotations and owner ask of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Behaviour {
    pub forced: Option<Forced>,
    pub start_after: SignedDuration,
    pub ready_after: SignedDuration,
    pub run_for: Option<SignedDuration>,
    pub exit_code: i32,
    pub oom: bool,
    /// Restarts after which containers stop ending.
    pub at_most: Option<i32>,
    pub pull_error: Option<String>,
    pub stop_after: SignedDuration,
    /// The container concerned; all of them when absent.
    pub container: Option<String>,
}

impl Behaviour {
    /// Reads a pod's annotations. What cannot be understood is as good as absent: a pod is never refused for it.
    pub fn of(pod: &PodState) -> Self {
        let annotations = &*pod.annotations;
        let get = |name: &str| annotations.get(&format!("{PREFIX}{name}")).map(String::as_str);
        let mut behaviour = Self {
            forced: match annotations.get("fleet.test/phase").map(String::as_str) {
                Some("NotReady") => Some(Forced::NotReady),
                Some("Failed") => Some(Forced::Failed),
                Some("Pending") => Some(Forced::Pending),
                _ => None,
            },
            start_after: get("start-after").and_then(duration).unwrap_or_default(),
            ready_after: get("ready-after").and_then(duration).unwrap_or_default(),
            run_for: get("run-for").and_then(duration),
            exit_code: get("exit-code").and_then(|code| code.parse().ok()).unwrap_or_default(),
            oom: false,
            at_most: None,
            pull_error: get("pull-error").map(str::to_owned),
            stop_after: get("stop-after").and_then(duration).unwrap_or_default(),
            container: get("container").map(str::to_owned),
        };
        for (name, exit_code) in [("crash", 1), ("oom", 137)] {
            let Some(times) = get(name).filter(|value| *value != "false") else { continue };
            behaviour.exit_code = exit_code;
            behaviour.oom = name == "oom";
            behaviour.at_most = times.parse().ok();
            behaviour.run_for = Some(behaviour.run_for.unwrap_or(JOB_RUN));
        }
        if pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "Job") && behaviour.run_for.is_none() {
            behaviour.run_for = Some(JOB_RUN);
        }
        behaviour
    }

    fn concerns(&self, container: &str) -> bool {
        self.container.as_deref().is_none_or(|name| name == container)
    }

    fn run_for(&self, view: &ContainerView) -> Option<SignedDuration> {
        let ends = self.concerns(&view.name) && self.at_most.is_none_or(|times| view.restarts < times);
        self.run_for.filter(|_| ends)
    }
}

/// Usage asked for by annotations: thousandths of a cpu, bytes.
pub fn usage(annotations: &Labels) -> (Option<i64>, Option<i64>) {
    let quantity = |name: &str| {
        annotations
            .get(&format!("{PREFIX}{name}"))
            .map(|text| k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.clone()))
    };
    (quantity("cpu").map(|cpu| resources::milli(&cpu)), quantity("memory").map(|memory| resources::whole(&memory)))
}

/// `500ms`, `5s`, `2m`, `1h`, or a bare number of seconds.
fn duration(text: &str) -> Option<SignedDuration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: i64 = text[..split].parse().ok()?;
    match &text[split..] {
        "ms" => Some(SignedDuration::from_millis(number)),
        "" | "s" => Some(SignedDuration::from_secs(number)),
        "m" => Some(SignedDuration::from_mins(number)),
        "h" => Some(SignedDuration::from_hours(number)),
        _ => None,
    }
}

/// The status a pod should show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    pub phase: Phase,
    pub containers: Vec<ContainerView>,
}

impl Desired {
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.containers.iter().all(|container| container.ready)
    }
}

/// An event to record on the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    /// The container concerned.
    pub container: Option<Arc<str>>,
}

/// What to do about a pod now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// A status to write; absent when the shown one is right.
    pub status: Option<Desired>,
    pub notes: Vec<Note>,
    /// When to look again.
    pub wake: Option<Timestamp>,
    /// Delete for good (grace period 0).
    pub delete: bool,
}

impl Step {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn note(&mut self, warning: bool, reason: &'static str, container: &Arc<str>, message: String) {
        self.notes.push(Note { warning, reason, message, container: Some(container.clone()) });
    }
}

/// The kubelet's next step for a pod on a working node.
pub fn step(pod: &PodState, behaviour: &Behaviour, now: Timestamp) -> Step {
    if let Some(deletion) = pod.deletion {
        return terminate(pod, behaviour, deletion.at, deletion.grace, now);
    }
    if pod.phase.is_terminal() {
        return Step::default();
    }
    let mut step = Step::default();
    let desired = match behaviour.forced {
        Some(Forced::Pending) => return first_sight(pod),
        Some(Forced::Failed) => failed(pod, now),
        _ => live(pod, behaviour, now, &mut step),
    };
    let shown = pod.phase == desired.phase
        && pod.started.is_some()
        && pod.is_ready() == desired.is_ready()
        && *pod.containers == *desired.containers;
    if !shown {
        step.status = Some(desired);
    }
    step
}

/// A pod that is held: its containers are being created, forever.
fn first_sight(pod: &PodState) -> Step {
    let containers: Vec<ContainerView> =
        pod.spec.containers.iter().map(|spec| waiting(&spec.name, "ContainerCreating")).collect();
    let shown = pod.started.is_some() && *pod.containers == *containers;
    Step { status: (!shown).then_some(Desired { phase: Phase::Pending, containers }), ..Step::default() }
}

fn waiting(name: &Arc<str>, reason: &str) -> ContainerView {
    let doing = Doing::Waiting { reason: reason.into() };
    ContainerView { name: name.clone(), doing, ready: false, restarts: 0, last: None }
}

fn failed(pod: &PodState, now: Timestamp) -> Desired {
    let containers = pod.spec.containers.iter().map(|spec| {
        let shown = pod.containers.iter().find(|view| view.name == spec.name);
        let started = match shown.map(|view| &view.doing) {
            Some(Doing::Running { since }) => *since,
            _ => now,
        };
        ContainerView {
            name: spec.name.clone(),
            doing: Doing::Terminated { exit_code: 1, reason: "Error".into(), started, finished: now },
            ready: false,
            restarts: shown.map_or(0, |view| view.restarts),
            last: None,
        }
    });
    Desired { phase: Phase::Failed, containers: containers.collect() }
}

fn live(pod: &PodState, behaviour: &Behaviour, now: Timestamp, step: &mut Step) -> Desired {
    let mut containers = Vec::with_capacity(pod.spec.containers.len());
    for spec in &pod.spec.containers {
        let shown = pod.containers.iter().find(|view| view.name == spec.name).cloned();
        let mut view = shown.unwrap_or_else(|| waiting(&spec.name, "ContainerCreating"));
        while advance(pod, behaviour, &spec.image, &mut view, now, step) {}
        view.ready = is_ready(behaviour, &view, now, step);
        containers.push(view);
    }
    Desired { phase: phase(pod, &containers), containers }
}

/// One transition of a container, if one is due.
fn advance(
    pod: &PodState,
    behaviour: &Behaviour,
    image: &str,
    view: &mut ContainerView,
    now: Timestamp,
    step: &mut Step,
) -> bool {
    match view.doing.clone() {
        Doing::Waiting { reason } if &*reason == "CrashLoopBackOff" => {
            let finished = view.last.as_ref().map_or(now, |last| last.finished);
            let due = finished + backoff(view.restarts);
            if now < due {
                step.wake_at(due);
                return false;
            }
            view.restarts += 1;
            start(view, image, now, step);
            true
        }
        Doing::Waiting { reason } => create(pod, behaviour, image, &reason, view, now, step),
        Doing::Running { since } => {
            let Some(run_for) = behaviour.run_for(view) else { return false };
            let due = since + run_for;
            if now < due {
                step.wake_at(due);
                return false;
            }
            let exit_code = behaviour.exit_code;
            let reason = match exit_code {
                0 => "Completed",
                _ if behaviour.oom => "OOMKilled",
                _ => "Error",
            };
            view.doing = Doing::Terminated { exit_code, reason: reason.into(), started: since, finished: now };
            true
        }
        Doing::Terminated { exit_code, reason, started, finished } => {
            let again = match pod.spec.restart_policy {
                RestartPolicy::Always => true,
                RestartPolicy::OnFailure => exit_code != 0,
                RestartPolicy::Never => false,
            };
            if !again {
                return false;
            }
            view.last = Some(Box::new(LastRun { exit_code, reason, started, finished }));
            if view.restarts == 0 {
                view.restarts = 1;
                start(view, image, now, step);
            } else {
                view.doing = Doing::Waiting { reason: "CrashLoopBackOff".into() };
                let Key { namespace, name } = &pod.key;
                let message = format!(
                    "Back-off restarting failed container {} in pod {name}_{namespace}({})",
                    view.name, pod.uid
                );
                step.note(true, "BackOff", &view.name, message);
            }
            true
        }
    }
}

/// A container that has not run yet.
fn create(
    pod: &PodState,
    behaviour: &Behaviour,
    image: &str,
    reason: &str,
    view: &mut ContainerView,
    now: Timestamp,
    step: &mut Step,
) -> bool {
    let begun = pod.started.unwrap_or(now);
    let starts = begun + behaviour.start_after;
    if now < starts {
        step.wake_at(starts);
        return false;
    }
    match behaviour.pull_error.as_ref().filter(|_| behaviour.concerns(&view.name)) {
        None => {
            start(view, image, now, step);
            true
        }
        Some(error) => match reason {
            "ErrImagePull" => {
                let due = starts + PULL_RETRY;
                if now < due {
                    step.wake_at(due);
                    return false;
                }
                view.doing = Doing::Waiting { reason: "ImagePullBackOff".into() };
                step.note(false, "BackOff", &view.name, format!("Back-off pulling image \"{image}\""));
                step.note(true, "Failed", &view.name, "Error: ImagePullBackOff".into());
                true
            }
            "ImagePullBackOff" => false,
            _ => {
                view.doing = Doing::Waiting { reason: "ErrImagePull".into() };
                step.note(false, "Pulling", &view.name, format!("Pulling image \"{image}\""));
                step.note(true, "Failed", &view.name, format!("Failed to pull image \"{image}\": {error}"));
                step.note(true, "Failed", &view.name, "Error: ErrImagePull".into());
                true
            }
        },
    }
}

fn start(view: &mut ContainerView, image: &str, now: Timestamp, step: &mut Step) {
    view.doing = Doing::Running { since: now };
    let pulled = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    step.note(false, "Pulled", &view.name, pulled);
    step.note(false, "Created", &view.name, format!("Created container: {}", view.name));
    step.note(false, "Started", &view.name, format!("Started container {}", view.name));
}

fn backoff(restarts: i32) -> SignedDuration {
    let doubled = u32::try_from(restarts - 1).unwrap_or_default().min(10);
    SignedDuration::from_secs((BACKOFF_FIRST << doubled).min(BACKOFF_LAST))
}

fn is_ready(behaviour: &Behaviour, view: &ContainerView, now: Timestamp, step: &mut Step) -> bool {
    let Doing::Running { since } = view.doing else { return false };
    if behaviour.forced == Some(Forced::NotReady) && behaviour.concerns(&view.name) {
        return false;
    }
    let due = if behaviour.concerns(&view.name) { since + behaviour.ready_after } else { since };
    if now < due {
        step.wake_at(due);
    }
    now >= due
}

fn phase(pod: &PodState, containers: &[ContainerView]) -> Phase {
    let ended = containers.iter().all(|view| matches!(view.doing, Doing::Terminated { .. }));
    if ended && !containers.is_empty() {
        let failed = |view: &ContainerView| matches!(view.doing, Doing::Terminated { exit_code, .. } if exit_code != 0);
        return if containers.iter().any(failed) { Phase::Failed } else { Phase::Succeeded };
    }
    let has_run = |view: &ContainerView| !matches!(view.doing, Doing::Waiting { .. }) || view.last.is_some();
    if containers.iter().all(has_run) || pod.phase == Phase::Running { Phase::Running } else { Phase::Pending }
}

/// A pod being deleted: its containers stop, then the object goes.
fn terminate(pod: &PodState, behaviour: &Behaviour, at: Timestamp, grace: i64, now: Timestamp) -> Step {
    let mut step = Step::default();
    let stops = (at - SignedDuration::from_secs(grace) + behaviour.stop_after).min(at);
    if !pod.phase.is_terminal() && pod.node.is_some() {
        if now < stops {
            step.wake_at(stops);
            return step;
        }
        for view in pod.containers.iter().filter(|view| matches!(view.doing, Doing::Running { .. })) {
            step.note(false, "Killing", &view.name, format!("Stopping container {}", view.name));
        }
        // Whoever holds a finalizer (the Job controller) still reads how the pod ended.
        if !pod.finalizers.is_empty() {
            step.status = Some(stopped(pod, now));
        }
    }
    step.delete = grace > 0 || pod.finalizers.is_empty();
    step
}

fn stopped(pod: &PodState, now: Timestamp) -> Desired {
    let containers = pod.containers.iter().cloned().map(|mut view| {
        if let Doing::Running { since } = view.doing {
            view.doing = Doing::Terminated { exit_code: 143, reason: "Error".into(), started: since, finished: now };
        }
        view.ready = false;
        view
    });
    Desired { phase: Phase::Failed, containers: containers.collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::member::interner::Interner;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn pod(annotations: serde_json::Value, spec: serde_json::Value, owner: &str) -> PodState {
        let mut spec = spec;
        spec["nodeName"] = json!("n1");
        spec["containers"] = json!([{"name": "web", "image": "nginx:1"}]);
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "annotations": annotations,
                "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o", "controller": true}]},
            "spec": spec,
        });
        Interner::default().pod(serde_json::from_value(pod).unwrap())
    }

    /// Runs the pod until nothing more happens or `until`; one line per change.
    fn tell(mut pod: PodState, until: i64) -> Vec<String> {
        let behaviour = Behaviour::of(&pod);
        let (mut now, mut lines) = (at(0), Vec::new());
        for _ in 0..100 {
            let step = step(&pod, &behaviour, now);
            if let Some(desired) = step.status {
                let view = &desired.containers[0];
                let doing = match &view.doing {
                    Doing::Waiting { reason } => reason.to_string(),
                    Doing::Running { .. } => "running".into(),
                    Doing::Terminated { exit_code, reason, .. } => format!("{reason} {exit_code}"),
                };
                let ready = if view.ready { " ready" } else { "" };
                let second = now.as_second() - at(0).as_second();
                lines.push(format!("{second} {} {doing}{ready} r{}", desired.phase.as_str(), view.restarts));
                pod.started.get_or_insert(now);
                pod.ready_since = desired.is_ready().then_some(now);
                pod.phase = desired.phase;
                pod.containers = desired.containers.into();
                continue;
            }
            match step.wake {
                Some(wake) if wake <= at(until) => now = wake,
                _ => break,
            }
        }
        lines
    }

    #[rstest::rstest]
    #[case(json!({}), "Always", "ReplicaSet", &["0 Running running ready r0"])]
    #[case(json!({}), "Never", "Job", &["0 Running running ready r0", "1 Succeeded Completed 0 r0"])]
    #[case(json!({"fleet.test/phase": "NotReady"}), "Always", "ReplicaSet", &["0 Running running r0"])]
    #[case(json!({"fleet.test/phase": "Pending"}), "Always", "ReplicaSet", &["0 Pending ContainerCreating r0"])]
    #[case(json!({"fleet.test/phase": "Failed"}), "Never", "Job", &["0 Failed Error 1 r0"])]
    #[case(json!({"sim.crowsnest.io/start-after": "5s", "sim.crowsnest.io/ready-after": "2s"}), "Always", "ReplicaSet",
        &["0 Pending ContainerCreating r0", "5 Running running r0", "7 Running running ready r0"])]
    #[case(json!({"sim.crowsnest.io/crash": "true"}), "Always", "ReplicaSet",
        &["0 Running running ready r0", "1 Running running ready r1", "2 Running CrashLoopBackOff r1",
          "12 Running running ready r2", "13 Running CrashLoopBackOff r2", "33 Running running ready r3",
          "34 Running CrashLoopBackOff r3"])]
    #[case(json!({"sim.crowsnest.io/crash": "2"}), "OnFailure", "ReplicaSet",
        &["0 Running running ready r0", "1 Running running ready r1", "2 Running CrashLoopBackOff r1", "12 Running running ready r2"])]
    #[case(json!({"sim.crowsnest.io/run-for": "3", "sim.crowsnest.io/exit-code": "2"}), "Never", "Job",
        &["0 Running running ready r0", "3 Failed Error 2 r0"])]
    #[case(json!({"sim.crowsnest.io/pull-error": "not found"}), "Always", "ReplicaSet",
        &["0 Pending ErrImagePull r0", "2 Pending ImagePullBackOff r0"])]
    fn annotations_steer_pods(
        #[case] annotations: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] owner: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(tell(pod(annotations, json!({"restartPolicy": restart_policy}), owner), 40), expected);
    }

    #[test]
    fn deleted_pods_stop_and_go() {
        let mut pod = pod(json!({"sim.crowsnest.io/stop-after": "3s"}), json!({}), "ReplicaSet");
        let first = step(&pod, &Behaviour::of(&pod), at(0));
        pod.containers = first.status.unwrap().containers.into();
        pod.phase = Phase::Running;
        pod.deletion = Some(crate::member::pod::Deletion { at: at(30), grace: 30 });
        let waits = step(&pod, &Behaviour::of(&pod), at(1));
        assert_eq!((waits.delete, waits.wake), (false, Some(at(3))));
        let goes = step(&pod, &Behaviour::of(&pod), at(3));
        assert!(goes.delete && goes.notes[0].reason == "Killing");
    }
}
