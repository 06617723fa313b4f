//! The next step of a pod's kubelet: a pure function of the pod, its observed processes and the time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::member::pod::{ContainerPhase, ContainerView, Phase, PodState, RestartPolicy};

use super::behaviour::{Behaviour, ForcedState};
use super::container::{Container, Observations, Role, waiting_container};

/// The desired status of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredStatus {
    pub phase: Phase,
    pub containers: Vec<ContainerView>,
    pub init_containers: Vec<ContainerView>,
}

impl DesiredStatus {
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running
            && self.containers.iter().chain(&self.init_containers).all(|container| container.ready)
    }
}

/// An event to record for the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
    /// The affected container.
    pub container: Option<Arc<str>>,
}

/// Actions for a pod at the current time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Status to write; `None` if the current one is correct.
    pub status: Option<DesiredStatus>,
    pub events: Vec<PodEvent>,
    /// Time of the next step, if it depends on the time.
    pub next_step_at: Option<Timestamp>,
    /// True if the object must be deleted, with grace period 0.
    pub should_delete: bool,
}

impl Step {
    /// Schedules the next step for `at` at the latest.
    pub fn wake_at(&mut self, at: Timestamp) {
        self.next_step_at = Some(self.next_step_at.map_or(at, |earlier| earlier.min(at)));
    }

    pub fn record_event(&mut self, is_warning: bool, reason: &'static str, container: &Arc<str>, message: String) {
        self.events.push(PodEvent { is_warning, reason, message, container: Some(container.clone()) });
    }
}

/// Computes the kubelet's next step for a pod on a working node.
pub fn compute_step(pod: &PodState, behaviour: &Behaviour, observations: &Observations, now: Timestamp) -> Step {
    if let Some(deletion) = pod.deletion {
        return terminate(pod, behaviour, deletion.at, deletion.grace_seconds, now);
    }
    if pod.phase.is_terminal() {
        return Step::default();
    }
    let mut step = Step::default();
    let desired = match behaviour.forced_state {
        Some(ForcedState::Pending) => return keep_pending(pod),
        Some(ForcedState::Failed) => fail_all(pod, now),
        _ => advance(pod, behaviour, observations, now, &mut step),
    };
    let is_current = pod.phase == desired.phase
        && pod.started.is_some()
        && pod.is_ready() == desired.is_ready()
        && *pod.containers == *desired.containers
        && *pod.init_containers == *desired.init_containers;
    if !is_current {
        step.status = Some(desired);
    }
    step
}

/// Step of a pod forced to Pending: its containers stay in ContainerCreating.
fn keep_pending(pod: &PodState) -> Step {
    let reason = if pod.spec.init_containers.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let containers: Vec<ContainerView> =
        pod.spec.containers.iter().map(|spec| waiting_container(&spec.name, reason)).collect();
    let init_containers: Vec<ContainerView> =
        pod.spec.init_containers.iter().map(|spec| waiting_container(&spec.name, "PodInitializing")).collect();
    let is_current =
        pod.started.is_some() && *pod.containers == *containers && *pod.init_containers == *init_containers;
    Step {
        status: (!is_current).then_some(DesiredStatus { phase: Phase::Pending, containers, init_containers }),
        ..Step::default()
    }
}

/// Status of a pod forced to Failed: its containers end with exit code 1.
fn fail_all(pod: &PodState, now: Timestamp) -> DesiredStatus {
    let containers = pod.spec.containers.iter().map(|spec| {
        let current = pod.containers.iter().find(|view| view.name == spec.name);
        let started = match current.map(|view| &view.state) {
            Some(ContainerPhase::Running { since }) => *since,
            _ => now,
        };
        ContainerView {
            name: spec.name.clone(),
            state: ContainerPhase::Terminated { exit_code: 1, reason: "Error".into(), started, finished: now },
            ready: false,
            restarts: current.map_or(0, |view| view.restarts),
            last_run: None,
        }
    });
    DesiredStatus {
        phase: Phase::Failed,
        containers: containers.collect(),
        init_containers: pod.init_containers.to_vec(),
    }
}

/// Progress of a pod's init containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Initialization {
    Waiting,
    Done,
    Failed,
}

