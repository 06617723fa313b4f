//! The next step of a pod's kubelet: a pure function of the pod, its observed processes and the time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::member::pod::{ContainerPhase, ContainerView, Phase, PodState, RestartPolicy};

use super::behaviour::{Behaviour, Forced};
use super::container::{Container, Observations, Role, waiting};

/// The desired status of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    pub phase: Phase,
    pub containers: Vec<ContainerView>,
    pub init: Vec<ContainerView>,
}

impl Desired {
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.containers.iter().chain(&self.init).all(|container| container.ready)
    }
}

/// An event to record for the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    /// The affected container.
    pub container: Option<Arc<str>>,
}

/// Actions for a pod at the current time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Status to write; `None` if the current one is correct.
    pub status: Option<Desired>,
    pub notes: Vec<Note>,
    /// Time of the next step.
    pub wake: Option<Timestamp>,
    /// Delete the object (grace period 0).
    pub delete: bool,
}

impl Step {
    pub fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    pub fn note(&mut self, warning: bool, reason: &'static str, container: &Arc<str>, message: String) {
        self.notes.push(Note { warning, reason, message, container: Some(container.clone()) });
    }
}

/// Computes the kubelet's next step for a pod on a working node.
pub fn step(pod: &PodState, behaviour: &Behaviour, seen: &Observations, now: Timestamp) -> Step {
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
        _ => live(pod, behaviour, seen, now, &mut step),
    };
    let shown = pod.phase == desired.phase
        && pod.started.is_some()
        && pod.is_ready() == desired.is_ready()
        && *pod.containers == *desired.containers
        && *pod.init == *desired.init;
    if !shown {
        step.status = Some(desired);
    }
    step
}

/// A pod forced to Pending: its containers stay in ContainerCreating.
fn first_sight(pod: &PodState) -> Step {
    let reason = if pod.spec.init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let containers: Vec<ContainerView> = pod.spec.containers.iter().map(|spec| waiting(&spec.name, reason)).collect();
    let init: Vec<ContainerView> = pod.spec.init.iter().map(|spec| waiting(&spec.name, "PodInitializing")).collect();
    let shown = pod.started.is_some() && *pod.containers == *containers && *pod.init == *init;
    Step { status: (!shown).then_some(Desired { phase: Phase::Pending, containers, init }), ..Step::default() }
}

fn failed(pod: &PodState, now: Timestamp) -> Desired {
    let containers = pod.spec.containers.iter().map(|spec| {
        let shown = pod.containers.iter().find(|view| view.name == spec.name);
        let started = match shown.map(|view| &view.doing) {
            Some(ContainerPhase::Running { since }) => *since,
            _ => now,
        };
        ContainerView {
            name: spec.name.clone(),
            doing: ContainerPhase::Terminated { exit_code: 1, reason: "Error".into(), started, finished: now },
            ready: false,
            restarts: shown.map_or(0, |view| view.restarts),
            last: None,
        }
    });
    Desired { phase: Phase::Failed, containers: containers.collect(), init: pod.init.to_vec() }
}

/// Progress of a pod's init containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Initialization {
    Waiting,
    Done,
    Failed,
}

fn live(pod: &PodState, behaviour: &Behaviour, seen: &Observations, now: Timestamp, step: &mut Step) -> Desired {
    let (mut init, initialization) = initialize(pod, behaviour, seen, now, step);
    let mut containers = Vec::with_capacity(pod.spec.containers.len());
    for spec in &pod.spec.containers {
        let shown = pod.containers.iter().find(|view| view.name == spec.name);
        containers.push(match initialization {
            Initialization::Done => {
                let container = Container { pod, behaviour, spec, role: Role::Main, seen, now };
                container.next(shown, step)
            }
            _ => shown.cloned().unwrap_or_else(|| waiting(&spec.name, "PodInitializing")),
        });
    }
    let phase = match initialization {
        Initialization::Waiting => Phase::Pending,
        Initialization::Failed => Phase::Failed,
        Initialization::Done => phase(pod, &containers),
    };
    if phase.is_terminal() {
        init.iter_mut().for_each(|view| stop(view, 0, now));
    }
    Desired { phase, containers, init }
}

