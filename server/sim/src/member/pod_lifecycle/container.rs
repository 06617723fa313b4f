//! Life cycle of a container, from its creation to its last termination.

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_kubelet::image::pull_error;
use crowsnest_kubelet::probes::ProbeKind;
use crowsnest_kubelet::process::Observation;
use jiff::{SignedDuration, Timestamp};

use crate::member::pod::{ContainerPhase, ContainerSpec, ContainerView, LastRun, PodState, Process, RestartPolicy};
use crate::member::store::Key;

use super::behaviour::{Behaviour, ForcedState, SHORT_RUN_TIME};
use super::step::Step;

/// Time for which a failed pull is reported as `ErrImagePull` before `ImagePullBackOff`.
const ERR_IMAGE_PULL_DURATION: SignedDuration = SignedDuration::from_secs(2);
/// kubelet's first container restart backoff in seconds; it doubles with each restart.
const INITIAL_BACKOFF_SECONDS: i64 = 10;
/// kubelet's maximum container restart backoff in seconds.
const MAX_BACKOFF_SECONDS: i64 = 300;
/// Run time after which the backoff is reset.
const BACKOFF_RESET_TIME: SignedDuration = SignedDuration::from_mins(10);

/// Observed states of a pod's containers, by name and number of restarts.
pub type Observations = HashMap<(Arc<str>, i32), Observation>;

/// Role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Main,
    Init,
    /// An init container that keeps running next to the others.
    Sidecar,
}

/// Inputs for the next state of a container.
pub struct Container<'a> {
    pub pod: &'a PodState,
    pub behaviour: &'a Behaviour,
    pub spec: &'a ContainerSpec,
    pub role: Role,
    pub observations: &'a Observations,
    pub now: Timestamp,
}

/// A container that has not run yet.
pub fn waiting_container(name: &Arc<str>, reason: &str) -> ContainerView {
    let state = ContainerPhase::Waiting { reason: reason.into() };
    ContainerView { name: name.clone(), state, ready: false, restarts: 0, last_run: None }
}

