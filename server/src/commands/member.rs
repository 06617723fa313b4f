//! Flags of `crowsnest member`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_cli::data_dir::default_data_dir;
use crowsnest_sim::load::Load;

use super::up::Profile;
use crowsnest_up::{MemberConfig, Place};

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

/// The data directory of a member: beside that of `up`, which has a lock of its own.
fn beside(default: &Path, name: &ClusterName) -> PathBuf {
    let folder = default.file_name().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    default.with_file_name(format!("{folder}-{name}"))
}

/// Runs the member until it is told to stop.
pub(crate) async fn run(args: MemberArgs) -> anyhow::Result<ExitCode> {
    let data_dir = args.data_dir.unwrap_or_else(|| beside(&default_data_dir(), &args.name));
    let is_conformance = args.profile == Some(Profile::Conformance);
    let place = Place { data_dir, reset: args.reset };
    let config = MemberConfig { name: args.name, place, listen: args.listen, load: args.load, is_conformance };
    crowsnest_up::alone::run(config).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_data_directory_beside_that_of_the_fleet() {
        let name = "oslo".parse().unwrap();
        let found = beside(Path::new("/home/me/.local/share/crowsnest"), &name);
        assert_eq!(found, Path::new("/home/me/.local/share/crowsnest-oslo"));
        assert_eq!(beside(Path::new("crowsnest-data"), &name), Path::new("crowsnest-data-oslo"));
    }
}
