//! Identity of a member's agent in its certificate (Karmada's `agentcsrapproving`).

use super::CertificateSubject;
use crate::names::ClusterName;

/// Organization of every agent.
pub const AGENT_ORGANIZATION: &str = "system:karmada:agents";
const NAME_PREFIX: &str = "system:karmada:agent:";
/// `karmadactl register` creates the rights of its agent under this name, where an administrator allows it.
const RBAC_GENERATOR: &str = "rbac-generator";

/// Bearer of an agent's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agent {
    Cluster(ClusterName),
    RbacGenerator,
}

impl Agent {
    /// The agent that a subject identifies: the name of an agent, its organization and no other, no UID.
    pub fn from_subject(subject: &CertificateSubject) -> Option<Self> {
        let suffix = subject.common_name()?.strip_prefix(NAME_PREFIX)?;
        if subject.organizations() != [AGENT_ORGANIZATION] || subject.uid().is_some() {
            return None;
        }
        if suffix == RBAC_GENERATOR {
            return Some(Self::RbacGenerator);
        }
        let cluster = ClusterName::parse(suffix).ok()?;
        (!cluster.is_control_plane()).then_some(Self::Cluster(cluster))
    }
}

/// User name of the agent of a cluster.
pub fn agent_name(cluster: &ClusterName) -> String {
    format!("{NAME_PREFIX}{cluster}")
}
