//! A process in a container that is connected to this command's input, output and terminal. Shared by `exec`, `attach`
//! and `cp`.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use futures::SinkExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, TerminalSize};
use kube::{Api, ResourceExt};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::clients;
use super::connection::ConnectionArgs;
use super::workload::{Workload, default_container};
use crate::duration::parse_duration;
use crate::verbs::get::OperationScope;

/// Size of the buffers for standard input, output and error, in bytes.
const BUFFER_SIZE: usize = 8192;

/// Flags that select a container.
#[derive(Debug, Args)]
pub(crate) struct ContainerArgs {
    /// Cluster of the pod [default: the only cluster that has the object]
    #[arg(short = 'C', long, visible_alias = "clusters")]
    pub(crate) cluster: Option<String>,
    /// Namespace of the pod [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Container name [default: the pod's `kubectl.kubernetes.io/default-container` annotation, or the first container]
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// karmadactl's scope flag; only members have pods
    #[arg(short = 's', long, value_enum, value_name = "SCOPE", hide = true)]
    pub(crate) operation_scope: Option<OperationScope>,
    /// Time to wait for a pod to run, such as 30s or 2m [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, hide_short_help = true)]
    pub(crate) pod_running_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
}

/// Flags for the streams that are passed to the process.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// Pass standard input to the container
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Standard input is a TTY
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Print only the output of the remote process
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// A pod, its cluster, and the container to use.
pub(crate) struct ContainerTarget {
    pub(crate) cluster: String,
    pub(crate) namespace: String,
    pub(crate) pod: Pod,
    pub(crate) container: Option<String>,
    pub(crate) pods: Api<Pod>,
}

impl ContainerTarget {
    /// Pod and cluster for messages, such as `pod shop/web-0 of cluster member1`.
    pub(crate) fn pod_description(&self) -> String {
        format!("pod {}/{} of cluster {}", self.namespace, self.pod.name_any(), self.cluster)
    }

    /// Attach parameters for these streams.
    pub(crate) fn attach_params(&self, stdin: bool, tty: bool) -> AttachParams {
        AttachParams {
            container: self.container.clone(),
            stdin,
            // A TTY has only one output stream.
            stderr: !tty,
            tty,
            max_stdin_buf_size: Some(BUFFER_SIZE),
            max_stdout_buf_size: Some(BUFFER_SIZE),
            max_stderr_buf_size: Some(BUFFER_SIZE),
            ..AttachParams::default()
        }
    }
}

impl ContainerArgs {
    /// Finds the pod that NAME or TYPE/NAME selects, and the container in it.
    pub(crate) async fn find(&self, object: &str) -> anyhow::Result<ContainerTarget> {
        if self.operation_scope == Some(OperationScope::Karmada) {
            bail!("the control plane runs no pods; omit -s, and name a member with --cluster");
        }
        let config = self.connection.load_config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let workload = Workload::parse(object)?;
        let cluster = match &self.cluster {
            Some(cluster) => cluster.clone(),
            None => workload.cluster(&kube::Client::try_from(config.clone())?, &namespace).await?,
        };
        let member = clients::member(&config, &cluster)?;
        let pod = match self.pod_running_timeout {
            None => workload.find_pod(&member, &namespace).await,
            Some(timeout) => workload.wait_for_running_pod(&member, &namespace, timeout).await,
        };
        let pod = pod.with_context(|| format!("cluster {cluster}"))?;
        let container = self.container.clone().or_else(|| default_container(&pod));
        let pods = Api::namespaced(member, &namespace);
        Ok(ContainerTarget { cluster, namespace, pod, container, pods })
    }
}

impl StreamArgs {
    /// Puts the terminal into raw mode if the process gets a TTY; `None` otherwise.
    pub(crate) fn enter_raw_mode(&self) -> anyhow::Result<Option<RawMode>> {
        let tty = self.tty && std::io::stdin().is_terminal();
        if self.tty && !tty && !self.quiet {
            writeln!(std::io::stderr(), "note: standard input is not a terminal; no TTY is allocated")?;
        }
        // Raw mode sends each key at once instead of whole lines.
        if tty { RawMode::begin().map(Some) } else { Ok(None) }
    }
}