impl Container<'_> {
    /// Computes the container's next state, including all transitions that are due.
    pub fn next(&self, current: Option<&ContainerView>, step: &mut Step) -> ContainerView {
        let mut view = current.cloned().unwrap_or_else(|| waiting_container(&self.spec.name, "ContainerCreating"));
        let was_ready = view.ready;
        while self.apply_transition(&mut view, step) {}
        view.ready = self.is_ready(&view, step);
        if was_ready
            && !view.ready
            && matches!(view.state, ContainerPhase::Running { .. })
            && let Some(failure) = self.observation(&view).and_then(|observation| observation.failure.as_ref())
        {
            step.record_event(
                true,
                "Unhealthy",
                &view.name,
                format!("{} probe failed: {}", failure.kind.as_str(), failure.reason),
            );
        }
        view
    }

    /// True if the annotations apply to this container. They apply to an init container only if they name it.
    fn is_affected(&self) -> bool {
        self.behaviour.applies_to(&self.spec.name) && (self.role == Role::Main || self.behaviour.container.is_some())
    }

    fn observation(&self, view: &ContainerView) -> Option<&Observation> {
        self.observations.get(&(view.name.clone(), view.restarts))
    }

    /// Applies the next transition if it is due; returns false if there is none.
    fn apply_transition(&self, view: &mut ContainerView, step: &mut Step) -> bool {
        match view.state.clone() {
            ContainerPhase::Waiting { reason } if &*reason == "CrashLoopBackOff" => {
                let finished = view.last_run.as_ref().map_or(self.now, |last| last.finished);
                let due = finished + backoff(view.restarts);
                if self.now < due {
                    step.wake_at(due);
                    return false;
                }
                view.restarts += 1;
                self.start(view, step);
                true
            }
            ContainerPhase::Waiting { reason } => self.create(&reason, view, step),
            ContainerPhase::Running { since } => {
                let Some((exit_code, at)) = self.find_exit(view, since, step) else { return false };
                let reason = match exit_code {
                    0 => "Completed",
                    _ if self.behaviour.exit.is_oom_kill => "OOMKilled",
                    _ => "Error",
                };
                view.state =
                    ContainerPhase::Terminated { exit_code, reason: reason.into(), started: since, finished: at };
                true
            }
            ContainerPhase::Terminated { exit_code, reason, started, finished } => {
                if !self.should_restart_after(exit_code) {
                    return false;
                }
                view.last_run = Some(Box::new(LastRun { exit_code, reason, started, finished }));
                if view.restarts == 0 || finished.duration_since(started) >= BACKOFF_RESET_TIME {
                    view.restarts += 1;
                    self.start(view, step);
                } else {
                    view.state = ContainerPhase::Waiting { reason: "CrashLoopBackOff".into() };
                    let Key { namespace, name } = &self.pod.key;
                    let message = format!(
                        "Back-off restarting failed container {} in pod {name}_{namespace}({})",
                        view.name, self.pod.uid
                    );
                    step.record_event(true, "BackOff", &view.name, message);
                }
                true
            }
        }
    }

    fn should_restart_after(&self, exit_code: i32) -> bool {
        match (self.role, self.pod.spec.restart_policy) {
            (Role::Sidecar, _) => true,
            (Role::Init, RestartPolicy::Always) => exit_code != 0,
            (_, RestartPolicy::Always) => true,
            (_, RestartPolicy::OnFailure) => exit_code != 0,
            (_, RestartPolicy::Never) => false,
        }
    }

    /// Exit code and end of a run that started at `since`, if it has ended.
    fn find_exit(&self, view: &ContainerView, since: Timestamp, step: &mut Step) -> Option<(i32, Timestamp)> {
        if self.is_affected()
            && let Some(duration) = self.behaviour.run_duration(view)
        {
            return self.is_due(since + duration, step).then_some((self.behaviour.exit.code, self.now));
        }
        let observation = self.observation(view);
        let exit = observation.and_then(|observation| observation.exit);
        if let Some((code, exit)) = exit.and_then(|exit| Some((exit.code?, exit))) {
            if let Some(failure) = observation
                .and_then(|observation| observation.failure.as_ref())
                .filter(|f| f.kind != ProbeKind::Readiness)
            {
                let (kind, name) = (failure.kind.as_str(), &view.name);
                step.record_event(true, "Unhealthy", name, format!("{kind} probe failed: {}", failure.reason));
                let message = format!("Container {name} failed {} probe, will be restarted", kind.to_lowercase());
                step.record_event(false, "Killing", name, message);
            }
            return Some((code, exit.at.clamp(since, self.now.max(since))));
        }
        let is_unknown = self.spec.process == Process::Unknown || exit.is_some();
        match (self.role, self.spec.process) {
            // An init container that runs the program of its image completes immediately.
            (Role::Init, process) if process != Process::Command || is_unknown => Some((0, self.now)),
            _ if is_unknown && self.behaviour.commands_complete => {
                self.is_due(since + SHORT_RUN_TIME, step).then_some((0, self.now))
            }
            _ => None,
        }
    }

    /// True if `at` has been reached; otherwise schedules the next step for it.
    fn is_due(&self, at: Timestamp, step: &mut Step) -> bool {
        if self.now < at {
            step.wake_at(at);
        }
        self.now >= at
    }

    /// Starts a container that has not run yet, unless it is delayed or its image cannot be pulled. Returns false if
    /// nothing changed.
    fn create(&self, reason: &str, view: &mut ContainerView, step: &mut Step) -> bool {
        let pod_start = self.pod.started.unwrap_or(self.now);
        let start = if self.is_affected() || self.role == Role::Main {
            pod_start + self.behaviour.delays.start
        } else {
            pod_start
        };
        if !self.is_due(start, step) {
            return false;
        }
        let image = &self.spec.image;
        let Some(error) = self.pull_error() else {
            self.start(view, step);
            return true;
        };
        match reason {
            "ErrImagePull" => {
                if !self.is_due(start + ERR_IMAGE_PULL_DURATION, step) {
                    return false;
                }
                view.state = ContainerPhase::Waiting { reason: "ImagePullBackOff".into() };
                step.record_event(false, "BackOff", &view.name, format!("Back-off pulling image \"{image}\""));
                step.record_event(true, "Failed", &view.name, "Error: ImagePullBackOff".into());
                true
            }
            "ImagePullBackOff" => false,
            _ => {
                view.state = ContainerPhase::Waiting { reason: "ErrImagePull".into() };
                step.record_event(false, "Pulling", &view.name, format!("Pulling image \"{image}\""));
                step.record_event(true, "Failed", &view.name, format!("Failed to pull image \"{image}\": {error}"));
                step.record_event(true, "Failed", &view.name, "Error: ErrImagePull".into());
                true
            }
        }
    }

    fn pull_error(&self) -> Option<String> {
        let annotated_error = self.behaviour.pull_error.clone().filter(|_| self.is_affected());
        annotated_error.or_else(|| pull_error(&self.spec.image))
    }

    fn start(&self, view: &mut ContainerView, step: &mut Step) {
        let image = &self.spec.image;
        view.state = ContainerPhase::Running { since: self.now };
        let pulled = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
        step.record_event(false, "Pulled", &view.name, pulled);
        step.record_event(false, "Created", &view.name, format!("Created container: {}", view.name));
        step.record_event(false, "Started", &view.name, format!("Started container {}", view.name));
    }

    fn is_ready(&self, view: &ContainerView, step: &mut Step) -> bool {
        let since = match (&view.state, self.role) {
            (ContainerPhase::Running { since }, _) => *since,
            // A completed init container counts as ready.
            (ContainerPhase::Terminated { exit_code: 0, .. }, Role::Init) => return true,
            _ => return false,
        };
        if self.role == Role::Init {
            return false;
        }
        let is_affected = self.is_affected();
        if is_affected && self.behaviour.forced_state == Some(ForcedState::NotReady) {
            return false;
        }
        if is_affected && !self.is_due(since + self.behaviour.delays.ready, step) {
            return false;
        }
        if self.spec.has_dynamic_probe {
            return self.observation(view).is_some_and(|observation| observation.ready);
        }
        self.is_due(since + SignedDuration::from_secs(self.spec.ready_delay_seconds), step)
    }
}

fn backoff(restarts: i32) -> SignedDuration {
    let doublings = u32::try_from(restarts - 1).unwrap_or_default().min(10);
    SignedDuration::from_secs((INITIAL_BACKOFF_SECONDS << doublings).min(MAX_BACKOFF_SECONDS))
}
