//! Processes of running containers: commands that the simulated shell supports, and probes.
//!
//! `server/sim` calls [`Kubelet::observe`] for each running container and is notified of changes. The first call
//! starts the process. Its clock begins at the container's start: after a restart of the member, the process is
//! replayed up to the current time, as a log is.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use crowsnest_apimachinery::status::ApiResult;
use futures::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Kubelet;
use super::clock::ProcessClock;
use super::logs::process_output;
use super::pods::{Container, Pod, PodRef, Run};
use super::probes::{Probe, ProbeKind, Verdict};
use super::runs::{RunKey, RunState};
use super::shell::{Shell, Started, Stdio};
use super::stream::Input;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// `None` if the command uses a program or syntax that the simulation does not support, so that its exit code is
    /// meaningless.
    pub code: Option<i32>,
    pub at: Timestamp,
}

/// Observed state of one run of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    pub exit: Option<Exit>,
    /// Result of the readiness probe, which starts after the startup probe has succeeded. True without probes.
    pub ready: bool,
    /// Last failure of the readiness probe, or the failure that ended the container.
    pub failure: Option<ProbeFailure>,
}

/// A failed probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFailure {
    pub kind: ProbeKind,
    pub reason: String,
}

/// One run of a container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRun {
    pub pod: PodRef,
    pub uid: String,
    pub container: String,
    pub restarts: i64,
}

impl ContainerRun {
    fn key(&self) -> RunKey {
        RunKey { pod_uid: self.uid.clone(), container: self.container.clone(), restarts: self.restarts }
    }
}

/// Called with a pod whose observed state has changed.
type Observer = Box<dyn Fn(&PodRef) + Send + Sync>;

/// The processes of one member.
#[derive(Default)]
pub struct Processes {
    runs: Mutex<HashMap<RunKey, Arc<Process>>>,
    observer: OnceLock<Observer>,
}

struct Process {
    /// Kept until the pod is deleted; unlike `Runs`, there is no limit.
    state: OnceLock<Arc<RunState>>,
    observation: Mutex<Observation>,
    stop: CancellationToken,
}

/// Inputs of the process and the probes of a run.
struct Target<'a> {
    run: &'a ContainerRun,
    process: &'a Arc<Process>,
    container: &'a Container,
    shell: Shell,
}

impl Processes {
    /// Returns the files and log of a run that has a process.
    pub(super) fn state(&self, key: &RunKey) -> Option<Arc<RunState>> {
        self.runs.lock().get(key)?.state.get().cloned()
    }

    /// Returns true for a run whose process writes its log.
    pub(super) fn writes_log(&self, key: &RunKey, run: &Run) -> bool {
        self.runs.lock().contains_key(key) || (run.finished.is_none() && self.observer.get().is_some())
    }

    /// Sets how a run ended, for processes that run in an attached session.
    pub(super) fn end(&self, pod: &PodRef, key: &RunKey, exit: Exit) {
        let process = self.runs.lock().get(key).cloned();
        if let Some(process) = process {
            self.change(pod, &process, |observation| observation.exit = Some(exit));
        }
    }

    fn change(&self, pod: &PodRef, process: &Process, change: impl FnOnce(&mut Observation)) {
        {
            let mut observation = process.observation.lock();
            let before = observation.clone();
            change(&mut observation);
            if *observation == before {
                return;
            }
        }
        if let Some(observer) = self.observer.get() {
            observer(pod);
        }
    }
}

impl Kubelet {
    /// Registers the observer of changed pods. Later calls are ignored and logged as errors.
    pub fn on_observation(&self, observer: impl Fn(&PodRef) + Send + Sync + 'static) {
        if self.processes.observer.set(Box::new(observer)).is_err() {
            tracing::error!("the kubelet already has an observer");
        }
    }

    /// Returns the observed state of a run. The first call starts its process and probes.
    pub fn observe(self: &Arc<Self>, run: ContainerRun) -> Observation {
        let key = run.key();
        let mut runs = self.processes.runs.lock();
        if let Some(process) = runs.get(&key) {
            return process.observation.lock().clone();
        }
        let stop = self.stopping.child_token();
        let process = Arc::new(Process { state: OnceLock::new(), observation: Mutex::default(), stop: stop.clone() });
        // Besides the current log, only that of the previous run can be requested.
        runs.retain(|known, process| {
            let same = known.pod_uid == key.pod_uid && known.container == key.container;
            if same && known.restarts < key.restarts {
                process.stop.cancel();
            }
            !same || known.restarts + 1 >= key.restarts
        });
        runs.insert(key, process.clone());
        drop(runs);
        let kubelet = self.clone();
        self.sessions.spawn(async move {
            let running = AssertUnwindSafe(kubelet.run_container(&run, &process)).catch_unwind();
            if let Some(Err(_)) = stop.run_until_cancelled(running).await {
                tracing::error!(pod = %run.pod.name, container = %run.container, "the process of a container panicked");
                let exit = Exit { code: None, at: kubelet.runtime.now() };
                kubelet.processes.change(&run.pod, &process, |observation| observation.exit = Some(exit));
            }
        });
        Observation::default()
    }

    /// Stops the processes of a deleted pod and drops its files.
    pub fn forget(&self, uid: &str) {
        self.processes.runs.lock().retain(|key, process| {
            if key.pod_uid == uid {
                process.stop.cancel();
            }
            key.pod_uid != uid
        });
        self.runs.lock().forget(uid);
        self.volumes.forget(uid);
    }

