//! `crowsnest exec`: runs a command in a container of any cluster and exits with its exit code.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use kube::ResourceExt;

use super::interpret::files;
use crate::object::text;
use crate::process::{ContainerArgs, StreamArgs, exit_code, stream_process};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest exec -n shop web-0 -- ls /",
    "crowsnest exec --cluster member1 -n shop web-0 -c web -it -- sh",
    "crowsnest exec -n shop deploy/web -- ls /",
])]
pub struct ExecArgs {
    /// Pod, or TYPE/NAME to choose one of its running pods
    #[arg(value_name = "POD", required_unless_present = "filename")]
    pod: Option<String>,
    /// File with the manifest of the pod or workload, instead of its name
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "pod", hide_short_help = true)]
    filename: Option<String>,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    streams: StreamArgs,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let pod = match (&args.pod, &args.filename) {
        (Some(pod), _) => pod.clone(),
        (None, Some(file)) => read_target(file).await?,
        (None, None) => bail!("pod or type/name must be specified"),
    };
    let target = args.container.find(&pod).await?;
    let terminal = args.streams.enter_raw_mode()?;
    let parameters = target.attach_params(args.streams.stdin, terminal.is_some());
    let process = target.pods.exec(&target.pod.name_any(), args.command.clone(), &parameters).await;
    let process = process.with_context(|| format!("cannot run a command in {}", target.pod_description()))?;
    let status = stream_process(process).await;
    drop(terminal);
    exit_code(status?)
}

/// TYPE/NAME of the object in a file.
async fn read_target(file: &str) -> anyhow::Result<String> {
    match files::read(&[file.to_owned()], false).await?.as_slice() {
        [one] => Ok(format!("{}/{}", text(&one.body, "/kind").to_lowercase(), text(&one.body, "/metadata/name"))),
        several => bail!("{file} has {} objects; expected one", several.len()),
    }
}
