//! Controllers of Clusters: lifecycle, status, taints, rights and certificates.

pub mod agent_csr_approving;
pub mod cluster;
pub mod cluster_status;
pub mod cluster_taint_policy;
pub mod remedy;
pub mod unified_auth;