    /// Drops the files of a deleted PersistentVolumeClaim.
    pub fn forget_claim(&self, uid: &str) {
        self.volumes.forget_claim(uid);
    }

    async fn run_container(self: &Arc<Self>, run: &ContainerRun, process: &Arc<Process>) {
        match self.begin(run, process).await {
            Ok(Some((container, shell, started))) => {
                let target = Target { run, process, container: &container, shell };
                let command = self.run_command_of(&target, started);
                let probes = self.probe(&target);
                tokio::select! {
                    // Probes end with the process.
                    () = command => {}
                    () = probes => {}
                }
            }
            // The pod was deleted, or the container has been restarted.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(pod = %run.pod.name, container = %run.container, %error, "cannot start the process of a container");
                let exit = Exit { code: None, at: self.runtime.now() };
                self.processes.change(&run.pod, process, |observation| observation.exit = Some(exit));
            }
        }
    }

    /// Returns the container with a shell on its files, or `None` if it is no longer in this run.
    async fn begin(&self, run: &ContainerRun, process: &Process) -> ApiResult<Option<(Container, Shell, Timestamp)>> {
        let pod = Pod::find(&*self.runtime, &run.pod).await?;
        if pod.uid() != run.uid {
            return Ok(None);
        }
        let container = pod.container(&run.container)?;
        let Some(current) = container.current().filter(|current| current.restarts == run.restarts) else {
            return Ok(None);
        };
        let state = self.run_state(&container, &current).await?;
        let state = process.state.get_or_init(|| state);
        let shell = self.shell(&container, &current, state).await?;
        Ok(Some((container, shell, current.started)))
    }

    async fn run_command_of(&self, target: &Target<'_>, started: Timestamp) {
        let Target { run, process, container, .. } = target;
        let (Some(command), Some(state)) = (container.process(), process.state.get()) else {
            return std::future::pending().await;
        };
        let mut shell = target.shell.clone();
        let clock = Arc::new(ProcessClock::new(started, self.runtime.clone()));
        shell.clock = clock.clone();
        let unknown = shell.unknown();
        let output = process_output(clock.clone(), state.written.clone());
        let ended = shell.start(&command, Stdio::new(Input::empty(), output.clone(), output.clone())).await;
        if let Err(error) = output.finish().await {
            tracing::debug!(%error, "cannot write the last line of a log");
        }
        let code = match ended {
            Started::Code(code) if !unknown.was_met() => Some(code),
            _ => None,
        };
        let exit = Exit { code, at: super::shell::Clock::now(&*clock) };
        self.processes.change(&run.pod, process, |observation| observation.exit = observation.exit.or(Some(exit)));
        if code.is_none() {
            // The container is assumed to run on, so its probes continue.
            std::future::pending::<()>().await;
        }
    }

    /// Runs the probes of a container until one of them fails and kills it.
    async fn probe(&self, target: &Target<'_>) {
        let Target { run, process, container, .. } = target;
        if let Some(probe) = container.probe(ProbeKind::Startup)
            && !self.repeat(&probe, target, |verdict, _| verdict.holds).await
        {
            return self.kill(run, process);
        }
        let readiness = async {
            match container.probe(ProbeKind::Readiness) {
                None => self.processes.change(&run.pod, process, |observation| observation.ready = true),
                Some(probe) => {
                    self.repeat(&probe, target, |verdict, failure| {
                        self.processes.change(&run.pod, process, |observation| {
                            observation.ready = verdict.holds;
                            observation.failure = failure.clone().or(observation.failure.take());
                        });
                        false
                    })
                    .await;
                }
            }
            std::future::pending::<()>().await;
        };
        let liveness = async {
            let Some(probe) = container.probe(ProbeKind::Liveness) else { return std::future::pending().await };
            self.repeat(&probe, target, |_, _| false).await
        };
        tokio::select! {
            () = readiness => {}
            _ = liveness => self.kill(run, process),
        }
    }

    /// Repeats a probe. Returns true once `done` returns true, and false when a startup or liveness probe reaches
    /// its failure threshold.
    async fn repeat(
        &self,
        probe: &Probe,
        target: &Target<'_>,
        done: impl Fn(Verdict, &Option<ProbeFailure>) -> bool,
    ) -> bool {
        tokio::time::sleep(probe.initial_delay).await;
        let (mut verdict, mut failures) = (Verdict::new(probe.kind == ProbeKind::Liveness), 0);
        loop {
            let outcome = probe.run(target.shell.clone()).await;
            verdict = verdict.after(outcome.is_ok(), probe);
            failures = if outcome.is_ok() { 0 } else { failures + 1 };
            let failure = outcome.err().map(|reason| ProbeFailure { kind: probe.kind, reason });
            if done(verdict, &failure) {
                return true;
            }
            if probe.kind != ProbeKind::Readiness && failures >= probe.failure_threshold {
                let pod = &target.run.pod;
                self.processes.change(pod, target.process, |observation| observation.failure = failure);
                return false;
            }
            if !probe.is_known() {
                // The outcome never changes.
                return std::future::pending().await;
            }
            tokio::time::sleep(probe.period).await;
        }
    }

    /// Kills a container after a failed probe.
    fn kill(&self, run: &ContainerRun, process: &Process) {
        let exit = Exit { code: Some(KILLED), at: self.runtime.now() };
        self.processes.change(&run.pod, process, |observation| {
            observation.exit = Some(exit);
            observation.ready = false;
        });
    }
}

/// Exit code of a process that was killed (SIGKILL).
const KILLED: i32 = 137;

#[cfg(test)]
mod tests;