/// Copies input, output and terminal sizes until the process ends; returns its status.
pub(crate) async fn stream_process(mut process: AttachedProcess) -> anyhow::Result<Option<Status>> {
    let status = process.take_status();
    let mut background_tasks = JoinSet::new();
    if let Some(mut input) = process.stdin() {
        let mut chunks = read_stdin();
        background_tasks.spawn(async move {
            while let Some(bytes) = chunks.recv().await {
                input.write_all(&bytes).await?;
            }
            input.shutdown().await
        });
    }
    if let Some(mut sizes) = process.terminal_size() {
        let mut resize_signal = signal(SignalKind::window_change())?;
        background_tasks.spawn(async move {
            while let Ok(size) = tcgetwinsize(std::io::stdin()) {
                let size = TerminalSize { width: size.ws_col, height: size.ws_row };
                if sizes.send(size).await.is_err() || resize_signal.recv().await.is_none() {
                    break;
                }
            }
            Ok(())
        });
    }
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let out = async {
        match stdout {
            Some(mut from) => tokio::io::copy(&mut from, &mut tokio::io::stdout()).await.map(drop),
            None => Ok(()),
        }
    };
    let err = async {
        match stderr {
            Some(mut from) => tokio::io::copy(&mut from, &mut tokio::io::stderr()).await.map(drop),
            None => Ok(()),
        }
    };
    let mut terminate_signal = signal(SignalKind::terminate())?;
    let mut hangup_signal = signal(SignalKind::hangup())?;
    tokio::select! {
        result = async { tokio::try_join!(out, err) } => {
            result.context("cannot write the output of the command")?;
        }
        _ = terminate_signal.recv() => bail!("terminated"),
        _ = hangup_signal.recv() => bail!("the terminal was closed"),
    }
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    background_tasks.abort_all();
    Ok(status)
}

/// Reads standard input in its own thread. A blocking read of a terminal cannot be cancelled; the thread ends with the
/// process.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut chunk = [0; BUFFER_SIZE];
        let mut stdin = std::io::stdin().lock();
        while let Ok(read @ 1..) = stdin.read(&mut chunk) {
            if sender.blocking_send(chunk[..read].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Converts the status of a process to its exit code. Returns an error if there is no status, or if it reports a
/// failure other than an exit code.
pub(crate) fn exit_code(status: Option<Status>) -> anyhow::Result<ExitCode> {
    let Some(status) = status else { bail!("the connection was lost before the command ended") };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = codes.find_map(|cause| cause.message.as_deref()?.parse::<u8>().ok());
    match code.filter(|_| status.reason.as_deref() == Some("NonZeroExitCode")) {
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(anyhow!("{}", status.message.unwrap_or_else(|| "the command failed".to_owned()))),
    }
}

/// Raw mode of the terminal; dropping it restores the previous mode.
pub(crate) struct RawMode {
    previous: Termios,
}

impl RawMode {
    fn begin() -> anyhow::Result<Self> {
        let stdin = std::io::stdin();
        let previous = tcgetattr(&stdin).context("cannot read the terminal settings")?;
        let mut raw = previous.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Drain, &raw).context("cannot set the terminal to raw mode")?;
        Ok(Self { previous })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.previous) {
            tracing::warn!(%error, "cannot restore the terminal settings; run `reset`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[rstest::rstest]
    #[case::success(json!({"status": "Success"}), "ExitCode(unix_exit_status(0))")]
    #[case::exit_code(
        json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}),
        "ExitCode(unix_exit_status(3))"
    )]
    #[case::failure(json!({"status": "Failure", "reason": "InternalError", "message": "no such file"}), "no such file")]
    fn status_becomes_the_exit_code(#[case] status: Value, #[case] expected: &str) {
        let status: Status = serde_json::from_value(status).unwrap();
        let outcome = exit_code(Some(status)).map_or_else(|error| error.to_string(), |code| format!("{code:?}"));
        assert_eq!(outcome, expected);
    }
}
