//! `crowsnest sim`: injects faults into simulated members of a running `crowsnest up`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use crowsnest_cli::examples;
use crowsnest_component_base::kubeconfig;
use crowsnest_sim::load::Load;
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest sim member1 stop 30",
    "crowsnest sim member1 stop; crowsnest sim member1 start",
    "crowsnest sim member1 partition 60",
    "crowsnest sim member2 flap 10; crowsnest sim member2 start",
    "crowsnest sim member2 delay 500",
    "crowsnest sim member1 load pods=1000,churn=5/s",
])]
pub(crate) struct SimArgs {
    /// Name of the member
    member: String,
    #[command(subcommand)]
    fault: Fault,
    /// Data directory of the running `crowsnest up`
    #[arg(long, env = "CROWSNEST_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Fault {
    /// Show the objects and the faults of the member
    State,
    /// Refuse connections for this many seconds, or until `start`
    Stop { seconds: Option<u64> },
    /// Accept requests without answering them and keep watches open, for this many seconds, or until `start`
    Silence { seconds: Option<u64> },
    /// Drop all packets without closing connections, for this many seconds, or until `start`
    Partition { seconds: Option<u64> },
    /// Stop and start alternately, for this many seconds each, until started
    Flap {
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// End all outages
    Start,
    /// Delay every request by this many milliseconds; 0 for none
    Delay {
        milliseconds: u64,
        /// Delay only requests whose path starts with this prefix
        #[arg(long)]
        path: Option<String>,
    },
    /// Override the status code of the health endpoints; without a status, end the override
    Readyz {
        #[arg(value_parser = clap::value_parser!(u16).range(200..600))]
        status: Option<u16>,
    },
    /// Fail this percentage of requests with status 500
    Errors {
        #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
        percent: u8,
    },
    /// Close all open watches
    DropWatches,
    /// Make a node fail
    FailNode { node: String },
    /// Recover a failed node
    RecoverNode { node: String },
    /// Add synthetic workloads until the member has this many pods, and change them at the rate of `churn`
    Load { spec: Load },
}

impl Fault {
    /// Path below `/sim/{member}/` and body of the request; without a body it is a GET.
    fn request(&self) -> (String, Option<Value>) {
        match self {
            Fault::State => ("state".into(), None),
            Fault::Stop { seconds } => ("stop".into(), Some(json!({"seconds": seconds}))),
            Fault::Start => ("start".into(), Some(json!({}))),
            Fault::Silence { seconds } => ("silence".into(), Some(json!({"seconds": seconds}))),
            Fault::Partition { seconds } => ("partition".into(), Some(json!({"seconds": seconds}))),
            Fault::Flap { seconds } => ("flap".into(), Some(json!({"seconds": seconds}))),
            Fault::Delay { milliseconds, path } => {
                ("delay".into(), Some(json!({"milliseconds": milliseconds, "path": path})))
            }
            Fault::Readyz { status } => ("readyz".into(), Some(json!({"status": status}))),
            Fault::Errors { percent } => ("errors".into(), Some(json!({"percent": percent}))),
            Fault::DropWatches => ("watches/drop".into(), Some(json!({}))),
            Fault::FailNode { node } => (format!("nodes/{node}/fail"), Some(json!({}))),
            Fault::RecoverNode { node } => (format!("nodes/{node}/recover"), Some(json!({}))),
            Fault::Load { spec } => ("load".into(), Some(json!(spec))),
        }
    }
}

pub(crate) async fn run(args: SimArgs) -> anyhow::Result<ExitCode> {
    let dir = args.data_dir.unwrap_or_else(crowsnest_cli::data_dir::default_data_dir);
    let path = dir.join("kubeconfigs/cp.kubeconfig");
    let config = kubeconfig::load_config(Some(&path), None).await;
    let config = config.with_context(|| {
        format!("no data of `crowsnest up` found in {}; name its directory with --data-dir", dir.display())
    })?;
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
    let response: Value = match client.request(request).await {
        Ok(response) => response,
        Err(kube::Error::Api(status)) => bail!("{}", status.message),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot connect to {server}; is `crowsnest up` running?"));
        }
    };
    if matches!(args.fault, Fault::State | Fault::Load { .. }) {
        writeln!(std::io::stdout(), "{response:#}")?;
    }
    Ok(ExitCode::SUCCESS)
}
