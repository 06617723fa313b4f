//! Flags for the permissions that the control plane gets in a joined cluster.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use crowsnest_members::MemberPermissions;

#[derive(Debug, Clone, Args)]
pub struct PermissionArgs {
    /// Permissions of the control plane in the cluster: full; observe (read all but Secrets); steer:GROUP,… (also write
    /// in these API groups)
    #[arg(long = "rights", value_name = "PERMISSIONS", default_value = "full", conflicts_with = "cluster_role_file")]
    permissions: MemberPermissions,
    /// File with a ClusterRole; its rules become the control plane's permissions in the cluster
    #[arg(long, value_name = "FILE")]
    cluster_role_file: Option<PathBuf>,
}

impl PermissionArgs {
    /// The permissions of `--rights`, or those in the file of `--cluster-role-file`.
    pub fn read(&self) -> anyhow::Result<MemberPermissions> {
        let Some(path) = &self.cluster_role_file else { return Ok(self.permissions.clone()) };
        let read = || anyhow::Ok(MemberPermissions::from_role(&std::fs::read_to_string(path)?)?);
        read().with_context(|| format!("--cluster-role-file {}", path.display()))
    }
}