/// Runs init containers sequentially; sidecars keep running.
fn initialize(
    pod: &PodState,
    behaviour: &Behaviour,
    seen: &Observations,
    now: Timestamp,
    step: &mut Step,
) -> (Vec<ContainerView>, Initialization) {
    let mut state = Initialization::Done;
    let mut views = Vec::with_capacity(pod.spec.init.len());
    for (index, spec) in pod.spec.init.iter().enumerate() {
        let shown = pod.init.iter().find(|view| view.name == spec.name);
        if state != Initialization::Done {
            views.push(shown.cloned().unwrap_or_else(|| waiting(&spec.name, "PodInitializing")));
            continue;
        }
        let role = if pod.spec.sidecars.contains(&index) { Role::Sidecar } else { Role::Init };
        let view = Container { pod, behaviour, spec, role, seen, now }.next(shown, step);
        let has_started =
            |view: &ContainerView| view.last.is_some() || matches!(view.doing, ContainerPhase::Running { .. });
        state = match &view.doing {
            _ if role == Role::Sidecar && has_started(&view) => Initialization::Done,
            ContainerPhase::Terminated { exit_code: 0, .. } => Initialization::Done,
            ContainerPhase::Terminated { .. } if pod.spec.restart_policy == RestartPolicy::Never => {
                Initialization::Failed
            }
            _ => Initialization::Waiting,
        };
        views.push(view);
    }
    (views, state)
}

fn phase(pod: &PodState, containers: &[ContainerView]) -> Phase {
    let ended = containers.iter().all(|view| matches!(view.doing, ContainerPhase::Terminated { .. }));
    if ended && !containers.is_empty() {
        let failed =
            |view: &ContainerView| matches!(view.doing, ContainerPhase::Terminated { exit_code, .. } if exit_code != 0);
        return if containers.iter().any(failed) { Phase::Failed } else { Phase::Succeeded };
    }
    let has_run = |view: &ContainerView| !matches!(view.doing, ContainerPhase::Waiting { .. }) || view.last.is_some();
    if containers.iter().all(has_run) || pod.phase == Phase::Running { Phase::Running } else { Phase::Pending }
}

/// Stops the containers of a pod in deletion, then deletes the object.
fn terminate(pod: &PodState, behaviour: &Behaviour, at: Timestamp, grace: i64, now: Timestamp) -> Step {
    let mut step = Step::default();
    let stops = (at - SignedDuration::from_secs(grace) + behaviour.stop_after).min(at);
    if !pod.phase.is_terminal() && pod.node.is_some() {
        if now < stops {
            step.wake_at(stops);
            return step;
        }
        let running = pod.containers.iter().chain(&pod.init);
        for view in running.filter(|view| matches!(view.doing, ContainerPhase::Running { .. })) {
            step.note(false, "Killing", &view.name, format!("Stopping container {}", view.name));
        }
        // The holder of a finalizer (the Job controller) still reads the final status.
        if !pod.finalizers.is_empty() {
            step.status = Some(stopped(pod, now));
        }
    }
    step.delete = grace > 0 || pod.finalizers.is_empty();
    step
}

fn stopped(pod: &PodState, now: Timestamp) -> Desired {
    let stopped = |views: &[ContainerView]| {
        let mut views = views.to_vec();
        views.iter_mut().for_each(|view| stop(view, 143, now));
        views
    };
    Desired { phase: Phase::Failed, containers: stopped(&pod.containers), init: stopped(&pod.init) }
}

