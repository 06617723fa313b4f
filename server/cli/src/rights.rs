//! What we may do in clusters that are joined: flags of whoever joins some.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use crowsnest_members::Rights;

#[derive(Debug, Clone, Args)]
pub struct RightsArgs {
    /// What we may do in the cluster: full; observe (read all but Secrets); steer:GROUP,… (and write in these API groups)
    #[arg(long, value_name = "RIGHTS", default_value = "full", conflicts_with = "cluster_role_file")]
    rights: Rights,
    /// A ClusterRole whose rules are what we may do in the cluster
    #[arg(long, value_name = "FILE")]
    cluster_role_file: Option<PathBuf>,
}

impl RightsArgs {
    pub fn read(&self) -> anyhow::Result<Rights> {
        let Some(path) = &self.cluster_role_file else { return Ok(self.rights.clone()) };
        let read = || anyhow::Ok(Rights::from_role(&std::fs::read_to_string(path)?)?);
        read().with_context(|| format!("--cluster-role-file {}", path.display()))
    }
}
