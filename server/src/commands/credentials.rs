//! `crowsnest credentials`: flags and output. `crowsnest_install::credentials` creates and renews the Secrets.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kube::Api;

use super::cache_options;
use crowsnest_cli::examples;
use crowsnest_component_base::kubeconfig::{KubeconfigContext, load_or_in_cluster};
use crowsnest_component_base::user_agent;
use crowsnest_install::credentials::{Outcome, Renewal, ensure, parse};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest credentials --file credentials.yaml -n crowsnest --dry-run",
    "crowsnest credentials --file credentials.yaml -n crowsnest --kubeconfig host.kubeconfig",
])]
pub(crate) struct CredentialsArgs {
    /// File that lists the required certificates and passwords, from the chart's ConfigMap
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Namespace of the Secrets
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: String,
    /// Kubeconfig file of the cluster with the Secrets [default: the service account of this pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// Renew certificates whose remaining lifetime is below this; they are issued for a year
    #[arg(long, value_name = "DURATION", default_value = "2880h", value_parser = cache_options::parse_duration)]
    renew_before: Duration,
    /// Preview only: create nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: CredentialsArgs) -> anyhow::Result<ExitCode> {
    let context = || format!("cannot read {}", args.file.display());
    let text = std::fs::read_to_string(&args.file).with_context(context)?;
    let required_secrets = parse(&text).with_context(context)?;
    let kubeconfig = KubeconfigContext::from_flags(args.kubeconfig, args.context);
    let mut config = load_or_in_cluster(kubeconfig.as_ref()).await?;
    user_agent::set_in_config(&mut config);
    let secrets = Api::namespaced(kube::Client::try_from(config)?, &args.namespace);
    let renewal = Renewal { now: Timestamp::now(), renew_before: SignedDuration::try_from(args.renew_before)? };
    let mut lines = Vec::new();
    let report = |name: &str, outcome: &Outcome| lines.push(format_line(name, outcome, renewal, args.dry_run));
    let result = ensure(&secrets, &required_secrets, renewal, args.dry_run, report).await;
    // Print completed steps even if a later one failed.
    let mut out = std::io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    result?;
    Ok(ExitCode::SUCCESS)
}

/// The printed line for one Secret.
fn format_line(name: &str, outcome: &Outcome, renewal: Renewal, dry_run: bool) -> String {
    let created = if dry_run { "would be created" } else { "created" };
    match outcome {
        Outcome::Created(reason) => format!("{name}: {created}: {reason}"),
        Outcome::Unchanged(None) => format!("{name}: kept"),
        // Only certificate authorities are kept although they expire soon.
        Outcome::Unchanged(Some(until)) if until.duration_since(renewal.now) <= renewal.renew_before => {
            format!(
                "{name}: kept, BUT IT EXPIRES AT {until}: replace it and all certificates that it issued (docs/DEPLOY.md)"
            )
        }
        Outcome::Unchanged(Some(until)) => format!("{name}: kept until {until}"),
    }
}