/// Terminates a running container.
fn stop(view: &mut ContainerView, exit_code: i32, now: Timestamp) {
    if let ContainerPhase::Running { since } = view.doing {
        let reason = if exit_code == 0 { "Completed" } else { "Error" };
        view.doing = ContainerPhase::Terminated { exit_code, reason: reason.into(), started: since, finished: now };
        view.ready = false;
    }
}

#[cfg(test)]
mod tests {
    use crowsnest_kubelet::process::{Exit, Observation};
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
        if let Some(more) = spec["container"].as_object().cloned() {
            spec["containers"][0].as_object_mut().unwrap().extend(more);
        }
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "annotations": annotations,
                "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o", "controller": true}]},
            "spec": spec,
        });
        Interner::default().pod(serde_json::from_value(pod).unwrap())
    }

    /// Process exits: container, restarts, second, exit code.
    type Ends<'a> = &'a [(&'a str, i32, i64, Option<i32>)];

    fn observed(ends: Ends<'_>, now: Timestamp) -> Observations {
        let ended = ends.iter().filter(|(_, _, second, _)| at(*second) <= now);
        let observation = |(name, restarts, second, code): &(&str, i32, i64, Option<i32>)| {
            let exit = Exit { code: *code, at: at(*second) };
            let seen = Observation { exit: Some(exit), ready: true, failure: None };
            ((Arc::from(*name), *restarts), seen)
        };
        ended.map(observation).collect()
    }

    /// Simulates the pod until nothing changes or `until`; returns one line per change of init containers and
    /// containers.
    fn tell(mut pod: PodState, ends: Ends<'_>, until: i64) -> Vec<String> {
        let behaviour = Behaviour::of(&pod);
        let (mut now, mut lines) = (at(0), Vec::new());
        for _ in 0..100 {
            let step = step(&pod, &behaviour, &observed(ends, now), now);
            if let Some(desired) = step.status {
                let text = |view: &ContainerView| {
                    let doing = match &view.doing {
                        ContainerPhase::Waiting { reason } => reason.to_string(),
                        ContainerPhase::Running { .. } => "running".into(),
                        ContainerPhase::Terminated { exit_code, reason, .. } => format!("{reason} {exit_code}"),
                    };
                    let ready = if view.ready { " ready" } else { "" };
                    format!("{doing}{ready} r{}", view.restarts)
                };
                let views = desired.init.iter().chain(&desired.containers).map(text).collect::<Vec<_>>().join(" | ");
                let second = now.as_second() - at(0).as_second();
                lines.push(format!("{second} {} {views}", desired.phase.as_str()));
                pod.started.get_or_insert(now);
                pod.ready_since = desired.is_ready().then_some(now);
                pod.phase = desired.phase;
                pod.containers = desired.containers.into();
                pod.init = desired.init.into();
                continue;
            }
            let end = ends.iter().map(|(_, _, second, _)| at(*second)).filter(|end| *end > now).min();
            match step.wake.into_iter().chain(end).min() {
                Some(wake) if wake <= at(until) => now = wake,
                _ => break,
            }
        }
        lines
    }

    #[rstest::rstest]
    #[case(json!({}), "Always", "ReplicaSet", &["0 Running running ready r0"])]
    #[case(json!({}), "Never", "Job", &["0 Running running ready r0"])]
    #[case(json!({"sim.crowsnest.io/run-for": "1"}), "Never", "Job",
        &["0 Running running ready r0", "1 Succeeded Completed 0 r0"])]
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
    fn annotations_control_pods(
        #[case] annotations: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] owner: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(tell(pod(annotations, json!({"restartPolicy": restart_policy}), owner), &[], 40), expected);
    }

    #[rstest::rstest]
    #[case(json!({"command": ["sh", "-c", "exit 3"]}), "Never", &[("web", 0, 2, Some(3))],
        &["0 Running running ready r0", "2 Failed Error 3 r0"])]
    #[case(json!({"command": ["sleep", "2"]}), "OnFailure", &[("web", 0, 2, Some(0))],
        &["0 Running running ready r0", "2 Succeeded Completed 0 r0"])]
    #[case(json!({"command": ["sh", "-c", "x"]}), "OnFailure", &[("web", 0, 2, Some(1)), ("web", 1, 5, Some(0))],
        &["0 Running running ready r0", "2 Running running ready r1", "5 Succeeded Completed 0 r1"])]
    // A script with a missing command, and an unknown program, succeed after a second.
    #[case(json!({"command": ["sh", "-c", "curl x"]}), "Never", &[("web", 0, 0, None)],
        &["0 Running running ready r0", "1 Succeeded Completed 0 r0"])]
    #[case(json!({"command": ["perl", "-v"]}), "Never", &[],
        &["0 Running running ready r0", "1 Succeeded Completed 0 r0"])]
    #[case(json!({"readinessProbe": {"initialDelaySeconds": 4, "tcpSocket": {"port": 80}}}), "Always", &[],
        &["0 Running running r0", "4 Running running ready r0"])]
    fn commands_determine_the_outcome(
        #[case] container: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] ends: Ends<'_>,
        #[case] expected: &[&str],
    ) {
        let spec = json!({"restartPolicy": restart_policy, "container": container});
        assert_eq!(tell(pod(json!({}), spec, "Job"), ends, 40), expected);
    }

    #[rstest::rstest]
    #[case(json!([{"name": "a"}, {"name": "b", "command": ["sleep", "2"]}]), "Always", &[("b", 0, 2, Some(0))], &[
        "0 Pending Completed 0 ready r0 | running r0 | PodInitializing r0",
        "2 Running Completed 0 ready r0 | Completed 0 ready r0 | running ready r0"])]
    #[case(json!([{"name": "a", "command": ["false"]}]), "Never", &[("a", 0, 1, Some(1))], &[
        "0 Pending running r0 | PodInitializing r0", "1 Failed Error 1 r0 | PodInitializing r0"])]
    #[case(json!([{"name": "a", "command": ["false"]}]), "Always", &[("a", 0, 1, Some(1)), ("a", 1, 2, Some(1)), ("a", 2, 13, Some(0))], &[
        "0 Pending running r0 | PodInitializing r0", "1 Pending running r1 | PodInitializing r0",
        "2 Pending CrashLoopBackOff r1 | PodInitializing r0", "12 Pending running r2 | PodInitializing r0",
        "13 Running Completed 0 ready r2 | running ready r0"])]
    #[case(json!([{"name": "a", "restartPolicy": "Always"}, {"name": "b"}]), "Never", &[("web", 0, 3, Some(0))], &[
        "0 Running running ready r0 | Completed 0 ready r0 | running ready r0",
        "3 Succeeded Completed 0 r0 | Completed 0 ready r0 | Completed 0 r0"])]
    fn init_containers_run_first(
        #[case] init: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] ends: Ends<'_>,
        #[case] expected: &[&str],
    ) {
        let spec = json!({"restartPolicy": restart_policy, "initContainers": init});
        assert_eq!(tell(pod(json!({}), spec, "ReplicaSet"), ends, 40), expected);
    }

    #[test]
    fn deleted_pods_terminate() {
        let mut pod = pod(json!({"sim.crowsnest.io/stop-after": "3s"}), json!({}), "ReplicaSet");
        let first = step(&pod, &Behaviour::of(&pod), &Observations::new(), at(0));
        pod.containers = first.status.unwrap().containers.into();
        pod.phase = Phase::Running;
        pod.deletion = Some(crate::member::pod::Deletion { at: at(30), grace: 30 });
        let waits = step(&pod, &Behaviour::of(&pod), &Observations::new(), at(1));
        assert_eq!((waits.delete, waits.wake), (false, Some(at(3))));
        let goes = step(&pod, &Behaviour::of(&pod), &Observations::new(), at(3));
        assert!(goes.delete && goes.notes[0].reason == "Killing");
    }
}
