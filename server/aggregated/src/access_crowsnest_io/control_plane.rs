//! The control plane in the search for indirect paths into members.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::names::execution_namespace;
use crowsnest_apimachinery::rbac::access::VisibleRbac;
use crowsnest_apimachinery::rbac::indirect::ControlPlane;
use crowsnest_members::Member;
use crowsnest_runtime::roles::RunningRoles;

use super::evaluation::ReviewedCluster;

/// Namespaces and names of the Secrets with the credentials of each member.
pub(super) type CredentialSecrets = BTreeMap<String, Vec<(String, String)>>;

/// Objects of the control plane that give access to a member.
pub(super) struct MemberAccess<'c> {
    cluster: &'c str,
    is_member: bool,
    execution_namespace: String,
    credentials: &'c [(String, String)],
}

impl<'c> MemberAccess<'c> {
    pub fn new(cluster: &ReviewedCluster<'c>, credentials: &'c CredentialSecrets) -> Self {
        let name = cluster.name();
        Self {
            cluster: name,
            is_member: !cluster.rules.cluster.is_control_plane(),
            execution_namespace: execution_namespace(name),
            credentials: credentials.get(name).map_or(&[][..], Vec::as_slice),
        }
    }

    /// The control plane for a search in the member. `None` if the cluster is the control plane itself.
    pub fn through_control_plane<'r>(&'r self, view: VisibleRbac<'r>) -> Option<ControlPlane<'r>> {
        self.is_member.then_some(ControlPlane {
            view,
            cluster: self.cluster,
            execution_namespace: &self.execution_namespace,
            credentials: self.credentials,
        })
    }
}

/// The Secrets that the Clusters reference in `secretRef` and `impersonatorSecretRef`.
pub(super) fn credential_secrets(running: &RunningRoles) -> CredentialSecrets {
    let members = running.fleet.members().into_iter();
    let secrets_of = |member: &Arc<Member>| {
        let spec = member.spec();
        let secrets = [&spec.secret_ref, &spec.impersonator_secret_ref].into_iter().flatten();
        let mut names: Vec<_> = secrets.map(|secret| (secret.namespace.clone(), secret.name.clone())).collect();
        names.dedup();
        (member.name().to_string(), names)
    };
    members.map(|member| secrets_of(&member)).collect()
}
