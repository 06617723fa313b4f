//! `crowsnest cp`: copies files to and from a container in any cluster with the container's own `tar`, as `kubectl cp`
//! does.

mod archive;
mod endpoint;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::ResourceExt;
use kube::api::AttachedProcess;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::SyncIoBridge;

use crate::connection::ConnectionArgs;
use crate::output::terminal;
use crate::process::{ContainerArgs, ContainerTarget};
use endpoint::{ContainerPath, CopyEndpoint};

/// Maximum length of the container's error output in messages, in bytes.
const MAX_STDERR_BYTES: u64 = 8 << 10;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest cp ./conf web-0:/etc/app -n shop",
    "crowsnest cp shop/web-0:/var/log/app.log ./app.log",
    "crowsnest cp member1/shop/web-0:/etc/app ./app -c web";
    "The container image must include tar. Symbolic links are not copied from a container."
])]
pub struct CpArgs {
    /// Source: a local file or folder, or [[CLUSTER/]NAMESPACE/]POD:PATH
    #[arg(value_name = "FROM")]
    from: CopyEndpoint,
    /// Destination; one of the two must be in a container
    #[arg(value_name = "TO")]
    to: CopyEndpoint,
    /// Cluster of the pod [default: the only cluster that has a pod of this name]
    #[arg(short = 'C', long, visible_alias = "clusters")]
    cluster: Option<String>,
    /// Namespace of the pod [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Container name [default: the pod's `kubectl.kubernetes.io/default-container` annotation, or the first container]
    #[arg(short, long)]
    container: Option<String>,
    /// Do not preserve owners and permissions in the destination
    #[arg(long)]
    no_preserve: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: CpArgs) -> anyhow::Result<ExitCode> {
    let CpArgs { from, to, cluster, namespace, container, no_preserve, connection } = args;
    let find = async |remote: &ContainerPath| {
        let cluster = remote.cluster.clone().or(cluster);
        let namespace = remote.namespace.clone().or(namespace);
        ContainerArgs { cluster, namespace, container, operation_scope: None, pod_running_timeout: None, connection }
            .find(&remote.pod)
            .await
    };
    match (from, to) {
        (CopyEndpoint::Local(from), CopyEndpoint::Remote(to)) => {
            let name = from.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.with_context(|| format!("cannot copy {}: it has no file name", from.display()))?;
            std::fs::symlink_metadata(&from).with_context(|| format!("cannot read {}", from.display()))?;
            upload(&find(&to).await?, &from, &to, &name, no_preserve).await?;
        }
        (CopyEndpoint::Remote(from), CopyEndpoint::Local(to)) => {
            download(&find(&from).await?, &from, &to, no_preserve).await?
        }
        (CopyEndpoint::Local(_), CopyEndpoint::Local(_)) => {
            bail!("one of source and destination must be in a container, given as POD:PATH")
        }
        (CopyEndpoint::Remote(_), CopyEndpoint::Remote(_)) => {
            bail!("one of source and destination must be a local file; copying between containers is not supported")
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command, discards its output and returns whether it succeeded.
async fn run_check(target: &ContainerTarget, command: &[&str]) -> anyhow::Result<bool> {
    let mut process = start_command(target, command, false).await?;
    let status = process.take_status();
    let (out, err) = (process.stdout(), process.stderr());
    tokio::try_join!(read_output(out), read_output(err)).context("cannot read the output of the container")?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    Ok(status.is_some_and(|status| status.status.as_deref() == Some("Success")))
}

async fn start_command(target: &ContainerTarget, command: &[&str], stdin: bool) -> anyhow::Result<AttachedProcess> {
    let process =
        target.pods.exec(&target.pod.name_any(), command.iter().copied(), &target.attach_params(stdin, false)).await;
    process.with_context(|| {
        format!("cannot run {} in {}", command.first().unwrap_or(&"nothing"), target.pod_description())
    })
}

/// Reads to the end and returns the first `MAX_STDERR_BYTES` bytes as text.
async fn read_output(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut text = Vec::new();
    if let Some(mut from) = from {
        (&mut from).take(MAX_STDERR_BYTES).read_to_end(&mut text).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Checks tar's exit status; the error carries its error output.
fn check_tar_status(target: &ContainerTarget, status: Option<Status>, stderr: &str) -> anyhow::Result<()> {
    let status = status.ok_or_else(|| {
        anyhow!("the connection to {} was lost before the copy was complete", target.pod_description())
    })?;
    if status.status.as_deref() == Some("Success") {
        return Ok(());
    }
    let reason = if stderr.is_empty() { status.message.as_deref().unwrap_or("unknown reason") } else { stderr };
    bail!("tar failed in {}: {reason}", target.pod_description())
}

async fn upload(
    target: &ContainerTarget,
    from: &Path,
    to: &ContainerPath,
    name: &str,
    no_preserve: bool,
) -> anyhow::Result<()> {
    // An existing folder receives the source under its own name.
    let is_folder = run_check(target, &["test", "-d", &to.path]).await?;
    let destination = to.destination(name, is_folder)?;
    let (folder, base) = endpoint::split(&destination);
    let no_preserve_flags = ["--no-same-permissions", "--no-same-owner"];
    let mut command = vec!["tar"];
    if no_preserve {
        command.extend(no_preserve_flags);
    }
    command.extend(["-xmf", "-", "-C", folder]);
    let mut process = start_command(target, &command, true).await?;
    let status = process.take_status();
    let (out, err) = (process.stdout(), process.stderr());
    let input = process.stdin().context("the container has no standard input")?;
    let (from, base) = (from.to_owned(), base.to_owned());
    let write_task = tokio::task::spawn_blocking(move || {
        let mut input = SyncIoBridge::new(input);
        archive::write(&mut input, &from, Path::new(&base))?;
        input.shutdown()
    });
    let (_, stderr) =
        tokio::try_join!(read_output(out), read_output(err)).context("cannot read the output of the container")?;
    let write_result = write_task.await.context("cannot write the archive")?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    // When tar fails, writing fails too; tar's own reason is the better error.
    check_tar_status(target, status, &stderr)?;
    write_result.with_context(|| format!("cannot copy to {}", target.pod_description()))
}

async fn download(target: &ContainerTarget, from: &ContainerPath, to: &Path, no_preserve: bool) -> anyhow::Result<()> {
    let path = from.path.trim_end_matches('/');
    let (folder, base) = endpoint::split(if path.is_empty() { "/" } else { path });
    let to = if to.is_dir() && base != "." { to.join(base) } else { to.to_owned() };
    let file_argument = if base.starts_with('-') { format!("./{base}") } else { base.to_owned() };
    let mut process = start_command(target, &["tar", "cf", "-", "-C", folder, &file_argument], false).await?;
    let status = process.take_status();
    let output = process.stdout().context("the container has no standard output")?;
    let err = process.stderr();
    let base = base.to_owned();
    let extract_task = tokio::task::spawn_blocking(move || {
        archive::extract(SyncIoBridge::new(output), Path::new(&base), &to, !no_preserve)
    });
    let stderr = read_output(err).await.context("cannot read the output of the container")?;
    let extract_result = extract_task.await.context("cannot read the archive")?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    check_tar_status(target, status, &stderr)?;
    for skipped in extract_result.with_context(|| format!("cannot copy from {}", target.pod_description()))? {
        writeln!(terminal::stderr(), "warning: {skipped}")?;
    }
    Ok(())
}