/// Advances the containers of a pod and determines its phase.
fn advance(
    pod: &PodState,
    behaviour: &Behaviour,
    observations: &Observations,
    now: Timestamp,
    step: &mut Step,
) -> DesiredStatus {
    let (mut init_containers, initialization) = initialize(pod, behaviour, observations, now, step);
    let mut containers = Vec::with_capacity(pod.spec.containers.len());
    for spec in &pod.spec.containers {
        let current = pod.containers.iter().find(|view| view.name == spec.name);
        containers.push(match initialization {
            Initialization::Done => {
                let container = Container { pod, behaviour, spec, role: Role::Main, observations, now };
                container.next(current, step)
            }
            _ => current.cloned().unwrap_or_else(|| waiting_container(&spec.name, "PodInitializing")),
        });
    }
    let phase = match initialization {
        Initialization::Waiting => Phase::Pending,
        Initialization::Failed => Phase::Failed,
        Initialization::Done => compute_phase(pod, &containers),
    };
    if phase.is_terminal() {
        init_containers.iter_mut().for_each(|view| stop_container(view, 0, now));
    }
    DesiredStatus { phase, containers, init_containers }
}

/// Runs init containers sequentially; sidecars keep running.
fn initialize(
    pod: &PodState,
    behaviour: &Behaviour,
    observations: &Observations,
    now: Timestamp,
    step: &mut Step,
) -> (Vec<ContainerView>, Initialization) {
    let mut state = Initialization::Done;
    let mut views = Vec::with_capacity(pod.spec.init_containers.len());
    for (index, spec) in pod.spec.init_containers.iter().enumerate() {
        let current = pod.init_containers.iter().find(|view| view.name == spec.name);
        if state != Initialization::Done {
            views.push(current.cloned().unwrap_or_else(|| waiting_container(&spec.name, "PodInitializing")));
            continue;
        }
        let role = if pod.spec.sidecars.contains(&index) { Role::Sidecar } else { Role::Init };
        let view = Container { pod, behaviour, spec, role, observations, now }.next(current, step);
        let has_started =
            |view: &ContainerView| view.last_run.is_some() || matches!(view.state, ContainerPhase::Running { .. });
        state = match &view.state {
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

fn compute_phase(pod: &PodState, containers: &[ContainerView]) -> Phase {
    let have_ended = containers.iter().all(|view| matches!(view.state, ContainerPhase::Terminated { .. }));
    if have_ended && !containers.is_empty() {
        let has_failed =
            |view: &ContainerView| matches!(view.state, ContainerPhase::Terminated { exit_code, .. } if exit_code != 0);
        return if containers.iter().any(has_failed) { Phase::Failed } else { Phase::Succeeded };
    }
    let has_run =
        |view: &ContainerView| !matches!(view.state, ContainerPhase::Waiting { .. }) || view.last_run.is_some();
    if containers.iter().all(has_run) || pod.phase == Phase::Running { Phase::Running } else { Phase::Pending }
}

/// Stops the containers of a pod that is being deleted, then deletes the object.
fn terminate(pod: &PodState, behaviour: &Behaviour, at: Timestamp, grace_seconds: i64, now: Timestamp) -> Step {
    let mut step = Step::default();
    let stop_at = (at - SignedDuration::from_secs(grace_seconds) + behaviour.delays.stop).min(at);
    if !pod.phase.is_terminal() && pod.node.is_some() {
        if now < stop_at {
            step.wake_at(stop_at);
            return step;
        }
        let running = pod.containers.iter().chain(&pod.init_containers);
        for view in running.filter(|view| matches!(view.state, ContainerPhase::Running { .. })) {
            step.record_event(false, "Killing", &view.name, format!("Stopping container {}", view.name));
        }
        // The owner of a finalizer, such as the Job controller, still reads the final status.
        if !pod.finalizers.is_empty() {
            step.status = Some(stop_all(pod, now));
        }
    }
    step.should_delete = grace_seconds > 0 || pod.finalizers.is_empty();
    step
}

/// Status of a pod whose containers were stopped.
fn stop_all(pod: &PodState, now: Timestamp) -> DesiredStatus {
    let stop = |views: &[ContainerView]| {
        let mut views = views.to_vec();
        views.iter_mut().for_each(|view| stop_container(view, 143, now));
        views
    };
    DesiredStatus {
        phase: Phase::Failed,
        containers: stop(&pod.containers),
        init_containers: stop(&pod.init_containers),
    }
}

/// Terminates a running container.
fn stop_container(view: &mut ContainerView, exit_code: i32, now: Timestamp) {
    if let ContainerPhase::Running { since } = view.state {
        let reason = if exit_code == 0 { "Completed" } else { "Error" };
        view.state = ContainerPhase::Terminated { exit_code, reason: reason.into(), started: since, finished: now };
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
        Interner::default().intern_pod(serde_json::from_value(pod).unwrap())
    }

    /// Process exits: container, restarts, second, exit code.
    type ProcessExits<'a> = &'a [(&'a str, i32, i64, Option<i32>)];

    fn observations(exits: ProcessExits<'_>, now: Timestamp) -> Observations {
        let past = exits.iter().filter(|(_, _, second, _)| at(*second) <= now);
        let observation = |(name, restarts, second, code): &(&str, i32, i64, Option<i32>)| {
            let exit = Exit { code: *code, at: at(*second) };
            let state = Observation { exit: Some(exit), ready: true, failure: None };
            ((Arc::from(*name), *restarts), state)
        };
        past.map(observation).collect()
    }

    /// Simulates the pod until nothing changes or second `until`. Returns a line for each change of the status: second,
    /// phase, and states of init containers and containers.
    fn simulate(mut pod: PodState, exits: ProcessExits<'_>, until: i64) -> Vec<String> {
        let behaviour = Behaviour::from_pod(&pod);
        let (mut now, mut lines) = (at(0), Vec::new());
        for _ in 0..100 {
            let step = compute_step(&pod, &behaviour, &observations(exits, now), now);
            if let Some(desired) = step.status {
                let text = |view: &ContainerView| {
                    let state = match &view.state {
                        ContainerPhase::Waiting { reason } => reason.to_string(),
                        ContainerPhase::Running { .. } => "running".into(),
                        ContainerPhase::Terminated { exit_code, reason, .. } => format!("{reason} {exit_code}"),
                    };
                    let ready = if view.ready { " ready" } else { "" };
                    format!("{state}{ready} r{}", view.restarts)
                };
                let views =
                    desired.init_containers.iter().chain(&desired.containers).map(text).collect::<Vec<_>>().join(" | ");
                let second = now.as_second() - at(0).as_second();
                lines.push(format!("{second} {} {views}", desired.phase.as_str()));
                pod.started.get_or_insert(now);
                pod.ready_since = desired.is_ready().then_some(now);
                pod.phase = desired.phase;
                pod.containers = desired.containers.into();
                pod.init_containers = desired.init_containers.into();
                continue;
            }
            let next_exit = exits.iter().map(|(_, _, second, _)| at(*second)).filter(|exit| *exit > now).min();
            match step.next_step_at.into_iter().chain(next_exit).min() {
                Some(next) if next <= at(until) => now = next,
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
    fn annotations_control_the_life_cycle(
        #[case] annotations: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] owner: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(simulate(pod(annotations, json!({"restartPolicy": restart_policy}), owner), &[], 40), expected);
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
    fn exit_codes_of_commands_determine_the_outcome(
        #[case] container: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] exits: ProcessExits<'_>,
        #[case] expected: &[&str],
    ) {
        let spec = json!({"restartPolicy": restart_policy, "container": container});
        assert_eq!(simulate(pod(json!({}), spec, "Job"), exits, 40), expected);
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
    fn init_containers_run_before_the_containers(
        #[case] init_containers: serde_json::Value,
        #[case] restart_policy: &str,
        #[case] exits: ProcessExits<'_>,
        #[case] expected: &[&str],
    ) {
        let spec = json!({"restartPolicy": restart_policy, "initContainers": init_containers});
        assert_eq!(simulate(pod(json!({}), spec, "ReplicaSet"), exits, 40), expected);
    }

    #[test]
    fn deleted_pods_stop_after_the_annotated_time_and_are_deleted() {
        let mut pod = pod(json!({"sim.crowsnest.io/stop-after": "3s"}), json!({}), "ReplicaSet");
        let first = compute_step(&pod, &Behaviour::from_pod(&pod), &Observations::new(), at(0));
        pod.containers = first.status.unwrap().containers.into();
        pod.phase = Phase::Running;
        pod.deletion = Some(crate::member::pod::Deletion { at: at(30), grace_seconds: 30 });
        let early = compute_step(&pod, &Behaviour::from_pod(&pod), &Observations::new(), at(1));
        assert_eq!((early.should_delete, early.next_step_at), (false, Some(at(3))));
        let due = compute_step(&pod, &Behaviour::from_pod(&pod), &Observations::new(), at(3));
        assert!(due.should_delete && due.events[0].reason == "Killing");
    }
}
