//! `crowsnest unjoin` and `crowsnest unregister`: remove a cluster that was joined, or that its agent registered, from
//! the control plane.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig;
use crowsnest_members::unjoin::{RemovalPreview, preview_unjoin};
use crowsnest_members::unregister::{AGENT, AGENT_NAMESPACE, preview_unregister};
use crowsnest_members::{UnjoinOptions, UnregisterOptions, unjoin, unregister};

use crate::connection::ConnectionArgs;
use crate::duration::parse_duration;
use crate::output::terminal;

/// Flags of both verbs.
#[derive(Debug, Args)]
struct RemovalArgs {
    /// Cluster name
    name: ClusterName,
    /// Kubeconfig file of the cluster, with permission to delete RBAC objects there [default: objects in the cluster
    /// are kept]
    #[arg(long, value_name = "FILE")]
    cluster_kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long, requires = "cluster_kubeconfig")]
    cluster_context: Option<String>,
    /// Namespace of the credentials, in the cluster and in the control plane
    #[arg(long, default_value = crowsnest_members::join::CLUSTER_NAMESPACE)]
    cluster_namespace: String,
    /// Time to wait for the removal, such as 90s, 15m or 1h30m
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    wait: Duration,
    /// Preview only: change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest unjoin east --cluster-kubeconfig ~/.kube/config --cluster-context east",
    "crowsnest unjoin lost --wait 10s --force",
])]
pub struct UnjoinArgs {
    #[command(flatten)]
    removal: RemovalArgs,
    /// If the wait times out, remove the cluster without deleting the objects propagated to it
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest unregister m1 --cluster-kubeconfig m1.kubeconfig",
    "crowsnest unregister m1 --cluster-kubeconfig m1.kubeconfig -n edge --agent-name crowsnest-agent",
])]
pub struct UnregisterArgs {
    #[command(flatten)]
    removal: RemovalArgs,
    /// Namespace of the agent in the cluster
    #[arg(short, long, default_value = AGENT_NAMESPACE)]
    namespace: String,
    /// Name of the agent's Deployment and ClusterRole
    #[arg(long, value_name = "NAME", default_value = AGENT)]
    agent_name: String,
}

impl RemovalArgs {
    /// Clients of the control plane and, if its kubeconfig is given, of the cluster.
    async fn clients(&self) -> anyhow::Result<(kube::Client, Option<kube::Client>)> {
        let member = match &self.cluster_kubeconfig {
            Some(file) => {
                let config = kubeconfig::load_config(Some(file), self.cluster_context.as_deref()).await?;
                Some(kube::Client::try_from(config)?)
            }
            None => None,
        };
        Ok((self.connection.client().await?, member))
    }

    /// Prints what would be done.
    async fn print_preview(
        &self,
        action: &str,
        preview: impl AsyncFnOnce(&kube::Client, &ClusterName) -> Result<RemovalPreview, crowsnest_members::Error>,
    ) -> anyhow::Result<ExitCode> {
        let works = preview(&self.connection.client().await?, &self.name).await?.works;
        writeln!(std::io::stdout(), "cluster({}) would be {action}, with {works} Works (dry run)", self.name)?;
        Ok(ExitCode::SUCCESS)
    }

    fn print_result(&self, action: &str, remaining: &str) -> anyhow::Result<ExitCode> {
        writeln!(std::io::stdout(), "cluster({}) is {action} successfully", self.name)?;
        if self.cluster_kubeconfig.is_none() {
            writeln!(
                terminal::stderr(),
                "note: {remaining} in the cluster; use --cluster-kubeconfig to delete them too"
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(crate) async fn run_unjoin(args: UnjoinArgs) -> anyhow::Result<ExitCode> {
    let UnjoinArgs { removal, force } = args;
    if removal.dry_run {
        return removal.print_preview("unjoined", preview_unjoin).await;
    }
    let (control_plane, member) = removal.clients().await?;
    let options = UnjoinOptions {
        namespace: removal.cluster_namespace.clone(),
        wait: removal.wait,
        force,
        ..UnjoinOptions::new(removal.name.clone())
    };
    unjoin(&control_plane, member.as_ref(), &options).await?;
    removal.print_result("unjoined", "service accounts and RBAC objects remain")
}

pub(crate) async fn run_unregister(args: UnregisterArgs) -> anyhow::Result<ExitCode> {
    let UnregisterArgs { removal, namespace, agent_name } = args;
    if removal.dry_run {
        return removal.print_preview("unregistered", preview_unregister).await;
    }
    let (control_plane, member) = removal.clients().await?;
    let options = UnregisterOptions {
        namespace: removal.cluster_namespace.clone(),
        agent_namespace: namespace,
        agent: agent_name,
        wait: removal.wait,
        ..UnregisterOptions::new(removal.name.clone())
    };
    unregister(&control_plane, member.as_ref(), &options).await?;
    removal.print_result("unregistered", "the agent, its service accounts and RBAC objects remain")
}
