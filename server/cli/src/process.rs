//! A process in a container that is connected to our input, output and terminal; shared by `exec` and `attach`.

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

use super::connection::ConnectionArgs;
use super::reach;
use super::workload::{Workload, default_container};
use crate::duration::duration;
use crate::verbs::get::OperationScope;

/// Size of the buffer for standard input, in bytes.
const CHUNK: usize = 8192;

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
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
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

/// A container of a pod, and the cluster it runs in.
pub(crate) struct Found {
    pub(crate) cluster: String,
    pub(crate) namespace: String,
    pub(crate) pod: Pod,
    pub(crate) container: Option<String>,
    pub(crate) pods: Api<Pod>,
}

impl Found {
    /// `pod shop/web-0 of cluster member1`
    pub(crate) fn named(&self) -> String {
        format!("pod {}/{} of cluster {}", self.namespace, self.pod.name_any(), self.cluster)
    }

    /// Attach parameters for these streams.
    pub(crate) fn parameters(&self, stdin: bool, tty: bool) -> AttachParams {
        AttachParams {
            container: self.container.clone(),
            stdin,
            // A TTY has only one output stream.
            stderr: !tty,
            tty,
            max_stdin_buf_size: Some(CHUNK),
            max_stdout_buf_size: Some(CHUNK),
            max_stderr_buf_size: Some(CHUNK),
            ..AttachParams::default()
        }
    }
}

impl ContainerArgs {
    /// The pod a name or TYPE/NAME means.
    pub(crate) async fn find(&self, named: &str) -> anyhow::Result<Found> {
        if self.operation_scope == Some(OperationScope::Karmada) {
            bail!("the control plane runs no pods; omit -s, and name a member with --cluster");
        }
        let config = self.connection.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let workload = Workload::parse(named)?;
        let cluster = match &self.cluster {
            Some(cluster) => cluster.clone(),
            None => workload.cluster(&kube::Client::try_from(config.clone())?, &namespace).await?,
        };
        let member = reach::member(&config, &cluster)?;
        let pod = match self.pod_running_timeout {
            None => workload.pod(&member, &namespace).await,
            Some(timeout) => workload.running(&member, &namespace, timeout).await,
        };
        let pod = pod.with_context(|| format!("cluster {cluster}"))?;
        let container = self.container.clone().or_else(|| default_container(&pod));
        let pods = Api::namespaced(member, &namespace);
        Ok(Found { cluster, namespace, pod, container, pods })
    }
}

impl StreamArgs {
    /// Puts the terminal into raw mode if the process gets a TTY.
    pub(crate) fn terminal(&self) -> anyhow::Result<Option<Raw>> {
        let tty = self.tty && std::io::stdin().is_terminal();
        if self.tty && !tty && !self.quiet {
            writeln!(std::io::stderr(), "note: standard input is not a terminal; no TTY is allocated")?;
        }
        // Only raw mode delivers single keys.
        if tty { Raw::begin().map(Some) } else { Ok(None) }
    }
}

/// Copies input, output and terminal sizes until the process ends.
pub(crate) async fn attend(mut process: AttachedProcess) -> anyhow::Result<Option<Status>> {
    let status = process.take_status();
    let mut helpers = JoinSet::new();
    if let Some(mut input) = process.stdin() {
        let mut read_stdin = read_stdin();
        helpers.spawn(async move {
            while let Some(bytes) = read_stdin.recv().await {
                input.write_all(&bytes).await?;
            }
            input.shutdown().await
        });
    }
    if let Some(mut sizes) = process.terminal_size() {
        let mut resized = signal(SignalKind::window_change())?;
        helpers.spawn(async move {
            while let Ok(size) = tcgetwinsize(std::io::stdin()) {
                let size = TerminalSize { width: size.ws_col, height: size.ws_row };
                if sizes.send(size).await.is_err() || resized.recv().await.is_none() {
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
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    tokio::select! {
        shown = async { tokio::try_join!(out, err) } => drop(shown.context("cannot write the output of the command")?),
        _ = terminated.recv() => bail!("terminated"),
        _ = hung_up.recv() => bail!("the terminal was closed"),
    }
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    helpers.abort_all();
    Ok(status)
}

/// Reads standard input in its own thread. A blocking read of a terminal cannot be cancelled; the thread ends with the
/// process.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut chunk = [0; CHUNK];
        let mut stdin = std::io::stdin().lock();
        while let Ok(read @ 1..) = stdin.read(&mut chunk) {
            if sender.blocking_send(chunk[..read].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The exit code that the server reports, or an error if it reports a failure or nothing.
pub(crate) fn ended(status: Option<Status>) -> anyhow::Result<ExitCode> {
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
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    fn begin() -> anyhow::Result<Self> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).context("cannot read the terminal settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Drain, &raw).context("cannot set the terminal to raw mode")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.before) {
            tracing::warn!(%error, "cannot restore the terminal settings; run `reset`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[rstest::rstest]
    #[case::well(json!({"status": "Success"}), "ExitCode(unix_exit_status(0))")]
    #[case::code(
        json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}),
        "ExitCode(unix_exit_status(3))"
    )]
    #[case::failure(json!({"status": "Failure", "reason": "InternalError", "message": "no such file"}), "no such file")]
    fn status_becomes_the_exit_code(#[case] status: Value, #[case] expected: &str) {
        let status: Status = serde_json::from_value(status).unwrap();
        let outcome = ended(Some(status)).map_or_else(|error| error.to_string(), |code| format!("{code:?}"));
        assert_eq!(outcome, expected);
    }
}
