//! `crowsnest migrate`: flags; the work is done by `crowsnest_install::migrate`.

use std::process::ExitCode;

use clap::Args;

use crowsnest_cli::connection::ConnectionArgs;
use crowsnest_cli::examples;
use crowsnest_install::migrate;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest migrate --kubeconfig karmada-apiserver.config --dry-run",
    "crowsnest migrate --kubeconfig karmada-apiserver.config --back",
])]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Migrate back: restore Karmada's registrations, and write changes made since to its API servers
    #[arg(long)]
    back: bool,
    /// Preview only: write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let client = args.connection.client().await?;
    let mut out = std::io::stdout().lock();
    match args.back {
        true => migrate::migrate_to_karmada(&client, args.dry_run, &mut out).await?,
        false => migrate::migrate_from_karmada(&client, args.dry_run, &mut out).await?,
    }
    Ok(ExitCode::SUCCESS)
}
