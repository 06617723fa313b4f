//! Life cycle of a container, from its creation to its last termination.

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_kubelet::image::pull_error;
use crowsnest_kubelet::probes::ProbeKind;
use crowsnest_kubelet::process::Observation;
use jiff::{SignedDuration, Timestamp};

use crate::member::pod::{ContainerPhase, ContainerSpec, ContainerView, LastRun, PodState, Process, RestartPolicy};
use crate::member::store::Key;

use super::behaviour::{Behaviour, Forced, MOMENT};
use super::step::Step;

/// Time for which a failed pull is reported as `ErrImagePull` before `ImagePullBackOff`.
const PULL_RETRY: SignedDuration = SignedDuration::from_secs(2);
/// kubelet's container restart backoff in seconds: initial value, doubled each time, and maximum.
const BACKOFF_FIRST: i64 = 10;
const BACKOFF_LAST: i64 = 300;
/// Run time after which the backoff is reset.
const BACKOFF_RESET: SignedDuration = SignedDuration::from_mins(10);

/// Observed states of a pod's containers, by container and restarts.
pub type Observations = HashMap<(Arc<str>, i32), Observation>;

/// Role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Main,
    Init,
    /// An init container that keeps running next to the others.
    Sidecar,
}

/// A container with its pod, spec and observations.
pub struct Container<'a> {
    pub pod: &'a PodState,
    pub behaviour: &'a Behaviour,
    pub spec: &'a ContainerSpec,
    pub role: Role,
    pub seen: &'a Observations,
    pub now: Timestamp,
}

pub fn waiting(name: &Arc<str>, reason: &str) -> ContainerView {
    let doing = ContainerPhase::Waiting { reason: reason.into() };
    ContainerView { name: name.clone(), doing, ready: false, restarts: 0, last: None }
}

