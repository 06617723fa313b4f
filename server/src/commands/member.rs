//! Flags of `crowsnest member`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_cli::data_dir::default_data_dir;
use crowsnest_cli::examples;
use crowsnest_sim::load::Load;

use super::up::Profile;
use crowsnest_up::{DataDirConfig, MemberConfig};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest member oslo",
    "crowsnest member oslo --listen 10.0.0.7:6443 --load pods=1000,churn=5/s";
    "Join or register it like any other cluster:\n  crowsnest join oslo --cluster-kubeconfig ~/.local/share/crowsnest-oslo/kubeconfigs/oslo.kubeconfig"
])]
pub(crate) struct MemberArgs {
    /// Name of the member; its nodes are named after it
    pub(crate) name: ClusterName,
    /// Data directory [default: $XDG_DATA_HOME/crowsnest-NAME or ~/.local/share/crowsnest-NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Delete the content of the data directory first
    #[arg(long)]
    pub(crate) reset: bool,
    /// Address of the API, also for joining [default: 127.0.0.1 with the port of the last run, or a free one]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Synthetic workloads: pods=N[,churn=N/s][,size=BYTES][,seed=N]
    #[arg(long, value_name = "SPEC")]
    pub(crate) load: Option<Load>,
    /// Configure the member as in this fleet profile
    #[arg(long, value_enum)]
    pub(crate) profile: Option<Profile>,
}

/// The data directory of a member, next to that of `up`, which has its own lock.
fn default_member_dir(default: &Path, name: &ClusterName) -> PathBuf {
    let folder = default.file_name().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    default.with_file_name(format!("{folder}-{name}"))
}

/// Runs the member until the process receives a signal.
pub(crate) async fn run(args: MemberArgs) -> anyhow::Result<ExitCode> {
    let data_dir = args.data_dir.unwrap_or_else(|| default_member_dir(&default_data_dir(), &args.name));
    let is_conformance = args.profile == Some(Profile::Conformance);
    let storage = DataDirConfig { data_dir, reset: args.reset };
    let config = MemberConfig { name: args.name, storage, listen: args.listen, load: args.load, is_conformance };
    crowsnest_up::member_process::run(config).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_their_own_data_directory() {
        let name = "oslo".parse().unwrap();
        let found = default_member_dir(Path::new("/home/me/.local/share/crowsnest"), &name);
        assert_eq!(found, Path::new("/home/me/.local/share/crowsnest-oslo"));
        assert_eq!(default_member_dir(Path::new("crowsnest-data"), &name), Path::new("crowsnest-data-oslo"));
    }
}
