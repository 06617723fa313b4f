//! `crowsnest sim`: faults of the simulated members of a running `crowsnest up`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use crowsnest_embedded::load::Load;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest sim member1 stop 30\n  crowsnest sim member1 stop; crowsnest sim member1 start\n  crowsnest sim member2 delay 500\n  crowsnest sim member1 load pods=1000,churn=5/s"
)]
pub(crate) struct SimArgs {
    /// The member
    member: String,
    #[command(subcommand)]
    fault: Fault,
    /// Data directory of the running `crowsnest up`
    #[arg(long, env = "CROWSNEST_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Fault {
    /// What the member holds and suffers from
    State,
    /// Unreachable for so many seconds, or until it is started
    Stop { seconds: Option<u64> },
    /// Reachable again
    Start,
    /// Every request takes so many milliseconds longer; 0 for none
    Delay { milliseconds: u64 },
    /// Cut off open watches
    DropWatches,
    /// Lose a node
    FailNode { node: String },
    /// Bring a lost node back
    RecoverNode { node: String },
    /// Top up synthetic workloads
    Load { spec: Load },
}

impl Fault {
    /// Path below `/sim/{member}/` and body of its request; no body means GET.
    fn request(&self) -> (String, Option<Value>) {
        match self {
            Fault::State => ("state".into(), None),
            Fault::Stop { seconds } => ("stop".into(), Some(json!({"seconds": seconds}))),
            Fault::Start => ("start".into(), Some(json!({}))),
            Fault::Delay { milliseconds } => ("delay".into(), Some(json!({"milliseconds": milliseconds}))),
            Fault::DropWatches => ("watches/drop".into(), Some(json!({}))),
            Fault::FailNode { node } => (format!("nodes/{node}/fail"), Some(json!({}))),
            Fault::RecoverNode { node } => (format!("nodes/{node}/recover"), Some(json!({}))),
            Fault::Load { spec } => ("load".into(), Some(json!(spec))),
        }
    }
}

pub(crate) async fn run(args: SimArgs) -> anyhow::Result<ExitCode> {
    let dir = args.data_dir.unwrap_or_else(crate::up::default_data_dir);
    let path = dir.join("kubeconfigs/cp.kubeconfig");
    let file = Kubeconfig::read_from(&path)
        .map_err(|error| anyhow!("no `crowsnest up` ever ran in {} ({error}); name its --data-dir", dir.display()))?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let server = config.cluster_url.clone();
    let client = kube::Client::try_from(config)?;
    let (path, body) = args.fault.request();
    let path = format!("/sim/{}/{path}", args.member);
    let request = match body {
        None => http::Request::get(path).body(Vec::new())?,
        Some(body) => http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&body)?)?,
    };
    let answer: Value = match client.request(request).await {
        Ok(answer) => answer,
        Err(kube::Error::Api(status)) => bail!("{}", status.message),
        Err(error) => {
            return Err(error).with_context(|| format!("asking {server} (is `crowsnest up` running?)"));
        }
    };
    if matches!(args.fault, Fault::State | Fault::Load { .. }) {
        writeln!(std::io::stdout(), "{answer:#}")?;
    }
    Ok(ExitCode::SUCCESS)
}
