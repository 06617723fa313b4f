//! `crowsnest member`: its flags, and nothing else; the work is in `crate::up::alone`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_embedded::load::Load;

use super::up::Profile;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest member oslo\n  crowsnest member oslo --listen 10.0.0.7:6443 --load pods=1000,churn=5/s\n\nIt is a cluster like any other to whoever joins or registers it:\n  crowsnest join oslo --cluster-kubeconfig ~/.local/share/crowsnest-oslo/kubeconfigs/oslo.kubeconfig"
)]
pub(crate) struct MemberArgs {
    /// Its name; nodes are named after it
    pub(crate) name: ClusterName,
    /// Where everything is kept [default: $XDG_DATA_HOME/crowsnest-NAME or ~/.local/share/crowsnest-NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Throw away everything in the data directory first
    #[arg(long)]
    pub(crate) reset: bool,
    /// Address of its API, by which it is joined as well [default: 127.0.0.1 and the port of last time, or any that is free]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Synthetic workloads, topped up to so many pods and changed so often: pods=N[,churn=N/s][,size=BYTES][,seed=N]
    #[arg(long, value_name = "SPEC")]
    pub(crate) load: Option<Load>,
    /// As the members of a ready-made fleet are
    #[arg(long, value_enum)]
    pub(crate) profile: Option<Profile>,
}

pub(crate) async fn run(args: MemberArgs) -> anyhow::Result<ExitCode> {
    crate::up::alone::run(args).await
}
