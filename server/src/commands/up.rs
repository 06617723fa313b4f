//! Flags of `crowsnest up`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::bail;
use clap::Args;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_controllers::runtime;
use crowsnest_members::Rights;
use crowsnest_sim::load::Load;

use super::place::PlaceArgs;
use super::process::PartArgs;
use crowsnest_cli::rights::RightsArgs;
use crowsnest_up::Config;

/// Members to simulate: a count or names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members(pub(crate) Vec<ClusterName>);

/// More simulated members than a laptop carries is a slip of the keyboard.
const MOST_MEMBERS: usize = 200;

/// Kubeconfigs beside those of the members.
const TAKEN: [&str; 2] = ["cp", "fleet"];

impl FromStr for Members {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<String> = match text.parse::<usize>() {
            Ok(count) => (1..=count.min(MOST_MEMBERS + 1)).map(|n| format!("member{n}")).collect(),
            Err(_) => text.split(',').map(|n| n.trim().to_owned()).collect(),
        };
        if names.len() > MOST_MEMBERS {
            return Err(format!("at most {MOST_MEMBERS} members can be simulated"));
        }
        let mut parsed: Vec<ClusterName> = Vec::with_capacity(names.len());
        for name in names {
            let name = ClusterName::from_str(&name).map_err(|e| e.to_string())?;
            if TAKEN.contains(&name.as_str()) {
                return Err(format!("{name} names a kubeconfig of the fleet itself; choose another"));
            }
            if parsed.contains(&name) {
                return Err(format!("{name} is named twice"));
            }
            parsed.push(name);
        }
        Ok(Self(parsed))
    }
}

/// A ready-made fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// Members m1, m2, m3 with the node shapes, gates and quick periods of the conformance suite
    Conformance,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest up --members 5 --load pods=10000,churn=50/s\n  crowsnest up --kubeconfig ~/.kube/config --contexts prod,staging"
)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Simulated members: how many, or their names (m1,m2,m3) [default: 3]
    #[arg(long, value_name = "COUNT|NAMES", conflicts_with_all = ["no_members", "profile"])]
    pub(crate) members: Option<Members>,
    /// Simulate no members
    #[arg(long)]
    pub(crate) no_members: bool,
    /// Address of the control plane's API
    #[arg(long, default_value = "127.0.0.1:7443")]
    pub(crate) listen: SocketAddr,
    /// Address of the web UI; loopback only, it is plain HTTP
    #[arg(long, default_value = "127.0.0.1:7080")]
    pub(crate) ui_listen: SocketAddr,
    /// Synthetic workloads in the members, topped up to so many pods and changed so often: pods=N[,churn=N/s][,size=BYTES][,seed=N]
    #[arg(long, value_name = "SPEC", conflicts_with = "no_members")]
    pub(crate) load: Option<Load>,
    /// A ready-made fleet
    #[arg(long, value_enum)]
    pub(crate) profile: Option<Profile>,
    /// Join real clusters from this kubeconfig instead of simulating members
    #[arg(long, value_name = "FILE", requires = "contexts", conflicts_with_all = ["members", "profile", "load"])]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Contexts of --kubeconfig to join, by comma
    #[arg(long, value_delimiter = ',', requires = "kubeconfig")]
    pub(crate) contexts: Vec<String>,
    #[command(flatten)]
    pub(crate) rights: RightsArgs,
    #[command(flatten)]
    pub(crate) parts: PartArgs,
}

impl UpArgs {
    fn config(self) -> anyhow::Result<Config> {
        self.parts.keep.backend.check()?;
        let is_conformance = self.profile == Some(Profile::Conformance);
        let standard = if is_conformance { runtime::Config::conformance() } else { runtime::Config::default() };
        let simulated = match self.members {
            _ if self.no_members => Vec::new(),
            Some(Members(names)) => names,
            None => default_members(is_conformance)?,
        };
        let (rights, contexts) = (self.rights.read()?, self.contexts);
        let members = match self.kubeconfig {
            Some(kubeconfig) => crowsnest_up::Members::Joined { kubeconfig, contexts, rights },
            None if rights == Rights::Full => crowsnest_up::Members::Simulated(simulated),
            None => bail!("--rights are those in clusters of --kubeconfig, which is not given"),
        };
        Ok(Config {
            place: self.place.config(),
            members,
            is_conformance,
            listen: self.listen,
            ui_listen: self.ui_listen,
            load: self.load,
            metrics_adapter: self.parts.adapter.metrics_adapter,
            controllers: self.parts.controllers.read(standard)?,
            cache: self.parts.keep.options(PathBuf::new()),
            api: self.parts.edge.config(),
            oidc: self.parts.oidc.read()?,
            sign_in: self.parts.sign_in.config(),
            ui: self.parts.ui.config(),
        })
    }
}

/// The members that are simulated where no flag says how many.
fn default_members(is_conformance: bool) -> anyhow::Result<Vec<ClusterName>> {
    let text = if is_conformance { "m1,m2,m3" } else { "3" };
    text.parse().map(|Members(names)| names).map_err(anyhow::Error::msg)
}

/// Runs a fleet until the process is told to stop.
pub(crate) async fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    crowsnest_up::run(args.config()?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_a_count_or_names() {
        let cases = [
            ("3", Ok(vec!["member1", "member2", "member3"])),
            ("0", Ok(vec![])),
            ("m1, m2", Ok(vec!["m1", "m2"])),
            ("m1,m1", Err("m1 is named twice")),
            ("m1,cp", Err("cp names a kubeconfig of the fleet itself; choose another")),
            ("999", Err("at most 200 members can be simulated")),
        ];
        for (text, expected) in cases {
            let got = text.parse::<Members>();
            match expected {
                Ok(names) => {
                    let got = got.unwrap();
                    assert_eq!(got.0.iter().map(|n| n.as_str()).collect::<Vec<_>>(), names, "{text}");
                }
                Err(message) => assert_eq!(got.unwrap_err(), message, "{text}"),
            }
        }
        assert!("Not_A_Name".parse::<Members>().is_err());
    }
}
