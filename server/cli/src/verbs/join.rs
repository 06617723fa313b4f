//! `crowsnest join`: registers an existing cluster with the control plane, as `karmadactl join` does, with configurable
//! permissions.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig;
use crowsnest_members::join::{ClusterLocation, JoinOptions, join, preview_join};

use crate::connection::ConnectionArgs;
use crate::permissions::PermissionArgs;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest join east --cluster-kubeconfig ~/.kube/config --cluster-context east",
    "crowsnest join prod --cluster-kubeconfig prod.yaml --rights observe",
    "crowsnest join prod --cluster-kubeconfig prod.yaml --rights steer:core,apps --refresh",
])]
pub struct JoinArgs {
    /// Name of the cluster in the control plane
    name: ClusterName,
    /// Kubeconfig file of the cluster, with permission to create RBAC objects there
    #[arg(long, value_name = "FILE")]
    cluster_kubeconfig: PathBuf,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long)]
    cluster_context: Option<String>,
    /// Namespace for the credentials, in the cluster and in the control plane
    #[arg(long, default_value = crowsnest_members::join::CLUSTER_NAMESPACE)]
    cluster_namespace: String,
    /// Provider of the cluster
    #[arg(long)]
    cluster_provider: Option<String>,
    #[arg(long)]
    cluster_region: Option<String>,
    /// Zones of the cluster, separated by commas
    #[arg(long, value_delimiter = ',')]
    cluster_zones: Vec<String>,
    /// Renew credentials and permissions of a cluster that is already joined
    #[arg(long)]
    refresh: bool,
    /// Preview only: change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    permissions: PermissionArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: JoinArgs) -> anyhow::Result<ExitCode> {
    let permissions = args.permissions.read()?;
    let member = kubeconfig::load_config(Some(&args.cluster_kubeconfig), args.cluster_context.as_deref()).await?;
    let options = JoinOptions {
        namespace: args.cluster_namespace,
        location: ClusterLocation {
            provider: args.cluster_provider,
            region: args.cluster_region,
            zones: args.cluster_zones,
        },
        permissions,
        refresh: args.refresh,
        ..JoinOptions::new(args.name.clone())
    };
    let control_plane = args.connection.client().await?;
    if args.dry_run {
        let preview = preview_join(&control_plane, &member, &options).await?;
        let action = if preview.is_new { "joined" } else { "rejoined" };
        writeln!(std::io::stdout(), "cluster({}) would be {action} (dry run)", args.name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let joined = join(&control_plane, &member, &options).await?;
    let action = if joined.is_new { "joined" } else { "rejoined" };
    writeln!(std::io::stdout(), "cluster({}) is {action} successfully", args.name)?;
    Ok(ExitCode::SUCCESS)
}
