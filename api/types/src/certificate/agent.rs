//! Identity of a member's agent in its certificate (Karmada's `agentcsrapproving`).

use super::CertificateSubject;
use crowsnest_apimachinery::names::ClusterName;

/// Organization of every agent.
pub const AGENT_ORGANIZATION: &str = "system:karmada:agents";
const NAME_PREFIX: &str = "system:karmada:agent:";
/// Stands in place of a cluster name in the certificate with which `karmadactl register` creates the permissions of the
/// agent. An administrator must permit this user to do so.
const RBAC_GENERATOR: &str = "rbac-generator";

/// Owner of an agent's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agent {
    Cluster(ClusterName),
    RbacGenerator,
}

impl Agent {
    /// The agent that a subject identifies. The subject must have the name of an agent, the agents' organization and no
    /// other, and no UID.
    pub fn from_subject(subject: &CertificateSubject) -> Option<Self> {
        let suffix = subject.common_name()?.strip_prefix(NAME_PREFIX)?;
        if subject.organizations() != [AGENT_ORGANIZATION] || subject.uid().is_some() {
            return None;
        }
        if suffix == RBAC_GENERATOR {
            return Some(Self::RbacGenerator);
        }
        let cluster = ClusterName::parse(suffix).ok()?;
        // The token of a cluster "a-impersonator" has the same Secret as the impersonator's token of cluster "a".
        let is_secret_shared = suffix.ends_with("-impersonator");
        (!cluster.is_control_plane() && !is_secret_shared).then_some(Self::Cluster(cluster))
    }
}

/// User name of the agent of a cluster.
pub fn agent_name(cluster: &ClusterName) -> String {
    format!("{NAME_PREFIX}{cluster}")
}
