//! Controllers of Clusters: lifecycle, status, taints, unified auth and certificates.

pub mod agent_csr_approving;
#[expect(clippy::module_inception, reason = "each folder has the name of Karmada's controller")]
pub mod cluster;
pub mod cluster_status;
pub mod cluster_taint_policy;
pub mod remedy;
pub mod unified_auth;
