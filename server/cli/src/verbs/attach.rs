//! `crowsnest attach`: attaches to a running container in any cluster.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kube::ResourceExt;

use crate::output::terminal;
use crate::process::{ContainerArgs, StreamArgs, exit_code, stream_process};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest attach -n shop web-0",
    "crowsnest attach -n shop --cluster member1 deploy/web -c web",
    "crowsnest attach -n shop web-0 -it",
])]
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
    let target = args.container.find(&args.pod).await?;
    let terminal = args.streams.enter_raw_mode()?;
    let parameters = target.attach_params(args.streams.stdin, terminal.is_some());
    let process = target.pods.attach(&target.pod.name_any(), &parameters).await;
    let process = process.with_context(|| format!("cannot attach to {}", target.pod_description()))?;
    if terminal.is_some() && !args.streams.quiet {
        // A shell printed its prompt before the client attached.
        write!(terminal::stderr(), "If you don't see a command prompt, try pressing enter.\r\n")?;
    }
    let status = stream_process(process).await;
    drop(terminal);
    exit_code(status?)
}
