//! `crowsnest install` and `uninstall`: flags and output; the work is done by `crowsnest_install`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use crowsnest_apimachinery::yaml;
use serde_json::{Value, json};

use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::duration::parse_duration;
use crowsnest_cli::examples;
use crowsnest_install::installation::{self, InstallRequest, Record};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest install --kubeconfig karmada-apiserver.config --host crowsnest.crowsnest-system.svc",
    "crowsnest install --host 10.0.0.7 --ca-file ca.crt --dry-run -o yaml",
])]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Host name or address at which the control plane reaches `crowsnest serve` [default: as installed before]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Port of `crowsnest serve` [default: as installed before, or 8443]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Host name or address of `crowsnest serve` with the role webhook, if it differs [default: as installed before, or
    /// --host]
    #[arg(long, value_name = "HOST", requires = "webhook_port")]
    webhook_host: Option<String>,
    /// Port of the webhooks
    #[arg(long, value_name = "PORT", requires = "webhook_host", value_parser = clap::value_parser!(u16).range(1..))]
    webhook_port: Option<u16>,
    /// CA file of the certificate that `serve` uses [default: a CA is created and stored in the control plane with the
    /// certificate]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Register metrics.k8s.io and custom.metrics.k8s.io too, unless others serve them [default: as installed before,
    /// or true]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    metrics_adapter: Option<bool>,
    /// Take over the API groups of Karmada's aggregated API server; run `crowsnest migrate` first
    #[arg(long)]
    take_over: bool,
    /// Wait until the control plane reaches `serve`
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Print the manifests without applying them
    #[arg(long)]
    dry_run: bool,
    /// Output format of the manifests
    #[arg(short, long, value_enum, default_value = "yaml", requires = "dry_run")]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest uninstall --kubeconfig karmada-apiserver.config",
    "crowsnest uninstall --members --dry-run               preview what is removed from the members",
])]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// First unjoin all clusters, deleting propagated objects and the objects of `crowsnest join`; requires `serve` to
    /// run
    #[arg(long)]
    members: bool,
    /// Time to wait for each cluster, such as 90s, 15m or 1h30m
    #[arg(long, value_name = "DURATION", default_value = "60s", requires = "members", value_parser = parse_duration)]
    wait: Duration,
    /// Preview only: delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: InstallArgs) -> anyhow::Result<ExitCode> {
    let config = args.connection.load_config().await?;
    let client = kube::Client::try_from(config.clone())?;
    let previous = installation::read_record(&client).await?;
    let Some(host) = args.host.clone().or_else(|| previous.as_ref().map(|record| record.host.clone())) else {
        bail!("--host is required: the address at which the control plane reaches `crowsnest serve`");
    };
    let port = args.port.or_else(|| previous.as_ref().map(|record| record.port)).unwrap_or(8443);
    // Equal addresses mean that one process serves both.
    let requested = args.webhook_host.clone().zip(args.webhook_port);
    let webhook_endpoint = requested.or_else(|| previous.as_ref().and_then(|record| record.webhook_endpoint.clone()));
    let webhook_endpoint = webhook_endpoint.filter(|at| *at != (host.clone(), port));
    let metrics =
        args.metrics_adapter.or_else(|| previous.as_ref().map(|record| record.metrics_adapter)).unwrap_or(true);
    let ca = match &args.ca_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("--ca-file {}", path.display()))?;
            crowsnest_process::client_certificate::parse_roots(&text, "--ca-file")?;
            Some(text)
        }
        None => None,
    };
    let request = InstallRequest {
        record: Record { webhook_endpoint, ..Record::new(host, port, metrics) },
        ca,
        take_over: args.take_over,
        advertised_endpoint: installation::read_advertised_endpoint(&client, &config).await?,
    };
    let mut out = std::io::stdout().lock();
    if args.dry_run {
        print(&mut out, &installation::render(&client, &request).await?, args.output)?;
    } else {
        installation::install(&client, &request, args.wait, &mut out).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, manifests: &[Value], output: Output) -> anyhow::Result<()> {
    match output {
        Output::Yaml => {
            for manifest in manifests {
                writeln!(out, "---\n{}", yaml::to_yaml(manifest).trim_end())?;
            }
        }
        Output::Json => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
            writeln!(out, "{list:#}")?;
        }
    }
    Ok(())
}

pub(crate) async fn run_uninstall(args: UninstallArgs) -> anyhow::Result<ExitCode> {
    let client = args.connection.client().await?;
    let members = args.members.then_some(args.wait);
    installation::uninstall(&client, members, args.dry_run, &mut std::io::stdout().lock()).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_printed_for_kubectl() {
        let manifests = [json!({"kind": "Namespace", "metadata": {"name": "a"}}), json!({"kind": "Service"})];
        let mut yaml = Vec::new();
        print(&mut yaml, &manifests, Output::Yaml).unwrap();
        let yaml = String::from_utf8(yaml).unwrap();
        assert!(yaml.starts_with("---\nkind: Namespace\n") && yaml.contains("\n---\nkind: Service\n"), "{yaml}");
        let mut json = Vec::new();
        print(&mut json, &manifests, Output::Json).unwrap();
        let list: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(list["items"], json!(manifests));
    }
}
