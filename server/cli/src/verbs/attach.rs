//! `crowsnest attach`: attaches to a running container in any cluster.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kube::ResourceExt;

use crate::output::terminal;
use crate::process::{ContainerArgs, StreamArgs, attend, ended};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest attach -n shop web-0\n  crowsnest attach -n shop --cluster member1 deploy/web -c web\n  crowsnest attach -n shop web-0 -it"
)]
pub struct AttachArgs {
    /// Pod, or TYPE/NAME to choose one of its running pods
    #[arg(value_name = "POD")]
    pod: String,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    streams: StreamArgs,
}

pub(crate) async fn run(args: AttachArgs) -> anyhow::Result<ExitCode> {
    let found = args.container.find(&args.pod).await?;
    let terminal = args.streams.terminal()?;
    let parameters = found.parameters(args.streams.stdin, terminal.is_some());
    let process = found.pods.attach(&found.pod.name_any(), &parameters).await;
    let process = process.with_context(|| format!("cannot attach to {}", found.named()))?;
    if terminal.is_some() && !args.streams.quiet {
        // A shell printed its prompt before the client attached.
        write!(terminal::stderr(), "If you don't see a command prompt, try pressing enter.\r\n")?;
    }
    let status = attend(process).await;
    drop(terminal);
    ended(status?)
}
