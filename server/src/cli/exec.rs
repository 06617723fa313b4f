//! `crowsnest exec`: a command in a container, whichever cluster its pod is in. Its exit code is ours.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kube::ResourceExt;

use super::process::{ContainerArgs, StreamArgs, attend, ended};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest exec -n shop web-0 -- ls /\n  crowsnest exec --cluster member1 -n shop web-0 -c web -it -- sh\n  crowsnest exec -n shop deploy/web -- ls /"
)]
pub(crate) struct ExecArgs {
    /// The pod, or TYPE/NAME: one of its pods that runs is taken
    #[arg(value_name = "POD")]
    pod: String,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    streams: StreamArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let found = args.container.find(&args.pod).await?;
    let terminal = args.streams.terminal()?;
    let parameters = found.parameters(args.streams.stdin, terminal.is_some());
    let process = found.pods.exec(&found.pod.name_any(), args.command.clone(), &parameters).await;
    let process = process.with_context(|| format!("running a command in {}", found.named()))?;
    let status = attend(process).await;
    drop(terminal);
    ended(status?)
}
