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
use super::probes::{Probe, ProbeKind, ProbeResult};
use super::runs::{RunKey, RunState};
use super::shell::{Shell, StartOutcome, Stdio};
use super::stream::Input;

/// End of a process.
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

/// A run of a container with its process and probes.
struct Process {
    /// Files and log, kept until the pod is deleted; unlike in `RunCache`, there is no limit.
    state: OnceLock<Arc<RunState>>,
    observation: Mutex<Observation>,
    stop: CancellationToken,
}

/// Inputs of the process and the probes of a run.
struct RunContext<'a> {
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

    /// Records the end of a process that runs in an attached session.
    pub(super) fn record_exit(&self, pod: &PodRef, key: &RunKey, exit: Exit) {
        let process = self.runs.lock().get(key).cloned();
        if let Some(process) = process {
            self.update(pod, &process, |observation| observation.exit = Some(exit));
        }
    }

    /// Changes the observed state of a run and notifies the observer if it differs.
    fn update(&self, pod: &PodRef, process: &Process, change: impl FnOnce(&mut Observation)) {
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
            let is_same_container = known.pod_uid == key.pod_uid && known.container == key.container;
            if is_same_container && known.restarts < key.restarts {
                process.stop.cancel();
            }
            !is_same_container || known.restarts + 1 >= key.restarts
        });
        runs.insert(key, process.clone());
        drop(runs);
        let kubelet = self.clone();
        self.sessions.spawn(async move {
            let container_task = AssertUnwindSafe(kubelet.run_container(&run, &process)).catch_unwind();
            if let Some(Err(_)) = stop.run_until_cancelled(container_task).await {
                tracing::error!(pod = %run.pod.name, container = %run.container, "the process of a container panicked");
                let exit = Exit { code: None, at: kubelet.runtime.now() };
                kubelet.processes.update(&run.pod, &process, |observation| observation.exit = Some(exit));
            }
        });
        Observation::default()
    }

    /// Stops the processes of a deleted pod and drops its files.
    pub fn remove_pod(&self, uid: &str) {
        self.processes.runs.lock().retain(|key, process| {
            if key.pod_uid == uid {
                process.stop.cancel();
            }
            key.pod_uid != uid
        });
        self.runs.lock().remove_pod(uid);
        self.volumes.remove_pod(uid);
    }

    /// Drops the files of a deleted PersistentVolumeClaim.
    pub fn remove_claim(&self, uid: &str) {
        self.volumes.remove_claim(uid);
    }

    async fn run_container(self: &Arc<Self>, run: &ContainerRun, process: &Arc<Process>) {
        match self.prepare(run, process).await {
            Ok(Some((container, shell, started))) => {
                let context = RunContext { run, process, container: &container, shell };
                let process_task = self.run_process(&context, started);
                let probe_task = self.run_probes(&context);
                tokio::select! {
                    // Probes end with the process.
                    () = process_task => {}
                    () = probe_task => {}
                }
            }
            // The pod was deleted, or the container has been restarted.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(pod = %run.pod.name, container = %run.container, %error, "cannot start the process of a container");
                let exit = Exit { code: None, at: self.runtime.now() };
                self.processes.update(&run.pod, process, |observation| observation.exit = Some(exit));
            }
        }
    }

    /// Returns the container with a shell on its files, or `None` if it is no longer in this run.
    async fn prepare(&self, run: &ContainerRun, process: &Process) -> ApiResult<Option<(Container, Shell, Timestamp)>> {
        let pod = Pod::get(&*self.runtime, &run.pod).await?;
        if pod.uid() != run.uid {
            return Ok(None);
        }
        let container = pod.container(&run.container)?;
        let Some(current) = container.current_run().filter(|current| current.restarts == run.restarts) else {
            return Ok(None);
        };
        let state = self.run_state(&container, &current).await?;
        let state = process.state.get_or_init(|| state);
        let shell = self.create_shell(&container, &current, state).await?;
        Ok(Some((container, shell, current.started)))
    }

    /// Runs the command of a container, if the simulation supports it, and records its end.
    async fn run_process(&self, context: &RunContext<'_>, started: Timestamp) {
        let RunContext { run, process, container, .. } = context;
        let (Some(command), Some(state)) = (container.supported_command(), process.state.get()) else {
            return std::future::pending().await;
        };
        let mut shell = context.shell.clone();
        let clock = Arc::new(ProcessClock::new(started, self.runtime.clone()));
        shell.clock = clock.clone();
        let unknown_commands = shell.unknown_commands();
        let output = process_output(clock.clone(), state.log.clone());
        let outcome = shell.start(&command, Stdio::new(Input::empty(), output.clone(), output.clone())).await;
        if let Err(error) = output.finish().await {
            tracing::debug!(%error, "cannot write the last line of a log");
        }
        let code = match outcome {
            StartOutcome::Code(code) if !unknown_commands.was_used() => Some(code),
            _ => None,
        };
        let exit = Exit { code, at: super::shell::Clock::now(&*clock) };
        self.processes.update(&run.pod, process, |observation| observation.exit = observation.exit.or(Some(exit)));
        if code.is_none() {
            // The container is assumed to keep running, so its probes continue.
            std::future::pending::<()>().await;
        }
    }

    /// Runs the probes of a container until one of them fails and kills it.
    async fn run_probes(&self, context: &RunContext<'_>) {
        let RunContext { run, process, container, .. } = context;
        if let Some(probe) = container.probe(ProbeKind::Startup)
            && !self.repeat_probe(&probe, context, |result, _| result.is_success).await
        {
            return self.kill(run, process);
        }
        let readiness = async {
            match container.probe(ProbeKind::Readiness) {
                None => self.processes.update(&run.pod, process, |observation| observation.ready = true),
                Some(probe) => {
                    self.repeat_probe(&probe, context, |result, failure| {
                        self.processes.update(&run.pod, process, |observation| {
                            observation.ready = result.is_success;
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
            self.repeat_probe(&probe, context, |_, _| false).await
        };
        tokio::select! {
            () = readiness => {}
            _ = liveness => self.kill(run, process),
        }
    }

    /// Repeats a probe. Returns true once `is_done` returns true, and false when a startup or liveness probe reaches
    /// its failure threshold.
    async fn repeat_probe(
        &self,
        probe: &Probe,
        context: &RunContext<'_>,
        is_done: impl Fn(ProbeResult, &Option<ProbeFailure>) -> bool,
    ) -> bool {
        tokio::time::sleep(probe.initial_delay).await;
        let (mut result, mut failures) = (ProbeResult::new(probe.kind == ProbeKind::Liveness), 0);
        loop {
            let outcome = probe.run(context.shell.clone()).await;
            result = result.after(outcome.is_ok(), probe);
            failures = if outcome.is_ok() { 0 } else { failures + 1 };
            let failure = outcome.err().map(|reason| ProbeFailure { kind: probe.kind, reason });
            if is_done(result, &failure) {
                return true;
            }
            if probe.kind != ProbeKind::Readiness && failures >= probe.failure_threshold {
                let pod = &context.run.pod;
                self.processes.update(pod, context.process, |observation| observation.failure = failure);
                return false;
            }
            if !probe.is_simulated() {
                // The outcome never changes.
                return std::future::pending().await;
            }
            tokio::time::sleep(probe.period).await;
        }
    }

    /// Kills a container after a failed probe.
    fn kill(&self, run: &ContainerRun, process: &Process) {
        let exit = Exit { code: Some(SIGKILL_EXIT_CODE), at: self.runtime.now() };
        self.processes.update(&run.pod, process, |observation| {
            observation.exit = Some(exit);
            observation.ready = false;
        });
    }
}

/// Exit code of a process that was killed (SIGKILL).
const SIGKILL_EXIT_CODE: i32 = 137;

#[cfg(test)]
mod tests;