impl Container<'_> {
    /// Computes the container's next state, including all transitions that are due.
    pub fn next(&self, shown: Option<&ContainerView>, step: &mut Step) -> ContainerView {
        let mut view = shown.cloned().unwrap_or_else(|| waiting(&self.spec.name, "ContainerCreating"));
        let was_ready = view.ready;
        while self.advance(&mut view, step) {}
        view.ready = self.is_ready(&view, step);
        if was_ready
            && !view.ready
            && matches!(view.doing, ContainerPhase::Running { .. })
            && let Some(failure) = self.seen(&view).and_then(|seen| seen.failure.as_ref())
        {
            step.note(
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
        self.behaviour.concerns(&self.spec.name) && (self.role == Role::Main || self.behaviour.container.is_some())
    }

    fn seen(&self, view: &ContainerView) -> Option<&Observation> {
        self.seen.get(&(view.name.clone(), view.restarts))
    }

    /// Makes one transition if one is due.
    fn advance(&self, view: &mut ContainerView, step: &mut Step) -> bool {
        match view.doing.clone() {
            ContainerPhase::Waiting { reason } if &*reason == "CrashLoopBackOff" => {
                let finished = view.last.as_ref().map_or(self.now, |last| last.finished);
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
                let Some((exit_code, at)) = self.end(view, since, step) else { return false };
                let reason = match exit_code {
                    0 => "Completed",
                    _ if self.behaviour.oom => "OOMKilled",
                    _ => "Error",
                };
                view.doing =
                    ContainerPhase::Terminated { exit_code, reason: reason.into(), started: since, finished: at };
                true
            }
            ContainerPhase::Terminated { exit_code, reason, started, finished } => {
                if !self.restarts_after(exit_code) {
                    return false;
                }
                view.last = Some(Box::new(LastRun { exit_code, reason, started, finished }));
                if view.restarts == 0 || finished.duration_since(started) >= BACKOFF_RESET {
                    view.restarts += 1;
                    self.start(view, step);
                } else {
                    view.doing = ContainerPhase::Waiting { reason: "CrashLoopBackOff".into() };
                    let Key { namespace, name } = &self.pod.key;
                    let message = format!(
                        "Back-off restarting failed container {} in pod {name}_{namespace}({})",
                        view.name, self.pod.uid
                    );
                    step.note(true, "BackOff", &view.name, message);
                }
                true
            }
        }
    }

    fn restarts_after(&self, exit_code: i32) -> bool {
        match (self.role, self.pod.spec.restart_policy) {
            (Role::Sidecar, _) => true,
            (Role::Init, RestartPolicy::Always) => exit_code != 0,
            (_, RestartPolicy::Always) => true,
            (_, RestartPolicy::OnFailure) => exit_code != 0,
            (_, RestartPolicy::Never) => false,
        }
    }

    /// Exit code and end of a run that started at `since`, if it has ended.
    fn end(&self, view: &ContainerView, since: Timestamp, step: &mut Step) -> Option<(i32, Timestamp)> {
        if self.is_affected()
            && let Some(run_for) = self.behaviour.run_for(view)
        {
            return self.due(since + run_for, step).then_some((self.behaviour.exit_code, self.now));
        }
        let seen = self.seen(view);
        let exit = seen.and_then(|seen| seen.exit);
        if let Some((code, exit)) = exit.and_then(|exit| Some((exit.code?, exit))) {
            if let Some(failure) =
                seen.and_then(|seen| seen.failure.as_ref()).filter(|f| f.kind != ProbeKind::Readiness)
            {
                let (kind, name) = (failure.kind.as_str(), &view.name);
                step.note(true, "Unhealthy", name, format!("{kind} probe failed: {}", failure.reason));
                let why = format!("Container {name} failed {} probe, will be restarted", kind.to_lowercase());
                step.note(false, "Killing", name, why);
            }
            return Some((code, exit.at.clamp(since, self.now.max(since))));
        }
        let unknown = self.spec.process == Process::Unknown || exit.is_some();
        match (self.role, self.spec.process) {
            // Images of init containers complete at once.
            (Role::Init, process) if process != Process::Command || unknown => Some((0, self.now)),
            _ if unknown && self.behaviour.completes => self.due(since + MOMENT, step).then_some((0, self.now)),
            _ => None,
        }
    }

    fn due(&self, at: Timestamp, step: &mut Step) -> bool {
        if self.now < at {
            step.wake_at(at);
        }
        self.now >= at
    }

    /// Creates a container that has not run yet.
    fn create(&self, reason: &str, view: &mut ContainerView, step: &mut Step) -> bool {
        let begun = self.pod.started.unwrap_or(self.now);
        let starts =
            if self.is_affected() || self.role == Role::Main { begun + self.behaviour.start_after } else { begun };
        if !self.due(starts, step) {
            return false;
        }
        let image = &self.spec.image;
        let Some(error) = self.pull_error() else {
            self.start(view, step);
            return true;
        };
        match reason {
            "ErrImagePull" => {
                if !self.due(starts + PULL_RETRY, step) {
                    return false;
                }
                view.doing = ContainerPhase::Waiting { reason: "ImagePullBackOff".into() };
                step.note(false, "BackOff", &view.name, format!("Back-off pulling image \"{image}\""));
                step.note(true, "Failed", &view.name, "Error: ImagePullBackOff".into());
                true
            }
            "ImagePullBackOff" => false,
            _ => {
                view.doing = ContainerPhase::Waiting { reason: "ErrImagePull".into() };
                step.note(false, "Pulling", &view.name, format!("Pulling image \"{image}\""));
                step.note(true, "Failed", &view.name, format!("Failed to pull image \"{image}\": {error}"));
                step.note(true, "Failed", &view.name, "Error: ErrImagePull".into());
                true
            }
        }
    }

    fn pull_error(&self) -> Option<String> {
        let wanted = self.behaviour.pull_error.clone().filter(|_| self.is_affected());
        wanted.or_else(|| pull_error(&self.spec.image))
    }

    fn start(&self, view: &mut ContainerView, step: &mut Step) {
        let image = &self.spec.image;
        view.doing = ContainerPhase::Running { since: self.now };
        let pulled = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
        step.note(false, "Pulled", &view.name, pulled);
        step.note(false, "Created", &view.name, format!("Created container: {}", view.name));
        step.note(false, "Started", &view.name, format!("Started container {}", view.name));
    }

    fn is_ready(&self, view: &ContainerView, step: &mut Step) -> bool {
        let since = match (&view.doing, self.role) {
            (ContainerPhase::Running { since }, _) => *since,
            // A completed init container counts as ready.
            (ContainerPhase::Terminated { exit_code: 0, .. }, Role::Init) => return true,
            _ => return false,
        };
        if self.role == Role::Init {
            return false;
        }
        let concerned = self.is_affected();
        if concerned && self.behaviour.forced == Some(Forced::NotReady) {
            return false;
        }
        if concerned && !self.due(since + self.behaviour.ready_after, step) {
            return false;
        }
        if self.spec.probed {
            return self.seen(view).is_some_and(|seen| seen.ready);
        }
        self.due(since + SignedDuration::from_secs(self.spec.ready_delay), step)
    }
}

fn backoff(restarts: i32) -> SignedDuration {
    let doubled = u32::try_from(restarts - 1).unwrap_or_default().min(10);
    SignedDuration::from_secs((BACKOFF_FIRST << doubled).min(BACKOFF_LAST))
}
