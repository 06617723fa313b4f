//! `crowsnest version`: prints the version of this client and of the control plane.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crowsnest_apimachinery::yaml;
use serde_json::{Value, json};

use crate::clients;
use crate::connection::ConnectionArgs;
use crate::object::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest version",
    "crowsnest version --client -o json",
])]
pub struct VersionArgs {
    /// Print the client version only; do not contact the control plane
    #[arg(long)]
    client: bool,
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: VersionArgs) -> anyhow::Result<ExitCode> {
    let server = if args.client { None } else { Some(server_version(&args).await) };
    let mut versions = json!({"clientVersion": {"gitVersion": format!("v{}", env!("CARGO_PKG_VERSION"))}});
    if let Some(Ok(server)) = &server {
        versions["serverVersion"] = server.clone();
    }
    let mut out = io::stdout().lock();
    match args.output {
        Some(Output::Json) => writeln!(out, "{versions:#}")?,
        Some(Output::Yaml) => out.write_all(yaml::to_yaml(&versions).as_bytes())?,
        None => {
            writeln!(out, "Client Version: {}", text(&versions, "/clientVersion/gitVersion"))?;
            if versions["serverVersion"].is_object() {
                writeln!(out, "Server Version: {}", text(&versions, "/serverVersion/gitVersion"))?;
            }
        }
    }
    match server {
        Some(Err(error)) => {
            Err(error.context("cannot read the version of the control plane; use --client for the client version only"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

async fn server_version(args: &VersionArgs) -> anyhow::Result<Value> {
    let client = args.connection.client().await?;
    clients::get_or_explain(&client, "/version").await
}
