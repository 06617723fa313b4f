//! Flags of `crowsnest up`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use crowsnest_controllers::runtime;
use crowsnest_members::MemberPermissions;
use crowsnest_sim::load::Load;

use super::data_dir::DataDirArgs;
use super::process::PartArgs;
use crowsnest_cli::examples;
use crowsnest_cli::permissions::PermissionArgs;
use crowsnest_up::Config;
use crowsnest_up::fleet::{MemberRequest, MembersArg};

/// A predefined fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// Members m1, m2 and m3 with the node shapes, feature gates and short intervals of the conformance suite
    Conformance,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest up --members 5 --load pods=10000,churn=50/s",
    "crowsnest up --members 'east,west:nodes=5,cpu=8,memory=32Gi;gpu:region=eu,nvidia.com/gpu=4,taint=gpu:NoSchedule'",
    "crowsnest up --members fleet.yaml",
    "crowsnest up --kubeconfig ~/.kube/config --contexts prod,staging";
    "--members takes groups, separated by ;. A group is a number or names, and, after a colon, their settings:
  nodes=N              nodes of each member [default: 3]
  region=R             region of the Cluster and the nodes [default: region-1, region-2, region-3 in turn]
  zones=Z[+Z...]       zones over which the nodes are spread [default: REGION-a, REGION-b, REGION-c]
  provider=P           spec.provider of the Cluster [default: sim]
  version=V            Kubernetes version that the member reports, such as 1.35 or v1.35.4
  cpu=Q, memory=Q, ephemeral-storage=Q, pods=N
                       allocatable of each node [default: 4, 16Gi, 100Gi, 110]
  DOMAIN/RESOURCE=N    extended resource of each node, such as nvidia.com/gpu=4
  instance-type=T, label=KEY=VALUE, taint=KEY[=VALUE]:EFFECT
                       of each node; label and taint may be repeated
A YAML file accepts the same settings, and several groups of nodes per member; see docs/FLEET-SHAPES.md."
])]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) storage: DataDirArgs,
    /// Simulated members: a number, names, names with settings, or a YAML file [default: 3]
    #[arg(long, value_name = "COUNT|NAMES[:SETTINGS]|FILE", conflicts_with_all = ["no_members", "profile"])]
    pub(crate) members: Option<MembersArg>,
    /// Start without members
    #[arg(long)]
    pub(crate) no_members: bool,
    /// Address of the control plane's API
    #[arg(long, default_value = "127.0.0.1:7443")]
    pub(crate) listen: SocketAddr,
    /// Address of the web UI; loopback only, because it is plain HTTP
    #[arg(long, default_value = "127.0.0.1:7080")]
    pub(crate) ui_listen: SocketAddr,
    /// Synthetic workloads in the members: pods=N[,churn=N/s][,size=BYTES][,seed=N]
    #[arg(long, value_name = "SPEC", conflicts_with = "no_members")]
    pub(crate) load: Option<Load>,
    /// Predefined fleet to start
    #[arg(long, value_enum)]
    pub(crate) profile: Option<Profile>,
    /// Kubeconfig file of real clusters to join instead of simulating members
    #[arg(long, value_name = "FILE", requires = "contexts", conflicts_with_all = ["members", "profile", "load"])]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Contexts of --kubeconfig to join, separated by commas
    #[arg(long, value_delimiter = ',', requires = "kubeconfig")]
    pub(crate) contexts: Vec<String>,
    #[command(flatten)]
    pub(crate) permissions: PermissionArgs,
    #[command(flatten)]
    pub(crate) parts: PartArgs,
}

impl UpArgs {
    fn config(self) -> anyhow::Result<Config> {
        self.parts.cache.backend.validate()?;
        let is_conformance = self.profile == Some(Profile::Conformance);
        let defaults = if is_conformance { runtime::Config::conformance() } else { runtime::Config::default() };
        let simulated = match self.members {
            _ if self.no_members => Vec::new(),
            Some(members) => members.read()?,
            None => default_members(is_conformance)?,
        };
        let (permissions, contexts) = (self.permissions.read()?, self.contexts);
        let members = match self.kubeconfig {
            Some(kubeconfig) => crowsnest_up::Members::Joined { kubeconfig, contexts, permissions },
            None if permissions == MemberPermissions::Full => crowsnest_up::Members::Simulated(simulated),
            None => bail!("--rights requires --kubeconfig"),
        };
        Ok(Config {
            storage: self.storage.config(),
            members,
            is_conformance,
            listen: self.listen,
            ui_listen: self.ui_listen,
            load: self.load,
            metrics_adapter: self.parts.adapter.metrics_adapter,
            controllers: self.parts.controllers.config(defaults)?,
            cache: self.parts.cache.options(PathBuf::new()),
            api: self.parts.api.config(),
            oidc: self.parts.oidc.authenticator()?,
            sign_in: self.parts.sign_in.config(),
            ui: self.parts.ui.config(),
        })
    }
}

/// The simulated members if no flag names any.
fn default_members(is_conformance: bool) -> anyhow::Result<Vec<MemberRequest>> {
    let text = if is_conformance { "m1,m2,m3" } else { "3" };
    Ok(text.parse::<MembersArg>()?.read()?)
}

/// Runs a fleet until the process receives a signal.
pub(crate) async fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    crowsnest_up::run(args.config()?).await
}
